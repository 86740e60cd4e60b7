//! Batches on phones that answer nonsense, or far too much, and on a disk that takes nothing: each line has one end that says what
//! happened, and no more is held than has to be.

use std::{collections::BTreeMap, fs, time::Duration};

use fakephone::Fault;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    batches::{assert_answered, batch, call, chats, create, ended, results, upload},
    harness::{Fleet, Gateway, MODEL, phone},
};

/// Bytes of a large answer, and of one of which there are many.
const LARGE: usize = 5 << 20;
const MEDIUM: usize = 1 << 20;
/// Less than a page of a database.
const NOTHING: u64 = 1_000;
/// Less than a database of answers, more than a log of words.
const LITTLE: u64 = 1 << 20;

/// A phone that answers embeddings with what their input is about.
struct Oddity {
    url: String,
    _doors: JoinSet<()>,
}

/// The body of an answer.
fn odd(about: &str) -> String {
    let vector = |length: usize| vec!["0.25"; length].join(",");
    let around = |inside: &str| {
        format!(
            "{{\"object\":\"list\",\"model\":\"odd\",{inside}\"data\":[{{\"object\":\"embedding\",\"index\":0,\"embedding\":[{}]}}],\
             \"usage\":{{\"prompt_tokens\":3,\"total_tokens\":3}}}}",
            vector(4)
        )
    };
    match about {
        "html" => "<html><body>502 Bad Gateway</body></html>".into(),
        "nothing" => String::new(),
        "half" => around("")[..60].into(),
        "two" => around("") + &around(""),
        "break" => around("\"note\":\"one\ntwo\","),
        "breaks" => around("").replace(',', ",\r\n  "),
        "ends" => around("\"note\":\"one\u{2028}two\u{85}three\","),
        "large" => around(&format!("\"note\":\"{}\",", "wort ".repeat(LARGE / 5))),
        "medium" => around(&format!("\"note\":\"{}\",", "wort ".repeat(MEDIUM / 5))),
        _ => around(""),
    }
}

impl Oddity {
    async fn start() -> Self {
        let door = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let url = format!("http://{}", door.local_addr().expect("an address"));
        let mut doors = JoinSet::new();
        doors.spawn(async move {
            let mut visits = JoinSet::new();
            while let Ok((stream, _)) = door.accept().await {
                visits.spawn(async move { drop(Self::serve(stream).await) });
            }
        });
        Self { url, _doors: doors }
    }

    async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
        let mut seen = Vec::new();
        let is_whole = |seen: &[u8]| seen.ends_with(b"}") || seen.starts_with(b"GET") && seen.ends_with(b"\r\n\r\n");
        while !is_whole(&seen) {
            if stream.read_buf(&mut seen).await? == 0 {
                return Ok(());
            }
        }
        let text = String::from_utf8_lossy(&seen);
        let body = if text.starts_with("POST /v1/embeddings") {
            let input = text.split_once("\"input\":\"").and_then(|(_, rest)| rest.split_once(['-', '"']));
            odd(input.map_or("", |(about, _)| about))
        } else if text.starts_with("GET /v1/models") {
            r#"{"object":"list","data":[{"id":"odd","object":"model"}]}"#.into()
        } else {
            r#"{"status":"ok"}"#.into()
        };
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ";
        stream.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).await
    }

    async fn gateway(&self, config: &str) -> Gateway {
        let config = format!(
            "{config}\n[batches]\nmax_tries = 2\n[health]\nsoft_failures = 100\nmin_success_share = 0.0\n[scheduler]\nretry_share = 1.0\n\
             [[replicas]]\nurl = \"{}\"\nmodels = [\"odd\"]\nslots = 2\ndialect = \"openai\"\n",
            self.url
        );
        let gateway = Gateway::builder(&config).start().await;
        gateway.wait_ready(1).await;
        gateway
    }
}

/// A batch of embeddings: what their inputs are about, by custom id.
async fn embed(gateway: &Gateway, lines: &[(String, String)]) -> String {
    let entry = |(name, about): &(String, String)| {
        let body = json!({"model": "odd", "input": about});
        json!({"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": body}).to_string() + "\n"
    };
    let file = upload(gateway, &lines.iter().map(entry).collect::<String>()).await;
    let body = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
    let made = call(gateway, "POST", "/v1/batches", Some(&body)).await;
    assert_eq!(made.status, 200, "{}", made.text());
    made.json()["id"].as_str().expect("an id").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_no_json_fail_their_line_and_odd_ones_that_are_come_through() {
    let phone = Oddity::start().await;
    let gateway = phone.gateway("").await;
    let good = ["plain", "breaks", "ends"];
    let bad = ["html", "nothing", "half", "two", "break"];
    let names = ["say \"it\"", "back\\slash", "tab\tand\nline", "🐴 Ünï", "line\u{2028}end", &"ü".repeat(256)];
    let about = |name: &&str| ((*name).to_owned(), (*name).to_owned());
    let mut lines: Vec<(String, String)> = good.iter().chain(&bad).map(about).collect();
    lines.extend(names.iter().map(|name| ((*name).to_owned(), "plain".to_owned())));
    let id = embed(&gateway, &lines).await;
    let done = ended(&gateway, &id).await;
    assert_eq!(done["status"], "completed", "{done}");
    let (output, errors) = results(&gateway, &done, lines.len()).await;
    assert!(bad.iter().all(|name| errors.contains_key(*name)) && errors.len() == bad.len(), "{:?}", errors.keys());
    for line in errors.values() {
        assert!(line["response"]["status_code"].as_u64() >= Some(500), "{line}");
        assert!(line["response"]["body"]["error"]["message"].is_string(), "{line}");
        assert!(!line.to_string().contains("<html"), "words of the tunnel: {line}");
    }
    assert!(names.iter().all(|name| output.contains_key(*name)));
    for name in good {
        let expected: Value = serde_json::from_str(&odd(name)).expect("JSON");
        assert_eq!(output[name]["response"]["body"], expected);
    }
    assert_eq!(done["usage"]["input_tokens"], 3 * output.len());
    gateway.wait_at_rest().await;
}

/// Resident memory, and the most of it, in bytes.
pub fn memory(gateway: &Gateway) -> BTreeMap<&'static str, u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.child.id())).expect("a process of ours");
    let of = |name: &'static str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of it");
        let kib = line.trim_start_matches(':').split_whitespace().next().and_then(|text| text.parse::<u64>().ok());
        (name, kib.expect("a number") << 10)
    };
    ["VmRSS", "VmHWM"].map(of).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_megabytes_are_not_piled_up() {
    const LINES: usize = 36;
    let phone = Oddity::start().await;
    let gateway = phone.gateway("[limits]\nmax_buffered_bytes = \"64MiB\"\n").await;
    let before = memory(&gateway)["VmRSS"];
    let lines: Vec<_> = (0..LINES).map(|number| (format!("line-{number}"), format!("large-{number}"))).collect();
    let id = embed(&gateway, &lines).await;
    let done = ended(&gateway, &id).await;
    let most = memory(&gateway)["VmHWM"];
    assert_eq!(done["request_counts"], json!({"total": LINES, "completed": LINES, "failed": 0}), "{done}");
    let file = done["output_file_id"].as_str().expect("a file");
    let bytes = call(&gateway, "GET", &format!("/v1/files/{file}"), None).await.json()["bytes"].as_u64();
    assert!(bytes > Some((LINES * LARGE) as u64), "{bytes:?}");
    println!("{LINES} answers of {LARGE} bytes: {before} bytes before, {most} at most");
    // A quarter of what may be buffered waits to be stored, and few more come and are written.
    assert!(most - before < 128 << 20, "{before} → {most}");
    gateway.wait_at_rest().await;
}

/// How long files may become that the process writes to; `None`: as long as they could before.
fn limit_files(gateway: &Gateway, length: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = Rlimit { current: length.or(maximum), maximum };
    prlimit(Some(Pid::from_child(&gateway.child)), Resource::Fsize, limit).expect("our own child");
}

/// The database takes nothing while lines run: their results wait, no further lines begin, and none is run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_waits_for_a_disk_that_takes_nothing_and_loses_no_result() {
    const LINES: usize = 400;
    let fleet = Fleet::of(3, &phone(2, 8.0)).await;
    let gateway = Gateway::over(&fleet, "[batches]\nlease = \"2s\"\n").await;
    let file = upload(&gateway, &chats(LINES)).await;
    let id = create(&gateway, &file, "24h").await;
    // A question that shares a transaction with a write that fails is refused with it: it is asked again.
    let completed = async |g: &Gateway| loop {
        if let Some(completed) = batch(g, &id).await["request_counts"]["completed"].as_u64() {
            return completed;
        }
    };
    gateway.wait_for("some results", async |g| completed(g).await > 20).await;
    limit_files(&gateway, Some(NOTHING));
    gateway
        .wait_for("it to wait for the disk", async |g| batch(g, &id).await["huntgroup"]["waiting_for"] == "disk")
        .await;
    let started = || fleet.phones.iter().map(|phone| phone.stats().started).sum::<u64>();
    let (begun, stored) = (started(), completed(&gateway).await);
    assert!(stored < LINES as u64, "the batch was over before the disk was full");
    // Longer than the lease, with everything that writes at leisure in between.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((started(), completed(&gateway).await), (begun, stored), "nothing is begun that can't be stored");
    assert_eq!(gateway.chat(&crate::harness::chat("hi", false, 2)).await.status, 200, "others are served");
    limit_files(&gateway, None);
    let done = ended(&gateway, &id).await;
    assert_eq!(done["status"], "completed", "{done}");
    let (output, errors) = results(&gateway, &done, LINES).await;
    assert!(errors.is_empty());
    (0..LINES).for_each(|number| assert_answered(&output, number));
    assert_eq!(started(), LINES as u64 + 1, "what was worked out before was stored after");
    gateway.wait_at_rest().await;
}

/// The same while files are written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_files_find_no_room_ends_when_there_is_some() {
    const LINES: usize = 30;
    let phone = Oddity::start().await;
    let gateway = phone.gateway("").await;
    let lines: Vec<_> = (0..LINES).map(|number| (format!("line-{number}"), format!("medium-{number}"))).collect();
    let id = embed(&gateway, &lines).await;
    gateway.wait_for("the last result", async |g| !batch(g, &id).await["finalizing_at"].is_null()).await;
    limit_files(&gateway, Some(LITTLE));
    gateway.wait_for("a word about it", async |g| g.log().contains("work on a batch failed")).await;
    let stuck = batch(&gateway, &id).await;
    assert!(stuck["status"] == "finalizing" && stuck["output_file_id"].is_null(), "{stuck}");
    limit_files(&gateway, None);
    let done = ended(&gateway, &id).await;
    assert_eq!(done["request_counts"], json!({"total": LINES, "completed": LINES, "failed": 0}), "{done}");
    assert_eq!(results(&gateway, &done, LINES).await.0.len(), LINES);
    gateway.wait_at_rest().await;
}

/// A phone that breaks off whatever it begins costs a line its tries, each with its own failing over, and then tells why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_that_answers_half_of_everything_costs_tries_and_no_line() {
    let fleet = Fleet::of(2, &phone(1, 40.0)).await;
    let config = "[health]\nsoft_failures = 100\nmin_success_share = 0.0\n[scheduler]\nretry_share = 1.0\n";
    let gateway = Gateway::over(&fleet, config).await;
    let file = upload(&gateway, &chats(12)).await;
    fleet.phones[0].set_fault(Fault::BrokenJson);
    let id = create(&gateway, &file, "24h").await;
    let done = ended(&gateway, &id).await;
    assert_eq!(done["model"], MODEL);
    let (output, errors) = results(&gateway, &done, 12).await;
    assert!(errors.is_empty(), "{errors:?}");
    (0..12).for_each(|number| assert_answered(&output, number));
    gateway.wait_at_rest().await;
}
