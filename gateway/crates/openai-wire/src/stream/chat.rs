//! Chunks of chat and text completions.
//!
//! Every chunk is one object with `choices`. Head fields are made to agree with the first chunk, roles are sent once per
//! choice, usage and timings are taken out wherever they stand and usage is sent once, at the end, if the client asked.

use super::{Ledger, StreamError, StreamOptions, in_band, write_edited};
use crate::edits::{Edits, MemberCuts};
use crate::json::{JsonError, Kind, Scanner, quoted};
use crate::route::Route;
use crate::usage::{EngineTimings, PromptProgress, Reported};
use bytes::{BufMut, BytesMut};
use std::ops::Range;

/// Longest id or fingerprint kept, in bytes; real ones have about 40.
const MAX_KEPT: usize = 256;

/// One change to a chunk.
#[derive(Clone, Copy, Debug)]
enum Patch {
    Cut,
    Static(&'static str),
    Head(Head),
    /// A head member that was missing, with its comma.
    NewHead(Head),
    /// A missing `index`.
    Index(u32),
}

/// The fields that are the same on every chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    Id,
    Created,
    Model,
    Fingerprint,
}

/// Their values as JSON text; empty until known.
#[derive(Debug, Default)]
struct Heads {
    id: Vec<u8>,
    created: Vec<u8>,
    model: Vec<u8>,
    fingerprint: Vec<u8>,
}

impl Heads {
    fn get(&self, head: Head) -> &[u8] {
        match head {
            Head::Id => &self.id,
            Head::Created => &self.created,
            Head::Model => &self.model,
            Head::Fingerprint => &self.fingerprint,
        }
    }

    /// Keeps the first sound value of a field (`None` is none). Whether what stands there must give way to what is kept.
    fn differs(&mut self, head: Head, raw: Option<&str>) -> bool {
        let kept = match head {
            Head::Id => &mut self.id,
            Head::Created => &mut self.created,
            Head::Model => &mut self.model,
            Head::Fingerprint => &mut self.fingerprint,
        };
        match raw {
            Some(raw) if kept.is_empty() && raw.len() <= MAX_KEPT => {
                kept.extend_from_slice(raw.as_bytes());
                false
            }
            raw => !kept.is_empty() && raw.is_none_or(|raw| kept.as_slice() != raw.as_bytes()),
        }
    }
}

/// A set of choices; those from 127 on share a place (a request may ask for 128).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChoiceSet(u128);

impl ChoiceSet {
    fn add(&mut self, index: u32) {
        self.0 |= 1 << index.min(127);
    }

    fn has(self, index: u32) -> bool {
        self.0 & (1 << index.min(127)) != 0
    }
}

/// The tool calls of a dialect that does not number them.
#[derive(Debug, Default)]
struct Calls {
    started: u32,
    id: Vec<u8>,
}

impl Calls {
    /// The number of the call that a piece with this id (if it has one) belongs to.
    fn number(&mut self, id: Option<&str>) -> u32 {
        let id = id.unwrap_or_default().as_bytes();
        if self.started == 0 || (!id.is_empty() && id != self.id) {
            self.started = self.started.saturating_add(1);
            self.id.clear();
            self.id.extend_from_slice(&id[..id.len().min(MAX_KEPT)]);
        }
        self.started - 1
    }
}

/// The stream of one client on these routes.
#[derive(Debug)]
pub(super) struct ChatStream {
    route: Route,
    include_usage: bool,
    heads: Heads,
    /// Choices whose role the client has.
    roles: ChoiceSet,
    /// Choices the running attempt has spoken of, and those it has finished.
    seen: ChoiceSet,
    finished: ChoiceSet,
    calls: Calls,
    edits: Edits<Patch>,
}

/// What one chunk was.
#[derive(Debug, Default)]
struct Chunk {
    has_choices: bool,
    choices: u32,
    error: bool,
    content: bool,
    finish: bool,
    /// Something else that is worth sending (a role, a log probability, an unknown field).
    other: bool,
    /// It reports how far the prompt has been read.
    progress: bool,
    has_usage: bool,
    heads: [bool; 3],
    object: bool,
    front: usize,
    end: usize,
}

impl ChatStream {
    pub fn new(route: Route, options: &StreamOptions) -> Self {
        Self {
            route,
            include_usage: options.include_usage,
            heads: Heads { model: quoted(&options.model), ..Heads::default() },
            roles: ChoiceSet::default(),
            seen: ChoiceSet::default(),
            finished: ChoiceSet::default(),
            calls: Calls::default(),
            edits: Edits::default(),
        }
    }

    pub fn begin_attempt(&mut self) {
        self.seen = ChoiceSet::default();
        self.finished = ChoiceSet::default();
        self.calls = Calls::default();
    }

    /// Reads one event; says whether it had content.
    pub fn event(&mut self, text: &str, ledger: &mut Ledger, out: &mut BytesMut) -> Result<bool, StreamError> {
        if text.trim_ascii() == "[DONE]" {
            return self.finish(ledger, out).map(|()| false);
        }
        self.edits.clear();
        let before = (self.roles, self.seen, self.finished);
        let chunk = match self.scan(text, ledger) {
            Ok(chunk) => chunk,
            Err(error) => {
                // A finish reason in half an event is none.
                (self.roles, self.seen, self.finished) = before;
                return Err(error.into());
            }
        };
        if chunk.error || !chunk.has_choices {
            return if chunk.error { Err(in_band(self.route, text)) } else { Ok(false) };
        }
        // A chunk of usage only is sent at the end, in our own words; progress and repeated roles are not for the client.
        let worth = chunk.content || chunk.finish || (chunk.other && !chunk.progress);
        if chunk.choices == 0 || !worth {
            self.roles = before.0;
            return Ok(false);
        }
        self.complete_head(&chunk);
        let heads = &self.heads;
        write_edited(text, &mut self.edits, out, |out, patch| put(out, *patch, heads));
        ledger.content_sent |= chunk.finish;
        Ok(chunk.content)
    }

    /// The upstream says it is done, or has closed: the answer is whole if every choice has its finish reason.
    pub fn finish(&mut self, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        if self.seen == ChoiceSet::default() || self.seen != self.finished {
            return Err(StreamError::Cut);
        }
        if self.include_usage {
            let usage = ledger.usage().map(|(usage, _)| usage).unwrap_or_default();
            self.open_chunk(out);
            out.put_slice(br#","choices":[],"usage":"#);
            out.put_slice(&usage.to_json(Route::ChatCompletions));
            out.put_slice(b"}\n\n");
        }
        out.put_slice(b"data: [DONE]\n\n");
        ledger.complete = true;
        Ok(())
    }

    /// An empty delta.
    pub fn keepalive(&mut self, id: &str, created: u64, out: &mut BytesMut) {
        if self.heads.id.is_empty() {
            self.heads.id = quoted(id);
        }
        if self.heads.created.is_empty() {
            self.heads.created = created.to_string().into_bytes();
        }
        self.open_chunk(out);
        out.put_slice(match (self.is_chat(), self.roles.has(0)) {
            (true, true) => br#","choices":[{"index":0,"delta":{},"finish_reason":null}]"#.as_slice(),
            (true, false) => {
                br#","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]"#
            }
            (false, _) => br#","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null}]"#,
        });
        if self.is_chat() {
            self.roles.add(0);
        }
        if self.include_usage {
            out.put_slice(br#","usage":null"#);
        }
        out.put_slice(b"}\n\n");
    }

    fn is_chat(&self) -> bool {
        self.route == Route::ChatCompletions
    }

    fn object(&self) -> &'static str {
        if self.is_chat() { r#""object":"chat.completion.chunk""# } else { r#""object":"text_completion""# }
    }

    /// The head of a chunk of our own, without the closing brace.
    fn open_chunk(&self, out: &mut BytesMut) {
        out.put_slice(b"data: {");
        out.put_slice(self.object().as_bytes());
        for head in [Head::Id, Head::Created, Head::Model, Head::Fingerprint] {
            if !self.heads.get(head).is_empty() {
                out.put_u8(b',');
                put_head(out, head, &self.heads);
            }
        }
    }

    /// Adds what the dialect leaves out.
    fn complete_head(&mut self, chunk: &Chunk) {
        for (head, there) in [Head::Id, Head::Created, Head::Model].into_iter().zip(chunk.heads) {
            if !there && !self.heads.get(head).is_empty() {
                self.edits.insert(chunk.front, Patch::NewHead(head));
            }
        }
        if !chunk.object {
            self.edits.insert(chunk.front, Patch::Static(self.object()));
            self.edits.insert(chunk.front, Patch::Static(","));
        }
        if self.include_usage && !chunk.has_usage {
            self.edits.insert(chunk.end, Patch::Static(r#","usage":null"#));
        }
    }

    fn scan(&mut self, text: &str, ledger: &mut Ledger) -> Result<Chunk, JsonError> {
        let mut chunk = Chunk::default();
        let mut scanner = Scanner::new(text);
        let mut open = scanner.object()?;
        let mut cuts = MemberCuts::default();
        chunk.front = open.start + 1;
        while let Some(key) = scanner.member(&mut open)? {
            let name = key.name.as_ref();
            chunk.progress |= name == "prompt_progress";
            let goes = match name {
                "usage" => !self.include_usage,
                "timings" | "prompt_progress" | "__verbose" => true,
                _ => false,
            };
            if !goes {
                cuts.keep(key.start, &mut self.edits, Patch::Cut);
            }
            match name {
                "choices" => self.choices(&mut scanner, &mut chunk)?,
                "id" => self.head(Head::Id, &mut scanner, &mut chunk)?,
                "created" => self.head(Head::Created, &mut scanner, &mut chunk)?,
                "model" => self.head(Head::Model, &mut scanner, &mut chunk)?,
                "system_fingerprint" => self.head(Head::Fingerprint, &mut scanner, &mut chunk)?,
                "usage" => {
                    scanner.kind()?;
                    let start = scanner.at();
                    ledger.reported.merge(Reported::read(&mut scanner)?);
                    chunk.has_usage = true;
                    if !goes {
                        self.edits.replace(start..scanner.at(), Patch::Static("null"));
                    }
                }
                "timings" => {
                    if let Some(timings) = EngineTimings::read(&mut scanner)? {
                        ledger.timings = Some(timings);
                    }
                }
                "prompt_progress" => ledger.progress = PromptProgress::parse(&mut scanner)?.or(ledger.progress),
                "object" => {
                    chunk.object = true;
                    let range = scanner.skip()?;
                    chunk.error |= scanner.slice(range) == r#""error""#;
                }
                "error" | "detail" => {
                    chunk.error |= scanner.kind()? != Kind::Null;
                    scanner.skip()?;
                }
                _ => scanner.pass()?,
            }
            if goes {
                cuts.drop(key.before, key.start, scanner.at(), &mut self.edits, Patch::Cut);
            }
        }
        cuts.finish(&mut self.edits, Patch::Cut);
        chunk.end = scanner.at() - 1;
        scanner.finish()?;
        Ok(chunk)
    }

    fn head(&mut self, head: Head, scanner: &mut Scanner<'_>, chunk: &mut Chunk) -> Result<(), JsonError> {
        let due = if head == Head::Created { Kind::Number } else { Kind::Text };
        let sound = scanner.kind()? == due;
        let range = scanner.skip()?;
        if self.heads.differs(head, sound.then(|| scanner.slice(range.clone()))) {
            self.edits.replace(range, Patch::Head(head));
        }
        if let Some(there) = chunk.heads.get_mut(head as usize) {
            *there = true;
        }
        Ok(())
    }

    fn choices(&mut self, scanner: &mut Scanner<'_>, chunk: &mut Chunk) -> Result<(), JsonError> {
        if scanner.kind()? != Kind::Array {
            return scanner.skip().map(drop);
        }
        chunk.has_choices = true;
        let mut open = scanner.array()?;
        while scanner.element(&mut open)? {
            self.choice(chunk.choices, scanner, chunk)?;
            chunk.choices += 1;
        }
        Ok(())
    }

    /// One choice; `place` is where it stands, which is its index if it has none.
    fn choice(&mut self, place: u32, scanner: &mut Scanner<'_>, chunk: &mut Chunk) -> Result<(), JsonError> {
        let mut open = scanner.object()?;
        let (mut index, mut finished, mut has_finish) = (None, false, false);
        let (mut delta, mut empty) = (None, true);
        while let Some(key) = scanner.member(&mut open)? {
            empty = false;
            match key.name.as_ref() {
                "index" => {
                    let range = scanner.skip()?;
                    index = Some(scanner.slice(range).parse::<u32>().unwrap_or(place));
                }
                "delta" if scanner.kind()? == Kind::Object => delta = Some(self.delta(scanner, chunk)?),
                "text" => chunk.content |= filled(scanner)?,
                "finish_reason" => {
                    has_finish = true;
                    finished = self.finish_reason(scanner)?;
                }
                "logprobs" => {
                    chunk.other |= scanner.kind()? != Kind::Null;
                    scanner.skip()?;
                }
                _ => scanner.pass()?,
            }
        }
        let index = match index {
            Some(index) => index,
            None => {
                self.edits.insert(open.start + 1, Patch::Index(place));
                if !empty {
                    self.edits.insert(open.start + 1, Patch::Static(","));
                }
                place
            }
        };
        if !has_finish {
            self.edits.insert(scanner.at() - 1, Patch::Static(r#","finish_reason":null"#));
        }
        self.seen.add(index);
        if finished {
            self.finished.add(index);
            chunk.finish = true;
        }
        if let Some(delta) = delta {
            self.role(index, &delta, chunk);
        }
        Ok(())
    }

    /// Sends a choice's role exactly once.
    fn role(&mut self, index: u32, delta: &Delta, chunk: &mut Chunk) {
        let sent = self.roles.has(index);
        match &delta.role {
            Some(cut) if sent => self.edits.replace(cut.clone(), Patch::Cut),
            None if !sent && self.is_chat() => {
                self.edits.insert(delta.front, Patch::Static(r#""role":"assistant""#));
                if !delta.empty {
                    self.edits.insert(delta.front, Patch::Static(","));
                }
            }
            _ => {}
        }
        if !sent {
            self.roles.add(index);
            chunk.other = true;
            if let Some(null) = &delta.null_content {
                self.edits.replace(null.clone(), Patch::Static(r#""""#));
            }
        }
    }

    fn delta(&mut self, scanner: &mut Scanner<'_>, chunk: &mut Chunk) -> Result<Delta, JsonError> {
        let mut open = scanner.object()?;
        let mut delta = Delta { front: open.start + 1, empty: true, ..Delta::default() };
        // The role goes with the comma before it, or as the first member with the one after it.
        let mut role_is_first = false;
        while let Some(key) = scanner.member(&mut open)? {
            if let (true, Some(role)) = (role_is_first, &mut delta.role) {
                role.end = key.start;
                role_is_first = false;
            }
            let first = std::mem::replace(&mut delta.empty, false);
            match key.name.as_ref() {
                "role" => {
                    scanner.skip()?;
                    role_is_first = first;
                    delta.role = Some(if first { key.start } else { key.before }..scanner.at());
                }
                "content" => match scanner.kind()? {
                    Kind::Null => delta.null_content = Some(scanner.skip()?),
                    _ => chunk.content |= filled(scanner)?,
                },
                "reasoning_content" | "reasoning" | "refusal" | "function_call" => chunk.content |= filled(scanner)?,
                "tool_calls" if scanner.kind()? == Kind::Array => {
                    delta.tool_calls = self.tool_calls(scanner)?;
                    chunk.content |= delta.tool_calls;
                }
                _ => chunk.other |= filled(scanner)?,
            }
        }
        if delta.tool_calls {
            // A call's first chunk says `content: null` in the public API too.
            delta.null_content = None;
        }
        Ok(delta)
    }

    /// Whether there is any call.
    fn tool_calls(&mut self, scanner: &mut Scanner<'_>) -> Result<bool, JsonError> {
        let mut calls = scanner.array()?;
        let mut any = false;
        while scanner.element(&mut calls)? {
            any = true;
            if scanner.kind()? != Kind::Object {
                scanner.skip()?;
                continue;
            }
            let mut open = scanner.object()?;
            let (mut has_index, mut id, mut empty) = (false, None, true);
            while let Some(key) = scanner.member(&mut open)? {
                empty = false;
                match key.name.as_ref() {
                    "index" => {
                        has_index = scanner.kind()? == Kind::Number;
                        scanner.skip()?;
                    }
                    "id" if scanner.kind()? == Kind::Text => id = Some(scanner.text()?.raw),
                    _ => scanner.pass()?,
                }
            }
            if !has_index && !empty {
                self.edits.insert(open.start + 1, Patch::Index(self.calls.number(id)));
                self.edits.insert(open.start + 1, Patch::Static(","));
            }
        }
        Ok(any)
    }

    /// Whether there is a finish reason; an empty one is none.
    fn finish_reason(&mut self, scanner: &mut Scanner<'_>) -> Result<bool, JsonError> {
        let kind = scanner.kind()?;
        let range = scanner.skip()?;
        let empty = kind == Kind::Text && range.len() == 2;
        if empty {
            self.edits.replace(range, Patch::Static("null"));
        }
        Ok(kind == Kind::Text && !empty)
    }
}

/// What one delta was.
#[derive(Debug, Default)]
struct Delta {
    front: usize,
    empty: bool,
    /// What to cut if the role was sent before.
    role: Option<Range<usize>>,
    null_content: Option<Range<usize>>,
    tool_calls: bool,
}

/// Steps over a value; whether it holds anything: not null, not an empty string.
fn filled(scanner: &mut Scanner<'_>) -> Result<bool, JsonError> {
    Ok(match scanner.kind()? {
        Kind::Text => !scanner.text()?.is_empty(),
        kind => scanner.skip().map(|_| kind != Kind::Null)?,
    })
}

fn put(out: &mut BytesMut, patch: Patch, heads: &Heads) {
    match patch {
        Patch::Cut => {}
        Patch::Static(text) => out.put_slice(text.as_bytes()),
        Patch::Head(head) => out.put_slice(heads.get(head)),
        Patch::NewHead(head) => {
            put_head(out, head, heads);
            out.put_u8(b',');
        }
        Patch::Index(index) => {
            out.put_slice(br#""index":"#);
            out.put_slice(index.to_string().as_bytes());
        }
    }
}

fn put_head(out: &mut BytesMut, head: Head, heads: &Heads) {
    out.put_slice(match head {
        Head::Id => br#""id":"#.as_slice(),
        Head::Created => br#""created":"#,
        Head::Model => br#""model":"#,
        Head::Fingerprint => br#""system_fingerprint":"#,
    });
    out.put_slice(heads.get(head));
}
