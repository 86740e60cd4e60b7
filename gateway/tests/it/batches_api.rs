//! Batches over HTTP, as far as it does not matter whether a phone runs their lines.

use serde_json::{Value, json};

use crate::{
    files_api::{Answer, ask, get, upload, with_two_tenants},
    harness::Gateway,
};

async fn create(gateway: &Gateway, headers: &str, body: &Value) -> Answer {
    ask(gateway, "POST", "/v1/batches", headers, body.to_string().as_bytes()).await
}

/// A file with a line that would run, if there were a phone.
async fn input(gateway: &Gateway, headers: &str) -> String {
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2});
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body});
    upload(gateway, headers, format!("{line}\n").as_bytes()).await["id"].as_str().expect("an id").to_owned()
}

fn described(file: &str) -> Value {
    json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"})
}

/// A model that is known and served by nobody: lines wait.
const NOBODY: &str = "[models.tiny]\naliases = [\"small\"]\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_answer_was_lost_is_not_made_twice() {
    let gateway = Gateway::builder(NOBODY).start().await;
    let body = described(&input(&gateway, "").await);
    let mut made = std::collections::BTreeSet::new();
    let (key, retry) = ("Idempotency-Key: night-7\r\n", "x-stainless-retry-count: 1\r\n");
    for (headers, batches) in [(key, 1), (key, 1), ("", 2), (retry, 2), ("", 3)] {
        let answer = create(&gateway, headers, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        made.insert(answer.json()["id"].to_string());
        assert_eq!(made.len(), batches, "{headers:?}");
    }
    let mut other = body.clone();
    other["metadata"] = json!({"project": "day"});
    let answer = create(&gateway, key, &other).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (422, &json!("idempotency_key_reused")));
    assert_eq!(create(&gateway, "Idempotency-Key: a b\r\n", &body).await.status, 400);
    assert_eq!(get(&gateway, "/v1/batches").await.json()["data"].as_array().map(Vec::len), Some(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_made_shown_listed_and_cancelled() {
    let gateway = Gateway::builder(NOBODY).start().await;
    let file = input(&gateway, "").await;
    let mut body = described(&file);
    body["metadata"] = json!({"project": "night", "größe": "\u{1f419}"});
    body["unknown"] = json!([1, 2]);
    let answer = create(&gateway, "", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let batch = answer.json();
    let expected = [
        "id",
        "object",
        "endpoint",
        "model",
        "errors",
        "input_file_id",
        "completion_window",
        "status",
        "output_file_id",
        "error_file_id",
        "created_at",
        "in_progress_at",
        "expires_at",
        "finalizing_at",
        "completed_at",
        "failed_at",
        "expired_at",
        "cancelling_at",
        "cancelled_at",
        "request_counts",
        "usage",
        "metadata",
        "huntgroup",
    ];
    let members: Vec<&str> = batch.as_object().expect("an object").keys().map(String::as_str).collect();
    let mut sorted = expected.to_vec();
    sorted.sort_unstable();
    assert_eq!(members, sorted);
    let id = batch["id"].as_str().expect("an id");
    assert!(id.starts_with("batch_"));
    assert_eq!((&batch["object"], &batch["status"]), (&json!("batch"), &json!("validating")));
    assert_eq!((&batch["input_file_id"], &batch["metadata"]), (&json!(file), &body["metadata"]));
    let times = batch["expires_at"].as_u64().zip(batch["created_at"].as_u64());
    assert_eq!(times.map(|(end, start)| end - start), Some(86_400));
    let shown = get(&gateway, &format!("/v1/batches/{id}")).await.json();
    assert_eq!((&shown["id"], &shown["created_at"]), (&batch["id"], &batch["created_at"]));
    assert!(shown["huntgroup"].is_object(), "{shown}");

    let cancelled = ask(&gateway, "POST", &format!("/v1/batches/{id}/cancel"), "", b"").await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text());
    assert_eq!(cancelled.json()["status"], "cancelling");
    assert!(cancelled.json()["cancelling_at"].is_u64());
    // Again, while its files are written or after: the same, or too late.
    let again = ask(&gateway, "POST", &format!("/v1/batches/{id}/cancel"), "", b"").await;
    if again.status == 409 {
        assert!(again.text().contains("status 'cancelled'"), "{}", again.text());
        assert_eq!(again.header("x-should-retry"), Some("false"));
    } else {
        assert_eq!((again.status, &again.json()["status"]), (200, &json!("cancelling")));
    }
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_listed_newest_first_a_page_at_a_time() {
    let gateway = Gateway::builder(NOBODY).start().await;
    let file = input(&gateway, "").await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.insert(0, create(&gateway, "", &described(&file)).await.json()["id"].as_str().expect("an id").to_owned());
    }
    let listed = async |query: &str| {
        let list = get(&gateway, &format!("/v1/batches{query}")).await.json();
        let data = list["data"].as_array().expect("a list").iter();
        let found: Vec<String> = data.map(|batch| batch["id"].as_str().expect("an id").to_owned()).collect();
        assert_eq!(list["last_id"].as_str(), found.last().map(String::as_str));
        (found, list["has_more"].as_bool().expect("a word"))
    };
    assert_eq!(listed("").await, (ids.clone(), false));
    assert_eq!(listed("?limit=2").await, (ids[..2].to_vec(), true));
    assert_eq!(listed(&format!("?limit=2&after={}", ids[1])).await, (ids[2..4].to_vec(), true));
    assert_eq!(listed(&format!("?limit=100&after={}", ids[3])).await, (ids[4..].to_vec(), false));
    for (query, param) in [("?limit=0", "limit"), ("?limit=101", "limit"), ("?after=file-a", "after")] {
        let refusal = get(&gateway, &format!("/v1/batches{query}")).await.refusal();
        assert_eq!((refusal.0, refusal.2), (400, param.into()), "{query}");
    }
    assert_eq!(get(&gateway, "/v1/batches?after=batch_unknown").await.refusal().0, 404);
    for (method, path, allow) in [
        ("DELETE", "/v1/batches", "GET, POST"),
        ("DELETE", "/v1/batches/batch_a", "GET"),
        ("GET", "/v1/batches/batch_a/cancel", "POST"),
    ] {
        let answer = ask(&gateway, method, path, "", b"").await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some(allow)), "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_new_batch_is_named_at_once() {
    let gateway = Gateway::builder(NOBODY).start().await;
    let file = input(&gateway, "").await;
    let unknown = format!("file-{}", "A".repeat(24));
    for (member, value, code) in [
        ("input_file_id", json!(unknown), "invalid_input_file"),
        ("input_file_id", json!("notes.jsonl"), "invalid_value"),
        ("endpoint", json!("/v1/messages"), "invalid_value"),
        ("endpoint", Value::Null, "missing_required_parameter"),
        ("completion_window", json!("30d"), "invalid_value"),
        ("metadata", json!({"k": ["not", "text"]}), "invalid_value"),
        ("output_expires_after", json!({"anchor": "created_at", "seconds": 1}), "invalid_value"),
    ] {
        let mut body = described(&file);
        body[member] = value;
        let answer = create(&gateway, "", &body).await;
        assert_eq!(answer.refusal(), (400, code.into(), member.into()), "{}", answer.text());
        assert!(member != "endpoint" || answer.text().contains("/v1/systemone"), "{}", answer.text());
    }
    let large = ask(&gateway, "POST", "/v1/batches", "", &vec![b' '; 300 << 10]).await;
    assert_eq!(large.refusal().0, 413);
    for body in [b"{".as_slice(), b"[]", b"\xff", b" "] {
        assert_eq!(ask(&gateway, "POST", "/v1/batches", "", body).await.refusal().0, 400);
    }
    assert_eq!(get(&gateway, "/v1/batches").await.json()["data"], json!([]));
    for path in ["batch_", "nothing", "batch_%2e%2e", &unknown] {
        let missing = get(&gateway, &format!("/v1/batches/{path}")).await.refusal();
        assert_eq!(missing, (404, Value::Null, "id".into()), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_its_tenants_own_and_a_tenant_has_so_many() {
    let (gateway, [bank, shop]) = with_two_tenants(&format!("{NOBODY}[batches]\nmax_open_per_tenant = 2\n")).await;
    let file = input(&gateway, &bank).await;
    let foreign = create(&gateway, &shop, &described(&file)).await;
    let unknown = create(&gateway, &shop, &described("file-unknown")).await;
    assert_eq!(foreign.refusal(), (400, "invalid_input_file".into(), "input_file_id".into()));
    assert_eq!(foreign.text().replace(&file, "ID"), unknown.text().replace("file-unknown", "ID"));
    let first = create(&gateway, &bank, &described(&file)).await.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(create(&gateway, &bank, &described(&file)).await.status, 200);
    let refused = create(&gateway, &bank, &described(&file)).await;
    assert_eq!(refused.refusal(), (429, "batch_limit_exceeded".into(), Value::Null), "{}", refused.text());
    assert!(refused.text().contains("2 batches") && refused.text().contains("batches.max_open_per_tenant"));
    assert_eq!(refused.header("x-should-retry"), Some("false"), "waiting a few seconds does not help");

    for (method, path) in [("GET", ""), ("POST", "/cancel")] {
        let told = async |id: &str| {
            let answer = ask(&gateway, method, &format!("/v1/batches/{id}{path}"), &shop, b"").await;
            (answer.status, answer.text().replace(id, "ID"))
        };
        assert_eq!(told(&first).await, told("batch_unknown").await, "{method} {path}");
        assert_eq!(told(&first).await.0, 404);
    }
    assert_eq!(ask(&gateway, "GET", "/v1/batches", &shop, b"").await.json()["data"], json!([]));
    // The input may go: the batch keeps what it needs.
    assert_eq!(ask(&gateway, "DELETE", &format!("/v1/files/{file}"), &bank, b"").await.status, 200);
    let shown = ask(&gateway, "GET", &format!("/v1/batches/{first}"), &bank, b"").await.json();
    assert_eq!(shown["input_file_id"], json!(file));
}
