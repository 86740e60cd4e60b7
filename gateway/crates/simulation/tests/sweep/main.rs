//! The adversary: seeded random events and faults against the scheduler. Its invariants are checked after every call (debug
//! builds), a shadow outside the core counts along, and in the end everything must have ended.
//!
//! `HUNTGROUP_SEEDS=N` runs N seeds instead of 200, `HUNTGROUP_SEED=K` only seed K.

mod shadow;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use scheduler::ShedReason;

use crate::world::{Trace, run};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("the variable should hold a number"))
}

#[test]
fn no_seed_breaks_a_promise() {
    let seeds = match number("HUNTGROUP_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("HUNTGROUP_SEEDS").unwrap_or(200),
    };
    let enough = seeds.clone().count() >= 100;
    let mut total = Trace::default();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(trace) => total = total + trace,
            Err(cause) => {
                eprintln!("seed {seed} failed; replay it with HUNTGROUP_SEED={seed}");
                resume_unwind(cause);
            }
        }
    }
    println!("{total:?}");
    if enough {
        reaches_what_it_is_meant_to_test(&total);
    }
}

/// Why requests are refused.
const REASONS: [ShedReason; 8] = [
    ShedReason::NoCapacity,
    ShedReason::QueueFull,
    ShedReason::QueueAge,
    ShedReason::Hopeless,
    ShedReason::Deadline,
    ShedReason::AttemptsExhausted,
    ShedReason::RetryBudget,
    ShedReason::ContextExceeded,
];

/// A sweep that never comes near a promise does not test it.
fn reaches_what_it_is_meant_to_test(total: &Trace) {
    let reached = [
        ("failover", total.failovers),
        ("cancel", total.cancels),
        ("second copy", total.hedges),
        ("copy that lost", total.hedges_lost),
        ("work given back", total.given_back),
        ("answer carried on", total.carried_on),
        ("answer carried on by another group", total.by_another_group),
        ("answer taken from a replica that goes away", total.taken_over),
        ("answer begun anew that was written in part", total.begun_anew),
        ("drain", total.drained),
        ("held relay", total.relay_holds),
        ("request sent again after its relay was down", total.refunded),
        ("lifted mark", total.lifted),
        ("look at slots", total.looks),
        ("work that was left behind", total.lingered),
        ("look that shows more than ours", total.foreign),
        ("quarantine", total.quarantined),
        ("end of a deployment", total.ended),
        ("work for a replica that is to be spared", total.to_spared),
        ("work for a replica whose end is near", total.to_ending),
    ];
    for (what, count) in reached {
        assert!(count > 0, "no {what}: {total:?}");
    }
    for reason in REASONS {
        assert!(total.rejections[reason as usize] > 0, "{reason:?} is never given: {total:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let (first, again, other) = (run(42), run(42), run(43));
    assert_eq!(first, again);
    assert_ne!(first.hash, other.hash);
    for trace in [first, other] {
        assert!(trace.calls > 300 && trace.dispatches > 5, "hardly anything happened: {trace:?}");
    }
}
