//! Claims, leases and results.

use std::collections::BTreeSet;

use super::desk::{ALL, LEASE, NONE, again, at, claimed, output, result, run, running, text};
use crate::*;

pub(super) fn lines_are_claimed_by_affinity_and_number_within_bounds(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 10);
    assert_eq!(claimed(store, holder, &batch, 3), [1, 3, 5]);
    let length = text(7).len() + text(9).len();
    let claim = |limit, bytes| {
        let lines = store.claim_lines(holder, batch.key, limit, bytes).unwrap();
        lines.into_iter().map(|line| line.number).collect::<Vec<_>>()
    };
    assert_eq!(claim(0, ALL), NONE);
    assert_eq!(claim(100, length), [7, 9], "as many as fit");
    assert_eq!(claim(100, 0), [2], "but always one");
    assert_eq!(claim(100, ALL), [4, 6, 8, 10]);
    assert_eq!(claim(100, ALL), NONE);
    assert_eq!(store.claim_lines(holder, BatchKey(999), 1, ALL).unwrap(), []);
}

pub(super) fn two_holders_never_have_the_same_line(store: &BatchStore) {
    let (one, two) = (store.register(at(0), LEASE).unwrap(), store.register(at(0), LEASE).unwrap());
    let batch = running(store, one, "a", 20);
    let mut seen = BTreeSet::new();
    for holder in [one, two, one, two, one] {
        for number in claimed(store, holder, &batch, 5) {
            assert!(seen.insert(number), "{number} was claimed twice");
        }
    }
    assert_eq!(seen.len(), 20);
    // What the first has, the second can neither finish nor give back.
    let theirs = store.finish_lines(two, vec![result(&batch, 1)], at(30)).unwrap();
    assert_eq!(theirs, [Kept::TooLate]);
    store.release_lines(two, vec![ReleasedLine { batch: batch.key, number: 1, tried: true }]).unwrap();
    assert_eq!(claimed(store, two, &batch, 5), NONE);
    assert_eq!(store.finish_lines(one, vec![result(&batch, 1)], at(30)).unwrap(), [Kept::Stored]);
}

pub(super) fn a_released_line_is_claimed_again_and_remembers_its_tries(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 2);
    for (tried, before) in [(false, 0), (true, 0), (true, 1), (false, 2)] {
        let line = store.claim_lines(holder, batch.key, 1, ALL).unwrap().remove(0);
        assert_eq!((line.number, line.tries), (1, before));
        store.release_lines(holder, vec![ReleasedLine { batch: batch.key, number: 1, tried }]).unwrap();
    }
    // One that is not claimed is not tried.
    store.release_lines(holder, vec![ReleasedLine { batch: batch.key, number: 1, tried: true }]).unwrap();
    assert_eq!(store.claim_lines(holder, batch.key, 1, ALL).unwrap()[0].tries, 2);
}

pub(super) fn a_line_with_a_result_is_never_claimed_or_stored_again(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 3);
    assert_eq!(claimed(store, holder, &batch, 1), [1]);
    let twice = vec![result(&batch, 1), FinishedLine { failed: true, ..result(&batch, 1) }];
    assert_eq!(store.finish_lines(holder, twice, at(30)).unwrap(), [Kept::Stored, Kept::TooLate]);
    assert_eq!(store.finish_lines(holder, vec![result(&batch, 1)], at(30)).unwrap(), [Kept::TooLate]);
    store.release_lines(holder, vec![ReleasedLine { batch: batch.key, number: 1, tried: true }]).unwrap();
    let unclaimed = store.finish_lines(holder, vec![result(&batch, 2), result(&batch, 77)], at(30)).unwrap();
    assert_eq!(unclaimed, [Kept::TooLate, Kept::TooLate]);
    assert_eq!(claimed(store, holder, &batch, 10), [3, 2]);
    let counts = again(store, &batch).counts;
    assert_eq!(counts, LineCounts { total: 3, completed: 1, failed: 0 });
}

pub(super) fn a_lapsed_holder_loses_everything_and_can_store_nothing(store: &BatchStore) {
    let (slow, quick) = (store.register(at(0), LEASE).unwrap(), store.register(at(10), LEASE).unwrap());
    let batch = running(store, slow, "a", 4);
    assert_eq!(claimed(store, slow, &batch, 2), [1, 3]);
    assert!(store.claim_job(slow, batch.key).unwrap());
    let file = store.begin_file(slow, output("file-out")).unwrap();
    store.append_file(file, b"half".to_vec()).unwrap();
    store.renew(quick, at(14), LEASE).unwrap();
    assert_eq!(claimed(store, quick, &batch, 1), [2], "the lease is good until 15");
    store.renew(quick, at(15), LEASE).unwrap();

    let lost = || StoreError::LostClaim;
    assert_eq!(store.finish_lines(slow, vec![result(&batch, 1)], at(16)), Err(lost()));
    assert_eq!(store.finish_lines(slow, vec![], at(16)), Err(lost()));
    assert_eq!(store.claim_lines(slow, batch.key, 1, ALL), Err(lost()));
    assert_eq!(store.claim_job(slow, batch.key), Err(lost()));
    assert_eq!(store.append_file(file, b"more".to_vec()), Err(lost()));
    assert_eq!(store.finish_file(file, None), Err(lost()));
    assert_eq!(store.begin_file(slow, output("file-new")), Err(lost()));
    assert_eq!(store.close_batch(slow, batch.key, None, None, at(16)), Err(lost()));
    assert_eq!(store.renew(slow, at(16), LEASE), Err(lost()));
    assert!(store.claim_job(quick, batch.key).unwrap());
    assert_eq!(claimed(store, quick, &batch, 2), [1, 3], "its lines wait again");
    // Giving back what is lost is nobody's harm.
    store.release_lines(slow, vec![ReleasedLine { batch: batch.key, number: 1, tried: true }]).unwrap();
    store.release_job(slow, batch.key).unwrap();
    store.resign(slow).unwrap();
    assert_eq!(store.finish_lines(quick, vec![result(&batch, 1)], at(16)).unwrap(), [Kept::Stored]);
    assert_eq!(again(store, &batch).counts.completed, 1);
}

pub(super) fn an_ended_holder_gives_everything_back(store: &BatchStore) {
    let (one, two) = (store.register(at(0), LEASE).unwrap(), store.register(at(0), LEASE).unwrap());
    let batch = running(store, one, "a", 3);
    assert_eq!(claimed(store, one, &batch, 3).len(), 3);
    assert!(store.claim_job(one, batch.key).unwrap());
    let file = store.begin_file(one, output("file-out")).unwrap();
    store.resign(one).unwrap();
    assert_eq!(claimed(store, two, &batch, 3).len(), 3);
    assert!(store.claim_job(two, batch.key).unwrap());
    assert_eq!(store.finish_file(file, None), Err(StoreError::LostClaim));
    assert_eq!(store.renew(one, at(1), LEASE), Err(StoreError::LostClaim));
}

pub(super) fn a_holder_number_is_never_given_twice(store: &BatchStore) {
    let mut last = store.register(at(0), LEASE).unwrap();
    for _ in 0..3 {
        store.resign(last).unwrap();
        let next = store.register(at(0), LEASE).unwrap();
        assert!(next.0 > last.0);
        last = next;
    }
}

pub(super) fn a_renewed_lease_keeps_what_was_claimed(store: &BatchStore) {
    let (one, two) = (store.register(at(0), LEASE).unwrap(), store.register(at(0), LEASE).unwrap());
    let batch = running(store, one, "a", 2);
    assert_eq!(claimed(store, one, &batch, 2).len(), 2);
    for second in (5..60).step_by(5) {
        store.renew(one, at(second), LEASE).unwrap();
        store.renew(two, at(second), LEASE).unwrap();
    }
    // A clock that was set back does not make it shorter.
    store.renew(one, at(1), LEASE).unwrap();
    store.renew(two, at(69), LEASE).unwrap();
    assert_eq!(claimed(store, two, &batch, 2), NONE);
    assert_eq!(store.finish_lines(one, vec![result(&batch, 1)], at(69)).unwrap(), [Kept::Stored]);
    // A lease that was over goes on as long as nobody has taken what it had: it could not be written for a while.
    store.renew(one, at(200), LEASE).unwrap();
    assert_eq!(store.finish_lines(one, vec![result(&batch, 2)], at(200)).unwrap(), [Kept::Stored]);
    assert_eq!(store.renew(two, at(201), LEASE), Err(StoreError::LostClaim), "the first one's renewal took it");
    store.register(UnixMillis(u64::MAX >> 1), std::time::Duration::MAX).unwrap();
}

pub(super) fn a_lease_of_a_clock_that_was_ahead_is_over_soon_after_that_was_set_back(store: &BatchStore) {
    let ahead = 1_000_000;
    let killed = store.register(at(ahead), LEASE).unwrap();
    let batch = running(store, killed, "a", 2);
    assert_eq!(claimed(store, killed, &batch, 2).len(), 2);
    let next = store.register(at(100), LEASE).unwrap();
    assert_eq!(claimed(store, next, &batch, 2), NONE, "it may live");
    store.renew(next, at(110), LEASE).unwrap();
    store.renew(next, at(701), LEASE).unwrap();
    assert_eq!(claimed(store, next, &batch, 2).len(), 2);
    assert_eq!(store.renew(killed, at(702), LEASE), Err(StoreError::LostClaim));
}

pub(super) fn results_of_a_sealed_batch_come_too_late(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let [expired, other] = ["a", "b"].map(|name| running(store, holder, name, 2));
    let lines = [claimed(store, holder, &expired, 1)[0], claimed(store, holder, &other, 1)[0]];
    store.cancel_batch(None, "batch_b", at(30)).unwrap();
    store.expire_batches(at(1_000)).unwrap();
    let late = vec![result(&expired, lines[0]), result(&other, lines[1])];
    assert_eq!(store.finish_lines(holder, late, at(1_000)).unwrap(), [Kept::TooLate, Kept::TooLate]);
    for batch in [&expired, &other] {
        assert_eq!(again(store, batch).counts, LineCounts { total: 2, completed: 0, failed: 0 });
        assert_eq!(store.results(batch.key, Results::Completed, 0, ALL).unwrap(), []);
        assert_eq!(store.unfinished(batch.key, 0, 10).unwrap().len(), 2);
    }
}

pub(super) fn results_of_several_batches_are_stored_together(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let [one, two] = ["a", "b"].map(|name| running(store, holder, name, 2));
    for batch in [&one, &two] {
        assert_eq!(claimed(store, holder, batch, 2), [1, 2]);
    }
    let failed = FinishedLine { failed: true, ..result(&two, 1) };
    let mixed = vec![result(&one, 1), failed, result(&one, 2), result(&two, 9)];
    let kept = store.finish_lines(holder, mixed, at(30)).unwrap();
    assert_eq!(kept, [Kept::Stored, Kept::Stored, Kept::Stored, Kept::TooLate], "one word for each, in their order");
    assert_eq!(again(store, &one).state, BatchState::Finalizing);
    assert_eq!(again(store, &two).counts, LineCounts { total: 2, completed: 0, failed: 1 });
}

pub(super) fn the_last_result_and_a_cancellation_race_and_one_wins(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    for round in 0..20 {
        let batch = running(store, holder, &round.to_string(), 1);
        assert_eq!(claimed(store, holder, &batch, 1), [1]);
        let (kept, cancelled) = std::thread::scope(|scope| {
            let finish = scope.spawn(|| store.finish_lines(holder, vec![result(&batch, 1)], at(30)).unwrap()[0]);
            let cancel = scope.spawn(|| store.cancel_batch(None, &batch.id, at(30)));
            (finish.join().unwrap(), cancel.join().unwrap())
        });
        let now = again(store, &batch);
        match (kept, cancelled) {
            (Kept::Stored, Err(StoreError::WrongState(BatchState::Finalizing))) => {
                assert_eq!((now.seal, now.counts.completed), (Some(Seal::Complete), 1));
            }
            (Kept::TooLate, Ok(cancelled)) => {
                assert_eq!((now.seal, now.counts.completed), (Some(Seal::Cancelled), 0));
                assert_eq!(now, cancelled);
            }
            both => panic!("{both:?}"),
        }
    }
}

pub(super) fn deleting_the_input_does_not_touch_a_running_batch(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 6);
    assert_eq!(claimed(store, holder, &batch, 2), [1, 3]);
    store.delete_file("bank", "file-a").unwrap();
    while store.sweep(at(30), LEASE).unwrap() {}
    assert_eq!(store.file("bank", "file-a"), Err(StoreError::UnknownFile("file-a".into())));
    assert_eq!(claimed(store, holder, &batch, 4), [5, 2, 4, 6]);
    assert_eq!(store.read_file(batch.input, 0, text(1).len()).unwrap(), text(1).into_bytes());
    let results = (1..=6).map(|number| result(&batch, number)).collect();
    assert_eq!(store.finish_lines(holder, results, at(40)).unwrap(), [Kept::Stored; 6]);
    assert!(store.claim_job(holder, batch.key).unwrap());
    store.close_batch(holder, batch.key, None, None, at(50)).unwrap();
    assert!(matches!(store.read_file(batch.input, 0, 1), Err(StoreError::UnknownFile(_))), "nobody needs it now");
}

pub(super) fn absurd_token_counts_are_bounded(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 3);
    let absurd = TokenUsage { input: u64::MAX, cached: u64::MAX, output: 7 };
    let results = claimed(store, holder, &batch, 2);
    let results = results.into_iter().map(|number| FinishedLine { usage: absurd, ..result(&batch, number) });
    assert_eq!(store.finish_lines(holder, results.collect(), at(30)).unwrap(), [Kept::Stored; 2]);
    assert_eq!(again(store, &batch).usage, TokenUsage { input: 2 << 40, cached: 2 << 40, output: 14 });
    assert_eq!(run(store, holder, &batch, 1), [Kept::Stored]);
}

pub(super) fn results_and_unfinished_lines_are_read_in_parts(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 30);
    let order = claimed(store, holder, &batch, 20);
    let results = order.iter().map(|&number| FinishedLine { failed: number % 4 == 1, ..result(&batch, number) });
    store.finish_lines(holder, results.collect(), at(30)).unwrap();
    for max_bytes in [0, 40, 100, ALL] {
        let walk = |which| {
            let (mut numbers, mut after) = (Vec::new(), 0);
            loop {
                let part = store.results(batch.key, which, after, max_bytes).unwrap();
                let bytes: usize = part.iter().map(|(_, record)| record.len()).sum();
                assert!(part.len() <= 1 || bytes <= max_bytes);
                let Some((last, _)) = part.last() else { return numbers };
                after = *last;
                for (number, record) in part {
                    assert_eq!(record, result(&batch, number).record);
                    numbers.push(number);
                }
            }
        };
        let (completed, failed) = (walk(Results::Completed), walk(Results::Failed));
        assert!(completed.is_sorted() && failed.is_sorted());
        assert!(failed.iter().all(|number| number % 4 == 1) && completed.iter().all(|number| number % 4 != 1));
        assert_eq!(completed.len() + failed.len(), 20);
    }
    let mut unfinished: Vec<UnfinishedLine> = Vec::new();
    loop {
        let part = store.unfinished(batch.key, unfinished.last().map_or(0, |line| line.number), 3).unwrap();
        if part.is_empty() {
            break;
        }
        unfinished.extend(part);
    }
    let expected = (1..=30).filter(|number| !order.contains(number));
    let expected = expected.map(|number| UnfinishedLine { number, custom_id: format!("c{number}") });
    assert_eq!(unfinished, expected.collect::<Vec<_>>());
}

pub(super) fn many_threads_run_a_batch_and_each_line_has_one_result(store: &BatchStore) {
    let holders: Vec<Holder> = (0..3).map(|_| store.register(at(0), LEASE).unwrap()).collect();
    let batch = running(store, holders[0], "a", 300);
    std::thread::scope(|scope| {
        for &holder in holders.iter().chain(&holders) {
            let (store, batch) = (store.clone(), &batch);
            scope.spawn(move || {
                loop {
                    let kept = run(&store, holder, batch, 7);
                    assert!(kept.iter().all(|kept| *kept == Kept::Stored));
                    if kept.is_empty() {
                        return;
                    }
                }
            });
        }
    });
    let done = again(store, &batch);
    assert_eq!(done.counts, LineCounts { total: 300, completed: 300, failed: 0 });
    assert_eq!((done.state, done.usage.output), (BatchState::Finalizing, 1_500));
    let results = store.results(batch.key, Results::Completed, 0, ALL).unwrap();
    assert!(results.iter().map(|(number, _)| *number).eq(1..=300));
}
