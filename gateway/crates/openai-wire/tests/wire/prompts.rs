//! Prompts: what the model reads, in its order, whatever the body's.

use std::ops::ControlFlow;

use bytes::Bytes;
use openai_wire::{Piece, Request, Route};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The prompt as one text: boundaries as `|r` (whose), `|t` (text), `|j` (JSON), `|#` (a token), `|d` (data).
fn told_up_to(limit: usize, route: Route, body: &str) -> String {
    let mut told = Vec::new();
    let body = Bytes::copy_from_slice(body.as_bytes());
    Request::decode_telling(route, body, limit, |piece| {
        match piece {
            Piece::Text(text) => told.extend_from_slice(text.as_bytes()),
            Piece::Mark { bytes: [0xFF, kind], .. } => told.extend([b'|', *kind]),
            Piece::Mark { bytes, .. } => told.extend_from_slice(bytes),
        }
        ControlFlow::Continue(())
    })
    .expect("sound");
    String::from_utf8_lossy(&told).into_owned()
}

fn told(route: Route, body: &Value) -> String {
    told_up_to(usize::MAX, route, &body.to_string())
}

#[test]
fn a_chat_is_read_system_first_then_tools_then_the_rest_in_whatever_order_it_is_written() {
    let prompt = "|rsystem|tS|rdeveloper|tD|j[1]|ruser|tU|rassistant|tA|rsystem|tlate";
    let messages = r#""messages":[{"role":"system","content":"S"},{"role":"developer","content":"D"},{"role":"user","content":"U"},{"role":"assistant","content":"A"},{"role":"system","content":"late"}]"#;
    for body in
        [format!(r#"{{"model":"m","tools":[1],{messages}}}"#), format!(r#"{{{messages},"tools":[1],"model":"m"}}"#)]
    {
        assert_eq!(told_up_to(usize::MAX, Route::ChatCompletions, &body), prompt);
    }
    let role_last =
        r#"{"model":"m","tools":[1],"messages":[{"content":"S","role":"system"},{"content":"U","role":"user"}]}"#;
    assert_eq!(told_up_to(usize::MAX, Route::ChatCompletions, role_last), "|rsystem|tS|j[1]|ruser|tU");
}

#[test]
fn every_route_tells_what_its_model_reads() {
    for (route, body, prompt) in [
        (Route::Completions, json!({"suffix": "end", "prompt": "begin"}), "|tbegin|tend"),
        (Route::Completions, json!({"prompt": [7, 12]}), "|#7|#12"),
        (Route::Responses, json!({"input": "I", "instructions": "first"}), "|tfirst|tI"),
        (Route::Messages, json!({"messages": [{"role": "user", "content": "U"}], "system": "S"}), "|tS|ruser|tU"),
        (Route::SystemOne, json!({"questions": {"q": 1}, "state": "S"}), "|j\"S\"|j{\"q\":1}"),
        (Route::Embeddings, json!({"input": "I"}), ""),
        (Route::Rerank, json!({"query": "Q", "documents": ["D"]}), ""),
    ] {
        let mut body = body;
        body["model"] = "m".into();
        assert_eq!(told(route, &body), prompt, "{route:?}");
    }
}

#[test]
fn text_is_told_as_it_is_meant_however_it_is_escaped() {
    let body = |content: &str| format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#);
    let plain = told_up_to(usize::MAX, Route::ChatCompletions, &body("a\u{fc}\u{1F600}/\u{7f}z"));
    let escaped = told_up_to(usize::MAX, Route::ChatCompletions, &body(r"\u0061\u00fc\ud83d\ude00\/\u007Fz"));
    assert_eq!(plain, escaped);
    assert_eq!(told_up_to(usize::MAX, Route::ChatCompletions, &body(r#"\"\\\n\t"#)), "|ruser|t\"\\\n\t");
}

#[test]
fn pictures_are_told_apart_by_their_length_and_their_end_and_count_nothing() {
    let picture = |data: &str| {
        json!({"model": "m", "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": "what is it?"}]}]})
    };
    let of = |data: &str| told(Route::ChatCompletions, &picture(data));
    let long = "A".repeat(10_000);
    assert_eq!(of(&long), of(&long));
    assert_ne!(of(&long), of(&format!("{long}A")), "another length");
    assert_ne!(of(&format!("{long}A")), of(&format!("{long}B")), "another end");
    assert!(of(&long).len() < 6_000 && of(&long).ends_with("|twhat is it?"), "{}", of(&long));
}

#[test]
fn nothing_is_told_beyond_the_limit_and_nothing_from_behind_a_gap() {
    let body = json!({"model": "m", "tools": ["T"], "messages": [
        {"role": "system", "content": "s".repeat(50)}, {"role": "user", "content": "u".repeat(50)},
        {"role": "user", "content": "v"}]});
    assert_eq!(told_up_to(0, Route::ChatCompletions, &body.to_string()), "");
    let some = told_up_to(60, Route::ChatCompletions, &body.to_string());
    assert!(some.contains("|j") && some.ends_with('u') && !some.contains('v'), "{some}");
    let crowd: Vec<_> = (0..100_000).map(|_| json!({"role": "user", "content": ""})).collect();
    let crowd = told(Route::ChatCompletions, &json!({"model": "m", "messages": crowd})).len();
    let bounded: Vec<_> = (0..100_000).map(|_| json!({"role": "user", "content": ""})).collect();
    let bounded = json!({"model": "m", "messages": bounded}).to_string();
    assert!(told_up_to(4_000, Route::ChatCompletions, &bounded).len() * 100 < crowd, "a thousand texts at most");
}

#[test]
fn reading_ends_when_the_reader_has_enough() {
    let body = json!({"model": "m", "prompt": "a\nb\nc"}).to_string();
    let mut pieces = 0;
    Request::decode_telling(Route::Completions, body.into(), 100, |_| {
        pieces += 1;
        if pieces == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .expect("sound");
    assert_eq!(pieces, 2);
}

proptest! {
    #[test]
    fn what_is_told_counts_as_much_as_what_is_counted(texts in prop::collection::vec(".*", 1..8), tool in ".*") {
        let messages: Vec<_> = texts.iter().map(|text| json!({"role": "user", "content": text})).collect();
        let body = json!({"model": "m", "messages": messages, "tools": [tool]}).to_string();
        let (mut count, mut all) = (0, String::new());
        let request = Request::decode_telling(Route::ChatCompletions, body.into(), usize::MAX, |piece| {
            match piece {
                Piece::Text(text) => {
                    count += text.len();
                    all.push_str(text);
                }
                Piece::Mark { text, .. } => count += text,
            }
            ControlFlow::Continue(())
        }).expect("sound");
        prop_assert_eq!(count as u64, request.prompt_bytes);
        prop_assert!(all.ends_with(&texts.concat()));
    }
}
