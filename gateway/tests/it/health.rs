//! Whether the gateway tells busy from dead, and knows what each engine is without asking too much.

use fakephone::{Dialect, Fault, PhoneConfig, PhoneHandle};
use serde_json::{Value, json};

use crate::harness::{Fleet, Gateway, chat, phone};

/// Probes once a second: the tests wait for the second one.
const EAGER: &str = "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n";

fn asked(phone: &PhoneHandle) -> Vec<String> {
    phone.requests().iter().map(|request| format!("{} {}", request.method, request.target)).collect()
}

async fn replicas(gateway: &Gateway) -> Vec<Value> {
    gateway.admin("GET", "/admin/replicas", None).await.json()["data"].as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn every_engine_is_recognised_and_serves_what_it_can() {
    let of = |dialect| PhoneConfig { slots: 3, ..phone(1, 100.0).with_dialect(dialect) };
    let fleet = Fleet::start(Dialect::ALL.map(of)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let list = replicas(&gateway).await;
    let dialects: Vec<_> = list.iter().map(|replica| replica["dialect"].as_str().unwrap()).collect();
    assert_eq!(dialects, ["llama", "qvac", "mnn", "mnn_app", "laya"]);
    let slots: Vec<_> = list.iter().map(|replica| replica["slots"].as_u64().unwrap()).collect();
    assert_eq!(slots, [3, 1, 1, 1, 1], "only llama-server says how many");
    assert_eq!(list[4]["routes"], json!(["systemone"]));
    // Each of the four serves a chat when the others are drained.
    for (index, replica) in list.iter().take(4).enumerate() {
        for other in list.iter().take(4).filter(|other| other["id"] != replica["id"]) {
            gateway.admin("POST", &format!("/admin/replicas/{}/drain", other["id"]), None).await;
        }
        let model = replica["models"][0].as_str().unwrap();
        let answer = gateway
            .chat(&json!({ "model": model, "max_tokens": 4, "messages": [{ "role": "user", "content": "x" }] }))
            .await;
        assert_eq!(
            (answer.status, answer.header("x-huntgroup-replica")),
            (200, replica["name"].as_str()),
            "{}",
            dialects[index]
        );
        for other in &list {
            gateway.admin("POST", &format!("/admin/replicas/{}/undrain", other["id"]), None).await;
        }
    }
    let question =
        json!({ "model": "laya", "state": "x", "questions": { "q": { "type": "noul", "instructions": "is it x?" } } });
    let decision = gateway.client().await.post("/v1/systemone", &question).await.answer().await;
    assert_eq!(decision.status, 200, "{}", decision.text());
}

#[tokio::test]
async fn a_phone_that_works_for_us_is_asked_for_its_health_and_its_slots_and_nothing_else() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, EAGER).await;
    let mut stream = gateway.client().await.post("/v1/chat/completions", &chat("hello", true, 4_000)).await;
    assert!(stream.read_until("\"content\"").await);
    let phone = &fleet.phones[0];
    gateway
        .wait_for("two probes beside the answer", async |_| {
            let after = asked(phone).into_iter().skip_while(|call| !call.starts_with("POST /v1/chat")).skip(1);
            after.filter(|call| call == "GET /health").count() >= 2
        })
        .await;
    let calls = asked(phone);
    let beside: Vec<_> = calls.iter().skip_while(|call| !call.starts_with("POST /v1/chat")).skip(1).collect();
    assert!(beside.iter().all(|call| *call == "GET /health" || *call == "GET /slots"), "{calls:?}");
    stream.leave();
    gateway.wait_at_rest().await;
}

#[tokio::test]
async fn a_busy_phone_whose_probes_hang_stays_in_the_pool() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, EAGER).await;
    let mut stream = gateway.client().await.post("/v1/chat/completions", &chat("hello", true, 200)).await;
    assert!(stream.read_until("\"content\"").await);
    fleet.phones[0].set_fault(Fault::Busy { late_s: None });
    gateway
        .wait_for("a probe to time out", async |gateway| {
            replicas(gateway).await[0]["last_probe"]["result"] == "timed_out"
        })
        .await;
    assert_eq!(replicas(&gateway).await[0]["state"], "ready");
    fleet.phones[0].clear_fault();
    assert!(stream.answer().await.is_whole("hello", 200));
}

#[tokio::test]
async fn a_loading_phone_is_waited_for_and_says_how_far_it_is() {
    let load = std::time::Duration::from_secs(3);
    let fleet = Fleet::of(1, &phone(1, 1.0).with_dialect(Dialect::Laya).with_load_time(load)).await;
    let gateway = Gateway::builder(EAGER).replicas(&fleet).start().await;
    gateway.wait_for("the phone to be loading", async |gateway| replicas(gateway).await[0]["state"] == "loading").await;
    assert_eq!(replicas(&gateway).await[0]["problem"], "loading its model (50 %)");
    gateway.wait_ready(1).await;
    assert_eq!(replicas(&gateway).await[0]["problem"], Value::Null);
}

#[tokio::test]
async fn a_hundred_phones_are_not_probed_in_one_instant() {
    let fleet = Fleet::of(100, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, "[health]\ninterval = \"2s\"\ntimeout = \"2s\"\n").await;
    gateway
        .wait_for("every phone to be probed again", async |_| {
            fleet.phones.iter().all(|phone| asked(phone).contains(&"GET /health".to_owned()))
        })
        .await;
    let first = |phone: &PhoneHandle| phone.requests().first().map_or(0.0, |request| request.unix_s);
    let mut times: Vec<f64> = fleet.phones.iter().map(first).collect();
    times.sort_by(f64::total_cmp);
    let crowd = times.windows(34).map(|window| window[33] - window[0]).fold(f64::INFINITY, f64::min);
    assert!(crowd > 0.03, "a third of the pool was probed within {crowd} s");
}

#[tokio::test]
async fn a_tunnels_page_takes_a_phone_out_and_its_going_brings_it_back() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, &format!("{EAGER}penalty = \"1s\"\n")).await;
    fleet.phones[0].set_fault(Fault::Html { status: 404 });
    gateway.wait_for("one phone to be out", async |gateway| gateway.states("out").await == 1).await;
    let list = replicas(&gateway).await;
    let out = list.iter().find(|replica| replica["state"] == "out").unwrap();
    assert!(out["problem"].as_str().unwrap().contains("web page"), "{out}");
    assert!(out["history"].as_array().unwrap().iter().any(|change| change["to"] == "out"));
    for number in 0..5 {
        let prompt = format!("hello {number}");
        assert!(gateway.chat(&chat(&prompt, false, 4)).await.is_whole(&prompt, 4));
    }
    fleet.phones[0].clear_fault();
    gateway.wait_for("the phone to come back", async |gateway| gateway.states("out").await == 0).await;
}

#[tokio::test]
async fn after_a_restart_phones_that_are_not_there_are_out_for_a_reason_and_back_as_soon_as_they_are() {
    let fleet = Fleet::of(3, &phone(2, 100.0)).await;
    let mut gateway = Gateway::over(&fleet, EAGER).await;
    gateway.signal(rustix::process::Signal::TERM);
    gateway.exited().await;
    fleet.phones[0].set_fault(Fault::Refuse);
    fleet.phones[1].set_fault(Fault::BlackHole);
    gateway.restart().await;
    gateway.wait_for("two phones to be out", async |gateway| gateway.states("out").await == 2).await;
    gateway.wait_ready(1).await;
    let list = replicas(&gateway).await;
    for (replica, reason, words) in
        [(&list[0], "hard_failure", "no phone of this name"), (&list[1], "probe", "no answer in health.timeout")]
    {
        assert_eq!((&replica["state"], &replica["state_reason"]), (&json!("out"), &json!(reason)), "{replica}");
        assert!(replica["problem"].as_str().is_some_and(|text| text.contains(words)), "{replica}");
        let history = replica["history"].as_array().expect("a list");
        assert_eq!((history.len(), &history[0]["from"]), (1, &json!("joining")), "{replica}");
    }
    assert!(gateway.chat(&chat("hello", false, 4)).await.is_whole("hello", 4), "the others work");
    fleet.phones.iter().for_each(PhoneHandle::clear_fault);
    gateway.wait_ready(3).await;
    let ways = |replica: &Value| {
        replica["history"].as_array().expect("a list").iter().map(|step| step["to"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ways(&replicas(&gateway).await[0]), ["out", "ready"], "there is nothing to make good");
}

#[tokio::test]
async fn after_a_restart_a_model_whose_phones_are_all_away_is_waited_for_and_still_known() {
    let fleet = Fleet::of(1, &phone(2, 100.0)).await;
    let config = format!("{EAGER}[scheduler]\nno_replica_wait = \"1s\"\n");
    let mut gateway = Gateway::over(&fleet, &config).await;
    assert!(gateway.chat(&chat("hello", false, 4)).await.is_whole("hello", 4));
    gateway.signal(rustix::process::Signal::TERM);
    gateway.exited().await;
    fleet.phones[0].set_fault(Fault::Refuse);
    gateway.restart().await;
    gateway.wait_for("the phone to be out", async |gateway| gateway.states("out").await == 1).await;
    let refused = gateway.chat(&chat("hello", false, 4)).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("no_capacity")), "{}", refused.text());
    let unknown = gateway.chat(&json!({ "model": "other", "messages": chat("hello", false, 4)["messages"] })).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    fleet.phones[0].clear_fault();
    gateway.wait_ready(1).await;
    assert!(gateway.chat(&chat("hello", false, 4)).await.is_whole("hello", 4));
}
