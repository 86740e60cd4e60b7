//! Whether a phone carries answers on is found out by a small piece of work: after it has come into service, and only while it
//! has nothing else to do.

use std::time::Duration;

use fakephone::{Fault, Moment, Scope, Way};
use serde_json::{Value, json};

use crate::harness::{Fleet, Gateway, PATIENCE, chat, phone};

const EAGER: &str = "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n";
const CHAT: &str = "/v1/chat/completions";

async fn carries_on(gateway: &Gateway) -> Vec<Value> {
    let answer = gateway.admin("GET", "/admin/replicas", None).await.json();
    answer["data"].as_array().into_iter().flatten().map(|replica| replica["carries_on"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_phone_takes_work_before_it_is_tried_and_is_left_alone_when_work_comes() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    // Reads its few tokens for longer than any probe may take.
    fleet.phones[0].set_pace(0.01);
    let gateway = Gateway::builder(EAGER).replicas(&fleet).start().await;
    gateway.wait_ready(1).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("a trial");
    assert_eq!(carries_on(&gateway).await, [Value::Null]);
    // It is not taken for somebody else's work, or the request would wait for its end.
    let waiting = gateway.client().await.post(CHAT, &chat("hello", false, 4)).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.cancelled == 1).await.expect("the end of the trial");
    fleet.phones[0].set_pace(100.0);
    assert!(waiting.answer().await.is_whole("hello", 4));
    gateway.wait_for("another trial", async |gateway| carries_on(gateway).await == [true]).await;
    let stats = fleet.phones[0].stats();
    assert_eq!((stats.cancelled, stats.completed), (1, 2), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_of_a_group_has_shown_stands_for_those_that_have_had_no_time() {
    let fleet = Fleet::of(2, &phone(2, 50.0)).await;
    let [first, second] = [&fleet.phones[0], &fleet.phones[1]];
    // It works for somebody else all the time, with a slot to spare.
    assert_eq!(second.occupy(1, Duration::from_secs(3600)), 1);
    let gateway = Gateway::builder(EAGER).replicas(&fleet).start().await;
    gateway.wait_ready(2).await;
    gateway.wait_for("one to be tried", async |gateway| carries_on(gateway).await == [json!(true), Value::Null]).await;
    let tell = async |what: &str| {
        let path = format!("/admin/replicas/{}/{what}", second.id());
        assert!(gateway.admin("POST", &path, Some(&json!({}))).await.status < 300);
    };
    tell("drain").await;
    first.set_fault_within(
        Fault::Break { at: Moment::Text(10), inside: None, how: Way::Die { down_s: None } },
        Scope::Next(1),
    );
    let exchange = gateway.client().await.post(CHAT, &chat("hello", true, 30)).await;
    first.wait_until(PATIENCE, |stats| stats.lost == 1).await.expect("the break");
    tell("undrain").await;
    let answer = exchange.answer().await;
    assert!(answer.is_whole("hello", 30), "{}", answer.text());
    assert_eq!(gateway.metric("huntgroup_continuations_total", "outcome=\"same_group\"").await, 1.0);
    assert_eq!(carries_on(&gateway).await[1], Value::Null);
    assert_eq!(second.stats().completed, 1, "it was not tried");
}
