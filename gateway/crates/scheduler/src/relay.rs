//! What stands in front of the replicas. When all replicas of one relay fail to connect at once, it is the relay:
//! ejecting a hundred healthy phones with growing penalties would leave the pool empty long after the relay is back.
//!
//! Few failures prove nothing, and idle phones fail only when somebody asks them. So, when a good part of a relay's
//! replicas fail together, the others are probed at once, and the verdict is theirs.
//!
//! A relay may be down before anybody was reached through it: after a restart nobody serves who could fail. Then all that it has are
//! asked, and it is down if there is no way to any of them. A relay that answers and knows none of its phones proves nothing
//! then: they may have gone long before.
//!
//! Whoever is reached through it clears it, also one that is not well: an engine that is gone is not the relay's doing.

use std::collections::{BTreeMap, BTreeSet};

use crate::{config::HealthConfig, id::ReplicaId, time::Timestamp};

#[derive(Debug, Default)]
pub(crate) struct Relay {
    pub(crate) members: BTreeSet<ReplicaId>,
    /// Members that take work or load their model: those that can still fail.
    pub(crate) active: usize,
    /// Members that failed to connect lately and have not been seen alive since.
    failing: BTreeMap<ReplicaId, Timestamp>,
    /// Members to which there was no way at all when they were last asked, whatever their state.
    cut_off: BTreeSet<ReplicaId>,
    down: Option<Outage>,
    /// The others were probed lately.
    asked_at: Option<Timestamp>,
}

/// How a member was missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// Nobody answers on the way to it.
    NoWay,
    /// The relay answers, and does not let us through.
    NotThere,
}

/// How a relay is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// It does not answer: over as soon as it does.
    Silent,
    /// It answers and has lost its members at once: over as soon as one is back.
    Empty,
}

/// What a failure to connect means for the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayVerdict {
    /// One replica's own trouble.
    Up,
    /// Ask the others.
    Doubtful,
    Down,
    /// It was down, and answers again.
    Back,
}

impl Relay {
    /// There was no way to a member. `is_active` as counted in `active`.
    pub(crate) fn failed(
        &mut self,
        replica: ReplicaId,
        miss: Miss,
        is_active: impl Fn(ReplicaId) -> bool,
        config: &HealthConfig,
        now: Timestamp,
    ) -> RelayVerdict {
        match miss {
            Miss::NoWay => self.cut_off.insert(replica),
            Miss::NotThere => self.cut_off.remove(&replica),
        };
        if let Some(outage) = self.down {
            let answers = outage == Outage::Silent && miss == Miss::NotThere;
            self.down = self.down.filter(|_| !answers);
            return if answers { RelayVerdict::Back } else { RelayVerdict::Up };
        }
        // A member that is out already proves nothing by failing again, unless all are.
        if is_active(replica) {
            self.failing.insert(replica, now);
        }
        self.failing.retain(|_, at| now.since(*at) <= config.relay_window);
        let (lost_all, reaches_none) = (self.lost_all(is_active, config), self.reaches_none(config));
        if lost_all || reaches_none {
            let silent = reaches_none || self.failing.keys().any(|replica| self.cut_off.contains(replica));
            self.down = Some(if silent { Outage::Silent } else { Outage::Empty });
            return RelayVerdict::Down;
        }
        let recently = self.asked_at.is_some_and(|at| now.since(at) < config.relay_window / 2);
        let is_news = self.failing.contains_key(&replica);
        if is_news && self.in_doubt(config, now) && self.failing.len() * 2 >= self.active && !recently {
            self.asked_at = Some(now);
            return RelayVerdict::Doubtful;
        }
        RelayVerdict::Up
    }

    /// All that were in service fail at once.
    fn lost_all(&self, is_active: impl Fn(ReplicaId) -> bool, config: &HealthConfig) -> bool {
        let enough = self.failing.len() >= config.relay_min_replicas.max(2);
        enough
            && self.failing.len() >= self.active
            && self.failing.keys().filter(|replica| is_active(**replica)).count() == self.active
    }

    /// None is in service, and there is no way to any.
    fn reaches_none(&self, config: &HealthConfig) -> bool {
        let enough = self.cut_off.len() >= config.relay_min_replicas.max(2);
        enough && self.active == 0 && self.cut_off.len() == self.members.len()
    }

    /// Several members failed to connect lately: it may be the relay, if it has enough members to be judged.
    pub(crate) fn in_doubt(&self, config: &HealthConfig, now: Timestamp) -> bool {
        let lately = self.failing.values().filter(|at| now.since(**at) <= config.relay_window);
        self.is_down() || (self.members.len() >= config.relay_min_replicas && lately.take(2).count() == 2)
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.is_some()
    }

    pub(crate) fn is_failing(&self, replica: ReplicaId) -> bool {
        self.failing.contains_key(&replica)
    }

    /// A member was reached. Returns whether the relay was held to be down until now.
    pub(crate) fn reached(&mut self, replica: ReplicaId) -> bool {
        self.failing.remove(&replica);
        self.cut_off.remove(&replica);
        self.down.take().is_some()
    }

    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        self.members.remove(&replica);
        self.failing.remove(&replica);
        self.cut_off.remove(&replica);
        if self.members.is_empty() {
            self.down = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SchedulerConfig;

    fn relay(members: u32) -> Relay {
        Relay { members: (1..=members).map(ReplicaId).collect(), active: members as usize, ..Relay::default() }
    }

    fn fail(relay: &mut Relay, replica: u32, second: u64) -> RelayVerdict {
        let config = SchedulerConfig::default().health;
        relay.failed(ReplicaId(replica), Miss::NoWay, |_| true, &config, Timestamp(second * 1_000_000_000))
    }

    /// With nobody in service.
    fn miss(relay: &mut Relay, replica: u32, miss: Miss) -> RelayVerdict {
        relay.active = 0;
        relay.failed(ReplicaId(replica), miss, |_| false, &SchedulerConfig::default().health, Timestamp::ZERO)
    }

    #[test]
    fn a_relay_through_which_nobody_was_ever_reached_is_down_once_there_is_no_way_to_any() {
        let mut relay = relay(3);
        let verdicts = [1, 2, 1, 2, 3].map(|replica| miss(&mut relay, replica, Miss::NoWay));
        assert_eq!(verdicts[4], RelayVerdict::Down);
        assert!(verdicts[..4].iter().all(|verdict| *verdict == RelayVerdict::Up));
        assert_eq!(miss(&mut relay, 2, Miss::NoWay), RelayVerdict::Up, "it has been said");
        assert_eq!(miss(&mut relay, 2, Miss::NotThere), RelayVerdict::Back, "it answers, if only that");
        assert!(!relay.is_down());
    }

    #[test]
    fn a_relay_that_answers_and_knows_none_of_its_phones_is_not_down_unless_it_has_lost_them_at_once() {
        let mut relay = relay(3);
        assert!([1, 2, 3, 1, 2, 3].iter().all(|id| miss(&mut relay, *id, Miss::NotThere) == RelayVerdict::Up));
        relay.active = 3;
        let config = SchedulerConfig::default().health;
        let mut lose = |id| relay.failed(ReplicaId(id), Miss::NotThere, |_| true, &config, Timestamp::ZERO);
        assert_eq!([1, 2, 3].map(&mut lose)[2], RelayVerdict::Down);
        assert_eq!(lose(1), RelayVerdict::Up, "its phones are as gone as before");
    }

    #[test]
    fn all_members_failing_within_the_window_is_the_relay() {
        let mut relay = relay(3);
        assert_eq!(fail(&mut relay, 1, 0), RelayVerdict::Up);
        assert_eq!(fail(&mut relay, 2, 1), RelayVerdict::Doubtful);
        assert_eq!(fail(&mut relay, 3, 2), RelayVerdict::Down);
    }

    #[test]
    fn failures_that_lie_apart_are_the_replicas_own() {
        let mut relay = relay(3);
        for (replica, second) in [(1, 0), (2, 6), (3, 12), (1, 18)] {
            assert_eq!(fail(&mut relay, replica, second), RelayVerdict::Up);
        }
    }

    #[test]
    fn two_replicas_are_too_few_to_judge_a_relay() {
        let mut relay = relay(2);
        fail(&mut relay, 1, 0);
        assert_ne!(fail(&mut relay, 2, 0), RelayVerdict::Down);
    }

    #[test]
    fn a_sign_of_life_takes_a_failure_back() {
        let mut relay = relay(3);
        fail(&mut relay, 1, 0);
        fail(&mut relay, 2, 0);
        relay.reached(ReplicaId(1));
        assert_ne!(fail(&mut relay, 3, 1), RelayVerdict::Down);
        assert_eq!(fail(&mut relay, 1, 1), RelayVerdict::Down);
        assert!(relay.reached(ReplicaId(2)));
        assert!(!relay.reached(ReplicaId(3)));
    }
}
