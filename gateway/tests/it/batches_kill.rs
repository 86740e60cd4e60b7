//! Batches over a hundred kills, or more, at random moments: nothing is lost, nothing is there twice, nothing runs again that has a result.
//!
//! Two tenants upload, create, cancel and delete all the while, and know of each call only whether they saw its answer. After each
//! kill the database is read beside the phones' books, when both stand still.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use fakephone::{Fault, Moment, PhoneHandle, Way};
use rustix::process::Signal;
use serde_json::{Value, json};
use simulation::rng::Rng;
use store::{BatchRecord, BatchState, BatchStore, PageOf, Results, Seal};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::harness::{Fleet, Gateway, PATIENCE, chat, expected, now, phone};

/// Kills, and how many more until each state was met: on a slow machine they are fewer that pass between two.
const KILLS: usize = 100;
const MORE_KILLS: usize = 300;
/// States in which a kill must have met a batch.
const STATES: [&str; 6] = ["validating", "in_progress", "storing", "finalizing", "cancelling", "expiring"];
/// Tokens of a line's answer.
const TOKENS: u32 = 5;
/// Batches that a tenant makes in the course of the first kills, and with each further kill.
const BATCHES: usize = 60;
const MORE_BATCHES: usize = 2;
/// Lines of a file that is long enough to be caught while it is looked at; its last one is wrong.
const LONG: usize = 4_000;
const CONFIG: &str = "[batches]\nlease = \"1s\"\nmax_open_per_tenant = 1000\n\
                      [health]\ninterval = \"1s\"\ntimeout = \"1s\"\npenalty = \"100ms\"\npenalty_cap = \"1s\"\nmin_success_share = 0.0\n\
                      [streams]\ncontinue = \"never\"\n";

fn prompt(name: &str) -> String {
    format!("Umsatz <{name}> bitte prüfen")
}

/// An input file, and the names of its lines.
struct Input {
    names: Vec<String>,
    text: String,
    /// Its last line is wrong: none of it may run.
    wrong: bool,
}

impl Input {
    fn new(tag: &str, lines: usize, wrong: bool) -> Self {
        let names: Vec<String> = (0..lines).map(|line| format!("{tag}-{line}")).collect();
        let mut text = String::new();
        for name in &names {
            let body = chat(&prompt(name), false, TOKENS);
            let entry = json!({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body});
            text.push_str(&format!("{entry}\n"));
        }
        if wrong {
            text.push_str("{\"custom_id\":\n");
        }
        Self { names, text, wrong }
    }
}

/// What a tenant knows for sure.
#[derive(Default)]
struct Known {
    /// Files by id; those whose deletion was answered are gone.
    files: BTreeMap<String, Arc<Input>>,
    deleted: BTreeSet<String>,
    /// Deletions that were not answered.
    perhaps_deleted: BTreeSet<String>,
    /// Batches whose creation was answered, and the input of every one that was asked for, by its tag.
    batches: BTreeSet<String>,
    wanted: BTreeMap<String, Arc<Input>>,
    /// Batches that it may make.
    may_make: usize,
    cut_uploads: usize,
    cancelled: usize,
    inputs_deleted: usize,
}

/// A tenant and what it does.
struct Tenant {
    port: u16,
    authorization: String,
    known: Mutex<Known>,
}

impl Tenant {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no panic before")
    }

    /// An answer, if one came whole: the gateway may be killed at any moment. `pause`: between the two halves of the request.
    async fn call(&self, method: &str, path: &str, kind: &str, body: &[u8], pause: Duration) -> Option<(u16, Vec<u8>)> {
        let Self { port, authorization, .. } = self;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: g\r\nConnection: close\r\nAuthorization: Bearer {authorization}\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let bytes = [head.as_bytes(), body].concat();
        let asked = async {
            let mut stream = TcpStream::connect(("127.0.0.1", *port)).await.ok()?;
            let (first, second) = bytes.split_at(if pause.is_zero() { 0 } else { bytes.len() / 2 });
            stream.write_all(first).await.ok()?;
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            stream.write_all(second).await.ok()?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.ok()?;
            whole(&answer)
        };
        tokio::time::timeout(PATIENCE, asked).await.expect("an answer, or the end of the connection, in time")
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.call("GET", path, "text/plain", b"", Duration::ZERO).await?;
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        Some(serde_json::from_slice(&body).expect("JSON"))
    }

    async fn content(&self, file: &str) -> Option<Vec<u8>> {
        let path = format!("/v1/files/{file}/content");
        let (status, body) = self.call("GET", &path, "text/plain", b"", Duration::ZERO).await?;
        assert_eq!(status, 200, "{file}: {}", String::from_utf8_lossy(&body));
        Some(body)
    }

    /// All its batches. A gateway that lives answers.
    async fn batches(&self) -> Option<Vec<Value>> {
        let (mut batches, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("/v1/batches?limit=100{after}")).await?;
            batches.extend(page["data"].as_array().cloned().unwrap_or_default());
            if page["has_more"] != true {
                return Some(batches);
            }
            after = format!("&after={}", page["last_id"].as_str().expect("an id"));
        }
    }

    async fn upload(&self, tag: &str, chance: &mut Rng) {
        let wrong = chance.below(6) == 0;
        let lines = if wrong { LONG } else { 3 + chance.below(40) };
        let input = Arc::new(Input::new(tag, lines, wrong));
        let form = format!(
            "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
             --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{}\r\n--b--\r\n",
            input.text
        );
        let pause = Duration::from_millis(if chance.below(3) == 0 { chance.below(200) as u64 } else { 0 });
        match self.call("POST", "/v1/files", "multipart/form-data; boundary=b", form.as_bytes(), pause).await {
            Some((200, body)) => {
                let object: Value = serde_json::from_slice(&body).expect("JSON");
                self.known().files.insert(object["id"].as_str().expect("an id").into(), input);
            }
            // An upload whose holder was not heard of in time is refused.
            Some((status, body)) => assert!(status >= 500, "{status} {}", String::from_utf8_lossy(&body)),
            None => self.known().cut_uploads += 1,
        }
    }

    async fn create(&self, file: &str, input: &Arc<Input>, tag: &str, window: &str) {
        self.known().wanted.insert(tag.into(), Arc::clone(input));
        let body = json!({
            "input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": window, "metadata": {"tag": tag},
        });
        let body = body.to_string();
        match self.call("POST", "/v1/batches", "application/json", body.as_bytes(), Duration::ZERO).await {
            Some((200, body)) => {
                let object: Value = serde_json::from_slice(&body).expect("JSON");
                self.known().batches.insert(object["id"].as_str().expect("an id").into());
            }
            Some((status, body)) => {
                // Its deletion may have been done, and not answered.
                let text = String::from_utf8_lossy(&body);
                assert!(status == 400 && self.known().perhaps_deleted.contains(file), "{status} {text}");
            }
            None => {}
        }
    }

    async fn cancel(&self, id: &str) {
        let path = format!("/v1/batches/{id}/cancel");
        match self.call("POST", &path, "application/json", b"", Duration::ZERO).await {
            Some((200, body)) => {
                let object: Value = serde_json::from_slice(&body).expect("JSON");
                assert!(
                    matches!(object["status"].as_str(), Some("cancelling" | "cancelled" | "in_progress")),
                    "{object}"
                );
                self.known().cancelled += 1;
            }
            Some((status, body)) => assert_eq!(status, 409, "{}", String::from_utf8_lossy(&body)),
            None => {}
        }
    }

    async fn delete(&self, file: &str) {
        let path = format!("/v1/files/{file}");
        self.known().perhaps_deleted.insert(file.into());
        if let Some((status, body)) = self.call("DELETE", &path, "text/plain", b"", Duration::ZERO).await {
            assert!(status == 200 || status == 404, "{}", String::from_utf8_lossy(&body));
            let mut known = self.known();
            known.deleted.insert(file.into());
            known.inputs_deleted += 1;
        }
    }

    /// Does one thing after the other.
    async fn live(self: Arc<Self>, name: &'static str, seed: u64) {
        let mut chance = Rng::from_seed(seed);
        let mut made = 0;
        for step in 0_u64.. {
            tokio::time::sleep(Duration::from_millis(chance.below(60) as u64)).await;
            let may_make = self.known().may_make;
            match chance.below(10) {
                0..=2 if made < may_make => self.upload(&format!("{name}{step}"), &mut chance).await,
                3..=6 if made < may_make => {
                    let free: Vec<_> = {
                        let known = self.known();
                        let used: BTreeSet<_> = known.wanted.values().map(Arc::as_ptr).collect();
                        let free = known.files.iter().filter(|(id, input)| {
                            !used.contains(&Arc::as_ptr(input)) && !known.perhaps_deleted.contains(*id)
                        });
                        free.map(|(id, input)| (id.clone(), Arc::clone(input))).collect()
                    };
                    let Some((file, input)) = free.first() else { continue };
                    made += 1;
                    let window = ["24h", "24h", "24h", "1s", "4s"][chance.below(5)];
                    self.create(file, input, &format!("{name}{step}"), window).await;
                    if chance.below(3) == 0 {
                        self.delete(file).await;
                    }
                }
                7 => {
                    let Some(batches) = self.batches().await else { continue };
                    let open: Vec<_> = batches.iter().filter(|batch| !batch["huntgroup"].is_null()).collect();
                    if open.is_empty() || chance.below(2) == 0 {
                        continue;
                    }
                    let id = open[chance.below(open.len())]["id"].as_str().expect("an id").to_owned();
                    self.cancel(&id).await;
                }
                _ => drop(self.batches().await),
            }
        }
    }
}

/// Status and body of an answer that came to its end.
fn whole(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    let body = &answer[end..];
    match length {
        Some(length) => (body.len() == length).then(|| (status, body.to_vec())),
        None => unchunked(body).map(|body| (status, body)),
    }
}

fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        let piece = rest.get(end + 2..end + 2 + size)?;
        body.extend_from_slice(piece);
        rest = rest.get(end + 4 + size..)?;
        if size == 0 {
            return Some(body);
        }
    }
}

/// How often each line was asked of a phone.
#[derive(Default)]
struct Runs {
    read: Vec<usize>,
    of: HashMap<String, usize>,
}

impl Runs {
    fn read(&mut self, phones: &[PhoneHandle]) {
        self.read.resize(phones.len(), 0);
        for (phone, read) in phones.iter().zip(&mut self.read) {
            let requests = phone.requests();
            for request in &requests[*read..] {
                let name = request.body.split_once("Umsatz <").and_then(|(_, rest)| rest.split_once('>'));
                if let Some((name, _)) = name {
                    *self.of.entry(name.into()).or_default() += 1;
                }
            }
            *read = requests.len();
        }
    }

    fn of(&self, name: &str) -> usize {
        self.of.get(name).copied().unwrap_or(0)
    }
}

/// What was seen of the database when nobody wrote to it.
#[derive(Default)]
struct Seen {
    batches: BTreeMap<String, BatchRecord>,
    /// Lines that have a result, and how often they had been run by then.
    done: HashMap<String, usize>,
    /// Kills that met a batch in such a state.
    met: BTreeMap<&'static str, usize>,
}

fn names(store: &BatchStore, batch: &BatchRecord, which: Results) -> Vec<String> {
    let records = store.results(batch.key, which, 0, usize::MAX).expect("the database");
    let name = |record: &[u8]| serde_json::from_slice::<Value>(record).ok()?["custom_id"].as_str().map(str::to_owned);
    records.iter().map(|(_, record)| name(record).expect("a line of an output file")).collect()
}

/// Times in the order in which they come.
fn times(batch: &BatchRecord) -> Vec<Option<u64>> {
    let t = &batch.times;
    let ends = [t.completed, t.failed, t.expired, t.cancelled];
    let end = ends.into_iter().flatten().next();
    [Some(t.created), t.in_progress, t.finalizing.or(t.cancelling), end].map(|at| at.map(|at| at.0)).to_vec()
}

const fn rank(state: BatchState) -> u8 {
    match state {
        BatchState::Validating => 0,
        BatchState::InProgress => 1,
        BatchState::Finalizing | BatchState::Cancelling => 2,
        _ => 3,
    }
}

impl Seen {
    /// States in which no kill has met a batch yet.
    fn missing(&self) -> Vec<&'static str> {
        STATES.into_iter().filter(|state| !self.met.contains_key(state)).collect()
    }

    /// Holds the database to its promises, and to what it said before.
    fn look(&mut self, store: &BatchStore, runs: &Runs) {
        for (name, before) in &self.done {
            assert_eq!(runs.of(name), *before, "{name} has a result, and was run again");
        }
        let mut met = BTreeSet::new();
        let page = PageOf { after: None, limit: 10_000, ascending: true };
        for batch in store.batches(None, page).expect("the database").entries {
            if !batch.state.is_terminal() {
                let [completed, failed] =
                    [Results::Completed, Results::Failed].map(|which| names(store, &batch, which));
                let counts = batch.counts;
                assert_eq!(
                    (counts.completed as usize, counts.failed as usize),
                    (completed.len(), failed.len()),
                    "{batch:?}"
                );
                let distinct: BTreeSet<_> = completed.iter().chain(&failed).collect();
                assert_eq!(distinct.len(), completed.len() + failed.len(), "a result is there twice");
                for name in completed.iter().chain(&failed) {
                    self.done.entry(name.clone()).or_insert_with(|| runs.of(name));
                    assert!(runs.of(name) > 0, "{name} has a result, and was never run");
                }
                met.insert(match (batch.state, batch.seal) {
                    (_, Some(Seal::Expired)) => "expiring",
                    (BatchState::InProgress, _) if counts.completed > 0 => "storing",
                    (state, _) => state.name(),
                });
            }
            let times_now = times(&batch);
            assert!(times_now.iter().flatten().is_sorted(), "{batch:?}");
            if let Some(before) = self.batches.get(&batch.id) {
                assert!(rank(before.state) <= rank(batch.state), "{before:?} became {batch:?}");
                assert!(before.seal.is_none() || before.seal == batch.seal, "{before:?} became {batch:?}");
                assert!(before.counts.completed <= batch.counts.completed, "{before:?} became {batch:?}");
                for (before, now) in times(before).into_iter().zip(times_now) {
                    assert!(before.is_none() || before == now, "a time was changed");
                }
                if before.state.is_terminal() {
                    assert_eq!(before, &batch, "its end is its end");
                }
            }
            self.batches.insert(batch.id.clone(), batch);
        }
        met.into_iter().for_each(|state| *self.met.entry(state).or_default() += 1);
    }
}

/// Waits for a moment to be killed in: any, or one in which a batch is in a state that passes quickly, or one of those that are
/// `missing`. `pace`: how long this machine takes for a start, which is what it takes for everything.
async fn moment(tenants: &[Arc<Tenant>], chance: &mut Rng, missing: &[&str], pace: Duration) {
    let aims = ["validating", "finalizing", "cancelling", "expiring"];
    if missing.is_empty() && chance.below(2) == 0 {
        return tokio::time::sleep(pace.mul_f64(4.0 * chance.unit())).await;
    }
    let among = if missing.is_empty() { &aims[..] } else { missing };
    let (aim, tenant) = (among[chance.below(among.len())], &tenants[chance.below(tenants.len())]);
    let limit = now() + pace * 7;
    while now() < limit {
        let batches = tenant.get("/v1/batches?limit=50").await.map(|page| page["data"].clone()).unwrap_or_default();
        let unix = std::time::UNIX_EPOCH.elapsed().expect("a time after 1970").as_secs();
        let is_aim = |batch: &Value| match aim {
            "expiring" => {
                let open = matches!(batch["status"].as_str(), Some("validating" | "in_progress"));
                open && batch["expires_at"].as_u64() <= Some(unix)
            }
            "storing" => batch["status"] == "in_progress" && batch["request_counts"]["completed"] != 0,
            _ => batch["status"] == aim,
        };
        if batches.as_array().into_iter().flatten().any(is_aim) {
            return tokio::time::sleep(Duration::from_secs_f64(0.004 * chance.unit())).await;
        }
    }
}

fn open_beside(gateway: &Gateway) -> BatchStore {
    BatchStore::open(&gateway.dir().join("huntgroup-batches.db")).expect("the database")
}

/// A gateway that wants keys, and two tenants of it.
async fn with_tenants(fleet: &Fleet) -> (Gateway, [Arc<Tenant>; 2]) {
    let gateway = Gateway::over(fleet, CONFIG).await;
    let path = gateway.dir().join("huntgroup.toml");
    let text = std::fs::read_to_string(&path).expect("its configuration");
    std::fs::write(&path, text.replace("auth = \"none\"", "auth = \"required\"")).expect("a file");
    assert_eq!(gateway.admin("POST", "/admin/reload", None).await.status, 200);
    let mut tenants = Vec::new();
    for tenant in ["bank", "shop"] {
        let made = gateway.admin("POST", "/admin/keys", Some(&json!({ "tenant": tenant }))).await.json();
        let authorization = made["key"].as_str().expect("a key").to_owned();
        tenants.push(Arc::new(Tenant { port: gateway.public, authorization, known: Mutex::default() }));
    }
    (gateway, tenants.try_into().unwrap_or_else(|_| panic!("two")))
}

/// The lines of an output or error file, by name.
async fn lines(tenant: &Tenant, file: &Value) -> BTreeMap<String, Value> {
    let Some(id) = file.as_str() else { return BTreeMap::new() };
    let content = tenant.content(id).await.expect("the gateway lives");
    let text = String::from_utf8(content).expect("UTF-8");
    let mut lines = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let name = line["custom_id"].as_str().expect("a name").to_owned();
        assert!(lines.insert(name, line).is_none(), "a line is there twice");
    }
    assert!(!lines.is_empty(), "a file that is there has lines");
    lines
}

/// B1, B2, B7, and that what was promised is there.
async fn assert_ended_well(tenant: &Tenant, runs: &Runs) -> BTreeMap<String, usize> {
    let batches = tenant.batches().await.expect("the gateway lives");
    let ids: BTreeSet<_> = batches.iter().filter_map(|batch| batch["id"].as_str().map(str::to_owned)).collect();
    assert!(tenant.known().batches.is_subset(&ids), "a batch whose making was answered is there");
    let mut ends = BTreeMap::new();
    for batch in &batches {
        let tag = batch["metadata"]["tag"].as_str().expect("a tag");
        let input = Arc::clone(&tenant.known().wanted[tag]);
        let status = batch["status"].as_str().unwrap_or_default();
        *ends.entry(status.to_owned()).or_default() += 1;
        let (output, errors) =
            (lines(tenant, &batch["output_file_id"]).await, lines(tenant, &batch["error_file_id"]).await);
        let total = if batch["in_progress_at"].is_null() { 0 } else { input.names.len() };
        let counts = json!({"total": total, "completed": output.len(), "failed": errors.len()});
        assert_eq!(batch["request_counts"], counts, "{batch}");
        if total > 0 {
            let all: BTreeSet<&String> = output.keys().chain(errors.keys()).collect();
            assert!(all.len() == output.len() + errors.len() && all == input.names.iter().collect(), "{batch}");
        }
        for (name, line) in &output {
            let content = &line["response"]["body"]["choices"][0]["message"]["content"];
            assert_eq!(content, &json!(expected(&prompt(name), TOKENS)), "{line}");
        }
        for line in errors.values() {
            let code = format!("batch_{status}");
            assert!(line["response"].is_null() && line["error"]["code"] == *code, "{batch}: {line}");
        }
        match status {
            "completed" => assert!(errors.is_empty(), "{batch}"),
            "failed" => {
                assert!(input.wrong, "{batch}");
                let told = &batch["errors"]["data"][0];
                assert_eq!((&told["code"], &told["line"]), (&json!("invalid_json_line"), &json!(LONG + 1)));
            }
            "expired" => {
                let late = batch["expired_at"].as_u64().zip(batch["expires_at"].as_u64()).map(|(at, due)| at - due);
                assert!(late <= Some(60), "{batch}");
            }
            "cancelled" => {}
            _ => panic!("{batch}"),
        }
        if input.wrong {
            assert!(input.names.iter().all(|name| runs.of(name) == 0), "a line of a wrong file was run");
        }
    }
    ends
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_kills_lose_no_line_and_run_none_again_that_has_a_result() {
    let mut config = phone(2, 40.0);
    config.kept_requests = usize::MAX;
    let fleet = Fleet::of(6, &config).await;
    let (mut gateway, tenants) = with_tenants(&fleet).await;
    // One loses every answer over its second word: some lines are on their second try when the gateway dies.
    fleet.phones[0].set_fault(Fault::Break {
        at: Moment::Tokens(2),
        inside: None,
        how: Way::Die { down_s: Some(0.3) },
    });
    let mut chance = Rng::from_seed(20_260_114);
    let (mut runs, mut seen) = (Runs::default(), Seen::default());
    let mut contents: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut lives = JoinSet::new();
    for (tenant, name, seed) in [(&tenants[0], "bank", 1), (&tenants[1], "shop", 2)] {
        lives.spawn(Arc::clone(tenant).live(name, seed));
    }
    tenants.iter().for_each(|tenant| tenant.known().may_make = BATCHES);
    let mut pace = Duration::from_millis(100);
    for kill in 0..KILLS + MORE_KILLS {
        let missing = if kill < KILLS { Vec::new() } else { seen.missing() };
        if kill >= KILLS {
            if missing.is_empty() {
                break;
            }
            tenants.iter().for_each(|tenant| tenant.known().may_make += MORE_BATCHES);
        }
        moment(&tenants, &mut chance, &missing, pace).await;
        gateway.signal(Signal::KILL);
        gateway.exited().await;
        runs.read(&fleet.phones);
        seen.look(&open_beside(&gateway), &runs);
        assert!(lives.try_join_next().is_none(), "a tenant saw something wrong before kill {kill}");
        let began = now();
        gateway.restart().await;
        pace = now().duration_since(began).clamp(Duration::from_millis(100), Duration::from_millis(300));
    }
    lives.abort_all();
    while let Some(end) = lives.join_next().await {
        assert!(end.is_err_and(|end| end.is_cancelled()), "a tenant saw something wrong");
    }
    fleet.phones[0].set_fault(Fault::None);
    gateway
        .wait_for("the end of all batches", async |_| {
            for tenant in &tenants {
                // It may just be starting.
                let Some(batches) = tenant.batches().await else { return false };
                if batches.iter().any(|batch| !batch["huntgroup"].is_null()) {
                    return false;
                }
            }
            true
        })
        .await;
    runs.read(&fleet.phones);
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for tenant in &tenants {
        for (end, count) in assert_ended_well(tenant, &runs).await {
            *ends.entry(end).or_default() += count;
        }
    }
    // B5 and B6: files are as they were sent, also after another death; nobody else sees them.
    for again in [false, true] {
        for (tenant, stranger) in [(&tenants[0], &tenants[1]), (&tenants[1], &tenants[0])] {
            let (files, gone, unsure) = {
                let known = tenant.known();
                (known.files.clone(), known.deleted.clone(), known.perhaps_deleted.clone())
            };
            for (id, input) in files.iter().filter(|(id, _)| !unsure.contains(*id)) {
                assert!(tenant.content(id).await.expect("alive") == input.text.as_bytes(), "{id} is another");
                let path = format!("/v1/files/{id}/content");
                let theirs = stranger.call("GET", &path, "text/plain", b"", Duration::ZERO).await.expect("alive");
                assert_eq!(theirs.0, 404);
            }
            for id in gone {
                let path = format!("/v1/files/{id}");
                assert_eq!(tenant.call("GET", &path, "text/plain", b"", Duration::ZERO).await.expect("alive").0, 404);
            }
            for batch in tenant.batches().await.expect("alive") {
                let path = format!("/v1/batches/{}", batch["id"].as_str().expect("an id"));
                assert_eq!(stranger.call("GET", &path, "text/plain", b"", Duration::ZERO).await.expect("alive").0, 404);
                for file in ["output_file_id", "error_file_id"].iter().filter_map(|file| batch[file].as_str()) {
                    let content = tenant.content(file).await.expect("alive");
                    let before = contents.entry(file.to_owned()).or_insert_with(|| content.clone());
                    assert!(!again || *before == content, "{file} is another");
                }
            }
        }
        if !again {
            gateway.signal(Signal::KILL);
            gateway.exited().await;
            seen.look(&open_beside(&gateway), &runs);
            gateway.restart().await;
            gateway
                .wait_for("the public listener", async |g| TcpStream::connect(("127.0.0.1", g.public)).await.is_ok())
                .await;
        }
    }
    // What was cut off has left nothing.
    gateway
        .wait_for("nothing but files that are listed", async |g| {
            let store = open_beside(g);
            let page = || PageOf { after: None, limit: 10_000, ascending: true };
            let listed =
                ["bank", "shop"].map(|tenant| store.files(tenant, None, page()).expect("the database").entries);
            store.stored(None).expect("the database").bytes
                == listed.iter().flatten().map(|file| file.bytes).sum::<u64>()
        })
        .await;
    let (cut, cancelled, deleted) = tenants.iter().fold((0, 0, 0), |(cut, cancelled, deleted), tenant| {
        let known = tenant.known();
        (cut + known.cut_uploads, cancelled + known.cancelled, deleted + known.inputs_deleted)
    });
    let repeated = runs.of.values().filter(|runs| **runs > 1).count();
    println!(
        "kills met {:?}; {cut} uploads were cut, {cancelled} cancellations and {deleted} deletions answered; batches ended {ends:?}; \
         of {} lines that were run, {repeated} were run more than once",
        seen.met,
        runs.of.len()
    );
    // The test has tried what it is about.
    assert_eq!(seen.missing(), [""; 0], "no kill met a batch that was so: {:?}", seen.met);
    assert!(cut > 0 && cancelled > 0 && deleted > 0);
    assert!(["completed", "failed", "expired", "cancelled"].iter().all(|end| ends.contains_key(*end)), "{ends:?}");
    gateway.wait_at_rest().await;
}
