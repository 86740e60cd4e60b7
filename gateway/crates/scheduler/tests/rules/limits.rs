//! How long, how many, how large, and what is said then.

use std::time::Duration;

use scheduler::{CancelReason, Class, Event, Left, ModelId, Outcome, RequestId, RequestSpec, ShedReason, Timings};

use crate::rig::{Rig, STATUS, config, request, seconds};

fn reason(rig: &mut Rig, request: RequestId) -> Option<ShedReason> {
    rig.rejected(request).map(|(reason, _)| reason)
}

#[test]
fn the_queue_is_bounded_by_the_slots_of_the_pool() {
    let mut rig = Rig::with_replicas(config(), 2);
    for _ in 0..2 {
        rig.place(request());
    }
    for _ in 0..20 {
        let waiting = rig.ask(request());
        assert_eq!(reason(&mut rig, waiting), None);
    }
    let one_more = rig.ask(request());
    assert_eq!(reason(&mut rig, one_more), Some(ShedReason::QueueFull));
}

#[test]
fn the_queue_is_bounded_by_count_and_by_bytes() {
    let mut few = config();
    few.queue.max_requests = 2;
    let mut small = config();
    small.queue.max_bytes = 2500;
    for config in [few, small] {
        let mut rig = Rig::new(config);
        let waiting = [rig.ask(request()), rig.ask(request())];
        assert!(waiting.into_iter().all(|id| reason(&mut rig, id).is_none()));
        let one_more = rig.ask(request());
        assert_eq!(reason(&mut rig, one_more), Some(ShedReason::QueueFull));
    }
}

#[test]
fn a_waiter_that_left_for_any_reason_counts_no_more() {
    let mut config = config();
    config.queue.max_requests = 10;
    let mut rig = Rig::with_replicas(config, 1);
    rig.place(request());
    let at = rig.now + seconds(60);
    let leaver = rig.ask(request());
    for _ in 0..4 {
        rig.ask(RequestSpec { deadline: Some(at), ..request() });
    }
    for _ in 0..5 {
        rig.ask(RequestSpec { class: Class::Interactive, ..request() });
    }
    assert_eq!(rig.core.waiting(), 10);
    rig.tell(Event::RequestAbandoned { request: leaver });
    rig.pass(seconds(120));
    assert_eq!(rig.core.waiting(), 0);
    assert_eq!(rig.core.snapshot(rig.now).queued_bytes, 0);
    let next = rig.ask(request());
    assert_eq!(reason(&mut rig, next), None);
}

#[test]
fn each_class_waits_as_long_as_it_may() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.place(request());
    let [interactive, standard, batch] = Class::ALL.map(|class| rig.ask(RequestSpec { class, ..request() }));
    rig.pass(seconds(119));
    assert_eq!(reason(&mut rig, interactive), None);
    rig.pass(seconds(1));
    assert_eq!(reason(&mut rig, interactive), Some(ShedReason::QueueAge));
    rig.pass(seconds(479));
    assert_eq!(reason(&mut rig, standard), None);
    rig.pass(seconds(1));
    assert_eq!(reason(&mut rig, standard), Some(ShedReason::QueueAge));
    rig.pass(seconds(100_000));
    assert!(rig.core.request(batch, rig.now).is_some());
}

#[test]
fn time_spent_running_is_not_time_spent_waiting() {
    let mut rig = Rig::with_replicas(config(), 2);
    let (first, attempt, _) = rig.place(RequestSpec { class: Class::Interactive, ..request() });
    rig.place(request());
    rig.pass(seconds(300));
    rig.end(attempt, STATUS);
    assert_eq!(reason(&mut rig, first), None);
    rig.pass(seconds(119));
    assert_eq!(reason(&mut rig, first), None);
    rig.pass(seconds(1));
    assert_eq!(reason(&mut rig, first), Some(ShedReason::QueueAge));
}

#[test]
fn a_deadline_ends_a_request_in_every_phase() {
    let mut rig = Rig::with_replicas(config(), 2);
    let deadline = Some(rig.now + seconds(10));
    let (silent, silent_attempt, _) = rig.place(RequestSpec { deadline, ..request() });
    let (_, begun, _) = rig.place(RequestSpec { deadline, stream: true, ..request() });
    let waiting = rig.ask(RequestSpec { deadline, ..request() });
    rig.tell(Event::FirstToken { attempt: begun });
    rig.pass(seconds(10));
    let heard = rig.heard();
    let count = |wanted: &dyn Fn(&scheduler::Effect) -> bool| heard.iter().filter(|effect| wanted(effect)).count();
    for attempt in [silent_attempt, begun] {
        let cancel = |effect: &scheduler::Effect| matches!(effect, scheduler::Effect::Cancel { attempt: cancelled, why: CancelReason::Deadline, .. } if *cancelled == attempt);
        assert_eq!(count(&cancel), 1);
    }
    let refused: Vec<RequestId> = heard
        .iter()
        .filter_map(|effect| match effect {
            scheduler::Effect::Reject { request, reason: ShedReason::Deadline, .. } => Some(*request),
            _ => None,
        })
        .collect();
    assert!(refused.len() == 2 && refused.contains(&silent) && refused.contains(&waiting));
    assert!(rig.core.requests(rig.now).is_empty());
    assert!([1, 2].iter().all(|id| rig.view(*id).running.is_empty()));
}

#[test]
fn a_request_that_comes_too_late_is_refused_at_once() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.pass(seconds(1));
    let late = rig.ask(RequestSpec { deadline: Some(rig.now), ..request() });
    assert_eq!(reason(&mut rig, late), Some(ShedReason::Deadline));
}

#[test]
fn a_model_without_a_replica_is_waited_for_and_then_refused() {
    let mut rig = Rig::with_replicas(config(), 1);
    let waiting = rig.ask(RequestSpec { model: ModelId(7), ..request() });
    rig.pass(Duration::from_millis(29_999));
    assert_eq!(reason(&mut rig, waiting), None);
    rig.pass(Duration::from_millis(1));
    assert_eq!(reason(&mut rig, waiting), Some(ShedReason::NoCapacity));
}

#[test]
fn the_wait_for_a_replica_begins_when_the_last_one_goes() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.place(request());
    let waiting = rig.ask(request());
    rig.pass(seconds(100));
    rig.report(1, scheduler::Report::Misconfigured);
    rig.pass(seconds(29));
    assert_eq!(reason(&mut rig, waiting), None);
    rig.pass(seconds(1));
    assert_eq!(reason(&mut rig, waiting), Some(ShedReason::NoCapacity));
}

#[test]
fn retry_after_follows_the_queue_within_its_bounds() {
    let mut rig = Rig::with_replicas(config(), 1);
    for _ in 0..30 {
        let (_, attempt, _) = rig.place(request());
        rig.pass(seconds(4));
        let timings = Timings {
            prefill_tokens: 100,
            prefill: seconds(1),
            decode_tokens: 100,
            decode: seconds(3),
            cached_tokens: 0,
            by_engine: true,
        };
        let (outcome, timings) = (Outcome::Success, Some(timings));
        rig.tell(Event::AttemptEnded { attempt, outcome, left: Left::Closed, timings });
    }
    rig.place(request());
    let about = |estimate: Duration, seconds: usize| (estimate.as_secs_f64() / seconds as f64 - 1.0).abs() < 0.05;
    for waiting in 0..10 {
        let estimate = rig.core.estimate_wait(crate::rig::MODEL, Class::Standard, rig.now);
        assert!(about(estimate, 4 * (waiting + 1)), "{estimate:?} behind {waiting}");
        assert_eq!(rig.core.waiting(), waiting);
        rig.ask(request());
    }
    let refused = rig.ask(request());
    let (_, retry_after) = rig.rejected(refused).expect("the queue is full");
    assert!(about(retry_after, 44), "{retry_after:?}");
    let unknown = rig.ask(RequestSpec { model: ModelId(7), deadline: Some(rig.now), ..request() });
    let (_, retry_after) = rig.rejected(unknown).expect("its deadline has passed");
    assert!(retry_after <= seconds(60) && retry_after >= seconds(1));
}

#[test]
fn new_settings_take_effect_at_once_and_lose_nothing() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.place(request());
    let waiting = rig.ask(request());
    rig.pass(seconds(10));
    let mut shorter = config();
    shorter.queue.max_age[1] = Some(seconds(20));
    rig.tell(Event::Configured { config: shorter });
    assert_eq!(reason(&mut rig, waiting), None);
    rig.pass(seconds(10));
    assert_eq!(reason(&mut rig, waiting), Some(ShedReason::QueueAge));
}

#[test]
fn an_answer_that_nobody_saw_begin_ends_at_the_deadline_with_a_refusal() {
    let mut rig = Rig::with_replicas(config(), 1);
    let (plain, attempt, _) = rig.place(RequestSpec { deadline: Some(rig.now + seconds(10)), ..request() });
    rig.tell(Event::FirstToken { attempt });
    rig.pass(seconds(10));
    assert_eq!(reason(&mut rig, plain), Some(ShedReason::Deadline));
}
