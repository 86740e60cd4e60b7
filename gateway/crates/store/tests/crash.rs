//! Killed at any moment, the store keeps every change that it acknowledged.

#![expect(clippy::unwrap_used, reason = "this is a test")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use store::{By, NewReplica, ReplicaSource, StatedFields, Store, UnixMillis};

/// Set for the child; says which file it writes.
const CHILD: &str = "STORE_CRASH_TEST_FILE";
const THREADS: usize = 4;

fn by() -> By {
    By { at: UnixMillis(1), who: "child".into() }
}

/// In the child: several threads add replicas as fast as they can and print each one once it is acknowledged.
fn write_until_killed(path: &Path) {
    let store = Store::open(path).unwrap();
    let start = store.replicas().unwrap().len();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = store.clone();
            scope.spawn(move || {
                for n in start.. {
                    let url = format!("https://{thread}-{n}.acu.run");
                    let stated = StatedFields::default();
                    let source = ReplicaSource::Admin;
                    let new = NewReplica {
                        url: url.clone(),
                        name: "phone".into(),
                        stated,
                        api_key: None,
                        source,
                        origin: None,
                    };
                    store.put_replica(by(), new).unwrap();
                    // One write: a line is there whole, or not at all.
                    std::io::stdout().lock().write_all(format!("done {url}\n").as_bytes()).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_killed_process_loses_no_acknowledged_change() {
    if let Some(path) = std::env::var_os(CHILD) {
        return write_until_killed(&PathBuf::from(path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let mut acknowledged = Vec::new();
    // Each round is killed after another number of changes, so that it strikes at different moments.
    for changes in [1, 17, 40, 73, 101] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["a_killed_process_loses_no_acknowledged_change", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        while seen < changes {
            let line = lines.next().expect("the child writes until it is killed").unwrap();
            seen += usize::from(note(&line, &mut acknowledged));
        }
        child.kill().unwrap();
        // What it said before it died counts as well.
        while let Some(Ok(line)) = lines.next() {
            note(&line, &mut acknowledged);
        }
        child.wait().unwrap();

        let store = Store::open(&path).unwrap();
        let kept: Vec<String> = store.replicas().unwrap().into_iter().map(|replica| replica.url).collect();
        for url in &acknowledged {
            assert!(kept.contains(url), "{url} was acknowledged and is gone");
        }
        // A change is there with its audit row, or neither is. What was not acknowledged may be either.
        assert!(kept.len() <= acknowledged.len() + 5 * THREADS, "{} kept, {} said", kept.len(), acknowledged.len());
        let mut trail = Vec::new();
        while let Some(page) = Some(store.audit(trail.last().copied(), 1_000).unwrap()).filter(|page| !page.is_empty())
        {
            trail.extend(page.iter().map(|record| record.id));
        }
        assert_eq!(trail.len(), kept.len());
    }
}

/// Takes the address out of a whole line. The test harness's own words may come before it.
fn note(line: &str, acknowledged: &mut Vec<String>) -> bool {
    let Some((_, url)) = line.split_once("done ").filter(|(_, url)| url.ends_with(".acu.run")) else { return false };
    acknowledged.push(url.to_owned());
    true
}
