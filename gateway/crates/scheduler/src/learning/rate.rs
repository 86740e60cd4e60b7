//! One replica's speed in one phase, reading or writing, in tokens of work per second.
//!
//! Two estimates. The *short-term* one follows a phone that heats up within a few samples. It returns to the *long-run*
//! one while nothing is heard: a phone that was slow once gets no work, so no sample would ever say that it has cooled
//! down. Both are means of logarithms, as rates differ by factors.
//!
//! Samples are not believed alike. One that is far above the estimate is more likely a lying clock, or a cache nobody
//! knew of, than a faster phone: it counts as one three times faster, until the next says the same. One far below may
//! be a stall, but the time has really passed; it is believed as far as the bound on a single move goes.

use super::positive;
use crate::time::Timestamp;

/// Weight of a whole sample: the last three or so count.
const SHORT_WEIGHT: f64 = 0.3;
const LONG_WEIGHT: f64 = 0.1;
/// A sample counts in the long run as at most a factor of two off.
const LONG_CLIP: f64 = 0.7;
/// A prior is worth less than half of a whole sample: it says what such phones do, not what this one does.
const PRIOR_WORTH: f64 = 0.4;
/// The least that a sample can weigh.
const LIGHTEST: f64 = 0.2;
/// A sample this far off is a surprise, and one sample moves the estimate by no more: a factor of three.
const FAR: f64 = 1.098_612_288_668_109_8;
/// How much of a second surprise in the same direction is believed at least.
const CONFIRMED_WEIGHT: f64 = 0.5;
/// Without news, the short-term estimate is back at the long-run one after a few of these, in seconds.
const RETURN: f64 = 300.0;
/// An unfinished attempt bounds the rate from above and does not measure it.
const BOUND_WEIGHT: f64 = 0.5;
/// Slower is not serving, faster is no phone.
const SLOWEST: f64 = 1e-3;
const FASTEST: f64 = 1e6;

/// A replica's speed in one phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    estimate: Option<Estimate>,
    measured: bool,
    /// At most this fast, said by unfinished attempts before anything was measured or stated.
    ceiling: Option<(f64, Timestamp)>,
}

/// Logarithms of rates.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    short: f64,
    long: f64,
    /// Samples behind it, by weight, while they are few.
    worth: f64,
    heard: Timestamp,
    surprise: Surprise,
}

/// What the last sample was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surprise {
    None,
    Faster,
    Slower,
}

impl Surprise {
    fn of(distance: f64) -> Self {
        if distance > FAR {
            Self::Faster
        } else if distance < -FAR {
            Self::Slower
        } else {
            Self::None
        }
    }
}

impl Rate {
    /// A rate nobody has measured. A prior that is no rate is none.
    pub(crate) fn new(prior: Option<f64>) -> Self {
        let estimate = prior.and_then(logarithm).map(|prior| Estimate::new(prior, PRIOR_WORTH, Timestamp::ZERO));
        Self { estimate, measured: false, ceiling: None }
    }

    /// Measured at least once.
    pub(crate) fn known(&self) -> bool {
        self.measured
    }

    /// Tokens per second now. `fallback` is what is typical of the pool, for a replica that has neither sample nor prior.
    pub(crate) fn at(&self, now: Timestamp, fallback: f64) -> f64 {
        if let Some(estimate) = self.estimate {
            return estimate.at(now).exp();
        }
        let typical = logarithm(fallback).unwrap_or_default();
        let lower = self
            .ceiling
            .map_or(0.0, |(ceiling, since)| (ceiling - typical).min(0.0) * BOUND_WEIGHT * remaining(since, now));
        (typical + lower).exp()
    }

    /// The long-run rate, of a replica that was measured.
    pub(crate) fn measured(&self) -> Option<f64> {
        self.estimate.filter(|_| self.measured).map(|estimate| estimate.long.exp())
    }

    /// So much work took so long. `weight` is 1 for a sample of full worth, less for one that is mostly noise.
    pub(crate) fn observe(&mut self, work: f64, seconds: f64, weight: f64, now: Timestamp) {
        let Some(sample) = ratio(work, seconds) else { return };
        let weight = if weight > LIGHTEST { weight.min(1.0) } else { LIGHTEST };
        self.ceiling = None;
        self.measured = true;
        match &mut self.estimate {
            Some(estimate) => estimate.observe(sample, weight, now),
            None => self.estimate = Some(Estimate::new(sample, weight, now)),
        }
    }

    /// An attempt that has not finished its work in this time: the rate is at most `work_bound / seconds`. Without this,
    /// second copies hide a slow replica from its own estimate.
    pub(crate) fn at_most(&mut self, work_bound: f64, seconds: f64, now: Timestamp) {
        let Some(seconds) = positive(seconds) else { return };
        if !(work_bound.is_finite() && work_bound >= 0.0) {
            return;
        }
        let bound = bounded(work_bound / seconds).ln();
        match &mut self.estimate {
            Some(estimate) => estimate.at_most(bound, now),
            None => self.ceiling = Some((self.ceiling.map_or(bound, |(ceiling, _)| ceiling.min(bound)), now)),
        }
    }
}

impl Estimate {
    fn new(rate: f64, worth: f64, now: Timestamp) -> Self {
        Self { short: rate, long: rate, worth, heard: now, surprise: Surprise::None }
    }

    fn at(&self, now: Timestamp) -> f64 {
        self.long + (self.short - self.long) * remaining(self.heard, now)
    }

    fn hear(&mut self, now: Timestamp) {
        self.short = self.at(now);
        self.heard = self.heard.max(now);
    }

    fn observe(&mut self, sample: f64, weight: f64, now: Timestamp) {
        self.hear(now);
        self.worth = (self.worth + weight).min(1.0 / LONG_WEIGHT);
        let early = weight / self.worth;

        let distance = sample - self.short;
        let surprise = Surprise::of(distance);
        let confirmed = surprise != Surprise::None && surprise == self.surprise;
        self.surprise = surprise;
        let few = early > SHORT_WEIGHT;
        let believed = if confirmed || few { distance } else { distance.min(FAR) };
        let pull = (SHORT_WEIGHT * weight).max(if few { early } else { 0.0 });
        let pull = if confirmed { pull.max(CONFIRMED_WEIGHT * weight) } else { pull };
        self.short += (believed * pull).clamp(-FAR, FAR);

        let long_pull = (LONG_WEIGHT * weight).max(early);
        let long_clip = if few { FAR } else { LONG_CLIP };
        self.long += (sample - self.long).clamp(-long_clip, long_clip) * long_pull;
    }

    fn at_most(&mut self, bound: f64, now: Timestamp) {
        let current = self.at(now);
        if bound >= current {
            return;
        }
        self.hear(now);
        self.short += ((bound - current) * BOUND_WEIGHT).max(-FAR);
        self.long += (bound - self.long).clamp(-LONG_CLIP, 0.0) * LONG_WEIGHT * BOUND_WEIGHT;
    }
}

/// How much of a short-term deviation is left.
fn remaining(since: Timestamp, now: Timestamp) -> f64 {
    (-now.since(since).as_secs_f64() / RETURN).exp()
}

fn bounded(rate: f64) -> f64 {
    rate.clamp(SLOWEST, FASTEST)
}

fn logarithm(rate: f64) -> Option<f64> {
    positive(rate).map(|rate| bounded(rate).ln())
}

/// The logarithm of a measured rate.
fn ratio(work: f64, seconds: f64) -> Option<f64> {
    logarithm(positive(work)? / positive(seconds)?)
}
