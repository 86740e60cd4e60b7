//! Chunks of chat and text completions.
//!
//! Every chunk is one object with `choices`. Head fields are made to agree with the first chunk, roles are sent once per
//! choice, usage and timings are taken out wherever they stand and usage is sent once, at the end, if the client asked.
//!
//! An attempt that carries on writes one choice only, as its choice 0: the index is changed to the client's, and other
//! choices that are still unfinished wait for attempts of their own.
//!
//! | question | file |
//! |---|---|
//! | what does a chunk say, what must be changed | `chunk`, `choice`, `call` |
//! | how is that written | `patch`, `heads` |
//! | may the client see this text | `stream::gate` |
//! | what goes out, and when | `send` |
//! | what is left to another attempt | `attempts` |
//! | what is the plain answer | `draft` |

mod attempts;
mod call;
mod choice;
mod choices;
mod chunk;
mod draft;
mod gathered;
mod heads;
mod patch;
mod send;

use super::gate::{Gate, Passed};
use super::hold::Hold;
use super::limits::Wanted;
use super::transcript::Transcript;
use super::{Ledger, StreamError, StreamOptions, in_band};
use crate::edits::Edits;
use crate::route::Route;
use bytes::BytesMut;
use call::Calls;
use choices::{ChoiceSet, Choices};
use chunk::{Chunk, Span, What};
use draft::Draft;
use heads::Heads;
use patch::Patch;

/// The stream of one client on these routes.
#[derive(Clone, Debug)]
pub(super) struct ChatStream {
    route: Route,
    plain: bool,
    include_usage: bool,
    wants_timings: bool,
    holds_calls: bool,
    wanted: Wanted,
    heads: Heads,
    choices: Choices,
    /// Choices that the client asked for, and those that the running attempt's engine is to write.
    wished: ChoiceSet,
    due: ChoiceSet,
    /// How things stood when a call began that is held back.
    before_call: Option<Box<(Choices, Draft)>>,
    /// The one choice that the running attempt writes; without one it writes them all.
    target: Option<u32>,
    /// All tokens that this choice may have were written before.
    full: bool,
    /// The attempt has no sound meaning: the client has seen what it does not continue.
    broken: bool,
    /// The client has seen something, if only a role.
    shown: bool,
    calls: Calls,
    transcript: Transcript,
    /// For plain answers.
    draft: Draft,
    hold: Hold,
    gate: Option<Box<Gate>>,
    /// Measurements that have not been sent.
    timings: String,
    spans: Vec<Span>,
    edits: Edits<Patch>,
}

impl ChatStream {
    pub fn new(route: Route, options: &StreamOptions) -> Self {
        Self {
            route,
            plain: options.plain,
            include_usage: options.include_usage,
            wants_timings: options.timings,
            holds_calls: options.hold_tool_calls && !options.plain,
            wanted: Wanted::new(options),
            heads: Heads::new(route, &options.model),
            choices: Choices::default(),
            wished: ChoiceSet::up_to(options.choices.max(1)),
            due: ChoiceSet::up_to(options.choices.max(1)),
            before_call: None,
            target: None,
            full: false,
            broken: false,
            shown: false,
            calls: Calls::default(),
            transcript: Transcript::new(options),
            draft: Draft::default(),
            hold: Hold::default(),
            gate: None,
            timings: String::new(),
            spans: Vec::new(),
            edits: Edits::default(),
        }
    }

    /// Reads one event; says whether it had content.
    pub fn event(&mut self, text: &str, ledger: &mut Ledger, out: &mut BytesMut) -> Result<bool, StreamError> {
        if self.broken {
            return Err(StreamError::Cut);
        }
        let says_done = text.trim_ascii() == "[DONE]";
        if self.full || says_done {
            ledger.ended_here = self.full;
            return self.finish(says_done, ledger, out).map(|()| false);
        }
        if text.trim_ascii() == "null" {
            // llama-server opens the stream of several prompts with it.
            return Ok(false);
        }
        self.edits.clear();
        self.spans.clear();
        let before = self.choices;
        let chunk = match self.scan(text, ledger) {
            Ok(chunk) => chunk,
            Err(error) => {
                // A finish reason in half an event is none.
                self.choices = before;
                return Err(error.into());
            }
        };
        if chunk.error {
            self.choices = before;
            return Err(in_band(self.route, text));
        }
        if let Some(reported) = chunk.usage {
            ledger.report(reported, chunk.first_choice);
        }
        if chunk.call {
            self.call_begins(before);
        }
        ledger.several |= self.target.is_none() && chunk.content && self.choices.seen.only().is_none();
        let read = self.read(text, &chunk, before);
        if read.content {
            ledger.count();
        }
        self.send(text, &chunk, &read, before, ledger, out);
        if let Some((choice, reason)) = read.ends {
            ledger.ended_here = true;
            self.end_choice(choice, reason, ledger, out);
            if self.attempt_is_finished() {
                self.finish(false, ledger, out)?;
            }
        }
        if self.gate.as_ref().is_some_and(|gate| gate.is_open()) {
            self.gate = None;
        }
        Ok(read.content)
    }

    /// The first piece of a call: it is held back from here, or it can't be taken back.
    fn call_begins(&mut self, before: Choices) {
        if self.before_call.is_some() {
            return;
        }
        let holds = self.plain || (self.holds_calls && !self.hold.is_full());
        if !holds {
            return self.transcript.call_goes_out();
        }
        self.transcript.mark();
        self.before_call = Some(Box::new((before, self.draft.clone())));
        if !self.plain {
            self.hold.begin();
        }
    }

    /// Takes the texts in, as far as they may be seen, and what else a plain answer keeps.
    fn read(&mut self, text: &str, chunk: &Chunk, before: Choices) -> Read {
        let ended = self.choices.finished.without(before.finished);
        let mut read = Read::default();
        let (mut texts, mut last) = (0, None);
        if let Some(gate) = &mut self.gate {
            gate.clear();
        }
        for n in 0..self.spans.len() {
            let Span { choice, what: What::Text(part), value } = &self.spans[n] else { continue };
            let (choice, part, value) = (*choice, *part, value.clone());
            texts += 1;
            let raw = &text[value.clone()];
            let Passed { text: passed, new, ends } = match &mut self.gate {
                Some(gate) => gate.pass(choice, part, raw, ended.has(choice)),
                None => Passed { text: 0..raw.len(), new: true, ends: None },
            };
            read.content |= new;
            read.shows |= !passed.is_empty();
            match &self.gate {
                Some(gate) => {
                    self.transcript.write(choice, part, gate.text(passed.clone()));
                    self.edits.replace(value, Patch::Passed(passed.start, passed.end));
                    read.ends =
                        ends.filter(|_| !ended.has(choice)).map(|why| (choice, why.finish_reason())).or(read.ends);
                }
                None => self.transcript.write(choice, part, raw),
            }
            if new && last.replace(choice) != Some(choice) {
                self.transcript.count(choice);
            }
        }
        let solid = chunk.call || chunk.refusal || (chunk.content && texts == 0);
        read.content |= solid;
        read.shows |= solid;
        if self.plain {
            self.spans.iter().for_each(|span| self.draft.take(span, text));
        } else if chunk.refusal {
            self.transcript.call_goes_out();
        }
        read
    }
}

/// What the texts of one event came to.
#[derive(Debug, Default)]
struct Read {
    /// The engine has written something.
    content: bool,
    /// The client may see something of it.
    shows: bool,
    /// A choice ends with this event, for this reason, though the engine does not say so.
    ends: Option<(u32, &'static str)>,
}
