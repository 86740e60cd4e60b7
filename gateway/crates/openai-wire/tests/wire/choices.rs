//! Answers with several choices: what was asked for says when one is whole, not what has been seen of it.

use bytes::BytesMut;
use openai_wire::{
    AnswerStream, DecodeError, Engine, Leg, Obstacle, Request, Route, StreamError, StreamOptions, Usage,
};
use serde_json::{Value, json};

use crate::carried_chats::{event, keeping};

fn word(index: u32, word: &str) -> String {
    event("a", &format!(r#"{{"finish_reason":null,"index":{index},"delta":{{"content":"{word}"}}}}"#))
}

fn end(index: u32) -> String {
    event("a", &format!(r#"{{"finish_reason":"stop","index":{index},"delta":{{}}}}"#))
}

/// A completion's chunk with a text, and with the usage of its choice if that ends.
fn text(index: u32, text: &str, usage: Option<(u32, u32, u32)>) -> String {
    let usage = usage.map(|(prompt, cached, written)| {
        json!({"prompt_tokens":prompt,"completion_tokens":written,"prompt_tokens_details":{"cached_tokens":cached}})
    });
    let reason = usage.as_ref().map(|_| "length");
    let mut chunk = json!({"choices":[{"text":text,"index":index,"finish_reason":reason}],"id":"a","created":7});
    if let Some(usage) = usage {
        chunk["usage"] = usage;
    }
    format!("data: {chunk}\n\n")
}

fn of(choices: u32, plain: bool) -> AnswerStream {
    AnswerStream::new(Route::ChatCompletions, StreamOptions { choices, plain, ..keeping() })
}

fn body(stream: AnswerStream) -> Value {
    serde_json::from_slice(&stream.into_answer().body.to_bytes()).expect("JSON")
}

#[test]
fn a_stream_that_breaks_off_is_whole_only_with_every_choice_that_was_asked_for() {
    for plain in [false, true] {
        let mut out = BytesMut::new();
        let mut stream = of(3, plain);
        let sent = word(0, "one") + &end(0) + &word(2, "three") + &end(2);
        assert!(!stream.push(sent.as_bytes(), &mut out).expect("sound").complete);
        assert_eq!(stream.end(&mut out), Err(StreamError::Cut), "nothing of the second has come");
        let part = stream.carry_on().expect("a part");
        assert_eq!((part.choice, part.content.as_str(), part.reasoning.as_str(), part.tokens), (1, "", "", 0));
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        let rest = word(0, "two") + &end(0) + "data: [DONE]\n\n";
        assert!(stream.push(rest.as_bytes(), &mut out).expect("sound").complete);
        if plain {
            let choices = body(stream)["choices"].clone();
            let said: Vec<_> = [0, 1, 2].map(|n| choices[n]["message"]["content"].clone()).into();
            assert_eq!(said, ["one", "two", "three"]);
        } else {
            let text = String::from_utf8_lossy(&out);
            assert_eq!((text.matches("\"stop\"").count(), text.matches("[DONE]").count()), (3, 1), "{text}");
        }
    }
}

#[test]
fn with_all_choices_finished_only_the_mark_of_the_end_may_be_missing() {
    let mut out = BytesMut::new();
    let mut stream = of(2, false);
    stream.push((word(0, "one") + &word(1, "uno") + &end(1) + &end(0)).as_bytes(), &mut out).expect("sound");
    assert_eq!(stream.end(&mut out), Ok(()));
    assert!(stream.is_complete() && out.ends_with(b"data: [DONE]\n\n"));
}

#[test]
fn an_engine_that_knows_no_n_has_written_all_it_will_when_it_says_so() {
    for (plain, obeys) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut out = BytesMut::new();
        let mut stream = of(2, plain);
        stream.begin_attempt(Leg::Anew, Engine { counts: true, obeys });
        let sent = word(0, "one") + &end(0) + "data: [DONE]\n\n";
        assert!(stream.push(sent.as_bytes(), &mut out).expect("sound").complete, "plain {plain}, obeys {obeys}");
        // It may also never say so, where it is known to do as it likes.
        let mut stream = of(2, plain);
        stream.begin_attempt(Leg::Anew, Engine { counts: true, obeys });
        stream.push((word(0, "one") + &end(0)).as_bytes(), &mut out).expect("sound");
        assert_eq!(stream.end(&mut out).is_ok(), !obeys);
    }
    // Done with one, and not with the other that it has begun.
    let mut stream = of(3, false);
    let sent = word(0, "one") + &end(0) + &word(1, "two") + "data: [DONE]\n\n";
    assert_eq!(stream.push(sent.as_bytes(), &mut BytesMut::new()), Err(StreamError::Cut));
    assert_eq!(stream.carry_on().map(|part| part.choice), Ok(1));
}

#[test]
fn what_was_held_of_a_call_goes_out_when_there_is_no_other_choice_to_wait_for() {
    let mut out = BytesMut::new();
    let options = StreamOptions { choices: 2, hold_tool_calls: true, ..keeping() };
    let mut stream = AnswerStream::new(Route::ChatCompletions, options);
    let call = r#"{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"now","arguments":"{}"}}]}}"#;
    stream.push((event("a", call) + &end(0)).as_bytes(), &mut out).expect("sound");
    assert!(!String::from_utf8_lossy(&out).contains("now"), "the other choice may still break off");
    assert!(stream.push(b"data: [DONE]\n\n", &mut out).expect("sound").complete);
    let text = String::from_utf8_lossy(&out);
    assert!(
        text.contains("now") && text.matches("\"stop\"").count() == 1 && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
}

#[test]
fn nothing_seen_begins_anew_and_a_choice_that_was_not_asked_for_counts_all_the_same() {
    assert_eq!(of(2, false).carry_on(), Err(Obstacle::Nothing));
    // Not asked for more than one, or not known.
    for choices in [0, 1] {
        let mut stream = of(choices, false);
        stream.push((word(0, "one") + &end(0) + &word(1, "two")).as_bytes(), &mut BytesMut::new()).expect("sound");
        assert_eq!(stream.end(&mut BytesMut::new()), Err(StreamError::Cut));
    }
}

#[test]
fn of_several_prompts_the_first_ones_tokens_are_told_whichever_ends_first() {
    let ends = [text(0, " d", Some((6, 5, 4))), text(1, " e", Some((2, 1, 4))), text(2, " f", Some((9, 0, 4)))];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
        for plain in [false, true] {
            let options = StreamOptions { choices: 3, plain, ..keeping() };
            let mut stream = AnswerStream::new(Route::Completions, options);
            // So llama-server opens it.
            let mut sent = "data: null\n\n".to_owned();
            sent.extend((0..9).map(|n| text(n % 3, " a", None)));
            sent.extend(order.map(|n: usize| ends[n].as_str()));
            sent.push_str("data: [DONE]\n\n");
            let mut out = BytesMut::new();
            stream.push(sent.as_bytes(), &mut out).expect("sound");
            let usage = Usage { prompt_tokens: 6, completion_tokens: 12, cached_tokens: 5 };
            assert_eq!(stream.usage(), Some(usage), "{order:?}, plain {plain}");
            if plain {
                assert_eq!(body(stream)["usage"]["prompt_tokens"], 6);
            }
        }
    }
}

#[test]
fn a_request_says_how_many_choices_its_answer_has() {
    let decode = |route, body: Value| Request::decode(route, body.to_string().into());
    let completion = |prompt: Value, n: u32, stream: bool| {
        decode(Route::Completions, json!({"model":"m","prompt":prompt,"n":n,"stream":stream}))
    };
    for (prompt, n, prompts) in [
        (json!("a"), 1, 1),
        (json!(["a"]), 2, 1),
        (json!(["a", "b"]), 2, 2),
        (json!([1, 2, 3]), 1, 1),
        (json!([[1, 2], [3], "b"]), 3, 3),
        // Tokens and texts in turn are one prompt.
        (json!([1, "b", 2]), 1, 1),
        (json!(vec!["a"; 64]), 2, 64),
    ] {
        let request = completion(prompt.clone(), n, true).expect("sound");
        assert_eq!((request.prompts, request.all_choices()), (prompts, prompts * n), "{prompt}");
        assert_eq!(request.only_plain(), None);
    }
    let chat = decode(Route::ChatCompletions, json!({"model":"m","messages":[{"role":"user","content":"a"}],"n":3}));
    assert_eq!(chat.map(|request| (request.prompts, request.all_choices())).ok(), Some((1, 3)));
    // No more than fit a stream.
    let many = completion(json!(vec!["a"; 65]), 2, false).expect("sound");
    assert_eq!((many.all_choices(), many.only_plain()), (130, Some("many_choices")));
    let refused = completion(json!(vec!["a"; 129]), 1, true).err();
    assert!(matches!(refused, Some(DecodeError::Value { param: "prompt", .. })), "{refused:?}");
}
