//! Fingerprints: what two prompts share, and what they do not.

use openai_wire::Route;
use scheduler::Prefix;
use serde_json::{Value, json};

use super::{FingerprintKey, decode};

fn prefix(key: &FingerprintKey, body: &Value) -> Prefix {
    decode(Route::ChatCompletions, body.to_string().into(), key).expect("sound").1
}

fn message(role: &str, content: impl Into<Value>) -> Value {
    json!({"role": role, "content": content.into()})
}

fn chat(messages: &[Value]) -> Value {
    json!({"model": "m", "messages": messages})
}

/// Text of this many estimated tokens, with escapes in it.
fn text(tokens: usize, of: &str) -> String {
    let line = format!("{of} said \"{of}\";\n");
    line.repeat(tokens * 4 / line.len() + 1)[..tokens * 4].to_owned()
}

#[test]
fn the_next_turn_shares_all_that_the_last_one_had() {
    let key = FingerprintKey::default();
    let first = [message("system", text(500, "rule")), message("user", text(300, "question"))];
    let second = [&first[..], &[message("assistant", text(200, "answer")), message("user", "and then?")]].concat();
    let (first, second) = (prefix(&key, &chat(&first)), prefix(&key, &chat(&second)));
    assert_eq!(first.tokens(), 800);
    assert_eq!(first.common(&second), first.fingerprints().len());
    assert!(second.tokens() >= 992, "{}", second.tokens());
}

#[test]
fn another_beginning_shares_nothing_and_another_end_all_before_it() {
    let key = FingerprintKey::default();
    let of = |system: &str, user: &str| prefix(&key, &chat(&[message("system", system), message("user", user)]));
    let (rules, question) = (text(500, "rule"), text(500, "question"));
    let one = of(&rules, &question);
    assert_eq!(one.common(&of(&format!("A{rules}"), &question)), 0);
    let changed = format!("{}!{}", &question[..1000], &question[1001..]);
    // 500 tokens of rules and 250 of the question.
    assert_eq!(Prefix::cut(one.common(&of(&rules, &changed))), 736);
}

#[test]
fn whose_words_and_which_tools_they_are_makes_a_difference() {
    let key = FingerprintKey::default();
    let body = |role, tools: Value| json!({"model": "m", "messages": [message(role, text(200, "x"))], "tools": tools});
    let one = prefix(&key, &body("user", json!([])));
    assert_eq!(one.common(&prefix(&key, &body("user", json!([])))), 6);
    assert_eq!(one.common(&prefix(&key, &body("assistant", json!([])))), 0);
    assert_eq!(one.common(&prefix(&key, &body("user", json!(["tool"])))), 0);
    let split = prefix(&key, &chat(&[message("user", text(100, "x")), message("user", text(100, "x"))]));
    assert!(prefix(&key, &chat(&[message("user", text(200, "x"))])).common(&split) <= 3);
}

#[test]
fn a_picture_makes_a_difference_to_what_follows_it() {
    let key = FingerprintKey::default();
    let with = |picture: &str| {
        let parts = json!([{"type": "text", "text": text(64, "before")},
            {"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": text(64, "after")}]);
        prefix(&key, &chat(&[message("user", parts)]))
    };
    let (one, other) = ("data:image/png;base64,AAAA", "data:image/png;base64,BBBB");
    assert_eq!(with(one).common(&with(one)), 4);
    assert_eq!(with(one).common(&with(other)), 2, "what stands before the picture is shared");
}

#[test]
fn a_prompt_of_token_numbers_is_cut_like_text() {
    let key = FingerprintKey::default();
    let of = |last: u32| {
        let ids: Vec<u32> = (0..100).chain([last]).collect();
        let body = json!({"model": "m", "prompt": ids}).to_string();
        decode(Route::Completions, body.into(), &key).expect("sound").1
    };
    assert_eq!((of(1).tokens(), of(1).common(&of(2))), (96, 3));
}

#[test]
fn fingerprints_end_at_the_last_cut_and_differ_from_process_to_process() {
    let key = FingerprintKey::default();
    let long = |tokens| chat(&[message("user", text(tokens, "long"))]);
    let one = prefix(&key, &long(40_000));
    assert_eq!(one.fingerprints().len(), Prefix::MAX_CUTS);
    assert_eq!(one.common(&prefix(&key, &long(50_000))), Prefix::MAX_CUTS);
    assert_eq!(one.common(&prefix(&FingerprintKey::default(), &long(40_000))), 0);
    assert_eq!(prefix(&key, &long(31)), Prefix::default());
}

#[test]
fn how_a_text_comes_in_pieces_makes_no_difference() {
    let key = FingerprintKey::default();
    let of = |content: &str| {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#);
        decode(Route::ChatCompletions, body.into(), &key).expect("sound").1
    };
    let plain = "smörgåsbord ".repeat(100);
    let escaped = plain.replace('ö', "\\u00f6").replace('s', "\\u0073");
    assert!(of(&plain).fingerprints().len() == 10);
    assert_eq!(of(&plain), of(&escaped));
}
