//! Kinds of answers: thoughts, calls, choices, JSON, probabilities; and that a stream says what a whole answer says.

use crate::client::{Answer, ask, chat, post};
use fakephone::{PhoneConfig, PhoneHandle, answer_text, spawn};
use serde_json::{Map, Value, json};

async fn phone() -> PhoneHandle {
    spawn(PhoneConfig::default().with_slots(4)).await.expect("a phone")
}

async fn say(phone: &PhoneHandle, message: &str, more: Value) -> Answer {
    ask(phone, chat(message, more)).await.expect("an answer")
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    json!([tool("weather"), tool("news")])
}

/// Adds what a delta says to what is there: strings grow, lists grow, objects are added to key by key.
fn add(whole: &mut Value, delta: &Value) {
    match (whole, delta) {
        (_, Value::Null) => {}
        (Value::String(text), Value::String(more)) => text.push_str(more),
        (Value::Object(fields), Value::Object(more)) => {
            for (key, value) in more {
                match fields.get_mut(key) {
                    Some(field) => add(field, value),
                    None => drop(fields.insert(key.clone(), value.clone())),
                }
            }
        }
        (Value::Array(items), Value::Array(more)) => {
            for item in more {
                let number = item.get("index").and_then(Value::as_u64);
                match number.and_then(|number| items.get_mut(number as usize)) {
                    Some(known) => add(known, &without(item, "index")),
                    None => items.push(item.clone()),
                }
            }
        }
        (whole, delta) => *whole = delta.clone(),
    }
}

fn without(value: &Value, key: &str) -> Value {
    let fields = value.as_object().into_iter().flatten().filter(|(name, _)| *name != key);
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
}

/// The choices of a streamed chat answer as a whole one would have them.
fn assembled(answer: &Answer) -> Vec<Value> {
    let mut choices: Vec<Value> = Vec::new();
    for choice in answer.chunks().iter().flat_map(|chunk| chunk["choices"].as_array().cloned().unwrap_or_default()) {
        let index = choice["index"].as_u64().expect("an index") as usize;
        while choices.len() <= index {
            choices.push(json!({"index": choices.len(), "message": {"content": null}}));
        }
        let whole = &mut choices[index];
        add(&mut whole["message"], &choice["delta"]);
        for key in ["finish_reason", "logprobs"].into_iter().filter(|key| !choice[*key].is_null()) {
            match whole.get_mut(key) {
                Some(there) if key == "logprobs" => add(there, &choice[key]),
                _ => whole[key] = choice[key].clone(),
            }
        }
    }
    choices
}

/// The choices of an answer without what is new in every answer.
fn bare(choices: &[Value]) -> Vec<Value> {
    let mut choices = choices.to_vec();
    for message in choices.iter_mut().map(|choice| &mut choice["message"]) {
        if message["content"] == "" {
            message["content"] = Value::Null;
        }
    }
    for call in choices.iter_mut().flat_map(|choice| choice["message"]["tool_calls"].as_array_mut()).flatten() {
        assert_eq!(call["id"].as_str().map(str::len), Some(32));
        *call = without(&without(call, "id"), "index");
    }
    choices
}

#[tokio::test]
async fn a_stream_says_what_a_whole_answer_says_field_by_field() {
    let phone = phone().await;
    let schema = json!({"type": "json_schema", "json_schema": {"schema": {"type": "object",
        "properties": {"risk": {"type": "integer"}, "why": {"type": "string"}}}}});
    for (message, body) in [
        ("plain", json!({"max_tokens": 9})),
        ("its own end [fake tokens=7]", json!({})),
        ("stopped by a word", json!({"stop": ["word"], "max_tokens": 20})),
        ("[fake think=5] deep", json!({"max_tokens": 12})),
        ("[fake think=50]", json!({"max_tokens": 12})),
        ("several [fake think=2]", json!({"n": 3, "max_tokens": 9})),
        ("probable", json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 5})),
        ("JSON", json!({"response_format": schema})),
        ("[fake calls=1]", json!({"tools": tools()})),
        ("[fake think=3 tokens=4 calls=3]", json!({"tools": tools()})),
        ("[fake calls=2]", json!({"tools": tools(), "max_tokens": 3})),
        ("viele grüße 🦊 漢字", json!({"max_tokens": 20})),
    ] {
        let whole = say(&phone, message, body.clone()).await.json();
        let mut streamed = body;
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let stream = say(&phone, message, streamed).await;
        let choices = whole["choices"].as_array().expect("choices");
        assert_eq!(bare(&assembled(&stream)), bare(choices), "{message}");
        let last = stream.chunks().pop().expect("the usage");
        for key in ["completion_tokens", "prompt_tokens", "total_tokens"] {
            assert_eq!(last["usage"][key], whole["usage"][key], "{message}");
        }
        assert_eq!((&last["model"], &last["system_fingerprint"]), (&whole["model"], &whole["system_fingerprint"]));
        assert!(stream.is_done() && whole["choices"][0]["finish_reason"].is_string());
    }
}

#[tokio::test]
async fn thoughts_come_before_the_text_and_count_as_tokens() {
    let phone = phone().await;
    let answer = say(&phone, "[fake think=4 tokens=6]", json!({"stream": true})).await;
    let kinds: Vec<&str> = answer
        .chunks()
        .iter()
        .filter_map(|chunk| {
            ["reasoning_content", "content"].into_iter().find(|key| chunk["choices"][0]["delta"][key].is_string())
        })
        .collect();
    assert_eq!(kinds, [["reasoning_content"; 4].as_slice(), &["content"; 6]].concat());
    let whole = say(&phone, "[fake think=4 tokens=6]", json!({})).await.json();
    assert_eq!(whole["usage"]["completion_tokens"], 10);
    let none = say(&phone, "[fake think=4 tokens=6]", json!({"reasoning_budget_tokens": 0})).await.json();
    assert!(none["choices"][0]["message"]["reasoning_content"].is_null());
}

#[tokio::test]
async fn calls_come_in_several_deltas_each_and_carry_their_number() {
    let phone = phone().await;
    let body = json!({"stream": true, "tools": tools()});
    let answer = say(&phone, "[fake tokens=3 calls=2]", body).await;
    let deltas: Vec<Value> = answer
        .chunks()
        .iter()
        .filter_map(|chunk| Some(chunk["choices"][0]["delta"]["tool_calls"].as_array()?[0].clone()))
        .collect();
    for (number, name) in ["weather", "news"].into_iter().enumerate() {
        let own: Vec<&Value> = deltas.iter().filter(|delta| delta["index"] == json!(number)).collect();
        assert!(own.len() >= 4, "{deltas:?}");
        assert_eq!(own[0]["function"]["name"], name);
        assert!(own[1..].iter().all(|delta| delta["id"].is_null() && delta["function"]["name"].is_null()));
        let arguments: String = own.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
        assert!(serde_json::from_str::<Value>(&arguments).expect("JSON")["days"].is_number());
    }
    assert_eq!(answer.joined("content").split(' ').count(), 3);
    assert_eq!(answer.spoken().1.as_deref(), Some("tool_calls"));
}

#[tokio::test]
async fn a_token_is_never_a_part_of_a_character() {
    let phone = phone().await;
    let message = "grüße 🦊🦊🦊 漢字かな";
    let answer = say(&phone, message, json!({"stream": true, "max_tokens": 24})).await;
    assert!(!answer.text().contains('\u{fffd}'));
    assert_eq!(answer.joined("content"), answer_text(&phone.config().model, message, 24));
}

#[tokio::test]
async fn every_token_tells_how_many_there_are_where_that_was_asked_for() {
    let phone = phone().await;
    let answer =
        say(&phone, "[fake think=2]", json!({"stream": true, "max_tokens": 5, "timings_per_token": true})).await;
    let counts: Vec<u64> =
        answer.chunks().iter().filter_map(|chunk| chunk["timings"]["predicted_n"].as_u64()).collect();
    assert_eq!(counts, [1, 2, 3, 4, 5, 5], "five tokens and the end");
    let plain = say(&phone, "x", json!({"stream": true, "max_tokens": 5})).await;
    assert_eq!(plain.text().matches("timings").count(), 1);
}

#[tokio::test]
async fn anthropics_blocks_say_the_same_streamed_and_whole() {
    let phone = phone().await;
    let tool =
        |name: &str| json!({"name": name, "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}});
    let mut body = json!({"max_tokens": 90, "tools": [tool("f"), tool("g")],
        "messages": [{"role": "user", "content": "[fake think=3 tokens=4 calls=2]"}]});
    let whole = ask(&phone, post("/v1/messages", &body)).await.expect("an answer").json();
    body["stream"] = json!(true);
    let events = ask(&phone, post("/v1/messages", &body)).await.expect("an answer").chunks();
    let mut blocks: Vec<Value> = Vec::new();
    for event in &events {
        let at = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str() {
            Some("content_block_start") => {
                assert_eq!(at, blocks.len());
                blocks.push(event["content_block"].clone());
            }
            Some("content_block_delta") => add(&mut blocks[at], &without(&event["delta"], "type")),
            _ => {}
        }
    }
    for block in blocks.iter_mut().filter(|block| block["type"] == "tool_use") {
        let input: Value = serde_json::from_str(block["partial_json"].as_str().expect("arguments")).expect("JSON");
        *block = without(block, "partial_json");
        block["input"] = input;
    }
    let own = |blocks: &[Value]| blocks.iter().map(|block| without(block, "id")).collect::<Vec<_>>();
    assert_eq!(own(&blocks), own(whole["content"].as_array().expect("blocks")));
    assert_eq!((blocks.len(), &whole["stop_reason"]), (4, &json!("tool_use")));
    let delta = events.iter().find(|event| event["type"] == "message_delta").expect("the end");
    assert_eq!(delta["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
}

#[tokio::test]
async fn the_items_of_a_response_say_the_same_streamed_and_whole() {
    let phone = phone().await;
    let tool = |name: &str| {
        json!({"type": "function", "name": name,
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}})
    };
    let mut body = json!({"input": "[fake think=3 tokens=4 calls=2]", "tools": [tool("f"), tool("g")]});
    let whole = ask(&phone, post("/v1/responses", &body)).await.expect("an answer").json();
    body["stream"] = json!(true);
    let events = ask(&phone, post("/v1/responses", &body)).await.expect("an answer").chunks();
    let last = events.last().expect("the end");
    assert_eq!(last["type"], "response.completed");
    let own = |response: &Value| -> Vec<Value> {
        let items = response["output"].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| without(&without(item, "id"), "call_id")).collect()
    };
    assert_eq!(own(&last["response"]), own(&whole));
    let kinds: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.added")
        .map(|event| &event["item"]["type"])
        .collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
    for (kind, key) in [("response.reasoning_text.delta", "reasoning"), ("response.output_text.delta", "message")] {
        let said: String =
            events.iter().filter(|event| event["type"] == kind).filter_map(|event| event["delta"].as_str()).collect();
        let item = own(&whole).into_iter().find(|item| item["type"] == key).expect("an item");
        assert_eq!(item["content"][0]["text"], json!(said));
    }
}

#[tokio::test]
async fn a_mark_that_nobody_knows_is_refused() {
    let phone = phone().await;
    let answer = say(&phone, "[fake cows=2]", json!({})).await;
    assert_eq!((answer.status, answer.text().contains("cows=2")), (400, true));
}
