//! Who has the last word about an attempt: the core, or the answer.

use std::sync::Arc;

use scheduler::{
    AttemptId, CancelReason, Event, Left, ModelId, Outcome, RelayId, Release, ReplicaId, ReplicaSpec, Report, RouteSet,
    SchedulerConfig, SoftFailure,
};

use super::{
    Dispatcher, Grant, Place, Word,
    testing::{Script, dispatched, request},
};

async fn granted(place: &Place) -> Grant {
    match place.next().await {
        Word::Granted(grant) => grant,
        Word::Cancelled { attempt, why } => panic!("{attempt:?} cancelled: {why:?}"),
        Word::Shed(shed) => panic!("{shed:?}"),
    }
}

/// A pool in which every replica has one slot.
fn pool(replicas: u32) -> Arc<Dispatcher> {
    let dispatcher = Arc::new(Dispatcher::new(SchedulerConfig::default(), 1, None));
    for replica in (1..=replicas).map(ReplicaId) {
        let spec = ReplicaSpec {
            models: vec![ModelId(1)],
            routes: RouteSet(1),
            slots: 1,
            context_tokens: None,
            relay: RelayId(replica.0),
            prior: None,
            carries_on: false,
            group: None,
            release: Release::AtOnce,
        };
        dispatcher.handle(Event::ReplicaUp { replica, spec });
        dispatcher.handle(Event::ReplicaReported { replica, report: Report::Ready });
    }
    dispatcher
}

fn busy(dispatcher: &Dispatcher) -> usize {
    dispatcher.snapshot().replicas.iter().map(|replica| replica.running.len()).sum()
}

#[tokio::test]
async fn a_request_is_granted_further_slots_while_it_runs() {
    let script = Script::new();
    script.say(dispatched(script.place(), 1, false));
    let first = granted(script.place()).await;
    script.say(dispatched(script.place(), 2, true));
    let second = granted(script.place()).await;
    assert!(!first.is_hedge() && second.is_hedge());
    assert_eq!((first.replica(), second.replica()), (ReplicaId(1), ReplicaId(2)));
    second.cancelled();
    assert!(script.is_live(), "a copy that the core has ended takes nothing with it");
    drop(first);
    assert!(!script.is_live(), "one that nobody ended takes the request with it");
}

#[tokio::test]
async fn an_answer_that_begins_as_the_core_ends_its_attempt_is_not_shown() {
    let script = Script::new();
    script.say(dispatched(script.place(), 1, false));
    script.say(dispatched(script.place(), 2, true));
    let (first, second) = (granted(script.place()).await, granted(script.place()).await);
    script.cancel(AttemptId(1), CancelReason::GivenBack);
    assert_eq!(first.first_token(), Err(CancelReason::GivenBack));
    assert_eq!(second.first_token(), Ok(()), "the other is not meant");
    first.cancelled();
    // The word was taken out of the mailbox with the first look at it.
    script.cancel(AttemptId(2), CancelReason::ReplicaRemoved);
    assert_eq!(script.place().stopped(AttemptId(2)).await, CancelReason::ReplicaRemoved);
    second.cancelled();
}

#[tokio::test]
async fn a_whole_answer_counts_though_the_core_has_just_given_its_slot_away() {
    let dispatcher = pool(2);
    let (place, other) = (dispatcher.submit(request()), dispatcher.submit(request()));
    let (grant, others) = (granted(&place).await, granted(&other).await);
    dispatcher.handle(Event::ReplicaRemoved { replica: grant.replica() });
    assert_eq!(dispatcher.requests().len(), 2, "the request waits for the other replica");
    grant.end(Outcome::Success, Left::Closed, None);
    assert_eq!(dispatcher.requests().len(), 1, "it has its answer, and needs no other");
    others.end(Outcome::Success, Left::Closed, None);
    assert_eq!((dispatcher.requests().len(), busy(&dispatcher)), (0, 0));
}

#[tokio::test]
async fn a_failure_says_nothing_about_an_attempt_that_the_core_has_ended() {
    let dispatcher = pool(2);
    let (place, other) = (dispatcher.submit(request()), dispatcher.submit(request()));
    let (grant, others) = (granted(&place).await, granted(&other).await);
    dispatcher.handle(Event::ReplicaRemoved { replica: grant.replica() });
    grant.end(Outcome::Soft(SoftFailure::Broken), Left::Nothing, None);
    assert_eq!(dispatcher.requests().len(), 2, "the request waits on");
    others.end(Outcome::Success, Left::Closed, None);
    let next = granted(&place).await;
    assert_eq!(next.first_token(), Ok(()));
    next.end(Outcome::Success, Left::Closed, None);
    assert_eq!((dispatcher.requests().len(), busy(&dispatcher)), (0, 0));
}

#[tokio::test]
async fn dropping_the_place_ends_everything() {
    let dispatcher = pool(1);
    let place = dispatcher.submit(request());
    let grant = granted(&place).await;
    assert_eq!(busy(&dispatcher), 1);
    drop(place);
    assert_eq!((dispatcher.requests().len(), busy(&dispatcher)), (0, 0));
    assert_eq!(grant.first_token(), Ok(()), "nobody is left to be told otherwise");
    drop(grant);
}
