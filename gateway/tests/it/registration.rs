//! Phones that come by themselves: the callback of their apps, redeploys, heartbeats, and how they go.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use fakephone::{PhoneHandle, Reply, SigningKey};
use serde_json::{Value, json};

use crate::harness::{Client, Fleet, Gateway, chat, free_port, phone};

pub const TOKEN: &str = "phones-0123456789abcdef";
const REGISTRATION: &str = "[registration]\ntoken = \"file:token\"\n";

/// A gateway without replicas that takes announcements and trusts these phones' authority.
pub async fn gateway(fleet: &Fleet, config: &str) -> Gateway {
    let config = format!("{REGISTRATION}{config}");
    Gateway::builder(&config).trust(fleet).secret("token", TOKEN).start().await
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "phones sign the time of day")]
pub fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis()).expect("before 2554")
}

pub fn callback(port: u16) -> String {
    format!("http://127.0.0.1:{port}/admin/register?token={TOKEN}")
}

/// What a phone's app says.
pub async fn say(gateway: &Gateway, body: &Value) -> Reply {
    fakephone::call(&callback(gateway.admin), &[], body.to_string().as_bytes()).await.expect("an answer")
}

/// The same, signed for that moment with a nonce of its own.
pub async fn sign_at(gateway: &Gateway, key: &SigningKey, at_ms: u64, body: &Value) -> Reply {
    static NONCE: AtomicU64 = AtomicU64::new(0);
    let nonce = format!("nonce-{:08}", NONCE.fetch_add(1, Ordering::Relaxed));
    let body = body.to_string();
    let headers = key.headers(&at_ms.to_string(), &nonce, body.as_bytes());
    fakephone::call(&callback(gateway.admin), &headers, body.as_bytes()).await.expect("an answer")
}

pub async fn sign(gateway: &Gateway, key: &SigningKey, body: &Value) -> Reply {
    sign_at(gateway, key, now_ms(), body).await
}

pub fn started(phone: &PhoneHandle) -> Value {
    json!({ "event": "started", "url": phone.url() })
}

pub async fn replica(gateway: &Gateway, id: &Value) -> Value {
    gateway.admin("GET", &format!("/admin/replicas/{id}"), None).await.json()
}

pub async fn actions(gateway: &Gateway) -> Vec<String> {
    let audit = gateway.admin("GET", "/admin/audit?limit=999", None).await.json();
    let action = |entry: &Value| entry["action"].as_str().expect("an action").to_owned();
    audit["data"].as_array().expect("a list").iter().map(action).collect()
}

pub async fn count(gateway: &Gateway) -> usize {
    gateway.admin("GET", "/admin/replicas", None).await.json()["data"].as_array().expect("a list").len()
}

#[tokio::test]
async fn the_callback_alone_brings_phones_to_serving_whichever_shape_and_content_type_their_app_has() {
    let fleet = Fleet::of(4, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "").await;
    let urls: Vec<&str> = fleet.phones.iter().map(PhoneHandle::url).collect();
    for (headers, body) in [
        (vec![("Content-Type", "application/json".to_owned())], json!({"event": "started", "url": urls[0]})),
        (vec![("Content-Type", "text/plain".to_owned())], json!({"event": "started", "webUrl": urls[1], "port": 8080})),
        (vec![], json!({"event": "started", "data": {"url": urls[2]}, "timestamp": "now"})),
        (vec![("Origin", "null".to_owned())], started(&fleet.phones[3])),
    ] {
        let body = body.to_string();
        let reply = fakephone::call(&callback(gateway.admin), &headers, body.as_bytes()).await.expect("an answer");
        assert_eq!(reply.status, 201, "{body}: {reply:?}");
    }
    assert_eq!(say(&gateway, &json!({"event": "model_ready", "data": {"model": "x"}})).await.status, 202);
    gateway.wait_ready(4).await;
    assert!(gateway.chat(&chat("hello", false, 8)).await.is_whole("hello", 8));
    let again = say(&gateway, &started(&fleet.phones[0])).await;
    assert_eq!((again.status, &again.json()["outcome"]), (200, &json!("known")));
    let shown = replica(&gateway, &again.json()["id"]).await;
    assert_eq!((&shown["source"], &shown["verification"]), (&json!("registration"), &json!("token")));
    assert!(shown["announced_at"].as_f64().is_some_and(|at| at > 1e9), "{shown}");
    assert_eq!(actions(&gateway).await.iter().filter(|action| *action == "replica.add").count(), 4);
    assert_eq!(gateway.metric("huntgroup_registrations_total", "outcome=\"accepted\"").await, 4.0);
}

#[tokio::test]
async fn what_a_phone_says_that_it_costs_counts_in_nothing_until_an_operator_states_it() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "").await;
    let claims = |at: usize, cost: f64| json!({ "event": "started", "url": fleet.phones[at].url(), "replica": { "cost_acu_per_day": cost } });
    let by_token = say(&gateway, &claims(0, 900_000.0)).await.json()["id"].clone();
    // A key of its own is anybody's to make.
    let by_key = sign(&gateway, &SigningKey::from_seed(3), &claims(1, 900_000.0)).await.json()["id"].clone();
    gateway.wait_ready(2).await;
    assert!(gateway.chat(&chat("hello", false, 8)).await.is_whole("hello", 8));
    let cost = async || gateway.admin("GET", "/admin/cost?window=all", None).await.json();
    for id in [&by_token, &by_key] {
        let shown = replica(&gateway, id).await;
        assert_eq!((&shown["cost_acu_per_day"], &shown["claimed_cost_acu_per_day"]), (&Value::Null, &json!(900_000.0)));
    }
    let counted = cost().await;
    assert_eq!((&counted["per_day"], &counted["total"], &counted["used"]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!(counted["replicas"], json!({ "priced": 0, "unpriced": 2 }));
    assert_eq!(gateway.metric("huntgroup_pool_cost_acu_total", "").await, 0.0);
    // Stated as it is claimed, or otherwise, it is the operator's word.
    let patch = async |id: &Value, cost: Value| {
        let path = format!("/admin/replicas/{id}");
        gateway.admin("PATCH", &path, Some(&json!({ "cost_acu_per_day": cost }))).await.json()
    };
    assert_eq!(patch(&by_key, json!(900_000.0)).await["claimed_cost_acu_per_day"], Value::Null);
    assert_eq!(patch(&by_token, json!(2.0)).await["cost_acu_per_day"], 2.0);
    assert_eq!(say(&gateway, &claims(0, 5.0)).await.status, 200);
    assert_eq!(replica(&gateway, &by_token).await["cost_acu_per_day"], 2.0);
    assert_eq!(cost().await["per_day"], 900_002.0);
    // Taken back, it is the phone's again to claim.
    patch(&by_token, Value::Null).await;
    assert_eq!(say(&gateway, &claims(0, 5.0)).await.status, 200);
    let shown = replica(&gateway, &by_token).await;
    assert_eq!((&shown["cost_acu_per_day"], &shown["claimed_cost_acu_per_day"]), (&Value::Null, &json!(5.0)));
    let priced = cost().await["replicas"].clone();
    assert_eq!(priced, json!({ "priced": 1, "unpriced": 1 }));
    // Stated with the address, it takes the phone over as ever.
    let add = json!({ "url": fleet.phones[0].url(), "cost_acu_per_day": 5.0 });
    let added = gateway.admin("POST", "/admin/replicas", Some(&add)).await.json();
    assert_eq!(
        (&added["cost_acu_per_day"], &added["source"], &added["held"]),
        (&json!(5.0), &json!("admin"), &json!([]))
    );
}

#[tokio::test]
async fn what_an_operator_states_about_a_phone_that_came_by_itself_stands_against_what_it_says() {
    let mut fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let mut gateway = gateway(&fleet, "").await;
    let key = SigningKey::from_seed(7);
    let says = |url: &str, slots: u16| {
        let replica = json!({ "slots": slots, "labels": { "by": "phone" }, "expires_at": 4_000_000_000_u64 });
        json!({ "event": "started", "url": url, "replica": replica })
    };
    let id = sign(&gateway, &key, &says(fleet.phones[0].url(), 1)).await.json()["id"].clone();
    let path = format!("/admin/replicas/{id}");
    let change = json!({ "expires_at": 4_100_000_000_u64, "labels": { "room": "4" }, "api_key": "secret" });
    let changed = gateway.admin("PATCH", &path, Some(&change)).await.json();
    assert_eq!(changed["held"], json!(["api_key", "expires_at", "labels"]));
    let stands = async |gateway: &Gateway, slots: u16| {
        let shown = replica(gateway, &id).await;
        assert_eq!((&shown["expires_at"], &shown["slots"]), (&json!(4_100_000_000_u64), &json!(slots)), "{shown}");
        assert_eq!(shown["labels"], json!({ "by": "phone", "room": "4" }));
    };
    assert_eq!(sign(&gateway, &key, &says(fleet.phones[0].url(), 2)).await.status, 200);
    stands(&gateway, 2).await;
    assert_eq!(gateway.admin("POST", "/admin/reload", None).await.status, 200);
    stands(&gateway, 2).await;
    gateway.child.kill().expect("the process runs");
    gateway.exited().await;
    gateway.restart().await;
    assert_eq!(sign(&gateway, &key, &says(fleet.phones[0].url(), 3)).await.status, 200);
    stands(&gateway, 3).await;
    assert_eq!(replica(&gateway, &id).await["has_api_key"], true);
    // The key was given for that address, the rest is about the phone.
    fleet.phones.clear();
    let redeployed = fleet.relay.spawn(phone(1, 100.0).with_seed(99)).expect("a phone");
    let moved = sign(&gateway, &key, &says(redeployed.url(), 2)).await;
    assert_eq!(moved.json()["outcome"], "moved", "{moved:?}");
    stands(&gateway, 2).await;
    let shown = replica(&gateway, &id).await;
    assert_eq!((&shown["has_api_key"], &shown["held"]), (&json!(false), &json!(["expires_at", "labels"])));
}

#[tokio::test]
async fn a_redeploy_under_a_new_address_keeps_number_name_and_history_and_begins_with_its_health_anew() {
    let mut fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "").await;
    let key = SigningKey::from_seed(7);
    let first = sign(&gateway, &key, &started(&fleet.phones[0])).await;
    assert_eq!((first.status, &first.json()["verification"]), (201, &json!("signed")), "{first:?}");
    let id = first.json()["id"].clone();
    gateway.wait_ready(1).await;
    assert!(gateway.chat(&chat("before", false, 8)).await.is_whole("before", 8));
    let before = replica(&gateway, &id).await;
    fleet.phones.clear();
    gateway.wait_for("the old address to be out", async |gateway| gateway.states("ready").await == 0).await;
    let redeployed = fleet.relay.spawn(phone(1, 100.0).with_seed(99)).expect("a phone");
    let moved = sign(&gateway, &key, &started(&redeployed)).await;
    assert_eq!((moved.status, &moved.json()["outcome"], &moved.json()["id"]), (200, &json!("moved"), &id), "{moved:?}");
    gateway.wait_ready(1).await;
    assert!(gateway.chat(&chat("after", false, 8)).await.is_whole("after", 8));
    let after = replica(&gateway, &id).await;
    assert_eq!((&after["name"], &after["added_at"]), (&before["name"], &before["added_at"]));
    assert_eq!((&after["url"], &after["public_key"]), (&json!(redeployed.url()), &json!(key.public())));
    let history = after["history"].as_array().expect("a history");
    let old = before["history"].as_array().expect("a history");
    assert_eq!(history[..old.len()], old[..], "what was before is still known");
    assert!(history.iter().any(|change| change["reason"] == "moved" && change["to"] == "joining"), "{history:?}");
    assert_eq!(count(&gateway).await, 1);
    let moves = actions(&gateway).await.iter().filter(|action| *action == "replica.move").count();
    assert_eq!(moves, 1);
}

#[tokio::test]
async fn a_phone_without_a_key_is_known_again_by_its_place_in_a_deployment() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "").await;
    let at = |phone: &PhoneHandle, processor: &str| {
        json!({ "event": "started", "url": phone.url(), "processor": processor,
                "jobId": [{ "acurast": "5Grw" }, 4711], "replica": { "slots": 3, "labels": { "room": "4" } } })
    };
    let first = say(&gateway, &at(&fleet.phones[0], "5Fphone")).await.json();
    let shown = replica(&gateway, &first["id"]).await;
    assert_eq!((&shown["deployment"], &shown["processor"]), (&json!("Acurast:5Grw:4711"), &json!("5Fphone")));
    assert_eq!((&shown["stated"]["slots"], &shown["labels"]), (&json!(3), &json!({ "room": "4" })));
    let moved = say(&gateway, &at(&fleet.phones[1], "5Fphone")).await.json();
    assert_eq!((&moved["outcome"], &moved["id"]), (&json!("moved"), &first["id"]));
    let other = say(&gateway, &at(&fleet.phones[0], "5Fother")).await.json();
    assert_eq!(other["outcome"], "accepted");
    assert_ne!(other["id"], first["id"]);
}

#[tokio::test]
async fn a_phone_says_how_it_is_what_is_wrong_and_that_it_goes() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "").await;
    let key = SigningKey::from_seed(1);
    let lost = sign(&gateway, &key, &json!({ "event": "heartbeat" })).await;
    assert_eq!(
        (lost.status, &lost.json()["error"]["code"]),
        (404, &json!("unknown_phone")),
        "it is told to announce itself"
    );
    let report = json!({ "battery": 81, "charging": true, "temperature": 36.5 });
    let beat = json!({ "event": "heartbeat", "url": fleet.phones[0].url(), "report": report });
    let first = sign(&gateway, &key, &beat).await;
    assert_eq!(
        (first.status, &first.json()["outcome"]),
        (201, &json!("accepted")),
        "a heartbeat with an address announces"
    );
    let id = first.json()["id"].clone();
    assert_eq!(sign(&gateway, &key, &beat).await.json()["outcome"], "heartbeat");
    assert_eq!(sign(&gateway, &key, &json!({ "event": "heartbeat" })).await.status, 200);
    gateway.wait_ready(1).await;
    let broken = sign(&gateway, &key, &json!({ "event": "error", "error": "no\nmemory" })).await;
    assert_eq!((broken.status, &broken.json()["outcome"]), (200, &json!("error")));
    let shown = replica(&gateway, &id).await;
    assert_eq!(
        (&shown["last_event"]["event"], &shown["last_event"]["problem"]),
        (&json!("error"), &json!("no memory"))
    );
    // It works on, and whoever looks at a list sees it all the same.
    assert_eq!((&shown["state"], &shown["problem"]), (&json!("ready"), &json!("the phone says: no memory")));
    assert_eq!(shown["silent"], json!(false));
    let gone = sign(&gateway, &key, &json!({ "event": "leaving" })).await;
    assert_eq!((gone.status, &gone.json()["outcome"]), (200, &json!("leaving")));
    gateway.wait_for("its end", async |gateway| count(gateway).await == 0).await;
    let back = sign(&gateway, &key, &started(&fleet.phones[0])).await;
    assert_eq!((back.status, &back.json()["outcome"]), (201, &json!("accepted")), "it may come back");
}

#[tokio::test]
async fn a_phone_that_leaves_ends_what_it_has_begun() {
    let fleet = Fleet::of(1, &phone(1, 5.0)).await;
    let gateway = gateway(&fleet, "").await;
    let key = SigningKey::from_seed(1);
    sign(&gateway, &key, &started(&fleet.phones[0])).await;
    gateway.wait_ready(1).await;
    let mut stream = gateway.client().await.post("/v1/chat/completions", &chat("long", true, 60)).await;
    assert!(stream.read_until("content").await);
    assert_eq!(sign(&gateway, &key, &json!({ "event": "leaving" })).await.status, 200);
    assert!(stream.answer().await.is_whole("long", 60));
    gateway.wait_for("its end", async |gateway| count(gateway).await == 0).await;
}

#[tokio::test]
async fn phones_have_a_listener_that_knows_nothing_else() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let port = free_port();
    let gateway = gateway(&fleet, &format!("listen = \"127.0.0.1:{port}\"\n")).await;
    let body = started(&fleet.phones[0]).to_string();
    let reply = fakephone::call(&callback(port), &[], body.as_bytes()).await.expect("an answer");
    assert_eq!(reply.status, 201, "{reply:?}");
    gateway.wait_ready(1).await;
    for (method, path) in [
        ("GET", "/admin/replicas"),
        ("POST", "/admin/replicas"),
        ("DELETE", "/admin/replicas/1"),
        ("GET", "/metrics"),
        ("GET", "/healthz"),
        ("GET", "/admin/openapi.json"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/admin/register/"),
        ("GET", "/"),
    ] {
        let answer = Client::connect(port).await.send(method, path, &[], None).await.answer().await;
        assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text());
    }
    let answer = Client::connect(port).await.send("GET", "/admin/register", &[], None).await.answer().await;
    assert_eq!(answer.status, 405);
}

#[tokio::test]
async fn without_a_token_nothing_is_taken_and_the_answer_says_what_to_do() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = Gateway::builder("").trust(&fleet).start().await;
    let reply = say(&gateway, &started(&fleet.phones[0])).await;
    assert_eq!(reply.status, 404);
    assert!(reply.body.contains("registration.token") && !reply.body.contains(TOKEN), "{}", reply.body);
    assert_eq!(count(&gateway).await, 0);
}

#[tokio::test]
async fn removing_a_phone_says_what_brings_it_back_and_that_does() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "").await;
    let enter = async |event: &str| {
        let said = json!({ "event": event, "url": fleet.phones[0].url() });
        say(&gateway, &said).await.json()["id"].clone()
    };
    let remove = async |id: &Value| {
        let removed = gateway.admin("DELETE", &format!("/admin/replicas/{id}?force=true"), None).await;
        removed.json()["note"].as_str().map(str::to_owned).unwrap_or_default()
    };
    let first = enter("started").await;
    assert!(remove(&first).await.contains("as a new phone, when its app starts anew"));
    let second = enter("started").await;
    assert_ne!(first, second, "it is a new phone");
    enter("heartbeat").await;
    assert!(remove(&second).await.contains("it comes back with the next one, as a new phone"));
    assert_eq!(count(&gateway).await, 0);
    enter("heartbeat").await;
    assert_eq!(count(&gateway).await, 1, "and so it does");
}
