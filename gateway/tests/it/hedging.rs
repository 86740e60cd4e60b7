//! A request that is late runs on a second phone as well: one answer reaches its client, and the other phone stops.

use fakephone::Fault;
use serde_json::json;

use crate::harness::{Exchange, Fleet, Gateway, PATIENCE, chat, now, phone};

/// A prompt of some 400 tokens: a phone at speed 1 reads it in 0.4 s, at speed 0.01 in 40 s.
fn prompt() -> String {
    "word ".repeat(400)
}

/// Two phones of one slot that are believed to be equally fast, and are not.
async fn slow_and_quick(slow: f64, quick: f64) -> (Fleet, Gateway) {
    slow_and_quick_under(slow, quick, "").await
}

/// The same with more of `[streams]`.
async fn slow_and_quick_under(slow: f64, quick: f64, streams: &str) -> (Fleet, Gateway) {
    let fleet = Fleet::start([phone(1, slow), phone(1, quick)]).await;
    let gateway = Gateway::over(&fleet, &format!("[streams]\nhead_after = \"5m\"\n{streams}")).await;
    for phone in &fleet.phones {
        let believed = json!({ "prefill_rate": 1000.0, "decode_rate": 60.0 });
        let path = format!("/admin/replicas/{}", phone.id());
        let answer = gateway.admin("PATCH", &path, Some(&believed)).await;
        assert!(answer.status < 300, "{}", answer.text());
    }
    (fleet, gateway)
}

/// Sends a request that must run on the slow phone. The quick one takes work from then on.
async fn ask_slow(fleet: &Fleet, gateway: &Gateway, stream: bool) -> Exchange {
    let quick = fleet.phones[1].id();
    let drained = gateway.admin("POST", &format!("/admin/replicas/{quick}/drain"), Some(&json!({}))).await;
    assert!(drained.status < 300, "{}", drained.text());
    let headers = [("x-huntgroup-class", "interactive")];
    let body = chat(&prompt(), stream, 10);
    let exchange = gateway.client().await.send("POST", "/v1/chat/completions", &headers, Some(&body)).await;
    gateway.wait_for("the slow phone to read", async |_| fleet.phones[0].stats().running_now == 1).await;
    let undrained = gateway.admin("POST", &format!("/admin/replicas/{quick}/undrain"), Some(&json!({}))).await;
    assert!(undrained.status < 300, "{}", undrained.text());
    exchange
}

/// Attempts that ended so.
async fn attempts(gateway: &Gateway, outcome: &str) -> f64 {
    // No series is as good as 0; the sum of none is -0.
    gateway.metric("huntgroup_attempts_total", &format!("outcome=\"{outcome}\"")).await.abs()
}

async fn hedges(gateway: &Gateway) -> (f64, f64) {
    let ended = async |outcome| gateway.metric("huntgroup_hedges_total", outcome).await;
    (ended("outcome=\"won\"").await, ended("outcome=\"lost\"").await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_answer_is_the_clients_and_the_slower_phone_stops_within_a_second() {
    for stream in [true, false] {
        let (fleet, gateway) = slow_and_quick(0.01, 1.0).await;
        let answer = ask_slow(&fleet, &gateway, stream).await.answer().await;
        let answered = now();
        assert!(answer.is_whole(&prompt(), 10), "stream {stream}: {}{}", answer.head, answer.text());
        assert_eq!(answer.header("x-huntgroup-attempts"), Some("2"));
        assert_eq!(answer.header("x-huntgroup-replica"), Some(fleet.phones[1].id()));
        gateway.wait_for("the slow phone to stop", async |_| fleet.phones[0].stats().cancelled == 1).await;
        let seen = fleet.phones[0].stats().last_cancel.expect("it was cancelled").at;
        let after = seen.saturating_duration_since(answered);
        assert!(after.as_secs_f64() < 1.0, "stream {stream}: the slow phone worked on for {after:?}");
        assert_eq!(hedges(&gateway).await, (1.0, 0.0));
        assert_eq!((attempts(&gateway, "ok").await, attempts(&gateway, "hedge_lost").await), (1.0, 1.0));
        assert_eq!(gateway.metric("huntgroup_failovers_total", "").await, 0.0);
        assert_eq!(gateway.metric("huntgroup_tokens_total", "completion").await, 10.0, "one answer is accounted for");
        gateway.wait_at_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_copy_that_fails_ends_alone() {
    for stream in [true, false] {
        let (fleet, gateway) = slow_and_quick(0.1, 1.0).await;
        let exchange = ask_slow(&fleet, &gateway, stream).await;
        fleet.phones[1].set_fault(Fault::Status { code: 500, retry_after: None });
        let answer = exchange.answer().await;
        assert!(answer.is_whole(&prompt(), 10), "stream {stream}: {}{}", answer.head, answer.text());
        assert_eq!(answer.header("x-huntgroup-attempts"), Some("2"));
        assert_eq!(answer.header("x-huntgroup-replica"), Some(fleet.phones[0].id()));
        assert_eq!(hedges(&gateway).await, (0.0, 1.0));
        assert_eq!((attempts(&gateway, "ok").await, attempts(&gateway, "status").await), (1.0, 1.0));
        assert_eq!(gateway.metric("huntgroup_failovers_total", "").await, 0.0, "the first copy was still running");
        gateway.wait_at_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_copy_that_fails_leaves_the_request_to_the_second() {
    let (fleet, gateway) = slow_and_quick(0.01, 0.1).await;
    let exchange = ask_slow(&fleet, &gateway, true).await;
    gateway.wait_for("the second copy", async |_| fleet.phones[1].stats().running_now == 1).await;
    fleet.phones[0].kill();
    let answer = exchange.answer().await;
    assert!(answer.is_whole(&prompt(), 10), "{}{}", answer.head, answer.text());
    assert_eq!(answer.header("x-huntgroup-attempts"), Some("2"));
    assert_eq!(hedges(&gateway).await, (1.0, 0.0));
    assert_eq!((attempts(&gateway, "ok").await, attempts(&gateway, "hedge_lost").await), (1.0, 0.0));
    assert_eq!(gateway.metric("huntgroup_failovers_total", "").await, 0.0, "the second copy was running");
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_winner_that_dies_after_its_first_content_and_is_not_carried_on_ends_in_an_error_event() {
    let (fleet, gateway) = slow_and_quick_under(0.01, 1.0, "continue = \"never\"\n").await;
    let exchange = ask_slow(&fleet, &gateway, true).await;
    fleet.phones[1].set_fault(Fault::CutAfter { chunks: 3, mid_word: false });
    let answer = exchange.answer().await;
    assert!(!answer.clean, "{}", answer.text());
    assert_eq!(answer.error().expect("an error event")["code"], "upstream_error", "{}", answer.text());
    assert!(!answer.content().is_empty(), "what came before is the client's");
    gateway.wait_for("the slow phone to stop", async |_| fleet.phones[0].stats().cancelled == 1).await;
    assert_eq!((attempts(&gateway, "ok").await, attempts(&gateway, "hedge_lost").await), (0.0, 1.0));
    assert_eq!(gateway.metric("huntgroup_attempts_total", "").await, 2.0);
    assert_eq!(hedges(&gateway).await, (0.0, 1.0), "a copy that brings no whole answer has not won");
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_stops_every_phone_that_works_for_it() {
    let (fleet, gateway) = slow_and_quick(0.01, 1.0).await;
    let exchange = ask_slow(&fleet, &gateway, true).await;
    fleet.phones[1].set_fault(Fault::HangAfter { chunks: 0 });
    gateway.wait_for("the second copy", async |_| fleet.phones[1].stats().running_now == 1).await;
    exchange.leave();
    let left = now();
    gateway
        .wait_for("both phones to stop", async |_| fleet.phones.iter().all(|phone| phone.stats().running_now == 0))
        .await;
    assert!(left.elapsed() < PATIENCE / 10, "they worked on for {:?}", left.elapsed());
    gateway.wait_at_rest().await;
    assert_eq!(attempts(&gateway, "client_gone").await, 2.0);
    assert_eq!(gateway.metric("huntgroup_requests_total", "outcome=\"client_gone\"").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_work_makes_room_for_an_urgent_request_and_is_answered_afterwards() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let (batch, urgent) = (chat("in the night", false, 600), chat("now", false, 5));
    let ask = async |class, body| {
        let headers = [("x-huntgroup-class", class)];
        gateway.client().await.send("POST", "/v1/chat/completions", &headers, Some(body)).await
    };
    let waiting = ask("batch", &batch).await;
    gateway.wait_for("the phone to work", async |_| fleet.phones[0].stats().running_now == 1).await;
    let answer = ask("interactive", &urgent).await.answer().await;
    assert!(answer.is_whole("now", 5), "{}{}", answer.head, answer.text());
    assert_eq!(attempts(&gateway, "given_back").await, 1.0, "the phone was free for it at once");
    let answer = waiting.answer().await;
    assert!(answer.is_whole("in the night", 600), "{}{}", answer.head, answer.text());
    assert_eq!(answer.header("x-huntgroup-attempts"), Some("2"));
    assert_eq!(gateway.metric("huntgroup_failovers_total", "").await, 0.0);
    assert_eq!(attempts(&gateway, "ok").await, 2.0);
    assert!(gateway.log().contains("given_back"), "it has its own line");
    assert_eq!(fleet.over_subscribed(), 0);
    gateway.wait_at_rest().await;
}
