//! What all dialects keep account of: tokens over one or more attempts, and how far the answer has got.
//!
//! An attempt that carries on is given the text before it as a part of its prompt. So its prompt is larger than the client's
//! and its completion smaller: what was carried is moved from the one to the other.

use crate::carry::Engine;
use crate::usage::{EngineTimings, PromptProgress, Reported, Usage};

/// The account of one answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// What the running attempt's engine has stated.
    pub reported: Reported,
    pub timings: Option<EngineTimings>,
    pub progress: Option<PromptProgress>,
    /// Events with content of the whole answer, and of the running attempt.
    pub content_events: u64,
    attempt_events: u64,
    /// The running attempt writes several choices. llama-server states the tokens of one of them.
    pub several: bool,
    carried: Carried,
    engine: Engine,
    pub prompt_estimate: u64,
    /// The client has seen a part of the answer. Dialects say so when they let anything out; of a plain answer nothing goes
    /// out before its end.
    pub content_sent: bool,
    /// The running attempt has written all it was asked for: its further bytes mean nothing.
    pub leg_is_over: bool,
    /// And so the answer is whole.
    pub complete: bool,
    /// The running attempt's engine was not at its end.
    pub ended_here: bool,
}

/// What earlier attempts have written and the running one carries on.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    /// Tokens of all choices.
    tokens: u64,
    /// They are guessed from events.
    guessed: bool,
    /// Those of them that stand in the running attempt's prompt.
    in_prompt: u64,
    /// The client's prompt as an earlier attempt knew it: tokens, and those of them that were cached.
    prompt: Option<(u64, u64)>,
}

impl Ledger {
    /// An event had content.
    pub fn count(&mut self) {
        self.content_events += 1;
        self.attempt_events += 1;
    }

    /// The engine states counts, of one choice or of all. Where each choice has a prompt of its own, the first one's is told, as
    /// engines do it in a plain answer.
    pub fn report(&mut self, reported: Reported, choice: Option<u32>) {
        match choice {
            Some(1..) => self.reported.merge_other(reported),
            _ => self.reported.merge(reported),
        }
    }

    /// The answer begins anew: what was written so far counts as little as it is seen.
    pub fn begin_anew(&mut self, engine: Engine) {
        self.carried = Carried::default();
        self.content_events = 0;
        self.begin(engine);
    }

    /// An attempt begins that carries on. `tokens` were written of all choices, which is a guess unless `counted`;
    /// `in_prompt` of them are of the choice that is carried on.
    pub fn begin_carry_on(&mut self, tokens: u64, counted: bool, in_prompt: u64, engine: Engine) {
        let prompt = self.carried.prompt.or_else(|| self.prompt());
        self.carried = Carried { tokens, guessed: !counted, in_prompt, prompt };
        self.begin(engine);
    }

    /// The caller knows better how much is carried on.
    pub fn correct_carried(&mut self, tokens: u64, counted: bool, in_prompt: u64) {
        self.carried = Carried { tokens, guessed: !counted, in_prompt, ..self.carried };
    }

    fn begin(&mut self, engine: Engine) {
        self.engine = engine;
        self.leg_is_over = false;
        self.reported = Reported::default();
        self.timings = None;
        self.progress = None;
        self.attempt_events = 0;
        self.ended_here = false;
        self.several = false;
    }

    /// What the running attempt's engine says it has read and written, if that can be believed.
    fn counted(&self) -> Option<Usage> {
        if !self.engine.counts {
            return None;
        }
        self.reported.usage().or_else(|| self.timings.map(|timings| timings.usage()))
    }

    /// Tokens of the choice that the running attempt writes, what it was given of it included, by its engine's count.
    pub fn written(&self) -> Option<u64> {
        let written = self.counted().map(|usage| usage.completion_tokens).filter(|tokens| *tokens > 0);
        written.map(|tokens| self.carried.in_prompt + tokens)
    }

    /// The client's prompt by the running attempt's engine: tokens, and those of them that were cached.
    fn prompt(&self) -> Option<(u64, u64)> {
        let counted = self.counted().map(|usage| (usage.prompt_tokens, usage.cached_tokens));
        let told = || self.progress.map(|progress| (u64::from(progress.total), u64::from(progress.cached)));
        let (prompt, cached) = counted.filter(|(prompt, _)| *prompt > 0).or_else(told)?;
        let prompt = prompt.saturating_sub(self.carried.in_prompt);
        Some((prompt, cached.min(prompt)))
    }

    /// The usage and whether it is an estimate.
    pub fn usage(&self) -> Option<(Usage, bool)> {
        let counted = self.counted();
        if counted.is_none() && self.content_events == 0 && self.carried.tokens == 0 && !self.content_sent {
            return None;
        }
        // An event is a token or more: a count below that is of one choice only, or of a message that has just begun.
        let least = if self.several { self.attempt_events } else { self.attempt_events.min(1) };
        let written = counted.map(|usage| usage.completion_tokens).filter(|tokens| *tokens >= least);
        let (prompt_tokens, cached_tokens) =
            self.carried.prompt.or_else(|| self.prompt()).unwrap_or((self.prompt_estimate, 0));
        let completion_tokens = self.carried.tokens + written.unwrap_or(self.attempt_events);
        let usage = Usage { prompt_tokens, completion_tokens, cached_tokens };
        Some((usage, written.is_none() || self.carried.guessed))
    }
}
