//! One client's stream over one or more replicas' streams.
//!
//! Problem: dialects differ in every detail that clients rely on (ids that change from event to event, no role, an empty
//! finish reason, no usage, no `[DONE]`, missing indexes), a replica may die and another take its place, and the official
//! SDKs notice neither a clean end without a finish reason nor a second beginning.
//!
//! Choice: each event is scanned once, borrowed, and written out with the few pieces changed; what the client has seen
//! (id, created, roles, numbers) is kept over attempts. What the client gets never depends on how the bytes were cut.
//! The end of a stream is found here and nowhere else.
//!
//! Until an attempt has sent content, another one may take over unseen: chat chunks that only carry a role are harmless to
//! repeat (the repetition is dropped), while the named events that open a response or a message are held back until the
//! first content and thrown away with their attempt.
//!
//! | route | end | usage |
//! |---|---|---|
//! | chat, completions | a finish reason for every choice; `[DONE]` is ours to add | taken anywhere, sent in one last chunk if asked |
//! | responses | `response.completed`, `.incomplete`, `.failed` | stays in its event |
//! | messages | a stop reason; `message_stop` is ours to add | stays in its events |

mod chat;
mod messages;
mod opening;
mod responses;

use crate::edits::Edits;
use crate::error_body::ErrorBody;
use crate::json::{Flaw, JsonError};
use crate::route::Route;
use crate::sse::{SseDecoder, SseError, SseEvent};
use crate::upstream_error::{UpstreamError, classify_error};
use crate::usage::{EngineTimings, PromptProgress, Reported, Usage};
use bytes::{BufMut, Bytes, BytesMut};
use chat::ChatStream;
use messages::MessagesStream;
use responses::ResponsesStream;

/// What the client asked for.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// The model's name, as the client gave it.
    pub model: String,
    /// Whether it wants a usage chunk (chat and completions only).
    pub include_usage: bool,
}

/// What some upstream bytes were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Events with text, reasoning or tool-call deltas.
    pub content_events: u32,
    /// All data events: signs of life. Comments are none.
    pub data_events: u32,
    /// The route's own end has been seen, now or before.
    pub complete: bool,
}

/// Why an attempt's stream is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The replica reported an error inside the stream.
    #[error("the replica reported an error in its stream: {0}")]
    Upstream(UpstreamError),
    /// The stream ended, or claimed to, before the answer was finished.
    #[error("the stream ended before the answer was finished")]
    Cut,
    /// An event that is not what the route's events are.
    #[error("an event of the stream is malformed: {flaw}")]
    Malformed {
        /// What is wrong with its JSON.
        flaw: Flaw,
    },
    /// An event without end.
    #[error("an event of the stream is too long")]
    TooLong,
}

impl From<JsonError> for StreamError {
    fn from(error: JsonError) -> Self {
        Self::Malformed { flaw: error.flaw }
    }
}

impl From<SseError> for StreamError {
    fn from(error: SseError) -> Self {
        match error {
            SseError::TooLong { .. } => Self::TooLong,
        }
    }
}

/// Turns replicas' bytes into one client's stream. See the module's text.
#[derive(Debug)]
pub struct AnswerStream {
    route: Route,
    decoder: SseDecoder,
    ledger: Ledger,
    dialect: Dialect,
}

#[derive(Debug)]
enum Dialect {
    Chat(Box<ChatStream>),
    Responses(Box<ResponsesStream>),
    Messages(Box<MessagesStream>),
}

impl AnswerStream {
    /// A stream of which nothing has been seen. Routes that do not stream are read like completions.
    pub fn new(route: Route, options: StreamOptions) -> Self {
        let dialect = match route {
            Route::Responses => Dialect::Responses(Box::new(ResponsesStream::new(&options))),
            Route::Messages => Dialect::Messages(Box::new(MessagesStream::new(&options))),
            _ => Dialect::Chat(Box::new(ChatStream::new(route, &options))),
        };
        Self { route, decoder: SseDecoder::new(), ledger: Ledger::default(), dialect }
    }

    /// Events of the replica larger than this end the stream ([`StreamError::TooLong`]).
    #[must_use]
    pub fn with_event_limit(mut self, bytes: usize) -> Self {
        self.decoder = SseDecoder::with_limit(bytes);
        self
    }

    /// Says how many tokens the prompt has by the gateway's own estimate, for a usage that no replica reports.
    #[must_use]
    pub fn with_prompt_estimate(mut self, tokens: u64) -> Self {
        self.ledger.prompt_estimate = tokens;
        self
    }

    /// A new upstream stream takes over. What the client saw (id, created, roles) stays; what was not yet whole goes.
    ///
    /// After content this is sound for chat and completions, whose attempt must then be a continuation; the other routes
    /// cannot be continued, and their next [`push`](Self::push) says [`StreamError::Cut`].
    pub fn begin_attempt(&mut self) {
        self.decoder.reset();
        self.ledger.begin_attempt();
        match &mut self.dialect {
            Dialect::Chat(chat) => chat.begin_attempt(),
            Dialect::Responses(responses) => responses.begin_attempt(self.ledger.content_sent),
            Dialect::Messages(messages) => messages.begin_attempt(self.ledger.content_sent),
        }
    }

    /// Takes upstream bytes and appends what the client gets of them to `out`. After the end all bytes are ignored.
    ///
    /// # Errors
    /// [`StreamError`] when the attempt has failed. What is in `out` by then is whole events and may be sent.
    pub fn push(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<Step, StreamError> {
        let mut step = Step { complete: self.ledger.complete, ..Step::default() };
        if step.complete {
            return Ok(step);
        }
        self.decoder.push(chunk);
        while let Some(event) = self.decoder.next_event() {
            step.data_events += 1;
            step.content_events += u32::from(self.dialect.event(event?, &mut self.ledger, out)?);
            if self.ledger.complete {
                step.complete = true;
                break;
            }
        }
        Ok(step)
    }

    /// The upstream has closed its stream. If only the mark of the end is missing (`[DONE]`, `message_stop`), it is added.
    ///
    /// # Errors
    /// [`StreamError::Cut`] if the answer is not finished; the client must then get an error event, or another attempt.
    pub fn end(&mut self, out: &mut BytesMut) -> Result<(), StreamError> {
        if self.ledger.complete {
            return Ok(());
        }
        if let Some(event) = self.decoder.finish() {
            match self.dialect.event(event, &mut self.ledger, out) {
                Ok(_) => {}
                // The last event was cut off in the middle: whether that matters depends on what came before it.
                Err(StreamError::Malformed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if self.ledger.complete { Ok(()) } else { self.dialect.end(&mut self.ledger, out) }
    }

    /// An empty chunk for clients whose idle timer ignores comments: an empty delta, or the route's own ping. `id` and
    /// `created` (unix seconds) are used only if no replica has named any yet, and are then kept. Responses have no event
    /// without meaning, so they get a comment.
    pub fn keepalive_chunk(&mut self, id: &str, created: u64, out: &mut BytesMut) {
        match &mut self.dialect {
            Dialect::Chat(chat) => chat.keepalive(id, created, out),
            Dialect::Responses(_) => crate::sse::write_comment(out, "keep-alive"),
            Dialect::Messages(_) => crate::sse::write_event(out, Some("ping"), br#"{"type":"ping"}"#),
        }
    }

    /// The event that tells the client of a failure, numbered rightly where events are numbered.
    pub fn error_event(&self, error: &ErrorBody) -> Bytes {
        let sequence = if let Dialect::Responses(responses) = &self.dialect { responses.next_number() } else { 0 };
        error.to_sse_numbered(self.route, sequence)
    }

    /// Whether the route's own end was seen: the client has a whole answer.
    pub fn is_complete(&self) -> bool {
        self.ledger.complete
    }

    /// Whether the client has seen any part of the answer, its finish reason included. Before that a new attempt may start
    /// from the beginning.
    pub fn content_sent(&self) -> bool {
        self.ledger.content_sent
    }

    /// Tokens as the replica counted them; else by its timings; else estimated from the events. `None` before there is
    /// anything to count.
    pub fn usage(&self) -> Option<Usage> {
        self.ledger.usage().map(|(usage, _)| usage)
    }

    /// Whether [`usage`](Self::usage) is our estimate.
    pub fn usage_estimated(&self) -> bool {
        self.ledger.usage().is_some_and(|(_, estimated)| estimated)
    }

    /// The engine's own measurement of the running attempt, if it made one.
    pub fn timings(&self) -> Option<EngineTimings> {
        self.ledger.timings
    }

    /// How far the running attempt's engine says it has read the prompt, where it does.
    pub fn progress(&self) -> Option<PromptProgress> {
        self.ledger.progress
    }

    /// Events with content so far, over all attempts.
    pub fn content_events(&self) -> u64 {
        self.ledger.content_events
    }
}

impl Dialect {
    /// Whether the event had content.
    fn event(&mut self, event: SseEvent<'_>, ledger: &mut Ledger, out: &mut BytesMut) -> Result<bool, StreamError> {
        let text = std::str::from_utf8(event.data)
            .map_err(|_| StreamError::Malformed { flaw: Flaw::Expected("text in UTF-8") })?;
        let content = match self {
            Self::Chat(chat) => chat.event(text, ledger, out)?,
            Self::Responses(responses) => responses.event(event.name, text, ledger, out)?,
            Self::Messages(messages) => messages.event(event.name, text, ledger, out)?,
        };
        if content {
            ledger.content_events += 1;
            ledger.content_sent = true;
        }
        Ok(content)
    }

    fn end(&mut self, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        match self {
            Self::Chat(chat) => chat.finish(ledger, out),
            Self::Responses(_) => Err(StreamError::Cut),
            Self::Messages(messages) => messages.finish(ledger, out),
        }
    }
}

/// What all dialects keep account of.
#[derive(Debug, Default)]
struct Ledger {
    reported: Reported,
    timings: Option<EngineTimings>,
    progress: Option<PromptProgress>,
    content_events: u64,
    /// Content events of earlier attempts, which the running one continues.
    carried: u64,
    prompt_estimate: u64,
    content_sent: bool,
    complete: bool,
}

impl Ledger {
    fn begin_attempt(&mut self) {
        self.reported = Reported::default();
        self.timings = None;
        self.progress = None;
        self.carried = self.content_events;
    }

    /// The usage and whether it is an estimate.
    ///
    /// A continuation's prompt holds the text already sent, so that is moved from the prompt to the completion.
    fn usage(&self) -> Option<(Usage, bool)> {
        let counted = self.reported.usage().or_else(|| self.timings.map(|timings| timings.usage()));
        match counted {
            Some(usage) => {
                let prompt_tokens = usage.prompt_tokens.saturating_sub(self.carried);
                let completion_tokens = usage.completion_tokens + self.carried;
                let cached_tokens = usage.cached_tokens.min(prompt_tokens);
                Some((Usage { prompt_tokens, completion_tokens, cached_tokens }, self.carried > 0))
            }
            None if self.content_events > 0 || self.content_sent => {
                let completion_tokens = self.content_events;
                Some((Usage { prompt_tokens: self.prompt_estimate, completion_tokens, cached_tokens: 0 }, true))
            }
            None => None,
        }
    }
}

/// An error that came as an event: its meaning is inside it.
fn in_band(route: Route, text: &str) -> StreamError {
    StreamError::Upstream(classify_error(route, 200, Some("application/json"), text.as_bytes()))
}

/// Appends the edited event's text; data that came on several lines becomes one, since JSON's line ends mean nothing.
fn write_edited<P>(text: &str, edits: &mut Edits<P>, out: &mut BytesMut, put: impl Fn(&mut BytesMut, &P)) {
    out.reserve(text.len() + 128);
    out.put_slice(b"data: ");
    let start = out.len();
    edits.sort();
    edits.weave(text.len(), out, |out, range| out.put_slice(&text.as_bytes()[range]), put);
    if memchr::memchr(b'\n', &out[start..]).is_some() {
        for byte in &mut out[start..] {
            if *byte == b'\n' {
                *byte = b' ';
            }
        }
    }
    out.put_slice(b"\n\n");
}
