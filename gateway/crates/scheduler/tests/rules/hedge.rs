//! Second copies of late requests, and work that makes room: what the policy does by itself.

use scheduler::{
    AttemptId, CancelReason, Class, Decision, Effect, Event, Left, Outcome, Policy, Rates, RelayId, ReplicaSpec,
    RequestId, RequestSpec, SchedulerConfig, Waste,
};

use crate::rig::{Rig, request, seconds, spec};

/// Replicas of one slot that read 100 tokens a second and write 10.
fn rig(config: SchedulerConfig, replicas: u32) -> Rig {
    let mut rig = Rig::new(config);
    let prior = Some(Rates { prefill: 100.0, decode: 10.0 });
    (1..=replicas).for_each(|id| rig.ready(id, ReplicaSpec { relay: RelayId(id), prior, ..spec(1) }));
    rig
}

fn config() -> SchedulerConfig {
    SchedulerConfig { policy: Policy::LeastWork, ..SchedulerConfig::default() }
}

/// Takes three seconds or so.
fn guard() -> RequestSpec {
    RequestSpec { class: Class::Interactive, max_output: Some(20), stream: true, ..request() }
}

/// Takes minutes.
fn batch() -> RequestSpec {
    RequestSpec { class: Class::Batch, max_output: Some(3000), ..request() }
}

/// A guard that is stuck, and its second copy.
fn hedged(rig: &mut Rig) -> (RequestId, AttemptId, AttemptId) {
    let (request, first, at) = rig.place(guard());
    rig.pass(seconds(30));
    let copies = rig.heard().into_iter().filter_map(|effect| match effect {
        Effect::Dispatch { request: copied, attempt, replica, number: 2, hedge: true, .. } if copied == request => {
            assert_ne!(replica.0, at);
            Some(attempt)
        }
        _ => None,
    });
    let copies: Vec<AttemptId> = copies.collect();
    assert_eq!(copies.len(), 1, "one copy is enough");
    (request, first, copies[0])
}

#[test]
fn a_late_request_is_sent_to_a_second_replica_and_the_loser_is_stopped() {
    let mut rig = rig(config(), 2);
    let (request, first, second) = hedged(&mut rig);
    assert_eq!(rig.core.request(request, rig.now).map(|view| view.copies), Some(2));
    rig.tell(Event::FirstToken { attempt: second });
    assert_eq!(rig.cancelled(), [(first, CancelReason::HedgeLost)]);
    rig.tell(Event::AttemptEnded { attempt: second, outcome: Outcome::Success, left: Left::Closed, timings: None });
    assert!(rig.core.request(request, rig.now).is_none());
    let snapshot = rig.core.snapshot(rig.now);
    assert_eq!(snapshot.decisions[Decision::HedgedLate as usize], 1);
    assert!(snapshot.wasted[Waste::HedgeLost as usize] >= 30.0);
}

#[test]
fn a_stuck_request_answers_although_its_first_replica_never_does() {
    let mut rig = rig(config(), 2);
    let (request, first, second) = hedged(&mut rig);
    rig.end(first, crate::rig::RESET);
    assert_eq!(rig.heard().iter().filter(|effect| matches!(effect, Effect::Dispatch { .. })).count(), 0);
    rig.end(second, Outcome::Success);
    assert!(rig.core.request(request, rig.now).is_none() && rig.rejected(request).is_none());
}

#[test]
fn a_client_that_has_seen_content_gets_no_second_copy() {
    let mut rig = rig(config(), 2);
    let (request, attempt, _) = rig.place(guard());
    rig.tell(Event::FirstToken { attempt });
    rig.pass(seconds(600));
    assert_eq!(rig.dispatched(request), None);
}

#[test]
fn batch_work_makes_room_for_an_urgent_request_and_comes_back() {
    let mut rig = rig(config(), 1);
    let (long, attempt, at) = rig.place(batch());
    rig.pass(seconds(5));
    let urgent = rig.ask(guard());
    let heard = rig.heard();
    assert_eq!(heard[0], Effect::Cancel { attempt, request: long, why: CancelReason::GivenBack });
    let placed = heard.iter().find_map(|effect| match effect {
        Effect::Dispatch { request, attempt, .. } if *request == urgent => Some(*attempt),
        _ => None,
    });
    rig.end(placed.expect("room was made for it"), Outcome::Success);
    rig.pass(seconds(10));
    assert_eq!(rig.dispatched(long).map(|(_, replica)| replica), Some(at));
    assert_eq!(rig.core.snapshot(rig.now).wasted[Waste::GivenBack as usize], 5.0);
}

#[test]
fn nothing_runs_twice_or_makes_room_where_that_is_switched_off_or_the_policy_is_another() {
    let mut off = config();
    (off.hedge.enabled, off.hedge.give_back) = (false, false);
    let plain = SchedulerConfig { policy: Policy::LeastBusy, ..config() };
    for config in [off, plain] {
        let mut late = rig(config.clone(), 2);
        let (stuck, ..) = late.place(guard());
        late.pass(seconds(100));
        assert_eq!(late.dispatched(stuck), None);
        let mut rig = rig(config, 1);
        rig.place(batch());
        let urgent = rig.ask(guard());
        assert_eq!((rig.cancelled(), rig.core.request(urgent, rig.now).map(|view| view.copies)), (vec![], Some(0)));
    }
}

#[test]
fn a_change_of_policy_ends_what_only_the_other_would_do() {
    let mut rig = rig(config(), 2);
    let (stuck, ..) = rig.place(guard());
    rig.tell(Event::Configured { config: SchedulerConfig { policy: Policy::RoundRobin, ..config() } });
    rig.pass(seconds(100));
    assert_eq!(rig.dispatched(stuck), None);
}
