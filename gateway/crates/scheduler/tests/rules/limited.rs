//! Replicas of which less may be asked, by what they say about themselves.

use scheduler::{
    Event, Limit, Outcome, Policy, Rates, RelayId, ReplicaId, ReplicaSpec, ReplicaState, SchedulerConfig, ShedReason,
};

use crate::rig::{Rig, config, request, seconds, spec};

fn limit(rig: &mut Rig, id: u32, limit: Limit) {
    rig.tell(Event::ReplicaLimited { replica: ReplicaId(id), limit });
}

fn least_work() -> SchedulerConfig {
    SchedulerConfig { policy: Policy::LeastWork, ..config() }
}

#[test]
fn a_paused_replica_gets_nothing_new_and_what_runs_there_ends_there() {
    let mut rig = Rig::new(config());
    rig.ready(1, spec(2));
    let (running, attempt, _) = rig.place(request());
    limit(&mut rig, 1, Limit::Paused);
    assert_eq!((rig.cancelled(), rig.state(1)), (vec![], ReplicaState::Ready));
    assert_eq!((rig.view(1).limit, rig.view(1).usable_slots), (Limit::Paused, 0));
    assert!(!rig.view(1).takes_work());
    let waiting = rig.ask(request());
    rig.end(attempt, Outcome::Success);
    assert!(rig.core.request(running, rig.now).is_none());
    assert_eq!(rig.dispatched(waiting), None);
    limit(&mut rig, 1, Limit::None);
    assert!(rig.dispatched(waiting).is_some(), "a limit that is lifted wakes who waits");
}

#[test]
fn requests_wait_for_a_paused_replica_as_for_one_that_comes_back() {
    for policy in [Policy::LeastWork, Policy::LeastBusy] {
        let mut rig = Rig::with_replicas(SchedulerConfig { policy, ..config() }, 1);
        limit(&mut rig, 1, Limit::Paused);
        let waiting = rig.ask(request());
        rig.pass(config().queue.no_replica_wait - seconds(1));
        assert_eq!(rig.rejected(waiting), None);
        rig.pass(seconds(1));
        assert_eq!(rig.rejected(waiting).map(|(reason, _)| reason), Some(ShedReason::NoCapacity));
    }
}

#[test]
fn fewer_is_half_of_the_slots_and_one_at_least() {
    for (slots, allowed) in [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)] {
        let mut rig = Rig::new(config());
        rig.ready(1, spec(slots));
        limit(&mut rig, 1, Limit::Fewer);
        for _ in 0..allowed {
            rig.place(request());
        }
        let waiting = rig.ask(request());
        assert_eq!(rig.dispatched(waiting), None, "{allowed} of {slots} slots are in use");
        limit(&mut rig, 1, Limit::None);
        assert_eq!(rig.dispatched(waiting).is_some(), slots > allowed);
    }
}

#[test]
fn one_that_is_to_be_spared_is_asked_only_when_no_other_is_free() {
    for policy in [Policy::LeastWork, Policy::LeastBusy, Policy::RoundRobin] {
        let mut rig = Rig::with_replicas(SchedulerConfig { policy, ..config() }, 2);
        limit(&mut rig, 1, Limit::Fewer);
        for _ in 0..3 {
            assert_eq!(rig.serve(Outcome::Success), 2, "{policy:?}");
        }
    }
}

#[test]
fn a_request_waits_for_a_replica_that_is_soon_free_rather_than_have_one_that_is_to_be_spared() {
    let mut rig = Rig::new(least_work());
    let prior = Some(Rates { prefill: 100.0, decode: 10.0 });
    for id in 1..=2 {
        rig.ready(id, ReplicaSpec { relay: RelayId(id), prior, ..spec(1) });
    }
    limit(&mut rig, 1, Limit::Fewer);
    let long = scheduler::RequestSpec {
        prompt_tokens: 100,
        max_output: Some(600),
        class: scheduler::Class::Interactive,
        ..request()
    };
    let (_, _, on) = rig.place(long.clone());
    assert_eq!(on, 2);
    let second = rig.ask(long.clone());
    let sent = rig.dispatched(second).map(|(_, replica)| replica);
    assert_eq!(sent, Some(1), "the other one will not be free for as long as this takes twice");
    let short = scheduler::RequestSpec { prompt_tokens: 2000, max_output: Some(10), ..long };
    let mut rig = Rig::new(least_work());
    for id in 1..=2 {
        rig.ready(id, ReplicaSpec { relay: RelayId(id), prior, ..spec(1) });
    }
    limit(&mut rig, 1, Limit::Fewer);
    let (_, first, on) = rig.place(short.clone());
    assert_eq!(on, 2);
    rig.pass(seconds(19));
    let waiting = rig.ask(short);
    assert_eq!(rig.dispatched(waiting), None, "the other one has done its work in a moment");
    rig.end(first, Outcome::Success);
    assert_eq!(rig.dispatched(waiting).map(|(_, replica)| replica), Some(2));
}
