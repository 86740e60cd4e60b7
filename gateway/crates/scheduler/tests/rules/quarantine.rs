//! Replicas that have yet to show that they can do what they say.

use scheduler::{ChangeReason, Event, Left, Outcome, ReplicaId, ReplicaSpec, ReplicaState, Report, ShedReason};

use crate::rig::{Rig, config, request, seconds, spec};

const FIRST: ReplicaId = ReplicaId(1);

fn unproven() -> Rig {
    let mut rig = Rig::new(config());
    rig.tell(Event::ReplicaUp { replica: FIRST, spec: spec(2) });
    rig.report(1, Report::Unproven);
    rig
}

#[test]
fn nothing_is_sent_to_a_replica_in_quarantine_and_what_waits_for_it_goes_there_once_it_is_proven() {
    let mut rig = unproven();
    assert_eq!(rig.changes(), [(1, ReplicaState::Quarantine, ChangeReason::Unproven)]);
    let waiting = rig.ask(request());
    rig.pass(seconds(20));
    for _ in 0..3 {
        rig.report(1, Report::Unproven);
        rig.report(1, Report::TimedOut);
    }
    assert_eq!((rig.dispatched(waiting), rig.view(1).usable_slots), (None, 0));
    rig.report(1, Report::Ready);
    let heard = rig.heard();
    assert!(
        heard.iter().any(|effect| matches!(effect, scheduler::Effect::Dispatch { request, .. } if *request == waiting))
    );
    assert_eq!((rig.state(1), rig.view(1).why), (ReplicaState::Ready, ChangeReason::Proven));
}

#[test]
fn a_request_for_a_model_in_quarantine_waits_as_long_as_for_one_that_comes_back() {
    let mut rig = unproven();
    let waiting = rig.ask(request());
    let wait = config().queue.no_replica_wait;
    rig.pass(wait - seconds(1));
    assert_eq!(rig.rejected(waiting), None);
    rig.pass(seconds(1));
    assert_eq!(rig.rejected(waiting).map(|(reason, _)| reason), Some(ShedReason::NoCapacity));
}

#[test]
fn one_that_is_to_prove_itself_again_gets_nothing_new_and_ends_what_runs() {
    let mut rig = Rig::with_replicas(config(), 1);
    let (request_id, attempt, _) = rig.place(request());
    rig.report(1, Report::Unproven);
    assert_eq!(rig.changes(), [(1, ReplicaState::Quarantine, ChangeReason::Unproven)]);
    rig.tell(Event::AttemptEnded { attempt, outcome: Outcome::Success, left: Left::Closed, timings: None });
    assert!(rig.core.request(request_id, rig.now).is_none());
    assert_eq!(rig.state(1), ReplicaState::Quarantine, "an answer to a request is no proof");
    let waiting = rig.ask(request());
    assert_eq!(rig.dispatched(waiting), None);
}

#[test]
fn one_that_dies_in_quarantine_is_out_and_in_quarantine_again_after_its_penalty() {
    let mut rig = unproven();
    rig.report(1, Report::Unreachable);
    assert_eq!(rig.state(1), ReplicaState::Quarantine, "one probe that fails is looked into first");
    rig.report(1, Report::Unreachable);
    assert_eq!(rig.state(1), ReplicaState::Out);
    rig.report(1, Report::Unproven);
    assert_eq!(rig.state(1), ReplicaState::Out, "a penalty is served");
    rig.pass(seconds(60));
    rig.report(1, Report::Unproven);
    assert_eq!(rig.state(1), ReplicaState::Quarantine);
    rig.report(1, Report::Ready);
    assert_eq!(rig.state(1), ReplicaState::Ready, "the questions of the quarantine were its probation");
}

#[test]
fn one_that_is_proven_before_it_says_what_it_serves_comes_into_service_with_that() {
    let mut rig = Rig::new(config());
    rig.tell(Event::ReplicaUp { replica: FIRST, spec: ReplicaSpec { models: Vec::new(), ..spec(1) } });
    rig.report(1, Report::Unproven);
    rig.report(1, Report::Ready);
    assert_eq!(rig.state(1), ReplicaState::Quarantine);
    rig.tell(Event::ReplicaUp { replica: FIRST, spec: spec(1) });
    assert_eq!(rig.state(1), ReplicaState::Ready);
}

#[test]
fn a_relay_that_fails_holds_those_in_quarantine_too() {
    let mut rig = Rig::new(config());
    for id in 1..=4 {
        rig.tell(Event::ReplicaUp { replica: ReplicaId(id), spec: spec(1) });
        rig.report(id, if id == 4 { Report::Unproven } else { Report::Ready });
    }
    for id in 1..=3 {
        rig.report(id, Report::Unreachable);
    }
    assert_eq!((rig.state(4), rig.view(4).why), (ReplicaState::Out, ChangeReason::RelayDown));
    rig.report(4, Report::Unproven);
    assert_eq!(rig.state(4), ReplicaState::Quarantine, "it was held, and owes nothing");
}
