//! How often: what a tenant may ask, a minute and at once.
//!
//! Requests are counted on arrival; tokens are estimated at the start, when they can still be refused, and corrected at
//! the end, when they are known. What a request holds is a [`Permit`]: taken by admission, given back by dropping. A
//! tenant without limits costs nothing here. (A request that joins another's answer is to be told apart before this
//! stage: it costs no phone anything.)
//!
//! Rejected: a bucket that refuses what is larger than itself. A prompt of more tokens than a minute allows would be
//! impossible for ever; here it waits for a full bucket.

mod bucket;
mod headers;
mod meter;
mod ticks;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use http::{HeaderName, HeaderValue};

use self::{
    bucket::Bucket,
    meter::{InFlight, Meter},
};
pub use self::{
    meter::{MeterId, Queued},
    ticks::Ticks,
};
use crate::{
    auth::Tenant,
    config::{TenantLimits, show_duration},
    error::ApiError,
};

/// Meters before the first look for those that a fresh one could replace.
const SWEEP_FROM: usize = 1_024;

/// Which limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Requests a minute.
    #[error("Rate limit reached: {limit} requests per minute. Try again in {after}.", after = in_seconds(.retry_after))]
    Requests {
        /// A minute.
        limit: u32,
        /// When there is room for one.
        retry_after: Duration,
    },
    /// Tokens a minute.
    #[error("Rate limit reached: {limit} tokens per minute, {asked} asked for. Try again in {after}.", after = in_seconds(.retry_after))]
    Tokens {
        /// A minute.
        limit: u32,
        /// By this request.
        asked: u64,
        /// When there is room for it.
        retry_after: Duration,
    },
    /// Requests at once.
    #[error("Rate limit reached: {max} requests at once.")]
    InFlight {
        /// At once.
        max: u32,
        /// A guess.
        retry_after: Duration,
    },
    /// Waiting requests at once.
    #[error("Rate limit reached: {max} requests waiting at once.")]
    Queued {
        /// At once.
        max: u32,
        /// A guess.
        retry_after: Duration,
    },
}

impl LimitError {
    /// When trying again makes sense.
    pub const fn retry_after(&self) -> Duration {
        match self {
            Self::Requests { retry_after, .. }
            | Self::Tokens { retry_after, .. }
            | Self::InFlight { retry_after, .. }
            | Self::Queued { retry_after, .. } => *retry_after,
        }
    }
}

/// In whole seconds, rounded up: what people are told, and what `retry-after` can say.
fn in_seconds(length: &Duration) -> String {
    show_duration(Duration::from_secs(length.as_secs() + u64::from(length.subsec_nanos() > 0)))
}

impl From<LimitError> for ApiError {
    fn from(error: LimitError) -> Self {
        Self::RateLimited { message: error.to_string(), retry_after: error.retry_after() }
    }
}

/// All tenants' meters. Their number is bounded by the tenants and keys that operators made.
#[derive(Debug)]
pub struct Limiter {
    meters: DashMap<MeterId, Arc<Meter>>,
    sweep_at: AtomicUsize,
    ticks: Ticks,
}

impl Default for Limiter {
    fn default() -> Self {
        Self::new()
    }
}

impl Limiter {
    /// On the process' clock.
    pub fn new() -> Self {
        Self::with_ticks(Ticks::Process)
    }

    /// On another clock.
    pub fn with_ticks(ticks: Ticks) -> Self {
        Self { meters: DashMap::new(), sweep_at: AtomicUsize::new(SWEEP_FROM), ticks }
    }

    /// A permit for work that no tenant's limits are for: a line of a batch, which waits for its turn anyway.
    pub const fn exempt() -> Permit {
        Permit { meter: None, charged: None }
    }

    /// Admits a request of a tenant, or refuses it.
    ///
    /// # Errors
    /// The tenant has as many requests in flight, or had as many in this minute, as it may.
    pub fn admit(&self, tenant: &Tenant) -> Result<Permit, LimitError> {
        if tenant.limits == TenantLimits::default() {
            return Ok(Permit { meter: None, charged: None });
        }
        let meter = self.meter(tenant);
        let in_flight = meter.enter()?;
        if let Some(bucket) = &meter.requests {
            let refused = |retry_after| LimitError::Requests { limit: bucket.level().limit, retry_after };
            bucket.take(1).map_err(refused)?;
        }
        Ok(Permit { meter: Some((meter, in_flight)), charged: None })
    }

    /// The tenant's meter; a new one with the same counts when its limits are others than they were.
    fn meter(&self, tenant: &Tenant) -> Arc<Meter> {
        if let Some(meter) = self.meters.get(&tenant.meter)
            && meter.limits == tenant.limits
        {
            return Arc::clone(&meter);
        }
        self.sweep();
        let mut entry = self.meters.entry(tenant.meter).or_insert_with(|| self.new_meter(tenant.limits, None));
        if entry.limits != tenant.limits {
            *entry = self.new_meter(tenant.limits, Some(&entry));
        }
        Arc::clone(&entry)
    }

    fn new_meter(&self, limits: TenantLimits, before: Option<&Meter>) -> Arc<Meter> {
        Arc::new(Meter::new(limits, &self.ticks, before))
    }

    /// Forgets meters that a fresh one could replace, each time that there are twice as many as were left.
    fn sweep(&self) {
        if self.meters.len() < self.sweep_at.load(Ordering::Relaxed) {
            return;
        }
        self.meters.retain(|_, meter| Arc::strong_count(meter) > 1 || !meter.is_fresh());
        self.sweep_at.store((2 * self.meters.len()).max(SWEEP_FROM), Ordering::Relaxed);
    }
}

/// What an admitted request holds. Dropping it gives the place in flight back; tokens that were charged stay charged
/// unless [`Permit::settle`] says what was used.
#[derive(Debug)]
#[must_use = "the place in flight is given back when this is dropped"]
pub struct Permit {
    meter: Option<(Arc<Meter>, InFlight)>,
    /// Tokens that were taken; `None` before [`Permit::charge`].
    charged: Option<u64>,
}

impl Permit {
    fn tokens(&self) -> Option<&Bucket> {
        self.meter.as_ref().and_then(|(meter, _)| meter.tokens.as_ref())
    }

    /// Takes the tokens that the request will probably use.
    ///
    /// # Errors
    /// The tenant has not so many left in this minute. Nothing was taken.
    pub fn charge(&mut self, tokens: u64) -> Result<(), LimitError> {
        let Some(bucket) = self.tokens() else { return Ok(()) };
        let refused = |retry_after| LimitError::Tokens { limit: bucket.level().limit, asked: tokens, retry_after };
        let taken = bucket.take(tokens).map_err(refused)?;
        self.charged = Some(self.charged.unwrap_or(0).saturating_add(taken));
        Ok(())
    }

    /// Corrects what was charged to what was used; `None` (nobody knows) leaves it. A request that no replica has seen
    /// used 0.
    pub fn settle(&mut self, used: Option<u64>) {
        if let (Some(charged), Some(used)) = (self.charged, used)
            && let Some(bucket) = self.tokens()
        {
            bucket.correct(charged, used);
            self.charged = Some(used);
        }
    }

    /// A place among the tenant's waiting requests; hold it until the request runs.
    ///
    /// # Errors
    /// As many wait as may.
    pub fn enqueue(&self) -> Result<Queued, LimitError> {
        self.meter.as_ref().map_or_else(|| Ok(Queued::unbounded()), |(meter, _)| meter.enqueue())
    }

    /// The names of all that [`Permit::headers`] can give.
    pub fn header_names() -> impl Iterator<Item = HeaderName> {
        headers::names()
    }

    /// `x-ratelimit-*` for what is limited.
    pub fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let Some((meter, _)) = &self.meter else { return Vec::new() };
        headers::headers(meter.requests.as_ref().map(Bucket::level), meter.tokens.as_ref().map(Bucket::level))
    }
}

#[cfg(test)]
mod tests {
    use scheduler::TenantId;

    use super::*;

    fn tenant(number: u32, limits: TenantLimits) -> Tenant {
        let mut tenant = Tenant::unlimited(TenantId(number), "bank");
        tenant.limits = limits;
        tenant
    }

    fn limiter() -> (Limiter, Ticks) {
        let ticks = Ticks::manual();
        (Limiter::with_ticks(ticks.clone()), ticks)
    }

    #[test]
    fn a_tenant_without_limits_is_always_admitted_and_leaves_no_trace() {
        let (limiter, _) = limiter();
        let mut permit = limiter.admit(&tenant(1, TenantLimits::default())).unwrap();
        permit.charge(u64::MAX).unwrap();
        permit.settle(Some(u64::MAX));
        drop(permit.enqueue().unwrap());
        assert!(permit.headers().is_empty() && limiter.meters.is_empty());
    }

    #[test]
    fn requests_a_minute_are_counted_and_the_refusal_says_when() {
        let (limiter, ticks) = limiter();
        let bank = tenant(1, TenantLimits { requests_per_minute: Some(2), ..TenantLimits::default() });
        drop(limiter.admit(&bank).unwrap());
        drop(limiter.admit(&bank).unwrap());
        let error = limiter.admit(&bank).unwrap_err();
        assert_eq!(error, LimitError::Requests { limit: 2, retry_after: Duration::from_secs(30) });
        assert_eq!(error.to_string(), "Rate limit reached: 2 requests per minute. Try again in 30s.");
        drop(limiter.admit(&tenant(2, bank.limits)).expect("another tenant has its own"));
        ticks.advance(Duration::from_secs(30));
        drop(limiter.admit(&bank).unwrap());
    }

    #[test]
    fn requests_at_once_are_given_back_by_dropping() {
        let (limiter, _) = limiter();
        let bank = tenant(1, TenantLimits { max_in_flight: Some(2), max_queued: Some(1), ..TenantLimits::default() });
        let (one, two) = (limiter.admit(&bank).unwrap(), limiter.admit(&bank).unwrap());
        assert!(matches!(limiter.admit(&bank), Err(LimitError::InFlight { max: 2, .. })));
        let waiting = one.enqueue().unwrap();
        assert!(matches!(two.enqueue(), Err(LimitError::Queued { max: 1, .. })));
        drop(waiting);
        drop(two.enqueue().unwrap());
        drop(two);
        drop(limiter.admit(&bank).unwrap());
    }

    #[test]
    fn a_refused_request_holds_no_place() {
        let (limiter, ticks) = limiter();
        let limits = TenantLimits { requests_per_minute: Some(1), max_in_flight: Some(1), ..TenantLimits::default() };
        let bank = tenant(1, limits);
        drop(limiter.admit(&bank).unwrap());
        assert!(matches!(limiter.admit(&bank), Err(LimitError::Requests { .. })));
        ticks.advance(Duration::from_secs(60));
        drop(limiter.admit(&bank).expect("the refused one holds no place in flight"));
    }

    #[test]
    fn tokens_are_estimated_first_and_corrected_last() {
        let (limiter, _) = limiter();
        let bank = tenant(1, TenantLimits { tokens_per_minute: Some(1_000), ..TenantLimits::default() });
        let mut permit = limiter.admit(&bank).unwrap();
        permit.charge(800).unwrap();
        let mut second = limiter.admit(&bank).unwrap();
        let error = second.charge(300).unwrap_err();
        assert_eq!(error, LimitError::Tokens { limit: 1_000, asked: 300, retry_after: Duration::from_secs(6) });
        permit.settle(Some(100));
        permit.settle(Some(100)); // twice is once
        second.charge(300).unwrap();
        let remaining =
            second.headers().into_iter().find(|(name, _)| name == "x-ratelimit-remaining-tokens").unwrap().1;
        assert_eq!(remaining, "600");
        second.settle(None);
        drop(second);
        let third = limiter.admit(&bank).unwrap();
        let remaining = third.headers().into_iter().find(|(name, _)| name == "x-ratelimit-remaining-tokens").unwrap().1;
        assert_eq!(remaining, "600", "what nobody knows stays charged");
    }

    #[test]
    fn changed_limits_hold_at_once_and_keep_what_is_in_flight() {
        let (limiter, _) = limiter();
        let limits = |max| TenantLimits { max_in_flight: Some(max), ..TenantLimits::default() };
        let held = (limiter.admit(&tenant(1, limits(5))).unwrap(), limiter.admit(&tenant(1, limits(5))).unwrap());
        assert!(limiter.admit(&tenant(1, limits(2))).is_err());
        drop(held);
        drop(limiter.admit(&tenant(1, limits(2))).unwrap());
    }

    #[test]
    fn meters_that_a_fresh_one_could_replace_are_forgotten() {
        let (limiter, ticks) = limiter();
        let limits = TenantLimits { requests_per_minute: Some(60), ..TenantLimits::default() };
        let held = limiter.admit(&tenant(0, limits)).unwrap();
        for number in 1..10_000 {
            drop(limiter.admit(&tenant(number, limits)).unwrap());
            ticks.advance(Duration::from_millis(100));
        }
        assert!(limiter.meters.len() <= 2 * SWEEP_FROM, "{}", limiter.meters.len());
        assert!(limiter.meters.contains_key(&MeterId { tenant: TenantId(0), key: None }));
        drop(held);
    }

    #[test]
    fn many_threads_never_get_more_than_the_limit() {
        let (limiter, _) = limiter();
        let bank = tenant(1, TenantLimits { requests_per_minute: Some(100), ..TenantLimits::default() });
        let admitted = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let good = (0..50).filter(|_| limiter.admit(&bank).is_ok()).count();
                    admitted.fetch_add(good, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(admitted.into_inner(), 100);
    }
}
