//! Anthropic's events: `message_start` … `message_stop`.
//!
//! A message is a list of content blocks, numbered from 0, and each event names its block. A replica that carries a message on
//! numbers its blocks from 0 again and opens a message of its own: that opening is dropped, its first text goes on in the
//! client's open block, and its other blocks get the numbers that follow.
//!
//! llama-server leaves all blocks open up to the end, so at the seam any number of them may be open of which the next replica
//! knows nothing: they are closed here, before the first that it closes.
//!
//! | question | file |
//! |---|---|
//! | what does an event say | `event` |
//! | which blocks has the client | `blocks` |
//! | what becomes of an event | `relay` |
//! | how does a message end | `ending` |
//! | what is the plain answer | `answer` |

mod answer;
mod blocks;
mod ending;
mod event;
mod relay;

use super::gate::Gate;
use super::limits::Wanted;
use super::outlet::Outlet;
use super::transcript::Transcript;
use super::{Ledger, StreamError, StreamOptions, in_band};
use crate::answer::Answer;
use crate::carry::{CarryOn, Engine, Leg, Obstacle};
use crate::edits::Edits;
use crate::json::{Flaw, quoted};
use crate::route::Route;
use crate::segments::Segments;
use answer::Message;
use blocks::Blocks;
use bytes::{Bytes, BytesMut};
use relay::Patch;

/// The stream of one client on this route.
#[derive(Clone, Debug)]
pub(super) struct MessagesStream {
    model: Vec<u8>,
    wanted: Wanted,
    outlet: Outlet,
    transcript: Transcript,
    blocks: Blocks,
    gate: Option<Box<Gate>>,
    /// The running attempt carries on what another one began.
    carries_on: bool,
    /// All tokens that the answer may have were written before.
    full: bool,
    /// What a plain answer has beside its content.
    message: Message,
    stopped: bool,
    broken: bool,
    edits: Edits<Patch>,
}

impl MessagesStream {
    pub fn new(options: &StreamOptions) -> Self {
        Self {
            model: quoted(&options.model),
            wanted: Wanted::new(options),
            outlet: Outlet::new(options),
            transcript: Transcript::new(options),
            blocks: Blocks::default(),
            gate: None,
            carries_on: false,
            full: false,
            message: Message::default(),
            stopped: false,
            broken: false,
            edits: Edits::default(),
        }
    }

    pub fn begin_attempt(&mut self, leg: Leg, engine: Engine, ledger: &mut Ledger) {
        let wanted = if engine.obeys { Wanted::default() } else { self.wanted.clone() };
        let part = self.carry_on(ledger);
        self.stopped = false;
        self.carries_on = leg == Leg::CarryOn;
        match (leg, part) {
            (Leg::CarryOn, Ok(part)) => {
                self.blocks.carry_on(self.transcript.is_marked());
                self.transcript.cut_back();
                self.outlet.forget_held();
                self.broken = false;
                self.full = self.wanted.is_full(part.tokens);
                let (tokens, counted) = self.transcript.tokens();
                ledger.begin_carry_on(tokens, counted, tokens, engine);
                self.gate = Some(Gate::carry_on(part, wanted)).filter(|gate| !gate.is_open());
            }
            (Leg::CarryOn, Err(_)) => self.broken = true,
            (Leg::Anew, _) => {
                self.broken = ledger.content_sent;
                if !self.broken {
                    self.outlet.forget_all();
                    self.transcript.clear();
                    self.blocks = Blocks::default();
                }
                self.full = false;
                self.gate = Gate::anew(&wanted);
                ledger.begin_anew(engine);
            }
        }
    }

    pub fn carried_tokens(&mut self, tokens: u32, ledger: &mut Ledger) {
        self.transcript.set_tokens(0, tokens);
        self.full = self.wanted.is_full(tokens);
        ledger.correct_carried(tokens.into(), true, tokens.into());
    }

    pub fn carry_on(&self, ledger: &Ledger) -> Result<CarryOn, Obstacle> {
        self.transcript.carry_on_alone(ledger.content_sent)
    }

    /// Whether the client gets one object at the end.
    pub fn is_plain(&self) -> bool {
        self.outlet.is_plain()
    }

    pub fn kept(&self) -> usize {
        self.transcript.bytes() + self.outlet.held()
    }

    pub fn keep_no_more(&mut self) {
        self.transcript.give_up();
        self.outlet.give_up();
    }

    pub fn into_answer(self, ledger: &Ledger) -> Answer {
        let (usage, estimated) = ledger.usage().unwrap_or_default();
        let ours = (estimated || self.carries_on || ledger.reported.silly).then(|| usage.to_json(Route::Messages));
        let body = self.message.write(&self.model, &self.blocks, &self.transcript, ours);
        Answer {
            body: Segments::from(Bytes::from(body)),
            usage: (!estimated).then_some(usage),
            timings: ledger.timings,
            text_bytes: if estimated { self.transcript.bytes() as u64 } else { 0 },
        }
    }

    /// Reads one event; says whether it had content.
    pub fn event(
        &mut self,
        name: Option<&[u8]>,
        text: &str,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<bool, StreamError> {
        if self.broken {
            return Err(StreamError::Cut);
        }
        if self.full || text.trim_ascii() == "[DONE]" {
            ledger.ended_here = self.full;
            return self.finish(ledger, out).map(|()| false);
        }
        let event = event::scan(text, ledger)?;
        let kind = event_name(event.kind, name)?;
        if event.error || kind == "error" {
            return Err(in_band(Route::Messages, text));
        }
        self.edits.clear();
        match kind {
            // Signs of life are the gateway's to give.
            "ping" => Ok(false),
            "message_stop" => self.finish(ledger, out).map(|()| false),
            "message_start" => self.start(&event, ledger, out).map(|()| false),
            "content_block_start" => self.block_start(&event, ledger, out),
            "content_block_delta" => self.block_delta(&event, ledger, out),
            "content_block_stop" => self.block_stop(&event, ledger, out).map(|()| false),
            "message_delta" => self.message_delta(&event, ledger, out).map(|()| false),
            _ => {
                let content = event.has_content();
                if content {
                    ledger.count();
                }
                self.send(kind, &event, content, ledger, out).map(|()| content)
            }
        }
    }
}

/// The event's type, from its data or its `event:` field; a plain word, since it is written into a line of its own.
pub(super) fn event_name<'a>(kind: Option<&'a str>, name: Option<&'a [u8]>) -> Result<&'a str, StreamError> {
    let name = kind.or_else(|| name.and_then(|name| std::str::from_utf8(name).ok())).unwrap_or_default();
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    if name.is_empty() || name.len() > 128 || !name.bytes().all(sound) {
        return Err(StreamError::Malformed { flaw: Flaw::Expected("an event type") });
    }
    Ok(name)
}
