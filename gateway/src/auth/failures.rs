//! The budget of wrong keys for each address: a guesser gets no more look-ups, and costs nothing.
//!
//! Counted by `governor`; the map of addresses is shared with it, so that it can be read without counting (and without
//! making an entry). An IPv6 address counts as its /64, which one customer has whole. The map is bounded: entries that are
//! as good as new are swept, and beyond the bound new addresses are not counted, which costs only their own 401s.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use governor::{
    Quota, RateLimiter,
    clock::Clock as _,
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed, StateStore, keyed::ShrinkableKeyedStateStore},
};

use crate::ratelimit::Ticks;

/// Most addresses that are remembered. 65,536: some MB.
const MAX_ADDRESSES: usize = 65_536;
/// Addresses that are kept without looking for old ones.
const SWEEP_FROM: usize = 1_024;
/// Between two sweeps: they look at every entry.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
struct Shared(Arc<DashMap<IpAddr, InMemoryState>>);

impl StateStore for Shared {
    type Key = IpAddr;

    fn measure_and_replace<T, F, E>(&self, key: &IpAddr, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.0.measure_and_replace(key, f)
    }
}

impl ShrinkableKeyedStateStore<IpAddr> for Shared {
    fn retain_recent(&self, drop_below: Nanos) {
        self.0.retain_recent(drop_below);
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Wrong keys a minute, by address.
#[derive(Debug)]
pub(super) struct FailureBudget {
    limiter: RateLimiter<IpAddr, Shared, Ticks, NoOpMiddleware<Nanos>>,
    addresses: Shared,
    ticks: Ticks,
    start: Nanos,
    swept: AtomicU64,
    pub(super) per_minute: NonZeroU32,
    /// How far in the future "full again" may lie for one more to be possible.
    tolerance: u64,
}

impl FailureBudget {
    pub(super) fn new(per_minute: NonZeroU32, ticks: Ticks) -> Self {
        let quota = Quota::per_minute(per_minute);
        let addresses = Shared::default();
        let start = ticks.now();
        let interval = u64::try_from(quota.replenish_interval().as_nanos()).unwrap_or(u64::MAX);
        Self {
            limiter: RateLimiter::new(quota, addresses.clone(), ticks.clone()),
            addresses,
            ticks,
            start,
            swept: AtomicU64::new(0),
            per_minute,
            tolerance: interval.saturating_mul(u64::from(per_minute.get() - 1)),
        }
    }

    /// How long an address has to wait until its next look-up, if it has to.
    pub(super) fn blocked(&self, peer: IpAddr) -> Option<Duration> {
        let state = self.addresses.0.get(&network(peer))?;
        let read: Result<(), Option<Nanos>> = state.measure_and_replace(&NotKeyed::NonKey, Err);
        let full_at = read.err().flatten()?.as_u64();
        let wait = full_at.saturating_sub(self.tolerance).saturating_sub(self.now());
        (wait > 0).then(|| Duration::from_nanos(wait))
    }

    /// Counts a wrong key.
    pub(super) fn count(&self, peer: IpAddr) {
        let network = network(peer);
        self.sweep();
        if self.limiter.len() >= MAX_ADDRESSES && !self.addresses.0.contains_key(&network) {
            return;
        }
        // An address that is over its budget already stays where it is.
        if self.limiter.check_key(&network).is_err() {
            tracing::debug!(%network, "wrong keys beyond the budget");
        }
    }

    fn sweep(&self) {
        let (now, every) = (self.now(), u64::try_from(SWEEP_EVERY.as_nanos()).unwrap_or(u64::MAX));
        let last = self.swept.load(Ordering::Relaxed);
        if self.limiter.len() < SWEEP_FROM || now.saturating_sub(last) < every {
            return;
        }
        // One of those who come at the same time sweeps.
        if self.swept.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.limiter.retain_recent();
        }
    }

    fn now(&self) -> u64 {
        self.ticks.now().as_u64().saturating_sub(self.start.as_u64())
    }
}

/// What one party can be presumed to have whole.
/// Who is counted: the address, or of an IPv6 address its /64.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn budget(per_minute: u32) -> (FailureBudget, Ticks) {
        let ticks = Ticks::manual();
        ticks.advance(Duration::from_secs(1_000));
        (FailureBudget::new(NonZeroU32::new(per_minute).unwrap(), ticks.clone()), ticks)
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(number))
    }

    #[test]
    fn an_address_is_blocked_after_its_budget_and_freed_by_time() {
        let (budget, ticks) = budget(20);
        for _ in 0..20 {
            assert_eq!(budget.blocked(address(1)), None);
            budget.count(address(1));
        }
        assert_eq!(budget.blocked(address(1)), Some(Duration::from_secs(3)));
        assert_eq!(budget.blocked(address(2)), None);
        budget.count(address(1)); // more do not make it longer
        assert_eq!(budget.blocked(address(1)), Some(Duration::from_secs(3)));
        ticks.advance(Duration::from_secs(3));
        assert_eq!(budget.blocked(address(1)), None);
        budget.count(address(1));
        assert_eq!(budget.blocked(address(1)), Some(Duration::from_secs(3)));
    }

    #[test]
    fn a_network_of_ipv6_and_a_mapped_ipv4_address_are_one() {
        let (budget, _) = budget(1);
        budget.count("2001:db8::1".parse().unwrap());
        assert!(budget.blocked("2001:db8::ffff:2".parse().unwrap()).is_some());
        assert!(budget.blocked("2001:db8:0:1::1".parse().unwrap()).is_none());
        budget.count("::ffff:10.0.0.1".parse().unwrap());
        assert!(budget.blocked("10.0.0.1".parse().unwrap()).is_some());
    }

    #[test]
    fn old_addresses_are_swept_and_their_number_is_bounded() {
        let (budget, ticks) = budget(20);
        for number in 0..2_000 {
            budget.count(address(number));
        }
        ticks.advance(Duration::from_secs(120));
        budget.count(address(0));
        assert!(budget.limiter.len() < 10, "{}", budget.limiter.len());
        for number in 0..u32::try_from(MAX_ADDRESSES).unwrap() + 1_000 {
            budget.count(address(number));
        }
        assert_eq!(budget.limiter.len(), MAX_ADDRESSES);
        assert_eq!(budget.blocked(address(u32::MAX)), None, "asking makes no entry");
        assert_eq!(budget.limiter.len(), MAX_ADDRESSES);
    }
}
