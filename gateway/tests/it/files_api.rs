//! Files over HTTP: whatever a client does to an upload, either the whole file is there afterwards or nothing is; what is there is
//! one tenant's, and comes back as it was.

use std::{fs, time::Duration};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::Value;
use store::{BatchStore, Stored};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    harness::{Gateway, PATIENCE, now},
    tls,
};

const BOUNDARY: &str = "a-boundary";

/// An answer, read to the end of its connection.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}{}", self.head, self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Its status, the error's code, and the parameter that it names.
    pub fn refusal(&self) -> (u16, Value, Value) {
        let error = self.json()["error"].clone();
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "no {key} in {error}");
        }
        (self.status, error["code"].clone(), error["param"].clone())
    }
}

/// Sends bytes as they are; the gateway may close before it has taken all of them.
async fn send(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("open");
    drop(stream.write_all(bytes).await);
    stream
}

async fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A reset after the answer is an end as well.
    drop(tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("an end in time"));
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
    let head = String::from_utf8_lossy(&bytes[..end + 4]).into_owned();
    let status = head.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status line");
    Answer { status, head, body: bytes[end + 4..].to_vec() }
}

/// One request on a connection of its own.
pub async fn ask(gateway: &Gateway, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let head = format!("{method} {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\n{headers}{length}\r\n");
    read(send(gateway.public, &[head.as_bytes(), body].concat()).await).await
}

pub async fn get(gateway: &Gateway, path: &str) -> Answer {
    ask(gateway, "GET", path, "", b"").await
}

/// A part of a form: the parameters of its disposition, and its content.
fn part(disposition: &str, content: &[u8]) -> Vec<u8> {
    let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n");
    [head.as_bytes(), content, b"\r\n"].concat()
}

fn form(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat(), format!("--{BOUNDARY}--\r\n").into_bytes()].concat()
}

fn purpose() -> Vec<u8> {
    part("name=\"purpose\"", b"batch")
}

fn file(name: &str, content: &[u8]) -> Vec<u8> {
    part(&format!("name=\"file\"; filename=\"{name}\""), content)
}

fn content_type() -> String {
    format!("Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n")
}

async fn post(gateway: &Gateway, headers: &str, body: &[u8]) -> Answer {
    ask(gateway, "POST", "/v1/files", &format!("{}{headers}", content_type()), body).await
}

/// Uploads a file that has to be taken; its object.
pub async fn upload(gateway: &Gateway, headers: &str, content: &[u8]) -> Value {
    let answer = post(gateway, headers, &form(&[purpose(), file("in.jsonl", content)])).await;
    assert_eq!(answer.status, 200, "{}{}", answer.head, answer.text());
    answer.json()
}

/// The head of an upload that says how long it is.
fn upload_head(length: usize) -> String {
    let kind = content_type();
    format!("POST /v1/files HTTP/1.1\r\nHost: g\r\nConnection: close\r\n{kind}Content-Length: {length}\r\n\r\n")
}

/// What the gateway's database holds, read beside it.
fn stored(gateway: &Gateway) -> Stored {
    let store = BatchStore::open(&gateway.dir().join("huntgroup-batches.db")).expect("the database");
    store.stored(None).expect("its answer")
}

async fn wait_nothing_stored(gateway: &Gateway) {
    gateway.wait_for("an empty store", async |gateway| stored(gateway).bytes == 0).await;
    assert_eq!(stored(gateway).files, 0);
}

async fn alone(config: &str) -> Gateway {
    Gateway::builder(config).start().await
}

/// Lines of a given length altogether, all different.
fn lines(length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 64);
    let mut number = 0_u64;
    while bytes.len() < length {
        bytes.extend_from_slice(
            format!("{{\"line\":{number},\"hash\":{}}}\n", number.wrapping_mul(2_654_435_761)).as_bytes(),
        );
        number += 1;
    }
    bytes.truncate(length);
    bytes
}

/// A small generator of numbers: the same seed, the same run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, max: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % max
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_comes_back_as_it_was_and_goes_when_it_is_deleted() {
    let gateway = alone("").await;
    for length in [0, 1, 65_536, 1 << 20, (1 << 20) + 1, 3_333_333] {
        let content = lines(length);
        let object = upload(&gateway, "", &content).await;
        let id = object["id"].as_str().expect("an id").to_owned();
        assert_eq!(object["object"], "file");
        assert_eq!(object["bytes"], length);
        assert_eq!(object["purpose"], "batch");
        assert_eq!(object["status"], "processed");
        assert_eq!(object["filename"], "in.jsonl");
        assert_eq!(object["status_details"], Value::Null);
        let stay = object["expires_at"].as_u64().zip(object["created_at"].as_u64()).map(|(end, start)| end - start);
        assert_eq!(stay, Some(30 * 86_400), "the usual time");
        assert_eq!(get(&gateway, &format!("/v1/files/{id}")).await.json(), object);
        let back = get(&gateway, &format!("/v1/files/{id}/content")).await;
        assert_eq!(back.status, 200);
        assert_eq!(back.header("content-type"), Some("application/octet-stream"));
        assert_eq!(back.header("content-length"), Some(&*length.to_string()));
        assert_eq!(back.header("content-disposition"), Some("attachment; filename=\"in.jsonl\""));
        assert!(back.body == content, "{length} bytes are others");
        let head = ask(&gateway, "HEAD", &format!("/v1/files/{id}/content"), "Range: bytes=0-0\r\n", b"").await;
        assert_eq!((head.status, head.header("content-length")), (200, Some(&*length.to_string())));
        assert!(head.body.is_empty());
        let deleted = ask(&gateway, "DELETE", &format!("/v1/files/{id}"), "", b"").await.json();
        assert_eq!(deleted, serde_json::json!({"id": id, "object": "file", "deleted": true}));
        for (method, path) in [("GET", ""), ("GET", "/content"), ("DELETE", "")] {
            let gone = ask(&gateway, method, &format!("/v1/files/{id}{path}"), "", b"").await;
            assert_eq!(gone.refusal(), (404, Value::Null, "id".into()), "{method} {path}");
        }
    }
    wait_nothing_stored(&gateway).await;
    gateway.wait_at_rest().await;
    let log = gateway.log();
    assert!(log.contains("call=\"upload_file\"") && log.contains("bytes=3333333"), "{log}");
    assert_eq!(gateway.metric("huntgroup_batch_api_calls_total", "call=\"upload_file\",outcome=\"ok\"").await, 6.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_is_cut_anywhere_leaves_nothing() {
    let gateway = alone("").await;
    let body =
        form(&[purpose(), file("in.jsonl", &lines(3 << 20)), part("name=\"expires_after[anchor]\"", b"created_at")]);
    let mut dice = Dice(7);
    let edges = [0, 1, 30, 150, 1 << 20, body.len() - 60, body.len() - 3, body.len() - 1];
    let anywhere: Vec<usize> = (0..24).map(|_| dice.below(body.len())).collect();
    for (number, cut) in edges.into_iter().chain(anywhere).enumerate() {
        let bytes = [upload_head(body.len()).as_bytes(), &body[..cut]].concat();
        let stream = send(gateway.public, &bytes).await;
        if number % 2 == 0 {
            // With a reset instead of an end, and what is in flight is lost.
            stream.set_zero_linger().expect("a socket option");
        }
        drop(stream);
    }
    // Without a length the end has to come as well.
    let kind = content_type();
    let chunked = format!(
        "POST /v1/files HTTP/1.1\r\nHost: g\r\n{kind}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n",
        body.len(),
        String::from_utf8(body.clone()).expect("ASCII")
    );
    drop(send(gateway.public, chunked.as_bytes()).await);
    gateway.wait_at_rest().await;
    wait_nothing_stored(&gateway).await;
    assert_eq!(get(&gateway, "/v1/files").await.json()["data"], serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_is_fine_and_silent_is_not() {
    let gateway = alone("body_deadline = \"2s\"\nbody_deadline_per_64k = \"1s\"\n").await;
    let content = lines(300 << 10);
    let body = form(&[file("in.jsonl", &content), purpose()]);
    let mut slow = send(gateway.public, upload_head(body.len()).as_bytes()).await;
    let begun = now();
    for piece in body.chunks(body.len() / 12) {
        slow.write_all(piece).await.expect("it is waited for");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let answer = read(slow).await;
    assert!(begun.elapsed() > Duration::from_secs(2), "slower than the deadline of a short body");
    assert_eq!((answer.status, answer.json()["bytes"].as_u64()), (200, Some(content.len() as u64)));
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    ask(&gateway, "DELETE", &format!("/v1/files/{id}"), "", b"").await;

    let mut silent = send(gateway.public, upload_head(100_000).as_bytes()).await;
    silent.write_all(&body[..80_000]).await.expect("open");
    let refused = read(silent).await;
    assert_eq!(refused.refusal(), (408, Value::Null, Value::Null));
    wait_nothing_stored(&gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_first_or_knows_no_length_uploads_as_any_other() {
    let gateway = alone("[batches]\nmax_file = \"1MiB\"\n").await;
    let body = form(&[purpose(), file("in.jsonl", b"{}\n")]);
    let kind = content_type();
    let asks = |length: usize| {
        format!(
            "POST /v1/files HTTP/1.1\r\nHost: g\r\nConnection: close\r\n{kind}Expect: 100-continue\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    let mut stream = send(gateway.public, asks(body.len()).as_bytes()).await;
    let mut first = [0; 25];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut first)).await.expect("in time").expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(&body).await.expect("open");
    assert_eq!(read(stream).await.status, 200);
    // Too large: told before a byte of it is asked for.
    let refused = read(send(gateway.public, asks(2 << 20).as_bytes()).await).await;
    assert_eq!(refused.refusal(), (413, Value::Null, Value::Null));
    assert!(refused.text().contains("batches.max_file"), "{}", refused.text());

    for size in [1, 7, body.len()] {
        let head = format!(
            "POST /v1/files HTTP/1.1\r\nHost: g\r\nConnection: close\r\n{kind}Transfer-Encoding: chunked\r\n\r\n"
        );
        let mut bytes = head.into_bytes();
        for piece in body.chunks(size) {
            bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            bytes.extend_from_slice(piece);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        let answer = read(send(gateway.public, &bytes).await).await;
        assert_eq!((answer.status, answer.json()["bytes"].as_u64()), (200, Some(3)), "chunks of {size}");
    }
    let most = lines(1 << 20);
    assert_eq!(upload(&gateway, "", &most).await["bytes"], 1 << 20);
    let larger = post(&gateway, "", &form(&[purpose(), file("in.jsonl", &lines((1 << 20) + 1))])).await;
    assert_eq!(larger.refusal(), (413, Value::Null, "file".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_form_is_named_and_nothing_of_it_stays() {
    let gateway = alone("").await;
    let good = || file("in.jsonl", b"{}\n");
    let field = |name: &str, value: &str| part(&format!("name=\"{name}\""), value.as_bytes());
    let (anchor, seconds) = ("expires_after[anchor]", "expires_after[seconds]");
    let many: Vec<Vec<u8>> = (0..20).map(|number| field(&format!("f{number}"), "x")).collect();
    let long_head = part(&format!("name=\"{}\"", "x".repeat(100_000)), b"x");
    let cases: Vec<(&str, Vec<u8>, &str, &str)> = vec![
        ("no purpose", form(&[good()]), "missing_required_parameter", "purpose"),
        ("another purpose", form(&[good(), field("purpose", "fine-tune")]), "invalid_value", "purpose"),
        ("a long purpose", form(&[field("purpose", &"x".repeat(50_000)), good()]), "invalid_value", "purpose"),
        ("two purposes", form(&[purpose(), purpose(), good()]), "duplicate_parameter", "purpose"),
        ("no file", form(&[purpose()]), "missing_required_parameter", "file"),
        ("two files", form(&[purpose(), good(), good()]), "duplicate_parameter", "file"),
        ("a file without a name", form(&[purpose(), field("file", "{}")]), "invalid_value", "file"),
        ("another ending", form(&[purpose(), file("in.txt", b"{}")]), "invalid_value", "file"),
        (
            "a stay without a beginning",
            form(&[purpose(), good(), field(seconds, "3600")]),
            "missing_required_parameter",
            anchor,
        ),
        (
            "a beginning without a stay",
            form(&[purpose(), good(), field(anchor, "created_at")]),
            "missing_required_parameter",
            seconds,
        ),
        (
            "another beginning",
            form(&[purpose(), field(anchor, "now"), field(seconds, "3600"), good()]),
            "invalid_value",
            anchor,
        ),
        (
            "too short a stay",
            form(&[purpose(), good(), field(anchor, "created_at"), field(seconds, "3599")]),
            "invalid_value",
            seconds,
        ),
        (
            "too long a stay",
            form(&[purpose(), good(), field(anchor, "created_at"), field(seconds, "2592001")]),
            "invalid_value",
            seconds,
        ),
        (
            "half a stay",
            form(&[purpose(), good(), field(anchor, "created_at"), field(seconds, "3600.5")]),
            "invalid_value",
            seconds,
        ),
        ("nothing", b"x".to_vec(), "invalid_multipart", ""),
        ("no end", [purpose(), good()].concat(), "invalid_multipart", ""),
        ("only an end", form(&[]), "missing_required_parameter", "purpose"),
        ("another boundary", b"--other\r\n\r\n--other--\r\n".to_vec(), "invalid_multipart", ""),
        ("many parts", form(&[many.concat(), purpose(), good()]), "invalid_multipart", ""),
        ("a long head", form(&[long_head, purpose(), good()]), "invalid_multipart", ""),
        (
            "no head",
            format!("--{BOUNDARY}\r\nno colon\r\n\r\nx\r\n--{BOUNDARY}--").into_bytes(),
            "invalid_multipart",
            "",
        ),
        ("a preamble without an end", vec![b'x'; 2 << 20], "invalid_multipart", ""),
        ("a broken boundary", format!("--{BOUNDARY}x\r\n\r\n").into_bytes(), "invalid_multipart", ""),
    ];
    for (name, body, code, param) in cases {
        let answer = post(&gateway, "", &body).await;
        let param = if param.is_empty() { Value::Null } else { param.into() };
        assert_eq!(answer.refusal(), (400, code.into(), param), "{name}: {}", answer.text());
    }
    for kind in
        ["", "Content-Type: application/json\r\n", "Content-Type: multipart/form-data\r\n", "Content-Type: \u{7f}\r\n"]
    {
        let answer = ask(&gateway, "POST", "/v1/files", kind, &form(&[purpose(), good()])).await;
        assert_eq!(answer.status, 400, "{kind}: {}", answer.text());
    }
    gateway.wait_at_rest().await;
    wait_nothing_stored(&gateway).await;

    // Unknown fields, any order, and a stay that comes last.
    let stay = [field("colour", "red"), good(), purpose(), field(seconds, "3600"), field(anchor, "created_at")];
    let object = post(&gateway, "", &form(&stay)).await.json();
    let (created, expires) = (object["created_at"].as_u64(), object["expires_at"].as_u64());
    assert_eq!(expires.zip(created).map(|(end, start)| end - start), Some(3600), "{object}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_a_label_whatever_stands_in_it() {
    let gateway = alone("").await;
    let long = format!("{}.jsonl", "x".repeat(10_000));
    let named = |name: &[u8]| {
        let head = b"name=\"file\"; filename=\"";
        let disposition =
            [b"--a-boundary\r\nContent-Disposition: form-data; ", head.as_slice(), name, b"\"\r\n\r\n{}\n\r\n"];
        form(&[purpose(), disposition.concat()])
    };
    let cases: Vec<(&[u8], String)> = vec![
        (b"../../etc/passwd.jsonl", "passwd.jsonl".into()),
        (b"C:\\Users\\me\\in.jsonl", "in.jsonl".into()),
        (b"/dev/null/.jsonl", ".jsonl".into()),
        (long.as_bytes(), format!("{}.jsonl", "x".repeat(249))),
        ("\u{202e}lnosj.exe.jsonl".as_bytes(), "lnosj.exe.jsonl".into()),
        ("ключ \u{1f511}.JSONL".as_bytes(), "ключ \u{1f511}.JSONL".into()),
        (b"\xff\xfe.jsonl", "\u{fffd}\u{fffd}.jsonl".into()),
        (b"a\\\"b;c%00.jsonl", "a\"b;c%00.jsonl".into()),
        (b"tab\there.jsonl", "tabhere.jsonl".into()),
    ];
    for (name, expected) in cases {
        let shown = String::from_utf8_lossy(name).into_owned();
        let answer = post(&gateway, "", &named(name)).await;
        assert_eq!(answer.status, 200, "{shown}: {}", answer.text());
        let object = answer.json();
        assert_eq!(object["filename"], *expected, "{shown}");
        let id = object["id"].as_str().expect("an id");
        let content = get(&gateway, &format!("/v1/files/{id}/content")).await;
        let disposition = content.header("content-disposition").expect("a name");
        assert!(disposition.starts_with("attachment; filename=\"") && disposition.is_ascii(), "{disposition}");
        assert_eq!(content.body, b"{}\n");
    }
    for name in [b"a\0b.jsonl".as_slice(), b"a\x1b[31m.jsonl"] {
        let answer = post(&gateway, "", &named(name)).await;
        assert_eq!(answer.refusal().0, 400, "a head with a control character: {}", answer.text());
    }
    assert!(!gateway.log().contains(['\u{202e}', '\u{1b}']), "letters of a name in the log");
    assert_eq!(
        fs::read_dir(gateway.dir())
            .expect("its folder")
            .filter(|entry| { entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().contains("jsonl")) })
            .count(),
        0,
        "a name became a path"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_a_file_can_be_asked_for() {
    let gateway = alone("").await;
    let content = lines(2_500_000);
    let object = upload(&gateway, "", &content).await;
    let id = object["id"].as_str().expect("an id");
    let path = format!("/v1/files/{id}/content");
    let tag = get(&gateway, &path).await.header("etag").expect("a tag").to_owned();
    let whole = content.len();
    for (headers, status, range) in [
        ("Range: bytes=0-0".to_owned(), 206, 0..1),
        ("Range: bytes=1000000-1999999".to_owned(), 206, 1_000_000..2_000_000),
        ("Range: bytes=2499990-".to_owned(), 206, 2_499_990..whole),
        ("Range: bytes=-10".to_owned(), 206, whole - 10..whole),
        ("Range: bytes=0-99999999999999999999".to_owned(), 206, 0..whole),
        ("Range: bytes=0-1,5-6".to_owned(), 200, 0..whole),
        ("Range: lines=0-1".to_owned(), 200, 0..whole),
        (format!("Range: bytes=5-9\r\nIf-Range: {tag}"), 206, 5..10),
        ("Range: bytes=5-9\r\nIf-Range: \"other\"".to_owned(), 200, 0..whole),
        ("Range: bytes=5-9\r\nIf-Range: Wed, 21 Oct 2015 07:28:00 GMT".to_owned(), 200, 0..whole),
    ] {
        let answer = ask(&gateway, "GET", &path, &format!("{headers}\r\n"), b"").await;
        assert_eq!(answer.status, status, "{headers}");
        assert_eq!(answer.header("content-length"), Some(&*range.len().to_string()), "{headers}");
        let told = (status == 206).then(|| format!("bytes {}-{}/{whole}", range.start, range.end - 1));
        assert_eq!(answer.header("content-range"), told.as_deref(), "{headers}");
        assert_eq!(answer.header("accept-ranges"), Some("bytes"));
        assert!(answer.body == content[range], "{headers}: other bytes");
    }
    for headers in ["Range: bytes=2500000-\r\n", "Range: bytes=-0\r\n"] {
        let answer = ask(&gateway, "GET", &path, headers, b"").await;
        assert_eq!(answer.refusal(), (416, Value::Null, Value::Null), "{headers}");
        assert_eq!(answer.header("content-range"), Some("bytes */2500000"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_listed_a_page_at_a_time_and_odd_questions_are_named() {
    let gateway = alone("").await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(upload(&gateway, "", b"{}\n").await["id"].as_str().expect("an id").to_owned());
    }
    let listed = async |query: &str| {
        let list = get(&gateway, &format!("/v1/files{query}")).await.json();
        let data: Vec<String> = list["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|file| file["id"].as_str().expect("an id").to_owned())
            .collect();
        assert_eq!(list["object"], "list");
        assert_eq!(list["first_id"].as_str(), data.first().map(String::as_str));
        assert_eq!(list["last_id"].as_str(), data.last().map(String::as_str));
        (data, list["has_more"].as_bool().expect("a word"))
    };
    let newest: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(listed("").await, (newest.clone(), false));
    assert_eq!(listed("?limit=2").await, (newest[..2].to_vec(), true));
    assert_eq!(listed(&format!("?limit=3&after={}", newest[1])).await, (newest[2..].to_vec(), false));
    assert_eq!(listed("?order=asc&limit=2&purpose=batch&colour=red").await, (ids[..2].to_vec(), true));
    assert_eq!(listed("?purpose=batch_output").await, (Vec::new(), false));
    // Who deletes as he lists goes on behind what he has deleted.
    ask(&gateway, "DELETE", &format!("/v1/files/{}", newest[1]), "", b"").await;
    assert_eq!(listed(&format!("?limit=2&after={}", newest[1])).await, (newest[2..4].to_vec(), true));
    for (query, param) in [
        ("?limit=0", "limit"),
        ("?limit=10001", "limit"),
        ("?limit=many", "limit"),
        ("?order=newest", "order"),
        ("?purpose=assistants", "purpose"),
        ("?after=x", "after"),
        ("?limit=1&limit=2", "limit"),
    ] {
        let answer = get(&gateway, &format!("/v1/files{query}")).await;
        assert_eq!((answer.refusal().0, answer.refusal().2), (400, param.into()), "{query}");
    }
    assert_eq!(get(&gateway, "/v1/files?after=file-unknown").await.refusal().0, 404);
    for (method, path, allow) in [
        ("PUT", "/v1/files", "GET, POST"),
        ("DELETE", "/v1/files", "GET, POST"),
        ("POST", "/v1/files/file-a", "GET, DELETE"),
        ("DELETE", "/v1/files/file-a/content", "GET"),
    ] {
        let answer = ask(&gateway, method, path, "", b"").await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some(allow)), "{method} {path}");
    }
    for id in
        ["nothing", "file-", "file-a%2fb", "file-%00", "batch_a", &format!("file-{}", "a".repeat(65)), "file-Unknown"]
    {
        let answer = get(&gateway, &format!("/v1/files/{id}")).await;
        assert_eq!(answer.refusal(), (404, Value::Null, "id".into()), "{id}");
    }
    for path in
        ["/v1/files/", "/v1/files//content", "/v1/files/file-a/b", "/v1/filesystem", "/v1/files/file-a/content/"]
    {
        assert_eq!(get(&gateway, path).await.refusal(), (404, Value::Null, Value::Null), "{path}");
    }
}

/// A gateway that wants keys, and a header for each of two tenants.
pub async fn with_two_tenants(config: &str) -> (Gateway, [String; 2]) {
    let gateway = alone(config).await;
    let path = gateway.dir().join("huntgroup.toml");
    let text = fs::read_to_string(&path).expect("its configuration");
    fs::write(&path, text.replace("auth = \"none\"", "auth = \"required\"")).expect("a file");
    assert_eq!(gateway.admin("POST", "/admin/reload", None).await.status, 200);
    let mut headers = Vec::new();
    for tenant in ["bank", "shop"] {
        let made = gateway.admin("POST", "/admin/keys", Some(&serde_json::json!({ "tenant": tenant }))).await.json();
        headers.push(format!("Authorization: Bearer {}\r\n", made["key"].as_str().expect("a key")));
    }
    (gateway, headers.try_into().expect("two"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_another_tenant_is_one_that_is_not_there() {
    let (gateway, [bank, shop]) = with_two_tenants("").await;
    let id = upload(&gateway, &bank, b"secret\n").await["id"].as_str().expect("an id").to_owned();
    let unknown = format!("file-{}", "A".repeat(24));
    for (method, path) in [("GET", ""), ("GET", "/content"), ("HEAD", "/content"), ("DELETE", "")] {
        let told = async |id: &str| {
            let answer = ask(&gateway, method, &format!("/v1/files/{id}{path}"), &shop, b"").await;
            (answer.status, answer.text().replace(id, "ID"))
        };
        assert_eq!(told(&id).await, told(&unknown).await, "{method} {path}");
        assert_eq!(told(&id).await.0, 404);
        let nobody = ask(&gateway, method, &format!("/v1/files/{id}{path}"), "", b"").await;
        assert_eq!(nobody.status, 401);
    }
    assert_eq!(ask(&gateway, "GET", "/v1/files", &shop, b"").await.json()["data"], serde_json::json!([]));
    assert_eq!(ask(&gateway, "GET", &format!("/v1/files?after={id}"), &shop, b"").await.refusal().0, 404);
    let whose = ask(&gateway, "GET", &format!("/v1/files/{id}/content"), &bank, b"").await;
    assert_eq!(whose.text(), "secret\n");
    // Without a key nothing of an upload is read.
    let refused = post(&gateway, "", &form(&[purpose(), file("in.jsonl", b"{}\n")])).await;
    assert_eq!(refused.refusal().0, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_its_share_of_room_and_of_requests() {
    let (gateway, [bank, shop]) =
        with_two_tenants("[batches]\nmax_bytes_per_tenant = \"3MiB\"\n[tenants.shop]\nrequests_per_minute = 2\n").await;
    let two = lines(2 << 20);
    let id = upload(&gateway, &bank, &two).await["id"].as_str().expect("an id").to_owned();
    let refused = post(&gateway, &bank, &form(&[purpose(), file("in.jsonl", &two)])).await;
    assert_eq!(refused.refusal(), (413, "storage_quota_exceeded".into(), Value::Null));
    assert!(refused.text().contains("batches.max_bytes_per_tenant"), "{}", refused.text());
    // The same without a length that would tell.
    let body = form(&[purpose(), file("in.jsonl", &two)]);
    let kind = content_type();
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nHost: g\r\nConnection: close\r\n{bank}{kind}Transfer-Encoding: chunked\r\n\r\n"
    );
    let chunk = format!("{:x}\r\n", body.len());
    let bytes = [head.as_bytes(), chunk.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    let refused = read(send(gateway.public, &bytes).await).await;
    assert_eq!(refused.refusal().1, "storage_quota_exceeded");
    gateway.wait_for("only the first file", async |gateway| stored(gateway).bytes == 2 << 20).await;
    // Room comes back with a deletion, and is nobody else's.
    ask(&gateway, "DELETE", &format!("/v1/files/{id}"), &bank, b"").await;
    upload(&gateway, &bank, &two).await;
    upload(&gateway, &shop, b"{}\n").await;
    let second = ask(&gateway, "GET", "/v1/files", &shop, b"").await;
    assert_eq!((second.status, second.header("x-ratelimit-limit-requests")), (200, Some("2")));
    let limited = ask(&gateway, "GET", "/v1/files", &shop, b"").await;
    assert_eq!(limited.refusal().1, "rate_limit_exceeded");
    assert!(limited.header("retry-after").is_some(), "{}", limited.head);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_so_many_files_however_small_they_are() {
    let (gateway, [bank, shop]) = with_two_tenants("[batches]\nmax_files_per_tenant = 2\n").await;
    let first = upload(&gateway, &bank, b"").await["id"].as_str().expect("an id").to_owned();
    upload(&gateway, &bank, b"").await;
    let refused = post(&gateway, &bank, &form(&[purpose(), file("in.jsonl", b"")])).await;
    assert_eq!(refused.refusal(), (413, "storage_quota_exceeded".into(), Value::Null));
    assert!(refused.text().contains("batches.max_files_per_tenant"), "{}", refused.text());
    upload(&gateway, &shop, b"").await;
    ask(&gateway, "DELETE", &format!("/v1/files/{first}"), &bank, b"").await;
    upload(&gateway, &bank, b"").await;
}

/// The most memory that the process has used, in bytes.
fn peak(gateway: &Gateway) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.child.id())).expect("a process of ours");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its peak");
    line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).expect("a number") << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_megabytes_go_in_and_out_through_a_few() {
    let gateway = alone("").await;
    upload(&gateway, "", &lines(2 << 20)).await;
    let before = peak(&gateway);
    let content = lines(100 << 20);
    let object = upload(&gateway, "", &content).await;
    assert_eq!(object["bytes"], 100 << 20);
    let after_upload = peak(&gateway);
    let id = object["id"].as_str().expect("an id");
    let head = format!("GET /v1/files/{id}/content HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n");
    let stream = send(gateway.public, head.as_bytes()).await;
    // Nobody reads for a while: nothing may pile up.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(read(stream).await.body == content, "other bytes");
    let after_download = peak(&gateway);
    println!("peak before {before}, after the upload {after_upload}, after the download {after_download}");
    assert!(after_upload.saturating_sub(before) < 40 << 20, "{before} → {after_upload}");
    assert!(after_download.saturating_sub(before) < 40 << 20, "{before} → {after_download}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_takes_no_more_is_told_as_such_and_leaves_nothing() {
    let gateway = alone("").await;
    upload(&gateway, "", b"{}\n").await;
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = |bytes| Rlimit { current: bytes, maximum };
    let pid = Pid::from_child(&gateway.child);
    let usual = prlimit(Some(pid), Resource::Fsize, limit(Some(3 << 20))).expect("our own child");
    let refused = post(&gateway, "", &form(&[purpose(), file("in.jsonl", &lines(8 << 20))])).await;
    assert!(matches!(refused.status, 503 | 507), "{}{}", refused.head, refused.text());
    let code = refused.refusal().1;
    assert!(code == "storage_full" || code == "storage_unavailable", "{code}");
    prlimit(Some(pid), Resource::Fsize, usual).expect("our own child");
    gateway.wait_for("only the first file", async |gateway| stored(gateway).bytes == 3).await;
    assert_eq!(upload(&gateway, "", &lines(8 << 20)).await["bytes"], 8 << 20);
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_killed_leaves_nothing_of_an_upload_and_all_of_a_file() {
    let mut gateway = alone("").await;
    let whole = lines(2 << 20);
    let id = upload(&gateway, "", &whole).await["id"].as_str().expect("an id").to_owned();
    let body = form(&[purpose(), file("in.jsonl", &lines(8 << 20))]);
    let half = [upload_head(body.len()).as_bytes(), &body[..5 << 20]].concat();
    let uploading = send(gateway.public, &half).await;
    gateway.wait_for("a part of it", async |gateway| stored(gateway).bytes > 4 << 20).await;
    gateway.signal(Signal::KILL);
    gateway.exited().await;
    drop(uploading);
    gateway.restart().await;
    gateway.wait_for("only the first file", async |gateway| stored(gateway).bytes == 2 << 20).await;
    assert!(get(&gateway, &format!("/v1/files/{id}/content")).await.body == whole);
    assert_eq!(get(&gateway, "/v1/files").await.json()["data"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_is_whole_or_visibly_broken_when_its_file_is_deleted() {
    let gateway = alone("").await;
    let content = lines(48 << 20);
    let id = upload(&gateway, "", &content).await["id"].as_str().expect("an id").to_owned();
    let head = format!("GET /v1/files/{id}/content HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n");
    let mut reader = send(gateway.public, head.as_bytes()).await;
    let mut first = vec![0; 100_000];
    reader.read_exact(&mut first).await.expect("it has begun");
    assert_eq!(ask(&gateway, "DELETE", &format!("/v1/files/{id}"), "", b"").await.status, 200);
    let mut rest = Vec::new();
    drop(tokio::time::timeout(PATIENCE, reader.read_to_end(&mut rest)).await.expect("an end in time"));
    let answer = parse(&[first, rest].concat());
    assert_eq!(answer.header("content-length"), Some(&*content.len().to_string()));
    assert!(answer.body.len() <= content.len() && answer.body == content[..answer.body.len()], "other bytes");
    gateway.wait_at_rest().await;
    assert_eq!(get(&gateway, &format!("/v1/files/{id}/content")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_go_in_and_out_over_http2() {
    let gateway = Gateway::builder("").tls().start().await;
    let content = lines(700_000);
    let body = form(&[purpose(), file("in.jsonl", &content)]);
    let (mut sender, _driver) = tls::http2(tls::connect(&gateway, &[b"h2"]).await).await;
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let request =
        http::Request::post("https://localhost/v1/files").header("content-type", kind).body(()).expect("a request");
    let (answer, mut stream) = sender.send_request(request, false).expect("sent");
    stream.reserve_capacity(body.len());
    let mut rest = bytes::Bytes::from(body);
    while !rest.is_empty() {
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.expect("open").expect("room");
        let piece = rest.split_to(room.min(rest.len()));
        stream.send_data(piece, rest.is_empty()).expect("sent");
        stream.reserve_capacity(rest.len());
    }
    let object: Value = serde_json::from_str(&tls::text(answer).await).expect("JSON");
    assert_eq!(object["bytes"], content.len());
    let id = object["id"].as_str().expect("an id");
    let back = get(&gateway, &format!("/v1/files/{id}/content")).await;
    assert!(back.body == content);
    // An upload that its client resets leaves nothing.
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let request =
        http::Request::post("https://localhost/v1/files").header("content-type", kind).body(()).expect("a request");
    let (_answer, mut stream) = sender.send_request(request, false).expect("sent");
    stream.send_data(form(&[file("in.jsonl", b"{}\n")])[..100].to_vec().into(), false).expect("sent");
    stream.send_reset(h2::Reason::CANCEL);
    gateway.wait_at_rest().await;
    gateway.wait_for("only the first file", async |gateway| stored(gateway).bytes == content.len() as u64).await;
}
