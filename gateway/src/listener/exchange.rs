//! One client request and the answer to it: the only thing that the stages know of a connection.
//!
//! [`Exchange::drive`] is how everything waits: it polls what is waited for, watches whether the client is still there, and
//! keeps a stream warm, in one future. When the client leaves, what was waited for is dropped, and with it the place in
//! the queue, the slot, and the connection to the phone.
//!
//! A request that can be joined (`joining`) has no connection of its own: its exchange writes to a tape that clients read. To
//! the stages it is an exchange like any other, whose client leaves when nobody has read for too long. A line of a batch has
//! nobody who waits at all: its exchange keeps the answer.

use std::{net::IpAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, header, request::Parts};
use pingora::{http::ResponseHeader, protocols::http::ServerSession};
use scheduler::{Class, Timestamp};
use tokio::{sync::Notify, time::Sleep};

use super::{
    gate::{Admitted, Framing, admit, framing},
    incoming::Incoming,
};
use crate::{
    clock,
    error::ApiError,
    gateway::Held,
    joining::{Opening, Recorder},
};

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

/// Tells how far the request has come, in words; `None` while nobody knows.
pub type Progress = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What keeps a waiting client patient.
struct KeepAlive {
    timer: Pin<Box<Sleep>>,
    filler: Bytes,
    /// For a client that asked.
    progress: Option<Progress>,
    interval: Duration,
    last_write: Timestamp,
}

/// Who the answer goes to.
#[expect(
    clippy::large_enum_variant,
    reason = "all but a few are of the large kind; boxing it would cost each an allocation"
)]
enum Client {
    /// The other end of a connection.
    Connected(ServerSession),
    /// Whoever reads the tape. Boxed: hardly any request has one, and none must carry its size.
    Detached(Box<Detached>),
}

/// What a request has that outlives its connection, or has none.
struct Detached {
    head: Parts,
    sink: Sink,
    /// When its first client's early head goes out, if it gets one: no other kind of answer can follow.
    head_due: Option<Timestamp>,
}

/// Where the answer of a detached request goes.
enum Sink {
    /// To whoever reads the tape.
    Tape(Recorder),
    /// Nowhere yet.
    Kept(Answer),
}

/// The answer to a request that has no client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status; 0 while there is none.
    pub status: u16,
    /// The body, in pieces.
    pub body: Vec<Bytes>,
}

/// A request being answered.
pub struct Exchange {
    client: Client,
    id: Arc<str>,
    started: Timestamp,
    limits: Arc<ClientLimits>,
    cancel: Arc<Notify>,
    keepalive: Option<KeepAlive>,
    /// The head that [`Exchange::drive`] sends when it must write something before the answer is there.
    early_head: Option<Box<ResponseHeader>>,
    sent: Sent,
    /// The request whose answer this one is given.
    joined: Option<Arc<str>>,
    /// A write was given up in the middle: whatever followed would be read as its rest.
    stuck: bool,
    /// Pieces in a row that were there before anybody looked at the client.
    unwatched: u8,
    /// Its length is known to be at most [`MAX_UNREAD`], and it comes unasked.
    body_is_small: bool,
}

/// A comment line: clients ignore it, middle boxes see bytes.
const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");
const SPACE: Bytes = Bytes::from_static(b" ");
const JOINED: HeaderName = HeaderName::from_static("x-huntgroup-joined");
/// Most that is written at once. `server.write_timeout` counts for each write: a client that reads a large answer slowly
/// does read. 64 KiB: what a socket takes at once, and a client that can't take it in a minute is not reading.
const MAX_WRITE: usize = 64 << 10;
/// Most pieces in a row that are passed on without a look at the client. A task's turn has room for more.
const MAX_UNWATCHED: u8 = 16;
/// A body of at most this much that nobody wanted is read for the next request's sake; for a larger one a new connection
/// costs less.
const MAX_UNREAD: u64 = 64 << 10;
/// How long the rest of a body that nobody wants is read: most clients send all of it before they look for an answer.
const LINGER: Duration = Duration::from_secs(2);

impl Exchange {
    pub(super) fn new(session: ServerSession, id: Arc<str>, limits: Arc<ClientLimits>) -> Self {
        Self::with(Client::Connected(session), id, clock::now(), limits)
    }

    /// An exchange for the same request without its connection: the answer goes to a tape.
    pub fn detached(&self, recorder: Recorder) -> Self {
        let detached = Detached { head: self.head().clone(), sink: Sink::Tape(recorder), head_due: None };
        let (id, limits) = (Arc::clone(&self.id), Arc::clone(&self.limits));
        Self::with(Client::Detached(Box::new(detached)), id, self.started, limits)
    }

    /// An exchange for a request that no client has sent.
    pub fn kept(head: Parts, id: Arc<str>, limits: Arc<ClientLimits>) -> Self {
        let detached = Detached { head, sink: Sink::Kept(Answer::default()), head_due: None };
        Self::with(Client::Detached(Box::new(detached)), id, clock::now(), limits)
    }

    /// The whole answer to a request that no client has sent; `None` if there is none.
    pub fn into_kept(self) -> Option<Answer> {
        let Client::Detached(detached) = self.client else { return None };
        let Sink::Kept(answer) = detached.sink else { return None };
        (self.sent == Sent::Whole).then_some(answer)
    }

    fn with(client: Client, id: Arc<str>, started: Timestamp, limits: Arc<ClientLimits>) -> Self {
        Self {
            client,
            id,
            started,
            limits,
            cancel: Arc::default(),
            keepalive: None,
            early_head: None,
            sent: Sent::Nothing,
            joined: None,
            stuck: false,
            unwatched: 0,
            body_is_small: false,
        }
    }

    /// Checks the head of the request.
    pub fn admit(&mut self) -> Result<Admitted, ApiError> {
        let short = matches!(framing(self.head()), Ok(Framing::None | Framing::Length(0..=MAX_UNREAD)));
        self.body_is_small = short && !self.head().headers.contains_key(header::EXPECT);
        admit(self.head())
    }

    /// Whether no client has sent it.
    pub fn is_kept(&self) -> bool {
        matches!(&self.client, Client::Detached(detached) if matches!(detached.sink, Sink::Kept(_)))
    }

    /// The head of the request.
    pub fn head(&self) -> &Parts {
        match &self.client {
            Client::Connected(session) => session.req_header(),
            Client::Detached(detached) => &detached.head,
        }
    }

    /// Where it comes from; unspecified when the socket does not say.
    pub fn peer(&self) -> IpAddr {
        let address = match &self.client {
            Client::Connected(session) => session.client_addr().and_then(|address| address.as_inet()),
            Client::Detached(_) => None,
        };
        address.map_or(IpAddr::from([0, 0, 0, 0]), |address| address.ip())
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
        let due = match &self.client {
            Client::Connected(_) => None,
            Client::Detached(detached) => detached.head_due,
        };
        self.sent != Sent::Nothing || due.is_some_and(|due| due <= clock::now())
    }

    /// Whether its clients read the answer from a tape, each with a head and comments of its own.
    pub fn is_detached(&self) -> bool {
        matches!(self.client, Client::Detached(_))
    }

    /// Reads the whole body, within the size and time it may take, and the room that `held` gives.
    pub async fn read_body(&mut self, admitted: &Admitted, held: &mut Held) -> Result<Bytes, ApiError> {
        self.read_body_within(admitted, self.limits.max_body, "server.max_body", held).await
    }

    /// The same for a body of at most `max` bytes, as the setting of that name has it.
    pub async fn read_body_within(
        &mut self,
        admitted: &Admitted,
        max: u64,
        setting: &'static str,
        held: &mut Held,
    ) -> Result<Bytes, ApiError> {
        let mut incoming = self.open_body(admitted, max, setting)?;
        let mut body = Body::default();
        while let Some(piece) = self.next_piece(&mut incoming).await? {
            held.grow(piece.len())?;
            body.push(piece, incoming.expected());
        }
        Ok(body.whole())
    }

    /// A body of at most `max` bytes, as the setting of that name has it. Nothing of it is read yet, and nobody asked for it.
    pub fn open_body(&self, admitted: &Admitted, max: u64, setting: &'static str) -> Result<Incoming, ApiError> {
        Incoming::new(admitted, max, setting)
    }

    /// The next piece of a body, within the time that it may take; `None` at its end. A client that waits to be asked for it is
    /// asked before the first one.
    pub async fn next_piece(&mut self, incoming: &mut Incoming) -> Result<Option<Bytes>, ApiError> {
        // That of a detached one has been read.
        let Client::Connected(session) = &mut self.client else { return Ok(None) };
        if incoming.has_ended() {
            return Ok(None);
        }
        if incoming.asks() && session.write_continue_response().await.is_err() {
            return Err(ApiError::transport(400, "The connection broke before the body."));
        }
        let asked = clock::now();
        let deadline = asked + incoming.patience(&self.limits);
        let piece = tokio::time::timeout_at(clock::instant(deadline), session.read_request_body()).await;
        incoming.waited(clock::now().since(asked));
        match piece {
            Err(_) => Err(ApiError::transport(408, "The body did not arrive in time (server.body_deadline).")),
            Ok(Err(_)) => Err(ApiError::transport(400, "The body broke off, or its framing is wrong.")),
            Ok(Ok(None)) => {
                incoming.end();
                Ok(None)
            }
            Ok(Ok(Some(piece))) => {
                incoming.take(piece.len())?;
                Ok(Some(piece))
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
                () = self.client.gone() => return Err(Interrupted::ClientGone),
                () = due(&mut self.keepalive) => {}
                done = &mut future => return Ok(done),
            }
            self.keep_alive().await?;
        }
    }

    /// The same for a future that is done with each piece of input. What is there already needs no watch over the client,
    /// which costs about as much as the piece does; but only so many times in a row, or a future that is never short of
    /// input would hide a client that left.
    pub async fn drive_piece<F: Future + Unpin>(&mut self, mut future: F) -> Result<F::Output, Interrupted> {
        if self.unwatched == MAX_UNWATCHED {
            self.unwatched = 0;
            return self.drive(future).await;
        }
        loop {
            tokio::select! {
                biased;
                done = &mut future => {
                    self.unwatched += 1;
                    return Ok(done);
                }
                () = self.cancel.notified() => return Err(Interrupted::Cancelled),
                () = self.client.gone() => return Err(Interrupted::ClientGone),
                () = due(&mut self.keepalive) => {}
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

    /// From now on comments of a silent stream tell how far the request has come, as long as `progress` knows.
    pub fn tell_progress(&mut self, progress: impl Fn() -> Option<String> + Send + Sync + 'static) {
        if let Some(keepalive) = &mut self.keepalive {
            keepalive.progress = Some(Arc::new(progress));
        }
    }

    /// What has been said about waiting is for those who read the tape, if there is one.
    pub fn open(&mut self, model: &Arc<str>, class: Class, stream: bool) {
        let Client::Detached(detached) = &mut self.client else { return };
        let Sink::Tape(recorder) = &detached.sink else {
            self.keepalive = None;
            return;
        };
        let (filler, progress) = match self.keepalive.take() {
            Some(keepalive) => {
                let after = if stream { Some(self.limits.head_after) } else { self.limits.keepalive_json_after };
                detached.head_due = after.map(|after| self.started + after);
                (Some(keepalive.filler), keepalive.progress)
            }
            None => (None, None),
        };
        let (model, head) = (Arc::clone(model), self.early_head.take());
        recorder.open(Opening { model, class, stream, head, filler, progress });
    }

    /// Waits from now on as that request does: the same head, the same signs of life.
    pub fn wait_as(&mut self, opening: Opening, wants_progress: bool) {
        let Opening { stream, head: Some(head), filler, progress, .. } = opening else { return };
        if stream {
            self.keep_stream_warm(|| head);
        } else {
            self.keep_plain_warm(|| head);
        }
        if let (Some(keepalive), Some(filler)) = (&mut self.keepalive, filler) {
            keepalive.filler = filler;
            keepalive.progress = progress.filter(|_| wants_progress);
        }
    }

    /// A plain answer comes: between two pieces of it nothing else may stand.
    pub fn stop_warming(&mut self) {
        self.keepalive = None;
    }

    /// Its answer is that of the request `first`, which every head says from now on.
    pub fn joined(&mut self, first: Arc<str>) {
        self.joined = Some(first);
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
        let max = self.client.max_write();
        while !piece.is_empty() {
            if let Some(keepalive) = &mut self.keepalive {
                keepalive.last_write = clock::now();
            }
            let part = piece.split_to(piece.len().min(max));
            let cancel = Arc::clone(&self.cancel);
            self.stuck = true;
            tokio::select! {
                biased;
                written = self.client.write(part) => written?,
                () = cancel.notified() => return Err(Interrupted::Cancelled),
            }
            self.stuck = false;
        }
        Ok(())
    }

    /// Ends a streamed answer cleanly.
    pub async fn end(&mut self) -> Result<(), Interrupted> {
        self.sent = Sent::Whole;
        match &mut self.client {
            Client::Connected(session) => {
                session.write_response_body(Bytes::new(), true).await.map_err(|_| Interrupted::ClientGone)
            }
            Client::Detached(detached) => {
                if let Sink::Tape(recorder) = &detached.sink {
                    recorder.finish();
                }
                Ok(())
            }
        }
    }

    /// Ends a detached answer that will not be whole: `error` for clients without a head, `event` for the others.
    pub fn fail(&mut self, error: ApiError, event: Bytes) {
        if let Client::Detached(detached) = &self.client
            && let Sink::Tape(recorder) = &detached.sink
        {
            recorder.fail(error, event);
        }
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
            for mut part in parts {
                while !part.is_empty() {
                    self.write(part.split_to(part.len().min(MAX_WRITE))).await?;
                }
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
        let session = match &mut self.client {
            Client::Connected(session) => session,
            Client::Detached(detached) => {
                match &mut detached.sink {
                    Sink::Tape(recorder) => recorder.head(head),
                    Sink::Kept(answer) => answer.status = head.status.as_u16(),
                }
                return Ok(());
            }
        };
        if let Some(first) = self.joined.as_deref().and_then(|first| HeaderValue::from_str(first).ok()) {
            insert(&mut head, JOINED, first);
        }
        if head.headers.get(header::CONTENT_LENGTH).is_none() && session.req_header().version == http::Version::HTTP_11
        {
            insert(&mut head, header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        session.write_response_header(head).await.map_err(|_| Interrupted::ClientGone)
    }

    /// No further request on this connection.
    pub fn close_after(&mut self) {
        if let Client::Connected(session) = &mut self.client {
            session.set_keepalive(None);
        }
    }

    /// Reads what a refusal leaves of a small body, so that the connection can go on. False if it can't: the body is large,
    /// of unknown length, slow, or the client waits to be asked for it.
    pub async fn skip_body(&mut self) -> bool {
        !self.has_unread_body() || self.body_is_small && self.read_rest().await
    }

    /// On HTTP/2 a body that nobody reads concerns its own stream only.
    fn has_unread_body(&mut self) -> bool {
        let is_http2 = self.head().version == http::Version::HTTP_2;
        match &mut self.client {
            Client::Connected(session) => !is_http2 && !session.is_body_done(),
            Client::Detached(_) => false,
        }
    }

    /// Reads and forgets, for at most [`LINGER`]; whether that was all.
    async fn read_rest(&mut self) -> bool {
        let Client::Connected(session) = &mut self.client else { return true };
        let rest = async {
            loop {
                match session.read_request_body().await {
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
            self.close_after();
        }
        match self.client {
            Client::Connected(session) => Some(session),
            Client::Detached(_) => None,
        }
    }
}

impl Client {
    /// Resolves when nobody waits for the answer any more.
    async fn gone(&mut self) {
        match self {
            Self::Connected(session) => drop(session.read_body_or_idle(true).await),
            Self::Detached(detached) => match &detached.sink {
                Sink::Tape(recorder) => recorder.abandoned().await,
                Sink::Kept(_) => std::future::pending().await,
            },
        }
    }

    async fn write(&mut self, part: Bytes) -> Result<(), Interrupted> {
        let written = match self {
            Self::Connected(session) => session.write_response_body(part, false).await.is_ok(),
            Self::Detached(detached) => match &mut detached.sink {
                Sink::Tape(recorder) => recorder.append(&part).await.is_ok(),
                Sink::Kept(answer) => {
                    answer.body.push(part);
                    true
                }
            },
        };
        if written { Ok(()) } else { Err(Interrupted::ClientGone) }
    }

    /// Most that is written at once. A tape takes an event as one piece: a reader that has all there is may send a comment,
    /// which must not stand in the middle of it.
    fn max_write(&self) -> usize {
        match self {
            Self::Connected(_) => MAX_WRITE,
            Self::Detached(_) => usize::MAX,
        }
    }
}

impl KeepAlive {
    /// What is written now.
    fn filler(&self) -> Bytes {
        let Some(words) = self.progress.as_ref().and_then(|progress| progress()) else { return self.filler.clone() };
        let told = format!(": {words}\n\n");
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
