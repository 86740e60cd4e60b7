//! Every fault does what it says, and only as long as it was told to.

use crate::SOON;
use crate::client::{Answer, Client, Whole, ask, chat, events, frame, get, post, read};
use fakephone::{Fault, FaultOrder, LineEnding, PhoneConfig, PhoneHandle, Scope, Target, answer_text, spawn};
use http::Request;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Long enough for anything on one machine to happen, short enough to wait for something not to happen.
const QUIET: Duration = Duration::from_millis(150);

async fn phone() -> PhoneHandle {
    spawn(PhoneConfig::default()).await.expect("a phone")
}

async fn failing(fault: Fault) -> PhoneHandle {
    let phone = phone().await;
    phone.set_fault(fault);
    phone
}

fn streamed(message: &str) -> Request<Whole> {
    chat(message, json!({"stream": true, "max_tokens": 12}))
}

fn whole(message: &str) -> Request<Whole> {
    chat(message, json!({"max_tokens": 12}))
}

fn expected(phone: &PhoneHandle, message: &str, tokens: usize) -> String {
    answer_text(&phone.config().model, message, tokens)
}

async fn stream(phone: &PhoneHandle, message: &str) -> Answer {
    ask(phone, streamed(message)).await.expect("a head")
}

/// Reads a socket to its end: what came, and whether it ended with a reset.
async fn raw(phone: &PhoneHandle, request: &str) -> (Vec<u8>, bool) {
    let mut socket = TcpStream::connect(phone.address()).await.expect("a connection");
    socket.write_all(request.as_bytes()).await.expect("to write");
    let mut bytes = Vec::new();
    let reset = socket.read_to_end(&mut bytes).await.is_err();
    (bytes, reset)
}

fn raw_chat(message: &str) -> String {
    let body = json!({"messages": [{"role": "user", "content": message}], "max_tokens": 4}).to_string();
    format!("POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn a_refusing_phone_refuses_resets_what_runs_and_serves_again_on_the_same_port() {
    let phone = phone().await;
    let mut socket = TcpStream::connect(phone.address()).await.expect("a connection");
    phone.wait_until(SOON, |stats| stats.connections_open == 1).await.expect("it is accepted");
    phone.set_fault(Fault::Refuse);
    let end = socket.read(&mut [0; 8]).await;
    assert_eq!(end.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionReset));
    let refused = TcpStream::connect(phone.address()).await.map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(std::io::ErrorKind::ConnectionRefused));
    phone.clear_fault();
    connected(&phone).await;
    assert_eq!(ask(&phone, whole("hi")).await.expect("an answer").status, 200);
}

/// Waits until the phone's port accepts.
async fn connected(phone: &PhoneHandle) {
    let trying = async {
        while TcpStream::connect(phone.address()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, trying).await.expect("the port opens");
}

/// Waits until the phone's port refuses.
async fn refused(phone: &PhoneHandle) {
    let trying = async {
        while TcpStream::connect(phone.address()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, trying).await.expect("the port closes");
}

#[tokio::test]
async fn a_killed_phone_ends_its_connections_and_comes_back_without_its_caches() {
    let config = PhoneConfig::default().with_model_speed(simulation::phone::ModelSpeed::QWEN_0_8B, 20.0);
    let phone = spawn(config).await.expect("a phone");
    let first = ask(&phone, whole("remember me please")).await.expect("an answer").json();
    assert_eq!(first["timings"]["cache_n"], 0);
    let mut client = Client::to(&phone).await;
    let head = client.start(chat("x", json!({"stream": true, "max_tokens": 4000}))).await.expect("a head");
    phone.kill();
    assert!(read(head).await.expect("a body").broken.is_some());
    refused(&phone).await;
    assert!(!phone.is_alive());
    assert_eq!(phone.stats().lost, 1);
    phone.revive();
    connected(&phone).await;
    let again = ask(&phone, whole("remember me please")).await.expect("an answer").json();
    assert_eq!(again["timings"]["cache_n"], 0, "the cache died with the engine");
    let third = ask(&phone, whole("remember me please")).await.expect("an answer").json();
    assert!(third["timings"]["cache_n"].as_u64() > Some(0));
}

#[tokio::test]
async fn silent_phones_answer_nothing_until_they_are_told_to() {
    for fault in [Fault::BlackHole, Fault::FreezeBeforeHead, Fault::TlsStall] {
        let phone = failing(fault.clone()).await;
        let mut client = Client::to(&phone).await;
        let silent = tokio::time::timeout(QUIET, client.start(streamed("x"))).await;
        assert!(silent.is_err(), "{fault:?} answered");
    }
    let phone = failing(Fault::BlackHole).await;
    let mut client = Client::to(&phone).await;
    phone.clear_fault();
    assert_eq!(client.ask(whole("x")).await.expect("the network is back").status, 200);
}

#[tokio::test]
async fn a_phone_that_answers_no_syn_cannot_be_connected_to() {
    let phone = failing(Fault::ConnectHang).await;
    let hangs = async { while tokio::time::timeout(QUIET, TcpStream::connect(phone.address())).await.is_ok() {} };
    tokio::time::timeout(SOON, hangs).await.expect("connections hang");
    phone.clear_fault();
    connected(&phone).await;
}

#[tokio::test]
async fn a_phone_without_network_is_silent_until_the_tunnel_ends_the_connection() {
    let config = PhoneConfig { stall: Duration::from_millis(60), ..PhoneConfig::default() };
    let phone = spawn(config).await.expect("a phone");
    phone.set_fault_within(Fault::HangAfter { chunks: 3 }, Scope::Next(1));
    let mut client = Client::to(&phone).await;
    let head = client.start(streamed("x")).await.expect("a head");
    phone.set_fault(Fault::TlsStall);
    let answer = read(head).await.expect("a body");
    assert!(answer.broken.is_some() && !answer.is_done());
    let (bytes, _) = raw(&phone, &raw_chat("x")).await;
    assert!(bytes.is_empty());
}

#[tokio::test]
async fn every_second_connection_hangs_when_two_phones_share_an_id() {
    let phone = failing(Fault::EverySecondStalls).await;
    for round in 0..4 {
        let served = tokio::time::timeout(QUIET, ask(&phone, whole("x"))).await;
        assert_eq!(served.is_ok(), round % 2 == 0, "round {round}");
    }
}

#[tokio::test]
async fn a_flapping_phone_dies_and_comes_back_and_stays_when_told_to_stop() {
    let phone = failing(Fault::Flap { up_s: 0.05, down_s: 0.05, random: true }).await;
    for _ in 0..2 {
        refused(&phone).await;
        connected(&phone).await;
    }
    refused(&phone).await;
    phone.clear_fault();
    connected(&phone).await;
    assert_eq!(ask(&phone, whole("x")).await.expect("an answer").status, 200);
}

#[tokio::test]
async fn connections_end_before_a_head_by_reset_or_by_end_of_file() {
    for (fault, resets) in [
        (Fault::ResetBeforeHead, true),
        (Fault::CloseBeforeHead, false),
        (Fault::AppClosed, false),
        (Fault::UnknownId, true),
    ] {
        let phone = failing(fault.clone()).await;
        let mut socket = TcpStream::connect(phone.address()).await.expect("a connection");
        // A closed or reset socket may refuse the bytes already.
        socket.write_all(raw_chat("x").as_bytes()).await.ok();
        let mut bytes = Vec::new();
        let reset = socket.read_to_end(&mut bytes).await.is_err();
        assert_eq!((bytes.len(), reset), (0, resets), "{fault:?}");
    }
}

#[tokio::test]
async fn a_cut_stream_has_its_chunks_and_no_end() {
    for (fault, resets) in
        [(Fault::CutAfter { chunks: 3, mid_word: false }, false), (Fault::ResetAfter { chunks: 3 }, true)]
    {
        let phone = failing(fault).await;
        let request = raw_chat("a b c d e f").replace("\"max_tokens\"", "\"stream\":true,\"max_tokens\"");
        let length = request.split("\r\n\r\n").nth(1).expect("a body").len();
        let request =
            request.replace(&format!("Content-Length: {}", length - 14), &format!("Content-Length: {length}"));
        let (bytes, reset) = raw(&phone, &request).await;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(text.matches("\"content\":\"").count(), 3, "{text}");
        assert!(!text.contains("[DONE]") && !text.contains("\"finish_reason\":\""));
        assert_eq!(reset, resets);
        assert_eq!(phone.stats().failed, 1);
    }
}

#[tokio::test]
async fn a_cut_in_the_middle_of_a_word_leaves_half_of_it() {
    let phone = failing(Fault::CutAfter { chunks: 3, mid_word: true }).await;
    let answer = stream(&phone, "abcdef ghijkl").await;
    let (text, finish) = answer.spoken();
    assert_eq!((text, finish), (format!("{} ghi", expected(&phone, "abcdef ghijkl", 3)), None));
    assert!(answer.broken.is_some());
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_is_cut_in_half() {
    let phone = failing(Fault::CutAfter { chunks: 1, mid_word: false }).await;
    let answer = ask(&phone, whole("x")).await.expect("a head");
    assert!(answer.broken.is_some() && serde_json::from_slice::<Value>(&answer.body).is_err());
    phone.set_fault(Fault::ErrorAfter { chunks: 1, code: 500 });
    assert_eq!(ask(&phone, whole("x")).await.expect("an answer").status, 500);
}

#[tokio::test]
async fn a_hanging_stream_keeps_its_slot_until_the_client_leaves() {
    let phone = failing(Fault::HangAfter { chunks: 2 }).await;
    let mut client = Client::to(&phone).await;
    let mut body = client.start(streamed("x")).await.expect("a head").into_body();
    let mut text = Vec::new();
    while let Ok(Some(piece)) = tokio::time::timeout(QUIET, frame(&mut body)).await {
        text.extend_from_slice(&piece.expect("no error"));
    }
    assert_eq!(events(&String::from_utf8_lossy(&text)).len(), 3, "the role and two words");
    assert_eq!(phone.stats().running_now, 1);
    drop((body, client));
    phone.wait_until(SOON, |stats| stats.running_now == 0 && stats.cancelled == 1).await.expect("the slot is free");
}

#[tokio::test]
async fn streams_end_oddly_as_told() {
    let phone = failing(Fault::ErrorAfter { chunks: 2, code: 500 }).await;
    let answer = stream(&phone, "x").await;
    assert!(answer.broken.is_none() && answer.events().last().is_some_and(|last| last.contains("\"error\"")));

    phone.set_fault(Fault::EarlyDone { chunks: 2 });
    let answer = stream(&phone, "x").await;
    assert!(answer.is_done() && answer.broken.is_none());
    assert_eq!(answer.spoken(), (expected(&phone, "x", 2), None));

    phone.set_fault(Fault::NoDone);
    let answer = stream(&phone, "x").await;
    assert!(!answer.is_done());
    assert_eq!(answer.spoken(), (expected(&phone, "x", 12), Some("length".to_owned())));
}

#[tokio::test]
async fn slow_phones_are_silent_before_or_after_the_head() {
    let seconds = 0.2;
    let phone = failing(Fault::Slow { seconds }).await;
    let mut client = Client::to(&phone).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), client.start(streamed("x"))).await.is_err());
    assert_eq!(phone.stats().running_now, 1, "it holds a slot while it is silent");
    drop(client);
    assert!(stream(&phone, "x").await.is_done());

    phone.set_fault(Fault::HeadThenSilence { seconds });
    let mut client = Client::to(&phone).await;
    let mut body = client.start(streamed("x")).await.expect("a head").into_body();
    assert!(tokio::time::timeout(Duration::from_millis(50), frame(&mut body)).await.is_err());
    assert!(frame(&mut body).await.is_some_and(|piece| piece.is_ok()));
}

#[tokio::test]
async fn answers_are_replaced_by_what_tunnels_and_engines_send() {
    let phone = phone().await;
    for status in [200, 404, 502, 530] {
        phone.set_fault(Fault::Html { status });
        for request in [get("/health"), whole("x")] {
            let answer = ask(&phone, request).await.expect("an answer");
            assert_eq!(answer.status, status);
            assert!(answer.headers["content-type"].to_str().expect("text").starts_with("text/html"));
            assert!(answer.text().starts_with("<!DOCTYPE"));
        }
    }
    phone.set_fault(Fault::Status { code: 429, retry_after: Some(86400) });
    let answer = ask(&phone, whole("x")).await.expect("an answer");
    assert_eq!((answer.status, answer.headers["retry-after"].to_str().ok()), (429, Some("86400")));
    assert_eq!(ask(&phone, get("/health")).await.expect("an answer").status, 200, "probes are not its target");

    phone.set_fault(Fault::Empty200);
    let answer = ask(&phone, whole("x")).await.expect("an answer");
    assert_eq!((answer.status, answer.body.len()), (200, 0));

    phone.set_fault(Fault::ErrorIn200 { code: 429 });
    assert_eq!(ask(&phone, whole("x")).await.expect("an answer").json()["error"]["code"], 429);
    let answer = stream(&phone, "x").await;
    assert!(answer.status == 200 && answer.events()[0].contains("\"code\":429"));

    phone.set_fault(Fault::BrokenJson);
    let answer = ask(&phone, whole("x")).await.expect("an answer");
    assert!(answer.broken.is_none() && serde_json::from_slice::<Value>(&answer.body).is_err());

    phone.set_fault(Fault::Redirect { location: "http://169.254.169.254/".to_owned() });
    let answer = ask(&phone, whole("x")).await.expect("an answer");
    assert_eq!((answer.status, answer.headers["location"].to_str().ok()), (307, Some("http://169.254.169.254/")));

    phone.set_fault(Fault::WrongKey);
    assert_eq!(ask(&phone, get("/v1/models")).await.expect("an answer").status, 401);
    assert_eq!(phone.stats().completed, 0);
}

#[tokio::test]
async fn a_loading_phone_says_so_and_then_is_ready() {
    let phone = failing(Fault::Loading { for_s: 0.2 }).await;
    let answer = ask(&phone, get("/health")).await.expect("an answer");
    assert_eq!((answer.status, answer.json()["error"]["message"].as_str()), (503, Some("Loading model")));
    let ready = async { while ask(&phone, get("/health")).await.expect("an answer").status != 200 {} };
    tokio::time::timeout(SOON, ready).await.expect("the model loads");
}

#[tokio::test]
async fn a_busy_phone_answers_probes_late_or_never_but_only_while_it_works() {
    let phone = failing(Fault::HangAfter { chunks: 1 }).await;
    let mut client = Client::to(&phone).await;
    let head = client.start(streamed("x")).await.expect("a head");
    phone.set_fault(Fault::Busy { late_s: None });
    let probe = tokio::time::timeout(QUIET, ask(&phone, get("/health"))).await;
    assert!(probe.is_err(), "a probe was answered");
    phone.set_fault(Fault::Busy { late_s: Some(0.05) });
    assert_eq!(ask(&phone, get("/health")).await.expect("an answer").status, 200);
    phone.set_fault(Fault::Busy { late_s: None });
    drop((head, client));
    phone.wait_until(SOON, |stats| stats.running_now == 0).await.expect("the slot is free");
    assert_eq!(ask(&phone, get("/health")).await.expect("an answer").status, 200);
}

#[tokio::test]
async fn idle_connections_are_closed_and_reused_ones_after_reading_the_body() {
    let phone =
        failing(Fault::StaleKeepAlive { idle_s: 0.05, max_requests: None, close_after_reading_body_on_reused: false })
            .await;
    let mut socket = TcpStream::connect(phone.address()).await.expect("a connection");
    let ended = tokio::time::timeout(SOON, socket.read(&mut [0; 8])).await.expect("it closes");
    assert_eq!(ended.expect("an end of file"), 0);

    phone.set_fault(Fault::StaleKeepAlive {
        idle_s: 5.0,
        max_requests: None,
        close_after_reading_body_on_reused: true,
    });
    let mut client = Client::to(&phone).await;
    assert_eq!(client.ask(whole("x")).await.expect("the first is served").status, 200);
    assert!(client.ask(whole("x")).await.is_err(), "the second is not");
    assert_eq!(phone.requests().len(), 2, "but it was read");
    assert_eq!(ask(&phone, whole("x")).await.expect("a fresh connection is served").status, 200);

    phone.set_fault(Fault::StaleKeepAlive {
        idle_s: 5.0,
        max_requests: Some(2),
        close_after_reading_body_on_reused: false,
    });
    let mut client = Client::to(&phone).await;
    assert!(client.ask(get("/health")).await.expect("an answer").headers.get("connection").is_none());
    assert_eq!(client.ask(get("/health")).await.expect("an answer").headers["connection"], "close");
    assert!(client.ask(get("/health")).await.is_err());
}

#[tokio::test]
async fn a_split_stream_says_the_same_with_every_line_ending() {
    let phone = phone().await;
    let plain = stream(&phone, "grüße an alle 🦊").await;
    for line_ending in [LineEnding::Lf, LineEnding::CrLf, LineEnding::Cr] {
        for bytes in [1, 7] {
            phone.set_fault(Fault::SplitEverywhere { line_ending, bytes });
            let split = stream(&phone, "grüße an alle 🦊").await;
            assert_eq!(split.spoken(), plain.spoken());
            assert!(split.is_done() && split.broken.is_none());
            let text = split.text();
            assert!(text.contains(": still here") && text.contains("data:{") && text.contains("data: {"));
            assert_eq!(text.contains("\r\n"), line_ending == LineEnding::CrLf);
            assert_eq!(text.contains('\n'), line_ending != LineEnding::Cr);
        }
    }
}

#[tokio::test]
async fn a_dripping_answer_is_whole_but_slow() {
    let phone = failing(Fault::Drip { bytes_per_s: 20_000 }).await;
    let answer = ask(&phone, whole("x")).await.expect("an answer");
    assert_eq!(answer.json()["choices"][0]["message"]["content"], json!(expected(&phone, "x", 12)));
}

#[tokio::test]
async fn usage_is_absent_misplaced_or_silly_as_told() {
    let phone = phone().await;
    let usage = json!({"stream": true, "max_tokens": 2, "stream_options": {"include_usage": true}});
    let chunks = |answer: &Answer| -> Vec<Value> {
        let events = answer.events();
        events.iter().filter_map(|data| serde_json::from_str(data).ok()).collect()
    };
    let with = |fault: Fault| {
        phone.set_fault(fault);
        ask(&phone, chat("x", usage.clone()))
    };
    let good = chunks(&with(Fault::None).await.expect("an answer"));
    assert_eq!(
        (&good[good.len() - 1]["choices"], &good[good.len() - 1]["usage"]["completion_tokens"]),
        (&json!([]), &json!(2))
    );
    let none = chunks(&with(Fault::NoUsage).await.expect("an answer"));
    assert!(none.iter().all(|chunk| chunk["usage"].is_null()));
    let moved = chunks(&with(Fault::UsageInDelta).await.expect("an answer"));
    let last = &moved[moved.len() - 1];
    assert_eq!(
        (&last["choices"][0]["finish_reason"], &last["usage"]["completion_tokens"]),
        (&json!("length"), &json!(2))
    );
    let silly = chunks(&with(Fault::SillyUsage).await.expect("an answer"));
    assert_eq!(silly[silly.len() - 1]["usage"]["prompt_tokens"], -7);
}

#[tokio::test]
async fn tool_calls_lack_their_index_or_begin_empty_as_told() {
    let phone = phone().await;
    let tools = json!({"stream": true, "tool_choice": "required", "tools": [{"type": "function", "function":
        {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]});
    let calls = |answer: &Answer| -> Vec<Value> {
        let chunks = answer.events();
        let values = chunks.iter().filter_map(|data| serde_json::from_str::<Value>(data).ok());
        values
            .map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0].clone())
            .filter(|call| !call.is_null())
            .collect()
    };
    let with = |fault: Fault| {
        phone.set_fault(fault);
        ask(&phone, chat("x", tools.clone()))
    };
    let arguments = |calls: &[Value]| -> String {
        calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect()
    };
    let good = calls(&with(Fault::None).await.expect("an answer"));
    assert_eq!((&good[0]["index"], &good[0]["function"]["name"]), (&json!(0), &json!("f")));
    let bare = calls(&with(Fault::NoIndexToolCalls).await.expect("an answer"));
    assert!(bare.iter().all(|call| call.get("index").is_none()));
    let empty = calls(&with(Fault::EmptyArguments).await.expect("an answer"));
    assert_eq!((&empty[0]["function"]["arguments"], &empty[1]["function"]["arguments"]), (&json!(""), &json!("")));
    assert_eq!(arguments(&good), arguments(&empty));
    assert!(serde_json::from_str::<Value>(&arguments(&good)).is_ok());
}

#[tokio::test]
async fn heads_are_hostile_as_told() {
    let phone = failing(Fault::HugeHeaders { bytes: 100_000 }).await;
    let (bytes, _) = raw(&phone, &raw_chat("x").replace("Host: p", "Host: p\r\nConnection: close")).await;
    assert!(bytes.len() > 100_000);

    phone.set_fault(Fault::ManyHeaders { lines: 300 });
    let (bytes, _) = raw(&phone, &raw_chat("x").replace("Host: p", "Host: p\r\nConnection: close")).await;
    assert!(String::from_utf8_lossy(&bytes).contains("X-Many-299: 299"));

    phone.set_fault(Fault::ExtraHeaders);
    let answer = ask(&phone, whole("x")).await.expect("an answer");
    assert!(answer.headers.contains_key("set-cookie") && answer.headers.contains_key("location"));

    phone.set_fault(Fault::Flood1xx { count: 50 });
    let (bytes, _) = raw(&phone, &raw_chat("x").replace("Host: p", "Host: p\r\nConnection: close")).await;
    assert_eq!(String::from_utf8_lossy(&bytes).matches("HTTP/1.1 103").count(), 50);

    phone.set_fault(Fault::OddFraming);
    let (bytes, _) = raw(&phone, &raw_chat("x").replace("Host: p", "Host: p\r\nConnection: close")).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains("Transfer-Encoding: chunked") && text.contains("Content-Length: "));

    phone.set_fault(Fault::WrongContentLength { by: 10 });
    let mut client = Client::to(&phone).await;
    let head = client.start(whole("x")).await.expect("a head");
    assert!(tokio::time::timeout(QUIET, read(head)).await.is_err(), "ten bytes never come");

    phone.set_fault(Fault::WrongContentLength { by: -10 });
    let short = ask(&phone, whole("x")).await.expect("a head");
    assert!(serde_json::from_slice::<Value>(&short.body).is_err());
}

#[tokio::test]
async fn bodies_are_hostile_as_told() {
    for fault in [Fault::EndlessStream, Fault::EndlessLine] {
        let phone = failing(fault.clone()).await;
        let mut client = Client::to(&phone).await;
        let mut body = client.start(streamed("x")).await.expect("a head").into_body();
        let (mut size, mut lines) = (0, 0);
        while size < 4_000_000 {
            let piece = frame(&mut body).await.expect("more").expect("no error");
            size += piece.len();
            lines += piece.iter().filter(|byte| **byte == b'\n').count();
        }
        assert_eq!(lines > 0, fault == Fault::EndlessStream);
        drop((body, client));
        phone.wait_until(SOON, |stats| stats.connections_open == 0).await.expect("it ends with its client");
    }
    let phone = failing(Fault::GzipBomb { mebibytes: 8 }).await;
    let answer = ask(&phone, whole("x")).await.expect("an answer");
    assert_eq!(answer.headers["content-encoding"], "gzip");
    assert!(answer.body.len() < 100_000 && answer.body.starts_with(&[0x1f, 0x8b]));
}

#[tokio::test]
async fn contents_are_hostile_as_told() {
    let phone = failing(Fault::SwappedAnswers).await;
    let content = |answer: Answer| answer.json()["choices"][0]["message"]["content"].clone();
    ask(&phone, whole("first")).await.expect("an answer");
    let second = ask(&phone, whole("second")).await.expect("an answer");
    assert_eq!(content(second), json!(expected(&phone, "first", 12)));

    phone.set_fault(Fault::TerminalEscapes);
    let models = ask(&phone, get("/v1/models")).await.expect("an answer").json();
    assert!(models["data"][0]["id"].as_str().is_some_and(|id| id.contains('\u{1b}')));
}

#[tokio::test]
async fn a_phone_that_crashes_on_an_abort_is_dead_after_one() {
    let phone = spawn(PhoneConfig::default().with_model_speed(simulation::phone::ModelSpeed::QWEN_9B, 1.0)).await;
    let phone = phone.expect("a phone");
    phone.set_fault(Fault::CrashOnAbort);
    let mut client = Client::to(&phone).await;
    let head = client.start(chat("x", json!({"stream": true, "max_tokens": 999}))).await.expect("a head");
    drop((head, client));
    refused(&phone).await;
    assert!(!phone.is_alive());
}

#[tokio::test]
async fn a_fault_lasts_as_long_and_hits_what_it_was_told_to() {
    let phone = phone().await;
    phone.set_fault_within(Fault::Status { code: 500, retry_after: None }, Scope::Next(2));
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(ask(&phone, whole("x")).await.expect("an answer").status);
    }
    assert_eq!(statuses, [500, 500, 200]);
    phone.obey(FaultOrder::from(Fault::Status { code: 500, retry_after: None }).on(Target::Probes));
    assert_eq!(ask(&phone, get("/health")).await.expect("an answer").status, 500);
    assert_eq!(ask(&phone, whole("x")).await.expect("an answer").status, 200);
    phone.set_fault_within(Fault::AppClosed, Scope::Next(1));
    assert!(ask(&phone, whole("x")).await.is_err());
    assert_eq!(ask(&phone, whole("x")).await.expect("an answer").status, 200);
}

#[tokio::test]
async fn requests_are_remembered_as_they_came() {
    let phone = phone().await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    ask(&phone, post("/v1/chat/completions?a=b", &body)).await.expect("an answer");
    let seen = phone.last_work().expect("a request");
    assert_eq!((seen.target.as_str(), seen.body.as_str()), ("/v1/chat/completions?a=b", body.to_string().as_str()));
    assert_eq!(seen.body_sha256, fakephone::sha256_hex(body.to_string().as_bytes(), 32));
    assert_eq!((seen.header("HOST"), seen.earlier_on_connection), (Some("phone"), 0));
}
