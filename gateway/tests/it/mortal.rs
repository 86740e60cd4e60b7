//! Phones none of which lives as long as an answer takes, and clients that see nothing of it.

use std::collections::BTreeSet;

use fakephone::{Fault, Inside, Moment, PhoneConfig, PhoneHandle, PhoneStats, Way};
use serde_json::{Value, json};
use simulation::rng::Rng;
use tokio::task::JoinSet;

use crate::harness::{Answer, Client, Gateway, MODEL, PATIENCE, expected, now, phone};

/// Tokens of an answer.
const TOKENS: u32 = 60;
/// Tokens that a phone writes before it dies, in the mean: one in eight gets to the end of an answer. Begun anew each time, an answer
/// would cost 3.2 times its tokens.
const LIFETIME: f64 = 30.0;
/// The share of the lives that end over the prompt, and of those that end after the last word.
const READING: f64 = 0.1;
const ENDING: f64 = 0.1;
/// Phones that come back are soon used again, no request is given up as long as it can go on, whoever waits long for a plain
/// answer is told that it comes, and no answer is kept.
const CONFIG: &str = "[health]\ninterval = \"5s\"\npenalty = \"100ms\"\npenalty_cap = \"1s\"\nmin_success_share = 0.0\n\
                      [scheduler]\nmax_attempts = 10\nretry_share = 1.0\n\
                      [idempotency]\nkeep = \"0s\"\n\
                      [streams]\nkeepalive_json_after = \"10s\"\nkeepalive_interval = \"5s\"\n";

/// How a life ends: over the prompt, after so many tokens, or after the last. It is told in work and not in seconds, so that it is
/// the same on a busy machine.
fn death(chance: &mut Rng, ways: &[Way]) -> Fault {
    let written = chance.exponential(LIFETIME).ceil() as u32;
    let at = match chance.unit() {
        when if when < READING => Moment::Batches(2),
        when if when < READING + ENDING => [Moment::Tokens(TOKENS), Moment::Finish, Moment::Done][chance.below(3)],
        _ => Moment::Text(written),
    };
    let inside = [None, None, Some(Inside::Event), Some(Inside::Character)][chance.below(4)];
    Fault::Break { at, inside, how: ways[chance.below(ways.len())] }
}

/// Gives a phone one life after the other.
async fn live(phone: PhoneHandle, ways: &'static [Way], seed: u64) {
    let mut chance = Rng::from_seed(seed);
    let ends = |stats: &PhoneStats| stats.lost + stats.completed + stats.cancelled;
    let mut before = 0;
    loop {
        phone.set_fault(death(&mut chance, ways));
        // A phone that nobody asks lives on.
        if let Ok(stats) = phone.wait_until(PATIENCE, |stats| ends(stats) > before).await {
            before = ends(&stats);
        }
    }
}

/// A request.
#[derive(Clone)]
struct Ask {
    route: &'static str,
    stream: bool,
    body: Value,
    prompt: String,
    key: Option<String>,
}

impl Ask {
    /// Half of them streamed, mostly chats and completions, some with thoughts, some with a key by which their clients come back.
    fn new(number: usize) -> Self {
        let route = ["chat/completions", "completions", "chat/completions", "messages", "completions", "responses"];
        let (route, stream) = (route[number / 2 % route.len()], number.is_multiple_of(2));
        let thinks = if number % 7 == 3 && route != "completions" { "[fake think=9] " } else { "" };
        let prompt = format!("{thinks}Frage {number}: {}", "wie schön fließt die Donau weit fort ".repeat(8));
        let mut body = match route {
            "completions" => json!({"prompt": prompt, "max_tokens": TOKENS}),
            "responses" => json!({"input": prompt, "max_output_tokens": TOKENS}),
            _ => json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": TOKENS}),
        };
        (body["model"], body["stream"]) = (json!(MODEL), json!(stream));
        if stream && route.ends_with("completions") {
            body["stream_options"] = json!({"include_usage": true});
        }
        let key = number.is_multiple_of(5).then(|| format!("key-{number}"));
        Self { route, stream, body, prompt, key }
    }

    async fn send(&self, port: u16) -> Answer {
        let headers: Vec<_> = self.key.iter().map(|key| ("Idempotency-Key", &**key)).collect();
        let path = format!("/v1/{}", self.route);
        let ask = async || Client::connect(port).await.send("POST", &path, &headers, Some(&self.body)).await;
        if self.key.is_some() {
            // It loses its own connection as well.
            let mut first = ask().await;
            if self.stream && !first.read_until("data: ").await {
                return first.answer().await;
            }
            first.leave();
        }
        ask().await.answer().await
    }
}

/// What an answer says, whatever its route and its form.
#[derive(Debug, Default, PartialEq)]
struct Said {
    thoughts: String,
    text: String,
    /// Why it ended.
    end: String,
    tokens: u64,
    /// How often it said that it begins, and under which names.
    beginnings: usize,
    ids: BTreeSet<String>,
}

impl Said {
    fn of(ask: &Ask, answer: &Answer) -> Self {
        let mut said = Self::default();
        if ask.stream {
            let text = answer.text();
            let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
            data.for_each(|data| said.event(&serde_json::from_str(data).expect("JSON")));
        } else {
            said.object(&answer.json());
        }
        said
    }

    fn event(&mut self, event: &Value) {
        let kind = event["type"].as_str().unwrap_or_default();
        let delta = &event["delta"];
        match kind {
            "" => self.object(event),
            "message_start" => self.begin(&event["message"]["id"]),
            "content_block_delta" => {
                self.text += delta["text"].as_str().unwrap_or_default();
                self.thoughts += delta["thinking"].as_str().unwrap_or_default();
            }
            "message_delta" => self.end(&delta["stop_reason"], &event["usage"]["output_tokens"]),
            "response.created" => self.begin(&event["response"]["id"]),
            "response.output_text.delta" => self.text += delta.as_str().unwrap_or_default(),
            "response.reasoning_text.delta" => self.thoughts += delta.as_str().unwrap_or_default(),
            "response.completed" => {
                self.ids.extend(event["response"]["id"].as_str().map(str::to_owned));
                self.end(&event["response"]["status"], &event["response"]["usage"]["output_tokens"]);
            }
            _ => {}
        }
    }

    /// A plain answer, or an event of a chat or a completion.
    fn object(&mut self, object: &Value) {
        self.ids.extend(object["id"].as_str().map(str::to_owned));
        let choice = &object["choices"][0];
        let message = choice.get("delta").unwrap_or(&choice["message"]);
        self.beginnings += usize::from(message.get("role").is_some() || object.get("role").is_some());
        for text in [&choice["text"], &message["content"]] {
            self.text += text.as_str().unwrap_or_default();
        }
        self.thoughts += message["reasoning_content"].as_str().unwrap_or_default();
        let outputs = object["output"].as_array().into_iter().flatten();
        let items = outputs.flat_map(|item| item["content"].as_array().into_iter().flatten());
        for block in object["content"].as_array().into_iter().flatten().chain(items) {
            match block["type"].as_str() {
                Some("thinking" | "reasoning_text") => {
                    self.thoughts += block["thinking"].as_str().or(block["text"].as_str()).unwrap_or_default();
                }
                _ => self.text += block["text"].as_str().unwrap_or_default(),
            }
        }
        let usage = &object["usage"];
        let tokens = usage.get("completion_tokens").unwrap_or(&usage["output_tokens"]);
        let reasons = [&choice["finish_reason"], &object["stop_reason"], &object["status"]];
        let reason = reasons.into_iter().find(|reason| reason.is_string()).unwrap_or(&Value::Null);
        self.end(reason, tokens);
    }

    fn begin(&mut self, id: &Value) {
        self.beginnings += 1;
        self.ids.extend(id.as_str().map(str::to_owned));
    }

    fn end(&mut self, reason: &Value, tokens: &Value) {
        self.end += reason.as_str().unwrap_or_default();
        self.tokens += tokens.as_u64().unwrap_or_default();
    }
}

/// What one phone alone, which lives, answers to each.
async fn references(asks: &[Ask]) -> Vec<Said> {
    let phone = fakephone::spawn(PhoneConfig::default().with_model(MODEL)).await.expect("a phone");
    let mut all = Vec::new();
    for ask in asks {
        let answer = Ask { key: None, ..ask.clone() }.send(phone.address().port()).await;
        let said = Said::of(ask, &answer);
        if said.thoughts.is_empty() {
            assert_eq!(said.text, expected(&ask.prompt, TOKENS), "{}", answer.text());
        }
        assert_eq!(said.tokens, u64::from(TOKENS), "{}", answer.text());
        all.push(said);
    }
    all
}

/// It is the whole answer, and of one piece. Phones of `many` builds differ in how some words end, and in nothing else.
fn assert_whole(ask: &Ask, answer: &Answer, reference: &Said, many: bool) {
    let text = answer.text();
    assert_eq!((answer.status, answer.clean), (200, true), "{}{text}", answer.head);
    let marker = match ask.route {
        "messages" => "event: message_stop\n",
        "responses" => "event: response.completed\n",
        _ => "data: [DONE]\n",
    };
    assert_eq!(text.matches(marker).count(), usize::from(ask.stream), "{}{text}", answer.head);
    assert!(!text.contains("\"error\":{"), "{text}");
    let mut said = Said::of(ask, answer);
    assert_eq!(said.ids.len(), reference.ids.len(), "{text}");
    said.ids.clone_from(&reference.ids);
    if many {
        (said.text, said.thoughts) = (without_accent(&said.text), without_accent(&said.thoughts));
    }
    assert_eq!(said, *reference, "{}{text}", answer.head);
}

/// Words without what phones of another build put behind them.
fn without_accent(text: &str) -> String {
    let words: Vec<_> = text.split(' ').map(|word| word.split('~').next().unwrap_or_default()).collect();
    words.join(" ")
}

/// A run: phones that die, and clients that all ask at once.
struct Run {
    phones: usize,
    clients: usize,
    /// How lives end.
    ways: &'static [Way],
    /// Each phone runs a build of its own.
    many: bool,
    keeps_streams: bool,
}

impl Run {
    /// A gateway over phones that all carry on.
    async fn pool(&self) -> (Vec<PhoneHandle>, Gateway) {
        let mut phones = Vec::new();
        for number in 0..self.phones {
            let usual = phone(1 + number as u16 % 2, 0.5).with_seed(number as u64);
            let mut config = PhoneConfig { batch_tokens: 16, keeps_streams: self.keeps_streams, ..usual };
            if self.many {
                config = config.with_build(format!("b{number}"));
            }
            phones.push(fakephone::spawn(config).await.expect("a phone"));
        }
        let replicas: String =
            phones.iter().map(|phone| format!("[[replicas]]\nurl = \"{}\"\n", phone.url())).collect();
        let gateway = Gateway::builder(&format!("{CONFIG}{replicas}")).start().await;
        // In steps: to ask a hundred phones about themselves takes a busy machine longer than any one condition may.
        for quarter in 1..=4 {
            let able = async |gateway: &Gateway| {
                let answer = gateway.admin("GET", "/admin/replicas", None).await.json();
                answer["data"].as_array().into_iter().flatten().filter(|replica| replica["carries_on"] == true).count()
            };
            let some = phones.len() * quarter / 4;
            gateway.wait_for("phones that carry on", async |gateway| able(gateway).await >= some).await;
        }
        phones.iter().for_each(PhoneHandle::reset_stats);
        (phones, gateway)
    }

    /// Every client gets its whole answer, and nothing is left of any.
    async fn go(&self) -> Gateway {
        let asks: Vec<Ask> = (0..self.clients).map(Ask::new).collect();
        let references = references(&asks).await;
        let (phones, gateway) = self.pool().await;
        let began = now();
        let lives = phones.iter().cloned().zip(610..).map(|(phone, seed)| live(phone, self.ways, seed));
        let lives = JoinSet::from_iter(lives);
        let port = gateway.public;
        let clients = asks.iter().cloned().enumerate();
        let mut clients: JoinSet<(usize, Answer)> =
            clients.map(|(number, ask)| async move { (number, ask.send(port).await) }).collect();
        while let Some(done) = clients.join_next().await {
            let (number, answer) = done.expect("answered");
            assert_whole(&asks[number], &answer, &references[number], self.many);
        }
        drop(lives);
        phones.iter().for_each(PhoneHandle::clear_fault);
        let took = began.elapsed();
        is_at_rest(&phones, &gateway).await;
        let sum = |of: fn(&PhoneStats) -> u64| phones.iter().map(|phone| of(&phone.stats())).sum::<u64>();
        let written = sum(|stats| stats.written_tokens) as f64 / (self.clients as f64 * f64::from(TOKENS));
        println!(
            "{} answers in {took:?}, {} attempts lost: {:.0} carried on: {written:.2} tokens written for one of \
             an answer, {:.1} s of slots wasted",
            self.clients,
            sum(|stats| stats.lost),
            gateway.metric("huntgroup_continuations_total", "").await,
            gateway.metric("huntgroup_wasted_slot_seconds_total", "").await,
        );
        assert!(written < 2.0, "as much is written again as by beginning anew: {written}");
        assert_eq!(gateway.metric("huntgroup_continuations_total", "failed").await, 0.0);
        assert_eq!(gateway.metric("huntgroup_continuations_total", "impossible").await, 0.0);
        gateway
    }
}

/// Everything is as if nothing had been, and all phones are back.
async fn is_at_rest(phones: &[PhoneHandle], gateway: &Gateway) {
    gateway.wait_at_rest().await;
    for (name, with) in [
        ("huntgroup_retries_in_flight", ""),
        ("huntgroup_replica_slots", "state=\"lingering\""),
        ("huntgroup_kept_answer_bytes", ""),
    ] {
        gateway.wait_for(name, async |gateway| gateway.metric(name, with).await == 0.0).await;
    }
    let live = gateway.admin("GET", "/admin/requests", None).await.json();
    assert_eq!(live["data"], json!([]));
    gateway
        .wait_for("all phones", async |g| g.states("ready").await + g.states("probation").await == phones.len())
        .await;
    let sum = |of: fn(&PhoneStats) -> u64| phones.iter().map(|phone| of(&phone.stats())).sum::<u64>();
    assert_eq!(sum(|stats| u64::from(stats.running_now + stats.waiting_now)), 0);
    assert_eq!(sum(|stats| stats.over_subscribed), 0);
    assert_eq!(gateway.metric("huntgroup_panics_total", "").await, 0.0);
}

const DIES: Way = Way::Die { down_s: Some(0.2) };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_outlive_their_phones_are_whole_and_hardly_anything_is_written_twice() {
    let run = Run { phones: 100, clients: 150, ways: &[DIES], many: false, keeps_streams: false };
    let gateway = run.go().await;
    let carried_on = gateway.metric("huntgroup_continuations_total", "same_group").await;
    assert!(carried_on > 150.0, "{carried_on}: more than one death for each answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_phones_of_many_builds_write_one_after_the_other_miss_no_word() {
    let run = Run { phones: 30, clients: 45, ways: &[DIES], many: true, keeps_streams: false };
    let gateway = run.go().await;
    assert!(gateway.metric("huntgroup_continuations_total", "other_group").await > 30.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_whose_phones_lose_their_tunnels_or_die_are_read_on_or_carried_on() {
    let run = Run { phones: 30, clients: 45, ways: &[DIES, Way::Tunnel], many: false, keeps_streams: true };
    let gateway = run.go().await;
    for outcome in ["resumed", "same_group"] {
        assert!(gateway.metric("huntgroup_continuations_total", outcome).await > 0.0, "{outcome}");
    }
}
