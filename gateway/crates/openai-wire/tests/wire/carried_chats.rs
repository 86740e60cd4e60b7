//! Chats and completions that one replica begins and another carries on.

use crate::chat_streams::data;
use bytes::BytesMut;
use openai_wire::{AnswerStream, CarryOn, Engine, Flaw, Leg, Obstacle, Route, StreamError, StreamOptions, Usage};
use serde_json::{Value, json};

pub fn keeping() -> StreamOptions {
    StreamOptions { model: "asked".into(), include_usage: true, max_kept: 1 << 20, ..StreamOptions::default() }
}

pub fn chat() -> AnswerStream {
    AnswerStream::new(Route::ChatCompletions, keeping())
}

/// A chunk of replica `id` with this choice.
pub fn event(id: &str, choice: &str) -> String {
    format!(
        "data: {{\"choices\":[{choice}],\"created\":7,\"id\":\"{id}\",\"model\":\"/q.gguf\",\"system_fingerprint\":\"b-{id}\",\"object\":\"chat.completion.chunk\"}}\n\n"
    )
}

/// A chunk with a delta of choice 0.
pub fn delta(id: &str, delta: &str) -> String {
    event(id, &format!("{{\"finish_reason\":null,\"index\":0,\"delta\":{delta}}}"))
}

/// The end of a stream of choice 0.
pub fn end(id: &str, prompt: u32, completion: u32) -> String {
    event(id, "{\"finish_reason\":\"stop\",\"index\":0,\"delta\":{}}")
        + &event(id, "").replace(
            "\"object\"",
            &format!("\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion}}},\"object\""),
        )
        + "data: [DONE]\n\n"
}

const ROLE: &str = r#"{"role":"assistant","content":null}"#;

fn push(stream: &mut AnswerStream, out: &mut BytesMut, upstream: &str) {
    stream.push(upstream.as_bytes(), out).expect("sound");
}

fn part(content: &str, reasoning: &str, tokens: u32) -> CarryOn {
    CarryOn { choice: 0, content: content.into(), reasoning: reasoning.into(), tokens }
}

#[test]
fn a_continuation_is_not_noticed() {
    let mut stream = chat();
    let mut out = BytesMut::new();
    push(
        &mut stream,
        &mut out,
        &(delta("a", ROLE) + &delta("a", r#"{"content":" one\n"}"#) + &delta("a", r#"{"content":" two"}"#)),
    );
    assert_eq!(stream.carry_on(), Ok(part(r" one\n two", "", 2)));
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    let progress =
        delta("b", ROLE).replace("\"object\"", "\"prompt_progress\":{\"total\":19,\"processed\":3},\"object\"");
    let rest = progress + ": ping\n\n" + &delta("b", ROLE) + &delta("b", r#"{"content":" three"}"#) + &end("b", 19, 1);
    push(&mut stream, &mut out, &rest);
    let mut straight = BytesMut::new();
    let whole = delta("a", ROLE)
        + &[r" one\n", " two", " three"].map(|word| delta("a", &format!("{{\"content\":\"{word}\"}}"))).concat()
        + &end("a", 17, 3);
    push(&mut chat(), &mut straight, &whole);
    assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&straight));
}

#[test]
fn thoughts_and_text_are_carried_on_each_as_what_it_is() {
    let mut stream = chat();
    let mut out = BytesMut::new();
    push(&mut stream, &mut out, &delta("a", r#"{"reasoning_content":"h\u006d"}"#));
    assert_eq!(stream.carry_on(), Ok(part("", r"h\u006d", 1)));
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    push(&mut stream, &mut out, &(delta("b", r#"{"reasoning":", so"}"#) + &delta("b", r#"{"content":"It"}"#)));
    assert_eq!(stream.carry_on(), Ok(part("It", r"h\u006d, so", 3)));
    assert_eq!(stream.kept(), r"h\u006d, soIt".len());
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    push(&mut stream, &mut out, &(delta("c", r#"{"content":" is"}"#) + &end("c", 20, 1)));
    assert!(stream.is_complete());
    let events = data(&out);
    let all =
        |key: &str| events.iter().filter_map(|event| event["choices"][0]["delta"][key].as_str()).collect::<String>();
    assert_eq!(
        (all("reasoning_content"), all("reasoning"), all("content")),
        ("hm".into(), ", so".into(), "It is".into())
    );
}

#[test]
fn an_engines_repetition_of_the_text_is_dropped() {
    for (echo, new) in [
        (&[" one\\n two three"][..], " three"),
        (&[" one\\u000a two", " three"], " three"),
        (&[" three"], " three"),
        (&[" one", " more"], " one more"),
    ] {
        let mut stream = chat();
        let mut out = BytesMut::new();
        push(&mut stream, &mut out, &(delta("a", r#"{"content":" one\n"}"#) + &delta("a", r#"{"content":" two"}"#)));
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        out.clear();
        for text in echo {
            push(&mut stream, &mut out, &delta("b", &format!("{{\"content\":\"{text}\"}}")));
        }
        let text: String =
            data(&out).iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, new, "{echo:?}");
        assert!(data(&out).iter().all(|event| event["choices"][0]["delta"]["content"] != ""), "nothing empty goes out");
    }
}

#[test]
fn a_repetition_that_breaks_off_is_new_text_after_all() {
    let known = "0123456789".repeat(20);
    for finish in [true, false] {
        let mut stream = chat();
        let mut out = BytesMut::new();
        push(&mut stream, &mut out, &delta("a", &format!("{{\"content\":\"{known}\"}}")));
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        out.clear();
        let step = stream.push(delta("b", r#"{"content":"01234"}"#).as_bytes(), &mut out).expect("sound");
        assert!(out.is_empty() && step.content_events == 0 && step.data_events == 1, "not yet known");
        let rest = if finish { end("b", 9, 1) } else { delta("b", r#"{"content":"x"}"#) };
        push(&mut stream, &mut out, &rest);
        let text: String =
            data(&out).iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, if finish { "01234" } else { "01234x" });
        assert_eq!(data(&out)[0]["choices"][0]["index"], 0);
    }
}

/// Two choices of which the first has ended and the second has said `b`.
fn one_of_two(out: &mut BytesMut) -> AnswerStream {
    let mut stream = chat();
    for (index, rest) in [
        (0, r#""delta":{"content":"a"}"#),
        (1, r#""delta":{"content":"b"}"#),
        (0, r#""delta":{},"finish_reason":"stop""#),
    ] {
        push(&mut stream, out, &event("a", &format!("{{\"index\":{index},{rest}}}")));
    }
    stream
}

#[test]
fn each_choice_that_is_not_finished_gets_an_attempt_of_its_own() {
    let mut stream = chat();
    let mut out = BytesMut::new();
    for index in [1, 2, 0] {
        push(
            &mut stream,
            &mut out,
            &event("a", &format!("{{\"index\":{index},\"delta\":{{\"content\":\"{index}\"}}}}")),
        );
    }
    for (choice, over) in [(0, true), (1, true), (2, false)] {
        assert_eq!(stream.carry_on(), Ok(CarryOn { choice, ..part(&choice.to_string(), "", 1) }));
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        assert!(!stream.leg_is_over());
        let rest = delta("b", ROLE) + &delta("b", r#"{"content":"+"}"#) + &end("b", 6, 1);
        let finish = rest.find("data: [DONE]").expect("done");
        let step = stream.push(&rest.as_bytes()[..finish], &mut out).expect("sound");
        assert!(!step.complete && !stream.leg_is_over(), "its usage may still come");
        let step = stream.push(&rest.as_bytes()[finish..], &mut out).expect("sound");
        assert_eq!((step.complete, stream.leg_is_over(), stream.is_complete()), (!over, over, !over));
        push(&mut stream, &mut out, "data: of no more use\n\n");
    }
    let events = data(&out);
    for choice in 0..3 {
        let of = || events.iter().map(|event| &event["choices"][0]).filter(|seen| seen["index"] == choice);
        let text: String = of().filter_map(|seen| seen["delta"]["content"].as_str()).collect();
        assert_eq!(text, format!("{choice}+"));
        assert_eq!(of().filter(|seen| seen["finish_reason"] == "stop").count(), 1);
        assert_eq!(of().filter(|seen| !seen["delta"]["role"].is_null()).count(), 1);
    }
    let [.., usage, done] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&usage["usage"]["completion_tokens"], &usage["usage"]["prompt_tokens"]), (&json!(6), &json!(5)));
    assert_eq!(done, "[DONE]");
    assert_eq!(events.iter().filter(|event| **event == "[DONE]").count(), 1);
}

#[test]
fn a_choice_without_a_word_is_asked_for_anew_where_another_has_spoken() {
    let mut stream = chat();
    let mut out = BytesMut::new();
    push(&mut stream, &mut out, &event("a", &format!("{{\"index\":0,\"delta\":{ROLE}}}")));
    assert_eq!(stream.carry_on(), Err(Obstacle::Nothing), "a role alone is nothing");
    push(&mut stream, &mut out, &event("a", "{\"index\":1,\"delta\":{\"content\":\"b\"}}"));
    assert_eq!(stream.carry_on(), Ok(part("", "", 0)));
}

#[test]
fn an_attempt_may_end_without_its_mark_and_may_not_end_without_a_finish_reason() {
    for (finished, mark) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut out = BytesMut::new();
        let mut stream = one_of_two(&mut out);
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        let reason = if finished { "\"stop\"" } else { "null" };
        push(
            &mut stream,
            &mut out,
            &event("b", &format!("{{\"index\":0,\"delta\":{{\"content\":\"c\"}},\"finish_reason\":{reason}}}")),
        );
        let result = if mark { stream.push(b"data: [DONE]\n\n", &mut out).map(drop) } else { stream.end(&mut out) };
        assert_eq!((result.is_ok(), stream.is_complete()), (finished, finished));
        if !finished {
            assert_eq!(result, Err(StreamError::Cut));
            assert_eq!(stream.carry_on(), Ok(CarryOn { choice: 1, ..part("bc", "", 2) }));
        }
    }
}

#[test]
fn a_continuation_has_one_choice() {
    let mut out = BytesMut::new();
    let mut stream = one_of_two(&mut out);
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    let result = stream.push(event("b", "{\"index\":1,\"delta\":{\"content\":\"c\"}}").as_bytes(), &mut out);
    let flaw = Flaw::Expected("the index of a choice that was asked for");
    assert_eq!(result, Err(StreamError::Malformed { flaw }));
    let far = chat().push(event("b", "{\"index\":128,\"delta\":{\"content\":\"c\"}}").as_bytes(), &mut out);
    assert_eq!(far, Err(StreamError::Malformed { flaw }), "no request asks for that many");
}

#[test]
fn what_an_engine_does_behind_a_whole_answer_is_no_failure() {
    let whole = delta("a", r#"{"content":"x"}"#) + &event("a", "{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}");
    for nonsense in ["data: {\"error\":{\"code\":500,\"message\":\"late\"}}\n\n", "data: {\n\n", "data: \u{fffd}\n\n"] {
        let mut out = BytesMut::new();
        let step = chat().push((whole.clone() + nonsense).as_bytes(), &mut out).expect(nonsense);
        assert!(step.complete);
        assert_eq!(data(&out).last(), Some(&json!("[DONE]")));
    }
    let mut stream = chat().with_event_limit(1000);
    let mut out = BytesMut::new();
    push(&mut stream, &mut out, &whole);
    assert!(stream.push(&[b'x'; 2000], &mut out).expect("whole").complete);
}

#[test]
fn tokens_are_added_up_and_an_estimate_is_called_one() {
    let progress = |id: &str, total: u32| {
        delta(id, ROLE).replace(
            "\"object\"",
            &format!("\"prompt_progress\":{{\"total\":{total},\"processed\":{total},\"cache\":9}},\"object\""),
        )
    };
    let timed = |id: &str, n: u32| {
        delta(id, "{\"content\":\"x\"}").replace(
            "\"object\"",
            &format!("\"timings\":{{\"cache_n\":2,\"prompt_n\":15,\"predicted_n\":{n}}},\"object\""),
        )
    };
    let usage =
        |prompt_tokens, completion_tokens, cached_tokens| Usage { prompt_tokens, completion_tokens, cached_tokens };
    // The first attempt, tokens counted by the caller, and then usage of a continuation that read 30 and wrote 4.
    for (first, counted, usage, estimated) in [
        (delta("a", r#"{"content":"x"}"#).repeat(5), None, usage(25, 9, 0), true),
        (delta("a", r#"{"content":"x"}"#).repeat(5), Some(7), usage(23, 11, 0), false),
        (progress("a", 17) + &delta("a", r#"{"content":"x"}"#).repeat(5), None, usage(17, 9, 9), true),
        (progress("a", 17) + &delta("a", r#"{"content":"x"}"#).repeat(5), Some(7), usage(17, 11, 9), false),
        (timed("a", 1) + &timed("a", 6), None, usage(17, 10, 2), false),
        (timed("a", 1) + &timed("a", 6), Some(7), usage(17, 11, 2), false),
    ] {
        let mut stream = chat();
        let mut out = BytesMut::new();
        push(&mut stream, &mut out, &first);
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        if let Some(tokens) = counted {
            stream.carried_tokens(tokens);
        }
        push(&mut stream, &mut out, &(delta("b", r#"{"content":" and the rest"}"#) + &end("b", 30, 4)));
        assert_eq!((stream.usage(), stream.usage_estimated()), (Some(usage), estimated), "{first}, {counted:?}");
    }
}

#[test]
fn one_attempt_without_a_count_makes_the_sum_an_estimate() {
    let mut stream = chat();
    let mut out = BytesMut::new();
    for replica in ["a", "b", "c"] {
        push(&mut stream, &mut out, &delta(replica, &format!("{{\"content\":\" {replica}\"}}")));
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        if replica == "a" {
            stream.carried_tokens(4);
        }
    }
    push(&mut stream, &mut out, &(delta("d", r#"{"content":"d"}"#) + &end("d", 9, 1)));
    assert_eq!(stream.usage(), Some(Usage { prompt_tokens: 3, completion_tokens: 7, cached_tokens: 0 }));
    assert!(stream.usage_estimated());
}

#[test]
fn a_count_of_tokens_is_carried_on_where_the_engine_gives_one() {
    let mut stream = chat();
    let mut out = BytesMut::new();
    let timed = delta("a", "{\"content\":\"x\"}")
        .replace("\"object\"", "\"timings\":{\"prompt_n\":15,\"predicted_n\":6},\"object\"");
    push(&mut stream, &mut out, &timed);
    assert_eq!(stream.carry_on(), Ok(part("x", "", 6)));
    stream.begin_attempt(Leg::CarryOn, Engine { counts: false, obeys: true });
    push(&mut stream, &mut out, &timed.replace("\"x\"", "\"y\""));
    assert_eq!(stream.carry_on(), Ok(part("xy", "", 7)), "an engine whose counts are none is not believed");
}

#[test]
fn a_choice_with_all_its_tokens_is_ended_without_asking_for_more() {
    let more = delta("b", ROLE) + &delta("b", r#"{"content":" three"}"#);
    for (plain, counted, rest) in [
        (false, None, ""),
        (false, None, more.as_str()),
        (true, None, ""),
        (true, None, &more),
        (false, Some(3), &more),
    ] {
        let mut stream =
            AnswerStream::new(Route::ChatCompletions, StreamOptions { max_tokens: Some(2), plain, ..keeping() });
        let mut out = BytesMut::new();
        push(&mut stream, &mut out, &(delta("a", r#"{"content":"one"}"#) + &delta("a", r#"{"content":" two"}"#)));
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        counted.into_iter().for_each(|tokens| stream.carried_tokens(tokens));
        push(&mut stream, &mut out, rest);
        assert_eq!((stream.is_complete(), stream.end(&mut out)), (!rest.is_empty(), Ok(())));
        assert_eq!(stream.ended_here(), !rest.is_empty(), "the engine was not at its end");
        let said = if plain {
            let answer: Value = serde_json::from_slice(&stream.into_answer().body.to_bytes()).expect("json");
            (answer["choices"][0]["message"]["content"].clone(), answer["choices"][0]["finish_reason"].clone())
        } else {
            let events = data(&out);
            let choices = || events.iter().map(|event| &event["choices"][0]);
            let text: String = choices().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
            assert_eq!(events.last(), Some(&json!("[DONE]")));
            (
                text.into(),
                choices().map(|choice| &choice["finish_reason"]).filter(|reason| !reason.is_null()).cloned().collect(),
            )
        };
        let reason = if plain { json!("length") } else { json!(["length"]) };
        assert_eq!(said, (json!("one two"), reason));
    }
}

#[test]
fn of_several_choices_one_with_all_its_tokens_leaves_the_others_their_attempts() {
    let options = StreamOptions { max_tokens: Some(2), ..keeping() };
    let mut stream = AnswerStream::new(Route::ChatCompletions, options);
    let mut out = BytesMut::new();
    let of = |choice: u32, text: &str| {
        event("a", &format!("{{\"finish_reason\":null,\"index\":{choice},\"delta\":{{\"content\":\"{text}\"}}}}"))
    };
    push(&mut stream, &mut out, &(of(0, "one") + &of(0, " two") + &of(1, "eins")));
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    push(&mut stream, &mut out, &delta("b", r#"{"content":" three"}"#));
    assert!(stream.leg_is_over() && !stream.is_complete());
    assert_eq!(stream.carry_on().map(|part| (part.choice, part.content)), Ok((1, "eins".into())));
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    push(&mut stream, &mut out, &(delta("b", r#"{"content":" zwei"}"#) + &end("b", 9, 1)));
    assert!(stream.is_complete());
    let events = data(&out);
    let text = |index: u64| -> String {
        let own = events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
        own.filter_map(|choice| choice["delta"]["content"].as_str()).collect()
    };
    assert_eq!((text(0), text(1)), ("one two".into(), "eins zwei".into()));
}

#[test]
fn no_more_is_kept_than_is_allowed() {
    let word = delta("a", r#"{"content":"0123456789"}"#);
    let with = |max_kept| AnswerStream::new(Route::ChatCompletions, StreamOptions { max_kept, ..keeping() });
    let mut out = BytesMut::new();
    let mut none = with(0);
    assert_eq!(none.carry_on(), Err(Obstacle::Nothing));
    push(&mut none, &mut out, &word);
    assert_eq!((none.carry_on(), none.kept()), (Err(Obstacle::Unwanted), 0));
    let mut some = with(100);
    push(&mut some, &mut out, &word.repeat(10));
    assert_eq!((some.carry_on().map(|part| part.tokens), some.kept()), (Ok(10), 100));
    push(&mut some, &mut out, &word);
    assert_eq!((some.carry_on(), some.kept()), (Err(Obstacle::TooLong), 0));
    push(&mut some, &mut out, &(word.clone() + &end("a", 1, 12)));
    assert!(some.is_complete(), "the stream itself goes on");
    let mut crowded = with(100);
    push(&mut crowded, &mut out, &word);
    crowded.keep_no_more();
    push(&mut crowded, &mut out, &word);
    assert_eq!((crowded.carry_on(), crowded.kept()), (Err(Obstacle::TooLong), 0));
}

#[test]
fn what_can_not_be_carried_on_is_cut() {
    let mut out = BytesMut::new();
    for (seen, obstacle) in [
        (
            delta("a", r#"{"content":"I ask. "}"#) + &delta("a", r#"{"tool_calls":[{"index":0,"id":"c"}]}"#),
            Obstacle::ToolCall,
        ),
        (delta("a", r#"{"function_call":{"name":"f"}}"#), Obstacle::ToolCall),
        (delta("a", r#"{"refusal":"I can't"}"#), Obstacle::ToolCall),
    ] {
        let mut stream = chat();
        push(&mut stream, &mut out, &seen);
        assert_eq!((stream.carry_on(), stream.kept()), (Err(obstacle), 0));
        for leg in [Leg::CarryOn, Leg::Anew] {
            stream.begin_attempt(leg, Engine::default());
            let result = stream.push(delta("b", r#"{"content":"x"}"#).as_bytes(), &mut out);
            assert_eq!(result, Err(StreamError::Cut), "{leg:?}: the client would see another answer");
        }
    }
}

#[test]
fn two_copies_of_a_continuation_are_two_streams() {
    let mut first = chat();
    let mut out = BytesMut::new();
    push(&mut first, &mut out, &delta("a", r#"{"content":"one"}"#));
    first.begin_attempt(Leg::CarryOn, Engine::default());
    let mut second = first.clone();
    let (mut left, mut right) = (out.clone(), out);
    push(&mut first, &mut left, &(delta("b", r#"{"content":" two"}"#) + &end("b", 4, 1)));
    push(&mut second, &mut right, &delta("c", r#"{"content":" 2"}"#));
    assert!(first.is_complete() && !second.is_complete());
    assert_eq!(second.carry_on(), Ok(part("one 2", "", 2)));
    push(&mut second, &mut right, &end("c", 4, 1));
    assert_eq!(data(&left).len(), data(&right).len());
}

#[test]
fn completions_are_carried_on_like_chats() {
    let text = |text: &str, finish: &str| {
        format!(
            "data: {{\"choices\":[{{\"text\":\"{text}\",\"index\":0,\"logprobs\":null,\"finish_reason\":{finish}}}],\"id\":\"a\",\"object\":\"text_completion\"}}\n\n"
        )
    };
    let mut stream = AnswerStream::new(Route::Completions, keeping());
    let mut out = BytesMut::new();
    push(&mut stream, &mut out, &(text(" one", "null") + &text(" two", "null")));
    assert_eq!(stream.carry_on(), Ok(part(" one two", "", 2)));
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    push(&mut stream, &mut out, &(text(" one two three", "null") + &text("", "\"stop\"") + "data: [DONE]\n\n"));
    let events = data(&out);
    let all: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!((all.as_str(), events.last()), (" one two three", Some(&Value::from("[DONE]"))));
}
