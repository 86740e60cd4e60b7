//! A sum that forgets: what was added counts less the longer ago it was.

use std::time::Duration;

use crate::time::Timestamp;

/// After so long an addition counts 1/e. Ten minutes: the traffic of phones changes with people's work, not faster.
const TIME_CONSTANT: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Decayed {
    sum: f64,
    at: Timestamp,
}

impl Decayed {
    pub fn add(&mut self, amount: f64, now: Timestamp) {
        self.sum = self.sum(now) + amount;
        self.at = self.at.max(now);
    }

    pub fn sum(&self, now: Timestamp) -> f64 {
        self.sum * (-now.since(self.at).as_secs_f64() / TIME_CONSTANT.as_secs_f64()).exp()
    }

    /// Amount per second, `since_start` seconds after the first addition was possible: what a sum that is still filling
    /// lacks is made up for.
    pub fn rate(&self, now: Timestamp, since_start: f64) -> f64 {
        let constant = TIME_CONSTANT.as_secs_f64();
        // Rates over less than a second are noise.
        self.sum(now) / (constant * -(-since_start.max(1.0) / constant).exp_m1())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    #[test]
    fn a_steady_rate_is_found_from_the_first_minute_to_the_last() {
        let mut sum = Decayed::default();
        for second in 0..7200 {
            sum.add(3.0, at(second));
            if second >= 60 {
                let rate = sum.rate(at(second), second as f64);
                assert!((rate - 3.0).abs() < 0.1, "{rate} after {second} s");
            }
        }
        assert!((sum.sum(at(7800)) / sum.sum(at(7200)) - (-1.0_f64).exp()).abs() < 1e-9);
    }

    #[test]
    fn time_that_goes_back_adds_without_growing_what_is_there() {
        let mut sum = Decayed::default();
        sum.add(1.0, at(600));
        sum.add(1.0, at(0));
        assert!((sum.sum(at(600)) - 2.0).abs() < 1e-9);
    }
}
