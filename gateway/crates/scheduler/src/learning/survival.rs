//! How long replicas last: failures per second of being up.
//!
//! A replica fails a few times a day, so its own record says little and the pool's says what to expect. The two are
//! combined as a Gamma prior is with Poisson counts: the pool's rate counts as one failure in the time the pool takes to
//! one, and the replica's failures and seconds are added to it. One that died four times in an hour is soon expected to
//! die again; one that has lived for a day is trusted for the next hour.
//!
//! Memory is counted in time lived and not by the clock, as a replica that is away says nothing.

use super::up_to;

/// Until anything fails: once in two hours.
const PRIOR: f64 = 1.0 / 7200.0;
/// What the pool's rate counts as against the replica's own record, and the prior against the pool's: failures.
const PRIOR_WORTH: f64 = 1.0;
/// Seconds lived after which an old record counts 1/e: a day of a replica, a thousand hours of all replicas of a pool.
const MEMORY: f64 = 24.0 * 3600.0;
const POOL_MEMORY: f64 = 1000.0 * 3600.0;
/// No failure in a year to one every ten seconds.
const RATES: (f64, f64) = (1.0 / (365.0 * 24.0 * 3600.0), 0.1);
/// Longest life in one piece.
const LONGEST: f64 = 30.0 * 24.0 * 3600.0;

/// Failures, and the seconds in which they happened.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    failures: f64,
    seconds: f64,
}

impl Record {
    fn lived(&mut self, seconds: f64, memory: f64) {
        let seconds = up_to(LONGEST, seconds);
        let keep = (-seconds / memory).exp();
        self.failures *= keep;
        // What is lived fades while it is lived.
        self.seconds = self.seconds * keep + memory * (1.0 - keep);
    }

    fn died(&mut self) {
        self.failures += 1.0;
    }

    fn rate(&self, prior: f64) -> f64 {
        ((self.failures + PRIOR_WORTH) / (self.seconds + PRIOR_WORTH / prior)).clamp(RATES.0, RATES.1)
    }
}

/// One replica's failures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hazard(Record);

impl Hazard {
    /// Failures per second to expect, given the pool's.
    pub(crate) fn rate(&self, pool: f64) -> f64 {
        let pool = super::positive(pool).unwrap_or(PRIOR).clamp(RATES.0, RATES.1);
        self.0.rate(pool)
    }

    /// It was up so long, since this was last said.
    pub(crate) fn lived(&mut self, seconds: f64) {
        self.0.lived(seconds, MEMORY);
    }

    pub(crate) fn died(&mut self) {
        self.0.died();
    }
}

/// The failures of all replicas of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolHazard(Record);

impl PoolHazard {
    /// Failures per second of a replica of which nothing is known.
    pub(crate) fn rate(&self) -> f64 {
        self.0.rate(PRIOR)
    }

    /// One replica was up so long, since this was last said of it.
    pub(crate) fn lived(&mut self, seconds: f64) {
        self.0.lived(seconds, POOL_MEMORY);
    }

    pub(crate) fn died(&mut self) {
        self.0.died();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const HOUR: f64 = 3600.0;

    #[test]
    fn before_anything_is_known_a_replica_fails_once_in_two_hours() {
        assert!((PoolHazard::default().rate() - PRIOR).abs() < 1e-12);
        assert!((Hazard::default().rate(1.0 / HOUR) - 1.0 / HOUR).abs() < 1e-12);
    }

    #[test]
    fn the_pool_finds_its_rate_and_a_replica_is_told_from_it() {
        let (mut rng, mut pool) = (Rng::new(1), PoolHazard::default());
        let (mut steady, mut shaky) = (Hazard::default(), Hazard::default());
        let mut live = |replica: &mut Hazard, mean: f64| {
            let mut left = 24.0 * HOUR;
            while left > 0.0 {
                let life = -(1.0 - rng.unit()).ln() * mean;
                pool.lived(life.min(left));
                replica.lived(life.min(left));
                if life < left {
                    pool.died();
                    replica.died();
                }
                left -= life;
            }
        };
        for _ in 0..50 {
            live(&mut Hazard::default(), HOUR);
        }
        live(&mut steady, 40.0 * HOUR);
        live(&mut shaky, 0.2 * HOUR);
        let typical = pool.rate();
        assert!((typical * HOUR).ln().abs() < 0.2, "{typical}");
        assert!(steady.rate(typical) < 0.3 * typical);
        assert!(shaky.rate(typical) > 3.0 * typical);
    }

    #[test]
    fn a_few_failures_in_a_row_count_and_are_lived_down() {
        let pool = 1.0 / (2.0 * HOUR);
        let mut replica = Hazard::default();
        for _ in 0..4 {
            replica.lived(300.0);
            replica.died();
        }
        let shaky = replica.rate(pool);
        assert!(shaky > 3.0 * pool);
        for _ in 0..48 {
            replica.lived(HOUR);
        }
        assert!(replica.rate(pool) < 0.3 * pool.max(shaky));
    }

    #[test]
    fn long_pieces_count_as_the_same_time_in_short_ones() {
        let (mut long, mut short) = (Hazard::default(), Hazard::default());
        long.died();
        short.died();
        long.lived(10.0 * HOUR);
        for _ in 0..36_000 {
            short.lived(1.0);
        }
        assert!((long.rate(PRIOR) / short.rate(PRIOR) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn no_input_makes_it_anything_but_a_rate() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1.0, 1e300];
        let (mut replica, mut pool) = (Hazard::default(), PoolHazard::default());
        for seconds in odd {
            for _ in 0..10_000 {
                replica.lived(seconds);
                pool.lived(seconds);
                replica.died();
                pool.died();
            }
            for typical in odd {
                assert!((RATES.0..=RATES.1).contains(&replica.rate(typical)));
            }
            assert!((RATES.0..=RATES.1).contains(&pool.rate()));
        }
    }
}
