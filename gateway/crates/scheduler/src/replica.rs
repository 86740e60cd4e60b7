//! One replica: its description, what runs there, its health, and what is laid over the health: the operator's drain, the end of
//! its deployment, and a limit by what the phone says about itself.
//!
//! A drain is an overlay, not a state of the health machine: evidence keeps arriving while a replica drains, and
//! taking the drain back must give what that evidence says, not what was true when the drain began.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    effect::{ChangeReason, ReplicaState},
    event::{Carry, Limit, Release, ReplicaSpec},
    evidence::Mark,
    health::Health,
    id::{AttemptId, ReplicaId},
    learning::Hazard,
    lingering::Lingering,
    request::Request,
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

/// The known end of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) at: Timestamp,
    /// That time has come.
    pub(crate) over: bool,
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
    /// Slots that may be used.
    pub(crate) slots: u16,
}

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) spec: ReplicaSpec,
    pub(crate) running: BTreeSet<AttemptId>,
    /// Slots that are taken by no attempt of ours.
    pub(crate) lingering: Lingering,
    pub(crate) health: Health,
    pub(crate) drain: Option<Drain>,
    pub(crate) ending: Option<Ending>,
    pub(crate) limit: Limit,
    pub(crate) speeds: Speeds,
    /// What its slots probably hold.
    pub(crate) slots: Slots,
    /// How often its kind goes away.
    pub(crate) hazard: Hazard,
    /// What was sent there before says nothing about it: it was at another address.
    pub(crate) judged_from: Timestamp,
    /// Since when it serves, if it does.
    pub(crate) up_since: Option<Timestamp>,
    /// Since when it is away, if it is and went by itself.
    pub(crate) down_since: Option<Timestamp>,
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
    /// Most attempts it may still hold, broken-off ones included: its slots, or what it held when it lost some.
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
            judged_from: Timestamp::ZERO,
            up_since: None,
            down_since: None,
            claimed: 0.0,
            touched: now,
            counted: (None, None),
            place_by_speed: 0,
            spec,
            running: BTreeSet::new(),
            lingering: Lingering::default(),
            health: Health::new(now),
            drain: None,
            ending: None,
            limit: Limit::None,
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
        if self.starts_nothing() { ReplicaState::Draining } else { self.health.state }
    }

    /// An operator drains it, or it has come to its end.
    fn starts_nothing(&self) -> bool {
        self.drain.is_some() || self.is_over()
    }

    /// It has come to its end.
    pub(crate) fn is_over(&self) -> bool {
        self.ending.is_some_and(|ending| ending.over)
    }

    /// Seconds until its end, if that is in sight.
    pub(crate) fn time_left(&self, now: Timestamp) -> Option<f64> {
        self.ending.map(|ending| ending.at.since(now).as_secs_f64())
    }

    /// Whether work of so many seconds would be over before it is. Estimates err, so there must be room.
    pub(crate) fn outlasts(&self, seconds: f64, now: Timestamp) -> bool {
        self.time_left(now).is_none_or(|left| END_FACTOR * seconds + END_MARGIN <= left)
    }

    pub(crate) fn standing(&self) -> Standing {
        match self.state() {
            ReplicaState::Ready | ReplicaState::Suspect | ReplicaState::Probation => {
                if self.limit == Limit::Paused {
                    Standing::Coming
                } else {
                    Standing::Serving
                }
            }
            ReplicaState::Joining | ReplicaState::Loading | ReplicaState::Quarantine | ReplicaState::Out => {
                Standing::Coming
            }
            ReplicaState::Draining | ReplicaState::Misconfigured => Standing::Gone,
        }
    }

    /// Serves, and what it did last was good: fit for a request that already lost an attempt.
    pub(crate) fn is_sound(&self) -> bool {
        self.standing() == Standing::Serving && self.health.is_sound() && self.rests_until.is_none()
    }

    /// Whether a request that already lost an attempt is better off elsewhere, if that is beyond doubt. Where its answer is
    /// carried on, one that has just come back will do: phones that come and go would never be beyond doubt again.
    pub(crate) fn is_doubtful(&self, request: &Request) -> bool {
        let back = self.health.state == ReplicaState::Probation && request.spec.carry != Carry::Never;
        request.is_retry() && !back && !self.is_sound()
    }

    pub(crate) fn usable(&self) -> u16 {
        if self.starts_nothing() || self.rests_until.is_some() {
            return 0;
        }
        self.health.usable(self.limit.of(self.spec.slots))
    }

    /// Slots that could take a request this moment.
    pub(crate) fn free(&self) -> u16 {
        let unknown = self.spec.release == Release::Shown && self.lingering.is_unseen();
        if unknown {
            return 0;
        }
        let count = |taken: usize| u16::try_from(taken).unwrap_or(u16::MAX);
        // In probation it is our own that are few.
        let ours = if self.limit == Limit::None { self.running.len() } else { self.held() };
        let allowed = self.usable().saturating_sub(count(ours));
        allowed.min(self.spec.slots.saturating_sub(count(self.taken())))
    }

    /// Slots that work, for whom ever.
    pub(crate) fn taken(&self) -> usize {
        self.held() + usize::from(self.lingering.foreign())
    }

    /// Slots that work for us, or may still do so.
    pub(crate) fn held(&self) -> usize {
        self.running.len() + self.lingering.count()
    }

    /// Nothing works there, as far as is known.
    pub(crate) fn is_idle(&self) -> bool {
        self.taken() == 0
    }

    /// Slots that are ours to use.
    pub(crate) fn ours(&self) -> u16 {
        self.usable().saturating_sub(self.lingering.foreign())
    }

    /// All that it has works for others.
    pub(crate) fn is_others(&self) -> bool {
        self.lingering.foreign() > 0 && self.ours() == 0
    }

    /// What it holds has changed, or its slots.
    pub(crate) fn raise_ceiling(&mut self) {
        self.ceiling = usize::from(self.spec.slots).max(self.held());
    }

    /// An unknown context is taken for large enough; the replica will say if it is not.
    pub(crate) fn context(&self) -> u32 {
        self.spec.context_tokens.unwrap_or(u32::MAX)
    }

    pub(crate) fn offer(&self) -> Offer {
        Offer { routes: self.spec.routes, context: self.context() }
    }

    pub(crate) fn facts(&self) -> Facts {
        let out = self.state() == ReplicaState::Out;
        Facts {
            standing: self.standing(),
            sound: self.is_sound(),
            out,
            soft_out: out && self.health.mark == Some(Mark::Soft),
            slots: if self.limit == Limit::Fewer { self.limit.of(self.spec.slots) } else { self.spec.slots },
        }
    }

    /// How long it rests after it said that it is full, by what it asked for or growing by itself.
    pub(crate) fn rest(&mut self, asked: Option<Duration>, cap: Duration) -> Duration {
        self.full_row = self.full_row.saturating_add(1);
        let own = SHORTEST_REST.saturating_mul(1 << (self.full_row - 1).min(LONGEST_OWN_REST_DOUBLINGS));
        asked.unwrap_or(own).max(SHORTEST_REST).min(cap.max(SHORTEST_REST))
    }

    pub(crate) fn view(&self, replica: ReplicaId) -> ReplicaView {
        let over = self.ending.filter(|ending| ending.over).map(|ending| ending.at);
        ReplicaView {
            replica,
            state: self.state(),
            since: self.drain.map(|drain| drain.since).or(over).unwrap_or(self.health.since),
            why: match (self.drain, over) {
                (Some(_), _) => ChangeReason::Operator,
                (None, Some(_)) => ChangeReason::Ending,
                (None, None) => self.health.why,
            },
            limit: self.limit,
            ends_at: self.ending.map(|ending| ending.at),
            slots: self.spec.slots,
            usable_slots: self.usable(),
            running: self.running.iter().copied().collect(),
            lingering: u16::try_from(self.lingering.count()).unwrap_or(u16::MAX),
            // Out of service nobody looks again.
            foreign: if self.health.serves() { self.lingering.foreign() } else { 0 },
            penalty_until: self.health.probe_at.filter(|_| self.health.state == ReplicaState::Out),
            rests_until: self.rests_until,
            ejections: self.health.ejections,
            prefill_rate: self.speeds.prefill.measured(),
            decode_rate: self.speeds.decode.measured(),
            outcomes: self.outcomes,
        }
    }
}

/// What is started before a replica's end must be expected to take no more than the time left, less these 1.3 times and a
/// second: as estimates err.
const END_FACTOR: f64 = 1.3;
const END_MARGIN: f64 = 1.0;
/// A phone that is full now is full for about a token's time at least.
const SHORTEST_REST: Duration = Duration::from_secs(1);
/// Without a Retry-After: 1, 2, 4, 8, then 16 s.
const LONGEST_OWN_REST_DOUBLINGS: u32 = 4;
