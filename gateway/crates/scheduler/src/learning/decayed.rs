//! A sum that fades: what arrived lately. Divided by the time it looks back on, it is a rate of arrival that follows the
//! hour and needs no window of events.

use super::up_to;
use crate::time::Timestamp;

/// More than any sum of work; keeps the sum a number.
const MOST: f64 = 1e18;
/// A rate over less than a second's history is noise.
const SHORTEST_HISTORY: f64 = 1.0;

/// A sum in which what was added `t` seconds ago counts e^(-t / time constant).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decayed {
    time_constant: f64,
    sum: f64,
    at: Timestamp,
}

impl Decayed {
    /// Looks back about `time_constant` seconds.
    pub(crate) fn new(time_constant: f64) -> Self {
        Self { time_constant: super::positive(time_constant).unwrap_or(1.0).max(1e-3), sum: 0.0, at: Timestamp::ZERO }
    }

    pub(crate) fn add(&mut self, amount: f64, now: Timestamp) {
        self.sum = up_to(MOST, self.sum(now) + up_to(MOST, amount));
        self.at = self.at.max(now);
    }

    pub(crate) fn sum(&self, now: Timestamp) -> f64 {
        self.sum * (-now.since(self.at).as_secs_f64() / self.time_constant).exp()
    }

    /// Per second, given the seconds since counting began: a short history is not taken for a quiet one.
    pub(crate) fn rate(&self, now: Timestamp, since_start: f64) -> f64 {
        let history = since_start.max(SHORTEST_HISTORY) / self.time_constant;
        self.sum(now) / (self.time_constant * -(-history).exp_m1())
    }
}
