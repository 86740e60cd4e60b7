//! How many phones there should be, as the running gateway says.

use serde_json::{Value, json};

use crate::harness::{Fleet, Gateway, chat, phone};

/// Looks often, and promises first tokens that one phone can give to one client at a time.
const CONFIG: &str = "[scheduler]\nmax_queued_per_slot = 100\n[capacity]\nevery = \"1s\"\nstandard_ttft = \"1s\"\n";

async fn advice(gateway: &Gateway) -> Value {
    gateway.admin("GET", "/admin/advice", None).await.json()
}

/// The advice on the only model, once there is some that `is_it` holds of.
async fn advised(gateway: &Gateway, is_it: impl Fn(&Value) -> bool) -> Value {
    let mut seen = Value::Null;
    gateway
        .wait_for("advice", async |gateway| {
            seen = advice(gateway).await["data"][0].clone();
            is_it(&seen)
        })
        .await;
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_too_small_asks_for_more_phones() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, CONFIG).await;
    let prompts: Vec<String> = (0..30).map(|number| format!("{number} {}", "word ".repeat(100))).collect();
    let asked = prompts.iter().map(|prompt| async {
        let body = chat(prompt, true, 8);
        gateway.chat(&body).await.is_whole(prompt, 8)
    });
    // All at once: the last waits for all the others. The phone takes its time: an engine's own times are those of its clock.
    let whole = futures_util::future::join_all(asked).await;
    assert!(whole.into_iter().filter(|whole| *whole).count() >= 20);
    let one = advised(&gateway, |one| one["verdict"] == "more" && one["classes"][1]["late"].as_u64() > Some(0)).await;
    assert_eq!(one["now"], json!({"phones": 1, "slots": 1}), "{one}");
    assert!(one["wanted"].as_u64() > Some(1) && one["change"].as_i64() > Some(0), "{one}");
    let standard = &one["classes"][1];
    assert!(standard["late"].as_u64() > Some(0) && standard["attained"].as_f64() < Some(0.95), "{one}");
    assert!(one["reasons"].as_array().is_some_and(|reasons| reasons.len() >= 3), "{one}");
    assert!(gateway.metric("huntgroup_replicas_wanted", "").await > 1.0);
    assert!(gateway.metric("huntgroup_objective_attained", "class=\"standard\"").await < 0.95);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_pool_needs_fewer_and_says_nothing_before_there_is_traffic() {
    let fleet = Fleet::of(5, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "[capacity]\nevery = \"1s\"\n").await;
    let nothing = advised(&gateway, |one| one["verdict"] == "unknown").await;
    assert_eq!((&nothing["wanted"], &nothing["change"]), (&Value::Null, &Value::Null), "{nothing}");
    for number in 0..25 {
        let prompt = format!("{number} hello");
        assert!(gateway.chat(&chat(&prompt, true, 4)).await.is_whole(&prompt, 4));
    }
    let one = advised(&gateway, |one| one["verdict"] == "fewer").await;
    assert_eq!(one["now"]["phones"], 5, "{one}");
    assert!(one["wanted"].as_u64().is_some_and(|wanted| (1..5).contains(&wanted)), "{one}");
    assert_eq!(one["confidence"], "low", "{one}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_nobody_knows_is_advised_nothing() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "[capacity]\nevery = \"1s\"\n").await;
    let mut body = chat("hello", false, 4);
    body["model"] = json!("no-such-model");
    gateway.chat(&body).await;
    gateway.wait_for("a look", async |gateway| advice(gateway).await["at"].is_u64()).await;
    let list = advice(&gateway).await;
    assert!(
        list["data"].as_array().is_some_and(|data| data.iter().all(|one| one["model"] != "no-such-model")),
        "{list}"
    );
}
