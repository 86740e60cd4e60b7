//! When what stands in front of the replicas fails, the replicas are not to blame.

use scheduler::{
    ChangeReason, Event, Left, ModelId, Outcome, RelayId, ReplicaId, ReplicaSpec, ReplicaState, Report, ShedReason,
};

use crate::rig::{CERTIFICATE, CONNECT, Rig, STATUS, config, request, seconds, spec};

/// Three replicas of one slot behind one relay.
fn behind_one_relay(replicas: u32) -> Rig {
    let mut rig = Rig::new(config());
    (1..=replicas).for_each(|id| rig.ready(id, spec(1)));
    rig
}

#[test]
fn a_relay_that_fails_is_held_without_growing_penalties_and_costs_no_request() {
    let mut rig = behind_one_relay(3);
    let (request, mut attempt, _) = rig.place(request());
    for _ in 0..2 {
        rig.end(attempt, CONNECT);
        attempt = rig.dispatched(request).expect("another replica is free").0;
    }
    rig.end(attempt, CONNECT);
    let held: Vec<_> = rig.changes().into_iter().filter(|(_, _, why)| *why == ChangeReason::RelayDown).collect();
    assert_eq!(held.len(), 3, "all three are held: {held:?}");
    rig.pass(seconds(20));
    assert_eq!(rig.rejected(request), None, "what the relay swallowed was not tried");
    assert!((1..=3).all(|id| rig.state(id) == ReplicaState::Out));

    rig.report(2, Report::Ready);
    assert_eq!(rig.state(2), ReplicaState::Ready, "held, so no probation");
    assert_eq!(rig.dispatched(request).map(|(_, replica)| replica), Some(2));
    rig.report(1, Report::Ready);
    rig.report(3, Report::Ready);
    assert!((1..=3).all(|id| rig.state(id) == ReplicaState::Ready));
}

#[test]
fn when_one_comes_back_the_others_are_probed_at_once() {
    let mut rig = behind_one_relay(4);
    // Twice: the probes that the first failures asked for come to nothing.
    for id in [1, 2, 3, 4, 1, 2, 3, 4] {
        rig.report(id, Report::Unreachable);
    }
    assert!((1..=4).all(|id| rig.state(id) == ReplicaState::Out));
    rig.heard();
    rig.report(3, Report::Ready);
    let mut probed = rig.probes();
    probed.sort_unstable();
    assert_eq!(probed, [1, 2, 4]);
}

#[test]
fn when_half_of_a_relay_fails_the_other_half_is_asked() {
    let mut rig = behind_one_relay(4);
    rig.report(1, Report::Unreachable);
    rig.heard();
    rig.report(2, Report::Unreachable);
    let mut probed = rig.probes();
    probed.sort_unstable();
    assert_eq!(probed, [2, 3, 4], "the suspect itself, and those that said nothing yet");
    rig.report(3, Report::Ready);
    rig.report(4, Report::Ready);
    assert_eq!(rig.state(3), ReplicaState::Ready);
    assert_eq!(rig.view(1).why, ChangeReason::HardFailure);
}

#[test]
fn engines_that_die_at_once_are_no_outage_of_their_relay() {
    let mut rig = behind_one_relay(4);
    for id in [1, 2, 3, 4, 1, 2, 3, 4] {
        rig.report(id, Report::Closed);
    }
    assert!(rig.core.snapshot(rig.now).relays_down.is_empty());
    assert!((1..=4).all(|id| (rig.state(id), rig.view(id).why) == (ReplicaState::Out, ChangeReason::HardFailure)));
}

#[test]
fn a_certificate_that_is_refused_blames_no_relay_and_costs_a_request_no_attempt() {
    let mut rig = behind_one_relay(3);
    let (request, mut attempt, _) = rig.place(request());
    for _ in 0..2 {
        rig.end(attempt, CERTIFICATE);
        attempt = rig.dispatched(request).expect("another replica is free").0;
    }
    rig.end(attempt, CERTIFICATE);
    (1..=3).for_each(|id| rig.report(id, Report::Closed));
    assert!(rig.core.snapshot(rig.now).relays_down.is_empty());
    assert!((1..=3).all(|id| rig.view(id).why == ChangeReason::HardFailure));
}

#[test]
fn a_relay_that_is_down_before_anybody_is_reached_is_found_and_holds_all_until_it_is_back() {
    let mut rig = Rig::new(config());
    (1..=3).for_each(|replica| rig.tell(Event::ReplicaUp { replica: ReplicaId(replica), spec: spec(1) }));
    (1..=2).for_each(|id| rig.report(id, Report::Unreachable));
    assert!(rig.core.snapshot(rig.now).relays_down.is_empty(), "one of them may still be reached");
    rig.report(3, Report::Unreachable);
    assert_eq!(rig.core.snapshot(rig.now).relays_down, [RelayId(1)]);
    assert!((1..=3).all(|id| (rig.state(id), rig.view(id).why) == (ReplicaState::Out, ChangeReason::RelayDown)));
    rig.tell(Event::ReplicaUp { replica: ReplicaId(4), spec: spec(1) });
    (0..2).for_each(|_| rig.report(4, Report::Unreachable));
    assert_eq!(rig.view(4).why, ChangeReason::RelayDown, "one that joins meanwhile is held as well");

    rig.heard();
    rig.report(2, Report::Ready);
    assert_eq!(rig.state(2), ReplicaState::Ready, "it owes nothing");
    assert!(rig.core.snapshot(rig.now).relays_down.is_empty());
    assert_eq!(rig.probes(), [1, 3, 4]);
}

#[test]
fn a_relay_that_is_back_without_a_phone_is_not_blamed_for_it_any_more() {
    let mut rig = behind_one_relay(3);
    (1..=3).for_each(|id| rig.report(id, Report::Unreachable));
    assert_eq!(rig.view(1).why, ChangeReason::RelayDown);
    rig.heard();
    rig.report(1, Report::NotThere);
    assert!(rig.core.snapshot(rig.now).relays_down.is_empty(), "it answers");
    assert_eq!(rig.view(1).why, ChangeReason::HardFailure);
    assert_eq!(rig.probes(), [3], "the second is being asked already");
    rig.report(2, Report::Closed);
    assert_eq!(rig.view(2).why, ChangeReason::HardFailure);
    rig.report(2, Report::Ready);
    assert_eq!(rig.state(2), ReplicaState::Ready, "it was held: no probation");
}

#[test]
fn a_request_waits_for_a_held_relay_no_longer_than_for_any_replica() {
    let mut rig = behind_one_relay(3);
    for id in 1..=3 {
        rig.report(id, Report::Unreachable);
    }
    let request = rig.ask(request());
    rig.pass(seconds(29));
    assert_eq!(rig.rejected(request), None);
    rig.pass(seconds(1));
    assert_eq!(rig.rejected(request).map(|(reason, _)| reason), Some(ShedReason::NoCapacity));
}

#[test]
fn an_exhausted_request_hears_its_verdict_when_the_relay_proves_innocent() {
    let mut rig = behind_one_relay(3);
    let (request, attempt, _) = rig.place(request());
    rig.end(attempt, STATUS);
    for _ in 0..2 {
        let (attempt, _) = rig.dispatched(request).expect("another replica is free");
        rig.end(attempt, CONNECT);
    }
    assert_eq!(rig.rejected(request), None, "it may be the relay");
    assert_eq!(rig.core.waiting(), 1);
    rig.pass(seconds(5));
    assert_eq!(rig.rejected(request).map(|(reason, _)| reason), Some(ShedReason::AttemptsExhausted));
}

#[test]
fn a_stream_that_runs_through_the_hold_is_not_cut_and_ends_it() {
    let mut rig = behind_one_relay(3);
    let (stream, attempt, at) = rig.place(request());
    for id in [1, 2, 3, 1, 2, 3] {
        rig.report(id, Report::Unreachable);
    }
    assert_eq!(rig.state(at), ReplicaState::Out);
    assert_eq!(rig.cancelled(), []);
    rig.tell(Event::FirstToken { attempt });
    assert_eq!(rig.probes().len(), 3, "somebody is there after all");
    rig.tell(Event::AttemptEnded { attempt, outcome: Outcome::Success, left: Left::Closed, timings: None });
    assert!(rig.core.request(stream, rig.now).is_none());
}

#[test]
fn a_relay_found_down_gives_no_hope_where_its_replicas_would_not_be_asked_again() {
    let mut rig = Rig::new(config());
    rig.ready(1, spec(1));
    let other = |relay| ReplicaSpec { models: vec![ModelId(7)], relay: RelayId(relay), ..spec(1) };
    (2..=3).for_each(|id| rig.ready(id, other(1)));
    rig.ready(4, ReplicaSpec { relay: RelayId(4), ..spec(1) });
    rig.report(2, Report::Unreachable);
    let (request, attempt, at) = rig.place(request());
    let outcome = |at| if at == 1 { CONNECT } else { STATUS };
    rig.end(attempt, outcome(at));
    let (attempt, at) = rig.dispatched(request).expect("the other one is free");
    rig.end(attempt, outcome(at));
    assert_eq!(rig.rejected(request), None, "it may be the relay");
    rig.tell(Event::DrainReplica { replica: ReplicaId(1), deadline: None });
    rig.report(3, Report::Unreachable);
    assert_eq!(rig.rejected(request).map(|(reason, _)| reason), Some(ShedReason::AttemptsExhausted));
}
