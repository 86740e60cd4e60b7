//! Files.

use super::desk::{LEASE, a_batch, a_file, at, lines, output, page, written};
use crate::{batch::file::PIECE, *};

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect()
}

pub(super) fn a_file_is_seen_when_it_is_finished_and_reads_as_it_was_written(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let new = NewFile { expires: Some(at(9)), ..a_file("file-a") };
    let key = store.begin_file(holder, new.clone()).unwrap();
    let all = content(3 * PIECE + 17);
    store.append_file(key, all.clone()).unwrap();
    let unknown = || StoreError::UnknownFile("file-a".into());
    assert_eq!(store.file("bank", "file-a"), Err(unknown()));
    assert_eq!(store.delete_file("bank", "file-a"), Err(unknown()));
    assert!(matches!(store.read_file(key, 0, 1), Err(StoreError::UnknownFile(_))));
    assert_eq!(store.files("bank", None, page(None, 10, false)).unwrap().entries, []);

    let record = store.finish_file(key, None).unwrap();
    let NewFile { id, tenant, purpose, filename, created, expires } = new;
    let bytes = all.len() as u64;
    assert_eq!(record, FileRecord { key, id, tenant, purpose, filename, bytes, created, expires });
    assert_eq!(store.file("bank", "file-a").unwrap(), record);
    assert_eq!(store.files("bank", None, page(None, 10, false)).unwrap().entries, [record]);
    for (offset, length) in
        [(0, all.len()), (0, 0), (0, 1), (PIECE - 1, 2), (PIECE, PIECE), (5, 2 * PIECE), (all.len() - 1, 100)]
    {
        let part = store.read_file(key, offset as u64, length).unwrap();
        assert_eq!(part, all[offset..(offset + length).min(all.len())], "{length} at {offset}");
    }
    assert_eq!(store.read_file(key, bytes, 10).unwrap(), b"");
    assert_eq!(store.read_file(key, u64::MAX, 10).unwrap(), b"");
    assert_eq!(store.append_file(key, vec![1]), Err(StoreError::LostClaim));
    assert_eq!(store.finish_file(key, None), Err(StoreError::LostClaim));
    assert_eq!(store.read_file(key, 0, usize::MAX).unwrap(), all);
}

pub(super) fn a_file_may_be_written_in_pieces_of_any_length(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let key = store.begin_file(holder, a_file("file-a")).unwrap();
    let all = content(5 * PIECE);
    let mut rest = all.as_slice();
    for length in [1, 0, PIECE - 1, PIECE, 10, PIECE, 2 * PIECE - 11, 500] {
        let (part, behind) = rest.split_at(length.min(rest.len()));
        store.append_file(key, part.to_vec()).unwrap();
        rest = behind;
    }
    let record = store.finish_file(key, None).unwrap();
    let length = all.len() - rest.len();
    assert_eq!(record.bytes, length as u64);
    assert_eq!(store.read_file(key, 0, usize::MAX).unwrap(), all[..length]);
    let empty = store.begin_file(holder, a_file("file-b")).unwrap();
    assert_eq!(store.finish_file(empty, None).unwrap().bytes, 0);
    assert_eq!(store.read_file(empty, 0, 10).unwrap(), b"");
}

pub(super) fn an_unfinished_file_may_be_forgotten_and_a_finished_one_not(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let key = store.begin_file(holder, a_file("file-a")).unwrap();
    store.append_file(key, content(100)).unwrap();
    store.abandon_file(key).unwrap();
    store.abandon_file(key).unwrap();
    assert_eq!(store.append_file(key, vec![1]), Err(StoreError::LostClaim));
    assert_eq!(store.finish_file(key, None), Err(StoreError::LostClaim));
    let kept = written(store, holder, a_file("file-b"), b"kept");
    store.abandon_file(kept.key).unwrap();
    assert_eq!(store.read_file(kept.key, 0, 10).unwrap(), b"kept");
    store.resign(holder).unwrap();
    assert_eq!(store.begin_file(holder, a_file("file-c")), Err(StoreError::LostClaim));
}

pub(super) fn what_expires_may_be_said_at_the_end(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let said = |id: &str, first, last| {
        let key = store.begin_file(holder, NewFile { expires: first, ..a_file(id) }).unwrap();
        let record = store.finish_file(key, last).unwrap();
        assert_eq!(store.file("bank", id).unwrap(), record);
        record.expires
    };
    assert_eq!(said("file-a", None, Some(at(7))), Some(at(7)));
    assert_eq!(said("file-b", Some(at(6)), Some(at(7))), Some(at(7)));
    assert_eq!(said("file-c", Some(at(6)), None), Some(at(6)));
}

/// Ids of all pages of that length.
fn walk(store: &BatchStore, purpose: Option<Purpose>, limit: usize, ascending: bool) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    loop {
        let wanted = page(ids.last().map(String::as_str), limit, ascending);
        let got = store.files("bank", purpose, wanted).unwrap();
        assert!(got.entries.len() == limit || !got.more, "only the last page is short");
        ids.extend(got.entries.into_iter().map(|file| file.id));
        if !got.more {
            return ids;
        }
    }
}

pub(super) fn files_are_listed_in_pages_both_ways(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    for n in 0..10 {
        let new = if n % 5 == 0 { output(&format!("file-{n}")) } else { a_file(&format!("file-{n}")) };
        written(store, holder, new, b"x");
    }
    let ids = |numbers: &[u32]| numbers.iter().map(|n| format!("file-{n}")).collect::<Vec<_>>();
    for limit in [1, 3, 5, 10, 11] {
        assert_eq!(walk(store, None, limit, false), ids(&[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]), "by {limit}");
        assert_eq!(walk(store, None, limit, true), ids(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), "by {limit}");
        assert_eq!(walk(store, Some(Purpose::BatchOutput), limit, false), ids(&[5, 0]), "by {limit}");
    }
    let unknown = store.files("bank", None, page(Some("file-none"), 3, false));
    assert_eq!(unknown, Err(StoreError::UnknownFile("file-none".into())));
}

pub(super) fn a_list_goes_on_behind_a_file_that_was_deleted_since(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    for n in 0..4 {
        written(store, holder, a_file(&format!("file-{n}")), b"x");
    }
    let first = store.files("bank", None, page(None, 2, false)).unwrap();
    let last = &first.entries[1];
    store.delete_file("bank", &last.id).unwrap();
    let rest = store.files("bank", None, page(Some(&last.id), 2, false)).unwrap();
    assert_eq!(rest.entries.iter().map(|file| file.id.as_str()).collect::<Vec<_>>(), ["file-1", "file-0"]);
}

pub(super) fn nobody_sees_the_files_of_another_tenant(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let theirs = written(store, holder, a_file("file-a"), b"secret");
    let unknown = || StoreError::UnknownFile("file-a".into());
    assert_eq!(store.file("shop", "file-a"), Err(unknown()));
    assert_eq!(store.delete_file("shop", "file-a"), Err(unknown()));
    assert_eq!(store.files("shop", None, page(None, 10, false)).unwrap().entries, []);
    assert_eq!(store.files("shop", None, page(Some("file-a"), 10, false)), Err(unknown()));
    assert_eq!(store.stored(Some("shop")).unwrap(), Stored::default());
    assert_eq!(store.file("bank", "file-a").unwrap(), theirs);
}

pub(super) fn it_is_told_how_much_there_is(store: &BatchStore) {
    let holder = store.register(at(0), LEASE).unwrap();
    let (input, _) = lines(3);
    let length = input.len() as u64;
    written(store, holder, a_file("file-a"), &input);
    written(store, holder, NewFile { tenant: "shop".into(), ..a_file("file-b") }, b"12345");
    let key = store.begin_file(holder, a_file("file-c")).unwrap();
    store.append_file(key, vec![0; 100]).unwrap();
    store.create_batch(a_batch("batch_a", "file-a")).unwrap();
    let bank = || store.stored(Some("bank")).unwrap();
    assert_eq!(bank(), Stored { bytes: length + 100, files: 1, open_batches: 1 });
    assert_eq!(store.stored(None).unwrap(), Stored { bytes: length + 105, files: 2, open_batches: 1 });
    store.abandon_file(key).unwrap();
    assert_eq!(bank(), Stored { bytes: length, files: 1, open_batches: 1 });
    store.delete_file("bank", "file-a").unwrap();
    assert_eq!(bank(), Stored { bytes: length, files: 0, open_batches: 1 }, "a batch needs it");
    let batch = store.cancel_batch(None, "batch_a", at(11)).unwrap();
    assert!(store.claim_job(holder, batch.key).unwrap());
    store.close_batch(holder, batch.key, None, None, at(12)).unwrap();
    assert_eq!(bank(), Stored::default());
}
