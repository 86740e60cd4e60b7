//! Sockets and their first defence: connections are counted, heads have a deadline, and what passes becomes an
//! [`Exchange`]. With `upstream` the only module that knows the transport; it knows nothing of tenants or models.

mod calls;
mod connections;
mod exchange;
mod gate;
mod incoming;
mod tls;

use std::{
    future::{Future, poll_fn},
    net::{IpAddr, SocketAddr},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use http::{HeaderName, HeaderValue, header};
use pingora::{
    apps::{HttpPersistentSettings, HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp},
    http::ResponseHeader,
    listeners::{ListenerConfig, TcpSocketOptions, tls::TlsSettings},
    protocols::{ALPN, Stream, TcpKeepalive, http::ServerSession, l4::stream::L4BufferSettings},
    server::ShutdownWatch,
    services::listening::Service,
};
use tokio::sync::Notify;

pub use self::{
    calls::{BatchesCall, FilesCall},
    connections::{Connection, Connections, default_max},
    exchange::{Answer, ClientLimits, Exchange, Interrupted, Progress, insert},
    gate::{Admitted, Oversize, Target},
    incoming::Incoming,
    tls::{Certificate, CertificateError, Resolver},
};
use crate::{error::ApiError, gateway::Gateway, pressure::Level};

/// A client that vanished without a FIN is found in about a minute.
const KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(15),
    interval: Duration::from_secs(15),
    count: 4,
    user_timeout: Duration::from_secs(60),
};
/// Read buffer of a client connection. 4 KiB instead of pingora's 64: an idle connection costs little, and a body is read
/// past it into a buffer of its own.
const READ_BUFFER: usize = 4 << 10;
/// Write buffer of a client connection; larger pieces go out past it.
const WRITE_BUFFER: usize = 2 << 10;

/// Idle time of a connection while memory is short.
const SHORT_KEEPALIVE: Duration = Duration::from_secs(5);

/// Settings of client connections that a reload may change.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// All connections.
    pub max: usize,
    /// From one address.
    pub max_per_address: usize,
    /// For the head of the first request.
    pub header_deadline: Duration,
    /// Between two requests.
    pub keepalive: Duration,
    /// For a write that makes no progress.
    pub write_timeout: Duration,
}

/// Accepts connections, counts them, and hands their requests to the gateway.
pub struct Door {
    gateway: Arc<Gateway>,
    ids: Arc<Ids>,
    connections: Arc<Connections>,
}

/// The HTTP side of one connection.
struct Http {
    gateway: Arc<Gateway>,
    options: HttpServerOptions,
    ids: Arc<Ids>,
    /// A request's head has come.
    heard: Notify,
}

/// Numbers requests.
pub(crate) struct Ids {
    next: AtomicU64,
    /// Tells ids of two runs apart.
    run: u64,
}

/// Left on a connection for its next request: it is allowed the keep-alive time before its head.
struct Reused;

impl Door {
    /// A door to `gateway`.
    pub fn new(gateway: Arc<Gateway>, run: u64) -> Self {
        Self { gateway, ids: Arc::new(Ids::new(run)), connections: Arc::default() }
    }

    /// The listening service: plain and TLS addresses.
    pub fn service(self, plain: &[SocketAddr], tls: &[SocketAddr], certificate: Option<Arc<Certificate>>) -> TlsResult {
        let mut service = Service::new("public".to_owned(), self);
        for address in plain {
            service.add_listener(listener(*address));
        }
        if let Some(certificate) = certificate {
            for address in tls {
                let mut settings = TlsSettings::intermediate("", "")?;
                settings.set_cert_resolver(Arc::new(Resolver(Arc::clone(&certificate))));
                settings.enable_h2();
                service.add_listener(listener(*address).tls(settings));
            }
        }
        Ok(service)
    }
}

/// A service, or pingora's word that TLS can't be set up.
pub type TlsResult = Result<Service<Door>, Box<pingora::Error>>;

fn listener(address: SocketAddr) -> ListenerConfig {
    let mut socket = TcpSocketOptions::default();
    socket.tcp_keepalive = Some(KEEPALIVE);
    let buffers = L4BufferSettings::new(READ_BUFFER, WRITE_BUFFER);
    ListenerConfig::tcp(address.to_string()).tcp_socket_options(socket).l4_buffer(buffers)
}

#[async_trait]
impl ServerApp for Door {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let peer = stream.get_socket_digest().and_then(|digest| digest.peer_addr()?.as_inet().map(|addr| addr.ip()));
        let limits = self.gateway.connection_limits();
        let address = peer.unwrap_or(IpAddr::from([0, 0, 0, 0]));
        // Refused without an answer: writing one is work that a flood would make us do.
        let _connection = self.connections.enter(address, limits.max, limits.max_per_address)?;
        let is_http2 = matches!(stream.selected_alpn_proto(), Some(ALPN::H2));
        let http = Arc::new(Http::new(Arc::clone(&self.gateway), Arc::clone(&self.ids), limits.keepalive));
        tokio::select! {
            biased;
            left = http.process_new(stream, shutdown) => left,
            // HTTP/1.1 has the same deadline where its head is read, and an answer that tells of it.
            () = http.silent(limits.header_deadline), if is_http2 => None,
        }
    }
}

impl Http {
    fn new(gateway: Arc<Gateway>, ids: Arc<Ids>, keepalive: Duration) -> Self {
        let mut options = HttpServerOptions::default();
        options.h2_idle_timeout = Some(keepalive);
        Self { gateway, options, ids, heard: Notify::new() }
    }

    /// Resolves when no request's head has come in time; never once one has.
    async fn silent(&self, limit: Duration) {
        if tokio::time::timeout(limit, self.heard.notified()).await.is_ok() {
            std::future::pending().await
        }
    }
}

#[async_trait]
impl HttpServerApp for Http {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        self.heard.notify_one();
        let limits = self.gateway.connection_limits();
        let pressure = self.gateway.pressure.level();
        let keepalive =
            if pressure >= Level::Shrink { limits.keepalive.min(SHORT_KEEPALIVE) } else { limits.keepalive };
        let reused = session.take_connection_user_context().is_some();
        let mut stopping = shutdown.clone();
        // Set before the read: pingora turns keep-alive off by itself where a request's framing demands that.
        session.set_keepalive(Some(keepalive.as_secs().max(1)));
        session.set_write_timeout(Some(limits.write_timeout));
        session.set_pipelining_enabled(true);
        let deadline = limits.header_deadline + if reused { keepalive } else { Duration::ZERO };
        let read = tokio::select! {
            biased;
            read = tokio::time::timeout(deadline, session.read_request()) => read,
            _ = stopping.wait_for(|stopping| *stopping), if reused => return None,
        };
        let refusal = match read {
            Ok(Ok(true)) if has_both_framings(&session) => {
                Some(ApiError::transport(400, "Both Transfer-Encoding and Content-Length."))
            }
            Ok(Ok(true)) => None,
            Ok(Ok(false)) => return None,
            Ok(Err(error)) => match malformed(&error) {
                Some(refusal) => Some(refusal),
                None => return None,
            },
            Err(_) if reused => return None,
            Err(_) => {
                Some(ApiError::transport(408, "The request's head did not arrive in time (server.header_deadline)."))
            }
        };
        if let Some(refusal) = refusal {
            refuse_head(session, &refusal).await;
            return None;
        }
        if *shutdown.borrow() || pressure >= Level::Close {
            session.set_keepalive(None);
        }
        let mut exchange = Exchange::new(session, self.ids.request_id(), self.gateway.client_limits());
        // Boxed: a connection that waits for its next request must not hold the state of one.
        let panicked = caught(Box::pin(self.gateway.serve(&mut exchange))).await.is_err();
        if panicked {
            self.gateway.telemetry.panic_seen();
            self.gateway.after_panic(&mut exchange).await;
        }
        let session = exchange.into_session().await?;
        let mut persistent = HttpPersistentSettings::for_session(&session);
        persistent.set_user_context(Box::new(Reused));
        let stream = session.finish().await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(stream, persistent))
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }
}

/// A request's handler panicked.
#[derive(Debug, PartialEq)]
pub(crate) struct Panicked;

/// A panic ends its own request and nothing else: what the future held is dropped, and with it every guard.
pub(crate) async fn caught<F: Future + Unpin>(mut future: F) -> Result<F::Output, Panicked> {
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut future).poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(_) => Poll::Ready(Err(Panicked)),
    })
    .await
}

impl Ids {
    /// Beginning with the first; `run` tells them from those of all others.
    pub(crate) const fn new(run: u64) -> Self {
        Self { next: AtomicU64::new(1), run }
    }

    /// The next one.
    pub(crate) fn request_id(&self) -> Arc<str> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("req_{:016x}{number:012x}", self.run).into()
    }
}

/// pingora takes `Content-Length` out of a request that also has `Transfer-Encoding`; what was sent still tells.
fn has_both_framings(session: &ServerSession) -> bool {
    let Some(http1) = session.as_http1() else { return false };
    http1.req_header().headers.contains_key(header::TRANSFER_ENCODING)
        && gate::names_length(&http1.get_headers_raw_bytes())
}

/// What is wrong with a head that pingora refused to read; `None`: nothing, there is nobody any more.
fn malformed(error: &pingora::Error) -> Option<ApiError> {
    if !matches!(error.etype(), pingora::ErrorType::InvalidHTTPHeader) {
        return None;
    }
    // Beyond its own bounds, 256 lines and 1 MiB, it reads on no further. The second it tells in words only.
    let parsed = error.cause.as_ref().and_then(|cause| cause.downcast_ref::<httparse::Error>());
    let words = error.context.as_ref().map(|context| context.as_str()).unwrap_or_default();
    Some(match parsed {
        Some(httparse::Error::TooManyHeaders) => Oversize::Lines.into(),
        None if words.starts_with("Request header larger") => Oversize::Bytes.into(),
        _ => ApiError::transport(400, "This is not an acceptable HTTP request."),
    })
}

/// Answers a request whose head could not be read: no exchange, no keep-alive.
async fn refuse_head(mut session: ServerSession, error: &ApiError) {
    let body = error.body().to_json();
    let Ok(mut head) = ResponseHeader::build_no_case(error.status(), Some(3)) else { return };
    insert(&mut head, header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    insert(&mut head, header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    insert(&mut head, HeaderName::from_static("connection"), HeaderValue::from_static("close"));
    // The client may be gone: nothing is owed to it then.
    if session.write_error_response(head, body).await.is_ok() {
        session.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    struct Guard<'a>(&'a AtomicBool);

    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn a_panic_is_caught_and_its_guards_have_run() {
        let returned = AtomicBool::new(false);
        let outcome = caught(Box::pin(async {
            let _guard = Guard(&returned);
            tokio::task::yield_now().await;
            panic!("on purpose");
        }))
        .await;
        assert_eq!(outcome, Err::<(), _>(Panicked));
        assert!(returned.load(Ordering::Relaxed));
        assert_eq!(caught(std::pin::pin!(async { 7 })).await, Ok(7));
    }
}
