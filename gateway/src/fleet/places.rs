//! The places of exams: few, and nobody's alone.
//!
//! Problem: sixteen phones that answer a byte a second would hold all places for as long as they may, and a good phone would not come
//! into service meanwhile. Choice: nobody holds more than a quarter of the places, and those that have failed before share half of
//! them, and half of their party's, so that one that has just come finds a place soon. Whose a phone is, is told by what it can't
//! choose freely: the deployment that the chain names, or else the address that it called from. Behind a proxy all have one address;
//! there the deployment that it states has to do, and strangers that state many hold the places for one exam each. Those that state
//! none are many, not one: together they hold half.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use scheduler::ReplicaId;
use store::Verification;

use super::{change::is_stated_by_operator, replica::Replica};
use crate::{auth::network, upstream::is_public};

/// Places in all. 16, as many as trials: a deployment of 64 slow phones is through in a quarter of an hour, four of them in 4 minutes.
const ALL: usize = 16;
/// Of those, of one party.
const OF_A_PARTY: usize = ALL / 4;
/// Of those, of all of whom nothing is known.
const OF_UNKNOWN: usize = ALL / 2;
/// Of those, of phones that have failed before.
const AGAIN: usize = ALL / 2;

/// Whose a phone is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// A job: as the chain says, or, behind a proxy, as the phone says.
    Deployment(String),
    /// Who has this address; of the sixth version, its network.
    Peer(IpAddr),
    /// Nothing is known: all of these together.
    Unknown,
}

impl Party {
    /// Places that it holds at most.
    const fn most(&self) -> usize {
        if matches!(self, Self::Unknown) { OF_UNKNOWN } else { OF_A_PARTY }
    }

    /// `None`: an operator states it, who may state as many as he likes.
    pub(super) fn of(replica: &Replica) -> Option<Self> {
        if is_stated_by_operator(replica.source) {
            return None;
        }
        let deployment = replica.origin.deployment.clone().map(Self::Deployment);
        let is_assigned = replica.origin.verification == Verification::Assigned;
        let peer = replica.past().peer.map(network).filter(|peer| is_public(*peer)).map(Self::Peer);
        let known = if is_assigned { deployment.or(peer) } else { peer.or(deployment) };
        Some(known.unwrap_or(Self::Unknown))
    }
}

/// A place that is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) party: Option<Party>,
    /// It has failed before.
    pub(super) again: bool,
}

/// Who has a place, and who waits for one.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: HashMap<ReplicaId, Place>,
    waiting: BTreeSet<ReplicaId>,
}

impl Places {
    /// Whether nobody at all can be given one.
    pub(super) fn are_full(&self) -> bool {
        self.taken.len() >= ALL
    }

    pub(super) fn has(&self, id: ReplicaId) -> bool {
        self.taken.contains_key(&id)
    }

    /// Gives a place, or has it wait for one. Whether it has one.
    pub(super) fn take(&mut self, id: ReplicaId, place: Place) -> bool {
        let count = |of: &dyn Fn(&Place) -> bool| self.taken.values().filter(|taken| of(taken)).count();
        let of_party = |taken: &Place| taken.party == place.party;
        let has_room = |party: &Party| {
            let again = count(&|taken| of_party(taken) && taken.again);
            count(&of_party) < party.most() && !(place.again && again >= party.most() / 2)
        };
        let turned_away = place.again && count(&|taken| taken.again) >= AGAIN;
        let room = !self.are_full() && !turned_away && place.party.as_ref().is_none_or(has_room);
        if room {
            self.taken.insert(id, place);
        } else {
            self.waiting.insert(id);
        }
        room
    }

    /// A place is free again: those that wait may try.
    pub(super) fn leave(&mut self, id: ReplicaId) -> BTreeSet<ReplicaId> {
        self.taken.remove(&id);
        std::mem::take(&mut self.waiting)
    }

    /// All places are free again.
    pub(super) fn clear(&mut self) -> BTreeSet<ReplicaId> {
        self.taken.clear();
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(job: &str, again: bool) -> Place {
        Place { party: Some(Party::Deployment(job.into())), again }
    }

    fn fill(places: &mut Places, from: u32, count: u32, place: impl Fn(u32) -> Place) -> usize {
        (from..from + count).filter(|id| places.take(ReplicaId(*id), place(*id))).count()
    }

    #[test]
    fn nobody_has_more_than_a_quarter_and_who_waits_may_try_when_one_leaves() {
        let mut places = Places::default();
        assert_eq!(fill(&mut places, 0, 16, |_| of("slow", false)), 4);
        assert!(!places.are_full() && places.take(ReplicaId(20), of("good", false)));
        assert_eq!(places.leave(ReplicaId(20)), (4..16).map(ReplicaId).collect());
        assert!(!places.take(ReplicaId(4), of("slow", false)), "it was another's");
        places.leave(ReplicaId(0));
        assert!(places.take(ReplicaId(4), of("slow", false)));
    }

    #[test]
    fn those_that_have_failed_before_leave_half_of_the_places_to_others() {
        let mut places = Places::default();
        assert_eq!(fill(&mut places, 0, 16, |id| of(&id.to_string(), true)), 8);
        assert!(places.take(ReplicaId(20), of("good", false)));
    }

    #[test]
    fn those_of_a_party_that_have_failed_before_leave_half_of_its_places_to_newcomers() {
        let mut places = Places::default();
        assert_eq!(fill(&mut places, 0, 16, |_| of("slow", true)), 2);
        assert_eq!(fill(&mut places, 20, 16, |_| of("slow", false)), 2);
        let unknown = |again| Place { party: Some(Party::Unknown), again };
        let mut places = Places::default();
        assert_eq!(fill(&mut places, 0, 16, |_| unknown(true)), 4);
        assert_eq!(fill(&mut places, 20, 16, |_| unknown(false)), 4);
        assert!(places.take(ReplicaId(50), of("good", false)));
    }

    #[test]
    fn what_an_operator_states_is_no_party_and_all_are_bounded() {
        let mut places = Places::default();
        assert_eq!(fill(&mut places, 0, 40, |_| Place { party: None, again: false }), 16);
        assert!(places.are_full() && !places.take(ReplicaId(50), of("good", false)));
        assert_eq!(places.clear().len(), 25);
        assert!(places.take(ReplicaId(50), of("good", false)));
    }
}
