//! Plain answers of chat and text completions that are put together from a stream.
//!
//! `recorded/` holds pairs of what one llama-server (xllamacpp 2026.10.11549) answered to the same request at temperature 0, with
//! and without a stream; models by `gateway/tests/e2e/tiny_gguf.py`. `text` has 4 tokens; `choices` is `n: 2`; `logprobs` has
//! `top_logprobs: 1`; `schema` a JSON schema; `call` and `text_and_calls` have tools (model `--call`); `thoughts` is of a model
//! that thinks (`--think --close`) and `characters` of one that writes emoji (`--multi`).

use bytes::BytesMut;
use openai_wire::{
    Answer, AnswerStream, Engine, EngineTimings, Fault, Leg, Obstacle, Route, StreamError, StreamOptions, Usage,
};
use serde_json::{Value, json};

fn plain(model: &str) -> StreamOptions {
    StreamOptions { model: model.into(), plain: true, ..StreamOptions::default() }
}

fn chat() -> AnswerStream {
    AnswerStream::new(Route::ChatCompletions, plain("asked"))
}

/// Pushes a stream; nothing of it may go out.
fn push(stream: &mut AnswerStream, upstream: &str) -> Result<(), StreamError> {
    let mut out = BytesMut::new();
    let result = stream.push(upstream.as_bytes(), &mut out).map(drop);
    assert!(out.is_empty() && !stream.content_sent());
    result
}

fn body(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body.to_bytes()).expect("json")
}

/// The whole answer to a stream.
fn answer(mut stream: AnswerStream, upstream: &str) -> Value {
    push(&mut stream, upstream).expect("sound");
    assert!(stream.is_complete());
    body(&stream.into_answer())
}

fn event(choice: &str) -> String {
    format!("data: {{\"id\":\"a\",\"created\":7,\"model\":\"/q\",\"choices\":[{choice}]}}\n\n")
}

const DONE: &str = "data: [DONE]\n\n";

/// What is different in every answer.
fn settle(answer: &mut Value) {
    for (key, value) in [("id", json!("id")), ("created", json!(0))] {
        assert!(answer[key].is_string() || answer[key].is_number(), "{key}");
        answer[key] = value;
    }
    let timings = answer["timings"].as_object_mut().expect("timings");
    timings.values_mut().for_each(|value| *value = json!(value.is_number()));
    for choice in answer["choices"].as_array_mut().expect("choices") {
        let calls = choice.get_mut("message").and_then(|message| message.get_mut("tool_calls"));
        for call in calls.and_then(Value::as_array_mut).into_iter().flatten() {
            assert!(call["id"].is_string());
            call["id"] = json!("call");
        }
    }
}

#[test]
fn a_stream_becomes_the_answer_that_llama_server_gives_without_one() {
    let chat = Route::ChatCompletions;
    let text = Route::Completions;
    for (name, route, stream, without) in [
        ("text", chat, include_str!("recorded/text.stream"), include_str!("recorded/text.json")),
        ("choices", chat, include_str!("recorded/choices.stream"), include_str!("recorded/choices.json")),
        ("logprobs", chat, include_str!("recorded/logprobs.stream"), include_str!("recorded/logprobs.json")),
        ("schema", chat, include_str!("recorded/schema.stream"), include_str!("recorded/schema.json")),
        ("call", chat, include_str!("recorded/call.stream"), include_str!("recorded/call.json")),
        ("calls", chat, include_str!("recorded/text_and_calls.stream"), include_str!("recorded/text_and_calls.json")),
        ("thoughts", chat, include_str!("recorded/thoughts.stream"), include_str!("recorded/thoughts.json")),
        ("characters", chat, include_str!("recorded/characters.stream"), include_str!("recorded/characters.json")),
        ("completion", text, include_str!("recorded/completion.stream"), include_str!("recorded/completion.json")),
        (
            "completion with logprobs",
            text,
            include_str!("recorded/completion_logprobs.stream"),
            include_str!("recorded/completion_logprobs.json"),
        ),
    ] {
        let mut expected: Value = serde_json::from_str(without).expect("json");
        let model = expected["model"].as_str().expect("model").to_owned();
        for size in [1, 100, stream.len()] {
            let mut codec = AnswerStream::new(route, StreamOptions { timings: true, ..plain(&model) });
            let mut out = BytesMut::new();
            for piece in stream.as_bytes().chunks(size) {
                codec.push(piece, &mut out).expect(name);
            }
            codec.end(&mut out).expect(name);
            assert!(out.is_empty() && codec.is_complete(), "{name}");
            let mut got = body(&codec.into_answer());
            settle(&mut got);
            if size == 1 {
                settle(&mut expected);
            }
            if name == "choices" {
                // llama-server counts one choice, we count both.
                assert_eq!(
                    (&got["usage"]["completion_tokens"], &expected["usage"]["completion_tokens"]),
                    (&json!(4), &json!(2))
                );
                got["usage"] = expected["usage"].clone();
            }
            assert_eq!(got, expected, "{name}");
        }
    }
}

#[test]
fn the_answer_has_the_clients_model_and_measurements_only_on_demand() {
    let stream = include_str!("recorded/text.stream");
    let mut codec = AnswerStream::new(Route::ChatCompletions, plain("asked"));
    push(&mut codec, stream).expect("sound");
    let answer = codec.into_answer();
    assert_eq!(answer.usage, Some(Usage { prompt_tokens: 41, completion_tokens: 4, cached_tokens: 40 }));
    let timings: EngineTimings = answer.timings.expect("timings");
    assert_eq!((timings.cache_n, timings.predicted_n, answer.text_bytes), (40, 4, 0));
    let body = body(&answer);
    assert_eq!((&body["model"], body.get("timings")), (&json!("asked"), None));
}

#[test]
fn what_an_engine_adds_is_kept_as_it_came() {
    let first = r#"{"index":0,"delta":{"role":"assistant","reasoning":"hm","reasoning_content":"hm","parts":[1],"note":"a"},"stop_reason":null}"#;
    let second = r#"{"index":0,"delta":{"content":"x","parts":[{"b":2}],"note":"b","tool_calls":null},"finish_reason":"stop","stop_reason":128}"#;
    let upstream =
        event(first) + &event(second).replace("\"id\"", "\"service_tier\" : \"slow\",\"__verbose\":{},\"id\"") + DONE;
    assert_eq!(
        answer(chat(), &upstream),
        json!({"id":"a","created":7,"model":"asked","object":"chat.completion","service_tier":"slow",
            "choices":[{"index":0,"finish_reason":"stop","stop_reason":128,"message":{"role":"assistant","content":"x",
                "reasoning_content":"hm","parts":[1,{"b":2}],"note":"ab"}}],
            "usage":{"prompt_tokens":0,"completion_tokens":2,"total_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}})
    );
}

#[test]
fn calls_come_whole_whatever_pieces_they_came_in() {
    let pieces = [
        r#"{"tool_calls":[{"id":"c\"1","type":"function","function":{"name":"f","arguments":""}}]}"#,
        r#"{"tool_calls":[{"function":{"arguments":"{\"a\":"}}]}"#,
        r#"{"tool_calls":[{"id":"c\"1","function":{"name":"f","arguments":"1}"}}]}"#,
        r#"{"tool_calls":[{"index":4,"function":{"name":"g"}},{"function":{},"index":4,"id":"c2"}]}"#,
        r#"{"function_call":{"name":"old","arguments":"{"}}"#,
        r#"{"function_call":{"arguments":"}"},"refusal":"no"}"#,
    ];
    let upstream: String = pieces.iter().map(|delta| event(&format!("{{\"delta\":{delta}}}"))).collect();
    let upstream = upstream + &event(r#"{"delta":{},"finish_reason":"tool_calls"}"#) + DONE;
    assert_eq!(
        answer(chat(), &upstream)["choices"],
        json!([{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":"","refusal":"no",
            "tool_calls":[
                {"id":"c\"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
                {"id":"c2","type":"function","function":{"name":"g","arguments":""}}],
            "function_call":{"name":"old","arguments":"{}"}}}])
    );
}

#[test]
fn choices_are_in_the_order_of_their_indexes_and_each_has_its_own() {
    let upstream: String = [(2, "\"c\""), (0, "\"a\""), (1, "null"), (0, "\"A\"")]
        .map(|(index, text)| event(&format!("{{\"delta\":{{\"content\":{text}}},\"index\":{index}}}")))
        .concat();
    let finish: String = [1, 2, 0]
        .map(|index| {
            event(&format!("{{\"index\":{index},\"delta\":{{}},\"finish_reason\":\"stop{index}\",\"logprobs\":null}}"))
        })
        .concat();
    let choice = |index: u32, content: &str| json!({"index":index,"finish_reason":format!("stop{index}"),"logprobs":null,"message":{"role":"assistant","content":content}});
    assert_eq!(
        answer(chat(), &(upstream + &finish + DONE))["choices"],
        json!([choice(0, "aA"), choice(1, ""), choice(2, "c")])
    );
}

#[test]
fn a_long_text_is_handed_on_and_not_copied() {
    let word = format!("{}\\n", "é".repeat(1000));
    let upstream = event(&format!("{{\"delta\":{{\"content\":\"{word}\"}}}}")).repeat(3)
        + &event(r#"{"delta":{},"finish_reason":"stop"}"#)
        + DONE;
    let mut stream = chat();
    push(&mut stream, &upstream).expect("sound");
    assert_eq!(stream.kept(), 3 * word.len() + "\"stop\"".len());
    let answer = stream.into_answer();
    assert_eq!(answer.body.iter().len(), 3, "what is before the text, the text, what is behind it");
    let text = body(&answer)["choices"][0]["message"]["content"].as_str().map(str::to_owned);
    assert_eq!(text, Some(format!("{}\n", "é".repeat(1000)).repeat(3)));
}

#[test]
fn an_answer_without_counts_is_measured_by_its_text() {
    let upstream =
        event(r#"{"delta":{"content":"Hello"}}"#) + &event(r#"{"delta":{"content":""},"finish_reason":"stop"}"#);
    let mut stream = chat().with_prompt_estimate(40);
    push(&mut stream, &upstream).expect("sound");
    stream.end(&mut BytesMut::new()).expect("whole");
    assert!(stream.usage_estimated());
    let answer = stream.into_answer();
    assert!(answer.usage.is_none() && answer.text_bytes >= 5);
    assert_eq!(body(&answer)["usage"]["prompt_tokens"], 40);
}

#[test]
fn an_engine_whose_counts_are_none_is_estimated() {
    let mut stream = chat().with_prompt_estimate(40);
    stream.begin_attempt(Leg::Anew, Engine { counts: false, obeys: true });
    push(&mut stream, include_str!("recorded/text.stream")).expect("sound");
    assert_eq!(
        (stream.usage(), stream.usage_estimated()),
        (Some(Usage { prompt_tokens: 41, completion_tokens: 4, cached_tokens: 40 }), true),
        "what it said of its progress is not a count of its own making"
    );
}

#[test]
fn an_error_in_the_middle_keeps_its_meaning_and_the_answer_begins_anew_without_a_trace() {
    let mut stream = chat();
    let half = event(r#"{"delta":{"content":"lost","x":1},"logprobs":{"content":[1]}}"#).replace("\"a\"", "\"lost\"");
    push(&mut stream, &half).expect("sound");
    match push(
        &mut stream,
        "data: {\"error\":{\"code\":500,\"message\":\"does not match the expected peg-native format\"}}\n\n",
    ) {
        Err(StreamError::Upstream(error)) => assert_eq!(error.fault, Fault::Output),
        other => panic!("{other:?}"),
    }
    assert_eq!(stream.carry_on().expect("text was written").content, "lost");
    stream.begin_attempt(Leg::Anew, Engine::default());
    assert_eq!((stream.kept(), stream.carry_on(), stream.content_events()), (0, Err(Obstacle::Nothing), 0));
    let upstream = event(r#"{"delta":{"content":"found"}}"#) + &event(r#"{"delta":{},"finish_reason":"stop"}"#) + DONE;
    assert_eq!(
        answer(stream, &upstream),
        json!({"id":"a","created":7,"model":"asked","object":"chat.completion",
            "choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"found"}}],
            "usage":{"prompt_tokens":0,"completion_tokens":1,"total_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}})
    );
}

#[test]
fn a_plain_answer_with_a_half_call_is_carried_on_from_the_text_before_it() {
    let mut stream = chat();
    let call = r#"{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{"}}]}}"#;
    push(&mut stream, &(event(r#"{"delta":{"content":"I ask. "}}"#) + &event(call))).expect("sound");
    let part = stream.carry_on().expect("text was written");
    assert_eq!((part.content.as_str(), part.tokens), ("I ask. ", 1));
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    let call = call.replace("c1", "c2").replace("\"{\"", "\"{}\"");
    let upstream = event(&call) + &event(r#"{"delta":{},"finish_reason":"tool_calls"}"#) + DONE;
    let answer = answer(stream, &upstream);
    assert_eq!(
        answer["choices"][0]["message"],
        json!({"role":"assistant","content":"I ask. ","tool_calls":[{"id":"c2","type":"function","function":{"name":"f","arguments":"{}"}}]})
    );
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[test]
fn a_plain_answer_needs_no_keep_alive_chunks() {
    let mut stream = chat();
    let mut out = BytesMut::new();
    stream.keepalive_chunk("id", 1, &mut out);
    assert!(out.is_empty());
}
