//! The logarithm of a rate, followed in the short and in the long run.
//!
//! Two estimates: the *short-term* one follows a phone that heats up within a few samples. It returns to the *long-run*
//! one while nothing is heard: a phone that was slow once gets no work, so no sample would ever say that it has cooled
//! down. Both are means of logarithms, as rates differ by factors.
//!
//! Samples are not believed alike. One that is far above the estimate is more likely a lying clock, or a cache nobody
//! knew of, than a faster phone: it counts as one three times faster, until the next says the same. One far below may
//! be a stall, but the time has really passed; it is believed as far as the bound on a single move goes.

use crate::time::Timestamp;

/// How many whole samples count: the last three or so, what a phone needs to heat up, and the last ten.
const SHORT_MEMORY: f64 = 1.0 / 0.3;
const LONG_MEMORY: f64 = 10.0;
/// A sample counts in the long run as at most a factor of two off.
const LONG_CLIP: f64 = 0.7;
/// A sample this far off is a surprise, and one sample moves the estimate by no more: a factor of three.
const FAR: f64 = 1.098_612_288_668_109_8;
/// How much of a second surprise in the same direction is believed at least.
const CONFIRMED_PULL: f64 = 0.5;
/// Without news, the short-term estimate is back at the long-run one after a few of these, in seconds.
pub(crate) const RETURN: f64 = 300.0;
/// An unfinished attempt bounds the rate from above and does not measure it.
pub(crate) const BOUND_WEIGHT: f64 = 0.5;

/// Logarithms of a rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trend {
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
    /// After a surprise, what is still well off in the same direction is one too: the estimate has not caught up.
    fn of(distance: f64, last: Self) -> Self {
        let limit = |same| if last == same { FAR / 3.0 } else { FAR };
        if distance > limit(Self::Faster) {
            Self::Faster
        } else if -distance > limit(Self::Slower) {
            Self::Slower
        } else {
            Self::None
        }
    }
}

impl Trend {
    /// Starts at the logarithm of a rate that is worth so many whole samples.
    pub(crate) fn new(rate: f64, worth: f64, now: Timestamp) -> Self {
        Self { short: rate, long: rate, worth, heard: now, surprise: Surprise::None }
    }

    /// The short-term estimate, as far as it has not returned to the long-run one.
    pub(crate) fn at(&self, now: Timestamp) -> f64 {
        self.long + (self.short - self.long) * remaining(self.heard, now)
    }

    pub(crate) fn long_run(&self) -> f64 {
        self.long
    }

    fn hear(&mut self, now: Timestamp) {
        self.short = self.at(now);
        self.heard = self.heard.max(now);
    }

    /// A sample of this weight, at most 1.
    pub(crate) fn observe(&mut self, sample: f64, weight: f64, now: Timestamp) {
        self.hear(now);
        self.worth = (self.worth + weight).min(LONG_MEMORY);
        // Plain means while samples are few; then means that forget.
        let few = self.worth < SHORT_MEMORY;
        let (short_pull, long_pull) = (weight / self.worth.min(SHORT_MEMORY), weight / self.worth);

        let distance = sample - self.short;
        let surprise = Surprise::of(distance, self.surprise);
        let confirmed = surprise != Surprise::None && surprise == self.surprise;
        self.surprise = surprise;
        let believed = if confirmed || few { distance } else { distance.min(FAR) };
        let pull = if confirmed { short_pull.max(CONFIRMED_PULL * weight) } else { short_pull };
        self.short += (believed * pull).clamp(-FAR, FAR);

        let clip = if few { FAR } else { LONG_CLIP };
        self.long += (sample - self.long).clamp(-clip, clip) * long_pull;
    }

    /// The rate is at most this: halfway there, in the long run a little.
    pub(crate) fn at_most(&mut self, bound: f64, now: Timestamp) {
        let current = self.at(now);
        if bound >= current {
            return;
        }
        self.hear(now);
        self.short += ((bound - current) * BOUND_WEIGHT).max(-FAR);
        self.long += (bound - self.long).clamp(-LONG_CLIP, 0.0) * BOUND_WEIGHT / LONG_MEMORY;
    }
}

/// How much of a short-term deviation is left.
pub(crate) fn remaining(since: Timestamp, now: Timestamp) -> f64 {
    (-now.since(since).as_secs_f64() / RETURN).exp()
}
