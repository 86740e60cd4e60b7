//! A replica that nobody vouches for gets nobody's prompt before it has shown that it runs a model.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use fakephone::Dialect;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    harness::{Fleet, Gateway, PATIENCE, chat, phone},
    registration,
};

const ALL: &str = "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n[quarantine]\nof = \"all\"\n";
const CHAT: &str = "/v1/chat/completions";

async fn replica(gateway: &Gateway) -> Value {
    gateway.admin("GET", "/admin/replicas", None).await.json()["data"][0].clone()
}

async fn passed(gateway: &Gateway) -> f64 {
    gateway.metric("huntgroup_quarantine_total", "outcome=\"passed\"").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn phones_of_every_engine_pass_with_their_first_speeds_and_are_not_asked_again_after_a_restart() {
    let dialects = [Dialect::Llama, Dialect::Qvac, Dialect::Mnn, Dialect::MnnApp, Dialect::Laya];
    // Slow enough that their words come one by one, and can be timed.
    let fleet = Fleet::start(dialects.map(|dialect| phone(1, 5.0).with_dialect(dialect))).await;
    let mut gateway = Gateway::builder(ALL).replicas(&fleet).start().await;
    gateway.wait_ready(5).await;
    assert_eq!(passed(&gateway).await, 5.0);
    let list = gateway.admin("GET", "/admin/replicas", None).await.json();
    for replica in list["data"].as_array().expect("a list") {
        assert!(replica["proven_at"].is_number(), "{replica}");
        let ways: Vec<&Value> =
            replica["history"].as_array().into_iter().flatten().map(|step| &step["reason"]).collect();
        assert_eq!(ways, ["unproven", "proven"], "{replica}");
        let writes = replica["dialect"] != "laya";
        assert!(!writes || replica["assumed"]["prefill_tokens_per_second"].is_number(), "{replica}");
    }
    gateway.signal(rustix::process::Signal::TERM);
    gateway.exited().await;
    gateway.restart().await;
    gateway.wait_ready(5).await;
    assert_eq!(gateway.metric("huntgroup_quarantine_total", "").await, 0.0);
    let ways = replica(&gateway).await["history"][0]["reason"].clone();
    assert_eq!(ways, "probe", "it was not in quarantine again");
}

/// Has everybody prove itself from the next reading of the configuration on.
fn ask_all(gateway: &Gateway) {
    let path = gateway.dir().join("huntgroup.toml");
    let text = std::fs::read_to_string(&path).expect("a configuration");
    let all = text.replace("of = \"registered\"", "of = \"all\"");
    assert_ne!(text, all);
    std::fs::write(&path, all).expect("a file");
}

const REGISTERED: &str = "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n[quarantine]\nof = \"registered\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_serves_when_all_come_to_need_a_proof_stays_in_service_also_through_a_restart() {
    let fleet = Fleet::of(2, &phone(1, 50.0)).await;
    let mut gateway = Gateway::over(&fleet, REGISTERED).await;
    ask_all(&gateway);
    let reloaded = gateway.admin("POST", "/admin/reload", Some(&json!({}))).await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert_eq!(gateway.states("ready").await, 2);
    // Killed: nothing is written at the end.
    gateway.child.kill().expect("the process runs");
    gateway.exited().await;
    gateway.restart().await;
    gateway.wait_ready(2).await;
    assert_eq!(gateway.metric("huntgroup_quarantine_total", "").await, 0.0, "nobody was asked again");
    assert_eq!(replica(&gateway).await["history"][0]["reason"], "probe", "it was not in quarantine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_answered_clients_before_a_restart_need_not_prove_itself_after_it() {
    let fleet = Fleet::of(2, &phone(1, 50.0)).await;
    let mut gateway = Gateway::over(&fleet, REGISTERED).await;
    let answer = gateway.chat(&chat("hello", false, 4)).await;
    assert!(answer.is_whole("hello", 4));
    let served = answer.header("x-huntgroup-replica").expect("a replica").to_owned();
    gateway.signal(rustix::process::Signal::TERM);
    gateway.exited().await;
    ask_all(&gateway);
    gateway.restart().await;
    gateway.wait_ready(2).await;
    assert_eq!(passed(&gateway).await, 1.0, "the other one has to");
    let list = gateway.admin("GET", "/admin/replicas", None).await.json();
    for replica in list["data"].as_array().expect("a list") {
        let first = if replica["name"] == *served { "probe" } else { "unproven" };
        assert_eq!(replica["history"][0]["reason"], first, "{replica}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_goes_with_a_phone_that_signs_and_holds_for_the_models_that_it_was_given_with() {
    let fleet = Fleet::of(3, &phone(1, 50.0)).await;
    let gateway = registration::gateway(&fleet, "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n").await;
    let key = fakephone::SigningKey::from_seed(1);
    let move_to = async |phone: &fakephone::PhoneHandle, proofs: f64| {
        assert!(registration::sign(&gateway, &key, &registration::started(phone)).await.status < 300);
        gateway
            .wait_for("the phone to serve there", async |gateway| {
                let kept = replica(gateway).await;
                kept["url"] == *phone.url() && kept["state"] == "ready"
            })
            .await;
        assert_eq!(passed(&gateway).await, proofs);
    };
    move_to(&fleet.phones[0], 1.0).await;
    move_to(&fleet.phones[1], 1.0).await;
    let other = fleet.relay.spawn(phone(1, 50.0).with_seed(99).with_model("other")).expect("a phone");
    move_to(&other, 2.0).await;
    // Said by place, by nothing but the token: another phone may be there.
    let at = |phone: &fakephone::PhoneHandle| json!({"event": "started", "url": phone.url(), "deployment": "d", "processor": "p"});
    assert_eq!(registration::say(&gateway, &at(&fleet.phones[0])).await.status, 201);
    gateway.wait_ready(2).await;
    assert_eq!(registration::say(&gateway, &at(&fleet.phones[2])).await.json()["outcome"], "moved");
    gateway.wait_for("a fourth proof", async |gateway| passed(gateway).await == 4.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_waits_until_the_only_phone_has_shown_what_it_can_do() {
    let fleet = Fleet::of(1, &phone(1, 1.0)).await;
    fleet.phones[0].set_pace(0.01);
    let gateway = Gateway::builder(ALL).replicas(&fleet).start().await;
    gateway.wait_for("a replica in quarantine", async |gateway| gateway.states("quarantine").await == 1).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("a test question");
    let waiting = gateway.client().await.post(CHAT, &chat("hello", false, 4)).await;
    gateway
        .wait_for("a request that waits", async |gateway| {
            gateway.admin("GET", "/admin/requests", None).await.json()["data"][0]["phase"] == "queued"
        })
        .await;
    assert_eq!(gateway.metric("huntgroup_attempts_total", "").await, 0.0);
    let read = fleet.phones[0].requests();
    assert!(read.iter().any(|seen| seen.body.contains("Case ")), "its own test question");
    assert!(!read.iter().any(|seen| seen.body.contains("hello")), "nobody's prompt");
    assert_eq!(gateway.admin("GET", "/readyz", None).await.status, 503, "nobody is ready");
    fleet.phones[0].set_pace(100.0);
    assert!(waiting.answer().await.is_whole("hello", 4));
}

/// What stands in a phone's place.
#[derive(Clone, Copy, Debug)]
enum Impostor {
    /// A page for everything that costs work.
    Page,
    /// Says back what it is told.
    Echo,
    /// One stream for all, with constant counts.
    Canned,
    /// The same, without counts.
    CannedUncounted,
    /// Never ends.
    Endless,
    /// Ends at once.
    Empty,
    /// Knows every prompt before it is told.
    Deaf,
    /// Writes a byte now and then, for ever.
    Trickle,
}

/// A server that says that it is a llama-server, and is none.
async fn impostor(kind: Impostor) -> (String, Arc<AtomicUsize>, JoinSet<()>) {
    // At every address of this machine.
    let door = TcpListener::bind(("0.0.0.0", 0)).await.expect("a port");
    let url = format!("http://127.0.0.1:{}", door.local_addr().expect("an address").port());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut visits = JoinSet::new();
        while let Ok((stream, _)) = door.accept().await {
            visits.spawn(serve(stream, kind, Arc::clone(&count)));
        }
    });
    (url, asked, task)
}

async fn serve(mut stream: TcpStream, kind: Impostor, asked: Arc<AtomicUsize>) -> Option<()> {
    let mut read = Vec::new();
    let (head, body) = loop {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).await.ok().filter(|length| *length > 0)?;
        read.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&read).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let promised =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= promised.unwrap_or(0) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let path = head.split(' ').nth(1)?;
    let json = |text: String| ("application/json", text);
    let (kind_of, text) = match path {
        "/health" => json(json!({"status": "ok"}).to_string()),
        "/v1/models" => json(json!({"object": "list", "data": [{"id": "tiny", "owned_by": "llamacpp"}]}).to_string()),
        "/props" => json(json!({"total_slots": 1, "build_info": "b1"}).to_string()),
        "/slots" => json(json!([{"id": 0, "is_processing": false}]).to_string()),
        "/apply-template" if matches!(kind, Impostor::Deaf) => json(json!({"prompt": "<user>hello"}).to_string()),
        CHAT if body.len() > 2 => {
            asked.fetch_add(1, Ordering::SeqCst);
            answer(kind, body, &mut stream).await?
        }
        _ => {
            let head = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            return stream.write_all(head.as_bytes()).await.ok();
        }
    };
    let length = text.len();
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: {kind_of}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(text.as_bytes()).await.ok()
}

async fn answer(kind: Impostor, body: String, stream: &mut TcpStream) -> Option<(&'static str, String)> {
    let event = |value: Value| format!("data: {value}\n\n");
    let word = || event(json!({"choices": [{"index": 0, "delta": {"content": "certainly "}, "finish_reason": null}]}));
    let end = || event(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
    let usage =
        || event(json!({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}}));
    let done = "data: [DONE]\n\n";
    let events = "text/event-stream";
    Some(match kind {
        Impostor::Page => ("text/html", "<p>Welcome</p>".into()),
        Impostor::Echo => ("application/json", body),
        Impostor::Canned | Impostor::Deaf => (events, word() + &end() + &usage() + done),
        Impostor::CannedUncounted => (events, word() + &end() + done),
        Impostor::Empty => (events, end() + done),
        Impostor::Endless => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {events}\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.ok()?;
            loop {
                stream.write_all(word().as_bytes()).await.ok()?;
            }
        }
        Impostor::Trickle => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {events}\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.ok()?;
            loop {
                stream.write_all(b":").await.ok()?;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_phone_with_a_model_stays_in_quarantine_and_is_told_from_the_others_by_words() {
    for (kind, words) in [
        (Impostor::Page, "web page"),
        (Impostor::Echo, "shape of its API"),
        (Impostor::Canned, "same text"),
        (Impostor::CannedUncounted, "same text"),
        (Impostor::Endless, "beyond max_tokens"),
        (Impostor::Empty, "empty"),
        (Impostor::Deaf, "prompt's words"),
    ] {
        let (url, asked, task) = impostor(kind).await;
        let gateway = Gateway::builder(&format!("{ALL}\n[[replicas]]\nurl = \"{url}\"\n")).start().await;
        gateway
            .wait_for(&format!("{kind:?} to be told"), async |gateway| {
                let replica = replica(gateway).await;
                let problem = replica["problem"].as_str().unwrap_or_default().to_owned();
                replica["state"] == "quarantine" && problem.contains(words) && problem.contains("release")
            })
            .await;
        assert_eq!(gateway.metric("huntgroup_quarantine_total", "outcome=\"wrong_answer\"").await, 1.0, "{kind:?}");
        assert!(asked.load(Ordering::SeqCst) <= 2, "{kind:?} is asked once, and then left alone for a while");
        drop(task);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_who_has_looked_lets_a_replica_in() {
    let (url, _, task) = impostor(Impostor::Canned).await;
    let gateway = Gateway::builder(&format!("{ALL}\n[[replicas]]\nurl = \"{url}\"\n")).start().await;
    gateway
        .wait_for("its problem", async |gateway| {
            replica(gateway).await["problem"].as_str().is_some_and(|text| text.contains("same text"))
        })
        .await;
    let id = replica(&gateway).await["id"].clone();
    let released = gateway.admin("POST", &format!("/admin/replicas/{id}/release"), Some(&json!({}))).await;
    assert_eq!((released.status, &released.json()["changed"]), (200, &json!(true)), "{}", released.text());
    gateway.wait_ready(1).await;
    let again = gateway.admin("POST", &format!("/admin/replicas/{id}/release"), Some(&json!({}))).await.json();
    assert_eq!((&again["changed"], &again["state"]), (&json!(false), &json!("ready")));
    assert!(gateway.chat(&chat("hello", false, 4)).await.text().contains("certainly"));
    let audit = gateway.admin("GET", "/admin/audit", None).await.text();
    assert!(audit.contains("replica.prove"), "{audit}");
    assert_eq!(gateway.admin("POST", "/admin/replicas/999/release", Some(&json!({}))).await.status, 404);
    drop(task);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_known_less_well_than_asked_for_is_asked_nothing_and_let_in_by_nobody() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let config = "min_verification = \"signed\"\n[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n";
    let gateway = registration::gateway(&fleet, config).await;
    assert!(registration::say(&gateway, &registration::started(&fleet.phones[0])).await.status < 300);
    gateway.wait_for("the quarantine", async |gateway| gateway.states("quarantine").await == 1).await;
    let kept = replica(&gateway).await;
    assert!(kept["problem"].as_str().is_some_and(|text| text.contains("min_verification is \"signed\"")), "{kept}");
    let released = gateway.admin("POST", &format!("/admin/replicas/{}/release", kept["id"]), Some(&json!({}))).await;
    assert_eq!((released.status, &released.json()["error"]["code"]), (409, &json!("not_verified")));
    assert_eq!(gateway.metric("huntgroup_quarantine_total", "").await, 0.0);
    // An operator who adds it vouches for it.
    let added =
        gateway.admin("POST", "/admin/replicas", Some(&json!({"url": fleet.phones[0].url(), "slots": 1}))).await;
    assert!(added.status < 300, "{}", added.text());
    gateway.wait_ready(1).await;
}

/// What answers test questions a byte at a time, under as many addresses as anybody wants. To the gateway it comes from where all
/// phones come from behind a proxy.
struct Tricklers {
    port: u16,
    asked: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Tricklers {
    async fn start() -> Self {
        let (url, asked, task) = impostor(Impostor::Trickle).await;
        let port = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        Self { port, asked, _task: task }
    }

    /// The next of them announces itself, as of a deployment of its own. Whether it was taken.
    async fn come(&self, gateway: &Gateway, number: usize) -> bool {
        let url = format!("http://127.1.{}.{}:{}", number / 250, 1 + number % 250, self.port);
        let job = format!("job:{number}");
        let body = json!({"event": "started", "url": url, "deployment": job, "processor": "p"});
        registration::say(gateway, &body).await.status == 201
    }

    async fn all_come(&self, gateway: &Gateway, numbers: std::ops::Range<usize>) {
        for number in numbers {
            assert!(self.come(gateway, number).await, "{number}");
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

const TURN: &str = "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n[quarantine]\nturn = \"1s\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_phones_that_trickle_keep_no_good_phone_waiting() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = registration::gateway(&fleet, "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n").await;
    let tricklers = Tricklers::start().await;
    tricklers.all_come(&gateway, 0..20).await;
    gateway.wait_for("all to be asked", async |_| tricklers.asked() == 20).await;
    assert_eq!(registration::say(&gateway, &registration::started(&fleet.phones[0])).await.status, 201);
    gateway.wait_ready(1).await;
    assert_eq!(gateway.states("quarantine").await, 20);
    assert_eq!(gateway.metric("huntgroup_quarantine_total", "outcome=\"failed\"").await, 0.0, "nobody's turn was over");
    assert!(gateway.chat(&chat("hello", false, 4)).await.is_whole("hello", 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_phone_that_comes_after_two_hundred_that_trickle_waits_for_their_turns_and_no_longer() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let gateway = registration::gateway(&fleet, &format!("max_new_per_minute = 240\n{TURN}")).await;
    let tricklers = Tricklers::start().await;
    tricklers.all_come(&gateway, 0..200).await;
    assert_eq!(registration::say(&gateway, &registration::started(&fleet.phones[0])).await.status, 201);
    // 16 places at a turn of a second: without it, each would be asked for a minute and a half.
    gateway.wait_ready(1).await;
    assert_eq!(gateway.metric("huntgroup_quarantine_total", "outcome=\"passed\"").await, 1.0);
    let list = gateway.admin("GET", "/admin/replicas", None).await.text();
    assert!(list.contains("others wait to be asked"), "{list}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_phone_finds_its_way_in_while_others_that_trickle_come_under_new_names_as_fast_as_they_may() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let config = format!("max_new_per_minute = 600\nmax_unproven = 40\n{TURN}");
    let gateway = Arc::new(registration::gateway(&fleet, &config).await);
    let tricklers = Arc::new(Tricklers::start().await);
    let taken = Arc::new(AtomicUsize::new(0));
    let mut flood = JoinSet::new();
    let (at, whose, count) = (Arc::clone(&gateway), Arc::clone(&tricklers), Arc::clone(&taken));
    flood.spawn(async move {
        for number in 0.. {
            count.fetch_add(usize::from(whose.come(&at, number).await), Ordering::SeqCst);
        }
    });
    // As many as may have shown nothing, and those for which they have made room.
    gateway.wait_for("the flood", async |_| taken.load(Ordering::SeqCst) > 80).await;
    gateway
        .wait_for("a good phone to be let in", async |gateway| {
            registration::say(gateway, &registration::started(&fleet.phones[0])).await.status < 300
        })
        .await;
    gateway.wait_ready(1).await;
    assert!(gateway.chat(&chat("hello", false, 4)).await.is_whole("hello", 4));
    assert!(registration::count(&gateway).await <= 41);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_phone_that_is_being_asked_keeps_its_place_for_its_turn_whoever_comes() {
    let fleet = Fleet::of(1, &phone(1, 0.3)).await;
    // 34 places; a turn is longer than the good phone needs.
    let config =
        "max_new_per_minute = 50\n[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n[quarantine]\nturn = \"20s\"\n";
    let gateway = registration::gateway(&fleet, config).await;
    assert_eq!(registration::say(&gateway, &registration::started(&fleet.phones[0])).await.status, 201);
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("a test question");
    let tricklers = Tricklers::start().await;
    tricklers.all_come(&gateway, 0..45).await;
    gateway.wait_for("no place to be free", async |_| tricklers.asked() == 33).await;
    assert_eq!(gateway.states("ready").await, 0, "it is still being asked");
    gateway.wait_ready(1).await;
    let kept = gateway.admin("GET", "/admin/replicas", None).await.json();
    let ready = kept["data"].as_array().into_iter().flatten().find(|replica| replica["state"] == "ready");
    let ways: Vec<&Value> =
        ready.expect("it")["history"].as_array().into_iter().flatten().map(|step| &step["reason"]).collect();
    assert_eq!(ways, ["unproven", "proven"], "it was asked once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn phones_that_trickle_are_asked_for_so_long_all_together_and_no_longer() {
    let config = "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n[quarantine]\ntimeout = \"2s\"\n";
    let gateway = registration::gateway(&Fleet::of(0, &phone(1, 50.0)).await, config).await;
    let tricklers = Tricklers::start().await;
    tricklers.all_come(&gateway, 0..1).await;
    let problem = "its answers had not all come after 2 s";
    gateway
        .wait_for("the end of its time", async |gateway| {
            replica(gateway).await["problem"].as_str().is_some_and(|text| text.contains(problem))
        })
        .await;
}
