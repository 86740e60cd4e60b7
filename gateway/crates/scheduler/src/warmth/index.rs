//! Of one model: which beginnings its requests share, how often they come, and who holds them.

use super::{
    generations::Generations,
    holders::Holders,
    prompt::{Prompt, Template, TemplateKey},
    sightings::Sightings,
    slots::Slots,
    stats::{LOOK_BACK, TemplateStats},
};
use crate::{id::ReplicaId, learning::Decayed, prefix::Prefix, time::Timestamp};

/// Templates whose figures are kept, of one generation.
const MOST_TEMPLATES: usize = 1_024;

/// What the requests before say about a new one. Lengths are in estimated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Found {
    /// The beginning that it shares with many others.
    pub(crate) template: Option<Template>,
    /// The longest beginning that was seen before at all.
    pub(crate) shared: f64,
    /// How many of its cuts were seen before.
    pub(super) known: usize,
}

#[derive(Debug)]
pub(crate) struct Index {
    sightings: Sightings,
    stats: Generations<TemplateStats>,
    /// The sum of [`TemplateStats::tokens`] over all templates.
    tokens: Decayed,
    holders: Holders,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            sightings: Sightings::default(),
            stats: Generations::new(MOST_TEMPLATES),
            tokens: Decayed::new(LOOK_BACK),
            holders: Holders::default(),
        }
    }
}

impl Index {
    /// A request arrived. To be told once of each.
    pub(crate) fn arrive(&mut self, prefix: &Prefix, now: Timestamp) -> Found {
        let sighting = self.sightings.arrive(prefix.fingerprints(), now);
        let last = sighting.template.checked_sub(1).and_then(|last| prefix.fingerprints().get(last));
        let template = last.map(|fingerprint| Template {
            key: TemplateKey(*fingerprint),
            cuts: sighting.template,
            tokens: length(sighting.template),
        });
        if let Some(template) = template {
            self.stats.entry(template.key.0).arrive(template.tokens, sighting.returns, now);
            self.tokens.add(template.tokens, now);
        }
        Found { template, shared: f64::from(Prefix::cut(sighting.known)), known: sighting.known }
    }

    /// The template's figures, for what only the caller knows; new ones if it is unknown.
    pub(crate) fn stats_mut(&mut self, key: TemplateKey) -> &mut TemplateStats {
        self.stats.entry(key.0)
    }

    pub(crate) fn stats(&self, key: TemplateKey) -> Option<&TemplateStats> {
        self.stats.get(key.0)
    }

    /// The template's share, 0 to 1, of the reading of templates that recent requests asked for.
    pub(crate) fn heat(&self, key: TemplateKey, now: Timestamp) -> f64 {
        let all = self.tokens.sum(now);
        let own = self.stats(key).map_or(0.0, |stats| stats.tokens(now));
        if all > 0.0 { (own / all).min(1.0) } else { 0.0 }
    }

    /// Enters what the slots of a replica hold, in place of what they held before. To be called after every change of
    /// them; costs little where nothing changed.
    pub(crate) fn follow(&mut self, replica: ReplicaId, slots: &Slots) {
        self.holders.follow(replica, slots);
    }

    /// The replica is gone.
    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        self.holders.remove(replica);
    }

    /// Replicas that probably hold the template in some slot, or will when what they read now is done.
    pub(crate) fn holders(&self, key: TemplateKey) -> impl Iterator<Item = ReplicaId> {
        self.holders.of_template(key)
    }

    /// Replicas that probably hold more of the prompt than its template: those that hold the most first, each once for
    /// every slot of its that does.
    pub(crate) fn conversation_holders(&self, prompt: &Prompt) -> impl Iterator<Item = ReplicaId> {
        let own = prompt.prefix.fingerprints().get(prompt.template_cuts()..prompt.known).unwrap_or_default();
        own.iter().rev().flat_map(|tip| self.holders.of_tip(*tip))
    }
}

/// What is shared ends somewhere after its last cut and before the next: half-way, on average.
fn length(cuts: usize) -> f64 {
    f64::midpoint(f64::from(Prefix::cut(cuts)), f64::from(Prefix::cut(cuts + 1)))
}

#[cfg(test)]
mod tests;
