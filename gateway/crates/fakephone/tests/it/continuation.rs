//! Answers that one phone begins and another carries on.

use crate::client::{Answer, ask, post};
use fakephone::{Continuation, PhoneConfig, PhoneHandle, answer_text, answer_text_by, spawn};
use serde_json::{Value, json};

const MESSAGE: &str = "tell of the grüne fox";

async fn phone_with(change: impl FnOnce(&mut PhoneConfig)) -> PhoneHandle {
    let mut config = PhoneConfig { answer_tokens: Some(24), ..PhoneConfig::default() };
    change(&mut config);
    spawn(config).await.expect("a phone")
}

async fn phone() -> PhoneHandle {
    phone_with(|_| {}).await
}

async fn send(phone: &PhoneHandle, path: &str, body: &Value) -> Answer {
    ask(phone, post(path, body)).await.expect("an answer")
}

/// A request to carry `said` on, with the flags that ask for it.
fn flagged(message: &str, said: Value) -> Value {
    let mut last = json!({"role": "assistant"});
    for (key, value) in said.as_object().expect("fields") {
        last[key] = value.clone();
    }
    json!({"messages": [{"role": "user", "content": message}, last], "stream": true,
        "add_generation_prompt": false, "continue_final_message": true, "stream_options": {"include_usage": true}})
}

/// Every place where a text can be cut between two characters, a few apart.
fn cuts(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().skip(1).step_by(5).map(|(at, _)| &text[..at])
}

#[tokio::test]
async fn a_chat_that_is_cut_anywhere_is_carried_on_to_the_same_text() {
    let (first, second) = (phone().await, phone_with(|config| config.seed = 2).await);
    let whole = answer_text(&first.config().model, MESSAGE, 24);
    for said in cuts(&whole) {
        let answer = send(&second, "/v1/chat/completions", &flagged(MESSAGE, json!({"content": said}))).await;
        assert_eq!(format!("{said}{}", answer.joined("content")), whole, "after {said:?}");
        assert_eq!(answer.spoken().1.as_deref(), Some("stop"));
        let usage = answer.chunks().pop().expect("the usage")["usage"].clone();
        let words = said.split_whitespace().count();
        assert_eq!(usage["prompt_tokens"], 1 + 5 + 1 + words, "the partial text is prompt");
        let begun = words + usize::from(said.ends_with(' '));
        // What is left of the last word has no next one to come with.
        assert_eq!(usage["completion_tokens"], (24 - begun).max(1), "a token that was begun is not new");
    }
}

#[tokio::test]
async fn a_completion_is_carried_on_by_a_longer_prompt() {
    let phone = phone().await;
    let whole = answer_text(&phone.config().model, "once upon ", 24);
    // By two digits of its digest an answer is known.
    for said in cuts(&whole).filter(|said| said.len() >= 3) {
        let body = json!({"prompt": format!("once upon {said}")});
        let answer = send(&phone, "/v1/completions", &body).await.json();
        let more = answer["choices"][0]["text"].as_str().expect("text").to_owned();
        assert_eq!(format!("{said}{more}"), whole, "after {said:?}");
    }
}

fn messages(said: &str) -> Value {
    json!({"max_tokens": 90, "messages": [{"role": "user", "content": MESSAGE}, {"role": "assistant", "content": said}]})
}

fn message_text(answer: &Answer) -> String {
    answer.chunks().iter().filter_map(|event| event["delta"]["text"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_message_is_carried_on_as_by_an_engine_without_flags() {
    let whole = answer_text(&PhoneConfig::default().model, MESSAGE, 24);
    let said = &whole[..40];
    for (continuation, expected) in [
        (Continuation::Exact, Some(whole[40..].to_owned())),
        (Continuation::Echo, Some(whole.clone())),
        (Continuation::Restart, Some(whole.clone())),
        (Continuation::Refuse, None),
    ] {
        let phone = phone_with(|config| config.continuation = continuation).await;
        let mut body = messages(said);
        let plain = send(&phone, "/v1/messages", &body).await;
        body["stream"] = json!(true);
        let streamed = send(&phone, "/v1/messages", &body).await;
        let Some(expected) = expected else {
            assert_eq!((plain.status, streamed.status), (400, 400));
            continue;
        };
        assert_eq!(message_text(&streamed), expected, "{continuation:?}");
        assert_eq!(plain.json()["content"][0]["text"], json!(whole), "a whole answer repeats what it carries on");
    }
}

#[tokio::test]
async fn flags_are_read_as_each_engine_reads_them() {
    let (exact, echo, restart) = (
        phone().await,
        phone_with(|config| config.continuation = Continuation::Echo).await,
        phone_with(|config| config.continuation = Continuation::Restart).await,
    );
    let with = |key: &str, value: Value| {
        let mut body = flagged(MESSAGE, json!({"content": "so"}));
        body[key] = value;
        body
    };
    let calls = flagged(
        MESSAGE,
        json!({"content": "so", "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "f", "arguments": "{}"}}]}),
    );
    for (body, words, statuses) in [
        (with("stream", json!(true)), "", [200, 200, 200]),
        (with("continue_final_message", json!("content")), "", [200, 200, 200]),
        (with("continue_final_message", json!("auto")), "auto", [400, 200, 200]),
        (with("add_generation_prompt", json!(true)), "Cannot set both", [400, 400, 200]),
        (with("add_generation_prompt", Value::Null), "Cannot set both", [400, 400, 200]),
        (calls, "contains tool calls", [400, 400, 200]),
    ] {
        for (phone, status) in [&exact, &echo, &restart].into_iter().zip(statuses) {
            let answer = send(phone, "/v1/chat/completions", &body).await;
            assert_eq!(answer.status, status, "{body}");
            assert!(status == 200 || answer.text().contains(words), "{}", answer.text());
        }
    }
    let echoed = send(&exact, "/v1/chat/completions", &with("echo", json!(true))).await;
    assert!(echoed.joined("content").starts_with("so"));
}

#[tokio::test]
async fn an_empty_text_that_is_to_be_carried_on_loses_the_turn() {
    let phone = phone().await;
    let answer = send(&phone, "/v1/chat/completions", &flagged(MESSAGE, json!({"content": ""}))).await;
    let whole = answer_text(&phone.config().model, MESSAGE, 24);
    assert!(answer.status == 200 && !whole.starts_with(&answer.joined("content")[..9]), "{}", answer.text());
}

#[tokio::test]
async fn a_phone_of_another_build_reads_on_from_the_seam_its_own_way() {
    let (first, second) = (phone().await, phone_with(|config| config.build = "b11549".to_owned()).await);
    let (model, whole) = (&first.config().model, answer_text(&first.config().model, MESSAGE, 24));
    let said = whole.split(' ').take(10).collect::<Vec<_>>().join(" ");
    let answer = send(&second, "/v1/chat/completions", &flagged(MESSAGE, json!({"content": said}))).await;
    let own = answer_text_by("b11549", model, MESSAGE, 24);
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert_ne!(own, whole);
    assert_eq!(words(&answer.joined("content"))[1..], words(&own)[10..]);
    let alone =
        send(&second, "/v1/chat/completions", &json!({"messages": [{"role": "user", "content": MESSAGE}]})).await;
    assert_eq!(alone.json()["choices"][0]["message"]["content"], json!(own));
}

#[tokio::test]
async fn thoughts_are_carried_on_and_the_answer_behind_them() {
    let phone = phone_with(|config| config.thinking_tokens = 9).await;
    let body = json!({"messages": [{"role": "user", "content": MESSAGE}], "stream": true});
    let uncut = send(&phone, "/v1/chat/completions", &body).await;
    let (thoughts, text) = (uncut.joined("reasoning_content"), uncut.joined("content"));
    for flag in [json!(true), json!("reasoning_content")] {
        for said in cuts(&thoughts) {
            let mut body = flagged(MESSAGE, json!({"content": "", "reasoning_content": said}));
            body["continue_final_message"] = flag.clone();
            let answer = send(&phone, "/v1/chat/completions", &body).await;
            assert_eq!(format!("{said}{}", answer.joined("reasoning_content")), thoughts);
            assert_eq!(answer.joined("content"), text);
        }
    }
    for said in cuts(&text) {
        let with = json!({"content": said, "reasoning_content": thoughts});
        let answer = send(&phone, "/v1/chat/completions", &flagged(MESSAGE, with)).await;
        assert_eq!(
            (answer.joined("reasoning_content"), format!("{said}{}", answer.joined("content"))),
            (String::new(), text.clone())
        );
    }
    let forgot = send(&phone, "/v1/chat/completions", &flagged(MESSAGE, json!({"content": &text[..40]}))).await;
    assert_ne!(format!("{}{}", &text[..40], forgot.joined("content")), text, "from another context");
}

#[tokio::test]
async fn tokens_are_counted_alike_wherever_they_are_counted() {
    let phone = phone().await;
    let said = "#123 some words";
    for body in [
        json!({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": MESSAGE}]}),
        flagged(MESSAGE, json!({"content": said, "reasoning_content": "hm, well"})),
    ] {
        let rendered = send(&phone, "/apply-template", &body).await.json();
        let tokens =
            send(&phone, "/tokenize", &json!({"content": rendered["prompt"], "add_special": true})).await.json();
        let count = tokens["tokens"].as_array().map(Vec::len);
        let counted = send(&phone, "/v1/chat/completions/input_tokens", &body).await.json();
        let mut whole = body.clone();
        whole["stream"] = json!(false);
        let answer = send(&phone, "/v1/chat/completions", &whole).await.json();
        assert_eq!(answer["usage"]["prompt_tokens"].as_u64().map(|count| count as usize), count);
        assert_eq!(counted["input_tokens"].as_u64().map(|count| count as usize), count);
    }
    let text = answer_text(&phone.config().model, MESSAGE, 24);
    let tokens = send(&phone, "/tokenize", &json!({"content": text})).await.json();
    assert_eq!(tokens["tokens"].as_array().map(Vec::len), Some(24));
}

#[tokio::test]
async fn what_tells_groups_of_phones_apart_is_told_as_configured() {
    let phone = phone_with(|config| {
        config.build = "b1-x".to_owned();
        config.file.size = 7;
        config.file.parameters = 8;
        config.file.quantization = "Q8_0".to_owned();
    })
    .await;
    let meta =
        ask(&phone, crate::client::get("/v1/models")).await.expect("an answer").json()["data"][0]["meta"].clone();
    assert_eq!((&meta["size"], &meta["n_params"], &meta["ftype"]), (&json!(7), &json!(8), &json!("Q8_0")));
    let props = ask(&phone, crate::client::get("/props")).await.expect("an answer").json();
    assert_eq!((&props["build_info"], &props["model_ftype"]), (&json!("b1-x"), &json!("Q8_0")));
}
