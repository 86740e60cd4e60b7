//! A bound on guessing a token: the admin's, or the phones'. An IPv6 address counts as its /64: who guesses has the whole of it.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use scheduler::Timestamp;

use super::network;

/// Wrong tokens from one address in [`WINDOW`]. 20: nobody mistypes that often, and at that pace no token is guessed.
const MAX_FAILURES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses remembered. 1,024: who has more of them is not stopped by this, and the token is long.
const MAX_ADDRESSES: usize = 1024;

/// Wrong tokens by address.
#[derive(Default)]
pub(crate) struct FailedLogins {
    seen: Mutex<HashMap<IpAddr, (Timestamp, u32)>>,
}

impl FailedLogins {
    /// Whether this address has used up its tries.
    pub(crate) fn is_blocked(&self, address: IpAddr, now: Timestamp) -> bool {
        let address = network(address);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&address).is_some_and(|(since, count)| now.since(*since) < WINDOW && *count >= MAX_FAILURES)
    }

    /// Counts a wrong token.
    pub(crate) fn note(&self, address: IpAddr, now: Timestamp) {
        let address = network(address);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MAX_ADDRESSES {
            seen.retain(|_, (since, _)| now.since(*since) < WINDOW);
        }
        if seen.len() >= MAX_ADDRESSES && !seen.contains_key(&address) {
            return;
        }
        let entry = seen.entry(address).or_insert((now, 0));
        if now.since(entry.0) >= WINDOW {
            *entry = (now, 0);
        }
        entry.1 += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_that_guesses_is_blocked_for_a_minute_and_others_are_not() {
        let logins = FailedLogins::default();
        let (guesser, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from(Ipv4Addr::LOCALHOST));
        let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
        for _ in 0..MAX_FAILURES {
            assert!(!logins.is_blocked(guesser, at(1)));
            logins.note(guesser, at(1));
        }
        assert!(logins.is_blocked(guesser, at(60)));
        assert!(!logins.is_blocked(other, at(60)));
        assert!(!logins.is_blocked(guesser, at(62)));
    }

    #[test]
    fn all_addresses_of_one_ipv6_network_share_its_tries() {
        let logins = FailedLogins::default();
        for last in 0..MAX_FAILURES {
            logins.note(format!("2001:db8::{last:x}").parse().unwrap(), Timestamp::ZERO);
        }
        assert!(logins.is_blocked("2001:db8::ffff:1".parse().unwrap(), Timestamp::ZERO));
        assert!(!logins.is_blocked("2001:db8:0:1::1".parse().unwrap(), Timestamp::ZERO));
    }

    #[test]
    fn a_flood_of_addresses_takes_bounded_memory() {
        let logins = FailedLogins::default();
        for number in 0..10_000_u32 {
            logins.note(IpAddr::from(number.to_be_bytes()), Timestamp::ZERO);
        }
        assert_eq!(logins.seen.lock().unwrap().len(), MAX_ADDRESSES);
    }
}
