//! How fast a replica is taken to be: stated, remembered, typical of its model.

use fakephone::PhoneConfig;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Fleet, Gateway, chat, phone};

async fn first_replica(gateway: &Gateway) -> Value {
    gateway.admin("GET", "/admin/replicas", None).await.json()["data"][0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_measured_speed_is_remembered_over_a_restart() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let mut gateway = Gateway::over(&fleet, "").await;
    let typical = first_replica(&gateway).await["assumed"].clone();
    assert!(typical["decode_tokens_per_second"].is_f64(), "the engine tells the model's size: {typical}");
    let prompt = "word ".repeat(400);
    assert!(gateway.chat(&chat(&prompt, true, 40)).await.is_whole(&prompt, 40));
    let measured = first_replica(&gateway).await;
    assert!(measured["prefill_tokens_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{measured}");
    gateway.signal(Signal::TERM);
    assert!(gateway.exited().await.success());
    gateway.restart().await;
    gateway.wait_ready(1).await;
    let remembered = first_replica(&gateway).await;
    for rate in ["prefill_tokens_per_second", "decode_tokens_per_second"] {
        assert_eq!(remembered["assumed"][rate], measured[rate], "{remembered}");
        assert_ne!(remembered["assumed"][rate], typical[rate], "{remembered}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_says_its_size_has_a_typical_speed_until_an_operator_states_one() {
    let fleet = Fleet::of(1, &PhoneConfig::default().with_model("qwen3.5-4b")).await;
    let gateway = Gateway::over(&fleet, "").await;
    let replica = first_replica(&gateway).await;
    let assumed = &replica["assumed"];
    assert_eq!(assumed["decode_tokens_per_second"], 9.25, "half of what the fastest phones have: {assumed}");
    let path = format!("/admin/replicas/{}", replica["id"]);
    let stated = gateway.admin("PATCH", &path, Some(&json!({"decode_rate": 7.0}))).await.json();
    assert_eq!(stated["assumed"]["decode_tokens_per_second"], 7.0);
    assert_eq!(stated["assumed"]["prefill_tokens_per_second"], assumed["prefill_tokens_per_second"]);
    let taken_back = gateway.admin("PATCH", &path, Some(&json!({"decode_rate": null}))).await.json();
    assert_eq!(&taken_back["assumed"], assumed);
}
