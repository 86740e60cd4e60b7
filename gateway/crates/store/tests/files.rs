//! Opening files: new, kept, foreign, damaged, newer, shared.

#![expect(clippy::unwrap_used, reason = "this is a test")]

use std::{fs, path::Path};

use store::{By, NewReplica, Put, ReplicaSource, StatedFields, Store, StoreError, UnixMillis};

fn by() -> By {
    By { at: UnixMillis(1), who: "tester".into() }
}

fn phone(url: &str) -> NewReplica {
    NewReplica {
        url: url.into(),
        name: "phone".into(),
        stated: StatedFields::default(),
        api_key: None,
        source: ReplicaSource::Admin,
        origin: None,
    }
}

fn refused(path: &Path) -> StoreError {
    let before = fs::read(path).unwrap();
    let error = Store::open(path).expect_err("must be refused");
    assert_eq!(fs::read(path).unwrap(), before, "a refused file stays as it is");
    error
}

#[test]
fn a_restart_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let (replica, pepper) = {
        let store = Store::open(&path).unwrap();
        (store.put_replica(by(), phone("https://a.acu.run")).unwrap(), store.pepper(by(), [7; 32]).unwrap())
    };
    let store = Store::open(&path).unwrap();
    assert_eq!(store.put_replica(by(), phone("https://a.acu.run")).unwrap(), Put::Unchanged(replica.into_inner()));
    assert_eq!(store.pepper(by(), [8; 32]).unwrap(), pepper);
    assert_eq!(store.audit(None, 10).unwrap().len(), 2);
}

#[cfg(unix)]
#[test]
fn the_file_and_its_log_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("store.db")).unwrap();
    store.put_replica(by(), phone("https://a.acu.run")).unwrap();
    let modes: Vec<u32> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().permissions().mode() & 0o777)
        .collect();
    assert!(modes.len() >= 2 && modes.iter().all(|mode| *mode == 0o600), "{modes:?}");
}

#[test]
fn a_file_of_another_program_is_refused_and_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("notes.txt");
    fs::write(&text, "These are my notes. ".repeat(100)).unwrap();
    assert_eq!(refused(&text), StoreError::Foreign(text.clone()));
    let other = directory.path().join("other.db");
    rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert_eq!(refused(&other), StoreError::Foreign(other.clone()));
}

#[test]
fn a_file_of_a_newer_program_is_refused_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    drop(Store::open(&path).unwrap());
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 4711).unwrap();
    assert!(matches!(refused(&path), StoreError::Newer { found: 4711, .. }));
}

#[test]
fn a_damaged_file_is_refused_with_a_way_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    {
        let store = Store::open(&path).unwrap();
        for n in 0..200 {
            store.put_replica(by(), phone(&format!("https://{n}.acu.run"))).unwrap();
        }
    }
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..middle + 8192] {
        *byte = 0x5A;
    }
    fs::write(&path, &bytes).unwrap();
    let error = Store::open(&path).expect_err("must be refused");
    assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
    assert!(error.to_string().contains("restore it from a backup"), "{error}");
}

#[test]
fn a_file_cut_short_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    drop(Store::open(&path).unwrap());
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 4096]).unwrap();
    assert!(matches!(Store::open(&path), Err(StoreError::Corrupt(_))));
}

#[test]
fn a_place_that_cannot_hold_a_file_says_why() {
    let error = Store::open(Path::new("/no/such/directory/store.db")).unwrap_err();
    assert!(error.to_string().contains("/no/such/directory/store.db"), "{error}");
    assert!(matches!(error, StoreError::Unopened { .. }));
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(Store::open(directory.path()), Err(StoreError::Unopened { .. })));
}

#[test]
fn two_gateways_during_an_upgrade_share_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let (old, new) = (Store::open(&path).unwrap(), Store::open(&path).unwrap());
    std::thread::scope(|scope| {
        for (name, store) in [("old", &old), ("new", &new)] {
            scope.spawn(move || {
                for n in 0..50 {
                    store.put_replica(by(), phone(&format!("https://{name}-{n}.acu.run"))).unwrap();
                }
            });
        }
    });
    assert_eq!(old.replicas().unwrap().len(), 100);
    assert_eq!(old.replicas().unwrap(), new.replicas().unwrap());
}

#[cfg(unix)]
#[test]
fn nothing_is_acknowledged_into_a_file_that_is_gone_and_it_may_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let (path, away) = (directory.path().join("store.db"), directory.path().join("away.db"));
    let store = Store::open(&path).unwrap();
    store.put_replica(by(), phone("https://a.acu.run")).unwrap();
    fs::rename(&path, &away).unwrap();
    assert_eq!(store.put_replica(by(), phone("https://b.acu.run")), Err(StoreError::Gone(path.clone())));
    fs::write(&path, "another file").unwrap();
    assert_eq!(store.put_replica(by(), phone("https://b.acu.run")), Err(StoreError::Gone(path.clone())));
    fs::rename(&away, &path).unwrap();
    assert!(store.put_replica(by(), phone("https://b.acu.run")).is_ok());
}
