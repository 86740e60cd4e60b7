//! What stands between an engine's text and the answer, where not all of it is to be seen.
//!
//! There are two reasons: the beginning of a continuation may be an echo of the text before it, and some engines write on
//! where they should have ended. Most attempts have no gate at all, and one that has only an echo to look for is rid of it
//! with the first event.

use crate::carry::CarryOn;
use crate::stream::echo::{Echo, Heard};
use crate::stream::limits::{Limits, Wanted};
use crate::stream::transcript::Part;
use std::ops::Range;

/// From this length on, in bytes, a text is more than a token.
const LONGER_THAN_A_TOKEN: usize = 32;

/// Why an answer is ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// It has come to a stop string: this one of those asked for.
    Stop(usize),
    /// It has all tokens that it may have.
    Length,
}

impl Ends {
    /// As the finish reason of a chat.
    pub fn finish_reason(self) -> &'static str {
        match self {
            Self::Stop(_) => "stop",
            Self::Length => "length",
        }
    }
}

/// The gate of one attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    content: Echo,
    reasoning: Echo,
    /// The text that may be repeated.
    known: CarryOn,
    /// What the engine is not trusted to look after itself.
    wanted: Wanted,
    /// By choice, as they come.
    limits: Vec<(u32, Limits)>,
    /// What has passed of the event's texts.
    passed: String,
    /// Scratch: what is new of one text.
    fresh: String,
}

/// What became of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// What may be seen now: see [`Gate::text`].
    pub text: Range<usize>,
    /// The engine has written something new, seen or not.
    pub new: bool,
    /// The answer ends with this text, for this reason.
    pub ends: Option<Ends>,
}

impl Gate {
    /// For an answer from its beginning. `None` if the engine needs no looking after.
    pub fn anew(wanted: &Wanted) -> Option<Box<Self>> {
        (!wanted.is_nothing()).then(|| Box::new(Self { wanted: wanted.clone(), ..Self::default() }))
    }

    /// For a continuation of that part.
    pub fn carry_on(part: CarryOn, wanted: Wanted) -> Box<Self> {
        let echo = |known: &str| if known.is_empty() { Echo::default() } else { Echo::expect() };
        let (content, reasoning) = (echo(&part.content), echo(&part.reasoning));
        Box::new(Self { content, reasoning, known: part, wanted, ..Self::default() })
    }

    /// The part that is carried on has so many tokens, by a better count.
    pub fn correct_carried(&mut self, tokens: u32) {
        self.known.tokens = tokens;
    }

    /// Whether there is nothing more to look for.
    pub fn is_open(&self) -> bool {
        self.wanted.is_nothing() && self.content == Echo::Over && self.reasoning == Echo::Over
    }

    /// An event begins.
    pub fn clear(&mut self) {
        self.passed.clear();
    }

    /// What of the event has passed.
    pub fn text(&self, range: Range<usize>) -> &str {
        &self.passed[range]
    }

    /// Takes a text of a choice, as JSON text. If it `is_last`, nothing of it waits.
    pub fn pass(&mut self, choice: u32, part: Part, text: &str, is_last: bool) -> Passed {
        self.fresh.clear();
        let (echo, known) = match part {
            Part::Content => (&mut self.content, self.known.content.as_str()),
            Part::Reasoning => (&mut self.reasoning, self.known.reasoning.as_str()),
        };
        // How many events the answer came in after its thoughts is not known.
        let both = !self.known.content.is_empty() && !self.known.reasoning.is_empty();
        let events = if both { known.len().div_ceil(LONGER_THAN_A_TOKEN) as u32 } else { self.known.tokens };
        match echo.hear(known, events, text) {
            Heard::New(again, text) => {
                self.fresh.push_str(&known[..again]);
                self.fresh.push_str(text);
            }
            Heard::Wait if is_last => self.fresh.push_str(&known[..echo.end()]),
            Heard::Wait => {}
        }
        if part == Part::Content && self.content == Echo::Over {
            // Where the answer has gone on, no thought comes again.
            self.reasoning = Echo::Over;
            self.known = CarryOn { tokens: self.known.tokens, ..CarryOn::default() };
        }
        let start = self.passed.len();
        let new = !self.fresh.is_empty();
        let ends = if new { self.limit(choice, part, is_last) } else { None };
        Passed { text: start..self.passed.len(), new, ends }
    }

    /// All that has passed of the event.
    pub fn all(&self) -> &str {
        &self.passed
    }

    /// A choice has ended: what of its text still waits is to be seen.
    pub fn rest(&mut self, choice: u32, part: Part) -> Range<usize> {
        let start = self.passed.len();
        let (echo, known) = match part {
            Part::Content => (&mut self.content, self.known.content.as_str()),
            Part::Reasoning => (&mut self.reasoning, self.known.reasoning.as_str()),
        };
        self.passed.push_str(&known[..echo.end()]);
        let limits = self.limits.iter_mut().find(|(index, _)| *index == choice && part == Part::Content);
        if let Some((_, limits)) = limits {
            limits.rest(&mut self.passed);
        }
        start..self.passed.len()
    }

    /// Lets through of the new text what the client asked for.
    fn limit(&mut self, choice: u32, part: Part, is_last: bool) -> Option<Ends> {
        if self.wanted.is_nothing() {
            self.passed.push_str(&self.fresh);
            return None;
        }
        let at = match self.limits.iter().position(|(index, _)| *index == choice) {
            Some(at) => at,
            None => {
                self.limits.push((choice, Limits::new(&self.wanted, self.known.tokens)));
                self.limits.len() - 1
            }
        };
        let limits = &mut self.limits[at].1;
        let full = limits.count();
        // Stop strings are looked for in what the client takes for the answer.
        let stopped = match part {
            Part::Content => limits.pass(&self.fresh, &mut self.passed),
            Part::Reasoning => {
                self.passed.push_str(&self.fresh);
                None
            }
        };
        if let Some(stop) = stopped {
            return Some(Ends::Stop(stop));
        }
        if full || is_last {
            limits.rest(&mut self.passed);
        }
        full.then_some(Ends::Length)
    }
}
