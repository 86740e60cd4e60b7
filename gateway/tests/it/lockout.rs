//! Whoever reaches the operators' address, or the phones', can keep nobody else out of it.

use std::time::Duration;

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};

use crate::harness::{Fleet, Gateway, PATIENCE, free_port, now, phone};

/// Half of a head.
const HALF: &[u8] = b"POST /admin/replicas HTTP/1.1\r\nHost: localhost\r\nX-Sl";

/// Connections that have sent this much each; those that were closed before are among them.
async fn crowd(port: u16, count: usize, sent: &[u8]) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("open");
        drop(stream.write_all(sent).await);
        crowd.push(stream);
    }
    crowd
}

/// The first line of the answer to a call from another address.
async fn called(port: u16, head: &str) -> String {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.2:0".parse().expect("an address")).expect("bound");
    let call = async {
        let mut stream = socket.connect(([127, 0, 0, 1], port).into()).await.expect("open");
        stream
            .write_all(format!("{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
            .await
            .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer.lines().next().unwrap_or_default().to_owned()
    };
    tokio::time::timeout(Duration::from_secs(2), call).await.expect("an answer within 2 s")
}

/// Waits until all of them are closed.
async fn closed(crowd: Vec<TcpStream>) {
    let mut ends = JoinSet::new();
    for mut stream in crowd {
        ends.spawn(async move { stream.read_to_end(&mut Vec::new()).await });
    }
    tokio::time::timeout(PATIENCE, ends.join_all()).await.expect("all are closed");
}

#[tokio::test]
async fn half_heads_keep_neither_operators_nor_phones_out_and_are_gone_after_their_time() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let phones = free_port();
    let config = format!("[registration]\nlisten = \"127.0.0.1:{phones}\"\ntoken = \"file:token\"\n");
    let gateway =
        Gateway::builder(&config).secret("token", "0123456789abcdef0123456789abcdef").trust(&fleet).start().await;
    let begun = now();
    let half = crowd(gateway.admin, 300, HALF).await;
    let strangers = crowd(phones, 300, b"POST /admin/register?token=x HTTP/1.1\r\nHost: ").await;
    assert_eq!(called(gateway.admin, "GET /admin/replicas HTTP/1.1").await, "HTTP/1.1 200 OK");
    assert_eq!(called(phones, "POST /admin/register?token=wrong HTTP/1.1").await, "HTTP/1.1 401 Unauthorized");
    closed(half).await;
    closed(strangers).await;
    let took = begun.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(25)).contains(&took), "{took:?}");
    // Their own address is let in again.
    assert_eq!(gateway.admin("GET", "/admin/replicas", None).await.status, 200);
    assert_eq!(gateway.admin("PATCH", "/admin/replicas/none", Some(&json!({ "slots": 1 }))).await.status, 404);
}
