//! One HTTP/1.1 connection to a replica, driven by whoever uses it.
//!
//! hyper wants a task that polls its `Connection`. Here the connection is polled in the same future that waits for the
//! answer: no task to spawn, no wake-up across tasks per event, and dropping the future closes the socket at once, which
//! is how a phone learns that nobody waits any more. What hyper's two halves tell each other by waking is kept inside
//! ([`Rouser`]): both are polled in that future anyway.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response, response::Parts};
use http_body::Body;
use hyper::{
    body::Incoming,
    client::conn::http1::{self, Connection, SendRequest},
};
use hyper_util::rt::TokioIo;

use super::{body::SegmentsBody, connect::Stream, failure::Failure, rouser::Rouser};

/// Largest head of an answer, and the most that is read ahead of the client.
const MAX_BUFFER: usize = 64 << 10;
/// Header lines of an answer.
const MAX_HEADERS: usize = 100;

/// hyper's side of a connection.
type Open = Pin<Box<Connection<TokioIo<Stream>, SegmentsBody>>>;

/// It, and what keeps inside what it tells the exchange that it carries.
struct Driven {
    /// `None` once the replica has closed.
    connection: Option<Open>,
    rouser: Arc<Rouser>,
}

/// An open connection.
pub struct Session {
    sender: SendRequest<SegmentsBody>,
    driven: Driven,
    /// Has carried an exchange before: a reset now may only mean that the replica closed an idle connection.
    pub(super) reused: bool,
}

/// An answer whose body is still to come.
pub struct Reply {
    /// Status and headers.
    pub head: Parts,
    body: Incoming,
    session: Session,
    finished: bool,
}

impl Session {
    pub(super) async fn start(stream: Stream) -> Result<Self, Failure> {
        let handshake =
            http1::Builder::new().max_buf_size(MAX_BUFFER).max_headers(MAX_HEADERS).handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(Failure::BeforeHead)?;
        let driven = Driven { connection: Some(Box::pin(connection)), rouser: Arc::default() };
        Ok(Self { sender, driven, reused: false })
    }

    /// Sends, and waits for a head that is not 1xx.
    pub(super) async fn send(mut self, request: Request<SegmentsBody>) -> Result<Reply, Failure> {
        let answer = pin!(self.sender.send_request(request));
        let answer: Response<Incoming> = self.driven.drive(answer).await.map_err(Failure::BeforeHead)?;
        let (head, body) = answer.into_parts();
        Ok(Reply { head, body, session: self, finished: false })
    }

    /// Whether the connection can carry another request now.
    pub(super) fn is_usable(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        poll_connection(&mut self.driven.connection, &mut cx);
        matches!(self.sender.poll_ready(&mut cx), Poll::Ready(Ok(())))
    }
}

impl Reply {
    /// The next piece of the body; `None` at its end. Cancel-safe.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let body = &mut self.body;
            let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
            match self.session.driven.drive(frame).await {
                None => {
                    self.finished = true;
                    return Ok(None);
                }
                Some(Err(error)) => return Err(Failure::InBody(error)),
                Some(Ok(frame)) => {
                    // Trailers say nothing to us.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The connection, if the answer was read to its end and the replica keeps it open.
    pub(super) fn into_session(mut self) -> Option<Session> {
        if !self.finished {
            return None;
        }
        drop(self.body);
        self.session.reused = true;
        self.session.is_usable().then_some(self.session)
    }

    /// Notes an end that the framing already told, so that no further read is needed to see it.
    pub(super) fn note_end(&mut self) {
        self.finished |= self.body.is_end_stream();
    }
}

impl Driven {
    /// Polls the connection along with `future`, until that is done.
    async fn drive<F: Future + Unpin>(&mut self, mut future: F) -> F::Output {
        let Self { connection, rouser } = self;
        poll_fn(|cx| {
            rouser.poll(cx, |cx| {
                poll_connection(connection, cx);
                Pin::new(&mut future).poll(cx)
            })
        })
        .await
    }
}

/// Lets the connection read and write. What went wrong with it is told to the exchange that it was carrying, so the
/// result is of no interest here; a finished connection is dropped, which wakes whoever still waits on it.
fn poll_connection(connection: &mut Option<Open>, cx: &mut Context<'_>) {
    if let Some(open) = connection
        && open.as_mut().poll(cx).is_ready()
    {
        *connection = None;
    }
}
