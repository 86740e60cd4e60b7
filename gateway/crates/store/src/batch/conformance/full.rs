//! A disk without space.

use super::desk::{LEASE, NONE, a_file, again, at, claimed, output, result, running};
use crate::*;

/// No page can be added.
fn fill(store: &BatchStore) {
    limit(store, "(SELECT page_count FROM pragma_page_count)");
}

fn free(store: &BatchStore) {
    limit(store, "1000000");
}

fn limit(store: &BatchStore, pages: &'static str) {
    store
        .inspect(move |connection| {
            let pages: u32 = connection.query_row(&format!("SELECT {pages}"), [], |row| row.get(0))?;
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
        })
        .unwrap();
}

pub(super) fn a_full_disk_leaves_nothing_half_done_and_space_heals_it(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();

    let key = store.begin_file(holder, a_file("file-f")).unwrap();
    store.append_file(key, b"before".to_vec()).unwrap();
    fill(store);
    assert_eq!(store.append_file(key, vec![1; 300_000]), Err(StoreError::Full));
    assert_eq!(store.stored(None).unwrap().bytes, 6);
    free(store);
    store.append_file(key, b" and after".to_vec()).unwrap();
    store.finish_file(key, None).unwrap();
    assert_eq!(store.read_file(key, 0, 100).unwrap(), b"before and after");

    let batch = running(store, holder, "a", 3);
    let numbers = claimed(store, holder, &batch, 3);
    let large = |&number: &u32| FinishedLine { record: vec![b'x'; 50_000], ..result(&batch, number) };
    let results: Vec<_> = numbers.iter().map(large).collect();
    fill(store);
    assert_eq!(store.finish_lines(holder, results.clone(), at(30)), Err(StoreError::Full));
    assert_eq!(again(store, &batch), batch);
    assert_eq!(store.results(batch.key, Results::Completed, 0, 1 << 20).unwrap(), []);
    assert_eq!(claimed(store, holder, &batch, 3), NONE, "they are its own still");
    free(store);
    assert_eq!(store.finish_lines(holder, results, at(31)).unwrap(), [Kept::Stored; 3]);
    assert_eq!(again(store, &batch).state, BatchState::Finalizing);

    // The end of a batch makes its row longer. A row of just the right length then needs another page.
    let mut refused = 0;
    for length in (3_000..4_000).step_by(40) {
        let (id, out) = (format!("batch_{length}"), format!("file-out-{length}-{}", "x".repeat(60)));
        let metadata = serde_json::json!({"words": "w".repeat(length)});
        let new = NewBatch { id, metadata, ..super::desk::a_batch("", "file-a") };
        let batch = store.create_batch(new).unwrap();
        assert!(store.claim_job(holder, batch.key).unwrap());
        let batch = store.start_batch(holder, batch.key, "qwen", at(40)).unwrap();
        let file = store.begin_file(holder, output(&out)).unwrap();
        store.append_file(file, b"results".to_vec()).unwrap();
        fill(store);
        let mut closed = store.close_batch(holder, batch.key, Some(file), None, at(50));
        if closed == Err(StoreError::Full) {
            refused += 1;
            assert_eq!(again(store, &batch), batch);
            assert_eq!(store.file("bank", &out), Err(StoreError::UnknownFile(out.clone())));
            free(store);
            closed = store.close_batch(holder, batch.key, Some(file), None, at(51));
        }
        assert_eq!(closed.unwrap().output_file.as_deref(), Some(out.as_str()));
        assert_eq!(store.file("bank", &out).unwrap().bytes, 7);
        free(store);
    }
    assert!(refused > 0, "no row had that length");
}
