//! What the official clients make of named events, and what engines write that carry on.

use crate::named_streams::events;
use openai_wire::{CarryOn, Route};
use serde_json::{Value, json};

/// The end of a client's stream, told as an engine's plain answer would; and all that it promises on the way.
pub fn told(route: Route, out: &[u8]) -> Value {
    let events = events(out);
    if route == Route::Messages { message(&events) } else { response(&events) }
}

/// What Anthropic's SDK makes of the events, as strictly as can be.
fn message(events: &[Value]) -> Value {
    let [start, rest @ .., stop] = events else { panic!("{events:?}") };
    assert_eq!((&start["type"], &stop["type"]), (&json!("message_start"), &json!("message_stop")));
    let mut message = start["message"].clone();
    let mut blocks: Vec<(Value, String, bool)> = Vec::new();
    let mut over = false;
    for event in rest {
        assert!(!over, "{event}");
        let index = event["index"].as_u64().map_or(usize::MAX, |index| index as usize);
        match event["type"].as_str().expect("type") {
            "content_block_start" => {
                assert_eq!(index, blocks.len(), "{event}");
                blocks.push((event["content_block"].clone(), String::new(), true));
            }
            "content_block_delta" => {
                let (block, input, open) = &mut blocks[index];
                assert!(*open, "{event}");
                let delta = &event["delta"];
                let name = delta["type"].as_str().expect("type");
                match name {
                    "input_json_delta" => input.push_str(delta["partial_json"].as_str().expect("text")),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    _ => {
                        let member = name.trim_end_matches("_delta");
                        let text = block[member].as_str().expect("its own kind").to_owned();
                        block[member] = json!(text + delta[member].as_str().expect("text"));
                    }
                }
            }
            "content_block_stop" => assert!(std::mem::replace(&mut blocks[index].2, false), "{event}"),
            "message_delta" => {
                over = true;
                for member in ["stop_reason", "stop_sequence"] {
                    message[member] = event["delta"][member].clone();
                }
                message["usage"]["output_tokens"] = event["usage"]["output_tokens"].clone();
            }
            other => panic!("{other}"),
        }
    }
    assert!(over);
    let content = blocks.into_iter().map(|(mut block, input, open)| {
        assert!(!open);
        if block["type"] == "tool_use" {
            block["input"] = serde_json::from_str(&input).unwrap_or(json!({}));
        }
        block
    });
    message["content"] = content.collect();
    message
}

/// What OpenAI's SDK makes of the events, as strictly as can be.
fn response(events: &[Value]) -> Value {
    let mut items: Vec<(String, String, bool)> = Vec::new();
    let mut parts = std::collections::BTreeSet::new();
    for (number, event) in events.iter().enumerate() {
        let kind = event["type"].as_str().expect("type");
        assert_eq!(event["sequence_number"], number, "{event}");
        if event["response"].is_object() {
            assert_eq!(event["response"]["id"], events[0]["response"]["id"]);
            continue;
        }
        let place = event["output_index"].as_u64().expect("a place") as usize;
        if kind == "response.output_item.added" {
            assert_eq!(place, items.len());
            items.push((event["item"]["id"].as_str().expect("id").to_owned(), String::new(), false));
            continue;
        }
        let (id, text, done) = &mut items[place];
        let named = if event["item"].is_object() { &event["item"]["id"] } else { &event["item_id"] };
        assert!(named == id && !*done, "{event}");
        assert!(kind.contains("item") || kind.contains("arguments") || event["content_index"] == 0, "{event}");
        if kind == "response.content_part.added" {
            assert!(parts.insert(place), "{event}");
        }
        assert!(kind.contains("item") || kind.contains("arguments") || parts.contains(&place), "{event}");
        match kind {
            "response.output_item.done" => *done = true,
            "response.output_text.done" => assert_eq!(event["text"], text.as_str()),
            "response.content_part.done" => assert_eq!(event["part"]["text"], text.as_str()),
            "response.content_part.added" => assert_eq!(event["part"]["text"], ""),
            _ => text.push_str(event["delta"].as_str().expect(kind)),
        }
    }
    let mut last = events.last().expect("an end")["response"].clone();
    let output = last["output"].as_array_mut().expect("output");
    assert_eq!(output.len(), items.len());
    for (item, (id, text, done)) in output.iter_mut().zip(items) {
        let whole = if item["type"] == "function_call" { &item["arguments"] } else { &item["content"][0]["text"] };
        assert!(done && item["id"] == id.as_str() && *whole == text.as_str(), "{item}");
        // As the engine's plain answer has it.
        item["status"] = json!("completed");
    }
    last["completed_at"] = last["created_at"].clone();
    last
}

/// What an engine writes that is given a part of this answer: the events of the route's continuations for the rest of it.
pub fn rest_of(route: Route, upstream: &str, part: &CarryOn, prompt: u64) -> String {
    let mut known = (part.reasoning.clone(), part.content.clone());
    let mut pieces = Vec::new();
    for event in upstream.split("\n\n").filter_map(|event| event.split("data: ").nth(1)) {
        let event: Value = serde_json::from_str(event).expect("json");
        let kind = event["type"].as_str().expect("type");
        let delta = &event["delta"];
        let (known, text, thinks) = match (kind, delta["type"].as_str()) {
            ("response.reasoning_text.delta", _) => (&mut known.0, delta, true),
            ("response.output_text.delta", _) => (&mut known.1, delta, false),
            (_, Some("thinking_delta")) => (&mut known.0, &delta["thinking"], true),
            (_, Some("text_delta")) => (&mut known.1, &delta["text"], false),
            _ => continue,
        };
        let quoted = text.to_string();
        match known.strip_prefix(&quoted[1..quoted.len() - 1]) {
            Some(left) => *known = left.to_owned(),
            None => pieces.push((thinks, quoted)),
        }
    }
    if route == Route::Messages { message_of(&pieces, part) } else { chat_of(&pieces, prompt + u64::from(part.tokens)) }
}

fn chat_of(pieces: &[(bool, String)], prompt: u64) -> String {
    let chunk = |choices: String, more: &str| {
        format!("data: {{\"choices\":[{choices}],\"created\":9,\"id\":\"chatcmpl-2\",\"model\":\"t\"{more}}}\n\n")
    };
    let delta =
        |delta: String, reason: &str| format!("{{\"index\":0,\"delta\":{{{delta}}},\"finish_reason\":{reason}}}");
    let mut chat = chunk(delta("\"role\":\"assistant\",\"content\":null".into(), "null"), "");
    for (thinks, text) in pieces {
        let name = if *thinks { "reasoning_content" } else { "content" };
        chat += &chunk(delta(format!("\"{name}\":{text}"), "null"), "");
    }
    chat += &chunk(delta(String::new(), "\"length\""), "");
    let usage = format!(
        ",\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{}}},\"timings\":{{\"predicted_n\":1}}",
        pieces.len()
    );
    chat + &chunk(String::new(), &usage) + "data: [DONE]\n\n"
}

/// As llama-server numbers and ends them: with the thoughts of the message that it was given.
fn message_of(pieces: &[(bool, String)], part: &CarryOn) -> String {
    let event = |data: String| {
        let parsed: Value = serde_json::from_str(&data).expect("json");
        format!("event: {}\ndata: {data}\n\n", parsed["type"].as_str().expect("type"))
    };
    let mut message = event(
        "{\"type\":\"message_start\",\"message\":{\"id\":\"2\",\"content\":[],\"model\":\"t\",\"usage\":{\"input_tokens\":999,\"output_tokens\":0}}}".into(),
    );
    let thought = pieces.iter().any(|(thinks, _)| *thinks) || !part.reasoning.is_empty();
    let mut begun = [false; 2];
    for (thinks, text) in pieces {
        let index = usize::from(thought && !*thinks);
        let name = if *thinks { "thinking" } else { "text" };
        if !std::mem::replace(&mut begun[index], true) {
            message += &event(format!(
                "{{\"type\":\"content_block_start\",\"index\":{index},\"content_block\":{{\"type\":\"{name}\",\"{name}\":\"\"}}}}"
            ));
        }
        message += &event(format!(
            "{{\"type\":\"content_block_delta\",\"index\":{index},\"delta\":{{\"type\":\"{name}_delta\",\"{name}\":{text}}}}}"
        ));
    }
    if thought {
        message += &event(
            "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}}"
                .into(),
        );
    }
    for index in (0..2).filter(|index| begun[*index] || (*index == 0 && thought)) {
        message += &event(format!("{{\"type\":\"content_block_stop\",\"index\":{index}}}"));
    }
    message += &event(format!(
        "{{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null}},\"usage\":{{\"output_tokens\":{}}}}}",
        pieces.len()
    ));
    message + &event("{\"type\":\"message_stop\"}".into())
}
