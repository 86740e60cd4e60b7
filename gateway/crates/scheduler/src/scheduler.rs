//! The type that the driver holds: routes events and deadlines to what they concern, then settles what they changed.
//!
//! Settling has one purpose: afterwards no free slot is left that a waiting request may use. Events mark what they touched
//! (replicas with new room, models whose members changed, budget that was missing) and only that is looked at.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    config::SchedulerConfig,
    effect::Effect,
    event::Event,
    evidence::Evidence,
    id::{AttemptId, ModelId, ReplicaId, RequestId, TenantId},
    insight::Insight,
    invariants,
    learned::Learned,
    pool::Pool,
    queue::Queue,
    request::{Attempt, Request},
    retry::RetryBudget,
    rng::Rng,
    tally::Tally,
    time::Timestamp,
    timer::{Timer, Timers},
};

/// Decides which request runs where and when.
///
/// The driver stamps the time, tells events with [`handle`](Self::handle), calls [`advance`](Self::advance) no later than
/// [`next_deadline`](Self::next_deadline), and after each of both performs what [`poll_effect`](Self::poll_effect) gives, in
/// that order, until it gives `None`. Time may not go back; where it does, the latest time seen counts. Nothing here
/// fails: a refused request is an [`Effect::Reject`].
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) rng: Rng,
    pub(crate) pool: Pool,
    pub(crate) queue: Queue,
    pub(crate) requests: BTreeMap<RequestId, Request>,
    pub(crate) attempts: BTreeMap<AttemptId, Attempt>,
    /// Requests in `Phase::Parked`.
    pub(crate) parked: BTreeSet<RequestId>,
    pub(crate) timers: Timers,
    pub(crate) budget: RetryBudget,
    /// Running copies beyond their requests' first.
    pub(crate) hedges: u32,
    /// A retry was passed over for want of budget.
    pub(crate) starved: bool,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) arrivals: u64,
    pub(crate) dispatches: u64,
    pub(crate) now: Timestamp,
    pub(crate) tally: Tally,
    pub(crate) learned: BTreeMap<ModelId, Learned>,
    /// Slots that each tenant holds.
    pub(crate) running_of: BTreeMap<TenantId, u32>,
    /// Models with a tick to come.
    pub(crate) ticking: BTreeSet<ModelId>,
    /// The largest contexts by route as they were when the members of a model last changed.
    pub(crate) fit_seen: BTreeMap<ModelId, [Option<u32>; 16]>,
    /// For the requests that a slot looks at; kept for its memory.
    pub(crate) window: Vec<RequestId>,
    /// What a simulation knows; `None` in life.
    pub(crate) insight: Option<Box<dyn Insight>>,
    /// The bounds were lowered, so the queue may be above them.
    pub(crate) reconfigured: bool,
}

impl Scheduler {
    /// An empty pool. Runs with the same seed and the same calls are the same.
    pub fn new(config: SchedulerConfig, seed: u64) -> Self {
        Self {
            config,
            rng: Rng::new(seed),
            pool: Pool::default(),
            queue: Queue::default(),
            requests: BTreeMap::new(),
            attempts: BTreeMap::new(),
            parked: BTreeSet::new(),
            timers: Timers::default(),
            budget: RetryBudget::default(),
            hedges: 0,
            starved: false,
            effects: VecDeque::new(),
            arrivals: 0,
            dispatches: 0,
            now: Timestamp::ZERO,
            tally: Tally::default(),
            learned: BTreeMap::new(),
            running_of: BTreeMap::new(),
            ticking: BTreeSet::new(),
            fit_seen: BTreeMap::new(),
            window: Vec::new(),
            insight: None,
            reconfigured: false,
        }
    }

    /// The same, but it knows what it would otherwise estimate: the mark that estimates are measured against.
    pub fn with_insight(self, insight: Box<dyn Insight>) -> Self {
        Self { insight: Some(insight), ..self }
    }

    /// Something happened at `now`. Deadlines up to `now` are over before it.
    pub fn handle(&mut self, event: Event, now: Timestamp) {
        let now = self.clock(now);
        self.fire(now);
        match event {
            Event::RequestArrived { request, spec } => self.arrive(request, spec, now),
            Event::RequestAbandoned { request } => self.abandon(request, now),
            Event::Progress { attempt, read_tokens, cached_tokens } => {
                self.progress(attempt, read_tokens, cached_tokens, now);
            }
            Event::FirstToken { attempt } => self.first_token(attempt, now),
            Event::AttemptEnded { attempt, outcome, left, timings } => {
                self.attempt_ended(attempt, outcome, left, timings, now);
            }
            Event::SlotsSeen { replica, busy, asked } => self.slots_seen(replica, busy, asked, now),
            Event::ReplicaUp { replica, spec } => self.replica_up(replica, spec, now),
            Event::ReplicaReported { replica, report } => self.reported(replica, &report, now),
            Event::ReplicaMoved { replica } => self.replica_moved(replica, now),
            Event::ReplicaRemoved { replica } => self.remove_replica(replica, now),
            Event::DrainReplica { replica, deadline } => self.drain(replica, deadline, now),
            Event::UndrainReplica { replica } => self.undrain(replica, now),
            Event::ReplicaLimited { replica, limit } => self.limit(replica, limit),
            Event::ReplicaEnding { replica, at } => self.ends(replica, at, now),
            Event::Configured { config } => self.configure(config, now),
        }
        self.settle(now);
        self.fire(now);
        invariants::check(self, now);
    }

    /// Time passed: fires every deadline at or before `now`.
    pub fn advance(&mut self, now: Timestamp) {
        let now = self.clock(now);
        self.fire(now);
        invariants::check(self, now);
    }

    /// The next thing to do; drain until `None`.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to call [`advance`](Self::advance) if nothing happens before.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.timers.next()
    }

    fn clock(&mut self, now: Timestamp) -> Timestamp {
        self.now = self.now.max(now);
        self.now
    }

    fn fire(&mut self, now: Timestamp) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Request(request) => self.request_due(request, now),
                Timer::Probe(replica) => self.observe(replica, Evidence::ProbeDue, now),
                Timer::Rested(replica) => self.rested(replica),
                Timer::Drain(replica) => self.drain_due(replica, now),
                Timer::End(replica) => self.end_due(replica),
                Timer::Late(attempt) => self.late(attempt, now),
                Timer::Tick(model) => self.tick(model, now),
                Timer::Look(replica) => self.look_due(replica, now),
                Timer::Bound(replica) => self.bound_due(replica, now),
            }
            self.settle(now);
        }
    }

    fn settle(&mut self, now: Timestamp) {
        loop {
            if std::mem::take(&mut self.pool.unknown_changed) {
                self.pool.dirty.extend(self.queue.models.keys());
            }
            if let Some(model) = self.pool.dirty.pop_first() {
                self.reassess(model, now);
            } else if let Some(replica) = self.pool.woken.pop_first() {
                self.fill(replica, now);
            } else if self.starved && self.budget.has_room(&self.config.retry) {
                self.starved = false;
                self.place_retries(now);
            } else {
                return;
            }
        }
    }

    fn configure(&mut self, config: SchedulerConfig, now: Timestamp) {
        self.reconfigured = true;
        let policy = config.policy;
        self.config = config;
        self.pool.rank_all(policy, &mut self.rng);
        for request in self.requests.keys().copied().collect::<Vec<_>>() {
            self.schedule(request);
        }
        for replica in self.pool.replicas.keys().copied().collect::<Vec<ReplicaId>>() {
            self.observe(replica, Evidence::Configured, now);
        }
        self.pool.dirty.extend(self.pool.models.keys());
    }
}
