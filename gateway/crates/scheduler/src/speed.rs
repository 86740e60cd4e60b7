//! How fast a replica is: its rates of reading and writing, alone and on an empty context, in tokens per second.
//!
//! What the rates are learned from, and how, is in `learning`; here they are together, as the ranks and the views need them.

use crate::{
    event::Rates,
    learning::{Done, History, Rate},
    time::Timestamp,
};

/// Weight of a new sample once there are a few: the last ten or so count.
const WEIGHT: f64 = 0.2;
/// One sample counts as at most this many times more, or less, than the estimate.
const CLIP: f64 = 3.0;
/// The request that replicas are compared by: a prompt and an answer of common size.
const TYPICAL_PROMPT: f64 = 1000.0;
const TYPICAL_ANSWER: f64 = 200.0;
/// Phones read this many times faster than they write; stands in for a rate that was not measured yet.
const PREFILL_PER_DECODE: f64 = 10.0;

/// Work of fewer seconds says nothing about a span of minutes.
const LEAST_SECONDS: f64 = 2.0;

/// How fast a replica was when, as a share of its mean: from `start` on, each for as long. At least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// When the first of them begins.
    pub start: Timestamp,
    /// The shares, one after the other.
    pub shares: Vec<f32>,
}

impl Pace {
    /// How long each of them lasts, in seconds.
    pub const SECONDS: f64 = History::SECONDS;

    /// The share at a moment. What was before is taken to have been like what came after, again and again.
    pub fn at(&self, when: Timestamp) -> f64 {
        let count = self.shares.len().max(1) as i64;
        let after = when.since(self.start).as_secs_f64() - self.start.since(when).as_secs_f64();
        let spans = (after / Self::SECONDS).floor() as i64;
        let at = if spans < 0 { spans.rem_euclid(count) } else { spans.min(count - 1) };
        self.shares.get(at as usize).map_or(1.0, |share| f64::from(*share))
    }
}

/// A mean of logarithms that forgets: for lengths of time, which differ by factors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogMean {
    mean: f64,
    samples: u32,
}

impl LogMean {
    pub(crate) fn add(&mut self, value: f64) {
        if !(value.is_finite() && value > 0.0) {
            return;
        }
        let mut sample = value.ln();
        if self.samples > 0 {
            sample = sample.clamp(self.mean - CLIP.ln(), self.mean + CLIP.ln());
        }
        self.samples = self.samples.saturating_add(1);
        self.mean += (sample - self.mean) * WEIGHT.max(1.0 / f64::from(self.samples));
    }

    pub(crate) fn get(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.mean.exp())
    }
}

/// The rates of one replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct Speeds {
    pub(crate) prefill: Rate,
    pub(crate) decode: Rate,
    prior: Option<Rates>,
}

impl Speeds {
    pub(crate) fn new(prior: Option<Rates>) -> Self {
        let rate = |of: fn(Rates) -> f64| Rate::new(prior.map(of));
        Self { prefill: rate(|rates| rates.prefill), decode: rate(|rates| rates.decode), prior }
    }

    /// Another prior: of use only while nothing was measured.
    pub(crate) fn expect(&mut self, prior: Option<Rates>) {
        if prior != self.prior && !self.prefill.known() && !self.decode.known() {
            *self = Self::new(prior);
        }
        self.prior = prior;
    }

    /// Reading and writing now; `typical` stands in for what was neither measured nor stated.
    pub(crate) fn at(&self, now: Timestamp, typical: (f64, f64)) -> (f64, f64) {
        (self.prefill.at(now, typical.0), self.decode.at(now, typical.1))
    }

    /// The same in the mean of the last two hours.
    pub(crate) fn mean(&self, now: Timestamp, typical: (f64, f64)) -> (f64, f64) {
        let at = self.at(now, typical);
        (self.prefill.mean(now).unwrap_or(at.0), self.decode.mean(now).unwrap_or(at.1))
    }

    /// How fast it was when, reading and writing together: in a span without work as in the one before. `None` until it was measured.
    pub(crate) fn pace(&self, now: Timestamp) -> Option<Pace> {
        let oldest = History::oldest(now);
        // No map: this is asked of every replica at once, under the scheduler's lock.
        let mut spans = [Done::default(); History::SPANS];
        for rate in [&self.prefill, &self.decode] {
            let Some(mean) = rate.mean(now) else { continue };
            for (span, done) in rate.done().spans(now) {
                if let Some(sum) = spans.get_mut((span - oldest) as usize) {
                    *sum = sum.and(Done { work: done.work / mean, seconds: done.seconds });
                }
            }
        }
        let says = |done: &Done| done.seconds >= LEAST_SECONDS;
        let (first, last) = (spans.iter().position(says)?, spans.iter().rposition(says)?);
        let mut share = 1.0;
        let shares = spans.get(first..=last)?.iter().map(|done| {
            if says(done) {
                share = (done.work / done.seconds) as f32;
            }
            share
        });
        Some(Pace { start: History::begins(oldest + first as u64), shares: shares.collect() })
    }

    /// Typical requests per second on an idle replica as measured: one number to compare replicas by. `None` until then.
    pub(crate) fn overall(&self) -> Option<f64> {
        overall(self.prefill.measured(), self.decode.measured())
    }

    /// The same, from the prior where nothing was measured.
    pub(crate) fn believed(&self) -> (Option<f64>, Option<f64>) {
        let prior = |of: fn(Rates) -> f64| self.prior.map(of).filter(|rate| rate.is_finite() && *rate > 0.0);
        let prefill = self.prefill.measured().or_else(|| prior(|rates| rates.prefill));
        (prefill, self.decode.measured().or_else(|| prior(|rates| rates.decode)))
    }
}

/// Typical requests per second at these rates.
pub(crate) fn overall(prefill: Option<f64>, decode: Option<f64>) -> Option<f64> {
    let (prefill, decode) = match (prefill, decode) {
        (Some(prefill), Some(decode)) => (prefill, decode),
        (Some(prefill), None) => (prefill, prefill / PREFILL_PER_DECODE),
        (None, Some(decode)) => (decode * PREFILL_PER_DECODE, decode),
        (None, None) => return None,
    };
    Some(1.0 / (TYPICAL_PROMPT / prefill + TYPICAL_ANSWER / decode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_only_ever_read_can_still_be_compared() {
        assert!(overall(Some(1000.0), None) > overall(Some(250.0), Some(25.0)));
        assert_eq!(overall(None, None), None);
    }

    #[test]
    fn hot_minutes_are_seen_where_they_were() {
        let mut speeds = Speeds::new(None);
        let at = |seconds: f64| Timestamp((seconds * 1e9) as u64);
        assert_eq!(speeds.pace(at(1.0)), None);
        for minute in 1..=60 {
            let share = if (21..=40).contains(&minute) { 0.5 } else { 1.0 };
            let now = at(60.0 * f64::from(minute));
            speeds.prefill.observe(100.0 * share * 10.0, 10.0, 10.0, now);
            speeds.decode.observe(20.0 * share * 20.0, 20.0, 20.0, now);
        }
        let pace = speeds.pace(at(3600.0)).expect("it was measured");
        let cool = pace.at(at(600.0));
        assert!((pace.at(at(1800.0)) / cool - 0.5).abs() < 0.01, "{pace:?}");
        assert!((pace.at(at(3500.0)) / cool - 1.0).abs() < 0.01, "{pace:?}");
        assert!((cool * speeds.mean(at(3600.0), (1.0, 1.0)).0 - 100.0).abs() < 1.0, "{pace:?}");
        // Before it was measured, and after.
        assert_eq!(pace.at(at(9000.0)), pace.at(at(3599.0)));
        let later = Pace { start: at(600.0), shares: vec![0.5, 1.0] };
        assert_eq!(
            [0.0, 130.0, 250.0, 370.0, 590.0, 610.0].map(|when| later.at(at(when))),
            [1.0, 0.5, 1.0, 0.5, 1.0, 0.5]
        );
    }

    #[test]
    fn a_prior_counts_until_something_was_measured() {
        let rates = |prefill, decode| Some(Rates { prefill, decode });
        let mut speeds = Speeds::new(rates(100.0, 10.0));
        assert_eq!(speeds.overall(), None);
        assert_eq!(speeds.believed(), (Some(100.0), Some(10.0)));
        speeds.expect(rates(200.0, 20.0));
        assert_eq!(speeds.believed(), (Some(200.0), Some(20.0)));
        speeds.prefill.observe(50.0, 1.0, 1.0, Timestamp(1));
        let measured = speeds.believed().0;
        speeds.expect(rates(900.0, 90.0));
        assert_eq!(speeds.believed().0, measured);
    }
}
