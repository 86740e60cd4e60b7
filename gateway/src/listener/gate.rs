//! What pingora does not check for us: the strict gate before routing.
//!
//! A second reading of a request is how smuggling works, so whatever could be read in two ways is refused here: one Host,
//! exactly one framing, methods and paths from a list, bounded heads.

use std::borrow::Cow;

use http::{HeaderMap, Method, Uri, Version, header, request::Parts};
use openai_wire::Route;

use super::calls::{BatchesCall, FilesCall};
use crate::error::{ApiError, shown};

/// Header lines. 100: the official SDKs send about 20.
const MAX_HEADERS: usize = 100;
/// Bytes of all header names and values. 32 KiB.
const MAX_HEADER_BYTES: usize = 32 << 10;
/// Bytes of the request target. 8 KiB, as most servers have it.
const MAX_TARGET: usize = 8 << 10;

/// What a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A route that replicas answer.
    Inference(Route),
    /// `GET /v1/models`.
    Models,
    /// `GET /v1/models/{id}`; the id is percent-decoded.
    Model(String),
    /// `/v1/files…`.
    Files(FilesCall),
    /// `/v1/batches…`.
    Batches(BatchesCall),
    /// `GET /healthz`.
    Healthz,
    /// `GET /readyz`.
    Readyz,
}

/// How the body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// `Content-Length`.
    Length(u64),
    /// `Transfer-Encoding: chunked`, or HTTP/2 without a length.
    Chunked,
}

/// A request that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// What it is for.
    pub target: Target,
    /// How its body is delimited.
    pub framing: Framing,
    /// The client waits for `100 Continue`.
    pub expects_continue: bool,
}

/// Checks the head of a request.
pub fn admit(head: &Parts) -> Result<Admitted, ApiError> {
    Oversize::check(&head.headers, &head.uri)?;
    values(&head.headers)?;
    if head.method == Method::CONNECT {
        // What follows a CONNECT would be no HTTP: the connection closes.
        return Err(ApiError::transport(405, "CONNECT is not a method of this server."));
    }
    authority(head)?;
    credentials(&head.headers)?;
    let framing = framing(head)?;
    let target = target(head)?;
    let expects_continue = expectation(&head.headers)?;
    if let Some(encoding) = head.headers.get(header::CONTENT_ENCODING)
        && encoding.as_bytes() != b"identity"
    {
        return Err(ApiError::transport(415, "Content-Encoding is not supported: send the body as it is."));
    }
    Ok(Admitted { target, framing, expects_continue })
}

/// A head that is larger than one may be, on any listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Oversize {
    /// Too many lines.
    #[error("The head has more than {MAX_HEADERS} header lines.")]
    Lines,
    /// Too many bytes.
    #[error("The headers are larger than {MAX_HEADER_BYTES} bytes.")]
    Bytes,
    /// Its target is too long.
    #[error("The request target is longer than {MAX_TARGET} bytes.")]
    Target,
}

impl Oversize {
    /// Of a head.
    ///
    /// # Errors
    /// What it has too much of.
    pub fn check(headers: &HeaderMap, uri: &Uri) -> Result<(), Self> {
        let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        let target = uri.path().len() + uri.query().map_or(0, |query| query.len() + 1);
        match () {
            () if headers.len() > MAX_HEADERS => Err(Self::Lines),
            () if bytes > MAX_HEADER_BYTES => Err(Self::Bytes),
            () if target > MAX_TARGET => Err(Self::Target),
            () => Ok(()),
        }
    }

    /// HTTP status.
    pub const fn status(self) -> u16 {
        if matches!(self, Self::Target) { 414 } else { 431 }
    }
}

impl From<Oversize> for ApiError {
    fn from(oversize: Oversize) -> Self {
        Self::transport(oversize.status(), oversize.to_string())
    }
}

fn values(headers: &HeaderMap) -> Result<(), ApiError> {
    // The http crate refuses CR, LF and NUL in values when they come through its constructors; a codec may not use them.
    if headers.values().any(|value| value.as_bytes().iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'))) {
        return Err(ApiError::transport(400, "A header value has a control character."));
    }
    Ok(())
}

fn authority(head: &Parts) -> Result<(), ApiError> {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let (first, more) = (hosts.next(), hosts.next());
    if more.is_some() {
        return Err(ApiError::transport(400, "More than one Host header."));
    }
    if head.version == Version::HTTP_2 {
        return Ok(());
    }
    if head.uri.authority().is_some() || head.uri.scheme().is_some() {
        return Err(ApiError::transport(400, "The request target must be a path."));
    }
    match first {
        Some(host) if !host.is_empty() => Ok(()),
        None if head.version == Version::HTTP_10 => Ok(()),
        _ => Err(ApiError::transport(400, "The Host header is missing.")),
    }
}

fn credentials(headers: &HeaderMap) -> Result<(), ApiError> {
    let twice = |name: &str| headers.get_all(name).iter().nth(1).is_some();
    if twice("authorization") || twice("x-api-key") {
        return Err(ApiError::transport(400, "More than one Authorization or x-api-key header."));
    }
    Ok(())
}

/// How the body of a request is delimited, if in one way only.
pub(super) fn framing(head: &Parts) -> Result<Framing, ApiError> {
    let mut encodings = head.headers.get_all(header::TRANSFER_ENCODING).iter();
    let mut lengths = head.headers.get_all(header::CONTENT_LENGTH).iter();
    match (encodings.next(), lengths.next()) {
        (Some(_), Some(_)) => Err(ApiError::transport(400, "Both Transfer-Encoding and Content-Length.")),
        (Some(encoding), None) => {
            let plain = encoding.as_bytes().eq_ignore_ascii_case(b"chunked") && encodings.next().is_none();
            if plain && head.version == Version::HTTP_11 {
                Ok(Framing::Chunked)
            } else {
                Err(ApiError::transport(400, "Transfer-Encoding must be exactly 'chunked'."))
            }
        }
        (None, Some(length)) => {
            let text = length.to_str().unwrap_or_default();
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            match text.parse() {
                Ok(length) if digits && lengths.next().is_none() => {
                    Ok(if length == 0 { Framing::None } else { Framing::Length(length) })
                }
                _ => Err(ApiError::transport(400, "Content-Length must be one decimal number.")),
            }
        }
        (None, None) if head.version == Version::HTTP_2 => Ok(Framing::Chunked),
        (None, None) => Ok(Framing::None),
    }
}

/// Whether a raw head has a `Content-Length` line.
pub(super) fn names_length(raw: &[u8]) -> bool {
    const NAME: &[u8] = b"content-length";
    raw.split(|byte| *byte == b'\n')
        .any(|line| line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME)))
}

fn expectation(headers: &HeaderMap) -> Result<bool, ApiError> {
    let mut values = headers.get_all(header::EXPECT).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(false),
        (Some(value), None) if value.as_bytes().eq_ignore_ascii_case(b"100-continue") => Ok(true),
        _ => Err(ApiError::transport(417, "Expect must be exactly '100-continue'.")),
    }
}

fn target(head: &Parts) -> Result<Target, ApiError> {
    let path = head.uri.path();
    let files = path.strip_prefix("/v1/files").and_then(|rest| FilesCall::find(rest, &head.method));
    if let Some(call) = files {
        return call.map(Target::Files);
    }
    let batches = path.strip_prefix("/v1/batches").and_then(|rest| BatchesCall::find(rest, &head.method));
    if let Some(call) = batches {
        return call.map(Target::Batches);
    }
    let (target, allow) = if let Some(route) = Route::from_path(path) {
        (Target::Inference(route), "POST")
    } else {
        match path {
            "/v1/models" => (Target::Models, "GET"),
            "/healthz" => (Target::Healthz, "GET"),
            "/readyz" => (Target::Readyz, "GET"),
            _ => match path.strip_prefix("/v1/models/").and_then(percent_decode) {
                Some(id) => (Target::Model(id.into_owned()), "GET"),
                None => return Err(ApiError::UnknownPath(shown(path))),
            },
        }
    };
    let allowed = if allow == "GET" { matches!(head.method, Method::GET | Method::HEAD) } else { head.method == allow };
    if allowed { Ok(target) } else { Err(ApiError::Method { allow }) }
}

/// A model id may hold slashes and colons, so the rest of the path is the id.
fn percent_decode(text: &str) -> Option<Cow<'_, str>> {
    if text.is_empty() {
        return None;
    }
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let hex = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok().filter(|id| !id.chars().any(char::is_control)).map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn head(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut builder = Request::builder().method(method).uri(uri).version(Version::HTTP_11);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).expect("a request").into_parts().0
    }

    fn status(method: &str, uri: &str, headers: &[(&str, &str)]) -> u16 {
        admit(&head(method, uri, headers)).map_or_else(|error| error.status(), |_| 200)
    }

    const CHAT: &str = "/v1/chat/completions";
    const HOST: (&str, &str) = ("host", "gateway");

    #[test]
    fn a_plain_chat_request_passes() {
        let admitted = admit(&head("POST", CHAT, &[HOST, ("content-length", "12")])).expect("admitted");
        assert_eq!(admitted.target, Target::Inference(Route::ChatCompletions));
        assert_eq!(admitted.framing, Framing::Length(12));
    }

    #[test]
    fn only_listed_paths_and_methods_pass() {
        assert_eq!(status("POST", "/v1/../admin/replicas", &[HOST]), 404);
        assert_eq!(status("POST", "/v1/%2e%2e/admin", &[HOST]), 404);
        assert_eq!(status("POST", "/v1/chat/completions/", &[HOST]), 404);
        assert_eq!(status("POST", "//v1/chat/completions", &[HOST]), 404);
        assert_eq!(status("GET", CHAT, &[HOST]), 405);
        assert_eq!(status("DELETE", "/v1/models", &[HOST]), 405);
        assert_eq!(status("POST", "/v1/messages?beta=true", &[HOST]), 200);
        assert_eq!(status("GET", "/v1/files?limit=2", &[HOST]), 200);
        assert_eq!(status("GET", "/v1/filesystem", &[HOST]), 404);
        assert_eq!(status("PUT", "/v1/batches", &[HOST]), 405);
    }

    #[test]
    fn a_model_id_is_decoded_and_may_hold_slashes() {
        let admitted = admit(&head("GET", "/v1/models/org%2Fmodel:q4", &[HOST])).expect("admitted");
        assert_eq!(admitted.target, Target::Model("org/model:q4".into()));
        assert_eq!(status("GET", "/v1/models/", &[HOST]), 404);
        assert_eq!(status("GET", "/v1/models/%zz", &[HOST]), 404);
        assert_eq!(status("GET", "/v1/models/%00", &[HOST]), 404);
    }

    #[test]
    fn whatever_can_be_read_in_two_ways_is_refused() {
        for (headers, expected) in [
            (vec![], 400),
            (vec![HOST, ("host", "other")], 400),
            (vec![HOST, ("transfer-encoding", "chunked"), ("content-length", "3")], 400),
            (vec![HOST, ("transfer-encoding", "gzip, chunked")], 400),
            (vec![HOST, ("transfer-encoding", "identity, chunked")], 400),
            (vec![HOST, ("transfer-encoding", ",chunked")], 400),
            (vec![HOST, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], 400),
            (vec![HOST, ("content-length", "+3")], 400),
            (vec![HOST, ("content-length", "3"), ("content-length", "3")], 400),
            (vec![HOST, ("content-encoding", "gzip")], 415),
            (vec![HOST, ("expect", "200-ok")], 417),
        ] {
            assert_eq!(status("POST", CHAT, &headers), expected, "{headers:?}");
        }
        assert_eq!(status("POST", "http://other/v1/chat/completions", &[HOST]), 400);
    }

    #[test]
    fn a_length_is_found_in_a_raw_head_in_any_spelling() {
        assert!(names_length(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nCONTENT-length:3\r\n\r\n"));
        assert!(!names_length(b"POST /content-length HTTP/1.1\r\nX-Content-Length: 3\r\n\r\n"));
    }

    #[test]
    fn two_credentials_and_connect_are_refused() {
        let key = ("authorization", "Bearer a");
        assert_eq!(status("POST", CHAT, &[HOST, key, key]), 400);
        assert_eq!(status("CONNECT", "gateway:443", &[HOST]), 405);
    }

    #[test]
    fn heads_are_bounded() {
        let long = "x".repeat(MAX_HEADER_BYTES);
        assert_eq!(status("POST", CHAT, &[HOST, ("x-long", &long)]), 431);
        let many: Vec<(String, &str)> = (0..MAX_HEADERS).map(|n| (format!("x-{n}"), "v")).collect();
        let mut many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        many.push(HOST);
        assert_eq!(status("POST", CHAT, &many), 431);
        assert_eq!(status("POST", &format!("{CHAT}?{}", "q".repeat(MAX_TARGET)), &[HOST]), 414);
    }
}
