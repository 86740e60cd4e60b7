//! A client that leaves frees the slot at once, in every phase.

use std::time::Duration;

use crate::harness::{Fleet, Gateway, PATIENCE, chat, now, phone};

/// The promise: a hang-up reaches the phone in under this.
const PROMISE: Duration = Duration::from_millis(50);

/// Hangs up `rounds` times in the phase that `arrive` waits for; the time until the phone saw it, in order.
async fn hang_up(stream: bool, decode: bool, rounds: u64) -> Vec<Duration> {
    // Real speed, a long prompt: prefill takes seconds; with a tiny prompt, decode does.
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let prompt = if decode { "hi".to_owned() } else { "word ".repeat(4000) };
    let mut seen = Vec::new();
    for round in 1..=rounds {
        let mut exchange = gateway.client().await.post("/v1/chat/completions", &chat(&prompt, stream, 2000)).await;
        if decode && stream {
            assert!(exchange.read_until("\"content\"").await, "{}", exchange.seen());
        } else {
            let running = fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await;
            running.expect("the phone has it");
        }
        let left = now();
        exchange.leave();
        let stats = fleet.phones[0].wait_until(PATIENCE, |stats| stats.cancelled == round).await;
        seen.push(stats.expect("seen").last_cancel.expect("a time").at.saturating_duration_since(left));
        gateway.wait_at_rest().await;
    }
    seen.sort();
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_up_during_prefill_reaches_the_phone_in_time() {
    for stream in [true, false] {
        let seen = hang_up(stream, false, 10).await;
        // The median, so that one pause of a busy machine is no failure.
        assert!(seen[5] < PROMISE, "stream {stream}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_up_in_the_middle_of_an_answer_reaches_the_phone_in_time() {
    for stream in [true, false] {
        let seen = hang_up(stream, true, 10).await;
        assert!(seen[5] < PROMISE, "stream {stream}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_up_in_the_queue_is_never_run() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let running = gateway.client().await.post("/v1/chat/completions", &chat(&"word ".repeat(4000), false, 2)).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("running");
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(gateway.client().await.post("/v1/chat/completions", &chat("queued", false, 2)).await);
    }
    gateway
        .wait_for("five in the queue", async |gateway| gateway.metric("huntgroup_queue_depth", "").await == 5.0)
        .await;
    for exchange in waiting {
        exchange.leave();
    }
    gateway.wait_for("an empty queue", async |gateway| gateway.metric("huntgroup_queue_depth", "").await == 0.0).await;
    running.leave();
    gateway.wait_at_rest().await;
    assert_eq!(fleet.phones[0].stats().started, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipelined_request_is_no_hang_up() {
    let fleet = Fleet::of(1, &phone(1, 10.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let body = chat("piped", false, 3).to_string();
    let one = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", gateway.public)).await.expect("open");
    stream.write_all(format!("{one}{one}").as_bytes()).await.expect("taken");
    let mut text = String::new();
    let mut piece = [0; 4096];
    while text.matches("HTTP/1.1 200").count() < 2 {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut piece)).await.expect("in time").expect("open");
        assert!(read > 0, "closed after: {text}");
        text.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    assert_eq!(fleet.phones[0].stats().cancelled, 0);
}
