//! Who holds what, found without a walk over the pool.

use std::collections::BTreeMap;

use super::{prompt::TemplateKey, slots::Slots};
use crate::id::ReplicaId;

/// What a slot is found by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) template: Option<TemplateKey>,
    /// The fingerprint at the last cut of what it holds, where that is more than the template: the next turn of the
    /// conversation has it too.
    pub(super) tip: Option<u64>,
}

/// Replicas by a fingerprint. Counted, since several slots of a replica may hold the same.
#[derive(Debug, Default)]
struct Holding(BTreeMap<(u64, ReplicaId), u16>);

impl Holding {
    fn add(&mut self, fingerprint: u64, replica: ReplicaId) {
        let slots = self.0.entry((fingerprint, replica)).or_default();
        *slots = slots.saturating_add(1);
    }

    fn remove(&mut self, fingerprint: u64, replica: ReplicaId) {
        let Some(slots) = self.0.get_mut(&(fingerprint, replica)) else { return };
        *slots -= 1;
        if *slots == 0 {
            self.0.remove(&(fingerprint, replica));
        }
    }

    fn of(&self, fingerprint: u64) -> impl Iterator<Item = ReplicaId> {
        let all = (fingerprint, ReplicaId(0))..=(fingerprint, ReplicaId(u32::MAX));
        self.0.range(all).map(|((_, replica), _)| *replica)
    }
}

/// The holders of templates and conversations. No larger than the slots of the pool are many.
#[derive(Debug, Default)]
pub(super) struct Holders {
    templates: Holding,
    conversations: Holding,
    /// What is entered above of each replica. Kept here rather than told by the caller, so that whatever happens to slots,
    /// what was entered for them is taken back.
    entered: BTreeMap<ReplicaId, Vec<Mark>>,
}

impl Holders {
    /// Enters what the slots hold now in place of what they held before.
    pub(super) fn follow(&mut self, replica: ReplicaId, slots: &Slots) {
        let entered = self.entered.entry(replica).or_default();
        if entered.iter().copied().eq(slots.marks()) {
            return;
        }
        for mark in entered.drain(..) {
            mark.template.inspect(|key| self.templates.remove(key.0, replica));
            mark.tip.inspect(|tip| self.conversations.remove(*tip, replica));
        }
        entered.extend(slots.marks());
        for mark in entered {
            mark.template.inspect(|key| self.templates.add(key.0, replica));
            mark.tip.inspect(|tip| self.conversations.add(*tip, replica));
        }
    }

    /// The replica is gone.
    pub(super) fn remove(&mut self, replica: ReplicaId) {
        self.follow(replica, &Slots::new(0));
        self.entered.remove(&replica);
    }

    /// In the order of their numbers.
    pub(super) fn of_template(&self, key: TemplateKey) -> impl Iterator<Item = ReplicaId> {
        self.templates.of(key.0)
    }

    /// In the order of their numbers.
    pub(super) fn of_tip(&self, tip: u64) -> impl Iterator<Item = ReplicaId> {
        self.conversations.of(tip)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.templates.0.len() + self.conversations.0.len() + self.entered.len()
    }
}
