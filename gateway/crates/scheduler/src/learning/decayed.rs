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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn at(seconds: f64) -> Timestamp {
        Timestamp((seconds * 1e9) as u64)
    }

    #[test]
    fn fades_with_its_time_constant() {
        let mut sum = Decayed::new(60.0);
        sum.add(5.0, at(0.0));
        assert!((sum.sum(at(60.0)) - 5.0 / std::f64::consts::E).abs() < 1e-9);
        sum.add(1.0, at(60.0));
        assert!((sum.sum(at(60.0)) - 5.0 / std::f64::consts::E - 1.0).abs() < 1e-9);
        assert!(sum.sum(at(1e9)) < 1e-9);
    }

    #[test]
    fn the_rate_of_steady_arrivals_is_found_early_and_late() {
        for seed in 0..10 {
            let (mut rng, mut sum, mut now) = (Rng::new(seed), Decayed::new(600.0), 0.0);
            for checked in [60.0, 300.0, 3000.0] {
                while now < checked {
                    now += -(1.0 - rng.unit()).ln() / 2.0;
                    sum.add(10.0, at(now));
                }
                let rate = sum.rate(at(now), now);
                assert!((rate / 20.0 - 1.0).abs() < 0.35, "{seed} at {checked}: {rate}");
            }
        }
    }

    #[test]
    fn nothing_makes_it_anything_but_a_number() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1.0, 1e300];
        for constant in odd {
            let mut sum = Decayed::new(constant);
            for (second, amount) in odd.into_iter().enumerate() {
                // Time may seem to go back.
                let now = at(10.0 - second as f64);
                sum.add(amount, now);
                for history in odd {
                    let rate = sum.rate(now, history);
                    assert!(rate.is_finite() && rate >= 0.0, "{constant} {amount} {history}: {rate}");
                }
            }
            assert!(sum.rate(Timestamp::NEVER, 1.0).is_finite());
        }
    }
}
