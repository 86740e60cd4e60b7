//! Which replica is due when: one list of times for all of them.

use std::collections::{BTreeSet, HashMap};

use scheduler::{ReplicaId, Timestamp};

/// Which replica is due when.
#[derive(Default)]
pub(super) struct Agenda {
    by_time: BTreeSet<(Timestamp, ReplicaId)>,
    due: HashMap<ReplicaId, Timestamp>,
}

impl Agenda {
    /// At `at`, or when it already was due if that is earlier.
    pub fn by(&mut self, id: ReplicaId, at: Timestamp) {
        match self.due.get(&id) {
            Some(earlier) if *earlier <= at => {}
            _ => {
                self.forget(id);
                self.due.insert(id, at);
                self.by_time.insert((at, id));
            }
        }
    }

    /// It is not due any more.
    pub fn forget(&mut self, id: ReplicaId) {
        if let Some(at) = self.due.remove(&id) {
            self.by_time.remove(&(at, id));
        }
    }

    /// When the next one is due.
    pub fn next(&self) -> Timestamp {
        self.by_time.first().map_or(Timestamp::NEVER, |(at, _)| *at)
    }

    /// How many are due by now.
    pub fn count_due(&self, now: Timestamp) -> usize {
        self.by_time.range(..=(now, ReplicaId(u32::MAX))).count()
    }

    /// One that is due by now.
    pub fn take_due(&mut self, now: Timestamp) -> Option<ReplicaId> {
        let (at, id) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.forget(id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_replica_is_due_once_at_its_earliest_time() {
        let mut agenda = Agenda::default();
        let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
        agenda.by(ReplicaId(1), at(10));
        agenda.by(ReplicaId(2), at(7));
        agenda.by(ReplicaId(1), at(5));
        agenda.by(ReplicaId(1), at(20));
        assert_eq!(agenda.next(), at(5));
        assert_eq!([4, 5, 7].map(|seconds| agenda.count_due(at(seconds))), [0, 1, 2]);
        assert_eq!(agenda.take_due(at(6)), Some(ReplicaId(1)));
        assert_eq!(agenda.take_due(at(6)), None);
        assert_eq!(agenda.take_due(at(60)), Some(ReplicaId(2)));
        assert_eq!(agenda.next(), Timestamp::NEVER);
    }
}
