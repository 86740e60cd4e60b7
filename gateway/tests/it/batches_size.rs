//! Batches of the size that they may have: what looking at one takes, and what a start takes with a store full of them.

use serde_json::json;
use store::{BatchStore, NewBatch, NewFile, NewLine, Purpose, UnixMillis};
use tokio::net::TcpStream;

use crate::{
    batches::{batch, call, create},
    batches_adverse::memory,
    files_api,
    harness::{Gateway, chat, now},
};

const LINES: u32 = 50_000;

/// A file of so many lines, each as long as a reviewer's prompt, and all together as long as a file may be.
fn largest_file() -> Vec<u8> {
    let mut text = Vec::with_capacity(200 << 20);
    let words = "Umsatz über 900 EUR an einen neuen Händler; ".repeat(86);
    for number in 0..LINES {
        let body = chat(&format!("{number}: {words}"), false, 8);
        let entry = json!({"custom_id": format!("line-{number}"), "method": "POST", "url": "/v1/chat/completions", "body": body});
        text.extend_from_slice(entry.to_string().as_bytes());
        text.push(b'\n');
    }
    assert!((190 << 20..=200 << 20).contains(&text.len()), "{}", text.len());
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "200 MB through a debug build: half a minute"]
async fn the_largest_batch_is_looked_at_in_little_memory() {
    let gateway = Gateway::builder("").start().await;
    let content = largest_file();
    let file = files_api::upload(&gateway, "", &content).await["id"].as_str().expect("an id").to_owned();
    let before = memory(&gateway);
    let asked = now();
    let id = create(&gateway, &file, "24h").await;
    loop {
        let seen = batch(&gateway, &id).await;
        if seen["status"] != "validating" {
            assert_eq!(
                (&seen["status"], &seen["request_counts"]["total"]),
                (&json!("in_progress"), &json!(LINES)),
                "{seen}"
            );
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let (took, after) = (asked.elapsed(), memory(&gateway));
    println!("{} bytes, {LINES} lines: {took:?}; {before:?} before, {after:?} after", content.len());
    assert!(after["VmHWM"].saturating_sub(before["VmRSS"]) < 64 << 20, "{before:?} → {after:?}");
    assert_eq!(call(&gateway, "POST", &format!("/v1/batches/{id}/cancel"), None).await.status, 200);
}

/// Twenty batches of 50,000 lines each in a store: half of each done.
fn fill(store: &BatchStore) {
    const BATCHES: u32 = 20;
    let at = UnixMillis(std::time::UNIX_EPOCH.elapsed().expect("a time after 1970").as_millis() as u64);
    let far = UnixMillis(at.0 + 24 * 3_600_000);
    let holder = store.register(at, std::time::Duration::from_secs(1)).expect("a holder");
    let line = json!({"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": chat("hi", false, 1)})
        .to_string();
    for number in 0..BATCHES {
        let new = NewFile {
            id: format!("file-{number:024}"),
            tenant: "anonymous".into(),
            purpose: Purpose::Batch,
            filename: "in.jsonl".into(),
            created: at,
            expires: Some(far),
        };
        let file = store.begin_file(holder, new).expect("begun");
        store.append_file(file, (line.clone() + "\n").repeat(1_000).into_bytes()).expect("written");
        let input = store.finish_file(file, None).expect("finished").id;
        let batch = store
            .create_batch(NewBatch {
                id: format!("batch_{number:024}"),
                tenant: "anonymous".into(),
                input_file: input,
                endpoint: "/v1/chat/completions".into(),
                completion_window: "24h".into(),
                metadata: json!({}),
                permissions: json!({}),
                max_open: u32::MAX,
                idempotency_key: None,
                again_since: None,
                output_expires_after: None,
                created: at,
                expires: far,
            })
            .expect("made");
        assert!(store.claim_job(holder, batch.key).expect("the database"));
        let new_line = |number: u32| NewLine {
            number: number + 1,
            custom_id: format!("line-{number}"),
            affinity: i64::from(number % 7),
            offset: u64::from(number % 1_000) * (line.len() as u64 + 1),
            length: line.len() as u32,
        };
        for page in 0..LINES / 10_000 {
            let lines = (page * 10_000..(page + 1) * 10_000).map(new_line).collect();
            store.add_lines(holder, batch.key, lines).expect("added");
        }
        store.start_batch(holder, batch.key, "nobody's", at).expect("started");
        // As a process that is killed leaves it: claims of a thousand lines, half of them with results.
        let claimed = store.claim_lines(holder, batch.key, 1_000, usize::MAX).expect("claimed");
        let finished = claimed.iter().take(500).map(|claimed| store::FinishedLine {
            batch: batch.key,
            number: claimed.number,
            failed: false,
            record: vec![b' '; 700],
            usage: store::TokenUsage::default(),
        });
        store.finish_lines(holder, finished.collect(), at).expect("stored");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a million lines are written first: half a minute in a debug build"]
async fn a_gateway_with_a_million_lines_is_soon_there() {
    let mut gateway = Gateway::builder("").start().await;
    gateway.signal(rustix::process::Signal::TERM);
    gateway.exited().await;
    let file = gateway.dir().join("huntgroup-batches.db");
    {
        let store = BatchStore::open(&file).expect("the database");
        tokio::task::spawn_blocking(move || fill(&store)).await.expect("no panic");
    }
    let bytes = std::fs::metadata(&file).expect("a file").len();
    let asked = now();
    gateway.restart().await;
    gateway.wait_for("the public listener", async |g| TcpStream::connect(("127.0.0.1", g.public)).await.is_ok()).await;
    let listed = call(&gateway, "GET", "/v1/batches?limit=100", None).await.json();
    let took = asked.elapsed();
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(20));
    gateway
        .wait_for("all of them to wait for a phone", async |g| {
            let listed = call(g, "GET", "/v1/batches?limit=100", None).await.json();
            listed["data"]
                .as_array()
                .is_some_and(|batches| batches.iter().all(|b| b["huntgroup"]["waiting_for"] == "replica"))
        })
        .await;
    println!(
        "{bytes} bytes: an answer after {took:?}, all batches seen after {:?}; {:?}",
        asked.elapsed(),
        memory(&gateway)
    );
}
