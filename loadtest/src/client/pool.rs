//! Connections to one address, kept between requests.
//!
//! A library's pool hides which connection a request took, and so whether a reset hit a fresh or an old one. This one
//! is small enough to be read: a stack of idle connections, newest first.

use super::Failure;
use crate::{clock, tasks::Tasks};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{net::TcpStream, time::Instant};

/// An idle connection older than this is not used again: the gateway closes its own after a minute.
const LONGEST_IDLE: Duration = Duration::from_secs(30);
/// TCP on the same machine or network; a full accept queue drops a SYN, which is sent again after 1, 3 and 7 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An address that can't be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadUrl {
    /// Another scheme or form.
    #[error("{0:?}: expected http://HOST:PORT")]
    Form(String),
    /// The name has no address.
    #[error("{0}: {1}")]
    Name(String, io::Error),
}

/// A body in one piece.
#[derive(Debug, Clone, Default)]
pub(crate) struct Whole(Option<Bytes>);

impl From<Bytes> for Whole {
    fn from(bytes: Bytes) -> Self {
        Self((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, Bytes::len) as u64)
    }
}

/// Connections to one address.
pub(crate) struct Pool {
    address: SocketAddr,
    authority: String,
    idle: Mutex<Vec<(SendRequest<Whole>, Instant)>>,
    tasks: Tasks,
}

/// The connection of a running exchange; closed when dropped, kept when given back.
pub(crate) struct Held<'p> {
    pool: &'p Pool,
    sender: SendRequest<Whole>,
}

impl Held<'_> {
    /// The answer has been read whole: another request may use the connection.
    pub(crate) fn give_back(self) {
        if !self.sender.is_closed() {
            self.pool.idle().push((self.sender, clock::now()));
        }
    }
}

impl Pool {
    /// Resolves `http://HOST[:PORT][/]`.
    ///
    /// # Errors
    /// Another form, or a name without an address.
    pub(crate) async fn new(url: &str) -> Result<Self, BadUrl> {
        let form = || BadUrl::Form(url.to_owned());
        let authority = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')).ok_or_else(form)?;
        if authority.is_empty() || authority.contains(['/', '@', '?']) {
            return Err(form());
        }
        let with_port = if authority.rsplit(']').next().is_some_and(|end| end.contains(':')) {
            authority.to_owned()
        } else {
            format!("{authority}:80")
        };
        let mut found =
            tokio::net::lookup_host(&with_port).await.map_err(|error| BadUrl::Name(with_port.clone(), error))?;
        let address = found.next().ok_or_else(form)?;
        Ok(Self { address, authority: authority.to_owned(), idle: Mutex::default(), tasks: Tasks::default() })
    }

    /// A request to this address.
    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(path).header(http::header::HOST, &self.authority)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(SendRequest<Whole>, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<SendRequest<Whole>> {
        let now = clock::now();
        let mut idle = self.idle();
        while let Some((sender, since)) = idle.pop() {
            if now - since < LONGEST_IDLE && !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self) -> Result<SendRequest<Whole>, Failure> {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(self.address)).await;
        let stream = connecting
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| Failure::Connect(error.kind()))?;
        stream.set_nodelay(true).ok();
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|_| Failure::Connect(io::ErrorKind::Other))?;
        self.tasks.spawn(async move {
            // How a connection ends is told to the exchange that uses it; an idle one may end as it likes.
            connection.await.ok();
        });
        Ok(sender)
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// # Errors
    /// What a client sees.
    pub(crate) async fn send(&self, request: Request<Whole>) -> Result<(Response<Incoming>, Held<'_>), Failure> {
        let mut request = request;
        while let Some(mut sender) = self.take_idle() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, Held { pool: self, sender })),
                Err(mut error) => match error.take_message() {
                    // Not a byte of it was sent: the connection had just ended.
                    Some(unsent) => request = unsent,
                    None => return Err(before_head(error.error())),
                },
            }
        }
        let mut sender = self.connect().await?;
        match sender.send_request(request).await {
            Ok(response) => Ok((response, Held { pool: self, sender })),
            Err(error) => Err(before_head(&error)),
        }
    }
}

fn before_head(error: &hyper::Error) -> Failure {
    if error.is_parse() {
        return Failure::BadBody("not HTTP");
    }
    if is_reset(error) { Failure::ResetBeforeHead } else { Failure::EofBeforeHead }
}

fn is_reset(error: &hyper::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            return matches!(io.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        }
        source = cause.source();
    }
    false
}
