//! Connections to replicas: open, send, read. Built on hyper's client connection, without its pools: phones close idle
//! connections after 5 s and all share one address, so the pool is ours and belongs to the replica (`Endpoint`).
//!
//! Every request is written afresh with a fixed set of headers and the replica's own credential: nothing of the client's
//! head reaches a phone.

mod body;
mod connect;
mod endpoint;
mod failure;
mod pin;
mod resolve;
mod rouser;
mod session;
mod tls;

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use tokio_rustls::TlsConnector;

pub(crate) use self::failure::is_no_tls;
pub use self::{
    body::SegmentsBody,
    endpoint::Endpoint,
    failure::{Breach, Failure},
    pin::Pin,
    resolve::{AddressPolicy, is_public},
    session::Reply,
    tls::TlsError,
};
use crate::{clock, config};

/// Most that is read of an answer to [`Upstream::get`].
const MAX_FETCH: usize = 1 << 20;
/// That a connection was closed while it was idle is seen within so long: 2 s, a round trip through the tunnel several times
/// over. A request whose connection is lost later was at work.
const STALE: Duration = Duration::from_secs(2);
const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("huntgroup/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// With it a llama-server keeps what it streams, and writes on when the connection is lost.
const CONVERSATION: HeaderName = HeaderName::from_static("x-conversation-id");

/// The shared client.
pub struct Upstream {
    settings: ArcSwap<Settings>,
}

/// What a reload may change.
struct Settings {
    tls: TlsConnector,
    policy: AddressPolicy,
    connect_timeout: Duration,
    tls_timeout: Duration,
    idle: Duration,
    dns_ttl: Duration,
}

impl Settings {
    fn new(pool: &config::Pool) -> Result<Self, TlsError> {
        Ok(Self {
            tls: TlsConnector::from(tls::client_config(pool.ca_file.as_ref())?),
            policy: AddressPolicy { allow_private: pool.allow_private },
            connect_timeout: pool.connect_timeout,
            tls_timeout: pool.tls_timeout,
            idle: pool.idle,
            dns_ttl: pool.dns_ttl,
        })
    }
}

/// A small answer, read whole.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// HTTP status.
    pub status: u16,
    /// `Content-Type`, if it is readable text.
    pub content_type: Option<String>,
    /// At most 1 MiB.
    pub body: Bytes,
}

/// What was said to something delivered.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// HTTP status.
    pub status: u16,
    /// `Retry-After`, if it is a number.
    pub retry_after: Option<Duration>,
}

impl Upstream {
    /// A client with the operator's settings.
    pub fn new(pool: &config::Pool) -> Result<Self, TlsError> {
        Ok(Self { settings: ArcSwap::from_pointee(Settings::new(pool)?) })
    }

    /// Takes new settings for connections made from now on.
    ///
    /// # Errors
    /// `pool.ca_file` can't be used; then everything stays as it was.
    pub fn reconfigure(&self, pool: &config::Pool) -> Result<(), TlsError> {
        self.settings.store(Arc::new(Settings::new(pool)?));
        Ok(())
    }

    /// Posts a body and waits for the head of the answer. `Accept` is what the official SDKs send, for streams as well: the
    /// engines look into the body. Dropping the future, or the reply, closes the connection.
    ///
    /// A reset on a reused connection before any byte of an answer, within [`STALE`], says that the replica had closed it:
    /// one more try on a fresh connection, of which the caller learns nothing.
    ///
    /// `conversation` is the name under which a llama-server keeps the stream; only for one that does. There the caller can
    /// ask whether the replica has the request, and is told: [`Failure::Stale`].
    pub async fn post(
        &self,
        endpoint: &Endpoint,
        path: &'static str,
        key: Option<&str>,
        conversation: Option<&HeaderValue>,
        mut body: impl FnMut() -> SegmentsBody,
    ) -> Result<Reply, Failure> {
        let mut request = || {
            let mut head = head(Method::POST, endpoint, path, key);
            if let Some(conversation) = conversation {
                head = head.header(CONVERSATION, conversation);
            }
            head.header(header::ACCEPT, JSON).header(header::CONTENT_TYPE, JSON).body(body()).map_err(Failure::Request)
        };
        self.exchange(endpoint, &mut request, conversation.is_none()).await
    }

    /// Gets an answer that may be long, and waits for its head. Dropping the future, or the reply, closes the connection.
    pub async fn open(&self, endpoint: &Endpoint, path: &str, key: Option<&str>) -> Result<Reply, Failure> {
        let mut request = || bare(Method::GET, endpoint, path, key);
        self.exchange(endpoint, &mut request, true).await
    }

    /// Has something deleted; the small answer, whole, within `limit`.
    pub async fn delete(
        &self,
        endpoint: &Endpoint,
        path: &str,
        key: Option<&str>,
        limit: Duration,
    ) -> Result<Fetched, Failure> {
        let mut request = || bare(Method::DELETE, endpoint, path, key);
        self.fetch(endpoint, &mut request, limit).await
    }

    /// Gives the connection of a finished reply back for the next request.
    pub fn recycle(&self, endpoint: &Endpoint, mut reply: Reply) {
        reply.note_end();
        if let Some(session) = reply.into_session() {
            endpoint.put(session);
        }
    }

    /// The same for a stream whose last event has come: its end may still be on the way, and is not waited for.
    pub fn recycle_if_ended(&self, endpoint: &Endpoint, mut reply: Reply) {
        let at_end = pin!(reply.chunk()).poll(&mut Context::from_waker(Waker::noop()));
        if matches!(at_end, Poll::Ready(Ok(None))) {
            self.recycle(endpoint, reply);
        }
    }

    /// A small answer, whole, within `limit`.
    pub async fn get(
        &self,
        endpoint: &Endpoint,
        path: &str,
        key: Option<&str>,
        limit: Duration,
    ) -> Result<Fetched, Failure> {
        let mut request = || bare(Method::GET, endpoint, path, key);
        self.fetch(endpoint, &mut request, limit).await
    }

    /// Posts a small JSON body; the small answer, whole, within `limit`.
    pub async fn post_json(
        &self,
        endpoint: &Endpoint,
        path: &str,
        key: Option<&str>,
        body: Bytes,
        limit: Duration,
    ) -> Result<Fetched, Failure> {
        let mut request = || {
            head(Method::POST, endpoint, path, key)
                .header(header::CONTENT_TYPE, JSON)
                .body(SegmentsBody::from(body.clone()))
                .map_err(Failure::Request)
        };
        self.fetch(endpoint, &mut request, limit).await
    }

    /// Posts a JSON body with further headers to somebody who is no replica; what it answers counts by its head, within `limit`.
    pub async fn deliver(
        &self,
        endpoint: &Endpoint,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
        limit: Duration,
    ) -> Result<Delivered, Failure> {
        let mut request = || {
            let mut request = head(Method::POST, endpoint, path, None)
                .header(header::CONTENT_TYPE, JSON)
                .body(SegmentsBody::from(body.clone()))
                .map_err(Failure::Request)?;
            request.headers_mut().extend(headers.clone());
            Ok(request)
        };
        let whole = async {
            let mut reply = self.exchange(endpoint, &mut request, true).await?;
            let delivered = Delivered { status: reply.head.status.as_u16(), retry_after: reply.retry_after() };
            reply.collect(MAX_FETCH).await?;
            self.recycle(endpoint, reply);
            Ok(delivered)
        };
        tokio::time::timeout(limit, whole).await.unwrap_or(Err(Failure::Timeout))
    }

    async fn fetch(
        &self,
        endpoint: &Endpoint,
        request: &mut impl FnMut() -> Result<Request<SegmentsBody>, Failure>,
        limit: Duration,
    ) -> Result<Fetched, Failure> {
        let whole = async {
            let mut reply = self.exchange(endpoint, request, true).await?;
            let body = reply.collect(MAX_FETCH).await?;
            let status = reply.head.status.as_u16();
            let content_type = reply.content_type().map(str::to_owned);
            self.recycle(endpoint, reply);
            Ok(Fetched { status, content_type, body })
        };
        tokio::time::timeout(limit, whole).await.unwrap_or(Err(Failure::Timeout))
    }

    /// Sends a request; `again` on a fresh connection, if one that was idle had been closed.
    async fn exchange(
        &self,
        endpoint: &Endpoint,
        request: &mut impl FnMut() -> Result<Request<SegmentsBody>, Failure>,
        again: bool,
    ) -> Result<Reply, Failure> {
        if let Some(session) = endpoint.take(self.settings.load().idle) {
            let sent = clock::now();
            match session.send(request()?).await {
                Err(Failure::BeforeHead(lost)) if clock::now().since(sent) < STALE => {
                    endpoint.close_idle();
                    if !again {
                        return Err(Failure::Stale(lost));
                    }
                }
                done => return done,
            }
        }
        // Boxed: the state of a handshake would make every future around this one large, and they are moved a lot.
        let fresh = Box::pin(async { session::Session::start(self.connect(endpoint).await?).await }).await?;
        fresh.send(request()?).await
    }
}

impl Reply {
    /// The rest of the body, in one piece (not copied when it came in one piece).
    pub async fn collect(&mut self, max: usize) -> Result<Bytes, Failure> {
        self.collect_within(max, |_| Ok(())).await
    }

    /// The same; `room` is asked for every piece and may refuse it.
    pub async fn collect_within<E: From<Failure>>(
        &mut self,
        max: usize,
        mut room: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Bytes, E> {
        let (mut first, mut whole) = (Bytes::new(), BytesMut::new());
        while let Some(piece) = self.chunk().await? {
            let length = first.len() + whole.len();
            if length + piece.len() > max {
                return Err(Failure::TooLarge(max).into());
            }
            room(piece.len())?;
            if length == 0 {
                first = piece;
                continue;
            }
            if whole.is_empty() {
                whole.reserve((first.len() + piece.len()) * 2);
                whole.extend_from_slice(&std::mem::take(&mut first));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(if whole.is_empty() { first } else { whole.freeze() })
    }

    /// `Content-Type`, if it is readable text.
    pub fn content_type(&self) -> Option<&str> {
        self.head.headers.get(header::CONTENT_TYPE)?.to_str().ok()
    }

    /// `Retry-After` in seconds, if the replica sent one as a number.
    pub fn retry_after(&self) -> Option<Duration> {
        let text = self.head.headers.get(header::RETRY_AFTER)?.to_str().ok()?;
        text.trim().parse().ok().map(Duration::from_secs)
    }
}

/// A request without a body.
fn bare(method: Method, endpoint: &Endpoint, path: &str, key: Option<&str>) -> Result<Request<SegmentsBody>, Failure> {
    head(method, endpoint, path, key).body(SegmentsBody::default()).map_err(Failure::Request)
}

fn head(method: Method, endpoint: &Endpoint, path: &str, key: Option<&str>) -> http::request::Builder {
    let mut builder = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, &*endpoint.authority)
        .header(header::USER_AGENT, USER_AGENT);
    if let Some(key) = key {
        let value = HeaderValue::try_from(format!("Bearer {key}")).map(|mut value| {
            value.set_sensitive(true);
            value
        });
        builder = match value {
            Ok(value) => builder.header(header::AUTHORIZATION, value),
            // `header` with an invalid value turns the builder into the error that `body` reports.
            Err(_) => builder.header(header::AUTHORIZATION, "\n"),
        };
    }
    builder
}
