//! What requests do to each other on a phone, and what is left of them.

use super::*;
use crate::{phone::ModelSpeed, workload::Segment};

/// Reads 100 tokens a second and writes 10, at any context.
const MODEL: ModelSpeed = ModelSpeed {
    prefill_tokens_per_second: 100.0,
    prefill_slowdown: 0.0,
    decode_tokens_per_second: 10.0,
    decode_half_speed_context: f64::INFINITY,
    sharing_cost: 0.5,
};

fn phone(slots: usize, remembers: bool) -> Phone {
    let spec = PhoneSpec { class: 0, prefill_factor: 1.0, decode_factor: 1.0, slots, remembers };
    Phone::new(PhoneSpeed { overhead_seconds: 0.5, ..PhoneSpeed::reference(MODEL) }, &spec)
}

/// 100 tokens of a template, 100 of its own; an answer of 20.
fn order(copy: u64, template: u64) -> Order {
    let prompt = Prompt {
        template: Segment { content: template, tokens: 100 },
        own: Segment { content: 1000 + copy, tokens: 100 },
    };
    Order { copy, request: 0, prompt, written: 0, output: 20 }
}

/// Plays until nothing more ends by itself: when which copy had read (false) or was done (true).
fn run(phone: &mut Phone) -> Vec<(f64, u64, bool)> {
    let mut seen = Vec::new();
    while let Some(length) = phone.next() {
        let now = phone.processor.now() + length;
        phone.advance(now);
        for slot in 0..phone.slots() {
            match phone.ripe(slot) {
                Some(Ripe::Read(job)) => seen.push((now, job.order.copy, false)),
                Some(Ripe::Done(job)) => seen.push((now, job.order.copy, true)),
                None => {}
            }
        }
    }
    seen
}

fn assert_times(seen: &[(f64, u64, bool)], expected: &[(f64, u64, bool)]) {
    let near = |(a, b): (&(f64, u64, bool), &(f64, u64, bool))| (a.0 - b.0).abs() < 1e-6 && (a.1, a.2) == (b.1, b.2);
    assert!(seen.len() == expected.len() && seen.iter().zip(expected).all(near), "{seen:?} is not {expected:?}");
}

#[test]
fn a_lone_request_starts_up_reads_and_writes() {
    let mut phone = phone(1, true);
    assert!(phone.start(order(1, 7), 0.0).is_some());
    assert!(phone.start(order(2, 7), 0.0).is_none(), "one slot");
    assert_times(&run(&mut phone), &[(2.5, 1, false), (4.5, 1, true)]);
}

#[test]
fn what_is_cached_is_not_read_again() {
    for (remembers, read_at) in [(true, 6.0), (false, 7.0)] {
        let mut phone = phone(1, remembers);
        phone.start(order(1, 7), 0.0);
        run(&mut phone);
        let job = *phone.start(order(2, 7), 4.5).expect("a free slot");
        assert_eq!(job.cached, if remembers { 100 } else { 0 });
        assert_times(&run(&mut phone), &[(read_at, 2, false), (read_at + 2.0, 2, true)]);
    }
}

#[test]
fn readers_share_evenly_and_writers_gain() {
    let mut phone = phone(2, true);
    phone.start(order(1, 7), 0.0);
    phone.start(order(2, 8), 0.0);
    // Two writers write 2 / 1.5 times what one writes, so each takes 1.5 times as long.
    assert_times(&run(&mut phone), &[(5.0, 1, false), (5.0, 2, false), (8.0, 1, true), (8.0, 2, true)]);
}

#[test]
fn a_slow_phase_stretches_what_is_left() {
    let mut phone = phone(1, true);
    phone.start(order(1, 7), 0.0);
    assert_eq!(phone.change(0.5, 1.5), None);
    assert_eq!(phone.remaining(1, 2.5), Some((1.0, 4.0)));
    assert_times(&run(&mut phone), &[(3.5, 1, false), (7.5, 1, true)]);
}

#[test]
fn a_failure_loses_work_and_caches_and_what_comes_before_it_is_noticed() {
    let mut phone = phone(2, true);
    phone.start(order(1, 7), 0.0);
    // 1.25 of 2.5 seconds done, so half of the two seconds of reading.
    assert_eq!(phone.change(0.0, 1.25), Some([1.0, 0.0]));
    assert!(phone.start(order(2, 7), 2.0).is_some());
    assert_eq!((phone.next(), phone.remaining(1, 3.0)), (None, None));
    assert_eq!(phone.change(0.0, 3.0), Some([0.0; 2]), "lost only once");
    phone.change(1.0, 10.0);
    let lost: Vec<u64> = phone.take_lost(10.0).iter().map(|job| job.order.copy).collect();
    assert_eq!(lost, [1, 2]);
    assert_eq!(phone.start(order(3, 7), 10.0).map(|job| job.cached), Some(0));
    assert_times(&run(&mut phone), &[(12.5, 3, false), (14.5, 3, true)]);
}

#[test]
fn what_was_written_before_a_failure_is_known_to_the_token_and_is_carried_on_behind_the_prompt() {
    let mut one = phone(1, true);
    one.start(order(1, 7), 0.0);
    one.advance(2.5);
    assert!(matches!(one.ripe(0), Some(Ripe::Read(_))));
    // A second of two: ten tokens of twenty.
    assert_eq!(one.change(0.0, 3.5), Some([3.0, 1.0]));
    let lost = one.take_lost(5.0)[0];
    assert_eq!((lost.written(), lost.writing_work()), (10, 1.0));
    let asked = order(2, 7);
    let rest = Order { prompt: lost.order.prompt.extended(10), written: 10, output: 10, ..asked };
    let mut other = phone(1, true);
    other.start(rest, 0.0);
    assert_times(&run(&mut other), &[(2.6, 2, false), (3.6, 2, true)]);
    let again = other.start(order(3, 7), 4.0).expect("a free slot");
    assert_eq!(again.written(), 0);
}

#[test]
fn a_stopped_copy_leaves_in_its_slot_what_it_has_read() {
    let mut phone = phone(1, true);
    phone.start(order(1, 7), 0.0);
    let job = phone.stop(1, 2.25).expect("it runs");
    assert!((job.work() - 1.8).abs() < 1e-9, "{}", job.work());
    assert!(phone.stop(1, 2.25).is_none());
    let again = phone.start(order(1, 7), 3.0).expect("a free slot");
    assert_eq!(again.cached, 180);
}

#[test]
fn the_warmest_slot_is_taken_then_an_empty_one_then_the_oldest() {
    let mut phone = phone(3, true);
    for (copy, template) in [(1, 7), (2, 8)] {
        phone.start(order(copy, template), phone.processor.now());
        run(&mut phone);
    }
    let slots = |phone: &Phone| phone.slots.iter().map(|slot| slot.job.map(|job| job.order.copy)).collect::<Vec<_>>();
    let now = phone.processor.now();
    phone.start(order(3, 8), now);
    assert_eq!(slots(&phone), [None, Some(3), None], "warm");
    phone.start(order(4, 9), now);
    assert_eq!(slots(&phone), [None, Some(3), Some(4)], "empty");
    phone.start(order(5, 9), now);
    assert_eq!(slots(&phone), [Some(5), Some(3), Some(4)], "what is left");
}
