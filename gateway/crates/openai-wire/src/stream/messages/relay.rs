//! What becomes of a replica's events: numbered as the client's, without what the client has already.

use super::MessagesStream;
use super::blocks::Kind;
use super::event::{Event, Piece, PieceKind};
use crate::stream::gate::Passed;
use crate::stream::transcript::Part;
use crate::stream::{Ledger, StreamError, write_edited};
use bytes::{BufMut, BytesMut};
use std::fmt::{Arguments, Write};

/// One change to an event.
#[derive(Clone, Copy, Debug)]
pub enum Patch {
    Model,
    /// The client's number of a block.
    Index(usize),
    /// The same, where it was missing.
    NewIndex(usize),
    /// What of a text has passed the gate: from there to there.
    Passed(usize, usize),
    /// Tokens written, as `usage`.
    Usage(u64),
}

impl MessagesStream {
    /// The message opens; one that is carried on is open already.
    pub(super) fn start(
        &mut self,
        event: &Event<'_>,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<(), StreamError> {
        if self.carries_on {
            return Ok(());
        }
        if self.outlet.is_plain() {
            self.message.begin(event.message);
        }
        if let Some(range) = &event.model {
            self.edits.replace(range.clone(), Patch::Model);
        }
        self.send("message_start", event, false, ledger, out)
    }

    /// A block begins. Whether there is a text in it already.
    pub(super) fn block_start(
        &mut self,
        event: &Event<'_>,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<bool, StreamError> {
        const NAME: &str = "content_block_start";
        let Some(start) = &event.block else { return self.send(NAME, event, false, ledger, out).map(|()| false) };
        let next = || u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        let source = event.index.as_ref().map_or_else(next, |(index, _)| *index);
        if self.carries_on && self.blocks.goes_on(source, start) {
            return Ok(false);
        }
        let kind = Kind::of(start.kind);
        let place = self.add(source, kind, Some(start.raw))?;
        let filled = !start.text.is_empty();
        if let (true, Some(part)) = (filled, kind.part()) {
            self.transcript.write(0, part, start.text);
            self.transcript.count(0);
            ledger.count();
        }
        self.number(event, source, place);
        self.send(NAME, event, filled, ledger, out).map(|()| filled)
    }

    /// A block goes on. Whether with anything that the model wrote.
    pub(super) fn block_delta(
        &mut self,
        event: &Event<'_>,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<bool, StreamError> {
        const NAME: &str = "content_block_delta";
        let Some(piece) = event.piece else { return self.send(NAME, event, false, ledger, out).map(|()| false) };
        let source = self.source(event);
        let kind = Kind::with(piece.kind);
        let place = match self.blocks.place(source).or_else(|| self.adopt(source, Some(kind))) {
            Some(place) => place,
            None if self.carries_on && piece.kind == PieceKind::Signature => return Ok(false),
            None => self.add(source, kind, None)?,
        };
        let part = self.blocks.get_mut(place).and_then(|block| block.kind.part());
        let passed = match (piece.kind, part) {
            (PieceKind::Text | PieceKind::Thinking, Some(part)) => self.pass(part, piece.raw, event),
            _ => {
                self.keep_aside(place, piece);
                Passed { text: 0..piece.raw.len(), new: event.has_content(), ends: None }
            }
        };
        if passed.new {
            ledger.count();
        }
        self.number(event, source, place);
        // Of a text nothing may have passed; what was empty before means what it meant.
        if !passed.text.is_empty() || piece.raw.is_empty() {
            self.send(NAME, event, passed.new, ledger, out)?;
        }
        if let Some(why) = passed.ends {
            ledger.ended_here = true;
            self.end_here(why, ledger, out)?;
        }
        Ok(passed.new)
    }

    /// Takes a text in, as far as it may be seen.
    fn pass(&mut self, part: Part, raw: &str, event: &Event<'_>) -> Passed {
        let Some(gate) = &mut self.gate else {
            self.transcript.write(0, part, raw);
            let new = !raw.is_empty();
            if new {
                self.transcript.count(0);
            }
            return Passed { text: 0..raw.len(), new, ends: None };
        };
        gate.clear();
        let passed = gate.pass(0, part, raw, false);
        self.transcript.write(0, part, gate.text(passed.text.clone()));
        self.edits.replace(event.text.clone(), Patch::Passed(passed.text.start, passed.text.end));
        if passed.new {
            self.transcript.count(0);
        }
        passed
    }

    /// A block of the client's that the running attempt speaks of without having begun it, since for it the message goes on.
    fn adopt(&mut self, source: u32, kind: Option<Kind>) -> Option<usize> {
        if self.carries_on { self.blocks.adopt(source, kind) } else { None }
    }

    /// A block that the client has not.
    fn add(&mut self, source: u32, kind: Kind, start: Option<&str>) -> Result<usize, StreamError> {
        if kind == Kind::Call && self.outlet.hold() {
            self.blocks.mark();
            self.transcript.mark();
        }
        let from = kind.part().map_or(0, |part| self.transcript.text(part).len());
        let start = start.map(|start| if self.outlet.is_plain() { start } else { "" });
        let place = self.blocks.add(source, kind, start, from)?;
        // Of what is held nothing can be carried on, whatever it is.
        if !self.outlet.is_holding() && !self.blocks.can_go_on() {
            self.transcript.call_goes_out();
        }
        Ok(place)
    }

    /// What only a plain answer needs.
    fn keep_aside(&mut self, place: usize, piece: Piece<'_>) {
        let Some(block) = self.blocks.get_mut(place).filter(|_| self.outlet.is_plain()) else { return };
        match piece.kind {
            PieceKind::Signature => block.signature.replace_range(.., piece.raw),
            _ => block.input.push_str(piece.raw),
        }
    }

    /// A block ends.
    pub(super) fn block_stop(
        &mut self,
        event: &Event<'_>,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<(), StreamError> {
        const NAME: &str = "content_block_stop";
        let source = self.source(event);
        let Some(place) = self.blocks.place(source).or_else(|| self.adopt(source, None)) else {
            // Of a block that was never begun.
            return if self.carries_on { Ok(()) } else { self.send(NAME, event, false, ledger, out) };
        };
        self.write_rest(ledger, out)?;
        self.close_blocks(true, ledger, out)?;
        self.blocks.close(place);
        self.number(event, source, place);
        self.send(NAME, event, false, ledger, out)
    }

    /// The message ends, or its usage is stated.
    pub(super) fn message_delta(
        &mut self,
        event: &Event<'_>,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<(), StreamError> {
        self.stopped |= event.stop;
        if event.stop {
            self.write_rest(ledger, out)?;
            self.close_blocks(false, ledger, out)?;
        }
        if self.outlet.is_plain() {
            let usage = event.usage.clone().map_or("", |range| &event.raw[range]);
            self.message.end(event.delta, usage);
        }
        let usage = event.usage.clone().zip(ledger.usage());
        // The engine's own is of its part only, or can't be believed.
        let ours = usage.filter(|(_, (_, estimated))| self.carries_on || *estimated || ledger.reported.silly);
        if let Some((range, (usage, _))) = ours {
            self.edits.replace(range, Patch::Usage(usage.completion_tokens));
        }
        self.send("message_delta", event, event.stop, ledger, out)
    }

    /// The engine's number of the block that an event is about; where it names none, of the last one.
    fn source(&self, event: &Event<'_>) -> u32 {
        event.index.as_ref().map_or_else(|| self.blocks.last().unwrap_or(0), |(index, _)| *index)
    }

    /// Gives a block the number by which the client knows it.
    fn number(&mut self, event: &Event<'_>, source: u32, place: usize) {
        match &event.index {
            Some(_) if usize::try_from(source) == Ok(place) => {}
            Some((_, range)) => self.edits.replace(range.clone(), Patch::Index(place)),
            None => self.edits.insert(event.end, Patch::NewIndex(place)),
        }
    }

    /// Sends an event of the replica's, edited; worth opening the stream for if it has `content`.
    pub(super) fn send(
        &mut self,
        name: &str,
        event: &Event<'_>,
        content: bool,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<(), StreamError> {
        let goes_out = ledger.content_sent || content;
        let (edits, model) = (&mut self.edits, &self.model);
        let passed = self.gate.as_ref().map_or("", |gate| gate.all());
        let sent = self.outlet.write(goes_out, name, out, |target| {
            write_edited(event.raw, edits, target, |out, patch| put(out, *patch, model, passed));
        })?;
        self.went_out(sent, ledger);
        Ok(())
    }

    /// Sends an event of ours.
    pub(super) fn own(
        &mut self,
        name: &str,
        data: Arguments<'_>,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<(), StreamError> {
        let sent = self.outlet.write(true, name, out, |target| {
            target.put_slice(b"data: ");
            // Memory grows as it must.
            let _infallible = target.write_fmt(data);
            target.put_slice(b"\n\n");
        })?;
        self.went_out(sent, ledger);
        Ok(())
    }

    fn went_out(&mut self, sent: bool, ledger: &mut Ledger) {
        ledger.content_sent |= sent;
        if sent && self.transcript.is_marked() {
            // More of a call came than is held.
            self.transcript.unmark();
            self.transcript.call_goes_out();
        }
    }
}

fn put(out: &mut BytesMut, patch: Patch, model: &[u8], passed: &str) {
    // Memory grows as it must.
    let _infallible = match patch {
        Patch::Model => {
            out.put_slice(model);
            Ok(())
        }
        Patch::Index(place) => write!(out, "{place}"),
        Patch::NewIndex(place) => write!(out, r#","index":{place}"#),
        Patch::Passed(start, end) => out.write_str(passed.get(start..end).unwrap_or_default()),
        Patch::Usage(tokens) => write!(out, r#"{{"output_tokens":{tokens}}}"#),
    };
}
