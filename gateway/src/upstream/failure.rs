//! What goes wrong on the way to a replica. Whether to try elsewhere is the scheduler's business, not this module's.

use std::{io, net::IpAddr};

use rustls::CertificateError;
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
    /// The handshake failed: reset, end of file, not TLS.
    #[error("TLS: {0}")]
    Tls(#[source] io::Error),
    /// The certificate is refused.
    #[error("TLS: the certificate is refused, {0}")]
    Certificate(Breach),
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

/// The rule that a certificate breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// It was valid until before now.
    #[error("it has expired")]
    Expired,
    /// It is valid from after now.
    #[error("it is not valid yet")]
    NotYetValid,
    /// It names other hosts than the address.
    #[error("it is another host's")]
    OtherName,
    /// None of the system's authorities, nor of `pool.ca_file`, has signed it.
    #[error("no known authority has signed it")]
    UnknownIssuer,
    /// Its form or its signatures are wrong.
    #[error("its form or its signature is wrong")]
    Form,
}

impl From<&CertificateError> for Breach {
    fn from(error: &CertificateError) -> Self {
        use CertificateError as E;
        match error {
            E::Expired | E::ExpiredContext { .. } => Self::Expired,
            E::NotValidYet | E::NotValidYetContext { .. } => Self::NotYetValid,
            E::NotValidForName | E::NotValidForNameContext { .. } => Self::OtherName,
            E::UnknownIssuer => Self::UnknownIssuer,
            _ => Self::Form,
        }
    }
}

/// Why the certificate was refused, if a handshake failed for that.
fn refused(error: &io::Error) -> Option<&CertificateError> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(error) => Some(error),
        _ => None,
    }
}

/// Whether a handshake failed for what either side is, not because the other one went away.
pub(crate) fn is_no_tls(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)
}

impl Failure {
    /// Whether the operator's address policy refused the connection.
    pub fn forbidden(&self) -> bool {
        matches!(self, Self::Forbidden(_))
    }

    /// The hard failure this is, if it is one: nobody there. The one rule for attempts and probes.
    ///
    /// Silence in the handshake is no way to the replica: the system accepts a connection for a relay that hangs, too, and only
    /// a handshake that is broken off shows that the relay answers.
    pub fn hard(&self) -> Option<HardFailure> {
        match self {
            Self::Resolve(_) | Self::Connect(_) | Self::ConnectTimeout | Self::TlsTimeout => Some(HardFailure::Connect),
            Self::Tls(error) if is_no_tls(error) => Some(HardFailure::Certificate),
            Self::Tls(_) => Some(HardFailure::Tls),
            Self::Certificate(_) | Self::OtherKey => Some(HardFailure::Certificate),
            Self::BeforeHead(_) | Self::Stale(_) => Some(HardFailure::Reset),
            // What we refuse ourselves is no failure of anybody's.
            Self::Forbidden(_) | Self::Local(_) | Self::Request(_) => None,
            Self::InBody(_) | Self::TooLarge(_) | Self::Timeout => None,
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
            Self::Tls(_) | Self::TlsTimeout => "tls",
            Self::Certificate(_) | Self::OtherKey => "certificate",
            Self::Local(_) => "local",
            Self::BeforeHead(_) | Self::Stale(_) => "reset",
            Self::InBody(_) => "broken",
            Self::TooLarge(_) => "too_large",
            Self::Timeout => "timeout",
            Self::Request(_) => "request",
        }
    }

    /// A failed handshake. Where the network says that it is gone, nobody has answered.
    pub(crate) fn handshake(error: io::Error) -> Self {
        use io::ErrorKind as E;
        match (refused(&error), error.kind()) {
            _ if is_another_key(&error) => Self::OtherKey,
            (Some(error), _) => Self::Certificate(Breach::from(error)),
            (None, E::TimedOut) => Self::TlsTimeout,
            (None, E::HostUnreachable | E::NetworkUnreachable | E::NetworkDown) => Self::Connect(error),
            (None, _) => Self::Tls(error),
        }
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
