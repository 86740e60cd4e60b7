//! Kept streams against a phone whose every answer is written down beforehand.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::{broadcast, watch},
    task::JoinSet,
};

use super::*;
use crate::{
    config::Pool,
    fleet::{PoolChange, PoolEvent},
    shutdown::Tasks,
};

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const PAGE: &str = "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p/>";
const UNKNOWN: &str = "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
const LOADING: &str =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
const DELETED: &str = "HTTP/1.1 204 No Content\r\n\r\n";

/// A phone that gives each connection the next answer, and closes it.
struct Phone {
    endpoint: Arc<Endpoint>,
    asked: watch::Receiver<Vec<String>>,
    _tasks: JoinSet<()>,
}

impl Phone {
    async fn start(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Arc::new(Endpoint::new(false, "127.0.0.1", listener.local_addr().unwrap().port()));
        let (heard, asked) = watch::channel(Vec::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
                let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
                heard.send_modify(|lines| lines.push(line));
            }
        });
        Self { endpoint, asked, _tasks: tasks }
    }

    fn kept(&self) -> Kept {
        let name = HeaderValue::from_static("hg1");
        Kept { replica: ReplicaId(7), endpoint: Arc::clone(&self.endpoint), key: None, name }
    }

    /// What it was asked, once that is so much.
    async fn asked(&mut self, count: usize) -> Vec<String> {
        self.asked.wait_for(|lines| lines.len() >= count).await.unwrap().clone()
    }
}

fn upstream() -> Arc<Upstream> {
    Arc::new(Upstream::new(&Pool { allow_private: true, ..Pool::default() }).unwrap())
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

#[tokio::test]
async fn a_lost_stream_is_read_on_from_the_byte_up_to_which_it_came() {
    let first = format!("{STREAM}{}{}7\r\nhal", chunk("data: 1\n\n"), chunk("data: "));
    let rest = format!("{STREAM}{}0\r\n\r\n", chunk("f\n\n"));
    let mut phone = Phone::start(vec![first, rest]).await;
    let (upstream, abandoned) = (upstream(), Arc::new(Abandoned::default()));
    let reply = upstream.open(&phone.endpoint, "/first", None).await.unwrap();
    let mut source = Source::new(reply, Some(Box::new(Conversation::of(phone.kept(), Arc::clone(&abandoned)))));
    let mut text = Vec::new();
    while let Ok(Some(piece)) = source.chunk().await {
        text.extend_from_slice(&piece);
    }
    assert!(source.resume(&upstream).await);
    while let Some(piece) = source.chunk().await.unwrap() {
        text.extend_from_slice(&piece);
    }
    assert_eq!(String::from_utf8(text).unwrap(), "data: 1\n\ndata: half\n\n");
    assert_eq!(phone.asked(2).await[1], "GET /v1/stream?conv_id=hg1&from=18 HTTP/1.1");
}

#[tokio::test]
async fn a_stream_that_brought_nothing_the_last_time_is_not_sought_again() {
    let empty = format!("{STREAM}0\r\n\r\n");
    let mut phone = Phone::start(vec![empty.clone(), empty]).await;
    let upstream = upstream();
    let reply = upstream.open(&phone.endpoint, "/first", None).await.unwrap();
    let mut source = Source::new(reply, Some(Box::new(Conversation::of(phone.kept(), Arc::default()))));
    assert!(source.resume(&upstream).await);
    assert!(source.chunk().await.unwrap().is_none());
    assert!(!source.resume(&upstream).await);
    assert_eq!(phone.asked(2).await.len(), 2);
}

#[tokio::test]
async fn only_what_may_pass_is_tried_again() {
    let stream = format!("{STREAM}0\r\n\r\n");
    for (answers, found, tries) in [
        (vec![stream.clone()], true, 1),
        (vec![PAGE.into(), stream.clone()], true, 2),
        // Closed without a word: the tunnel is there, the engine may be.
        (vec![String::new(), stream.clone()], true, 2),
        (vec![UNKNOWN.into(), stream.clone()], false, 1),
        (vec![LOADING.into(), stream.clone()], false, 1),
        (vec![PAGE.into(), UNKNOWN.into(), stream], false, 2),
    ] {
        let mut phone = Phone::start(answers.clone()).await;
        assert_eq!(phone.kept().read_on(&upstream(), 0).await.is_some(), found, "{answers:?}");
        assert_eq!(phone.asked(tries).await.len(), tries, "{answers:?}");
    }
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let gone =
        Kept { endpoint: Arc::new(Endpoint::new(false, "127.0.0.1", free)), ..Phone::start(vec![]).await.kept() };
    assert!(gone.read_on(&upstream(), 0).await.is_none());
}

#[tokio::test]
async fn no_two_streams_have_one_name() {
    let names = [new_name().unwrap(), new_name().unwrap()];
    assert!(names[0] != names[1] && names.iter().all(|name| name.len() == 34));
}

/// The task that deletes, over a pool that tells of itself.
struct Sweeper {
    abandoned: Arc<Abandoned>,
    pool: broadcast::Sender<PoolEvent>,
    tasks: Tasks,
}

impl Sweeper {
    async fn start() -> Self {
        let (pool, events) = broadcast::channel(4);
        let (abandoned, tasks) = (Arc::new(Abandoned::default()), Tasks::default());
        tasks.spawn("abandoned", Arc::clone(&abandoned).run(upstream(), events, tasks.stop_signal())).await;
        Self { abandoned, pool, tasks }
    }
}

#[tokio::test]
async fn a_stream_that_is_dropped_is_deleted_and_one_that_is_over_is_not() {
    let mut phone = Phone::start(vec![DELETED.into(), DELETED.into()]).await;
    let sweeper = Sweeper::start().await;
    Conversation::of(phone.kept(), Arc::clone(&sweeper.abandoned)).over();
    let last = Kept { name: HeaderValue::from_static("hg2"), ..phone.kept() };
    drop(Conversation::of(last, Arc::clone(&sweeper.abandoned)));
    assert_eq!(phone.asked(1).await, ["DELETE /v1/stream?conv_id=hg2 HTTP/1.1"]);
    // What is still in the queue at the end of the process goes out before it.
    drop(Conversation::of(phone.kept(), Arc::clone(&sweeper.abandoned)));
    sweeper.tasks.stop(Duration::from_secs(5)).await;
    assert_eq!(phone.asked(2).await[1], "DELETE /v1/stream?conv_id=hg1 HTTP/1.1");
}

#[tokio::test]
async fn a_phone_that_could_not_be_reached_is_asked_again_when_it_is_back() {
    let mut phone = Phone::start(vec![PAGE.into(), PAGE.into(), DELETED.into()]).await;
    let sweeper = Sweeper::start().await;
    drop(Conversation::of(phone.kept(), Arc::clone(&sweeper.abandoned)));
    for tries in 1..3 {
        phone.asked(tries).await;
        // Until its next try has come: the first may be told of before it has failed.
        while phone.asked.borrow().len() == tries {
            drop(sweeper.pool.send(back(7)));
            tokio::task::yield_now().await;
        }
    }
    let asked = phone.asked(3).await;
    assert!(asked.iter().all(|line| line == "DELETE /v1/stream?conv_id=hg1 HTTP/1.1"), "{asked:?}");
}

fn back(replica: u32) -> PoolEvent {
    let (from, to) = (scheduler::ReplicaState::Out, scheduler::ReplicaState::Ready);
    let what = PoolChange::State { from, to, why: scheduler::ChangeReason::Probe, detail: None };
    PoolEvent { number: 1, at_ms: 0, replica: ReplicaId(replica), label: "phone".into(), what }
}
