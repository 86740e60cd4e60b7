//! A client may do anything: it gets a refusal that it can read, others go on, and nothing of it stays.

use std::{fs, time::Duration};

use fakephone::{Fault, Scope};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::{
    harness::{Client, Fleet, Gateway, MODEL, PATIENCE, chat, free_port, now, phone},
    tls,
};

/// Opens a connection and sends bytes as they are. The gateway may close before it has taken all of them.
async fn send(gateway: &Gateway, bytes: &[u8]) -> TcpStream {
    send_to(gateway.public, bytes).await
}

async fn send_to(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("open");
    drop(stream.write_all(bytes).await);
    stream
}

/// Everything that comes until the gateway closes, or `None` if the connection was reset.
async fn read_all(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("an end in time");
    read.ok().map(|_| String::from_utf8_lossy(&bytes).into_owned())
}

/// The same until `count` answers have begun.
async fn read_answers(stream: &mut TcpStream, count: usize) -> String {
    let mut bytes = Vec::new();
    while bytes.windows(9).filter(|text| text == b"HTTP/1.1 ").count() < count || !bytes.ends_with(b"}") {
        let read = tokio::time::timeout(PATIENCE, stream.read_buf(&mut bytes)).await.expect("in time").expect("open");
        assert!(read > 0, "closed after {}", String::from_utf8_lossy(&bytes));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn post(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn descriptors(gateway: &Gateway) -> usize {
    fs::read_dir(format!("/proc/{}/fd", gateway.child.id())).map_or(0, Iterator::count)
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_keeps_no_slot_beyond_its_time() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "write_timeout = \"1s\"\n").await;
    fleet.phones[0].set_fault(Fault::EndlessStream);
    let endless = chat("endless", true, 10);
    let stalled = gateway.client().await.post(CHAT, &endless).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("running");
    let since = now();
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 0).await.expect("ended");
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    gateway.wait_at_rest().await;
    stalled.leave();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_and_an_operator_end_a_request_whose_client_does_not_read() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "write_timeout = \"10m\"\n").await;
    fleet.phones[0].set_fault(Fault::EndlessStream);
    let (since, body) = (now(), chat("endless", true, 10));
    let stalled = gateway.client().await.send("POST", CHAT, &[("X-Huntgroup-Deadline", "2")], Some(&body)).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.cancelled == 1).await.expect("the phone is told");
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    stalled.leave();

    let stalled = gateway.client().await.post(CHAT, &body).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("running");
    let live = gateway.admin("GET", "/admin/requests", None).await.json();
    let id = live["data"][0]["id"].as_str().expect("one live request").to_owned();
    // It sends as much as the sockets take before it is stuck.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let asked = now();
    assert!(gateway.admin("DELETE", &format!("/admin/requests/{id}"), None).await.status < 300);
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.cancelled == 2).await.expect("the phone is told");
    assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
    gateway.wait_at_rest().await;
    assert_eq!(fleet.over_subscribed(), 0);
    stalled.leave();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_more_than_it_may_can_read_why() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "max_body = \"64KiB\"\n").await;
    let large = vec![b' '; 8 << 20];
    for (path, headers, status) in [
        (CHAT, "", "HTTP/1.1 413 "),
        ("/v1/unknown", "", "HTTP/1.1 404 "),
        ("/v1/models", "", "HTTP/1.1 405 "),
        (CHAT, "Content-Encoding: gzip\r\n", "HTTP/1.1 415 "),
        (CHAT, "Expect: 200-ok\r\n", "HTTP/1.1 417 "),
    ] {
        for _ in 0..5 {
            let mut stream = send(&gateway, &post(path, headers, &large)).await;
            let text = read_all(&mut stream).await.expect("no reset before the answer");
            assert!(text.starts_with(status), "{path}: {text}");
            assert!(text.to_ascii_lowercase().contains("connection: close\r\n"), "{path}: {text}");
        }
    }
    // Who asks first is told before it sends anything, and is not waited for.
    let asks = format!("POST {CHAT} HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
    let text = read_all(&mut send(&gateway, asks.as_bytes()).await).await.expect("an answer");
    assert!(text.starts_with("HTTP/1.1 413 "), "{text}");
}

/// What may be too large about a call to `path`: bytes, the status, the limit.
fn oversized(path: &str, max_body: usize) -> Vec<(Vec<u8>, u16, String)> {
    let head = |more: &str| format!("Content-Type: application/json\r\nConnection: close\r\n{more}");
    let lines = |count: usize, length: usize| {
        let value = "x".repeat(length);
        head(&(0..count).map(|n| format!("x-{n}: {value}\r\n")).collect::<String>())
    };
    let with = if path.contains('?') { '&' } else { '?' };
    vec![
        (post(path, &head(""), &vec![b' '; max_body + 1]), 413, max_body.to_string()),
        (post(path, &head(""), &vec![b' '; max_body + (4 << 20)]), 413, max_body.to_string()),
        (post(&format!("{path}{with}{}", "q".repeat(9_000)), &head(""), b""), 414, "8192".to_owned()),
        (post(path, &lines(40, 1_000), b""), 431, "32768".to_owned()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_too_large_is_refused_with_its_limit_in_the_shape_of_errors_by_every_listener() {
    let (fleet, phones) = (Fleet::of(1, &phone(1, 1000.0)).await, free_port());
    let config =
        format!("max_body = \"64KiB\"\n[registration]\nlisten = \"127.0.0.1:{phones}\"\ntoken = \"file:token\"\n");
    let token = "0123456789abcdef0123456789abcdef";
    let gateway = Gateway::builder(&config).secret("token", token).trust(&fleet).start().await;
    let register = format!("/admin/register?token={token}");
    let mut all = Vec::new();
    for (port, path, max_body) in [
        (gateway.public, CHAT, 64 << 10),
        (gateway.admin, "/admin/replicas", 64 << 10),
        (gateway.admin, "/admin/replicas/import", 8 << 20),
        (gateway.admin, &register, 16 << 10),
        (phones, &register, 16 << 10),
    ] {
        all.extend(oversized(path, max_body).into_iter().map(|call| (port, path, call)));
    }
    // Beyond what is read at all.
    let more = |count: usize, length: usize| {
        let value = "x".repeat(length);
        post(CHAT, &(0..count).map(|n| format!("x-{n}: {value}\r\n")).collect::<String>(), b"")
    };
    all.push((gateway.public, CHAT, (more(300, 1), 431, "100".to_owned())));
    all.push((gateway.public, CHAT, (more(200, 6_000), 431, "32768".to_owned())));
    for (port, path, (call, status, limit)) in all {
        let what = format!("{status} of {} bytes to {port} {path}", call.len());
        let text = read_all(&mut send_to(port, &call).await).await.unwrap_or_else(|| panic!("reset: {what}"));
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {text}");
        let error =
            &serde_json::from_str::<Value>(body).unwrap_or_else(|error| panic!("{error}: {what}: {text}"))["error"];
        assert!(error["message"].as_str().is_some_and(|message| message.contains(&limit)), "{what}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{what}");
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{what}: {error}");
        assert_eq!(port != gateway.public, error["code"].is_string(), "{what}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_with_a_small_body_keeps_the_connection() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut stream = send(&gateway, &post("/v1/unknown", "", b"{\"a\":1}")).await;
    read_answers(&mut stream, 1).await;
    stream.write_all(&post(CHAT, "", chat("again", false, 2).to_string().as_bytes())).await.expect("open");
    let text = read_answers(&mut stream, 1).await;
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_on_their_way_are_bounded_together_by_what_has_come_of_them() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "[limits]\nmax_buffered_bytes = \"16MiB\"\n").await;
    let begun = |promised: usize, sent: usize| {
        let head = format!("POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {promised}\r\n\r\n");
        [head.as_bytes(), &vec![b' '; sent]].concat()
    };
    // Promises take nothing.
    let mut promises = Vec::new();
    for _ in 0..8 {
        promises.push(send(&gateway, &begun(15 << 20, 10)).await);
    }
    assert!(gateway.chat(&chat("first", false, 2)).await.is_whole("first", 2));
    let mut large = JoinSet::new();
    for _ in 0..6 {
        let mut stream = send(&gateway, &begun((4 << 20) + 1, 4 << 20)).await;
        large.spawn(async move {
            let mut first = [0; 4096];
            let read = tokio::time::timeout(Duration::from_secs(2), stream.read(&mut first)).await;
            (
                read.map_or(String::new(), |read| String::from_utf8_lossy(&first[..read.unwrap_or(0)]).into_owned()),
                stream,
            )
        });
    }
    let answers = large.join_all().await;
    let refused = answers.iter().filter(|(text, _)| text.starts_with("HTTP/1.1 503 ")).count();
    assert!((2..=4).contains(&refused), "{refused} of 6 times 4 MiB refused with room for 16");
    assert!(
        answers.iter().any(|(text, _)| text.contains("\"overloaded\"") && text.contains("retry-after: ")),
        "{answers:?}"
    );
    drop((promises, answers));
    gateway.wait_at_rest().await;
    assert!(gateway.chat(&chat("last", false, 2)).await.is_whole("last", 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_pipelined_requests_are_answered_in_order() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let one = |number: usize| post(CHAT, "", chat(&format!("piped {number}"), false, 4).to_string().as_bytes());
    let all: Vec<u8> = (0..50).flat_map(one).collect();
    let mut stream = send(&gateway, &all).await;
    let text = read_answers(&mut stream, 50).await;
    let answers: Vec<&str> = text.split("HTTP/1.1 200 ").skip(1).collect();
    assert_eq!(answers.len(), 50, "{text}");
    for (number, answer) in answers.into_iter().enumerate() {
        let expected = crate::harness::expected(&format!("piped {number}"), 4);
        assert!(answer.contains(&format!("{expected:?}")), "{number}: {answer}");
    }
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_requests_get_the_right_refusal_and_are_never_run() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let deep = format!("{{\"model\":\"{MODEL}\",\"messages\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let long =
        json!({"model": "\u{1b}[31m\u{202e}".repeat(20), "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let good = chat("hi", false, 2).to_string();
    let good = good.as_bytes();
    let cases: Vec<(&str, &[u8], u16)> = vec![
        ("", deep.as_bytes(), 400),
        ("", b"{\"model\":\"tiny\xff\",\"messages\":[]}", 400),
        ("", b"{\"model\":\"tiny\",\"messages\":[]}\0", 400),
        ("", b"\0\0\0\0", 400),
        ("", b"", 400),
        ("", b"[]", 400),
        ("", b"{\"model\":\"tiny\",\"model\":\"other\",\"messages\":[]}", 400),
        ("", b"{\"model\":\"tiny\",\"stream\":false,\"stream\":true,\"messages\":[]}", 400),
        ("", b"{\"model\":{},\"messages\":[]}", 400),
        ("", long.as_bytes(), 404),
        ("X-Huntgroup-Class: urgent\r\n", good, 400),
        ("X-Huntgroup-Class: \u{e9}\r\n", good, 400),
        ("X-Huntgroup-Deadline: soon\r\n", good, 400),
        ("X-Huntgroup-Deadline: -1\r\n", good, 400),
        ("X-Huntgroup-Deadline: NaN\r\n", good, 400),
        ("X-Huntgroup-Deadline: inf\r\n", good, 400),
        ("X-Huntgroup-Deadline: 1e300\r\n", good, 400),
        ("X-Huntgroup-Deadline: 1e-300\r\n", good, 504),
        ("X-Huntgroup-Deadline: 0.0000001\r\n", good, 504),
    ];
    for (headers, body, status) in cases {
        let mut request = post(CHAT, headers, body);
        // Header values as Latin-1, one byte a letter.
        if let Some(at) = request.windows(2).position(|pair| pair == "\u{e9}".as_bytes()) {
            request.splice(at..at + 2, [0xe9]);
        }
        let mut stream = send(&gateway, &request).await;
        let text = read_answers(&mut stream, 1).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]);
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}{shown}: {text}");
        let (_, json) = text.split_once("\r\n\r\n").expect("a body");
        let json: Value = serde_json::from_str(json).expect("JSON");
        for key in ["message", "type", "param", "code"] {
            assert!(json["error"].get(key).is_some(), "{headers}{shown}: {json}");
        }
    }
    assert_eq!(fleet.phones[0].stats().started, 0);
    assert!(!gateway.log().contains('\u{1b}'), "terminal escapes of a client in the log");
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_and_bodies_and_half_closed_connections_end_in_time() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    // The header's deadline is the earlier: an idle connection is closed without a word.
    let config = "header_deadline = \"1s\"\nbody_deadline = \"1s\"\nkeepalive_timeout = \"3s\"\n";
    let gateway = Gateway::over(&fleet, config).await;
    let start = now();
    let mut silent = send(&gateway, b"").await;
    let mut half_head = send(&gateway, b"POST /v1/chat/comp").await;
    let mut half_body =
        send(&gateway, b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 9\r\n\r\n{").await;
    let mut idle = send(&gateway, b"GET /healthz HTTP/1.1\r\nHost: g\r\n\r\n").await;
    for (name, stream, status) in [
        ("silent", &mut silent, "HTTP/1.1 408 "),
        ("half a head", &mut half_head, "HTTP/1.1 408 "),
        ("half a body", &mut half_body, "HTTP/1.1 408 "),
        ("idle", &mut idle, "HTTP/1.1 200 "),
    ] {
        let text = read_all(stream).await.expect("no reset");
        assert!(text.starts_with(status), "{name}: {text}");
        assert!(start.elapsed() < PATIENCE, "{name}: {:?}", start.elapsed());
    }
    // Half-closed: nobody is known to read the answer, and a phone's minutes are dear.
    fleet.phones[0].set_fault_within(Fault::Slow { seconds: 60.0 }, Scope::Next(1));
    let mut half = send(&gateway, &post(CHAT, "", chat("half", true, 2).to_string().as_bytes())).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("running");
    half.shutdown().await.expect("half closed");
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.cancelled == 1).await.expect("cancelled");
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn want_of_descriptors_is_told_as_such_is_no_phones_fault_and_passes() {
    let fleet = Fleet::of(4, &phone(4, 20.0)).await;
    let gateway = Gateway::over(&fleet, "max_connections = 4096\n").await;
    let before = descriptors(&gateway);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |max: u64| Rlimit { current: Some(max), maximum };
    let pid = Pid::from_child(&gateway.child);
    let usual = prlimit(Some(pid), Resource::Nofile, limit(before as u64 + 60)).expect("our own child");
    let port = gateway.public;
    let asked = JoinSet::from_iter((0..150).map(|number| async move {
        let body = chat(&format!("short {number} {}", "word ".repeat(200)), number % 2 == 0, 8);
        let asked = async { Client::connect(port).await.post(CHAT, &body).await.answer().await };
        tokio::time::timeout(Duration::from_secs(25), asked).await.ok()
    }));
    let answers = asked.join_all().await;
    for answer in answers.iter().flatten() {
        assert!(matches!(answer.status, 200 | 503), "{}{}", answer.head, answer.text());
        if answer.status == 503 {
            let code = answer.error().expect("an error")["code"].clone();
            assert!(code == "overloaded" || code == "queue_full", "{code}");
        }
    }
    assert!(answers.iter().flatten().any(|answer| answer.status == 200), "some had room");
    assert_eq!(gateway.metric("huntgroup_replica_state_changes_total", "to=\"out\"").await, 0.0, "{}", gateway.log());
    prlimit(Some(pid), Resource::Nofile, usual).expect("our own child");
    gateway.wait_at_rest().await;
    assert!(gateway.chat(&chat("room again", false, 2)).await.is_whole("room again", 2));
    gateway.wait_for("the descriptors of before", async |gateway| descriptors(gateway) <= before + 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_of_the_whole_process_harms_no_request() {
    let fleet = Fleet::of(2, &phone(2, 2.0)).await;
    let config =
        "[streams]\nfirst_token_min = \"2s\"\ngap_min = \"2s\"\n[health]\ntimeout = \"1s\"\ninterval = \"1s\"\n";
    let gateway = Gateway::over(&fleet, config).await;
    let mut asked = Vec::new();
    for number in 0..4 {
        let mut exchange = gateway.client().await.post(CHAT, &chat(&format!("paused {number}"), true, 60)).await;
        assert!(exchange.read_until("\"content\"").await, "{}", exchange.seen());
        asked.push(exchange);
    }
    gateway.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_secs(4)).await;
    gateway.signal(Signal::CONT);
    for (number, exchange) in asked.into_iter().enumerate() {
        let answer = exchange.answer().await;
        assert!(answer.is_whole(&format!("paused {number}"), 60), "{}{}", answer.head, answer.text());
    }
    gateway.wait_at_rest().await;
    gateway.wait_ready(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_http2_ends_its_own_connection_only() {
    let fleet = Fleet::of(1, &phone(2, 50.0)).await;
    let config = "header_deadline = \"1s\"\nkeepalive_timeout = \"2s\"\nmax_body = \"64KiB\"\n";
    let gateway = Gateway::builder(config).replicas(&fleet).tls().start().await;
    gateway.wait_settled(&fleet).await;
    let at_rest = descriptors(&gateway);

    // Neither a preface nor a request.
    for preface in [b"".as_slice(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"] {
        let (mut silent, since) = (tls::connect(&gateway, &[b"h2"]).await, now());
        silent.write_all(preface).await.expect("open");
        let mut seen = Vec::new();
        drop(tokio::time::timeout(PATIENCE, silent.read_to_end(&mut seen)).await.expect("closed"));
        assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    }

    // Requests that are reset as soon as they are sent.
    let (mut sender, mut driver) = tls::http2(tls::connect(&gateway, &[b"h2"]).await).await;
    let mut sent = 0;
    for _ in 0..2000 {
        let Ok(ready) = sender.clone().ready().await else { break };
        sender = ready;
        let request = http::Request::post("https://localhost/v1/chat/completions").body(()).expect("a request");
        let Ok((_, mut stream)) = sender.send_request(request, false) else { break };
        drop(stream.send_data(chat("reset", true, 50).to_string().into(), true));
        stream.send_reset(h2::Reason::CANCEL);
        sent += 1;
    }
    assert!(sent > 0);
    driver.abort_all();
    gateway.wait_at_rest().await;

    // More, and less, than the length that was promised; and more than is allowed.
    for (length, body, expected) in [(3, 50, None), (50, 3, None), (70_000, 70_000, Some(413))] {
        let (mut sender, _driver) = tls::http2(tls::connect(&gateway, &[b"h2"]).await).await;
        let request = http::Request::post("https://localhost/v1/chat/completions").header("content-length", length);
        let (answer, mut stream) = sender.send_request(request.body(()).expect("a request"), false).expect("sent");
        drop(stream.send_data(vec![b' '; body].into(), true));
        let answer = tokio::time::timeout(PATIENCE, answer).await.expect("an end");
        match (answer, expected) {
            (Ok(answer), Some(status)) => assert_eq!(answer.status(), status),
            (Ok(answer), None) => assert!(answer.status().is_client_error(), "{}", answer.status()),
            (Err(_), expected) => assert_eq!(expected, None),
        }
    }
    let (mut sender, _driver) = tls::http2(tls::connect(&gateway, &[b"h2"]).await).await;
    let (answer, _stream) = tls::send(&mut sender, &chat("after all that", false, 4)).await;
    let answer: Value = serde_json::from_str(&tls::text(answer).await).expect("JSON");
    assert_eq!(answer["choices"][0]["message"]["content"], crate::harness::expected("after all that", 4));
    gateway.wait_at_rest().await;
    // The idle ones are closed after their time.
    gateway.wait_for("the descriptors of before", async |gateway| descriptors(gateway) <= at_rest + 4).await;
    assert_eq!(gateway.metric("huntgroup_panics_total", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hang_ups_in_the_moment_of_the_last_chunk_lose_no_slot() {
    let fleet = Fleet::of(2, &phone(2, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let (before, port) = (descriptors(&gateway), gateway.public);
    let leavers = JoinSet::from_iter((0..4).map(|client| async move {
        for round in 0..50 {
            let body = chat(&format!("{client} {round}"), true, 3);
            let mut exchange = Client::connect(port).await.post(CHAT, &body).await;
            let last = if round % 2 == 0 { "finish_reason\":\"" } else { "[DONE]" };
            exchange.read_until(last).await;
            exchange.leave();
        }
    }));
    leavers.join_all().await;
    gateway.wait_at_rest().await;
    assert_eq!(fleet.over_subscribed(), 0);
    gateway.wait_for("the descriptors of before", async |gateway| descriptors(gateway) <= before + 8).await;
}

/// A small generator of numbers: the same seed, the same run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, max: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % max
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn phones_that_die_and_clients_that_leave_at_random_leave_nothing_behind() {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let (seconds, seed) = (number("HUNTGROUP_STORM_SECONDS", 6), number("HUNTGROUP_SEED", 1));
    let fleet = Fleet::of(12, &phone(2, 20.0)).await;
    let config = "[streams]\nfirst_token_min = \"3s\"\ngap_min = \"2s\"\nplain_total = \"5s\"\n[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n\
                  penalty = \"1s\"\npenalty_cap = \"2s\"\n[pool]\nconnect_timeout = \"1s\"\ntls_timeout = \"1s\"\n";
    let gateway = Gateway::over(&fleet, config).await;
    let (before, port, end) = (descriptors(&gateway), gateway.public, now() + Duration::from_secs(seconds));
    let clients = JoinSet::from_iter((0..40).map(|client| async move {
        let mut dice = Dice(seed * 1000 + client);
        while now() < end {
            let body = chat(
                &format!("{} {client}", "word ".repeat(dice.below(400) as usize)),
                dice.below(2) == 0,
                1 + dice.below(20) as u32,
            );
            let exchange = Client::connect(port).await.post(CHAT, &body).await;
            let patience = Duration::from_millis(if dice.below(3) == 0 { dice.below(400) } else { 30_000 });
            if let Ok(answer) = tokio::time::timeout(patience, exchange.answer()).await {
                let known = matches!(answer.status, 200 | 502 | 503);
                let ended = answer.clean == (answer.status != 200 || !answer.text().contains("\"error\""));
                assert!(known && ended, "clean {}: {}{}", answer.clean, answer.head, answer.text());
            }
        }
    }));
    let storm = async {
        let mut dice = Dice(seed);
        while now() < end {
            let phone = &fleet.phones[dice.below(12) as usize];
            match dice.below(4) {
                0 => phone.kill(),
                1 => phone.set_fault(Fault::ResetAfter { chunks: 2 }),
                2 => phone.set_fault(Fault::BlackHole),
                _ => phone.set_fault(Fault::HangAfter { chunks: 1 }),
            }
            tokio::time::sleep(Duration::from_millis(20 + dice.below(150))).await;
            let phone = &fleet.phones[dice.below(12) as usize];
            phone.clear_fault();
            if !phone.is_alive() {
                phone.revive();
            }
            if dice.below(10) == 0 {
                gateway.signal(Signal::HUP);
            }
        }
    };
    tokio::join!(storm, clients.join_all());
    for phone in &fleet.phones {
        phone.clear_fault();
        if !phone.is_alive() {
            phone.revive();
        }
    }
    let quiet = now();
    gateway.wait_at_rest().await;
    assert!(quiet.elapsed() < PATIENCE, "{:?}", quiet.elapsed());
    // A phone that lost its network, or is busy, hears of a hang-up after the next request has come: rare, not never.
    let started: u64 = fleet.phones.iter().map(|phone| phone.stats().started).sum();
    assert!(fleet.over_subscribed() * 50 <= started, "{} of {started}", fleet.over_subscribed());
    // Probation ends with a good answer, and there is no more traffic.
    gateway
        .wait_for("twelve usable phones", async |g| g.states("ready").await + g.states("probation").await == 12)
        .await;
    assert!(quiet.elapsed() < PATIENCE, "{:?}", quiet.elapsed());
    gateway.wait_for("the descriptors of before", async |gateway| descriptors(gateway) <= before + 16).await;
    assert_eq!(gateway.metric("huntgroup_panics_total", "").await, 0.0);
    assert!(gateway.chat(&chat("calm", true, 4)).await.is_whole("calm", 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_connections_of_one_address_leave_room_for_others_and_nothing_behind() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let file = gateway.dir().join("huntgroup.toml");
    let text = fs::read_to_string(&file).expect("a file");
    fs::write(&file, text.replace("max_connections_per_address = 4096", "max_connections_per_address = 50"))
        .expect("a file");
    assert_eq!(gateway.admin("POST", "/admin/reload", Some(&json!({}))).await.status, 200);
    let before = descriptors(&gateway);
    let mut open = Vec::new();
    for _ in 0..2000 {
        open.push(TcpStream::connect(("127.0.0.1", gateway.public)).await.expect("accepted"));
    }
    gateway.wait_for("50 open connections", async |g| descriptors(g) <= before + 50 + 4).await;
    // Another address of this host.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.2:0".parse().expect("an address")).expect("bound");
    let mut other = socket.connect(([127, 0, 0, 1], gateway.public).into()).await.expect("accepted");
    other.write_all(&post(CHAT, "", chat("other", false, 2).to_string().as_bytes())).await.expect("open");
    assert!(read_answers(&mut other, 1).await.starts_with("HTTP/1.1 200 "));
    drop((open, other));
    gateway.wait_for("the descriptors of before", async |g| descriptors(g) <= before + 8).await;
    assert!(gateway.chat(&chat("first again", false, 2)).await.is_whole("first again", 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_heads_are_cut_off() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut stream = send(&gateway, b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n").await;
    let (line, mut sent) = (format!("x-{}: {}\r\n", "n".repeat(20), "v".repeat(4000)), 0);
    // An error says that the gateway closed.
    while sent < 10 << 20 && stream.write_all(line.as_bytes()).await.is_ok() {
        sent += line.len();
    }
    drop(stream.write_all(b"\r\n").await);
    let text = read_all(&mut stream).await.unwrap_or_default();
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    assert!(sent < 8 << 20, "it took {sent} bytes of a head");
    assert!(gateway.chat(&chat("after", false, 2)).await.is_whole("after", 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_streams_outlast_reloads_and_a_drain_and_a_second_signal_ends_at_once() {
    let fleet = Fleet::of(25, &phone(4, 4.0)).await;
    let mut gateway = Gateway::over(&fleet, "").await;
    let mut streams = Vec::new();
    for number in 0..100 {
        streams.push(gateway.client().await.post(CHAT, &chat(&format!("run {number}"), true, 40)).await);
    }
    for stream in &mut streams {
        assert!(stream.read_until("\"content\"").await, "{}", stream.seen());
        gateway.signal(Signal::HUP);
    }
    gateway.signal(Signal::TERM);
    for (number, stream) in streams.into_iter().enumerate() {
        let answer = stream.answer().await;
        assert!(answer.is_whole(&format!("run {number}"), 40), "{}{}", answer.head, answer.text());
    }
    assert!(gateway.exited().await.success());

    gateway.restart().await;
    gateway.wait_ready(25).await;
    let mut stream = gateway.client().await.post(CHAT, &chat("long", true, 2000)).await;
    assert!(stream.read_until("\"content\"").await, "{}", stream.seen());
    gateway.signal(Signal::TERM);
    gateway.wait_for("a drain", async |g| g.log().matches("draining").count() == 2).await;
    let since = now();
    gateway.signal(Signal::TERM);
    gateway.exited().await;
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    assert!(!stream.answer().await.clean, "an answer that was cut must not look whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_changes_every_limit_of_the_data_path() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "[health]\nsoft_failures = 100\nmin_samples = 1000\n").await;
    let file = gateway.dir().join("huntgroup.toml");
    let text = fs::read_to_string(&file).expect("a file");
    let server = "[server]\nheader_deadline = \"1s\"\nbody_deadline = \"1s\"\nbody_deadline_per_64k = \"0s\"\n\
                  keepalive_timeout = \"1s\"\nmax_body = \"2KiB\"\nwrite_timeout = \"1s\"\n";
    let streams = "[streams]\nhead_after = \"1s\"\nkeepalive_interval = \"1s\"\nfirst_token_min = \"3s\"\n\
                   gap_min = \"1s\"\ncontinue = \"never\"\nplain_total = \"1s\"\nmax_event = \"64KiB\"\n\
                   max_answer = \"64KiB\"\n";
    fs::write(&file, text.replace("[server]\n", server) + streams).expect("a file");
    let reloaded = gateway.admin("POST", "/admin/reload", Some(&json!({}))).await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());

    let phone = &fleet.phones[0];
    let long = json!({"model": MODEL, "messages": [{"role": "user", "content": "x".repeat(3000)}]});
    assert_eq!(gateway.chat(&long).await.status, 413);
    for (fault, stream, seconds) in [
        (Fault::HangAfter { chunks: 2 }, true, 1..4),
        (Fault::FreezeBeforeHead, true, 3..6),
        (Fault::FreezeBeforeHead, false, 3..6),
        (Fault::Drip { bytes_per_s: 1 }, false, 3..6),
    ] {
        phone.set_fault(fault.clone());
        let since = now();
        let answer = gateway.chat(&chat("limits", stream, 8)).await;
        assert!(seconds.contains(&since.elapsed().as_secs()), "{fault:?} {stream}: {:?}", since.elapsed());
        assert_eq!(answer.error().expect("an error")["code"], "upstream_error", "{}{}", answer.head, answer.text());
        let waited = stream && fault == Fault::FreezeBeforeHead;
        assert!(!waited || answer.text().contains(": keep-alive"), "{fault:?}: {}", answer.text());
        phone.clear_fault();
        gateway.wait_at_rest().await;
    }
    phone.set_fault(Fault::FreezeBeforeHead);
    let since = now();
    let embedding = json!({"model": MODEL, "input": "in one piece"});
    let answer = gateway.client().await.post("/v1/embeddings", &embedding).await.answer().await;
    assert!((1..3).contains(&since.elapsed().as_secs()), "{:?}", since.elapsed());
    assert_eq!(answer.error().expect("an error")["code"], "upstream_error", "{}", answer.text());
    phone.clear_fault();
    gateway.wait_at_rest().await;
    phone.set_fault(Fault::EndlessStream);
    let stalled = gateway.client().await.post(CHAT, &chat("limits", true, 8)).await;
    phone.wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("running");
    gateway.wait_at_rest().await;
    stalled.leave();
}
