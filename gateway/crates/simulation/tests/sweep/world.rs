//! Clients, phones, relays, operators and their accidents, all random.

use std::{collections::BTreeMap, ops::Add, time::Duration};

use scheduler::{
    AttemptId, CancelReason, Carry, ChangeReason, Class, Effect, Event, GroupId, HardFailure, Left, Limit, ModelId,
    Outcome, Part, Policy, Prefix, RelayId, Release, ReplicaId, ReplicaSpec, ReplicaState, Report, RequestId,
    RequestSpec, RouteSet, Scheduler, SchedulerConfig, Share, SoftFailure, TenantId, Timestamp, Timings,
};
use simulation::{
    driver::{Agenda, Simulation, World},
    rng::Rng,
};

use crate::shadow::{LEAST_SHOWN, Shadow};

/// Accidents and operations a seed goes through before all is left to heal.
const OPERATIONS: u32 = 400;

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Of every event and effect with its time.
    pub hash: u64,
    pub calls: u64,
    pub dispatches: u64,
    pub failovers: u64,
    pub cancels: u64,
    pub hedges: u64,
    pub hedges_lost: u64,
    pub given_back: u64,
    /// Carried on; of these by another group, and where the core had ended the attempt.
    pub carried_on: u64,
    pub by_another_group: u64,
    pub taken_over: u64,
    /// Begun anew although a part was written.
    pub begun_anew: u64,
    pub rejections: [u64; 8],
    pub drained: u64,
    pub relay_holds: u64,
    pub refunded: u64,
    pub lifted: u64,
    pub looks: u64,
    pub lingered: u64,
    pub foreign: u64,
    pub quarantined: u64,
    pub ended: u64,
    /// Given to replicas that are to be spared, or go away at a known time.
    pub to_spared: u64,
    pub to_ending: u64,
}

impl Add for Trace {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let mut rejections = self.rejections;
        rejections.iter_mut().zip(other.rejections).for_each(|(sum, more)| *sum += more);
        Self {
            hash: self.hash ^ other.hash,
            calls: self.calls + other.calls,
            dispatches: self.dispatches + other.dispatches,
            failovers: self.failovers + other.failovers,
            cancels: self.cancels + other.cancels,
            hedges: self.hedges + other.hedges,
            hedges_lost: self.hedges_lost + other.hedges_lost,
            given_back: self.given_back + other.given_back,
            carried_on: self.carried_on + other.carried_on,
            by_another_group: self.by_another_group + other.by_another_group,
            taken_over: self.taken_over + other.taken_over,
            begun_anew: self.begun_anew + other.begun_anew,
            rejections,
            drained: self.drained + other.drained,
            relay_holds: self.relay_holds + other.relay_holds,
            refunded: self.refunded + other.refunded,
            lifted: self.lifted + other.lifted,
            looks: self.looks + other.looks,
            lingered: self.lingered + other.lingered,
            foreign: self.foreign + other.foreign,
            quarantined: self.quarantined + other.quarantined,
            ended: self.ended + other.ended,
            to_spared: self.to_spared + other.to_spared,
            to_ending: self.to_ending + other.to_ending,
        }
    }
}

impl Trace {
    fn note(&mut self, now: Timestamp, what: &str) {
        for byte in now.0.to_le_bytes().into_iter().chain(what.bytes()) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// What a seed may do, with how often.
const MENU: [(Operation, u32); 15] = [
    (Operation::Arrive, 30),
    (Operation::Burst, 2),
    (Operation::Abandon, 6),
    (Operation::Add, 4),
    (Operation::Remove, 1),
    (Operation::Drain, 2),
    (Operation::Undrain, 4),
    (Operation::Limit, 4),
    (Operation::End, 3),
    (Operation::Redescribe, 2),
    (Operation::Report, 6),
    (Operation::Sicken, 10),
    (Operation::RelayFails, 4),
    (Operation::Occupy, 4),
    (Operation::Configure, 1),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Arrive,
    Burst,
    Abandon,
    Add,
    Remove,
    Drain,
    Undrain,
    Limit,
    End,
    Redescribe,
    Report,
    Sicken,
    RelayFails,
    Occupy,
    Configure,
}

/// What a phone is really like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nature {
    Good,
    Gone,
    Broken,
    Full,
    Loading,
    WrongKey,
    Unproven,
}

const ILLNESSES: [Nature; 6] =
    [Nature::Gone, Nature::Broken, Nature::Full, Nature::Loading, Nature::WrongKey, Nature::Unproven];

#[derive(Debug)]
struct Phone {
    spec: ReplicaSpec,
    nature: Nature,
    /// When work that was broken off really ends, and that of others.
    works_until: Vec<Timestamp>,
}

#[derive(Debug)]
enum Happening {
    Operate,
    FirstToken(AttemptId),
    End(AttemptId),
    Answer(ReplicaId),
    /// A look that was asked for then is answered.
    Seen(ReplicaId, Timestamp),
    /// The fleet's own look at a phone, every ten seconds or so.
    Check(ReplicaId),
    Heal(ReplicaId),
    RelayReturns(RelayId),
}

struct Sweep {
    rng: Rng,
    menu: Vec<(Operation, u32)>,
    left: u32,
    /// Random answers and outcomes, whatever the phone is like.
    noise: f64,
    phones: BTreeMap<ReplicaId, Phone>,
    relays_down: Vec<RelayId>,
    requests: u64,
    replicas: u32,
    shadow: Shadow,
    trace: Trace,
}

/// Runs a seed to its end; panics where a promise is broken.
pub fn run(seed: u64) -> Trace {
    let mut rng = Rng::new(seed, "sweep");
    let menu: Vec<_> =
        MENU.into_iter().filter(|(operation, _)| *operation == Operation::Arrive || rng.chance(0.7)).collect();
    let config = random_config(&mut rng);
    let noise = if rng.chance(0.5) { 0.1 } else { 0.0 };
    let sweep = Sweep {
        rng,
        menu,
        left: OPERATIONS,
        noise,
        phones: BTreeMap::new(),
        relays_down: Vec::new(),
        requests: 0,
        replicas: 0,
        shadow: Shadow::default(),
        trace: Trace::default(),
    };
    let mut simulation = Simulation::new(Scheduler::new(config, seed), sweep);
    for _ in 0..3 + simulation.world.rng.below(8) {
        simulation.world.add(&mut simulation.agenda);
    }
    simulation.agenda.after(Duration::ZERO, Happening::Operate);
    while simulation.world.left > 0 && simulation.step() {
        // No word comes of it where all that it has are out, or drained, already.
        if !simulation.world.shadow.relay_was_held {
            let snapshot = simulation.scheduler.snapshot(simulation.agenda.now());
            simulation.world.shadow.relay_was_held = !snapshot.relays_down.is_empty();
        }
    }
    heal_and_finish(&mut simulation);
    let shadow = &simulation.world.shadow;
    let trace = &mut simulation.world.trace;
    (trace.refunded, trace.taken_over, trace.begun_anew) = (shadow.refunded, shadow.taken_over, shadow.begun_anew);
    (trace.carried_on, trace.by_another_group) = (shadow.carried_on, shadow.by_another_group);
    (trace.to_spared, trace.to_ending) = (shadow.to_spared, shadow.to_ending);
    simulation.world.trace
}

/// Everything gets well and nothing new comes: all requests must end, all slots come back, all timers run out.
fn heal_and_finish(simulation: &mut Simulation<Sweep>) {
    simulation.world.noise = 0.0;
    simulation.world.relays_down.clear();
    let replicas: Vec<ReplicaId> = simulation.world.phones.keys().copied().collect();
    for replica in &replicas {
        let phone = simulation.world.phones.get_mut(replica).expect("listed");
        phone.nature = Nature::Good;
        phone.works_until.clear();
        simulation.tell(Event::UndrainReplica { replica: *replica });
        simulation.tell(Event::ReplicaLimited { replica: *replica, limit: Limit::None });
        simulation.tell(Event::ReplicaEnding { replica: *replica, at: None });
    }
    for _ in 0..200 {
        for replica in &replicas {
            simulation.tell(Event::ReplicaReported { replica: *replica, report: Report::Ready });
        }
        simulation.run_until(simulation.agenda.now() + Duration::from_secs(30));
        if simulation.world.shadow.live.is_empty() {
            break;
        }
    }
    let now = simulation.agenda.now();
    assert!(simulation.world.shadow.live.is_empty(), "never ended: {:?}", simulation.world.shadow.live);
    assert!(simulation.scheduler.requests(now).is_empty() && simulation.scheduler.waiting() == 0);
    let snapshot = simulation.scheduler.snapshot(now);
    assert!(snapshot.queued.is_empty() && snapshot.queued_bytes == 0 && snapshot.retries_in_flight == 0);
    assert!(snapshot.replicas.iter().all(|replica| replica.running.is_empty()));
    // Nothing shows when an engine that works on has done so, but there is a bound.
    let longest = SchedulerConfig::default().release.cap;
    simulation.run_until(now + longest);
    let mut taken = simulation.scheduler.snapshot(simulation.agenda.now()).replicas;
    taken.retain(|replica| replica.lingering + replica.foreign > 0);
    assert!(taken.is_empty(), "a slot did not come back: {taken:?}");
    for replica in replicas {
        simulation.tell(Event::ReplicaRemoved { replica });
    }
    // The last look at what waited, which has ended.
    simulation.run_until(simulation.agenda.now() + Duration::from_secs(10));
    assert_eq!(simulation.scheduler.next_deadline(), None, "a deadline of nobody is left");
}

fn random_config(rng: &mut Rng) -> SchedulerConfig {
    let mut config = SchedulerConfig::default();
    let mut seconds = |choices: &[u64]| Duration::from_secs(choices[rng.below(choices.len())]);
    config.queue.max_age = [Some(seconds(&[5, 120])), Some(seconds(&[10, 600])), None];
    config.queue.no_replica_wait = seconds(&[0, 5, 30]);
    config.queue.promote_after = seconds(&[0, 5, 60]);
    config.health.success_window = seconds(&[60, 3600]);
    config.health.relay_window = seconds(&[1, 5, 30]);
    let mut count = |choices: &[u64]| choices[rng.below(choices.len())];
    config.queue.max_requests = count(&[4, 50, 10_000]) as usize;
    config.queue.max_per_slot = count(&[2, 10]) as usize;
    config.queue.max_bytes = count(&[20_000, 1 << 28]);
    config.retry.budget_floor = count(&[0, 1, 3]) as u32;
    config.retry.max_attempts = count(&[1, 2, 3, 3]) as u32;
    config.health.hard_failures = count(&[1, 2]) as u32;
    config.health.soft_failures = count(&[1, 3]) as u32;
    let policies = [Policy::LeastWork, Policy::LeastWork, Policy::LeastBusy, Policy::RoundRobin];
    config.policy = *rng.pick(&policies).expect("a few");
    if rng.chance(0.3) {
        let share = Share { weight: 0.5 + rng.unit(), max_running: Some(1 + rng.below(4) as u32) };
        config.tenants.insert(TenantId(rng.below(3) as u32), share);
    }
    config.release.min = LEAST_SHOWN;
    config.hedge.enabled = rng.chance(0.8);
    config.hedge.give_back = rng.chance(0.8);
    config.hedge.budget_share = *rng.pick(&[0.0, 0.05, 0.5]).expect("a few");
    config
}

impl World for Sweep {
    type Happening = Happening;

    fn happen(&mut self, happening: Happening, agenda: &mut Agenda<Happening>) {
        match happening {
            Happening::Operate if self.left == 0 => {}
            Happening::Operate => {
                self.operate(agenda);
                self.left -= 1;
                let jump = self.rng.chance(0.003);
                let pause = if jump { 100.0 + self.rng.exponential(500.0) } else { self.rng.exponential(0.7) };
                agenda.after(Duration::from_secs_f64(pause), Happening::Operate);
            }
            Happening::FirstToken(attempt) => {
                if self.begins(attempt) {
                    agenda.tell(Event::FirstToken { attempt });
                }
            }
            Happening::End(attempt) => {
                if let Some(end) = self.end(attempt) {
                    agenda.tell(end);
                }
            }
            Happening::Heal(replica) => {
                if let Some(phone) = self.phones.get_mut(&replica) {
                    phone.nature = Nature::Good;
                }
            }
            Happening::RelayReturns(relay) => self.relays_down.retain(|down| *down != relay),
            Happening::Check(replica) if self.phones.contains_key(&replica) && self.left > 0 => {
                agenda.after(Duration::ZERO, Happening::Answer(replica));
                agenda.after(Duration::from_secs_f64(5.0 + self.rng.exponential(5.0)), Happening::Check(replica));
            }
            Happening::Check(_) => {}
            Happening::Answer(replica) => {
                if let Some(report) = self.answer(replica) {
                    if self.rng.chance(0.5) {
                        self.see(replica, agenda.now(), agenda);
                    }
                    agenda.tell(Event::ReplicaReported { replica, report });
                }
            }
            Happening::Seen(replica, asked) => self.see(replica, asked, agenda),
        }
    }

    fn perform(&mut self, effect: Effect, agenda: &mut Agenda<Happening>) {
        self.trace.note(agenda.now(), &format!("{effect:?}"));
        self.shadow.heard(&effect, agenda.now());
        self.leave_behind(agenda.now());
        match effect {
            Effect::Dispatch { attempt, replica, number, hedge, .. } => {
                self.trace.dispatches += 1;
                self.trace.hedges += u64::from(hedge);
                self.trace.failovers += u64::from(number > 1 && !hedge);
                let mean = if self.connects(replica) { 4.0 } else { 0.1 };
                let length = self.rng.exponential(mean);
                agenda.after(Duration::from_secs_f64(length * self.rng.unit()), Happening::FirstToken(attempt));
                agenda.after(Duration::from_secs_f64(length), Happening::End(attempt));
            }
            Effect::Probe { replica } => {
                let after = Duration::from_secs_f64(self.rng.unit() * 2.0);
                agenda.after(after, Happening::Answer(replica));
            }
            Effect::Cancel { why, .. } => {
                self.trace.cancels += 1;
                self.trace.hedges_lost += u64::from(why == CancelReason::HedgeLost);
                self.trace.given_back += u64::from(why == CancelReason::GivenBack);
            }
            Effect::Reject { reason, .. } => self.trace.rejections[reason as usize] += 1,
            Effect::Look { replica } => {
                self.trace.looks += 1;
                let answer = Happening::Seen(replica, agenda.now());
                // One in ten is never answered, and one in ten late.
                let after = if self.rng.chance(0.1) { 12.0 } else { self.rng.unit() };
                if !self.rng.chance(0.1) {
                    agenda.after(Duration::from_secs_f64(after), answer);
                }
            }
            Effect::Drained { .. } => self.trace.drained += 1,
            Effect::Changed { to, why, .. } => {
                self.trace.quarantined += u64::from(to == ReplicaState::Quarantine);
                self.trace.ended += u64::from(to == ReplicaState::Draining && why == ChangeReason::Ending);
                self.trace.relay_holds += u64::from(why == ChangeReason::RelayDown);
                self.trace.lifted += u64::from(why == ChangeReason::PoolProtection);
            }
        }
    }

    fn told(&mut self, event: &Event, now: Timestamp) {
        self.trace.calls += 1;
        self.trace.note(now, &format!("{event:?}"));
        self.shadow.told(event, now);
        self.leave_behind(now);
    }
}

impl Sweep {
    fn operate(&mut self, agenda: &mut Agenda<Happening>) {
        let replicas: Vec<ReplicaId> = self.phones.keys().copied().collect();
        let replica = self.rng.pick(&replicas).copied();
        match self.draw() {
            Operation::Arrive => self.arrive(agenda),
            Operation::Burst => (0..20).for_each(|_| self.arrive(agenda)),
            Operation::Abandon => {
                let live: Vec<RequestId> = self.shadow.live.keys().copied().collect();
                let request = self.rng.pick(&live).copied().unwrap_or(RequestId(0));
                agenda.tell(Event::RequestAbandoned { request });
            }
            Operation::Add => self.add(agenda),
            operation => {
                if let Some(replica) = replica {
                    self.operate_on(operation, replica, agenda);
                }
            }
        }
    }

    fn operate_on(&mut self, operation: Operation, replica: ReplicaId, agenda: &mut Agenda<Happening>) {
        let Some(phone) = self.phones.get_mut(&replica) else { return };
        let relay = phone.spec.relay;
        match operation {
            Operation::Remove => {
                self.phones.remove(&replica);
                agenda.tell(Event::ReplicaRemoved { replica });
            }
            Operation::Drain => {
                let wait = Duration::from_secs_f64(self.rng.exponential(5.0));
                let deadline = self.rng.chance(0.5).then(|| agenda.now() + wait);
                agenda.tell(Event::DrainReplica { replica, deadline });
            }
            Operation::Undrain => agenda.tell(Event::UndrainReplica { replica }),
            Operation::Limit => {
                let limit = *self.rng.pick(&[Limit::None, Limit::None, Limit::Fewer, Limit::Paused]).expect("a few");
                agenda.tell(Event::ReplicaLimited { replica, limit });
            }
            Operation::End => {
                let left = Duration::from_secs_f64(self.rng.exponential(20.0));
                let at = self.rng.chance(0.6).then(|| agenda.now() + left);
                agenda.tell(Event::ReplicaEnding { replica, at });
            }
            Operation::Redescribe => {
                let spec = random_spec(&mut self.rng);
                phone.spec = spec.clone();
                agenda.tell(Event::ReplicaUp { replica, spec });
            }
            Operation::Report => agenda.after(Duration::ZERO, Happening::Answer(replica)),
            Operation::Sicken => {
                phone.nature = *self.rng.pick(&ILLNESSES).expect("a few");
                agenda.after(Duration::from_secs_f64(self.rng.exponential(20.0)), Happening::Heal(replica));
            }
            Operation::RelayFails => {
                self.relays_down.push(relay);
                agenda.after(Duration::from_secs_f64(self.rng.exponential(15.0)), Happening::RelayReturns(relay));
            }
            Operation::Occupy => {
                let until = agenda.now() + Duration::from_secs_f64(self.rng.exponential(20.0));
                if let Some(phone) = self.phones.get_mut(&replica) {
                    phone.works_until.push(until);
                }
            }
            Operation::Configure => agenda.tell(Event::Configured { config: random_config(&mut self.rng) }),
            Operation::Arrive | Operation::Burst | Operation::Abandon | Operation::Add => {}
        }
    }

    fn draw(&mut self) -> Operation {
        let total: u32 = self.menu.iter().map(|(_, weight)| weight).sum();
        let mut at = self.rng.below(total as usize) as u32;
        for (operation, weight) in &self.menu {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return *operation,
            }
        }
        Operation::Arrive
    }

    fn add(&mut self, agenda: &mut Agenda<Happening>) {
        self.replicas += 1;
        let replica = ReplicaId(self.replicas);
        let spec = random_spec(&mut self.rng);
        self.phones.insert(replica, Phone { spec: spec.clone(), nature: Nature::Good, works_until: Vec::new() });
        agenda.after(Duration::from_secs_f64(self.rng.unit() * 10.0), Happening::Check(replica));
        agenda.tell(Event::ReplicaUp { replica, spec });
    }

    fn arrive(&mut self, agenda: &mut Agenda<Happening>) {
        self.requests += 1;
        let rng = &mut self.rng;
        let wait = Duration::from_secs_f64(rng.exponential(20.0));
        let spec = RequestSpec {
            model: ModelId(if rng.chance(0.9) { 1 } else { 2 + rng.below(2) as u32 }),
            route: u8::from(rng.chance(0.1)),
            tenant: TenantId(rng.below(3) as u32),
            class: Class::ALL[rng.below(3)],
            deadline: rng.chance(0.3).then(|| agenda.now() + wait),
            prompt_tokens: (rng.exponential(2000.0)) as u32,
            max_output: Some(100),
            stream: rng.chance(0.5),
            carry: *rng.pick(&[Carry::Never, Carry::SameGroup, Carry::Anyone]).expect("a few"),
            body_bytes: rng.below(5_000) as u64,
            prefix: Prefix::default(),
        };
        agenda.tell(Event::RequestArrived { request: RequestId(self.requests), spec });
    }

    /// Phones go on with what was broken off: half of them stop at once, the others as late as they like.
    fn leave_behind(&mut self, now: Timestamp) {
        for replica in std::mem::take(&mut self.shadow.broken_off) {
            let Some(phone) = self.phones.get_mut(&replica) else { continue };
            self.trace.lingered += 1;
            if self.rng.chance(0.5) {
                phone.works_until.push(now + Duration::from_secs_f64(self.rng.exponential(10.0)));
            }
        }
    }

    /// A look is answered: with what is true now, or with whatever comes to mind.
    fn see(&mut self, replica: ReplicaId, asked: Timestamp, agenda: &mut Agenda<Happening>) {
        if !self.connects(replica) {
            return;
        }
        let now = agenda.now();
        let Some(phone) = self.phones.get_mut(&replica) else { return };
        phone.works_until.retain(|until| *until > now);
        let ours = self.shadow.replicas.get(&replica).map_or(0, |replica| replica.running);
        let busy = (ours + phone.works_until.len()).min(usize::from(phone.spec.slots)) as u16;
        let busy = if self.rng.chance(self.noise) { self.rng.below(6) as u16 } else { busy };
        self.trace.foreign += u64::from(usize::from(busy) > ours);
        agenda.tell(Event::SlotsSeen { replica, busy, asked });
    }

    fn connects(&self, replica: ReplicaId) -> bool {
        let phone = self.phones.get(&replica);
        phone.is_some_and(|phone| phone.nature != Nature::Gone && !self.relays_down.contains(&phone.spec.relay))
    }

    /// Whether an attempt gets as far as its first token.
    fn begins(&mut self, attempt: AttemptId) -> bool {
        let Some(replica) = self.shadow.running.get(&attempt).map(|running| running.replica) else { return false };
        let nature = self.phones.get(&replica).map(|phone| phone.nature);
        self.connects(replica)
            && match nature {
                Some(Nature::Good | Nature::Unproven) => self.rng.chance(0.8),
                Some(Nature::Broken) => self.rng.chance(0.3),
                _ => false,
            }
    }

    /// How an attempt ends, if it still runs.
    fn end(&mut self, attempt: AttemptId) -> Option<Event> {
        let running = self.shadow.running.get(&attempt)?;
        let (replica, first_token) = (running.replica, running.first_token);
        let nature = self.phones.get(&replica)?.nature;
        let outcome = if self.rng.chance(self.noise) {
            random_outcome(&mut self.rng)
        } else if !self.connects(replica) {
            if first_token {
                Outcome::Soft(SoftFailure::Broken)
            } else {
                let kinds = [HardFailure::Connect, HardFailure::Connect, HardFailure::Tls, HardFailure::Reset];
                Outcome::Hard(kinds[self.rng.below(4)])
            }
        } else {
            match nature {
                Nature::Good | Nature::Gone | Nature::Unproven => Outcome::Success,
                Nature::Broken => {
                    let kinds = [SoftFailure::Status, SoftFailure::BadAnswer, SoftFailure::Stalled];
                    Outcome::Soft(kinds[self.rng.below(3)])
                }
                Nature::Full => {
                    let retry_after = self.rng.chance(0.5).then(|| Duration::from_secs(self.rng.below(20) as u64));
                    Outcome::Soft(SoftFailure::Busy { retry_after })
                }
                Nature::Loading => Outcome::Loading,
                Nature::WrongKey => Outcome::Misconfigured,
            }
        };
        let timings = (outcome == Outcome::Success).then(|| Timings {
            prefill_tokens: 500,
            prefill: Duration::from_secs_f64(1.0 + self.rng.exponential(4.0)),
            decode_tokens: 100,
            decode: Duration::from_secs_f64(1.0 + self.rng.exponential(4.0)),
            cached_tokens: 0,
            by_engine: true,
        });
        let left = match outcome {
            Outcome::Success if first_token => Left::Closed,
            _ => self.left(attempt, first_token),
        };
        Some(Event::AttemptEnded { attempt, outcome, left, timings })
    }

    /// What an attempt that failed leaves.
    fn left(&mut self, attempt: AttemptId, first_token: bool) -> Left {
        let rng = &mut self.rng;
        let before = self.shadow.part(attempt);
        let by = *rng.pick(&[Carry::SameGroup, Carry::Anyone, Carry::Anyone]).expect("a few");
        let noise = rng.chance(self.noise);
        if !first_token && !noise {
            // It added nothing, which may be said in two ways.
            return before.filter(|_| rng.chance(0.5)).map_or(Left::Nothing, Left::Part);
        }
        let by = if noise { Carry::Never } else { by };
        let seen = rng.chance(0.6) || before.is_some_and(|part| part.seen);
        let more = if rng.chance(0.7) { 1 + rng.below(40) as u32 } else { 0 };
        match rng.below(10) {
            0 | 1 => Left::Closed,
            2 if before.is_none() => Left::Nothing,
            _ => Left::Part(Part { tokens: before.map_or(0, |part| part.tokens) + more, seen, by }),
        }
    }

    fn answer(&mut self, replica: ReplicaId) -> Option<Report> {
        let nature = self.phones.get(&replica)?.nature;
        if self.rng.chance(self.noise) {
            let reports = [
                Report::Ready,
                Report::Loading,
                Report::Misconfigured,
                Report::Unproven,
                Report::Unreachable,
                Report::NotThere,
                Report::Closed,
                Report::Failing,
                Report::TimedOut,
            ];
            return self.rng.pick(&reports).cloned();
        }
        if !self.connects(replica) {
            let (of_relay, of_phone) = ([Report::Unreachable, Report::NotThere], [Report::NotThere, Report::Closed]);
            let by_itself = nature == Nature::Gone && self.rng.chance(0.5);
            let reports = if by_itself { of_phone } else { of_relay };
            let report = reports[usize::from(self.rng.chance(0.1))].clone();
            return Some(if self.rng.chance(0.95) { report } else { Report::TimedOut });
        }
        Some(match nature {
            Nature::Good | Nature::Gone => Report::Ready,
            Nature::Broken => Report::Failing,
            Nature::Full => Report::TimedOut,
            Nature::Loading => Report::Loading,
            Nature::WrongKey => Report::Misconfigured,
            Nature::Unproven => Report::Unproven,
        })
    }
}

fn random_spec(rng: &mut Rng) -> ReplicaSpec {
    let models = match rng.below(10) {
        0 => Vec::new(),
        1 => vec![ModelId(1), ModelId(2)],
        2 => vec![ModelId(2)],
        _ => vec![ModelId(1)],
    };
    ReplicaSpec {
        models,
        routes: RouteSet(if rng.chance(0.7) { 3 } else { 1 }),
        slots: 1 + rng.below(4) as u16,
        context_tokens: *rng.pick(&[None, Some(2048), Some(4096), Some(8192)]).expect("a few"),
        relay: RelayId(1 + u32::from(rng.chance(0.1))),
        prior: None,
        carries_on: rng.chance(0.7),
        group: *rng.pick(&[None, Some(GroupId(1)), Some(GroupId(1)), Some(GroupId(2))]).expect("a few"),
        release: *rng.pick(&[Release::AtOnce, Release::Shown, Release::Shown, Release::RunsOn]).expect("a few"),
    }
}

fn random_outcome(rng: &mut Rng) -> Outcome {
    let outcomes = [
        Outcome::Success,
        Outcome::Hard(HardFailure::Connect),
        Outcome::Hard(HardFailure::Tls),
        Outcome::Hard(HardFailure::Reset),
        Outcome::Soft(SoftFailure::Status),
        Outcome::Soft(SoftFailure::Busy { retry_after: None }),
        Outcome::Soft(SoftFailure::BadAnswer),
        Outcome::Soft(SoftFailure::Broken),
        Outcome::Soft(SoftFailure::NoFirstToken),
        Outcome::Soft(SoftFailure::Stalled),
        Outcome::RequestFault,
        Outcome::ContextExceeded,
        Outcome::Loading,
        Outcome::Misconfigured,
    ];
    outcomes[rng.below(outcomes.len())]
}
