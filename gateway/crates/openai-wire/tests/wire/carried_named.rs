//! Messages and responses that one replica breaks off and another carries on: their clients read one stream.
//!
//! The streams are those of `plain_named`, recorded from a real engine; `recorded/*.rest` is what the engine then wrote when it
//! was given the beginning: 4 tokens of `text`, 3 of `thoughts`, 2 of `call`. A response is carried on as a chat.

use crate::named_ends::{rest_of, told};
use crate::named_streams::events;
use crate::plain_named::{MESSAGES, RESPONSES, body, settle};
use bytes::BytesMut;
use openai_wire::{AnswerStream, CarryOn, Engine, ErrorBody, Leg, Obstacle, Route, StreamError, StreamOptions};
use proptest::prelude::*;
use serde_json::{Value, json};

const ROUTES: [Route; 2] = [Route::Messages, Route::Responses];

pub fn options() -> StreamOptions {
    StreamOptions { model: "asked".into(), max_kept: 1 << 20, hold_tool_calls: true, ..StreamOptions::default() }
}

fn recorded(route: Route) -> [(&'static str, &'static str); 3] {
    let rests = match route {
        Route::Messages => [
            include_str!("recorded/message_text.rest"),
            include_str!("recorded/message_thoughts.rest"),
            include_str!("recorded/message_call.rest"),
        ],
        _ => [
            include_str!("recorded/response_text.rest"),
            include_str!("recorded/response_thoughts.rest"),
            include_str!("recorded/response_call.rest"),
        ],
    };
    let pairs = if route == Route::Messages { MESSAGES } else { RESPONSES };
    [0, 1, 2].map(|n| (pairs[n].0, rests[n]))
}

/// Where the events with content end.
fn content_ends(upstream: &str) -> Vec<usize> {
    let mut at = 0;
    let ends = upstream.split_inclusive("\n\n").map(|event| {
        at += event.len();
        (event, at)
    });
    let is_content = |event: &str| {
        ["text_delta", "thinking_delta", "input_json_delta", "_text.delta", "arguments.delta"]
            .iter()
            .any(|name| event.contains(&format!("{name}\"")))
    };
    ends.filter(|(event, _)| is_content(event)).map(|(_, end)| end).collect()
}

/// An answer of two replicas: the first one's bytes end at `cut`. What went out before the seam, the part, and all of it.
fn carried(
    route: Route,
    options: StreamOptions,
    first: &str,
    cut: usize,
    rest: &str,
) -> (Vec<u8>, CarryOn, AnswerStream, Vec<u8>) {
    let mut stream = AnswerStream::new(route, options);
    let mut out = BytesMut::new();
    stream.push(&first.as_bytes()[..cut], &mut out).expect("sound");
    assert_eq!(stream.end(&mut out), Err(StreamError::Cut));
    let before = out.to_vec();
    let part = stream.carry_on().expect("can be carried on");
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    for piece in rest.as_bytes().chunks(13) {
        stream.push(piece, &mut out).expect("sound");
    }
    assert_eq!(stream.end(&mut out), Ok(()));
    (before, part, stream, out.to_vec())
}

/// The client's stream of an answer that nothing happened to.
fn uncut(route: Route, upstream: &str) -> Value {
    let mut out = BytesMut::new();
    AnswerStream::new(route, options()).push(upstream.as_bytes(), &mut out).expect("sound");
    told(route, &out)
}

fn same(mut ours: Value, mut theirs: Value) {
    for answer in [&mut ours, &mut theirs] {
        settle(answer);
        // A second replica may have had more of the prompt in its cache.
        let usage = answer["usage"].as_object_mut().expect("usage");
        usage.remove("input_tokens_details");
    }
    assert_eq!(ours, theirs);
}

#[test]
fn what_two_replicas_write_reads_as_if_one_had_written_it() {
    for route in ROUTES {
        for ((upstream, rest), tokens) in recorded(route).into_iter().zip([4, 3, 2]) {
            let cut = content_ends(upstream)[tokens - 1];
            let (before, part, stream, out) = carried(route, options(), upstream, cut, rest);
            assert!(out.starts_with(&before) && stream.content_sent());
            assert_eq!((part.choice, part.tokens), (0, tokens as u32));
            same(told(route, &out), uncut(route, upstream));
            let plain = StreamOptions { plain: true, ..options() };
            let (_, part_of_plain, stream, out) = carried(route, plain, upstream, cut, rest);
            assert!(out.is_empty() && part_of_plain == part);
            let mut whole = uncut(route, upstream);
            whole["model"] = json!("asked");
            same(body(stream), whole);
        }
    }
}

#[test]
fn ids_and_times_are_the_first_replicas() {
    for route in ROUTES {
        let (upstream, rest) = recorded(route)[1];
        let (_, _, _, out) = carried(route, options(), upstream, content_ends(upstream)[2], rest);
        let (ours, theirs) = (told(route, &out), uncut(route, upstream));
        assert_eq!(ours["id"], theirs["id"]);
        assert_eq!(ours["model"], "asked");
        if route == Route::Responses {
            let id = ours["id"].as_str().and_then(|id| id.strip_prefix("resp_")).expect("an id");
            assert_eq!(ours["output"][0]["id"], theirs["output"][0]["id"]);
            assert_eq!(ours["output"][1]["id"], format!("msg_{id}_1"), "a new item's id is made of the response's");
            assert!(ours["created_at"].as_u64() > Some(0));
        }
    }
}

#[test]
fn wherever_it_breaks_off_the_answer_reads_on() {
    for route in ROUTES {
        for (upstream, _) in &recorded(route)[..2] {
            let whole = uncut(route, upstream);
            let prompt = whole_prompt(&whole);
            let mut carried_on = 0;
            // Behind every event, and at odd places inside of them.
            let ends = upstream.match_indices("\n\n").map(|(at, _)| at + 2);
            for cut in ends.chain((0..upstream.len()).step_by(29)) {
                for plain in [false, true] {
                    let options = StreamOptions { plain, ..options() };
                    let mut stream = AnswerStream::new(route, options);
                    let mut out = BytesMut::new();
                    stream.push(&upstream.as_bytes()[..cut], &mut out).expect("sound");
                    if stream.end(&mut out).is_ok() {
                        continue;
                    }
                    let leg = stream.carry_on();
                    let rest = match &leg {
                        Ok(part) => rest_of(route, upstream, part, prompt),
                        Err(Obstacle::Nothing) => (*upstream).to_owned(),
                        Err(other) => panic!("{other:?} at {cut}"),
                    };
                    assert_eq!(leg.is_err(), out.is_empty() && !(plain && leg.is_ok()), "at {cut}");
                    stream.begin_attempt(if leg.is_ok() { Leg::CarryOn } else { Leg::Anew }, Engine::default());
                    stream.push(rest.as_bytes(), &mut out).expect("sound");
                    assert_eq!(stream.end(&mut out), Ok(()), "at {cut}");
                    carried_on += u32::from(leg.is_ok());
                    // Of the tokens before the seam only those are known that came as events: `</think>` did not.
                    let events = content_ends(upstream).len() as u64;
                    let tokens = if leg.is_ok() { Some(events) } else { whole["usage"]["output_tokens"].as_u64() };
                    let usage = stream.usage().expect("counted");
                    assert_eq!((usage.prompt_tokens, Some(usage.completion_tokens)), (prompt, tokens), "at {cut}");
                    let mut ours = if plain { body(stream) } else { told(route, &out) };
                    let mut theirs = whole.clone();
                    for answer in [&mut ours, &mut theirs] {
                        answer["usage"] = json!({});
                    }
                    same(ours, theirs);
                }
            }
            assert!(carried_on > 50, "most places are behind the first word");
        }
    }
}

fn whole_prompt(answer: &Value) -> u64 {
    let usage = &answer["usage"];
    usage["input_tokens"].as_u64().expect("a count") + usage["cache_read_input_tokens"].as_u64().unwrap_or(0)
}

/// What the client gets of an answer that breaks off twice, and how many bytes are kept of it.
fn twice_broken(
    route: Route,
    upstream: &str,
    seams: [usize; 2],
    size: usize,
    hold_tool_calls: bool,
) -> (Vec<u8>, Vec<u64>) {
    let mut stream = AnswerStream::new(route, StreamOptions { hold_tool_calls, ..options() });
    let (mut out, mut counts) = (BytesMut::new(), Vec::new());
    let mut next = upstream.to_owned();
    for seam in seams.into_iter().chain([usize::MAX]) {
        for piece in next.as_bytes()[..seam.min(next.len())].chunks(size) {
            let _end_comes_first = stream.push(piece, &mut out).expect("sound");
        }
        if stream.end(&mut out).is_ok() {
            break;
        }
        let leg = match stream.carry_on() {
            Ok(part) => {
                next = rest_of(route, upstream, &part, 20);
                Leg::CarryOn
            }
            Err(Obstacle::Nothing) => {
                next = upstream.to_owned();
                Leg::Anew
            }
            Err(_) => return (out.to_vec(), counts),
        };
        counts.extend([stream.content_events(), stream.kept() as u64]);
        stream.begin_attempt(leg, Engine::default());
    }
    assert!(stream.is_complete());
    told(route, &out);
    (out.to_vec(), counts)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn seams_and_reads_anywhere_change_nothing(
        which in 0..6_usize, first: prop::sample::Index, second: prop::sample::Index, size in 1..300_usize, hold: bool,
    ) {
        let route = ROUTES[which % 2];
        let (upstream, _) = recorded(route)[which / 2];
        let seams = [first.index(upstream.len()), second.index(upstream.len())];
        let whole = twice_broken(route, upstream, seams, usize::MAX, hold);
        prop_assert_eq!(twice_broken(route, upstream, seams, size, hold), whole);
    }
}

/// The first events of a message: its opening, a thought, and of a text these pieces.
fn begun(texts: &[&str]) -> String {
    let mut events = concat!(
        "data: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[],\"model\":\"t\",\"usage\":{\"input_tokens\":5}}}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
    )
    .to_owned();
    for text in texts {
        events += &text_delta(text);
    }
    events
}

fn text_delta(text: &str) -> String {
    format!("data: {}\n\n", json!({"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":text}}))
}

const STOP: &str = concat!(
    "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":1}}\n\n",
    "data: {\"type\":\"message_stop\"}\n\n",
);

fn text_after(first: &[&str], second: &[&str]) -> String {
    let mut stream = AnswerStream::new(Route::Messages, options());
    let mut out = BytesMut::new();
    stream.push(begun(first).as_bytes(), &mut out).expect("sound");
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    stream.push((begun(second) + STOP).as_bytes(), &mut out).expect("sound");
    told(Route::Messages, &out)["content"][0]["text"].as_str().expect("text").to_owned()
}

#[test]
fn an_echo_of_the_text_is_not_written_twice() {
    let long = "A sentence that is long enough to be known again piece by piece, since no model that is in its senses begins an answer with it twice. ";
    assert_eq!(text_after(&["On", "e"], &["One", " two"]), "One two");
    assert_eq!(text_after(&["On", "e"], &["One two"]), "One two");
    assert_eq!(text_after(&["1"], &["1", "2"]), "112", "one token may come again");
    let (head, tail) = long.split_at(50);
    assert_eq!(text_after(&[head, tail], &[&head[..9], &head[9..], tail, "End"]), format!("{long}End"));
    assert_eq!(text_after(&[head, tail], &[head, "but"]), format!("{long}{head}but"), "it was none");
    assert_eq!(text_after(&[head, tail], &[head]), format!("{long}{head}"), "it was none, and the end");
}

/// A stream that has broken off after this.
fn broken_off(route: Route, options: StreamOptions, upstream: &str) -> AnswerStream {
    let mut stream = AnswerStream::new(route, options);
    stream.push(upstream.as_bytes(), &mut BytesMut::new()).expect("sound");
    stream
}

#[test]
fn a_call_is_held_until_the_answer_is_whole_or_can_not_be_carried_on() {
    for route in ROUTES {
        let (upstream, _) = recorded(route)[2];
        let ends = content_ends(upstream);
        let call = ends[5];
        let mut held = broken_off(route, options(), &upstream[..call]);
        let part = held.carry_on().expect("from the text before the call");
        assert_eq!((part.content.as_str(), part.tokens), ("world say picture me", 4));
        assert!(held.kept() > part.content.len());
        let mut out = BytesMut::new();
        held.push(&upstream.as_bytes()[call..], &mut out).expect("sound");
        assert!(
            events(&out)
                .iter()
                .any(|event| event.to_string().contains("tool_use") || event.to_string().contains("function_call"))
        );

        let sent = StreamOptions { hold_tool_calls: false, ..options() };
        assert_eq!(broken_off(route, sent, &upstream[..call]).carry_on(), Err(Obstacle::ToolCall));
        held = broken_off(route, options(), &upstream[..call]);
        held.keep_no_more();
        held.push(&upstream.as_bytes()[call..ends[6]], &mut out).expect("sound");
        assert_eq!(held.carry_on(), Err(Obstacle::ToolCall), "there was no room to hold it");
    }
}

#[test]
fn what_is_held_has_no_numbers_yet() {
    let (upstream, _) = recorded(Route::Responses)[2];
    let ends = content_ends(upstream);
    let call = upstream[..ends[4]].rfind("event: response.output_item.added").expect("a call");
    let calls = upstream[call..ends[6]].to_owned();
    let second = calls.replace("\"fc_", "\"fc_2");
    let mut stream = AnswerStream::new(Route::Responses, options());
    let mut out = BytesMut::new();
    stream.push((upstream[..call].to_owned() + &calls + &second).as_bytes(), &mut out).expect("sound");
    let sent = events(&out).len();
    let error = ErrorBody { message: "lost".into(), kind: "server_error", param: None, code: None };
    assert_eq!(events(&stream.error_event(&error))[0]["sequence_number"], sent);
    let part = stream.carry_on().expect("from the text before the calls");
    stream.begin_attempt(Leg::CarryOn, Engine::default());
    stream.push(rest_of(Route::Responses, upstream, &part, 20).as_bytes(), &mut out).expect("sound");
    told(Route::Responses, &out);
}

#[test]
fn an_answer_that_is_not_kept_can_not_be_carried_on() {
    for route in ROUTES {
        let (upstream, _) = recorded(route)[0];
        let upstream = &upstream[..content_ends(upstream)[4]];
        for (max_kept, obstacle) in [(0, Obstacle::Unwanted), (8, Obstacle::TooLong)] {
            let mut stream = broken_off(route, StreamOptions { max_kept, ..options() }, upstream);
            assert_eq!((stream.carry_on(), stream.kept() < 200), (Err(obstacle), true), "{route:?}");
            stream.begin_attempt(Leg::CarryOn, Engine::default());
            assert_eq!(stream.push(upstream.as_bytes(), &mut BytesMut::new()), Err(StreamError::Cut));
        }
        let mut stream = broken_off(route, options(), upstream);
        stream.keep_no_more();
        assert_eq!(stream.carry_on(), Err(Obstacle::TooLong));
    }
}

#[test]
fn an_answer_with_all_its_tokens_is_ended_without_asking_for_more() {
    for route in ROUTES {
        let (upstream, rest) = recorded(route)[0];
        let cut = *content_ends(upstream).last().expect("content");
        for first_bytes in [0, rest.find("\n\n").expect("an event") + 2] {
            let mut stream = AnswerStream::new(route, StreamOptions { max_tokens: Some(9), ..options() });
            let mut out = BytesMut::new();
            stream.push(&upstream.as_bytes()[..cut], &mut out).expect("sound");
            stream.begin_attempt(Leg::CarryOn, Engine::default());
            stream.push(&rest.as_bytes()[..first_bytes], &mut out).expect("sound");
            assert_eq!((stream.is_complete(), stream.end(&mut out)), (first_bytes > 0, Ok(())));
            assert_eq!(stream.ended_here(), first_bytes > 0, "the engine was not at its end");
            let (mut ours, mut theirs) = (told(route, &out), uncut(route, upstream));
            for answer in [&mut ours, &mut theirs] {
                assert_eq!(answer["usage"]["output_tokens"], 9);
                answer["usage"] = json!({});
            }
            if route == Route::Responses {
                theirs["created_at"] = ours["created_at"].clone();
                theirs["completed_at"] = ours["completed_at"].clone();
            }
            same(ours, theirs);
        }
    }
}

#[test]
fn a_carried_answer_ends_only_with_a_finish_reason() {
    for route in ROUTES {
        let (upstream, rest) = recorded(route)[0];
        let cut = content_ends(upstream)[3];
        let finish = if route == Route::Messages { "event: message_delta" } else { "\"finish_reason\":\"length\"" };
        let end = rest.find(finish).and_then(|at| rest[..at].rfind("\n\n")).expect("finish") + 2;
        let mut stream = broken_off(route, options(), &upstream[..cut]);
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        let mut out = BytesMut::new();
        stream.push(&rest.as_bytes()[..end], &mut out).expect("sound");
        assert_eq!(stream.end(&mut out), Err(StreamError::Cut));
        let part = stream.carry_on().expect("a third replica can carry it on");
        assert_eq!((part.content.as_str(), part.tokens), (" only from go only only must little only must", 9));
        stream.begin_attempt(Leg::CarryOn, Engine::default());
        let error = if route == Route::Messages {
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"x\"}}\n\n"
        } else {
            "data: {\"error\":{\"code\":500,\"message\":\"x\"}}\n\n"
        };
        let result = stream.push(error.as_bytes(), &mut out);
        assert!(matches!(result, Err(StreamError::Upstream(_))), "{result:?}");
    }
}

#[test]
fn a_message_ends_at_its_limits_though_the_engine_writes_on() {
    const MNN: Engine = Engine { counts: false, obeys: false };
    for (max_tokens, stop, text, reason, sequence, tokens) in [
        (Some(2), None, "one two", "max_tokens", Value::Null, 2),
        (None, Some("wo th"), "one t", "stop_sequence", json!("wo th"), 3),
        (Some(9), Some("four and"), "one two three four", "end_turn", Value::Null, 4),
    ] {
        let stop = stop.map(str::to_owned).into_iter().collect();
        for plain in [false, true] {
            let options = StreamOptions { max_tokens, stop: Vec::clone(&stop), plain, ..options() };
            let mut stream = AnswerStream::new(Route::Messages, options);
            let mut out = BytesMut::new();
            stream.begin_attempt(Leg::Anew, MNN);
            let upstream = begun(&["one", " two", " three", " four"]) + STOP;
            assert!(stream.push(upstream.as_bytes(), &mut out).expect("sound").complete);
            let answer = if plain { body(stream) } else { told(Route::Messages, &out) };
            assert_eq!((&answer["content"][0]["text"], &answer["stop_reason"]), (&json!(text), &json!(reason)));
            assert_eq!((&answer["stop_sequence"], &answer["usage"]["output_tokens"]), (&sequence, &json!(tokens)));
        }
    }
}
