//! The oracle is told what is true at the moment.

use std::time::Duration;

use super::*;
use crate::{
    driver::Agenda,
    play::stage::{Happening, Stop},
    scenario::{Churn, Scenario, SlowPhase, tests::SMALL},
    workload::Workload,
};

const PHONE: ReplicaId = ReplicaId(0);

/// Goes through all that happens before `end`.
fn pass(stage: &Shared, agenda: &mut Agenda<Happening>, end: f64) {
    while agenda.next().is_some_and(|next| next < moment(end)) {
        let happening = agenda.advance().expect("something happens");
        stage.lock().happen(happening, agenda);
    }
}

#[test]
fn speeds_and_failures_are_those_of_the_timeline() {
    let mut scenario = Scenario::from_json(SMALL).expect("a scenario");
    scenario.churn = Some(Churn { mean_up_s: 300.0, mean_down_s: 100.0 });
    scenario.slow_phases = vec![SlowPhase { mean_normal_s: 100.0, mean_slow_s: 100.0, factor: 0.25 }];
    let workload = Arc::new(Workload::draw(&scenario, 0));
    let mut agenda = Agenda::default();
    let stage = Shared::new(Stage::new(&scenario, Arc::clone(&workload), false, &mut agenda));
    let own = scenario.model.prefill_tokens_per_second * workload.phones[0].prefill_factor;
    let phases = workload.timelines[0].phases();
    let mut seen = [0, 0, 0];
    for (index, phase) in phases.iter().take(30).enumerate() {
        let middle = phase.start + 0.5 * (phase.end - phase.start);
        pass(&stage, &mut agenda, middle);
        let rate = stage.rates(PHONE, moment(middle)).map(|rates| rates.prefill);
        assert_eq!(rate, phase.is_up().then_some(own * phase.factor), "{phase:?}");
        let down = phases.iter().skip(index).find(|phase| !phase.is_up()).expect("it fails some time").start;
        assert_eq!(stage.up_until(PHONE, moment(middle)), moment(down.max(middle)));
        seen[if phase.factor == 0.0 {
            0
        } else if phase.factor < 1.0 {
            1
        } else {
            2
        }] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    assert_eq!(stage.cache_yield(PHONE), 1.0);
}

#[test]
fn what_is_left_of_an_attempt_is_what_it_would_take_alone() {
    let mut scenario = Scenario::from_json(SMALL).expect("a scenario");
    scenario.phones.jitter = 0.0;
    let workload = Arc::new(Workload::draw(&scenario, 0));
    let request = workload.requests[0];
    let mut agenda: Agenda<Happening> = Agenda::default();
    let stage = Shared::new(Stage::new(&scenario, Arc::clone(&workload), false, &mut agenda));
    assert_eq!(stage.tokens(RequestId(0)), (request.prompt.tokens().into(), request.output.into()));
    for (copy, number) in [(1, 0), (2, 1)] {
        assert!(stage.lock().start(copy, number, 0, false, &mut agenda));
    }
    let (speed, tokens) = (scenario.model.speed(), f64::from(request.prompt.tokens()));
    let reading = scenario.overhead_s + speed.prefill_seconds(0.0, tokens) / 0.5;
    let writing = speed.decode_seconds(tokens, f64::from(request.output)) / 0.5;
    // Two share the phone.
    let later = Timestamp::ZERO + Duration::from_millis(100);
    let (read, write) = stage.remaining(AttemptId(1), later).expect("it runs");
    assert!((read - (reading - 0.05)).abs() < 1e-9 && (write - writing).abs() < 1e-9, "{read} {write}");
    stage.lock().stop(1, Stop::Preempted, &mut agenda);
    assert_eq!(stage.remaining(AttemptId(1), later), None);
    assert!(stage.remaining(AttemptId(2), later).is_some());
}
