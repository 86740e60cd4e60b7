//! How fast a replica is: its rates of reading and writing, alone and on an empty context, in tokens per second.
//!
//! What the rates are learned from, and how, is in `learning`; here they are together, as the ranks and the views need them.

use crate::{event::Rates, learning::Rate, time::Timestamp};

/// Weight of a new sample once there are a few: the last ten or so count.
const WEIGHT: f64 = 0.2;
/// One sample counts as at most this many times more, or less, than the estimate.
const CLIP: f64 = 3.0;
/// The request that replicas are compared by: a prompt and an answer of common size.
const TYPICAL_PROMPT: f64 = 1000.0;
const TYPICAL_ANSWER: f64 = 200.0;
/// Phones read this many times faster than they write; stands in for a rate that was not measured yet.
const PREFILL_PER_DECODE: f64 = 10.0;

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

    /// The same in the mean of the last hour.
    pub(crate) fn mean(&self, now: Timestamp, typical: (f64, f64)) -> (f64, f64) {
        let at = self.at(now, typical);
        (self.prefill.mean(now).unwrap_or(at.0), self.decode.mean(now).unwrap_or(at.1))
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
