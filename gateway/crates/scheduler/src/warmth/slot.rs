//! One slot: what it holds, and how much of it a prompt shares.

use super::{
    holders::Mark,
    prompt::{Prompt, Template},
};
use crate::{id::AttemptId, prefix::Prefix, time::Timestamp};

/// The next turn of a conversation repeats the answer if it is longer by at least this part of the answer. If it is not,
/// most of the answer was not shown to the client, as thoughts are not.
const REPEATED: f64 = 0.75;
/// Who holds this part of a prompt holds all of it: so far apart may two counts of its tokens be.
const NEARLY: f64 = 0.9;

/// While an attempt runs, what the slot will hold when that is done. Lengths are in tokens of the model.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    pub(super) running: Option<AttemptId>,
    /// When its attempt began, or ended if that is over. `None`: it never had one.
    pub(super) used: Option<Timestamp>,
    /// Of the prompt, with its answer, that is held or read.
    prefix: Prefix,
    /// How many of its cuts are held.
    cuts: usize,
    /// The fingerprints at the first cut, after the template, and at the last that is held. Nearly always these tell what a
    /// prompt shares, without a look at the others, which lie far away in memory.
    first: u64,
    after: u64,
    tip: u64,
    pub(super) template: Option<Template>,
    scale: f64,
    /// Length of the prompt by its bytes, and by the engine's count if that is known. What the next turn of a conversation
    /// adds is a difference, right only between two lengths of one measure: all but `counted` are by the bytes.
    prompt_tokens: f64,
    counted: Option<f64>,
    /// The whole prompt is held.
    whole: bool,
    /// All that is held.
    pub(super) tokens: f64,
}

impl Slot {
    pub(super) fn reading(attempt: AttemptId, prompt: &Prompt, now: Timestamp) -> Self {
        let mut slot = Self {
            running: Some(attempt),
            used: Some(now),
            prefix: prompt.prefix.clone(),
            template: prompt.template,
            scale: prompt.scale,
            prompt_tokens: prompt.tokens,
            ..Self::default()
        };
        slot.keep(prompt.tokens);
        slot
    }

    /// The prompt is so long by the engine's count.
    pub(super) fn count(&mut self, prompt_tokens: f64) {
        self.counted = Some(prompt_tokens);
    }

    pub(super) fn is_counted(&self) -> bool {
        self.counted.is_some()
    }

    /// Of the prompt and its answer, the first `held` tokens are held; by the engine's count if that of the prompt is known.
    pub(super) fn keep(&mut self, held: f64) {
        let all = self.prefix.fingerprints();
        let at = |cut: usize| all.get(cut).copied().unwrap_or_default();
        let prompt = self.counted.unwrap_or(self.prompt_tokens);
        self.whole = held >= NEARLY * prompt;
        if self.whole {
            self.tokens = self.prompt_tokens + (held - prompt).max(0.0);
            self.cuts = all.len();
        } else {
            self.tokens = self.prompt_tokens * held / prompt;
            let within = Prefix::cuts().take_while(|cut| f64::from(*cut) * self.scale <= self.tokens);
            self.cuts = within.count().min(all.len());
        }
        self.template = self.template.filter(|template| template.cuts <= self.cuts);
        self.first = at(0);
        self.after = at(self.template_cuts());
        self.tip = at(self.cuts.saturating_sub(1));
    }

    /// Loses what it holds; what runs keeps it.
    pub(super) fn clear(&mut self) {
        *self = Self { running: self.running, ..Self::default() };
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    fn template_cuts(&self) -> usize {
        self.template.map_or(0, |template| template.cuts)
    }

    /// How many cuts the prompt shares with what is held.
    fn common(&self, prompt: &Prompt) -> usize {
        if self.cuts == 0 || !prompt.has(1, self.first) {
            return 0;
        }
        if prompt.has(self.cuts, self.tip) {
            return self.cuts;
        }
        if let Some(template) = self.template
            && prompt.has(template.cuts, template.key.0)
            && !prompt.has(template.cuts + 1, self.after)
        {
            return template.cuts;
        }
        self.prefix.common(&prompt.prefix).min(self.cuts)
    }

    /// Whether the prompt begins with all that is held here, as far as fingerprints tell.
    pub(super) fn goes_on(&self, prompt: &Prompt) -> bool {
        self.cuts > 0 && self.common(prompt) == self.cuts
    }

    /// Tokens of the prompt that need not be read here.
    pub(super) fn matching(&self, prompt: &Prompt) -> f64 {
        let common = self.common(prompt);
        if common == 0 {
            return 0.0;
        }
        let beyond_template = common > prompt.template_cuts().max(self.template_cuts());
        let tokens = if common == self.cuts && beyond_template && self.whole {
            self.with_answer(prompt)
        } else {
            match prompt.template {
                Some(template) if template.cuts == common => template.tokens,
                _ => f64::from(Prefix::cut(common)) * prompt.scale,
            }
        };
        // The last token is always read: the first of the answer comes from it.
        tokens.min(self.tokens).min(prompt.tokens - 1.0).max(0.0)
    }

    /// A prompt that has all cuts of the one held here is the next turn of its conversation. What lies after the last cut, and
    /// the answer, is held as well, and the turn has it.
    fn with_answer(&self, prompt: &Prompt) -> f64 {
        let answer = self.tokens - self.prompt_tokens;
        let repeated = prompt.tokens - self.prompt_tokens >= REPEATED * answer;
        if repeated { self.tokens } else { self.prompt_tokens }
    }

    pub(super) fn holds(&self, template: Template) -> bool {
        let last = self.prefix.fingerprints().get(template.cuts.saturating_sub(1));
        template.cuts <= self.cuts && last == Some(&template.key.0)
    }

    pub(super) fn mark(&self) -> Mark {
        let tip = (self.cuts > self.template_cuts()).then_some(self.tip);
        Mark { template: self.template.map(|template| template.key), tip }
    }
}
