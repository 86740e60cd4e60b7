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
//! first content and thrown away with their attempt. After that another replica may be asked to write on from the text so
//! far, which is kept for that ([`AnswerStream::carry_on`]), and its events are told as more of the same stream
//! ([`Leg::CarryOn`]). A plain answer is read as a stream too, and put together at its end ([`AnswerStream::into_answer`]).
//!
//! | question | file |
//! |---|---|
//! | what was written so far | `transcript` |
//! | how many tokens is that | `ledger` |
//! | is this text new, and is it wanted | `gate` (`echo`, `limits`) |
//! | must this wait | `hold`, `opening`, `outlet` |
//! | what do the events of a route mean | `chat`, `responses`, `messages` |
//!
//! | route | end | usage |
//! |---|---|---|
//! | chat, completions | a finish reason for every choice that was asked for (with `[DONE]`: that there is); `[DONE]` is ours to add | taken anywhere, sent in one last chunk if asked |
//! | responses | `response.completed`, `.incomplete`, `.failed` | stays in its event |
//! | messages | a stop reason; `message_stop` is ours to add | stays in its events |

mod chat;
mod echo;
mod gate;
mod hold;
mod ledger;
mod limits;
mod members;
mod messages;
mod opening;
mod outlet;
mod responses;
mod transcript;

use crate::answer::Answer;
use crate::carry::{CarryOn, Engine, Leg, Obstacle};
use crate::edits::Edits;
use crate::error_body::ErrorBody;
use crate::json::{Flaw, JsonError};
use crate::route::Route;
use crate::sse::{SseDecoder, SseError, SseEvent};
use crate::upstream_error::{UpstreamError, classify_error};
use crate::usage::{EngineTimings, PromptProgress, Usage};
use bytes::{BufMut, Bytes, BytesMut};
use chat::ChatStream;
use ledger::Ledger;
use messages::MessagesStream;
use responses::ResponsesStream;

/// What the client asked for.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// The model's name, as the client gave it.
    pub model: String,
    /// Whether it wants a usage chunk (chat and completions only).
    pub include_usage: bool,
    /// The client gets one object at the end ([`AnswerStream::into_answer`]) and nothing of the stream: nothing is written
    /// to `out`.
    pub plain: bool,
    /// Nothing of a tool call goes out before the answer is whole, so that it can be carried on from the text before.
    pub hold_tool_calls: bool,
    /// Most bytes of text kept, to be carried on; 0 keeps none. A plain answer is always kept, whole: its bound is the
    /// caller's, by [`AnswerStream::kept`].
    pub max_kept: usize,
    /// Whether the client gets the engine's own measurements.
    pub timings: bool,
    /// Choices that the answer has ([`Request::all_choices`](crate::Request::all_choices)): a stream that breaks off is whole only
    /// with all of them. 0 counts as 1.
    pub choices: u32,
    /// Most tokens, and the texts at which the answer ends, for engines that do not obey.
    pub max_tokens: Option<u32>,
    /// See `max_tokens`.
    pub stop: Vec<String>,
}

/// What some upstream bytes were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Events with new text, reasoning or tool-call deltas, those included that are held back.
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
#[derive(Clone, Debug)]
pub struct AnswerStream {
    route: Route,
    decoder: SseDecoder,
    ledger: Ledger,
    dialect: Dialect,
}

#[derive(Clone, Debug)]
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

    /// A new upstream stream takes over. What the client saw (id, created, roles) stays; what was not yet whole goes, and with
    /// it what was held back of tool calls.
    ///
    /// [`Leg::CarryOn`] is more of the choice that [`carry_on`](Self::carry_on) gives now. Without such a part it has no sound
    /// meaning, and neither has [`Leg::Anew`] after the client has seen content: the next [`push`](Self::push) then says
    /// [`StreamError::Cut`].
    pub fn begin_attempt(&mut self, leg: Leg, engine: Engine) {
        self.decoder.reset();
        match &mut self.dialect {
            Dialect::Chat(chat) => chat.begin_attempt(leg, engine, &mut self.ledger),
            Dialect::Responses(responses) => responses.begin_attempt(leg, engine, &mut self.ledger),
            Dialect::Messages(messages) => messages.begin_attempt(leg, engine, &mut self.ledger),
        }
    }

    /// Says how many tokens the part has that the running attempt carries on, where the caller has counted them: instead of
    /// [`CarryOn::tokens`], for the usage.
    pub fn carried_tokens(&mut self, tokens: u32) {
        match &mut self.dialect {
            Dialect::Chat(chat) => chat.carried_tokens(tokens, &mut self.ledger),
            Dialect::Responses(responses) => responses.carried_tokens(tokens, &mut self.ledger),
            Dialect::Messages(messages) => messages.carried_tokens(tokens, &mut self.ledger),
        }
    }

    /// The part that another attempt would have to carry on: of the first choice that is not finished. With texts that are
    /// both empty nothing was written of that choice, but of another one. Whatever has failed, ask [`end`](Self::end) first:
    /// the answer may be whole.
    ///
    /// # Errors
    /// Why there is none. [`Obstacle::Nothing`]: the answer may begin anew.
    pub fn carry_on(&self) -> Result<CarryOn, Obstacle> {
        match &self.dialect {
            Dialect::Chat(chat) => chat.carry_on(&self.ledger),
            Dialect::Responses(responses) => responses.carry_on(&self.ledger),
            Dialect::Messages(messages) => messages.carry_on(&self.ledger),
        }
    }

    /// Whether the attempt has written all it was asked for, and another choice of the answer still has to be carried on. The
    /// attempt's further bytes are ignored.
    pub fn leg_is_over(&self) -> bool {
        self.ledger.leg_is_over && !self.ledger.complete
    }

    /// Bytes kept of the answer.
    pub fn kept(&self) -> usize {
        match &self.dialect {
            Dialect::Chat(chat) => chat.kept(),
            Dialect::Responses(responses) => responses.kept(),
            Dialect::Messages(messages) => messages.kept(),
        }
    }

    /// There is no room for what is kept of a stream: it is given back as far as possible, and the answer can't be carried on
    /// any more ([`Obstacle::TooLong`]). What was held back goes out with the next event. A plain answer stays what it is.
    pub fn keep_no_more(&mut self) {
        match &mut self.dialect {
            Dialect::Chat(chat) => chat.keep_no_more(),
            Dialect::Responses(responses) => responses.keep_no_more(),
            Dialect::Messages(messages) => messages.keep_no_more(),
        }
    }

    /// The whole answer as one object, as the engine would have sent it without a stream. Only of a plain answer that
    /// [`is_complete`](Self::is_complete); of any other it is what there is.
    pub fn into_answer(self) -> Answer {
        match self.dialect {
            Dialect::Chat(chat) => chat.into_answer(&self.ledger),
            Dialect::Responses(responses) => responses.into_answer(&self.ledger),
            Dialect::Messages(messages) => messages.into_answer(&self.ledger),
        }
    }

    /// Takes upstream bytes and appends what the client gets of them to `out`. After the end all bytes are ignored, and so are
    /// those of an attempt whose part [is over](Self::leg_is_over).
    ///
    /// # Errors
    /// [`StreamError`] when the attempt has failed. What is in `out` by then is whole events and may be sent. What an engine
    /// does after it has finished its answer is no failure: the answer is whole.
    pub fn push(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<Step, StreamError> {
        let mut step = Step { complete: self.ledger.complete, ..Step::default() };
        if step.complete || self.ledger.leg_is_over {
            return Ok(step);
        }
        self.decoder.push(chunk);
        while let Some(event) = self.decoder.next_event() {
            step.data_events += 1;
            let read =
                event.map_err(StreamError::from).and_then(|event| self.dialect.event(event, &mut self.ledger, out));
            match read {
                Ok(content) => step.content_events += u32::from(content),
                Err(error) => self.dialect.end(&mut self.ledger, out).map_err(|_| error)?,
            }
            step.complete = self.ledger.complete;
            if step.complete || self.ledger.leg_is_over {
                break;
            }
        }
        Ok(step)
    }

    /// The upstream has closed its stream. If only the mark of the end is missing (`[DONE]`, `message_stop`), it is added.
    ///
    /// # Errors
    /// [`StreamError::Cut`] if the attempt has not finished its answer; the client must then get an error event, or another
    /// attempt.
    pub fn end(&mut self, out: &mut BytesMut) -> Result<(), StreamError> {
        if self.ledger.complete || self.ledger.leg_is_over {
            return Ok(());
        }
        let Some(event) = self.decoder.finish() else { return self.dialect.end(&mut self.ledger, out) };
        match self.dialect.event(event, &mut self.ledger, out) {
            Ok(_) if self.ledger.complete || self.ledger.leg_is_over => Ok(()),
            // The last event was cut off in the middle: whether that matters depends on what came before it.
            Ok(_) | Err(StreamError::Malformed { .. }) => self.dialect.end(&mut self.ledger, out),
            Err(error) => self.dialect.end(&mut self.ledger, out).map_err(|_| error),
        }
    }

    /// An empty chunk for clients whose idle timer ignores comments: an empty delta, or the route's own ping. `id` and
    /// `created` (unix seconds) are used only if no replica has named any yet, and are then kept. Responses have no event
    /// without meaning, so they get a comment.
    pub fn keepalive_chunk(&mut self, id: &str, created: u64, out: &mut BytesMut) {
        match &mut self.dialect {
            // There is no stream to keep alive.
            Dialect::Chat(chat) if chat.is_plain() => {}
            Dialect::Responses(responses) if responses.is_plain() => {}
            Dialect::Messages(messages) if messages.is_plain() => {}
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

    /// Whether the answer was ended here, for an engine that does not end where it is told to: it may write on.
    pub fn ended_here(&self) -> bool {
        self.ledger.ended_here
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
        // They count it themselves: the event that ends the answer may have content, and the usage goes out with it.
        match self {
            Self::Chat(chat) => chat.event(text, ledger, out),
            Self::Responses(responses) => responses.event(event.name, text, ledger, out),
            Self::Messages(messages) => messages.event(event.name, text, ledger, out),
        }
    }

    fn end(&mut self, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        match self {
            Self::Chat(chat) => chat.finish(false, ledger, out),
            Self::Responses(responses) => responses.end(ledger, out),
            Self::Messages(messages) => messages.finish(ledger, out),
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
