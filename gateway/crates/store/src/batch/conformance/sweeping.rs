//! Cleaning up.

use std::time::Duration;

use super::desk::{LEASE, a_file, again, at, output, run, running, written};
use crate::*;

const KEEP: Duration = Duration::from_secs(100);

/// Sweeps until there is nothing more to do; how many calls that took.
fn sweep(store: &BatchStore, second: u64) -> u32 {
    let mut calls = 1;
    while store.sweep(at(second), KEEP).unwrap() {
        calls += 1;
        assert!(calls < 10_000, "it comes to an end");
    }
    calls
}

fn rows(store: &BatchStore, table: &'static str) -> u64 {
    store
        .inspect(move |connection| connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)))
        .unwrap()
}

fn pages(store: &BatchStore) -> (u64, u64) {
    store
        .inspect(|connection| {
            let get = |name| connection.pragma_query_value(None, name, |row| row.get(0));
            Ok((get("page_count")?, get("freelist_count")?))
        })
        .unwrap()
}

pub(super) fn files_whose_time_is_over_go(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    for (id, expires) in [("file-a", Some(at(50))), ("file-b", Some(at(51))), ("file-c", None)] {
        written(store, holder, NewFile { expires, ..a_file(id) }, b"content");
    }
    // One that is being written has its time yet to come.
    store.begin_file(holder, NewFile { expires: Some(at(1)), ..a_file("file-d") }).unwrap();
    sweep(store, 49);
    assert_eq!(store.stored(None).unwrap().files, 3);
    sweep(store, 50);
    assert_eq!(store.file("bank", "file-a"), Err(StoreError::UnknownFile("file-a".into())));
    assert!(store.file("bank", "file-b").is_ok() && store.file("bank", "file-c").is_ok());
    assert_eq!((rows(store, "files"), rows(store, "pieces")), (3, 2));
}

pub(super) fn content_goes_when_no_batch_needs_it(store: &BatchStore) {
    let (one, two) = (store.register(at(0), LEASE).unwrap(), store.register(at(0), LEASE).unwrap());
    let batch = running(store, one, "a", 3);
    store.delete_file("bank", "file-a").unwrap();
    let unfinished = store.begin_file(one, output("file-u")).unwrap();
    store.append_file(unfinished, vec![1; 200_000]).unwrap();
    sweep(store, 1);
    assert_eq!(rows(store, "pieces"), 1 + 4, "a batch needs the one, somebody writes the other");
    // Its writer is gone.
    store.resign(one).unwrap();
    sweep(store, 1);
    assert_eq!(rows(store, "pieces"), 1);
    store.cancel_batch(None, "batch_a", at(30)).unwrap();
    sweep(store, 30);
    assert_eq!(rows(store, "pieces"), 1, "it may be validated, and is not terminal");
    assert!(store.claim_job(two, batch.key).unwrap());
    store.close_batch(two, batch.key, None, None, at(31)).unwrap();
    sweep(store, 31);
    assert_eq!((rows(store, "pieces"), rows(store, "files")), (0, 0));
}

pub(super) fn lines_and_results_go_with_the_end_of_a_batch_and_the_batch_later(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let batch = running(store, holder, "a", 20);
    let open = running(store, holder, "b", 5);
    run(store, holder, &open, 2);
    assert_eq!(run(store, holder, &batch, 20).len(), 20);
    sweep(store, 40);
    assert_eq!((rows(store, "lines"), rows(store, "results")), (25, 22), "neither is terminal");
    assert!(store.claim_job(holder, batch.key).unwrap());
    let file = store.begin_file(holder, output("file-out")).unwrap();
    store.append_file(file, b"results".to_vec()).unwrap();
    let closed = store.close_batch(holder, batch.key, Some(file), None, at(50)).unwrap();
    sweep(store, 50);
    assert_eq!((rows(store, "lines"), rows(store, "results")), (5, 2));
    assert_eq!(again(store, &batch), closed, "it is listed on");
    sweep(store, 149);
    assert_eq!(again(store, &batch), closed);
    sweep(store, 150);
    assert_eq!(store.batch(None, "batch_a"), Err(StoreError::UnknownBatch("batch_a".into())));
    assert_eq!(store.read_file(file, 0, 100).unwrap(), b"results", "its files have a time of their own");
    sweep(store, 1_000_000);
    assert_eq!(store.open_batches().unwrap(), [again(store, &open)], "an open one stays");
}

pub(super) fn one_call_does_a_bounded_part(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let key = store.begin_file(holder, a_file("file-a")).unwrap();
    for _ in 0..40 {
        store.append_file(key, vec![7; 1 << 20]).unwrap();
    }
    store.finish_file(key, None).unwrap();
    let batch = running(store, holder, "b", 3_500);
    store.cancel_batch(None, "batch_b", at(30)).unwrap();
    assert!(store.claim_job(holder, batch.key).unwrap());
    store.close_batch(holder, batch.key, None, None, at(31)).unwrap();
    let (full, _) = pages(store);
    assert!(full > 10_000, "40 MiB in pages of 4 KiB");
    store.delete_file("bank", "file-a").unwrap();
    assert!(store.sweep(at(40), KEEP).unwrap());
    assert!(rows(store, "pieces") > 400 && rows(store, "lines") > 2_000, "some of it");
    assert!(pages(store).0 > 8_000, "some pages");
    let calls = sweep(store, 40);
    assert!(calls > 8, "{calls}");
    assert_eq!((rows(store, "pieces"), rows(store, "lines")), (4, 0), "the input of the batch is a file like others");
    let (left, free) = pages(store);
    assert_eq!(free, 0);
    assert!(left < 200, "the space is given back: {left} of {full} pages");
}
