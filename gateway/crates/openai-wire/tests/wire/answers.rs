//! Plain answers.

use bytes::Bytes;
use openai_wire::{Answer, EngineTimings, Fault, Route, UpstreamError, Usage, decode_answer};
use proptest::prelude::*;
use serde_json::Value;

const JSON: Option<&str> = Some("application/json");

fn decode(route: Route, body: &str) -> Result<Answer, UpstreamError> {
    decode_answer(route, JSON, Bytes::copy_from_slice(body.as_bytes()), "asked")
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.to_bytes().to_vec()).expect("utf-8")
}

#[test]
fn an_answer_carries_the_name_that_was_asked_for_and_none_of_the_engines_extras() {
    let answer = decode(
        Route::ChatCompletions,
        r#"{"__verbose":{"prompt":"x"},"choices":[{"index":0,"message":{"role":"assistant","content":"é\n"},"finish_reason":"stop"}],"model":"/data/q.gguf","usage":{"prompt_tokens":17,"completion_tokens":2,"total_tokens":19,"prompt_tokens_details":{"cached_tokens":16}},"timings":{"cache_n":16,"prompt_n":1,"prompt_ms":4.5,"prompt_per_second":3.0,"predicted_n":2,"predicted_ms":20}}"#,
    )
    .expect("sound");
    assert_eq!(
        text(&answer),
        r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"é\n"},"finish_reason":"stop"}],"model":"asked","usage":{"prompt_tokens":17,"completion_tokens":2,"total_tokens":19,"prompt_tokens_details":{"cached_tokens":16}}}"#
    );
    assert_eq!(answer.usage, Some(Usage { prompt_tokens: 17, completion_tokens: 2, cached_tokens: 16 }));
    let timings = EngineTimings { prompt_n: 1, prompt_ms: 4.5, predicted_n: 2, predicted_ms: 20.0, cache_n: 16 };
    assert_eq!(answer.timings, Some(timings));
}

#[test]
fn every_routes_answer_is_known_by_its_own_key() {
    for (route, body, usage) in [
        (Route::Completions, r#"{"choices":[{"text":"x"}],"model":"m"}"#, None),
        (
            Route::Embeddings,
            r#"{"object":"list","data":[{"embedding":[0.1]}],"model":"m","usage":{"prompt_tokens":3,"total_tokens":3}}"#,
            Some((3, 0, 0)),
        ),
        (
            Route::Responses,
            r#"{"object":"response","error":null,"output":[],"model":"m","usage":{"input_tokens":5,"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}}"#,
            Some((5, 2, 4)),
        ),
        (
            Route::Messages,
            r#"{"type":"message","content":[],"model":"m","usage":{"input_tokens":5,"cache_read_input_tokens":12,"output_tokens":2}}"#,
            Some((17, 2, 12)),
        ),
        (Route::Rerank, r#"{"results":[{"index":0,"relevance_score":0.5}],"model":"m"}"#, None),
        (
            Route::SystemOne,
            r#"{"model":"m","answers":{"q":{"type":"noul","noul":0.01}},"usage":{"input_tokens":148,"output_tokens":0}}"#,
            Some((148, 0, 0)),
        ),
    ] {
        let answer = decode(route, body).expect(body);
        assert_eq!(text(&answer), body.replace("\"m\"", "\"asked\""));
        let got = answer.usage.map(|usage| (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens));
        assert_eq!(got, usage, "{body}");
    }
}

#[test]
fn a_missing_model_is_filled_in_and_decisions_and_bare_rerank_lists_pass_as_they_are() {
    assert_eq!(
        text(&decode(Route::ChatCompletions, r#"{"choices":[1]}"#).expect("sound")),
        r#"{"model":"asked","choices":[1]}"#
    );
    for (route, body) in [(Route::SystemOne, r#"{ "answers": {} }"#), (Route::Rerank, r#"[{"index":0,"score":0.5}]"#)] {
        let answer = decode(route, body).expect(body);
        assert_eq!(text(&answer), body);
        assert_eq!(answer.body.iter().len(), 1);
    }
    let unnamed = decode_answer(Route::SystemOne, JSON, Bytes::from_static(br#"{"model":"laya","answers":{}}"#), "");
    assert_eq!(text(&unnamed.expect("sound")), r#"{"model":"laya","answers":{}}"#);
}

#[test]
fn a_success_status_without_an_answer_is_a_failure() {
    for (route, kind, body, fault) in [
        (Route::ChatCompletions, JSON, r#"{"error":{"code":429,"message":"x"}}"#, Fault::Busy),
        (Route::ChatCompletions, JSON, r#"{"choices":[{}],"error":{"code":500,"message":"x"}}"#, Fault::Engine),
        (Route::ChatCompletions, JSON, "", Fault::NotEngine),
        (Route::ChatCompletions, JSON, "  \r\n", Fault::NotEngine),
        (Route::ChatCompletions, JSON, r#"{"choices":[]}"#, Fault::Engine),
        (Route::ChatCompletions, JSON, r#"{"choices":{}}"#, Fault::Engine),
        (Route::ChatCompletions, JSON, r#"{"id":"x"}"#, Fault::Engine),
        (Route::ChatCompletions, JSON, r#"{"choices":[{}]"#, Fault::Engine),
        (Route::ChatCompletions, JSON, r#"{"choices":[{}]} trailing"#, Fault::Engine),
        (Route::ChatCompletions, Some("text/html"), r#"{"choices":[{}]}"#, Fault::NotEngine),
        (Route::ChatCompletions, None, "<html></html>", Fault::NotEngine),
        (Route::Embeddings, JSON, r#"{"choices":[{}]}"#, Fault::Engine),
        (Route::Responses, JSON, r#"{"output":[],"error":{"code":"server_error","message":"x"}}"#, Fault::Engine),
        (Route::SystemOne, JSON, r#"{"answers":[]}"#, Fault::Engine),
        (Route::Rerank, JSON, r#"{"results":7}"#, Fault::Engine),
    ] {
        let error = decode_answer(route, kind, Bytes::copy_from_slice(body.as_bytes()), "asked").expect_err(body);
        assert_eq!(error.fault, fault, "{body}");
    }
    let not_utf8 = Bytes::from_static(b"{\"choices\":[\"\xFF\"]}");
    assert!(decode_answer(Route::ChatCompletions, JSON, not_utf8, "asked").is_err());
}

#[test]
fn silly_usage_numbers_reach_neither_the_account_nor_the_client() {
    for usage in [
        r#"{"prompt_tokens":99999999999999999999,"completion_tokens":-5}"#,
        r#"{"prompt_tokens":1e300,"completion_tokens":"many"}"#,
        r#"{"prompt_tokens":4000000000,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":4000000000}}"#,
    ] {
        let answer =
            decode(Route::ChatCompletions, &format!(r#"{{"choices":[1],"model":"m","usage":{usage}}}"#)).expect(usage);
        let counted = answer.usage.expect("a number was there");
        assert_eq!((counted.prompt_tokens, counted.completion_tokens), (1 << 24, 0), "{usage}");
        assert!(counted.cached_tokens <= counted.prompt_tokens);
        let shown: Value = serde_json::from_str(&text(&answer)).expect("json");
        assert_eq!(shown["usage"]["prompt_tokens"], 1 << 24);
        assert_eq!(shown["usage"]["completion_tokens"], 0);
    }
}

proptest! {
    #[test]
    fn decoding_never_panics(body in proptest::collection::vec(any::<u8>(), 0..200), route in 0..7_usize) {
        drop(decode_answer(Route::ALL[route], JSON, body.into(), "m"));
    }

    #[test]
    fn cutting_an_answer_anywhere_makes_it_a_failure(at in 0..150_usize) {
        let whole = r#"{"timings":{"prompt_n":1},"choices":[{"index":0,"message":{"content":"a } b"}}],"model":"m","usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
        prop_assume!(at < whole.len());
        prop_assert!(decode(Route::ChatCompletions, &whole[..at]).is_err());
        prop_assert!(decode(Route::ChatCompletions, whole).is_ok());
    }
}

#[test]
fn the_text_of_an_answer_is_measured_where_nobody_counted_its_tokens() {
    let chat = r#"{"choices":[{"message":{"content":"12345","reasoning_content":"123","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}]}"#;
    let completion = r#"{"choices":[{"text":"1234567"},{"text":"1"}]}"#;
    let messages = r#"{"type":"message","content":[{"type":"text","text":"123"}]}"#;
    let responses = r#"{"object":"response","output":[{"content":[{"type":"output_text","text":"1234"}]}]}"#;
    for (route, body, bytes) in [
        (Route::ChatCompletions, chat, 10),
        (Route::Completions, completion, 8),
        (Route::Messages, messages, 3),
        (Route::Responses, responses, 4),
    ] {
        let answer = decode(route, body).expect("sound");
        assert_eq!((answer.usage, answer.text_bytes), (None, bytes), "{route:?}");
    }
}
