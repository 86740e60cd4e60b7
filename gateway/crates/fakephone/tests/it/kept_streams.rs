//! Streams that a phone keeps for a client whose connection was lost.

use crate::SOON;
use crate::client::{Answer, Client, ask, get, post_with};
use fakephone::{Fault, Inside, Moment, PhoneConfig, PhoneHandle, Scope, Way, answer_text, spawn};
use http::{Method, Request};
use serde_json::{Value, json};
use simulation::phone::ModelSpeed;

const MESSAGE: &str = "an der schönen Donau";
const ID: (&str, &str) = ("x-conversation-id", "c1");

async fn keeper() -> PhoneHandle {
    let config = PhoneConfig { keeps_streams: true, ..PhoneConfig::default() };
    spawn(config.with_model_speed(ModelSpeed::QWEN_0_8B, 20.0)).await.expect("a phone")
}

fn request(tokens: u32) -> Request<crate::client::Whole> {
    let body = json!({"messages": [{"role": "user", "content": MESSAGE}], "stream": true, "max_tokens": tokens});
    post_with("/v1/chat/completions", &body, &[ID])
}

/// Asks and loses the connection on the way.
async fn lose(phone: &PhoneHandle, tokens: u32, inside: Option<Inside>) -> Answer {
    phone.set_fault_within(Fault::Break { at: Moment::Text(5), inside, how: Way::Tunnel }, Scope::Next(1));
    let answer = ask(phone, request(tokens)).await.expect("a head");
    assert!(answer.broken.is_some());
    answer
}

async fn resume(phone: &PhoneHandle, from: usize) -> Answer {
    ask(phone, get(&format!("/v1/stream?conv_id=c1&from={from}"))).await.expect("an answer")
}

#[tokio::test]
async fn a_lost_stream_is_read_on_at_the_byte_where_it_broke() {
    for inside in [None, Some(Inside::Event), Some(Inside::Character)] {
        let phone = keeper().await;
        let first = lose(&phone, 40, inside).await;
        let second = resume(&phone, first.body.len()).await;
        assert!(second.broken.is_none() && second.status == 200);
        let whole = Answer { body: [first.body, second.body].concat(), ..second };
        assert_eq!(whole.joined("content"), answer_text(&phone.config().model, MESSAGE, 40), "{inside:?}");
        assert!(whole.is_done());
        let stats = phone.wait_until(SOON, |stats| stats.completed == 1).await.expect("it was completed");
        assert_eq!((stats.cancelled, stats.written_tokens), (0, 40));
        let again = resume(&phone, 0).await;
        assert_eq!(again.joined("content"), answer_text(&phone.config().model, MESSAGE, 40), "it is still known");
        assert_eq!(resume(&phone, 999_999).await.body.len(), 0);
    }
}

#[tokio::test]
async fn only_giving_a_stream_up_frees_its_slot() {
    let phone = keeper().await;
    phone.set_pace(0.2);
    lose(&phone, 4000, None).await;
    let slots = ask(&phone, get("/slots")).await.expect("an answer").json();
    assert_eq!(slots[0]["is_processing"], true);
    let mut client = Client::to(&phone).await;
    let body = json!({"conversation_ids": ["c1", "c2"]});
    let known = client.ask(post_with("/v1/streams/lookup", &body, &[])).await.expect("an answer").json();
    assert_eq!((known.as_array().map(Vec::len), &known[0]["is_done"]), (Some(1), &json!(false)));
    let mut delete = get("/v1/stream?conv_id=c1");
    *delete.method_mut() = Method::DELETE;
    assert_eq!(client.ask(delete).await.expect("an answer").status, 204);
    let stats = phone.wait_until(SOON, |stats| stats.running_now == 0).await.expect("the slot is free");
    assert!(stats.cancelled == 1 && stats.written_tokens < 4000);
    assert_eq!(resume(&phone, 0).await.status, 404);
}

#[tokio::test]
async fn a_second_request_with_the_id_ends_the_first() {
    let phone = keeper().await;
    phone.set_pace(0.2);
    lose(&phone, 4000, None).await;
    phone.set_pace(1.0);
    let answer = ask(&phone, request(9)).await.expect("an answer");
    assert_eq!(answer.joined("content"), answer_text(&phone.config().model, MESSAGE, 9));
    assert_eq!(phone.stats().cancelled, 1);
}

#[tokio::test]
async fn a_phone_that_keeps_no_streams_knows_none_and_stops_as_any() {
    let phone = spawn(PhoneConfig::default().with_model_speed(ModelSpeed::QWEN_0_8B, 20.0)).await.expect("a phone");
    lose(&phone, 4000, None).await;
    phone.wait_until(SOON, |stats| stats.running_now == 0 && stats.cancelled == 1).await.expect("it stops");
    assert_eq!(resume(&phone, 0).await.status, 404);
    let lookup = post_with("/v1/streams/lookup", &json!({"conversation_ids": ["c1"]}), &[]);
    assert_eq!(ask(&phone, lookup).await.expect("an answer").status, 404);
}

#[tokio::test]
async fn a_stream_dies_with_its_phone() {
    let phone = keeper().await;
    phone.set_pace(0.2);
    lose(&phone, 4000, None).await;
    phone.kill();
    phone.revive();
    let answer = async {
        loop {
            if let Ok(socket) = tokio::net::TcpStream::connect(phone.address()).await {
                return Client::over(socket).await.ask(get("/v1/stream?conv_id=c1&from=0")).await;
            }
        }
    };
    let answer = tokio::time::timeout(SOON, answer).await.expect("it is back").expect("an answer");
    assert_eq!((answer.status, answer.json()["error"]["type"].clone()), (404, Value::from("not_found_error")));
}
