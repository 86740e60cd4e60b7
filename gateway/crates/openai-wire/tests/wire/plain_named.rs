//! Plain answers of the Responses API and of Anthropic's messages that are put together from a stream.
//!
//! `recorded/message_*` and `response_*` hold pairs of what one llama-server (xllamacpp 2026.10.11549) answered to the same
//! request at temperature 0, with and without a stream; models by `gateway/tests/e2e/tiny_gguf.py`. `text` is of a model that
//! goes on until its tokens are used up (`--multi`), `thoughts` of one that thinks (`--think --close`), `call` of one that has to
//! call a tool (`--call`).

use bytes::BytesMut;
use openai_wire::{AnswerStream, Fault, Route, StreamError, StreamOptions, Usage};
use serde_json::{Value, json};

pub const MESSAGES: [(&str, &str); 3] = [
    (include_str!("recorded/message_text.stream"), include_str!("recorded/message_text.json")),
    (include_str!("recorded/message_thoughts.stream"), include_str!("recorded/message_thoughts.json")),
    (include_str!("recorded/message_call.stream"), include_str!("recorded/message_call.json")),
];

pub const RESPONSES: [(&str, &str); 3] = [
    (include_str!("recorded/response_text.stream"), include_str!("recorded/response_text.json")),
    (include_str!("recorded/response_thoughts.stream"), include_str!("recorded/response_thoughts.json")),
    (include_str!("recorded/response_call.stream"), include_str!("recorded/response_call.json")),
];

pub fn plain(route: Route) -> AnswerStream {
    AnswerStream::new(route, StreamOptions { model: "asked".into(), plain: true, ..StreamOptions::default() })
}

/// Pushes a stream, of which nothing may go out.
fn push(stream: &mut AnswerStream, upstream: &str) -> Result<(), StreamError> {
    let mut out = BytesMut::new();
    let result = stream.push(upstream.as_bytes(), &mut out).map(drop);
    assert!(out.is_empty() && !stream.content_sent());
    result
}

pub fn body(stream: AnswerStream) -> Value {
    assert!(stream.is_complete());
    serde_json::from_slice(&stream.into_answer().body.to_bytes()).expect("json")
}

fn answer(route: Route, upstream: &str) -> Value {
    let mut stream = plain(route);
    push(&mut stream, upstream).expect("sound");
    body(stream)
}

/// What is different in every answer.
pub fn settle(answer: &mut Value) {
    match answer {
        Value::Object(members) => {
            for (name, value) in members {
                match name.as_str() {
                    "id" | "call_id" => *value = json!(value.is_string()),
                    "created_at" | "completed_at" => *value = json!(value.is_u64()),
                    _ => settle(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle),
        _ => {}
    }
}

#[test]
fn a_stream_becomes_the_answer_that_llama_server_gives_without_one() {
    for (route, pairs) in [(Route::Messages, MESSAGES), (Route::Responses, RESPONSES)] {
        for (stream, without) in pairs {
            let (mut ours, mut theirs) = (answer(route, stream), serde_json::from_str::<Value>(without).expect("json"));
            theirs["model"] = json!("asked");
            settle(&mut ours);
            settle(&mut theirs);
            assert_eq!(ours, theirs);
        }
    }
}

#[test]
fn a_plain_answer_counts_tokens_and_tells_the_speed_where_the_engine_did() {
    let mut stream = plain(Route::Responses);
    push(&mut stream, RESPONSES[0].0).expect("sound");
    assert!(stream.kept() > 0);
    let answer = stream.into_answer();
    assert_eq!(answer.usage, Some(Usage { prompt_tokens: 16, completion_tokens: 9, cached_tokens: 15 }));
    assert_eq!(answer.timings.expect("told").predicted_n, 9);
    assert!(!answer.body.to_bytes().windows(9).any(|bytes| bytes == b"\"timings\""));
    let mut stream = plain(Route::Messages);
    push(&mut stream, MESSAGES[0].0).expect("sound");
    let usage = stream.into_answer().usage;
    assert_eq!(usage, Some(Usage { prompt_tokens: 16, completion_tokens: 9, cached_tokens: 15 }));
}

#[test]
fn a_call_that_was_cut_short_has_no_input_as_from_the_engine_itself() {
    let (stream, _) = MESSAGES[2];
    let cut = stream.replacen("\"partial_json\":\"}\"", "\"partial_json\":\"\"", 1);
    assert_ne!(cut, stream);
    assert_eq!(answer(Route::Messages, &cut)["content"][1]["input"], json!({}));
    assert_eq!(answer(Route::Messages, stream)["content"][1]["input"], json!({"zone":"a \"far\" place","n":1}));
}

#[test]
fn what_a_message_has_besides_is_kept_and_its_last_word_counts() {
    let upstream = concat!(
        "data: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[],\"model\":\"t\",\"stop_reason\":null,\"extra\":{\"a\":[1]},\"usage\":{\"input_tokens\":3,\"output_tokens\":1,\"service_tier\":\"x\"}}}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"be\",\"citations\":null}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"gun\"}}\n\n",
        "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"found\",\"of\":[{}]}}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"text_delta\",\"text\":\"\\u00e9\"}}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":7}}\n\n",
        "data: {\"type\":\"message_stop\"}\n\n",
    );
    assert_eq!(
        answer(Route::Messages, upstream),
        json!({
            "id":"m","model":"asked","extra":{"a":[1]},"stop_reason":"end_turn","stop_sequence":null,
            "content":[
                {"type":"text","text":"begun","citations":null},{"type":"found","of":[{}]},{"type":"text","text":"é"}
            ],
            "usage":{"input_tokens":3,"output_tokens":7,"service_tier":"x"},
        })
    );
}

#[test]
fn a_response_that_failed_is_no_plain_answer() {
    let (stream, _) = RESPONSES[0];
    let failed = stream.replace("response.completed", "response.failed").replace(
        "\"object\":\"response\",\"created_at\"",
        "\"error\":{\"code\":\"server_error\",\"message\":\"x\"},\"created_at\"",
    );
    match push(&mut plain(Route::Responses), &failed) {
        Err(StreamError::Upstream(error)) => assert_eq!(error.fault, Fault::Engine),
        other => panic!("{other:?}"),
    }
    let incomplete = stream
        .replace("response.completed", "response.incomplete")
        .replace("\"status\":\"completed\",\"model\"", "\"status\":\"incomplete\",\"model\"");
    let answer = answer(Route::Responses, &incomplete);
    assert_eq!((&answer["status"], answer.get("completed_at")), (&json!("incomplete"), None));
}

#[test]
fn counts_that_can_not_be_are_not_in_plain_answers() {
    let silly = RESPONSES[0].0.replace("\"input_tokens\":16", "\"input_tokens\":99999999999");
    assert_eq!(answer(Route::Responses, &silly)["usage"]["input_tokens"], 1 << 24);
    let silly = MESSAGES[0].0.replace("\"input_tokens\":1,", "\"input_tokens\":-1,");
    assert_eq!(answer(Route::Messages, &silly)["usage"]["input_tokens"], 0);
}

#[test]
fn nothing_keeps_a_plain_answer_alive() {
    for route in [Route::Messages, Route::Responses] {
        let mut out = BytesMut::new();
        plain(route).keepalive_chunk("id", 1, &mut out);
        assert!(out.is_empty(), "{route:?}");
    }
}
