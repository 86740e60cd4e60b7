//! One client request and the answer to it: the only thing that the stages know of a connection.
//!
//! [`Exchange::drive`] is how everything waits: it polls what is waited for, watches whether the client is still there, and
//! keeps a stream warm, in one future. When the client leaves, what was waited for is dropped, and with it the place in
//! the queue, the slot, and the connection to the phone.

use std::{net::IpAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, header, request::Parts};
use pingora::{http::ResponseHeader, protocols::http::ServerSession};
use scheduler::Timestamp;
use tokio::{sync::Notify, time::Sleep};

use super::gate::{Admitted, Framing, admit, framing};
use crate::{clock, error::ApiError, gateway::Held};

/// The client is gone, or an operator cancelled the request: nobody waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// Closed, reset, or does not take what is written.
    ClientGone,
    /// `DELETE /admin/requests/{id}`.
    Cancelled,
}

/// Deadlines and bounds towards clients.
#[derive(Clone, Debug)]
pub struct ClientLimits {
    /// Largest body.
    pub max_body: u64,
    /// Time for a body, beside `body_deadline_per_64k`.
    pub body_deadline: Duration,
    /// Time for each 64 KiB of it.
    pub body_deadline_per_64k: Duration,
    /// A stream's head goes out after this long, whatever has come from a replica.
    pub head_after: Duration,
    /// Longest silence in a stream.
    pub keepalive_interval: Duration,
    /// Send spaces into plain answers after this long; off by default.
    pub keepalive_json_after: Option<Duration>,
}

/// How far the answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Nothing,
    Head,
    Whole,
}

/// Tells how long the client still waits for a slot; `None` once it has one.
type Progress = Box<dyn Fn() -> Option<Duration> + Send>;

/// What keeps a waiting client patient.
struct KeepAlive {
    timer: Pin<Box<Sleep>>,
    filler: Bytes,
    /// For a client that asked.
    progress: Option<Progress>,
    interval: Duration,
    last_write: Timestamp,
}

/// A request being answered.
pub struct Exchange {
    session: ServerSession,
    id: Arc<str>,
    started: Timestamp,
    limits: Arc<ClientLimits>,
    cancel: Arc<Notify>,
    keepalive: Option<KeepAlive>,
    /// The head that [`Exchange::drive`] sends when it must write something before the answer is there.
    early_head: Option<Box<ResponseHeader>>,
    sent: Sent,
    /// A write was given up in the middle: whatever followed would be read as its rest.
    stuck: bool,
    /// Its length is known to be at most [`MAX_UNREAD`], and it comes unasked.
    body_is_small: bool,
}

/// A comment line: clients ignore it, middle boxes see bytes.
const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");
const SPACE: Bytes = Bytes::from_static(b" ");
/// Most that is written at once. `server.write_timeout` counts for each write: a client that reads a large answer slowly
/// does read. 64 KiB: what a socket takes at once, and a client that can't take it in a minute is not reading.
const MAX_WRITE: usize = 64 << 10;
/// A body of at most this much that nobody wanted is read for the next request's sake; for a larger one a new connection
/// costs less.
const MAX_UNREAD: u64 = 64 << 10;
/// How long the rest of a body that nobody wants is read: most clients send all of it before they look for an answer.
const LINGER: Duration = Duration::from_secs(2);

impl Exchange {
    pub(super) fn new(session: ServerSession, id: Arc<str>, limits: Arc<ClientLimits>) -> Self {
        Self {
            session,
            id,
            started: clock::now(),
            limits,
            cancel: Arc::default(),
            keepalive: None,
            early_head: None,
            sent: Sent::Nothing,
            stuck: false,
            body_is_small: false,
        }
    }

    /// Checks the head of the request.
    pub fn admit(&mut self) -> Result<Admitted, ApiError> {
        let short = matches!(framing(self.head()), Ok(Framing::None | Framing::Length(0..=MAX_UNREAD)));
        self.body_is_small = short && !self.head().headers.contains_key(header::EXPECT);
        admit(self.head())
    }

    /// The head of the request.
    pub fn head(&self) -> &Parts {
        self.session.req_header()
    }

    /// Where it comes from; unspecified when the socket does not say.
    pub fn peer(&self) -> IpAddr {
        self.session.client_addr().and_then(|addr| addr.as_inet()).map_or(IpAddr::from([0, 0, 0, 0]), |addr| addr.ip())
    }

    /// The id that the client, logs and the admin API see.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// When its head was read.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// Notified by an operator who cancels the request.
    pub fn cancel_signal(&self) -> Arc<Notify> {
        Arc::clone(&self.cancel)
    }

    /// Whether the status has gone out: a refusal can only travel inside the answer then.
    pub fn head_sent(&self) -> bool {
        self.sent != Sent::Nothing
    }

    /// Reads the whole body, within the size and time it may take, and the room that `held` gives.
    pub async fn read_body(&mut self, admitted: &Admitted, held: &mut Held) -> Result<Bytes, ApiError> {
        let max = self.limits.max_body;
        let too_large = || ApiError::transport(413, format!("The body is larger than {max} bytes (server.max_body)."));
        let expected = match admitted.framing {
            Framing::None => return Ok(Bytes::new()),
            Framing::Length(length) if length > max => return Err(too_large()),
            Framing::Length(length) => length,
            Framing::Chunked => 0,
        };
        if admitted.expects_continue && self.session.write_continue_response().await.is_err() {
            return Err(ApiError::transport(400, "The connection broke before the body."));
        }
        let started = clock::now();
        let mut body = Body::default();
        loop {
            let read = body.len() as u64;
            let blocks = u32::try_from(read.max(expected) >> 16).unwrap_or(u32::MAX);
            let deadline = started + self.limits.body_deadline + self.limits.body_deadline_per_64k * blocks;
            let piece = tokio::time::timeout_at(clock::instant(deadline), self.session.read_request_body()).await;
            match piece {
                Err(_) => {
                    return Err(ApiError::transport(408, "The body did not arrive in time (server.body_deadline)."));
                }
                Ok(Err(_)) => return Err(ApiError::transport(400, "The body broke off, or its framing is wrong.")),
                Ok(Ok(None)) => return Ok(body.whole()),
                Ok(Ok(Some(piece))) if read + piece.len() as u64 > max => return Err(too_large()),
                Ok(Ok(Some(piece))) => {
                    held.grow(piece.len())?;
                    body.push(piece, expected);
                }
            }
        }
    }

    /// Waits for `future` as long as the client waits. Takes it pinned (`pin!`): moved in, it would stand twice in the
    /// state of every request.
    pub async fn drive<F: Future + Unpin>(&mut self, mut future: F) -> Result<F::Output, Interrupted> {
        let cancel = Arc::clone(&self.cancel);
        loop {
            // The future comes last: one that is never short of input would hide a client that left, and its turn uses up
            // the task's budget, with which tokio ends the turn of all.
            tokio::select! {
                biased;
                () = cancel.notified() => return Err(Interrupted::Cancelled),
                _ = self.session.read_body_or_idle(true) => return Err(Interrupted::ClientGone),
                () = due(&mut self.keepalive) => {}
                done = &mut future => return Ok(done),
            }
            self.keep_alive().await?;
        }
    }

    /// From now on [`Exchange::drive`] sends `head` (after `head_after`) and comments while nothing else is written.
    pub fn keep_stream_warm(&mut self, head: impl FnOnce() -> Box<ResponseHeader>) {
        self.warm(head(), self.limits.head_after, self.limits.keepalive_interval, COMMENT);
    }

    /// The same for a plain answer, with spaces; only if the operator wants that.
    pub fn keep_plain_warm(&mut self, head: impl FnOnce() -> Box<ResponseHeader>) {
        if let Some(after) = self.limits.keepalive_json_after {
            self.warm(head(), after, self.limits.keepalive_interval.min(after), SPACE);
        }
    }

    fn warm(&mut self, head: Box<ResponseHeader>, after: Duration, interval: Duration, filler: Bytes) {
        let timer = Box::pin(tokio::time::sleep_until(clock::instant(self.started + after)));
        self.early_head = Some(head);
        self.keepalive = Some(KeepAlive { timer, filler, progress: None, interval, last_write: self.started });
    }

    /// What is sent instead of a comment while a stream is silent (an empty delta, for clients whose timer ignores comments).
    pub fn set_filler(&mut self, filler: Bytes) {
        if let Some(keepalive) = &mut self.keepalive {
            keepalive.filler = filler;
        }
    }

    /// From now on comments of a silent stream tell how long the client still waits, as long as `progress` knows.
    pub fn tell_progress(&mut self, progress: impl Fn() -> Option<Duration> + Send + 'static) {
        if let Some(keepalive) = &mut self.keepalive {
            keepalive.progress = Some(Box::new(progress));
        }
    }

    async fn keep_alive(&mut self) -> Result<(), Interrupted> {
        let Some(keepalive) = &mut self.keepalive else { return Ok(()) };
        let now = clock::now();
        let due = keepalive.last_write + keepalive.interval;
        // The timer is only moved when it fires: nothing is done per written event but noting the time.
        if self.sent == Sent::Head && now < due {
            keepalive.timer.as_mut().reset(clock::instant(due));
            return Ok(());
        }
        let filler = keepalive.filler();
        keepalive.timer.as_mut().reset(clock::instant(now + keepalive.interval));
        if let Some(head) = self.early_head.take() {
            self.send_head(head).await?;
        }
        self.write(filler).await
    }

    /// Writes the head of a streamed answer, unless it has gone out already.
    pub async fn begin(&mut self, head: Box<ResponseHeader>) -> Result<(), Interrupted> {
        self.early_head = None;
        if self.sent == Sent::Nothing { self.send_head(head).await } else { Ok(()) }
    }

    /// Writes a piece of a streamed answer; returns when the client's socket has taken it. Dropped before that, it leaves
    /// an answer that can only be broken off.
    pub async fn write(&mut self, mut piece: Bytes) -> Result<(), Interrupted> {
        while !piece.is_empty() {
            if let Some(keepalive) = &mut self.keepalive {
                keepalive.last_write = clock::now();
            }
            let part = piece.split_to(piece.len().min(MAX_WRITE));
            let cancel = Arc::clone(&self.cancel);
            self.stuck = true;
            tokio::select! {
                biased;
                written = self.session.write_response_body(part, false) => written.map_err(|_| Interrupted::ClientGone)?,
                () = cancel.notified() => return Err(Interrupted::Cancelled),
            }
            self.stuck = false;
        }
        Ok(())
    }

    /// Ends a streamed answer cleanly.
    pub async fn end(&mut self) -> Result<(), Interrupted> {
        self.sent = Sent::Whole;
        self.session.write_response_body(Bytes::new(), true).await.map_err(|_| Interrupted::ClientGone)
    }

    /// Writes a whole answer with its length.
    pub async fn respond(
        &mut self,
        mut head: Box<ResponseHeader>,
        parts: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), Interrupted> {
        let parts: Vec<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if self.sent == Sent::Nothing {
            let length: usize = parts.iter().map(Bytes::len).sum();
            insert(&mut head, header::CONTENT_LENGTH, HeaderValue::from(length));
            self.early_head = None;
            self.send_head(head).await?;
        }
        if self.head().method != http::Method::HEAD {
            for part in parts {
                self.write(part).await?;
            }
        }
        self.end().await
    }

    /// Ends a begun answer with a last word and without an end, so that no client takes it for whole.
    pub async fn abort_with(&mut self, last: Bytes) {
        if !last.is_empty() && !self.stuck && self.write(last).await.is_err() {
            tracing::debug!(request = %self.id, "the client left before the error");
        }
    }

    async fn send_head(&mut self, mut head: Box<ResponseHeader>) -> Result<(), Interrupted> {
        self.sent = Sent::Head;
        if head.headers.get(header::CONTENT_LENGTH).is_none() && self.head().version == http::Version::HTTP_11 {
            insert(&mut head, header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        self.session.write_response_header(head).await.map_err(|_| Interrupted::ClientGone)
    }

    /// No further request on this connection.
    pub fn close_after(&mut self) {
        self.session.set_keepalive(None);
    }

    /// Reads what a refusal leaves of a small body, so that the connection can go on. False if it can't: the body is large,
    /// of unknown length, slow, or the client waits to be asked for it.
    pub async fn skip_body(&mut self) -> bool {
        !self.has_unread_body() || self.body_is_small && self.read_rest().await
    }

    /// On HTTP/2 a body that nobody reads concerns its own stream only.
    fn has_unread_body(&mut self) -> bool {
        self.head().version != http::Version::HTTP_2 && !self.session.is_body_done()
    }

    /// Reads and forgets, for at most [`LINGER`]; whether that was all.
    async fn read_rest(&mut self) -> bool {
        let rest = async {
            loop {
                match self.session.read_request_body().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
        };
        tokio::time::timeout(LINGER, rest).await.unwrap_or(false)
    }

    /// The connection, if the answer went out whole. What is left of the body has been read, for a moment: closing a socket
    /// with unread input resets it, and the client would lose the answer that tells it why.
    pub(super) async fn into_session(mut self) -> Option<ServerSession> {
        if self.sent != Sent::Whole {
            return None;
        }
        if self.has_unread_body() && !self.read_rest().await {
            self.session.set_keepalive(None);
        }
        Some(self.session)
    }
}

impl KeepAlive {
    /// What is written now.
    fn filler(&self) -> Bytes {
        let Some(wait) = self.progress.as_ref().and_then(|progress| progress()) else { return self.filler.clone() };
        let told = format!(": waiting, about {:.0} s\n\n", wait.as_secs_f64().ceil().max(1.0));
        // Whose idle timer ignores comments needs the other as well.
        if self.filler == COMMENT { told.into() } else { [told.as_bytes(), &self.filler].concat().into() }
    }
}

/// Resolves when something must be written; never without keep-alive.
async fn due(keepalive: &mut Option<KeepAlive>) {
    match keepalive {
        Some(keepalive) => keepalive.timer.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Sets a header that is known to be valid.
pub fn insert(head: &mut ResponseHeader, name: HeaderName, value: HeaderValue) {
    // Fails only for names or values that are not headers; these types are.
    if head.insert_header(name, value).is_err() {
        debug_assert!(false, "a header type that is no header");
    }
}

/// A body as it arrives: one piece is not copied, several are joined.
#[derive(Default)]
struct Body {
    first: Bytes,
    joined: BytesMut,
}

impl Body {
    fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    fn push(&mut self, piece: Bytes, expected: u64) {
        if self.len() == 0 {
            self.first = piece;
            return;
        }
        if self.joined.is_empty() {
            self.joined.reserve(2 * self.first.len());
            self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        }
        if self.joined.capacity() - self.joined.len() < piece.len() {
            // Twice as much each time, but never more than was promised: a promise alone costs no memory.
            let left = usize::try_from(expected).unwrap_or(usize::MAX).saturating_sub(self.joined.len());
            self.joined.reserve(self.joined.len().min(left).max(piece.len()));
        }
        self.joined.extend_from_slice(&piece);
    }

    fn whole(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.freeze() }
    }
}
