//! When all are busy, requests queue in order and within bounds.

use serde_json::json;
use tokio::task::JoinSet;

use crate::harness::{Fleet, Gateway, chat, phone};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_phone_is_ever_given_more_than_its_slots() {
    let fleet = Fleet::start([1, 2, 4].map(|slots| phone(slots, 20.0))).await;
    let gateway = Gateway::over(&fleet, "").await;
    let port = gateway.public;
    let load = JoinSet::from_iter((0..40).map(|number| async move {
        let prompt = format!("load {number}");
        let client = crate::harness::Client::connect(port).await;
        let answer = client.post("/v1/chat/completions", &chat(&prompt, number % 2 == 0, 10)).await.answer().await;
        assert!(answer.is_whole(&prompt, 10), "{}{}", answer.head, answer.text());
    }));
    load.join_all().await;
    assert_eq!(fleet.over_subscribed(), 0);
    for phone in &fleet.phones {
        let stats = phone.stats();
        assert_eq!(stats.peak_running, u32::from(phone.config().slots), "every slot was used: {stats:?}");
    }
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_with_its_own_code_and_a_time_to_come_back() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "[scheduler]\nmax_queued = 2\n").await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(gateway.client().await.post("/v1/chat/completions", &chat("held", false, 2000)).await);
    }
    gateway.wait_for("a full queue", async |gateway| gateway.metric("huntgroup_queue_depth", "").await == 2.0).await;
    let refused = gateway.chat(&chat("one too many", false, 2)).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.error().expect("an error")["code"], "queue_full");
    let after: u64 = refused.header("retry-after").and_then(|text| text.parse().ok()).expect("a time");
    assert!((1..=60).contains(&after), "{after}");
    for exchange in held {
        exchange.leave();
    }
    gateway.wait_at_rest().await;
    assert!(gateway.chat(&chat("room again", false, 2)).await.is_whole("room again", 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_urgent_go_first() {
    let fleet = Fleet::of(1, &phone(1, 2.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let running = gateway.client().await.post("/v1/chat/completions", &chat("running", false, 200)).await;
    gateway.wait_for("a busy slot", async |g| g.metric("huntgroup_replica_slots", "state=\"busy\"").await == 1.0).await;
    let mut waiting = JoinSet::new();
    for (depth, class) in ["batch", "standard", "interactive"].into_iter().enumerate() {
        let client = gateway.client().await;
        let body = chat(class, false, 2);
        let exchange = client.send("POST", "/v1/chat/completions", &[("X-Huntgroup-Class", class)], Some(&body)).await;
        waiting.spawn(async move { (class, exchange.answer().await.status) });
        let depth = (depth + 1) as f64;
        gateway.wait_for("it in the queue", async |g| g.metric("huntgroup_queue_depth", "").await == depth).await;
    }
    running.leave();
    let mut order = Vec::new();
    while let Some(done) = waiting.join_next().await {
        order.push(done.expect("answered"));
    }
    assert_eq!(order, [("interactive", 200), ("standard", 200), ("batch", 200)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_in_the_queue_and_in_a_running_attempt() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    for _ in 0..2 {
        // The first time it runs when the deadline passes; the second time something else runs.
        let client = gateway.client().await;
        let body = chat(&"word ".repeat(4000), false, 2000);
        let answer = client.send("POST", "/v1/chat/completions", &[("X-Huntgroup-Deadline", "0.5")], Some(&body)).await;
        let answer = answer.answer().await;
        assert_eq!(answer.status, 504, "{}", answer.text());
        assert_eq!(answer.error().expect("an error")["code"], "deadline_exceeded");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        gateway.wait_at_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_model_is_refused_at_once_and_a_known_one_without_replica_waits_for_it() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = Gateway::builder("[models.tiny]\naliases = [\"gpt-4o-mini\"]\n").trust(&fleet).start().await;
    let mut body = chat("early", false, 2);
    body["model"] = json!("nobody-knows-it");
    let unknown = gateway.chat(&body).await;
    assert_eq!((unknown.status, unknown.error().expect("an error")["code"].as_str()), (404, Some("model_not_found")));
    body["model"] = json!("gpt-4o-mini");
    let waiting = gateway.client().await.post("/v1/chat/completions", &body).await;
    gateway.wait_for("it in the queue", async |g| g.metric("huntgroup_queue_depth", "").await == 1.0).await;
    let added = gateway.admin("POST", "/admin/replicas", Some(&json!({ "url": fleet.phones[0].url() }))).await;
    assert!(added.status < 300, "{}", added.text());
    let answer = waiting.answer().await;
    assert!(answer.is_whole("early", 2), "{}{}", answer.head, answer.text());
    assert_eq!(answer.json()["model"], "gpt-4o-mini", "the client sees the name it asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_short_of_memory_refuses_new_requests_and_nothing_else() {
    let fleet = Fleet::of(1, &phone(1, 2.0)).await;
    let gateway = Gateway::over(&fleet, "[limits]\nmax_memory = \"1GiB\"\n").await;
    let mut running = gateway.client().await.post("/v1/chat/completions", &chat("running", true, 100)).await;
    assert!(running.read_until("\"content\"").await);
    let path = gateway.dir().join("huntgroup.toml");
    let config = std::fs::read_to_string(&path).expect("the configuration");
    std::fs::write(&path, config.replace("1GiB", "1MiB")).expect("a file");
    assert!(gateway.admin("POST", "/admin/reload", Some(&json!({}))).await.status < 300);
    gateway.wait_for("a refusal", async |gateway| gateway.chat(&chat("new", false, 1)).await.status == 503).await;
    let refused = gateway.chat(&chat("new", false, 1)).await;
    assert_eq!(refused.error().expect("an error")["code"], "overloaded", "{}", refused.text());
    assert!(refused.text().contains("limits.max_memory"), "{}", refused.text());
    assert!(running.answer().await.is_whole("running", 100), "what runs is left alone");
    std::fs::write(&path, config).expect("a file");
    assert!(gateway.admin("POST", "/admin/reload", Some(&json!({}))).await.status < 300);
    gateway.wait_for("an answer", async |gateway| gateway.chat(&chat("new", false, 1)).await.status == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_that_claims_absurd_usage_uses_up_nobodys_tokens() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "[limits]\ntokens_per_minute = 100000\n").await;
    fleet.phones[0].set_fault(fakephone::Fault::SillyUsage);
    for round in 0..5 {
        let answer = gateway.chat(&chat("silly", round % 2 == 0, 4)).await;
        assert_eq!(answer.status, 200, "round {round}: {}", answer.text());
        assert_eq!(answer.header("x-ratelimit-limit-tokens"), Some("100000"));
    }
}
