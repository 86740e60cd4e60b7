//! Answers that are carried on: which requests allow it, and what the next replica gets.

use bytes::Bytes;
use openai_wire::{CarryOn, Obstacle, Request, Route, UpstreamRewrite};
use proptest::prelude::*;
use serde_json::{Value, json};

fn decode(route: Route, body: &str) -> Request {
    Request::decode(route, Bytes::copy_from_slice(body.as_bytes())).expect(body)
}

fn part(reasoning: &str, content: &str, tokens: u32) -> CarryOn {
    CarryOn { choice: 0, content: content.to_owned(), reasoning: reasoning.to_owned(), tokens }
}

fn text(request: &Request, stream: bool, part: &CarryOn) -> String {
    let carry_on = Some(part);
    let rewrite = UpstreamRewrite { model: "r", stream, carry_on, ..UpstreamRewrite::default() };
    let segments = request.upstream_body(&rewrite);
    let bytes = segments.to_bytes();
    assert_eq!(bytes.len(), segments.len());
    String::from_utf8(bytes.to_vec()).expect("utf-8")
}

fn value(request: &Request, part: &CarryOn) -> Value {
    let text = text(request, true, part);
    serde_json::from_str(&text).expect(&text)
}

/// Who may be carried on.
fn verdict(route: Route, body: &Value) -> Result<(), Obstacle> {
    let mut body = body.clone();
    body["model"] = "m".into();
    decode(route, &body.to_string()).may_be_carried_on()
}

#[test]
fn answers_that_grow_behind_one_prompt_may_be_carried_on() {
    let user = json!({"role":"user","content":"hi"});
    for (route, body) in [
        (Route::ChatCompletions, json!({"messages":[user]})),
        (Route::ChatCompletions, json!({"messages":[{"role":"assistant","content":"a"}, user],"n":3})),
        (Route::ChatCompletions, json!({"messages":[{"role":"tool","tool_call_id":"c","content":"12"}],"tools":[{}]})),
        (Route::ChatCompletions, json!({"messages":[user],"add_generation_prompt":true,"echo":true})),
        (Route::Messages, json!({"messages":[user],"thinking":{"type":"enabled","budget_tokens":5}})),
        (Route::Completions, json!({"prompt":"once"})),
        (Route::Completions, json!({"prompt":["once"],"echo":false,"suffix":null,"n":2})),
        (Route::Completions, json!({"prompt":"","suffix":""})),
        (Route::Responses, json!({"input":"hi","previous_response_id":null,"background":false,"tools":[]})),
    ] {
        assert_eq!(verdict(route, &body), Ok(()), "{route:?} {body}");
    }
}

#[test]
fn no_answer_is_carried_on_behind_a_prompt_that_takes_no_more_text() {
    let user = json!({"role":"user","content":"hi"});
    let begun = json!({"role":"assistant","content":"Sure, "});
    let last_role_counts = json!({"content":[{"role":"user","text":"x"}],"role":"assistant"});
    for (route, body) in [
        (Route::ChatCompletions, json!({"messages":[user, begun]})),
        (Route::ChatCompletions, json!({"messages":[user, last_role_counts]})),
        (Route::ChatCompletions, json!({"messages":[user],"add_generation_prompt":false})),
        (Route::Messages, json!({"messages":[user, begun]})),
        (Route::Completions, json!({"prompt":[1, 2, 3]})),
        (Route::Completions, json!({"prompt":[[1, 2, 3]]})),
        (Route::Completions, json!({"prompt":["a", "b"]})),
        (Route::Completions, json!({"prompt":"a","suffix":"z"})),
        (Route::Completions, json!({"prompt":"a","echo":true})),
        (Route::Responses, json!({"input":"a","previous_response_id":"resp_1"})),
        (Route::Responses, json!({"input":"a","conversation":"conv_1"})),
        (Route::Responses, json!({"input":"a","prompt":{"id":"pmpt_1"}})),
        (Route::Responses, json!({"input":"a","background":true})),
        (Route::Responses, json!({"input":[user, begun]})),
        (Route::Responses, json!({"input":[{"type":"item_reference","id":"msg_1"}, user]})),
        (Route::Responses, json!({"input":[{"type":"web_search_call","id":"ws_1"}, user]})),
        (Route::Responses, json!({"input":[{"type":"reasoning","summary":[],"encrypted_content":"x"}, user]})),
        (Route::Responses, json!({"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]})),
        (Route::Responses, json!({"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]})),
        (Route::Responses, json!({"input":[{"role":"user","content":7}]})),
        (Route::Responses, json!({"input":[{"type":"function_call","name":"now"}, user]})),
        (Route::Responses, json!({"input":[{"type":"function_call_output","output":"12"}]})),
        (Route::Responses, json!({"input":["hi"]})),
    ] {
        assert_eq!(verdict(route, &body), Err(Obstacle::Prompt), "{route:?} {body}");
    }
    let escaped = r#"{"model":"m","messages":[{"role":"user"},{"rol\u0065":"assist\u0061nt","content":"x"}]}"#;
    assert_eq!(decode(Route::ChatCompletions, escaped).may_be_carried_on(), Err(Obstacle::Prompt));
}

#[test]
fn no_answer_is_carried_on_that_does_not_grow() {
    for (route, body) in [
        (Route::Embeddings, json!({"input":"a"})),
        (Route::Rerank, json!({"query":"q","documents":["a"]})),
        (Route::SystemOne, json!({"state":"s","questions":{}})),
        (Route::ChatCompletions, json!({"messages":[{"role":"user","content":"hi"}],"tools":[{}],"logprobs":true})),
    ] {
        assert_eq!(verdict(route, &body), Err(Obstacle::Route), "{route:?}");
    }
}

#[test]
fn responses_are_carried_on_as_chats_and_all_else_where_it_is() {
    for route in Route::ALL {
        let body = match route {
            Route::ChatCompletions | Route::Messages => json!({"model":"m","messages":[{}]}),
            Route::Completions => json!({"model":"m","prompt":"a"}),
            Route::Embeddings | Route::Responses => json!({"model":"m","input":"a"}),
            Route::Rerank => json!({"model":"m","query":"q","documents":["a"]}),
            Route::SystemOne => json!({"model":"m","state":"s","questions":{}}),
        };
        let request = decode(route, &body.to_string());
        assert_eq!(request.upstream_route(false), route);
        let carried = if route == Route::Responses { Route::ChatCompletions } else { route };
        assert_eq!(request.upstream_route(true), carried);
    }
}

#[test]
fn a_chat_goes_on_behind_its_last_message() {
    let request = decode(
        Route::ChatCompletions,
        r#"{ "n":2 ,"messages":[ {"role":"user","content":"\u0041"} ] , "model":"m","stream":true,"seed":12345678901234567890}"#,
    );
    let goes_on = r#""add_generation_prompt":false,"continue_final_message":true"#;
    assert_eq!(
        text(&request, true, &part("", r#"say \"\u00e9 "#, 3)),
        format!(
            r#"{{{goes_on}, "messages":[ {{"role":"user","content":"\u0041"}},{{"role":"assistant","content":"say \"\u00e9 "}} ] , "model":"r","stream":true,"seed":12345678901234567890}}"#
        )
    );
    let thought = value(&request, &part(r"well\n", "", 3));
    let last = json!({"role":"assistant","content":"","reasoning_content":"well\n"});
    assert_eq!(thought["messages"][1], last);
    let both = value(&request, &part("well", "so", 3));
    let last = json!({"role":"assistant","content":"so","reasoning_content":"well"});
    assert_eq!((&both["messages"][1], both.get("n")), (&last, None));
}

#[test]
fn a_choice_that_had_not_begun_is_asked_for_alone() {
    for (route, prompt) in [
        (Route::ChatCompletions, r#""messages":[{"role":"user","content":"a"}]"#),
        (Route::Completions, r#""prompt":"a""#),
    ] {
        let request = decode(route, &format!(r#"{{"model":"m",{prompt},"n":2,"max_tokens":9,"stream":true}}"#));
        let sent = text(&request, true, &CarryOn { choice: 1, ..CarryOn::default() });
        assert_eq!(sent, format!(r#"{{"model":"r",{prompt},"max_tokens":9,"stream":true}}"#));
    }
}

#[test]
fn a_completion_goes_on_inside_its_prompt() {
    for (prompt, carried) in [(r#""a\\""#, r#""a\\b\" ""#), (r#""""#, r#""b\" ""#), (r#"[ "a" ]"#, r#"[ "ab\" " ]"#)] {
        let request = decode(Route::Completions, &format!(r#"{{"model":"m","prompt": {prompt},"stream":true}}"#));
        let sent = text(&request, true, &part("not of completions", r#"b\" "#, 2));
        assert_eq!(sent, format!(r#"{{"model":"r","prompt": {carried},"stream":true}}"#));
    }
}

#[test]
fn a_message_goes_on_with_its_thoughts_as_blocks() {
    let request = decode(
        Route::Messages,
        r#"{"model":"m","max_tokens":20,"messages":[{"role":"user","content":"a"}],"stream":true,"n":7}"#,
    );
    for (part, last) in [
        (part("", "so", 5), json!({"role":"assistant","content":"so"})),
        (part("hm", "", 5), json!({"role":"assistant","content":[{"type":"thinking","thinking":"hm"}]})),
        (
            part("hm", "so", 5),
            json!({"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"so"}]}),
        ),
    ] {
        let messages = json!([{"role":"user","content":"a"}, last]);
        let expected = json!({"model":"r","max_tokens":15,"messages":messages,"stream":true,"n":7});
        assert_eq!(value(&request, &part), expected);
    }
}

#[test]
fn what_is_written_is_taken_off_every_limit_and_at_least_one_token_is_left() {
    let body = |limits: &str| format!(r#"{{"model":"m","messages":[{{"role":"user"}}],{limits},"stream":true}}"#);
    for (limits, tokens, expected) in [
        (r#""max_tokens":20"#, 5, r#""max_tokens":15"#),
        (r#""max_tokens": 20"#, 0, r#""max_tokens": 20"#),
        (r#""max_tokens":20"#, 20, r#""max_tokens":1"#),
        (r#""max_completion_tokens":20,"max_tokens":10"#, 15, r#""max_completion_tokens":5,"max_tokens":1"#),
        (r#""max_tokens":null,"max_completion_tokens":9"#, 1, r#""max_tokens":null,"max_completion_tokens":8"#),
        (r#""n_predict":9"#, 2, r#""n_predict":7"#),
        (r#""n_predict":-1"#, 2, r#""n_predict":-1"#),
        (r#""n_predict":"x""#, 2, r#""n_predict":"x""#),
        (r#""reasoning_budget_tokens":9"#, 2, r#""reasoning_budget_tokens":9"#),
    ] {
        let request = decode(Route::ChatCompletions, &body(limits));
        let sent = text(&request, true, &part("", "x", tokens));
        assert!(sent.contains(&format!("],{expected},\"stream\"")), "{limits} less {tokens}: {sent}");
    }
}

#[test]
fn the_engine_is_told_to_go_on_by_the_gateway_alone() {
    let request = decode(
        Route::ChatCompletions,
        r#"{"echo":true,"model":"m","continue_final_message":"x","messages":[{"role":"user"}],"add_generation_prompt":true}"#,
    );
    let sent = value(&request, &part("", "x", 1));
    let said = sent.as_object().expect("object");
    assert_eq!(said.keys().len(), 5, "{sent}");
    assert_eq!((&sent["add_generation_prompt"], &sent["continue_final_message"]), (&json!(false), &json!(true)));
    let anew = UpstreamRewrite { model: "r", stream: true, ..UpstreamRewrite::default() };
    let anew = request.upstream_body(&anew).to_bytes();
    let anew: Value = serde_json::from_slice(&anew).expect("JSON");
    assert_eq!((&anew["echo"], &anew["continue_final_message"]), (&json!(true), &json!("x")), "an answer's beginning");
}

#[test]
fn the_clients_bytes_are_shared_and_not_copied() {
    let body: Bytes =
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(9000)).into();
    let request = Request::decode(Route::ChatCompletions, body.clone()).expect("sound");
    let part = part("", "y", 1);
    let rewrite = UpstreamRewrite { model: "r", stream: true, carry_on: Some(&part), ..UpstreamRewrite::default() };
    let inside = body.as_ptr_range();
    let segments = request.upstream_body(&rewrite);
    let shared = segments.iter().find(|segment| segment.len() > 9000).expect("the messages in one piece");
    assert!(inside.contains(&shared.as_ptr()));
}

/// What a response's body becomes, apart from what every one becomes.
fn as_chat(body: Value, part: &CarryOn) -> Value {
    let mut whole = json!({"model":"m","stream":true});
    whole.as_object_mut().expect("object").extend(body.as_object().expect("object").clone());
    let mut sent = value(&decode(Route::Responses, &whole.to_string()), part);
    let members = sent.as_object_mut().expect("object");
    for (name, value) in [
        ("model", json!("r")),
        ("stream", json!(true)),
        ("add_generation_prompt", json!(false)),
        ("continue_final_message", json!(true)),
    ] {
        assert_eq!(members.remove(name), Some(value), "{name}");
    }
    let messages = members["messages"].as_array_mut().expect("array");
    let last = messages.pop();
    assert_eq!(last, Some(json!({"role":"assistant","content":part.content})));
    sent
}

#[test]
fn a_response_becomes_the_chat_that_the_engine_makes_of_it() {
    let text = |text: &str| json!([{"type":"text","text":text}]);
    let call = |id: &str| json!({"id":id,"type":"function","function":{"name":"now","arguments":"{}"}});
    let part = part("", "so", 3);
    for (response, chat) in [
        (json!({"input":"a"}), json!({"messages":[{"role":"user","content":"a"}]})),
        (
            json!({"input":"a","instructions":"be short"}),
            json!({"messages":[{"role":"system","content":"be short"},{"role":"user","content":"a"}]}),
        ),
        (
            json!({"input":"a","instructions":null}),
            json!({"messages":[{"role":"system","content":""},{"role":"user","content":"a"}]}),
        ),
        (
            json!({"input":[
                {"role":"developer","content":"d"},
                {"type":"message","role":"user","content":[
                    {"type":"input_text","text":"a"},{"type":"input_image","image_url":"data:x","detail":"auto"}]},
            ]}),
            json!({"messages":[
                {"role":"developer","content":text("d")},
                {"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:x"}}]},
            ]}),
        ),
        (
            json!({"input":[
                {"role":"user","content":"a"},
                {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
                {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]},
                {"type":"function_call","call_id":"c1","name":"now","arguments":"{}"},
                {"type":"function_call","call_id":"c2","name":"now","arguments":"{}","status":"completed"},
                {"type":"function_call_output","call_id":"c1","output":"12"},
                {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"13"}]},
            ]}),
            json!({"messages":[
                {"role":"user","content":text("a")},
                {"role":"assistant","content":text("b"),"reasoning_content":"hm","tool_calls":[call("c1"), call("c2")]},
                {"role":"tool","tool_call_id":"c1","content":"12"},
                {"role":"tool","tool_call_id":"c2","content":text("13")},
            ]}),
        ),
        (
            json!({"input":[
                {"type":"function_call","call_id":"c1","name":"now","arguments":"{}"},
                {"role":"user","content":"a"}]}),
            json!({"messages":[
                {"role":"assistant","tool_calls":[call("c1")]},{"role":"user","content":text("a")}]}),
        ),
    ] {
        assert_eq!(as_chat(response.clone(), &part), chat, "{response}");
    }
}

#[test]
fn the_other_members_of_a_response_are_those_of_the_chat() {
    let part = part("", "so", 3);
    let function = json!({"name":"now","strict":true,"parameters":{"type":"object"}});
    let mut tool = function.clone();
    tool["type"] = "function".into();
    let sent = as_chat(
        json!({
            "input":"a", "max_output_tokens":10, "max_tokens":99, "temperature":0.5, "top_p":1, "seed":3,
            "tools":[tool, {"type":"web_search"}], "tool_choice":"auto", "parallel_tool_calls":false,
            "reasoning":{"effort":"low","summary":"auto"}, "reasoning_budget_tokens":5,
            "text":{"format":{"type":"json_schema","name":"q","schema":{}}},
            "include":[], "store":true, "truncation":"auto", "previous_response_id":null, "stream_options":{"a":1},
            "messages":[{"role":"user","content":"smuggled"}], "n":2, "id_slot":1, "api_base":"x", "timings_per_token":true,
        }),
        &part,
    );
    let expected = json!({
        "messages":[{"role":"user","content":"a"}],
        "max_tokens":7, "temperature":0.5, "top_p":1, "seed":3,
        "tools":[{"type":"function","function":function}], "tool_choice":"auto", "parallel_tool_calls":false,
        "reasoning_effort":"low", "reasoning_budget_tokens":5,
    });
    assert_eq!(sent, expected);
    assert_eq!(as_chat(json!({"input":"a","tools":[{"type":"web_search"}]}), &part).get("tools"), None);
    assert_eq!(as_chat(json!({"input":"a","max_tokens":9,"max_output_tokens":null}), &part)["max_tokens"], 6);
}

#[test]
fn a_response_keeps_the_order_of_a_schema_and_the_text_of_a_number() {
    let schema = r#"{"properties":{"z":{"type":"string"},"a":{"type":"integer"}}}"#;
    let body = format!(
        r#"{{"model":"m","input":"\u0041","seed":12345678901234567890,"tools":[{{"type":"function","name":"f","parameters":{schema}}}]}}"#
    );
    let sent = text(&decode(Route::Responses, &body), true, &part("hm", r"a\n", 1));
    assert!(sent.contains(schema) && sent.contains(r#""seed":12345678901234567890"#), "{sent}");
    assert!(sent.contains(r#"{"role":"assistant","content":"a\n","reasoning_content":"hm"}]"#), "{sent}");
    assert!(sent.contains(r#"{"role":"user","content":"\u0041"}"#), "{sent}");
}

#[test]
fn a_response_that_is_carried_on_is_asked_of_as_a_chat_is() {
    let request = decode(Route::Responses, r#"{"model":"m","input":"a"}"#);
    let part = part("", "so", 0);
    let sent = |rewrite: UpstreamRewrite<'_>| -> Value {
        let rewrite = UpstreamRewrite { carry_on: Some(&part), ask_usage: true, progress: true, ..rewrite };
        serde_json::from_slice(&request.upstream_body(&rewrite).to_bytes()).expect("JSON")
    };
    let streamed = sent(UpstreamRewrite { stream: true, ..UpstreamRewrite::default() });
    assert_eq!(streamed["stream_options"], json!({"include_usage":true}));
    assert_eq!((&streamed["return_progress"], &streamed["model"]), (&json!(true), &json!("m")), "no other name given");
    let plain = sent(UpstreamRewrite::default());
    assert_eq!(
        (&plain["stream"], plain.get("stream_options"), plain.get("return_progress")),
        (&json!(false), None, None)
    );
}

/// Members of a chat's body as text, and how each may be written.
fn members() -> impl Strategy<Value = Vec<String>> {
    let required = [
        prop::sample::select(vec![r#""model":"m""#, r#""mod\u0065l" : "m""#]).boxed(),
        prop::sample::select(vec![
            r#""messages":[{"role":"user","content":"a"}]"#,
            "\"messages\" : [\n {\"role\":\"user\",\"content\":[]} ,{ } ]",
            r#""messages":[{"role":"assistant","content":"\"]}"},{"role":"tool","content":"é\\"}]"#,
        ])
        .boxed(),
    ];
    let optional = prop::sample::subsequence(
        vec![
            r#""stream":null"#,
            r#""stream_options": {"a":[]}"#,
            r#""n":3"#,
            r#""max_tokens" :7"#,
            r#""max_completion_tokens":100"#,
            r#""echo" : true"#,
            r#""add_generation_prompt":null"#,
            r#""continue_final_message":false"#,
            r#""id_slot":{"a":[1,"}"]}"#,
            r#""api_base":"x""#,
            r#""stop":["a"]"#,
            r#""tools":[]"#,
            r#""response_format":{"type":"json_object"}"#,
            r#""seed":5"#,
        ],
        0..=14,
    );
    (required, optional)
        .prop_map(|(required, optional)| required.into_iter().chain(optional).map(str::to_owned).collect::<Vec<_>>())
        .prop_shuffle()
}

/// What stands in the way between two members.
fn space() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![",", " ,", ", ", "\n\t,\r\n  "])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn however_a_chat_is_written_the_next_replica_gets_it_with_the_part_behind_it(
        members in members(),
        space in space(),
        stream: bool,
        ask_usage: bool,
        carried in prop::option::of((r#"([a-z"\\é\n]){0,4}"#, "[a-z\u{1F600}]{0,3}", 0_u32..12)),
    ) {
        let body = format!("{{ {}\n}}", members.join(space));
        let request = decode(Route::ChatCompletions, &body);
        prop_assert_eq!(request.may_be_carried_on(), Ok(()));
        let escaped = |text: &str| {
            let quoted = Value::from(text).to_string();
            quoted[1..quoted.len() - 1].to_owned()
        };
        let part = carried.as_ref().map(|(content, reasoning, tokens)| {
            part(&escaped(reasoning), &escaped(content), *tokens)
        });
        let carry_on = part.as_ref();
        let rewrite = UpstreamRewrite { model: "r", stream, ask_usage, progress: false, carry_on };
        let sent = request.upstream_body(&rewrite).to_bytes();
        let sent: Value = serde_json::from_slice(&sent).map_err(|error| {
            TestCaseError::fail(format!("{error}: {}", String::from_utf8_lossy(&sent)))
        })?;
        prop_assert_eq!(sent, expected(&body, &rewrite, carried.as_ref()));
    }
}

/// The same by values.
fn expected(body: &str, rewrite: &UpstreamRewrite<'_>, carried: Option<&(String, String, u32)>) -> Value {
    let mut expected: Value = serde_json::from_str(body).expect(body);
    let map = expected.as_object_mut().expect("object");
    let mut gone = vec!["id_slot", "api_base"];
    if !rewrite.stream {
        gone.push("stream_options");
    }
    if carried.is_some() {
        gone.extend(["n", "echo", "add_generation_prompt", "continue_final_message"]);
    }
    for name in gone {
        map.remove(name);
    }
    map.insert("model".into(), "r".into());
    map.insert("stream".into(), rewrite.stream.into());
    if rewrite.stream && rewrite.ask_usage {
        map.entry("stream_options").or_insert(json!({}))["include_usage"] = true.into();
    }
    if let Some((content, reasoning, tokens)) = carried {
        for limit in ["max_tokens", "max_completion_tokens"] {
            if let Some(limit) = map.get_mut(limit).filter(|_| *tokens > 0) {
                *limit = limit.as_u64().expect("number").saturating_sub(u64::from(*tokens)).max(1).into();
            }
        }
        if !(content.is_empty() && reasoning.is_empty()) {
            map.insert("add_generation_prompt".into(), false.into());
            map.insert("continue_final_message".into(), true.into());
            let mut last = json!({"role":"assistant","content":content});
            if !reasoning.is_empty() {
                last["reasoning_content"] = reasoning.as_str().into();
            }
            map["messages"].as_array_mut().expect("array").push(last);
        }
    }
    expected
}
