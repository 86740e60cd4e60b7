//! What checks have in common: a file, a batch, its lines, in one call each.

use std::time::Duration;

use serde_json::json;

use crate::*;

pub(super) const LEASE: Duration = Duration::from_secs(15);
pub(super) const NONE: [u32; 0] = [];
pub(super) const ALL: usize = usize::MAX;

pub(super) fn at(seconds: u64) -> UnixMillis {
    UnixMillis(seconds * 1_000)
}

pub(super) fn a_file(id: &str) -> NewFile {
    NewFile {
        id: id.into(),
        tenant: "bank".into(),
        purpose: Purpose::Batch,
        filename: "requests.jsonl".into(),
        created: at(1),
        expires: None,
    }
}

pub(super) fn output(id: &str) -> NewFile {
    NewFile { purpose: Purpose::BatchOutput, filename: "output.jsonl".into(), ..a_file(id) }
}

pub(super) fn a_batch(id: &str, input: &str) -> NewBatch {
    NewBatch {
        id: id.into(),
        tenant: "bank".into(),
        input_file: input.into(),
        endpoint: "/v1/chat/completions".into(),
        completion_window: "24h".into(),
        metadata: json!({"night": "run"}),
        permissions: json!({"models": []}),
        output_expires_after: None,
        created: at(10),
        expires: at(1_000),
        max_open: u32::MAX,
        idempotency_key: None,
        again_since: None,
    }
}

pub(super) fn page(after: Option<&str>, limit: usize, ascending: bool) -> PageOf {
    PageOf { after: after.map(Into::into), limit, ascending }
}

/// A finished file with this content.
pub(super) fn written(store: &BatchStore, holder: Holder, new: NewFile, content: &[u8]) -> FileRecord {
    let key = store.begin_file(holder, new).unwrap();
    store.append_file(key, content.to_vec()).unwrap();
    store.finish_file(key, None).unwrap()
}

/// Line `number` of an input file.
pub(super) fn text(number: u32) -> String {
    format!("{{\"custom_id\":\"c{number}\",\"body\":\"{}\"}}", "x".repeat(number as usize % 50))
}

/// A file of that many lines, and what a look at it finds. Lines alternate between two beginnings.
pub(super) fn lines(count: u32) -> (Vec<u8>, Vec<NewLine>) {
    let mut content = Vec::new();
    let lines = (1..=count).map(|number| {
        let text = text(number);
        let line = NewLine {
            number,
            custom_id: format!("c{number}"),
            affinity: -i64::from(number % 2),
            offset: content.len() as u64,
            length: u32::try_from(text.len()).unwrap(),
        };
        content.extend_from_slice(text.as_bytes());
        content.push(b'\n');
        line
    });
    let lines = lines.collect();
    (content, lines)
}

/// A batch of that many lines, in progress. Its id is `batch_NAME`, its input's `file-NAME`.
pub(super) fn running(store: &BatchStore, holder: Holder, name: &str, count: u32) -> BatchRecord {
    let (content, lines) = lines(count);
    written(store, holder, a_file(&format!("file-{name}")), &content);
    let batch = store.create_batch(a_batch(&format!("batch_{name}"), &format!("file-{name}"))).unwrap();
    assert!(store.claim_job(holder, batch.key).unwrap());
    store.add_lines(holder, batch.key, lines).unwrap();
    let batch = store.start_batch(holder, batch.key, "qwen", at(20)).unwrap();
    store.release_job(holder, batch.key).unwrap();
    batch
}

pub(super) fn result(batch: &BatchRecord, number: u32) -> FinishedLine {
    FinishedLine {
        batch: batch.key,
        number,
        failed: false,
        record: format!("{{\"custom_id\":\"c{number}\"}}").into_bytes(),
        usage: TokenUsage { input: 10, cached: 4, output: 5 },
    }
}

pub(super) fn claimed(store: &BatchStore, holder: Holder, batch: &BatchRecord, limit: usize) -> Vec<u32> {
    let lines = store.claim_lines(holder, batch.key, limit, ALL).unwrap();
    for line in &lines {
        assert_eq!(String::from_utf8(line.text.clone()).unwrap(), text(line.number));
        assert_eq!(line.custom_id, format!("c{}", line.number));
    }
    lines.into_iter().map(|line| line.number).collect()
}

/// Claims and finishes that many lines; all if there are fewer.
pub(super) fn run(store: &BatchStore, holder: Holder, batch: &BatchRecord, limit: usize) -> Vec<Kept> {
    let results = claimed(store, holder, batch, limit).into_iter().map(|number| result(batch, number)).collect();
    store.finish_lines(holder, results, at(30)).unwrap()
}

pub(super) fn again(store: &BatchStore, batch: &BatchRecord) -> BatchRecord {
    store.batch(None, &batch.id).unwrap()
}
