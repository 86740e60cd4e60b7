//! The places of exams: how many are asked at once, and whose turn is over.
//!
//! Problem: phones that answer a byte a second would hold all places for as long as they may, and a good phone would not come into
//! service meanwhile. Choice: who is asked for the first time has its place for one turn, and beyond it only while nobody waits for
//! one; there are places for twice as many as may come within a turn, and who came first is asked first. So whoever comes waits for a
//! turn at most, whoever comes besides. Those that have failed before have places of their own, and keep them until they are done.
//! Rejected: shares for the party whose a phone is. Behind a proxy all have one address, what a phone states costs nothing to make up,
//! and whoever makes up many holds every share.

use std::{
    collections::{HashMap, HashSet},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use scheduler::{ReplicaId, Timestamp};
use tokio::sync::Notify;

/// For those that are asked for the first time. At most 256: each is on a phone of its own, so this bounds only what goes through the
/// relay, and what the gateway keeps of answers, at one time. At least 16: a deployment that is told all at once is soon through.
const FIRST: RangeInclusive<usize> = 16..=256;
/// For those that have failed before.
const AGAIN: usize = 16;

/// Places for those that are asked for the first time: of twice as many as may come within a turn.
pub(super) fn first(turn: Duration, per_minute: u32) -> usize {
    let come = turn.as_secs_f64() / 60.0 * f64::from(per_minute);
    ((2.0 * come).ceil() as usize).clamp(*FIRST.start(), *FIRST.end())
}

/// How often a replica has been asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Try {
    /// Never, where it is.
    First,
    /// It has failed.
    Again,
}

/// Has an exam end whose turn is over.
pub(super) type End = Arc<Notify>;

/// Who has a place.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Those that are asked for the first time: since when, and how they are told to end.
    first: HashMap<ReplicaId, (Timestamp, End)>,
    again: HashSet<ReplicaId>,
    /// Those that were told.
    ending: HashSet<ReplicaId>,
}

impl Places {
    /// Whether one more may be asked; of `first` places.
    pub(super) fn have_room(&self, which: Try, first: usize) -> bool {
        match which {
            Try::First => self.first.len() < first,
            Try::Again => self.again.len() < AGAIN,
        }
    }

    pub(super) fn has(&self, id: ReplicaId) -> bool {
        self.first.contains_key(&id) || self.again.contains(&id)
    }

    /// Gives a place; what it returns is notified when its turn is over and others wait.
    pub(super) fn take(&mut self, id: ReplicaId, which: Try, now: Timestamp) -> End {
        let end = End::default();
        match which {
            Try::First => drop(self.first.insert(id, (now, Arc::clone(&end)))),
            Try::Again => drop(self.again.insert(id)),
        }
        end
    }

    /// When the first turn of those that may be told is over. `NEVER` while some that were told have not left: then that comes first.
    pub(super) fn turn_ends(&self, turn: Duration) -> Timestamp {
        let since = self.first.values().map(|(since, _)| *since).min();
        since.filter(|_| self.ending.is_empty()).map_or(Timestamp::NEVER, |since| since + turn)
    }

    /// Has as many end as wait, of those whose turn is over, the longest first.
    pub(super) fn end_turns(&mut self, waiting: usize, turn: Duration, now: Timestamp) {
        let over = self.first.iter().filter(|(id, (since, _))| *since + turn <= now && !self.ending.contains(id));
        let mut over: Vec<(Timestamp, ReplicaId)> = over.map(|(id, (since, _))| (*since, *id)).collect();
        over.sort();
        for (_, id) in over.into_iter().take(waiting.saturating_sub(self.ending.len())) {
            if let Some((_, end)) = self.first.get(&id) {
                end.notify_one();
                self.ending.insert(id);
            }
        }
    }

    /// A place is free again.
    pub(super) fn leave(&mut self, id: ReplicaId) {
        self.first.remove(&id);
        self.again.remove(&id);
        self.ending.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    async fn is_told(end: &End) -> bool {
        tokio::time::timeout(Duration::ZERO, end.notified()).await.is_ok()
    }

    #[test]
    fn there_are_places_for_all_that_may_come_within_a_turn_and_for_as_many_whose_turn_has_not_ended() {
        assert_eq!(first(TURN, 60), 60, "by default: also all that may come at once");
        assert_eq!(first(TURN, 1), 16);
        assert_eq!(first(TURN, 100_000), 256);
    }

    #[tokio::test]
    async fn as_many_turns_end_as_others_wait_and_none_before_its_time() {
        let mut places = Places::default();
        let ends: Vec<End> = (0..3).map(|id| places.take(ReplicaId(id), Try::First, at(u64::from(id)))).collect();
        assert!(!places.have_room(Try::First, 3) && places.have_room(Try::First, 4));
        assert_eq!(places.turn_ends(TURN), at(30));
        places.end_turns(2, TURN, at(29));
        assert!(!is_told(&ends[0]).await, "not before its time");
        places.end_turns(0, TURN, at(60));
        assert!(!is_told(&ends[0]).await, "nobody waits");
        places.end_turns(1, TURN, at(60));
        places.end_turns(1, TURN, at(60));
        assert!(is_told(&ends[0]).await && !is_told(&ends[1]).await, "one waits, and one is on its way out");
        assert_eq!(places.turn_ends(TURN), Timestamp::NEVER, "it leaves first");
        places.leave(ReplicaId(0));
        assert!(places.have_room(Try::First, 3) && !places.has(ReplicaId(0)));
        assert_eq!(places.turn_ends(TURN), at(31));
    }

    #[tokio::test]
    async fn those_that_have_failed_before_have_places_of_their_own_and_keep_them() {
        let mut places = Places::default();
        let ends: Vec<End> = (0..16).map(|id| places.take(ReplicaId(id), Try::Again, at(0))).collect();
        assert!(!places.have_room(Try::Again, 60) && places.have_room(Try::First, 60));
        places.end_turns(5, TURN, at(600));
        assert!(!is_told(&ends[0]).await);
        assert_eq!(places.turn_ends(TURN), Timestamp::NEVER);
    }
}
