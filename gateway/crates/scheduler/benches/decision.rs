//! What one decision costs at 1,000 replicas of 1 to 4 slots with 5,000 requests waiting: `cargo bench -p scheduler`.
//!
//! Plain timing of each call (the event, and taking its effects), with the quantiles of all of them: what matters is
//! the slowest decision in a hundred, which a mean of loops does not show.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use scheduler::{
    AttemptId, Carry, Class, Effect, Event, HardFailure, Left, ModelId, Outcome, Prefix, RelayId, Release, ReplicaId,
    ReplicaSpec, Report, RequestId, RequestSpec, RouteSet, Scheduler, SchedulerConfig, SoftFailure, TenantId,
    Timestamp, Timings,
};

const REPLICAS: u32 = 1_000;
const WAITING: usize = 5_000;
/// Calls measured of each kind.
const ROUNDS: usize = 5_000;

struct Bench {
    core: Scheduler,
    now: Timestamp,
    running: BTreeSet<AttemptId>,
    probes: Vec<ReplicaId>,
    requests: u64,
    random: u64,
}

impl Bench {
    fn new() -> Self {
        let core = Scheduler::new(SchedulerConfig::default(), 1);
        let mut bench =
            Self { core, now: Timestamp::ZERO, running: BTreeSet::new(), probes: Vec::new(), requests: 0, random: 1 };
        for id in 0..REPLICAS {
            let replica = ReplicaId(id);
            let spec = ReplicaSpec {
                models: vec![ModelId(1)],
                routes: RouteSet(3),
                slots: 1 + (id % 4) as u16,
                context_tokens: Some([4096, 8192, 32_768][id as usize % 3]),
                relay: RelayId(1),
                prior: None,
                carries_on: false,
                group: None,
                release: Release::AtOnce,
            };
            bench.tell(Event::ReplicaUp { replica, spec });
            bench.tell(Event::ReplicaReported { replica, report: Report::Ready });
        }
        bench
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    /// Says it, and returns how long that and the hearing took.
    fn tell(&mut self, event: Event) -> Duration {
        self.now += Duration::from_millis(2);
        let begin = clock();
        self.core.handle(event, self.now);
        let mut effects = Vec::new();
        while let Some(effect) = self.core.poll_effect() {
            effects.push(effect);
        }
        let took = begin.elapsed_until(clock());
        for effect in effects {
            match effect {
                Effect::Dispatch { attempt, .. } => {
                    self.running.insert(attempt);
                }
                Effect::Probe { replica } => self.probes.push(replica),
                Effect::Cancel { attempt, .. } => {
                    self.running.remove(&attempt);
                }
                _ => {}
            }
        }
        took
    }

    /// Phones come back and work gets done between two measured failures, as it would.
    fn recover(&mut self) {
        for replica in std::mem::take(&mut self.probes) {
            self.tell(Event::ReplicaReported { replica, report: Report::Ready });
        }
        for _ in 0..10 {
            self.end(Outcome::Success);
            self.fill();
        }
    }

    fn arrive(&mut self) -> Duration {
        self.requests += 1;
        let spec = RequestSpec {
            model: ModelId(1),
            route: self.below(2) as u8,
            tenant: TenantId(1),
            class: Class::ALL[self.below(3) as usize],
            deadline: Some(self.now + Duration::from_secs(3600)),
            prompt_tokens: self.below(12_000) as u32,
            max_output: Some(200),
            stream: false,
            carry: Carry::Never,
            body_bytes: 10_000,
            prefix: Prefix::default(),
        };
        self.tell(Event::RequestArrived { request: RequestId(self.requests), spec })
    }

    fn end(&mut self, outcome: Outcome) -> Duration {
        let at = self.below(self.running.len() as u64) as usize;
        let attempt = self.running.iter().nth(at).copied().expect("something runs");
        self.running.remove(&attempt);
        let timings = (outcome == Outcome::Success).then(|| Timings {
            prefill_tokens: 1000,
            prefill: Duration::from_millis(2_000 + self.below(20_000)),
            decode_tokens: 200,
            decode: Duration::from_millis(5_000 + self.below(20_000)),
            cached_tokens: 0,
            by_engine: true,
        });
        self.tell(Event::AttemptEnded { attempt, outcome, left: Left::Nothing, timings })
    }

    fn fill(&mut self) {
        while self.core.waiting() < WAITING {
            self.arrive();
        }
    }

    fn measure(&mut self, name: &str, mut decide: impl FnMut(&mut Self) -> Duration) {
        let mut times: Vec<Duration> = (0..ROUNDS).map(|_| decide(self)).collect();
        times.sort_unstable();
        let quantile = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_nanos();
        let (p50, p99, p999, max) = (quantile(0.5), quantile(0.99), quantile(0.999), quantile(1.0));
        print(&format!("{name:<34} p50 {p50:>7} ns   p99 {p99:>7} ns   p99.9 {p999:>8} ns   max {max:>9} ns"));
    }
}

struct Moment(Instant);

impl Moment {
    fn elapsed_until(self, end: Self) -> Duration {
        end.0 - self.0
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench measures real time; the core it measures never sees it")]
fn clock() -> Moment {
    Moment(Instant::now())
}

#[expect(clippy::disallowed_macros, reason = "a bench is run to be read")]
fn print(line: &str) {
    println!("{line}");
}

fn main() {
    let mut idle = Bench::new();
    idle.measure("arrival, idle pool: placed", |bench| {
        let took = bench.arrive();
        while bench.running.len() > 200 {
            bench.end(Outcome::Success);
        }
        took
    });
    let mut full = Bench::new();
    full.fill();
    full.measure("arrival, 5,000 wait: queued", |bench| {
        let took = bench.arrive();
        while bench.core.waiting() > WAITING {
            bench.end(Outcome::Success);
        }
        took
    });
    full.fill();
    full.measure("completion, 5,000 wait: next placed", |bench| {
        let took = bench.end(Outcome::Success);
        bench.fill();
        took
    });
    full.measure("hard failure, 5,000 wait: failover", |bench| {
        let took = bench.end(Outcome::Hard(HardFailure::Reset));
        bench.recover();
        took
    });
    full.measure("connect failure, 5,000 wait", |bench| {
        let took = bench.end(Outcome::Hard(HardFailure::Connect));
        bench.recover();
        took
    });
    full.measure("soft failure, 5,000 wait: failover", |bench| {
        let took = bench.end(Outcome::Soft(SoftFailure::Status));
        bench.recover();
        took
    });
}
