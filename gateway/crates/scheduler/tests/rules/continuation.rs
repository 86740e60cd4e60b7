//! Answers that outlive their phone.

use std::time::Duration;

use scheduler::{
    AttemptId, CancelReason, Carry, Class, Decision, Effect, Event, GroupId, Left, Onward, Outcome, Part, Policy,
    Prefix, RelayId, ReplicaId, ReplicaSpec, Report, RequestId, RequestSpec, SchedulerConfig, ShedReason, SoftFailure,
    Timings, Waste,
};

use crate::rig::{CONNECT, Rig, STATUS, config, request, seconds, spec};

const BROKEN: Outcome = Outcome::Soft(SoftFailure::Broken);
const A: Option<GroupId> = Some(GroupId(1));
const B: Option<GroupId> = Some(GroupId(2));

/// A replica that carries on what its group writes.
fn able(group: Option<GroupId>) -> ReplicaSpec {
    ReplicaSpec { carries_on: true, group, ..spec(1) }
}

/// One that begins every answer anew.
fn unable() -> ReplicaSpec {
    ReplicaSpec { group: A, ..spec(1) }
}

fn rig(config: SchedulerConfig, specs: &[ReplicaSpec]) -> Rig {
    let mut rig = Rig::new(config);
    for (id, spec) in (1..).zip(specs) {
        rig.ready(id, ReplicaSpec { relay: RelayId(id), ..spec.clone() });
    }
    rig
}

fn streamed(carry: Carry) -> RequestSpec {
    RequestSpec { stream: true, carry, ..request() }
}

fn part(tokens: u32, seen: bool, by: Carry) -> Left {
    Left::Part(Part { tokens, seen, by })
}

fn seen(tokens: u32) -> Left {
    part(tokens, true, Carry::Anyone)
}

/// The attempt breaks off, and leaves that.
fn break_off(rig: &mut Rig, attempt: AttemptId, left: Left) {
    rig.tell(Event::AttemptEnded { attempt, outcome: BROKEN, left, timings: None });
}

/// Asks for an answer on that replica, which shows its first token.
fn begin(rig: &mut Rig, on: u32, spec: RequestSpec) -> (RequestId, AttemptId) {
    let mut others = Vec::new();
    loop {
        let (request, attempt, replica) = rig.place(spec.clone());
        if replica == on {
            rig.tell(Event::FirstToken { attempt });
            others.into_iter().for_each(|request| rig.tell(Event::RequestAbandoned { request }));
            rig.heard();
            return (request, attempt);
        }
        others.push(request);
    }
}

/// Takes a replica's slot.
fn occupy(rig: &mut Rig, on: u32) -> AttemptId {
    begin(rig, on, request()).1
}

/// Where the request was sent since the last look, and whether to carry on there.
fn sent(rig: &mut Rig, wanted: RequestId) -> Option<(AttemptId, u32, bool)> {
    rig.heard().into_iter().find_map(|effect| match effect {
        Effect::Dispatch { request, attempt, replica, carries_on, .. } if request == wanted => {
            Some((attempt, replica.0, carries_on))
        }
        _ => None,
    })
}

fn carried_on_at(rig: &mut Rig, wanted: RequestId) -> Option<u32> {
    let (_, replica, carries_on) = sent(rig, wanted)?;
    assert!(carries_on, "it begins anew on {replica}");
    Some(replica)
}

fn refused(rig: &mut Rig, request: RequestId) -> Option<ShedReason> {
    rig.rejected(request).map(|(reason, _)| reason)
}

#[test]
fn an_answer_that_breaks_off_is_carried_on_at_once_by_a_replica_that_can() {
    let mut rig = rig(config(), &[able(A), unable(), able(A)]);
    let (request, attempt) = begin(&mut rig, 1, streamed(Carry::SameGroup));
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    let (attempt, replica, carries_on) = sent(&mut rig, request).expect("one is free");
    assert_eq!((replica, carries_on), (3, true));
    rig.end(attempt, Outcome::Success);
    assert!(rig.core.request(request, rig.now).is_none());
}

#[test]
fn an_answer_that_must_be_what_it_would_have_been_waits_for_its_group_before_its_class() {
    let mut rig = rig(config(), &[able(A), able(B), able(A)]);
    let other = occupy(&mut rig, 3);
    let (request, attempt) = begin(&mut rig, 1, streamed(Carry::SameGroup));
    occupy(&mut rig, 2);
    let earlier = rig.ask(RequestSpec { class: Class::Standard, ..crate::rig::request() });
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    assert_eq!(rig.dispatched(earlier).map(|(_, replica)| replica), Some(1), "the slot that broke goes to who waits");
    let later = rig.ask(crate::rig::request());
    rig.end(other, Outcome::Success);
    assert_eq!(carried_on_at(&mut rig, request), Some(3));
    assert!(rig.core.request(later, rig.now).is_some_and(|view| view.running.is_none()));
}

#[test]
fn a_group_that_is_not_known_is_the_same_as_no_other() {
    let mut rig = rig(config(), &[able(None), able(None)]);
    let (request, attempt) = begin(&mut rig, 1, streamed(Carry::SameGroup));
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    assert_eq!(refused(&mut rig, request), Some(ShedReason::NoCapacity));
}

#[test]
fn of_those_that_may_carry_it_on_the_same_group_is_asked_first_and_another_if_that_is_busy() {
    for policy in [Policy::LeastBusy, Policy::RoundRobin] {
        let config = SchedulerConfig { policy, ..config() };
        let mut free = rig(config.clone(), &[able(A), able(B), able(A)]);
        let (request, attempt) = begin(&mut free, 1, streamed(Carry::Anyone));
        break_off(&mut free, attempt, seen(40));
        assert_eq!(carried_on_at(&mut free, request), Some(3));
        let mut busy = rig(config, &[able(A), able(B), able(A)]);
        occupy(&mut busy, 3);
        let (request, attempt) = begin(&mut busy, 1, streamed(Carry::Anyone));
        break_off(&mut busy, attempt, seen(40));
        assert_eq!(carried_on_at(&mut busy, request), Some(2));
    }
}

#[test]
fn what_was_seen_and_nobody_can_ever_carry_on_is_refused_at_once() {
    let mut rig = rig(config(), &[able(A), unable(), able(B)]);
    let (request, attempt) = begin(&mut rig, 1, streamed(Carry::SameGroup));
    rig.tell(Event::ReplicaRemoved { replica: ReplicaId(1) });
    assert_eq!(refused(&mut rig, request), Some(ShedReason::NoCapacity));
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    assert!(rig.core.requests(rig.now).is_empty());
}

#[test]
fn a_replica_that_may_come_is_waited_for_but_not_for_ever() {
    let mut rig = rig(config(), &[able(A), able(B)]);
    rig.tell(Event::ReplicaUp { replica: ReplicaId(3), spec: able(A) });
    let by = Carry::SameGroup;
    let (first, attempt) = begin(&mut rig, 1, streamed(by));
    break_off(&mut rig, attempt, part(40, true, by));
    rig.pass(seconds(29));
    assert_eq!(sent(&mut rig, first), None);
    rig.report(3, Report::Ready);
    let (attempt, replica, carries_on) = sent(&mut rig, first).expect("it is there now");
    assert_eq!((replica, carries_on), (3, true));
    for id in [1, 3] {
        rig.tell(Event::DrainReplica { replica: ReplicaId(id), deadline: None });
    }
    rig.tell(Event::ReplicaUp { replica: ReplicaId(4), spec: able(A) });
    break_off(&mut rig, attempt, part(60, true, by));
    rig.pass(seconds(29));
    assert_eq!(refused(&mut rig, first), None);
    rig.pass(seconds(1));
    assert_eq!(refused(&mut rig, first), Some(ShedReason::NoCapacity));
}

#[test]
fn what_nobody_has_seen_begins_anew_only_where_nobody_can_carry_it_on() {
    let unseen = part(40, false, Carry::SameGroup);
    let plain = || RequestSpec { carry: Carry::SameGroup, ..request() };
    let mut rest = rig(config(), &[able(A), unable()]);
    let (request, attempt) = begin(&mut rest, 1, plain());
    break_off(&mut rest, attempt, unseen);
    assert_eq!(sent(&mut rest, request).map(|(_, replica, carries_on)| (replica, carries_on)), Some((2, false)));
    let mut busy = rig(config(), &[able(A), unable(), able(A)]);
    let other = occupy(&mut busy, 3);
    let (request, attempt) = begin(&mut busy, 1, plain());
    break_off(&mut busy, attempt, unseen);
    assert_eq!(sent(&mut busy, request), None, "its writing is worth a wait");
    busy.end(other, Outcome::Success);
    assert_eq!(carried_on_at(&mut busy, request), Some(3));
}

#[test]
fn what_waits_to_be_carried_on_begins_anew_once_nobody_is_left_who_could() {
    let mut rig = rig(config(), &[able(A), unable(), able(A)]);
    occupy(&mut rig, 3);
    let (request, attempt) = begin(&mut rig, 1, RequestSpec { carry: Carry::SameGroup, ..request() });
    break_off(&mut rig, attempt, part(40, false, Carry::SameGroup));
    assert_eq!(sent(&mut rig, request), None);
    rig.tell(Event::DrainReplica { replica: ReplicaId(3), deadline: None });
    assert_eq!(sent(&mut rig, request).map(|(_, replica, carries_on)| (replica, carries_on)), Some((2, false)));
}

#[test]
fn an_answer_survives_any_number_of_deaths_as_long_as_each_attempt_adds_something() {
    let mut rig = rig(config(), &[able(A), able(A), able(A)]);
    let (request, mut attempt) = begin(&mut rig, 1, streamed(Carry::SameGroup));
    for death in 1..=30 {
        break_off(&mut rig, attempt, part(death, true, Carry::SameGroup));
        // Phones that die again and again are out for a while.
        rig.pass(seconds(25));
        for id in 1..=3 {
            rig.report(id, Report::Ready);
        }
        let (next, _, carries_on) = sent(&mut rig, request).expect("somebody is there");
        assert!(carries_on);
        attempt = next;
        rig.tell(Event::FirstToken { attempt });
    }
    rig.end(attempt, Outcome::Success);
    assert!(rig.core.requests(rig.now).is_empty() && refused(&mut rig, request).is_none());
}

#[test]
fn an_answer_that_gets_no_further_ends_after_the_allowed_attempts() {
    let mut rig = rig(config(), &vec![able(A); 10]);
    let (request, mut attempt) = begin(&mut rig, 1, streamed(Carry::SameGroup));
    for tokens in [10, 20, 20, 20] {
        break_off(&mut rig, attempt, part(tokens, true, Carry::SameGroup));
        attempt = sent(&mut rig, request).expect("others are free").0;
    }
    break_off(&mut rig, attempt, part(20, true, Carry::SameGroup));
    assert_eq!(refused(&mut rig, request), Some(ShedReason::AttemptsExhausted));
}

#[test]
fn an_attempt_that_adds_nothing_leaves_what_there_was() {
    let mut rig = rig(config(), &[able(A), able(A), unable(), able(A)]);
    let (request, attempt) = begin(&mut rig, 1, streamed(Carry::SameGroup));
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    let (attempt, ..) = sent(&mut rig, request).expect("others are free");
    rig.end(attempt, CONNECT);
    assert!(carried_on_at(&mut rig, request).is_some());
    let view = rig.core.request(request, rig.now).expect("it is live");
    assert_eq!(view.part, Some(Part { tokens: 40, seen: true, by: Carry::SameGroup }));
}

#[test]
fn a_replica_that_broke_off_may_go_on_with_what_another_added_to() {
    let mut rig = rig(config(), &[able(A), able(A)]);
    let (request, attempt) = begin(&mut rig, 1, streamed(Carry::SameGroup));
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    let (attempt, replica, _) = sent(&mut rig, request).expect("the other is free");
    assert_eq!(replica, 2);
    break_off(&mut rig, attempt, part(50, true, Carry::SameGroup));
    assert_eq!(carried_on_at(&mut rig, request), Some(1));
}

#[test]
fn a_replica_without_others_of_its_group_may_go_on_itself_once() {
    let mut rig = rig(config(), &[able(A), able(B)]);
    let (request, attempt) = begin(&mut rig, 1, streamed(Carry::SameGroup));
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    let (attempt, replica, carries_on) = sent(&mut rig, request).expect("its connection may just have been cut");
    assert_eq!((replica, carries_on), (1, true));
    rig.end(attempt, CONNECT);
    assert_eq!(refused(&mut rig, request), Some(ShedReason::NoCapacity));
}

#[test]
fn carrying_on_needs_no_room_in_the_retry_budget_until_an_attempt_adds_nothing() {
    let mut config = config();
    (config.retry.budget_floor, config.retry.budget_share) = (1, 0.0);
    let mut rig = rig(config, &vec![able(A); 8]);
    let (other, failed, _) = rig.place(request());
    rig.end(failed, STATUS);
    let (retry, ..) = sent(&mut rig, other).expect("the budget has room for one");
    let (request, attempt) = begin(&mut rig, 3, streamed(Carry::SameGroup));
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    let (attempt, ..) = sent(&mut rig, request).expect("it saves work");
    assert_eq!(rig.core.snapshot(rig.now).retries_in_flight, 1);
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    assert_eq!(sent(&mut rig, request), None, "it repeats work now");
    rig.end(retry, Outcome::Success);
    assert!(carried_on_at(&mut rig, request).is_some());
}

#[test]
fn what_its_client_has_seen_goes_on_elsewhere_when_the_core_ends_it() {
    for remove in [false, true] {
        let mut rig = rig(config(), &[able(A), able(A)]);
        let (request, attempt) = begin(&mut rig, 1, streamed(Carry::SameGroup));
        rig.pass(seconds(5));
        let why = if remove {
            rig.tell(Event::ReplicaRemoved { replica: ReplicaId(1) });
            CancelReason::ReplicaRemoved
        } else {
            let deadline = Some(rig.now + seconds(1));
            rig.tell(Event::DrainReplica { replica: ReplicaId(1), deadline });
            rig.pass(seconds(2));
            CancelReason::DrainDeadline
        };
        let part = rig.core.request(request, rig.now).and_then(|view| view.part).expect("it is kept");
        assert!(part.seen && (5..=100).contains(&part.tokens), "{part:?}");
        let heard = rig.heard();
        let cancelled = heard.iter().position(|effect| *effect == Effect::Cancel { attempt, request, why });
        let goes_on = |effect: &Effect| matches!(effect, Effect::Dispatch { request: id, replica: ReplicaId(2), carries_on: true, .. } if *id == request);
        assert!(cancelled.expect("it is stopped") < heard.iter().position(goes_on).expect("it goes on"));
    }
}

#[test]
fn what_may_not_be_carried_on_ends_with_its_replica_and_its_deadline_ends_everything() {
    let mut rig = rig(config(), &[able(A), able(A)]);
    let (never, _) = begin(&mut rig, 1, streamed(Carry::Never));
    rig.tell(Event::DrainReplica { replica: ReplicaId(1), deadline: Some(rig.now) });
    let heard = rig.heard();
    assert!(heard.iter().any(|effect| matches!(effect, Effect::Cancel { .. })));
    assert!(rig.core.request(never, rig.now).is_none() && refused(&mut rig, never).is_none());
    let deadline = Some(rig.now + seconds(10));
    let (late, attempt) = begin(&mut rig, 2, RequestSpec { deadline, ..streamed(Carry::Anyone) });
    rig.pass(seconds(10));
    assert_eq!(rig.cancelled(), [(attempt, CancelReason::Deadline)]);
    assert!(rig.core.request(late, rig.now).is_none());
}

#[test]
fn a_part_that_waits_for_its_group_ends_at_the_deadline() {
    let mut rig = rig(config(), &[able(A), able(A)]);
    occupy(&mut rig, 2);
    let deadline = Some(rig.now + seconds(10));
    let (request, attempt) = begin(&mut rig, 1, RequestSpec { deadline, ..streamed(Carry::SameGroup) });
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    rig.pass(seconds(10));
    assert_eq!(refused(&mut rig, request), Some(ShedReason::Deadline));
}

#[test]
fn the_part_must_fit_the_context_behind_the_prompt() {
    let small = ReplicaSpec { context_tokens: Some(2048), ..able(A) };
    let mut rig = rig(config(), &[able(A), small, able(A)]);
    let (request, attempt) = begin(&mut rig, 1, RequestSpec { prompt_tokens: 1500, ..streamed(Carry::SameGroup) });
    break_off(&mut rig, attempt, part(1000, true, Carry::SameGroup));
    assert_eq!(carried_on_at(&mut rig, request), Some(3));
}

#[test]
fn the_time_that_wrote_a_part_is_wasted_only_if_the_part_is_given_up() {
    let wasted = |rig: &Rig, why| rig.core.snapshot(rig.now).wasted[why as usize];
    let mut rig = rig(config(), &[able(A), able(A)]);
    let (request, attempt, _) = rig.place(streamed(Carry::SameGroup));
    rig.pass(seconds(10));
    rig.tell(Event::FirstToken { attempt });
    rig.pass(seconds(20));
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    assert_eq!(wasted(&rig, Waste::Failed), 10.0, "its reading is to be done again");
    rig.tell(Event::RequestAbandoned { request });
    assert_eq!((wasted(&rig, Waste::Failed), wasted(&rig, Waste::Abandoned)), (10.0, 20.0));
}

fn least_work() -> SchedulerConfig {
    SchedulerConfig { policy: Policy::LeastWork, ..config() }
}

/// A replica of that group and speed.
fn fast(group: Option<GroupId>, prefill: f64, decode: f64) -> ReplicaSpec {
    ReplicaSpec { prior: Some(scheduler::Rates { prefill, decode }), ..able(group) }
}

/// A streamed request of 2,000 prompt tokens whose beginning is told apart by `seed`.
fn long(seed: u64) -> RequestSpec {
    let cuts = Prefix::cuts().take_while(|cut| *cut <= 2000).count() as u64;
    let prefix = Prefix::new((0..cuts).map(|cut| seed * 1000 + cut));
    RequestSpec { prompt_tokens: 2000, max_output: Some(400), prefix, ..streamed(Carry::Anyone) }
}

#[test]
fn the_same_group_carries_on_unless_that_takes_twice_as_long() {
    for (speed, expected) in [(60.0, 3), (40.0, 2)] {
        let specs = [fast(A, 200.0, 20.0), fast(B, 100.0, 10.0), fast(A, speed, speed / 10.0)];
        let mut rig = rig(least_work(), &specs);
        let (request, attempt, replica) = rig.place(long(1));
        assert_eq!(replica, 1);
        rig.tell(Event::FirstToken { attempt });
        rig.tell(Event::DrainReplica { replica: ReplicaId(1), deadline: None });
        rig.heard();
        break_off(&mut rig, attempt, seen(100));
        assert_eq!(carried_on_at(&mut rig, request), Some(expected), "with the same group at {speed} tokens/s");
        let explained = rig.core.explain(request, rig.now).expect("it is live");
        assert_eq!(explained.decision, Some(Decision::CarriedOn));
        let (detour, first) = (explained.candidates[0].detour, explained.candidates[0].replica);
        assert!(first.0 == expected && (detour > 20.0) == (expected == 2), "{first:?} at {detour}");
    }
}

#[test]
fn carrying_on_costs_reading_the_part_and_writing_the_rest_and_a_cached_prompt_is_preferred() {
    let mut rig = rig(least_work(), &vec![fast(A, 100.0, 10.0); 4]);
    let placed = |rig: &Rig, request| rig.core.explain(request, rig.now).expect("it runs").candidates[0];
    let (earlier, warm, held_by) = rig.place(long(7));
    let whole = placed(&rig, earlier);
    let (_, _, elsewhere) = rig.place(long(8));
    rig.tell(Event::FirstToken { attempt: warm });
    rig.pass(seconds(60));
    rig.end(warm, Outcome::Success);
    rig.tell(Event::DrainReplica { replica: ReplicaId(held_by), deadline: None });
    let (request, attempt, begun_at) = rig.place(long(7));
    rig.tell(Event::FirstToken { attempt });
    break_off(&mut rig, attempt, seen(150));
    let (attempt, replica, _) = sent(&mut rig, request).expect("one is left");
    assert!(![held_by, elsewhere, begun_at].contains(&replica));
    let cold = placed(&rig, request);
    assert!(cold.prefill > whole.prefill && cold.decode < 0.7 * whole.decode, "{whole:?} then {cold:?}");
    rig.tell(Event::UndrainReplica { replica: ReplicaId(held_by) });
    rig.tell(Event::FirstToken { attempt });
    break_off(&mut rig, attempt, seen(200));
    assert_eq!(carried_on_at(&mut rig, request), Some(held_by));
    let warm = placed(&rig, request);
    assert!(warm.cached_tokens > 1900.0 && warm.prefill < 0.2 * cold.prefill, "{warm:?}");
}

#[test]
fn an_explanation_says_why_a_replica_does_not_carry_on() {
    let mut rig = rig(least_work(), &[fast(A, 100.0, 10.0), fast(A, 100.0, 10.0)]);
    let (request, attempt, left) = rig.place(RequestSpec { carry: Carry::SameGroup, ..long(1) });
    let (_, _, busy) = rig.place(long(2));
    rig.tell(Event::FirstToken { attempt });
    rig.ready(3, unable());
    rig.ready(4, able(B));
    rig.tell(Event::DrainReplica { replica: ReplicaId(left), deadline: None });
    break_off(&mut rig, attempt, part(40, true, Carry::SameGroup));
    let explained = rig.core.explain(request, rig.now).expect("it waits");
    assert_eq!(explained.view.part.map(|part| part.tokens), Some(40));
    let mut ways: Vec<_> = explained.candidates.iter().map(|c| (c.replica.0, c.onward, c.cost.is_finite())).collect();
    ways.sort_by_key(|way| way.0);
    assert_eq!(ways, [(busy, Onward::SameGroup, true), (3, Onward::Unable, false), (4, Onward::WrongGroup, false)]);
}

#[test]
fn answers_in_parts_are_as_long_as_whole_ones_to_what_is_learned_of_them() {
    let mut rig = rig(least_work(), &vec![fast(A, 100.0, 10.0); 10]);
    let ask = || RequestSpec { max_output: None, ..long(1) };
    for _ in 0..4 {
        let (request, attempt, _) = rig.place(ask());
        rig.tell(Event::FirstToken { attempt });
        break_off(&mut rig, attempt, seen(300));
        let (attempt, ..) = sent(&mut rig, request).expect("others are free");
        let timings = Timings {
            prefill_tokens: 2300,
            prefill: seconds(23),
            decode_tokens: 100,
            decode: seconds(10),
            by_engine: true,
            ..Timings::default()
        };
        rig.pass(Duration::from_secs(33));
        let (outcome, left) = (Outcome::Success, Left::Closed);
        rig.tell(Event::AttemptEnded { attempt, outcome, left, timings: Some(timings) });
    }
    let (request, ..) = rig.place(ask());
    let explained = rig.core.explain(request, rig.now).expect("it runs");
    // One that was taken for two would be 300 long, or 100.
    assert!((370.0..=400.0).contains(&explained.output_tokens), "{}", explained.output_tokens);
    assert!((1990.0..=2010.0).contains(&explained.prompt_tokens), "{}", explained.prompt_tokens);
}

#[test]
fn a_phone_that_comes_and_goes_is_out_for_short_where_what_it_wrote_is_kept() {
    for (spec, longest) in [(able(A), 8), (unable(), 600)] {
        let mut rig = rig(config(), &[spec.clone(), spec]);
        let mut penalty = Duration::ZERO;
        for _ in 0..8 {
            // It was there for longer than it had been out.
            rig.pass(seconds(60));
            for _ in 0..2 {
                rig.report(1, Report::Unreachable);
            }
            let until = rig.view(1).penalty_until.expect("it is out");
            penalty = until.since(rig.now);
            rig.pass(penalty);
            rig.report(1, Report::Ready);
        }
        assert!(penalty <= seconds(longest) && penalty > seconds(longest / 4), "{penalty:?}");
        // One that is gone as soon as it is back is out for longer each time, whatever becomes of its answers.
        for _ in 0..5 {
            for _ in 0..2 {
                rig.report(1, Report::Unreachable);
            }
            penalty = rig.view(1).penalty_until.expect("it is out").since(rig.now);
            rig.pass(penalty);
            rig.report(1, Report::Ready);
        }
        assert!(penalty > seconds(40), "{penalty:?}");
    }
}

#[test]
fn a_retry_takes_a_phone_that_is_just_back_where_answers_are_carried_on() {
    for carry in [Carry::Never, Carry::Anyone] {
        let mut rig = rig(config(), &[able(A), able(A), able(A)]);
        let (_, sound, busy) = rig.place(request());
        let back = if busy == 3 { 2 } else { 3 };
        for _ in 0..2 {
            rig.report(back, Report::Unreachable);
        }
        rig.pass(seconds(8));
        rig.report(back, Report::Ready);
        assert_eq!(rig.state(back), scheduler::ReplicaState::Probation);
        rig.tell(Event::DrainReplica { replica: ReplicaId(back), deadline: None });
        let (lost, attempt, _) = rig.place(RequestSpec { carry, ..request() });
        rig.tell(Event::UndrainReplica { replica: ReplicaId(back) });
        rig.heard();
        rig.end(attempt, STATUS);
        assert_eq!(rig.dispatched(lost).is_some(), carry == Carry::Anyone, "a sound one serves, and is busy");
        rig.end(sound, Outcome::Success);
    }
}
