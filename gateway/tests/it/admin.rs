//! What operators do while the gateway runs: add, change, drain, remove; keys, requests, events, reload; who may.

use fakephone::Fault;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Fleet, Gateway, PATIENCE, chat, phone};

/// A gateway that knows no phone yet but trusts these.
async fn empty(fleet: &Fleet, config: &str) -> Gateway {
    Gateway::builder(config).trust(fleet).start().await
}

async fn call(gateway: &Gateway, method: &str, path: &str, body: Value) -> Answer {
    gateway.admin(method, path, Some(&body)).await
}

async fn add(gateway: &Gateway, body: Value) -> Answer {
    call(gateway, "POST", "/admin/replicas", body).await
}

async fn replica(gateway: &Gateway, name: &str) -> Value {
    gateway.admin("GET", &format!("/admin/replicas/{name}"), None).await.json()
}

async fn wait_for_state(gateway: &Gateway, name: &str, state: &str) {
    gateway
        .wait_for(&format!("{name} to be {state}"), async |gateway| replica(gateway, name).await["state"] == state)
        .await;
}

fn escaped(url: &str) -> String {
    url.replace(':', "%3A").replace('/', "%2F")
}

#[tokio::test]
async fn a_phone_added_while_running_serves_and_adding_it_again_changes_nothing() {
    let fleet = Fleet::of(1, &phone(2, 100.0)).await;
    let gateway = empty(&fleet, "").await;
    let url = fleet.phones[0].url().to_owned();
    let added = add(&gateway, json!({ "url": url, "labels": { "room": "4" } })).await;
    assert_eq!(added.status, 201, "{}", added.text());
    let id = added.json()["id"].as_u64().expect("a number").to_string();
    assert_eq!(added.header("location"), Some(&*format!("/admin/replicas/{id}")));
    wait_for_state(&gateway, &id, "ready").await;
    let shown = replica(&gateway, &escaped(&url)).await;
    assert_eq!((&shown["slots"], &shown["dialect"], &shown["source"]), (&json!(2), &json!("llama"), &json!("admin")));
    assert!(gateway.chat(&chat("hello", false, 8)).await.is_whole("hello", 8));
    // Another spelling is the same phone.
    let again = add(&gateway, json!({ "url": format!("{}/", url.to_uppercase().replace("HTTPS", "https")) })).await;
    assert_eq!((again.status, again.json()["id"].to_string()), (200, id));
    let audit = gateway.admin("GET", "/admin/audit", None).await.json();
    let adds = audit["data"].as_array().unwrap().iter().filter(|entry| entry["action"] == "replica.add").count();
    assert_eq!(adds, 1, "{audit}");
    assert_eq!(audit["data"][0]["who"], "admin@127.0.0.1");
}

#[tokio::test]
async fn what_operators_did_survives_a_restart() {
    let fleet = Fleet::of(3, &phone(1, 100.0)).await;
    let mut gateway = empty(&fleet, "").await;
    for (index, phone) in fleet.phones.iter().enumerate() {
        let body = json!({ "url": phone.url(), "name": format!("p{index}"), "cost_acu_per_day": 0.5 });
        assert_eq!(add(&gateway, body).await.status, 201);
    }
    gateway.wait_ready(3).await;
    assert_eq!(call(&gateway, "PATCH", "/admin/replicas/p0", json!({ "slots": 3 })).await.json()["slots"], 3);
    assert_eq!(call(&gateway, "POST", "/admin/replicas/p1/drain", json!({})).await.status, 200);
    assert_eq!(gateway.admin("DELETE", "/admin/replicas/p2", None).await.status, 200);
    gateway.child.kill().expect("the process runs");
    gateway.exited().await;
    gateway.restart().await;
    wait_for_state(&gateway, "p0", "ready").await;
    wait_for_state(&gateway, "p1", "draining").await;
    let list = gateway.admin("GET", "/admin/replicas", None).await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 2, "{list}");
    let p0 = replica(&gateway, "p0").await;
    assert_eq!((&p0["slots"], &p0["cost_acu_per_day"]), (&json!(3), &json!(0.5)));
    assert_eq!(call(&gateway, "POST", "/admin/replicas/p1/undrain", json!({})).await.status, 200);
    wait_for_state(&gateway, "p1", "ready").await;
    for (method, action, body) in [("POST", "/undrain", json!({})), ("PATCH", "", json!({ "cost_acu_per_day": 0.5 }))] {
        let again = call(&gateway, method, &format!("/admin/replicas/p1{action}"), body).await.json();
        assert_eq!(again["changed"], false, "{method} {action}");
    }
}

#[tokio::test]
async fn labels_that_many_change_at_once_all_stay() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = empty(&fleet, "").await;
    let url = fleet.phones[0].url().to_owned();
    assert_eq!(
        add(&gateway, json!({ "url": url, "name": "p", "labels": { "room": "4", "shelf": "upper" } })).await.status,
        201
    );
    let patch = async |labels: Value| call(&gateway, "PATCH", "/admin/replicas/p", json!({ "labels": labels })).await;
    let changes = (0..12).map(|number| patch(json!({ format!("l{number}"): "x", format!("gone{number}"): null })));
    for answer in futures_util::future::join_all(changes).await {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let labels = replica(&gateway, "p").await["labels"].as_object().expect("labels").clone();
    assert_eq!(labels.len(), 14, "{labels:?}");
    // One goes, one changes, one is empty, others stay.
    let then = patch(json!({ "shelf": null, "room": "5", "new": "" })).await.json()["labels"].clone();
    assert_eq!(
        (&then["shelf"], &then["room"], &then["new"], &then["l11"]),
        (&Value::Null, &json!("5"), &json!(""), &json!("x"))
    );
    // Together they are bounded, and nothing of what is too much is taken.
    let many: serde_json::Map<_, _> = (0..19).map(|number| (format!("m{number}"), json!("x"))).collect();
    let refused = patch(Value::Object(many)).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("labels")), "{}", refused.text());
    assert_eq!(replica(&gateway, "p").await["labels"], then);
    assert_eq!(patch(Value::Null).await.json()["labels"], json!({}));
}

#[tokio::test]
async fn removing_a_phone_of_the_configuration_says_that_it_comes_back_whoever_has_stated_more_about_it() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let noted =
        async |id: &str| gateway.admin("DELETE", &format!("/admin/replicas/{id}"), None).await.json()["note"].clone();
    assert_eq!(call(&gateway, "PATCH", "/admin/replicas/2", json!({"slots": 1})).await.status, 200);
    assert_eq!(replica(&gateway, "2").await["source"], "admin");
    for id in ["1", "2"] {
        let note = noted(id).await;
        assert!(note.as_str().is_some_and(|note| note.contains("comes back with the next reload")), "{id}: {note}");
    }
    let own = add(&gateway, json!({"url": "https://another.localhost:9"})).await.json()["id"].to_string();
    assert_eq!(noted(&own).await, Value::Null, "an operator's own does not come back");
}

#[tokio::test]
async fn what_an_operator_states_survives_reloads_and_what_was_removed_begins_anew() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let change = json!({ "expires_at": 4_000_000_000_u64, "labels": { "room": "4" } });
    for id in ["1", "2"] {
        assert_eq!(call(&gateway, "PATCH", &format!("/admin/replicas/{id}"), change.clone()).await.status, 200);
    }
    // Also where the file says something else about it, or nothing any more.
    let file = gateway.dir().join("huntgroup.toml");
    let text = std::fs::read_to_string(&file).expect("its configuration");
    let url = |at: usize| format!("url = \"{}\"\n", fleet.phones[at].url());
    let without = text.replace(&format!("[[replicas]]\n{}", url(1)), "");
    let other = without.replace(&url(0), &format!("{}expires_at = 2100-01-01T00:00:00Z\nslots = 2\n", url(0)));
    assert!(other.contains("slots = 2") && without != text, "{text}");
    std::fs::write(&file, &other).expect("a file");
    assert_eq!(gateway.admin("POST", "/admin/reload", None).await.status, 200);
    for id in ["1", "2"] {
        let shown = replica(&gateway, id).await;
        let stated = (&shown["expires_at"], &shown["labels"]["room"], &shown["slots"]);
        assert_eq!(stated, (&json!(4_000_000_000_u64), &json!("4"), &json!(1)), "{shown}");
    }
    // What was removed comes back as the file states it.
    let removed = gateway.admin("DELETE", "/admin/replicas/1", None).await.json();
    assert!(removed["note"].as_str().is_some_and(|note| note.ends_with("as stated there")), "{removed}");
    assert_eq!(gateway.admin("POST", "/admin/reload", None).await.status, 200);
    let shown = replica(&gateway, &escaped(fleet.phones[0].url())).await;
    assert_eq!((&shown["source"], &shown["slots"]), (&json!("config"), &json!(2)));
    assert_eq!((&shown["expires_at"], &shown["labels"]), (&json!(4_102_444_800_u64), &json!({})));
}

#[tokio::test]
async fn a_phone_removed_while_it_answers_finishes_first_and_may_come_back() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    assert_eq!(call(&gateway, "PATCH", "/admin/replicas/1", json!({"labels": {"room": "4"}})).await.status, 200);
    let mut stream = gateway.client().await.post("/v1/chat/completions", &chat("hello", true, 32)).await;
    assert!(stream.read_until("\"content\"").await);
    let removed = gateway.admin("DELETE", "/admin/replicas/1", None).await;
    assert_eq!((removed.status, &removed.json()["deleted"]), (202, &json!(false)));
    let shown = replica(&gateway, "1").await;
    assert_eq!((&shown["removing"], &shown["in_flight"]), (&json!(true), &json!(1)));
    // Added again before it had emptied: the same replica, and the answer goes on.
    let url = fleet.phones[0].url().to_owned();
    let back = add(&gateway, json!({ "url": url })).await;
    assert_eq!((back.status, &back.json()["removing"]), (200, &json!(false)));
    assert_eq!(back.json()["labels"], json!({}), "what was stated of it before is gone, as if it had emptied before");
    assert_eq!(gateway.admin("DELETE", "/admin/replicas/1", None).await.status, 202);
    assert!(stream.answer().await.is_whole("hello", 32));
    gateway
        .wait_for("the phone to be gone", async |gateway| {
            gateway.admin("GET", "/admin/replicas/1", None).await.status == 404
        })
        .await;
    assert_eq!(fleet.phones[0].stats().over_subscribed, 0);
}

#[tokio::test]
async fn a_wrong_key_and_a_wrong_model_are_told_and_healed_by_a_patch() {
    let fleet = Fleet::of(1, &phone(1, 100.0).with_api_key("phone-key")).await;
    let gateway = empty(&fleet, "").await;
    let url = fleet.phones[0].url().to_owned();
    assert_eq!(add(&gateway, json!({ "url": url, "name": "p", "api_key": "wrong" })).await.status, 201);
    wait_for_state(&gateway, "p", "misconfigured").await;
    let problem = replica(&gateway, "p").await["problem"].to_string();
    assert!(problem.contains("refuses the key"), "{problem}");
    call(&gateway, "PATCH", "/admin/replicas/p", json!({ "api_key": "phone-key", "models": ["other"] })).await;
    gateway
        .wait_for("the wrong model to be told", async |gateway| {
            replica(gateway, "p").await["problem"].to_string().contains("does not serve")
        })
        .await;
    call(&gateway, "PATCH", "/admin/replicas/p", json!({ "models": { "other": "tiny" } })).await;
    wait_for_state(&gateway, "p", "ready").await;
    let answer = gateway
        .chat(&json!({ "model": "other", "max_tokens": 4, "messages": [{ "role": "user", "content": "x" }] }))
        .await;
    assert_eq!((answer.status, &answer.json()["model"]), (200, &json!("other")), "{}", answer.text());
    assert!(!gateway.log().contains("phone-key"));
}

#[tokio::test]
async fn a_stated_model_whose_phone_never_came_is_known_and_an_unstated_one_is_not() {
    let fleet = Fleet::of(0, &phone(1, 1.0)).await;
    let gateway = empty(&fleet, "[scheduler]\nno_replica_wait = \"15s\"\n").await;
    let nobody = format!("https://nobody.localhost:{}", fleet.relay.address().port());
    assert_eq!(add(&gateway, json!({ "url": nobody, "models": ["ghost"] })).await.status, 201);
    gateway
        .wait_for("the phone to be looked for", async |gateway| {
            replica(gateway, "nobody").await["last_probe"]["result"] == "not_there"
        })
        .await;
    let ask = |model: &str| json!({ "model": model, "messages": [{ "role": "user", "content": "x" }] });
    // At once, although a phone is missing that might have it.
    let unknown = tokio::time::timeout(PATIENCE / 4, gateway.chat(&ask("spirit"))).await.expect("an answer at once");
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    let file = gateway.dir().join("huntgroup.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("no_replica_wait = \"15s\"", "no_replica_wait = \"0s\"")).unwrap();
    assert_eq!(call(&gateway, "POST", "/admin/reload", json!({})).await.status, 200);
    let known = gateway.chat(&ask("ghost")).await;
    assert_eq!((known.status, &known.json()["error"]["code"]), (503, &json!("no_capacity")));
}

#[tokio::test]
async fn addresses_that_could_lead_elsewhere_are_refused_and_passwords_never_echoed() {
    let fleet = Fleet::of(0, &phone(1, 1.0)).await;
    let gateway = empty(&fleet, "").await;
    for url in [
        "https://admin:hunter2@phone.acu.run",
        "https://phone.acu.run/v1",
        "https://phone.acu.run?x",
        "https://2130706433",
        "https://0x7f.1",
        "https://phone.acu.run.",
        "file:///etc/passwd",
        "https://[fe80::1%25lo]",
        "http://8.8.8.8",
    ] {
        let refused = add(&gateway, json!({ "url": url })).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("url")), "{url}");
        assert!(!refused.text().contains("hunter2"));
    }
    assert!(!gateway.log().contains("hunter2"));
    for (body, word) in [(json!({}), "url"), (json!({ "url": "https://a.b", "slots": 0 }), "slots"), (json!([]), "")] {
        let refused = add(&gateway, body).await;
        assert_eq!(refused.status, 400);
        assert!(refused.text().contains(word), "{}", refused.text());
    }
}

#[tokio::test]
async fn a_list_is_imported_and_what_cannot_be_taken_is_told() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = empty(&fleet, "").await;
    let script = json!([
        { "instance": 0, "deployment_id": 7, "url": fleet.phones[0].url(), "registered_s": 1.0, "acknowledged_s": 2.0, "ready_s": 9.5 },
        { "instance": 1, "deployment_id": 7, "url": fleet.phones[1].url(), "registered_s": 1.0, "acknowledged_s": 2.0, "ready_s": null },
        { "instance": 2, "deployment_id": 7, "url": null, "registered_s": 1.0, "acknowledged_s": null, "ready_s": null },
    ]);
    let done = call(&gateway, "POST", "/admin/replicas/import", script).await.json();
    assert_eq!((&done["added"], &done["refused"][0]["index"]), (&json!(2), &json!(2)), "{done}");
    gateway.wait_ready(2).await;
    assert_eq!(replica(&gateway, "1").await["labels"], json!({ "instance": "0", "deployment_id": "7" }));
    assert_eq!(replica(&gateway, "1").await["deployment"], "7");
    // Our own list, taken in again, changes nothing.
    let export = gateway.admin("GET", "/admin/replicas", None).await.json();
    let again = call(&gateway, "POST", "/admin/replicas/import", export).await.json();
    assert_eq!((&again["unchanged"], &again["changed"], &again["added"]), (&json!(2), &json!(0), &json!(0)), "{again}");
}

#[tokio::test]
async fn an_instance_that_is_imported_at_another_address_is_the_same_replica_there() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = empty(&fleet, "").await;
    let script = |url: &str| {
        json!([{ "instance": 3, "deployment_id": [{ "acurast": "5F" }, 7], "url": url,
        "registered_s": 1.0, "acknowledged_s": 2.0, "ready_s": 9.5 }])
    };
    call(&gateway, "POST", "/admin/replicas/import", script(fleet.phones[0].url())).await;
    gateway.wait_ready(1).await;
    let before = replica(&gateway, "1").await;
    let done = call(&gateway, "POST", "/admin/replicas/import", script(fleet.phones[1].url())).await.json();
    assert_eq!((&done["added"], &done["changed"]), (&json!(0), &json!(1)), "{done}");
    let after = replica(&gateway, "1").await;
    assert_eq!(after["url"], fleet.phones[1].url());
    assert_eq!((&after["name"], &after["deployment"]), (&before["name"], &json!("[{\"acurast\":\"5F\"},7]")));
    assert!(after["history"].as_array().unwrap().len() >= before["history"].as_array().unwrap().len(), "{after}");
    gateway.wait_ready(1).await;
    assert_eq!(gateway.admin("GET", "/admin/replicas", None).await.json()["data"].as_array().unwrap().len(), 1);
    let again = call(&gateway, "POST", "/admin/replicas/import", script(fleet.phones[1].url())).await.json();
    assert_eq!(again["unchanged"], 1, "{again}");
}

#[tokio::test]
async fn events_tell_what_happens_to_the_pool() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = empty(&fleet, "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n").await;
    let mut events = Client::connect(gateway.admin).await.send("GET", "/admin/events", &[], None).await;
    assert!(events.read_until("\r\n\r\n").await);
    add(&gateway, json!({ "url": fleet.phones[0].url(), "name": "p" })).await;
    assert!(events.read_until("event: added").await);
    assert!(events.read_until("\"to\":\"ready\"").await);
    fleet.phones[0].set_fault(Fault::UnknownId);
    assert!(events.read_until("\"to\":\"out\"").await);
    fleet.phones[0].clear_fault();
    call(&gateway, "POST", "/admin/replicas/p/drain", json!({})).await;
    assert!(events.read_until("event: drained").await);
    gateway.admin("DELETE", "/admin/replicas/p", None).await;
    assert!(events.read_until("event: removed").await);
}

#[tokio::test]
async fn a_running_request_is_listed_and_can_be_ended() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut stream = gateway.client().await.post("/v1/chat/completions", &chat("hello", true, 4_000)).await;
    assert!(stream.read_until("\"content\"").await);
    let list = gateway.admin("GET", "/admin/requests", None).await.json();
    let request = &list["data"][0];
    assert_eq!(
        (&request["phase"], &request["model"], &request["class"]),
        (&json!("decode"), &json!("tiny"), &json!("standard"))
    );
    let id = request["id"].as_str().expect("an id");
    assert_eq!(gateway.admin("DELETE", &format!("/admin/requests/{id}"), None).await.status, 200);
    let answer = stream.answer().await;
    assert!(answer.error().is_some(), "{}", answer.text());
    gateway.wait_at_rest().await;
    assert_eq!(gateway.admin("DELETE", &format!("/admin/requests/{id}"), None).await.status, 404);
}

#[tokio::test]
async fn a_key_works_from_its_making_to_its_revocation() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = Gateway::builder("").replicas(&fleet).start().await;
    gateway.wait_ready(1).await;
    let file = gateway.dir().join("huntgroup.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("auth = \"none\"", "auth = \"required\"")).unwrap();
    assert_eq!(call(&gateway, "POST", "/admin/reload", json!({})).await.status, 200);
    let made =
        call(&gateway, "POST", "/admin/keys", json!({ "tenant": "bank", "class": "batch", "max_class": "batch" }))
            .await;
    assert_eq!(made.status, 201, "{}", made.text());
    let (key, id) = (made.json()["key"].as_str().expect("a key").to_owned(), made.json()["id"].to_string());
    let bearer = format!("Bearer {key}");
    let asked = async |authorization: &str| {
        let client = gateway.client().await;
        let body = chat("hello", false, 4);
        let headers = [("Authorization", authorization)];
        client.send("POST", "/v1/chat/completions", &headers, Some(&body)).await.answer().await.status
    };
    assert_eq!((asked(&bearer).await, asked("Bearer hg-somebodyelses").await), (200, 401));
    let list = gateway.admin("GET", "/admin/keys", None).await;
    assert_eq!(list.json()["data"][0]["tenant"], "bank");
    assert!(!list.text().contains(&key) && !gateway.log().contains(&key));
    for (body, param) in [
        (json!({ "tenant": "a b" }), "tenant"),
        (json!({ "tenant": "a", "class": "urgent" }), "class"),
        (json!({ "tenant": "a", "class": "interactive", "max_class": "batch" }), "class"),
        (json!({ "tenant": "a", "requests_per_minute": 0 }), "requests_per_minute"),
    ] {
        let refused = call(&gateway, "POST", "/admin/keys", body).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    assert_eq!(gateway.admin("DELETE", &format!("/admin/keys/{id}"), None).await.status, 200);
    assert_eq!(asked(&bearer).await, 401);
    assert_eq!(gateway.admin("DELETE", &format!("/admin/keys/{id}"), None).await.status, 200, "once more is no error");
    assert_eq!(gateway.admin("DELETE", "/admin/keys/999", None).await.status, 404);
    assert!(gateway.admin("GET", "/admin/keys", None).await.json()["data"][0]["revoked_at"].is_number());
}

#[tokio::test]
async fn a_reload_touches_only_what_changed() {
    let fleet = Fleet::of(3, &phone(1, 2.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut stream = gateway.client().await.post("/v1/chat/completions", &chat("hello", true, 64)).await;
    assert!(stream.read_until("\"content\"").await);
    let busy = gateway.admin("GET", "/admin/replicas", None).await.json();
    let busy =
        busy["data"].as_array().unwrap().iter().find(|replica| replica["in_flight"] == 1).expect("a busy one").clone();
    // One of the idle ones goes, the busy one stays.
    let gone =
        fleet.phones.iter().map(fakephone::PhoneHandle::url).find(|url| *url != busy["url"]).expect("an idle one");
    let file = gateway.dir().join("huntgroup.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(&format!("[[replicas]]\nurl = \"{gone}\"\n"), "")).unwrap();
    let reloaded = call(&gateway, "POST", "/admin/reload", json!({})).await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert_eq!(gateway.admin("GET", &format!("/admin/replicas/{}", escaped(gone)), None).await.status, 404);
    assert_eq!(replica(&gateway, &busy["id"].to_string()).await["state_reason"], busy["state_reason"]);
    assert!(stream.answer().await.is_whole("hello", 64));
    // An invalid file changes nothing, and every mistake is told.
    std::fs::write(&file, format!("{text}\n[streams]\nhead_after = \"soon\"\n[nonsense]\n")).unwrap();
    let refused = call(&gateway, "POST", "/admin/reload", json!({})).await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("head_after") && refused.text().contains("nonsense"), "{}", refused.text());
    assert_eq!(gateway.states("ready").await, 2);
}

#[tokio::test]
async fn without_the_token_nothing_but_health_is_answered() {
    let fleet = Fleet::of(0, &phone(1, 1.0)).await;
    let token_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token_file.path(), "0123456789abcdef-token").unwrap();
    let gateway = empty(&fleet, "").await;
    let file = gateway.dir().join("huntgroup.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let token = format!("[admin]\ntoken = \"file:{}\"\npublic_metrics = false\n", token_file.path().display());
    std::fs::write(&file, text.replace("[admin]\n", &token)).unwrap();
    assert_eq!(call(&gateway, "POST", "/admin/reload", json!({})).await.status, 200);
    let with = async |method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>| {
        Client::connect(gateway.admin).await.send(method, path, headers, body).await.answer().await.status
    };
    for (method, path) in [
        ("GET", "/admin/replicas"),
        ("POST", "/admin/replicas"),
        ("GET", "/metrics"),
        ("GET", "/admin/openapi.json"),
        ("DELETE", "/admin/replicas/1"),
    ] {
        assert_eq!(with(method, path, &[], None).await, 401, "{method} {path}");
        assert_eq!(
            with(method, path, &[("Authorization", "Bearer 0123456789abcdef-tokem")], None).await,
            401,
            "{method} {path}"
        );
    }
    assert_eq!(with("GET", "/healthz", &[], None).await, 200);
    assert_eq!(with("GET", "/readyz", &[], None).await, 503);
    let right = [("Authorization", "bearer 0123456789abcdef-token")];
    assert_eq!(with("GET", "/admin/replicas", &right, None).await, 200);
    assert_eq!(with("GET", "/metrics", &right, None).await, 200);
    // A guesser is not even looked at any more, whatever he brings.
    for _ in 0..20 {
        with("GET", "/admin/replicas", &[("Authorization", "Bearer guess")], None).await;
    }
    assert_eq!(with("GET", "/admin/replicas", &right, None).await, 429);
}

#[tokio::test]
async fn models_that_keys_name_and_nobody_serves_are_named_once_in_the_log() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, "[tenants.anonymous]\nmodels = [\"tiny\", \"ghost\", \"gone\"]\n").await;
    let told = |gateway: &Gateway| {
        let log = gateway.log();
        log.lines().filter(|line| line.contains("keys may use models")).map(str::to_owned).collect::<Vec<_>>()
    };
    gateway.wait_for("the warning", async |gateway| !told(gateway).is_empty()).await;
    let lines = told(&gateway);
    assert!(lines.len() == 1 && lines[0].contains("anonymous: ghost, gone\""), "{lines:?}");
}
