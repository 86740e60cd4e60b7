//! Answers that several clients read, and which of them are kept.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use openai_wire::Route;
use scheduler::{TenantId, Timestamp};

use super::{
    By, Digest, Found, Joining, Name, OVERHEAD, Recorder,
    tape::{End, Reader, Step},
};
use crate::{clock, config::ByteSize, config::Idempotency, error::ApiError};

const ROUTE: Route = Route::ChatCompletions;

/// Answers under some limits, at a time that only tests move.
struct Rig {
    joining: Arc<Joining>,
    limits: Idempotency,
    now: Timestamp,
    asked: u32,
}

impl Rig {
    fn new(max_bytes: ByteSize, max_answer: ByteSize) -> Self {
        let limits = Idempotency { max_bytes, max_answer, grace: Duration::ZERO, ..Idempotency::default() };
        Self { joining: Arc::default(), limits, now: clock::now(), asked: 0 }
    }

    fn roomy() -> Self {
        Self::new(ByteSize::mib(64), ByteSize::mib(4))
    }

    fn ask(&mut self, tenant: u32, key: &str, body: &str) -> Found {
        self.asked += 1;
        let name = Name { tenant: TenantId(tenant), by: By::Key(key.into()) };
        let id = format!("req_{}", self.asked).into();
        self.joining.find(name, Digest::of(ROUTE, body.as_bytes()), true, &id, &self.limits, self.now)
    }

    fn begin(&mut self, key: &str) -> (Recorder, Reader) {
        match self.ask(1, key, "body") {
            Found::New(recorder, reader) => (recorder, reader),
            _ => panic!("{key} is known"),
        }
    }

    /// A whole answer that nobody reads any more.
    async fn keep(&mut self, key: &str, text: &str) {
        let (recorder, _reader) = self.begin(key);
        recorder.append(text.as_bytes()).await.expect("read");
        recorder.finish();
    }

    fn joins(&mut self, key: &str) -> bool {
        matches!(self.ask(1, key, "body"), Found::Joined(..))
    }
}

/// What there is for a reader now: the text, and whether it ended whole.
fn read(reader: &mut Reader) -> (String, Option<bool>) {
    let mut text = Vec::new();
    loop {
        match reader.next() {
            Some(Step::Piece(piece)) => text.extend_from_slice(&piece),
            Some(Step::Ended(end)) => {
                return (String::from_utf8(text).expect("text"), Some(matches!(end, End::Whole)));
            }
            Some(_) => {}
            None => return (String::from_utf8(text).expect("text"), None),
        }
    }
}

/// Whether a future is not ready yet.
async fn is_pending<F: Future>(future: F) -> bool {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

fn words(count: usize) -> String {
    (0..count).map(|number| format!("data: {number}\n\n")).collect()
}

#[tokio::test]
async fn readers_that_come_at_any_time_read_the_same_from_the_beginning() {
    let text = words(100);
    for cut in 0..text.len() {
        let mut rig = Rig::roomy();
        let (recorder, mut first) = rig.begin("k");
        let (before, after) = text.split_at(cut);
        recorder.append(before.as_bytes()).await.expect("read");
        let Found::Joined(mut second, false) = rig.ask(1, "k", "body") else { panic!("it runs") };
        assert_eq!((read(&mut first), read(&mut second)), ((before.to_owned(), None), (before.to_owned(), None)));
        recorder.append(after.as_bytes()).await.expect("read");
        recorder.finish();
        let Found::Joined(mut third, true) = rig.ask(1, "k", "body") else { panic!("it is kept") };
        assert_eq!(read(&mut first), (after.to_owned(), Some(true)));
        assert_eq!(read(&mut second), (after.to_owned(), Some(true)));
        assert_eq!(read(&mut third), (text.clone(), Some(true)));
    }
}

#[tokio::test]
async fn a_reader_that_waits_is_woken_by_whatever_is_written() {
    let mut rig = Rig::roomy();
    let (recorder, mut reader) = rig.begin("k");
    assert!(reader.next().is_none() && is_pending(reader.written()).await);
    recorder.append(b"one").await.expect("read");
    reader.written().await;
    assert_eq!(read(&mut reader), ("one".to_owned(), None));
    assert!(is_pending(reader.written()).await);
    {
        let mut woken = pin!(reader.written());
        assert!(is_pending(woken.as_mut()).await);
        recorder.finish();
        woken.await;
    }
    assert_eq!(read(&mut reader).1, Some(true));
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_nobody_up_below_the_bound() {
    let mut rig = Rig::new(ByteSize::mib(1), ByteSize::kib(256));
    let (recorder, mut slow) = rig.begin("k");
    let Found::Joined(mut fast, false) = rig.ask(1, "k", "body") else { panic!("it runs") };
    let piece = "x".repeat(1 << 10);
    for _ in 0..256 {
        recorder.append(piece.as_bytes()).await.expect("read");
        assert_eq!(read(&mut fast).0.len(), 1 << 10);
    }
    recorder.finish();
    assert_eq!(read(&mut slow), (piece.repeat(256), Some(true)));
    assert!(rig.joins("k"));
}

#[tokio::test]
async fn above_the_bound_nobody_joins_and_the_slowest_reader_sets_the_pace() {
    let mut rig = Rig::new(ByteSize::mib(64), ByteSize::kib(256));
    let (recorder, mut slow) = rig.begin("k");
    let Found::Joined(mut fast, false) = rig.ask(1, "k", "body") else { panic!("it runs") };
    let piece = "x".repeat(64 << 10);
    for _ in 0..4 {
        recorder.append(piece.as_bytes()).await.expect("read");
    }
    assert_eq!(read(&mut fast).0.len(), 4 * piece.len());
    assert!(is_pending(recorder.append(piece.as_bytes())).await, "a reader has read nothing");
    let Found::New(anew, _) = rig.ask(1, "k", "body") else { panic!("it can't be joined any more") };
    drop(anew);
    let mut total = read(&mut slow).0.len();
    for _ in 0..20 {
        recorder.append(piece.as_bytes()).await.expect("read");
        assert!(is_pending(recorder.append(piece.as_bytes())).await);
        assert_eq!(read(&mut fast).0, piece);
        total += read(&mut slow).0.len();
    }
    recorder.finish();
    assert_eq!((total, read(&mut slow).1), (24 * piece.len(), Some(true)));
    assert_eq!(read(&mut fast).1, Some(true));
    drop((slow, fast, recorder));
    assert_eq!(rig.joining.bytes(), 0, "it was not kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_many_threads_no_reader_misses_a_word_and_the_writer_no_reader() {
    // Small enough to be closed on the way, so that the writer waits for readers as well.
    let mut rig = Rig::new(ByteSize::mib(64), ByteSize::kib(256));
    let (recorder, first) = rig.begin("k");
    let mut readers = vec![first];
    for _ in 0..7 {
        let Found::Joined(reader, false) = rig.ask(1, "k", "body") else { panic!("it runs") };
        readers.push(reader);
    }
    let text = words(40_000);
    let mut all = tokio::task::JoinSet::from_iter(readers.into_iter().map(|mut reader| async move {
        let mut seen = String::new();
        loop {
            let (more, end) = read(&mut reader);
            seen.push_str(&more);
            if end.is_some() {
                return seen;
            }
            reader.written().await;
        }
    }));
    let written = async {
        for piece in text.as_bytes().chunks(97) {
            recorder.append(piece).await.expect("read");
        }
        recorder.finish();
        let mut seen = Vec::new();
        while let Some(reader) = all.join_next().await {
            seen.push(reader.expect("no panic"));
        }
        seen
    };
    let seen = tokio::time::timeout(Duration::from_secs(60), written).await.expect("nobody waits for ever");
    assert!(seen.len() == 8 && seen.iter().all(|seen| *seen == text));
}

#[tokio::test]
async fn a_reader_that_leaves_is_not_waited_for() {
    let mut rig = Rig::new(ByteSize::mib(64), ByteSize::kib(64));
    let (recorder, slow) = rig.begin("k");
    let Found::Joined(mut fast, false) = rig.ask(1, "k", "body") else { panic!("it runs") };
    let piece = "x".repeat(64 << 10);
    recorder.append(piece.as_bytes()).await.expect("read");
    read(&mut fast);
    {
        let mut stuck = pin!(recorder.append(piece.as_bytes()));
        assert!(is_pending(stuck.as_mut()).await);
        drop(slow);
        stuck.await.expect("the other one reads");
    }
    drop(fast);
    recorder.append(piece.as_bytes()).await.expect("there is room");
    assert!(recorder.append(piece.as_bytes()).await.is_err(), "nobody can come back to it");
}

#[tokio::test]
async fn an_answer_is_abandoned_when_nobody_comes_back_in_time() {
    let mut rig = Rig::roomy();
    rig.limits.grace = Duration::from_secs(3600);
    let (recorder, first) = rig.begin("patient");
    assert!(is_pending(recorder.abandoned()).await);
    drop(first);
    assert!(is_pending(recorder.abandoned()).await, "an hour has not passed");
    let Found::Joined(second, false) = rig.ask(1, "patient", "body") else { panic!("it runs") };
    drop(second);

    rig.limits.grace = Duration::ZERO;
    let (recorder, first) = rig.begin("hasty");
    assert!(is_pending(recorder.abandoned()).await, "somebody reads");
    drop(first);
    recorder.abandoned().await;
    let Found::New(..) = rig.ask(1, "hasty", "body") else { panic!("it was abandoned") };
}

#[tokio::test]
async fn a_failure_reaches_all_who_joined_and_nobody_else() {
    let mut rig = Rig::roomy();
    let (recorder, mut first) = rig.begin("k");
    let Found::Joined(mut second, false) = rig.ask(1, "k", "body") else { panic!("it runs") };
    recorder.append(b"part").await.expect("read");
    recorder.fail(ApiError::Lost("cut"), Bytes::from_static(b"event"));
    for reader in [&mut first, &mut second] {
        assert_eq!(read(reader), ("part".to_owned(), Some(false)));
        let Some(Step::Ended(End::Failed(failure))) = reader.next() else { panic!("it failed") };
        assert_eq!((failure.error.status(), &failure.event[..]), (502, &b"event"[..]));
    }
    assert!(matches!(rig.ask(1, "k", "body"), Found::New(..)), "the next try runs anew");
}

#[tokio::test]
async fn a_recorder_that_is_dropped_leaves_an_error_and_no_room_taken() {
    let mut rig = Rig::roomy();
    let (recorder, mut reader) = rig.begin("k");
    recorder.append(b"part").await.expect("read");
    drop(recorder);
    assert_eq!(read(&mut reader), ("part".to_owned(), Some(false)));
    drop(reader);
    assert_eq!(rig.joining.bytes(), 0);
}

#[tokio::test]
async fn a_key_is_its_tenants_own_and_belongs_to_one_body_and_route() {
    let mut rig = Rig::roomy();
    rig.keep("k", "answer").await;
    assert!(matches!(rig.ask(1, "k", "other body"), Found::Other));
    let Found::New(recorder, _reader) = rig.ask(2, "k", "other body") else { panic!("another tenant's key") };
    drop(recorder);
    let name = Name { tenant: TenantId(1), by: By::Key("k".into()) };
    let elsewhere = Digest::of(Route::Completions, b"body");
    let id = "req".into();
    assert!(matches!(rig.joining.find(name, elsewhere, true, &id, &rig.limits, rig.now), Found::Other));
}

#[tokio::test]
async fn what_is_told_by_its_body_joins_only_if_it_says_so_and_takes_the_place_if_not() {
    let rig = Rig::roomy();
    let digest = Digest::of(ROUTE, b"body");
    let ask = |id: &str, joins| {
        let name = Name { tenant: TenantId(1), by: By::Body(digest) };
        rig.joining.find(name, digest, joins, &id.into(), &rig.limits, rig.now)
    };
    let Found::New(_first, _) = ask("first", false) else { panic!("new") };
    let Found::New(second, _reader) = ask("second", false) else { panic!("it does not join") };
    let Found::Joined(reader, false) = ask("third", true) else { panic!("it joins") };
    assert_eq!(&**reader.first(), "second");
    second.finish();
    assert!(matches!(ask("fourth", true), Found::Joined(..)));
}

#[tokio::test]
async fn kept_answers_go_when_their_time_has_come() {
    let mut rig = Rig::roomy();
    rig.limits.keep = Duration::from_secs(60);
    rig.keep("k", "answer").await;
    rig.now = clock::now() + Duration::from_secs(30);
    assert!(rig.joins("k"));
    rig.now += Duration::from_secs(31);
    let Found::New(..) = rig.ask(1, "k", "other body") else { panic!("the key is free again") };
    rig.limits.keep = Duration::ZERO;
    rig.keep("unkept", "answer").await;
    assert!(!rig.joins("unkept"));
}

#[tokio::test]
async fn the_answers_kept_longest_go_first_when_there_is_no_room() {
    let answer = "x".repeat(16 << 10);
    let room = (4 * (OVERHEAD + answer.len())) as u64;
    let mut rig = Rig::new(ByteSize::kib(room >> 10), ByteSize::kib(64));
    for key in ["1", "2", "3", "4"] {
        rig.keep(key, &answer).await;
    }
    assert_eq!(rig.joining.bytes(), room);
    let (running, _reader) = rig.begin("5");
    let fate = ["1", "2", "3", "4"].map(|key| rig.joining.known().find(&named(key)).is_some());
    assert_eq!(fate, [false, true, true, true]);
    running.append(answer.as_bytes()).await.expect("read");
    running.finish();
    assert_eq!(rig.joining.bytes(), room);
    assert!(rig.joins("5") && rig.joins("2"));
}

#[tokio::test]
async fn running_answers_that_leave_no_room_are_read_but_not_joined() {
    let mut rig = Rig::new(ByteSize::kib(64), ByteSize::kib(64));
    let (large, _reading) = rig.begin("large");
    large.append(&[0; 56 << 10]).await.expect("read");
    let (small, mut reader) = rig.begin("small");
    small.append(&[0; 8 << 10]).await.expect("read");
    assert_eq!(read(&mut reader).0.len(), 8 << 10);
    assert!(!rig.joins("small"), "there was no room for it");
    small.finish();
    assert_eq!(read(&mut reader).1, Some(true));
    assert!(rig.joins("large"));
}

#[tokio::test]
async fn no_number_of_tiny_answers_is_too_many() {
    let mut rig = Rig::new(ByteSize::mib(1), ByteSize::kib(64));
    for number in 0..1000 {
        rig.keep(&number.to_string(), "x").await;
        assert!(rig.joining.bytes() <= 1 << 20);
    }
    let kept = (0..1000).filter(|number| rig.joining.known().find(&named(&number.to_string())).is_some()).count();
    assert!((200..=256).contains(&kept), "{kept}");
}

fn named(key: &str) -> Name {
    Name { tenant: TenantId(1), by: By::Key(key.into()) }
}
