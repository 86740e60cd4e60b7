//! Every deadline of the core, in one ordered set. An entity has at most one deadline of each kind, so setting it again
//! moves it. A heap with lazily discarded entries was rejected: `next_deadline` would report deadlines that no longer
//! exist and wake the driver for nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    id::{AttemptId, ModelId, ReplicaId, RequestId},
    time::Timestamp,
};

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A replica that called itself full may be asked again.
    Rested(ReplicaId),
    /// A replica is to be probed: its penalty is over, or the last probe settled nothing.
    Probe(ReplicaId),
    /// What still runs on a draining replica is cancelled.
    Drain(ReplicaId),
    /// A replica goes away for good.
    End(ReplicaId),
    /// The earliest of a request's limits.
    Request(RequestId),
    /// A running attempt is late from then on.
    Late(AttemptId),
    /// Slots of a model that were left free on purpose are looked at again.
    Tick(ModelId),
    /// A replica's slots are to be looked at, or a look that was not answered is given up.
    Look(ReplicaId),
    /// The slot of work that was broken off is given again.
    Bound(ReplicaId),
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeSet<(Timestamp, Timer)>,
    at: BTreeMap<Timer, Timestamp>,
}

impl Timers {
    /// Sets, moves or (`None`) removes a deadline.
    pub(crate) fn set(&mut self, timer: Timer, at: Option<Timestamp>) {
        let at = at.filter(|at| *at != Timestamp::NEVER);
        let before = match at {
            Some(at) => self.at.insert(timer, at),
            None => self.at.remove(&timer),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.due.remove(&(before, timer));
        }
        if let Some(at) = at {
            self.due.insert((at, timer));
        }
    }

    /// Takes out one deadline at or before `now`, the earliest first.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<Timer> {
        let &(at, timer) = self.due.first()?;
        if at > now {
            return None;
        }
        self.due.pop_first();
        self.at.remove(&timer);
        Some(timer)
    }

    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    #[cfg(debug_assertions)]
    pub(crate) fn get(&self, timer: Timer) -> Option<Timestamp> {
        self.at.get(&timer).copied()
    }

    #[cfg(debug_assertions)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Timer, Timestamp)> + '_ {
        self.at.iter().map(|(timer, at)| (*timer, *at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moves_leaves_nothing_behind() {
        let mut timers = Timers::default();
        let timer = Timer::Request(RequestId(1));
        timers.set(timer, Some(Timestamp(10)));
        timers.set(timer, Some(Timestamp(20)));
        assert_eq!(timers.next(), Some(Timestamp(20)));
        assert_eq!(timers.pop_due(Timestamp(19)), None);
        assert_eq!(timers.pop_due(Timestamp(20)), Some(timer));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn never_is_no_deadline() {
        let mut timers = Timers::default();
        timers.set(Timer::Request(RequestId(1)), Some(Timestamp::NEVER));
        assert_eq!(timers.next(), None);
    }
}
