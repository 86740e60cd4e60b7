//! Killed at any moment, the store keeps every result that it acknowledged, and no line with a result is run again.

#![expect(clippy::unwrap_used, reason = "this is a test")]

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use store::{
    BatchKey, BatchState, BatchStore, FinishedLine, Holder, Kept, NewBatch, NewFile, NewLine, Purpose, Results, Seal,
    TokenUsage, UnixMillis,
};

/// Set for the child; says which file it writes.
const CHILD: &str = "STORE_BATCH_CRASH_TEST_FILE";
/// Set for the child; its clock. Each comes long after the lease of the one before.
const CLOCK: &str = "STORE_BATCH_CRASH_TEST_CLOCK";
const LEASE: Duration = Duration::from_secs(15);
const LINES: u32 = 20_000;
const GROUP: usize = 7;

fn text(number: u32) -> String {
    format!("line {number:05}\n")
}

fn make_batch(store: &BatchStore) -> BatchKey {
    let now = UnixMillis(1);
    let holder = store.register(now, LEASE).unwrap();
    let (id, tenant, filename) = ("file-a".to_owned(), "bank".to_owned(), "requests.jsonl".into());
    let new = NewFile {
        id: id.clone(),
        tenant: tenant.clone(),
        purpose: Purpose::Batch,
        filename,
        created: now,
        expires: None,
    };
    let file = store.begin_file(holder, new).unwrap();
    store.append_file(file, (0..LINES).flat_map(|n| text(n + 1).into_bytes()).collect()).unwrap();
    store.finish_file(file, None).unwrap();
    let new = NewBatch {
        id: "batch_a".into(),
        tenant,
        input_file: id,
        endpoint: "/v1/chat/completions".into(),
        completion_window: "24h".into(),
        metadata: Value::Null,
        permissions: Value::Null,
        output_expires_after: None,
        created: now,
        expires: UnixMillis(u64::MAX >> 1),
        max_open: u32::MAX,
        idempotency_key: None,
        again_since: None,
    };
    let batch = store.create_batch(new).unwrap().key;
    assert!(store.claim_job(holder, batch).unwrap());
    let length = text(1).len() as u64;
    let line = |number| NewLine {
        number,
        custom_id: number.to_string(),
        affinity: i64::from(number % 3),
        offset: u64::from(number - 1) * length,
        length: u32::try_from(length).unwrap() - 1,
    };
    store.add_lines(holder, batch, (1..=LINES).map(line).collect()).unwrap();
    store.start_batch(holder, batch, "qwen", now).unwrap();
    batch
}

fn claim(store: &BatchStore, holder: Holder, batch: BatchKey, limit: usize) -> Vec<FinishedLine> {
    let lines = store.claim_lines(holder, batch, limit, usize::MAX).unwrap();
    let result = |line: store::ClaimedLine| {
        assert_eq!(line.text, text(line.number).trim_end().as_bytes());
        let record = line.text;
        FinishedLine {
            batch,
            number: line.number,
            failed: line.number.is_multiple_of(5),
            record,
            usage: TokenUsage::default(),
        }
    };
    lines.into_iter().map(result).collect()
}

/// In the child: two threads run lines as fast as they can and print each one before its result is stored, and after.
fn run_until_killed(path: &Path) {
    let now = UnixMillis(std::env::var(CLOCK).unwrap().parse().unwrap());
    let store = BatchStore::open(path).unwrap();
    let batch = store.open_batches().unwrap()[0].key;
    let holder = store.register(now, LEASE).unwrap();
    // One write: a line is there whole, or not at all.
    let say = |word: &str, lines: &[FinishedLine]| {
        let said: String = lines.iter().map(|line| format!("{word} {}.\n", line.number)).collect();
        std::io::stdout().lock().write_all(said.as_bytes()).unwrap();
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let lines = claim(&store, holder, batch, GROUP);
                    say("begun", &lines);
                    let kept = store.finish_lines(holder, lines.clone(), now).unwrap();
                    assert!(kept.iter().all(|kept| *kept == Kept::Stored));
                    say("done", &lines);
                }
            });
        }
    });
}

#[test]
fn no_acknowledged_result_is_lost_and_none_is_run_again() {
    if let Some(path) = std::env::var_os(CHILD) {
        return run_until_killed(&PathBuf::from(path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("batches.db");
    let batch = make_batch(&BatchStore::open(&path).unwrap());
    let mut acknowledged = BTreeSet::new();
    // Each round is killed after another number of results, so that it strikes at different moments.
    for (round, results) in (1..).zip([1, 17, 140, 73, 301]) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "no_acknowledged_result_is_lost_and_none_is_run_again",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(CHILD, &path)
            .env(CLOCK, (round * 100_000).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let before = acknowledged.clone();
        let mut seen = 0;
        while seen < results {
            let line = lines.next().expect("the child runs lines until it is killed").unwrap();
            seen += usize::from(note(&line, &before, &mut acknowledged));
        }
        child.kill().unwrap();
        // What it said before it died counts as well.
        while let Some(Ok(line)) = lines.next() {
            note(&line, &before, &mut acknowledged);
        }
        child.wait().unwrap();

        let store = BatchStore::open(&path).unwrap();
        let record = store.batch(None, "batch_a").unwrap();
        let stored =
            [Results::Completed, Results::Failed].map(|which| store.results(batch, which, 0, usize::MAX).unwrap());
        assert_eq!(
            (record.counts.completed as usize, record.counts.failed as usize),
            (stored[0].len(), stored[1].len())
        );
        let stored: BTreeSet<u32> = stored.into_iter().flatten().map(|(number, _)| number).collect();
        assert!(acknowledged.is_subset(&stored), "a result was acknowledged and is gone");
        assert!(stored.len() <= acknowledged.len() + 2 * round as usize * GROUP, "more results than were begun");
    }

    // The rest is run to the end: each line exactly once.
    let store = BatchStore::open(&path).unwrap();
    let mut done: BTreeSet<u32> = [Results::Completed, Results::Failed]
        .into_iter()
        .flat_map(|which| store.results(batch, which, 0, usize::MAX).unwrap())
        .map(|(number, _)| number)
        .collect();
    let holder = store.register(UnixMillis(1_000_000), LEASE).unwrap();
    loop {
        let lines = claim(&store, holder, batch, 1_000);
        if lines.is_empty() {
            break;
        }
        for line in &lines {
            assert!(done.insert(line.number), "line {} has a result and was claimed", line.number);
        }
        store.finish_lines(holder, lines, UnixMillis(1_000_000)).unwrap();
    }
    let record = store.batch(None, "batch_a").unwrap();
    assert_eq!((record.state, record.seal), (BatchState::Finalizing, Some(Seal::Complete)));
    assert_eq!((record.counts.total, record.counts.failed), (LINES, LINES / 5));
    assert_eq!(done.len(), LINES as usize);
}

/// Takes the number out of a whole line; whether a result was acknowledged. The test harness's own words may come before it.
fn note(line: &str, before: &BTreeSet<u32>, acknowledged: &mut BTreeSet<u32>) -> bool {
    let number = |word: &str| line.split_once(word)?.1.strip_suffix('.')?.parse::<u32>().ok();
    if let Some(number) = number("begun ") {
        assert!(!before.contains(&number), "line {number} has a result and was begun again");
    }
    number("done ").is_some_and(|number| acknowledged.insert(number))
}
