//! Draining, taking back, removing, changing.

use scheduler::{
    CancelReason, ChangeReason, Effect, Event, Left, Outcome, ReplicaId, ReplicaSpec, ReplicaState, Report,
    RequestSpec, Timings,
};

use crate::rig::{CONNECT, Rig, config, request, seconds, spec};

const FIRST: ReplicaId = ReplicaId(1);

fn drained(rig: &mut Rig) -> usize {
    rig.heard().iter().filter(|effect| matches!(effect, Effect::Drained { .. })).count()
}

#[test]
fn a_drain_starts_nothing_new_cuts_nothing_and_is_reported_once() {
    let mut rig = Rig::with_replicas(config(), 1);
    let (_, attempt, _) = rig.place(request());
    rig.tell(Event::DrainReplica { replica: FIRST, deadline: None });
    assert_eq!(rig.changes(), [(1, ReplicaState::Draining, ChangeReason::Operator)]);
    let waiting = rig.ask(request());
    assert_eq!(rig.dispatched(waiting), None);
    rig.pass(seconds(20));
    let timings = Timings { decode_tokens: 100, decode: seconds(10), ..Timings::default() };
    rig.tell(Event::AttemptEnded { attempt, outcome: Outcome::Success, left: Left::Closed, timings: Some(timings) });
    assert_eq!(drained(&mut rig), 1);
    assert!(rig.view(1).decode_rate.is_some(), "what a draining replica does still measures it");
    rig.tell(Event::DrainReplica { replica: FIRST, deadline: None });
    assert_eq!(drained(&mut rig), 0);
}

#[test]
fn an_idle_replica_is_drained_at_once_and_each_time() {
    let mut rig = Rig::with_replicas(config(), 1);
    for _ in 0..3 {
        rig.tell(Event::DrainReplica { replica: FIRST, deadline: None });
        assert_eq!(drained(&mut rig), 1);
        rig.tell(Event::UndrainReplica { replica: FIRST });
        assert_eq!(rig.serve(Outcome::Success), 1);
    }
}

#[test]
fn the_drains_deadline_cancels_what_still_runs_and_that_fails_over() {
    let mut rig = Rig::with_replicas(config(), 1);
    let (moved, attempt, _) = rig.place(request());
    rig.ready(2, spec(1));
    rig.tell(Event::DrainReplica { replica: FIRST, deadline: Some(rig.now + seconds(60)) });
    rig.pass(seconds(59));
    assert_eq!(rig.cancelled(), []);
    rig.pass(seconds(1));
    let heard = rig.heard();
    let why = CancelReason::DrainDeadline;
    assert_eq!(heard[0], Effect::Cancel { attempt, request: moved, why });
    assert!(heard.contains(&Effect::Drained { replica: FIRST }));
    assert!(heard.iter().any(|effect| matches!(effect, Effect::Dispatch { replica: ReplicaId(2), .. })));
}

#[test]
fn what_happens_during_a_drain_is_known_when_it_is_taken_back() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.tell(Event::DrainReplica { replica: FIRST, deadline: None });
    rig.heard();
    rig.report(1, Report::Misconfigured);
    assert_eq!(rig.changes(), [], "it is still draining");
    rig.tell(Event::UndrainReplica { replica: FIRST });
    assert_eq!(rig.changes(), [(1, ReplicaState::Misconfigured, ChangeReason::Operator)]);
}

#[test]
fn a_removed_replica_is_forgotten_and_what_ran_there_fails_over_unless_content_was_sent() {
    let mut rig = Rig::new(config());
    rig.ready(1, spec(2));
    let (silent, _, _) = rig.place(request());
    let (begun, attempt, _) = rig.place(RequestSpec { stream: true, ..request() });
    rig.tell(Event::FirstToken { attempt });
    rig.ready(2, spec(2));
    rig.tell(Event::ReplicaRemoved { replica: FIRST });
    let heard = rig.heard();
    let cancels =
        heard.iter().filter(|effect| matches!(effect, Effect::Cancel { why: CancelReason::ReplicaRemoved, .. }));
    assert_eq!(cancels.count(), 2);
    let moved = |effect: &Effect| matches!(effect, Effect::Dispatch { request, replica: ReplicaId(2), .. } if *request == silent);
    assert!(heard.iter().any(moved));
    assert!(rig.core.request(begun, rig.now).is_none());
    assert!(rig.core.replica(FIRST, rig.now).is_none());
    rig.report(1, Report::Ready);
    assert_eq!(rig.heard(), []);
}

#[test]
fn an_answer_of_a_few_tokens_says_nothing_about_how_fast_its_replica_writes() {
    let mut rig = Rig::with_replicas(config(), 1);
    let mut answers = |decode_tokens, decode| {
        let (_, attempt, _) = rig.place(request());
        let timings = Some(Timings { decode_tokens, decode, by_engine: true, ..Timings::default() });
        rig.tell(Event::AttemptEnded { attempt, outcome: Outcome::Success, left: Left::Closed, timings });
        rig.view(1).decode_rate
    };
    // An engine's own count: four tokens in the time of three, or in none.
    assert_eq!(answers(4, std::time::Duration::from_millis(300)), None);
    assert_eq!(answers(7, std::time::Duration::from_micros(10)), None);
    // Nor does one of which it can't be told how long it was written at.
    assert_eq!(answers(500, std::time::Duration::ZERO), None);
    assert!(answers(100, seconds(10)).is_some_and(|rate| (rate - 10.0).abs() < 0.5));
}

#[test]
fn a_replica_at_another_address_begins_anew_whatever_its_health_was_and_keeps_its_speeds() {
    for report in [Report::Ready, Report::Unreachable, Report::Misconfigured, Report::Loading] {
        let mut rig = Rig::with_replicas(config(), 1);
        let (_, attempt, _) = rig.place(request());
        let timings = Timings { decode_tokens: 100, decode: seconds(10), ..Timings::default() };
        let ended =
            Event::AttemptEnded { attempt, outcome: Outcome::Success, left: Left::Closed, timings: Some(timings) };
        rig.tell(ended);
        let speed = rig.view(1).decode_rate;
        rig.report(1, report.clone());
        rig.report(1, report.clone());
        rig.heard();
        rig.tell(Event::ReplicaMoved { replica: FIRST });
        let heard = rig.heard();
        assert!(heard.contains(&Effect::Probe { replica: FIRST }), "{report:?}: {heard:?}");
        assert_eq!((rig.state(1), rig.view(1).why), (ReplicaState::Joining, ChangeReason::Moved), "{report:?}");
        assert!(speed.is_some() && rig.view(1).decode_rate == speed, "{report:?}");
        let waiting = rig.ask(request());
        assert_eq!(rig.dispatched(waiting), None, "{report:?}: nothing is known of it there");
        rig.report(1, Report::Ready);
        assert!(rig.dispatched(waiting).is_some(), "{report:?}: no penalty of the other address is left");
    }
}

#[test]
fn what_runs_at_the_address_that_a_replica_left_may_end_and_says_nothing_about_the_new_one() {
    let mut rig = Rig::new(config());
    rig.ready(1, spec(2));
    let (_, first, _) = rig.place(request());
    let (left, _, _) = rig.place(request());
    rig.pass(seconds(1));
    rig.tell(Event::ReplicaMoved { replica: FIRST });
    assert_eq!(rig.cancelled(), []);
    rig.report(1, Report::Ready);
    rig.end(first, CONNECT);
    rig.tell(Event::RequestAbandoned { request: left });
    assert_eq!((rig.state(1), rig.view(1).lingering), (ReplicaState::Ready, 0));
    rig.tell(Event::ReplicaMoved { replica: ReplicaId(9) });
    assert!(rig.core.replica(ReplicaId(9), rig.now).is_none());
}

#[test]
fn fewer_slots_cut_nothing_and_hold_from_then_on() {
    let mut rig = Rig::new(config());
    rig.ready(1, spec(3));
    let running: Vec<_> = (0..3).map(|_| rig.place(request()).1).collect();
    rig.tell(Event::ReplicaUp { replica: FIRST, spec: spec(1) });
    assert_eq!(rig.view(1).running.len(), 3);
    let waiting = rig.ask(request());
    for (left, attempt) in [(2, running[0]), (1, running[1])] {
        rig.end(attempt, Outcome::Success);
        assert_eq!((rig.view(1).running.len(), rig.dispatched(waiting)), (left, None));
    }
    rig.end(running[2], Outcome::Success);
    assert!(rig.dispatched(waiting).is_some());
}

#[test]
fn more_slots_take_waiting_requests_at_once() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.place(request());
    let waiting = rig.ask(request());
    let spec = ReplicaSpec { relay: scheduler::RelayId(1), ..spec(2) };
    rig.tell(Event::ReplicaUp { replica: FIRST, spec });
    assert!(rig.dispatched(waiting).is_some());
}

#[test]
fn a_changed_description_has_a_misconfigured_replica_looked_at_again() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.report(1, Report::Misconfigured);
    rig.heard();
    rig.tell(Event::ReplicaUp { replica: FIRST, spec: spec(1) });
    assert_eq!(rig.probes(), [], "the same description changes nothing");
    rig.tell(Event::ReplicaUp { replica: FIRST, spec: spec(2) });
    assert_eq!(rig.probes(), [1]);
}

#[test]
fn a_client_that_leaves_frees_the_slot_whatever_the_phase() {
    let mut rig = Rig::with_replicas(config(), 1);
    let (running, attempt, _) = rig.place(request());
    let leaver = rig.ask(request());
    let next = rig.ask(request());
    rig.tell(Event::RequestAbandoned { request: leaver });
    rig.tell(Event::RequestAbandoned { request: running });
    assert!(rig.dispatched(next).is_some());
    // Late news of an attempt that is over changes nothing.
    rig.end(attempt, CONNECT);
    rig.tell(Event::RequestAbandoned { request: running });
    assert_eq!((rig.heard(), rig.state(1)), (Vec::new(), ReplicaState::Ready));
}

#[test]
fn an_answer_that_nobody_saw_begin_moves_on_when_its_replica_is_removed() {
    let mut rig = Rig::with_replicas(config(), 1);
    let (plain, attempt, _) = rig.place(request());
    rig.tell(Event::FirstToken { attempt });
    rig.ready(2, spec(1));
    rig.tell(Event::ReplicaRemoved { replica: FIRST });
    assert_eq!(rig.dispatched(plain).map(|(_, replica)| replica), Some(2));
}
