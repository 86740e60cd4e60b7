//! One replica: its description, what runs there, its health, and the operator's drain laid over the health.
//!
//! A drain is an overlay, not a state of the health machine: evidence keeps arriving while a replica drains, and
//! taking the drain back must give what that evidence says, not what was true when the drain began.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    effect::{ChangeReason, ReplicaState},
    event::ReplicaSpec,
    evidence::Mark,
    health::Health,
    id::{AttemptId, ReplicaId},
    learning::Hazard,
    selection::{Offer, Rank},
    snapshot::ReplicaView,
    speed::Speeds,
    time::Timestamp,
    warmth::Slots,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drain {
    pub(crate) since: Timestamp,
    pub(crate) deadline: Option<Timestamp>,
    /// `Drained` was said.
    pub(crate) said: bool,
}

/// Where a replica stands for requests that look for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Takes work, now or when a slot frees.
    Serving,
    /// Takes none, and may again without an operator.
    Coming,
    /// Takes none until an operator acts.
    Gone,
}

/// What the pool's indexes are made of. A change of these, and only that, moves a replica in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) standing: Standing,
    /// Serves, and nothing speaks against it.
    pub(crate) sound: bool,
    pub(crate) out: bool,
    pub(crate) soft_out: bool,
    pub(crate) slots: u16,
}

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) spec: ReplicaSpec,
    pub(crate) running: BTreeSet<AttemptId>,
    pub(crate) health: Health,
    pub(crate) drain: Option<Drain>,
    pub(crate) speeds: Speeds,
    /// What its slots probably hold.
    pub(crate) slots: Slots,
    /// How often its kind goes away.
    pub(crate) hazard: Hazard,
    /// Since when it serves, if it does.
    pub(crate) up_since: Option<Timestamp>,
    /// Seconds of work that waiting requests mean to do here.
    pub(crate) claimed: f64,
    /// To when the courses of its attempts are written.
    pub(crate) touched: Timestamp,
    pub(crate) idle_since: Timestamp,
    pub(crate) last_dispatch: u64,
    /// It said that it is full: no new work before this.
    pub(crate) rests_until: Option<Timestamp>,
    /// How often in a row it said so.
    pub(crate) full_row: u32,
    /// Whole answers, and failed attempts.
    pub(crate) outcomes: (u64, u64),
    /// Most attempts it may still hold: its slots, or what ran when it lost some.
    pub(crate) ceiling: usize,
    /// As last entered in the pool's indexes.
    pub(crate) indexed: Option<Facts>,
    /// Its believed rates as last counted into its models' typical ones, and its speed in their order.
    pub(crate) counted: (Option<f64>, Option<f64>),
    pub(crate) place_by_speed: u64,
    /// Per model of its description, its place among the free ones.
    pub(crate) ranks: Vec<Option<Rank>>,
    pub(crate) free_indexed: u16,
}

impl Replica {
    pub(crate) fn new(spec: ReplicaSpec, now: Timestamp) -> Self {
        Self {
            ceiling: usize::from(spec.slots),
            speeds: Speeds::new(spec.prior),
            slots: Slots::new(spec.slots),
            hazard: Hazard::default(),
            up_since: None,
            claimed: 0.0,
            touched: now,
            counted: (None, None),
            place_by_speed: 0,
            spec,
            running: BTreeSet::new(),
            health: Health::new(now),
            drain: None,
            idle_since: now,
            last_dispatch: 0,
            rests_until: None,
            full_row: 0,
            outcomes: (0, 0),
            indexed: None,
            ranks: Vec::new(),
            free_indexed: 0,
        }
    }

    pub(crate) fn state(&self) -> ReplicaState {
        if self.drain.is_some() { ReplicaState::Draining } else { self.health.state }
    }

    pub(crate) fn standing(&self) -> Standing {
        match self.state() {
            ReplicaState::Ready | ReplicaState::Suspect | ReplicaState::Probation => Standing::Serving,
            ReplicaState::Joining | ReplicaState::Loading | ReplicaState::Out => Standing::Coming,
            ReplicaState::Draining | ReplicaState::Misconfigured => Standing::Gone,
        }
    }

    /// Serves, and what it did last was good: fit for a request that already lost an attempt.
    pub(crate) fn is_sound(&self) -> bool {
        self.standing() == Standing::Serving && self.health.is_sound() && self.rests_until.is_none()
    }

    pub(crate) fn usable(&self) -> u16 {
        if self.drain.is_some() || self.rests_until.is_some() { 0 } else { self.health.usable(self.spec.slots) }
    }

    /// Slots that could take a request this moment.
    pub(crate) fn free(&self) -> u16 {
        self.usable().saturating_sub(u16::try_from(self.running.len()).unwrap_or(u16::MAX))
    }

    /// An unknown context is taken for large enough; the replica will say if it is not.
    pub(crate) fn context(&self) -> u32 {
        self.spec.context_tokens.unwrap_or(u32::MAX)
    }

    pub(crate) fn offer(&self) -> Offer {
        Offer { routes: self.spec.routes, context: self.context(), sound: self.is_sound() }
    }

    pub(crate) fn facts(&self) -> Facts {
        let out = self.state() == ReplicaState::Out;
        Facts {
            standing: self.standing(),
            sound: self.is_sound(),
            out,
            soft_out: out && self.health.mark == Some(Mark::Soft),
            slots: self.spec.slots,
        }
    }

    /// How long it rests after it said that it is full, by what it asked for or growing by itself.
    pub(crate) fn rest(&mut self, asked: Option<Duration>, cap: Duration) -> Duration {
        self.full_row = self.full_row.saturating_add(1);
        let own = SHORTEST_REST.saturating_mul(1 << (self.full_row - 1).min(LONGEST_OWN_REST_DOUBLINGS));
        asked.unwrap_or(own).max(SHORTEST_REST).min(cap.max(SHORTEST_REST))
    }

    pub(crate) fn view(&self, replica: ReplicaId) -> ReplicaView {
        ReplicaView {
            replica,
            state: self.state(),
            since: self.drain.map_or(self.health.since, |drain| drain.since),
            why: self.drain.map_or(self.health.why, |_| ChangeReason::Operator),
            slots: self.spec.slots,
            usable_slots: self.usable(),
            running: self.running.iter().copied().collect(),
            penalty_until: self.health.probe_at.filter(|_| self.health.state == ReplicaState::Out),
            rests_until: self.rests_until,
            ejections: self.health.ejections,
            prefill_rate: self.speeds.prefill.measured(),
            decode_rate: self.speeds.decode.measured(),
            outcomes: self.outcomes,
        }
    }
}

/// A phone that is full now is full for about a token's time at least.
const SHORTEST_REST: Duration = Duration::from_secs(1);
/// Without a Retry-After: 1, 2, 4, 8, then 16 s.
const LONGEST_OWN_REST_DOUBLINGS: u32 = 4;
