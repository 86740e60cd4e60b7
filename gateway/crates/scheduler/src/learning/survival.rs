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
