//! What phones cost is written down: for whom, what for, and what for nothing.

use fakephone::{Fault, Scope};
use serde_json::{Value, json};

use crate::harness::{Fleet, Gateway, chat, now, phone};

/// One ACU a second: amounts are then seconds.
const A_SECOND: f64 = 86_400.0;

async fn state_price(gateway: &Gateway, phone: &str, acu_per_day: f64) {
    let stated = json!({ "cost_acu_per_day": acu_per_day });
    let answer = gateway.admin("PATCH", &format!("/admin/replicas/{phone}"), Some(&stated)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn cost(gateway: &Gateway) -> Value {
    let answer = gateway.admin("GET", "/admin/cost?window=all", None).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[track_caller]
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[track_caller]
fn close(left: f64, right: f64) {
    assert!((left - right).abs() < 1e-6 * left.abs().max(right.abs()).max(1e-6), "{left} is not {right}");
}

/// Used, wasted and idle are the whole; so are tenants, models and reasons.
#[track_caller]
fn adds_up(cost: &Value) {
    let [total, used, wasted, idle] = ["total", "used", "wasted", "idle"].map(|part| number(&cost[part]));
    close(used + wasted + idle, total);
    let sum = |list: &str, part: &str| -> f64 {
        cost[list].as_array().expect("a list").iter().filter_map(|row| row[part].as_f64()).sum()
    };
    for list in ["tenants", "models"] {
        close(sum(list, "used"), used);
        close(sum(list, "wasted"), wasted);
    }
    close(sum("models", "total"), total);
    let reasons = cost["wasted_by_reason"].as_object().expect("reasons");
    close(reasons.values().map(number).sum(), wasted);
}

#[track_caller]
fn of<'a>(cost: &'a Value, list: &str, name: &str) -> &'a Value {
    let mut rows = cost[list].as_array().expect("a list").iter();
    rows.find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {cost}"))
}

/// Makes the gateway want keys, and a key for each of these tenants.
async fn keys<const N: usize>(gateway: &Gateway, tenants: [&str; N]) -> [String; N] {
    let file = gateway.dir().join("huntgroup.toml");
    let text = std::fs::read_to_string(&file).expect("its configuration");
    std::fs::write(&file, text.replace("auth = \"none\"", "auth = \"required\"")).expect("a file");
    assert_eq!(gateway.admin("POST", "/admin/reload", None).await.status, 200);
    let mut keys = tenants.map(str::to_owned);
    for key in &mut keys {
        let made = gateway.admin("POST", "/admin/keys", Some(&json!({ "tenant": key }))).await;
        *key = format!("Bearer {}", made.json()["key"].as_str().expect("a key"));
    }
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tenants_split_what_they_use_and_all_of_it_is_what_the_pool_costs() {
    let fleet = Fleet::of(2, &phone(2, 20.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let [bank, shop] = keys(&gateway, ["bank", "shop"]).await;
    let before = now();
    for phone in &fleet.phones {
        state_price(&gateway, phone.id(), A_SECOND).await;
    }
    let priced = now();
    for number in 0..8 {
        let key = if number % 4 == 0 { &shop } else { &bank };
        let body = chat(&format!("question {number}"), number % 2 == 0, 40);
        let headers = [("Authorization", key.as_str())];
        let answer = gateway.client().await.send("POST", "/v1/chat/completions", &headers, Some(&body)).await;
        assert!(answer.answer().await.is_whole(&format!("question {number}"), 40));
    }
    gateway.wait_at_rest().await;
    let asked = now();
    let cost = cost(&gateway).await;
    let answered = now();

    adds_up(&cost);
    let total = number(&cost["total"]);
    assert!(total >= 2.0 * asked.saturating_duration_since(priced).as_secs_f64(), "{total}");
    assert!(total <= 2.0 * answered.saturating_duration_since(before).as_secs_f64(), "{total}");
    assert_eq!((&cost["replicas"]["priced"], &cost["replicas"]["unpriced"]), (&json!(2), &json!(0)));
    close(number(&cost["per_day"]), 2.0 * A_SECOND);
    let (bank, shop) = (of(&cost, "tenants", "bank"), of(&cost, "tenants", "shop"));
    assert_eq!((&bank["requests"], &shop["requests"]), (&json!(6), &json!(2)));
    assert_eq!((&bank["completion_tokens"], &shop["completion_tokens"]), (&json!(240), &json!(80)));
    assert!(number(&bank["used"]) > number(&shop["used"]) && number(&shop["used"]) > 0.0, "{cost}");
    assert!(bank["total"].is_null() && bank["idle"].is_null(), "tenants keep no replicas: {bank}");
    close(number(&cost["per_request"]["total"]), total / 8.0);
    close(number(&cost["per_request"]["slots"]), (number(&cost["used"]) + number(&cost["wasted"])) / 8.0);
    let tokens = &cost["per_million_tokens"];
    assert!(number(&tokens["prompt"]) > 0.0 && number(&tokens["completion"]) > 0.0, "{tokens}");

    // Half a slot's price a second: two slots share it.
    close(number(&cost["slot_seconds"]) / 2.0, number(&cost["used"]) + number(&cost["wasted"]));
    for tenant in ["bank", "shop"] {
        let label = format!("tenant=\"{tenant}\"");
        let row = of(&cost, "tenants", tenant);
        let shown = gateway.metric("huntgroup_tenant_cost_acu_total", &label).await;
        close(shown, number(&row["used"]) + number(&row["wasted"]));
        assert_eq!(gateway.metric("huntgroup_tenant_requests_in_flight", &label).await, 0.0);
        assert_eq!(gateway.metric("huntgroup_tenant_queue_depth", &label).await, 0.0);
        let ended = gateway.metric("huntgroup_tenant_requests_total", &label).await;
        assert_eq!(ended, number(&row["requests"]));
    }
    assert!(gateway.metric("huntgroup_pool_cost_acu_total", "").await >= total);
    close(gateway.metric("huntgroup_pool_cost_acu_per_day", "model=\"tiny\"").await, 2.0 * A_SECOND);
    assert_eq!(gateway.log().matches("cost_acu").count(), 8, "each request's line has its cost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_brings_no_answer_is_wasted_by_how_it_ended() {
    // Each request finds one that does not fail.
    let fleet = Fleet::of(3, &phone(1, 2.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    for phone in &fleet.phones {
        state_price(&gateway, phone.id(), A_SECOND).await;
    }
    // A client that leaves.
    let mut exchange = gateway.client().await.post("/v1/chat/completions", &chat("leave", true, 2000)).await;
    assert!(exchange.read_until("\"content\"").await, "{}", exchange.seen());
    exchange.leave();
    gateway.wait_at_rest().await;
    let left = cost(&gateway).await;
    adds_up(&left);
    assert!(number(&left["wasted_by_reason"]["client_gone"]) > 0.0, "{left}");
    close(number(&left["used"]), 0.0);
    assert_eq!((&left["requests"], left["per_request"]["slots"].is_null()), (&json!(0), true), "nobody was answered");

    // Phones that fail: another one answers, and what they took was for nothing.
    for phone in &fleet.phones[..2] {
        phone.set_fault_within(Fault::CutAfter { chunks: 0, mid_word: false }, Scope::Next(1));
    }
    for question in ["first", "second"] {
        let answer = gateway.chat(&chat(question, true, 10)).await;
        assert!(answer.is_whole(question, 10), "{}{}", answer.head, answer.text());
    }
    gateway.wait_at_rest().await;
    let failed = cost(&gateway).await;
    adds_up(&failed);
    let reasons = failed["wasted_by_reason"].as_object().expect("reasons");
    assert!(reasons.iter().any(|(reason, cost)| reason != "client_gone" && number(cost) > 0.0), "{failed}");
    assert!(number(&failed["used"]) > 0.0 && failed["requests"] == 2, "{failed}");
    close(number(&failed["wasted"]), gateway.metric("huntgroup_wasted_cost_acu_total", "").await);
    // By the same seconds as the slots' time that was wasted: one slot, one ACU a second.
    close(number(&failed["wasted"]), gateway.metric("huntgroup_wasted_slot_seconds_total", "").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_without_a_price_is_counted_apart_and_never_as_free() {
    let fleet = Fleet::of(2, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    assert!(gateway.chat(&chat("hello", false, 5)).await.is_whole("hello", 5));
    gateway.wait_at_rest().await;
    let unknown = cost(&gateway).await;
    for part in ["total", "used", "wasted", "idle", "per_day"] {
        assert!(unknown[part].is_null(), "{part} of {unknown}");
    }
    assert_eq!(unknown["replicas"], json!({ "priced": 0, "unpriced": 2 }));
    assert!(number(&unknown["unpriced_slot_seconds"]) > 0.0 && unknown["requests"] == 1, "{unknown}");
    let text = gateway.admin("GET", "/metrics", None).await.text();
    for metric in ["huntgroup_cost_acu_total", "huntgroup_pool_cost_acu_total", "huntgroup_pool_cost_acu_per_day"] {
        assert!(!text.contains(&format!("{metric}{{")), "{metric} is shown");
    }
    assert_eq!(gateway.metric("huntgroup_replicas_unpriced", "").await, 2.0);
    assert!(!gateway.log().contains("cost_acu"), "no request line has a cost");

    state_price(&gateway, fleet.phones[0].id(), A_SECOND).await;
    let known = cost(&gateway).await;
    assert_eq!(known["replicas"], json!({ "priced": 1, "unpriced": 1 }));
    adds_up(&known);
    // A phone that goes away costs nothing any more.
    let path = format!("/admin/replicas/{}?force=true", fleet.phones[0].id());
    assert!(gateway.admin("DELETE", &path, None).await.status < 300);
    let (first, second) = (cost(&gateway).await, cost(&gateway).await);
    assert_eq!((&first["total"], &first["per_day"]), (&second["total"], &Value::Null));
    assert!(number(&first["total"]) > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_are_an_hour_a_day_or_all() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    for window in ["1h", "24h", "all"] {
        let answer = gateway.admin("GET", &format!("/admin/cost?window={window}"), None).await.json();
        assert_eq!((&answer["window"], &answer["unit"]), (&json!(window), &json!("ACU")));
        let [from, to, since] = ["from", "to", "counted_since"].map(|moment| number(&answer[moment]));
        assert!(from <= to && (from - since).abs() < 1.0, "it has not run for an hour: {answer}");
    }
    assert_eq!(gateway.admin("GET", "/admin/cost", None).await.json()["window"], "24h");
    let odd = gateway.admin("GET", "/admin/cost?window=2h", None).await;
    assert_eq!((odd.status, &odd.json()["error"]["param"]), (400, &json!("window")));
}
