//! One replica's address, and the idle connections to it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use scheduler::Timestamp;

use super::{
    pin::{Pin, Pinned},
    resolve::AddressCache,
    session::Session,
};
use crate::clock;

/// Idle connections kept per replica. 16: more than any phone has slots, and the probe's.
const MAX_IDLE: usize = 16;

/// Where a replica is, and what is open to it.
pub struct Endpoint {
    pub(super) tls: bool,
    pub(super) host: Box<str>,
    pub(super) port: u16,
    /// The `Host` of every request.
    pub(super) authority: Box<str>,
    pub(super) addresses: AddressCache,
    /// The only key that it may show.
    pub(super) pinned: Option<Pinned>,
    idle: Mutex<Vec<(Session, Timestamp)>>,
}

impl Endpoint {
    /// An endpoint without connections. `host` is a name, or an address (IPv6 in brackets).
    pub fn new(tls: bool, host: &str, port: u16) -> Self {
        let standard = if tls { 443 } else { 80 };
        let authority = if port == standard { host.to_owned() } else { format!("{host}:{port}") };
        Self {
            tls,
            host: host.into(),
            port,
            authority: authority.into(),
            addresses: AddressCache::default(),
            pinned: None,
            idle: Mutex::default(),
        }
    }

    /// The same, whose certificate must carry this key, whoever signed it. What was resumed before is not resumed here.
    #[must_use]
    pub fn pinned(self, pin: Pin) -> Self {
        Self { pinned: Some(Pinned::new(pin)), ..self }
    }

    /// The key that its certificate must carry, if that is fixed.
    pub fn pin(&self) -> Option<Pin> {
        self.pinned.as_ref().map(Pinned::pin)
    }

    /// Closes idle connections, all of them.
    pub fn close_idle(&self) {
        self.pool().clear();
    }

    /// Closes connections idle for `limit` or longer.
    pub fn close_stale(&self, limit: Duration) {
        let now = clock::now();
        self.pool().retain(|(_, since)| now.since(*since) < limit);
    }

    /// The connection used last, if it is fresh enough and still open.
    pub(super) fn take(&self, limit: Duration) -> Option<Session> {
        let now = clock::now();
        loop {
            let (mut session, since) = self.pool().pop()?;
            if now.since(since) >= limit {
                // The ones below are older still.
                self.pool().clear();
                return None;
            }
            if session.is_usable() {
                return Some(session);
            }
        }
    }

    pub(super) fn put(&self, session: Session) {
        let mut pool = self.pool();
        if pool.len() == MAX_IDLE {
            pool.remove(0);
        }
        pool.push((session, clock::now()));
    }

    fn pool(&self) -> MutexGuard<'_, Vec<(Session, Timestamp)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}
