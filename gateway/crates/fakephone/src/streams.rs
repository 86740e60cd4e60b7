//! Streams that an engine keeps for clients whose connection was lost, as llama-server does since May 2026.
//!
//! A stream is known by the id that its client chose. Its bytes are kept as they would have been sent, before they were
//! cut into chunks, so that whoever comes back reads on at the byte where the connection broke.

use crate::clock;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// What is kept of one stream, bytes; as llama-server.
const MOST_KEPT: usize = 4 * 1024 * 1024;
/// How long a stream is known after its end; as llama-server.
const REMEMBERED: Duration = Duration::from_secs(300);

/// One stream as it is kept.
#[derive(Debug)]
struct Pages {
    bytes: VecDeque<u8>,
    /// Bytes that were too old to keep.
    lost: usize,
    began_s: f64,
    /// When it ended.
    ended: Option<(Instant, f64)>,
    /// Nobody will come back.
    given_up: bool,
}

/// All streams that a phone keeps.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<BTreeMap<String, watch::Sender<Pages>>>);

/// What of a stream there is to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Bytes(Vec<u8>),
    /// Nothing more comes.
    End,
    /// The offset asked for is older than what is kept.
    Lost,
}

impl Streams {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<Pages>>> {
        self.all_at(clock::now())
    }

    /// The streams that are known at a moment.
    fn all_at(&self, now: Instant) -> MutexGuard<'_, BTreeMap<String, watch::Sender<Pages>>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, stream| stream.borrow().ended.is_none_or(|(at, _)| now < at + REMEMBERED));
        all
    }

    /// Begins to keep a stream. One of the same id is given up.
    pub(crate) fn keep(&self, id: &str) -> Keeping {
        self.give_up(id);
        let pages =
            Pages { bytes: VecDeque::new(), lost: 0, began_s: clock::unix_seconds(), ended: None, given_up: false };
        let stream = watch::Sender::new(pages);
        self.all().insert(id.to_owned(), stream.clone());
        Keeping { given_up: stream.subscribe(), stream }
    }

    /// Tells whoever writes a stream to stop, and forgets it.
    pub(crate) fn give_up(&self, id: &str) {
        if let Some(stream) = self.all().remove(id) {
            stream.send_modify(|pages| pages.given_up = true);
        }
    }

    /// Forgets all streams; whoever wrote them is gone.
    pub(crate) fn forget(&self) {
        self.all().clear();
    }

    /// Reads a stream from its byte `from` on.
    pub(crate) fn read(&self, id: &str, from: usize) -> Option<Reading> {
        self.all().get(id).map(|stream| Reading { stream: stream.subscribe(), at: from })
    }

    /// What is known of these streams, in the words of `POST /v1/streams/lookup`.
    pub(crate) fn describe<'i>(&self, ids: impl Iterator<Item = &'i str>) -> Value {
        let all = self.all();
        let known = ids.filter_map(|id| {
            let pages = all.get(id)?.borrow();
            Some(json!({"conversation_id": id, "is_done": pages.ended.is_some(),
                "total_bytes": pages.lost + pages.bytes.len(), "started_at": pages.began_s as u64,
                "completed_at": pages.ended.map_or(0, |(_, at)| at as u64)}))
        });
        known.collect()
    }
}

/// A stream being written; dropping it ends the stream.
#[derive(Debug)]
pub(crate) struct Keeping {
    stream: watch::Sender<Pages>,
    given_up: watch::Receiver<Pages>,
}

impl Keeping {
    /// Keeps what is sent.
    pub(crate) fn write(&self, bytes: &[u8]) {
        self.stream.send_modify(|pages| {
            pages.bytes.extend(bytes);
            let surplus = pages.bytes.len().saturating_sub(MOST_KEPT);
            pages.bytes.drain(..surplus);
            pages.lost += surplus;
        });
    }

    /// Resolves when nobody wants the stream any more.
    pub(crate) async fn given_up(&mut self) {
        if self.given_up.wait_for(|pages| pages.given_up).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.stream.send_modify(|pages| pages.ended = Some((clock::now(), clock::unix_seconds())));
    }
}

/// A place in a stream.
#[derive(Debug)]
pub(crate) struct Reading {
    stream: watch::Receiver<Pages>,
    at: usize,
}

impl Reading {
    /// What comes next; waits for it while the stream is being written.
    pub(crate) async fn next(&mut self) -> Piece {
        loop {
            {
                let pages = self.stream.borrow_and_update();
                let Some(from) = self.at.checked_sub(pages.lost) else { return Piece::Lost };
                if from < pages.bytes.len() {
                    let bytes: Vec<u8> = pages.bytes.range(from..).copied().collect();
                    self.at += bytes.len();
                    return Piece::Bytes(bytes);
                }
                if pages.ended.is_some() || pages.given_up {
                    return Piece::End;
                }
            }
            if self.stream.changed().await.is_err() {
                return Piece::End;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &[u8]) -> Piece {
        Piece::Bytes(text.to_vec())
    }

    #[tokio::test]
    async fn a_stream_is_read_on_from_any_byte_while_it_is_written_and_after_its_end() {
        let streams = Streams::default();
        let keeping = streams.keep("a");
        keeping.write(b"hello ");
        let mut reading = streams.read("a", 2).expect("it is known");
        assert_eq!(reading.next().await, bytes(b"llo "));
        keeping.write(b"you");
        assert_eq!(reading.next().await, bytes(b"you"));
        drop(keeping);
        assert_eq!(reading.next().await, Piece::End);
        assert_eq!(streams.read("a", 6).expect("known").next().await, bytes(b"you"));
        assert_eq!(streams.read("a", 99).expect("known").next().await, Piece::End);
        assert!(streams.read("b", 0).is_none());
        let known = streams.describe(["a", "b"].into_iter());
        assert_eq!((known.as_array().map(Vec::len), &known[0]["total_bytes"]), (Some(1), &json!(9)));
    }

    #[tokio::test]
    async fn what_is_too_old_to_keep_is_lost_and_said_to_be() {
        let streams = Streams::default();
        let keeping = streams.keep("a");
        keeping.write(&vec![b'x'; MOST_KEPT]);
        keeping.write(b"yz");
        assert_eq!(streams.read("a", 1).expect("known").next().await, Piece::Lost);
        let Piece::Bytes(rest) = streams.read("a", 2).expect("known").next().await else { panic!("bytes") };
        assert!(rest.len() == MOST_KEPT && rest.ends_with(b"yz"));
    }

    #[tokio::test]
    async fn the_writer_hears_that_a_stream_is_given_up_also_by_another_of_its_name() {
        let streams = Streams::default();
        let mut first = streams.keep("a");
        let _second = streams.keep("a");
        first.given_up().await;
        streams.give_up("a");
        assert!(streams.read("a", 0).is_none());
    }

    #[test]
    fn a_stream_is_forgotten_five_minutes_after_its_end() {
        let streams = Streams::default();
        let running = streams.keep("running");
        drop(streams.keep("ended"));
        let known = |after: Duration| streams.all_at(clock::now() + after).keys().cloned().collect::<Vec<_>>();
        assert_eq!(known(REMEMBERED - Duration::from_secs(1)), ["ended", "running"]);
        assert_eq!(known(REMEMBERED + Duration::from_secs(1)), ["running"]);
        drop(running);
    }
}
