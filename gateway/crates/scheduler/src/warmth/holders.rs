//! Who holds what: replicas by the fingerprint of something that a slot of theirs holds.

use std::collections::BTreeMap;

use crate::id::ReplicaId;

/// Counted: several slots of a replica may hold the same. As many entries as there are slots at most.
#[derive(Debug, Default)]
pub(super) struct Holders(BTreeMap<(u64, ReplicaId), u16>);

impl Holders {
    pub fn add(&mut self, fingerprint: u64, replica: ReplicaId) {
        let slots = self.0.entry((fingerprint, replica)).or_default();
        *slots = slots.saturating_add(1);
    }

    pub fn remove(&mut self, fingerprint: u64, replica: ReplicaId) {
        let Some(slots) = self.0.get_mut(&(fingerprint, replica)) else {
            return;
        };
        *slots -= 1;
        if *slots == 0 {
            self.0.remove(&(fingerprint, replica));
        }
    }

    /// In the order of their numbers.
    pub fn of(&self, fingerprint: u64) -> impl Iterator<Item = ReplicaId> {
        let all = (fingerprint, ReplicaId(0))..=(fingerprint, ReplicaId(u32::MAX));
        self.0.range(all).map(|((_, replica), _)| *replica)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
