//! A scheduler with a hand-held clock, and what a test says to it and hears from it.

use std::time::Duration;

use scheduler::{
    AttemptId, CancelReason, Carry, ChangeReason, Class, Effect, Event, HardFailure, Left, ModelId, Outcome, Policy,
    Prefix, RelayId, Release, ReplicaId, ReplicaSpec, ReplicaState, ReplicaView, Report, RequestId, RequestSpec,
    RouteSet, Scheduler, SchedulerConfig, ShedReason, SoftFailure, TenantId, Timestamp,
};

pub const MODEL: ModelId = ModelId(1);
pub const CONNECT: Outcome = Outcome::Hard(HardFailure::Connect);
pub const CERTIFICATE: Outcome = Outcome::Hard(HardFailure::Certificate);
pub const RESET: Outcome = Outcome::Hard(HardFailure::Reset);
pub const STATUS: Outcome = Outcome::Soft(SoftFailure::Status);

pub struct Rig {
    pub core: Scheduler,
    pub now: Timestamp,
    effects: Vec<Effect>,
    requests: u64,
}

/// The plain policy: most rules are about what happens to requests and replicas, not about who goes where.
pub fn config() -> SchedulerConfig {
    SchedulerConfig { policy: Policy::LeastBusy, ..SchedulerConfig::default() }
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn spec(slots: u16) -> ReplicaSpec {
    ReplicaSpec {
        models: vec![MODEL],
        routes: RouteSet(1),
        slots,
        context_tokens: Some(8192),
        relay: RelayId(1),
        prior: None,
        carries_on: false,
        group: None,
        release: Release::AtOnce,
    }
}

pub fn request() -> RequestSpec {
    RequestSpec {
        model: MODEL,
        route: 0,
        tenant: TenantId(1),
        class: Class::Standard,
        deadline: None,
        prompt_tokens: 100,
        max_output: Some(100),
        stream: false,
        carry: Carry::Never,
        body_bytes: 1000,
        prefix: Prefix::default(),
    }
}

impl Rig {
    pub fn new(config: SchedulerConfig) -> Self {
        Self::seeded(config, 1)
    }

    pub fn seeded(config: SchedulerConfig, seed: u64) -> Self {
        Self { core: Scheduler::new(config, seed), now: Timestamp::ZERO, effects: Vec::new(), requests: 0 }
    }

    /// With that many ready replicas of one slot, each behind its own relay.
    pub fn with_replicas(config: SchedulerConfig, replicas: u32) -> Self {
        let mut rig = Self::new(config);
        for id in 1..=replicas {
            rig.ready(id, ReplicaSpec { relay: RelayId(id), ..spec(1) });
        }
        rig
    }

    pub fn tell(&mut self, event: Event) {
        self.core.handle(event, self.now);
        self.collect();
    }

    /// Lets time pass, firing each deadline at its time, as a driver does.
    pub fn pass(&mut self, length: Duration) {
        let end = self.now + length;
        while let Some(at) = self.core.next_deadline().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.core.advance(self.now);
            self.collect();
        }
        self.now = end;
        self.core.advance(end);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            self.effects.push(effect);
        }
    }

    /// Everything heard since the last call.
    pub fn heard(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub fn ready(&mut self, id: u32, spec: ReplicaSpec) {
        self.tell(Event::ReplicaUp { replica: ReplicaId(id), spec });
        self.report(id, Report::Ready);
        self.heard();
    }

    pub fn report(&mut self, id: u32, report: Report) {
        self.tell(Event::ReplicaReported { replica: ReplicaId(id), report });
    }

    pub fn ask(&mut self, spec: RequestSpec) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.tell(Event::RequestArrived { request, spec });
        request
    }

    /// Asks, and expects to be placed at once.
    pub fn place(&mut self, spec: RequestSpec) -> (RequestId, AttemptId, u32) {
        let request = self.ask(spec);
        let (attempt, replica) = self.dispatched(request).expect("the request should be placed at once");
        (request, attempt, replica)
    }

    /// Where a request was sent since the last look at the effects.
    pub fn dispatched(&mut self, wanted: RequestId) -> Option<(AttemptId, u32)> {
        self.heard().into_iter().find_map(|effect| match effect {
            Effect::Dispatch { request, attempt, replica, .. } if request == wanted => Some((attempt, replica.0)),
            _ => None,
        })
    }

    pub fn rejected(&mut self, wanted: RequestId) -> Option<(ShedReason, Duration)> {
        self.heard().into_iter().find_map(|effect| match effect {
            Effect::Reject { request, reason, retry_after } if request == wanted => Some((reason, retry_after)),
            _ => None,
        })
    }

    pub fn cancelled(&mut self) -> Vec<(AttemptId, CancelReason)> {
        let cancel = |effect| match effect {
            Effect::Cancel { attempt, why, .. } => Some((attempt, why)),
            _ => None,
        };
        self.heard().into_iter().filter_map(cancel).collect()
    }

    pub fn probes(&mut self) -> Vec<u32> {
        let probe = |effect| match effect {
            Effect::Probe { replica } => Some(replica.0),
            _ => None,
        };
        self.heard().into_iter().filter_map(probe).collect()
    }

    /// Which replicas are to be looked at since the last look at the effects.
    pub fn looks(&mut self) -> Vec<u32> {
        let look = |effect| match effect {
            Effect::Look { replica } => Some(replica.0),
            _ => None,
        };
        self.heard().into_iter().filter_map(look).collect()
    }

    /// A look shows so many slots at work; it was asked for and answered now.
    pub fn seen(&mut self, id: u32, busy: u16) {
        self.tell(Event::SlotsSeen { replica: ReplicaId(id), busy, asked: self.now });
    }

    pub fn changes(&mut self) -> Vec<(u32, ReplicaState, ChangeReason)> {
        let change = |effect| match effect {
            Effect::Changed { replica, to, why, .. } => Some((replica.0, to, why)),
            _ => None,
        };
        self.heard().into_iter().filter_map(change).collect()
    }

    pub fn end(&mut self, attempt: AttemptId, outcome: Outcome) {
        self.tell(Event::AttemptEnded { attempt, outcome, left: Left::Nothing, timings: None });
    }

    /// One request that fails, or not, on the only free replica.
    pub fn serve(&mut self, outcome: Outcome) -> u32 {
        let (request, attempt, replica) = self.place(request());
        self.end(attempt, outcome);
        self.tell(Event::RequestAbandoned { request });
        replica
    }

    pub fn view(&self, id: u32) -> ReplicaView {
        self.core.replica(ReplicaId(id), self.now).expect("the replica should be known")
    }

    pub fn state(&self, id: u32) -> ReplicaState {
        self.view(id).state
    }
}
