//! The choice by remaining work, as requests and replicas meet it.

use std::{collections::VecDeque, time::Duration};

use scheduler::{
    AttemptId, Class, Decision, Effect, Event, Left, Outcome, Policy, Prefix, Rates, RelayId, ReplicaId, ReplicaSpec,
    RequestId, RequestSpec, SchedulerConfig, SoftFailure, TenantId, Timings,
};

use crate::rig::{Rig, config, request, seconds, spec};

fn least_work() -> SchedulerConfig {
    SchedulerConfig { policy: Policy::LeastWork, ..config() }
}

/// Replicas of one slot each, of which those in `rates` are stated to read and write so many tokens per second.
fn pool(config: SchedulerConfig, rates: &[(f64, f64)]) -> Rig {
    let mut rig = Rig::new(config);
    for (id, (prefill, decode)) in (1..).zip(rates) {
        let prior = Some(Rates { prefill: *prefill, decode: *decode });
        rig.ready(id, ReplicaSpec { relay: RelayId(id), prior, ..spec(1) });
    }
    rig
}

fn prompt(tokens: u32, seed: u64) -> RequestSpec {
    let cuts = Prefix::cuts().take_while(|cut| *cut <= tokens).count() as u64;
    let prefix = Prefix::new((0..cuts).map(|cut| seed * 1000 + cut));
    RequestSpec { prompt_tokens: tokens, max_output: Some(20), prefix, ..request() }
}

fn answered(rig: &mut Rig, attempt: AttemptId, read: u32, cached: u32) {
    let timings = Timings {
        prefill_tokens: read,
        prefill: Duration::from_secs_f64(f64::from(read) / 100.0),
        decode_tokens: 20,
        decode: seconds(2),
        cached_tokens: cached,
        by_engine: true,
    };
    let (outcome, left) = (Outcome::Success, Left::Closed);
    rig.tell(Event::AttemptEnded { attempt, outcome, left, timings: Some(timings) });
}

/// What runs, in the order in which it started.
fn started(rig: &mut Rig) -> Vec<(RequestId, AttemptId)> {
    let dispatch = |effect| match effect {
        Effect::Dispatch { request, attempt, .. } => Some((request, attempt)),
        _ => None,
    };
    rig.heard().into_iter().filter_map(dispatch).collect()
}

#[test]
fn an_idle_pool_gives_the_replica_that_answers_first() {
    let mut rig = pool(least_work(), &[(50.0, 5.0), (400.0, 30.0), (100.0, 10.0)]);
    assert_eq!(rig.place(prompt(2000, 1)).2, 2);
    assert_eq!(rig.core.snapshot(rig.now).decisions[Decision::Placed as usize], 1);
}

#[test]
fn a_conversation_comes_back_to_the_replica_that_holds_it() {
    let mut rig = pool(least_work(), &[(100.0, 10.0); 3]);
    let (_, attempt, first) = rig.place(prompt(2000, 7));
    rig.pass(seconds(20));
    answered(&mut rig, attempt, 2000, 0);
    for other in 1..=2 {
        let (_, attempt, _) = rig.place(prompt(300, 100 + other));
        rig.pass(seconds(3));
        answered(&mut rig, attempt, 300, 0);
        rig.pass(seconds(1));
    }
    rig.heard();
    assert_eq!(rig.place(prompt(2300, 7)).2, first);
}

#[test]
fn a_request_waits_for_a_fast_replica_rather_than_take_a_hopelessly_slow_one() {
    let mut rig = pool(least_work(), &[(1000.0, 100.0), (10.0, 1.0)]);
    let (_, attempt, first) = rig.place(prompt(3000, 1));
    assert_eq!(first, 1);
    let waiting = rig.ask(prompt(3000, 2));
    assert_eq!(rig.dispatched(waiting), None, "four seconds here beat five minutes there");
    let explained = rig.core.explain(waiting, rig.now).expect("it is live");
    assert_eq!(explained.decision, Some(Decision::Waited));
    assert!(explained.candidates.len() == 2 && explained.candidates.iter().all(|candidate| candidate.cost > 0.0));
    rig.pass(seconds(4));
    answered(&mut rig, attempt, 3000, 0);
    assert_eq!(rig.dispatched(waiting).map(|(_, replica)| replica), Some(1));
}

#[test]
fn patience_ends_when_the_declined_replica_would_have_answered() {
    let mut rig = pool(least_work(), &[(1000.0, 100.0), (50.0, 5.0)]);
    rig.place(prompt(3000, 1));
    let waiting = rig.ask(prompt(3000, 2));
    assert_eq!(rig.dispatched(waiting), None);
    // The fast one never comes back.
    rig.pass(seconds(150));
    assert!(rig.core.request(waiting, rig.now).is_some_and(|view| view.running.is_some()));
}

#[test]
fn patience_ends_for_all_that_wait_beside_many_idle_replicas() {
    let mut rig = Rig::new(least_work());
    for id in 1..=400 {
        // A fifth is twice as fast: worth waiting for, for a while.
        let (prefill, decode) = if id % 5 == 0 { (200.0, 10.0) } else { (100.0, 5.0) };
        let prior = Some(Rates { prefill, decode });
        rig.ready(id, ReplicaSpec { relay: RelayId(id), prior, ..spec(2) });
    }
    for _ in 0..250 {
        rig.ask(request());
    }
    let waiting = 250 - started(&mut rig).len();
    assert!(waiting > 40, "{waiting} wait for a fast one");
    // What the first replica that they declined would have taken, and one look at all.
    rig.pass(seconds(21 + 5));
    assert_eq!(started(&mut rig).len(), waiting, "hundreds of replicas were idle all the time");
}

/// Two tenants' queues on ten replicas, every attempt taking four seconds; who was served, in order.
fn serve_two(config: SchedulerConfig, requests: [usize; 2], rounds: usize) -> Vec<TenantId> {
    let mut rig = pool(config, &[(100.0, 10.0); 10]);
    let mut tenants = std::collections::BTreeMap::new();
    for (tenant, count) in (1..).zip(requests) {
        for n in 0..count {
            let spec = RequestSpec { tenant: TenantId(tenant), ..prompt(200, u64::from(tenant) * 100_000 + n as u64) };
            tenants.insert(rig.ask(spec), TenantId(tenant));
        }
    }
    let mut running: VecDeque<_> = started(&mut rig).into();
    let mut served = Vec::new();
    while served.len() < rounds {
        let (request, attempt) = running.pop_front().expect("something runs");
        rig.pass(Duration::from_millis(400));
        answered(&mut rig, attempt, 200, 0);
        served.push(tenants[&request]);
        running.extend(started(&mut rig));
    }
    served
}

#[test]
fn tenants_that_both_wait_share_the_pool_by_their_weights() {
    let share = |served: &[TenantId]| {
        let second = served.iter().skip(20).filter(|tenant| **tenant == TenantId(2)).count();
        second as f64 / (served.len() - 20) as f64
    };
    let mut config = least_work();
    config.queue.max_per_slot = 1000;
    let even = share(&serve_two(config.clone(), [800, 800], 400));
    assert!((even - 0.5).abs() < 0.05, "{even}");
    config.tenants.insert(TenantId(2), scheduler::Share { weight: 3.0, max_running: None });
    let weighted = share(&serve_two(config, [800, 800], 400));
    assert!((weighted - 0.75).abs() < 0.075, "{weighted}");
}

#[test]
fn a_flood_delays_another_tenants_single_request_by_no_more_than_a_service_time() {
    let mut config = least_work();
    (config.queue.max_per_slot, config.queue.max_requests) = (10_000, 20_000);
    let served = serve_two(config, [4_000, 1], 40);
    let at = served.iter().position(|tenant| *tenant == TenantId(2)).expect("it is served");
    // Ten run already; within the next ten starts it is its turn, and then it takes as long as the others.
    assert!(at <= 20, "served as number {at}");
}

#[test]
fn a_tenants_cap_holds_and_what_is_beyond_waits() {
    let mut config = least_work();
    config.tenants.insert(TenantId(1), scheduler::Share { weight: 1.0, max_running: Some(2) });
    let mut rig = pool(config, &[(100.0, 10.0); 5]);
    let asked: Vec<RequestId> = (0..4).map(|n| rig.ask(prompt(200, n))).collect();
    let running = |rig: &Rig| {
        asked.iter().filter(|id| rig.core.request(**id, rig.now).is_some_and(|v| v.running.is_some())).count()
    };
    assert_eq!(running(&rig), 2);
    let (_, attempt) = started(&mut rig)[0];
    answered(&mut rig, attempt, 200, 0);
    rig.pass(seconds(10));
    assert_eq!(running(&rig), 2);
}

#[test]
fn an_urgent_request_takes_the_slot_of_a_batch_that_would_hold_it_for_minutes() {
    let mut rig = pool(least_work(), &[(50.0, 5.0)]);
    let batch = RequestSpec { class: Class::Batch, ..prompt(7000, 1) };
    let (_, attempt, _) = rig.place(batch);
    rig.pass(seconds(5));
    let urgent = rig.ask(RequestSpec { class: Class::Interactive, ..prompt(100, 2) });
    let heard = rig.heard();
    assert!(
        heard.iter().any(|effect| matches!(effect, Effect::Cancel { attempt: stopped, .. } if *stopped == attempt))
    );
    let starts = |effect: &Effect| matches!(effect, Effect::Dispatch { request, replica: ReplicaId(1), .. } if *request == urgent);
    assert!(heard.iter().any(starts));
}

/// Replicas with these reading speeds and a tenth for writing, of which the second was away and is back.
fn second_is_back(prefill: [f64; 4]) -> Rig {
    let mut rig = pool(least_work(), &prefill.map(|prefill| (prefill, prefill / 10.0)));
    for _ in 0..2 {
        rig.report(2, scheduler::Report::Unreachable);
    }
    rig.pass(seconds(30));
    rig.report(2, scheduler::Report::Ready);
    rig.heard();
    assert_eq!(rig.state(2), scheduler::ReplicaState::Probation);
    rig
}

#[test]
fn a_replica_that_is_back_gets_a_request_beside_others_that_are_as_fast() {
    let mut rig = second_is_back([100.0; 4]);
    let (_, attempt, replica) = rig.place(prompt(200, 1));
    assert_eq!(replica, 2);
    answered(&mut rig, attempt, 200, 0);
    assert_eq!(rig.state(2), scheduler::ReplicaState::Ready);
}

#[test]
fn nobody_is_sent_to_try_out_a_slow_replica_while_faster_ones_are_free() {
    let mut rig = second_is_back([100.0, 50.0, 100.0, 100.0]);
    for template in 1..=3 {
        assert_ne!(rig.place(prompt(200, template)).2, 2);
    }
}

#[test]
fn a_client_that_leaves_while_its_prompt_is_read_leaves_the_part_that_was_read() {
    let mut rig = pool(least_work(), &[(100.0, 10.0)]);
    let prompt = RequestSpec { max_output: Some(100), ..prompt(7000, 1) };
    let (left, ..) = rig.place(prompt.clone());
    // A quarter of the 166 s that so long a prompt takes to read.
    rig.pass(seconds(40));
    rig.tell(Event::RequestAbandoned { request: left });
    let (next, ..) = rig.place(prompt);
    let explained = rig.core.explain(next, rig.now).expect("it runs");
    let cached = explained.candidates[0].cached_tokens;
    assert!((1400.0..2000.0).contains(&cached), "{cached} of 7,000 tokens");
}

#[test]
fn a_request_that_a_full_replica_turned_away_goes_to_the_other_at_once() {
    let mut rig = Rig::new(least_work());
    (1..=2).for_each(|id| rig.ready(id, ReplicaSpec { relay: RelayId(id), ..spec(4) }));
    for _ in 0..3 {
        let (_, attempt, replica) = rig.place(request());
        rig.end(attempt, Outcome::Soft(SoftFailure::Busy { retry_after: None }));
        let heard = rig.heard();
        let other = heard.iter().find_map(|effect| match effect {
            Effect::Dispatch { attempt, replica: other, .. } => Some((*attempt, other.0)),
            _ => None,
        });
        let (attempt, other) = other.expect("at once");
        assert_ne!(other, replica);
        rig.tell(Event::AttemptEnded { attempt, outcome: Outcome::Success, left: Left::Closed, timings: None });
        rig.pass(seconds(60));
        rig.heard();
    }
}

#[test]
fn a_line_of_a_batch_is_passed_over_often_and_not_for_ever_though_the_queue_has_no_end() {
    let mut rig = pool(least_work(), &[(100.0, 10.0)]);
    let line = |seed| RequestSpec { class: Class::Batch, ..prompt(2000, seed) };
    // Both beginnings are known to be shared; the replica holds the second.
    for (seed, cached) in [(9, 0), (9, 1996), (7, 0), (7, 1996), (7, 1996)] {
        let (_, attempt, _) = rig.place(line(seed));
        rig.pass(seconds(20));
        answered(&mut rig, attempt, 2000 - cached, cached);
    }
    let (_, mut attempt, _) = rig.place(line(7));
    let cold = rig.ask(line(9));
    let mut rounds = 0;
    loop {
        while rig.core.snapshot(rig.now).queued.values().sum::<usize>() < 4 {
            rig.ask(line(7));
        }
        rig.pass(seconds(3));
        answered(&mut rig, attempt, 4, 1996);
        let (request, next) = started(&mut rig)[0];
        if request == cold {
            break;
        }
        (attempt, rounds) = (next, rounds + 1);
        assert!(rounds < 400, "passed over for ever");
    }
    assert!(rounds > 100, "{rounds}: warm ones go first for long");
    assert_eq!(rig.core.snapshot(rig.now).decisions[Decision::PassedOver as usize], rounds);
}

#[test]
fn waiting_requests_are_counted_by_tenant_and_those_that_run_are_not() {
    let mut rig = pool(least_work(), &[(100.0, 10.0)]);
    rig.place(prompt(200, 1));
    for tenant in [1, 2, 2] {
        rig.ask(RequestSpec { tenant: TenantId(tenant), ..prompt(200, 2) });
    }
    let waiting: Vec<_> =
        rig.core.waiting_by_tenant().into_iter().map(|((tenant, _), count)| (tenant.0, count)).collect();
    assert_eq!(waiting, [(1, 1), (2, 2)]);
}

/// Two busy slots, of which the second falls free again and again while the first runs something; each time a line is there to take it.
/// How many lines begin before `patient` does.
fn lines_begun_before(patient: RequestSpec) -> usize {
    let mut rig = Rig::new(least_work());
    rig.ready(1, ReplicaSpec { prior: Some(Rates { prefill: 100.0, decode: 10.0 }), ..spec(2) });
    let line = || RequestSpec { class: Class::Batch, ..prompt(10, 3) };
    let mut running: VecDeque<AttemptId> = [(); 2].map(|()| rig.place(line()).1).into();
    for _ in 0..8 {
        rig.ask(line());
    }
    let patient = rig.ask(patient);
    for begun in 0..400 {
        rig.pass(seconds(1));
        let ended = running.pop_front().expect("something runs");
        answered(&mut rig, ended, 10, 0);
        rig.ask(line());
        for (request, attempt) in started(&mut rig) {
            if request == patient {
                return begun;
            }
            running.push_back(attempt);
        }
    }
    panic!("overtaken for ever");
}

#[test]
fn nobody_waits_for_ever_behind_lines_that_take_each_slot_which_it_declines() {
    // Long prompts and short answers gain nothing by sharing a replica, and it is never idle.
    let heavy = |class| RequestSpec { class, max_output: Some(5), ..prompt(4000, 7) };
    let batch = lines_begun_before(heavy(Class::Batch));
    assert!(batch < 300, "{batch} lines before one of its class");
    for class in [Class::Standard, Class::Interactive] {
        let begun = lines_begun_before(heavy(class));
        assert!(begun < 20, "{begun} lines before a more urgent request");
    }
}
