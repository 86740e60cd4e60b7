//! Reading a prompt: what is told of it, phones that are stuck, and phones that are slow.

use crate::SOON;
use crate::client::{Client, ask, chat, frame, post};
use fakephone::{Fault, Moment, PhoneConfig, PhoneHandle, Scope, Way, spawn};
use serde_json::{Value, json};
use std::time::Duration;

async fn phone() -> PhoneHandle {
    spawn(PhoneConfig { batch_tokens: 100, ..PhoneConfig::default() }).await.expect("a phone")
}

fn long() -> String {
    "word ".repeat(448) + "end"
}

/// `processed` of every report, and whether all of them say the same total and cache.
fn reports(chunks: &[Value]) -> (Vec<u64>, Vec<(u64, u64)>) {
    let reports: Vec<&Value> =
        chunks.iter().map(|chunk| &chunk["prompt_progress"]).filter(|it| !it.is_null()).collect();
    let number = |report: &Value, key: &str| report[key].as_u64().expect("a number");
    let mut constant: Vec<_> = reports.iter().map(|it| (number(it, "total"), number(it, "cache"))).collect();
    constant.dedup();
    (reports.iter().map(|it| number(it, "processed")).collect(), constant)
}

#[tokio::test]
async fn progress_is_told_from_the_cache_on_with_each_batch_on_every_route_that_asks_for_it() {
    for (path, prompt) in [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": long()}]})),
        ("/v1/completions", json!({"prompt": "a ".to_owned() + &long() + " b"})),
        ("/completion", json!({"prompt": "a ".to_owned() + &long() + " b"})),
    ] {
        let phone = phone().await;
        let mut body = prompt;
        body["max_tokens"] = json!(2);
        body["n_predict"] = json!(2);
        body["stream"] = json!(true);
        let silent = ask(&phone, post(path, &body)).await.expect("an answer");
        assert!(!silent.text().contains("prompt_progress"), "nobody asked");
        let warm = phone.stats().cached_tokens;
        body["return_progress"] = json!(true);
        let answer = ask(&phone, post(path, &body)).await.expect("an answer");
        assert_eq!((warm, reports(&answer.chunks())), (0, (vec![450, 451], vec![(451, 450)])), "{path}");
        let fresh = self::phone().await;
        let answer = ask(&fresh, post(path, &body)).await.expect("an answer");
        assert_eq!(reports(&answer.chunks()), (vec![0, 100, 200, 300, 400, 451], vec![(451, 0)]), "{path}");
    }
}

#[tokio::test]
async fn a_stuck_phone_falls_silent_in_the_middle_of_the_prompt_and_holds_its_slot() {
    let phone = phone().await;
    phone.set_fault_within(Fault::Break { at: Moment::Batches(2), inside: None, how: Way::Hang }, Scope::Next(1));
    let mut client = Client::to(&phone).await;
    let head = client.start(chat(&long(), json!({"stream": true, "return_progress": true}))).await.expect("a head");
    let mut body = head.into_body();
    let mut text = String::new();
    while let Ok(Some(piece)) = tokio::time::timeout(Duration::from_millis(150), frame(&mut body)).await {
        text.push_str(&String::from_utf8_lossy(&piece.expect("no error")));
    }
    let chunks: Vec<Value> =
        crate::client::events(&text).iter().filter_map(|data| serde_json::from_str(data).ok()).collect();
    assert_eq!(reports(&chunks).0, [0, 100, 200]);
    assert_eq!(phone.stats().running_now, 1);
    drop((body, client));
    phone.wait_until(SOON, |stats| stats.running_now == 0 && stats.cancelled == 1).await.expect("the slot is free");
}

#[tokio::test]
async fn a_slow_phone_gets_on_and_says_so() {
    let phone = phone().await;
    phone.set_fault(Fault::SlowReading { seconds: 0.05 });
    let body = json!({"stream": true, "return_progress": true, "max_tokens": 2});
    let mut client = Client::to(&phone).await;
    let mut stream = client.start(chat(&long(), body)).await.expect("a head").into_body();
    let mut pieces = 0;
    let mut text = String::new();
    while let Some(piece) = frame(&mut stream).await {
        text.push_str(&String::from_utf8_lossy(&piece.expect("no error")));
        pieces += 1;
    }
    let chunks: Vec<Value> =
        crate::client::events(&text).iter().filter_map(|data| serde_json::from_str(data).ok()).collect();
    assert_eq!(reports(&chunks).0, [0, 100, 200, 300, 400, 451]);
    assert!(pieces >= 6, "each report comes when its batch is done: {pieces}");
}

#[tokio::test]
async fn a_phone_dies_or_loses_its_client_in_the_middle_of_the_prompt() {
    for (how, alive) in [(Way::Die { down_s: None }, false), (Way::Tunnel, true), (Way::Cut, true)] {
        let phone = phone().await;
        phone.set_fault_within(Fault::Break { at: Moment::Batches(3), inside: None, how }, Scope::Next(1));
        let answer =
            ask(&phone, chat(&long(), json!({"stream": true, "return_progress": true}))).await.expect("a head");
        assert!(answer.broken.is_some() && answer.joined("content").is_empty());
        assert_eq!(reports(&answer.chunks()).0, [0, 100, 200, 300], "{how:?}");
        phone.wait_until(SOON, |stats| stats.running_now == 0).await.expect("nothing runs");
        assert_eq!((phone.is_alive(), phone.stats().written_tokens), (alive, 0));
    }
}
