//! A small HTTP client that tells exactly how an answer ended.

use bytes::Bytes;
use fakephone::PhoneHandle;
use http::{HeaderMap, Method, Request};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A request body that is there at once.
pub struct Whole(Option<Bytes>);

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
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// What went wrong while reading the body.
    pub broken: Option<hyper::Error>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("no JSON: {error}: {}", self.text()))
    }

    /// The data of every event, by the rules of the standard.
    pub fn events(&self) -> Vec<String> {
        events(&self.text())
    }

    /// Every event whose data is JSON.
    pub fn chunks(&self) -> Vec<Value> {
        self.events().iter().filter_map(|data| serde_json::from_str(data).ok()).collect()
    }

    /// The strings at `path` in the first choice's deltas, put together.
    pub fn joined(&self, path: &str) -> String {
        let pointer = format!("/choices/0/delta/{path}");
        let parts = self.chunks().into_iter().filter_map(|chunk| Some(chunk.pointer(&pointer)?.as_str()?.to_owned()));
        parts.collect()
    }

    /// The text of a streamed chat answer, and its finish reason.
    pub fn spoken(&self) -> (String, Option<String>) {
        let mut text = String::new();
        let mut finish = None;
        for data in self.events().iter().filter(|data| *data != "[DONE]") {
            let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
            let choice = &event["choices"][0];
            text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            if let Some(reason) = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty()) {
                finish = Some(reason.to_owned());
            }
        }
        (text, finish)
    }

    pub fn is_done(&self) -> bool {
        self.events().last().is_some_and(|data| data == "[DONE]")
    }
}

/// The data of every event in a stream.
pub fn events(text: &str) -> Vec<String> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut events = Vec::new();
    let mut data: Option<String> = None;
    for line in text.split('\n') {
        if line.is_empty() {
            events.extend(data.take());
        } else if let Some(value) = line.strip_prefix("data:") {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => data = Some(value.to_owned()),
            }
        }
    }
    events
}

/// A connection, kept until it is dropped.
pub struct Client {
    pub sender: SendRequest<Whole>,
    _driver: JoinSet<()>,
}

impl Client {
    pub async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("a handshake in memory");
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            connection.await.ok();
        });
        Self { sender, _driver: driver }
    }

    pub async fn to(phone: &PhoneHandle) -> Self {
        Self::over(TcpStream::connect(phone.address()).await.expect("a connection")).await
    }

    /// Sends a request and waits for its head.
    pub async fn start(&mut self, request: Request<Whole>) -> Result<http::Response<Incoming>, hyper::Error> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }

    /// Sends a request and reads the answer to its end.
    pub async fn ask(&mut self, request: Request<Whole>) -> Result<Answer, hyper::Error> {
        read(self.start(request).await?).await
    }
}

/// The next piece of a body.
pub async fn frame(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        match next {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Reads an answer to its end.
pub async fn read(response: http::Response<Incoming>) -> Result<Answer, hyper::Error> {
    let (head, mut body) = response.into_parts();
    let mut answer = Answer { status: head.status.as_u16(), headers: head.headers, body: Vec::new(), broken: None };
    while let Some(piece) = frame(&mut body).await {
        match piece {
            Ok(bytes) => answer.body.extend_from_slice(&bytes),
            Err(error) => {
                answer.broken = Some(error);
                break;
            }
        }
    }
    Ok(answer)
}

pub fn get(path: &str) -> Request<Whole> {
    Request::builder().uri(path).header("host", "phone").body(Whole(None)).expect("a valid request")
}

pub fn post(path: &str, body: &Value) -> Request<Whole> {
    post_with(path, body, &[])
}

pub fn post_with(path: &str, body: &Value, headers: &[(&str, &str)]) -> Request<Whole> {
    let mut request = Request::builder().method(Method::POST).uri(path).header("host", "phone");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Whole(Some(body.to_string().into()))).expect("a valid request")
}

/// A chat request with one message.
pub fn chat(message: &str, more: Value) -> Request<Whole> {
    let mut body = serde_json::json!({"messages": [{"role": "user", "content": message}]});
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    post("/v1/chat/completions", &body)
}

/// One request on a connection of its own.
pub async fn ask(phone: &PhoneHandle, request: Request<Whole>) -> Result<Answer, hyper::Error> {
    Client::to(phone).await.ask(request).await
}

/// A TLS client that trusts `ca_pem` alone.
pub fn connector(ca_pem: &str) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(ca_pem.as_bytes()).expect("a certificate in PEM");
    roots.add(certificate).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// The name of a phone behind a relay.
pub fn name_of(phone: &PhoneHandle) -> ServerName<'static> {
    ServerName::try_from(format!("{}.localhost", phone.id())).expect("a host name")
}

/// A TLS connection to a phone behind a relay.
pub async fn dial(phone: &PhoneHandle, ca_pem: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(phone.address()).await?;
    connector(ca_pem).connect(name_of(phone), stream).await
}
