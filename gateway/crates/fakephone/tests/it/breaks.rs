//! Answers that break off at a moment, in a way.

use crate::SOON;
use crate::client::{Answer, Client, ask, chat, get, read};
use fakephone::{Fault, Inside, Moment, PhoneConfig, PhoneHandle, Relay, Scope, Way, answer_text, spawn};
use serde_json::{Value, json};
use tokio::net::TcpStream;

async fn breaking(at: Moment, inside: Option<Inside>, how: Way) -> PhoneHandle {
    let phone = spawn(PhoneConfig::default()).await.expect("a phone");
    phone.set_fault_within(Fault::Break { at, inside, how }, Scope::Next(1));
    phone
}

async fn stream(phone: &PhoneHandle, message: &str, more: Value) -> Answer {
    let mut body = json!({"stream": true, "max_tokens": 60, "stream_options": {"include_usage": true}});
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    ask(phone, chat(message, body)).await.expect("a head")
}

fn tools() -> Value {
    json!({"tools": [{"type": "function", "function": {"name": "f", "parameters":
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}}}]})
}

/// How many deltas have this.
fn count(answer: &Answer, key: &str) -> usize {
    answer.chunks().iter().filter(|chunk| chunk["choices"][0]["delta"][key].is_string()).count()
}

#[tokio::test]
async fn a_stream_breaks_off_at_every_kind_of_moment() {
    let message = "[fake think=4 tokens=6 calls=1] x";
    for (at, thoughts, texts, calls) in [
        (Moment::Tokens(0), 0, 0, 0),
        (Moment::Tokens(6), 4, 2, 0),
        (Moment::Thoughts(2), 2, 0, 0),
        (Moment::Thoughts(4), 4, 0, 0),
        (Moment::Text(0), 4, 0, 0),
        (Moment::Text(3), 4, 3, 0),
        (Moment::Arguments(0), 4, 6, 0),
        (Moment::Arguments(2), 4, 6, 2),
        (Moment::Finish, 4, 6, 4),
        (Moment::Done, 4, 6, 4),
    ] {
        let phone = breaking(at, None, Way::Cut).await;
        let answer = stream(&phone, message, tools()).await;
        let chunks = answer.chunks();
        let called = chunks.iter().filter(|chunk| chunk["choices"][0]["delta"]["tool_calls"].is_array()).count();
        assert_eq!(
            (count(&answer, "reasoning_content"), count(&answer, "content"), called),
            (thoughts, texts, calls),
            "{at:?}"
        );
        assert!(answer.broken.is_some() && !answer.is_done(), "{at:?}");
        assert_eq!(answer.spoken().1.is_some(), matches!(at, Moment::Finish | Moment::Done));
        assert_eq!(answer.text().contains("\"usage\""), at == Moment::Done);
        let again = stream(&phone, message, tools()).await;
        assert!(again.is_done() && again.broken.is_none(), "once was ordered");
    }
}

#[tokio::test]
async fn a_moment_that_never_comes_breaks_nothing() {
    let phone = spawn(PhoneConfig::default()).await.expect("a phone");
    for at in [Moment::Thoughts(1), Moment::Arguments(0), Moment::Text(99), Moment::Batches(99)] {
        phone.set_fault(Fault::Break { at, inside: None, how: Way::Cut });
        let answer = stream(&phone, "x", json!({"max_tokens": 8})).await;
        assert!(answer.is_done() && answer.broken.is_none(), "{at:?}");
    }
}

#[tokio::test]
async fn a_stream_breaks_off_inside_a_word_an_event_or_a_character() {
    let message = "abcdef schön";
    let model = PhoneConfig::default().model;
    let phone = breaking(Moment::Text(2), Some(Inside::Word), Way::Cut).await;
    let answer = stream(&phone, message, json!({})).await;
    assert_eq!(answer.joined("content"), format!("{} abc", answer_text(&model, message, 2)));

    let phone = breaking(Moment::Text(2), Some(Inside::Event), Way::Cut).await;
    let answer = stream(&phone, message, json!({})).await;
    assert_eq!(answer.joined("content"), answer_text(&model, message, 2));
    let rest = answer.text().rsplit("\n\n").next().expect("a rest").to_owned();
    assert!(rest.starts_with("data: {") && serde_json::from_str::<Value>(&rest[6..]).is_err(), "{rest}");

    let phone = breaking(Moment::Text(1), Some(Inside::Character), Way::Cut).await;
    let answer = stream(&phone, message, json!({})).await;
    assert_eq!(
        answer.joined("content"),
        answer_text(&model, message, 3),
        "the first word with such a character is the fourth"
    );
    assert!(answer.body.ends_with(b" sch\xc3"), "{}", answer.text());
}

#[tokio::test]
async fn the_ways_of_breaking_off_look_different() {
    let phone = breaking(Moment::Text(3), None, Way::Error(500)).await;
    let answer = stream(&phone, "x", json!({})).await;
    assert!(answer.broken.is_none() && answer.chunks().last().is_some_and(|last| last["error"]["code"] == json!(500)));

    let phone = breaking(Moment::Text(3), None, Way::EarlyDone).await;
    assert!(stream(&phone, "x", json!({})).await.is_done());

    let phone = breaking(Moment::Finish, None, Way::Hang).await;
    let mut client = Client::to(&phone).await;
    let head = client.start(chat("x", json!({"stream": true, "max_tokens": 3}))).await.expect("a head");
    let silent = tokio::time::timeout(std::time::Duration::from_millis(150), read(head)).await;
    assert!(silent.is_err(), "the end never comes");
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_ends_without_a_byte_when_its_phone_breaks_off() {
    for at in [Moment::Batches(0), Moment::Text(3)] {
        let phone = breaking(at, None, Way::Cut).await;
        let failed = ask(&phone, chat("x", json!({"max_tokens": 8}))).await;
        assert!(failed.is_err(), "{at:?}");
        phone.wait_until(SOON, |stats| stats.running_now == 0 && stats.failed == 1).await.expect("the slot is free");
    }
}

#[tokio::test]
async fn a_phone_that_dies_at_a_token_takes_everything_with_it_and_comes_back_at_the_same_address() {
    let phone = spawn(PhoneConfig::default().with_slots(2)).await.expect("a phone");
    phone.set_fault_within(Fault::HangAfter { chunks: 2 }, Scope::Next(1));
    let mut client = Client::to(&phone).await;
    let neighbour = client.start(chat("y", json!({"stream": true, "max_tokens": 9}))).await.expect("a head");
    phone.set_fault_within(
        Fault::Break { at: Moment::Text(5), inside: None, how: Way::Die { down_s: Some(0.2) } },
        Scope::Next(1),
    );
    let answer = stream(&phone, "x", json!({})).await;
    assert_eq!(answer.joined("content"), answer_text(&phone.config().model, "x", 5));
    assert!(answer.broken.is_some() && read(neighbour).await.expect("a body").broken.is_some());
    phone.wait_until(SOON, |stats| stats.lost + stats.failed == 2).await.expect("both are lost");
    assert!(!phone.is_alive() || phone.stats().connections_open == 0);
    let back = async {
        while TcpStream::connect(phone.address()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, back).await.expect("it is back");
    assert!(phone.is_alive() && stream(&phone, "x", json!({"max_tokens": 4})).await.is_done());
}

#[tokio::test]
async fn a_tunnel_that_loses_a_connection_leaves_the_phone_alive_and_its_slot_free() {
    let relay = Relay::start_local().await.expect("a relay");
    let phone = relay.spawn(PhoneConfig::default()).expect("a phone");
    phone.set_fault_within(Fault::Break { at: Moment::Text(4), inside: None, how: Way::Tunnel }, Scope::Next(1));
    let mut client = Client::over(crate::client::dial(&phone, relay.ca_pem()).await.expect("TLS")).await;
    let answer = client.ask(chat("x", json!({"stream": true, "max_tokens": 60}))).await.expect("a head");
    assert_eq!(answer.joined("content"), answer_text(&phone.config().model, "x", 4));
    assert!(answer.broken.is_some());
    let stats = phone.wait_until(SOON, |stats| stats.running_now == 0).await.expect("the slot is free");
    assert_eq!((stats.cancelled, phone.is_alive()), (1, true));
}

#[tokio::test]
async fn all_connections_are_lost_at_once_and_new_ones_are_good() {
    let phone = spawn(PhoneConfig::default().with_slots(2)).await.expect("a phone");
    phone.set_fault(Fault::HangAfter { chunks: 2 });
    let mut bodies = Vec::new();
    for _ in 0..2 {
        let mut client = Client::to(&phone).await;
        let head = client.start(chat("x", json!({"stream": true, "max_tokens": 9}))).await.expect("a head");
        bodies.push((client, head));
    }
    phone.clear_fault();
    phone.cut_connections();
    for (_client, head) in bodies {
        assert!(read(head).await.expect("a body").broken.is_some());
    }
    phone.wait_until(SOON, |stats| stats.cancelled == 2 && stats.running_now == 0).await.expect("the phone saw it");
    assert_eq!(ask(&phone, get("/health")).await.expect("an answer").status, 200);
}
