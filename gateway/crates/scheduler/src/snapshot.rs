//! A copy of the core's state for the admin API, metrics and tests.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    effect::{ChangeReason, ReplicaState},
    event::{Class, Limit, Part},
    id::{AttemptId, ModelId, RelayId, ReplicaId, RequestId, TenantId},
    time::Timestamp,
};

/// Everything an operator may want to see, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All replicas, by id.
    pub replicas: Vec<ReplicaView>,
    /// Waiting requests by model and class.
    pub queued: BTreeMap<(ModelId, Class), usize>,
    /// Bytes of waiting bodies.
    pub queued_bytes: u64,
    /// Running attempts that repeat what a failed one of their request did.
    pub retries_in_flight: u32,
    /// How often each kind of decision was taken since the start; indexed by [`Decision`] as in [`Decision::ALL`].
    pub decisions: [u64; Decision::ALL.len()],
    /// Slot-seconds that led to no answer, by [`Waste`] as in [`Waste::ALL`].
    pub wasted: [f64; Waste::ALL.len()],
    /// Estimated wait of a new request by model and class, of models that a replica serves now.
    pub waits: BTreeMap<(ModelId, Class), Duration>,
    /// A request for a model that none serves is refused after it has waited this long.
    pub no_replica_wait: Duration,
    /// Relays that are held to be down, all their replicas with them.
    pub relays_down: Vec<RelayId>,
}

/// A kind of decision, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// A request got a slot on arrival.
    Placed,
    /// A waiting request got a slot.
    Taken,
    /// A request was left waiting beside a free slot: the better replicas will be through the queue before.
    Waited,
    /// The same, for a replica that holds its prefix.
    WaitedWarm,
    /// The same, because the free slots are kept for more urgent arrivals.
    Reserved,
    /// A later request took a slot before an earlier one because it suits that replica much better.
    PassedOver,
    /// A request of a lower class went before higher ones, so that it does not starve.
    Promoted,
    /// A second copy of a request that is late.
    HedgedLate,
    /// A second copy of one of the last running requests of a batch.
    HedgedStraggler,
    /// A running batch request was stopped for a more urgent one.
    GaveBack,
    /// A failed-over request got a slot.
    Retried,
    /// A request got a slot to carry on the part that is written of its answer.
    CarriedOn,
    /// A request was refused on arrival because it would wait longer than it may.
    Hopeless,
}

impl Decision {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Placed,
        Self::Taken,
        Self::Waited,
        Self::WaitedWarm,
        Self::Reserved,
        Self::PassedOver,
        Self::Promoted,
        Self::HedgedLate,
        Self::HedgedStraggler,
        Self::GaveBack,
        Self::Retried,
        Self::CarriedOn,
        Self::Hopeless,
    ];

    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Taken => "taken",
            Self::Waited => "waited",
            Self::WaitedWarm => "waited_warm",
            Self::Reserved => "reserved",
            Self::PassedOver => "passed_over",
            Self::Promoted => "promoted",
            Self::HedgedLate => "hedged_late",
            Self::HedgedStraggler => "hedged_straggler",
            Self::GaveBack => "gave_back",
            Self::Retried => "retried",
            Self::CarriedOn => "carried_on",
            Self::Hopeless => "hopeless",
        }
    }
}

/// Why slot time led to no answer. Of an attempt whose answer was carried on, the time in which it wrote did: that counts here
/// only if the part is given up after all. The time in which it read did not; the next attempt reads again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waste {
    /// The attempt failed, or was lost with its replica.
    Failed,
    /// Another copy was faster.
    HedgeLost,
    /// Stopped for a more urgent request.
    GivenBack,
    /// The client left, or the deadline passed.
    Abandoned,
}

impl Waste {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Failed, Self::HedgeLost, Self::GivenBack, Self::Abandoned];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::HedgeLost => "hedge_lost",
            Self::GivenBack => "given_back",
            Self::Abandoned => "abandoned",
        }
    }
}

/// Why a live request is where it is: what it needs, and what each replica would mean for it. Seconds throughout.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The request.
    pub view: RequestView,
    /// Prompt tokens, corrected by what replicas of the model count.
    pub prompt_tokens: f64,
    /// Prompt tokens that other requests were seen to share.
    pub shared_tokens: f64,
    /// Answer tokens expected, of the whole answer.
    pub output_tokens: f64,
    /// What it costs a typical replica of the pool, the shared prefix warm.
    pub work: f64,
    /// Requests that wait before it, if it waits.
    pub ahead: usize,
    /// Estimated wait still before it, if it waits.
    pub wait: Option<Duration>,
    /// Why it waits, or how it came to run.
    pub decision: Option<Decision>,
    /// The replicas looked at, the best first: now, if it waits; when it was placed, if it runs. At most
    /// [`Explanation::CANDIDATES`].
    pub candidates: Vec<CandidateView>,
}

impl Explanation {
    /// Most candidates shown.
    pub const CANDIDATES: usize = 20;
}

/// What one replica would mean for a request. Seconds throughout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CandidateView {
    /// Which.
    pub replica: ReplicaId,
    /// How it would go on with the request.
    pub onward: Onward,
    /// It has a free slot.
    pub free: bool,
    /// Requests running there.
    pub running: u32,
    /// Kept for more urgent arrivals.
    pub reserved: bool,
    /// Prompt tokens it is believed to hold.
    pub cached_tokens: f64,
    /// Reading the rest of the prompt, alone.
    pub prefill: f64,
    /// Writing the answer, alone.
    pub decode: f64,
    /// Until a slot is free.
    pub wait: f64,
    /// What sharing the replica adds for itself and, weighted by class, for what runs there.
    pub delay: f64,
    /// The worth of the cached prefix that it would overwrite.
    pub eviction: f64,
    /// The expected loss by the replica going away in between.
    pub risk: f64,
    /// What it counts that the text would go on as another group writes it.
    pub detour: f64,
    /// What it counts that the replica is to be spared.
    pub sparing: f64,
    /// The sum that was compared; infinite where it is out of the question.
    pub cost: f64,
}

/// How a replica would go on with a request. Ordered: the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Onward {
    /// It would carry on the part that is written, as its writer would have.
    SameGroup,
    /// It would carry on the part that is written, in its own way.
    OtherGroup,
    /// It would begin anew: nothing is written, or nobody has seen it and it is no part that this replica can carry on.
    Anew,
    /// It can't go on: the part may only be carried on by another group.
    WrongGroup,
    /// It can't go on: it does not know how to carry on an answer.
    Unable,
}

impl Onward {
    /// The name in the admin API and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SameGroup => "same_group",
            Self::OtherGroup => "other_group",
            Self::Anew => "anew",
            Self::WrongGroup => "wrong_group",
            Self::Unable => "unable",
        }
    }

    /// It would go on at all.
    pub const fn is_open(self) -> bool {
        !matches!(self, Self::WrongGroup | Self::Unable)
    }

    /// It would carry on what is written.
    pub const fn carries_on(self) -> bool {
        matches!(self, Self::SameGroup | Self::OtherGroup)
    }
}

/// One replica.
#[derive(Clone, Debug)]
pub struct ReplicaView {
    /// Which.
    pub replica: ReplicaId,
    /// Where it stands.
    pub state: ReplicaState,
    /// Since when.
    pub since: Timestamp,
    /// Why it is there.
    pub why: ChangeReason,
    /// Slots it has.
    pub slots: u16,
    /// Slots it may use now (fewer in probation, in slow start, and under a limit).
    pub usable_slots: u16,
    /// How much may be asked of it, by what it said about itself.
    pub limit: Limit,
    /// When it goes away for good, once that is near enough to matter for what is started there.
    pub ends_at: Option<Timestamp>,
    /// Running attempts.
    pub running: Vec<AttemptId>,
    /// Slots of attempts that were broken off, which may still work there.
    pub lingering: u16,
    /// Slots that work for others than us.
    pub foreign: u16,
    /// When an `Out` replica may be probed again.
    pub penalty_until: Option<Timestamp>,
    /// It said that it is full: it gets no new work before this.
    pub rests_until: Option<Timestamp>,
    /// Ejections since it was last good for a while; each doubles the next penalty.
    pub ejections: u32,
    /// Prompt tokens per second, from traffic.
    pub prefill_rate: Option<f64>,
    /// Answer tokens per second, from traffic.
    pub decode_rate: Option<f64>,
    /// Whole answers, and failed attempts, since it came up.
    pub outcomes: (u64, u64),
}

impl ReplicaView {
    /// Whether it gets new work, now or when a slot frees.
    pub fn takes_work(&self) -> bool {
        self.state.takes_work() && !self.is_paused()
    }

    /// Whether it can be counted on: it takes work, and nothing speaks against it.
    pub fn is_ready(&self) -> bool {
        self.state == ReplicaState::Ready && !self.is_paused()
    }

    /// Whether it would take work, but is spared for what its phone says about itself.
    pub fn is_paused(&self) -> bool {
        self.state.takes_work() && self.limit == Limit::Paused
    }
}

/// One live request.
#[derive(Clone, Debug)]
pub struct RequestView {
    /// Which.
    pub request: RequestId,
    /// What for.
    pub model: ModelId,
    /// Who asks.
    pub tenant: TenantId,
    /// How urgent.
    pub class: Class,
    /// Time since it arrived.
    pub age: Duration,
    /// Where it runs, its first copy if it has several; `None` while it waits.
    pub running: Option<(AttemptId, ReplicaId)>,
    /// How many copies of it run.
    pub copies: u32,
    /// Attempts so far.
    pub attempts: u32,
    /// What is written of its answer, to be carried on, as of the end of the last attempt.
    pub part: Option<Part>,
}

/// One running attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptView {
    /// Which.
    pub attempt: AttemptId,
    /// Of which request.
    pub request: RequestId,
    /// Where it runs.
    pub replica: ReplicaId,
    /// Since when.
    pub started: Timestamp,
    /// Its first token has come.
    pub writes: bool,
}
