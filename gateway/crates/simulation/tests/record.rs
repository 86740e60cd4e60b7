//! A record of a run is played again to the same effects; one that was tampered with is not.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use scheduler::{
    AttemptId, CancelReason, Carry, ChangeReason, Class, Effect, Event, GroupId, HardFailure, Left, Limit, ModelId,
    Outcome, Part, Prefix, Rates, RelayId, Release, ReplicaId, ReplicaSpec, ReplicaState, Report, RequestId,
    RequestSpec, RouteSet, Scheduler, SchedulerConfig, Share, ShedReason, SoftFailure, TenantId, Timestamp, Timings,
};
use simulation::{
    driver::{Agenda, Simulation, World},
    record::{RecordError, Recorder, Replayed, replay},
    rng::Rng,
};

const REPLICAS: u32 = 6;
const REQUESTS: u64 = 400;

enum Happening {
    Ask,
    Read(AttemptId),
    FirstToken(AttemptId),
    End(AttemptId, Outcome),
    Report(ReplicaId, Report),
    Leave(RequestId),
}

const BROKEN: Outcome = Outcome::Soft(SoftFailure::Broken);

/// Phones that answer, fail and vanish at random, clients that sometimes leave, and a record of it all.
struct Noisy {
    chance: Rng,
    asked: u64,
    answered: u64,
    carried_on: u64,
    requests: BTreeMap<AttemptId, RequestId>,
    written: BTreeMap<RequestId, u32>,
    recorder: Recorder<Vec<u8>>,
}

impl Noisy {
    /// A part that was seen, longer each time.
    fn left(&mut self, attempt: AttemptId) -> Left {
        let tokens = self.written.entry(self.requests[&attempt]).or_default();
        *tokens += 7;
        Left::Part(Part { tokens: *tokens, seen: true, by: Carry::SameGroup })
    }

    fn spec(&mut self) -> RequestSpec {
        let shared = self.chance.below(3) as u64;
        let own = self.chance.bits();
        RequestSpec {
            model: ModelId(1),
            route: 0,
            tenant: TenantId(1 + self.chance.below(2) as u32),
            class: *self.chance.pick(&Class::ALL).expect("one of three"),
            deadline: None,
            prompt_tokens: 500 + self.chance.below(3000) as u32,
            max_output: Some(100),
            stream: self.chance.chance(0.5),
            carry: Carry::SameGroup,
            body_bytes: 4000,
            prefix: Prefix::new((0..20).map(|cut| if cut < 15 { shared << 32 | cut } else { own ^ cut })),
        }
    }
}

impl World for Noisy {
    type Happening = Happening;

    fn happen(&mut self, happening: Happening, agenda: &mut Agenda<Happening>) {
        match happening {
            Happening::Ask => {
                self.asked += 1;
                let request = RequestId(self.asked);
                let spec = self.spec();
                agenda.tell(Event::RequestArrived { request, spec });
                if self.chance.chance(0.1) {
                    agenda.after(Duration::from_secs(5), Happening::Leave(request));
                }
                if self.asked < REQUESTS {
                    agenda.after(Duration::from_secs_f64(self.chance.exponential(0.9)), Happening::Ask);
                }
            }
            Happening::Read(attempt) => {
                agenda.tell(Event::Progress { attempt, read_tokens: 700, cached_tokens: 480 });
            }
            Happening::FirstToken(attempt) => agenda.tell(Event::FirstToken { attempt }),
            Happening::End(attempt, outcome) => {
                self.answered += u64::from(outcome == Outcome::Success);
                let timings = (outcome == Outcome::Success).then_some(Timings {
                    prefill_tokens: 1000,
                    prefill: Duration::from_millis(2345),
                    decode_tokens: 50,
                    decode: Duration::from_millis(4321),
                    cached_tokens: 480,
                    by_engine: true,
                });
                let left = if outcome == BROKEN { self.left(attempt) } else { Left::Nothing };
                agenda.tell(Event::AttemptEnded { attempt, outcome, left, timings });
            }
            Happening::Report(replica, report) => agenda.tell(Event::ReplicaReported { replica, report }),
            Happening::Leave(request) => agenda.tell(Event::RequestAbandoned { request }),
        }
    }

    fn perform(&mut self, effect: Effect, agenda: &mut Agenda<Happening>) {
        self.recorder.effect(&effect).expect("memory takes it");
        match effect {
            Effect::Dispatch { request, attempt, carries_on, .. } => {
                self.requests.insert(attempt, request);
                self.carried_on += u64::from(carries_on);
                let (outcome, length) = match self.chance.below(20) {
                    0 => (Outcome::Hard(HardFailure::Connect), 0.01),
                    1 => (Outcome::Soft(SoftFailure::Busy { retry_after: Some(Duration::from_millis(1500)) }), 0.02),
                    2 => (BROKEN, 4.0),
                    _ => (Outcome::Success, 4.0 + self.chance.exponential(4.0)),
                };
                if matches!(outcome, Outcome::Success | BROKEN) {
                    agenda.after(Duration::from_secs_f64(length / 4.0), Happening::Read(attempt));
                    agenda.after(Duration::from_secs_f64(length / 2.0), Happening::FirstToken(attempt));
                }
                agenda.after(Duration::from_secs_f64(length), Happening::End(attempt, outcome));
            }
            Effect::Probe { replica } => {
                let report = if self.chance.chance(0.1) { Report::Unreachable } else { Report::Ready };
                agenda.after(Duration::from_millis(300), Happening::Report(replica, report));
            }
            _ => {}
        }
    }

    fn told(&mut self, event: &Event, now: Timestamp) {
        self.recorder.event(event, now).expect("memory takes it");
    }

    fn advanced(&mut self, now: Timestamp) {
        self.recorder.advance(now).expect("memory takes it");
    }
}

/// A run, and what was seen of it from outside.
struct Run {
    record: String,
    /// Answers that phones gave.
    answered: u64,
    carried_on: u64,
    /// The scheduler's counters in the end.
    counters: (Vec<u64>, Vec<f64>),
    /// Requests under way in the end.
    live: u64,
}

/// Seed of the one run that all tests share.
const SEED: u64 = 7;
static RUN: LazyLock<Run> = LazyLock::new(|| run(SEED));

/// A run of some minutes.
fn run(seed: u64) -> Run {
    let mut config = SchedulerConfig {
        // Settings with keys by number and with numbers that have no short form.
        tenants: BTreeMap::from([(TenantId(2), Share { weight: 1.0 / 3.0, max_running: Some(4) })]),
        ..SchedulerConfig::default()
    };
    config.queue.max_age = [Some(Duration::from_secs(40)), Some(Duration::from_secs(60)), None];
    let recorder = Recorder::new(Vec::new(), &config, seed).expect("memory takes it");
    let (requests, written) = (BTreeMap::new(), BTreeMap::new());
    let chance = Rng::new(seed, "noise");
    let world = Noisy { chance, asked: 0, answered: 0, carried_on: 0, requests, written, recorder };
    let mut simulation = Simulation::new(Scheduler::new(config, seed), world);
    for replica in (1..=REPLICAS).map(ReplicaId) {
        let spec = ReplicaSpec {
            models: vec![ModelId(1)],
            routes: RouteSet(1),
            slots: 1 + (replica.0 % 2) as u16,
            context_tokens: Some(8192),
            relay: RelayId(1),
            prior: (replica.0 > 2).then_some(Rates { prefill: 1000.0 / f64::from(replica.0), decode: 0.1 + 0.2 }),
            carries_on: true,
            group: Some(GroupId(u64::MAX)),
            release: Release::AtOnce,
        };
        simulation.tell(Event::ReplicaUp { replica, spec });
    }
    simulation.agenda.after(Duration::from_secs(1), Happening::Ask);
    simulation.run_until(Timestamp(1_500_000_000_000));
    let Simulation { world, scheduler, agenda } = simulation;
    let snapshot = scheduler.snapshot(agenda.now());
    Run {
        record: String::from_utf8(world.recorder.into_inner()).expect("text"),
        answered: world.answered,
        carried_on: world.carried_on,
        counters: (snapshot.decisions.to_vec(), snapshot.wasted.to_vec()),
        live: scheduler.requests(agenda.now()).len() as u64,
    }
}

fn replayed(record: &str) -> Result<Replayed, RecordError> {
    replay(record.as_bytes())
}

#[test]
fn a_recorded_run_is_played_again_effect_by_effect() {
    let run = &*RUN;
    let record = &run.record;
    let again = replayed(record).expect("the same effects");
    let count = |what: &str| record.lines().filter(|line| line.contains(what)).count() as u64;
    assert_eq!((again.seed, again.events, again.effects), (SEED, count("\"event\":"), count("\"effect\":")));
    assert_eq!((again.advances, again.unconfirmed, again.torn), (count("\"advance\":true"), 0, false));
    assert_eq!(again.until, Timestamp(1_500_000_000_000));
    let counters = (again.snapshot.decisions.to_vec(), again.snapshot.wasted.to_vec());
    assert_eq!(counters, run.counters);
    let sum = |of: fn(&simulation::record::Outcomes) -> u64| again.classes.iter().map(of).sum::<u64>();
    assert_eq!(sum(|class| class.arrived), REQUESTS);
    let ended = sum(|class| class.answered + class.failed + class.abandoned + class.refused.values().sum::<u64>());
    assert_eq!(ended + sum(|class| class.unfinished), REQUESTS);
    assert_eq!(sum(|class| class.unfinished), run.live);
    assert!(sum(|class| class.answered) > REQUESTS / 2 && sum(|class| class.answered) <= run.answered);
    assert!(
        run.carried_on > 10 && sum(|class| class.abandoned) > 0 && again.peak_waiting > 0,
        "a run in which hardly anything happens"
    );
    for class in &again.classes {
        assert_eq!(class.completion.len() as u64, class.answered);
        assert_eq!(class.ttft.len(), class.completion.len(), "every answer of these phones begins before it ends");
        let times = class.ttft.iter().zip(&class.completion);
        assert!(times.clone().all(|(first, whole)| 0.0 < *first && first < whole));
    }
}

/// The record with its line number `number` (from 1) changed.
fn tampered(record: &str, number: usize, change: impl Fn(&str) -> Option<String>) -> String {
    let lines = record
        .lines()
        .enumerate()
        .filter_map(|(index, line)| if index + 1 == number { change(line) } else { Some(line.to_owned()) });
    lines.fold(String::new(), |text, line| text + &line + "\n")
}

fn line_of(record: &str, what: &str, skip: usize) -> usize {
    let mut found = record.lines().enumerate().filter(|(_, line)| line.contains(what)).skip(skip);
    found.next().expect("such a line").0 + 1
}

#[test]
fn a_changed_effect_is_found_at_its_line() {
    let record = &RUN.record;
    let number = line_of(record, "\"dispatch\"", 50);
    let other = tampered(record, number, |line| Some(line.replace("\"replica\":", "\"replica\":9")));
    let error = replayed(&other).expect_err("another replica");
    assert!(matches!(error, RecordError::Differs { line, .. } if line == number as u64), "{error}");
    let said = error.to_string();
    assert!(said.starts_with(&format!("line {number}: the effects differ at ")), "{said}");
    assert!(said.contains("recorded {\"dispatch\":") && said.contains("now {\"dispatch\":"), "{said}");
}

#[test]
fn an_effect_too_many_or_too_few_is_found_where_it_shows() {
    let record = &RUN.record;
    let number = line_of(record, "\"dispatch\"", 50);
    let fewer = tampered(record, number, |_| None);
    let error = replayed(&fewer).expect_err("one is missing");
    assert!(matches!(&error, RecordError::Differs { line, now: Some(_), .. } if *line == number as u64), "{error}");
    let twice = tampered(record, number, |line| Some(format!("{line}\n{line}")));
    let error = replayed(&twice).expect_err("one is there twice");
    assert!(matches!(&error, RecordError::Differs { line, .. } if *line == number as u64 + 1), "{error}");
}

#[test]
fn another_seed_or_another_cause_gives_other_effects() {
    let record = &RUN.record;
    // The seed decides how long a penalty is.
    let reseeded = tampered(record, 1, |line| Some(line.replace("\"seed\":7,", "\"seed\":8,")));
    assert!(matches!(replayed(&reseeded), Err(RecordError::Differs { .. })));
    let number = line_of(record, "\"request_arrived\"", 20);
    let unasked = tampered(record, number, |_| None);
    let error = replayed(&unasked).expect_err("what was never asked for is not answered");
    assert!(matches!(error, RecordError::Differs { line, .. } if line >= number as u64), "{error}");
}

#[test]
fn an_effect_of_another_time_is_refused() {
    let record = &RUN.record;
    let number = line_of(record, "\"effect\"", 60);
    let later = tampered(record, number, |line| Some(line.replacen("\"at\":", "\"at\":1", 1)));
    let error = replayed(&later).expect_err("an effect has the time of its cause");
    assert!(matches!(error, RecordError::Time { line, .. } if line == number as u64), "{error}");
}

#[test]
fn what_breaks_off_is_played_up_to_there() {
    let record = &RUN.record;
    let number = line_of(record, "\"dispatch\"", 50);
    let whole: Vec<&str> = record.lines().take(number - 1).collect();
    let again = replayed(&(whole.join("\n") + "\n")).expect("a beginning of a record is one");
    assert!(again.unconfirmed > 0 && !again.torn);
    let half = record.lines().nth(number - 1).map(|line| &line[..line.len() / 2]).expect("the line");
    let again = replayed(&(whole.join("\n") + "\n" + half)).expect("half a line is left out");
    assert!(again.unconfirmed > 0 && again.torn);
}

#[test]
fn what_is_no_record_is_refused_with_its_line_and_what_would_be_right() {
    let record = &RUN.record;
    let said = |text: &str| replayed(text).expect_err("no record").to_string();
    assert!(said("").contains("line 1: expected {\"huntgroup_record\":1"), "{}", said(""));
    assert!(said("{\"scenario\":1}\n").contains("missing field `huntgroup_record`"));
    let newer = record.replacen("\"huntgroup_record\":1", "\"huntgroup_record\":2", 1);
    assert_eq!(said(&newer), "line 1: the record has version 2, this program plays version 1");
    let head = record.lines().next().expect("a first line");
    let broken = said(&format!("{head}\n{{\"at\":5,\"event\":{{\"nonsense\":1}}}}\n"));
    assert!(broken.starts_with("line 2: expected ") && broken.contains("unknown variant `nonsense`"), "{broken}");
    assert!(broken.contains(" at column ") && !broken.contains("line 1"), "{broken}");
    let both = said(&format!("{head}\n{{\"at\":5,\"advance\":true,\"effect\":{{\"probe\":{{\"replica\":1}}}}}}\n"));
    assert!(both.starts_with("line 2: expected \"at\" and one of "), "{both}");
}

#[test]
fn settings_and_fingerprints_come_back_as_they_were() {
    let record = &RUN.record;
    let head = record.lines().next().expect("a first line");
    assert!(head.contains("\"tenants\":{\"2\":{\"weight\":0.333"), "{head}");
    let many: Vec<u64> = (0..1000).map(|n| u64::MAX - n).collect();
    let read: Prefix = serde_json::from_str(&serde_json::to_string(&many).expect("JSON")).expect("fingerprints");
    assert_eq!(read, Prefix::new(many));
    assert_eq!(read.fingerprints().len(), Prefix::MAX_CUTS);
}

#[test]
fn whatever_can_be_told_or_wanted_comes_back_as_it_was() {
    let (attempt, request, replica) = (AttemptId(u64::MAX), RequestId(2), ReplicaId(3));
    let ended =
        |outcome| Event::AttemptEnded { attempt, outcome, left: Left::Closed, timings: Some(Timings::default()) };
    let soft = |failure| ended(Outcome::Soft(failure));
    let reported = |report| Event::ReplicaReported { replica, report };
    let nothing = ReplicaSpec {
        models: Vec::new(),
        routes: RouteSet::default(),
        slots: 1,
        context_tokens: None,
        relay: RelayId(0),
        prior: None,
        carries_on: false,
        group: None,
        release: Release::AtOnce,
    };
    let events = [
        Event::RequestAbandoned { request },
        Event::Progress { attempt, read_tokens: 1, cached_tokens: 0 },
        Event::FirstToken { attempt },
        Event::AttemptEnded { attempt, outcome: Outcome::Success, left: Left::Nothing, timings: None },
        Event::AttemptEnded {
            attempt,
            outcome: BROKEN,
            left: Left::Part(Part { tokens: u32::MAX, seen: true, by: Carry::Anyone }),
            timings: None,
        },
        ended(Outcome::Hard(HardFailure::Connect)),
        ended(Outcome::Hard(HardFailure::Tls)),
        ended(Outcome::Hard(HardFailure::Certificate)),
        ended(Outcome::Hard(HardFailure::Reset)),
        ended(Outcome::RequestFault),
        ended(Outcome::ContextExceeded),
        ended(Outcome::Loading),
        ended(Outcome::Misconfigured),
        soft(SoftFailure::Status),
        soft(SoftFailure::Busy { retry_after: None }),
        soft(SoftFailure::BadAnswer),
        soft(SoftFailure::Broken),
        soft(SoftFailure::NoFirstToken),
        soft(SoftFailure::Stalled),
        Event::ReplicaUp { replica, spec: nothing },
        reported(Report::Ready),
        reported(Report::Loading),
        reported(Report::Misconfigured),
        reported(Report::Unproven),
        reported(Report::Unreachable),
        reported(Report::NotThere),
        reported(Report::Closed),
        reported(Report::Failing),
        reported(Report::TimedOut),
        Event::ReplicaRemoved { replica },
        Event::DrainReplica { replica, deadline: Some(Timestamp::NEVER) },
        Event::DrainReplica { replica, deadline: None },
        Event::UndrainReplica { replica },
        Event::ReplicaLimited { replica, limit: Limit::None },
        Event::ReplicaLimited { replica, limit: Limit::Fewer },
        Event::ReplicaLimited { replica, limit: Limit::Paused },
        Event::ReplicaEnding { replica, at: Some(Timestamp(7)) },
        Event::ReplicaEnding { replica, at: None },
        Event::Configured { config: SchedulerConfig::default() },
    ];
    for event in events {
        let text = serde_json::to_string(&event).expect("JSON");
        assert_eq!(serde_json::from_str::<Event>(&text).expect("the same"), event, "{text}");
    }
    let effects = [
        Effect::Dispatch { request, attempt, replica, number: 1, hedge: true, carries_on: true },
        Effect::Cancel { attempt, request, why: CancelReason::HedgeLost },
        Effect::Reject { request, reason: ShedReason::Hopeless, retry_after: Duration::from_nanos(1_500_000_001) },
        Effect::Changed {
            replica,
            from: ReplicaState::Joining,
            to: ReplicaState::Ready,
            why: ChangeReason::PoolProtection,
        },
        Effect::Changed {
            replica,
            from: ReplicaState::Quarantine,
            to: ReplicaState::Draining,
            why: ChangeReason::Ending,
        },
        Effect::Probe { replica },
        Effect::Drained { replica },
    ];
    for effect in effects {
        let text = serde_json::to_string(&effect).expect("JSON");
        assert_eq!(serde_json::from_str::<Effect>(&text).expect("the same"), effect, "{text}");
    }
}
