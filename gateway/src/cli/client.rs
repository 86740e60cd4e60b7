//! The commands' way to the admin API of a running gateway: one request, one JSON answer, over plain HTTP.
//!
//! The admin listener is on loopback or behind the operator's own tunnel, so there is no TLS here; an `https` URL is
//! refused with that remark instead of half-working. One connection a call: commands make one or two.

use std::{
    future::{Future, poll_fn},
    path::Path,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body::{Body, Frame};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::config::secret::{self, Secret, SecretError, Sources};

/// For a whole call. 60 s: adding a thousand replicas waits for the disk once, and nothing waits for a phone.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// Largest answer. 64 MiB: five thousand replicas with their history are some MB.
const MAX_ANSWER: usize = 64 << 20;
/// Where the token is looked for when no flag says.
const TOKEN_VARIABLE: &str = "HUNTGROUP_ADMIN_TOKEN";

/// How to reach a running gateway.
#[derive(Clone, Debug, clap::Args)]
pub struct AdminArgs {
    /// Address of the admin listener
    #[arg(
        id = "admin_url",
        long = "admin",
        value_name = "URL",
        env = "HUNTGROUP_ADMIN",
        default_value = "http://127.0.0.1:9091"
    )]
    pub url: String,
    /// Where the admin token is: env:NAME or file:PATH [default: env:HUNTGROUP_ADMIN_TOKEN, if set]
    // By reference only: other users of the machine can read a command's arguments.
    #[arg(id = "admin_token", long = "token", value_name = "REF")]
    pub token: Option<String>,
}

/// What every command that talks to a gateway takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The gateway.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command was called in a way that can't work.
    #[error("{0}")]
    Usage(String),
    /// The reference to the token leads nowhere.
    #[error("--token: {0}")]
    Token(#[from] SecretError),
    /// Nobody answers there.
    #[error("can't reach the gateway's admin API at {url}: {why} (is it running? --admin says where)")]
    Unreachable {
        /// Where.
        url: String,
        /// The system's words.
        why: String,
    },
    /// Too slow.
    #[error("the gateway did not answer within {} seconds", CALL_LIMIT.as_secs())]
    Slow,
    /// The gateway refused, in its own words.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its words.
        message: String,
    },
    /// Not the admin API of a gateway.
    #[error("{url} does not answer like a gateway's admin API: {why}")]
    Strange {
        /// Where.
        url: String,
        /// What is strange.
        why: String,
    },
    /// The terminal or file that is written to.
    #[error("can't write: {0}")]
    Output(#[from] std::io::Error),
}

impl CliError {
    /// What the process exits with: 64 for a wrong call, 1 for everything else.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Token(_) => 64,
            _ => 1,
        }
    }
}

/// Calls the admin API.
#[derive(Clone, Debug)]
pub struct AdminClient {
    /// `host:port`, for the connection and the Host header.
    authority: String,
    url: String,
    token: Option<HeaderValue>,
}

impl AdminClient {
    /// From the flags and the environment.
    ///
    /// # Errors
    /// The URL is not `http://HOST[:PORT]`, or the token is not found.
    pub fn from_args(args: &AdminArgs) -> Result<Self, CliError> {
        Self::new(args, &|name| std::env::var(name).ok())
    }

    fn new(args: &AdminArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, CliError> {
        let reference = args.token.clone().or_else(|| env(TOKEN_VARIABLE).map(|_| format!("env:{TOKEN_VARIABLE}")));
        let sources = Sources { env, base: Path::new("") };
        let token = reference.map(|reference| secret::resolve(&reference, &sources)).transpose()?;
        Ok(Self {
            authority: authority(&args.url)?,
            url: args.url.clone(),
            token: token.as_ref().map(bearer).transpose()?,
        })
    }

    /// Reads.
    ///
    /// # Errors
    /// The gateway can't be reached, or refuses.
    pub async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.call(Method::GET, path, None).await
    }

    /// Adds, or acts.
    ///
    /// # Errors
    /// The gateway can't be reached, or refuses.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Changes.
    ///
    /// # Errors
    /// The gateway can't be reached, or refuses.
    pub async fn patch(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.call(Method::PATCH, path, Some(body)).await
    }

    /// Removes.
    ///
    /// # Errors
    /// The gateway can't be reached, or refuses.
    pub async fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.call(Method::DELETE, path, None).await
    }

    /// Reads an answer that does not end by itself, piece by piece.
    ///
    /// # Errors
    /// The gateway can't be reached, or refuses.
    pub async fn stream(&self, path: &str) -> Result<Stream, CliError> {
        let request = self.request(Method::GET, path, None)?;
        let opening = async {
            let (mut sender, mut connection) = self.connect().await?;
            let answer = beside(&mut connection, sender.send_request(request)).await;
            let answer = answer.map_err(|error| self.unreachable(error))?;
            let (status, body) = (answer.status(), answer.into_body());
            if status.is_success() {
                return Ok(Stream { url: self.url.clone(), connection, body: Box::pin(body), _sender: sender });
            }
            let body = beside(&mut connection, self.read(body)).await?;
            Err(self.refused(status, read_answer(status, &body).err()))
        };
        tokio::time::timeout(CALL_LIMIT, opening).await.map_err(|_| CliError::Slow)?
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, CliError> {
        let request = self.request(method, path, body)?;
        let answer = tokio::time::timeout(CALL_LIMIT, self.exchange(request)).await.map_err(|_| CliError::Slow)?;
        let (status, body) = answer?;
        read_answer(status, &body).map_err(|why| self.refused(status, Some(why)))
    }

    fn refused(&self, status: StatusCode, why: Option<Unread>) -> CliError {
        match why {
            Some(Unread::Refused(message)) => CliError::Refused { status: status.as_u16(), message },
            Some(Unread::Strange(why)) => CliError::Strange { url: self.url.clone(), why },
            None => CliError::Strange { url: self.url.clone(), why: status.to_string() },
        }
    }

    fn unreachable(&self, why: impl std::fmt::Display) -> CliError {
        CliError::Unreachable { url: self.url.clone(), why: why.to_string() }
    }

    async fn connect(&self) -> Result<(SendRequest<Whole>, Connection), CliError> {
        let stream = TcpStream::connect(&self.authority).await.map_err(|error| self.unreachable(error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| self.unreachable(error))?;
        Ok((sender, Some(Box::pin(connection))))
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Request<Whole>, CliError> {
        let mut builder = Request::builder().method(method).uri(path).header(header::HOST, &self.authority);
        if let Some(token) = &self.token {
            builder = builder.header(header::AUTHORIZATION, token);
        }
        if body.is_some() {
            builder = builder.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(|body| Bytes::from(body.to_string()));
        builder.body(Whole(body)).map_err(|error| CliError::Usage(format!("{path:?}: {error}")))
    }

    /// Sends a request and reads the whole answer.
    async fn exchange(&self, request: Request<Whole>) -> Result<(StatusCode, Bytes), CliError> {
        let (mut sender, mut connection) = self.connect().await?;
        let call = async {
            let answer = sender.send_request(request).await.map_err(|error| self.unreachable(error))?;
            let status = answer.status();
            Ok((status, self.read(answer.into_body()).await?))
        };
        beside(&mut connection, call).await
    }

    async fn read(&self, body: hyper::body::Incoming) -> Result<Bytes, CliError> {
        let mut body = pin!(body);
        let mut whole = BytesMut::new();
        while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
            let strange = |why: String| CliError::Strange { url: self.url.clone(), why };
            let frame = frame.map_err(|error| strange(format!("the answer broke off ({error})")))?;
            whole.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            if whole.len() > MAX_ANSWER {
                return Err(strange("the answer is larger than 64MiB".into()));
            }
        }
        Ok(whole.freeze())
    }
}

/// A connection, until it has ended.
type Connection = Option<Pin<Box<hyper::client::conn::http1::Connection<TokioIo<TcpStream>, Whole>>>>;

/// Waits for what a connection brings. It is driven here, beside that, and ends with whoever holds it.
async fn beside<T>(connection: &mut Connection, brought: impl Future<Output = T>) -> T {
    let mut brought = pin!(brought);
    poll_fn(|context| {
        // An error of the connection shows in what it brings as well, with more to say.
        if connection.as_mut().is_some_and(|connection| connection.as_mut().poll(context).is_ready()) {
            *connection = None;
        }
        brought.as_mut().poll(context)
    })
    .await
}

/// An answer that does not end by itself.
pub struct Stream {
    url: String,
    connection: Connection,
    body: Pin<Box<hyper::body::Incoming>>,
    /// Dropping it would end the connection.
    _sender: SendRequest<Whole>,
}

impl Stream {
    /// The next piece; `None` at its end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The connection breaks.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CliError> {
        let mut body = self.body.as_mut();
        let frames = async {
            while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
                if let Ok(data) = frame?.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok::<_, hyper::Error>(None)
        };
        let next = beside(&mut self.connection, frames).await;
        next.map_err(|error| CliError::Unreachable { url: self.url.clone(), why: error.to_string() })
    }
}

/// One part of a path, or of a query. Everything but letters, digits and `-_.` is escaped: also a URL is one part.
pub fn escaped(part: &str) -> String {
    let mut escaped = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

fn authority(url: &str) -> Result<String, CliError> {
    let wrong = |why: &str| CliError::Usage(format!("--admin {url:?}: {why}; accepted: http://HOST[:PORT]"));
    if url.starts_with("https://") {
        return Err(wrong("the admin listener has no TLS; reach it on its host or through an ssh tunnel"));
    }
    let uri: Uri = url.parse().map_err(|_| wrong("not a URL"))?;
    let authority =
        uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(|| wrong("not an http URL"))?;
    if authority.as_str().contains('@') || uri.path() != "/" || uri.query().is_some() {
        return Err(wrong("must end after the port"));
    }
    Ok(format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)))
}

fn bearer(token: &Secret) -> Result<HeaderValue, CliError> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.reveal()))
        .map_err(|_| CliError::Usage("the admin token has characters that can't be sent".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Why an answer has no value.
enum Unread {
    Refused(String),
    Strange(String),
}

fn read_answer(status: StatusCode, body: &[u8]) -> Result<Value, Unread> {
    let json: Option<Value> = if body.is_empty() { Some(Value::Null) } else { serde_json::from_slice(body).ok() };
    match json {
        Some(value) if status.is_success() => Ok(value),
        None if status.is_success() => Err(Unread::Strange(format!("{status} without JSON"))),
        value => {
            let message = value.as_ref().and_then(|value| value["error"]["message"].as_str()).map(str::to_owned);
            Err(message.map_or_else(|| Unread::Strange(status.to_string()), Unread::Refused))
        }
    }
}

/// A request's body: all of it, or none.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.as_ref().map_or(0, |body| body.len() as u64))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread::JoinHandle,
    };

    use serde_json::json;

    use super::*;

    /// A gateway that gives one answer to each of its connections and tells what it was asked.
    pub(crate) struct OneAnswer {
        pub(crate) client: AdminClient,
        asked: JoinHandle<Vec<String>>,
    }

    impl OneAnswer {
        pub(crate) fn new(answers: &[(&str, &str)]) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let heads = |(status, body): &(&str, &str)| {
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
            };
            let answers: Vec<String> = answers.iter().map(heads).collect();
            let asked = std::thread::spawn(move || {
                answers
                    .into_iter()
                    .map(|answer| {
                        let (mut socket, _) = listener.accept().unwrap();
                        let asked = read_request(&mut socket);
                        socket.write_all(answer.as_bytes()).unwrap();
                        asked
                    })
                    .collect()
            });
            let args = AdminArgs { url, token: Some("env:TOKEN".into()) };
            let client = AdminClient::new(&args, &|_| Some("t0ken".into())).unwrap();
            Self { client, asked }
        }

        /// What was asked, request by request.
        pub(crate) fn asked(self) -> Vec<String> {
            self.asked.join().unwrap()
        }
    }

    fn read_request(socket: &mut std::net::TcpStream) -> String {
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                    return text;
                }
            }
            let mut buffer = [0; 4096];
            let count = socket.read(&mut buffer).unwrap();
            assert!(count > 0, "the request broke off");
            bytes.extend_from_slice(&buffer[..count]);
        }
    }

    #[tokio::test]
    async fn a_call_carries_method_path_token_and_body_and_gives_the_answer() {
        let large = format!("{{\"x\":\"{}\"}}", "y".repeat(100_000));
        let gateway = OneAnswer::new(&[("200 OK", &large), ("204 No Content", ""), ("200 OK", "[]")]);
        let answer = gateway.client.post("/admin/keys", &json!({ "tenant": "bank" })).await.unwrap();
        assert_eq!(answer["x"].as_str().unwrap().len(), 100_000);
        assert_eq!(gateway.client.delete("/admin/keys/3").await.unwrap(), Value::Null);
        assert_eq!(gateway.client.get("/admin/keys").await.unwrap(), json!([]));
        let asked = gateway.asked();
        assert!(asked[0].starts_with("POST /admin/keys HTTP/1.1\r\n") && asked[0].ends_with("{\"tenant\":\"bank\"}"));
        assert!(
            asked[0].contains("authorization: Bearer t0ken\r\n") && asked[0].contains("content-type: application/json")
        );
        assert!(asked[1].starts_with("DELETE /admin/keys/3 ") && asked[2].starts_with("GET /admin/keys "));
        assert!(!asked[2].contains("content-type"));
    }

    #[tokio::test]
    async fn a_refusal_is_told_in_the_gateways_own_words() {
        let gateway = OneAnswer::new(&[
            ("404 Not Found", r#"{"error":{"message":"no key 7","type":"invalid_request_error"}}"#),
            ("502 Bad Gateway", "<html>"),
            ("200 OK", "<html>"),
        ]);
        let refused = gateway.client.delete("/admin/keys/7").await.unwrap_err();
        assert_eq!((refused.to_string().as_str(), refused.exit_code()), ("no key 7", 1));
        let strange = gateway.client.get("/").await.unwrap_err();
        assert!(
            strange.to_string().ends_with("does not answer like a gateway's admin API: 502 Bad Gateway"),
            "{strange}"
        );
        assert!(matches!(gateway.client.get("/").await, Err(CliError::Strange { .. })));
        gateway.asked();
    }

    #[tokio::test]
    async fn a_gateway_that_is_not_there_is_named() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let args = AdminArgs { url: format!("http://127.0.0.1:{port}"), token: None };
        let error = AdminClient::new(&args, &|_| None).unwrap().get("/").await.unwrap_err();
        assert!(error.to_string().contains("is it running?") && error.to_string().contains(&args.url), "{error}");
    }

    #[test]
    fn the_address_is_an_http_host_and_a_port() {
        for (url, expected) in [
            ("http://127.0.0.1:9091", "127.0.0.1:9091"),
            ("http://gateway/", "gateway:80"),
            ("http://[::1]:9091", "[::1]:9091"),
        ] {
            assert_eq!(authority(url).unwrap(), expected);
        }
        for url in ["https://gateway", "gateway:9091", "http://", "http://a@b", "http://a/admin", "http://a?x", ""] {
            assert_eq!(authority(url).unwrap_err().exit_code(), 64, "{url}");
        }
    }

    #[test]
    fn the_token_comes_by_reference_and_never_shows() {
        let args = |token: Option<&str>| AdminArgs { url: "http://a".into(), token: token.map(str::to_owned) };
        let env = |name: &str| (name == TOKEN_VARIABLE).then(|| "t0ken".to_owned());
        let client = AdminClient::new(&args(None), &env).unwrap();
        assert_eq!(client.token.as_ref().unwrap(), "Bearer t0ken");
        assert!(!format!("{client:?}").contains("t0ken"));
        let bare = AdminClient::new(&args(Some("t0ken")), &env).unwrap_err();
        assert_eq!(bare.exit_code(), 64);
        assert!(AdminClient::new(&args(None), &|_| None).unwrap().token.is_none());
    }
}
