//! Names to addresses, and which addresses may be connected to.
//!
//! The address that was checked is the one connected to: a name is looked up once per `pool.dns_ttl`, and again as soon as
//! a connect fails. The system's resolver tells no time to live, hence the fixed one.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Mutex,
    time::Duration,
};

use scheduler::Timestamp;

use super::failure::Failure;
use crate::clock;

/// What the operator allows.
#[derive(Clone, Copy, Debug)]
pub struct AddressPolicy {
    /// Private, loopback and link-local addresses too (`pool.allow_private`).
    pub allow_private: bool,
}

impl AddressPolicy {
    fn check(self, address: IpAddr) -> Result<IpAddr, Failure> {
        if self.allow_private || is_public(address) { Ok(address) } else { Err(Failure::Forbidden(address)) }
    }
}

/// Whether an address is one that a phone on the internet can have: not private, loopback, link-local, shared,
/// documentation, multicast or reserved, also not when written as IPv6.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(v4: Ipv4Addr) -> bool {
    let [a, b, c, _] = v4.octets();
    !(v4.is_private()
        || v4.is_loopback()
        || v4.is_link_local()
        || v4.is_documentation()
        || v4.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b)) // shared address space, RFC 6598
        || (a == 192 && b == 0 && c == 0) // protocol assignments, RFC 6890
        || (a == 198 && (18..20).contains(&b))) // benchmarking, RFC 2544
}

fn is_public_v6(v6: Ipv6Addr) -> bool {
    if let Some(v4) = v6.to_ipv4_mapped() {
        return is_public_v4(v4);
    }
    let [first, second, ..] = v6.segments();
    // Global unicast is 2000::/3; inside it, documentation, 6to4 and Teredo (which carry an IPv4 address) are refused.
    first & 0xe000 == 0x2000
        && !(first == 0x2001 && (second == 0xdb8 || second == 0))
        && first != 0x2002
        && first != 0x3fff
}

/// The looked-up address of one host.
#[derive(Debug, Default)]
pub struct AddressCache(Mutex<Option<(IpAddr, Timestamp)>>);

impl AddressCache {
    /// Forgets: the next connect looks the name up again.
    pub fn forget(&self) {
        *self.slot() = None;
    }

    /// The address to connect to.
    pub async fn resolve(
        &self,
        host: &str,
        port: u16,
        ttl: Duration,
        policy: AddressPolicy,
    ) -> Result<SocketAddr, Failure> {
        let now = clock::now();
        if let Some((address, until)) = *self.slot()
            && now < until
        {
            return Ok(SocketAddr::new(address, port));
        }
        let address = policy.check(look_up(host).await?)?;
        *self.slot() = Some((address, now + ttl));
        Ok(SocketAddr::new(address, port))
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<(IpAddr, Timestamp)>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

async fn look_up(host: &str) -> Result<IpAddr, Failure> {
    if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(address);
    }
    // RFC 6761: names under `localhost` are the loopback address, whatever a resolver says.
    if host == "localhost" || host.ends_with(".localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let mut found = tokio::net::lookup_host((host, 0)).await.map_err(Failure::Resolve)?;
    let first = found.next().ok_or_else(|| Failure::Resolve(io::ErrorKind::NotFound.into()))?;
    // IPv4 first: the relay's IPv6 is the one more often broken on the hosts gateways run on.
    Ok(std::iter::once(first).chain(found).find(SocketAddr::is_ipv4).unwrap_or(first).ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_and_its_network_are_not_public_in_any_spelling() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "ff02::1",
            "64:ff9b::7f00:1",
        ] {
            let address: IpAddr = text.parse().expect(text);
            assert!(!is_public(address), "{text}");
        }
    }

    #[test]
    fn addresses_on_the_internet_are_public() {
        for text in ["8.8.8.8", "100.63.0.1", "172.32.0.1", "2a00:1450::1", "::ffff:8.8.8.8"] {
            assert!(is_public(text.parse().expect(text)), "{text}");
        }
    }

    #[tokio::test]
    async fn a_loopback_name_is_refused_unless_private_addresses_are_allowed() {
        let cache = AddressCache::default();
        let ttl = Duration::from_secs(30);
        let refused = cache.resolve("phone.localhost", 443, ttl, AddressPolicy { allow_private: false }).await;
        assert!(matches!(refused, Err(Failure::Forbidden(_))), "{refused:?}");
        let allowed = cache.resolve("phone.localhost", 443, ttl, AddressPolicy { allow_private: true }).await;
        assert_eq!(allowed.expect("allowed"), "127.0.0.1:443".parse().expect("address"));
    }
}
