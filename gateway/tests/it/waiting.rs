//! Honest waits: who waits, for how long still, and why.

use serde_json::{Value, json};

use crate::harness::{Client, Exchange, Fleet, Gateway, chat, phone};

/// The live request with this class.
async fn live(gateway: &Gateway, class: &str) -> Option<Value> {
    let list = gateway.admin("GET", "/admin/requests", None).await.json();
    list["data"].as_array()?.iter().find(|request| request["class"] == class).cloned()
}

async fn explanation(gateway: &Gateway, class: &str) -> Value {
    let request = live(gateway, class).await.expect("it is live");
    let path = format!("/admin/requests/{}/explain", request["id"].as_str().expect("an id"));
    let answer = gateway.admin("GET", &path, None).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn send(gateway: &Gateway, headers: &[(&str, &str)], body: &Value) -> Exchange {
    gateway.client().await.send("POST", "/v1/chat/completions", headers, Some(body)).await
}

/// One phone that is busy for as long as the exchange is kept, and has been measured.
async fn occupied(fleet: &Fleet, config: &str) -> (Gateway, Exchange) {
    let gateway = Gateway::over(fleet, config).await;
    assert!(gateway.chat(&chat("measured", false, 20)).await.is_whole("measured", 20));
    let mut running = send(&gateway, &[], &chat("running", true, 2000)).await;
    assert!(running.read_until("\"content\"").await, "{}", running.seen());
    (gateway, running)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_and_a_running_request_are_explained() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let (gateway, running) = occupied(&fleet, "").await;
    let waiting = send(&gateway, &[("X-Huntgroup-Class", "batch")], &chat("waiting", false, 10)).await;
    gateway.wait_for("it in the queue", async |g| g.metric("huntgroup_queue_depth", "").await == 1.0).await;

    let waits = explanation(&gateway, "batch").await;
    assert_eq!((&waits["request"]["phase"], &waits["ahead"]), (&json!("queued"), &json!(0)), "{waits}");
    assert!(waits["wait_s"].as_f64().is_some_and(|wait| wait > 0.0), "{waits}");
    let best = &waits["candidates"][0];
    assert_eq!((&best["replica"], &best["free"]), (&json!(fleet.phones[0].id()), &json!(false)), "{waits}");

    let runs = explanation(&gateway, "standard").await;
    assert_eq!((&runs["ahead"], &runs["wait_s"]), (&Value::Null, &Value::Null), "{runs}");
    assert_eq!(runs["decision"], "placed", "{runs}");
    assert_eq!(runs["candidates"][0]["replica"], runs["request"]["replica"], "{runs}");
    assert!(runs["output_tokens"].as_f64().is_some_and(|tokens| tokens > 0.0), "{runs}");

    for nobody in ["/admin/requests/req_nobody/explain", "/admin/requests/%20/explain"] {
        assert_eq!(gateway.admin("GET", nobody, None).await.status, 404);
    }
    running.leave();
    assert!(waiting.answer().await.is_whole("waiting", 10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_says_how_long_one_more_would_wait() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let (gateway, _running) = occupied(&fleet, "").await;
    let mut held = Vec::new();
    for number in 0..3 {
        held.push(send(&gateway, &[], &chat(&format!("held {number}"), false, 500)).await);
    }
    gateway.wait_for("a queue", async |g| g.metric("huntgroup_queue_depth", "").await == 3.0).await;
    let queue = gateway.admin("GET", "/admin/queue", None).await.json();
    let of = |class: &str| {
        let lines = queue["data"].as_array().expect("lines");
        lines.iter().find(|line| line["class"] == class && line["model"] == "tiny").cloned().expect(class)
    };
    assert_eq!((&queue["waiting"], &of("standard")["waiting"]), (&json!(3), &json!(3)), "{queue}");
    assert!(queue["waiting_bytes"].as_u64().is_some_and(|bytes| bytes > 100), "{queue}");
    let wait = |class| of(class)["wait_s"].as_f64().expect("an estimate");
    assert!(0.0 < wait("interactive"), "the slot is taken: {queue}");
    assert!(wait("interactive") < wait("standard") && wait("standard") <= wait("batch"), "{queue}");
    let shown = gateway.metric("huntgroup_estimated_wait_seconds", "class=\"standard\"").await;
    assert!((shown - wait("standard")).abs() < 0.5 * wait("standard"), "{shown} on the metrics page, {queue}");
    assert!(gateway.metric("huntgroup_decisions_total", "decision=\"placed\"").await >= 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_tells_its_wait_to_those_who_ask_and_only_while_it_waits() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let (gateway, running) = occupied(&fleet, "[streams]\nhead_after = \"0s\"\nkeepalive_interval = \"1s\"\n").await;
    let mut asking = send(&gateway, &[("X-Huntgroup-Progress", "true")], &chat("asking", true, 5)).await;
    let mut silent = send(&gateway, &[], &chat("silent", true, 5)).await;
    assert!(asking.read_until(": waiting, about ").await && asking.read_until(" s\n\n").await, "{}", asking.seen());
    assert!(silent.read_until(": keep-alive\n\n").await && !silent.seen().contains("waiting"), "{}", silent.seen());
    running.leave();
    for (exchange, prompt) in [(asking, "asking"), (silent, "silent")] {
        let answer = exchange.answer().await;
        assert!(answer.is_whole(prompt, 5), "{}{}", answer.head, answer.text());
    }
    let client = Client::connect(gateway.public).await;
    let body = chat("odd", true, 5);
    let odd = client.send("POST", "/v1/chat/completions", &[("X-Huntgroup-Progress", "yes")], Some(&body)).await;
    let odd = odd.answer().await;
    assert_eq!((odd.status, odd.error().expect("an error")["param"].as_str()), (400, Some("x-huntgroup-progress")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placements_are_logged_with_their_terms_for_those_who_look() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, "[telemetry]\nlog_level = \"debug\"\n").await;
    assert!(gateway.chat(&chat("logged", false, 5)).await.is_whole("logged", 5));
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains("huntgroup::scheduler")).unwrap_or_else(|| panic!("{log}"));
    for word in ["request=", "decision=", "placed", "prefill", fleet.phones[0].id()] {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert!(!line.contains("logged"), "no prompt is in a log line: {line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_waits_at_its_cap_beside_free_slots_until_a_reload_takes_the_cap_away() {
    let fleet = Fleet::of(2, &phone(1, 2.0)).await;
    let (gateway, _running) = occupied(&fleet, "[tenants.anonymous]\nmax_running = 1\n").await;
    let capped = send(&gateway, &[], &chat("capped", false, 5)).await;
    gateway.wait_for("it in the queue", async |g| g.metric("huntgroup_queue_depth", "").await == 1.0).await;
    assert_eq!(gateway.metric("huntgroup_replica_slots", "state=\"free\"").await, 1.0);
    let path = gateway.dir().join("huntgroup.toml");
    let config = std::fs::read_to_string(&path).expect("the configuration");
    std::fs::write(&path, config.replace("max_running = 1", "max_running = \"none\"")).expect("a file");
    let reloaded = gateway.admin("POST", "/admin/reload", Some(&json!({}))).await;
    assert_eq!(reloaded.json()["applied"], json!(["tenants.anonymous.max_running"]), "{}", reloaded.text());
    assert!(capped.answer().await.is_whole("capped", 5));
}
