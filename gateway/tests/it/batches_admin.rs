//! What operators see of batches, of all tenants, and how they end one: over the admin API, and with the command line.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{
    files_api::{ask, upload, with_two_tenants},
    harness::{Answer, Gateway},
};

/// A model that is known and served by nobody: lines wait.
const NOBODY: &str = "[models.tiny]\naliases = [\"small\"]\n";

/// Makes a batch of some lines for a tenant, and its id.
async fn batch_of(gateway: &Gateway, headers: &str, lines: usize) -> String {
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2});
    let line = |number: usize| {
        let line =
            json!({"custom_id": number.to_string(), "method": "POST", "url": "/v1/chat/completions", "body": body});
        format!("{line}\n")
    };
    let file = upload(gateway, headers, (0..lines).map(line).collect::<String>().as_bytes()).await;
    let wanted = json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let made = ask(gateway, "POST", "/v1/batches", headers, wanted.to_string().as_bytes()).await;
    assert_eq!(made.status, 200, "{}", made.text());
    made.json()["id"].as_str().expect("an id").to_owned()
}

async fn get(gateway: &Gateway, path: &str) -> Value {
    let answer = gateway.admin("GET", path, None).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

async fn wait_for(gateway: &Gateway, id: &str, pointer: &str, value: &str) -> Value {
    let path = format!("/admin/batches/{id}");
    gateway
        .wait_for(&format!("{pointer} to be {value}"), async |gateway| {
            get(gateway, &path).await.pointer(pointer) == Some(&json!(value))
        })
        .await;
    get(gateway, &path).await
}

/// The ids of a list, and whether there are more.
async fn listed(gateway: &Gateway, query: &str) -> (Vec<String>, bool) {
    let list = get(gateway, &format!("/admin/batches{query}")).await;
    let data = list["data"].as_array().expect("a list").iter();
    let ids = data.map(|batch| batch["id"].as_str().expect("an id").to_owned()).collect();
    (ids, list["has_more"].as_bool().expect("a word"))
}

async fn cancel(gateway: &Gateway, id: &str) -> Answer {
    gateway.admin("POST", &format!("/admin/batches/{id}/cancel"), None).await
}

fn huntgroup(gateway: &Gateway, words: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_huntgroup"));
    command.args(words).args(["--admin", &format!("http://127.0.0.1:{}", gateway.admin)]);
    let done = command.stdin(Stdio::null()).output().expect("huntgroup runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code().expect("an exit code"), text(&done.stdout), text(&done.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_the_batches_of_all_tenants_and_what_they_wait_for() {
    let (gateway, [bank, shop]) = with_two_tenants(NOBODY).await;
    let mut ids = Vec::new();
    for (headers, lines) in [(&bank, 3), (&shop, 2), (&bank, 1)] {
        ids.insert(0, batch_of(&gateway, headers, lines).await);
    }
    for id in &ids {
        wait_for(&gateway, id, "/progress/waiting_for", "replica").await;
    }
    let oldest = get(&gateway, &format!("/admin/batches/{}", ids[2])).await;
    assert_eq!(
        (&oldest["tenant"], &oldest["status"], &oldest["model"]),
        (&json!("bank"), &json!("in_progress"), &json!("tiny"))
    );
    assert_eq!(oldest["request_counts"], json!({"total": 3, "completed": 0, "failed": 0}));
    let progress = json!({"running": 0, "waiting_for": "replica", "lines_per_second": null, "seconds_left": null,
        "class": "batch", "done_share": 0.0});
    assert_eq!(oldest["progress"], progress);

    assert_eq!(listed(&gateway, "").await, (ids.clone(), false));
    assert_eq!(listed(&gateway, "?tenant=shop").await, (ids[1..2].to_vec(), false));
    assert_eq!(listed(&gateway, "?tenant=nobody").await, (Vec::new(), false));
    for state in ["open", "all"] {
        assert_eq!(listed(&gateway, &format!("?state={state}&limit=2")).await, (ids[..2].to_vec(), true));
        let behind = format!("?state={state}&after={}", ids[0]);
        assert_eq!(listed(&gateway, &behind).await, (ids[1..].to_vec(), false));
        assert_eq!(listed(&gateway, &format!("{behind}&tenant=bank")).await, (ids[2..].to_vec(), false));
        for (query, param) in [("after=batch_unknown", "after"), ("limit=0", "limit"), ("limit=x", "limit")] {
            let refused = gateway.admin("GET", &format!("/admin/batches?state={state}&{query}"), None).await;
            assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)), "{query}");
        }
    }
    let refused = gateway.admin("GET", "/admin/batches?state=failed", None).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("state")));

    assert_eq!(gateway.metric("huntgroup_batches", "state=\"in_progress\"").await, 3.0);
    assert_eq!(gateway.metric("huntgroup_batches_waiting", "reason=\"replica\"").await, 3.0);
    assert_eq!(gateway.metric("huntgroup_batch_lines", "state=\"waiting\"").await, 6.0);
    let expiry = gateway.metric("huntgroup_batch_seconds_to_expiry", "").await;
    assert!((80_000.0..=86_400.0).contains(&expiry), "{expiry}");

    let (code, text, _) = huntgroup(&gateway, &["batches", "list"]);
    assert_eq!((code, text.lines().count()), (0, 5), "{text}");
    assert!(text.contains("waits for a replica") && text.is_ascii(), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_ends_a_batch_which_is_audited_once_and_then_too_late() {
    let (gateway, [bank, _]) = with_two_tenants(NOBODY).await;
    let [id, other] = [batch_of(&gateway, &bank, 2).await, batch_of(&gateway, &bank, 2).await];
    wait_for(&gateway, &id, "/status", "in_progress").await;
    let cancelled = cancel(&gateway, &id).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text());
    assert_eq!((&cancelled.json()["status"], &cancelled.json()["tenant"]), (&json!("cancelling"), &json!("bank")));
    let ended = wait_for(&gateway, &id, "/status", "cancelled").await;
    assert_eq!(ended["progress"], Value::Null);
    assert_eq!(ended["request_counts"], json!({"total": 2, "completed": 0, "failed": 2}));

    let late = cancel(&gateway, &id).await;
    assert_eq!((late.status, &late.json()["error"]["code"]), (409, &json!("wrong_state")), "{}", late.text());
    assert!(late.text().contains("status 'cancelled'"), "{}", late.text());
    for method in ["GET", "POST"] {
        let path = if method == "GET" { "/admin/batches/batch_unknown" } else { "/admin/batches/batch_unknown/cancel" };
        let unknown = gateway.admin(method, path, None).await;
        assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("not_found")));
    }
    let audit = get(&gateway, "/admin/audit").await;
    let noted: Vec<&Value> =
        audit["data"].as_array().expect("a trail").iter().filter(|entry| entry["action"] == "batch.cancel").collect();
    assert_eq!(noted.len(), 1, "{audit}");
    assert_eq!((&noted[0]["target"], &noted[0]["detail"]), (&json!(id), &json!({"tenant": "bank"})));
    assert_eq!(noted[0]["who"], "admin@127.0.0.1");

    assert_eq!(listed(&gateway, "").await.0, std::slice::from_ref(&other));
    assert_eq!(listed(&gateway, "?state=all").await.0, [other.clone(), id]);

    let (code, _, why) = huntgroup(&gateway, &["batches", "cancel", &other]);
    assert!(code == 64 && why.contains("--yes"), "nobody is there to be asked: {why}");
    let (code, text, _) = huntgroup(&gateway, &["batches", "cancel", &other, "--yes"]);
    assert!(code == 0 && text.contains("is cancelling: 0 of 2 lines have results"), "{text}");
    let (code, text, why) = huntgroup(&gateway, &["batches", "show", &other, "--watch"]);
    assert_eq!(code, 1, "a cancelled batch is not a completed one: {text}{why}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("cancelled, 2/2, 2 failed")), "{text}");
}
