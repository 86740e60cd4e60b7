//! A client that lost its connection comes back to its running request, or is given the kept answer.

use std::time::Duration;

use fakephone::{Fault, Scope};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Exchange, Fleet, Gateway, PATIENCE, chat, phone};

const CHAT: &str = "/v1/chat/completions";

async fn ask(gateway: &Gateway, key: &str, body: &Value) -> Exchange {
    gateway.client().await.send("POST", CHAT, &[("Idempotency-Key", key)], Some(body)).await
}

/// One phone that works for somebody else as long as the exchange is kept.
async fn occupied(fleet: &Fleet, config: &str) -> (Gateway, Exchange) {
    let gateway = Gateway::over(fleet, config).await;
    let mut running = gateway.client().await.post(CHAT, &chat("occupied", true, 4000)).await;
    assert!(running.read_until("\"content\"").await, "{}", running.seen());
    (gateway, running)
}

async fn queue(gateway: &Gateway, length: f64) {
    gateway.wait_for("a queue", async |g| g.metric("huntgroup_queue_depth", "").await == length).await;
}

async fn joined(gateway: &Gateway, state: &str) -> f64 {
    gateway.metric("huntgroup_joined_requests_total", state).await
}

async fn wait_joined(gateway: &Gateway, count: f64) {
    gateway.wait_for("them to have joined", async |g| joined(g, "running").await == count).await;
}

/// The kept answer is what the phone wrote for somebody, once.
fn assert_same(first: &Answer, second: &Answer) {
    assert_eq!(first.body, second.body);
    assert_eq!(second.header("x-huntgroup-joined"), first.header("x-request-id"), "{}", second.head);
    assert_ne!(second.header("x-request-id"), first.header("x-request-id"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_in_the_queue_comes_back_to_its_place() {
    for stream in [true, false] {
        let fleet = Fleet::of(1, &phone(1, 5.0)).await;
        let (gateway, running) = occupied(&fleet, "").await;
        let body = chat("come back", stream, 20);
        ask(&gateway, "k", &body).await.leave();
        queue(&gateway, 1.0).await;
        let again = ask(&gateway, "k", &body).await;
        wait_joined(&gateway, 1.0).await;
        queue(&gateway, 1.0).await;
        running.leave();
        let answer = again.answer().await;
        assert!(answer.is_whole("come back", 20), "{}{}", answer.head, answer.text());
        assert!(answer.header("x-huntgroup-joined").is_some_and(|first| first.starts_with("req_")), "{}", answer.head);
        assert_eq!(fleet.phones[0].stats().started, 2);
        gateway.wait_at_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_while_its_prompt_is_read_or_answered_comes_back_to_the_whole_answer() {
    for (stream, decode) in [(true, false), (false, false), (true, true), (false, true)] {
        let fleet = Fleet::of(1, &phone(1, 4.0)).await;
        let gateway = Gateway::over(&fleet, "").await;
        let (prompt, tokens) = if decode { ("hi".to_owned(), 200) } else { ("word ".repeat(4000), 5) };
        let body = chat(&prompt, stream, tokens);
        let mut first = ask(&gateway, "k", &body).await;
        if stream && decode {
            assert!(first.read_until("\"content\"").await, "{}", first.seen());
        }
        let runs = fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await;
        runs.expect("the phone has it");
        first.leave();
        let answer = ask(&gateway, "k", &body).await.answer().await;
        assert!(answer.is_whole(&prompt, tokens), "{}{}", answer.head, answer.text());
        let stats = fleet.phones[0].stats();
        assert_eq!((stats.started, stats.completed, stats.cancelled), (1, 1, 0), "one upstream call in all");
        gateway.wait_at_rest().await;
        assert_eq!(gateway.metric("huntgroup_attempts_total", "").await, 1.0);
        assert_eq!(gateway.metric("huntgroup_requests_total", "outcome=\"ok\"").await, 1.0);
        assert_eq!(gateway.metric("huntgroup_requests_total", "outcome=\"joined\"").await, 1.0);
        assert_eq!(gateway.metric("huntgroup_requests_total", "").await, 2.0);
        assert_eq!(gateway.metric("huntgroup_tokens_total", "completion").await, f64::from(tokens), "counted once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_ask_at_once_the_second_finishes_when_the_first_is_killed() {
    let fleet = Fleet::of(2, &phone(1, 2.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let body = chat("together", true, 300);
    let mut first = ask(&gateway, "k", &body).await;
    assert!(first.read_until("\"content\"").await, "{}", first.seen());
    let mut second = ask(&gateway, "k", &body).await;
    assert!(second.read_until("\"content\"").await, "{}", second.seen());
    let id =
        first.seen().lines().find_map(|line| line.strip_prefix("x-request-id: ").map(str::to_owned)).expect("an id");
    let live = gateway.admin("GET", "/admin/requests", None).await.json();
    let live = live["data"].as_array().expect("a list");
    assert_eq!(live.iter().map(|request| request["id"].as_str()).collect::<Vec<_>>(), [Some(&*id)], "it runs once");
    first.leave();
    let answer = second.answer().await;
    assert!(answer.is_whole("together", 300), "{}{}", answer.head, answer.text());
    assert_eq!(answer.header("x-huntgroup-joined"), Some(&*id));
    assert_eq!(fleet.phones.iter().map(|phone| phone.stats().started).sum::<u64>(), 1);
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_answer_is_given_again_byte_by_byte_and_counted_once() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    for (number, stream) in [true, false].into_iter().enumerate() {
        let key = format!("key {number}").replace(' ', "-");
        let body = chat("kept", stream, 30);
        let first = ask(&gateway, &key, &body).await.answer().await;
        assert!(first.is_whole("kept", 30) && first.header("x-huntgroup-joined").is_none(), "{}", first.head);
        let tokens = gateway.metric("huntgroup_tokens_total", "").await;
        let again = ask(&gateway, &key, &body).await.answer().await;
        assert!(again.is_whole("kept", 30), "{}", again.head);
        assert_same(&first, &again);
        assert_eq!(again.header("x-huntgroup-attempts"), Some("1"), "how it came about is told: {}", again.head);
        assert_eq!(gateway.metric("huntgroup_tokens_total", "").await, tokens);
        assert_eq!(joined(&gateway, "finished").await, number as f64 + 1.0);
    }
    assert_eq!(fleet.phones[0].stats().started, 2);
    gateway.wait_at_rest().await;
    assert!(gateway.metric("huntgroup_kept_answer_bytes", "").await > 0.0);
    let log = gateway.log();
    assert!(log.contains("joined=\"req_") && !log.contains("key-0"), "whom it joined is logged, its key is not: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_belongs_to_one_body_and_one_route() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    assert!(ask(&gateway, "k", &chat("mine", false, 3)).await.answer().await.is_whole("mine", 3));
    // A stream is another request: what joins must be able to read the answer.
    for body in [chat("other", false, 3), chat("mine", true, 3)] {
        let refused = ask(&gateway, "k", &body).await.answer().await;
        let error = refused.error().expect("an error");
        assert_eq!((refused.status, &error["code"]), (422, &json!("idempotency_key_reused")), "{}", refused.text());
        assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &Value::Null));
        assert_eq!(refused.header("x-should-retry"), Some("false"));
    }
    let elsewhere = json!({"model": "tiny", "prompt": "mine"});
    let client = gateway.client().await;
    let refused = client.send("POST", "/v1/completions", &[("Idempotency-Key", "k")], Some(&elsewhere)).await;
    assert_eq!(refused.answer().await.status, 422);
    assert_eq!(fleet.phones[0].stats().started, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_none_is_refused_and_keys_mean_nothing_where_nothing_runs() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    for key in ["", "two words", "schl\u{fc}ssel", &"k".repeat(256)] {
        let refused = ask(&gateway, key, &chat("odd", false, 3)).await.answer().await;
        let error = refused.error().expect("an error");
        assert_eq!((refused.status, &error["param"]), (400, &json!("idempotency-key")), "{key}: {}", refused.text());
        assert!(error["message"].as_str().is_some_and(|text| text.contains("1 to 255")), "{error}");
    }
    let headers = [("Idempotency-Key", "one"), ("Idempotency-Key", "two")];
    let client = gateway.client().await;
    assert_eq!(client.send("POST", CHAT, &headers, Some(&chat("two", false, 3))).await.answer().await.status, 400);
    let models = gateway.client().await.send("GET", "/v1/models", &[("Idempotency-Key", "")], None).await;
    assert_eq!(models.answer().await.status, 200);
    assert!(ask(&gateway, &"k".repeat(255), &chat("long", false, 3)).await.answer().await.is_whole("long", 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_joins_another_tenants_request() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let file = gateway.dir().join("huntgroup.toml");
    let text = std::fs::read_to_string(&file).expect("its configuration");
    std::fs::write(&file, text.replace("auth = \"none\"", "auth = \"required\"")).expect("a file");
    assert_eq!(gateway.admin("POST", "/admin/reload", None).await.status, 200);
    let mut answers = Vec::new();
    for tenant in ["bank", "shop"] {
        let made = gateway.admin("POST", "/admin/keys", Some(&json!({ "tenant": tenant }))).await.json();
        let bearer = format!("Bearer {}", made["key"].as_str().expect("a key"));
        let headers = [("Authorization", &*bearer), ("Idempotency-Key", "same")];
        let exchange = gateway.client().await.send("POST", CHAT, &headers, Some(&chat("mine", false, 3))).await;
        answers.push(exchange.answer().await);
    }
    assert!(answers.iter().all(|answer| answer.is_whole("mine", 3) && answer.header("x-huntgroup-joined").is_none()));
    assert_eq!(fleet.phones[0].stats().started, 2);
    assert_eq!(joined(&gateway, "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_nobody_comes_back_to_is_cancelled_and_its_slot_is_free() {
    for decode in [true, false] {
        let fleet = Fleet::of(1, &phone(1, 1.0)).await;
        let gateway = Gateway::over(&fleet, "[idempotency]\ngrace = \"300ms\"\n").await;
        let prompt = if decode { "hi".to_owned() } else { "word ".repeat(4000) };
        let mut first = ask(&gateway, "k", &chat(&prompt, true, 2000)).await;
        if decode {
            assert!(first.read_until("\"content\"").await, "{}", first.seen());
        }
        fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("the phone has it");
        first.leave();
        fleet.phones[0].wait_until(PATIENCE, |stats| stats.cancelled == 1).await.expect("cancelled");
        gateway.wait_at_rest().await;
        assert_eq!(gateway.metric("huntgroup_requests_total", "outcome=\"client_gone\"").await, 1.0);
        assert_eq!(gateway.metric("huntgroup_kept_answer_bytes", "").await, 0.0);
        let anew = ask(&gateway, "k", &chat("anew", true, 3)).await.answer().await;
        assert!(anew.is_whole("anew", 3) && anew.header("x-huntgroup-joined").is_none(), "{}", anew.head);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_is_told_to_all_who_joined_and_is_not_kept() {
    for (stream, head_after) in [(false, "10s"), (true, "10s"), (true, "0s")] {
        let fleet = Fleet::of(1, &phone(1, 50.0)).await;
        let config =
            format!("[streams]\nfirst_token_min = \"5s\"\nplain_total = \"5s\"\nhead_after = \"{head_after}\"\n");
        let gateway = Gateway::over(&fleet, &config).await;
        fleet.phones[0].set_fault_within(Fault::FreezeBeforeHead, Scope::Next(1));
        let body = chat("frozen", stream, 3);
        let first = ask(&gateway, "k", &body).await;
        let busy = async |g: &Gateway| g.metric("huntgroup_replica_slots", "state=\"busy\"").await == 1.0;
        gateway.wait_for("a busy slot", busy).await;
        let second = ask(&gateway, "k", &body).await;
        wait_joined(&gateway, 1.0).await;
        let (first, second) = (first.answer().await, second.answer().await);
        let status = if head_after == "0s" { 200 } else { 502 };
        for answer in [&first, &second] {
            assert_eq!(answer.status, status, "{}{}", answer.head, answer.text());
            assert_eq!(answer.error().expect("an error")["code"], "upstream_error", "{}", answer.text());
            assert_eq!(answer.clean, status != 200, "a lost answer does not end cleanly");
        }
        assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
        assert_eq!(second.header("x-huntgroup-joined"), first.header("x-request-id"));
        gateway.wait_at_rest().await;
        let anew = ask(&gateway, "k", &body).await.answer().await;
        assert!(anew.is_whole("frozen", 3) && anew.header("x-huntgroup-joined").is_none(), "{}", anew.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_is_a_status_to_those_without_a_head_and_an_event_to_the_others() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "[streams]\nfirst_token_min = \"5s\"\nhead_after = \"3s\"\n").await;
    fleet.phones[0].set_fault_within(Fault::FreezeBeforeHead, Scope::Next(1));
    let body = chat("frozen", true, 3);
    let mut early = ask(&gateway, "k", &body).await;
    assert!(early.read_until("HTTP/1.1 200").await, "{}", early.seen());
    let late = ask(&gateway, "k", &body).await;
    let (early, late) = (early.answer().await, late.answer().await);
    assert_eq!((early.status, early.clean), (200, false), "{}", early.text());
    assert_eq!((late.status, late.clean), (502, true), "{}", late.text());
    assert_eq!(late.header("x-huntgroup-joined"), early.header("x-request-id"));
    for answer in [early, late] {
        assert_eq!(answer.error().expect("an error")["code"], "upstream_error", "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_joins_is_no_further_request_to_the_rate_limit() {
    let fleet = Fleet::of(1, &phone(1, 4.0)).await;
    let gateway = Gateway::over(&fleet, "[tenants.anonymous]\nrequests_per_minute = 1\n").await;
    let body = chat("once", true, 60);
    let mut first = ask(&gateway, "k", &body).await;
    assert!(first.read_until("\"content\"").await, "{}", first.seen());
    first.leave();
    let again = ask(&gateway, "k", &body).await.answer().await;
    assert!(again.is_whole("once", 60), "{}{}", again.head, again.text());
    assert!(again.header("x-ratelimit-limit-requests").is_none(), "it used nothing up: {}", again.head);
    let other = ask(&gateway, "other", &body).await.answer().await;
    assert_eq!(other.error().expect("an error")["code"], "rate_limit_exceeded", "{}", other.text());
    assert!(ask(&gateway, "k", &body).await.answer().await.is_whole("once", 60), "still known");
    assert_eq!(fleet.phones[0].stats().started, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_finishes_what_its_client_has_left() {
    let fleet = Fleet::of(1, &phone(1, 4.0)).await;
    let mut gateway = Gateway::over(&fleet, "").await;
    let mut first = ask(&gateway, "k", &chat("left behind", true, 200)).await;
    assert!(first.read_until("\"content\"").await, "{}", first.seen());
    first.leave();
    gateway.signal(Signal::TERM);
    assert!(gateway.exited().await.success());
    let stats = fleet.phones[0].stats();
    assert_eq!((stats.completed, stats.cancelled), (1, 0), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_cancel_ends_it_for_all() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let body = chat("cancelled", true, 2000);
    let mut readers = Vec::new();
    for _ in 0..3 {
        let mut reader = ask(&gateway, "k", &body).await;
        assert!(reader.read_until("\"content\"").await, "{}", reader.seen());
        readers.push(reader);
    }
    let live = gateway.admin("GET", "/admin/requests", None).await.json();
    let id = live["data"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(gateway.admin("DELETE", &format!("/admin/requests/{id}"), None).await.status, 200);
    for reader in readers {
        let answer = reader.answer().await;
        assert!(!answer.clean);
        assert_eq!(answer.error().expect("an error event")["code"], "cancelled", "{}", answer.text());
    }
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.cancelled == 1).await.expect("cancelled");
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_joins_is_kept_warm_by_its_own_clock_and_told_the_wait_if_it_asks() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let config = "[streams]\nhead_after = \"0s\"\nkeepalive_interval = \"1s\"\n";
    let (gateway, running) = occupied(&fleet, config).await;
    let body = chat("warm", true, 5);
    let mut first = ask(&gateway, "k", &body).await;
    assert!(first.read_until(": keep-alive\n\n").await, "{}", first.seen());
    let headers = [("Idempotency-Key", "k"), ("X-Huntgroup-Progress", "true")];
    let mut second = gateway.client().await.send("POST", CHAT, &headers, Some(&body)).await;
    assert!(second.read_until(": waiting, about ").await, "{}", second.seen());
    assert!(second.seen().contains("x-huntgroup-joined: req_"), "its early head says it as well: {}", second.seen());
    assert!(!first.seen().contains("waiting"), "{}", first.seen());
    running.leave();
    for answer in [first.answer().await, second.answer().await] {
        assert!(answer.is_whole("warm", 5), "{}{}", answer.head, answer.text());
    }
    assert_eq!(fleet.phones[0].stats().started, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_beyond_the_bound_reaches_its_reader_and_cannot_be_joined() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "[idempotency]\nmax_answer = \"4KiB\"\n").await;
    for stream in [true, false] {
        let body = chat("large", stream, 2000);
        let first = ask(&gateway, "k", &body).await.answer().await;
        assert!(first.body.len() > 4 << 10 && first.is_whole("large", 2000), "{}", first.head);
        let anew = ask(&gateway, "k", &body).await.answer().await;
        assert!(anew.is_whole("large", 2000) && anew.header("x-huntgroup-joined").is_none(), "{}", anew.head);
    }
    gateway.wait_at_rest().await;
    assert_eq!(gateway.metric("huntgroup_kept_answer_bytes", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_are_told_by_their_bodies_where_the_operator_wants_that() {
    let tries = ["0", "1"].map(|count| ("x-stainless-retry-count", count));
    let body = chat("no key", true, 60);
    for (mode, joins) in [("off", [false, false]), ("retries", [false, true]), ("always", [true, true])] {
        let fleet = Fleet::of(3, &phone(1, 4.0)).await;
        let gateway = Gateway::over(&fleet, &format!("[idempotency]\njoin_by_body = \"{mode}\"\n")).await;
        let mut first = gateway.client().await.send("POST", CHAT, &tries[..1], Some(&body)).await;
        assert!(first.read_until("\"content\"").await, "{}", first.seen());
        for (once_more, joins) in tries.iter().zip(joins) {
            let client = gateway.client().await;
            let again = client.send("POST", CHAT, std::slice::from_ref(once_more), Some(&body)).await.answer().await;
            assert!(again.is_whole("no key", 60), "{mode} {once_more:?}: {}{}", again.head, again.text());
            assert_eq!(again.header("x-huntgroup-joined").is_some(), joins, "{mode} {once_more:?}: {}", again.head);
        }
        assert!(first.answer().await.is_whole("no key", 60));
        let ran = fleet.phones.iter().map(|phone| phone.stats().started).sum::<u64>();
        assert_eq!(ran, 3 - joins.iter().filter(|joins| **joins).count() as u64, "{mode}");
        assert_eq!(gateway.metric("huntgroup_client_retries_total", "").await, 1.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_key_hanging_up_cancels_at_once_whatever_the_grace() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "[idempotency]\ngrace = \"1h\"\n").await;
    let mut first = gateway.client().await.post(CHAT, &chat("hi", true, 2000)).await;
    assert!(first.read_until("\"content\"").await, "{}", first.seen());
    first.leave();
    let stats = fleet.phones[0].wait_until(PATIENCE.min(Duration::from_secs(10)), |stats| stats.cancelled == 1).await;
    stats.expect("cancelled");
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_that_lost_their_connections_come_back_and_nothing_is_left() {
    let fleet = Fleet::of(4, &phone(4, 20.0)).await;
    let gateway = Gateway::over(&fleet, "[idempotency]\nkeep = \"0s\"\n").await;
    let port = gateway.public;
    let load = tokio::task::JoinSet::from_iter((0..40).map(|number| async move {
        let (key, prompt) = (format!("key-{number}"), format!("lost {number}"));
        let body = chat(&prompt, number % 2 == 0, 20);
        let headers = [("Idempotency-Key", &*key)];
        for _ in 0..number % 3 {
            Client::connect(port).await.send("POST", CHAT, &headers, Some(&body)).await.leave();
        }
        let answer = Client::connect(port).await.send("POST", CHAT, &headers, Some(&body)).await.answer().await;
        assert!(answer.is_whole(&prompt, 20), "{}{}", answer.head, answer.text());
    }));
    load.join_all().await;
    gateway.wait_at_rest().await;
    // A client has all of its answer a moment before its place in that is given up.
    let kept = async |g: &Gateway| g.metric("huntgroup_kept_answer_bytes", "").await;
    gateway.wait_for("nothing to be kept", async |gateway| kept(gateway).await == 0.0).await;
    assert_eq!(gateway.metric("huntgroup_panics_total", "").await, 0.0);
}
