//! Cancels that are believed only when they are seen: slots of work that was broken off.

use std::time::Duration;

use scheduler::{
    AttemptId, CancelReason, Class, Effect, Event, HardFailure, Left, Outcome, Policy, Rates, RelayId, Release,
    ReplicaId, ReplicaSpec, ReplicaState, Report, RequestId, RequestSpec, SchedulerConfig, SoftFailure, Timestamp,
};

use crate::rig::{RESET, Rig, STATUS, config, request, seconds, spec};

const FIRST_LOOK: Duration = Duration::from_millis(250);

/// A replica whose slots can be looked at, and one that works on whatever happens. They read 100 tokens a second and write 10.
fn shown(slots: u16) -> ReplicaSpec {
    ReplicaSpec { release: Release::Shown, prior: Some(Rates { prefill: 100.0, decode: 10.0 }), ..spec(slots) }
}

fn runs_on(slots: u16) -> ReplicaSpec {
    ReplicaSpec { release: Release::RunsOn, ..shown(slots) }
}

/// Up, and seen to be idle.
fn up(rig: &mut Rig, id: u32, spec: ReplicaSpec) {
    rig.ready(id, ReplicaSpec { relay: RelayId(id), ..spec });
    rig.seen(id, 0);
    // Long enough ago that the next look may come at once.
    rig.pass(seconds(2));
    rig.heard();
}

fn rig(spec: ReplicaSpec) -> Rig {
    let mut rig = Rig::new(config());
    up(&mut rig, 1, spec);
    rig
}

fn leave(rig: &mut Rig, request: RequestId) {
    rig.tell(Event::RequestAbandoned { request });
}

fn lingering(rig: &Rig, id: u32) -> u16 {
    rig.view(id).lingering
}

/// One slot whose client has left, and who waits for it.
fn left(rig: &mut Rig) -> RequestId {
    let (gone, ..) = rig.place(request());
    leave(rig, gone);
    let next = rig.ask(request());
    assert_eq!((rig.dispatched(next), lingering(rig, 1)), (None, 1));
    next
}

#[test]
fn the_slot_of_a_client_that_left_is_given_again_when_a_look_shows_it_free() {
    let mut rig = rig(shown(1));
    let next = left(&mut rig);
    rig.pass(FIRST_LOOK);
    assert_eq!(rig.looks(), [1]);
    rig.seen(1, 1);
    assert_eq!(rig.dispatched(next), None);
    rig.pass(seconds(2));
    assert_eq!(rig.looks(), [1]);
    rig.seen(1, 0);
    assert!(rig.dispatched(next).is_some());
    assert_eq!((lingering(&rig, 1), rig.view(1).foreign), (0, 0));
}

#[test]
fn a_phone_that_ignores_closes_for_a_minute_gets_no_work_for_a_minute_while_the_others_do() {
    let mut rig = rig(shown(1));
    up(&mut rig, 2, shown(1));
    let (gone, _, deaf) = rig.place(request());
    leave(&mut rig, gone);
    let stops = rig.now + seconds(60);
    let mut served = 0;
    while lingering(&rig, deaf) > 0 {
        rig.pass(Duration::from_millis(500));
        let busy = u16::from(rig.now < stops);
        for id in rig.looks() {
            assert_eq!(id, deaf);
            rig.seen(deaf, busy);
        }
        if lingering(&rig, deaf) > 0 {
            let (_, attempt, replica) = rig.place(request());
            assert_ne!(replica, deaf, "it still works for nobody");
            rig.end(attempt, Outcome::Success);
            served += 1;
        }
    }
    assert!(rig.now >= stops && rig.now <= stops + seconds(2) && served > 100, "{:?}, {served}", rig.now);
    let used: Vec<u32> = (0..2).map(|_| rig.place(request()).2).collect();
    assert!(used.contains(&deaf));
}

#[test]
fn looks_never_come_faster_than_once_a_second_however_often_clients_leave() {
    let mut rig = rig(shown(2));
    let (mut last, mut looks) = (None::<Timestamp>, 0);
    for step in 0..600_u32 {
        rig.pass(Duration::from_millis(100));
        if rig.view(1).lingering < 2 {
            let id = rig.ask(request());
            leave(&mut rig, id);
        }
        for id in rig.looks() {
            assert!(last.is_none_or(|last| rig.now.since(last) >= seconds(1)), "{last:?} and {:?}", rig.now);
            (last, looks) = (Some(rig.now), looks + 1);
            rig.seen(id, u16::from(step % 3 == 0));
        }
    }
    assert!(looks > 20, "{looks}");
}

#[test]
fn one_look_at_a_time_and_one_that_is_never_answered_is_given_up() {
    let mut rig = rig(shown(2));
    let (first, ..) = rig.place(request());
    leave(&mut rig, first);
    rig.pass(seconds(1));
    assert_eq!(rig.looks(), [1]);
    let (second, ..) = rig.place(request());
    leave(&mut rig, second);
    rig.pass(seconds(9));
    assert!(rig.looks().is_empty(), "the first is still under way");
    rig.pass(seconds(1));
    assert_eq!(rig.looks(), [1]);
}

#[test]
fn a_phone_that_is_never_seen_free_is_tried_again_after_the_bound() {
    for busy in [None, Some(1)] {
        let mut rig = rig(shown(1));
        let next = left(&mut rig);
        for _ in 0..59 {
            rig.pass(seconds(1));
            let heard = rig.heard();
            assert!(!heard.iter().any(|effect| matches!(effect, Effect::Dispatch { .. })), "{:?}", rig.now);
            if let Some(busy) = busy {
                rig.seen(1, busy);
            }
        }
        rig.pass(seconds(2));
        assert!(rig.dispatched(next).is_some());
    }
}

#[test]
fn the_bound_follows_the_work_that_is_left_and_has_a_cap() {
    let until_free = |prompt_tokens| {
        let mut rig = rig(shown(1));
        let (gone, ..) = rig.place(RequestSpec { prompt_tokens, ..request() });
        leave(&mut rig, gone);
        let since = rig.now;
        while lingering(&rig, 1) > 0 {
            rig.pass(seconds(1));
        }
        rig.now.since(since).as_secs()
    };
    assert_eq!(until_free(100), 60);
    // 7,000 tokens at 100 a second, less where reading slows down, and half as much again.
    assert!((110..300).contains(&until_free(7000)), "{}", until_free(7000));
    assert_eq!(until_free(15_000), 600);
}

#[test]
fn an_engine_that_never_notices_is_taken_until_the_work_would_have_been_done() {
    let mut rig = rig(runs_on(1));
    let next = left(&mut rig);
    let left_at = rig.now;
    let placed = loop {
        rig.pass(seconds(1));
        let heard = rig.heard();
        assert!(!heard.iter().any(|effect| matches!(effect, Effect::Look { .. })), "it can't be asked");
        if heard.iter().any(|effect| matches!(effect, Effect::Dispatch { request, .. } if *request == next)) {
            break rig.now.since(left_at);
        }
    };
    // A second of reading and 256 tokens at 10 a second, and half as much again.
    assert!((seconds(30)..seconds(60)).contains(&placed), "{placed:?}");
}

#[test]
fn a_whole_answer_to_later_work_ends_what_an_engine_ran_on_with() {
    let mut rig = rig(runs_on(2));
    let (earlier, ..) = rig.place(request());
    rig.pass(seconds(1));
    let (_, later, _) = rig.place(request());
    leave(&mut rig, earlier);
    assert_eq!(lingering(&rig, 1), 1);
    rig.end(later, Outcome::Success);
    assert_eq!(lingering(&rig, 1), 0);
    let (_, earlier, _) = rig.place(request());
    rig.pass(seconds(1));
    let (gone, ..) = rig.place(request());
    leave(&mut rig, gone);
    rig.end(earlier, Outcome::Success);
    assert_eq!(lingering(&rig, 1), 1, "what was sent before it says nothing");
}

#[test]
fn an_answer_that_was_ended_for_an_engine_is_whole_and_the_engine_works_on() {
    let mut rig = rig(runs_on(1));
    let (_, attempt, _) = rig.place(request());
    rig.tell(Event::FirstToken { attempt });
    rig.pass(seconds(2));
    rig.end(attempt, Outcome::CutShort);
    assert_eq!((lingering(&rig, 1), rig.view(1).state), (1, ReplicaState::Ready));
    let next = rig.ask(request());
    assert_eq!(rig.dispatched(next), None, "the engine is at the old answer still");
    rig.pass(seconds(60));
    assert!(rig.dispatched(next).is_some());
}

#[test]
fn the_slot_of_a_copy_that_lost_stays_taken() {
    let mut rig = Rig::new(SchedulerConfig { policy: Policy::LeastWork, ..SchedulerConfig::default() });
    up(&mut rig, 1, shown(1));
    up(&mut rig, 2, shown(1));
    let guard = RequestSpec { class: Class::Interactive, max_output: Some(20), stream: true, ..request() };
    let (_, first, at) = rig.place(guard);
    rig.pass(seconds(30));
    let copy = rig.heard().into_iter().find_map(|effect| match effect {
        Effect::Dispatch { attempt, hedge: true, .. } => Some(attempt),
        _ => None,
    });
    rig.tell(Event::FirstToken { attempt: copy.expect("a copy is sent") });
    assert_eq!(rig.cancelled(), [(first, CancelReason::HedgeLost)]);
    assert_eq!((lingering(&rig, at), rig.view(at).running.len()), (1, 0));
    rig.pass(FIRST_LOOK);
    assert_eq!(rig.looks(), [at]);
}

#[test]
fn deadlines_and_drains_that_stop_work_leave_it_behind_too() {
    let mut timed = rig(shown(1));
    timed.place(RequestSpec { deadline: Some(timed.now + seconds(5)), ..request() });
    timed.pass(seconds(5));
    assert_eq!(lingering(&timed, 1), 1);
    let mut drained = rig(shown(1));
    drained.place(request());
    drained.tell(Event::DrainReplica { replica: ReplicaId(1), deadline: Some(drained.now + seconds(5)) });
    drained.pass(seconds(5));
    assert_eq!(lingering(&drained, 1), 1);
    assert!(drained.heard().contains(&Effect::Drained { replica: ReplicaId(1) }), "nobody waits for it any more");
}

#[test]
fn an_attempt_that_was_answered_or_never_arrived_leaves_nothing_behind() {
    let ends = [
        Outcome::Success,
        Outcome::RequestFault,
        Outcome::ContextExceeded,
        Outcome::Loading,
        Outcome::Hard(HardFailure::Connect),
        Outcome::Hard(HardFailure::Tls),
        STATUS,
        Outcome::Soft(SoftFailure::Busy { retry_after: None }),
    ];
    for outcome in ends {
        for spec in [shown(1), runs_on(1)] {
            let mut rig = rig(spec);
            let (_, attempt, _) = rig.place(request());
            rig.end(attempt, outcome);
            assert_eq!(lingering(&rig, 1), 0, "{outcome:?}");
        }
    }
}

#[test]
fn an_attempt_that_broke_off_leaves_its_work_behind_unless_cancels_are_believed() {
    let ends = [SoftFailure::Broken, SoftFailure::NoFirstToken, SoftFailure::Stalled, SoftFailure::BadAnswer];
    for outcome in ends.map(Outcome::Soft).into_iter().chain([RESET]) {
        for (spec, expected) in [(shown(1), 1), (runs_on(1), 1), (spec(1), 0)] {
            let mut rig = rig(spec);
            let (_, attempt, _) = rig.place(request());
            rig.end(attempt, outcome);
            assert_eq!(lingering(&rig, 1), expected, "{outcome:?}");
        }
    }
}

#[test]
fn a_look_that_was_asked_for_before_the_break_off_frees_nothing() {
    let mut rig = rig(shown(1));
    let (gone, ..) = rig.place(request());
    let before = rig.now;
    rig.pass(Duration::from_millis(10));
    leave(&mut rig, gone);
    rig.tell(Event::SlotsSeen { replica: ReplicaId(1), busy: 0, asked: before });
    assert_eq!(lingering(&rig, 1), 1);
}

/// Two slots: one streams, the client of the other has left.
fn beside_a_stream() -> (Rig, AttemptId) {
    let mut rig = rig(shown(2));
    let (_, stream, _) = rig.place(RequestSpec { stream: true, ..request() });
    rig.tell(Event::FirstToken { attempt: stream });
    let (gone, ..) = rig.place(request());
    leave(&mut rig, gone);
    rig.pass(FIRST_LOOK);
    assert_eq!(rig.looks(), [1]);
    (rig, stream)
}

#[test]
fn a_neighbours_slot_is_not_taken_for_the_one_that_was_left() {
    let (mut rig, _) = beside_a_stream();
    rig.seen(1, 2);
    assert_eq!(lingering(&rig, 1), 1);
    rig.pass(seconds(2));
    rig.seen(1, 1);
    assert_eq!((lingering(&rig, 1), rig.view(1).foreign), (0, 0));
}

#[test]
fn a_list_that_does_not_show_what_arrives_here_is_not_believed() {
    let (mut rig, stream) = beside_a_stream();
    rig.seen(1, 0);
    assert_eq!(lingering(&rig, 1), 1);
    rig.pass(seconds(2));
    rig.tell(Event::AttemptEnded { attempt: stream, outcome: Outcome::Success, left: Left::Closed, timings: None });
    rig.pass(seconds(1));
    rig.seen(1, 0);
    assert_eq!(lingering(&rig, 1), 0);
}

#[test]
fn a_request_on_its_way_may_not_be_in_the_list_yet() {
    let mut rig = rig(shown(2));
    let (gone, ..) = rig.place(request());
    leave(&mut rig, gone);
    rig.place(request());
    rig.pass(FIRST_LOOK);
    // The one that is busy may well be the one that was left.
    rig.seen(1, 1);
    assert_eq!(lingering(&rig, 1), 1);
    rig.pass(seconds(6));
    rig.seen(1, 1);
    assert_eq!(lingering(&rig, 1), 0, "it has arrived long since");
}

#[test]
fn of_several_the_oldest_is_free_first() {
    let mut rig = rig(shown(3));
    let (first, ..) = rig.place(request());
    leave(&mut rig, first);
    rig.pass(seconds(40));
    for _ in 0..2 {
        let (next, ..) = rig.place(request());
        leave(&mut rig, next);
    }
    rig.pass(FIRST_LOOK);
    rig.seen(1, 2);
    assert_eq!(lingering(&rig, 1), 2);
    rig.pass(seconds(30));
    assert_eq!(lingering(&rig, 1), 2, "the bound that would have passed was the oldest's");
}

#[test]
fn work_of_others_counts_from_the_second_look_on_and_is_gone_at_the_first_that_does_not_show_it() {
    let mut rig = rig(shown(2));
    rig.pass(seconds(10));
    rig.seen(1, 2);
    assert_eq!(rig.view(1).foreign, 0);
    rig.pass(seconds(2));
    assert_eq!(rig.looks(), [1], "once more, to be sure");
    rig.seen(1, 2);
    assert_eq!(rig.view(1).foreign, 2);
    let waits = rig.ask(request());
    assert_eq!(rig.dispatched(waits), None);
    rig.pass(seconds(10));
    assert_eq!(rig.looks(), [1]);
    rig.seen(1, 1);
    assert_eq!(rig.view(1).foreign, 1);
    assert!(rig.dispatched(waits).is_some());
}

#[test]
fn work_of_others_is_forgotten_where_nobody_can_be_asked_about_it() {
    let mut rig = rig(shown(1));
    for _ in 0..2 {
        rig.pass(seconds(5));
        rig.seen(1, 1);
    }
    assert_eq!(rig.view(1).foreign, 1);
    rig.pass(seconds(25));
    assert_eq!(rig.view(1).foreign, 0);
}

#[test]
fn what_was_left_goes_with_an_outage_and_the_replica_is_looked_at_before_it_gets_work_again() {
    let mut rig = rig(shown(1));
    up(&mut rig, 2, shown(1));
    let (gone, _, at) = rig.place(request());
    leave(&mut rig, gone);
    for _ in 0..2 {
        rig.report(at, Report::Unreachable);
    }
    assert_eq!((rig.state(at), lingering(&rig, at)), (ReplicaState::Out, 0));
    let other = 3 - at;
    rig.tell(Event::ReplicaRemoved { replica: ReplicaId(other) });
    rig.pass(seconds(20));
    rig.heard();
    rig.report(at, Report::Ready);
    assert_eq!(rig.looks(), [at]);
    let waits = rig.ask(request());
    assert_eq!(rig.dispatched(waits), None);
    // What runs there now is what was left behind; nobody needs to be told that twice.
    rig.seen(at, 1);
    assert_eq!((rig.view(at).foreign, rig.dispatched(waits)), (1, None));
    rig.pass(seconds(10));
    rig.seen(at, 0);
    assert!(rig.dispatched(waits).is_some());
}

#[test]
fn a_replica_that_comes_up_and_can_not_be_looked_at_gets_work_all_the_same() {
    let mut rig = Rig::new(config());
    rig.ready(1, shown(1));
    let waits = rig.ask(request());
    rig.pass(seconds(9));
    assert_eq!(rig.dispatched(waits), None);
    rig.pass(seconds(1));
    assert!(rig.dispatched(waits).is_some());
}

#[test]
fn a_phone_that_reads_for_nobody_is_not_dead_because_its_probes_time_out() {
    let mut rig = rig(shown(1));
    up(&mut rig, 2, shown(1));
    let (gone, _, at) = rig.place(request());
    leave(&mut rig, gone);
    for _ in 0..5 {
        rig.report(at, Report::TimedOut);
    }
    assert_eq!(rig.state(at), ReplicaState::Ready);
}

#[test]
fn a_removed_replica_leaves_nothing_behind() {
    let mut rig = rig(shown(2));
    let (gone, ..) = rig.place(request());
    leave(&mut rig, gone);
    rig.place(request());
    rig.tell(Event::ReplicaRemoved { replica: ReplicaId(1) });
    rig.heard();
    rig.pass(seconds(30));
    assert!(rig.looks().is_empty());
    up(&mut rig, 1, shown(2));
    assert_eq!((lingering(&rig, 1), rig.view(1).foreign), (0, 0));
}

#[test]
fn a_changed_description_holds_for_what_lingers() {
    let mut rig = rig(shown(2));
    let next = {
        for _ in 0..2 {
            let (gone, ..) = rig.place(request());
            leave(&mut rig, gone);
        }
        rig.ask(request())
    };
    rig.tell(Event::ReplicaUp { replica: ReplicaId(1), spec: ReplicaSpec { slots: 1, ..shown(1) } });
    assert_eq!((rig.dispatched(next), lingering(&rig, 1)), (None, 2));
    rig.tell(Event::ReplicaUp { replica: ReplicaId(1), spec: ReplicaSpec { slots: 1, ..spec(1) } });
    assert_eq!(lingering(&rig, 1), 0);
    assert!(rig.dispatched(next).is_some(), "a replica of which cancels are believed keeps nobody waiting");
}

#[test]
fn batch_work_that_makes_room_is_seen_to_have_stopped_before_the_urgent_request_starts() {
    let urgent = RequestSpec { class: Class::Interactive, max_output: Some(20), stream: true, ..request() };
    let batch = RequestSpec { class: Class::Batch, max_output: Some(3000), ..request() };
    let policy = SchedulerConfig { policy: Policy::LeastWork, ..SchedulerConfig::default() };
    let mut rig = Rig::new(policy.clone());
    up(&mut rig, 1, shown(1));
    let (_, attempt, _) = rig.place(batch.clone());
    rig.pass(seconds(5));
    let guard = rig.ask(urgent.clone());
    assert_eq!(rig.cancelled(), [(attempt, CancelReason::GivenBack)]);
    assert_eq!(lingering(&rig, 1), 1);
    rig.pass(FIRST_LOOK);
    assert_eq!(rig.looks(), [1]);
    rig.seen(1, 0);
    assert!(rig.dispatched(guard).is_some());
    // It would gain nothing by it where the old work goes on.
    let mut deaf = Rig::new(policy);
    up(&mut deaf, 1, runs_on(1));
    deaf.place(batch);
    deaf.pass(seconds(5));
    deaf.ask(urgent);
    assert!(deaf.cancelled().is_empty());
}

#[test]
fn a_replica_that_has_no_list_of_slots_is_told_about_in_vain() {
    for spec in [spec(1), runs_on(1)] {
        let mut rig = rig(spec);
        for _ in 0..3 {
            rig.seen(1, 1);
        }
        assert_eq!(rig.view(1).foreign, 0);
        rig.place(request());
    }
}
