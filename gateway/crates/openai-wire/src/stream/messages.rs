//! Anthropic's events: `message_start` … `message_stop`.
//!
//! The opening events are held until there is content, so that an attempt that dies before it leaves no trace.

use super::opening::Opening;
use super::{Ledger, StreamError, StreamOptions, in_band, write_edited};
use crate::edits::Edits;
use crate::json::{Flaw, JsonError, Kind, Scanner, quoted};
use crate::route::Route;
use crate::sse::write_event;
use crate::usage::{EngineTimings, Reported};
use bytes::{BufMut, BytesMut};
use std::ops::Range;

/// The stream of one client on this route.
#[derive(Debug)]
pub(super) struct MessagesStream {
    model: Vec<u8>,
    held: Opening,
    stopped: bool,
    broken: bool,
    edits: Edits<Patch>,
}

#[derive(Clone, Copy, Debug)]
enum Patch {
    Model,
}

/// What one event was.
#[derive(Default)]
struct Event<'a> {
    kind: Option<&'a str>,
    content: bool,
    stop: bool,
    error: bool,
    model: Option<Range<usize>>,
}

impl MessagesStream {
    pub fn new(options: &StreamOptions) -> Self {
        let model = quoted(&options.model);
        Self { model, held: Opening::default(), stopped: false, broken: false, edits: Edits::default() }
    }

    pub fn begin_attempt(&mut self, content_sent: bool) {
        self.held.clear();
        self.stopped = false;
        self.broken = content_sent;
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
        if text.trim_ascii() == "[DONE]" {
            return self.finish(ledger, out).map(|()| false);
        }
        let event = scan(text, ledger)?;
        let kind = event_name(event.kind, name)?;
        if event.error || kind == "error" {
            return Err(in_band(Route::Messages, text));
        }
        match kind {
            // Signs of life are the gateway's to give.
            "ping" => return Ok(false),
            "message_stop" => return self.finish(ledger, out).map(|()| false),
            _ => {}
        }
        self.stopped |= event.stop;
        self.edits.clear();
        if let Some(range) = event.model {
            self.edits.replace(range, Patch::Model);
        }
        let goes_out = ledger.content_sent || event.content || event.stop;
        let (edits, model) = (&mut self.edits, &self.model);
        self.held.write(goes_out, kind, out, |target| {
            write_edited(text, edits, target, |out, Patch::Model| out.put_slice(model));
        })?;
        ledger.content_sent |= goes_out;
        Ok(event.content)
    }

    /// The stream is over; the answer is whole if it has its stop reason.
    pub fn finish(&mut self, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        if !self.stopped {
            return Err(StreamError::Cut);
        }
        write_event(out, Some("message_stop"), br#"{"type":"message_stop"}"#);
        ledger.complete = true;
        Ok(())
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

fn scan<'a>(text: &'a str, ledger: &mut Ledger) -> Result<Event<'a>, JsonError> {
    let mut event = Event::default();
    let mut scanner = Scanner::new(text);
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        match key.name.as_ref() {
            "type" if scanner.kind()? == Kind::Text => event.kind = Some(scanner.text()?.raw),
            "message" if scanner.kind()? == Kind::Object => message(&mut scanner, &mut event, ledger)?,
            "delta" if scanner.kind()? == Kind::Object => delta(&mut scanner, &mut event)?,
            "usage" => ledger.reported.merge(Reported::read(&mut scanner)?),
            "timings" => ledger.timings = EngineTimings::read(&mut scanner)?.or(ledger.timings),
            "error" => {
                event.error |= scanner.kind()? != Kind::Null;
                scanner.skip()?;
            }
            _ => scanner.pass()?,
        }
    }
    scanner.finish()?;
    Ok(event)
}

fn message(scanner: &mut Scanner<'_>, event: &mut Event<'_>, ledger: &mut Ledger) -> Result<(), JsonError> {
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        match key.name.as_ref() {
            "model" => event.model = Some(scanner.skip()?),
            "usage" => ledger.reported.merge(Reported::read(scanner)?),
            _ => scanner.pass()?,
        }
    }
    Ok(())
}

fn delta(scanner: &mut Scanner<'_>, event: &mut Event<'_>) -> Result<(), JsonError> {
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        let kind = scanner.kind()?;
        match key.name.as_ref() {
            "text" | "thinking" | "partial_json" if kind == Kind::Text => event.content |= !scanner.text()?.is_empty(),
            "stop_reason" if kind == Kind::Text => event.stop |= !scanner.text()?.is_empty(),
            _ => scanner.pass()?,
        }
    }
    Ok(())
}
