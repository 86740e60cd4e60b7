//! What goes out to the client, and when.

use super::choices::Choices;
use super::chunk::Chunk;
use super::patch::put;
use super::{ChatStream, Read};
use crate::json::quoted;
use crate::route::Route;
use crate::stream::gate::Ends;
use crate::stream::ledger::Ledger;
use crate::stream::transcript::Part;
use crate::stream::{StreamError, write_edited};
use bytes::{BufMut, BytesMut};

impl ChatStream {
    /// Writes the chunk, if the client gets anything of it.
    pub(super) fn send(
        &mut self,
        text: &str,
        chunk: &Chunk,
        read: &Read,
        before: Choices,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) {
        let ended = self.choices.finished.without(before.finished);
        if self.gate.is_some() {
            ended.iter().for_each(|choice| self.send_rest(choice, out));
        }
        // A chunk of usage only is sent at the end, in our own words; progress and repeated roles are not for the client.
        let worth = read.shows || chunk.finish || (chunk.other && !chunk.progress);
        if chunk.choices == 0 || !worth {
            self.choices.roles = before.roles;
            return;
        }
        if !self.plain {
            self.complete_head(chunk);
            let (heads, passed) = (&self.heads, self.gate.as_ref().map_or("", |gate| gate.all()));
            write_edited(text, &mut self.edits, self.hold.sink(out), |out, patch| put(out, *patch, heads, passed));
            if chunk.has_timings {
                self.timings.clear();
            }
        }
        self.settle(read.shows || chunk.finish, ledger, out);
    }

    /// Sends what the gate still held of a choice that has ended.
    fn send_rest(&mut self, choice: u32, out: &mut BytesMut) {
        let Some(gate) = &mut self.gate else { return };
        for (part, member) in [(Part::Reasoning, r#""reasoning_content":""#), (Part::Content, r#""content":""#)] {
            let rest = gate.rest(choice, part);
            let rest = gate.text(rest);
            if rest.is_empty() {
                continue;
            }
            self.transcript.write(choice, part, rest);
            if !self.plain {
                let sink = self.hold.sink(out);
                let member = if self.heads.is_chat { member } else { r#""text":""# };
                self.heads.open(sink);
                self.heads.choice(choice, &[member, rest, "\""], None, sink);
                self.heads.close(self.include_usage, sink);
            }
        }
    }

    /// Ends a choice for an engine that did not.
    pub(super) fn end_choice(&mut self, choice: u32, reason: &str, ledger: &mut Ledger, out: &mut BytesMut) {
        self.choices.finished.add(choice);
        if self.plain {
            self.draft.finish(choice, reason);
        } else {
            let sink = self.hold.sink(out);
            self.heads.open(sink);
            self.heads.choice(choice, &[if self.heads.is_chat { "" } else { r#""text":"""# }], Some(reason), sink);
            self.heads.close(self.include_usage, sink);
        }
        self.settle(true, ledger, out);
    }

    /// Something was written, a part of the answer if it is `content`: to the client, or to where it is held.
    fn settle(&mut self, content: bool, ledger: &mut Ledger, out: &mut BytesMut) {
        let finished = self.attempt_is_finished();
        if finished {
            self.transcript.unmark();
            self.before_call = None;
        }
        if self.plain {
            return;
        }
        let held = self.hold.is_on();
        if held && !finished {
            if !self.hold.is_full() {
                return;
            }
            // It is too much: as if calls were not held at all.
            self.before_call = None;
            self.transcript.call_goes_out();
        }
        self.hold.release(out);
        self.shown = true;
        ledger.content_sent |= content || held;
    }

    /// Whether the running attempt has written all it was asked for.
    pub(super) fn attempt_is_finished(&self) -> bool {
        match self.target {
            Some(target) => self.choices.finished.has(target),
            None => self.choices.open(self.due).is_empty(),
        }
    }

    /// The upstream says that it is done, or has closed: the answer is whole if every choice has its finish reason, or all tokens
    /// that it may have. An engine that is done and has written fewer than were asked for does not know `n`: then these are all.
    pub fn finish(&mut self, says_done: bool, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        if let Some(choice) = self.target.filter(|_| self.full && !self.broken && !self.attempt_is_finished()) {
            self.end_choice(choice, Ends::Length.finish_reason(), ledger, out);
        }
        let seen = self.choices.seen;
        if says_done && self.target.is_none() && !seen.is_empty() && !self.attempt_is_finished() {
            self.due = seen;
            if self.attempt_is_finished() {
                self.settle(false, ledger, out);
            }
        }
        if self.broken || !self.attempt_is_finished() {
            return Err(StreamError::Cut);
        }
        ledger.leg_is_over = true;
        if !self.choices.open(self.due).is_empty() {
            return Ok(());
        }
        ledger.complete = true;
        if self.plain {
            return Ok(());
        }
        if self.include_usage || !self.timings.is_empty() {
            self.heads.open(out);
            if !self.include_usage {
                self.heads.choice(0, &[if self.heads.is_chat { "" } else { r#""text":"""# }], None, out);
            }
            out.put_u8(b']');
            if self.include_usage {
                let usage = ledger.usage().map(|(usage, _)| usage).unwrap_or_default();
                out.put_slice(b",\"usage\":");
                out.put_slice(&usage.to_json(Route::ChatCompletions));
            }
            if !self.timings.is_empty() {
                out.put_slice(b",\"timings\":");
                out.put_slice(self.timings.as_bytes());
            }
            out.put_slice(b"}\n\n");
        }
        out.put_slice(b"data: [DONE]\n\n");
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
        let delta = match (self.heads.is_chat, self.choices.roles.has(0)) {
            (true, true) => "",
            (true, false) => r#""role":"assistant","content":"""#,
            (false, _) => r#""text":"""#,
        };
        self.heads.open(out);
        self.heads.choice(0, &[delta], None, out);
        self.heads.close(self.include_usage, out);
        if self.heads.is_chat {
            self.choices.roles.add(0);
        }
        self.shown = true;
    }
}
