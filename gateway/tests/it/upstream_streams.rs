//! Phones are asked for streams whatever their clients want: what that gives a client that waits for one object.

use fakephone::{Dialect, Fault, Moment, Phase, PhoneConfig, Scope, Way};
use serde_json::{Value, json};

use crate::harness::{Fleet, Gateway, PATIENCE, chat, phone};

/// Patience that a whole plain answer would never have had.
const IMPATIENT: &str =
    "[streams]\nfirst_token_min = \"1s\"\nfirst_token_factor = 1.0\ngap_min = \"1s\"\nplain_total = \"1s\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_answer_is_what_the_phone_would_have_sent_in_one_piece() {
    // What a phone still has of a prompt depends on what it was asked before.
    let forgetful = PhoneConfig { remembers_prompts: false, ..phone(1, 1000.0) };
    let fleet = Fleet::of(1, &forgetful).await;
    let gateway = Gateway::over(&fleet, "").await;
    let direct = fakephone::spawn(forgetful).await.expect("a phone");
    let tools = json!([{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]);
    for (path, body) in [
        ("/v1/chat/completions", chat("plain", false, 12)),
        ("/v1/chat/completions", chat("[fake think=4] plain", false, 12)),
        (
            "/v1/chat/completions",
            json!({"model": "tiny", "tools": tools, "max_tokens": 90,
            "messages": [{"role": "user", "content": "[fake tokens=3 calls=2] plain"}]}),
        ),
        ("/v1/completions", json!({"model": "tiny", "prompt": "plain", "max_tokens": 12})),
        ("/v1/responses", json!({"model": "tiny", "input": "plain", "max_output_tokens": 12})),
        (
            "/v1/messages",
            json!({"model": "tiny", "max_tokens": 12, "messages": [{"role": "user", "content": "plain"}]}),
        ),
    ] {
        let through = gateway.client().await.post(path, &body).await.answer().await;
        let asked = fleet.phones[0].last_work().expect("asked");
        let asked: Value = serde_json::from_str(&asked.body).expect("JSON");
        assert_eq!(asked["stream"], true, "{path}: {asked}");
        let port = direct.address().port();
        let own = crate::harness::Client::connect(port).await.post(path, &body).await.answer().await;
        let (mut through, mut own) = (through.json(), own.json());
        strip(&mut through);
        strip(&mut own);
        assert_eq!(through, own, "{path}");
    }
    assert_eq!(gateway.metric("huntgroup_upstream_plain_total", "").await.abs(), 0.0);
}

/// Removes what differs from one answer to the next, and what the gateway takes out or adds on purpose.
fn strip(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for name in ["id", "created", "created_at", "completed_at", "timings", "system_fingerprint", "call_id"] {
                members.remove(name);
            }
            members.values_mut().for_each(strip);
        }
        Value::Array(elements) => elements.iter_mut().for_each(strip),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_answer_may_take_as_long_as_its_phone_writes() {
    // Some four seconds of writing; in one piece it would have been given up after one.
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, IMPATIENT).await;
    let answer = gateway.chat(&chat("long", false, 250)).await;
    assert!(answer.is_whole("long", 250), "{}{}", answer.head, answer.text());
    assert_eq!(fleet.phones[0].stats().started, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_whose_plain_client_has_left_stops_writing_at_once() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let exchange = gateway.client().await.post("/v1/chat/completions", &chat("hi", false, 2000)).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.written_tokens > 3).await.expect("it writes");
    exchange.leave();
    let stopped = fleet.phones[0].wait_until(PATIENCE, |stats| stats.cancelled == 1).await.expect("it stops");
    assert!(stopped.written_tokens < 1000, "it wrote on: {stopped:?}");
    assert_eq!(stopped.last_cancel.expect("seen").phase, Phase::Decode);
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_that_reads_slowly_is_waited_for_and_one_that_stands_still_is_not() {
    for stream in [true, false] {
        let fleet = Fleet::of(2, &phone(1, 1000.0)).await;
        let gateway = Gateway::over(&fleet, IMPATIENT).await;
        // Some 12 batches of a third of a second: four times as long as the first sign may take.
        let prompt = "word ".repeat(1500);
        for phone in &fleet.phones {
            phone.set_fault_within(Fault::SlowReading { seconds: 0.33 }, Scope::Next(1));
        }
        let answer = gateway.chat(&chat(&prompt, stream, 3)).await;
        assert!(answer.is_whole(&prompt, 3), "stream {stream}: {}{}", answer.head, answer.text());
        assert_eq!(gateway.metric("huntgroup_attempts_total", "").await, 1.0, "stream {stream}");
        for phone in &fleet.phones {
            phone.clear_fault();
        }
        let still = Fault::Break { at: Moment::Batches(4), inside: None, how: Way::Hang };
        for phone in &fleet.phones {
            phone.set_fault_within(still.clone(), Scope::Next(1));
        }
        let stands = "other ".repeat(1500);
        let answer = gateway.chat(&chat(&stands, stream, 3)).await;
        assert_eq!(gateway.metric("huntgroup_attempts_total", "outcome=\"no_first_token\"").await, 2.0, "{answer:?}");
        gateway.wait_at_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_inside_the_stream_is_a_proper_status_for_a_plain_client() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    for (code, status) in [(400, 400), (500, 502)] {
        fleet.phones[0].set_fault(Fault::ErrorAfter { chunks: 0, code });
        let answer = gateway.chat(&chat("broken", false, 5)).await;
        assert_eq!((answer.status, answer.clean), (status, true), "{code}: {}", answer.text());
        assert!(answer.error().is_some(), "{code}: {}", answer.text());
    }
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_no_engine_streams_is_asked_for_in_one_piece_and_counted() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut body = chat("odds", false, 5);
    body["logprobs"] = json!(true);
    body["tools"] = json!([{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]);
    let answer = gateway.chat(&body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let asked: Value = serde_json::from_str(&fleet.phones[0].last_work().expect("asked").body).expect("JSON");
    assert_eq!(asked["stream"], false);
    assert_eq!(gateway.metric("huntgroup_upstream_plain_total", "reason=\"tools_with_logprobs\"").await, 1.0);
    let embedding = json!({"model": "tiny", "input": "words"});
    let answer = gateway.client().await.post("/v1/embeddings", &embedding).await.answer().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(gateway.metric("huntgroup_upstream_plain_total", "").await, 1.0, "that route has no streams");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_does_not_end_where_it_is_told_to_is_ended_and_its_slot_stays_taken() {
    for dialect in [Dialect::Mnn, Dialect::MnnApp] {
        for stream in [true, false] {
            let slow = PhoneConfig { answer_tokens: Some(1000), ..phone(1, 2.0).with_dialect(dialect) };
            let fleet = Fleet::of(1, &slow).await;
            let gateway = Gateway::over(&fleet, "").await;
            let models = gateway.client().await.send("GET", "/v1/models", &[], None).await.answer().await;
            let model = models.json()["data"][0]["id"].as_str().expect("a model").to_owned();
            let body = json!({"model": model, "stream": stream, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]});
            let answer = gateway.chat(&body).await;
            assert!(answer.clean && answer.status == 200, "{dialect:?}: {}", answer.text());
            assert_eq!(answer.content().split(' ').count(), 5, "{dialect:?} stream {stream}: {}", answer.text());
            assert!(answer.text().contains("\"length\""), "{}", answer.text());
            assert_eq!(gateway.metric("huntgroup_replica_slots", "state=\"lingering\"").await, 1.0, "{dialect:?}");
            assert_eq!(gateway.metric("huntgroup_replica_slots", "state=\"free\"").await, 0.0, "{dialect:?}");
            assert_eq!(gateway.metric("huntgroup_attempts_total", "outcome=\"ok\"").await, 1.0);
        }
    }
}
