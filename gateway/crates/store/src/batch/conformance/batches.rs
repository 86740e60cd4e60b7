//! Batches, from their making to their end.

use std::time::Duration;

use serde_json::json;

use super::desk::{
    LEASE, NONE, a_batch, a_file, again, at, claimed, lines, output, page, result, run, running, written,
};
use crate::*;

pub(super) fn a_batch_comes_back_as_it_was_made(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let input = written(store, holder, a_file("file-a"), b"x");
    let new = NewBatch { output_expires_after: Some(Duration::from_secs(3_600)), ..a_batch("batch_a", "file-a") };
    let batch = store.create_batch(new.clone()).unwrap();
    let expected = BatchRecord {
        key: batch.key,
        id: new.id,
        tenant: new.tenant,
        endpoint: new.endpoint,
        input_file: new.input_file,
        input: input.key,
        completion_window: new.completion_window,
        metadata: new.metadata,
        permissions: new.permissions,
        output_expires_after: new.output_expires_after,
        state: BatchState::Validating,
        seal: None,
        model: None,
        errors: None,
        output_file: None,
        error_file: None,
        times: BatchTimes { created: new.created, expires: new.expires, ..BatchTimes::default() },
        counts: LineCounts::default(),
        usage: TokenUsage::default(),
    };
    assert_eq!(batch, expected);
    assert_eq!(store.batch(Some("bank"), "batch_a").unwrap(), batch);
    assert_eq!(store.open_batches().unwrap(), std::slice::from_ref(&batch));
    let bare = NewBatch { metadata: json!(null), permissions: json!(null), ..a_batch("batch_b", "file-a") };
    assert_eq!(store.create_batch(bare).unwrap().metadata, json!(null));
    assert_eq!(store.open_batches().unwrap().len(), 2);
    assert!(matches!(store.create_batch(a_batch("batch_a", "file-a")), Err(StoreError::Failed(_))), "the id is taken");
}

pub(super) fn a_batch_needs_an_input_of_its_own_tenant_for_this_purpose(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    written(store, holder, NewFile { tenant: "shop".into(), ..a_file("file-theirs") }, b"x");
    written(store, holder, output("file-output"), b"x");
    written(store, holder, a_file("file-deleted"), b"x");
    store.delete_file("bank", "file-deleted").unwrap();
    store.begin_file(holder, a_file("file-unfinished")).unwrap();
    for id in ["file-none", "file-theirs", "file-output", "file-deleted", "file-unfinished"] {
        assert_eq!(store.create_batch(a_batch("batch_a", id)), Err(StoreError::UnknownFile(id.into())));
    }
    assert_eq!(store.open_batches().unwrap(), []);
}

pub(super) fn a_tenant_has_at_most_so_many_open_batches_though_many_are_asked_for_at_once(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    written(store, holder, a_file("file-a"), b"x");
    written(store, holder, NewFile { tenant: "shop".into(), ..a_file("file-b") }, b"x");
    let create = |n: u32| store.create_batch(NewBatch { max_open: 5, ..a_batch(&format!("batch_{n}"), "file-a") });
    let made: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..40).map(|n| scope.spawn(move || create(n))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 5);
    assert_eq!(made.iter().filter(|made| **made == Err(StoreError::TooManyOpen(5))).count(), 35);
    let other = NewBatch { tenant: "shop".into(), max_open: 1, ..a_batch("batch_b", "file-b") };
    store.create_batch(other).unwrap();
    let first = made.into_iter().flatten().next().unwrap();
    store.cancel_batch(None, &first.id, at(20)).unwrap();
    assert_eq!(create(50), Err(StoreError::TooManyOpen(5)), "it has not ended");
    assert!(store.claim_job(holder, first.key).unwrap());
    store.close_batch(holder, first.key, None, None, at(21)).unwrap();
    create(51).unwrap();
}

pub(super) fn a_batch_that_is_asked_for_again_is_not_made_twice(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    written(store, holder, a_file("file-a"), b"x");
    written(store, holder, NewFile { tenant: "shop".into(), ..a_file("file-b") }, b"x");
    let with = |id: &str, key: &str| NewBatch { idempotency_key: Some(key.into()), ..a_batch(id, "file-a") };
    let first = store.create_batch(with("batch_1", "night-7")).unwrap();
    assert_eq!(store.create_batch(with("batch_2", "night-7")), Ok(first.clone()));
    let other_words = NewBatch { metadata: json!({}), ..with("batch_3", "night-7") };
    assert_eq!(store.create_batch(other_words), Err(StoreError::KeyReused));
    let shop = NewBatch { tenant: "shop".into(), input_file: "file-b".into(), ..with("batch_4", "night-7") };
    assert_eq!(store.create_batch(shop).unwrap().id, "batch_4", "another tenant's key");
    store.delete_file("bank", "file-a").unwrap();
    let full = NewBatch { max_open: 0, ..with("batch_5", "night-7") };
    assert_eq!(store.create_batch(full), Ok(first.clone()), "it needs neither its input nor room");
    let again = |since| NewBatch { again_since: Some(at(since)), ..a_batch("batch_6", "file-a") };
    assert_eq!(store.create_batch(again(5)), Ok(first));
    let gone = Err(StoreError::UnknownFile("file-a".into()));
    assert_eq!(store.create_batch(again(11)), gone, "made too long ago");
    assert_eq!(store.create_batch(NewBatch { endpoint: "/v1/completions".into(), ..again(5) }), gone);
}

pub(super) fn batches_are_listed_in_pages_both_ways(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    written(store, holder, a_file("file-a"), b"x");
    written(store, holder, NewFile { tenant: "shop".into(), ..a_file("file-b") }, b"x");
    for n in 0..6 {
        let (tenant, input) = if n % 3 == 0 { ("shop", "file-b") } else { ("bank", "file-a") };
        store.create_batch(NewBatch { tenant: tenant.into(), ..a_batch(&format!("batch_{n}"), input) }).unwrap();
    }
    let walk = |tenant, limit, ascending| {
        let mut ids: Vec<String> = Vec::new();
        loop {
            let wanted = page(ids.last().map(String::as_str), limit, ascending);
            let got = store.batches(tenant, wanted).unwrap();
            ids.extend(got.entries.into_iter().map(|batch| batch.id));
            if !got.more {
                return ids;
            }
        }
    };
    let ids = |numbers: &[u32]| numbers.iter().map(|n| format!("batch_{n}")).collect::<Vec<_>>();
    for limit in [1, 2, 6, 7] {
        assert_eq!(walk(None, limit, false), ids(&[5, 4, 3, 2, 1, 0]), "by {limit}");
        assert_eq!(walk(Some("bank"), limit, false), ids(&[5, 4, 2, 1]), "by {limit}");
        assert_eq!(walk(Some("shop"), limit, true), ids(&[0, 3]), "by {limit}");
    }
    let unknown = StoreError::UnknownBatch("batch_0".into());
    assert_eq!(store.batches(Some("bank"), page(Some("batch_0"), 2, false)), Err(unknown), "it is the shop's");
}

pub(super) fn nobody_sees_the_batches_of_another_tenant(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 2);
    let unknown = || StoreError::UnknownBatch("batch_a".into());
    assert_eq!(store.batch(Some("shop"), "batch_a"), Err(unknown()));
    assert_eq!(store.cancel_batch(Some("shop"), "batch_a", at(30)), Err(unknown()));
    assert_eq!(store.batches(Some("shop"), page(None, 10, false)).unwrap().entries, []);
    assert_eq!(store.stored(Some("shop")).unwrap().open_batches, 0);
    assert_eq!(store.batch(Some("bank"), "batch_a").unwrap(), batch);
    // A file of one tenant is never shown as the result of another's batch.
    run(store, holder, &batch, 2);
    assert!(store.claim_job(holder, batch.key).unwrap());
    let strange = store.begin_file(holder, NewFile { tenant: "shop".into(), ..output("file-out") }).unwrap();
    let closed = store.close_batch(holder, batch.key, Some(strange), None, at(40));
    assert_eq!(closed, Err(StoreError::LostClaim));
}

pub(super) fn the_job_is_one_holders_at_a_time(store: &BatchStore) {
    let (one, two) = (store.register(at(0), LEASE).unwrap(), store.register(at(10), LEASE).unwrap());
    written(store, one, a_file("file-a"), b"x");
    let batch = store.create_batch(a_batch("batch_a", "file-a")).unwrap().key;
    assert!(store.claim_job(one, batch).unwrap());
    assert!(store.claim_job(one, batch).unwrap(), "it has it already");
    assert!(!store.claim_job(two, batch).unwrap());
    assert_eq!(store.add_lines(two, batch, lines(1).1), Err(StoreError::LostClaim));
    store.release_job(two, batch).unwrap();
    assert!(!store.claim_job(two, batch).unwrap(), "only its holder gives it back");
    store.release_job(one, batch).unwrap();
    assert!(store.claim_job(two, batch).unwrap());
    assert_eq!(store.clear_lines(one, batch), Err(StoreError::LostClaim));
    store.renew(two, at(20), LEASE).unwrap();
    assert_eq!(store.claim_job(one, batch), Err(StoreError::LostClaim), "its lease was over at 15");
    assert!(!store.claim_job(two, BatchKey(999)).unwrap());
    let three = store.register(at(100), LEASE).unwrap();
    assert!(store.claim_job(three, batch).unwrap(), "the second lease was over at 35");
}

pub(super) fn an_interrupted_look_begins_anew(store: &BatchStore) {
    let (one, two) = (store.register(at(0), LEASE).unwrap(), store.register(at(10), LEASE).unwrap());
    let (content, lines) = lines(10);
    written(store, one, a_file("file-a"), &content);
    let batch = store.create_batch(a_batch("batch_a", "file-a")).unwrap();
    assert!(store.claim_job(one, batch.key).unwrap());
    store.add_lines(one, batch.key, lines[..7].to_vec()).unwrap();
    assert_eq!(claimed(store, two, &batch, 10), NONE, "none can be claimed before all were looked at");
    store.renew(two, at(16), LEASE).unwrap();
    assert!(store.claim_job(two, batch.key).unwrap());
    assert_eq!(store.start_batch(one, batch.key, "qwen", at(17)), Err(StoreError::LostClaim));
    store.clear_lines(two, batch.key).unwrap();
    store.add_lines(two, batch.key, lines[..5].to_vec()).unwrap();
    store.add_lines(two, batch.key, lines[5..].to_vec()).unwrap();
    let twice = store.add_lines(two, batch.key, vec![lines[0].clone()]);
    assert!(matches!(twice, Err(StoreError::Failed(_))), "{twice:?}");
    let started = store.start_batch(two, batch.key, "qwen", at(18)).unwrap();
    assert_eq!((started.state, started.model.as_deref()), (BatchState::InProgress, Some("qwen")));
    assert_eq!(started.counts, LineCounts { total: 10, ..LineCounts::default() });
    assert_eq!(started.times.in_progress, Some(at(18)));
    assert_eq!(store.add_lines(two, batch.key, vec![]), Err(StoreError::LostClaim), "it is past validation");
    assert_eq!(store.clear_lines(two, batch.key), Err(StoreError::LostClaim));
    assert_eq!(claimed(store, two, &batch, 100).len(), 10);
}

pub(super) fn a_wrong_line_fails_the_batch(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let (content, lines) = lines(4);
    written(store, holder, a_file("file-a"), &content);
    let batch = store.create_batch(a_batch("batch_a", "file-a")).unwrap();
    assert!(store.claim_job(holder, batch.key).unwrap());
    store.add_lines(holder, batch.key, lines).unwrap();
    let errors = json!({"object": "list", "data": [{"line": 3, "code": "invalid_json_line"}]});
    let failed = store.fail_batch(holder, batch.key, errors.clone(), at(12)).unwrap();
    assert_eq!((failed.state, failed.errors.as_ref()), (BatchState::Failed, Some(&errors)));
    assert_eq!((failed.times.failed, failed.counts), (Some(at(12)), LineCounts::default()));
    assert_eq!(again(store, &batch), failed);
    assert_eq!(store.unfinished(batch.key, 0, 10).unwrap(), []);
    assert_eq!(store.open_batches().unwrap(), []);
    assert!(!store.claim_job(holder, batch.key).unwrap(), "it is terminal");
    assert_eq!(store.fail_batch(holder, batch.key, errors, at(13)), Err(StoreError::LostClaim));
    let cancelled = store.cancel_batch(Some("bank"), "batch_a", at(14));
    assert_eq!(cancelled, Err(StoreError::WrongState(BatchState::Failed)));
}

pub(super) fn a_batch_without_lines_is_complete_at_once(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 0);
    assert_eq!((batch.state, batch.seal), (BatchState::Finalizing, Some(Seal::Complete)));
    assert!(store.claim_job(holder, batch.key).unwrap());
    assert_eq!(store.close_batch(holder, batch.key, None, None, at(30)).unwrap().state, BatchState::Completed);
}

pub(super) fn a_batch_is_completed_with_its_last_result(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 3);
    assert_eq!(run(store, holder, &batch, 2), [Kept::Stored, Kept::Stored]);
    let half = again(store, &batch);
    assert_eq!((half.state, half.seal), (BatchState::InProgress, None));
    assert_eq!(half.counts, LineCounts { total: 3, completed: 2, failed: 0 });
    assert_eq!(half.usage, TokenUsage { input: 20, cached: 8, output: 10 });
    assert!(store.claim_job(holder, batch.key).unwrap());
    let early = store.close_batch(holder, batch.key, None, None, at(30));
    assert_eq!(early, Err(StoreError::LostClaim), "there is no seal");

    let last = claimed(store, holder, &batch, 10)[0];
    let failed = FinishedLine { failed: true, ..result(&batch, last) };
    assert_eq!(store.finish_lines(holder, vec![failed], at(50)).unwrap(), [Kept::Stored]);
    let sealed = again(store, &batch);
    assert_eq!((sealed.state, sealed.seal), (BatchState::Finalizing, Some(Seal::Complete)));
    assert_eq!(sealed.times.finalizing, Some(at(50)));
    assert_eq!(sealed.counts, LineCounts { total: 3, completed: 2, failed: 1 });

    let output_key = store.begin_file(holder, output("file-out")).unwrap();
    let errors_key = store.begin_file(holder, output("file-err")).unwrap();
    let closed = store.close_batch(holder, batch.key, Some(output_key), Some(errors_key), at(60)).unwrap();
    assert_eq!(closed.state, BatchState::Completed);
    assert_eq!((closed.times.completed, closed.counts), (Some(at(60)), sealed.counts));
    assert_eq!((closed.output_file.as_deref(), closed.error_file.as_deref()), (Some("file-out"), Some("file-err")));
    assert_eq!(store.file("bank", "file-out").unwrap().key, output_key);
    assert_eq!(again(store, &batch), closed);
    let twice = store.close_batch(holder, batch.key, None, None, at(70));
    assert_eq!(twice, Err(StoreError::LostClaim));
}

pub(super) fn a_cancelled_batch_counts_its_other_lines_as_failed(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 5);
    run(store, holder, &batch, 2);
    let on_their_way = claimed(store, holder, &batch, 1);
    let cancelling = store.cancel_batch(Some("bank"), "batch_a", at(40)).unwrap();
    assert_eq!((cancelling.state, cancelling.seal), (BatchState::Cancelling, Some(Seal::Cancelled)));
    assert_eq!(cancelling.times.cancelling, Some(at(40)));
    assert_eq!(store.cancel_batch(None, "batch_a", at(41)).unwrap(), cancelling, "it is asked for once");
    assert_eq!(claimed(store, holder, &batch, 5), NONE);
    assert_eq!(store.unfinished(batch.key, 0, 9).unwrap().len(), 3);
    assert!(store.claim_job(holder, batch.key).unwrap());
    let closed = store.close_batch(holder, batch.key, None, None, at(50)).unwrap();
    assert_eq!((closed.state, closed.times.cancelled), (BatchState::Cancelled, Some(at(50))));
    assert_eq!(closed.counts, LineCounts { total: 5, completed: 2, failed: 3 });
    let late = store.finish_lines(holder, vec![result(&batch, on_their_way[0])], at(51)).unwrap();
    assert_eq!(late, [Kept::TooLate]);
    assert_eq!(again(store, &batch), closed);
}

pub(super) fn a_batch_that_ends_while_it_is_validated_has_no_files_and_no_lines(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let (content, lines) = lines(3);
    written(store, holder, a_file("file-a"), &content);
    for (id, seal) in [("batch_a", Seal::Cancelled), ("batch_b", Seal::Expired)] {
        let batch = store.create_batch(a_batch(id, "file-a")).unwrap();
        assert!(store.claim_job(holder, batch.key).unwrap());
        store.add_lines(holder, batch.key, lines.clone()).unwrap();
        match seal {
            Seal::Cancelled => drop(store.cancel_batch(None, id, at(20)).unwrap()),
            _ => store.expire_batches(at(1_000)).unwrap(),
        }
        assert_eq!(again(store, &batch).seal, Some(seal));
        assert_eq!(store.add_lines(holder, batch.key, vec![]), Err(StoreError::LostClaim));
        assert_eq!(store.start_batch(holder, batch.key, "qwen", at(21)), Err(StoreError::LostClaim));
        assert_eq!(store.fail_batch(holder, batch.key, json!({}), at(21)), Err(StoreError::LostClaim));
        let file = store.begin_file(holder, output(&format!("file-{id}"))).unwrap();
        let closed = store.close_batch(holder, batch.key, Some(file), None, at(1_001)).unwrap();
        assert_eq!((closed.counts, closed.output_file.as_ref()), (LineCounts::default(), None));
        assert!(matches!(closed.state, BatchState::Cancelled | BatchState::Expired));
        assert_eq!(store.finish_file(file, None), Err(StoreError::LostClaim), "it was forgotten");
    }
}

pub(super) fn the_first_seal_counts(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let [complete, cancelled, expired] = ["a", "b", "c"].map(|name| running(store, holder, name, 1));
    run(store, holder, &complete, 1);
    store.cancel_batch(None, "batch_b", at(30)).unwrap();
    store.expire_batches(at(999)).unwrap();
    assert_eq!(again(store, &expired).seal, None, "its time is not over");
    store.expire_batches(at(1_000)).unwrap();
    let seal = |batch| again(store, batch).seal;
    assert_eq!(seal(&complete), Some(Seal::Complete));
    assert_eq!(seal(&cancelled), Some(Seal::Cancelled));
    assert_eq!(seal(&expired), Some(Seal::Expired));
    // It looks as before until its files are there, and an end that has begun is not begun anew.
    let ended = store.cancel_batch(None, "batch_c", at(1_001)).unwrap();
    assert_eq!((ended.state, ended.seal), (BatchState::InProgress, Some(Seal::Expired)));
    assert_eq!(claimed(store, holder, &expired, 1), NONE);
    assert!(store.claim_job(holder, expired.key).unwrap());
    let closed = store.close_batch(holder, expired.key, None, None, at(1_002)).unwrap();
    assert_eq!((closed.state, closed.times.expired), (BatchState::Expired, Some(at(1_002))));
    assert_eq!(closed.counts, LineCounts { total: 1, completed: 0, failed: 1 });
}

pub(super) fn a_batch_can_not_be_cancelled_once_it_is_complete(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 1);
    run(store, holder, &batch, 1);
    let cancel = || store.cancel_batch(Some("bank"), "batch_a", at(40));
    assert_eq!(cancel(), Err(StoreError::WrongState(BatchState::Finalizing)));
    assert!(store.claim_job(holder, batch.key).unwrap());
    store.close_batch(holder, batch.key, None, None, at(50)).unwrap();
    assert_eq!(cancel(), Err(StoreError::WrongState(BatchState::Completed)));
}

pub(super) fn a_batch_is_closed_by_its_job_with_its_own_files_or_not_at_all(store: &BatchStore) {
    let (one, two) = (store.register(at(0), LEASE).unwrap(), store.register(at(0), LEASE).unwrap());
    let batch = running(store, one, "a", 1);
    run(store, one, &batch, 1);
    let (mine, others) =
        (store.begin_file(one, output("file-1")).unwrap(), store.begin_file(two, output("file-2")).unwrap());
    let shown = written(store, one, output("file-3"), b"shown");
    let close = |holder, output, errors| store.close_batch(holder, batch.key, output, errors, at(50));
    assert_eq!(close(one, Some(mine), None), Err(StoreError::LostClaim), "it has not the job");
    assert!(store.claim_job(one, batch.key).unwrap());
    assert_eq!(close(two, Some(others), None), Err(StoreError::LostClaim));
    assert_eq!(close(one, Some(mine), Some(others)), Err(StoreError::LostClaim), "another's file");
    assert_eq!(close(one, Some(mine), Some(shown.key)), Err(StoreError::LostClaim), "a file that is finished");
    assert_eq!(close(one, Some(mine), Some(mine)), Err(StoreError::LostClaim), "one file for both");
    assert_eq!(again(store, &batch).state, BatchState::Finalizing);
    assert_eq!(store.file("bank", "file-1"), Err(StoreError::UnknownFile("file-1".into())), "nothing is half done");
    assert_eq!(close(one, Some(mine), None).unwrap().output_file.as_deref(), Some("file-1"));
}

pub(super) fn times_only_move_forward_though_the_clock_was_set_back(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 1);
    let line = claimed(store, holder, &batch, 1)[0];
    store.finish_lines(holder, vec![result(&batch, line)], at(5)).unwrap();
    assert_eq!(again(store, &batch).times.finalizing, Some(at(20)), "when it was in progress");
    assert!(store.claim_job(holder, batch.key).unwrap());
    let closed = store.close_batch(holder, batch.key, None, None, at(4)).unwrap();
    assert_eq!(closed.times.completed, Some(at(20)));
    running(store, holder, "b", 1);
    assert_eq!(store.cancel_batch(None, "batch_b", at(3)).unwrap().times.cancelling, Some(at(20)));
}
