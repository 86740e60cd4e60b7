//! Cancels that are believed only when they are seen, and what is learned of engines beside that.

use std::time::Duration;

use fakephone::{Continuation, Fault, PhoneConfig, PhoneHandle};
use serde_json::{Value, json};

use crate::harness::{Exchange, Fleet, Gateway, PATIENCE, chat, now, phone};

/// Probes, and with them looks at slots, as often as may be.
const EAGER: &str = "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n";

/// Reads for seconds and writes little.
fn long() -> Value {
    chat(&"word ".repeat(1500), false, 2)
}

async fn replica(gateway: &Gateway, index: usize) -> Value {
    gateway.admin("GET", "/admin/replicas", None).await.json()["data"][index].clone()
}

/// A client that leaves while its prompt is read, by a phone that goes on all the same.
async fn left_behind(fleet: &Fleet, gateway: &Gateway) -> usize {
    fleet.phones.iter().for_each(|phone| phone.set_fault(Fault::IgnoreCancel));
    let exchange: Exchange = gateway.client().await.post("/v1/chat/completions", &long()).await;
    let mut deaf = None;
    gateway
        .wait_for("the prompt to be read", async |_| {
            deaf = fleet.phones.iter().position(|phone| phone.stats().running_now == 1);
            deaf.is_some()
        })
        .await;
    exchange.leave();
    let deaf = deaf.expect("one reads it");
    gateway
        .wait_for("a slot that is taken by nobody", async |gateway| replica(gateway, deaf).await["lingering"] == 1)
        .await;
    fleet.phones.iter().for_each(PhoneHandle::clear_fault);
    deaf
}

fn looks(phone: &PhoneHandle) -> usize {
    phone.requests().iter().filter(|request| request.target == "/slots").count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_request_waits_until_the_phone_shows_a_free_slot_and_is_looked_at_no_more_than_once_a_second() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let began = now();
    left_behind(&fleet, &gateway).await;
    assert_eq!(gateway.metric("huntgroup_replica_slots", "state=\"lingering\"").await, 1.0);
    assert_eq!(gateway.metric("huntgroup_replica_slots", "state=\"free\"").await, 0.0);
    assert_eq!(gateway.chat(&chat("next", false, 2)).await.status, 200);
    let stats = fleet.phones[0].stats();
    assert_eq!((stats.waited, stats.over_subscribed, stats.peak_in_flight), (0, 0, 1), "{stats:?}");
    let (looks, seconds) = (looks(&fleet.phones[0]), now().duration_since(began).as_secs_f64());
    assert!(looks >= 1 && looks as f64 <= seconds + 1.0, "{looks} looks in {seconds} s");
    gateway.wait_for("nothing left", async |gateway| replica(gateway, 0).await["lingering"] == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn meanwhile_the_other_phone_serves() {
    let fleet = Fleet::of(2, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    // It would go on for minutes.
    fleet.phones.iter().for_each(|phone| phone.set_pace(0.05));
    let deaf = left_behind(&fleet, &gateway).await;
    fleet.phones[1 - deaf].set_pace(1.0);
    for _ in 0..5 {
        assert_eq!(gateway.chat(&chat("next", false, 2)).await.status, 200);
    }
    let [busy, other] = [deaf, 1 - deaf].map(|index| fleet.phones[index].stats());
    assert_eq!((busy.started, other.completed), (1, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_that_lists_no_slots_is_believed() {
    let mut config = phone(1, 1.0);
    config.features.slots = false;
    let fleet = Fleet::of(1, &config).await;
    let gateway = Gateway::over(&fleet, "").await;
    let exchange = gateway.client().await.post("/v1/chat/completions", &long()).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("the phone has it");
    exchange.leave();
    gateway.wait_at_rest().await;
    assert_eq!(replica(&gateway, 0).await["lingering"], 0);
    assert_eq!(looks(&fleet.phones[0]), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_whose_slot_works_for_somebody_else_is_shown_as_such_and_left_alone() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, EAGER).await;
    assert_eq!(fleet.phones[0].occupy(1, Duration::from_secs(3600)), 1);
    gateway.wait_for("foreign work", async |gateway| replica(gateway, 0).await["foreign"] == 1).await;
    let shown = replica(&gateway, 0).await;
    assert_eq!(shown["state"], "ready");
    assert!(shown["problem"].as_str().is_some_and(|text| text.contains("work that is not ours")), "{shown}");
    let states = ["busy", "lingering", "foreign", "free"].map(|state| format!("state=\"{state}\""));
    let mut counts = Vec::new();
    for state in &states {
        counts.push(gateway.metric("huntgroup_replica_slots", state).await);
    }
    assert_eq!(counts, [0.0, 0.0, 1.0, 0.0]);
    let waiting = gateway.client().await.post("/v1/chat/completions", &chat("next", false, 2)).await;
    gateway.wait_for("it in the queue", async |g| g.metric("huntgroup_queue_depth", "").await == 1.0).await;
    fleet.phones[0].kill();
    fleet.phones[0].revive();
    assert_eq!(waiting.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_phones_are_one_group_and_who_carries_answers_on_is_asked_for_once() {
    let of = |continuation| PhoneConfig { continuation, ..phone(1, 100.0) };
    let kinds = [Continuation::Exact, Continuation::Exact, Continuation::Refuse, Continuation::Restart];
    let fleet = Fleet::start(kinds.map(of)).await;
    let gateway = Gateway::builder(EAGER).replicas(&fleet).start().await;
    gateway.wait_ready(4).await;
    gateway.wait_known().await;
    let answer = gateway.admin("GET", "/admin/replicas", None).await;
    let list = answer.json()["data"].as_array().cloned().expect("a list");
    let carries: Vec<_> = list.iter().map(|replica| replica["carries_on"] == true).collect();
    assert_eq!(carries, [true, true, false, false]);
    assert!(list[0]["group"].is_string() && list[0]["group"] == list[1]["group"], "{list:?}");
    let name = list[0]["name"].as_str().expect("a name");
    let probed = list[0]["last_probe"]["at"].as_f64();
    // Another statement makes it asked in full.
    let patch = json!({ "labels": { "room": "4" } });
    let patched = gateway.admin("PATCH", &format!("/admin/replicas/{name}"), Some(&patch)).await;
    assert_eq!(patched.status, 200, "{}", patched.text());
    gateway
        .wait_for("another probe", async |gateway| replica(gateway, 0).await["last_probe"]["at"].as_f64() > probed)
        .await;
    let asked = |phone: &PhoneHandle| {
        let chats = |target: &str| target == "/v1/chat/completions";
        phone.requests().iter().filter(|request| request.method == "POST" && chats(&request.target)).count()
    };
    assert_eq!(fleet.phones.iter().map(asked).collect::<Vec<_>>(), [1, 1, 1, 0]);
    assert_eq!(replica(&gateway, 0).await["carries_on"], true);
}
