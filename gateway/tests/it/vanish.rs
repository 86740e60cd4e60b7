//! Clients that vanish, in every phase of a request, and leave nothing behind.
//!
//! There is a pool for each phase that must not be left to chance: one whose only slot is taken, where every request waits, and one
//! whose phones break off every answer, where a request is between two phones all the time.

use std::{collections::BTreeMap, sync::Arc};

use fakephone::{Fault, Moment, PhoneConfig, PhoneHandle, Way};
use serde_json::{Value, json};
use simulation::rng::Rng;
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::Semaphore, task::JoinSet};

use crate::harness::{Answer, Client, Exchange, Fleet, Gateway, MODEL, chat, expected, phone};

const CHAT: &str = "/v1/chat/completions";
/// A pool whose only slot is taken.
const TAKEN: &str = "taken";
/// A pool of phones that break off every answer.
const BROKEN: &str = "broken";
/// Tokens of an answer.
const TOKENS: u32 = 60;
/// Clients in a round, rounds, and clients at once.
const CLIENTS: usize = 100;
const ROUNDS: usize = 4;
const AT_ONCE: usize = 16;
/// Signs of life come often enough to tell the phases by them; a request with a key ends soon after its last client, and its
/// answer is not kept for long. Phones that break off answers stay in service. Nobody looks at capacity meanwhile: that takes a few
/// megabytes once, when the first look happens to fall into a round.
const CONFIG: &str = "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\nsoft_failures = 100\nmin_success_share = 0.0\n\
                      penalty = \"100ms\"\npenalty_cap = \"1s\"\n\
                      [scheduler]\nmax_queued_per_slot = 100\nretry_share = 1.0\n\
                      [idempotency]\ngrace = \"300ms\"\nkeep = \"500ms\"\n\
                      [streams]\nhead_after = \"0s\"\nkeepalive_interval = \"100ms\"\nkeepalive_json_after = \"100ms\"\n\
                      [capacity]\nevery = \"1h\"\n";
/// What the process may grow by from the second round to the last, bytes: 20 KB for each client in between, less than a request
/// takes with its body and its answer.
const GROWTH: f64 = 4e6;

/// When a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Half of the body is there.
    Body,
    /// No phone has it yet.
    Queued,
    /// Its prompt is read.
    Read,
    /// The first word has come.
    Begun,
    /// A third of the answer has come.
    Written,
    /// The answer has broken off and is to be carried on.
    Seam,
}

const PHASES: [Phase; 6] = [Phase::Body, Phase::Queued, Phase::Read, Phase::Begun, Phase::Written, Phase::Seam];

impl Phase {
    fn model(self) -> &'static str {
        match self {
            Self::Queued => TAKEN,
            Self::Seam => BROKEN,
            _ => MODEL,
        }
    }

    /// Whether this is what a client sees in it.
    fn is_seen(self, stream: bool, seen: &str) -> bool {
        let Some((_, body)) = seen.split_once("\r\n\r\n") else { return false };
        if !stream {
            // Chunks of one space each: a plain answer shows nothing else before it is whole.
            let spaces = body.matches("\r\n \r\n").count();
            return spaces >= [0, 2, 1, 3, 6, 12][self as usize];
        }
        let words = body.find("\"content\":\"").map(|at| &body[at..]);
        match self {
            Self::Body => true,
            Self::Queued => body.contains(": waiting"),
            Self::Read => body.contains(": reading"),
            Self::Begun => words.is_some(),
            Self::Written => body.contains(" w20"),
            Self::Seam => words.is_some_and(|rest| rest.contains(": reading") || rest.contains(": waiting")),
        }
    }
}

/// Who is there besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    /// Nobody, and the client never comes back.
    Nobody,
    /// The same client, which comes back with its key.
    Itself,
    /// Another one, which asked the same with its key and stays.
    Friend,
}

/// A client that vanishes.
#[derive(Clone, Debug)]
struct Vanishing {
    phase: Phase,
    stream: bool,
    key: Option<String>,
    company: Company,
    prompt: String,
}

impl Vanishing {
    fn new(number: usize, chance: &mut Rng) -> Self {
        let phase = PHASES[number % PHASES.len()];
        let key = chance.chance(0.6).then(|| format!("key-{number}"));
        let company = match key {
            Some(_) => [Company::Nobody, Company::Itself, Company::Friend][chance.below(3)],
            None => Company::Nobody,
        };
        let filler = match phase {
            Phase::Read => "word ".repeat(1500),
            Phase::Seam => "word ".repeat(400),
            _ => String::new(),
        };
        let words: Vec<_> = (1..40).map(|word| format!("w{word}")).collect();
        let prompt = format!("{} {number} {filler}", words.join(" "));
        Self { phase, stream: chance.chance(0.6), key, company, prompt }
    }

    fn body(&self) -> Value {
        let mut body = chat(&self.prompt, self.stream, TOKENS);
        body["model"] = json!(self.phase.model());
        body
    }

    async fn ask(&self, port: u16) -> Exchange {
        let mut headers = vec![("X-Huntgroup-Progress", "true"), ("Connection", "close")];
        headers.extend(self.key.as_deref().map(|key| ("Idempotency-Key", key)));
        Client::connect(port).await.send("POST", CHAT, &headers, Some(&self.body())).await
    }

    /// Sends half of the request and is gone.
    async fn half(&self, port: u16) {
        let body = self.body().to_string();
        let key = self.key.iter().map(|key| format!("Idempotency-Key: {key}\r\n")).collect::<String>();
        let head = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{key}");
        let text = format!("{head}Content-Length: {}\r\n\r\n{}", body.len(), &body[..body.len() / 2]);
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the port is open");
        stream.write_all(text.as_bytes()).await.expect("the half of it is taken");
    }

    /// Comes, and vanishes in its phase. Whether it got there: an answer may have been whole before.
    async fn vanish(&self, port: u16) -> bool {
        if self.phase == Phase::Body {
            self.half(port).await;
            return true;
        }
        let mut exchange = self.ask(port).await;
        let there = exchange.read_while(|seen| !self.phase.is_seen(self.stream, seen)).await;
        exchange.leave();
        there
    }

    /// All of it, with whoever is there besides. Whether it vanished in its phase.
    async fn run(&self, port: u16) -> bool {
        match self.company {
            Company::Nobody => self.vanish(port).await,
            // What never comes to an end can't be waited for; it vanishes twice.
            Company::Itself if self.phase.model() != MODEL => self.vanish(port).await && self.vanish(port).await,
            Company::Friend if self.phase.model() != MODEL => {
                let (one, other) = tokio::join!(self.vanish(port), self.vanish(port));
                one && other
            }
            Company::Itself => {
                let there = self.vanish(port).await;
                self.check(&self.ask(port).await.answer().await);
                there
            }
            Company::Friend => {
                let stays = async { self.ask(port).await.answer().await };
                let (there, answer) = tokio::join!(self.vanish(port), stays);
                self.check(&answer);
                there
            }
        }
    }

    /// Whoever stays gets the whole answer.
    fn check(&self, answer: &Answer) {
        assert_eq!((answer.status, answer.clean), (200, true), "{self:?}: {}{}", answer.head, answer.text());
        assert_eq!(answer.content(), expected(&self.prompt, TOKENS), "{self:?}: {}", answer.head);
        assert_eq!(answer.text().ends_with("data: [DONE]\n\n"), self.stream, "{self:?}: {}", answer.text());
    }
}

/// The phones of all pools. Some keep streams and have to be told to stop, one frees its slots late.
async fn phones() -> Fleet {
    let usual = || phone(2, 4.0);
    let keeper = || PhoneConfig { keeps_streams: true, ..usual() };
    let forgetful = || PhoneConfig { remembers_prompts: false, batch_tokens: 32, ..phone(1, 1.0) }.with_model(BROKEN);
    let taken = phone(1, 4.0).with_model(TAKEN);
    let fleet =
        Fleet::start([usual(), usual(), keeper(), keeper(), taken, forgetful(), forgetful(), forgetful()]).await;
    fleet.phones[0].set_fault(Fault::LateRelease { seconds: 0.3 });
    for phone in &fleet.phones[5..] {
        phone.set_fault(Fault::Break { at: Moment::Text(8), inside: None, how: Way::Reset });
    }
    fleet
}

/// Nothing runs, waits or is kept, by the gateway's word and by the phones'.
async fn is_at_rest(fleet: &Fleet, gateway: &Gateway) {
    gateway.wait_at_rest().await;
    for (name, with) in [
        ("huntgroup_replica_slots", "state=\"lingering\""),
        ("huntgroup_replica_slots", "state=\"foreign\""),
        ("huntgroup_retries_in_flight", ""),
        ("huntgroup_kept_answer_bytes", ""),
    ] {
        gateway.wait_for(name, async |gateway| gateway.metric(name, with).await == 0.0).await;
    }
    assert_eq!(gateway.admin("GET", "/admin/requests", None).await.json()["data"], json!([]));
    let replicas = gateway.admin("GET", "/admin/replicas", None).await.json();
    for replica in replicas["data"].as_array().expect("a list") {
        assert_eq!((&replica["in_flight"], &replica["lingering"]), (&json!(0), &json!(0)), "{replica}");
    }
    let idle = |phone: &PhoneHandle| phone.stats().running_now + phone.stats().waiting_now == 0;
    gateway.wait_for("idle phones", async |_| fleet.phones.iter().all(idle)).await;
    assert_eq!(fleet.over_subscribed(), 0);
    assert_eq!(gateway.metric("huntgroup_panics_total", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_vanish_in_any_phase_leave_nothing_behind() {
    let fleet = phones().await;
    let gateway = Gateway::over(&fleet, CONFIG).await;
    let able = async |gateway: &Gateway| {
        let answer = gateway.admin("GET", "/admin/replicas", None).await.json();
        answer["data"].as_array().into_iter().flatten().all(|replica| replica["carries_on"] == true)
    };
    gateway.wait_for("phones that carry on", able).await;
    fleet.phones.iter().for_each(PhoneHandle::reset_stats);
    fleet.phones[4].set_pace(0.05);
    let port = gateway.public;
    let mut chance = Rng::from_seed(61);
    let (mut arrived, mut used) = (BTreeMap::<Phase, usize>::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut body = chat("occupied", true, 4000);
        body["model"] = json!(TAKEN);
        let mut occupant = gateway.client().await.post(CHAT, &body).await;
        assert!(occupant.read_until("\"content\"").await, "{}", occupant.seen());
        let mut clients: Vec<_> =
            (0..CLIENTS).map(|number| Vanishing::new(round * CLIENTS + number, &mut chance)).collect();
        chance.shuffle(&mut clients);
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let clients = JoinSet::from_iter(clients.into_iter().map(|client| {
            let room = Arc::clone(&room);
            async move {
                let _place = room.acquire().await.expect("it is open");
                client.run(port).await.then_some(client.phase)
            }
        }));
        for phase in clients.join_all().await.into_iter().flatten() {
            *arrived.entry(phase).or_default() += 1;
        }
        // Also those whose key keeps their place for a while.
        gateway.wait_for("an empty queue", async |g| g.metric("huntgroup_queue_depth", "").await == 0.0).await;
        assert_eq!(fleet.phones[4].stats().started, round as u64 + 1, "whoever vanishes in the queue is never run");
        occupant.leave();
        is_at_rest(&fleet, &gateway).await;
        used.push([
            gateway.metric("process_resident_memory_bytes", "").await,
            gateway.metric("process_open_fds", "").await,
        ]);
    }
    println!("vanished: {arrived:?}; memory and descriptors after each round: {used:?}");
    for phase in PHASES {
        assert!(arrived.get(&phase).is_some_and(|count| *count > 0), "{phase:?}: {arrived:?}");
    }
    let [memory, descriptors] = [0, 1].map(|what| used[ROUNDS - 1][what] - used[1][what]);
    assert!(memory < GROWTH, "{used:?}");
    // A connection that waits to be used again for each slot, and one for probes.
    assert!(descriptors <= 20.0, "{used:?}");
}
