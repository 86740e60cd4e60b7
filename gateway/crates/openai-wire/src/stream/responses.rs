//! The Responses API's events: `response.created` … `response.completed`.
//!
//! The SDKs' `responses.stream()` keeps a snapshot and finds its parts by `output_index` and `content_index`, which
//! llama-server leaves out, as it does `sequence_number` and the first snapshot's `output`. They are filled in here from
//! the order in which items were added.

use super::messages::event_name;
use super::opening::Opening;
use super::{Ledger, StreamError, StreamOptions, in_band, write_edited};
use crate::edits::{Edits, MemberCuts};
use crate::json::{JsonError, Kind, Scanner, quoted};
use crate::route::Route;
use crate::usage::{EngineTimings, Reported};
use bytes::{BufMut, BytesMut};
use std::ops::Range;

/// Most output items whose place is remembered; an answer has a handful.
const MAX_ITEMS: usize = 1024;

/// Longest item id remembered, in bytes.
const MAX_ID: usize = 256;

/// The stream of one client on this route.
#[derive(Debug)]
pub(super) struct ResponsesStream {
    model: Vec<u8>,
    held: Opening,
    /// The number the next event gets.
    sequence: u64,
    /// Output items in the order they were added: id, and content parts begun.
    items: Vec<(Box<str>, u32)>,
    broken: bool,
    edits: Edits<Patch>,
}

#[derive(Clone, Copy, Debug)]
enum Patch {
    Cut,
    Model,
    Static(&'static str),
    Number(u64),
    /// A member that was missing, with the comma before it.
    Member(&'static str, u64),
}

/// What one event was.
#[derive(Default)]
struct Event<'a> {
    kind: Option<&'a str>,
    item: Option<&'a str>,
    sequence: Option<Range<usize>>,
    has_output_index: bool,
    has_content_index: bool,
    filled_delta: bool,
    error: bool,
    end: usize,
}

impl ResponsesStream {
    pub fn new(options: &StreamOptions) -> Self {
        Self {
            model: quoted(&options.model),
            held: Opening::default(),
            sequence: 0,
            items: Vec::new(),
            broken: false,
            edits: Edits::default(),
        }
    }

    /// The number an event written now must have.
    pub fn next_number(&self) -> u64 {
        // What is held has not been sent.
        if self.held.is_empty() { self.sequence } else { 0 }
    }

    pub fn begin_attempt(&mut self, content_sent: bool) {
        self.broken = content_sent;
        if !content_sent {
            self.held.clear();
            self.sequence = 0;
            self.items.clear();
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
        if self.broken || text.trim_ascii() == "[DONE]" {
            return Err(StreamError::Cut);
        }
        self.edits.clear();
        let event = self.scan(text, ledger)?;
        let kind = event_name(event.kind, name)?;
        if event.error || kind == "error" || (kind == "response.failed" && !ledger.content_sent) {
            return Err(in_band(Route::Responses, text));
        }
        let content = event.filled_delta && kind.ends_with(".delta");
        let over = matches!(kind, "response.completed" | "response.incomplete" | "response.failed");
        self.number(kind, &event);
        let goes_out = ledger.content_sent || content || over;
        let (edits, model) = (&mut self.edits, &self.model);
        self.held.write(goes_out, kind, out, |target| {
            write_edited(text, edits, target, |out, patch| put(out, *patch, model));
        })?;
        ledger.content_sent |= goes_out;
        ledger.complete |= over;
        Ok(content)
    }

    /// Fills in the numbers that are missing.
    fn number(&mut self, kind: &str, event: &Event<'_>) {
        let sequence = self.sequence;
        self.sequence += 1;
        match &event.sequence {
            Some(range) => self.edits.replace(range.clone(), Patch::Number(sequence)),
            None => self.edits.insert(event.end, Patch::Member("sequence_number", sequence)),
        }
        let Some(id) = event.item else { return };
        let adds = kind == "response.output_item.added";
        let known = self.items.iter().rposition(|(known, _)| **known == *id);
        let place = match known {
            Some(place) => place,
            None if adds && self.items.len() < MAX_ITEMS && id.len() <= MAX_ID => {
                self.items.push((id.into(), 0));
                self.items.len() - 1
            }
            None => self.items.len().saturating_sub(1),
        };
        if !event.has_output_index {
            self.edits.insert(event.end, Patch::Member("output_index", place as u64));
        }
        let of_content =
            ["response.content_part.", "response.output_text.", "response.refusal.", "response.reasoning_text."];
        if of_content.iter().any(|prefix| kind.starts_with(prefix)) {
            let parts = self.items.get_mut(place).map(|(_, parts)| parts);
            let part = match parts {
                Some(parts) if kind == "response.content_part.added" => {
                    *parts = parts.saturating_add(1);
                    *parts - 1
                }
                Some(parts) => parts.saturating_sub(1),
                None => 0,
            };
            if !event.has_content_index {
                self.edits.insert(event.end, Patch::Member("content_index", part.into()));
            }
        }
    }

    fn scan<'a>(&mut self, text: &'a str, ledger: &mut Ledger) -> Result<Event<'a>, JsonError> {
        let mut event = Event::default();
        let mut scanner = Scanner::new(text);
        let mut open = scanner.object()?;
        while let Some(key) = scanner.member(&mut open)? {
            let kind = scanner.kind()?;
            match key.name.as_ref() {
                "type" if kind == Kind::Text => event.kind = Some(scanner.text()?.raw),
                "response" if kind == Kind::Object => self.response(&mut scanner, ledger)?,
                "item" if kind == Kind::Object => item(&mut scanner, &mut event)?,
                "item_id" if kind == Kind::Text => event.item = Some(scanner.text()?.raw),
                "sequence_number" => event.sequence = Some(scanner.skip()?),
                "output_index" => event.has_output_index = scanner.skip().map(|_| kind == Kind::Number)?,
                "content_index" => event.has_content_index = scanner.skip().map(|_| kind == Kind::Number)?,
                "delta" if kind == Kind::Text => event.filled_delta = !scanner.text()?.is_empty(),
                "error" => {
                    event.error |= kind != Kind::Null;
                    scanner.skip()?;
                }
                _ => scanner.pass()?,
            }
        }
        event.end = scanner.at() - 1;
        scanner.finish()?;
        Ok(event)
    }

    /// The snapshot inside some events: its model is the client's, its output a list, engine's extras are out.
    fn response(&mut self, scanner: &mut Scanner<'_>, ledger: &mut Ledger) -> Result<(), JsonError> {
        let mut open = scanner.object()?;
        let mut cuts = MemberCuts::default();
        let (mut has_model, mut has_output) = (false, false);
        while let Some(key) = scanner.member(&mut open)? {
            if key.name == "timings" {
                ledger.timings = EngineTimings::read(scanner)?.or(ledger.timings);
                cuts.drop(key.before, key.start, scanner.at(), &mut self.edits, Patch::Cut);
                continue;
            }
            cuts.keep(key.start, &mut self.edits, Patch::Cut);
            match key.name.as_ref() {
                "model" => {
                    has_model = true;
                    let range = scanner.skip()?;
                    self.edits.replace(range, Patch::Model);
                }
                "output" => {
                    has_output = true;
                    scanner.skip()?;
                }
                "usage" => ledger.reported.merge(Reported::read(scanner)?),
                _ => scanner.pass()?,
            }
        }
        let comma = cuts.finish(&mut self.edits, Patch::Cut);
        let end = scanner.at() - 1;
        let mut first = !comma;
        for (missing, member) in [(!has_model, r#""model":"#), (!has_output, r#""output":[]"#)] {
            if !missing {
                continue;
            }
            if !std::mem::replace(&mut first, false) {
                self.edits.insert(end, Patch::Static(","));
            }
            self.edits.insert(end, Patch::Static(member));
            if member == r#""model":"# {
                self.edits.insert(end, Patch::Model);
            }
        }
        Ok(())
    }
}

fn item<'a>(scanner: &mut Scanner<'a>, event: &mut Event<'a>) -> Result<(), JsonError> {
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        if key.name == "id" && scanner.kind()? == Kind::Text {
            event.item = Some(scanner.text()?.raw);
        } else {
            scanner.skip()?;
        }
    }
    Ok(())
}

fn put(out: &mut BytesMut, patch: Patch, model: &[u8]) {
    match patch {
        Patch::Cut => {}
        Patch::Model => out.put_slice(model),
        Patch::Static(text) => out.put_slice(text.as_bytes()),
        Patch::Number(number) => out.put_slice(number.to_string().as_bytes()),
        Patch::Member(name, number) => out.put_slice(format!(r#","{name}":{number}"#).as_bytes()),
    }
}
