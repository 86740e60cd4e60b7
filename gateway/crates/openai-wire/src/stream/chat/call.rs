//! What a chunk says of tool calls.

use super::ChatStream;
use super::chunk::{CallPart, What};
use super::heads::MAX_KEPT;
use super::patch::Patch;
use crate::json::{JsonError, Kind, Scanner};

/// The tool calls of a dialect that does not number them: how many have begun, and the last one's id.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    started: u32,
    id: Vec<u8>,
}

impl Calls {
    /// The number of the call that a piece with this id (if it has one) belongs to.
    pub fn number(&mut self, id: Option<&str>) -> u32 {
        let id = id.unwrap_or_default().as_bytes();
        let id = &id[..id.len().min(MAX_KEPT)];
        if self.started == 0 || (!id.is_empty() && id != self.id) {
            self.started = self.started.saturating_add(1);
            self.id.clear();
            self.id.extend_from_slice(id);
        }
        self.started - 1
    }
}

impl ChatStream {
    /// Whether there is any call.
    pub(super) fn tool_calls(&mut self, scanner: &mut Scanner<'_>) -> Result<bool, JsonError> {
        let mut calls = scanner.array()?;
        let mut any = false;
        while scanner.element(&mut calls)? {
            any = true;
            if scanner.kind()? == Kind::Object {
                self.tool_call(scanner)?;
            } else {
                scanner.skip()?;
            }
        }
        Ok(any)
    }

    fn tool_call(&mut self, scanner: &mut Scanner<'_>) -> Result<(), JsonError> {
        let first_span = self.spans.len();
        let mut open = scanner.object()?;
        let (mut index, mut id, mut empty) = (None, None, true);
        while let Some(key) = scanner.member(&mut open)? {
            empty = false;
            match key.name.as_ref() {
                "index" if scanner.kind()? == Kind::Number => index = Some(scanner.number()?),
                "id" if scanner.kind()? == Kind::Text => {
                    id = Some(scanner.text()?.raw);
                    let end = scanner.at() - 1;
                    self.note(What::Call(0, CallPart::Id), end - id.map_or(0, str::len)..end);
                }
                "type" => drop(self.text(What::Call(0, CallPart::Kind), scanner)?),
                "function" if scanner.kind()? == Kind::Object => {
                    self.function(scanner, |part| What::Call(0, part))?;
                }
                _ => scanner.pass()?,
            }
        }
        let number = match index {
            Some(index) => index.parse().unwrap_or(0),
            None if empty => return Ok(()),
            None => {
                let number = self.calls.number(id);
                self.edits.insert(open.start + 1, Patch::Index(number));
                self.edits.insert(open.start + 1, Patch::Static(","));
                number
            }
        };
        for span in &mut self.spans[first_span..] {
            if let What::Call(call, _) = &mut span.what {
                *call = number;
            }
        }
        Ok(())
    }

    /// The name and the arguments of a call.
    pub(super) fn function(
        &mut self,
        scanner: &mut Scanner<'_>,
        what: impl Fn(CallPart) -> What,
    ) -> Result<(), JsonError> {
        let mut open = scanner.object()?;
        while let Some(key) = scanner.member(&mut open)? {
            match key.name.as_ref() {
                "name" => drop(self.text(what(CallPart::Name), scanner)?),
                "arguments" => drop(self.text(what(CallPart::Arguments), scanner)?),
                _ => scanner.pass()?,
            }
        }
        Ok(())
    }
}
