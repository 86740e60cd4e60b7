//! What the core has learned of one model: how its replicas slow down, how long its answers are, what its prompts share,
//! how much work arrives. Kept when the last replica goes, so that a pool that comes back does not start from nothing.

use crate::{
    event::Class,
    fair::Fair,
    id::ReplicaId,
    learning::{Decayed, Outputs, PoolHazard, Reserve, Shape, TokenRatio},
    placement::Profiles,
    speed::LogMean,
    time::Timestamp,
    usage::Ledger,
    warmth::Index,
};

/// How far back the rate of arriving work looks: long enough for a mean, short enough for the hour of the day.
const DEMAND_SECONDS: f64 = 600.0;

/// Arrivals are taken to be spread over this many seconds at least.
const SHORTEST_HISTORY: f64 = 60.0;

/// Everything learned of a model.
#[derive(Debug)]
pub(crate) struct Learned {
    pub(crate) shape: Shape,
    pub(crate) tokens: TokenRatio,
    pub(crate) outputs: Outputs,
    pub(crate) index: Index,
    pub(crate) hazard: PoolHazard,
    pub(crate) fair: Fair,
    pub(crate) reserve: Reserve,
    /// The replicas kept free for urgent work now, and since when.
    pub(crate) reserved: Vec<ReplicaId>,
    pub(crate) reserved_at: Timestamp,
    /// Work that arrives, by class, in seconds of a typical replica.
    demand: [Decayed; Class::ALL.len()],
    /// Work that requests turned out to be over what was planned on their arrival, by class.
    plan_errors: [LogMean; Class::ALL.len()],
    /// When the first request came.
    pub(crate) since: Timestamp,
    pub(crate) profiles: Profiles,
    /// Seconds that attempts took over those they should have taken alone.
    pub(crate) pace: LogMean,
    /// Seconds of a typical replica's work that the pool does per second, and when that was worked out.
    pub(crate) throughput: Option<f64>,
    pub(crate) throughput_at: Timestamp,
    /// Counts the looks at slots that were left free.
    pub(crate) tick: usize,
    /// Turns that less urgent classes have earned by waiting while more urgent ones were served.
    pub(crate) credit: [f64; Class::ALL.len()],
    /// What was asked, and what became of it.
    pub(crate) ledger: Ledger,
}

impl Learned {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            shape: Shape::default(),
            tokens: TokenRatio::default(),
            outputs: Outputs::default(),
            index: Index::default(),
            hazard: PoolHazard::default(),
            fair: Fair::default(),
            reserve: Reserve::default(),
            reserved: Vec::new(),
            reserved_at: Timestamp::ZERO,
            plan_errors: Default::default(),
            demand: [(); Class::ALL.len()].map(|()| Decayed::new(DEMAND_SECONDS)),
            since: now,
            profiles: Profiles::default(),
            pace: LogMean::default(),
            throughput: None,
            throughput_at: Timestamp::ZERO,
            tick: 0,
            credit: [0.0; Class::ALL.len()],
            ledger: Ledger::default(),
        }
    }

    /// Work of a request, in seconds of a replica with these rates (tokens per second), its shared prefix warm.
    pub(crate) fn work(&self, shared: f64, tokens: f64, output: f64, (prefill, decode): (f64, f64)) -> f64 {
        let reading = self.shape.prefill_work(shared.min(tokens - 1.0), tokens) / prefill;
        self.shape.overhead() + reading + self.shape.decode_work(tokens, output) / decode
    }

    /// Work arrived.
    pub(crate) fn note_demand(&mut self, class: Class, work: f64, now: Timestamp) {
        if let Some(demand) = self.demand.get_mut(class as usize) {
            demand.add(work, now);
        }
    }

    /// Seconds over which arrivals are spread: since the first request, but a few that come together at the start say
    /// nothing about how many will.
    pub(crate) fn age(&self, now: Timestamp) -> f64 {
        now.since(self.since).as_secs_f64().max(SHORTEST_HISTORY)
    }

    /// A request turned out to be that many times the work that was planned.
    pub(crate) fn note_plan(&mut self, class: Class, ratio: f64) {
        if let Some(error) = self.plan_errors.get_mut(class as usize) {
            error.add(ratio);
        }
    }

    /// How many times the planned work requests of a class turned out to be lately.
    pub(crate) fn plan_error(&self, class: Class) -> f64 {
        self.plan_errors.get(class as usize).and_then(LogMean::get).unwrap_or(1.0)
    }

    /// Work that arrives per second of that class and the more urgent ones.
    pub(crate) fn demand(&self, class: Class, now: Timestamp) -> f64 {
        let age = self.age(now);
        self.demand.iter().take(class as usize + 1).map(|demand| demand.rate(now, age)).sum()
    }
}
