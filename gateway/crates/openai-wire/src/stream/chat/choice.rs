//! What one choice of a chunk says.

use super::ChatStream;
use super::chunk::{Chunk, Span, What};
use super::patch::Patch;
use crate::json::{Flaw, JsonError, Kind, Scanner};
use crate::stream::transcript::{MAX_CHOICES, Part};
use std::ops::Range;

/// What one delta was.
#[derive(Debug, Default)]
struct Delta {
    front: usize,
    empty: bool,
    /// What to cut if the role was sent before.
    role: Option<Range<usize>>,
    null_content: Option<Range<usize>>,
    reasoning: bool,
    tool_calls: bool,
}

impl ChatStream {
    pub(super) fn choices(&mut self, scanner: &mut Scanner<'_>, chunk: &mut Chunk) -> Result<(), JsonError> {
        if scanner.kind()? != Kind::Array {
            return scanner.skip().map(drop);
        }
        let mut open = scanner.array()?;
        while scanner.element(&mut open)? {
            self.choice(chunk.choices, scanner, chunk)?;
            chunk.choices += 1;
        }
        Ok(())
    }

    /// One choice; `place` is where it stands, which is its index if it has none.
    fn choice(&mut self, place: u32, scanner: &mut Scanner<'_>, chunk: &mut Chunk) -> Result<(), JsonError> {
        let first_span = self.spans.len();
        let mut open = scanner.object()?;
        let (mut given, mut finished, mut has_finish) = (None, false, false);
        let (mut delta, mut empty) = (None, true);
        while let Some(key) = scanner.member(&mut open)? {
            empty = false;
            match key.name.as_ref() {
                "index" => given = Some(scanner.skip()?),
                "delta" if scanner.kind()? == Kind::Object => delta = Some(self.delta(scanner, chunk)?),
                "delta" | "message" => scanner.pass()?,
                "text" => chunk.content |= self.text(What::Text(Part::Content), scanner)?,
                "finish_reason" => {
                    has_finish = true;
                    finished = self.finish_reason(scanner)?;
                }
                "logprobs" => {
                    chunk.other |= scanner.kind()? != Kind::Null;
                    self.keep(What::Logprobs, scanner)?;
                }
                _ => {
                    let key = key.start..scanner.at();
                    self.keep(What::OfChoice(key), scanner)?;
                }
            }
        }
        let index = self.index(place, given, open.start + 1, empty, scanner)?;
        for span in &mut self.spans[first_span..] {
            span.choice = index;
        }
        if !has_finish {
            self.edits.insert(scanner.at() - 1, Patch::Static(r#","finish_reason":null"#));
        }
        self.choices.seen.add(index);
        chunk.first_choice = Some(chunk.first_choice.map_or(index, |first| first.min(index)));
        if finished {
            self.choices.finished.add(index);
            chunk.finish = true;
        }
        if let Some(delta) = delta {
            self.role(index, &delta, chunk);
        }
        Ok(())
    }

    /// The index that a choice has for the client.
    fn index(
        &mut self,
        place: u32,
        given: Option<Range<usize>>,
        front: usize,
        empty: bool,
        scanner: &Scanner<'_>,
    ) -> Result<u32, JsonError> {
        let upstream = given.clone().map_or(place, |range| scanner.slice(range).parse().unwrap_or(place));
        let index = match self.target {
            Some(target) if upstream == 0 => target,
            None if upstream < MAX_CHOICES => upstream,
            _ => return Err(JsonError { at: front, flaw: Flaw::Expected("the index of a choice that was asked for") }),
        };
        match given {
            Some(range) if index != upstream => self.edits.replace(range, Patch::Number(index)),
            Some(_) => {}
            None => {
                self.edits.insert(front, Patch::Index(index));
                if !empty {
                    self.edits.insert(front, Patch::Static(","));
                }
            }
        }
        Ok(index)
    }

    /// Sends a choice's role exactly once.
    fn role(&mut self, index: u32, delta: &Delta, chunk: &mut Chunk) {
        let sent = self.choices.roles.has(index);
        match &delta.role {
            Some(cut) if sent => self.edits.replace(cut.clone(), Patch::Cut),
            None if !sent && self.heads.is_chat => {
                self.edits.insert(delta.front, Patch::Static(r#""role":"assistant""#));
                if !delta.empty {
                    self.edits.insert(delta.front, Patch::Static(","));
                }
            }
            _ => {}
        }
        if !sent {
            self.choices.roles.add(index);
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
                    _ => chunk.content |= self.text(What::Text(Part::Content), scanner)?,
                },
                // Some engines say it under both names.
                "reasoning_content" | "reasoning" if delta.reasoning => scanner.pass()?,
                "reasoning_content" | "reasoning" => {
                    delta.reasoning = self.text(What::Text(Part::Reasoning), scanner)?;
                    chunk.content |= delta.reasoning;
                }
                "refusal" => {
                    chunk.refusal = self.text(What::Refusal, scanner)?;
                    chunk.content |= chunk.refusal;
                }
                "function_call" if scanner.kind()? == Kind::Object => {
                    self.function(scanner, What::Function)?;
                    (chunk.content, chunk.call) = (true, true);
                }
                "tool_calls" if scanner.kind()? == Kind::Array => {
                    delta.tool_calls = self.tool_calls(scanner)?;
                    chunk.content |= delta.tool_calls;
                    chunk.call |= delta.tool_calls;
                }
                "function_call" | "tool_calls" => {
                    chunk.other |= scanner.kind()? != Kind::Null;
                    scanner.skip()?;
                }
                _ => {
                    let key = key.start..scanner.at();
                    chunk.other |= self.keep(What::OfDelta(key), scanner)?;
                }
            }
        }
        if delta.tool_calls {
            // A call's first chunk says `content: null` in the public API too.
            delta.null_content = None;
        }
        Ok(delta)
    }

    /// Whether there is a finish reason; an empty one is none.
    fn finish_reason(&mut self, scanner: &mut Scanner<'_>) -> Result<bool, JsonError> {
        let kind = scanner.kind()?;
        let range = scanner.skip()?;
        if kind != Kind::Text {
            return Ok(false);
        }
        if range.len() == 2 {
            self.edits.replace(range, Patch::Static("null"));
            return Ok(false);
        }
        self.note(What::Finish, range);
        Ok(true)
    }

    /// Steps over a value and notes the text in it. Whether it holds anything: not null, not an empty string.
    pub(super) fn text(&mut self, what: What, scanner: &mut Scanner<'_>) -> Result<bool, JsonError> {
        if scanner.kind()? != Kind::Text {
            let kind = scanner.kind()?;
            return scanner.skip().map(|_| kind != Kind::Null);
        }
        let length = scanner.text()?.raw.len();
        let end = scanner.at() - 1;
        if length > 0 {
            self.note(what, end - length..end);
        }
        Ok(length > 0)
    }

    /// Steps over a value and notes all of it. Whether it holds anything.
    fn keep(&mut self, what: What, scanner: &mut Scanner<'_>) -> Result<bool, JsonError> {
        let kind = scanner.kind()?;
        let value = scanner.skip()?;
        let filled = kind != Kind::Null && !(kind == Kind::Text && value.len() == 2);
        self.note(what, value);
        Ok(filled)
    }

    pub(super) fn note(&mut self, what: What, value: Range<usize>) {
        if self.plain || matches!(what, What::Text(_)) {
            self.spans.push(Span { choice: 0, what, value });
        }
    }
}
