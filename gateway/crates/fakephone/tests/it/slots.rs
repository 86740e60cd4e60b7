//! Slots that are taken although nobody waits for an answer, and what `/slots` says of them.

use crate::SOON;
use crate::client::{Client, ask, chat, get};
use fakephone::{Dialect, Fault, Phase, PhoneConfig, PhoneHandle, spawn};
use serde_json::json;
use simulation::phone::ModelSpeed;
use std::time::Duration;

async fn slow() -> PhoneHandle {
    spawn(PhoneConfig::default().with_model_speed(ModelSpeed::QWEN_4B, 40.0)).await.expect("a phone")
}

async fn busy(phone: &PhoneHandle) -> usize {
    let slots = ask(phone, get("/slots")).await.expect("an answer").json();
    slots.as_array().expect("slots").iter().filter(|slot| slot["is_processing"] == json!(true)).count()
}

/// Waits until `/slots` shows as many as that at work.
async fn until_busy(phone: &PhoneHandle, count: usize) {
    let seen = async { while busy(phone).await != count {} };
    tokio::time::timeout(SOON, seen).await.expect("slots at work");
}

/// Sends a request and leaves when it is in this phase.
async fn leave_in(phone: &PhoneHandle, phase: Phase, tokens: u32) {
    let message = if phase == Phase::Prefill { "word ".repeat(3000) } else { "hi".to_owned() };
    let mut client = Client::to(phone).await;
    let request = chat(&message, json!({"stream": true, "max_tokens": tokens}));
    let mut sending = tokio::task::JoinSet::new();
    sending.spawn(async move {
        let head = client.start(request).await;
        std::future::pending::<()>().await;
        drop(head);
    });
    let writes = phase == Phase::Decode;
    let begun = phone.wait_until(SOON, |stats| stats.running_now == 1 && (!writes || stats.written_tokens > 0));
    begun.await.expect("the request runs");
    sending.shutdown().await;
    let seen = phone.wait_until(SOON, |stats| stats.cancelled == 1).await.expect("the hang-up is seen");
    assert_eq!(seen.last_cancel.map(|seen| seen.phase), Some(phase));
}

#[tokio::test]
async fn a_request_that_runs_on_for_nobody_shows_as_busy_until_it_ends() {
    for phase in [Phase::Prefill, Phase::Decode] {
        let phone = slow().await;
        phone.set_fault(Fault::IgnoreCancel);
        leave_in(&phone, phase, 30).await;
        assert_eq!(busy(&phone).await, 1, "{phase:?}");
        let stats = phone.wait_until(SOON, |stats| stats.running_now == 0).await.expect("it ends by itself");
        assert_eq!((stats.written_tokens, stats.cancelled, stats.completed), (30, 1, 0), "{phase:?}");
        assert_eq!(busy(&phone).await, 0);
    }
}

#[tokio::test]
async fn mnns_servers_do_not_notice_that_a_client_has_left() {
    for dialect in [Dialect::Mnn, Dialect::MnnApp] {
        let config = PhoneConfig { answer_tokens: Some(25), ..PhoneConfig::default() };
        let config = config.with_dialect(dialect).with_model_speed(ModelSpeed::QWEN_4B, 40.0);
        let phone = spawn(config).await.expect("a phone");
        leave_in(&phone, Phase::Decode, 1).await;
        let other = phone.clone();
        let mut waiting = tokio::task::JoinSet::new();
        waiting.spawn(async move { ask(&other, chat("next", json!({"stream": true, "stop": ["next"]}))).await });
        phone.wait_until(SOON, |stats| stats.waiting_now == 1).await.expect("the next one waits");
        let next = waiting.join_next().await.expect("a task").expect("no panic").expect("an answer");
        let stats = phone.stats();
        assert!(next.is_done());
        assert_eq!((stats.written_tokens, stats.cancelled), (50, 1), "neither limit nor stop string is heeded");
    }
}

#[tokio::test]
async fn a_slot_is_freed_some_time_after_the_client_has_left_as_told() {
    let phone = slow().await;
    phone.set_fault(Fault::LateRelease { seconds: 0.2 });
    leave_in(&phone, Phase::Decode, 4000).await;
    assert_eq!(busy(&phone).await, 1);
    let written = phone.stats().written_tokens;
    let stats = phone.wait_until(SOON, |stats| stats.running_now == 0).await.expect("it is freed");
    assert_eq!(stats.written_tokens, written, "nothing was written meanwhile");
    assert_eq!(busy(&phone).await, 0);
}

#[tokio::test]
async fn strangers_take_free_slots_for_their_time_and_make_requests_wait() {
    let phone = spawn(PhoneConfig::default().with_slots(2)).await.expect("a phone");
    let long = Duration::from_secs(600);
    assert_eq!((phone.occupy(1, long), phone.occupy(9, Duration::from_millis(200))), (1, 1));
    assert_eq!(busy(&phone).await, 2);
    assert_eq!(ask(&phone, get("/slots?fail_on_no_slot=1")).await.expect("an answer").status, 503);
    let answer = ask(&phone, chat("x", json!({"max_tokens": 2}))).await.expect("an answer");
    assert_eq!((answer.status, phone.stats().waited), (200, 1), "it waited for the second stranger to leave");
    until_busy(&phone, 1).await;
    assert_eq!(phone.stats().running_now, 0, "strangers are in no book");
    phone.kill();
    phone.revive();
    let back = async { while tokio::net::TcpStream::connect(phone.address()).await.is_err() {} };
    tokio::time::timeout(SOON, back).await.expect("it is back");
    until_busy(&phone, 0).await;
}
