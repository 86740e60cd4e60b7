//! What stands in front of the replicas. When all replicas of one relay fail to connect at once, it is the relay:
//! ejecting a hundred healthy phones with growing penalties would leave the pool empty long after the relay is back.
//!
//! Few failures prove nothing, and idle phones fail only when somebody asks them. So, when a good part of a relay's
//! replicas fail together, the others are probed at once, and the verdict is theirs.

use std::collections::{BTreeMap, BTreeSet};

use crate::{config::HealthConfig, id::ReplicaId, time::Timestamp};

#[derive(Debug, Default)]
pub(crate) struct Relay {
    pub(crate) members: BTreeSet<ReplicaId>,
    /// Members that take work or load their model: those that can still fail.
    pub(crate) active: usize,
    /// Members that failed to connect lately and have not been seen alive since.
    failing: BTreeMap<ReplicaId, Timestamp>,
    pub(crate) down: bool,
    /// The others were probed lately.
    asked_at: Option<Timestamp>,
}

/// What a failure to connect means for the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayVerdict {
    /// One replica's own trouble.
    Up,
    /// Ask the others.
    Doubtful,
    Down,
}

impl Relay {
    /// A member could not be connected to. `is_active` as counted in `active`; a member that is out already proves nothing
    /// by failing again.
    pub(crate) fn failed(
        &mut self,
        replica: ReplicaId,
        is_active: impl Fn(ReplicaId) -> bool,
        config: &HealthConfig,
        now: Timestamp,
    ) -> RelayVerdict {
        if self.down || !is_active(replica) {
            return RelayVerdict::Up;
        }
        self.failing.insert(replica, now);
        self.failing.retain(|_, at| now.since(*at) <= config.relay_window);
        let enough = self.failing.len() >= config.relay_min_replicas.max(2);
        if enough && self.failing.len() >= self.active {
            let active = self.failing.keys().filter(|replica| is_active(**replica)).count();
            if active == self.active {
                self.down = true;
                return RelayVerdict::Down;
            }
        }
        let recently = self.asked_at.is_some_and(|at| now.since(at) < config.relay_window / 2);
        if self.in_doubt(config, now) && self.failing.len() * 2 >= self.active && !recently {
            self.asked_at = Some(now);
            return RelayVerdict::Doubtful;
        }
        RelayVerdict::Up
    }

    /// Several members failed to connect lately: it may be the relay, if it has enough members to be judged.
    pub(crate) fn in_doubt(&self, config: &HealthConfig, now: Timestamp) -> bool {
        let lately = self.failing.values().filter(|at| now.since(**at) <= config.relay_window);
        self.down || (self.members.len() >= config.relay_min_replicas && lately.take(2).count() == 2)
    }

    pub(crate) fn is_failing(&self, replica: ReplicaId) -> bool {
        self.failing.contains_key(&replica)
    }

    /// A member was seen alive. Returns whether the relay was held to be down until now.
    pub(crate) fn alive(&mut self, replica: ReplicaId) -> bool {
        self.failing.remove(&replica);
        std::mem::take(&mut self.down)
    }

    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        self.members.remove(&replica);
        self.failing.remove(&replica);
        if self.members.is_empty() {
            self.down = false;
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
        relay.failed(ReplicaId(replica), |_| true, &config, Timestamp(second * 1_000_000_000))
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
        relay.alive(ReplicaId(1));
        assert_ne!(fail(&mut relay, 3, 1), RelayVerdict::Down);
        assert_eq!(fail(&mut relay, 1, 1), RelayVerdict::Down);
        assert!(relay.alive(ReplicaId(2)));
        assert!(!relay.alive(ReplicaId(3)));
    }
}
