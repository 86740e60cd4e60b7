//! Engines that write on where they should have ended, and whose counts are none.

use crate::chat_streams::data;
use bytes::BytesMut;
use openai_wire::{AnswerStream, CarryOn, Engine, Leg, Route, StreamOptions, Usage};
use serde_json::{Value, json};

const MNN: Engine = Engine { counts: false, obeys: false };

fn with(max_tokens: Option<u32>, stop: &[&str], plain: bool) -> AnswerStream {
    let stop = stop.iter().map(|&stop| stop.into()).collect();
    let options = StreamOptions {
        model: "asked".into(),
        include_usage: true,
        max_kept: 1 << 20,
        max_tokens,
        stop,
        plain,
        ..StreamOptions::default()
    };
    let mut stream = AnswerStream::new(Route::ChatCompletions, options).with_prompt_estimate(40);
    stream.begin_attempt(Leg::Anew, MNN);
    stream
}

/// As `mnncli serve` writes them: another id each time, no role, an empty finish reason.
fn words(words: &[&str]) -> String {
    let chunk = |n: usize, text: &str, finish: &str| {
        let chunk = json!({"id":format!("chatcmpl{n}"),"created":n,"model":"x","choices":[{"index":0,"delta":{"content":text},"finish_reason":finish}]});
        format!("data: {chunk}\n\n")
    };
    let events: String = words.iter().enumerate().map(|(n, word)| chunk(n, word, "")).collect();
    events + &chunk(words.len(), "", "stop") + "data: [DONE]\n\n"
}

/// Text, finish reason and completion tokens of the client's stream, and of the plain answer.
fn ended(max_tokens: Option<u32>, stop: &[&str], upstream: &str) -> (String, Value, Value) {
    let mut out = BytesMut::new();
    let mut stream = with(max_tokens, stop, false);
    let step = stream.push(upstream.as_bytes(), &mut out).expect("sound");
    assert!(step.complete && stream.is_complete());
    let events = data(&out);
    let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    let reasons: Vec<&Value> =
        events.iter().map(|event| &event["choices"][0]["finish_reason"]).filter(|reason| !reason.is_null()).collect();
    let [.., usage, done] = &events[..] else { panic!("{events:?}") };
    assert_eq!((reasons.len(), done), (1, &json!("[DONE]")));
    assert!(events[..events.len() - 1].iter().all(|event| event["id"] == "chatcmpl0" && event["created"] == 0));
    let (reason, tokens) = (reasons[0].clone(), usage["usage"]["completion_tokens"].clone());

    let mut plain = with(max_tokens, stop, true);
    assert!(plain.push(upstream.as_bytes(), &mut BytesMut::new()).expect("sound").complete);
    let answer: Value = serde_json::from_slice(&plain.into_answer().body.to_bytes()).expect("json");
    assert_eq!(answer["choices"][0]["message"], json!({"role":"assistant","content":text}));
    assert_eq!((&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]), (&reason, &tokens));
    (text, reason, tokens)
}

#[test]
fn an_answer_ends_at_its_limits_though_the_engine_writes_on() {
    let upstream = words(&["Hel", "lo", " wor", "ld", "!", " And", " on"]);
    for (max_tokens, stop, text, reason, tokens) in [
        (None, &[][..], "Hello world! And on", "stop", 7),
        (Some(3), &[], "Hello wor", "length", 3),
        (Some(1), &[], "Hel", "length", 1),
        (Some(0), &[], "Hel", "length", 1),
        (Some(7), &[], "Hello world! And on", "length", 7),
        (Some(100), &[], "Hello world! And on", "stop", 7),
        (None, &["world"], "Hello ", "stop", 4),
        (None, &["o w"], "Hell", "stop", 3),
        (None, &["Hello"], "", "stop", 2),
        (None, &["never", "! And on an on"], "Hello world! And on", "stop", 7),
        (None, &["on"], "Hello world! And ", "stop", 7),
        (Some(4), &["world!"], "Hello world", "length", 4),
        (Some(4), &["world"], "Hello ", "stop", 4),
    ] {
        let expected = (text.to_owned(), json!(reason), json!(tokens));
        assert_eq!(ended(max_tokens, stop, &upstream), expected, "{max_tokens:?} {stop:?}");
    }
}

#[test]
fn nothing_of_a_stop_string_is_shown_before_it_is_known_to_be_none() {
    let mut stream = with(None, &["<end>"], false);
    let mut out = BytesMut::new();
    let upstream = words(&["a<", "e", "nd", "b"]);
    let mut seen = Vec::new();
    for event in upstream.split_inclusive("\n\n") {
        stream.push(event.as_bytes(), &mut out).expect("sound");
        let text: String =
            data(&out).iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
        seen.push(text);
    }
    assert_eq!(seen[..4], ["a", "a", "a", "a<endb"]);
}

#[test]
fn an_answer_that_was_ended_here_is_told_from_one_that_the_engine_ended() {
    let upstream = words(&["a", "b", "c"]);
    for (max_tokens, stop, here) in
        [(Some(2), &[][..], true), (None, &["b"], true), (Some(100), &["d"], false), (None, &[], false)]
    {
        let mut stream = with(max_tokens, stop, false);
        assert!(stream.push(upstream.as_bytes(), &mut BytesMut::new()).expect("sound").complete);
        assert_eq!(stream.ended_here(), here, "{max_tokens:?} {stop:?}");
    }
}

#[test]
fn what_follows_the_end_is_not_read() {
    let mut stream = with(Some(1), &[], false);
    let mut out = BytesMut::new();
    stream.push(words(&["a"]).split_inclusive("\n\n").next().expect("event").as_bytes(), &mut out).expect("sound");
    assert!(stream.is_complete());
    let whole = out.len();
    assert!(stream.push(b"data: nonsense\n\n", &mut out).expect("ignored").complete);
    assert_eq!((stream.end(&mut out), out.len()), (Ok(()), whole));
}

#[test]
fn a_stop_string_across_the_seam_is_found_and_tokens_before_it_count() {
    let mut stream = with(Some(5), &["<end>"], false);
    let mut out = BytesMut::new();
    let begun = words(&["one", " two<e"]);
    let cut = begun.find("\"stop\"").map(|at| begun[..at].rfind("data").expect("event")).expect("finish");
    stream.push(&begun.as_bytes()[..cut], &mut out).expect("sound");
    let part = CarryOn { choice: 0, content: "one two".into(), reasoning: String::new(), tokens: 2 };
    assert_eq!(stream.carry_on(), Ok(part), "what nobody has seen is written again");
    stream.begin_attempt(Leg::CarryOn, MNN);
    stream.push(words(&["<", "end>", " no more"]).as_bytes(), &mut out).expect("sound");
    let text: String = data(&out).iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "one two");

    let mut stream = with(Some(5), &[], false);
    let mut out = BytesMut::new();
    stream.push(&begun.as_bytes()[..cut], &mut out).expect("sound");
    stream.begin_attempt(Leg::CarryOn, MNN);
    stream.carried_tokens(2);
    stream.push(words(&[" 3", " 4", " 5", " 6"]).as_bytes(), &mut out).expect("sound");
    assert_eq!(stream.usage(), Some(Usage { prompt_tokens: 40, completion_tokens: 5, cached_tokens: 0 }));
}

#[test]
fn counts_that_are_none_are_not_told() {
    let constant = words(&["a", "b"]).replace(
        "\"model\":\"x\"",
        "\"model\":\"x\",\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":7,\"total_tokens\":17}",
    );
    let mut stream = with(None, &[], false);
    let mut out = BytesMut::new();
    stream.push(constant.as_bytes(), &mut out).expect("sound");
    assert_eq!(stream.usage(), Some(Usage { prompt_tokens: 40, completion_tokens: 2, cached_tokens: 0 }));
    assert!(stream.usage_estimated());
    let events = data(&out);
    assert_eq!(events[events.len() - 2]["usage"]["total_tokens"], 42);
}

#[test]
fn limits_are_an_obedient_engines_own_business() {
    let mut stream = with(Some(1), &["b"], false);
    stream.begin_attempt(Leg::Anew, Engine::default());
    let mut out = BytesMut::new();
    stream.push(words(&["a", "b", "c"]).as_bytes(), &mut out).expect("sound");
    let text: String = data(&out).iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "abc");
}
