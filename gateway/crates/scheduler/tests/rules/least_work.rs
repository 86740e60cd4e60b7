//! The choice by remaining work, as requests and replicas meet it.

use std::{collections::VecDeque, time::Duration};

use scheduler::{
    AttemptId, Class, Decision, Effect, Event, Outcome, Policy, Prefix, Rates, RelayId, ReplicaId, ReplicaSpec,
    RequestId, RequestSpec, SchedulerConfig, TenantId, Timings,
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
    let (outcome, content_sent) = (Outcome::Success, true);
    rig.tell(Event::AttemptEnded { attempt, outcome, content_sent, timings: Some(timings) });
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

#[test]
fn a_replica_that_is_back_gets_a_request_beside_others_that_are_as_fast() {
    let mut rig = pool(least_work(), &[(100.0, 10.0); 4]);
    for _ in 0..2 {
        rig.report(2, scheduler::Report::Unreachable);
    }
    rig.pass(seconds(30));
    rig.report(2, scheduler::Report::Ready);
    rig.heard();
    assert_eq!(rig.state(2), scheduler::ReplicaState::Probation);
    let (_, attempt, replica) = rig.place(prompt(200, 1));
    assert_eq!(replica, 2);
    answered(&mut rig, attempt, 200, 0);
    assert_eq!(rig.state(2), scheduler::ReplicaState::Ready);
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
