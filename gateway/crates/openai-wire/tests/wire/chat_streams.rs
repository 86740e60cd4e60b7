//! Streams of chat and text completions, dialect by dialect.

use bytes::BytesMut;
use openai_wire::{
    AnswerStream, Engine, Fault, Leg, PromptProgress, Route, SseDecoder, Step, StreamError, StreamOptions, Usage,
};
use serde_json::{Value, json};

pub fn options(include_usage: bool) -> StreamOptions {
    StreamOptions { model: "asked".into(), include_usage, ..StreamOptions::default() }
}

pub fn new(include_usage: bool) -> AnswerStream {
    AnswerStream::new(Route::ChatCompletions, options(include_usage))
}

/// The data of all events; `[DONE]` as a string.
pub fn data(out: &[u8]) -> Vec<Value> {
    let mut decoder = SseDecoder::new();
    decoder.push(out);
    let mut found = Vec::new();
    while let Some(event) = decoder.next_event() {
        let data = event.expect("within bounds").data;
        found.push(if data == b"[DONE]" { "[DONE]".into() } else { serde_json::from_slice(data).expect("json") });
    }
    assert!(decoder.finish().is_none(), "only whole events go out");
    found
}

/// Pushes a whole upstream stream and its end.
fn run(stream: &mut AnswerStream, upstream: &str) -> (Result<(), StreamError>, Vec<Value>) {
    let mut out = BytesMut::new();
    let result = stream.push(upstream.as_bytes(), &mut out).map(drop).and_then(|()| stream.end(&mut out));
    let events = data(&out);
    for event in events.iter().filter(|event| event.is_object()) {
        assert_eq!(event["model"], "asked", "{event}");
        assert!(event.get("timings").is_none() && event.get("prompt_progress").is_none());
    }
    (result, events)
}

fn texts(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

const LLAMA: &str = concat!(
    r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":17,"id":"chatcmpl-a","model":"/q.gguf","system_fingerprint":"b1","object":"chat.completion.chunk","prompt_progress":{"total":9,"cache":0,"processed":0,"time_ms":0}}"#,
    "\n\n",
    r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":17,"id":"chatcmpl-a","model":"/q.gguf","system_fingerprint":"b1","object":"chat.completion.chunk"}"#,
    "\n\n",
    ":\n\n",
    r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" did"}}],"created":17,"id":"chatcmpl-a","model":"/q.gguf","system_fingerprint":"b1","object":"chat.completion.chunk"}"#,
    "\n\n",
    r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" it"}}],"created":17,"id":"chatcmpl-a","model":"/q.gguf","system_fingerprint":"b1","object":"chat.completion.chunk"}"#,
    "\n\n",
    r#"data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"created":17,"id":"chatcmpl-a","model":"/q.gguf","system_fingerprint":"b1","object":"chat.completion.chunk"}"#,
    "\n\n",
    r#"data: {"choices":[],"created":17,"id":"chatcmpl-a","model":"/q.gguf","system_fingerprint":"b1","object":"chat.completion.chunk","usage":{"completion_tokens":3,"prompt_tokens":17,"total_tokens":20,"prompt_tokens_details":{"cached_tokens":16}},"timings":{"cache_n":16,"prompt_n":1,"prompt_ms":5,"predicted_n":3,"predicted_ms":30.5}}"#,
    "\n\n",
    "data: [DONE]\n\n",
);

#[test]
fn llama_server_without_usage_asked() {
    let mut stream = new(false);
    let mut out = BytesMut::new();
    let step = stream.push(LLAMA.as_bytes(), &mut out).expect("sound");
    assert_eq!(step, Step { content_events: 2, data_events: 7, complete: true });
    let text = std::str::from_utf8(&out).expect("utf-8");
    assert!(!text.contains("usage") && !text.contains("timings") && !text.contains("/q.gguf") && !text.contains("\n:"));
    let events = data(&out);
    assert_eq!(events.len(), 5, "role, two words, finish, [DONE]; no progress, no usage: {events:#?}");
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role":"assistant","content":""}));
    assert_eq!(texts(&events), " did it");
    assert_eq!(events[3]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[4], "[DONE]");
    assert_eq!(stream.usage(), Some(Usage { prompt_tokens: 17, completion_tokens: 3, cached_tokens: 16 }));
    assert!(!stream.usage_estimated() && stream.is_complete() && stream.content_sent());
    assert_eq!(stream.timings().expect("timings").predicted_ms, 30.5);
    assert_eq!(stream.content_events(), 2);
}

#[test]
fn an_event_that_says_null_says_nothing() {
    let (result, events) = run(&mut new(false), &format!("data: null\n\n{LLAMA}"));
    assert_eq!((result, texts(&events).as_str()), (Ok(()), " did it"));
}

#[test]
fn how_far_a_prompt_is_read_is_told_as_it_comes_and_believed_within_reason() {
    let mut stream = new(false);
    let mut told = |progress: &str| {
        let chunk = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":null}}}}],\"prompt_progress\":{progress}}}\n\n"
        );
        let step = stream.push(chunk.as_bytes(), &mut BytesMut::new()).expect("sound");
        assert_eq!((step.content_events, step.data_events), (0, 1), "it is a sign of life and no content");
        stream.progress()
    };
    let progress = |total, read, cached| Some(PromptProgress { total, read, cached });
    assert_eq!(told("null"), None);
    assert_eq!(told(r#"{"total":900,"cache":300,"processed":300,"time_ms":0}"#), progress(900, 300, 300));
    assert_eq!(told(r#"{"total":900,"cache":300,"processed":812,"time_ms":5}"#), progress(900, 812, 300));
    assert_eq!(told(r#"{"total":"all"}"#), progress(900, 812, 300), "what says nothing changes nothing");
    assert_eq!(told(r#"{"processed":1e99,"cache":-4}"#), progress(1 << 24, 1 << 24, 0));
    assert_eq!(told(r#"{"total":1,"processed":20,"cache":50}"#), progress(20, 20, 20));
}

#[test]
fn asked_for_usage_comes_once_at_the_end_and_is_null_before() {
    let usage = json!({"prompt_tokens":17,"completion_tokens":3,"total_tokens":20,"prompt_tokens_details":{"cached_tokens":16}});
    let in_finish = LLAMA
        .replace(r#""choices":[],"#, r#""choices":[{"index":0,"delta":{},"finish_reason":null}],"#)
        .replace(r#""finish_reason":"stop","#, r#""finish_reason":null,"#)
        .replacen(r#""finish_reason":null}],"created":17,"id":"chatcmpl-a","model":"/q.gguf","system_fingerprint":"b1","object":"chat.completion.chunk","usage""#, r#""finish_reason":"stop"}],"created":17,"id":"chatcmpl-a","model":"/q.gguf","system_fingerprint":"b1","object":"chat.completion.chunk","usage""#, 1);
    for upstream in [LLAMA.to_owned(), in_finish] {
        let (result, events) = run(&mut new(true), &upstream);
        assert_eq!(result, Ok(()));
        let (done, chunks) = events.split_last().expect("events");
        let (last, before) = chunks.split_last().expect("chunks");
        assert_eq!(done, "[DONE]");
        assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &usage));
        assert_eq!(
            (&last["id"], &last["created"], &last["system_fingerprint"]),
            (&json!("chatcmpl-a"), &json!(17), &json!("b1"))
        );
        assert_eq!(last["object"], "chat.completion.chunk");
        for event in before {
            assert_eq!(event.get("usage"), Some(&Value::Null), "{event}");
        }
        assert_eq!(before.iter().filter(|event| event["choices"][0]["finish_reason"] == "stop").count(), 1);
    }
}

#[test]
fn mnncli_with_changing_ids_empty_finish_reasons_and_no_role() {
    let chunk = |n: u32, text: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl{n}\",\"object\":\"chat.completion.chunk\",\"created\":{n},\"model\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{text:?}}},\"finish_reason\":{finish:?}}}]}}\n\n"
        )
    };
    let upstream = chunk(1, "Hel", "") + &chunk(2, "lo", "") + &chunk(3, "", "stop") + "data: [DONE]\n\n";
    let mut stream = new(false).with_prompt_estimate(40);
    let (result, events) = run(&mut stream, &upstream);
    assert_eq!(result, Ok(()));
    assert_eq!(texts(&events), "Hello");
    let chunks = &events[..3];
    assert!(chunks.iter().all(|event| event["id"] == "chatcmpl1" && event["created"] == 1));
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role":"assistant","content":"Hel"}));
    assert_eq!(chunks[1]["choices"][0], json!({"index":0,"delta":{"content":"lo"},"finish_reason":null}));
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(stream.usage(), Some(Usage { prompt_tokens: 40, completion_tokens: 2, cached_tokens: 0 }));
    assert!(stream.usage_estimated(), "no usage at all: counted by events and marked");
}

#[test]
fn an_absent_usage_that_was_asked_for_is_estimated() {
    let (result, events) =
        run(&mut new(true), &LLAMA.replace(r#""usage":{"#, r#""x":{"#).replace(r#""timings":{"#, r#""y":{"#));
    assert_eq!(result, Ok(()));
    assert_eq!(events[events.len() - 2]["usage"]["completion_tokens"], 2);
}

#[test]
fn the_mnn_app_with_crlf_keep_alives_and_neither_index_nor_finish_reason() {
    let chunk = |rest: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"mnn-local\",{rest}}}\r\n\r\n"
        )
    };
    let upstream = ": keep-alive\r\n\r\n".to_owned()
        + &chunk(r#""choices":[{"delta":{"content":"Hi"}}]"#)
        + &chunk(
            r#""choices":[{"delta":{"content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":1,"total_tokens":5}"#,
        )
        + "data: [DONE]\r\n\r\n";
    let mut stream = new(false);
    let (result, events) = run(&mut stream, &upstream);
    assert_eq!(result, Ok(()));
    assert_eq!(
        events[0]["choices"][0],
        json!({"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":null})
    );
    assert_eq!(events[1]["choices"][0], json!({"index":0,"delta":{"content":""},"finish_reason":"stop"}));
    assert!(events[1].get("usage").is_none(), "usage in a chunk with choices is taken and removed");
    assert_eq!(stream.usage(), Some(Usage { prompt_tokens: 4, completion_tokens: 1, cached_tokens: 0 }));
}

#[test]
fn a_chunk_without_a_head_gets_the_one_that_others_had() {
    let upstream = "data: {\"id\":\"a\",\"created\":3,\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n\
                    data: {\"choices\":[{},{\"index\":1,\"delta\":{\"content\":\"y\"},\"finish_reason\":\"stop\"}]}\n\n";
    let mut out = BytesMut::new();
    new(false).push(upstream.as_bytes(), &mut out).expect("sound");
    let events = data(&out);
    assert_eq!(
        events[1],
        json!({"object":"chat.completion.chunk","id":"a","created":3,"model":"asked","choices":[
            {"index":0,"finish_reason":null},{"index":1,"delta":{"role":"assistant","content":"y"},"finish_reason":"stop"}]})
    );
    assert_eq!((&events[0]["model"], &events[0]["object"]), (&json!("asked"), &json!("chat.completion.chunk")));
}

#[test]
fn a_head_that_is_no_head_is_not_kept() {
    let chunk =
        |id: &str| format!("data: {{\"id\":{id},\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"x\"}}}}]}}\n\n");
    let endless = format!("\"{}\"", "i".repeat(300));
    let ids = ["[1,\ndata: 2]", "null", &endless, "\"a\"", "7", &endless];
    let upstream: String = ids.into_iter().map(chunk).collect();
    let mut out = BytesMut::new();
    new(false).push(upstream.as_bytes(), &mut out).expect("sound");
    let ids: Vec<Value> = data(&out).iter().map(|event| event["id"].clone()).collect();
    let long = "i".repeat(300);
    assert_eq!(ids, [json!([1, 2]), Value::Null, json!(long), json!("a"), json!("a"), json!("a")]);
}

#[test]
fn thinking_and_tool_calls_are_content_and_roles_and_blanks_are_not() {
    for (delta, content) in [
        (r#"{"role":"assistant"}"#, 0),
        (r#"{"role":"assistant","content":""}"#, 0),
        (r#"{"content":null}"#, 0),
        ("{}", 0),
        (r#"{"reasoning_content":"hm"}"#, 1),
        (r#"{"reasoning":"hm"}"#, 1),
        (r#"{"refusal":"no"}"#, 1),
        (r#"{"tool_calls":[{"index":0,"function":{"arguments":""}}]}"#, 1),
        (r#"{"tool_calls":[]}"#, 0),
        (r#"{"content":"x"}"#, 1),
    ] {
        let mut stream = new(false);
        let event = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]}}\n\n");
        let step = stream.push(event.as_bytes(), &mut BytesMut::new()).expect("sound");
        assert_eq!((step.content_events, step.data_events), (content, 1), "{delta}");
        assert_eq!(stream.content_sent(), content == 1, "{delta}");
    }
}

#[test]
fn tool_calls_without_an_index_are_numbered_and_empty_arguments_pass() {
    let event = |calls: &str| {
        format!(
            "data: {{\"id\":\"a\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":null,\"tool_calls\":{calls}}},\"finish_reason\":null}}]}}\n\n"
        )
    };
    let upstream = event(r#"[{"id":"c1","type":"function","function":{"name":"f","arguments":""}}]"#)
        + &event(r#"[{"function":{"arguments":"{}"}}]"#)
        + &event(r#"[{"id":"c1","function":{"arguments":""}}]"#)
        + &event(r#"[{"id":"c2","type":"function","function":{"name":"g","arguments":""}}]"#)
        + &event(r#"[{"function":{"arguments":"1"}},{"index":7,"function":{"arguments":"2"}}]"#);
    let mut out = BytesMut::new();
    let mut stream = new(false);
    assert_eq!(stream.push(upstream.as_bytes(), &mut out).expect("sound").content_events, 5);
    let events = data(&out);
    let indexes: Vec<i64> = events
        .iter()
        .map(|event| event["choices"][0]["delta"]["tool_calls"][0]["index"].as_i64().expect("index"))
        .collect();
    assert_eq!(indexes, [0, 0, 0, 1, 1]);
    assert_eq!(events[4]["choices"][0]["delta"]["tool_calls"][1]["index"], 7, "a given index stays");
    assert_eq!(events[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"], "");
    assert!(events[0]["choices"][0]["delta"]["content"].is_null(), "null beside a tool call is the API's own way");
}

#[test]
fn text_completions_keep_their_shape() {
    let upstream = concat!(
        r#"data: {"choices":[{"text":" our","index":0,"logprobs":null,"finish_reason":null}],"created":1,"model":"t","object":"text_completion","id":"chatcmpl-1"}"#,
        "\n\n",
        r#"data: {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"length"}],"created":1,"model":"t","object":"text_completion","usage":{"completion_tokens":1,"prompt_tokens":2,"total_tokens":3},"id":"chatcmpl-1","timings":{"prompt_n":2}}"#,
        "\n\n",
        "data: [DONE]\n\n",
    );
    let mut stream = AnswerStream::new(Route::Completions, options(true));
    let (result, events) = run(&mut stream, upstream);
    assert_eq!(result, Ok(()));
    assert_eq!(events.len(), 4);
    assert_eq!(events[0]["choices"][0], json!({"text":" our","index":0,"logprobs":null,"finish_reason":null}));
    assert!(events[1]["usage"].is_null());
    assert_eq!(events[2]["usage"]["total_tokens"], 3);
    assert_eq!(events[2]["object"], "text_completion");
}

#[test]
fn a_finish_reason_without_done_is_a_whole_answer() {
    let (result, events) = run(&mut new(false), LLAMA.trim_end().trim_end_matches("data: [DONE]"));
    assert_eq!(result, Ok(()));
    assert_eq!(events.last(), Some(&json!("[DONE]")));
    let (result, events) = run(&mut new(false), LLAMA.trim_end());
    assert_eq!((result, events.last()), (Ok(()), Some(&json!("[DONE]"))), "a last event without its blank line counts");
}

#[test]
fn an_end_without_a_finish_reason_is_a_cut_with_or_without_done() {
    let finish = LLAMA.find(r#"data: {"choices":[{"finish_reason":"stop""#).expect("finish");
    for (tail, cut_in) in
        [("", "end"), ("data: [DONE]\n\n", "push"), ("data: [DONE]", "end"), ("data: {\"choices\":[{\"fin", "end")]
    {
        let mut stream = new(true);
        let mut out = BytesMut::new();
        let pushed = stream.push(format!("{}{tail}", &LLAMA[..finish]).as_bytes(), &mut out);
        if cut_in == "push" {
            assert_eq!(pushed, Err(StreamError::Cut));
        } else {
            pushed.expect("so far sound");
            assert_eq!(stream.end(&mut out), Err(StreamError::Cut), "{tail}");
        }
        assert!(!data(&out).contains(&json!("[DONE]")));
        assert!(!stream.is_complete() && stream.content_sent());
    }
    for nothing in ["", "data: [DONE]\n\n", "<html>\n\n</html>", ": ping\n\n"] {
        let mut stream = new(false);
        assert_eq!(run(&mut stream, nothing), (Err(StreamError::Cut), vec![]));
        assert!(!stream.content_sent());
    }
}

#[test]
fn with_several_choices_each_must_finish() {
    let event = |index: u32, finish: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":\"x\"}},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let begun = event(0, "null") + &event(1, "null") + &event(0, "\"stop\"");
    assert_eq!(run(&mut new(false), &begun).0, Err(StreamError::Cut));
    let (result, events) = run(&mut new(false), &(begun + &event(1, "\"length\"")));
    assert_eq!(result, Ok(()));
    let roles = events.iter().filter(|event| event["choices"][0]["delta"]["role"] == "assistant").count();
    assert_eq!(roles, 2, "each choice has its role, once");
}

#[test]
fn an_error_event_ends_the_attempt_with_its_meaning() {
    for (event, fault) in [
        (
            r#"{"error":{"code":500,"message":"The model produced output that does not match the expected peg-native format","type":"server_error"}}"#,
            Fault::Output,
        ),
        (r#"{"error":{"code":503,"message":"Loading model"}}"#, Fault::Loading),
        (r#"{"error":"broken"}"#, Fault::Engine),
        (r#"{"object":"error","message":"broken","code":400}"#, Fault::Request),
        (r#"{"detail":"broken"}"#, Fault::Engine),
        (r#"{"choices":[],"error":{"code":429,"message":"x"}}"#, Fault::Busy),
    ] {
        let mut out = BytesMut::new();
        match new(false).push(format!("data: {event}\n\n").as_bytes(), &mut out) {
            Err(StreamError::Upstream(error)) => assert_eq!(error.fault, fault, "{event}"),
            other => panic!("{event}: {other:?}"),
        }
        assert!(out.is_empty(), "what a replica says of itself is not passed on");
    }
}

#[test]
fn malformed_and_endless_events_are_errors() {
    for event in
        ["data: {\"choices\":\n\n", "data: hello\n\n", "data: []\n\n", "data: {\"choices\":[7]}\n\n", "data: {} {}\n\n"]
    {
        let result = new(false).push(event.as_bytes(), &mut BytesMut::new());
        assert!(matches!(result, Err(StreamError::Malformed { .. })), "{event:?}: {result:?}");
    }
    let result = new(false).push(b"data: {\"choices\":[{\"delta\":{\"content\":\"\xFF\"}}]}\n\n", &mut BytesMut::new());
    assert!(matches!(result, Err(StreamError::Malformed { .. })));
    let mut stream = new(false);
    let mut out = BytesMut::new();
    let endless = (0..200).map(|_| stream.push(&[b'x'; 65536], &mut out)).find(Result::is_err);
    assert_eq!(endless, Some(Err(StreamError::TooLong)));
}

#[test]
fn data_over_several_lines_becomes_one_line() {
    let upstream = "data: {\"choices\":\ndata:  [{\"index\":0,\ndata: \"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n\n";
    let mut out = BytesMut::new();
    new(false).push(upstream.as_bytes(), &mut out).expect("sound");
    let text = std::str::from_utf8(&out).expect("utf-8");
    assert_eq!(text.matches('\n').count(), 2, "{text}");
    assert_eq!(texts(&data(&out)), "x");
}

#[test]
fn a_second_attempt_before_content_is_not_noticed() {
    let mut stream = new(true);
    let mut out = BytesMut::new();
    let role = LLAMA.find(":\n\n").expect("comment");
    stream.push(&LLAMA.as_bytes()[..role], &mut out).expect("sound");
    stream.push(b"data: {\"choices\":[{\"index\"", &mut out).expect("half an event");
    assert_eq!(stream.end(&mut out), Err(StreamError::Cut));
    assert!(!stream.content_sent());
    stream.begin_attempt(Leg::Anew, Engine::default());
    let other = LLAMA
        .replace("chatcmpl-a", "chatcmpl-b")
        .replace("\"created\":17", "\"created\":18")
        .replace("\"b1\"", "\"b2\"");
    stream.push(other.as_bytes(), &mut out).expect("sound");
    let mut straight = BytesMut::new();
    new(true).push(LLAMA.as_bytes(), &mut straight).expect("sound");
    let seen = String::from_utf8(out.to_vec()).expect("utf-8");
    assert_eq!(seen, String::from_utf8(straight.to_vec()).expect("utf-8"));
}

#[test]
fn a_role_that_comes_again_in_any_place_is_cut_out_cleanly() {
    for delta in [
        r#"{"role":"assistant","content":"x"}"#,
        r#"{"content":"x","role":"assistant"}"#,
        r#"{"content":"x" , "role" : "assistant" , "a":null}"#,
        r#"{ "role":"assistant" , "content":"x"}"#,
    ] {
        for choice in [format!(r#"{{"index":0,"delta":{delta}}}"#), format!(r#"{{"delta":{delta},"index":0}}"#)] {
            let event = format!("data: {{\"choices\":[{choice}]}}\n\n");
            let mut out = BytesMut::new();
            new(false).push(event.repeat(2).as_bytes(), &mut out).expect("sound");
            let events = data(&out);
            assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant", "{choice}");
            assert!(events[1]["choices"][0]["delta"].get("role").is_none(), "{choice}");
            assert_eq!(events[1]["choices"][0]["delta"]["content"], "x");
        }
    }
}

#[test]
fn an_empty_keep_alive_chunk_agrees_with_all_that_follow() {
    let mut stream = new(true);
    let mut out = BytesMut::new();
    stream.keepalive_chunk("chatcmpl-ours", 99, &mut out);
    stream.keepalive_chunk("chatcmpl-ours", 105, &mut out);
    assert!(!stream.content_sent());
    stream.push(LLAMA.as_bytes(), &mut out).expect("sound");
    let events = data(&out);
    let (done, chunks) = events.split_last().expect("events");
    assert_eq!(done, "[DONE]");
    assert!(chunks.iter().all(|event| event["id"] == "chatcmpl-ours" && event["created"] == 99), "{chunks:#?}");
    assert_eq!(chunks.iter().filter(|event| event["choices"][0]["delta"].get("role").is_some()).count(), 1);
    assert_eq!(texts(&events), " did it");
}

#[test]
fn silly_usage_and_bytes_after_the_end_are_not_passed_on() {
    let silly =
        LLAMA.replace(r#""completion_tokens":3"#, r#""completion_tokens":1e308"#) + "data: {\"choices\":[{}]}\n\n";
    let mut stream = new(true);
    let (result, events) = run(&mut stream, &silly);
    assert_eq!(result, Ok(()));
    assert_eq!(events[events.len() - 2]["usage"]["completion_tokens"], 1 << 24);
    let mut out = BytesMut::new();
    assert!(stream.push(b"data: {\"choices\":[{}]}\n\n", &mut out).expect("ignored").complete);
    assert!(out.is_empty());
}

#[test]
fn an_engines_measurements_go_out_once_where_they_are_asked_for() {
    let timings = json!({"cache_n":16,"prompt_n":1,"prompt_ms":5,"predicted_n":3,"predicted_ms":30.5});
    let told = |include_usage, upstream: &str| {
        let options = StreamOptions { timings: true, ..options(include_usage) };
        let mut out = BytesMut::new();
        AnswerStream::new(Route::ChatCompletions, options).push(upstream.as_bytes(), &mut out).expect("sound");
        data(&out)
    };
    for include_usage in [false, true] {
        let events = told(include_usage, LLAMA);
        let last = &events[events.len() - 2];
        assert_eq!((&last["timings"], last["usage"].is_object()), (&timings, include_usage));
        let choices = if include_usage { json!([]) } else { json!([{"index":0,"delta":{},"finish_reason":null}]) };
        assert_eq!(last["choices"], choices, "without usage a chunk without choices is not expected");
        assert_eq!(events.iter().filter(|event| event.get("timings").is_some()).count(), 1);
    }
    let each = LLAMA.replace("\"object\":", "\"timings\":{\"predicted_n\":1},\"object\":").replace(
        ",\"timings\":{\"cache_n\":16,\"prompt_n\":1,\"prompt_ms\":5,\"predicted_n\":3,\"predicted_ms\":30.5}",
        "",
    );
    let events = told(false, &each);
    assert_eq!(events.iter().filter(|event| event["timings"]["predicted_n"] == 1).count(), 5, "and where they stand");
}
