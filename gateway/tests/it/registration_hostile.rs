//! Announcements that lie, repeat, or flood: nothing of the pool changes by them.

use fakephone::SigningKey;
use serde_json::{Value, json};

use crate::{
    harness::{Client, Fleet, Gateway, phone},
    registration::{TOKEN, actions, callback, count, gateway, now_ms, replica, say, sign, sign_at, started},
};

const MIB: f64 = 1_048_576.0;

async fn code(gateway: &Gateway, key: Option<&SigningKey>, body: &Value) -> (u16, String) {
    let reply = match key {
        Some(key) => sign(gateway, key, body).await,
        None => say(gateway, body).await,
    };
    (reply.status, reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn an_address_that_an_operator_could_not_add_is_not_announced_either() {
    let config = "[registration]\ntoken = \"file:token\"\n[pool]\nurl_suffixes = [\"acu.run\", \"localhost\"]\n";
    let gateway = Gateway::builder(config).strict().secret("token", TOKEN).start().await;
    let before = actions(&gateway).await;
    for url in [
        "http://abc.acu.run",
        "ftp://abc.acu.run",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379",
        "https://127.0.0.1:9091",
        "https://[::1]:9091",
        "https://[::ffff:127.0.0.1]",
        "https://169.254.169.254",
        "https://2130706433",
        "https://0x7f000001",
        "https://0177.0.0.1",
        "https://evil.example",
        "https://acu.run.evil.example",
        "https://notacu.run",
        "https://abc.acu.run@evil.example",
        "https://user:secret@abc.acu.run",
        "https://abc.acu.run/../admin",
        "https://abc.acu.run/v1",
        "https://abc.acu.run?x=1",
        "https://abc.acu.run#x",
        "https://abc.acu.run:0",
        "https://abc.acu.run:99999",
        "https://abc.acu.run\\@evil.example",
        "https://abc.acu.run\r\nHost: evil.example",
        "https://abc .acu.run",
        "https://\u{430}bc.acu.run",
        "//abc.acu.run",
        "abc.acu.run",
        "javascript:alert(1)",
    ] {
        for shape in [json!({ "url": url }), json!({ "webUrl": url }), json!({ "data": { "url": url } })] {
            let mut body = shape;
            body["event"] = json!("started");
            let reply = say(&gateway, &body).await;
            assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("url_not_allowed")), "{body}");
            assert!(!reply.body.contains("secret"), "{}", reply.body);
        }
    }
    assert_eq!((count(&gateway).await, actions(&gateway).await), (0, before));
}

#[tokio::test]
async fn a_thousand_forged_replayed_and_silly_announcements_change_nothing() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "").await;
    let (key, forger) = (SigningKey::from_seed(1), SigningKey::from_seed(2));
    let body = started(&fleet.phones[0]).to_string();
    let headers = key.headers(&now_ms().to_string(), "captured-nonce", body.as_bytes());
    let callback = callback(gateway.admin);
    let first = fakephone::call(&callback, &headers, body.as_bytes()).await.expect("an answer");
    assert_eq!(first.status, 201, "{first:?}");
    gateway.wait_ready(1).await;
    gateway.wait_known().await;
    let id = first.json()["id"].clone();
    let shown = async || {
        let replica = replica(&gateway, &id).await;
        ["url", "name", "public_key", "verification", "announced_at", "stated"].map(|field| replica[field].clone())
    };
    let (before, trail) = (shown().await, actions(&gateway).await);
    let memory = gateway.metric("process_resident_memory_bytes", "").await;
    let (mut refused, deep) = (0, "[".repeat(15_000));
    for n in 0..200_u64 {
        let stolen = json!({ "event": "started", "url": format!("https://evil-{n}.acu.run") }).to_string();
        let mut forged = forger.headers(&now_ms().to_string(), &format!("forged-{n:08}"), stolen.as_bytes());
        forged[0].1 = key.public();
        let late = key.headers(&(now_ms() - 120_000).to_string(), &format!("late-{n:08}"), stolen.as_bytes());
        let early = key.headers(&(now_ms() + 120_000).to_string(), &format!("early-{n:08}"), stolen.as_bytes());
        let calls = [
            (headers.clone(), body.as_str(), 409),
            (headers.clone(), stolen.as_str(), 403),
            (forged, stolen.as_str(), 403),
            (late, stolen.as_str(), 403),
            (early, stolen.as_str(), 403),
            (vec![], deep.as_str(), 400),
            (vec![], "{\"event\":\"started\",\"url\":17}", 400),
        ];
        for (headers, body, status) in calls {
            let reply = fakephone::call(&callback, &headers, body.as_bytes()).await.expect("an answer");
            assert_eq!(reply.status, status, "{n}: {reply:?}");
            refused += 1;
        }
    }
    assert_eq!(refused, 1_400);
    let large = fakephone::call(&callback, &[], &vec![b' '; 17 << 10]).await.expect("an answer");
    assert_eq!(large.status, 413);
    assert_eq!((shown().await, actions(&gateway).await, count(&gateway).await), (before, trail, 1));
    let grown = (gateway.metric("process_resident_memory_bytes", "").await - memory) / MIB;
    assert!(grown < 16.0, "{grown:.1} MiB for {refused} refused calls");
    let lines = gateway.log().matches("a phone's call was refused").count();
    assert!((1..100).contains(&lines), "{lines} lines for {refused} refused calls");
}

#[tokio::test]
async fn a_token_alone_moves_no_phone_that_signs_and_takes_no_place_of_one() {
    let fleet = Fleet::of(3, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "").await;
    let (key, other) = (SigningKey::from_seed(1), SigningKey::from_seed(2));
    let at = |index: usize| json!({ "event": "started", "url": fleet.phones[index].url(), "deployment": "job:1", "processor": "5Fphone" });
    let first = sign(&gateway, &key, &at(0)).await;
    assert_eq!(first.status, 201, "{first:?}");
    gateway.wait_ready(1).await;
    let trail = actions(&gateway).await;
    // By its place, by the token alone and by another key.
    assert_eq!(code(&gateway, None, &at(1)).await, (409, "signature_needed".into()));
    assert_eq!(code(&gateway, Some(&other), &at(1)).await, (409, "taken".into()));
    // By its address.
    let hijack = json!({ "event": "started", "url": fleet.phones[0].url(), "replica": { "slots": 9 } });
    assert_eq!(code(&gateway, Some(&other), &hijack).await, (409, "taken".into()));
    assert_eq!(code(&gateway, None, &hijack).await, (200, String::new()), "known, and nothing more");
    for event in ["leaving", "error", "heartbeat"] {
        let mut body = at(0);
        body["event"] = json!(event);
        assert_eq!(code(&gateway, None, &body).await, (409, "signature_needed".into()), "{event}");
    }
    let shown = replica(&gateway, &first.json()["id"]).await;
    assert_eq!((&shown["url"], &shown["stated"]["slots"]), (&json!(fleet.phones[0].url()), &Value::Null));
    assert_eq!((actions(&gateway).await, count(&gateway).await), (trail, 1));
}

#[tokio::test]
async fn an_older_signed_announcement_never_moves_a_phone_back_not_even_after_a_restart() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let mut gateway = gateway(&fleet, "").await;
    let key = SigningKey::from_seed(1);
    let at = now_ms();
    let id = sign_at(&gateway, &key, at - 20_000, &started(&fleet.phones[0])).await.json()["id"].clone();
    assert_eq!(sign_at(&gateway, &key, at, &started(&fleet.phones[1])).await.json()["outcome"], "moved");
    let old = sign_at(&gateway, &key, at - 10_000, &started(&fleet.phones[0])).await;
    assert_eq!((old.status, &old.json()["error"]["code"]), (409, &json!("older_announcement")));
    gateway.child.kill().expect("the process runs");
    gateway.exited().await;
    gateway.restart().await;
    // Its nonces are forgotten with the process; what was signed last is not.
    for before in [20_000, 10_000, 0] {
        let again = sign_at(&gateway, &key, at - before, &started(&fleet.phones[0])).await;
        assert_eq!(again.status, 409, "{before} ms before: {again:?}");
    }
    let leaving = sign_at(&gateway, &key, at - 10_000, &json!({ "event": "leaving" })).await;
    assert_eq!(leaving.status, 409, "{leaving:?}");
    assert_eq!(replica(&gateway, &id).await["url"], json!(fleet.phones[1].url()));
    let newer = sign(&gateway, &key, &started(&fleet.phones[0])).await;
    assert_eq!(newer.json()["outcome"], "moved", "{newer:?}");
}

#[tokio::test]
async fn a_flood_of_new_phones_is_stopped_at_the_rate_and_known_ones_are_not() {
    let fleet = Fleet::of(3, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "max_new_per_minute = 5\n").await;
    let key = SigningKey::from_seed(1);
    assert_eq!(sign(&gateway, &key, &started(&fleet.phones[1])).await.status, 201);
    gateway.wait_ready(1).await;
    let known = started(&fleet.phones[0]);
    assert_eq!(say(&gateway, &known).await.status, 201);
    let mut taken = 0;
    for n in 0..50 {
        let reply = say(&gateway, &json!({ "event": "started", "url": format!("https://p{n}.invalid") })).await;
        taken += usize::from(reply.status == 201);
        assert!(reply.status == 201 || reply.status == 429, "{reply:?}");
    }
    assert!(taken < 10, "{taken} of 50 came through");
    assert_eq!(say(&gateway, &known).await.status, 200);
    assert!(gateway.metric("huntgroup_registrations_total", "outcome=\"refused_rate\"").await >= 40.0);
    // What nobody can make up is not what floods.
    assert_eq!(sign(&gateway, &key, &started(&fleet.phones[2])).await.json()["outcome"], "moved");
    let stranger = SigningKey::from_seed(2);
    assert_eq!(sign(&gateway, &stranger, &json!({ "event": "started", "url": "https://q.invalid" })).await.status, 429);
}

#[tokio::test]
async fn guessing_the_token_is_stopped_locks_no_operator_out_and_the_token_is_nowhere_to_be_read() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "").await;
    let body = started(&fleet.phones[0]).to_string();
    assert_eq!(say(&gateway, &json!({ "event": "started", "url": TOKEN })).await.status, 400);
    assert_eq!(say(&gateway, &started(&fleet.phones[0])).await.status, 201);
    let guess = async |n: u32| {
        let url = format!("http://127.0.0.1:{}/admin/register?token=guess-{n:016}", gateway.admin);
        fakephone::call(&url, &[], body.as_bytes()).await.expect("an answer")
    };
    for n in 0..20 {
        assert_eq!(guess(n).await.status, 401);
    }
    assert_eq!(guess(20).await.status, 429);
    assert_eq!(
        say(&gateway, &started(&fleet.phones[0])).await.status,
        200,
        "phones behind the same address are not locked out"
    );
    assert_eq!(count(&gateway).await, 1, "operators are not locked out");
    let audit = gateway.admin("GET", "/admin/audit?limit=999", None).await.text();
    let list = gateway.admin("GET", "/admin/replicas", None).await.text();
    let refused = gateway.admin("GET", "/admin/registrations/refused", None).await.text();
    let seen = format!("{}{audit}{list}{refused}", gateway.log());
    assert!(!seen.contains(TOKEN) && !seen.contains("guess-0000"), "{seen}");
}

#[tokio::test]
async fn operators_see_what_was_refused_by_kind_with_the_field_that_was_wrong() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "").await;
    let refused = async || gateway.admin("GET", "/admin/registrations/refused", None).await.json()["data"].clone();
    assert_eq!(refused().await, json!([]));
    let with = |stated: Value| json!({ "event": "started", "url": fleet.phones[0].url(), "replica": stated });
    for _ in 0..3 {
        let reply = say(&gateway, &with(json!({ "slots": 0 }))).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("replica.slots")), "{reply:?}");
    }
    // Neither a terminal nor a page is moved by what is refused.
    let markup = "<img src=x>\u{1b}[2J";
    let forged = json!({ "event": "started", "url": format!("https://a.acu.run/{markup}"), "deployment": markup });
    say(&gateway, &forged).await;
    say(&gateway, &with(json!({ markup: markup }))).await;
    let wrong = format!("http://127.0.0.1:{}/admin/register?token=%3Cimg%1B", gateway.admin);
    fakephone::call(&wrong, &[], b"{}").await.expect("an answer");
    let list = refused().await;
    let kinds = list.as_array().expect("a list").iter().map(|kind| json!([kind["field"], kind["count"]]));
    let kinds: Vec<_> = kinds.collect();
    assert_eq!(json!(kinds), json!([["token", 1], ["replica", 1], ["deployment", 1], ["replica.slots", 3]]));
    let slots = &list[3];
    assert_eq!(
        (&slots["reason"], &slots["peer"], &slots["message"]),
        (&json!("invalid_registration"), &json!("127.0.0.1"), &json!("replica.slots must be from 1 to 1024, not 0"))
    );
    assert!(
        slots["first_at"].as_f64() <= slots["last_at"].as_f64() && slots["first_at"].as_f64() > Some(1e9),
        "{slots}"
    );
    let text = list.to_string();
    assert!(!text.contains("img") && !text.contains("u001b"), "{text}");
    let mut feed = Client::connect(gateway.admin).await.send("GET", "/admin/watch", &[], None).await;
    assert!(
        feed.read_until("event: registration\ndata: {\"refused\":[{\"reason\":\"invalid_registration_token\"").await
    );
}

/// Names of all replicas, the oldest first.
async fn names(gateway: &Gateway) -> Vec<String> {
    let list = gateway.admin("GET", "/admin/replicas", None).await.json();
    let mut all: Vec<_> = list["data"].as_array().expect("a list").iter().collect();
    all.sort_by_key(|replica| replica["id"].as_u64());
    all.iter().map(|replica| replica["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn phones_that_have_shown_nothing_are_few_and_make_room_for_what_an_operator_adds() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let config = "max_unproven = 2\n[pool]\nmax_replicas = 3\n[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n";
    let gateway = gateway(&fleet, config).await;
    let lost = |n: u32| json!({ "event": "started", "url": format!("https://p{n}.invalid") });
    assert_eq!(say(&gateway, &started(&fleet.phones[0])).await.status, 201);
    gateway.wait_ready(1).await;
    let proven = names(&gateway).await.remove(0);
    for n in 0..2 {
        assert_eq!(say(&gateway, &lost(n)).await.status, 201);
    }
    let refused = say(&gateway, &lost(2)).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("too_many_unproven")));
    assert!(refused.body.contains("registration.max_unproven is 2"), "{}", refused.body);
    assert_eq!(say(&gateway, &lost(1)).await.status, 200, "one that is known is no one more");
    // The pool is full.
    let added = gateway.admin("POST", "/admin/replicas", Some(&json!({ "url": fleet.phones[1].url() }))).await;
    assert_eq!(added.status, 201, "{}", added.text());
    let own = added.json()["name"].as_str().expect("a name").to_owned();
    assert_eq!(names(&gateway).await, [proven.clone(), "p1".to_owned(), own.clone()], "the oldest has made room");
    let add = async |host: &str| {
        let body = json!({ "url": format!("https://{host}.invalid") });
        gateway.admin("POST", "/admin/replicas", Some(&body)).await.status
    };
    assert_eq!(add("last").await, 201);
    assert_eq!(add("beyond").await, 409, "nobody is left who makes room");
    assert_eq!(names(&gateway).await, [proven, own, "last".to_owned()]);
}

#[tokio::test]
async fn a_phone_that_never_shows_that_it_runs_a_model_is_forgotten() {
    let fleet = Fleet::of(1, &phone(1, 100.0)).await;
    let config = "forget_unproven_after = \"2s\"\n[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n";
    let gateway = gateway(&fleet, config).await;
    assert_eq!(say(&gateway, &json!({ "event": "started", "url": "https://lost.invalid" })).await.status, 201);
    assert_eq!(say(&gateway, &started(&fleet.phones[0])).await.status, 201);
    gateway.wait_ready(1).await;
    gateway.wait_for("the other one to be forgotten", async |gateway| count(gateway).await == 1).await;
    assert_eq!(gateway.states("ready").await, 1);
    assert_eq!(actions(&gateway).await[0], "replica.remove");
    // One that has shown it may be away for longer.
    fleet.phones[0].set_fault(fakephone::Fault::Refuse);
    gateway.wait_for("the phone to be out", async |gateway| gateway.states("out").await == 1).await;
    assert_eq!(say(&gateway, &json!({ "event": "started", "url": "https://lost.invalid" })).await.status, 201);
    gateway.wait_for("the other one to be forgotten again", async |gateway| count(gateway).await == 1).await;
    assert_eq!(gateway.states("out").await, 1);
}

#[tokio::test]
async fn a_phone_that_has_served_is_no_newcomer_when_it_pauses_or_is_away_though_nothing_was_asked_of_it() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let config =
        "forget_unproven_after = \"2s\"\n[quarantine]\nof = \"none\"\n[health]\ninterval = \"1s\"\ntimeout = \"1s\"\n";
    let gateway = gateway(&fleet, config).await;
    for phone in &fleet.phones {
        assert_eq!(say(&gateway, &started(phone)).await.status, 201);
    }
    gateway.wait_ready(2).await;
    let empty =
        json!({ "event": "heartbeat", "url": fleet.phones[0].url(), "report": { "battery": 3, "charging": false } });
    assert_eq!(say(&gateway, &empty).await.status, 200);
    fleet.phones[1].set_fault(fakephone::Fault::Refuse);
    gateway.wait_for("one to be out", async |gateway| gateway.states("out").await == 1).await;
    // It comes last, so whoever is to be forgotten was forgotten before it.
    assert_eq!(say(&gateway, &json!({ "event": "started", "url": "https://lost.invalid" })).await.status, 201);
    gateway
        .wait_for("the newcomer to be forgotten", async |gateway| !names(gateway).await.contains(&"lost".to_owned()))
        .await;
    assert_eq!(count(&gateway).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_signed_announcements_that_race_the_newest_wins_and_each_counts_once() {
    const ROUNDS: u64 = 7;
    const RACERS: u64 = 8;
    let fleet = Fleet::of(0, &phone(1, 100.0)).await;
    let gateway = gateway(&fleet, "max_new_per_minute = 100000\nwindow = \"300s\"\n").await;
    let key = SigningKey::from_seed(7);
    let begun = now_ms() - 200_000;
    for round in 0..ROUNDS {
        // In an order of its own each time, and each is sent three times at once.
        let racers = (0..RACERS).map(|n| (n * 5 + round) % RACERS);
        let mut calls = tokio::task::JoinSet::new();
        for (n, _) in racers.flat_map(|n| [(n, 0), (n, 1), (n, 2)]) {
            let body = json!({ "event": "started", "url": format!("https://r{round}n{n}.invalid") }).to_string();
            let at = (begun + round * 1_000 + n).to_string();
            let headers = key.headers(&at, &format!("race-{round:04}-{n:04}"), body.as_bytes());
            let callback = callback(gateway.admin);
            calls.spawn(
                async move { (n, fakephone::call(&callback, &headers, body.as_bytes()).await.expect("an answer")) },
            );
        }
        let mut heard = vec![0; RACERS as usize];
        for (n, reply) in calls.join_all().await {
            let code = reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
            match (reply.status, code.as_str()) {
                (409, "replayed") => continue,
                (200 | 201, "") => {}
                (409, "older_announcement") => assert_ne!(n, RACERS - 1, "the newest is never older"),
                other => panic!("{other:?}: {reply:?}"),
            }
            heard[n as usize] += 1;
        }
        assert_eq!(heard, vec![1; RACERS as usize], "of three alike one counts");
        let list = gateway.admin("GET", "/admin/replicas", None).await.json();
        let urls: Vec<_> = list["data"].as_array().expect("a list").iter().map(|one| one["url"].clone()).collect();
        assert_eq!(urls, [json!(format!("https://r{round}n{}.invalid", RACERS - 1))], "round {round}");
    }
}
