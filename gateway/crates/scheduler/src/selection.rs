//! Which replica, among those with a free slot.
//!
//! A policy is a *rank*: the replica with the smallest is asked first. Ranks are kept in an ordered set that changes
//! when a replica changes, so a choice walks from the best until one fits and costs no scan of the pool. Power of two
//! choices was rejected: it is the answer to stale loads and many choosers, and here is one chooser that knows.
//!
//! Speeds count by coarse classes. Compared exactly, the fastest of equal phones would take all traffic of a quiet
//! hour by a difference that is noise, and the others would never be measured again.

use std::{collections::BTreeMap, time::Duration};

use crate::{config::Policy, event::RouteSet, id::ReplicaId, time::Timestamp};

/// Replicas whose speed is within this factor of the fastest count as equally fast.
const SPEED_CLASS: f64 = 1.25;

/// The state of a replica that a policy may look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Asked only when nothing better is free.
    pub(crate) last_resort: bool,
    pub(crate) running: usize,
    /// Slots it may use now.
    pub(crate) usable: u16,
    /// Its speed over that of the fastest replica of the model; `None` until measured.
    pub(crate) relative_speed: Option<f64>,
    pub(crate) idle_since: Timestamp,
    /// The number of the dispatch it got last.
    pub(crate) last_dispatch: u64,
}

/// The order of choice; smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    last_resort: bool,
    load: u32,
    slowness: u8,
    last: u64,
    /// Random: no fixed first among equals.
    tie: u64,
}

pub(crate) fn rank(policy: Policy, candidate: &Candidate, tie: u64) -> Rank {
    let last_resort = candidate.last_resort;
    match policy {
        // The fastest first; what each would really cost is weighed one by one.
        Policy::LeastWork => Rank {
            last_resort,
            load: 0,
            slowness: candidate.relative_speed.map_or(0, slowness),
            last: candidate.idle_since.0,
            tie,
        },
        Policy::LeastBusy => Rank {
            last_resort,
            load: (candidate.running as u32).saturating_mul(1 << 12) / u32::from(candidate.usable.max(1)),
            slowness: candidate.relative_speed.map_or(0, slowness),
            last: candidate.idle_since.0,
            tie,
        },
        Policy::RoundRobin => Rank { last_resort, load: 0, slowness: 0, last: candidate.last_dispatch, tie },
    }
}

/// A replica that was not measured yet counts as fast: that is how it gets measured.
fn slowness(relative_speed: f64) -> u8 {
    (-relative_speed.ln() / SPEED_CLASS.ln()).clamp(0.0, 255.0) as u8
}

/// What a free replica can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) routes: RouteSet,
    pub(crate) context: u32,
}

/// The replicas of one model with a free slot, the best first.
#[derive(Debug, Default)]
pub(crate) struct Offers(BTreeMap<(Rank, ReplicaId), Offer>);

impl Offers {
    pub(crate) fn insert(&mut self, rank: Rank, replica: ReplicaId, offer: Offer) {
        self.0.insert((rank, replica), offer);
    }

    pub(crate) fn remove(&mut self, rank: Rank, replica: ReplicaId) {
        self.0.remove(&(rank, replica));
    }

    /// The best replica that fits and is not barred.
    pub(crate) fn choose(&self, route: u8, context: u32, barred: impl Fn(ReplicaId) -> bool) -> Option<ReplicaId> {
        let fits = |offer: &Offer| offer.context >= context && offer.routes.contains(route);
        let fitting = self.0.iter().filter(|(_, offer)| fits(offer));
        fitting.map(|((_, replica), _)| *replica).find(|replica| !barred(*replica))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ReplicaId, &Offer)> {
        self.0.iter().map(|((_, replica), offer)| (*replica, offer))
    }
}

/// How long work takes until it is measured: an answer of common size on a common phone.
pub(crate) const UNMEASURED_SERVICE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Candidate = Candidate {
        last_resort: false,
        running: 0,
        usable: 1,
        relative_speed: Some(1.0),
        idle_since: Timestamp(100),
        last_dispatch: 7,
    };

    fn better(a: Candidate, b: Candidate) -> bool {
        // The draws are the worst case for `a`: only what is compared before them may decide.
        rank(Policy::LeastBusy, &a, u64::MAX) < rank(Policy::LeastBusy, &b, 0)
    }

    #[test]
    fn fewest_busy_slots_in_proportion_come_first() {
        let one_of_four = Candidate { running: 1, usable: 4, ..IDLE };
        assert!(better(one_of_four, Candidate { running: 1, usable: 2, ..IDLE }));
        assert!(better(IDLE, one_of_four));
    }

    #[test]
    fn then_the_faster_then_the_one_idle_longest() {
        let slow = Candidate { relative_speed: Some(0.5), ..IDLE };
        assert!(better(IDLE, Candidate { idle_since: Timestamp(0), ..slow }));
        assert!(better(Candidate { idle_since: Timestamp(99), ..IDLE }, IDLE));
        assert!(better(Candidate { relative_speed: None, idle_since: Timestamp(99), ..IDLE }, IDLE));
    }

    #[test]
    fn a_difference_in_speed_that_is_noise_decides_nothing() {
        let noise = Candidate { relative_speed: Some(0.9), idle_since: Timestamp(99), ..IDLE };
        assert!(better(noise, IDLE));
    }

    #[test]
    fn a_last_resort_comes_after_everything_else() {
        assert!(better(Candidate { running: 3, usable: 4, ..IDLE }, Candidate { last_resort: true, ..IDLE }));
    }

    #[test]
    fn round_robin_takes_the_one_that_was_asked_longest_ago() {
        let rank = |candidate| rank(Policy::RoundRobin, &candidate, 0);
        assert!(rank(Candidate { last_dispatch: 1, running: 3, usable: 4, ..IDLE }) < rank(IDLE));
    }
}
