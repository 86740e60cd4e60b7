//! What is measured of one party: requests and tokens a minute, requests at once.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use scheduler::TenantId;

use super::{LimitError, bucket::Bucket, ticks::Ticks};
use crate::config::TenantLimits;

/// When a request that was one too many at once may be tried again; how long the others still take is not known here.
const AT_ONCE_RETRY: Duration = Duration::from_secs(2);

/// Who is measured: a tenant, or a key of it that states limits of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MeterId {
    /// The tenant.
    pub tenant: TenantId,
    /// The key's number in the store.
    pub key: Option<u32>,
}

/// Counts what is there at once. Survives a change of the limits.
#[derive(Debug, Default)]
struct Counts {
    in_flight: AtomicU32,
    queued: AtomicU32,
}

/// One party's state.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) limits: TenantLimits,
    pub(super) requests: Option<Bucket>,
    pub(super) tokens: Option<Bucket>,
    counts: Arc<Counts>,
}

impl Meter {
    /// With the counts of the one that it replaces.
    pub(super) fn new(limits: TenantLimits, ticks: &Ticks, before: Option<&Self>) -> Self {
        let bucket =
            |limit: Option<u32>| limit.and_then(NonZeroU32::new).map(|limit| Bucket::new(limit, ticks.clone()));
        Self {
            limits,
            requests: bucket(limits.requests_per_minute),
            tokens: bucket(limits.tokens_per_minute),
            counts: before.map_or_else(Arc::default, |before| Arc::clone(&before.counts)),
        }
    }

    /// Whether a fresh one would be the same.
    pub(super) fn is_fresh(&self) -> bool {
        let full = |bucket: &Option<Bucket>| bucket.as_ref().is_none_or(|bucket| bucket.level().reset.is_zero());
        let nothing = |count: &AtomicU32| count.load(Ordering::Acquire) == 0;
        full(&self.requests) && full(&self.tokens) && nothing(&self.counts.in_flight) && nothing(&self.counts.queued)
    }

    /// Counts one request in flight until the guard is dropped.
    pub(super) fn enter(&self) -> Result<InFlight, LimitError> {
        let max = self.limits.max_in_flight;
        let limited = |max| LimitError::InFlight { max, retry_after: AT_ONCE_RETRY };
        count_up(&self.counts.in_flight, max).map_err(limited)?;
        Ok(InFlight(Arc::clone(&self.counts)))
    }

    /// Counts one request in the queue until the guard is dropped.
    pub(super) fn enqueue(&self) -> Result<Queued, LimitError> {
        let max = self.limits.max_queued;
        let limited = |max| LimitError::Queued { max, retry_after: AT_ONCE_RETRY };
        count_up(&self.counts.queued, max).map_err(limited)?;
        Ok(Queued(Some(Arc::clone(&self.counts))))
    }
}

/// One more, unless that is above `max`.
fn count_up(count: &AtomicU32, max: Option<u32>) -> Result<(), u32> {
    let max = max.unwrap_or(u32::MAX);
    let more = |now: u32| (now < max).then(|| now + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).map(drop).map_err(|_| max)
}

/// A place among the requests in flight.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Counts>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A place among the tenant's waiting requests; drop it when the request stops waiting.
#[derive(Debug)]
#[must_use = "the place is given back when this is dropped"]
pub struct Queued(Option<Arc<Counts>>);

impl Queued {
    /// The place of a request whose tenant has no bound.
    pub(super) const fn unbounded() -> Self {
        Self(None)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some(counts) = &self.0 {
            counts.queued.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
