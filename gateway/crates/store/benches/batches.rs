//! What files and batches cost. `cargo bench -p store`. The files are made in `$TMPDIR`: the figures are those of its disk.

#![expect(clippy::unwrap_used, reason = "a benchmark has nobody to tell")]

use std::time::{Duration, Instant};

use serde_json::Value;
use store::{
    BatchKey, BatchStore, FinishedLine, Holder, NewBatch, NewFile, NewLine, Purpose, ReleasedLine, TokenUsage,
    UnixMillis,
};

const NOW: UnixMillis = UnixMillis(1);
const LEASE: Duration = Duration::from_secs(1_000_000);
const LINES: u32 = 50_000;
const MIB: usize = 1 << 20;

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = now();
    let done = work();
    (done, start.elapsed())
}

/// The most memory that this process has ever had, and what it has now, in MiB. Linux only; else zeros.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    (of("VmHWM:").unwrap_or(0) >> 10, of("VmRSS:").unwrap_or(0) >> 10)
}

fn upload(store: &BatchStore, holder: Holder, id: &str, line_length: usize) {
    let new = NewFile {
        id: id.into(),
        tenant: "bank".into(),
        purpose: Purpose::Batch,
        filename: "requests.jsonl".into(),
        created: NOW,
        expires: None,
    };
    let key = store.begin_file(holder, new).unwrap();
    let mut left = LINES as usize * line_length;
    while left > 0 {
        let piece = vec![b'x'; left.min(MIB)];
        left -= piece.len();
        store.append_file(key, piece).unwrap();
    }
    store.finish_file(key, None).unwrap();
}

fn make_batch(store: &BatchStore, holder: Holder, name: &str, input: &str, line_length: u32) -> BatchKey {
    let new = NewBatch {
        id: format!("batch_{name}"),
        tenant: "bank".into(),
        input_file: input.into(),
        endpoint: "/v1/chat/completions".into(),
        completion_window: "24h".into(),
        metadata: Value::Null,
        permissions: Value::Null,
        output_expires_after: None,
        created: NOW,
        expires: UnixMillis(u64::MAX >> 1),
        max_open: u32::MAX,
        idempotency_key: None,
        again_since: None,
    };
    let batch = store.create_batch(new).unwrap().key;
    assert!(store.claim_job(holder, batch).unwrap());
    let line = |n: u32| NewLine {
        number: n + 1,
        custom_id: format!("request-{n:08}"),
        // Ten beginnings, all over the file.
        affinity: i64::from(n.wrapping_mul(2_654_435_761) >> 16) % 10,
        offset: u64::from(n) * u64::from(line_length),
        length: line_length - 1,
    };
    for thousand in 0..LINES / 1_000 {
        store.add_lines(holder, batch, (thousand * 1_000..(thousand + 1) * 1_000).map(line).collect()).unwrap();
    }
    store.start_batch(holder, batch, "qwen", NOW).unwrap();
    store.release_job(holder, batch).unwrap();
    batch
}

fn finished(batch: BatchKey, number: u32) -> FinishedLine {
    let usage = TokenUsage { input: 1_000, cached: 0, output: 200 };
    FinishedLine { batch, number, failed: false, record: vec![b'r'; 1_500], usage }
}

fn show(what: &str, figure: impl std::fmt::Display) {
    println!("{what:<70} {figure}");
}

fn uploads(store: &BatchStore, holder: Holder) {
    let before = memory();
    let ((), took) = timed(|| upload(store, holder, "file-large", 4_096));
    let after = memory();
    show(
        "append 195 MiB, 1 MiB a call",
        format_args!("{took:.2?}, most memory {} MiB (before: {})", after.0, before.0),
    );
    let file = store.file("bank", "file-large").unwrap();
    let ((), took) = timed(|| {
        for offset in (0..file.bytes).step_by(MIB) {
            store.read_file(file.key, offset, MIB).unwrap();
        }
    });
    show("read it, 1 MiB a call", format_args!("{took:.2?}"));
}

fn claims(store: &BatchStore, holder: Holder) -> BatchKey {
    let (batch, took) = timed(|| make_batch(store, holder, "a", "file-large", 4_096));
    show("add 50,000 lines, 1,000 a call", format_args!("{took:.2?}"));
    let mut times = Vec::new();
    let mut claimed: Vec<u32> = Vec::new();
    for _ in 0..100 {
        let (lines, took) = timed(|| store.claim_lines(holder, batch, 100, usize::MAX).unwrap());
        times.push(took);
        claimed.extend(lines.iter().map(|line| line.number));
    }
    times.sort();
    show("claim 100 of 50,000 lines of 4 KiB", format_args!("median {:.2?}, longest {:.2?}", times[50], times[99]));
    let back = claimed.into_iter().map(|number| ReleasedLine { batch, number, tried: false }).collect();
    store.release_lines(holder, back).unwrap();
    batch
}

fn results(store: &BatchStore, holder: Holder, batch: BatchKey) {
    for (group, groups) in [(1, 500), (10, 200), (100, 100)] {
        let lines = store.claim_lines(holder, batch, group * groups, usize::MAX).unwrap();
        let groups: Vec<Vec<FinishedLine>> =
            lines.chunks(group).map(|lines| lines.iter().map(|line| finished(batch, line.number)).collect()).collect();
        let count = groups.len() * group;
        let ((), took) =
            timed(|| groups.into_iter().for_each(|lines| drop(store.finish_lines(holder, lines, NOW).unwrap())));
        show(
            &format!("finish_lines, groups of {group}"),
            format_args!("{:.0} results/s", count as f64 / took.as_secs_f64()),
        );
    }
    let lines = store.claim_lines(holder, batch, 6_400, usize::MAX).unwrap();
    let ((), took) = timed(|| {
        std::thread::scope(|scope| {
            for part in lines.chunks(100) {
                scope.spawn(move || {
                    for line in part {
                        store.finish_lines(holder, vec![finished(batch, line.number)], NOW).unwrap();
                    }
                });
            }
        });
    });
    show("finish_lines, one each, 64 threads", format_args!("{:.0} results/s", 6_400.0 / took.as_secs_f64()));
    let (lines, took) = timed(|| store.claim_lines(holder, batch, 100, usize::MAX).unwrap());
    show("claim 100, with 18,900 done", format_args!("{took:.2?}"));
    let back = lines.into_iter().map(|line| ReleasedLine { batch, number: line.number, tried: false }).collect();
    store.release_lines(holder, back).unwrap();
}

fn sweeps(store: &BatchStore, holder: Holder, batch: BatchKey) {
    store.cancel_batch(None, "batch_a", NOW).unwrap();
    assert!(store.claim_job(holder, batch).unwrap());
    let (_, took) = timed(|| store.close_batch(holder, batch, None, None, NOW).unwrap());
    show("close it", format_args!("{took:.2?}"));
    store.delete_file("bank", "file-large").unwrap();
    let (mut times, mut more) = (Vec::new(), true);
    while more {
        let (left, took) = timed(|| store.sweep(NOW, LEASE).unwrap());
        times.push(took);
        more = left;
    }
    times.sort();
    let (all, median) = (times.iter().sum::<Duration>(), times[times.len() / 2]);
    let longest = times.last().unwrap();
    show(
        "sweep it, its lines, results and 195 MiB of input",
        format_args!("{} calls, {all:.2?}, median {median:.2?}, longest {longest:.2?}", times.len()),
    );
}

fn opening(store: &BatchStore, holder: Holder) {
    upload(store, holder, "file-small", 100);
    for n in 0..20 {
        make_batch(store, holder, &format!("m{n}"), "file-small", 100);
    }
}

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("batches.db");
    let store = BatchStore::open(&path).unwrap();
    let holder = store.register(NOW, LEASE).unwrap();
    uploads(&store, holder);
    let batch = claims(&store, holder);
    results(&store, holder, batch);
    sweeps(&store, holder, batch);
    opening(&store, holder);
    drop(store);
    let size = std::fs::metadata(&path).unwrap().len() >> 20;
    let (store, took) = timed(|| BatchStore::open(&path).unwrap());
    show(&format!("open a file with 1,000,000 lines ({size} MiB)"), format_args!("{took:.2?}"));
    let (_, took) = timed(|| store.claim_lines(holder, BatchKey(2), 100, usize::MAX).unwrap());
    show("the first claim of 100 after that", format_args!("{took:.2?}"));
    show("memory at the end", format_args!("{} MiB, most {} MiB", memory().1, memory().0));
}
