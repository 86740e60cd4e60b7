//! What one of the Responses API's events says, and what is changed in it.

use crate::edits::{Edits, MemberCuts};
use crate::json::{JsonError, Kind, Scanner};
use crate::stream::Ledger;
use crate::usage::{EngineTimings, Reported};
use bytes::{BufMut, BytesMut};
use std::fmt::Write;
use std::ops::Range;

/// One change to an event.
#[derive(Clone, Copy, Debug)]
pub enum Patch {
    Cut,
    Model,
    Static(&'static str),
    Number(u64),
    /// A member that was missing, with the comma before it.
    Member(&'static str, u64),
}

/// What one event was. Texts are JSON text.
#[derive(Default)]
pub struct Event<'a> {
    /// Its `type`.
    pub kind: Option<&'a str>,
    /// The id of its item.
    pub item: Option<&'a str>,
    /// The type of the item that begins or ends.
    pub item_kind: &'a str,
    /// The type of the content part that begins or ends.
    pub part_kind: &'a str,
    /// Where the number stands.
    pub sequence: Option<Range<usize>>,
    pub has_output_index: bool,
    pub has_content_index: bool,
    /// What comes to a text.
    pub delta: &'a str,
    /// The response as it stands.
    pub response: &'a str,
    pub error: bool,
    /// Just before the closing brace.
    pub end: usize,
}

/// What a scan of events needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The client gets the engine's own measurements.
    pub timings: bool,
}

impl Reading {
    /// Reads an event; counts go to the ledger, changes to the edits.
    pub fn scan<'a>(
        self,
        text: &'a str,
        ledger: &mut Ledger,
        edits: &mut Edits<Patch>,
    ) -> Result<Event<'a>, JsonError> {
        let mut event = Event::default();
        let mut scanner = Scanner::new(text);
        let mut open = scanner.object()?;
        let mut cuts = MemberCuts::default();
        while let Some(key) = scanner.member(&mut open)? {
            let kind = scanner.kind()?;
            let start = scanner.at();
            if key.name == "timings" {
                ledger.timings = EngineTimings::read(&mut scanner)?.or(ledger.timings);
                if !self.timings {
                    cuts.drop(key.before, key.start, scanner.at(), edits, Patch::Cut);
                    continue;
                }
            }
            cuts.keep(key.start, edits, Patch::Cut);
            match key.name.as_ref() {
                // Read above.
                "timings" => {}
                "type" if kind == Kind::Text => event.kind = Some(scanner.text()?.raw),
                "response" if kind == Kind::Object => {
                    self.response(&mut scanner, ledger, edits)?;
                    event.response = scanner.slice(start..scanner.at());
                }
                "item" if kind == Kind::Object => (event.item, event.item_kind) = named(&mut scanner, event.item)?,
                "part" if kind == Kind::Object => event.part_kind = named(&mut scanner, None)?.1,
                "item_id" if kind == Kind::Text => event.item = Some(scanner.text()?.raw),
                "sequence_number" => event.sequence = Some(scanner.skip()?),
                "output_index" => event.has_output_index = scanner.skip().map(|_| kind == Kind::Number)?,
                "content_index" => event.has_content_index = scanner.skip().map(|_| kind == Kind::Number)?,
                "delta" if kind == Kind::Text => event.delta = scanner.text()?.raw,
                "error" => {
                    event.error |= kind != Kind::Null;
                    scanner.skip()?;
                }
                _ => scanner.pass()?,
            }
        }
        cuts.finish(edits, Patch::Cut);
        event.end = scanner.at() - 1;
        scanner.finish()?;
        Ok(event)
    }

    /// The snapshot inside some events: its model is the client's, its output a list, engine's extras are out.
    fn response(
        self,
        scanner: &mut Scanner<'_>,
        ledger: &mut Ledger,
        edits: &mut Edits<Patch>,
    ) -> Result<(), JsonError> {
        let mut open = scanner.object()?;
        let mut cuts = MemberCuts::default();
        let (mut has_model, mut has_output) = (false, false);
        while let Some(key) = scanner.member(&mut open)? {
            if key.name == "timings" {
                ledger.timings = EngineTimings::read(scanner)?.or(ledger.timings);
                if !self.timings {
                    cuts.drop(key.before, key.start, scanner.at(), edits, Patch::Cut);
                    continue;
                }
            }
            cuts.keep(key.start, edits, Patch::Cut);
            match key.name.as_ref() {
                // Read above.
                "timings" => {}
                "model" => {
                    has_model = true;
                    let range = scanner.skip()?;
                    edits.replace(range, Patch::Model);
                }
                "output" => {
                    has_output = true;
                    scanner.skip()?;
                }
                "usage" => ledger.reported.merge(Reported::read(scanner)?),
                _ => scanner.pass()?,
            }
        }
        let mut first = !cuts.finish(edits, Patch::Cut);
        let end = scanner.at() - 1;
        for (missing, member) in [(!has_model, r#""model":"#), (!has_output, r#""output":[]"#)] {
            if !missing {
                continue;
            }
            if !std::mem::replace(&mut first, false) {
                edits.insert(end, Patch::Static(","));
            }
            edits.insert(end, Patch::Static(member));
            if member == r#""model":"# {
                edits.insert(end, Patch::Model);
            }
        }
        Ok(())
    }
}

/// The id (else `before`) and the type of an object.
fn named<'a>(scanner: &mut Scanner<'a>, before: Option<&'a str>) -> Result<(Option<&'a str>, &'a str), JsonError> {
    let (mut id, mut of) = (before, "");
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        let is_text = scanner.kind()? == Kind::Text;
        match key.name.as_ref() {
            "id" if is_text => id = Some(scanner.text()?.raw),
            "type" if is_text => of = scanner.text()?.raw,
            _ => scanner.pass()?,
        }
    }
    Ok((id, of))
}

/// Writes one change.
pub fn put(out: &mut BytesMut, patch: Patch, model: &[u8]) {
    // Memory grows as it must.
    let _infallible = match patch {
        Patch::Cut => Ok(()),
        Patch::Model => {
            out.put_slice(model);
            Ok(())
        }
        Patch::Static(text) => out.write_str(text),
        Patch::Number(number) => write!(out, "{number}"),
        Patch::Member(name, number) => write!(out, r#","{name}":{number}"#),
    };
}
