//! Of one model: which beginnings of prompts are shared by many requests, how often they come, who holds them.

use std::{collections::BTreeMap, time::Duration};

use super::{
    decayed::Decayed,
    generations::Generations,
    holders::Holders,
    prompt::{Prompt, Template, TemplateKey},
    slots::Slots,
    stats::TemplateStats,
};
use crate::{id::ReplicaId, prefix::Prefix, time::Timestamp};

/// Fingerprints of one generation.
const MOST_SEEN: usize = 65_536;
/// Templates of one generation.
const MOST_TEMPLATES: usize = 1_024;
/// What was not seen for one to two of these is forgotten.
const LIFE: Duration = Duration::from_secs(600);
/// What so many requests have in common, each not merely going on from another, is a template.
const SHARED_BY: u16 = 3;

/// One cut of prompts seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Requests that have it, but for those that go on from an earlier one.
    requests: u16,
    /// Some prompt goes on beyond it.
    inner: bool,
}

/// What the prompts seen before say about a new one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// The longest beginning that it shares with several others.
    pub template: Option<Template>,
    /// The longest beginning seen before at all, in estimated tokens.
    pub shared: f64,
    /// It goes on from an earlier prompt, beyond the template: a later turn of a conversation.
    pub returns: bool,
    /// How many of its cuts were seen before.
    pub known: usize,
}

/// What a slot is found by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub template: Option<TemplateKey>,
    /// The fingerprint at the last cut of what it holds, if that lies beyond the template.
    pub tip: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Index {
    seen: Generations<Seen>,
    aged: Timestamp,
    stats: Generations<TemplateStats>,
    template_tokens: Decayed,
    templates: Holders,
    conversations: Holders,
    /// As last entered in the two above.
    marks: BTreeMap<ReplicaId, Vec<Mark>>,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            seen: Generations::new(MOST_SEEN),
            aged: Timestamp::ZERO,
            stats: Generations::new(MOST_TEMPLATES),
            template_tokens: Decayed::default(),
            templates: Holders::default(),
            conversations: Holders::default(),
            marks: BTreeMap::new(),
        }
    }
}

impl Index {
    /// Counts a request, once.
    pub fn arrive(&mut self, prefix: &Prefix, now: Timestamp) -> Found {
        let cuts = prefix.fingerprints();
        if now.since(self.aged) >= LIFE {
            self.seen.age();
            self.aged = now;
        }
        self.seen.make_room(cuts.len());
        let known = cuts.iter().take_while(|cut| self.seen.touch(**cut).is_some()).count();
        // A later turn goes on from where an earlier prompt ended. It is no second request for what both begin with.
        let goes_on = known > 0
            && known < cuts.len()
            && cuts.get(known - 1).and_then(|tip| self.seen.get(*tip)).is_some_and(|tip| !tip.inner);
        let mut template = 0;
        for (at, cut) in cuts.iter().enumerate() {
            let seen = self.seen.entry(*cut);
            seen.inner |= at + 1 < cuts.len();
            if !(goes_on && at < known) {
                seen.requests = seen.requests.saturating_add(1);
            }
            if seen.requests >= SHARED_BY {
                template = at + 1;
            }
        }
        let returns = goes_on && known > template;
        Found {
            template: self.template(cuts, template, returns, now),
            shared: f64::from(Prefix::cut(known)),
            returns,
            known,
        }
    }

    fn template(&mut self, cuts: &[u64], depth: usize, returns: bool, now: Timestamp) -> Option<Template> {
        let key = *cuts.get(depth.checked_sub(1)?)?;
        let stats = self.stats.entry(key);
        let tokens = stats.length(depth);
        stats.arrive(tokens, returns, &mut self.template_tokens, now);
        Some(Template { key: TemplateKey(key), tokens, cuts: depth })
    }

    /// A replica that held nothing more of a prompt than this template found so many *estimated* tokens in its cache:
    /// so long is the template.
    pub fn measured(&mut self, key: TemplateKey, estimated_tokens: f64) {
        if let Some(stats) = self.stats.touch(key.0) {
            stats.measured(estimated_tokens);
        }
    }

    /// The template's figures; new ones if it is unknown.
    pub fn stats_mut(&mut self, key: TemplateKey) -> &mut TemplateStats {
        self.stats.entry(key.0)
    }

    pub fn stats(&self, key: TemplateKey) -> Option<&TemplateStats> {
        self.stats.get(key.0)
    }

    /// Replicas that probably hold this template in some slot, or will when what they read now is done.
    pub fn holders(&self, key: TemplateKey) -> impl Iterator<Item = ReplicaId> {
        self.templates.of(key.0)
    }

    /// Replicas that probably hold more of the prompt than its template, the longest beginning first.
    pub fn conversation_holders(&self, prompt: &Prompt) -> impl Iterator<Item = ReplicaId> {
        let private = prompt.prefix.fingerprints().get(prompt.template_cuts()..prompt.known).unwrap_or_default();
        private.iter().rev().flat_map(|tip| self.conversations.of(*tip))
    }

    /// Enters what the slots of a replica hold in place of what they held at the last call. To be called after every
    /// change of [`Slots`].
    pub fn follow(&mut self, replica: ReplicaId, slots: &Slots) {
        let mut marks = self.marks.remove(&replica).unwrap_or_default();
        if marks.iter().copied().eq(slots.marks()) {
            self.marks.insert(replica, marks);
            return;
        }
        for mark in marks.drain(..) {
            self.unmark(mark, replica);
        }
        for mark in slots.marks() {
            self.mark(mark, replica);
            marks.push(mark);
        }
        self.marks.insert(replica, marks);
    }

    /// The replica is gone.
    pub fn forget(&mut self, replica: ReplicaId) {
        for mark in self.marks.remove(&replica).unwrap_or_default() {
            self.unmark(mark, replica);
        }
    }

    fn mark(&mut self, mark: Mark, replica: ReplicaId) {
        if let Some(key) = mark.template {
            self.note_held(key, replica);
        }
        if let Some(tip) = mark.tip {
            self.note_conversation(tip, replica);
        }
    }

    fn unmark(&mut self, mark: Mark, replica: ReplicaId) {
        if let Some(key) = mark.template {
            self.note_lost(key, replica);
        }
        if let Some(tip) = mark.tip {
            self.drop_conversation(tip, replica);
        }
    }

    pub fn note_held(&mut self, key: TemplateKey, replica: ReplicaId) {
        self.templates.add(key.0, replica);
    }

    pub fn note_lost(&mut self, key: TemplateKey, replica: ReplicaId) {
        self.templates.remove(key.0, replica);
    }

    pub fn note_conversation(&mut self, fingerprint: u64, replica: ReplicaId) {
        self.conversations.add(fingerprint, replica);
    }

    pub fn drop_conversation(&mut self, fingerprint: u64, replica: ReplicaId) {
        self.conversations.remove(fingerprint, replica);
    }
}
