//! Answers whose phone goes away: another phone carries them on, and their clients see one answer.

use std::collections::BTreeMap;

use fakephone::{Continuation, Fault, Inside, Moment, PhoneConfig, Scope, Way};
use serde_json::{Value, json};

use crate::harness::{Answer, Exchange, Fleet, Gateway, chat, expected, phone};

const CHAT: &str = "/v1/chat/completions";
const PROMPT: &str = "an der schönen blauen Donau, weit fort";

/// The phone dies, with all its connections.
const DIES: Way = Way::Die { down_s: None };

fn breaks(at: Moment, how: Way) -> Fault {
    Fault::Break { at, inside: None, how }
}

/// Phones and a gateway that knows which of them carry on.
struct Pool {
    fleet: Fleet,
    gateway: Gateway,
}

impl Pool {
    async fn of(count: usize, config: &str) -> Self {
        Self::start(std::iter::repeat_n(phone(1, 50.0), count), config).await
    }

    async fn start(phones: impl IntoIterator<Item = PhoneConfig>, config: &str) -> Self {
        let fleet = Fleet::start(phones).await;
        let gateway = Gateway::over(&fleet, config).await;
        let able = |phone: &&fakephone::PhoneHandle| phone.config().continuation == Continuation::Exact;
        let able = fleet.phones.iter().filter(able).count();
        gateway
            .wait_for("phones that carry on", async |gateway| {
                let answer = gateway.admin("GET", "/admin/replicas", None).await.json();
                let replicas = answer["data"].as_array().cloned().unwrap_or_default();
                replicas.iter().filter(|replica| replica["carries_on"] == true).count() == able
            })
            .await;
        fleet.phones.iter().for_each(fakephone::PhoneHandle::reset_stats);
        Self { fleet, gateway }
    }

    async fn tell(&self, phone: usize, what: &str, body: Value) {
        let path = format!("/admin/replicas/{}/{what}", self.fleet.phones[phone].id());
        let answer = self.gateway.admin("POST", &path, Some(&body)).await;
        assert!(answer.status < 300, "{}", answer.text());
    }

    /// Sends a request that runs on the first phone. The others take work from then on.
    async fn ask(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Exchange {
        for other in 1..self.fleet.phones.len() {
            self.tell(other, "drain", json!({})).await;
        }
        let exchange = self.gateway.client().await.send("POST", path, headers, Some(body)).await;
        self.gateway.wait_for("the first phone to have it", async |_| self.fleet.phones[0].stats().started == 1).await;
        for other in 1..self.fleet.phones.len() {
            self.tell(other, "undrain", json!({})).await;
        }
        exchange
    }

    async fn answer(&self, body: &Value) -> Answer {
        self.ask(CHAT, &[], body).await.answer().await
    }

    fn first_fails(&self, fault: Fault) {
        self.fleet.phones[0].set_fault_within(fault, Scope::Next(1));
    }

    async fn continuations(&self) -> BTreeMap<String, f64> {
        let mut found = BTreeMap::new();
        let text = self.gateway.admin("GET", "/metrics", None).await.text();
        for line in text.lines().filter_map(|line| line.strip_prefix("huntgroup_continuations_total{outcome=\"")) {
            let (outcome, count) = line.split_once("\"} ").expect("a series");
            let count: f64 = count.parse().expect("a number");
            if count > 0.0 {
                found.insert(outcome.to_owned(), count);
            }
        }
        found
    }

    /// Slots and gauges are as if nothing had been; answers that broke off ended like this.
    async fn is_at_rest_after(&self, outcomes: &[(&str, f64)]) {
        self.gateway.wait_at_rest().await;
        assert_eq!(self.fleet.over_subscribed(), 0);
        let expected: BTreeMap<String, f64> =
            outcomes.iter().map(|(outcome, count)| ((*outcome).to_owned(), *count)).collect();
        assert_eq!(self.continuations().await, expected);
    }
}

/// The values that a field has in the events of a stream, each once.
fn values(answer: &Answer, field: &str) -> Vec<Value> {
    let mut seen: Vec<Value> = Vec::new();
    for event in answer.events() {
        if let Some(value) = event.get(field).filter(|value| !seen.contains(value)) {
            seen.push(value.clone());
        }
    }
    seen
}

/// A chat stream that is whole, and of one piece.
fn is_seamless(answer: &Answer, words: u32) {
    assert!(answer.is_whole(PROMPT, words), "{}{}", answer.head, answer.text());
    for field in ["id", "created", "model", "system_fingerprint"] {
        assert_eq!(values(answer, field).len(), 1, "{field}: {}", answer.text());
    }
    let events = answer.events();
    let choices = || events.iter().filter_map(|event| event["choices"].get(0));
    assert_eq!(choices().filter(|choice| choice["delta"].get("role").is_some()).count(), 1, "{}", answer.text());
    assert_eq!(choices().filter(|choice| !choice["finish_reason"].is_null()).count(), 1, "{}", answer.text());
    assert_eq!(answer.text().matches("[DONE]").count(), 1);
    assert!(answer.error().is_none());
}

/// The answer breaks off with an error event, and nobody takes it for whole.
fn is_broken_off(answer: &Answer) {
    assert_eq!(answer.status, 200);
    assert!(!answer.clean, "{}", answer.text());
    assert_eq!(answer.error().expect("an error event")["code"], "upstream_error", "{}", answer.text());
    assert!(!answer.text().contains("[DONE]"));
}

fn with_usage(stream: bool, max_tokens: u32) -> Value {
    let mut body = chat(PROMPT, stream, max_tokens);
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

fn usage(answer: &Answer) -> Value {
    let objects = if answer.head.contains("text/event-stream") { answer.events() } else { vec![answer.json()] };
    let stated = objects.into_iter().filter_map(|object| object.get("usage").cloned());
    stated.rev().find(|usage| !usage.is_null()).expect("a usage")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_a_stream_breaks_off_its_client_sees_one_answer() {
    for (at, inside) in [
        (Moment::Text(1), None),
        (Moment::Text(20), None),
        (Moment::Text(39), None),
        (Moment::Text(20), Some(Inside::Word)),
        (Moment::Text(20), Some(Inside::Event)),
        (Moment::Text(2), Some(Inside::Character)),
    ] {
        let pool = Pool::of(2, "").await;
        pool.first_fails(Fault::Break { at, inside, how: DIES });
        let answer = pool.answer(&with_usage(true, 40)).await;
        is_seamless(&answer, 40);
        assert_eq!(usage(&answer)["completion_tokens"], 40, "{at:?} {inside:?}");
        let [first, second] = [0, 1].map(|phone| pool.fleet.phones[phone].id().to_owned());
        let comment = format!(": huntgroup continued=1 replicas={first},{second}\n\ndata: [DONE]\n\n");
        assert!(answer.text().ends_with(&comment), "{}", answer.text());
        pool.is_at_rest_after(&[("same_group", 1.0)]).await;
        assert_eq!(pool.gateway.metric("huntgroup_tokens_total", "completion").await, 40.0);
        let log = pool.gateway.log();
        assert!(log.contains("carried on") && log.contains(&first), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_answer_keeps_what_was_written_of_it() {
    let pool = Pool::of(2, "").await;
    let uncut = pool.gateway.chat(&with_usage(false, 40)).await;
    assert!(uncut.is_whole(PROMPT, 40) && uncut.header("x-huntgroup-continued").is_none(), "{}", uncut.head);
    pool.fleet.phones.iter().for_each(fakephone::PhoneHandle::reset_stats);
    pool.first_fails(breaks(Moment::Text(25), DIES));
    let answer = pool.answer(&with_usage(false, 40)).await;
    assert!(answer.is_whole(PROMPT, 40), "{}{}", answer.head, answer.text());
    assert_eq!(answer.header("x-huntgroup-continued"), Some("1"));
    assert_eq!(answer.header("x-huntgroup-attempts"), Some("2"));
    let (answer, mut uncut) = (answer.json(), uncut.json());
    for field in ["id", "created", "usage"] {
        uncut[field] = answer[field].clone();
    }
    assert_eq!(answer, uncut, "but for that it is the same object");
    assert_eq!(answer["usage"]["completion_tokens"], 40);
    assert_eq!(pool.fleet.phones[1].stats().written_tokens, 15, "the second phone writes the rest");
    pool.is_at_rest_after(&[("same_group", 1.0)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_survives_one_death_after_the_other() {
    for stream in [true, false] {
        let pool = Pool::of(5, "").await;
        for phone in &pool.fleet.phones {
            phone.set_fault_within(breaks(Moment::Text(8), DIES), Scope::Next(1));
        }
        // The last of the five writes three words, and has no eighth to die at.
        let answer = pool.gateway.chat(&chat(PROMPT, stream, 35)).await;
        assert!(answer.is_whole(PROMPT, 35), "stream {stream}: {}{}", answer.head, answer.text());
        if stream {
            is_seamless(&answer, 35);
            assert!(answer.text().contains(": huntgroup continued=4 "), "{}", answer.text());
        } else {
            assert_eq!(answer.header("x-huntgroup-continued"), Some("4"));
        }
        let written: u64 = pool.fleet.phones.iter().map(|phone| phone.stats().written_tokens).sum();
        assert_eq!(written, 35, "nothing is written twice");
        pool.is_at_rest_after(&[("same_group", 4.0)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_breaks_off_again_and_again_comes_to_an_end() {
    for stream in [true, false] {
        // The pool's last phone stays in service whatever it does, and is well again each time it is looked at.
        let pool = Pool::of(1, "[health]\nsoft_failures = 100\nmin_samples = 1000\n").await;
        pool.fleet.phones[0].set_fault(breaks(Moment::Text(2), Way::Reset));
        let answer = pool.gateway.chat(&chat(PROMPT, stream, 400)).await;
        let written = pool.fleet.phones[0].stats().written_tokens;
        assert!(written <= 200, "stream {stream}: {written}");
        if stream {
            is_broken_off(&answer);
            assert_eq!(answer.content(), expected(PROMPT, 34));
        } else {
            assert_eq!(answer.status, 502, "{}", answer.text());
        }
        pool.gateway.wait_at_rest().await;
        pool.fleet.phones[0].clear_fault();
        assert!(pool.gateway.chat(&chat(PROMPT, stream, 12)).await.is_whole(PROMPT, 12));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_and_counts_hold_across_the_seam() {
    let pool = Pool::of(2, "").await;
    pool.first_fails(breaks(Moment::Text(10), Way::Reset));
    let answer = pool.answer(&with_usage(true, 30)).await;
    is_seamless(&answer, 30);
    let asked = pool.fleet.phones[1].last_work().expect("it carries on");
    let asked: Value = serde_json::from_str(&asked.body).expect("JSON");
    assert_eq!(asked["max_tokens"], 20, "{asked}");
    assert_eq!(asked["continue_final_message"], true);
    let begun = asked["messages"].as_array().and_then(|all| all.last()).expect("a message");
    assert_eq!(*begun, json!({"role": "assistant", "content": expected(PROMPT, 10)}));
    let first = pool.fleet.phones[0].stats().prompt_tokens;
    assert_eq!(usage(&answer)["prompt_tokens"], first, "the client's prompt, without the part");
    assert_eq!(usage(&answer)["total_tokens"], first + 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_choice_of_an_answer_is_carried_on() {
    let texts = |answer: &Answer| {
        let mut texts: BTreeMap<i64, String> = BTreeMap::new();
        let objects = if answer.head.contains("text/event-stream") { answer.events() } else { vec![answer.json()] };
        for choice in objects.iter().filter_map(|object| object["choices"].as_array()).flatten() {
            let text = choice["delta"]["content"].as_str().or(choice["message"]["content"].as_str());
            *texts.entry(choice["index"].as_i64().expect("an index")).or_default() += text.unwrap_or_default();
        }
        texts
    };
    for stream in [true, false] {
        let pool = Pool::start(std::iter::repeat_n(phone(2, 50.0), 2), "").await;
        let mut body = chat(PROMPT, stream, 20);
        body["n"] = json!(2);
        let uncut = pool.gateway.chat(&body).await;
        assert_eq!(texts(&uncut).len(), 2, "{}", uncut.text());
        pool.fleet.phones.iter().for_each(fakephone::PhoneHandle::reset_stats);
        pool.first_fails(breaks(Moment::Tokens(14), DIES));
        let answer = pool.answer(&body).await;
        assert!(answer.clean && answer.error().is_none(), "{}", answer.text());
        assert_eq!(texts(&answer)[&0], texts(&uncut)[&0], "stream {stream}");
        assert_eq!(texts(&answer)[&1].split(' ').count(), 20, "stream {stream}: {}", answer.text());
        pool.is_at_rest_after(&[("same_group", 1.0)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_that_streams_is_carried_on() {
    let body = |route: &str, stream: bool| match route {
        "/v1/completions" => json!({"model": "tiny", "prompt": PROMPT, "max_tokens": 30, "stream": stream}),
        "/v1/responses" => json!({"model": "tiny", "input": PROMPT, "max_output_tokens": 30, "stream": stream}),
        _ => {
            json!({"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 30, "stream": stream})
        }
    };
    let text = |answer: &Answer| -> String {
        let data =
            answer.text().lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect::<Vec<_>>();
        let events = data.iter().filter_map(|data| serde_json::from_str::<Value>(data).ok());
        events
            .filter_map(|event| {
                let delta = &event["delta"];
                let named = (event["type"] != "response.reasoning_text.delta").then_some(delta.as_str()).flatten();
                let text = named.or(delta["text"].as_str()).or(event["choices"][0]["text"].as_str());
                text.map(str::to_owned)
            })
            .collect()
    };
    let plain = |answer: &Answer| {
        let json = answer.json();
        let places =
            [&json["choices"][0]["text"], &json["content"][0]["text"], &json["output"][0]["content"][0]["text"]];
        places.into_iter().find_map(|place| place.as_str()).map(str::to_owned).expect("a text")
    };
    for route in ["/v1/completions", "/v1/responses", "/v1/messages"] {
        for stream in [true, false] {
            let pool = Pool::of(2, "").await;
            pool.first_fails(breaks(Moment::Text(12), DIES));
            let answer = pool.ask(route, &[], &body(route, stream)).await.answer().await;
            assert_eq!((answer.status, answer.clean), (200, true), "{route} {stream}: {}", answer.text());
            let text = if stream { text(&answer) } else { plain(&answer) };
            assert_eq!(text, expected(PROMPT, 30), "{route} {stream}: {}", answer.text());
            pool.is_at_rest_after(&[("same_group", 1.0)]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_that_falls_silent_or_reports_an_error_in_its_answer_is_left_like_a_dead_one() {
    for how in [Way::Hang, Way::Error(500), Way::Cut, Way::EarlyDone] {
        let pool = Pool::of(2, "[streams]\ngap_min = \"1s\"\n").await;
        pool.first_fails(breaks(Moment::Text(10), how));
        is_seamless(&pool.answer(&chat(PROMPT, true, 30)).await, 30);
        pool.is_at_rest_after(&[("same_group", 1.0)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_may_not_wait_and_a_removal_move_the_answers_that_run() {
    for removed in [false, true] {
        for stream in [true, false] {
            let pool = Pool::start(std::iter::repeat_n(phone(1, 2.0), 2), "").await;
            let exchange = pool.ask(CHAT, &[], &chat(PROMPT, stream, 120)).await;
            let phone = &pool.fleet.phones[0];
            pool.gateway.wait_for("some words", async |_| phone.stats().written_tokens > 5).await;
            if removed {
                let path = format!("/admin/replicas/{}?force=true", phone.id());
                assert!(pool.gateway.admin("DELETE", &path, None).await.status < 300);
            } else {
                pool.tell(0, "drain", json!({"deadline_s": 0.0})).await;
            }
            let answer = exchange.answer().await;
            assert!(answer.is_whole(PROMPT, 120), "removed {removed}, stream {stream}: {}", answer.text());
            assert_eq!(phone.stats().cancelled, 1);
            if stream {
                is_seamless(&answer, 120);
                assert!(pool.fleet.phones[1].stats().written_tokens < 120, "it goes on where the first stopped");
                pool.is_at_rest_after(&[("same_group", 1.0)]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_and_client_say_who_may_carry_on() {
    for (config, header) in [
        ("[streams]\ncontinue = \"never\"\n", None),
        ("", Some("never")),
        ("[streams]\ncontinue = \"never\"\n", Some("always")),
    ] {
        let pool = Pool::of(2, config).await;
        pool.first_fails(breaks(Moment::Text(10), DIES));
        let headers: Vec<_> = header.map(|value| ("x-huntgroup-continue", value)).into_iter().collect();
        let answer = pool.ask(CHAT, &headers, &chat(PROMPT, true, 30)).await.answer().await;
        is_broken_off(&answer);
        assert_eq!(answer.content(), expected(PROMPT, 10), "what came before is the client's");
        assert_eq!(pool.fleet.phones[1].stats().started, 0, "{config} {header:?}");
        pool.is_at_rest_after(&[("impossible_unwanted", 1.0)]).await;
    }
    let pool = Pool::of(1, "").await;
    let headers = [("x-huntgroup-continue", "sometimes")];
    let refused = pool.gateway.client().await.send("POST", CHAT, &headers, Some(&chat(PROMPT, true, 3))).await;
    let refused = refused.answer().await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(refused.error().expect("an error")["code"], "invalid_header");
    assert!(refused.text().contains("always, same_group or never"), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_of_another_build_carries_on_unless_only_the_same_answer_will_do() {
    let phones = || [phone(1, 50.0), phone(1, 50.0).with_build("b9999-other")];
    let pool = Pool::start(phones(), "").await;
    pool.first_fails(breaks(Moment::Text(10), DIES));
    let answer = pool.answer(&chat(PROMPT, true, 30)).await;
    assert!(answer.clean && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    let text = answer.content();
    assert!(text.starts_with(&expected(PROMPT, 10)) && text != expected(PROMPT, 30), "{text}");
    assert_eq!(text.split(' ').count(), 30, "no word is lost and none comes twice: {text}");
    pool.is_at_rest_after(&[("other_group", 1.0)]).await;

    let pool = Pool::start(phones(), "").await;
    pool.first_fails(breaks(Moment::Text(10), DIES));
    let headers = [("x-huntgroup-continue", "same_group")];
    is_broken_off(&pool.ask(CHAT, &headers, &chat(PROMPT, true, 30)).await.answer().await);
    assert_eq!(pool.fleet.phones[1].stats().started, 0);
    pool.is_at_rest_after(&[("failed", 1.0)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_can_carry_on_a_stream_ends_in_an_error_and_a_plain_answer_begins_anew() {
    let unable = || PhoneConfig { continuation: Continuation::Restart, ..phone(1, 50.0) };
    let pool = Pool::start([unable(), unable()], "").await;
    pool.first_fails(breaks(Moment::Text(10), DIES));
    is_broken_off(&pool.answer(&chat(PROMPT, true, 30)).await);
    pool.is_at_rest_after(&[("failed", 1.0)]).await;

    let pool = Pool::start([unable(), unable()], "").await;
    pool.first_fails(breaks(Moment::Text(10), DIES));
    let answer = pool.answer(&chat(PROMPT, false, 30)).await;
    assert!(answer.is_whole(PROMPT, 30), "{}", answer.text());
    assert_eq!(answer.header("x-huntgroup-continued"), None);
    assert_eq!(pool.fleet.phones[1].stats().written_tokens, 30);
    pool.is_at_rest_after(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_longer_than_what_is_kept_is_lost_with_its_phone() {
    let pool = Pool::of(2, "[streams]\nmax_kept = \"1KiB\"\n").await;
    pool.first_fails(breaks(Moment::Text(400), DIES));
    is_broken_off(&pool.answer(&chat(PROMPT, true, 500)).await);
    pool.is_at_rest_after(&[("impossible_too_long", 1.0)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_continuation_that_fails_before_it_has_written_leaves_the_part_to_the_next() {
    for stream in [true, false] {
        let pool = Pool::of(3, "").await;
        let [first, second, third] = [0, 1, 2].map(|phone| &pool.fleet.phones[phone]);
        pool.first_fails(breaks(Moment::Text(10), DIES));
        second.set_fault_within(Fault::Status { code: 500, retry_after: None }, Scope::Next(1));
        // One after the other: who comes next is no matter of chance.
        pool.tell(1, "drain", json!({})).await;
        pool.tell(2, "drain", json!({})).await;
        let exchange = pool.gateway.client().await.post(CHAT, &chat(PROMPT, stream, 30)).await;
        pool.gateway.wait_for("the first to die", async |_| first.stats().lost == 1).await;
        pool.tell(1, "undrain", json!({})).await;
        pool.gateway.wait_for("the second to fail", async |_| second.stats().failed == 1).await;
        pool.tell(2, "undrain", json!({})).await;
        let answer = exchange.answer().await;
        assert!(answer.is_whole(PROMPT, 30), "stream {stream}: {}", answer.text());
        assert_eq!(third.stats().written_tokens, 20, "stream {stream}");
        pool.is_at_rest_after(&[("same_group", 1.0)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_of_an_answer_between_two_phones_is_kept_patient_and_told_what_happens() {
    let config = "[streams]\nhead_after = \"1s\"\nkeepalive_interval = \"100ms\"\n";
    let pool = Pool::of(2, config).await;
    pool.first_fails(breaks(Moment::Text(10), DIES));
    pool.fleet.phones[1].set_fault_within(Fault::SlowReading { seconds: 0.25 }, Scope::Next(1));
    // Some 12 batches, so that the second phone reads for about three seconds.
    let prompt = "word ".repeat(1500);
    let headers = [("x-huntgroup-progress", "true")];
    let answer = pool.ask(CHAT, &headers, &chat(&prompt, true, 30)).await.answer().await;
    assert!(answer.is_whole(&prompt, 30), "{}{}", answer.head, answer.text());
    let text = answer.text();
    let seam = text.match_indices("\"content\":").nth(10).expect("the first words").0;
    let (_, after) = text.split_at(seam);
    assert!(after.matches(": reading, ").count() >= 2, "{after}");
    assert!(after.contains(" % ") || after.contains(" %,"), "{after}");
    pool.is_at_rest_after(&[("same_group", 1.0)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_call_that_breaks_off_is_written_again_and_seen_once() {
    let prompt = format!("[fake tokens=6 calls=1] {PROMPT}");
    let body = |stream: bool| {
        let mut body = chat(&prompt, stream, 200);
        body["tools"] = json!([{"type": "function", "function": {"name": "look_up", "parameters": {
            "type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}]);
        body
    };
    let calls = |answer: &Answer| -> Vec<(String, String)> {
        let objects = if answer.head.contains("text/event-stream") { answer.events() } else { vec![answer.json()] };
        let (mut name, mut arguments) = (String::new(), String::new());
        for choice in objects.iter().filter_map(|object| object["choices"].get(0)) {
            for call in ["delta", "message"].iter().filter_map(|key| choice[*key]["tool_calls"].as_array()).flatten() {
                name += call["function"]["name"].as_str().unwrap_or_default();
                arguments += call["function"]["arguments"].as_str().unwrap_or_default();
            }
        }
        vec![(name, arguments)]
    };
    for stream in [true, false] {
        let pool = Pool::of(2, "").await;
        let uncut = pool.gateway.chat(&body(stream)).await;
        assert_eq!(calls(&uncut)[0].0, "look_up", "{}", uncut.text());
        pool.fleet.phones.iter().for_each(fakephone::PhoneHandle::reset_stats);
        pool.first_fails(breaks(Moment::Arguments(2), DIES));
        let answer = pool.answer(&body(stream)).await;
        assert!(answer.clean && answer.error().is_none(), "stream {stream}: {}", answer.text());
        assert_eq!((calls(&answer), answer.content()), (calls(&uncut), uncut.content()), "stream {stream}");
        pool.is_at_rest_after(&[("same_group", 1.0)]).await;
    }
    let pool = Pool::of(2, "[streams]\nhold_tool_calls = false\n").await;
    pool.first_fails(breaks(Moment::Arguments(2), DIES));
    is_broken_off(&pool.answer(&body(true)).await);
    pool.is_at_rest_after(&[("impossible_tool_call", 1.0)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_between_two_phones_ends_the_request() {
    let pool = Pool::of(2, "").await;
    pool.first_fails(breaks(Moment::Text(10), DIES));
    pool.fleet.phones[1].set_fault_within(Fault::FreezeBeforeHead, Scope::Next(1));
    let exchange = pool.ask(CHAT, &[], &chat(PROMPT, true, 30)).await;
    pool.gateway.wait_for("the second phone to have it", async |_| pool.fleet.phones[1].stats().started == 1).await;
    exchange.leave();
    pool.gateway.wait_for("it to stop", async |_| pool.fleet.phones[1].stats().running_now == 0).await;
    pool.is_at_rest_after(&[]).await;
    assert_eq!(pool.gateway.metric("huntgroup_requests_total", "outcome=\"client_gone\"").await, 1.0);
}
