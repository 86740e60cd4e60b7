//! A phone that keeps its streams: a lost connection costs nothing, and a client that leaves leaves nothing behind.

use fakephone::{Fault, Inside, Moment, PhoneConfig, PhoneHandle, Scope, SeenRequest, Way};
use serde_json::Value;

use crate::harness::{Answer, Fleet, Gateway, PATIENCE, chat, expected, phone};

const PROMPT: &str = "an der schönen Donau";

/// A phone that keeps streams.
fn keeper(slots: u16, time_scale: f64) -> PhoneConfig {
    PhoneConfig { keeps_streams: true, ..phone(slots, time_scale) }
}

/// What the phone was asked in this way.
fn asked(phone: &PhoneHandle, method: &str, target: &str) -> Vec<SeenRequest> {
    let is_one = |request: &SeenRequest| request.method == method && request.target.starts_with(target);
    phone.requests().into_iter().filter(is_one).collect()
}

/// The names that chats had on this phone.
fn names(phone: &PhoneHandle) -> Vec<Option<String>> {
    let chats = asked(phone, "POST", "/v1/chat/completions");
    chats.iter().map(|request| request.header("x-conversation-id").map(str::to_owned)).collect()
}

/// All that a client gets but what differs from one answer to the next.
fn shown(answer: &Answer) -> String {
    let mut text = answer.text();
    let objects = if answer.head.contains("text/event-stream") { answer.events() } else { vec![answer.json()] };
    for field in ["id", "created"] {
        let values: Vec<Value> = objects.iter().filter_map(|object| object.get(field).cloned()).collect();
        assert!(!values.is_empty() && values.windows(2).all(|two| two[0] == two[1]), "one {field}: {text}");
        text = text.replace(&values[0].to_string(), field);
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_to_a_phone_that_lives_is_seen_by_nobody() {
    let fleet = Fleet::of(1, &keeper(1, 20.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let phone = &fleet.phones[0];
    for stream in [true, false] {
        let uncut = gateway.chat(&chat(PROMPT, stream, 40)).await;
        assert!(uncut.is_whole(PROMPT, 40), "{uncut:?}");
        for (at, inside) in [
            (Moment::Batches(0), None),
            (Moment::Text(5), None),
            (Moment::Text(5), Some(Inside::Event)),
            (Moment::Text(5), Some(Inside::Character)),
            (Moment::Finish, None),
        ] {
            let before = gateway.metric("huntgroup_continuations_total", "resumed").await;
            phone.reset_stats();
            phone.set_fault_within(Fault::Break { at, inside, how: Way::Tunnel }, Scope::Next(1));
            let answer = gateway.chat(&chat(PROMPT, stream, 40)).await;
            assert_eq!(shown(&answer), shown(&uncut), "{at:?} {inside:?} stream {stream}");
            assert!(answer.is_whole(PROMPT, 40));
            assert_eq!(answer.header("x-huntgroup-attempts"), Some("1"), "{}", answer.head);
            let stats = phone.stats();
            assert_eq!((stats.started, stats.written_tokens, stats.cancelled), (1, 40, 0), "{at:?}");
            assert_eq!(asked(phone, "GET", "/v1/stream?").len(), 1, "{at:?} {inside:?}");
            let after = gateway.metric("huntgroup_continuations_total", "resumed").await;
            assert_eq!(after - before, 1.0, "{at:?}");
        }
    }
    gateway.wait_at_rest().await;
    assert_eq!(asked(phone, "DELETE", "").len(), 0, "what is whole needs no word");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_lost_before_the_answer_begins_is_no_reason_to_ask_twice() {
    // Messages are read without a sign of life. A connection that was idle may have been closed by the phone, a fresh one not.
    for requests_per_connection in [1, 100] {
        let fleet = Fleet::of(1, &PhoneConfig { requests_per_connection, ..keeper(1, 20.0) }).await;
        let gateway = Gateway::over(&fleet, "").await;
        let phone = &fleet.phones[0];
        phone.set_fault_within(Fault::Break { at: Moment::Batches(2), inside: None, how: Way::Tunnel }, Scope::Next(1));
        let prompt = "word ".repeat(400);
        let body = chat(&prompt, false, 20);
        let answer = gateway.client().await.post("/v1/messages", &body).await.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["content"][0]["text"], expected(&prompt, 20));
        assert_eq!(answer.header("x-huntgroup-attempts"), Some("1"), "{}", answer.head);
        assert_eq!(asked(phone, "POST", "/v1/messages").len(), 1);
        let [read_on] = &asked(phone, "GET", "/v1/stream?")[..] else { panic!("it is read on once") };
        assert!(read_on.target.ends_with("&from=0"), "{}", read_on.target);
        let stats = phone.stats();
        assert_eq!((stats.started, stats.over_subscribed, stats.written_tokens), (1, 0, 20), "{stats:?}");
        gateway.wait_at_rest().await;
        assert_eq!(asked(phone, "DELETE", "").len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_came_to_nobody_because_its_connection_was_closed_is_sent_again() {
    let fleet = Fleet::of(1, &keeper(1, 20.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let phone = &fleet.phones[0];
    let closes = Fault::StaleKeepAlive { idle_s: 60.0, max_requests: None, close_after_reading_body_on_reused: true };
    phone.set_fault(closes);
    for _ in 0..3 {
        let answer = gateway.chat(&chat(PROMPT, true, 5)).await;
        assert!(answer.is_whole(PROMPT, 5), "{answer:?}");
        assert_eq!(answer.header("x-huntgroup-attempts"), Some("1"), "{}", answer.head);
    }
    assert_eq!(gateway.states("ready").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_the_slot_of_a_phone_that_would_write_on() {
    let fleet = Fleet::of(1, &keeper(1, 1.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let phone = &fleet.phones[0];
    // While it reads, and while it writes.
    for (prompt, begun) in [("word ".repeat(4000), false), ("hi".to_owned(), true)] {
        for stream in [true, false] {
            phone.reset_stats();
            let mut exchange = gateway.client().await.post("/v1/chat/completions", &chat(&prompt, stream, 4000)).await;
            if begun && stream {
                assert!(exchange.read_until("\"content\"").await, "{}", exchange.seen());
            } else {
                let running =
                    |stats: &fakephone::PhoneStats| stats.running_now == 1 && (!begun || stats.written_tokens > 0);
                phone.wait_until(PATIENCE, running).await.expect("the phone has it");
            }
            exchange.leave();
            // Alone it would write for minutes.
            phone.wait_until(PATIENCE, |stats| stats.running_now == 0).await.expect("the slot is free");
            assert_eq!(phone.stats().cancelled, 1);
            gateway.wait_at_rest().await;
            let [Some(name)] = &names(phone)[..] else { panic!("one chat with a name: {:?}", names(phone)) };
            let deleted = asked(phone, "DELETE", "/v1/stream?");
            assert_eq!(deleted.len(), 1);
            assert_eq!(deleted[0].target, format!("/v1/stream?conv_id={name}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_attempt_has_a_name_of_its_own_and_never_the_clients() {
    let fleet = Fleet::of(1, &keeper(2, 20.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    for _ in 0..2 {
        let own = [("X-Conversation-Id", "mine")];
        let body = chat(PROMPT, true, 5);
        let answer =
            gateway.client().await.send("POST", "/v1/chat/completions", &own, Some(&body)).await.answer().await;
        assert!(answer.is_whole(PROMPT, 5));
    }
    let [Some(one), Some(other)] = &names(&fleet.phones[0])[..] else { panic!("two names") };
    assert!(one != other && one != "mine" && other != "mine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stream_is_named_where_none_is_kept_or_the_operator_does_not_want_it() {
    for (config, settings) in [(phone(1, 20.0), ""), (keeper(1, 20.0), "[streams]\nresume = false\n")] {
        let fleet = Fleet::of(1, &config).await;
        let gateway = Gateway::over(&fleet, settings).await;
        let phone = &fleet.phones[0];
        assert!(gateway.chat(&chat(PROMPT, true, 5)).await.is_whole(PROMPT, 5));
        phone.set_pace(0.05);
        let exchange = gateway.client().await.post("/v1/chat/completions", &chat(PROMPT, true, 4000)).await;
        phone.wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("it runs");
        exchange.leave();
        phone.wait_until(PATIENCE, |stats| stats.running_now == 0).await.expect("it noticed by itself");
        assert_eq!(names(phone), [None, None]);
        assert_eq!(asked(phone, "DELETE", "").len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_whose_phone_is_gone_as_well_is_carried_on_by_another() {
    let fleet = Fleet::of(2, &keeper(1, 5.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut exchange = gateway.client().await.post("/v1/chat/completions", &chat(PROMPT, true, 60)).await;
    assert!(exchange.read_until("\"content\"").await, "{}", exchange.seen());
    let writes = fleet.phones.iter().position(|phone| phone.stats().running_now == 1).expect("one writes");
    fleet.phones[writes].kill();
    let answer = exchange.answer().await;
    assert!(answer.is_whole(PROMPT, 60), "{answer:?}");
    assert_eq!(fleet.phones[1 - writes].stats().started, 1);
}
