//! Batches: files of requests that are run on the phones, and every line of them answered once.

use std::collections::BTreeMap;

use fakephone::{Fault, Moment, Way};
use rustix::process::Signal;
use serde_json::{Value, json};
use simulation::rng::Rng;

use crate::{
    files_api,
    harness::{Answer, Client, Fleet, Gateway, MODEL, chat, expected, phone},
};

/// Tokens of a line's answer.
const TOKENS: u32 = 6;

/// A line of an input file.
fn line(id: &str, body: &Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
}

fn prompt(number: usize) -> String {
    format!("Prüfe Umsatz {number} auf Auffälligkeiten")
}

/// A file of `count` chats with the names `line-0` and so on.
pub fn chats(count: usize) -> String {
    (0..count).map(|n| line(&format!("line-{n}"), &chat(&prompt(n), false, TOKENS)) + "\n").collect()
}

/// Uploads a file, and its id.
pub async fn upload(gateway: &Gateway, text: &str) -> String {
    files_api::upload(gateway, "", text.as_bytes()).await["id"].as_str().expect("an id").to_owned()
}

pub async fn call(gateway: &Gateway, method: &str, path: &str, body: Option<&Value>) -> Answer {
    Client::connect(gateway.public).await.send(method, path, &[], body).await.answer().await
}

pub async fn create(gateway: &Gateway, file: &str, window: &str) -> String {
    let body = json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": window});
    let answer = call(gateway, "POST", "/v1/batches", Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["status"], "validating");
    answer.json()["id"].as_str().expect("an id").to_owned()
}

pub async fn batch(gateway: &Gateway, id: &str) -> Value {
    call(gateway, "GET", &format!("/v1/batches/{id}"), None).await.json()
}

fn is_terminal(batch: &Value) -> bool {
    matches!(batch["status"].as_str(), Some("completed" | "failed" | "expired" | "cancelled"))
}

/// Waits for its end.
pub async fn ended(gateway: &Gateway, id: &str) -> Value {
    gateway.wait_for("the batch to end", async |g| is_terminal(&batch(g, id).await)).await;
    batch(gateway, id).await
}

/// The lines of one of its files, by custom id.
async fn lines(gateway: &Gateway, file: &Value) -> BTreeMap<String, Value> {
    let Some(id) = file.as_str() else { return BTreeMap::new() };
    let answer = call(gateway, "GET", &format!("/v1/files/{id}/content"), None).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    assert!(text.ends_with('\n') && !text.contains("\n\n"), "not JSONL: {text}");
    let mut lines = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let id = line["custom_id"].as_str().expect("a custom id").to_owned();
        assert!(lines.insert(id, line).is_none(), "a line is there twice");
    }
    lines
}

/// The invariants B1 and B2, and what the lines of both files are.
pub async fn results(
    gateway: &Gateway,
    batch: &Value,
    count: usize,
) -> (BTreeMap<String, Value>, BTreeMap<String, Value>) {
    let output = lines(gateway, &batch["output_file_id"]).await;
    let errors = lines(gateway, &batch["error_file_id"]).await;
    let counts = json!({"total": count, "completed": output.len(), "failed": errors.len()});
    assert_eq!(batch["request_counts"], counts, "{batch}");
    let mut all: Vec<&String> = output.keys().chain(errors.keys()).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "each line is in exactly one file");
    (output, errors)
}

pub fn assert_answered(output: &BTreeMap<String, Value>, number: usize) {
    let line = &output[&format!("line-{number}")];
    assert_eq!(line["response"]["status_code"], 200, "{line}");
    assert_eq!(line["error"], Value::Null);
    let content = &line["response"]["body"]["choices"][0]["message"]["content"];
    assert_eq!(content, &json!(expected(&prompt(number), TOKENS)), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_line_of_a_batch_is_answered_once() {
    let fleet = Fleet::of(4, &phone(2, 40.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let file = upload(&gateway, &chats(60)).await;
    let id = create(&gateway, &file, "24h").await;
    let done = ended(&gateway, &id).await;
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(done["model"], MODEL);
    let (output, errors) = results(&gateway, &done, 60).await;
    assert!(errors.is_empty() && done["error_file_id"].is_null());
    (0..60).for_each(|number| assert_answered(&output, number));
    let usage =
        |of: &str| output.values().map(|line| line["response"]["body"]["usage"][of].as_u64().unwrap_or(0)).sum();
    let (prompt, completion): (u64, u64) = (usage("prompt_tokens"), usage("completion_tokens"));
    assert_eq!(done["usage"]["input_tokens"], prompt);
    assert_eq!(done["usage"]["output_tokens"], completion);
    let times = ["created_at", "in_progress_at", "finalizing_at", "completed_at"].map(|at| done[at].as_u64());
    assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{done}");
    assert_eq!(fleet.phones.iter().map(|phone| phone.stats().completed).sum::<u64>(), 60, "no line ran twice");
    assert_eq!(fleet.over_subscribed(), 0);
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lines_own_fault_goes_to_the_error_file_and_a_phones_does_not() {
    let fleet = Fleet::of(3, &phone(2, 40.0)).await;
    let gateway = Gateway::over(&fleet, "[health]\npenalty = \"100ms\"\npenalty_cap = \"1s\"\n").await;
    let bad = [
        ("long", chat(&"wort ".repeat(40_000), false, 4)),
        ("stream", chat("hi", true, 4)),
        ("messages", json!({"model": MODEL, "messages": "hi"})),
    ];
    let wrong: String = bad.iter().map(|(id, body)| line(id, body) + "\n").collect();
    let file = upload(&gateway, &(wrong + &chats(20))).await;
    // Two of three phones die under each line that they begin, for a while.
    for phone in &fleet.phones[..2] {
        phone.set_fault(Fault::Break { at: Moment::Tokens(2), inside: None, how: Way::Die { down_s: Some(0.2) } });
    }
    let id = create(&gateway, &file, "24h").await;
    let done = ended(&gateway, &id).await;
    assert_eq!(done["status"], "completed", "{done}");
    let (output, errors) = results(&gateway, &done, 23).await;
    (0..20).for_each(|number| assert_answered(&output, number));
    for (id, words) in [("long", "context"), ("stream", "stream"), ("messages", "messages")] {
        let line = &errors[id];
        assert_eq!(line["response"]["status_code"], 400, "{line}");
        assert!(line["response"]["body"]["error"]["message"].to_string().contains(words), "{line}");
    }
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_fails_on_every_phone_has_failed_after_its_tries() {
    let fleet = Fleet::of(2, &phone(1, 40.0)).await;
    let config = "[batches]\nmax_tries = 2\n[health]\nsoft_failures = 100\nmin_success_share = 0.0\n[scheduler]\nretry_share = 1.0\n";
    let gateway = Gateway::over(&fleet, config).await;
    fleet.phones.iter().for_each(|phone| phone.set_fault(Fault::Status { code: 500, retry_after: None }));
    let file = upload(&gateway, &chats(3)).await;
    let id = create(&gateway, &file, "24h").await;
    let done = ended(&gateway, &id).await;
    let (output, errors) = results(&gateway, &done, 3).await;
    assert!(output.is_empty() && done["output_file_id"].is_null(), "{done}");
    assert!(errors.values().all(|line| line["response"]["status_code"].as_u64() >= Some(500)), "{errors:?}");
    assert_eq!(gateway.metric("huntgroup_batch_lines_ended_total", "retried").await, 3.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_line_fails_the_batch_and_nothing_runs() {
    let fleet = Fleet::of(1, &phone(1, 40.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let first = line("a", &chat("hi", false, 1));
    let cases = [
        (format!("{first}\n{{\"custom_id\": \n"), "invalid_json_line", json!(2)),
        (format!("{first}\n{first}\n"), "duplicate_custom_id", json!(2)),
        (String::new(), "empty_file", Value::Null),
        (first.replace("chat/completions", "completions"), "url_mismatch", json!(1)),
    ];
    for (text, code, number) in cases {
        let file = upload(&gateway, &text).await;
        let id = create(&gateway, &file, "24h").await;
        let failed = ended(&gateway, &id).await;
        assert_eq!(failed["status"], "failed", "{failed}");
        assert_eq!(failed["errors"]["object"], "list");
        assert_eq!(
            (&failed["errors"]["data"][0]["code"], &failed["errors"]["data"][0]["line"]),
            (&json!(code), &number)
        );
        assert!(failed["output_file_id"].is_null() && failed["error_file_id"].is_null());
    }
    assert_eq!(fleet.phones[0].stats().started, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_batch_keeps_what_is_done_and_says_so_of_the_rest() {
    let fleet = Fleet::of(2, &phone(1, 2.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let file = upload(&gateway, &chats(200)).await;
    let id = create(&gateway, &file, "24h").await;
    gateway
        .wait_for("some lines", async |g| batch(g, &id).await["request_counts"]["completed"].as_u64() > Some(3))
        .await;
    assert!(call(&gateway, "DELETE", &format!("/v1/files/{file}"), None).await.status == 200);
    let cancelled = call(&gateway, "POST", &format!("/v1/batches/{id}/cancel"), None).await;
    assert_eq!((cancelled.status, &cancelled.json()["status"]), (200, &json!("cancelling")), "{}", cancelled.text());
    let done = ended(&gateway, &id).await;
    assert_eq!(done["status"], "cancelled");
    let (output, errors) = results(&gateway, &done, 200).await;
    assert!(output.len() > 3 && errors.len() > 100, "{} and {}", output.len(), errors.len());
    assert!(errors.values().all(|line| line["response"].is_null() && line["error"]["code"] == "batch_cancelled"));
    assert_eq!(call(&gateway, "POST", &format!("/v1/batches/{id}/cancel"), None).await.status, 409);
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_without_phones_waits_and_expires_in_time() {
    let fleet = Fleet::of(1, &phone(1, 40.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    fleet.phones[0].set_fault(Fault::Refuse);
    gateway.wait_for("no phone", async |g| g.states("ready").await == 0).await;
    let file = upload(&gateway, &chats(3)).await;
    let (waits, expires) = (create(&gateway, &file, "24h").await, create(&gateway, &file, "5s").await);
    gateway
        .wait_for("it to say what it waits for", async |g| {
            batch(g, &waits).await["huntgroup"]["waiting_for"] == "replica"
        })
        .await;
    let done = ended(&gateway, &expires).await;
    assert_eq!(done["status"], "expired", "{done}");
    let (_, errors) = results(&gateway, &done, 3).await;
    assert!(errors.values().all(|line| line["error"]["code"] == "batch_expired"), "{errors:?}");
    fleet.phones[0].set_fault(Fault::None);
    let done = ended(&gateway, &waits).await;
    assert_eq!(done["request_counts"]["completed"], 3, "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urgent_requests_go_before_a_batch_that_fills_the_pool() {
    let fleet = Fleet::of(2, &phone(2, 2.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let file = upload(&gateway, &chats(400)).await;
    let id = create(&gateway, &file, "24h").await;
    gateway.wait_for("a full pool", async |g| g.metric("huntgroup_replica_slots", "state=\"busy\"").await >= 3.0).await;
    let queued = gateway.metric("huntgroup_queue_depth", "class=\"batch\"").await;
    assert!(queued <= 8.0, "just enough lines wait: {queued}");
    for number in 0..10 {
        let answer = gateway.chat(&chat(&prompt(number), false, 2)).await;
        assert_eq!(answer.status, 200);
    }
    let progress = batch(&gateway, &id).await;
    assert!(progress["request_counts"]["completed"].as_u64() < Some(400), "the batch was over before the others began");
    call(&gateway, "POST", &format!("/v1/batches/{id}/cancel"), None).await;
    ended(&gateway, &id).await;
    gateway.wait_at_rest().await;
}

/// B1 to B4 over kills at random moments: in uploads, while lines are looked at, run, stored, and files are written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_survives_the_death_of_its_gateway_at_any_moment() {
    const LINES: usize = 300;
    let fleet = Fleet::of(6, &phone(2, 20.0)).await;
    let mut gateway = Gateway::over(&fleet, "").await;
    let mut chance = Rng::from_seed(7);
    let file = upload(&gateway, &chats(LINES)).await;
    let id = create(&gateway, &file, "24h").await;
    let mut seen = (0_u64, 0_usize);
    let order = ["validating", "in_progress", "finalizing", "completed"];
    for _ in 0..12 {
        tokio::time::sleep(std::time::Duration::from_secs_f64(0.05 + chance.unit())).await;
        gateway.signal(Signal::KILL);
        gateway.exited().await;
        gateway.restart().await;
        gateway
            .wait_for("the public listener", async |g| {
                tokio::net::TcpStream::connect(("127.0.0.1", g.public)).await.is_ok()
            })
            .await;
        let now = batch(&gateway, &id).await;
        let done = now["request_counts"]["completed"].as_u64().unwrap_or(0);
        let state = order.iter().position(|state| now["status"] == *state).expect("a state on its way");
        assert!(done >= seen.0 && state >= seen.1, "it went back: {now}");
        seen = (done, state);
    }
    // What the last process had claimed comes back with the end of its lease.
    let done = ended(&gateway, &id).await;
    assert_eq!(done["status"], "completed", "{done}");
    let (output, _) = results(&gateway, &done, LINES).await;
    (0..LINES).for_each(|number| assert_answered(&output, number));
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_told_to_end_finishes_the_lines_that_run_and_begins_none() {
    let fleet = Fleet::of(2, &phone(1, 4.0)).await;
    let mut gateway = Gateway::over(&fleet, "").await;
    let file = upload(&gateway, &chats(60)).await;
    let id = create(&gateway, &file, "24h").await;
    gateway
        .wait_for("lines that run", async |g| batch(g, &id).await["request_counts"]["completed"].as_u64() > Some(2))
        .await;
    gateway.signal(Signal::TERM);
    assert!(gateway.exited().await.success());
    let ran: u64 = fleet.phones.iter().map(|phone| phone.stats().completed).sum();
    assert_eq!(fleet.phones.iter().map(|phone| phone.stats().lost).sum::<u64>(), 0, "what ran was finished");
    gateway.restart().await;
    gateway
        .wait_for("the public listener", async |g| {
            tokio::net::TcpStream::connect(("127.0.0.1", g.public)).await.is_ok()
        })
        .await;
    assert_eq!(batch(&gateway, &id).await["request_counts"]["completed"], ran, "and stored");
    // It resigned: nothing waits for the end of a lease.
    let done = ended(&gateway, &id).await;
    let (output, _) = results(&gateway, &done, 60).await;
    (0..60).for_each(|number| assert_answered(&output, number));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_in_the_middle_runs_every_line_once() {
    const LINES: usize = 150;
    let mut config = phone(2, 6.0);
    config.kept_requests = usize::MAX;
    let fleet = Fleet::of(3, &config).await;
    let mut gateway = Gateway::over(&fleet, "[batches]\nlease = \"2s\"\n").await;
    let file = upload(&gateway, &chats(LINES)).await;
    let id = create(&gateway, &file, "24h").await;
    gateway
        .wait_for("lines that run", async |g| batch(g, &id).await["request_counts"]["completed"].as_u64() > Some(20))
        .await;
    let successor = gateway.successor();
    assert!(gateway.exited().await.success());
    gateway.child = successor;
    let done = ended(&gateway, &id).await;
    let (output, errors) = results(&gateway, &done, LINES).await;
    assert!(errors.is_empty());
    (0..LINES).for_each(|number| assert_answered(&output, number));
    let requests: Vec<_> = fleet.phones.iter().flat_map(fakephone::PhoneHandle::requests).collect();
    for number in 0..LINES {
        let said = format!("\"{}\"", prompt(number));
        let runs = requests.iter().filter(|request| request.body.contains(&said)).count();
        assert_eq!(runs, 1, "line {number}");
    }
    gateway.wait_at_rest().await;
}
