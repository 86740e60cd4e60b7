//! Deployments whose end is known.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Fleet, Gateway, chat, phone};

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the end of a deployment is a time of day")]
fn unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

async fn replica(gateway: &Gateway) -> Value {
    gateway.admin("GET", "/admin/replicas", None).await.json()["data"][0].clone()
}

async fn state(gateway: &Gateway, change: &Value) {
    let id = replica(gateway).await["id"].clone();
    let answer = gateway.admin("PATCH", &format!("/admin/replicas/{id}"), Some(change)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_that_has_ended_gets_no_work_and_one_that_is_extended_does_again() {
    let fleet = Fleet::of(1, &phone(2, 50.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    state(&gateway, &json!({"expires_at": unix() - 1})).await;
    gateway.wait_for("the drain", async |gateway| gateway.states("draining").await == 1).await;
    let ended = replica(&gateway).await;
    assert_eq!((&ended["state_reason"], &ended["draining"]), (&json!("ending"), &json!(false)), "{ended}");
    assert!(ended["ends_in_s"].as_f64().is_some_and(|left| left < 0.0));
    assert_eq!(gateway.admin("GET", "/readyz", None).await.status, 503);
    let waiting = gateway.client().await.post("/v1/chat/completions", &chat("hello", false, 4)).await;
    state(&gateway, &json!({"expires_at": unix() + 86_400})).await;
    gateway.wait_ready(1).await;
    assert!(waiting.answer().await.is_whole("hello", 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_whose_deployment_has_ended_before_it_is_known_never_gets_work_and_neither_after_a_restart() {
    let fleet = Fleet::of(1, &phone(2, 50.0)).await;
    let mut gateway = Gateway::builder("").trust(&fleet).start().await;
    let over = json!({"url": fleet.phones[0].url(), "expires_at": unix() - 60});
    let added = gateway.admin("POST", "/admin/replicas", Some(&over)).await;
    assert!(added.status < 300, "{}", added.text());
    for life in ["new", "restarted"] {
        gateway.wait_for("a probe", async |gateway| replica(gateway).await["last_probe"].is_object()).await;
        gateway.wait_for("the drain", async |gateway| gateway.states("draining").await == 1).await;
        let ended = replica(&gateway).await;
        let states: Vec<&Value> =
            ended["history"].as_array().into_iter().flatten().map(|change| &change["to"]).collect();
        assert!(states.iter().all(|to| *to == "draining"), "{life}: {ended}");
        gateway.signal(Signal::TERM);
        assert!(gateway.exited().await.success());
        gateway.restart().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployments_are_listed_by_their_end_with_what_goes_with_them() {
    let fleet = Fleet::of(3, &phone(2, 50.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let list = gateway.admin("GET", "/admin/replicas", None).await.json();
    let ids: Vec<Value> = list["data"].as_array().into_iter().flatten().map(|replica| replica["id"].clone()).collect();
    for (id, deployment, left, cost) in
        [(&ids[0], "a", 9000, 0.5), (&ids[1], "b", 3000, 0.25), (&ids[2], "b", 5000, 0.5)]
    {
        let change =
            json!({"labels": {"deployment_id": deployment}, "expires_at": unix() + left, "cost_acu_per_day": cost});
        assert_eq!(gateway.admin("PATCH", &format!("/admin/replicas/{id}"), Some(&change)).await.status, 200);
    }
    let list = gateway.admin("GET", "/admin/deployments", None).await.json();
    let [first, second] = [&list["data"][0], &list["data"][1]];
    assert_eq!((&first["deployment"], &second["deployment"]), (&json!("b"), &json!("a")), "{list}");
    assert_eq!(
        (&first["slots"], &first["ready_slots"], &first["cost_acu_per_day"]),
        (&json!(4), &json!(4), &json!(0.75))
    );
    assert_eq!(first["share_of_ready_slots"], json!(0.667), "{list}");
    assert_eq!(first["replicas"].as_array().map(Vec::len), Some(2));
    assert!(first["ends_in_s"].as_i64().is_some_and(|left| (2_900..=3_000).contains(&left)), "{list}");
    assert_eq!(gateway.metric("huntgroup_deployment_slots", "deployment=\"b\"").await, 4.0);
    let left = gateway.metric("huntgroup_deployment_seconds_to_end", "deployment=\"b\"").await;
    assert!((2_900.0..=3_000.0).contains(&left), "{left}");
    gateway.wait_for("the warning", async |gateway| gateway.log().contains("a deployment ends; renew it")).await;
    let said = gateway.log().matches("a deployment ends; renew it").count();
    assert_eq!(said, 2, "once for each deployment");
}
