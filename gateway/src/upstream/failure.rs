//! What goes wrong on the way to a replica. Whether to try elsewhere is the scheduler's business, not this module's.

use std::{io, net::IpAddr};

use scheduler::HardFailure;

use super::pin::is_another_key;

/// A failed exchange with a replica. No variant carries anything the replica said.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The name has no address.
    #[error("name not found: {0}")]
    Resolve(#[source] io::Error),
    /// The name leads to an address that the operator has not allowed (`pool.allow_private`).
    #[error("address {0} is private, and pool.allow_private is off")]
    Forbidden(IpAddr),
    /// Nobody answers at that address.
    #[error("connect: {0}")]
    Connect(#[source] io::Error),
    /// No connection in `pool.connect_timeout`.
    #[error("connect: no answer in time")]
    ConnectTimeout,
    /// The handshake failed: wrong certificate, reset, end of file.
    #[error("TLS: {0}")]
    Tls(#[source] io::Error),
    /// The certificate carries another key than the one that is pinned.
    #[error("TLS: another key than the one that is pinned")]
    OtherKey,
    /// The handshake took longer than `pool.tls_timeout`.
    #[error("TLS: no answer in time")]
    TlsTimeout,
    /// We are out of descriptors, ports or memory: nothing to do with the replica.
    #[error("this host: {0}")]
    Local(#[source] io::Error),
    /// The connection broke before the head of an answer.
    #[error("connection lost before the answer: {0}")]
    BeforeHead(#[source] hyper::Error),
    /// The same on a connection that had carried an exchange before, so that the replica may only have closed an idle one.
    #[error("connection lost before the answer, perhaps while it was idle: {0}")]
    Stale(#[source] hyper::Error),
    /// The connection broke in the answer's body, or its framing is wrong.
    #[error("connection lost in the answer: {0}")]
    InBody(#[source] hyper::Error),
    /// The answer is larger than allowed.
    #[error("answer larger than {0} bytes")]
    TooLarge(usize),
    /// No whole answer in the caller's limit.
    #[error("no answer in time")]
    Timeout,
    /// The request can't be written down as HTTP (a key with a line break, say).
    #[error("request: {0}")]
    Request(#[source] http::Error),
}

impl Failure {
    /// Whether the operator's address policy refused the connection.
    pub fn forbidden(&self) -> bool {
        matches!(self, Self::Forbidden(_))
    }

    /// The hard failure this is, if it is one: nobody there.
    pub fn hard(&self) -> Option<HardFailure> {
        match self {
            Self::Resolve(_) | Self::Forbidden(_) | Self::Connect(_) | Self::ConnectTimeout => {
                Some(HardFailure::Connect)
            }
            Self::Tls(_) | Self::OtherKey | Self::TlsTimeout => Some(HardFailure::Tls),
            Self::BeforeHead(_) | Self::Stale(_) => Some(HardFailure::Reset),
            Self::Local(_) | Self::InBody(_) | Self::TooLarge(_) | Self::Timeout | Self::Request(_) => None,
        }
    }

    /// Whether the replica may have got the request.
    pub fn may_have_arrived(&self) -> bool {
        matches!(self, Self::BeforeHead(_) | Self::Stale(_) | Self::InBody(_) | Self::Timeout)
    }

    /// The name in metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Resolve(_) => "resolve",
            Self::Forbidden(_) => "forbidden",
            Self::Connect(_) | Self::ConnectTimeout => "connect",
            Self::Tls(_) | Self::OtherKey | Self::TlsTimeout => "tls",
            Self::Local(_) => "local",
            Self::BeforeHead(_) | Self::Stale(_) => "reset",
            Self::InBody(_) => "broken",
            Self::TooLarge(_) => "too_large",
            Self::Timeout => "timeout",
            Self::Request(_) => "request",
        }
    }

    /// A failed handshake.
    pub(super) fn handshake(error: io::Error) -> Self {
        if is_another_key(&error) { Self::OtherKey } else { Self::Tls(error) }
    }

    /// A failed connect, told apart from our own shortages.
    pub(super) fn connecting(error: io::Error) -> Self {
        use rustix::io::Errno;
        const OURS: [Errno; 5] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
        match Errno::from_io_error(&error) {
            Some(errno) if OURS.contains(&errno) => Self::Local(error),
            _ => Self::Connect(error),
        }
    }
}
