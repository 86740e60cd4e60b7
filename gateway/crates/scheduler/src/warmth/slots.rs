//! What the slots of one replica probably hold, by the rules of llama-server.
//!
//! A prompt goes to the idle slot that shares the longest beginning with it, if that is more than a tenth of the prompt;
//! else to one that was never used; else to the one that was used least recently. The slot keeps what it holds as far as
//! the prompt agrees with it; the rest is read, and the answer kept behind it.
//!
//! The engine does not say which slot it took, only how much it found (`cache_n`). That corrects two beliefs: how much
//! of what should be cached really is, on this replica (some engines and settings cache less, or nothing); and what the
//! other slots hold, when a phone turns out to have restarted unseen.

#[cfg(debug_assertions)]
use std::collections::BTreeSet;

use super::{
    holders::Mark,
    prompt::{Prompt, TemplateKey},
    slot::Slot,
};
use crate::{id::AttemptId, time::Timestamp};

/// llama-server's `--slot-prompt-similarity`: sharing less does not bind a prompt to a slot.
const SIMILAR: f64 = 0.1;
/// A belief in less than this part of a prompt teaches nothing: what unrelated prompts happen to share is of that size.
const TELLING: f64 = 0.2;
/// What one observation counts in the yield.
const YIELD_SHARE: f64 = 0.3;
/// A replica of at least this yield that finds less than [`NOTHING`] of what it should has lost everything.
const TRUSTED: f64 = 0.5;
const NOTHING: f64 = 0.1;

/// What a prompt would find, and drive out, in the slot that the engine would take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Held {
    /// The template that it begins with.
    pub(crate) template: Option<TemplateKey>,
    /// Tokens of that template; what lies beyond belongs to one prompt, or conversation, only.
    pub(crate) template_tokens: f64,
    /// Tokens held in all.
    pub(crate) tokens: f64,
    /// Seconds since it was last used.
    pub(crate) age: f64,
    /// The replica keeps the template anyway: another slot holds it, or the new prompt begins with it too.
    pub(crate) duplicated: bool,
    /// The new prompt goes on from all that is held: nothing is lost.
    pub(crate) same_conversation: bool,
}

/// All slots of a replica. Lengths are in tokens of the model.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    /// As many as the replica has; more while more runs there.
    slots: Vec<Slot>,
    size: usize,
    yield_: f64,
}

impl Slots {
    pub(crate) fn new(slots: u16) -> Self {
        let size = usize::from(slots);
        Self { slots: vec![Slot::default(); size], size, yield_: 1.0 }
    }

    /// The replica has another number of slots now. What runs stays, then what was used last.
    pub(crate) fn resize(&mut self, slots: u16) {
        self.size = usize::from(slots);
        self.slots.resize_with(self.slots.len().max(self.size), Slot::default);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.slots.len() > self.size {
            let Some(oldest) = self.oldest() else { return };
            self.slots.remove(oldest);
        }
    }

    /// The replica restarted: nothing is cached. What runs keeps its slot.
    pub(crate) fn forget(&mut self) {
        self.slots.iter_mut().for_each(Slot::clear);
    }

    /// Tokens of the prompt that would be found in the cache if it began now, in the slot that the engine would take.
    pub(crate) fn best_idle(&self, prompt: &Prompt) -> f64 {
        self.choice(prompt).map_or(0.0, |(_, matching)| matching * self.yield_)
    }

    /// Tokens of the prompt that would be found, in the best slot, once all that runs there is done.
    pub(crate) fn later(&self, prompt: &Prompt) -> f64 {
        self.slots.iter().map(|slot| slot.matching(prompt)).fold(0.0, f64::max) * self.yield_
    }

    /// What this replica really finds of what should be cached, as a share from 0 to 1.
    pub(crate) fn yield_(&self) -> f64 {
        self.yield_
    }

    /// The attempt begins. Returns the tokens that should be cached, before the [yield](Self::yield_); [`Self::observe`]
    /// wants them back.
    pub(crate) fn take(&mut self, attempt: AttemptId, prompt: &Prompt, now: Timestamp) -> f64 {
        let (at, matching) = self.choice(prompt).unwrap_or((self.slots.len(), 0.0));
        let reading = Slot::reading(attempt, prompt, now);
        match self.slots.get_mut(at) {
            Some(slot) => *slot = reading,
            // More runs there than it has slots, for the moment.
            None => self.slots.push(reading),
        }
        matching
    }

    /// The engine says how many of the attempt's `prompt_tokens`, by its own count, it `found` in its cache; [`Self::take`]
    /// had `believed` in so many. Counts once, and only while the attempt runs.
    pub(crate) fn observe(&mut self, attempt: AttemptId, believed: f64, found: f64, prompt_tokens: f64) {
        let Some(slot) = self.of(attempt).filter(|slot| !slot.is_counted()) else { return };
        slot.count(prompt_tokens);
        let began = slot.used;
        let telling = believed > TELLING * prompt_tokens;
        if !telling {
            return;
        }
        // What is no number finds nothing.
        let share = (found.max(0.0) / believed).min(1.0);
        if share < NOTHING && self.yield_ >= TRUSTED {
            let before = |slot: &&mut Slot| slot.is_idle() && slot.used <= began;
            self.slots.iter_mut().filter(before).for_each(Slot::clear);
        }
        self.yield_ += (share - self.yield_) * YIELD_SHARE;
    }

    /// The attempt ended, or was cancelled, and its slot keeps the first `held_tokens` of prompt and answer: all of both
    /// after a whole answer; as far as the prompt was read when it was cancelled in the middle. By the engine's count if
    /// [`Self::observe`] was told that, else in the measure of [`Prompt::tokens`].
    pub(crate) fn release(&mut self, attempt: AttemptId, held_tokens: f64, now: Timestamp) {
        if let Some(slot) = self.of(attempt) {
            slot.running = None;
            slot.used = Some(now);
            slot.keep(held_tokens.max(0.0));
        }
        self.shrink();
    }

    /// The attempt died, and what its slot held with it.
    pub(crate) fn lost(&mut self, attempt: AttemptId) {
        if let Some(slot) = self.of(attempt) {
            *slot = Slot::default();
        }
        self.shrink();
    }

    /// What the slot that the engine would take holds now. `None` if there is none, or it was never used.
    pub(crate) fn victim(&self, prompt: &Prompt, now: Timestamp) -> Option<Held> {
        let (at, _) = self.choice(prompt)?;
        let slot = self.slots.get(at)?;
        let used = slot.used?;
        let kept = slot.template.is_some_and(|template| {
            let others = self.slots.iter().enumerate().filter(|(other, _)| *other != at);
            prompt.has(template.cuts, template.key.0) || others.into_iter().any(|(_, slot)| slot.holds(template))
        });
        Some(Held {
            template: slot.template.map(|template| template.key),
            template_tokens: slot.template.map_or(0.0, |template| template.tokens).min(slot.tokens),
            tokens: slot.tokens,
            age: now.since(used).as_secs_f64(),
            duplicated: kept,
            same_conversation: slot.goes_on(prompt),
        })
    }

    /// Whether these attempts, and no others, run there.
    #[cfg(debug_assertions)]
    pub(crate) fn run_just(&self, attempts: &BTreeSet<AttemptId>) -> bool {
        let running: Vec<AttemptId> = self.slots.iter().filter_map(|slot| slot.running).collect();
        running.len() == attempts.len() && running.iter().all(|attempt| attempts.contains(attempt))
    }

    /// What each slot is found by, or will be when what runs there is done.
    pub(super) fn marks(&self) -> impl Iterator<Item = Mark> {
        self.slots.iter().map(Slot::mark)
    }

    fn of(&mut self, attempt: AttemptId) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.running == Some(attempt))
    }

    /// Where the engine would put the prompt, and how many of its tokens are there.
    fn choice(&self, prompt: &Prompt) -> Option<(usize, f64)> {
        let (mut best, mut most) = (None, SIMILAR * prompt.tokens);
        for (at, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.is_idle()) {
            let matching = slot.matching(prompt);
            if matching > most {
                (best, most) = (Some((at, matching)), matching);
            }
        }
        best.or_else(|| {
            let oldest = self.oldest()?;
            Some((oldest, self.slots.get(oldest)?.matching(prompt)))
        })
    }

    /// The idle slot used least recently; first, one that was never used.
    fn oldest(&self) -> Option<usize> {
        let idle = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_idle());
        idle.min_by_key(|(_, slot)| slot.used).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests;
