//! What the slots of one replica probably hold, by the rules of llama-server.
//!
//! A prompt goes to the idle slot that shares the longest beginning with it, if that is over a tenth of the prompt; else
//! to a slot that was never used; else to the one that was used least recently. Whatever the slot holds is kept as far as
//! the prompt agrees with it, read from there on, and the answer is kept behind it.
//!
//! Which slot an engine took, it does not say: only how much it found (`cache_n`). That corrects two things: the share of
//! such beliefs that come true on this replica, for engines and settings that cache less or not at all, and what the other
//! slots are thought to hold, for phones that restarted unseen.

use super::{
    index::Mark,
    prompt::{Prompt, Template, TemplateKey},
};
use crate::{id::AttemptId, prefix::Prefix, time::Timestamp};

/// llama-server's `--slot-prompt-similarity`: less in common does not bind a prompt to a slot.
const SIMILAR: f64 = 0.1;
/// A belief about less than this share of a prompt teaches nothing: chance agreement is of this size.
const TELLING: f64 = 0.2;
/// Weight of one observation in the yield.
const YIELD_WEIGHT: f64 = 0.3;
/// A replica of at least this yield that finds less than a tenth of what it was believed to hold has lost all of it.
const TRUSTED: f64 = 0.5;
const NOTHING: f64 = 0.1;
/// The next turn repeats the answer if it is longer by at least this share of the answer. Less, and what was hidden from
/// the client, thoughts for instance, is most of it.
const REPEATED: f64 = 0.75;

/// One slot, and what it will hold when what runs there is done.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// Of the prompt that it holds, or reads now.
    prefix: Prefix,
    /// Cuts of it that lie in what is held.
    cuts: usize,
    /// The fingerprints at the first cut, after the template, and at the last held cut: most slots are told from a prompt
    /// by these, without a look at the others, which are far away in memory.
    first: u64,
    after: u64,
    tip: u64,
    template: Option<Template>,
    scale: f64,
    /// Length of the prompt, and of all that is held (with the answer), in tokens of the model.
    prompt_tokens: f64,
    tokens: f64,
    continuing: bool,
    /// `None`: never used.
    used: Option<Timestamp>,
    running: Option<AttemptId>,
    observed: bool,
}

impl Slot {
    fn reading(attempt: AttemptId, prompt: &Prompt, now: Timestamp) -> Self {
        let mut slot = Self {
            prefix: prompt.prefix.clone(),
            template: prompt.template,
            scale: prompt.scale,
            prompt_tokens: prompt.tokens,
            continuing: prompt.returns,
            used: Some(now),
            running: Some(attempt),
            ..Self::default()
        };
        slot.keep(prompt.tokens);
        slot
    }

    /// Of the prompt and its answer, the first `tokens` stay.
    fn keep(&mut self, tokens: f64) {
        let all = self.prefix.fingerprints();
        let at = |cut: usize| all.get(cut).copied().unwrap_or_default();
        let within = || Prefix::cuts().take_while(|cut| f64::from(*cut) * self.scale <= tokens).count();
        let cuts = if tokens < self.prompt_tokens { all.len().min(within()) } else { all.len() };
        let template = self.template.filter(|template| template.cuts <= cuts);
        let after = template.map_or(0, |template| at(template.cuts));
        (self.first, self.after, self.tip) = (at(0), after, at(cuts.saturating_sub(1)));
        (self.tokens, self.cuts, self.template) = (tokens, cuts, template);
    }

    fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// How many cuts the prompt shares with what is held.
    fn common(&self, prompt: &Prompt) -> usize {
        let theirs = prompt.prefix.fingerprints();
        let agree = |cut: usize, fingerprint: u64| theirs.get(cut) == Some(&fingerprint);
        if self.cuts == 0 || !agree(0, self.first) {
            return 0;
        }
        if agree(self.cuts - 1, self.tip) {
            return self.cuts;
        }
        match self.template {
            Some(template) if self.begins(prompt, template) && !agree(template.cuts, self.after) => template.cuts,
            _ => self.prefix.common(&prompt.prefix).min(self.cuts),
        }
    }

    fn begins(&self, prompt: &Prompt, template: Template) -> bool {
        prompt.prefix.fingerprints().get(template.cuts.saturating_sub(1)) == Some(&template.key.0)
    }

    /// Tokens of the prompt that need not be read here.
    fn matching(&self, prompt: &Prompt) -> f64 {
        let common = self.common(prompt);
        let beyond = prompt.template_cuts().max(self.template.map_or(0, |template| template.cuts));
        let tokens = if common == 0 {
            0.0
        } else if common == self.cuts && common > beyond && self.tokens >= self.prompt_tokens {
            let answer = self.tokens - self.prompt_tokens;
            let repeated = prompt.tokens - self.prompt_tokens >= answer * REPEATED;
            if repeated { self.tokens } else { self.prompt_tokens }
        } else if common == prompt.template_cuts() {
            prompt.template_tokens()
        } else {
            f64::from(Prefix::cut(common)) * prompt.scale
        };
        // The last token is always read: from it comes the first of the answer.
        tokens.min(self.tokens).min(prompt.tokens - 1.0).max(0.0)
    }

    fn holds(&self, template: Template) -> bool {
        template.cuts <= self.cuts
            && self.prefix.fingerprints().get(template.cuts.saturating_sub(1)) == Some(&template.key.0)
    }
}

/// What a prompt would drive out of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Held {
    /// The template that it begins with.
    pub template: Option<TemplateKey>,
    /// Tokens of the model that the template takes; what lies beyond is this prompt's own.
    pub template_tokens: f64,
    /// Tokens of the model that it holds.
    pub tokens: f64,
    /// Seconds since it was last used.
    pub age: f64,
    /// The replica will still hold the template: in another slot, or because the new prompt begins with it as well.
    pub duplicated: bool,
    /// It was a later turn of a conversation.
    pub continuing: bool,
}

/// All slots of a replica. All lengths are in tokens of the model, as [`Prompt::tokens`] is.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    /// As many as the replica has, and more while more runs there than that.
    slots: Vec<Slot>,
    size: usize,
    yield_: f64,
}

impl Slots {
    pub fn new(slots: u16) -> Self {
        let size = usize::from(slots);
        Self { slots: vec![Slot::default(); size], size, yield_: 1.0 }
    }

    /// The replica has another number of slots now. What runs stays, then what was used last.
    pub fn resize(&mut self, slots: u16) {
        self.size = usize::from(slots);
        if self.slots.len() < self.size {
            self.slots.resize_with(self.size, Slot::default);
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.slots.len() > self.size {
            let Some(oldest) = self.oldest() else {
                return;
            };
            self.slots.remove(oldest);
        }
    }

    /// The replica restarted: nothing is cached. What runs keeps its slot.
    pub fn forget(&mut self) {
        for slot in &mut self.slots {
            *slot = Slot { running: slot.running, ..Slot::default() };
        }
    }

    fn idle(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.is_idle())
    }

    fn oldest(&self) -> Option<usize> {
        self.idle().min_by_key(|(_, slot)| slot.used).map(|(at, _)| at)
    }

    /// The idle slot that the engine would take, and the tokens of the prompt that it holds.
    fn choice(&self, prompt: &Prompt) -> Option<(usize, f64)> {
        let mut best = None;
        let mut most = prompt.tokens * SIMILAR;
        for (at, slot) in self.idle() {
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

    /// Tokens of the prompt that the replica would probably find in its cache if it began now.
    pub fn best_idle(&self, prompt: &Prompt) -> f64 {
        self.choice(prompt).map_or(0.0, |(_, matching)| matching * self.yield_)
    }

    /// The same when all that runs there is done.
    pub fn later(&self, prompt: &Prompt) -> f64 {
        self.slots.iter().map(|slot| slot.matching(prompt)).fold(0.0, f64::max) * self.yield_
    }

    /// The attempt begins. Returns what the replica would find if its cache worked as it should; for [`Self::observe`].
    pub fn take(&mut self, attempt: AttemptId, prompt: &Prompt, now: Timestamp) -> f64 {
        let reading = Slot::reading(attempt, prompt, now);
        let choice = self.choice(prompt);
        match choice.and_then(|(at, _)| self.slots.get_mut(at)) {
            Some(slot) => *slot = reading,
            None => self.slots.push(reading),
        }
        choice.map_or(0.0, |(_, matching)| matching)
    }

    fn of(&mut self, attempt: AttemptId) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.running == Some(attempt))
    }

    /// The attempt ended, or was cancelled, and the replica keeps the first `held_tokens` of its prompt and answer: prompt
    /// and answer tokens after a whole answer, what was read when it was cancelled before.
    pub fn release(&mut self, attempt: AttemptId, held_tokens: f64, now: Timestamp) {
        if let Some(slot) = self.of(attempt) {
            slot.running = None;
            slot.used = Some(now);
            slot.keep(held_tokens);
        }
        self.shrink();
    }

    /// The attempt died, and what it had read with it.
    pub fn lost(&mut self, attempt: AttemptId) {
        if let Some(slot) = self.of(attempt) {
            *slot = Slot::default();
        }
        self.shrink();
    }

    /// The engine says how many tokens of the prompt it `found` in its cache, where [`Self::take`] returned `believed`. To
    /// be called while the attempt runs; it counts once.
    pub fn observe(&mut self, attempt: AttemptId, believed: f64, found: f64, prompt_tokens: f64) {
        let mut began = None;
        if let Some(slot) = self.of(attempt) {
            if slot.observed {
                return;
            }
            slot.observed = true;
            began = slot.used;
        }
        let telling = believed > prompt_tokens * TELLING;
        if !telling {
            return;
        }
        let share = (found / believed).clamp(0.0, 1.0);
        if share < NOTHING && self.yield_ >= TRUSTED {
            self.doubt(began);
        }
        self.yield_ += (share - self.yield_) * YIELD_WEIGHT;
    }

    /// A cache that used to work was empty when an attempt began: the replica restarted before.
    fn doubt(&mut self, began: Option<Timestamp>) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_idle() && slot.used <= began) {
            *slot = Slot::default();
        }
    }

    /// What the slot that the engine would take now holds and the prompt does not go on from.
    pub fn victim(&self, prompt: &Prompt, now: Timestamp) -> Option<Held> {
        let (at, _) = self.choice(prompt)?;
        let slot = self.slots.get(at)?;
        let used = slot.used?;
        if slot.cuts > 0 && slot.common(prompt) == slot.cuts {
            return None;
        }
        let elsewhere =
            |template| self.slots.iter().enumerate().any(|(other, slot)| other != at && slot.holds(template));
        Some(Held {
            template: slot.template.map(|template| template.key),
            template_tokens: slot.template.map_or(0.0, |template| template.tokens * slot.scale).min(slot.tokens),
            tokens: slot.tokens,
            age: now.since(used).as_secs_f64(),
            duplicated: slot.template.is_some_and(|template| slot.begins(prompt, template) || elsewhere(template)),
            continuing: slot.continuing,
        })
    }

    /// The share of what this replica is believed to hold that it really finds, 0 to 1.
    pub fn yield_(&self) -> f64 {
        self.yield_
    }

    /// What each slot is found by, or will be when what runs there is done.
    pub(super) fn marks(&self) -> impl Iterator<Item = Mark> {
        self.slots.iter().map(|slot| {
            let beyond = slot.template.map_or(0, |template| template.cuts);
            let tip = (slot.cuts > beyond).then_some(slot.tip);
            Mark { template: slot.template.map(|template| template.key), tip }
        })
    }
}
