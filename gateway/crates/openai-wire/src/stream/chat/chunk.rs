//! What one chunk says, and how it has to change before the client gets it.
//!
//! The scan changes nothing but the edits and the spans: where the texts stand and whose they are. They are taken in only once
//! the whole event was found sound, and an index may stand behind the text it belongs to.

use super::ChatStream;
use super::heads::Head;
use super::patch::Patch;
use crate::edits::MemberCuts;
use crate::json::{JsonError, Key, Kind, Scanner};
use crate::stream::ledger::Ledger;
use crate::stream::transcript::Part;
use crate::usage::{EngineTimings, PromptProgress, Reported};
use std::ops::Range;

/// Longest `timings` kept for the client, in bytes; llama-server's have 300.
const MAX_TIMINGS: usize = 4096;

/// What one chunk was.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// How many choices it speaks of.
    pub choices: u32,
    pub error: bool,
    /// It has text, a call or a refusal.
    pub content: bool,
    /// It has a piece of a call.
    pub call: bool,
    pub refusal: bool,
    pub finish: bool,
    /// Something else that is worth sending (a role, a log probability, an unknown field).
    pub other: bool,
    /// It reports how far the prompt has been read.
    pub progress: bool,
    /// The usage in it, of the lowest choice that it speaks of, or of all.
    pub usage: Option<Reported>,
    pub first_choice: Option<u32>,
    pub has_timings: bool,
    heads: [bool; 3],
    object: bool,
    /// Just after the opening brace, and the closing one.
    front: usize,
    end: usize,
}

/// Something that is kept of a chunk.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub choice: u32,
    pub what: What,
    /// Of a text: between its quotes. Of any other value: all of it.
    pub value: Range<usize>,
}

/// What a span holds. All but the texts are for plain answers only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Text(Part),
    Refusal,
    Finish,
    Logprobs,
    /// A piece of the call of that number.
    Call(u32, CallPart),
    /// A piece of a call in the older shape, which has neither number nor id.
    Function(CallPart),
    /// A member without a name here, with where its key stands: of the chunk, of a choice, of a delta.
    OfChunk(Range<usize>),
    OfChoice(Range<usize>),
    OfDelta(Range<usize>),
}

/// A part of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallPart {
    Id,
    Kind,
    Name,
    Arguments,
}

impl ChatStream {
    pub(super) fn scan(&mut self, text: &str, ledger: &mut Ledger) -> Result<Chunk, JsonError> {
        let mut chunk = Chunk::default();
        let mut scanner = Scanner::new(text);
        let mut open = scanner.object()?;
        let mut cuts = MemberCuts::default();
        chunk.front = open.start + 1;
        while let Some(key) = scanner.member(&mut open)? {
            let goes = match key.name.as_ref() {
                "usage" => !self.include_usage,
                "timings" => !self.wants_timings,
                "prompt_progress" | "__verbose" => true,
                _ => false,
            };
            if !goes {
                cuts.keep(key.start, &mut self.edits, Patch::Cut);
            }
            self.member(&key, goes, &mut scanner, &mut chunk, ledger)?;
            if goes {
                cuts.drop(key.before, key.start, scanner.at(), &mut self.edits, Patch::Cut);
            }
        }
        cuts.finish(&mut self.edits, Patch::Cut);
        chunk.end = scanner.at() - 1;
        scanner.finish()?;
        Ok(chunk)
    }

    fn member(
        &mut self,
        key: &Key<'_>,
        goes: bool,
        scanner: &mut Scanner<'_>,
        chunk: &mut Chunk,
        ledger: &mut Ledger,
    ) -> Result<(), JsonError> {
        match key.name.as_ref() {
            "choices" => return self.choices(scanner, chunk),
            "id" => return self.head(Head::Id, scanner, chunk),
            "created" => return self.head(Head::Created, scanner, chunk),
            "model" => return self.head(Head::Model, scanner, chunk),
            "system_fingerprint" => return self.head(Head::Fingerprint, scanner, chunk),
            "usage" => {
                scanner.kind()?;
                let start = scanner.at();
                chunk.usage = Some(Reported::read(scanner)?);
                if !goes {
                    self.edits.replace(start..scanner.at(), Patch::Static("null"));
                }
            }
            "timings" => {
                scanner.kind()?;
                let start = scanner.at();
                if let Some(timings) = EngineTimings::read(scanner)? {
                    ledger.timings = Some(timings);
                    chunk.has_timings = self.keep_timings(scanner.slice(start..scanner.at()));
                }
            }
            "prompt_progress" => {
                chunk.progress = true;
                ledger.progress = PromptProgress::parse(scanner)?.or(ledger.progress);
            }
            "object" => {
                chunk.object = true;
                let range = scanner.skip()?;
                chunk.error |= scanner.slice(range) == r#""error""#;
            }
            "error" | "detail" => {
                chunk.error |= scanner.kind()? != Kind::Null;
                scanner.skip()?;
            }
            _ => {
                let key = key.start..scanner.at();
                let value = scanner.skip()?;
                if self.plain && !goes {
                    self.spans.push(Span { choice: 0, what: What::OfChunk(key), value });
                }
            }
        }
        Ok(())
    }

    /// Keeps an engine's measurements for the client, if it wants them. Whether they are in the chunk it gets.
    fn keep_timings(&mut self, raw: &str) -> bool {
        self.timings.clear();
        if self.wants_timings && raw.len() <= MAX_TIMINGS {
            self.timings.push_str(raw);
        }
        self.wants_timings
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

    /// Adds what the dialect leaves out.
    pub(super) fn complete_head(&mut self, chunk: &Chunk) {
        for (head, there) in [Head::Id, Head::Created, Head::Model].into_iter().zip(chunk.heads) {
            if !there && !self.heads.get(head).is_empty() {
                self.edits.insert(chunk.front, Patch::NewHead(head));
            }
        }
        if !chunk.object {
            self.edits.insert(chunk.front, Patch::Static(self.heads.object()));
            self.edits.insert(chunk.front, Patch::Static(","));
        }
        if self.include_usage && chunk.usage.is_none() {
            self.edits.insert(chunk.end, Patch::Static(r#","usage":null"#));
        }
    }
}
