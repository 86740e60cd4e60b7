//! A phone may do anything: whatever it sends, the client gets an answer or an error of the right shape, and nothing else of it.

use std::time::Duration;

use fakephone::{Fault, LineEnding};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::harness::{Answer, Client, Fleet, Gateway, now, phone};

/// No phone that the timeouts below bound can make a client wait longer.
const LIMIT: Duration = Duration::from_secs(60);
/// Every header that an answer may carry.
const HEADERS: [&str; 13] = [
    "content-type",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "date",
    "cache-control",
    "x-accel-buffering",
    "x-request-id",
    "openai-processing-ms",
    "retry-after",
    "x-should-retry",
    "allow",
];

/// Faults of a phone that answers, or should; those of its connection have tests of their own.
fn faults() -> Vec<Fault> {
    let status = |code, retry_after| Fault::Status { code, retry_after };
    let mut all = vec![
        Fault::ResetBeforeHead,
        Fault::CloseBeforeHead,
        Fault::FreezeBeforeHead,
        Fault::Html { status: 200 },
        Fault::Html { status: 404 },
        Fault::Html { status: 502 },
        Fault::Html { status: 530 },
        Fault::Empty200,
        Fault::BrokenJson,
        Fault::Redirect { location: "http://127.0.0.1:1/leaked".into() },
        Fault::WrongKey,
        Fault::Slow { seconds: 0.3 },
        Fault::Slow { seconds: 60.0 },
        Fault::HeadThenSilence { seconds: 60.0 },
        Fault::CutAfter { chunks: 0, mid_word: false },
        Fault::CutAfter { chunks: 3, mid_word: true },
        Fault::ResetAfter { chunks: 3 },
        Fault::HangAfter { chunks: 3 },
        Fault::ErrorAfter { chunks: 0, code: 400 },
        Fault::ErrorAfter { chunks: 3, code: 500 },
        Fault::EarlyDone { chunks: 0 },
        Fault::EarlyDone { chunks: 3 },
        Fault::NoDone,
        Fault::Drip { bytes_per_s: 1 },
        Fault::SplitEverywhere { line_ending: LineEnding::Cr, bytes: 3 },
        Fault::NoUsage,
        Fault::UsageInDelta,
        Fault::SillyUsage,
        Fault::NoIndexToolCalls,
        Fault::EmptyArguments,
        Fault::ExtraHeaders,
        Fault::EndlessLine,
        Fault::HugeHeaders { bytes: 1 << 20 },
        Fault::ManyHeaders { lines: 5000 },
        Fault::WrongContentLength { by: 500 },
        Fault::WrongContentLength { by: -20 },
        Fault::OddFraming,
        Fault::Flood1xx { count: 20_000 },
        Fault::GzipBomb { mebibytes: 512 },
        Fault::TerminalEscapes,
        status(429, Some(u64::MAX)),
        status(503, None),
    ];
    all.extend([400, 401, 403, 404, 405, 408, 413, 418, 422, 500, 501, 504, 599].map(|code| status(code, None)));
    all.extend([400, 401, 404, 429, 500, 503].map(|code| Fault::ErrorIn200 { code }));
    all
}

/// What a client asks on each route.
fn requests(model: &str) -> Vec<(&'static str, Value)> {
    let message = json!([{"role": "user", "content": "tell me"}]);
    let mut all = vec![("/v1/embeddings", json!({"model": model, "input": "tell me"}))];
    for stream in [true, false] {
        all.extend([
            ("/v1/chat/completions", json!({"model": model, "messages": message, "max_tokens": 8, "stream": stream})),
            ("/v1/completions", json!({"model": model, "prompt": "tell me", "max_tokens": 8, "stream": stream})),
            ("/v1/responses", json!({"model": model, "input": "tell me", "max_output_tokens": 8, "stream": stream})),
            ("/v1/messages", json!({"model": model, "messages": message, "max_tokens": 8, "stream": stream})),
        ]);
    }
    all
}

/// Why this is no answer that a client should ever get; `None` if it is one.
fn objection(path: &str, answer: &Answer) -> Option<&'static str> {
    let text = answer.text();
    let sse = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    let unknown = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        !name.is_empty() && !name.starts_with("x-huntgroup-") && !HEADERS.contains(&name.as_str())
    };
    if answer.head.lines().skip(1).any(|line| unknown(&line)) {
        return Some("a header that is not ours");
    }
    if text.contains("<html") || text.contains("leaked") || answer.head.contains("leaked") {
        return Some("words of the tunnel");
    }
    if !matches!(answer.status, 200 | 400 | 404 | 413 | 422 | 429 | 501..=504) {
        return Some("a status that is not in the contract");
    }
    if !sse {
        let Ok(Value::Object(body)) = serde_json::from_slice::<Value>(&answer.body) else {
            return Some("no JSON object");
        };
        if !answer.clean {
            return Some("a broken body");
        }
        let Some(error) = body.get("error").filter(|error| !error.is_null()) else {
            return (answer.status != 200).then_some("an error without an error object");
        };
        let whole = error["message"].is_string() && error["type"].is_string();
        // The Messages API has its own error object.
        let keys = path == "/v1/messages" || ["param", "code"].iter().all(|key| error.get(*key).is_some());
        return match (whole && keys, answer.status) {
            (false, _) => Some("an error object without its keys"),
            (_, 200) => Some("an error with status 200"),
            _ => None,
        };
    }
    let ended = match path {
        "/v1/responses" => ["\"response.completed\"", "\"response.incomplete\""].iter().any(|end| text.contains(end)),
        "/v1/messages" => text.contains("\"message_stop\""),
        _ => text.ends_with("data: [DONE]\n\n") && text.contains("\"finish_reason\":\""),
    };
    let failed = text.contains("\"error\"");
    match (answer.clean, ended, failed) {
        (true, true, false) | (false, false, true) => None,
        (true, ..) => Some("a clean end of an answer that is not whole"),
        (false, ..) => Some("an aborted stream without an error event"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_phone_does_the_client_gets_an_answer_or_an_error_of_the_right_shape() {
    let faults = faults();
    let model = |number: usize| format!("model-{number}");
    let config = |number| phone(3, 200.0).with_model(model(number));
    let fleet = Fleet::start((0..faults.len()).map(config)).await;
    // A model has one phone here: it stays in the pool, so that every request meets its fault.
    let gateway = Gateway::over(
        &fleet,
        "[streams]\nfirst_token_min = \"2s\"\ngap_min = \"1s\"\nplain_total = \"3s\"\nmax_event = \"64KiB\"\n\
         [health]\nhard_failures = 100\nsoft_failures = 100\nmin_samples = 1000\n\
         [scheduler]\nno_replica_wait = \"2s\"\nmax_age_standard = \"3s\"\nretry_floor = 1000\n",
    )
    .await;
    for (phone, fault) in fleet.phones.iter().zip(&faults) {
        phone.set_fault(fault.clone());
    }
    let port = gateway.public;
    let mut asked = JoinSet::new();
    for (number, fault) in faults.into_iter().enumerate() {
        for (path, body) in requests(&model(number)) {
            let fault = fault.clone();
            asked.spawn(async move {
                let asked = async { Client::connect(port).await.post(path, &body).await.answer().await };
                let Ok(answer) = tokio::time::timeout(LIMIT, asked).await else {
                    return Some(format!("{fault:?} {path} stream {}: no end within {LIMIT:?}", body["stream"]));
                };
                let why = objection(path, &answer)?;
                let text: String = answer.text().chars().take(600).collect();
                Some(format!("{fault:?} {path} stream {}: {why}: {}{text}", body["stream"], answer.head))
            });
        }
    }
    let objections: Vec<String> = asked.join_all().await.into_iter().flatten().collect();
    assert!(objections.is_empty(), "{} objections\n{}", objections.len(), objections.join("\n---\n"));
    gateway.wait_at_rest().await;
    assert_eq!(gateway.metric("huntgroup_panics_total", "").await, 0.0);
    assert!(!gateway.log().contains('\u{1b}'), "terminal escapes of a phone in the log");
}

/// A phone that is ready for the model `raw`, and answers a request for work with bytes of the test's own, once or for ever.
struct RawPhone {
    url: String,
    _doors: JoinSet<()>,
}

impl RawPhone {
    async fn spawn(once: &'static str, forever: &'static str) -> Self {
        let door = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let url = format!("http://{}", door.local_addr().expect("an address"));
        let mut doors = JoinSet::new();
        doors.spawn(async move {
            let mut visits = JoinSet::new();
            while let Ok((stream, _)) = door.accept().await {
                // A visit ends with an error when the gateway hangs up; that is how it should end.
                visits.spawn(async move { drop(Self::serve(stream, once, forever).await) });
            }
        });
        Self { url, _doors: doors }
    }

    async fn serve(mut stream: TcpStream, once: &str, forever: &str) -> std::io::Result<()> {
        let mut seen = Vec::new();
        while !seen.ends_with(b"}") && !seen.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut seen).await? == 0 {
                return Ok(());
            }
        }
        let body = if seen.starts_with(b"POST") {
            stream.write_all(once.as_bytes()).await?;
            let many = forever.repeat(1 + (64 << 10) / forever.len().max(1));
            while !forever.is_empty() {
                stream.write_all(many.as_bytes()).await?;
            }
            return Ok(());
        } else if seen.starts_with(b"GET /v1/models") {
            r#"{"object":"list","data":[{"id":"raw","object":"model"}]}"#
        } else {
            r#"{"status":"ok"}"#
        };
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ";
        stream.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).await
    }

    async fn gateway(&self, config: &str) -> Gateway {
        let replica = format!(
            "{config}\n[[replicas]]\nurl = \"{}\"\nmodels = [\"raw\"]\nslots = 1\ndialect = \"openai\"\n",
            self.url
        );
        let gateway = Gateway::builder(&replica).start().await;
        gateway.wait_ready(1).await;
        gateway
    }
}

fn raw(stream: bool) -> Value {
    json!({"model": "raw", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_that_floods_without_saying_anything_is_left_in_time_and_does_not_hide_a_hang_up() {
    for (once, forever) in
        [("", "HTTP/1.1 102 Processing\r\n\r\n"), (STREAM, ": still here\n\n"), (STREAM, "data: {}\n\n")]
    {
        let phone = RawPhone::spawn(once, forever).await;
        let gateway = phone.gateway("[streams]\nfirst_token_min = \"2s\"\n").await;
        let exchange = gateway.client().await.post("/v1/chat/completions", &raw(true)).await;
        gateway
            .wait_for("a busy slot", async |g| g.metric("huntgroup_replica_slots", "state=\"busy\"").await == 1.0)
            .await;
        exchange.leave();
        gateway.wait_at_rest().await;

        let answer = gateway.client().await.post("/v1/chat/completions", &raw(true)).await.answer();
        let answer = tokio::time::timeout(LIMIT, answer).await.unwrap_or_else(|_| panic!("{forever:?} has no end"));
        assert!(answer.error().is_some(), "{}{}", answer.head, answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absurd_timings_of_a_phone_harm_no_later_request() {
    let body = r#"{"id":"x","object":"chat.completion","created":1,"model":"raw","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"hi"}}],"usage":{"prompt_tokens":32,"completion_tokens":9,"total_tokens":41},"timings":{"prompt_n":32,"prompt_ms":1.8e22,"predicted_n":9,"predicted_ms":1.8e22}}"#;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let phone = RawPhone::spawn(answer.leak(), "").await;
    let gateway = phone.gateway("").await;
    for _ in 0..3 {
        for stream in [true, false] {
            let answer = gateway.client().await.post("/v1/chat/completions", &raw(stream)).await.answer().await;
            assert_eq!(answer.status, 200, "{}{}", answer.head, answer.text());
        }
    }
    assert_eq!(gateway.metric("huntgroup_panics_total", "").await, 0.0);
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_keeps_a_waiting_client_patient_never_makes_a_lost_answer_look_whole() {
    let fleet = Fleet::of(1, &phone(9, 1000.0).with_model("model-0")).await;
    let gateway = Gateway::over(
        &fleet,
        "[streams]\nkeepalive = \"chunk\"\nhead_after = \"1s\"\nkeepalive_interval = \"1s\"\nkeepalive_json_after = \"1s\"\n\
         first_token_min = \"3s\"\nplain_total = \"3s\"\n[health]\nsoft_failures = 100\nmin_samples = 1000\n",
    )
    .await;
    for (fault, whole) in [(Fault::Slow { seconds: 2.2 }, true), (Fault::FreezeBeforeHead, false)] {
        fleet.phones[0].set_fault(fault);
        let port = gateway.public;
        let asked = JoinSet::from_iter(requests("model-0").into_iter().map(|(path, body)| async move {
            let stream = body["stream"] == true;
            (path, stream, Client::connect(port).await.post(path, &body).await.answer().await)
        }));
        for (path, stream, answer) in asked.join_all().await {
            let shown = format!("{path} {stream}: {}{}", answer.head, answer.text());
            assert_eq!((answer.status, answer.clean), (200, whole), "{shown}");
            if stream {
                assert_eq!(objection(path, &answer), None, "{shown}");
                let signs = match path {
                    "/v1/responses" => ": keep-alive\n\n",
                    "/v1/messages" => "{\"type\":\"ping\"}",
                    _ => "\"id\":\"req_",
                };
                assert!(answer.text().contains(signs), "{shown}");
            } else {
                assert!(answer.body.starts_with(b" "), "{shown}");
                assert_eq!(serde_json::from_slice::<Value>(&answer.body).is_ok(), whole, "{shown}");
            }
        }
        fleet.phones[0].clear_fault();
    }
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_answers_count_towards_what_the_gateway_holds_and_leave_with_their_request() {
    let phone = RawPhone::spawn("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", "          ").await;
    let gateway = phone.gateway("[limits]\nmax_buffered_bytes = \"16MiB\"\n").await;
    for _ in 0..3 {
        let answer = gateway.client().await.post("/v1/chat/completions", &raw(false)).await.answer().await;
        assert_eq!((answer.status, answer.error().expect("an error")["code"].clone()), (503, json!("overloaded")));
        gateway.wait_at_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_a_large_answer_slowly_gets_all_of_it() {
    let text = "a".repeat(12 << 20);
    let body = format!(
        r#"{{"id":"x","object":"chat.completion","created":1,"model":"raw","choices":[{{"index":0,"finish_reason":"stop","message":{{"role":"assistant","content":"{text}"}}}}]}}"#
    );
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length";
    let phone = RawPhone::spawn(format!("{head}: {}\r\n\r\n{body}", body.len()).leak(), "").await;
    let gateway = phone.gateway("write_timeout = \"1s\"\n").await;
    let mut stream = TcpStream::connect(("127.0.0.1", gateway.public)).await.expect("open");
    let asked = raw(false).to_string();
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: {}\r\n\r\n{asked}", asked.len());
    stream.write_all(head.as_bytes()).await.expect("open");
    let (mut read, mut piece, since) = (0, vec![0; 160 << 10], now());
    while read < text.len() {
        tokio::time::sleep(Duration::from_millis(40)).await;
        let length = stream.read(&mut piece).await.expect("open");
        assert!(length > 0, "cut after {read} bytes and {:?}", since.elapsed());
        read += length;
    }
    assert!(since.elapsed() > Duration::from_secs(2), "not slow enough to tell: {:?}", since.elapsed());
}
