//! Who gets a request.

use std::{collections::BTreeMap, time::Duration};

use scheduler::{Class, Event, Left, Outcome, Policy, RequestSpec, SchedulerConfig, Timings};

use crate::rig::{Rig, config, request, seconds, spec};

#[test]
fn three_hundred_serial_requests_spread_evenly_over_three_idle_replicas() {
    for policy in [Policy::LeastBusy, Policy::RoundRobin] {
        let mut rig = Rig::with_replicas(SchedulerConfig { policy, ..config() }, 3);
        let mut served = BTreeMap::new();
        for _ in 0..300 {
            *served.entry(rig.serve(Outcome::Success)).or_insert(0) += 1;
            rig.pass(Duration::from_millis(10));
        }
        assert!(served.values().all(|count| (90..=110).contains(count)), "{policy:?}: {served:?}");
    }
}

#[test]
fn the_first_among_equals_depends_on_the_seed_alone() {
    let first = |seed| {
        let mut rig = Rig::seeded(config(), seed);
        (1..=3).for_each(|id| rig.ready(id, spec(1)));
        rig.place(request()).2
    };
    let mut seen: Vec<u32> = (0..30).map(first).collect();
    assert_eq!(seen, (0..30).map(first).collect::<Vec<_>>());
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, [1, 2, 3]);
}

#[test]
fn slots_fill_in_proportion() {
    let mut rig = Rig::new(config());
    rig.ready(1, spec(4));
    rig.ready(2, spec(2));
    let mut placed: Vec<u32> = (0..3).map(|_| rig.place(request()).2).collect();
    placed.sort_unstable();
    // One each, then a quarter is less than a half.
    assert_eq!(placed, [1, 1, 2]);
}

#[test]
fn the_measured_faster_replica_is_asked_first() {
    let mut rig = Rig::with_replicas(config(), 2);
    for _ in 0..6 {
        let (_, attempt, replica) = rig.place(request());
        let decode = seconds(if replica == 1 { 10 } else { 2 });
        let timings = Timings { decode_tokens: 100, decode, ..Timings::default() };
        rig.tell(Event::AttemptEnded {
            attempt,
            outcome: Outcome::Success,
            left: Left::Closed,
            timings: Some(timings),
        });
        rig.pass(seconds(1));
    }
    assert_eq!(rig.serve(Outcome::Success), 2);
    assert_eq!(rig.serve(Outcome::Success), 2);
    assert!(
        rig.view(2).decode_rate.expect("it was measured") > 2.0 * rig.view(1).decode_rate.expect("it was measured")
    );
}

#[test]
fn a_free_slot_goes_to_the_most_urgent_request_that_it_can_serve() {
    let mut rig = Rig::with_replicas(config(), 1);
    let (_, attempt, _) = rig.place(request());
    let batch = rig.ask(RequestSpec { class: Class::Batch, ..request() });
    let elsewhere = rig.ask(RequestSpec { route: 1, class: Class::Interactive, ..request() });
    let urgent = rig.ask(RequestSpec { class: Class::Interactive, ..request() });
    rig.end(attempt, Outcome::Success);
    let (attempt, _) = rig.dispatched(urgent).expect("the urgent one is next");
    rig.end(attempt, Outcome::Success);
    assert!(rig.dispatched(batch).is_some());
    assert_eq!(rig.core.request(elsewhere, rig.now).and_then(|view| view.running), None);
}

#[test]
fn a_batch_request_that_waited_long_goes_before_fresh_interactive_ones() {
    let mut rig = Rig::with_replicas(config(), 1);
    let (_, attempt, _) = rig.place(request());
    let old = rig.ask(RequestSpec { class: Class::Batch, ..request() });
    rig.pass(seconds(121));
    rig.ask(RequestSpec { class: Class::Interactive, ..request() });
    rig.end(attempt, Outcome::Success);
    assert!(rig.dispatched(old).is_some());
}
