//! A multipart form, read while it arrives.
//!
//! The parser takes from its source as long as that has something, whether it needs it or not, and keeps the heads of parts whole
//! however long they are. So the source has a gate: it opens for one small piece when the parser has said that it can't go on with
//! what it has. And it counts: bytes that have gone in and not come out as content are heads and boundaries, and of those a form
//! has few. That bounds what a form takes to some 50 KiB, however fast it comes and whatever is in it.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::header;
use multer::{Field, Multipart};
use openai_wire::DecodeError;

use super::{error::BatchError, filename};
use crate::{
    error::ApiError,
    listener::{Exchange, Incoming},
};

/// Most that the parser gets at once.
const PIECE: usize = 16 << 10;
/// Bytes of all heads and boundaries. 32 KiB: the official SDKs send less than 1.
const MAX_FRAMING: u64 = 32 << 10;
/// Parts of a form: five mean something here.
const MAX_PARTS: usize = 16;

/// A form on its way in.
pub(super) struct Form<'r> {
    parts: Multipart<'r>,
    gate: Arc<Gate>,
    seen: usize,
}

/// A part of it.
pub(super) struct Part<'r> {
    field: Field<'r>,
    gate: Arc<Gate>,
}

/// Between the body and the parser.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    /// Bytes that the parser was given, and that it gave as content.
    given: AtomicU64,
    taken: AtomicU64,
}

impl Gate {
    /// Asks the parser, and lets another piece through only if it can't go on without.
    fn ask<T>(&self, cx: &mut Context<'_>, mut parser: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        self.open.store(false, Ordering::Relaxed);
        loop {
            if let Poll::Ready(answer) = parser(cx) {
                return Poll::Ready(answer);
            }
            // Still open: no piece is there yet, and its coming wakes the task.
            if self.open.swap(true, Ordering::Relaxed) {
                return Poll::Pending;
            }
        }
    }

    /// Heads and boundaries so far. The parser holds no content when it asks for more.
    fn framing(&self) -> u64 {
        self.given.load(Ordering::Relaxed).saturating_sub(self.taken.load(Ordering::Relaxed))
    }
}

struct Source<'r> {
    exchange: &'r mut Exchange,
    incoming: &'r mut Incoming,
    rest: Bytes,
    gate: Arc<Gate>,
}

impl<'r> Form<'r> {
    /// The form in a body. Refused if it is none.
    pub(super) fn new(exchange: &'r mut Exchange, incoming: &'r mut Incoming) -> Result<Self, ApiError> {
        let kind = exchange.head().headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(|_| {
            BatchError::Form(
                "Content-Type must be 'multipart/form-data' with a boundary, as HTTP clients set it".into(),
            )
        })?;
        let gate = Arc::new(Gate::default());
        let source = Source { exchange, incoming, rest: Bytes::new(), gate: Arc::clone(&gate) };
        Ok(Self { parts: Multipart::new(source.pieces(), boundary), gate, seen: 0 })
    }

    /// The next part, once the one before was read to its end.
    pub(super) async fn next(&mut self) -> Result<Option<Part<'r>>, ApiError> {
        let found = poll_fn(|cx| self.gate.ask(cx, |cx| self.parts.poll_next_field(cx))).await;
        let Some(field) = found.map_err(refused)? else { return Ok(None) };
        self.seen += 1;
        if self.seen > MAX_PARTS {
            return Err(BatchError::Form(format!("it has more than {MAX_PARTS} parts").into()).into());
        }
        Ok(Some(Part { field, gate: Arc::clone(&self.gate) }))
    }
}

impl Part<'_> {
    /// What its form calls it.
    pub(super) fn name(&self) -> &str {
        self.field.name().unwrap_or_default()
    }

    /// The name of the file in it, if it has one.
    pub(super) fn filename(&self) -> Option<String> {
        filename::stated(self.field.headers().get(header::CONTENT_DISPOSITION)?.as_bytes())
    }

    /// The next bytes of its content; `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, ApiError> {
        let found = poll_fn(|cx| self.gate.ask(cx, |cx| Pin::new(&mut self.field).poll_next(cx))).await;
        let piece = found.transpose().map_err(refused)?;
        self.gate.taken.fetch_add(piece.as_ref().map_or(0, Bytes::len) as u64, Ordering::Relaxed);
        Ok(piece)
    }

    /// Its content, of at most `max` bytes, as the value of the parameter `param`.
    pub(super) async fn text(
        &mut self,
        param: &'static str,
        max: usize,
        expected: &'static str,
    ) -> Result<String, ApiError> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece().await? {
            if bytes.len() + piece.len() > max {
                return Err(DecodeError::Value { param, expected }.into());
            }
            bytes.extend_from_slice(&piece);
        }
        String::from_utf8(bytes).map_err(|_| DecodeError::Value { param, expected }.into())
    }

    /// Reads and forgets it.
    pub(super) async fn skip(&mut self) -> Result<(), ApiError> {
        while self.piece().await?.is_some() {}
        Ok(())
    }
}

impl<'r> Source<'r> {
    /// The body in pieces, each only when the gate is open.
    fn pieces(self) -> impl Stream<Item = Result<Bytes, ApiError>> + Send + 'r {
        let gate = Arc::clone(&self.gate);
        let mut pieces = Box::pin(stream::try_unfold(self, |mut source| async move {
            let piece = source.next().await?;
            Ok(piece.map(|piece| (piece, source)))
        }));
        stream::poll_fn(move |cx| {
            if !gate.open.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            let polled = pieces.as_mut().poll_next(cx);
            gate.open.store(polled.is_pending(), Ordering::Relaxed);
            polled
        })
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        if self.gate.framing() > MAX_FRAMING {
            let limit = MAX_FRAMING >> 10;
            return Err(BatchError::Form(format!("the heads of its parts are larger than {limit} KiB").into()).into());
        }
        while self.rest.is_empty() {
            let Some(piece) = self.exchange.next_piece(self.incoming).await? else { return Ok(None) };
            self.rest = piece;
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        self.gate.given.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Ok(Some(piece))
    }
}

/// The parser's words for what its source said, or for what is wrong with the form.
fn refused(error: multer::Error) -> ApiError {
    let flaw = match error {
        multer::Error::StreamReadFailed(cause) => {
            return cause.downcast::<ApiError>().map_or(ApiError::Internal, |error| *error);
        }
        multer::Error::IncompleteStream | multer::Error::IncompleteFieldData { .. } => {
            "it ends before its last boundary, or a boundary is broken"
        }
        multer::Error::IncompleteHeaders
        | multer::Error::ReadHeaderFailed(_)
        | multer::Error::DecodeHeaderName { .. }
        | multer::Error::DecodeHeaderValue { .. } => "the head of a part can't be read",
        _ => "its parts can't be told apart",
    };
    BatchError::Form(flaw.into()).into()
}
