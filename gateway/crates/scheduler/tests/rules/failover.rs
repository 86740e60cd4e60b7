//! What a client is spared.

use std::{collections::BTreeSet, time::Duration};

use scheduler::{Effect, Event, Left, Outcome, ReplicaSpec, ReplicaState, RequestSpec, ShedReason, SoftFailure};

use crate::rig::{CONNECT, RESET, Rig, STATUS, config, request, seconds, spec};

const BUSY: Outcome = Outcome::Soft(SoftFailure::Busy { retry_after: Some(Duration::from_secs(86_400)) });

#[test]
fn a_failed_request_is_never_sent_to_the_same_replica_again() {
    let mut rig = Rig::with_replicas(config(), 3);
    let (request, mut attempt, replica) = rig.place(request());
    let mut asked = vec![replica];
    for _ in 0..2 {
        rig.end(attempt, STATUS);
        let (next, replica) = rig.dispatched(request).expect("another replica is free");
        attempt = next;
        asked.push(replica);
    }
    assert_eq!(asked.iter().collect::<BTreeSet<_>>().len(), 3);
    rig.end(attempt, STATUS);
    assert_eq!(rig.rejected(request).map(|(reason, _)| reason), Some(ShedReason::AttemptsExhausted));
}

#[test]
fn with_every_replica_tried_the_request_is_refused_at_once() {
    let mut rig = Rig::with_replicas(config(), 2);
    let (request, attempt, _) = rig.place(request());
    rig.end(attempt, RESET);
    let (attempt, _) = rig.dispatched(request).expect("the other replica is free");
    rig.end(attempt, RESET);
    assert_eq!(rig.rejected(request).map(|(reason, _)| reason), Some(ShedReason::AttemptsExhausted));
}

#[test]
fn a_replica_that_may_still_come_is_waited_for() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.tell(Event::ReplicaUp { replica: scheduler::ReplicaId(2), spec: spec(1) });
    let (request, attempt, _) = rig.place(request());
    rig.end(attempt, STATUS);
    rig.pass(seconds(20));
    assert_eq!(rig.rejected(request), None);
    rig.report(2, scheduler::Report::Ready);
    assert_eq!(rig.dispatched(request).map(|(_, replica)| replica), Some(2));
}

#[test]
fn content_that_was_sent_is_never_sent_again() {
    let mut rig = Rig::with_replicas(config(), 2);
    let (request, attempt, _) = rig.place(request());
    rig.tell(Event::FirstToken { attempt });
    let outcome = Outcome::Soft(SoftFailure::Broken);
    rig.tell(Event::AttemptEnded { attempt, outcome, left: Left::Closed, timings: None });
    let goes_on = |effect: &Effect| matches!(effect, Effect::Dispatch { .. } | Effect::Reject { .. });
    assert!(!rig.heard().iter().any(goes_on));
    assert!(rig.core.request(request, rig.now).is_none());
}

#[test]
fn the_failed_over_request_is_first_in_its_class() {
    let mut rig = Rig::with_replicas(config(), 2);
    let (first, attempt, _) = rig.place(request());
    let (_, other, _) = rig.place(request());
    let waiting = rig.ask(request());
    rig.end(attempt, STATUS);
    // The slot that failed goes to the one in the queue, which has not tried it; the failed one takes the next.
    assert!(rig.dispatched(waiting).is_some());
    let later = rig.ask(request());
    rig.end(other, Outcome::Success);
    let heard = rig.heard();
    assert!(heard.iter().any(|effect| matches!(effect, Effect::Dispatch { request, .. } if *request == first)));
    assert!(!heard.iter().any(|effect| matches!(effect, Effect::Dispatch { request, .. } if *request == later)));
}

#[test]
fn a_full_replica_is_left_alone_for_the_capped_time_it_asked_for_and_is_not_ill() {
    let mut rig = Rig::with_replicas(config(), 2);
    let (first, attempt, full) = rig.place(request());
    rig.end(attempt, BUSY);
    let (attempt, other) = rig.dispatched(first).expect("full means elsewhere, now");
    assert_ne!(full, other);
    assert_eq!((rig.state(full), rig.view(full).usable_slots), (ReplicaState::Ready, 0));
    rig.end(attempt, Outcome::Success);
    rig.pass(seconds(599));
    assert_eq!(rig.serve(Outcome::Success), other);
    rig.pass(seconds(1));
    assert_eq!(rig.view(full).usable_slots, 1);
}

#[test]
fn a_pool_that_is_full_everywhere_is_not_a_failed_pool() {
    let mut rig = Rig::with_replicas(config(), 5);
    let (first, mut attempt, _) = rig.place(request());
    for _ in 0..4 {
        rig.end(attempt, BUSY);
        attempt = rig.dispatched(first).expect("full ones do not use up the attempts").0;
    }
    rig.end(attempt, BUSY);
    assert_eq!(rig.rejected(first).map(|(reason, _)| reason), Some(ShedReason::NoCapacity));
    assert!((1..=5).all(|id| rig.state(id) == ReplicaState::Ready));
}

#[test]
fn a_prompt_too_long_for_one_replica_goes_to_a_larger_one_and_ends_where_there_is_none() {
    let mut rig = Rig::new(config());
    rig.ready(1, ReplicaSpec { context_tokens: Some(4096), ..spec(2) });
    rig.ready(2, ReplicaSpec { context_tokens: Some(16_384), ..spec(1) });
    rig.ready(3, ReplicaSpec { context_tokens: Some(4096), ..spec(2) });
    let (large, _, at) = rig.place(RequestSpec { prompt_tokens: 9000, ..request() });
    assert_eq!(at, 2);
    let (small, attempt, at) = rig.place(RequestSpec { prompt_tokens: 4000, ..request() });
    assert_ne!(at, 2);
    rig.end(attempt, Outcome::ContextExceeded);
    assert_eq!(rig.dispatched(small), None, "only the large one will do, and it is busy");
    rig.tell(Event::RequestAbandoned { request: large });
    let (attempt, at) = rig.dispatched(small).expect("the large one is free");
    assert_eq!(at, 2);
    rig.end(attempt, Outcome::ContextExceeded);
    assert_eq!(rig.rejected(small).map(|(reason, _)| reason), Some(ShedReason::ContextExceeded));
}

#[test]
fn an_estimate_above_every_context_is_tried_on_the_largest_and_twice_that_is_refused() {
    let mut rig = Rig::new(config());
    rig.ready(1, ReplicaSpec { context_tokens: Some(4096), ..spec(1) });
    rig.ready(2, ReplicaSpec { context_tokens: Some(8192), ..spec(1) });
    assert_eq!(rig.place(RequestSpec { prompt_tokens: 12_000, ..request() }).2, 2);
    let hopeless = rig.ask(RequestSpec { prompt_tokens: 16_386, ..request() });
    assert_eq!(rig.rejected(hopeless).map(|(reason, _)| reason), Some(ShedReason::ContextExceeded));
}

#[test]
fn retries_without_budget_wait_and_fresh_requests_do_not() {
    let mut config = config();
    config.retry.budget_floor = 1;
    config.retry.budget_share = 0.0;
    let mut rig = Rig::with_replicas(config, 6);
    let (a, b) = (rig.place(request()), rig.place(request()));
    rig.end(a.1, CONNECT);
    let retry = rig.dispatched(a.0).expect("the budget has room for one");
    rig.end(b.1, CONNECT);
    assert_eq!(rig.dispatched(b.0), None, "no budget");
    rig.place(request());
    rig.end(retry.0, Outcome::Success);
    assert!(rig.dispatched(b.0).is_some(), "the budget is free again");
}

#[test]
fn replicas_that_cannot_be_reached_use_up_no_attempt() {
    let mut rig = Rig::with_replicas(config(), 30);
    let (request, mut attempt, _) = rig.place(request());
    for _ in 0..28 {
        rig.end(attempt, CONNECT);
        attempt = rig.dispatched(request).expect("another may be alive").0;
    }
    rig.end(attempt, CONNECT);
    let (attempt, _) = rig.dispatched(request).expect("one is left");
    rig.end(attempt, Outcome::Success);
    assert!(rig.core.request(request, rig.now).is_none() && rig.rejected(request).is_none());
}

#[test]
fn a_tour_of_pages_that_say_nobody_is_there_ends_after_nine() {
    let mut rig = Rig::with_replicas(config(), 30);
    let (request, mut attempt, _) = rig.place(request());
    for _ in 0..8 {
        rig.end(attempt, Outcome::Soft(SoftFailure::BadAnswer));
        attempt = rig.dispatched(request).expect("another may be alive").0;
    }
    rig.end(attempt, Outcome::Soft(SoftFailure::BadAnswer));
    assert_eq!(rig.rejected(request).map(|(reason, _)| reason), Some(ShedReason::NoCapacity));
}

#[test]
fn a_retry_does_not_gamble_on_a_suspect_while_a_sound_replica_serves() {
    let mut rig = Rig::with_replicas(config(), 3);
    let (first, attempt, _) = rig.place(request());
    let (second, other, _) = rig.place(request());
    let (_, sound, _) = rig.place(request());
    rig.end(attempt, STATUS);
    rig.end(other, STATUS);
    assert!(rig.core.requests(rig.now).iter().filter(|view| view.running.is_none()).count() == 2, "both wait");
    rig.heard();
    let fresh = rig.ask(request());
    assert!(rig.dispatched(fresh).is_some(), "one that lost nothing yet may");
    rig.end(sound, Outcome::Success);
    assert!(rig.dispatched(first).is_some());
    assert_eq!(rig.core.request(second, rig.now).and_then(|view| view.running), None);
}

#[test]
fn with_suspects_only_a_retry_takes_what_there_is() {
    let mut rig = Rig::with_replicas(config(), 2);
    let (first, attempt, _) = rig.place(request());
    let (_, other, _) = rig.place(request());
    rig.end(other, STATUS);
    rig.heard();
    rig.end(attempt, STATUS);
    assert!(rig.dispatched(first).is_some());
}
