//! Reading a request.

use super::{Conn, Gone};
use std::time::Duration;

/// As llama-server: larger bodies are refused.
const LARGEST_BODY: usize = 100 * 1024 * 1024;
/// As cpp-httplib: a header line of more than 8 KiB is refused; heads are a little larger than one line.
const LARGEST_HEAD: usize = 64 * 1024;
const MOST_HEADERS: usize = 100;

/// A request, read whole.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The client wants the connection closed after the answer.
    pub(crate) closes: bool,
}

impl Request {
    /// The target without its query.
    pub(crate) fn path(&self) -> &str {
        self.target.split_once('?').map_or(self.target.as_str(), |(path, _)| path)
    }

    /// The query, if there is one.
    pub(crate) fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Why there is no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRequest {
    /// The client closed, or was idle for too long.
    Ended,
    /// What came was no request; this status says why.
    Refused(u16),
}

struct Head {
    request: Request,
    length: usize,
    framing: Framing,
    expects_continue: bool,
}

enum Framing {
    Length(usize),
    Chunked,
}

impl Conn {
    /// Reads the next request, waiting at most `idle` for its first byte.
    pub(crate) async fn read_request(&mut self, idle: Duration) -> Result<Request, NoRequest> {
        if self.inbox.is_empty() {
            match tokio::time::timeout(idle, self.fill()).await {
                Ok(Ok(())) => {}
                Ok(Err(Gone)) | Err(_) => return Err(NoRequest::Ended),
            }
        }
        let head = loop {
            if let Some(head) = parse_head(&self.inbox)? {
                break head;
            }
            if self.inbox.len() > LARGEST_HEAD {
                return Err(NoRequest::Refused(400));
            }
            self.fill().await.map_err(|Gone| NoRequest::Ended)?;
        };
        drop(self.inbox.split_to(head.length));
        if head.expects_continue {
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n").await.map_err(|Gone| NoRequest::Ended)?;
        }
        let mut request = head.request;
        request.body = match head.framing {
            Framing::Length(length) => self.read_exact(length).await?,
            Framing::Chunked => self.read_chunks().await?,
        };
        self.served += 1;
        Ok(request)
    }

    async fn fill(&mut self) -> Result<(), Gone> {
        if self.read_more().await { Err(Gone) } else { Ok(()) }
    }

    async fn read_exact(&mut self, length: usize) -> Result<Vec<u8>, NoRequest> {
        if length > LARGEST_BODY {
            return Err(NoRequest::Refused(413));
        }
        while self.inbox.len() < length {
            self.fill().await.map_err(|Gone| NoRequest::Ended)?;
        }
        Ok(self.inbox.split_to(length).to_vec())
    }

    async fn read_line(&mut self) -> Result<String, NoRequest> {
        loop {
            if let Some(end) = self.inbox.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&self.inbox[..end]).into_owned();
                drop(self.inbox.split_to(end + 2));
                return Ok(line);
            }
            if self.inbox.len() > LARGEST_HEAD {
                return Err(NoRequest::Refused(400));
            }
            self.fill().await.map_err(|Gone| NoRequest::Ended)?;
        }
    }

    async fn read_chunks(&mut self) -> Result<Vec<u8>, NoRequest> {
        let mut body = Vec::new();
        loop {
            let line = self.read_line().await?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| NoRequest::Refused(400))?;
            if size == 0 {
                while !self.read_line().await?.is_empty() {}
                return Ok(body);
            }
            if size > LARGEST_BODY - body.len() {
                return Err(NoRequest::Refused(413));
            }
            body.extend_from_slice(&self.read_exact(size).await?);
            if !self.read_line().await?.is_empty() {
                return Err(NoRequest::Refused(400));
            }
        }
    }
}

/// The head at the start of `bytes`, or `None` while it is incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<Head>, NoRequest> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(NoRequest::Refused(400)),
    };
    let mut request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        target: parsed.path.unwrap_or_default().to_owned(),
        headers: Vec::with_capacity(parsed.headers.len()),
        body: Vec::new(),
        closes: parsed.version == Some(0),
    };
    for header in parsed.headers.iter() {
        request.headers.push((header.name.to_owned(), String::from_utf8_lossy(header.value).into_owned()));
    }
    if let Some(connection) = request.header("connection") {
        let says = |word: &str| connection.split(',').any(|part| part.trim().eq_ignore_ascii_case(word));
        request.closes = if request.closes { !says("keep-alive") } else { says("close") };
    }
    let framing = match (request.header("transfer-encoding"), request.header("content-length")) {
        (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => Framing::Chunked,
        (Some(_), _) => return Err(NoRequest::Refused(400)),
        (None, Some(length)) => Framing::Length(length.trim().parse().map_err(|_| NoRequest::Refused(400))?),
        (None, None) => Framing::Length(0),
    };
    let expects_continue = request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"));
    Ok(Some(Head { request, length, framing, expects_continue }))
}
