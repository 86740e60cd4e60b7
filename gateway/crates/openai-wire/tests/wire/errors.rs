//! Replicas' errors in every dialect: whose fault, and what the client may see.

use openai_wire::{Fault, Route, classify_error};
use proptest::prelude::*;

const JSON: Option<&str> = Some("application/json; charset=utf-8");
const HTML: Option<&str> = Some("text/html");

#[test]
fn every_dialects_errors_are_understood() {
    let exceeded = Fault::ContextExceeded { prompt_tokens: Some(3014), context_tokens: Some(2048) };
    let unknown_excess = Fault::ContextExceeded { prompt_tokens: None, context_tokens: None };
    for (status, kind, body, fault, client) in [
        // llama-server
        (
            400,
            JSON,
            r#"{"error":{"code":400,"message":"request (3014 tokens) exceeds the available context size (2048 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":3014,"n_ctx":2048}}"#,
            exceeded,
            400,
        ),
        (
            400,
            JSON,
            r#"{"error":{"code":400,"message":"'messages' is required","type":"invalid_request_error"}}"#,
            Fault::Request,
            400,
        ),
        (
            400,
            JSON,
            r#"{"error":{"message":"Cannot have 2 or more assistant messages at the end of the list.","code":400,"type":"invalid_request_error"}}"#,
            Fault::Request,
            400,
        ),
        (
            400,
            JSON,
            r#"{"error":{"code":400,"message":"Pooling type 'none' is not OAI compatible. Please use a different pooling type","type":"invalid_request_error"}}"#,
            Fault::RouteMissing,
            400,
        ),
        (
            400,
            JSON,
            r#"{"error":{"code":400,"message":"model 'nope' not found","type":"invalid_request_error"}}"#,
            Fault::ModelMissing,
            502,
        ),
        (
            401,
            JSON,
            r#"{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}"#,
            Fault::WrongKey,
            502,
        ),
        (
            403,
            JSON,
            r#"{"error":{"message":"this feature is disabled","type":"feature_disabled"}}"#,
            Fault::RouteMissing,
            400,
        ),
        (
            404,
            JSON,
            r#"{"error":{"message":"File Not Found","type":"not_found_error","code":404}}"#,
            Fault::RouteMissing,
            400,
        ),
        (
            500,
            JSON,
            r#"{"error":{"code":500,"message":"The model produced output that does not match the expected peg-native format","type":"server_error"}}"#,
            Fault::Output,
            502,
        ),
        (
            500,
            JSON,
            r#"{"error":{"code":500,"message":"image input is not supported - hint: if this is unexpected, you may need to provide the mmproj","type":"server_error"}}"#,
            Fault::Output,
            400,
        ),
        (
            500,
            JSON,
            r#"{"error":{"code":500,"message":"input (1500 tokens) is too large to process. increase the physical batch size (current batch size: 512)","type":"server_error"}}"#,
            Fault::Output,
            400,
        ),
        (500, JSON, r#"{"error":{"code":500,"message":"decode failed","type":"server_error"}}"#, Fault::Engine, 502),
        (
            501,
            JSON,
            r#"{"error":{"code":501,"message":"This model is not a decision model","type":"not_supported_error"}}"#,
            Fault::RouteMissing,
            400,
        ),
        (
            503,
            JSON,
            r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#,
            Fault::Loading,
            503,
        ),
        (
            503,
            JSON,
            r#"{"error":{"code":503,"message":"no slot available","type":"unavailable_error"}}"#,
            Fault::Busy,
            503,
        ),
        (415, None, "", Fault::NotEngine, 502),
        // MNN: a string, no body, a trace
        (400, JSON, r#"{"error":"Invalid JSON in request body."}"#, Fault::Request, 400),
        (500, JSON, r#"{"error":{"message":"boom","trace_id":"1"}}"#, Fault::Engine, 502),
        (401, None, "", Fault::WrongKey, 502),
        (404, None, "", Fault::RouteMissing, 400),
        (405, Some("text/plain"), "", Fault::RouteMissing, 400),
        (200, JSON, "", Fault::NotEngine, 502),
        // Laya, in both shapes
        (422, JSON, r#"{"error":{"message":"unknown model","field":"model"}}"#, Fault::ModelMissing, 502),
        (422, JSON, r#"{"error":{"message":"bad criteria","field":"questions"}}"#, Fault::Request, 400),
        (529, JSON, r#"{"error":{"message":"overloaded"}}"#, Fault::Busy, 503),
        (429, JSON, r#"{"error":{"message":"slow down"}}"#, Fault::Busy, 503),
        (503, JSON, r#"{"detail":"server busy"}"#, Fault::Busy, 503),
        (413, JSON, r#"{"detail":"body too large"}"#, Fault::Request, 413),
        (
            422,
            JSON,
            r#"{"detail":[{"loc":["body","questions"],"msg":"Field required","type":"missing"}]}"#,
            Fault::Request,
            400,
        ),
        (401, JSON, r#"{"detail":"Not authenticated"}"#, Fault::WrongKey, 502),
        // Success that is none
        (200, JSON, r#"{"error":{"code":429,"message":"x"}}"#, Fault::Busy, 503),
        (200, JSON, r#"{"error":{"code":400,"message":"x","type":"invalid_request_error"}}"#, Fault::Request, 400),
        (200, JSON, r#"{"error":{"code":503,"message":"Loading model"}}"#, Fault::Loading, 503),
        (200, JSON, r#"{"error":{"type":"rate_limit_error","message":"x"}}"#, Fault::Busy, 503),
        (200, JSON, r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, Fault::Busy, 503),
        (
            200,
            JSON,
            r#"{"type":"response.failed","response":{"error":{"code":"context_length_exceeded","message":"x"}}}"#,
            unknown_excess,
            400,
        ),
        (200, JSON, "{}", Fault::Engine, 502),
        (200, JSON, r#"{"choices":[{"#, Fault::Engine, 502),
        (200, JSON, "[1]", Fault::Engine, 502),
        // The tunnel
        (404, HTML, "<html>ngrok: tunnel not found</html>", Fault::NotEngine, 502),
        (502, HTML, "<html>Bad gateway</html>", Fault::NotEngine, 502),
        (530, Some("text/plain"), "error code: 1033", Fault::NotEngine, 502),
        (200, HTML, "<html>Welcome</html>", Fault::NotEngine, 502),
        (200, None, "hello", Fault::NotEngine, 502),
        (400, HTML, r#"{"error":{"message":"it only looks like an engine"}}"#, Fault::NotEngine, 502),
        (302, JSON, r#"{"message":"moved"}"#, Fault::Engine, 502),
    ] {
        let error = classify_error(Route::ChatCompletions, status, kind, body.as_bytes());
        assert_eq!((error.fault, error.status), (fault, client), "{status} {body}");
        let kind = if client < 500 { "invalid_request_error" } else { "server_error" };
        assert_eq!(error.body.kind, kind, "{status} {body}");
        assert!(!error.body.message.is_empty() && error.body.code.is_some(), "{status} {body}");
    }
}

#[test]
fn an_overlong_prompt_is_told_with_both_numbers() {
    let body = r#"{"error":{"type":"exceed_context_size_error","message":"m","n_prompt_tokens":9000,"n_ctx":8192,"code":400}}"#;
    let error = classify_error(Route::Messages, 400, JSON, body.as_bytes());
    assert!(error.body.message.contains("9000") && error.body.message.contains("8192"));
    assert_eq!(error.body.code.as_deref(), Some("context_length_exceeded"));
    assert_eq!(error.body.param.as_deref(), Some("messages"));
}

#[test]
fn the_parameter_at_fault_is_found_in_every_spelling() {
    for (body, param) in [
        (r#"{"error":{"message":"Field 'temperature': type must be number","code":400}}"#, Some("temperature")),
        (r#"{"error":{"message":"'messages' is required","code":400}}"#, Some("messages")),
        (r#"{"error":{"message":"x","param":"tools[0].name"}}"#, Some("tools[0].name")),
        (r#"{"error":{"message":"x","field":"state"}}"#, Some("state")),
        (r#"{"error":{"message":"x","param":"<script>"}}"#, None),
        (r#"{"detail":[{"loc":["body","state"],"msg":"x"}]}"#, Some("state")),
    ] {
        let error = classify_error(Route::ChatCompletions, 400, JSON, body.as_bytes());
        assert_eq!(error.body.param.as_deref(), param, "{body}");
    }
}

#[test]
fn only_an_engines_word_on_the_clients_own_request_is_passed_on() {
    for (status, kind, body) in [
        (502, HTML, "<html>secret</html>"),
        (500, JSON, r#"{"error":{"message":"secret: /data/app/model.gguf"}}"#),
        (401, JSON, r#"{"error":{"message":"secret key sk-1"}}"#),
        (503, JSON, r#"{"error":{"message":"secret loading"}}"#),
        (404, JSON, r#"{"error":{"message":"secret"}}"#),
        (500, JSON, r#"{"error":{"message":"secret does not match the expected format"}}"#),
    ] {
        let error = classify_error(Route::ChatCompletions, status, kind, body.as_bytes());
        assert!(!error.body.message.contains("secret"), "{body}");
    }
}

#[test]
fn a_relayed_message_is_bounded_and_harmless_on_a_terminal() {
    let long = "x".repeat(2000);
    let body = format!(r#"{{"error":{{"message":"a\u001b[31m\u0000\u202eb\n{long}","code":400}}}}"#);
    let message = classify_error(Route::ChatCompletions, 400, JSON, body.as_bytes()).body.message;
    assert!(message.starts_with("a[31mb x"), "{message}");
    assert_eq!(message.chars().count(), 501);
    let silent = classify_error(Route::ChatCompletions, 400, JSON, br#"{"error":{"message":"\u0007"}}"#).body.message;
    assert!(silent.contains("without a reason"));
}

proptest! {
    #[test]
    fn classifying_never_panics_and_always_has_a_clients_status(
        status in 100_u16..700, body in "\\PC{0,60}|\\{\"error\":(\\{\"code\":[0-9]{1,30}\\}|\"x\"|\\[\\]|null|7)\\}", json: bool,
    ) {
        let error = classify_error(Route::Responses, status, json.then_some("application/json"), body.as_bytes());
        prop_assert!((400..600).contains(&error.status));
    }
}
