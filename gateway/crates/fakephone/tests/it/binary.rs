//! The program, started as a user would.

use crate::SOON;
use crate::client::{Client, chat, connector, get, post_with};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A started program, ended when the test is.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts the program and reads the line it prints when it is up.
fn start(arguments: &[&str]) -> (Program, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fakephone"));
    let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    (Program(child), serde_json::from_str(&line).expect("one line of JSON"))
}

#[tokio::test]
async fn the_program_serves_a_mixed_fleet_behind_a_relay() {
    let folder = std::env::temp_dir().join(format!("fakephone-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (ca, urls) = (folder.join("ca.pem"), folder.join("urls"));
    let (ca_text, urls_text) = (ca.display().to_string(), urls.display().to_string());
    let (_program, ready) = start(&[
        "--phones",
        "12",
        "--dialect",
        "llama,qvac",
        "--mix",
        "--speed",
        "0.8b",
        "--time-scale",
        "100",
        "--relay",
        "127.0.0.1:0",
        "--control",
        "127.0.0.1:0",
        "--ca-out",
        &ca_text,
        "--urls-out",
        &urls_text,
    ]);
    let phones = ready["phones"].as_array().expect("phones");
    assert_eq!((ready["ready"] == json!(true), phones.len()), (true, 12));
    let listed = std::fs::read_to_string(&urls).expect("the list of URLs");
    assert_eq!(
        listed.lines().collect::<Vec<_>>(),
        phones.iter().filter_map(|it| it["url"].as_str()).collect::<Vec<_>>()
    );
    let pem = std::fs::read_to_string(&ca).expect("the certificate");
    std::fs::remove_dir_all(&folder).expect("to clean up");

    let relay = ready["relay"].as_str().expect("the relay's address");
    let host = format!("{}.localhost", phones[1]["id"].as_str().expect("an id"));
    let name = rustls_pki_types::ServerName::try_from(host).expect("a name");
    let stream = TcpStream::connect(relay).await.expect("a connection");
    let stream = connector(&pem).connect(name, stream).await.expect("a TLS connection");
    let answer = Client::over(stream).await.ask(chat("x", json!({"max_tokens": 2}))).await.expect("an answer");
    assert!(answer.is_done(), "the second phone speaks qvac and so streams");
}

#[tokio::test]
async fn the_program_makes_phones_of_several_builds_that_think_and_keep_streams() {
    let flags = "--phones 3 --build b1,b2 --continuation echo --keeps-streams --thinking-tokens 4 --batch 64 \
        --model-size 9 --model-params 8 --quantization Q8_0";
    let (_program, ready) = start(&flags.split_whitespace().collect::<Vec<_>>());
    let ask = async |phone: usize, request| {
        let url = ready["phones"][phone]["url"].as_str().expect("a URL");
        let stream = TcpStream::connect(url.trim_start_matches("http://")).await.expect("a connection");
        Client::over(stream).await.ask(request).await.expect("an answer")
    };
    for (phone, build) in ["b1", "b2", "b1"].into_iter().enumerate() {
        assert_eq!(ask(phone, get("/props")).await.json()["build_info"], build);
    }
    let meta = ask(0, get("/v1/models")).await.json()["data"][0]["meta"].clone();
    assert_eq!((&meta["size"], &meta["n_params"], &meta["ftype"]), (&json!(9), &json!(8), &json!("Q8_0")));
    let body = json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "reasoning_content": "hm",
        "content": ""}], "stream": true, "return_progress": true});
    let answer = ask(0, post_with("/v1/chat/completions", &body, &[("x-conversation-id", "a")])).await;
    assert!(answer.joined("reasoning_content").starts_with("hm"), "it repeats what it carries on");
    assert_eq!(ask(0, get("/v1/stream?conv_id=a&from=0")).await.body, answer.body);
}

#[tokio::test]
async fn the_program_announces_its_phones_in_all_three_shapes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let callback = format!("http://{}/admin/register?token=t", listener.local_addr().expect("an address"));
    let (_program, ready) = start(&["--phones", "3", "--register", &callback]);
    let mut announced = Vec::new();
    for _ in 0..3 {
        let accepted = tokio::time::timeout(SOON, listener.accept()).await.expect("in time");
        let (mut stream, _) = accepted.expect("a connection");
        let mut bytes = vec![0; 4096];
        let count = stream.read(&mut bytes).await.expect("a request");
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        assert!(text.starts_with("POST /admin/register?token=t HTTP/1.1\r\n"), "{text}");
        let body: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
        assert_eq!(body["event"], "started");
        announced
            .push([&body["url"], &body["webUrl"], &body["data"]["url"]].map(|url| url.as_str().map(str::to_owned)));
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.expect("to answer");
    }
    for (turn, urls) in announced.iter().enumerate() {
        assert_eq!(urls[turn].as_deref(), ready["phones"][turn]["url"].as_str());
        assert_eq!(urls.iter().flatten().count(), 1);
    }
}

#[test]
fn mistakes_on_the_command_line_are_told() {
    for arguments in [
        &["--speed", "fast"][..],
        &["--dialect", "klingon"],
        &["--continuation", "maybe"],
        &["--slots", "0"],
        &["--time-scale", "0"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_fakephone")).args(arguments).output().expect("it runs");
        assert!(!output.status.success() && !output.stderr.is_empty(), "{arguments:?}");
    }
}
