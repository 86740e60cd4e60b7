//! Draining, stopping, upgrading: nothing that runs is cut.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    harness::{Client, Fleet, Gateway, PATIENCE, chat, now, phone},
    registration,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_a_replica_cuts_nothing_and_sends_new_work_elsewhere() {
    let fleet = Fleet::of(2, &phone(1, 2.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut running = gateway.client().await.post("/v1/chat/completions", &chat("long", true, 100)).await;
    assert!(running.read_until("\"content\"").await);
    let busy = fleet.phones.iter().position(|phone| phone.stats().running_now == 1).expect("one runs it");
    let path = format!("/admin/replicas/{}", fleet.phones[busy].id());
    let drained = gateway.admin("POST", &format!("{path}/drain"), Some(&json!({}))).await;
    assert!(drained.status < 300, "{}", drained.text());
    for round in 0..3 {
        let prompt = format!("elsewhere {round}");
        let answer = gateway.chat(&chat(&prompt, false, 2)).await;
        assert!(answer.is_whole(&prompt, 2), "{}", answer.text());
    }
    let answer = running.answer().await;
    assert!(answer.is_whole("long", 100), "{}{}", answer.head, answer.text());
    assert_eq!(fleet.phones[busy].stats().started, 1);
    let back = gateway.admin("POST", &format!("{path}/undrain"), None).await;
    assert!(back.status < 300, "{}", back.text());
    gateway.wait_ready(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn term_finishes_what_runs_and_leaves_at_once_afterwards() {
    let fleet = Fleet::of(3, &phone(1, 1.0)).await;
    let mut gateway = Gateway::over(&fleet, "").await;
    let mut running = Vec::new();
    for number in 0..3 {
        let mut exchange =
            gateway.client().await.post("/v1/chat/completions", &chat(&format!("run {number}"), true, 240)).await;
        assert!(exchange.read_until("\"content\"").await, "{}", exchange.seen());
        running.push(exchange);
    }
    let queued = gateway.client().await.post("/v1/chat/completions", &chat("queued", false, 2)).await;
    gateway
        .wait_for("one in the queue", async |gateway| gateway.metric("huntgroup_queue_depth", "").await == 1.0)
        .await;
    gateway.signal(Signal::TERM);
    for (number, exchange) in running.into_iter().enumerate() {
        let answer = exchange.answer().await;
        assert!(answer.is_whole(&format!("run {number}"), 240), "{}{}", answer.head, answer.text());
    }
    assert!(queued.answer().await.is_whole("queued", 2));
    let last = now();
    let status = gateway.exited().await;
    assert!(status.success(), "{status}");
    assert!(last.elapsed() < PATIENCE, "left {:?} after the last answer", last.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_past_its_limit_ends_streams_with_an_error_event() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let mut gateway = Gateway::over(&fleet, "drain_limit = \"1s\"\n").await;
    let mut running = gateway.client().await.post("/v1/chat/completions", &chat("long", true, 2000)).await;
    assert!(running.read_until("\"content\"").await);
    gateway.signal(Signal::TERM);
    let answer = running.answer().await;
    assert!(!answer.clean);
    assert_eq!(answer.error().expect("an error event")["code"], "draining", "{}", answer.text());
    assert!(gateway.exited().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_refuses_no_connection_and_cuts_no_stream() {
    let fleet = Fleet::of(8, &phone(4, 20.0)).await;
    let mut gateway = Gateway::over(&fleet, "").await;
    let mut long = gateway.client().await.post("/v1/chat/completions", &chat("across", true, 600)).await;
    assert!(long.read_until("\"content\"").await);
    let port = gateway.public;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let load = tokio::task::JoinSet::from_iter((0..4).map(|client| {
        let stopped = stopped.clone();
        async move {
            let mut answered = 0;
            while !*stopped.borrow() {
                let prompt = format!("client {client} request {answered}");
                let exchange = Client::connect(port).await.post("/v1/chat/completions", &chat(&prompt, false, 2)).await;
                let answer = exchange.answer().await;
                assert!(answer.is_whole(&prompt, 2), "{}{}", answer.head, answer.text());
                answered += 1;
            }
            answered
        }
    }));
    let mut successor = gateway.successor();
    let left = gateway.exited();
    let long = long.answer();
    let (status, long) = tokio::join!(left, long);
    assert!(status.success(), "{status}");
    assert!(long.is_whole("across", 600), "{}{}", long.head, long.text());
    let before = gateway.chat(&chat("after", false, 2)).await;
    assert!(before.is_whole("after", 2), "the successor answers: {}", before.text());
    stop.send_replace(true);
    let answered: usize = load.join_all().await.into_iter().sum();
    assert!(answered > 20, "{answered} requests during the upgrade");
    successor.kill().expect("it runs");
    successor.wait().expect("a child of ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_loses_no_phone_that_was_taken_and_no_drain() {
    let fleet = Fleet::of(2, &phone(4, 1.0)).await;
    let mut gateway = registration::gateway(&fleet, "max_new_per_minute = 100000\nmax_unproven = 100000\n").await;
    for phone in &fleet.phones {
        assert_eq!(registration::say(&gateway, &registration::started(phone)).await.status, 201);
    }
    gateway.wait_ready(2).await;
    let mut long = gateway.client().await.post("/v1/chat/completions", &chat("across", true, 4_000)).await;
    assert!(long.read_until("\"content\"").await);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let callback = registration::callback(gateway.admin);
    let load = tokio::task::JoinSet::from_iter([async move {
        let mut calls = tokio::task::JoinSet::new();
        for n in 0.. {
            if *stopped.borrow() {
                break;
            }
            let callback = callback.clone();
            // Each by itself: some wait for the successor, which listens before it serves.
            calls.spawn(async move {
                let url = format!("https://p{n}.invalid");
                let body = json!({ "event": "started", "url": url }).to_string();
                // A call that meets the end of the old listener is not answered, and the phone would call again.
                let reply = fakephone::call(&callback, &[], body.as_bytes()).await;
                reply.is_ok_and(|reply| reply.status == 201).then_some(url)
            });
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        calls.join_all().await.into_iter().flatten().collect::<Vec<_>>()
    }]);
    let mut successor = gateway.successor();
    gateway.wait_for("the hand-over", async |gateway| gateway.log().matches("huntgroup listens on").count() == 2).await;
    // The predecessor lives: its stream goes on. Operators and phones are the successor's.
    let drained = gateway.admin("POST", "/admin/replicas/2/drain", None).await;
    assert_eq!(drained.status, 200, "{}", drained.text());
    stop.send_replace(true);
    let taken: Vec<_> = load.join_all().await.into_iter().flatten().collect();
    assert!(taken.len() > 5, "{taken:?}");
    for _ in 0..8 {
        let list = gateway.admin("GET", "/admin/replicas", None).await.json();
        let list = list["data"].as_array().expect("a list").clone();
        let missing: Vec<_> = taken.iter().filter(|url| !list.iter().any(|known| known["url"] == **url)).collect();
        assert!(missing.is_empty(), "{missing:?} of {}", taken.len());
        assert!(list.iter().any(|replica| replica["id"] == 2 && replica["state"] == "draining"));
    }
    assert!(gateway.child.try_wait().expect("a child of ours").is_none(), "the predecessor still writes");
    successor.kill().expect("it runs");
    successor.wait().expect("a child of ours");
}

/// Whether a key was revoked; an error: the connection met the end of its listener.
async fn revoked(admin: u16, id: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", admin)).await?;
    let head = format!("DELETE /admin/keys/{id} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.starts_with("HTTP/1.1 200 "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_revoked_opens_nothing_after_an_upgrade_whenever_that_was() {
    const KEYS: usize = 30;
    let fleet = Fleet::of(1, &phone(4, 100.0)).await;
    let gateway = Gateway::over(&fleet, "[limits]\nfailed_auth_per_minute = 100000\n").await;
    let file = gateway.dir().join("huntgroup.toml");
    let text = std::fs::read_to_string(&file).expect("its configuration");
    std::fs::write(&file, text.replace("auth = \"none\"", "auth = \"required\"")).expect("a file");
    assert_eq!(gateway.admin("POST", "/admin/reload", None).await.status, 200);
    let mut keys = Vec::new();
    for _ in 0..KEYS {
        let made = gateway.admin("POST", "/admin/keys", Some(&json!({ "tenant": "bank" }))).await.json();
        keys.push((made["id"].to_string(), format!("Bearer {}", made["key"].as_str().expect("a key"))));
    }
    let models = async |key: &str| {
        let client = gateway.client().await;
        client.send("GET", "/v1/models", &[("Authorization", key)], None).await.answer().await.status
    };
    assert_eq!(models(&keys[0].1).await, 200);
    // One after the other, before, through and after the hand-over; who is not answered asks again.
    let (admin, ended) = (gateway.admin, keys[1..].to_vec());
    let revoking = tokio::task::JoinSet::from_iter([async move {
        for (id, _) in ended {
            let deadline = now() + PATIENCE;
            loop {
                let call = revoked(admin, &id);
                if tokio::time::timeout(Duration::from_secs(5), call)
                    .await
                    .is_ok_and(|done| done.is_ok_and(|done| done))
                {
                    break;
                }
                assert!(now() < deadline, "nobody revokes {id}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }]);
    let mut successor = gateway.successor();
    gateway.wait_for("the hand-over", async |gateway| gateway.log().matches("huntgroup listens on").count() == 2).await;
    revoking.join_all().await;
    // The predecessor lets clients in for some seconds more: the last key is none there either, at the latest a moment later.
    let (last, mut refused) = (now(), 0);
    while refused < 12 {
        refused = if models(&keys[KEYS - 1].1).await == 401 { refused + 1 } else { 0 };
        assert!(last.elapsed() < Duration::from_secs(1), "the last key still passes");
    }
    for _ in 0..3 {
        for (id, key) in &keys[1..] {
            assert_eq!(models(key).await, 401, "{id}");
        }
        assert_eq!(models(&keys[0].1).await, 200);
    }
    successor.kill().expect("it runs");
    successor.wait().expect("a child of ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_that_is_drained_or_removed_after_an_upgrade_gets_no_work_of_the_predecessor_either() {
    let fleet = Fleet::of(3, &phone(4, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let list = gateway.admin("GET", "/admin/replicas", None).await.json();
    let named = |index: usize| (list["data"][index]["id"].to_string(), list["data"][index]["name"].clone());
    let mut successor = gateway.successor();
    gateway.wait_for("the hand-over", async |gateway| gateway.log().matches("huntgroup listens on").count() == 2).await;
    gateway.wait_ready(3).await;
    // Which process answers is chance: the predecessor lets clients in for some seconds more.
    let served = async || {
        let answer = gateway.chat(&chat("who", false, 1)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        Value::from(answer.header("x-huntgroup-replica").unwrap_or_default())
    };
    let calls = [
        ("POST", format!("/admin/replicas/{}/drain", named(0).0)),
        ("DELETE", format!("/admin/replicas/{}", named(1).0)),
    ];
    for (index, (method, path)) in calls.iter().enumerate() {
        let done = gateway.admin(method, path, None).await;
        assert!(done.status < 300, "{}", done.text());
        let told = now();
        while told.elapsed() < Duration::from_millis(1_500) {
            let late = told.elapsed() > Duration::from_millis(500);
            let by = served().await;
            assert!(!late || (0..=index).all(|gone| named(gone).1 != by), "{by} after {method}");
        }
    }
    assert_eq!(gateway.log().matches("handing over to a successor").count(), 1);
    successor.kill().expect("it runs");
    successor.wait().expect("a child of ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quit_without_a_successor_changes_nothing() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    gateway.signal(Signal::QUIT);
    gateway.wait_for("a word about it", async |gateway| gateway.log().contains("no successor")).await;
    assert!(gateway.chat(&chat("still here", false, 2)).await.is_whole("still here", 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_loses_no_replica_and_no_drain() {
    let fleet = Fleet::of(3, &phone(1, 50.0)).await;
    let builder = Gateway::builder("").trust(&fleet);
    let mut gateway = builder.start().await;
    for phone in &fleet.phones {
        let added = gateway.admin("POST", "/admin/replicas", Some(&json!({ "url": phone.url() }))).await;
        assert!(added.status < 300, "{}", added.text());
    }
    gateway.wait_ready(3).await;
    let path = format!("/admin/replicas/{}/drain", fleet.phones[0].id());
    assert!(gateway.admin("POST", &path, Some(&json!({}))).await.status < 300);
    gateway.signal(Signal::KILL);
    gateway.child.wait().expect("a child of ours");
    gateway.restart().await;
    gateway.wait_ready(2).await;
    assert_eq!(gateway.states("draining").await, 1);
    assert!(gateway.chat(&chat("again", false, 2)).await.is_whole("again", 2));
    fleet.phones[1].wait_until(PATIENCE, |stats| stats.probes > 0).await.expect("probed");
}
