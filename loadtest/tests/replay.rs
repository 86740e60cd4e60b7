//! A gateway's record, played again from the command line.

use scheduler::{
    Carry, Class, Effect, Event, Left, ModelId, Outcome, Prefix, RelayId, Release, ReplicaId, ReplicaSpec, Report,
    RequestId, RequestSpec, RouteSet, Scheduler, SchedulerConfig, TenantId, Timestamp,
};
use simulation::record::Recorder;
use std::process::{Command, Output};

/// A scheduler and its record.
struct Recorded {
    scheduler: Scheduler,
    recorder: Recorder<Vec<u8>>,
}

impl Recorded {
    fn new() -> Self {
        let config = SchedulerConfig::default();
        let recorder = Recorder::new(Vec::new(), &config, 5).expect("memory takes it");
        Self { scheduler: Scheduler::new(config, 5), recorder }
    }

    /// Tells the scheduler something and takes what it wants.
    fn tell(&mut self, event: Event, second: u64) -> Vec<Effect> {
        let now = Timestamp(second * 1_000_000_000);
        self.recorder.event(&event, now).expect("memory takes it");
        self.scheduler.handle(event, now);
        let effects: Vec<Effect> = std::iter::from_fn(|| self.scheduler.poll_effect()).collect();
        effects.iter().for_each(|effect| self.recorder.effect(effect).expect("memory takes it"));
        effects
    }
}

/// One phone answers a request after 3 s, its first token after 2 s; another is refused, for want of a phone with its model.
fn record() -> String {
    let mut recorded = Recorded::new();
    let replica = ReplicaId(1);
    let spec = ReplicaSpec {
        models: vec![ModelId(1)],
        routes: RouteSet(1),
        slots: 1,
        context_tokens: None,
        relay: RelayId(1),
        prior: None,
        carries_on: false,
        group: None,
        release: Release::AtOnce,
    };
    recorded.tell(Event::ReplicaUp { replica, spec }, 0);
    recorded.tell(Event::ReplicaReported { replica, report: Report::Ready }, 0);
    let spec = RequestSpec {
        model: ModelId(1),
        route: 0,
        tenant: TenantId(1),
        class: Class::Interactive,
        deadline: None,
        prompt_tokens: 100,
        max_output: Some(10),
        stream: true,
        carry: Carry::Never,
        body_bytes: 400,
        prefix: Prefix::default(),
    };
    let effects = recorded.tell(Event::RequestArrived { request: RequestId(1), spec: spec.clone() }, 10);
    let dispatched = effects.iter().find_map(|effect| match effect {
        Effect::Dispatch { attempt, .. } => Some(*attempt),
        _ => None,
    });
    let attempt = dispatched.expect("a free phone takes it");
    recorded.tell(Event::FirstToken { attempt }, 12);
    let outcome = Outcome::Success;
    recorded.tell(Event::AttemptEnded { attempt, outcome, left: Left::Closed, timings: None }, 13);
    let tired = RequestSpec { deadline: Some(Timestamp(20_000_000_000)), class: Class::Batch, ..spec };
    recorded.tell(Event::RequestArrived { request: RequestId(2), spec: tired }, 20);
    String::from_utf8(recorded.recorder.into_inner()).expect("text")
}

fn replay(record: &str, arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("gateway.record");
    std::fs::write(&path, record).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    command.arg("replay").args(arguments).arg(&path).output().expect("the program starts")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_record_says_what_came_of_its_requests() {
    let record = record();
    let output = replay(&record, &["--json"]);
    assert!(output.status.success(), "{}", said(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((&json["seed"], &json["events"], &json["elapsed_s"]), (&5.into(), &6.into(), &20.0.into()));
    let effects = record.lines().filter(|line| line.contains("\"effect\"")).count();
    assert_eq!((&json["effects"], &json["torn"]), (&effects.into(), &false.into()));
    let interactive = &json["classes"]["interactive"];
    assert_eq!((&interactive["answered"], &interactive["requests"]), (&1.into(), &1.into()));
    assert_eq!((&interactive["mean"], &interactive["ttft_p99"]), (&3.0.into(), &2.0.into()));
    let batch = &json["classes"]["batch"];
    assert_eq!((&batch["requests"], &batch["refused"]["deadline"]), (&1.into(), &1.into()), "{json}");
    let table = said(&replay(&record, &[]));
    assert!(table.contains(&format!("all {effects} effects are the same")), "{table}");
    assert!(table.contains("batch: 1 refused, deadline") && table.contains("most waiting at once: "), "{table}");
}

#[test]
fn a_tampered_record_is_refused_with_file_and_line() {
    let record = record();
    let line = record.lines().position(|line| line.contains("\"dispatch\"")).expect("one was sent") + 1;
    let output = replay(&record.replacen("\"replica\":1,\"number\":1", "\"replica\":2,\"number\":1", 1), &[]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&format!("gateway.record: line {line}: the effects differ at 10.000000 s: recorded ")),
        "{said}"
    );
}

#[test]
fn a_record_that_broke_off_is_played_up_to_there_and_says_so() {
    let record = record();
    let output = replay(&record[..record.len() - 20], &[]);
    assert!(output.status.success());
    assert!(said(&output).contains("The record breaks off in the middle of a line"), "{}", said(&output));
}

#[test]
fn what_is_no_record_is_refused() {
    let output = replay("{\"name\":\"a scenario\"}\n", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("line 1: expected {\"huntgroup_record\":1"), "{}", said(&output));
}
