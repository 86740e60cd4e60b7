//! Streams with named events: the Responses API and Anthropic's messages.

use bytes::BytesMut;
use openai_wire::{AnswerStream, Engine, ErrorBody, Fault, Leg, Route, SseDecoder, StreamError, StreamOptions, Usage};
use serde_json::{Value, json};

fn new(route: Route) -> AnswerStream {
    AnswerStream::new(route, StreamOptions { model: "asked".into(), include_usage: false, ..StreamOptions::default() })
}

/// Names and data of all events; the name must repeat the data's type.
pub fn events(out: &[u8]) -> Vec<Value> {
    let mut decoder = SseDecoder::new();
    decoder.push(out);
    let mut found = Vec::new();
    while let Some(event) = decoder.next_event() {
        let event = event.expect("within bounds");
        let data: Value = serde_json::from_slice(event.data).expect("json");
        assert_eq!(event.name, data["type"].as_str().map(str::as_bytes));
        found.push(data);
    }
    found
}

const RESPONSES: &str = concat!(
    "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"object\":\"response\",\"status\":\"in_progress\"}}\n\n",
    "event: response.in_progress\ndata: {\"type\":\"response.in_progress\",\"response\":{\"id\":\"resp_1\",\"object\":\"response\",\"status\":\"in_progress\",\"model\":\"t\"}}\n\n",
    "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"reasoning\",\"id\":\"rs_1\"}}\n\n",
    "event: response.reasoning_text.delta\ndata: {\"type\":\"response.reasoning_text.delta\",\"delta\":\"hm\",\"item_id\":\"rs_1\"}\n\n",
    "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"message\",\"id\":\"msg_1\",\"content\":[]}}\n\n",
    "event: response.content_part.added\ndata: {\"type\":\"response.content_part.added\",\"item_id\":\"msg_1\",\"part\":{\"type\":\"output_text\",\"text\":\"\"}}\n\n",
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"item_id\":\"msg_1\",\"delta\":\"Hi\"}\n\n",
    "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"item_id\":\"msg_1\",\"text\":\"Hi\"}\n\n",
    "event: response.output_item.done\ndata: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"message\",\"id\":\"msg_1\"}}\n\n",
    "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"model\":\"t\",\"output\":[],\"usage\":{\"input_tokens\":9,\"output_tokens\":2,\"input_tokens_details\":{\"cached_tokens\":8}},\"timings\":{\"prompt_n\":1}}}\n\n",
);

#[test]
fn responses_get_the_numbers_that_sdks_find_parts_by() {
    let mut stream = new(Route::Responses);
    let mut out = BytesMut::new();
    let step = stream.push(RESPONSES.as_bytes(), &mut out).expect("sound");
    assert_eq!((step.content_events, step.data_events, step.complete), (2, 10, true));
    assert_eq!(stream.end(&mut out), Ok(()));
    let mut events = events(&out);
    assert_eq!(events.len(), 11);
    for (n, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], n);
    }
    assert_eq!(
        events[0]["response"],
        json!({"id":"resp_1","object":"response","status":"in_progress","model":"asked","output":[]})
    );
    let part = events.remove(3);
    assert_eq!(
        (&part["type"], &part["item_id"], &part["part"]),
        (&json!("response.content_part.added"), &json!("rs_1"), &json!({"type":"reasoning_text","text":""})),
        "thoughts are in a part that the engine does not begin"
    );
    assert_eq!((&part["output_index"], &part["content_index"]), (&json!(0), &json!(0)));
    assert_eq!((&events[2]["output_index"], &events[3]["output_index"]), (&json!(0), &json!(0)));
    assert_eq!(events[3]["content_index"], 0);
    for event in &events[4..9] {
        assert_eq!(event["output_index"], 1, "{event}");
    }
    for event in &events[5..8] {
        assert_eq!(event["content_index"], 0, "{event}");
    }
    assert_eq!(events[9]["response"]["model"], "asked");
    assert!(events[9]["response"].get("timings").is_none());
    assert_eq!(stream.usage(), Some(Usage { prompt_tokens: 9, completion_tokens: 2, cached_tokens: 8 }));
    assert!(!out.windows(6).any(|bytes| bytes == b"[DONE]"));
}

#[test]
fn given_indexes_stay_and_sequence_numbers_are_ours() {
    let upstream = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":41,\"output_index\":3,\"content_index\":2,\"item_id\":\"m\",\"delta\":\"x\"}\n\n";
    let mut out = BytesMut::new();
    new(Route::Responses).push(upstream.as_bytes(), &mut out).expect("sound");
    let event = &events(&out)[0];
    assert_eq!(
        (&event["sequence_number"], &event["output_index"], &event["content_index"]),
        (&json!(0), &json!(3), &json!(2))
    );
}

#[test]
fn a_response_that_dies_before_content_leaves_no_trace() {
    let mut stream = new(Route::Responses);
    let mut out = BytesMut::new();
    let scaffold = RESPONSES.find("event: response.reasoning_text.delta").expect("delta");
    stream.push(&RESPONSES.as_bytes()[..scaffold], &mut out).expect("sound");
    assert_eq!(stream.end(&mut out), Err(StreamError::Cut));
    assert!(out.is_empty() && !stream.content_sent());
    stream.begin_attempt(Leg::Anew, Engine::default());
    stream.push(RESPONSES.replace("resp_1", "resp_2").as_bytes(), &mut out).expect("sound");
    let events = events(&out);
    assert_eq!((events.len(), &events[0]["sequence_number"]), (11, &json!(0)));
    assert_eq!(events[0]["response"]["id"], "resp_2");
    stream.begin_attempt(Leg::Anew, Engine::default());
    assert!(stream.push(b"", &mut out).expect("complete").complete);
}

#[test]
fn responses_end_only_by_their_own_events() {
    let mut out = BytesMut::new();
    let mut stream = new(Route::Responses);
    let completed = RESPONSES.find("event: response.completed").expect("completed");
    stream.push(&RESPONSES.as_bytes()[..completed], &mut out).expect("sound");
    let error = ErrorBody { message: "lost".into(), kind: "server_error", param: None, code: None };
    let event = events(&stream.error_event(&error));
    assert_eq!(event[0]["sequence_number"], 10);
    assert_eq!(stream.end(&mut out), Err(StreamError::Cut));
    stream.begin_attempt(Leg::Anew, Engine::default());
    let again = stream.push(RESPONSES.as_bytes(), &mut out);
    assert_eq!(again, Err(StreamError::Cut), "a response that has begun cannot be continued");
    for end in ["response.incomplete", "response.failed"] {
        let mut stream = new(Route::Responses);
        stream.push(RESPONSES.replace("response.completed", end).as_bytes(), &mut out).expect("sound");
        assert!(stream.is_complete(), "{end}");
    }
}

#[test]
fn errors_in_named_streams_are_understood() {
    for (route, event, fault) in [
        (
            Route::Responses,
            "event: error\ndata: {\"type\":\"error\",\"code\":\"rate_limit_exceeded\",\"message\":\"x\"}\n\n",
            Fault::Busy,
        ),
        (Route::Responses, "data: {\"error\":{\"code\":500,\"message\":\"x\"}}\n\n", Fault::Engine),
        (
            Route::Responses,
            "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\",\"message\":\"x\"}}}\n\n",
            Fault::Engine,
        ),
        (
            Route::Messages,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n",
            Fault::Busy,
        ),
        (Route::Messages, "event: error\ndata: {\"error\":{\"code\":500,\"message\":\"x\"}}\n\n", Fault::Engine),
    ] {
        let mut out = BytesMut::new();
        let event = if event.contains("\"type\":\"") || event.contains("event:") {
            event.to_owned()
        } else {
            format!("event: error\n{event}")
        };
        match new(route).push(event.as_bytes(), &mut out) {
            Err(StreamError::Upstream(error)) => assert_eq!(error.fault, fault, "{event}"),
            other => panic!("{event}: {other:?}"),
        }
        assert!(out.is_empty());
    }
}

#[test]
fn an_event_type_cannot_smuggle_lines() {
    for kind in [r"x\ndata: {}", "x y", "", "é"] {
        let event = format!("data: {{\"type\":\"{kind}\",\"delta\":\"x\"}}\n\n");
        for route in [Route::Responses, Route::Messages] {
            let result = new(route).push(event.as_bytes(), &mut BytesMut::new());
            assert!(matches!(result, Err(StreamError::Malformed { .. })), "{kind:?}: {result:?}");
        }
    }
}

const MESSAGES: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"chatcmpl-1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"t\",\"stop_reason\":null,\"usage\":{\"input_tokens\":1,\"cache_read_input_tokens\":16,\"output_tokens\":0}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":2}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

#[test]
fn messages_carry_the_clients_model_and_count_both_parts_of_the_prompt() {
    let mut stream = new(Route::Messages);
    let mut out = BytesMut::new();
    let step = stream.push(MESSAGES.as_bytes(), &mut out).expect("sound");
    assert_eq!((step.content_events, step.data_events, step.complete), (2, 8, true));
    let events = events(&out);
    assert_eq!(events.len(), 7, "the replica's ping is not the client's");
    assert_eq!(events[0]["message"]["model"], "asked");
    assert_eq!(events[6]["type"], "message_stop");
    assert_eq!(stream.usage(), Some(Usage { prompt_tokens: 17, completion_tokens: 2, cached_tokens: 16 }));
}

#[test]
fn a_message_without_its_stop_event_is_whole_and_one_without_a_stop_reason_is_cut() {
    let stop = MESSAGES.find("event: message_stop").expect("stop");
    let reason = MESSAGES.find("event: message_delta").expect("reason");
    let mut out = BytesMut::new();
    let mut stream = new(Route::Messages);
    stream.push(&MESSAGES.as_bytes()[..stop], &mut out).expect("sound");
    assert_eq!(stream.end(&mut out), Ok(()));
    assert_eq!(events(&out).len(), 7);
    let mut stream = new(Route::Messages);
    stream.push(&MESSAGES.as_bytes()[..reason], &mut out).expect("sound");
    assert_eq!(stream.end(&mut out), Err(StreamError::Cut));
    let early = format!("{}{}", &MESSAGES[..reason], &MESSAGES[stop..]);
    assert_eq!(new(Route::Messages).push(early.as_bytes(), &mut out), Err(StreamError::Cut));
}

#[test]
fn a_message_that_dies_before_content_leaves_no_trace() {
    let mut stream = new(Route::Messages);
    let mut out = BytesMut::new();
    let content = MESSAGES.find("event: content_block_delta").expect("delta");
    stream.push(&MESSAGES.as_bytes()[..content], &mut out).expect("sound");
    stream.begin_attempt(Leg::Anew, Engine::default());
    assert!(out.is_empty());
    stream.push(MESSAGES.as_bytes(), &mut out).expect("sound");
    assert_eq!(events(&out).len(), 7);
}

#[test]
fn opening_events_without_end_are_refused() {
    let event = format!("event: ignored\ndata: {{\"type\":\"ignored\",\"x\":\"{}\"}}\n\n", "y".repeat(1000));
    for route in [Route::Responses, Route::Messages] {
        let mut stream = new(route);
        let mut out = BytesMut::new();
        let result = (0..1000).map(|_| stream.push(event.as_bytes(), &mut out)).find(Result::is_err);
        assert_eq!(result, Some(Err(StreamError::TooLong)), "{route:?}");
    }
}

#[test]
fn keep_alives_are_no_content() {
    for route in [Route::Responses, Route::Messages] {
        let mut stream = new(route);
        let mut out = BytesMut::new();
        stream.keepalive_chunk("id", 1, &mut out);
        assert!(out.ends_with(b"\n\n") && !stream.content_sent());
    }
}
