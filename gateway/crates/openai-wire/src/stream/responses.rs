//! The Responses API's events: `response.created` … `response.completed`.
//!
//! The SDKs' `responses.stream()` keeps a snapshot and finds its parts by `output_index` and `content_index`, which
//! llama-server leaves out, as it does `sequence_number` and the first snapshot's `output`. They are filled in here from
//! the order in which items were added. So is the content part of its thoughts, which it does not begin.
//!
//! No engine carries a response on. It is carried on as a chat, whose chunks are told in this API's events (`carried`), to an
//! end like the one that llama-server would have written (`ending`).

mod carried;
mod chunk;
mod ending;
mod event;
mod items;
mod numbered;
mod plain;

use super::gate::Gate;
use super::limits::Wanted;
use super::messages::event_name;
use super::outlet::Outlet;
use super::transcript::{Part, Transcript};
use super::{Ledger, StreamError, StreamOptions, in_band, write_edited};
use crate::answer::Answer;
use crate::carry::{CarryOn, Engine, Leg, Obstacle};
use crate::edits::Edits;
use crate::json::{Flaw, quoted};
use crate::route::Route;
use bytes::{Bytes, BytesMut};
use carried::ChatLeg;
use event::{Event, Patch, Reading, put};
use items::{Items, Kind, Stage};
use numbered::Numbered;

/// Longest first snapshot kept, in bytes. llama-server's has 100; others repeat the client's instructions and tools in it, and
/// with more of these the answer is not carried on.
const MAX_SNAPSHOT: usize = 64 * 1024;

/// The stream of one client on this route.
#[derive(Clone, Debug)]
pub(super) struct ResponsesStream {
    model: Vec<u8>,
    wanted: Wanted,
    reading: Reading,
    line: Numbered,
    items: Items,
    transcript: Transcript,
    /// The first snapshot, as JSON.
    snapshot: String,
    /// The running attempt is a chat.
    chat: Option<ChatLeg>,
    /// The last snapshot, where the answer is plain.
    whole: Bytes,
    broken: bool,
    edits: Edits<Patch>,
}

impl ResponsesStream {
    pub fn new(options: &StreamOptions) -> Self {
        Self {
            model: quoted(&options.model),
            wanted: Wanted::new(options),
            reading: Reading { timings: options.timings },
            line: Numbered::new(Outlet::new(options)),
            items: Items::default(),
            transcript: Transcript::new(options),
            snapshot: String::new(),
            chat: None,
            whole: Bytes::new(),
            broken: false,
            edits: Edits::default(),
        }
    }

    /// The number an event written now must have.
    pub fn next_number(&self) -> u64 {
        self.line.due()
    }

    pub fn begin_attempt(&mut self, leg: Leg, engine: Engine, ledger: &mut Ledger) {
        let part = self.carry_on(ledger);
        self.chat = None;
        match (leg, part) {
            (Leg::CarryOn, Ok(part)) => {
                if self.transcript.is_marked() {
                    self.items.cut_back();
                }
                self.transcript.cut_back();
                self.line.forget_held();
                self.broken = false;
                let (tokens, counted) = self.transcript.tokens();
                ledger.begin_carry_on(tokens, counted, tokens, engine);
                let wanted = if engine.obeys { Wanted::default() } else { self.wanted.clone() };
                self.chat = Some(ChatLeg::new(self.wanted.is_full(part.tokens), Gate::carry_on(part, wanted)));
            }
            (Leg::CarryOn, Err(_)) => self.broken = true,
            (Leg::Anew, _) => {
                self.broken = ledger.content_sent;
                if !self.broken {
                    self.line.forget_all();
                    self.items.clear();
                    self.transcript.clear();
                    self.snapshot.clear();
                }
                ledger.begin_anew(engine);
            }
        }
    }

    pub fn carried_tokens(&mut self, tokens: u32, ledger: &mut Ledger) {
        self.transcript.set_tokens(0, tokens);
        if let Some(chat) = &mut self.chat {
            chat.full = self.wanted.is_full(tokens);
        }
        ledger.correct_carried(tokens.into(), true, tokens.into());
    }

    pub fn carry_on(&self, ledger: &Ledger) -> Result<CarryOn, Obstacle> {
        self.transcript.carry_on_alone(ledger.content_sent)
    }

    /// Whether the client gets one object at the end.
    pub fn is_plain(&self) -> bool {
        self.line.outlet.is_plain()
    }

    pub fn kept(&self) -> usize {
        self.transcript.bytes() + self.line.outlet.held() + self.snapshot.len() + self.whole.len()
    }

    pub fn keep_no_more(&mut self) {
        self.line.outlet.give_up();
        // A response that is being carried on can't be ended without its text.
        if self.chat.is_none() {
            self.transcript.give_up();
        }
    }

    pub fn into_answer(self, ledger: &Ledger) -> Answer {
        let (usage, estimated) = ledger.usage().unwrap_or_default();
        Answer {
            body: plain::body(&self.whole, &self.model, ledger.reported.silly.then_some(usage)),
            usage: (!estimated).then_some(usage),
            timings: ledger.timings,
            text_bytes: if estimated { self.transcript.bytes() as u64 } else { 0 },
        }
    }

    /// The upstream has closed its stream. A response of its own has its end inside it.
    pub fn end(&mut self, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        if self.chat.is_some() { self.finish_chat(ledger, out) } else { Err(StreamError::Cut) }
    }

    /// Reads one event; says whether it had content.
    pub fn event(
        &mut self,
        name: Option<&[u8]>,
        text: &str,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<bool, StreamError> {
        if self.chat.is_some() {
            return self.chunk(text, ledger, out);
        }
        if self.broken || text.trim_ascii() == "[DONE]" {
            return Err(StreamError::Cut);
        }
        self.edits.clear();
        let event = self.reading.scan(text, ledger, &mut self.edits)?;
        let kind = event_name(event.kind, name)?;
        if event.error || kind == "error" || (kind == "response.failed" && !ledger.content_sent) {
            return Err(in_band(Route::Responses, text));
        }
        let content = !event.delta.is_empty() && kind.ends_with(".delta");
        let over = matches!(kind, "response.completed" | "response.incomplete" | "response.failed");
        if over && event.response.is_empty() {
            return Err(StreamError::Malformed { flaw: Flaw::Expected("the response in its last event") });
        }
        if content {
            ledger.count();
            if matches!(kind, "response.reasoning_text.delta" | "response.output_text.delta") {
                let place = event.item.and_then(|id| self.items.place(id));
                place.map_or(Ok(()), |place| self.begin_part(place, ledger, out))?;
            }
        }
        self.keep(kind, &event);
        self.number(kind, &event);
        let goes_out = ledger.content_sent || content || over;
        let (edits, model) = (&mut self.edits, &self.model);
        let sent = self.line.outlet.write(goes_out, kind, out, |target| {
            write_edited(text, edits, target, |out, patch| put(out, *patch, model));
        })?;
        self.went_out(sent, ledger);
        if over {
            self.whole(event.response.as_bytes(), ledger, out);
        }
        Ok(content)
    }

    /// Keeps of an event what another attempt needs to go on.
    fn keep(&mut self, kind: &str, event: &Event<'_>) {
        match kind {
            "response.created" if event.response.len() <= MAX_SNAPSHOT => {
                self.snapshot.replace_range(.., event.response);
                return;
            }
            "response.created" => return self.transcript.call_goes_out(),
            "response.output_item.added" => self.add_item(event),
            _ => {}
        }
        let Some(place) = event.item.and_then(|id| self.items.place(id)) else {
            // A text of no item that is known can't go on.
            return if event.delta.is_empty() {
            } else {
                self.strange()
            };
        };
        let Some(item) = self.items.get_mut(place) else { return };
        match (kind, item.kind) {
            ("response.output_text.delta", Kind::Message) => self.keep_text(Part::Content, event.delta),
            ("response.reasoning_text.delta", Kind::Reasoning) => self.keep_text(Part::Reasoning, event.delta),
            ("response.function_call_arguments.delta", _) => {}
            ("response.content_part.added", _) => {
                item.parts = item.parts.saturating_add(1);
                if !matches!(event.part_kind, "output_text" | "reasoning_text") || item.parts > 1 {
                    self.strange();
                }
            }
            ("response.output_text.done", _) => item.stage = Stage::TextDone,
            ("response.content_part.done", _) => item.stage = Stage::PartDone,
            ("response.output_item.done", _) => item.stage = Stage::Done,
            _ if event.delta.is_empty() => {}
            _ => self.strange(),
        }
    }

    fn keep_text(&mut self, part: Part, raw: &str) {
        self.transcript.write(0, part, raw);
        if !raw.is_empty() {
            self.transcript.count(0);
        }
    }

    fn add_item(&mut self, event: &Event<'_>) {
        let kind = Kind::of(event.item_kind);
        if kind == Kind::Call {
            self.hold();
        }
        let from = kind.part().map_or(0, |part| self.transcript.text(part).len());
        let known = event.item.is_some_and(|id| self.items.place(id).is_some());
        if !known {
            let _full = self.items.add(event.item.unwrap_or_default(), kind, from, None);
        }
        if known || !self.items.can_go_on() {
            self.strange();
        }
    }

    /// A call begins.
    fn hold(&mut self) {
        if self.line.hold() {
            self.items.mark();
            self.transcript.mark();
        }
    }

    /// Something was written that no other attempt can go on with. Of what is held nothing goes on in any case.
    fn strange(&mut self) {
        match (self.line.outlet.is_holding(), &self.chat) {
            (true, _) => {}
            (false, Some(_)) => self.transcript.bar(),
            (false, None) => self.transcript.call_goes_out(),
        }
    }

    fn went_out(&mut self, sent: bool, ledger: &mut Ledger) {
        ledger.content_sent |= sent;
        if sent && self.transcript.is_marked() {
            // More of a call came than is held.
            self.transcript.unmark();
            self.strange();
        }
    }

    /// The answer is whole, and this is it.
    fn whole(&mut self, response: &[u8], ledger: &mut Ledger, out: &mut BytesMut) {
        if self.line.outlet.is_plain() {
            self.whole = Bytes::copy_from_slice(response);
        }
        self.line.outlet.release(out);
        ledger.complete = true;
    }

    /// Fills in the numbers that are missing.
    fn number(&mut self, kind: &str, event: &Event<'_>) {
        let sequence = self.line.take();
        match &event.sequence {
            Some(range) => self.edits.replace(range.clone(), Patch::Number(sequence)),
            None => self.edits.insert(event.end, Patch::Member("sequence_number", sequence)),
        }
        let Some(id) = event.item else { return };
        let place = self.items.place(id).unwrap_or(self.items.last());
        if !event.has_output_index {
            self.edits.insert(event.end, Patch::Member("output_index", place as u64));
        }
        let of_content =
            ["response.content_part.", "response.output_text.", "response.refusal.", "response.reasoning_text."];
        if !event.has_content_index && of_content.iter().any(|prefix| kind.starts_with(prefix)) {
            let part = self.items.get_mut(place).map_or(0, |item| item.parts.saturating_sub(1));
            self.edits.insert(event.end, Patch::Member("content_index", part.into()));
        }
    }
}
