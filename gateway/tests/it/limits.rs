//! Phones that say how they are get less before they are lost, or too hot.

use serde_json::{Value, json};

use crate::{
    harness::{Fleet, Gateway, chat, phone},
    registration::{gateway, replica, say, started},
};

const EAGER: &str = "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n";

/// A phone that came by itself, its gateway, and its number.
async fn one(config: &str) -> (Fleet, Gateway, Value) {
    let fleet = Fleet::of(1, &phone(4, 100.0)).await;
    let gateway = gateway(&fleet, &format!("{EAGER}{config}")).await;
    assert!(say(&gateway, &started(&fleet.phones[0])).await.status < 300);
    gateway.wait_ready(1).await;
    let id = gateway.admin("GET", "/admin/replicas", None).await.json()["data"][0]["id"].clone();
    (fleet, gateway, id)
}

async fn report(fleet: &Fleet, gateway: &Gateway, report: Value) {
    let beat = json!({"event": "heartbeat", "url": fleet.phones[0].url(), "report": report});
    let answer = say(gateway, &beat).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_that_runs_down_gets_fewer_requests_and_then_none_until_it_is_charged() {
    let (fleet, gateway, id) = one("").await;
    report(&fleet, &gateway, json!({"battery": 25, "charging": false, "temperature": 31.5})).await;
    let low = replica(&gateway, &id).await;
    assert_eq!(
        (&low["limit"]["level"], &low["usable_slots"], &low["state"]),
        (&json!("fewer"), &json!(2), &json!("ready"))
    );
    assert_eq!(low["report"]["temperature"], json!(31.5), "{low}");
    assert_eq!(gateway.metric("huntgroup_replica_limited", "reason=\"battery\"").await, 1.0);
    assert!(gateway.chat(&chat("hello", false, 4)).await.is_whole("hello", 4));

    report(&fleet, &gateway, json!({"battery": 12, "charging": false})).await;
    let empty = replica(&gateway, &id).await;
    assert_eq!((&empty["limit"]["level"], &empty["usable_slots"]), (&json!("paused"), &json!(0)));
    assert_eq!(empty["problem"], json!("battery 12 %, not charging: paused below 15 %"), "{empty}");
    assert_eq!(gateway.metric("huntgroup_replica_limited", "reason=\"battery\"").await, 2.0);
    assert_eq!(gateway.admin("GET", "/readyz", None).await.status, 503, "nobody takes work");
    let waiting = gateway.client().await.post("/v1/chat/completions", &chat("hello", false, 4)).await;
    gateway
        .wait_for("a request that waits", async |gateway| {
            gateway.admin("GET", "/admin/requests", None).await.json()["data"][0]["phase"] == "queued"
        })
        .await;

    report(&fleet, &gateway, json!({"battery": 13, "charging": true})).await;
    assert!(waiting.answer().await.is_whole("hello", 4));
    assert_eq!(replica(&gateway, &id).await["limit"], Value::Null);
    assert_eq!(gateway.metric("huntgroup_replica_limited", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_phone_said_long_ago_does_not_count() {
    let (fleet, gateway, id) = one("[reports]\nstale_after = \"10s\"\n").await;
    report(&fleet, &gateway, json!({"temperature": 46})).await;
    assert_eq!(replica(&gateway, &id).await["limit"]["level"], json!("paused"));
    gateway.wait_for("an old report", async |gateway| replica(gateway, &id).await["limit"].is_null()).await;
}
