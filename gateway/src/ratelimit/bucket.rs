//! So many units a minute, with a correction afterwards.
//!
//! `governor` decides (GCRA: one atomic number, no timer). It has no way to give units back or to charge for what turned
//! out to be more, and tokens are only known at the end; so the bucket shares the number with it and moves it by the
//! difference.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::Clock as _,
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed, StateStore},
};

use super::ticks::Ticks;

/// Longest time that a correction can close a bucket for. Usage comes from replicas, which are not trusted: a silly number
/// must not lock a tenant out for good.
const MAX_DEBT: Duration = Duration::from_secs(600);

/// The number that `governor` keeps: when the bucket will be full again, since its start.
#[derive(Debug)]
struct Shared(Arc<InMemoryState>);

impl StateStore for Shared {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, key: &NotKeyed, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.0.measure_and_replace(key, f)
    }
}

/// Units a minute; a full minute's worth may be used at once.
#[derive(Debug)]
pub(super) struct Bucket {
    limiter: RateLimiter<NotKeyed, Shared, Ticks, NoOpMiddleware<Nanos>>,
    state: Arc<InMemoryState>,
    ticks: Ticks,
    start: Nanos,
    limit: NonZeroU32,
    /// Nanoseconds in which one unit comes back.
    per_unit: u64,
}

/// How full a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// When full.
    pub limit: u32,
    /// Now.
    pub remaining: u32,
    /// Until it is full.
    pub reset: Duration,
}

impl Bucket {
    pub(super) fn new(limit: NonZeroU32, ticks: Ticks) -> Self {
        let quota = Quota::per_minute(limit);
        let state = Arc::new(InMemoryState::default());
        let start = ticks.now();
        let limiter = RateLimiter::new(quota, Shared(Arc::clone(&state)), ticks.clone());
        let per_unit = u64::try_from(quota.replenish_interval().as_nanos()).unwrap_or(u64::MAX).max(1);
        Self { limiter, state, ticks, start, limit, per_unit }
    }

    /// Takes units, or says how long until there are enough. More than the whole bucket counts as the whole bucket: such
    /// a request waits until it is full, instead of being impossible. Returns what was taken.
    pub(super) fn take(&self, units: u64) -> Result<u64, Duration> {
        let units = u32::try_from(units).unwrap_or(u32::MAX).min(self.limit.get());
        let Some(count) = NonZeroU32::new(units) else { return Ok(0) };
        match self.limiter.check_n(count) {
            Ok(Ok(())) => Ok(u64::from(units)),
            Ok(Err(not_until)) => Err(not_until.wait_time_from(self.ticks.now())),
            Err(_) => Err(Duration::from_secs(60)), // more than the bucket: excluded above
        }
    }

    /// Corrects what was taken to what was used.
    pub(super) fn correct(&self, taken: u64, used: u64) {
        let now = self.now();
        let latest = now.saturating_add(u64::try_from(MAX_DEBT.as_nanos()).unwrap_or(u64::MAX));
        let moved = |full_at: u64| {
            if used >= taken {
                let more = (used - taken).saturating_mul(self.per_unit);
                full_at.max(now).saturating_add(more).min(latest.max(full_at))
            } else {
                full_at.saturating_sub((taken - used).saturating_mul(self.per_unit))
            }
        };
        let full_at = |state: Option<Nanos>| state.map_or(now, Nanos::as_u64);
        let done: Result<(), ()> =
            self.state.measure_and_replace(&NotKeyed::NonKey, |state| Ok(((), Nanos::new(moved(full_at(state))))));
        debug_assert!(done.is_ok());
    }

    /// How full it is.
    pub(super) fn level(&self) -> Level {
        let now = self.now();
        let read: Result<(), Option<Nanos>> = self.state.measure_and_replace(&NotKeyed::NonKey, Err);
        let until_full = read.err().flatten().map_or(0, |full_at| full_at.as_u64().saturating_sub(now));
        let missing = until_full.div_ceil(self.per_unit);
        let limit = self.limit.get();
        let remaining = u64::from(limit).saturating_sub(missing);
        Level { limit, remaining: u32::try_from(remaining).unwrap_or(limit), reset: Duration::from_nanos(until_full) }
    }

    fn now(&self) -> u64 {
        self.ticks.now().as_u64().saturating_sub(self.start.as_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(limit: u32) -> (Bucket, Ticks) {
        let ticks = Ticks::manual();
        ticks.advance(Duration::from_secs(1_000));
        (Bucket::new(NonZeroU32::new(limit).unwrap(), ticks.clone()), ticks)
    }

    #[test]
    fn a_minutes_worth_may_be_used_at_once_and_comes_back_evenly() {
        let (bucket, ticks) = bucket(60);
        for _ in 0..60 {
            assert_eq!(bucket.take(1), Ok(1));
        }
        assert_eq!(bucket.take(1), Err(Duration::from_secs(1)));
        assert_eq!(bucket.level(), Level { limit: 60, remaining: 0, reset: Duration::from_secs(60) });
        ticks.advance(Duration::from_secs(10));
        assert_eq!(bucket.level().remaining, 10);
        assert_eq!(bucket.take(10), Ok(10));
        assert_eq!(bucket.take(2), Err(Duration::from_secs(2)));
    }

    #[test]
    fn what_was_taken_too_much_comes_back_and_what_was_too_little_is_charged() {
        let (bucket, _) = bucket(6_000);
        assert_eq!(bucket.take(5_000), Ok(5_000));
        bucket.correct(5_000, 1_000);
        assert_eq!(bucket.level().remaining, 5_000);
        assert_eq!(bucket.take(1_000), Ok(1_000));
        bucket.correct(1_000, 3_000);
        assert_eq!(bucket.level().remaining, 2_000);
    }

    #[test]
    fn giving_back_never_makes_more_than_a_full_bucket() {
        let (bucket, ticks) = bucket(600);
        assert_eq!(bucket.take(600), Ok(600));
        ticks.advance(Duration::from_secs(120));
        bucket.correct(600, 0);
        assert_eq!(bucket.level(), Level { limit: 600, remaining: 600, reset: Duration::ZERO });
        assert_eq!(bucket.take(600), Ok(600));
        assert!(bucket.take(1).is_err());
    }

    #[test]
    fn more_than_the_whole_bucket_waits_until_it_is_full() {
        let (bucket, ticks) = bucket(600);
        assert_eq!(bucket.take(u64::MAX), Ok(600));
        assert_eq!(bucket.take(u64::MAX), Err(Duration::from_secs(60)));
        ticks.advance(Duration::from_secs(60));
        assert_eq!(bucket.take(10_000), Ok(600));
    }

    #[test]
    fn a_silly_correction_closes_the_bucket_for_ten_minutes_at_most() {
        let (bucket, ticks) = bucket(600);
        bucket.correct(0, u64::MAX);
        bucket.correct(0, u64::MAX);
        assert!(bucket.take(1).is_err());
        ticks.advance(MAX_DEBT);
        assert_eq!(bucket.take(600), Ok(600));
    }

    #[test]
    fn the_smallest_and_the_largest_limits_do_not_overflow() {
        for limit in [1, 7, u32::MAX] {
            let (bucket, ticks) = bucket(limit);
            assert_eq!(bucket.take(u64::MAX), Ok(u64::from(limit)));
            assert_eq!(bucket.level().remaining, 0);
            bucket.correct(u64::from(limit), u64::MAX);
            ticks.advance(MAX_DEBT + Duration::from_secs(60));
            assert_eq!(bucket.level().remaining, limit);
        }
    }
}
