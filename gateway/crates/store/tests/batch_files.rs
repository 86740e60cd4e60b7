//! Opening the database of batches: kept over a restart, private, foreign, damaged, newer, shared, gone.

#![expect(clippy::unwrap_used, reason = "this is a test")]

use std::{fs, path::Path, time::Duration};

use store::{BatchStore, FileRecord, Holder, NewFile, Purpose, Store, StoreError, UnixMillis};

const LEASE: Duration = Duration::from_secs(15);

fn register(store: &BatchStore) -> Holder {
    store.register(UnixMillis(1), LEASE).unwrap()
}

fn begin(id: &str) -> NewFile {
    let (id, filename) = (id.into(), "requests.jsonl".into());
    NewFile { id, tenant: "bank".into(), purpose: Purpose::Batch, filename, created: UnixMillis(1), expires: None }
}

fn write(store: &BatchStore, id: &str, content: Vec<u8>) -> Result<FileRecord, StoreError> {
    let key = store.begin_file(register(store), begin(id))?;
    store.append_file(key, content)?;
    store.finish_file(key, None)
}

fn pragma(path: &Path, name: &str) -> i64 {
    rusqlite::Connection::open(path).unwrap().pragma_query_value(None, name, |row| row.get(0)).unwrap()
}

#[test]
fn a_restart_loses_nothing_but_what_was_half_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("batches.db");
    let content: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (whole, half, holder) = {
        let store = BatchStore::open(&path).unwrap();
        let whole = write(&store, "file-a", content.clone()).unwrap();
        let holder = register(&store);
        let half = store.begin_file(holder, begin("file-b")).unwrap();
        store.append_file(half, vec![1; 10]).unwrap();
        (whole, half, holder)
    };
    let store = BatchStore::open(&path).unwrap();
    assert_eq!(store.file("bank", "file-a").unwrap(), whole);
    assert_eq!(store.read_file(whole.key, 0, usize::MAX).unwrap(), content);
    // The holder may be alive: this may be a second process. So its file is its own until its lease is over.
    store.append_file(half, vec![2; 10]).unwrap();
    assert!(store.register(UnixMillis(16_000), LEASE).unwrap().0 > holder.0);
    assert_eq!(store.append_file(half, vec![3; 10]), Err(StoreError::LostClaim));
    assert_eq!(store.stored(None).unwrap().bytes, whole.bytes);
}

#[test]
fn the_file_gets_shorter_when_its_content_goes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("batches.db");
    {
        let store = BatchStore::open(&path).unwrap();
        write(&store, "file-a", vec![7; 20 << 20]).unwrap();
    }
    let full = fs::metadata(&path).unwrap().len();
    assert!(full > 20 << 20);
    {
        // Opened anew: what was set when the file was made still holds.
        let store = BatchStore::open(&path).unwrap();
        store.delete_file("bank", "file-a").unwrap();
        while store.sweep(UnixMillis(2), LEASE).unwrap() {}
    }
    assert_eq!(pragma(&path, "auto_vacuum"), 2);
    let left = fs::metadata(&path).unwrap().len();
    assert!(left < 1 << 20, "{left} of {full} bytes are left");
}

#[cfg(unix)]
#[test]
fn the_file_and_its_log_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let store = BatchStore::open(&directory.path().join("batches.db")).unwrap();
    write(&store, "file-a", vec![1]).unwrap();
    let entries = fs::read_dir(directory.path()).unwrap();
    let modes: Vec<u32> =
        entries.map(|entry| entry.unwrap().metadata().unwrap().permissions().mode() & 0o777).collect();
    assert!(modes.len() >= 2 && modes.iter().all(|mode| *mode == 0o600), "{modes:?}");
}

#[test]
fn the_two_databases_are_not_taken_for_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let (state, batches) = (directory.path().join("store.db"), directory.path().join("batches.db"));
    drop((Store::open(&state).unwrap(), BatchStore::open(&batches).unwrap()));
    let before = (fs::read(&state).unwrap(), fs::read(&batches).unwrap());
    assert_eq!(BatchStore::open(&state).unwrap_err(), StoreError::Foreign(state.clone()));
    assert_eq!(Store::open(&batches).unwrap_err(), StoreError::Foreign(batches.clone()));
    assert_eq!((fs::read(&state).unwrap(), fs::read(&batches).unwrap()), before, "a refused file stays as it is");
}

#[test]
fn a_file_of_a_newer_program_is_refused_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("batches.db");
    drop(BatchStore::open(&path).unwrap());
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 4711).unwrap();
    assert!(matches!(BatchStore::open(&path), Err(StoreError::Newer { found: 4711, .. })));
}

#[test]
fn a_file_cut_short_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("batches.db");
    write(&BatchStore::open(&path).unwrap(), "file-a", vec![1; 1 << 20]).unwrap();
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(BatchStore::open(&path), Err(StoreError::Corrupt(_))));
}

#[test]
fn damage_to_the_table_of_files_is_found_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("batches.db");
    {
        let store = BatchStore::open(&path).unwrap();
        for n in 0..200 {
            write(&store, &format!("file-{n}"), vec![1]).unwrap();
        }
    }
    let root: usize = {
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.query_row("SELECT rootpage FROM sqlite_master WHERE name = 'files'", [], |row| row.get(0)).unwrap()
    };
    let mut bytes = fs::read(&path).unwrap();
    bytes[(root - 1) * 4_096..root * 4_096].fill(0x5A);
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(BatchStore::open(&path), Err(StoreError::Corrupt(_))));
}

#[test]
fn two_gateways_share_one_file_and_see_each_others_work() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("batches.db");
    let (one, two) = (BatchStore::open(&path).unwrap(), BatchStore::open(&path).unwrap());
    std::thread::scope(|scope| {
        for (name, store) in [("one", &one), ("two", &two)] {
            scope.spawn(move || {
                for n in 0..50 {
                    write(store, &format!("file-{name}-{n}"), vec![n; 100]).unwrap();
                }
            });
        }
    });
    assert_eq!(one.stored(None).unwrap(), two.stored(None).unwrap());
    assert_eq!(one.stored(None).unwrap().files, 100);
    let file = two.file("bank", "file-one-49").unwrap();
    assert_eq!(two.read_file(file.key, 0, 1_000).unwrap(), vec![49; 100]);
}

#[cfg(unix)]
#[test]
fn nothing_is_acknowledged_into_a_file_that_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let (path, away) = (directory.path().join("batches.db"), directory.path().join("away.db"));
    let store = BatchStore::open(&path).unwrap();
    let holder = register(&store);
    fs::rename(&path, &away).unwrap();
    assert_eq!(store.begin_file(holder, begin("file-a")), Err(StoreError::Gone(path.clone())));
    fs::rename(&away, &path).unwrap();
    assert!(store.begin_file(holder, begin("file-a")).is_ok());
}
