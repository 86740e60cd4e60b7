//! A chat that carries a response on, told in the response's own events.
//!
//! Text goes on in the item in which it broke off, whose ids and places the client knows; what is new gets an item of its own,
//! as llama-server would have begun it. Ids of such items are made of the response's own.

use super::chunk::{self, CallPiece};
use super::items::{Call, Item, Kind};
use super::{ResponsesStream, Route, Stage, in_band};
use crate::sse::DEFAULT_EVENT_LIMIT;
use crate::stream::gate::{Gate, Passed};
use crate::stream::members::each_member;
use crate::stream::transcript::Part;
use crate::stream::{Ledger, StreamError};
use bytes::BytesMut;
use std::ops::Range;

/// The running attempt, where it is a chat.
#[derive(Clone, Debug)]
pub struct ChatLeg {
    /// All tokens that the answer may have were written before.
    pub full: bool,
    gate: Box<Gate>,
    /// When it was made: unix seconds, as they stand.
    pub created: String,
    finished: bool,
}

impl ChatLeg {
    /// Of which nothing has come.
    pub fn new(full: bool, gate: Box<Gate>) -> Self {
        Self { full, gate, created: String::new(), finished: false }
    }
}

impl ResponsesStream {
    /// Reads one chunk; says whether it had content.
    pub(super) fn chunk(&mut self, text: &str, ledger: &mut Ledger, out: &mut BytesMut) -> Result<bool, StreamError> {
        let full = self.chat.as_ref().is_some_and(|leg| leg.full);
        let Some(leg) = self.chat.as_mut().filter(|_| !full && text.trim_ascii() != "[DONE]") else {
            ledger.ended_here = full;
            return self.finish_chat(ledger, out).map(|()| false);
        };
        let chunk = chunk::scan(text, ledger)?;
        if chunk.error {
            return Err(in_band(Route::ChatCompletions, text));
        }
        leg.finished |= chunk.finished;
        if let (true, Some(created)) = (leg.created.is_empty(), chunk.created) {
            leg.created.push_str(created);
        }
        leg.gate.clear();
        let mut passed = [Passed::default(), Passed::default()];
        let texts = [(Part::Reasoning, chunk.reasoning), (Part::Content, chunk.content)];
        for (passed, (part, raw)) in passed.iter_mut().zip(texts) {
            if !raw.is_empty() {
                *passed = leg.gate.pass(0, part, raw, false);
            }
        }
        let written = passed.iter().any(|passed| passed.new);
        let content = written || !chunk.calls.is_empty();
        if content {
            ledger.count();
        }
        if written {
            self.transcript.count(0);
        }
        for (passed, (part, _)) in passed.iter().zip(texts) {
            self.write_passed(part, passed.text.clone(), ledger, out)?;
        }
        for piece in &chunk.calls {
            self.call(piece, ledger, out)?;
        }
        if passed.iter().any(|passed| passed.ends.is_some()) {
            ledger.ended_here = true;
            self.write_end(ledger, out)?;
        }
        Ok(content)
    }

    /// The chat is over; the answer is whole if it has its finish reason, or all tokens that it may have.
    pub(super) fn finish_chat(&mut self, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        if self.broken || !self.chat.as_ref().is_some_and(|leg| leg.finished || leg.full) {
            return Err(StreamError::Cut);
        }
        for part in [Part::Reasoning, Part::Content] {
            let rest = self.chat.as_mut().map_or(0..0, |leg| leg.gate.rest(0, part));
            self.write_passed(part, rest, ledger, out)?;
        }
        self.write_end(ledger, out)
    }

    /// Sends what the gate has let through of a text.
    fn write_passed(
        &mut self,
        part: Part,
        passed: Range<usize>,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<(), StreamError> {
        if passed.is_empty() {
            return Ok(());
        }
        let place = self.text_item(part, ledger, out)?;
        let name = match part {
            Part::Content => "response.output_text.delta",
            Part::Reasoning => "response.reasoning_text.delta",
        };
        let (Some(leg), Some(item)) = (&self.chat, self.items.get(place)) else { return Ok(()) };
        let (id, raw) = (&item.id, leg.gate.text(passed));
        self.transcript.write(0, part, raw);
        let members = format_args!(r#","output_index":{place},"content_index":0,"item_id":"{id}","delta":"{raw}""#);
        let sent = self.line.write(name, out, members)?;
        self.went_out(sent, ledger);
        // The end repeats all of the text, so one that is not kept whole can't be ended.
        if self.transcript.is_over() { Err(StreamError::TooLong) } else { Ok(()) }
    }

    /// The item in which a text goes on; a new one if there is none, and the part that holds it.
    fn text_item(&mut self, part: Part, ledger: &mut Ledger, out: &mut BytesMut) -> Result<usize, StreamError> {
        let kind = Kind::with(part);
        let open = self.items.iter().rposition(|item| item.kind == kind && item.stage == Stage::Open);
        let place = match open {
            Some(place) => place,
            None => self.begin_item(kind, ledger, out)?,
        };
        self.begin_part(place, ledger, out)?;
        Ok(place)
    }

    /// Begins the content part of an item, if the client has none: what it holds is found in it.
    pub(super) fn begin_part(
        &mut self,
        place: usize,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<(), StreamError> {
        let begins = |item: &&mut Item| item.parts == 0 && item.kind.part().is_some();
        let Some(item) = self.items.get_mut(place).filter(begins) else { return Ok(()) };
        item.parts = 1;
        let kind = if item.kind == Kind::Reasoning { "reasoning_text" } else { "output_text" };
        let id = &item.id;
        let members = format_args!(
            r#","output_index":{place},"content_index":0,"item_id":"{id}","part":{{"type":"{kind}","text":""}}"#
        );
        let sent = self.line.write("response.content_part.added", out, members)?;
        self.went_out(sent, ledger);
        Ok(())
    }

    fn begin_item(&mut self, kind: Kind, ledger: &mut Ledger, out: &mut BytesMut) -> Result<usize, StreamError> {
        let place = self.items.len();
        let from = kind.part().map_or(0, |part| self.transcript.text(part).len());
        let (id, rest) = match kind {
            Kind::Message => (self.new_id("msg", place), r#""content":[],"role":"assistant","type":"message""#),
            _ => (self.new_id("rs", place), r#""summary":[],"type":"reasoning","content":[],"encrypted_content":"""#),
        };
        self.items.add(&id, kind, from, None).ok_or(StreamError::TooLong)?;
        let sent = self.line.write(
            "response.output_item.added",
            out,
            format_args!(r#","output_index":{place},"item":{{"id":"{id}",{rest},"status":"in_progress"}}"#),
        )?;
        self.went_out(sent, ledger);
        Ok(place)
    }

    /// An id of an item, made of the response's own.
    fn new_id(&self, kind: &str, place: usize) -> String {
        let mut id = format!("{kind}_");
        // It was scanned as a part of its event.
        let _sound = each_member(&self.snapshot, |name, value| {
            let text = value.trim_matches('"');
            if name == "id" {
                id.push_str(text.strip_prefix("resp_").unwrap_or(text));
                id.push('_');
            }
        });
        id.push_str(&place.to_string());
        id
    }

    fn call(&mut self, piece: &CallPiece<'_>, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        let known = self.items.call(piece.index, piece.id);
        let place = match known {
            Some(place) => place,
            None => self.begin_call(piece, ledger, out)?,
        };
        let Some(item) = self.items.get_mut(place).filter(|_| !piece.arguments.is_empty()) else { return Ok(()) };
        let Some(call) = &mut item.call else { return Ok(()) };
        call.arguments.push_str(piece.arguments);
        // The end repeats them in one event, and engines' events are no longer than this.
        if call.arguments.len() > DEFAULT_EVENT_LIMIT {
            return Err(StreamError::TooLong);
        }
        let sent = self.line.write(
            "response.function_call_arguments.delta",
            out,
            format_args!(r#","output_index":{place},"item_id":"{}","delta":"{}""#, item.id, piece.arguments),
        )?;
        self.went_out(sent, ledger);
        Ok(())
    }

    fn begin_call(
        &mut self,
        piece: &CallPiece<'_>,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<usize, StreamError> {
        self.hold();
        let place = self.items.len();
        let bare = piece.id.strip_prefix("call_").unwrap_or(piece.id);
        let id = if bare.is_empty() { self.new_id("fc", place) } else { format!("fc_{bare}") };
        let call_id = format!("call_{}", &id["fc_".len()..]);
        let name = piece.name;
        let call =
            Call { index: piece.index, call_id: call_id.as_str().into(), name: name.into(), arguments: String::new() };
        self.items.add(&id, Kind::Call, 0, Some(Box::new(call))).ok_or(StreamError::TooLong)?;
        self.strange();
        let sent = self.line.write(
            "response.output_item.added",
            out,
            format_args!(
                r#","output_index":{place},"item":{{"id":"{id}","arguments":"","call_id":"{call_id}","name":"{name}","type":"function_call","status":"in_progress"}}"#
            ),
        )?;
        self.went_out(sent, ledger);
        Ok(place)
    }
}
