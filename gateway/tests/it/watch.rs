//! The live feed: everything at once, then what changes, for readers of any pace, through restarts; the last hour; `huntgroup top`.

use std::process::{Command, Output};

use fakephone::Fault;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Client, Exchange, Fleet, Gateway, chat, phone};

/// Readers at once.
const SEATS: usize = 32;

async fn watch(gateway: &Gateway) -> Exchange {
    let mut feed = Client::connect(gateway.admin).await.send("GET", "/admin/watch", &[], None).await;
    until(&mut feed, "events", |_| true).await;
    feed
}

/// The data of all events of this name that were read.
fn told(feed: &Exchange, name: &str) -> Vec<Value> {
    let seen = feed.seen();
    let marked = format!("event: {name}\ndata: ");
    let data = seen.split(&marked).skip(1).filter_map(|rest| rest.split_once("\n\n"));
    data.map(|(data, _)| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))).collect()
}

fn last(feed: &Exchange, name: &str) -> Value {
    told(feed, name).pop().unwrap_or_else(|| panic!("no {name} in {}", feed.seen()))
}

/// Reads until an event of this name is as wanted.
async fn until(feed: &mut Exchange, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let marked = format!("event: {name}\n");
    let found = |seen: &str| {
        let data = seen.split(&marked).skip(1).filter_map(|rest| rest.strip_prefix("data: ")?.split_once("\n\n"));
        let mut data = data.filter_map(|(data, _)| serde_json::from_str::<Value>(data).ok());
        data.find(|data| wanted(data))
    };
    assert!(feed.read_while(|seen| found(seen).is_none()).await, "{}", feed.seen());
    found(&feed.seen()).expect("it was found just now")
}

fn names(list: &Value, field: &str) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.map(|item| item[field].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn a_reader_gets_everything_and_then_what_changes() {
    let fleet = Fleet::of(2, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n").await;
    let mut feed = watch(&gateway).await;
    let order: Vec<String> =
        feed.seen().lines().filter_map(|line| line.strip_prefix("event: ")).map(str::to_owned).collect();
    let parts = [
        "pool",
        "totals",
        "queue",
        "requests",
        "batches",
        "history",
        "advice",
        "cost",
        "deployments",
        "registration",
        "events",
    ];
    assert_eq!((order[0].as_str(), &order[1..]), ("hello", &parts.map(str::to_owned)[..]));
    let hello = last(&feed, "hello");
    assert_eq!((&hello["admin_token_needed"], hello["instance"].as_str().map(str::len)), (&json!(false), Some(16)));
    let pool = last(&feed, "pool");
    let replicas = pool["replicas"].as_array().expect("replicas");
    assert_eq!(replicas.len(), 2);
    let first = &replicas[0];
    assert_eq!(
        (&first["state"], &first["models"], &first["slots"], &first["busy"], &first["doing"], &first["source"]),
        (&json!("ready"), &json!(["tiny"]), &json!(1), &json!(0), &json!([]), &json!("config"))
    );
    let totals = last(&feed, "totals");
    assert_eq!((&totals["slots"], &totals["free"], &totals["replicas"]["ready"]), (&json!(2), &json!(2), &json!(2)));
    assert_eq!(
        (&totals["store_ok"], &totals["relays_down"], &totals["draining"]),
        (&json!(true), &json!([]), &json!(false))
    );
    let queue = last(&feed, "queue");
    assert_eq!(names(&queue["by_class"], "class"), ["interactive", "standard", "batch"]);
    assert_eq!(queue["by_model"][0]["ready"], 2);
    assert!(names(&last(&feed, "events")["data"], "event").contains(&"state".to_owned()));

    // Three requests for two slots: two are at work, one waits. The third comes when the others have theirs: it would wait for an
    // answer of 4,000 tokens if it had come before.
    let mut streams = Vec::new();
    for at_work in [true, true, false] {
        let mut stream = gateway.client().await.post("/v1/chat/completions", &chat("hello", true, 4_000)).await;
        assert!(!at_work || stream.read_until("\"content\"").await);
        streams.push(stream);
    }
    let busy = until(&mut feed, "totals", |totals| totals["busy"] == 2 && totals["queued"] == 1).await;
    assert_eq!((&busy["free"], &busy["in_flight"]), (&json!(0), &json!(3)));
    let at_work = |delta: &Value| {
        delta["replicas"].as_array().is_some_and(|all| all.iter().any(|one| one["doing"][0]["phase"] == "decode"))
    };
    let delta = until(&mut feed, "delta", at_work).await;
    let one = delta["replicas"].as_array().into_iter().flatten().find(|one| one["busy"] == 1).expect("one at work");
    let doing = &one["doing"][0];
    assert_eq!(
        (&doing["class"], &doing["tenant"], &doing["model"]),
        (&json!("standard"), &json!("anonymous"), &json!("tiny"))
    );
    let waiting = until(&mut feed, "queue", |queue| queue["by_class"][1]["waiting"] == 1).await;
    assert_eq!(
        (&waiting["by_tenant"][0]["tenant"], &waiting["by_tenant"][0]["waiting"]),
        (&json!("anonymous"), &json!(1))
    );
    let listed = until(&mut feed, "requests", |requests| requests["total"] == 3).await;
    let mut phases = names(&listed["data"], "phase");
    phases.sort();
    assert_eq!(phases.last().map(String::as_str), Some("queued"), "{listed}");
    let id = doing["request"].as_str().expect("an id");
    assert!(names(&listed["data"], "id").contains(&id.to_owned()));

    streams.into_iter().for_each(Exchange::leave);
    until(&mut feed, "totals", |totals| totals["in_flight"] == 0).await;
    fleet.phones[0].set_fault(Fault::UnknownId);
    let out =
        |delta: &Value| delta["replicas"].as_array().is_some_and(|all| all.iter().any(|one| one["state"] == "out"));
    let delta = until(&mut feed, "delta", out).await;
    let gone = delta["replicas"].as_array().into_iter().flatten().find(|one| one["state"] == "out").expect("it is out");
    assert!(gone["problem"].as_str().is_some_and(|problem| problem.contains("no phone of this name")), "{gone}");
    until(&mut feed, "event", |event| event["event"] == "state" && event["to"] == "out").await;
    let number = gone["id"].as_u64().expect("a number");
    gateway.admin("DELETE", &format!("/admin/replicas/{number}?force=true"), None).await;
    until(&mut feed, "delta", |delta| delta["gone"] == json!([number])).await;
}

#[tokio::test]
async fn readers_are_bounded_and_a_seat_is_free_again_once_one_leaves() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut feeds = Vec::new();
    for _ in 0..SEATS {
        feeds.push(watch(&gateway).await);
    }
    assert_eq!(gateway.admin("GET", "/admin/watch", None).await.status, 503);
    feeds.drain(1..).for_each(Exchange::leave);
    gateway
        .wait_for("a seat", async |gateway| {
            let mut feed = Client::connect(gateway.admin).await.send("GET", "/admin/watch", &[], None).await;
            feed.read_until("\r\n\r\n").await && feed.seen().starts_with("HTTP/1.1 200")
        })
        .await;
    // The one that stayed reads on.
    gateway.admin("POST", "/admin/replicas/1/drain", Some(&json!({}))).await;
    until(&mut feeds[0], "event", |event| event["event"] == "drained").await;
}

#[tokio::test]
async fn a_feed_ends_with_its_process_and_the_next_one_is_another_instance() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let mut gateway = Gateway::over(&fleet, "").await;
    let feed = watch(&gateway).await;
    let before = last(&feed, "hello")["instance"].clone();
    gateway.signal(Signal::TERM);
    // It holds up no end, and it is whole to the end.
    let answer = feed.answer().await;
    assert!(answer.text().contains("event: events"), "{}", answer.text());
    assert!(gateway.exited().await.success());
    gateway.restart().await;
    let feed = watch(&gateway).await;
    let after = last(&feed, "hello")["instance"].clone();
    assert!(before.is_string() && after.is_string() && before != after, "{before} {after}");
}

#[tokio::test]
async fn after_a_restart_phones_that_do_not_come_back_are_told_apart_from_new_ones() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let mut gateway = Gateway::over(&fleet, "").await;
    let mut feed = watch(&gateway).await;
    let whole = last(&feed, "pool");
    let of = |name: &str| {
        whole["replicas"].as_array().into_iter().flatten().map(|one| one[name].clone()).collect::<Vec<_>>()
    };
    assert_eq!((of("missing"), of("takes_work")), (vec![json!(false); 2], vec![json!(true); 2]), "{whole}");
    let labels = json!({"labels": {"deployment": "job:7"}});
    gateway.admin("PATCH", "/admin/replicas/1", Some(&labels)).await;
    let one = |delta: &Value, wanted: &dyn Fn(&Value) -> bool| {
        delta["replicas"].as_array().is_some_and(|all| all.iter().any(wanted))
    };
    until(&mut feed, "delta", |delta| one(delta, &|one| one["id"] == 1 && one["deployment"] == "job:7")).await;

    fleet.phones[1].set_fault(Fault::UnknownId);
    gateway.signal(Signal::TERM);
    assert!(gateway.exited().await.success());
    gateway.restart().await;
    let mut feed = watch(&gateway).await;
    let is_gone =
        |one: &Value| one["id"] == 2 && one["missing"] == true && one["state"] == "out" && one["problem"].is_string();
    until_either(&mut feed, &is_gone).await;
    until_either(&mut feed, &|one| one["id"] == 1 && one["missing"] == false && one["takes_work"] == true).await;
    fleet.phones[1].clear_fault();
    until_either(&mut feed, &|one| one["id"] == 2 && one["missing"] == false && one["state"] == "ready").await;
}

/// Reads until some replica is as wanted, in what is told at the start or later.
async fn until_either(feed: &mut Exchange, wanted: &dyn Fn(&Value) -> bool) {
    let told = |feed: &Exchange| [told(feed, "pool"), told(feed, "delta")].concat();
    let found =
        |all: Vec<Value>| all.iter().any(|part| part["replicas"].as_array().is_some_and(|all| all.iter().any(wanted)));
    while !found(told(feed)) {
        let seen = feed.seen().len();
        assert!(feed.read_while(|text| text.len() <= seen).await, "{}", feed.seen());
    }
}

#[tokio::test]
async fn a_model_that_no_phone_serves_has_no_wait_but_an_end() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut feed = watch(&gateway).await;
    let model = |queue: &Value, field: &str| queue["by_model"][0][field].clone();
    until(&mut feed, "queue", |queue| model(queue, "estimate_s").is_number() && queue["refused_after_s"] == 30.0).await;
    fleet.phones[0].set_fault(Fault::UnknownId);
    let gone = until(&mut feed, "queue", |queue| model(queue, "estimate_s").is_null()).await;
    assert_eq!((model(&gone, "model"), model(&gone, "slots")), (json!("tiny"), json!(0)), "{gone}");
    assert!(gone["by_class"][0]["estimate_s"].is_null(), "{gone}");
    let queue = gateway.admin("GET", "/admin/queue", None).await.json();
    let first = &queue["data"][0];
    assert_eq!((&first["wait_s"], &first["refused_after_s"]), (&Value::Null, &json!(30.0)), "{queue}");
    fleet.phones[0].clear_fault();
    let waits_again = async |gateway: &Gateway| {
        let queue = gateway.admin("GET", "/admin/queue", None).await.json();
        queue["data"][0]["wait_s"].is_number() && queue["data"][0]["refused_after_s"].is_null()
    };
    gateway.wait_for("an estimate", waits_again).await;
}

#[tokio::test]
async fn the_last_hour_has_what_was_asked() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut feed = watch(&gateway).await;
    assert!(gateway.chat(&chat("hello", true, 8)).await.is_whole("hello", 8));
    assert_eq!(gateway.chat(&json!({"model": "tiny"})).await.status, 400);
    let point = until(&mut feed, "point", |point| point["requests"] == 1).await;
    assert_eq!((&point["failed"], &point["completion_tokens"], &point["ready"]), (&json!(0), &json!(8), &json!(1)));
    assert!(point["ttft"]["standard"][0].as_f64().is_some_and(|median| median > 0.0), "{point}");
    assert!(point["ttft"]["batch"].is_null() && point["at"].as_u64().is_some_and(|at| at % 10 == 0), "{point}");
    let hour = gateway.admin("GET", "/admin/history", None).await.json();
    assert!(hour["points"].as_array().is_some_and(|points| points.contains(&point)), "{hour}");
}

fn top(admin: u16, args: &[&str]) -> Output {
    let command = env!("CARGO_BIN_EXE_huntgroup");
    let at = format!("http://127.0.0.1:{admin}");
    let mut top = Command::new(command);
    top.args(["top", "--admin", &at]).args(args).env("LANG", "C").env_remove("LC_ALL").env("COLUMNS", "120");
    top.output().expect("it runs")
}

#[tokio::test]
async fn top_prints_one_look_where_nobody_watches() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let admin = gateway.admin;
    let run = async |args: &'static [&'static str]| {
        tokio::task::spawn_blocking(move || top(admin, args)).await.expect("it runs")
    };
    let once = run(&["--once"]).await;
    let text = String::from_utf8(once.stdout).expect("text");
    assert!(once.status.success() && text.starts_with("huntgroup ") && text.contains("2 ready"), "{text}");
    assert!(text.contains("0 of 2 slots busy") && text.is_ascii() && !text.contains('\u{1b}'), "{text}");
    // The same in a pipe.
    let piped = String::from_utf8(run(&[]).await.stdout).expect("text");
    assert_eq!(piped.lines().count(), text.lines().count());
    let json: Value = serde_json::from_slice(&run(&["--json"]).await.stdout).expect("JSON");
    assert_eq!((json["pool"]["replicas"].as_array().map(Vec::len), &json["totals"]["slots"]), (Some(2), &json!(2)));
    assert_eq!(run(&["--frobnicate"]).await.status.code(), Some(64));
    let nobody = tokio::task::spawn_blocking(|| top(1, &["--once"])).await.expect("it runs");
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("is it running?"));
}
