//! Tool calls that are held back until they are whole.

use crate::carried_chats::{delta, end, event, keeping};
use crate::chat_streams::data;
use bytes::BytesMut;
use openai_wire::{AnswerStream, CarryOn, Engine, Leg, Obstacle, Route, StreamOptions};
use serde_json::{Value, json};

fn holding() -> AnswerStream {
    AnswerStream::new(Route::ChatCompletions, StreamOptions { hold_tool_calls: true, ..keeping() })
}

fn push(stream: &mut AnswerStream, out: &mut BytesMut, upstream: &str) -> u32 {
    stream.push(upstream.as_bytes(), out).expect("sound").content_events
}

fn call(id: &str, arguments: &str) -> String {
    let piece =
        json!({"tool_calls":[{"index":0,"id":format!("call-{id}"),"function":{"name":"f","arguments":arguments}}]});
    delta(id, &piece.to_string())
}

fn called(id: &str) -> String {
    end(id, 20, 5).replace("\"stop\"", "\"tool_calls\"")
}

/// Everything that the events say of their deltas, joined.
fn told(events: &[Value], pointer: &str) -> String {
    events.iter().filter_map(|event| event.pointer(&format!("/choices/0/delta{pointer}"))?.as_str()).collect()
}

#[test]
fn a_call_goes_out_in_one_go_and_is_the_one_that_came() {
    let upstream =
        [delta("a", r#"{"role":"assistant","content":null}"#), delta("a", r#"{"content":"I ask. "}"#)].concat();
    let calls = [call("a", "{"), call("a", "}"), delta("a", r#"{"content":"done"}"#)];
    let (mut held, mut straight) = (holding(), AnswerStream::new(Route::ChatCompletions, keeping()));
    let (mut out, mut expected) = (BytesMut::new(), BytesMut::new());
    assert_eq!(push(&mut held, &mut out, &upstream), 1);
    let text = out.len();
    for piece in &calls {
        assert_eq!(push(&mut held, &mut out, piece), 1, "it is content all the same");
        assert_eq!(out.len(), text, "and waits");
    }
    assert!(held.kept() > calls.concat().len() / 2);
    let finish = called("a");
    let (reason, rest) = finish.split_at(finish.find("\n\n").expect("event") + 2);
    push(&mut held, &mut out, reason);
    let all = String::from_utf8(out.to_vec()).expect("utf-8");
    assert!(all.ends_with("\n\n") && all.contains("tool_calls") && all.contains("\"finish_reason\":\"tool_calls\""));
    push(&mut held, &mut out, rest);
    push(&mut straight, &mut expected, &(upstream + &calls.concat() + &finish));
    assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&expected));
}

#[test]
fn a_half_call_is_forgotten_and_its_answer_carried_on_from_the_text_before_it() {
    for behind in ["", "text after it"] {
        let mut stream = holding();
        let mut out = BytesMut::new();
        let text = delta("a", r#"{"reasoning_content":"hm"}"#) + &delta("a", r#"{"content":"I ask. "}"#);
        push(
            &mut stream,
            &mut out,
            &(text + &call("a", "{\"lost\"") + &delta("a", &format!("{{\"content\":\"{behind}\"}}"))),
        );
        let before = CarryOn { choice: 0, content: "I ask. ".into(), reasoning: "hm".into(), tokens: 2 };
        assert_eq!(stream.carry_on(), Ok(before.clone()));
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        assert_eq!(stream.carry_on(), Ok(before), "the held part is gone");
        push(&mut stream, &mut out, &(call("b", "{}") + &called("b")));
        let events = data(&out);
        assert_eq!((told(&events, "/content"), told(&events, "/reasoning_content")), ("I ask. ".into(), "hm".into()));
        assert_eq!(told(&events, "/tool_calls/0/id"), "call-b");
        assert_eq!(told(&events, "/tool_calls/0/function/arguments"), "{}");
        assert_eq!(events.iter().filter(|event| event["choices"][0]["delta"]["role"] == "assistant").count(), 1);
        let usage = stream.usage().expect("usage");
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (18, 7));
    }
}

#[test]
fn an_answer_that_begins_with_a_call_begins_anew_while_nothing_is_out() {
    let mut stream = holding();
    let mut out = BytesMut::new();
    assert_eq!(
        push(&mut stream, &mut out, &(delta("a", r#"{"role":"assistant","content":null}"#) + &call("a", "{"))),
        1
    );
    assert!(!stream.content_sent(), "a role is harmless to repeat");
    assert_eq!(stream.carry_on(), Err(Obstacle::Nothing));
    stream.begin_attempt(Leg::Anew, Engine::default());
    push(
        &mut stream,
        &mut out,
        &(delta("b", r#"{"role":"assistant","content":null}"#) + &call("b", "{}") + &called("b")),
    );
    let events = data(&out);
    assert_eq!(told(&events, "/tool_calls/0/function/arguments"), "{}");
    assert_eq!(told(&events, "/role"), "assistant");
    assert!(stream.content_sent() && stream.is_complete());
    assert_eq!(stream.usage().expect("usage").completion_tokens, 5);
}

#[test]
fn the_role_that_came_with_a_held_call_is_sent_with_the_next() {
    let mut stream = holding();
    let mut out = BytesMut::new();
    let call = |id: &str| delta(id, r#"{"role":"assistant","function_call":{"name":"f","arguments":"{}"}}"#);
    push(&mut stream, &mut out, &call("a"));
    assert!(out.is_empty());
    stream.begin_attempt(Leg::Anew, Engine::default());
    push(&mut stream, &mut out, &(call("b") + &called("b")));
    let events = data(&out);
    assert_eq!(
        (told(&events, "/role"), &events[0]["id"]),
        ("assistant".into(), &json!("b")),
        "nothing of the first was seen"
    );
}

#[test]
fn with_several_choices_calls_wait_for_all_of_them() {
    let mut stream = holding();
    let mut out = BytesMut::new();
    let of = |index: u32, rest: &str| event("a", &format!("{{\"index\":{index},{rest}}}"));
    push(&mut stream, &mut out, &(of(0, r#""delta":{"content":"A"}"#) + &of(1, r#""delta":{"content":"B"}"#)));
    let text = out.len();
    let call = of(0, r#""delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}"#);
    let held = call + &of(1, r#""delta":{"content":"b"}"#) + &of(0, r#""delta":{},"finish_reason":"tool_calls""#);
    push(&mut stream, &mut out, &held);
    assert_eq!(out.len(), text);
    assert_eq!(stream.carry_on().expect("text").content, "A", "its end has not been seen either");
    let broken = stream.clone();
    push(&mut stream, &mut out, &of(1, r#""delta":{},"finish_reason":"stop""#));
    assert_eq!(data(&out).len(), 6);
    assert_eq!(stream.end(&mut out), Ok(()));
    assert!(stream.is_complete());

    let mut stream = broken;
    let mut out = BytesMut::new();
    for (choice, content) in [(0, "A"), (1, "B")] {
        let part = CarryOn { choice, content: content.into(), tokens: 1, ..CarryOn::default() };
        assert_eq!(stream.carry_on(), Ok(part));
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        push(&mut stream, &mut out, &(delta("b", r#"{"content":"!"}"#) + &end("b", 9, 1)));
        assert_eq!(stream.leg_is_over(), choice == 0);
    }
    assert!(stream.is_complete());
}

#[test]
fn a_call_beyond_all_bounds_goes_out_as_it_comes() {
    let mut stream = holding();
    let mut out = BytesMut::new();
    let piece = call("a", &"x".repeat(100 * 1024));
    push(&mut stream, &mut out, &delta("a", r#"{"content":"I ask. "}"#));
    let text = out.len();
    let pieces = (1..100).find(|_| {
        push(&mut stream, &mut out, &piece);
        out.len() > text
    });
    assert_eq!(pieces, Some(11), "a mebibyte is held");
    assert_eq!((stream.carry_on(), stream.kept()), (Err(Obstacle::ToolCall), 0));
    let before = out.len();
    push(&mut stream, &mut out, &piece);
    assert!(out.len() > before, "from then on as if nothing were held");
    push(&mut stream, &mut out, &called("a"));
    assert_eq!(told(&data(&out), "/tool_calls/0/function/arguments").len(), 12 * 100 * 1024);
}

#[test]
fn a_held_call_goes_out_when_there_is_no_room_for_it() {
    let mut stream = holding();
    let mut out = BytesMut::new();
    push(&mut stream, &mut out, &call("a", "{"));
    stream.keep_no_more();
    push(&mut stream, &mut out, &call("a", "}"));
    assert_eq!(told(&data(&out), "/tool_calls/0/function/arguments"), "{}");
    assert_eq!((stream.carry_on(), stream.kept(), stream.content_sent()), (Err(Obstacle::ToolCall), 0, true));
}
