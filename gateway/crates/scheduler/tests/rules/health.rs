//! Busy, ill, dead, or misunderstood.

use std::time::Duration;

use scheduler::{
    ChangeReason, Effect, Event, Left, Outcome, RelayId, ReplicaId, ReplicaSpec, ReplicaState, Report, SchedulerConfig,
    SoftFailure, Timings,
};

use crate::rig::{CONNECT, RESET, Rig, STATUS, config, request, seconds, spec};

/// One replica with penalties that do not vary, so that tests can name them.
fn steady() -> SchedulerConfig {
    let mut config = config();
    config.health.penalty_jitter = 0.0;
    config
}

/// Serves a request on the replica, which must be the only free one.
fn eject_hard(rig: &mut Rig) {
    rig.serve(CONNECT);
    rig.serve(CONNECT);
    assert_eq!(rig.state(1), ReplicaState::Out);
    rig.heard();
}

#[test]
fn one_hard_failure_asks_for_a_probe_at_once_and_a_good_probe_clears_it() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.serve(CONNECT);
    assert_eq!(rig.state(1), ReplicaState::Suspect);
    rig.report(1, Report::Ready);
    assert_eq!(rig.state(1), ReplicaState::Ready);
}

#[test]
fn a_second_hard_failure_in_a_row_ejects_whether_of_a_request_or_a_probe() {
    let mut rig = Rig::with_replicas(steady(), 2);
    rig.serve(CONNECT);
    rig.serve(CONNECT);
    rig.heard();
    // One each: both are suspect. The probe of the first fails as well.
    assert_eq!((rig.state(1), rig.state(2)), (ReplicaState::Suspect, ReplicaState::Suspect));
    rig.report(1, Report::Unreachable);
    assert_eq!(rig.changes(), [(1, ReplicaState::Out, ChangeReason::HardFailure)]);
    rig.serve(RESET);
    assert_eq!(rig.state(2), ReplicaState::Out);
}

#[test]
fn a_replica_that_fails_every_request_is_ejected_although_its_probes_are_good() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.serve(RESET);
    rig.report(1, Report::Ready);
    rig.serve(RESET);
    assert_eq!(rig.state(1), ReplicaState::Out);
}

#[test]
fn a_suspect_still_takes_work_when_nothing_better_is_free() {
    let mut rig = Rig::with_replicas(config(), 2);
    let ill = rig.serve(CONNECT);
    for _ in 0..3 {
        assert_ne!(rig.serve(Outcome::Success), ill);
    }
    let (_, _, better) = rig.place(request());
    assert_ne!(better, ill);
    assert_eq!(rig.place(request()).2, ill);
}

#[test]
fn after_the_penalty_a_probe_then_one_request_then_slot_after_slot() {
    let mut rig = Rig::new(steady());
    rig.ready(1, spec(3));
    eject_hard(&mut rig);
    rig.report(1, Report::Ready);
    assert_eq!(rig.state(1), ReplicaState::Out, "not before the penalty is over");
    rig.pass(seconds(5));
    assert_eq!(rig.probes(), [1]);
    rig.report(1, Report::Ready);
    assert_eq!(rig.changes(), [(1, ReplicaState::Probation, ChangeReason::PenaltyOver)]);

    let (_, first, _) = rig.place(request());
    let second = rig.ask(request());
    let third = rig.ask(request());
    assert_eq!(rig.dispatched(second), None, "exactly one");
    rig.end(first, Outcome::Success);
    let heard = rig.heard();
    let started = heard.iter().filter(|effect| matches!(effect, Effect::Dispatch { .. })).count();
    assert_eq!(started, 2, "one good answer, one more slot");
    rig.tell(Event::RequestAbandoned { request: third });
    let attempt = rig.core.request(second, rig.now).and_then(|view| view.running).expect("it runs").0;
    rig.end(attempt, Outcome::Success);
    assert_eq!(rig.changes(), [(1, ReplicaState::Ready, ChangeReason::Success)]);
}

#[test]
fn a_request_fault_says_nothing_in_any_state() {
    let mut rig = Rig::with_replicas(steady(), 1);
    for _ in 0..10 {
        rig.serve(Outcome::RequestFault);
    }
    assert_eq!(rig.state(1), ReplicaState::Ready);
    rig.serve(CONNECT);
    rig.serve(Outcome::RequestFault);
    assert_eq!(rig.state(1), ReplicaState::Suspect);
    rig.serve(CONNECT);
    assert_eq!(rig.state(1), ReplicaState::Out, "the row of failures was not broken either");
    rig.pass(seconds(5));
    rig.report(1, Report::Ready);
    for _ in 0..3 {
        rig.serve(Outcome::RequestFault);
        assert_eq!((rig.state(1), rig.view(1).usable_slots), (ReplicaState::Probation, 1), "still one real request");
    }
    rig.serve(Outcome::Success);
    assert_eq!(rig.state(1), ReplicaState::Ready);
}

#[test]
fn penalties_grow_with_each_ejection_up_to_the_cap_and_a_good_time_resets_them() {
    let mut rig = Rig::with_replicas(steady(), 1);
    let penalty = |rig: &Rig| rig.view(1).penalty_until.expect("it is out").since(rig.now).as_secs();
    eject_hard(&mut rig);
    for expected in [5, 10, 20, 40, 80, 160, 320, 600, 600] {
        assert_eq!(penalty(&rig), expected);
        rig.pass(seconds(expected));
        rig.report(1, Report::Ready);
        // In probation one failure is enough.
        rig.serve(RESET);
        assert_eq!(rig.state(1), ReplicaState::Out);
    }
    rig.pass(seconds(600));
    rig.report(1, Report::Ready);
    rig.serve(Outcome::Success);
    rig.pass(seconds(600));
    rig.serve(Outcome::Success);
    eject_hard(&mut rig);
    assert_eq!(penalty(&rig), 5);
}

#[test]
fn replicas_that_failed_together_do_not_come_back_together() {
    let mut rig = Rig::with_replicas(config(), 20);
    for id in 1..=20 {
        rig.report(id, Report::Unreachable);
        rig.report(id, Report::Unreachable);
    }
    let mut ends: Vec<Duration> =
        (1..=20).map(|id| rig.view(id).penalty_until.expect("it is out").since(rig.now)).collect();
    ends.sort_unstable();
    ends.dedup();
    assert_eq!(ends.len(), 20);
    assert!(ends[0] >= Duration::from_millis(2500) && ends[19] <= Duration::from_millis(7500), "{ends:?}");
}

#[test]
fn three_soft_failures_in_a_row_eject_and_a_good_answer_breaks_the_row() {
    let mut rig = Rig::new(config());
    rig.ready(1, spec(1));
    rig.ready(2, ReplicaSpec { relay: RelayId(2), ..spec(1) });
    // The second replica is kept busy, so that all goes to the first.
    let held = loop {
        let (request, attempt, at) = rig.place(request());
        if at == 2 {
            break request;
        }
        rig.end(attempt, Outcome::Success);
    };
    // Enough good answers for the share of bad ones to stay small.
    (0..20).for_each(|_| assert_eq!(rig.serve(Outcome::Success), 1));
    for outcome in [STATUS, STATUS, Outcome::Success, STATUS, STATUS] {
        rig.serve(outcome);
        assert_ne!(rig.state(1), ReplicaState::Out);
    }
    rig.serve(Outcome::Soft(SoftFailure::Stalled));
    assert_eq!(rig.state(1), ReplicaState::Out);
    assert!(rig.core.request(held, rig.now).is_some());
}

#[test]
fn a_replica_that_fails_now_and_then_is_ejected_by_its_share() {
    let mut rig = Rig::with_replicas(config(), 2);
    let (_, _, other) = rig.place(request());
    let ill = 3 - other;
    let pattern = [Outcome::Success, STATUS, Outcome::Success, STATUS, Outcome::Success];
    for outcome in pattern.into_iter().cycle().take(4) {
        assert_eq!(rig.serve(outcome), ill);
    }
    assert_eq!(rig.state(ill), ReplicaState::Suspect, "four outcomes are too few");
    rig.serve(STATUS);
    assert_eq!(rig.state(ill), ReplicaState::Out, "two of five are not 70 %");
}

#[test]
fn the_last_healthy_replica_is_never_ejected_for_soft_failures() {
    for replicas in [1, 2, 3] {
        let mut rig = Rig::with_replicas(config(), replicas);
        for _ in 0..40 {
            rig.serve(STATUS);
        }
        let serving = (1..=replicas).filter(|id| rig.state(*id) != ReplicaState::Out).count();
        assert!(serving >= 1 && serving + 1 >= replicas as usize, "{serving} of {replicas} are left");
    }
}

#[test]
fn soft_failures_never_eject_more_than_a_third_of_the_pool() {
    let mut rig = Rig::with_replicas(config(), 10);
    for _ in 0..200 {
        rig.serve(STATUS);
    }
    let out = (1..=10).filter(|id| rig.state(*id) == ReplicaState::Out).count();
    assert_eq!(out, 3);
}

#[test]
fn soft_marks_are_ignored_when_too_few_are_left_and_hard_marks_never() {
    let mut rig = Rig::with_replicas(config(), 10);
    for _ in 0..200 {
        rig.serve(STATUS);
    }
    let soft_out: Vec<u32> = (1..=10).filter(|id| rig.state(*id) == ReplicaState::Out).collect();
    let dying: Vec<u32> = (1..=10).filter(|id| !soft_out.contains(id)).take(5).collect();
    rig.heard();
    for id in &dying {
        rig.report(*id, Report::Unreachable);
        rig.report(*id, Report::Unreachable);
    }
    let mut lifted: Vec<u32> = rig
        .changes()
        .into_iter()
        .filter(|(_, _, why)| *why == ChangeReason::PoolProtection)
        .map(|(id, ..)| id)
        .collect();
    lifted.sort_unstable();
    assert_eq!(lifted, soft_out);
    assert!(dying.iter().all(|id| rig.state(*id) == ReplicaState::Out));
}

#[test]
fn a_probe_without_an_answer_is_no_evidence_while_something_of_ours_runs_there() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.place(request());
    for _ in 0..20 {
        rig.report(1, Report::TimedOut);
    }
    assert_eq!(rig.state(1), ReplicaState::Ready);
}

#[test]
fn one_idle_timeout_changes_nothing_and_many_do() {
    let mut rig = Rig::with_replicas(config(), 2);
    rig.report(1, Report::TimedOut);
    rig.report(1, Report::TimedOut);
    assert_eq!(rig.changes(), []);
    rig.report(1, Report::TimedOut);
    assert_eq!(rig.changes(), [(1, ReplicaState::Suspect, ChangeReason::Probe)]);
    rig.report(1, Report::Ready);
    assert_eq!(rig.state(1), ReplicaState::Ready);
    for _ in 0..5 {
        rig.report(1, Report::TimedOut);
    }
    assert_eq!(rig.state(1), ReplicaState::Out);
}

#[test]
fn a_saturated_pool_whose_probes_time_out_is_not_emptied() {
    let mut rig = Rig::with_replicas(config(), 4);
    for _ in 0..20 {
        for id in 1..=4 {
            rig.report(id, Report::TimedOut);
        }
    }
    let serving = (1..=4).filter(|id| rig.state(*id) != ReplicaState::Out).count();
    assert_eq!(serving, 3);
}

#[test]
fn a_probe_that_fails_says_nothing_while_our_answer_arrives_from_there() {
    let mut rig = Rig::with_replicas(config(), 1);
    let (_, attempt, _) = rig.place(request());
    rig.tell(Event::FirstToken { attempt });
    for report in [Report::Unreachable, Report::Failing, Report::Unreachable] {
        rig.report(1, report);
    }
    assert_eq!(rig.state(1), ReplicaState::Ready);
    rig.end(attempt, Outcome::Success);
    rig.report(1, Report::Unreachable);
    rig.report(1, Report::Failing);
    assert_eq!(rig.state(1), ReplicaState::Out);
}

#[test]
fn no_verdict_cuts_a_running_stream() {
    for reports in [[Report::Loading, Report::Loading], [Report::Misconfigured, Report::Misconfigured]] {
        let mut rig = Rig::new(config());
        rig.ready(1, spec(2));
        let (stream, attempt, _) = rig.place(request());
        rig.serve(CONNECT);
        rig.serve(CONNECT);
        assert_eq!(rig.state(1), ReplicaState::Out);
        for report in reports {
            rig.report(1, report);
        }
        rig.pass(seconds(3600));
        assert_eq!(rig.cancelled(), []);
        assert!(rig.core.request(stream, rig.now).is_some_and(|view| view.running.is_some()));
        rig.tell(Event::AttemptEnded { attempt, outcome: Outcome::Success, left: Left::Closed, timings: None });
        assert!(rig.core.request(stream, rig.now).is_none());
    }
}

#[test]
fn a_replica_joins_when_it_answers_and_its_models_are_known() {
    let mut rig = Rig::new(config());
    let replica = ReplicaId(1);
    rig.tell(Event::ReplicaUp { replica, spec: ReplicaSpec { models: Vec::new(), ..spec(1) } });
    assert_eq!((rig.state(1), rig.probes()), (ReplicaState::Joining, vec![1]));
    rig.report(1, Report::Ready);
    assert_eq!(rig.state(1), ReplicaState::Joining);
    rig.tell(Event::ReplicaUp { replica, spec: spec(1) });
    assert_eq!(rig.state(1), ReplicaState::Ready);
    rig.place(request());
}

/// A replica that was told of, and nothing more: `models` known or not.
fn joining(models_known: bool) -> Rig {
    let mut rig = Rig::new(steady());
    let models = if models_known { spec(2).models } else { Vec::new() };
    rig.tell(Event::ReplicaUp { replica: ReplicaId(1), spec: ReplicaSpec { models, ..spec(2) } });
    rig.heard();
    rig
}

#[test]
fn one_that_joins_and_is_not_reached_is_out_for_a_reason_and_serves_at_once_when_it_is_there() {
    for (report, times, why) in [
        (Report::Unreachable, 2, ChangeReason::HardFailure),
        (Report::Failing, 2, ChangeReason::Probe),
        (Report::TimedOut, 3, ChangeReason::Probe),
    ] {
        for models_known in [true, false] {
            let mut rig = joining(models_known);
            for _ in 1..times {
                rig.report(1, report.clone());
                assert_eq!(rig.state(1), ReplicaState::Joining, "{report:?}: it may be starting");
            }
            rig.report(1, report.clone());
            assert_eq!(rig.changes(), [(1, ReplicaState::Out, why)], "{report:?}");
            // As often as before, however often it is not there.
            for _ in 0..20 {
                rig.pass(seconds(5));
                assert_eq!(rig.probes(), [1], "{report:?}");
                rig.report(1, report.clone());
            }
            rig.report(1, Report::Ready);
            if !models_known {
                assert_eq!(rig.state(1), ReplicaState::Out, "nothing is known of what it serves");
                rig.tell(Event::ReplicaUp { replica: ReplicaId(1), spec: spec(2) });
            }
            assert_eq!(rig.changes(), [(1, ReplicaState::Ready, ChangeReason::Probe)], "{report:?}");
            assert_eq!(rig.view(1).usable_slots, 2, "it has failed nobody");
            eject_hard(&mut rig);
            assert_eq!(rig.view(1).penalty_until.expect("it is out").since(rig.now).as_secs(), 5, "its first penalty");
        }
    }
}

#[test]
fn one_that_was_never_there_loads_and_proves_itself_like_one_that_joins() {
    for (report, state) in [(Report::Loading, ReplicaState::Loading), (Report::Unproven, ReplicaState::Quarantine)] {
        let mut rig = joining(true);
        rig.report(1, Report::Unreachable);
        rig.report(1, Report::Unreachable);
        rig.report(1, report);
        assert_eq!(rig.state(1), state);
        rig.report(1, Report::Ready);
        assert_eq!((rig.state(1), rig.view(1).usable_slots), (ReplicaState::Ready, 2));
    }
}

#[test]
fn loading_and_misconfigured_take_no_work_until_a_probe_says_otherwise() {
    for (outcome, state) in
        [(Outcome::Loading, ReplicaState::Loading), (Outcome::Misconfigured, ReplicaState::Misconfigured)]
    {
        let mut rig = Rig::with_replicas(config(), 1);
        rig.serve(outcome);
        assert_eq!(rig.state(1), state);
        let waiting = rig.ask(request());
        assert_eq!(rig.dispatched(waiting), None);
        rig.report(1, Report::Ready);
        assert_eq!(rig.state(1), ReplicaState::Ready);
        assert!(rig.core.request(waiting, rig.now).is_some_and(|view| view.running.is_some()));
    }
}

#[test]
fn at_most_one_probe_is_outstanding() {
    let mut rig = Rig::with_replicas(config(), 1);
    rig.serve(CONNECT);
    rig.serve(CONNECT);
    rig.pass(seconds(3600));
    assert_eq!(rig.core.snapshot(rig.now).replicas.len(), 1);
    rig.report(1, Report::Unreachable);
    rig.heard();
    rig.pass(seconds(3600));
    assert_eq!(rig.probes(), [1], "asked once, never answered");
}

#[test]
fn one_soft_failure_is_looked_into_and_a_probe_that_says_broken_twice_ejects() {
    let mut rig = Rig::with_replicas(config(), 2);
    let ill = rig.serve(Outcome::Soft(SoftFailure::BadAnswer));
    let heard = rig.heard();
    assert!(heard.contains(&Effect::Probe { replica: ReplicaId(ill) }));
    assert_eq!(rig.state(ill), ReplicaState::Suspect);
    rig.report(ill, Report::Failing);
    assert_eq!(rig.probes(), [ill]);
    rig.report(ill, Report::Failing);
    assert_eq!(rig.state(ill), ReplicaState::Out);
}

/// Serves one request on a single replica, which is then measured: 100 tokens a second in and 10 out.
fn measured() -> Rig {
    let mut rig = Rig::with_replicas(config(), 1);
    let (_, attempt, _) = rig.place(request());
    let timings = Timings {
        prefill_tokens: 1000,
        prefill: seconds(10),
        decode_tokens: 100,
        decode: seconds(10),
        cached_tokens: 0,
        by_engine: true,
    };
    let (outcome, left, timings) = (Outcome::Success, Left::Closed, Some(timings));
    rig.tell(Event::AttemptEnded { attempt, outcome, left, timings });
    rig.heard();
    rig
}

#[test]
fn a_replica_whose_client_gave_up_long_after_its_own_speed_promised_an_answer_is_in_doubt() {
    // 100 tokens in and 100 out take 11 s; three times that are over.
    let mut rig = measured();
    let (request, ..) = rig.place(request());
    rig.pass(seconds(60));
    rig.tell(Event::RequestAbandoned { request });
    assert_eq!(rig.state(1), ReplicaState::Suspect);
    assert_eq!(rig.core.replica(ReplicaId(1), rig.now).expect("known").outcomes, (1, 1));
}

#[test]
fn impatient_clients_tell_nothing_about_a_replica() {
    let mut quick = measured();
    for _ in 0..5 {
        let (request, ..) = quick.place(request());
        quick.pass(seconds(30));
        quick.tell(Event::RequestAbandoned { request });
    }
    assert_eq!(quick.state(1), ReplicaState::Ready, "within three times what it takes");
    let mut unknown = Rig::with_replicas(config(), 1);
    for _ in 0..5 {
        let (request, ..) = unknown.place(request());
        unknown.pass(seconds(300));
        unknown.tell(Event::RequestAbandoned { request });
    }
    assert_eq!(unknown.state(1), ReplicaState::Ready, "never measured");
    let mut writing = measured();
    for _ in 0..5 {
        let (request, attempt, _) = writing.place(request());
        writing.tell(Event::FirstToken { attempt });
        writing.pass(seconds(300));
        writing.tell(Event::RequestAbandoned { request });
    }
    assert_eq!(writing.state(1), ReplicaState::Ready, "its answer had begun");
}

#[test]
fn absences_count_when_they_end_and_their_time_at_once() {
    let mut rig = Rig::with_replicas(steady(), 2);
    // A model without a request has no ledger.
    rig.serve(Outcome::Success);
    rig.pass(seconds(100));
    for id in [1, 2] {
        rig.report(id, Report::Unreachable);
        rig.report(id, Report::Unreachable);
        assert_eq!(rig.state(id), ReplicaState::Out);
    }
    rig.pass(seconds(50));
    rig.report(1, Report::Ready);
    rig.pass(seconds(1000));
    let lives = |rig: &Rig| rig.core.usage(3600.0, rig.now)[0].lives;
    let away = lives(&rig);
    assert_eq!((away.deaths, away.returns), (2.0, 1.0), "{away:?}");
    assert!((away.down_s - 1100.0).abs() < 1.0, "{away:?}");
    rig.tell(Event::ReplicaRemoved { replica: ReplicaId(2) });
    assert_eq!(lives(&rig).returns, 1.0, "what is removed has not come back");
}
