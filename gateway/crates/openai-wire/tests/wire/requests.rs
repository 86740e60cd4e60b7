//! Requests: what is refused and why, what is known afterwards, what a replica gets.

use bytes::Bytes;
use openai_wire::{DecodeError, Request, Route, ServiceTier, UpstreamRewrite};
use proptest::prelude::*;
use serde_json::{Value, json};

fn decode(route: Route, body: &str) -> Result<Request, DecodeError> {
    Request::decode(route, Bytes::copy_from_slice(body.as_bytes()))
}

fn chat(body: &str) -> Request {
    decode(Route::ChatCompletions, body).expect(body)
}

fn upstream(request: &Request, model: &str, ask_usage: bool) -> String {
    let segments = request.upstream_body(&UpstreamRewrite {
        model,
        ask_usage,
        stream: request.stream,
        ..UpstreamRewrite::default()
    });
    let bytes = segments.to_bytes();
    assert_eq!(bytes.len(), segments.len());
    String::from_utf8(bytes.to_vec()).expect("utf-8")
}

/// What a replica gets that is asked for a stream, or not, whatever the client wants.
fn asked(request: &Request, stream: bool) -> Value {
    let rewrite = UpstreamRewrite { model: "m", stream, progress: true, ..UpstreamRewrite::default() };
    serde_json::from_slice(&request.upstream_body(&rewrite).to_bytes()).expect("JSON")
}

/// A body that each route accepts.
fn sound(route: Route) -> Value {
    let mut body = match route {
        Route::ChatCompletions | Route::Messages => json!({"messages":[{"role":"user","content":"hi"}]}),
        Route::Completions => json!({"prompt":"hi"}),
        Route::Embeddings | Route::Responses => json!({"input":"hi"}),
        Route::Rerank => json!({"query":"q","documents":["a","b"]}),
        Route::SystemOne => json!({"state":"s","questions":{"q":{"type":"noul"}}}),
    };
    body["model"] = "m".into();
    body
}

#[test]
fn every_route_reads_its_own_body() {
    for route in Route::ALL {
        let request = decode(route, &sound(route).to_string()).expect("sound");
        assert_eq!((request.route, request.model.as_str(), request.stream, request.choices), (route, "m", false, 1));
        assert!(request.prompt_bytes > 0);
    }
}

#[test]
fn every_route_says_which_required_parameter_is_missing() {
    for route in Route::ALL {
        let whole = sound(route);
        for key in whole.as_object().expect("object").keys() {
            let mut body = whole.clone();
            body.as_object_mut().expect("object").remove(key);
            let result = decode(route, &body.to_string());
            if route == Route::SystemOne && key == "model" {
                assert_eq!(result.expect("no model means the decision model").model, "");
                continue;
            }
            let error = result.expect_err(key);
            assert_eq!((error.param(), error.code()), (Some(key.as_str()), Some("missing_required_parameter")));
            assert!(error.message().contains(key));
        }
    }
}

#[test]
fn refusals_name_the_parameter_the_reason_and_the_right_way() {
    let m = r#""messages":[{"role":"user","content":"hi"}]"#;
    let body = |rest: &str| format!(r#"{{"model":"m",{m},{rest}}}"#);
    let deep = format!(r#""x":{}{}"#, "[".repeat(128), "]".repeat(128));
    for (body, code, param) in [
        (String::new(), "invalid_json", None),
        (" \n".into(), "invalid_json", None),
        ("[]".into(), "invalid_type", None),
        ("\"x\"".into(), "invalid_type", None),
        ("[".into(), "invalid_json", None),
        (format!(r#"{{"model":"m",{m}}} x"#), "invalid_json", None),
        (format!(r#"{{"model":"m",{m},}}"#), "invalid_json", None),
        (format!(r#"{{"model":"",{m}}}"#), "invalid_value", Some("model")),
        (format!(r#"{{"model":7,{m}}}"#), "invalid_type", Some("model")),
        (format!(r#"{{"model":null,{m}}}"#), "invalid_type", Some("model")),
        (format!(r#"{{"model":"{}",{m}}}"#, "x".repeat(600)), "invalid_value", Some("model")),
        (r#"{"model":"m","messages":[]}"#.into(), "empty_array", Some("messages")),
        (r#"{"model":"m","messages":"hi"}"#.into(), "invalid_type", Some("messages")),
        (r#"{"model":"m","messages":[{"role":"user"},"hi"]}"#.into(), "invalid_type", Some("messages[1]")),
        (body(r#""stream":"true""#), "invalid_type", Some("stream")),
        (body(r#""stream":1"#), "invalid_type", Some("stream")),
        (body(r#""stream_options":true"#), "invalid_type", Some("stream_options")),
        (body(r#""stream_options":{"include_usage":1}"#), "invalid_type", Some("stream_options.include_usage")),
        (body(r#""max_tokens":-1"#), "invalid_value", Some("max_tokens")),
        (body(r#""max_tokens":1.5"#), "invalid_value", Some("max_tokens")),
        (body(r#""max_tokens":"9""#), "invalid_type", Some("max_tokens")),
        (body(r#""max_completion_tokens":99999999999"#), "invalid_value", Some("max_completion_tokens")),
        (body(r#""n":0"#), "invalid_value", Some("n")),
        (body(r#""n":129"#), "invalid_value", Some("n")),
        (body(r#""service_tier":"fast""#), "invalid_value", Some("service_tier")),
        (body(r#""model":"other""#), "duplicate_parameter", Some("model")),
        (body(r#""mod\u0065l":"other""#), "duplicate_parameter", Some("model")),
        (body(r#""stream":true,"stream":false"#), "duplicate_parameter", Some("stream")),
        (body(r#""messages":[{}]"#), "duplicate_parameter", Some("messages")),
        (
            body(r#""stream_options":{"include_usage":true,"include_usage":false}"#),
            "duplicate_parameter",
            Some("stream_options.include_usage"),
        ),
        (body(r#""temperature":1e400"#), "invalid_json", None),
        (body(r#""user":"\ud800""#), "invalid_json", None),
        (body(r#""user":"\x""#), "invalid_json", None),
        (body(&deep), "invalid_json", None),
    ] {
        let error = decode(Route::ChatCompletions, &body).expect_err(&body);
        assert_eq!((error.code(), error.param()), (Some(code), param), "{body}: {error}");
    }
}

#[test]
fn json_errors_say_line_and_column() {
    let error = decode(Route::ChatCompletions, "{\n  \"model\": \"m\"\n  \"x\": 1}").expect_err("no comma");
    assert_eq!(error.message(), "The request body is not valid JSON: expected `,` or `}` (line 3, column 3).");
    let invalid =
        Request::decode(Route::ChatCompletions, Bytes::from_static(b"{\"model\":\"\xFF\"}")).expect_err("not UTF-8");
    assert_eq!(invalid, DecodeError::Encoding { line: 1, column: 11 });
}

#[test]
fn facts_are_read_wherever_they_stand() {
    let request = chat(
        r#"{"stream":true,"stream_options":{"include_obfuscation":false,"include_usage":true},"n":3,"service_tier":"flex",
            "max_tokens":10,"max_completion_tokens":20,"messages":[{"role":"user","content":"a\n\u00e9"}],"mod\u0065l":"m\u002d1"}"#,
    );
    assert_eq!((request.model.as_str(), request.stream, request.include_usage), ("m-1", true, true));
    assert_eq!((request.max_tokens, request.choices), (Some(20), 3));
    assert_eq!(request.service_tier, Some(ServiceTier::Flex));
    assert_eq!(request.prompt_bytes, 4);
    let output = decode(Route::Responses, r#"{"model":"m","input":"abc","instructions":"de","max_output_tokens":5}"#);
    let output = output.expect("sound");
    assert_eq!((output.max_tokens, output.prompt_bytes), (Some(5), 5));
    let nulls = chat(
        r#"{"model":"m","messages":[{}],"stream":null,"n":null,"max_tokens":null,"service_tier":null,"stream_options":null}"#,
    );
    assert_eq!((nulls.stream, nulls.choices, nulls.max_tokens, nulls.include_usage), (false, 1, None, false));
}

#[test]
fn only_text_the_model_reads_is_counted() {
    let picture = "A".repeat(5000);
    let with_picture = chat(&format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"12345"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{picture}"}}}}]}}]}}"#
    ));
    assert_eq!((with_picture.prompt_bytes, with_picture.has_images), (5, true));
    let tools = chat(
        r#"{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"now","arguments":"{}"}}]}],"tools":[{"a":1}],"metadata":{"x":"not read"}}"#,
    );
    assert_eq!((tools.prompt_bytes, tools.has_images), (3 + 2 + 9, false));
    let ids = decode(Route::Completions, r#"{"model":"m","prompt":[[1,2],[3]],"suffix":"xy"}"#).expect("sound");
    assert_eq!(ids.prompt_bytes, 12 + 2);
    let anthropic = decode(
        Route::Messages,
        r#"{"model":"m","system":[{"type":"text","text":"abc"}],"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AAAA"}}]}]}"#,
    )
    .expect("sound");
    assert_eq!((anthropic.prompt_bytes, anthropic.has_images), (3, true));
}

#[test]
fn a_replica_gets_its_own_model_name_and_the_rest_as_it_was_written() {
    let body = r#"{ "temperature" : 0.70 , "model" : "alias", "messages":[ {"role":"user","content":"\u0041 é"} ], "seed":12345678901234567890,"stream":false }"#;
    let request = chat(body);
    assert_eq!(upstream(&request, "/data/\"q\".gguf", true), body.replace("\"alias\"", r#""/data/\"q\".gguf""#));
    let segments = request.upstream_body(&UpstreamRewrite {
        model: "alias",
        ask_usage: true,
        stream: request.stream,
        ..UpstreamRewrite::default()
    });
    assert_eq!(segments.iter().len(), 1, "nothing to change: one slice of the client's own bytes");
    assert_eq!(request.body_len(), body.len());
}

#[test]
fn stream_is_always_explicit_where_an_answer_may_stream() {
    let m = r#""model":"m","messages":[{}]"#;
    for (body, expected) in [
        (format!("{{{m}}}"), format!(r#"{{"stream":false,{m}}}"#)),
        (format!(r#"{{{m},"stream":null}}"#), format!(r#"{{{m},"stream":false}}"#)),
        (format!(r#"{{{m},"stream":false}}"#), format!(r#"{{{m},"stream":false}}"#)),
        (format!(r#"{{"stream": true,{m}}}"#), format!(r#"{{"stream": true,{m}}}"#)),
    ] {
        assert_eq!(upstream(&chat(&body), "m", false), expected);
    }
    let embeddings = decode(Route::Embeddings, r#"{"stream":true,"model":"m","input":"x"}"#).expect("sound");
    assert!(!embeddings.stream);
    assert_eq!(upstream(&embeddings, "m", true), r#"{"model":"m","input":"x"}"#);
}

#[test]
fn usage_is_asked_for_and_other_stream_options_are_kept() {
    let m = r#""model":"m","messages":[{}],"stream":true"#;
    for (options, expected) in [
        ("", format!(r#"{{"stream_options":{{"include_usage":true}},{m}}}"#)),
        (r#","stream_options":null"#, format!(r#"{{{m},"stream_options":{{"include_usage":true}}}}"#)),
        (r#","stream_options":{}"#, format!(r#"{{{m},"stream_options":{{"include_usage":true}}}}"#)),
        (r#","stream_options":{"a":1}"#, format!(r#"{{{m},"stream_options":{{"include_usage":true,"a":1}}}}"#)),
        (
            r#","stream_options":{"include_usage":false,"a":1}"#,
            format!(r#"{{{m},"stream_options":{{"include_usage":true,"a":1}}}}"#),
        ),
        (
            r#","stream_options":{"include_usage": true}"#,
            format!(r#"{{{m},"stream_options":{{"include_usage": true}}}}"#),
        ),
    ] {
        let body = format!("{{{m}{options}}}");
        assert_eq!(upstream(&chat(&body), "m", true), expected, "{body}");
        assert_eq!(upstream(&chat(&body), "m", false), body, "not asked: as the client wrote it");
    }
    let plain = chat(r#"{"model":"m","messages":[{}],"stream":false}"#);
    assert!(!upstream(&plain, "m", true).contains("include_usage"), "only streams have stream options");
    let m = r#""model":"m","messages":[{}]"#;
    for body in [
        format!(r#"{{"stream_options":{{"a":1}},{m},"stream":false}}"#),
        format!(r#"{{{m}, "stream_options":null ,"stream":false}}"#),
        format!(r#"{{{m},"stream":false,"stream_options":{{"include_usage":true}}}}"#),
        format!(r#"{{{m},"stream":false,"id_slot":1,"stream_options":{{}},"lora":2}}"#),
    ] {
        assert_eq!(upstream(&chat(&body), "m", true).replace(' ', ""), format!(r#"{{{m},"stream":false}}"#), "{body}");
        assert!(asked(&chat(&body), true).get("stream_options").is_some(), "{body}");
    }
    for route in [Route::Responses, Route::Messages] {
        let mut body = sound(route);
        body["stream"] = true.into();
        let request = decode(route, &body.to_string()).expect("sound");
        assert!(request.stream);
        assert_eq!(upstream(&request, "m", true), body.to_string(), "{route:?} knows no include_usage");
    }
}

#[test]
fn a_stream_is_asked_for_whatever_the_client_wants_and_how_the_prompt_gets_on_only_in_one() {
    for route in Route::ALL {
        let request = decode(route, &sound(route).to_string()).expect("sound");
        assert!(!request.stream);
        let streamed = asked(&request, true);
        assert_eq!(streamed.get("stream"), route.streams().then_some(&Value::Bool(true)), "{route:?}");
        assert_eq!(streamed.get("return_progress"), route.streams().then_some(&Value::Bool(true)), "{route:?}");
        assert_eq!(asked(&request, false).get("return_progress"), None, "{route:?}");
    }
}

#[test]
fn stops_are_kept_unless_the_engine_has_to_judge_them() {
    let long = "x".repeat(257);
    let many = vec!["x"; 17];
    for (stop, kept) in [
        (json!("\n\u{e9}"), vec!["\n\u{e9}"]),
        (json!(["a", "b"]), vec!["a", "b"]),
        (json!([]), vec![]),
        (json!(null), vec![]),
        (json!(7), vec![]),
        (json!(["a", 7, "b"]), vec![]),
        (json!(["a", ""]), vec![]),
        (json!(long), vec![]),
        (json!(["a", long]), vec![]),
        (json!(many), vec![]),
        (json!(many[..16]), many[..16].to_vec()),
    ] {
        for (route, name) in
            [(Route::ChatCompletions, "stop"), (Route::Completions, "stop"), (Route::Messages, "stop_sequences")]
        {
            let mut body = sound(route);
            body[name] = stop.clone();
            let request = decode(route, &body.to_string()).expect("sound");
            assert_eq!(request.stop, kept, "{route:?} {stop}");
            body["stream"] = false.into();
            assert_eq!(upstream(&request, "m", false).len(), body.to_string().len(), "the engine gets it as it was");
        }
    }
    let mut body = sound(Route::ChatCompletions);
    body["stop_sequences"] = "a".into();
    assert!(chat(&body.to_string()).stop.is_empty(), "another route's name for it");
}

#[test]
fn tools_and_logprobs_together_cannot_be_streamed() {
    let tools = json!([{"type":"function","function":{"name":"now"}}]);
    for (has_tools, only_plain, more) in [
        (false, None, json!({"logprobs":true})),
        (true, None, json!({"tools":tools})),
        (true, Some("tools_with_logprobs"), json!({"tools":tools,"logprobs":true})),
        (true, None, json!({"tools":tools,"logprobs":false})),
        (true, None, json!({"tools":tools,"logprobs":1})),
        (false, None, json!({"tools":[],"logprobs":true})),
        (false, None, json!({"tools":null,"logprobs":true})),
        (false, None, json!({"tools":"\u{e9}","logprobs":true})),
        (true, None, json!({"functions":[{"name":"now"}],"logprobs":true})),
    ] {
        for route in [Route::ChatCompletions, Route::Messages, Route::Responses] {
            let mut body = sound(route);
            body.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
            let request = decode(route, &body.to_string()).expect("sound");
            // The engine leaves logprobs out of the chat that it makes of messages.
            let only_plain = only_plain.filter(|_| route != Route::Messages);
            assert_eq!((request.has_tools, request.only_plain()), (has_tools, only_plain), "{route:?} {more}");
        }
    }
    let spaced = chat("{\"model\":\"m\",\"messages\":[{}],\"tools\":[ \n ],\"logprobs\":true}");
    assert!(!spaced.has_tools);
}

#[test]
fn a_plain_answer_that_the_client_has_begun_is_the_engines_own() {
    let user = json!({"role":"user","content":"hi"});
    let begun = json!({"role":"assistant","content":"Sure, "});
    for (messages, stream, only_plain) in [
        (json!([user, begun]), json!(false), Some("begun_by_client")),
        (json!([user, begun]), json!(null), Some("begun_by_client")),
        (json!([user, begun]), json!(true), None),
        (json!([user, begun, user]), json!(false), None),
    ] {
        for route in [Route::ChatCompletions, Route::Messages] {
            let mut body = sound(route);
            (body["messages"], body["stream"]) = (messages.clone(), stream.clone());
            let request = decode(route, &body.to_string()).expect("sound");
            assert_eq!(request.only_plain(), only_plain, "{route:?} {body}");
        }
    }
}

#[test]
fn timings_are_asked_of_the_gateway_and_not_of_the_replica() {
    for (value, wanted) in [("true", true), ("false", false), ("null", false), ("1", false)] {
        let request = chat(&format!(r#"{{"model":"m","messages":[{{}}],"stream":true,"timings_per_token":{value}}}"#));
        assert_eq!(request.wants_timings, wanted, "{value}");
        assert!(!upstream(&request, "m", false).contains("timings"));
    }
}

#[test]
fn fields_that_steer_the_engine_or_choose_an_upstream_never_reach_a_replica() {
    let private = [
        "id_slot",
        "slot_id",
        "lora",
        "verbose",
        "__verbose",
        "sse_ping_interval",
        "return_progress",
        "timings_per_token",
        "cache_prompt",
        "api_base",
        "api_key",
        "api_version",
        "base_url",
        "provider",
        "custom_llm_provider",
        "extra_headers",
        "extra_query",
        "extra_body",
    ];
    let keep = r#""model":"m","messages":[{"api_base":"this is content"}],"stream":false"#;
    let value = r#"{"url":"http://evil","a":[1,{"b":"}"}]}"#;
    for name in private {
        let member = format!("{name:?}:{value}");
        let escaped = format!("\"\\u{:04x}{}\":{value}", name.as_bytes()[0], &name[1..]);
        for member in [member, escaped] {
            for body in [
                format!("{{{member},{keep}}}"),
                format!("{{{keep},{member}}}"),
                format!("{{ {member} , {member} ,{keep}}}"),
                format!("{{{keep},{member} , {member}}}"),
                format!("{{{member},{keep},{member}}}"),
            ] {
                let sent = upstream(&chat(&body), "m", false);
                let parsed: Value = serde_json::from_str(&sent).expect(&sent);
                assert_eq!(parsed.as_object().expect("object").len(), 3, "{body} -> {sent}");
                assert!(sent.contains("this is content"));
            }
        }
    }
    let all: Vec<String> = private.iter().map(|name| format!("{name:?}:1")).collect();
    let sent = upstream(&chat(&format!("{{{},{keep}}}", all.join(","))), "m", false);
    assert_eq!(sent, format!("{{{keep}}}"));
}

#[test]
fn a_decision_without_a_model_gets_the_replicas_own() {
    let body = r#"{"state":"s","questions":{}}"#;
    let request = decode(Route::SystemOne, body).expect("sound");
    assert_eq!(upstream(&request, "", false), body);
    assert_eq!(upstream(&request, "laya", false), r#"{"model":"laya","state":"s","questions":{}}"#);
}

#[test]
fn each_attempt_gets_the_same_body_under_its_own_name() {
    let request = chat(r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#);
    let first = upstream(&request, "a", true);
    assert_eq!(first.replace("\"a\"", "\"bb\""), upstream(&request, "bb", true));
    assert_eq!(first, upstream(&request, "a", true));
}

fn route() -> impl Strategy<Value = Route> {
    prop::sample::select(Route::ALL.to_vec())
}

fn member() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "model",
        "stream",
        "stream_options",
        "messages",
        "prompt",
        "input",
        "n",
        "max_tokens",
        "id_slot",
        "api_base",
        "query",
        "documents",
        "state",
        "questions",
        "x",
        "service_tier",
        "tools",
    ]);
    let value = prop::sample::select(vec![
        "null",
        "true",
        "\"m\"",
        "3",
        "[{\"content\":\"é\\n\"}]",
        "{}",
        "{\"include_usage\":false}",
        "[\"a\"]",
        "1e400",
        "[[",
        "\"flex\"",
        " [ ] ",
    ]);
    (key, value).prop_map(|(key, value)| format!("{key:?}:{value}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoding_never_panics(route in route(), body in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(Request::decode(route, body.into()));
    }

    #[test]
    fn what_is_accepted_reaches_a_replica_whole(
        route in route(), members in proptest::collection::vec(member(), 0..7), ask_usage: bool,
    ) {
        let mut text = sound(route).to_string();
        text.truncate(text.len() - 1);
        for member in &members {
            text = format!("{text} , {member}");
        }
        text.push('}');
        if let Ok(request) = decode(route, &text) {
            let sent = upstream(&request, "replica", ask_usage);
            let sent: Value = serde_json::from_str(&sent).expect(&sent);
            let mut expected: Value = serde_json::from_str(&text).expect(&text);
            let map = expected.as_object_mut().expect("object");
            map.remove("id_slot");
            map.remove("api_base");
            map.insert("model".into(), "replica".into());
            if route.streams() {
                map.insert("stream".into(), request.stream.into());
            } else {
                map.remove("stream");
            }
            if route.streams() && !request.stream {
                map.remove("stream_options");
            }
            if ask_usage && request.stream && route.has_stream_options() {
                let options = map.entry("stream_options").or_insert(Value::Null);
                if options.is_null() {
                    *options = json!({});
                }
                options["include_usage"] = true.into();
            }
            prop_assert_eq!(sent, expected);
        }
    }
}
