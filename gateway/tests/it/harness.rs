//! A real gateway process, simulated phones, and a client that sees what goes over the wire.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use fakephone::{PhoneConfig, PhoneHandle, Relay};
use serde_json::{Value, json};
use simulation::phone::ModelSpeed;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// How long a condition may take to come true. Generous: it bounds a failure, it times nothing.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The model of every phone here.
pub const MODEL: &str = "tiny";

/// The test's clock.
#[expect(clippy::disallowed_methods, reason = "tests over real sockets wait under real deadlines")]
pub fn now() -> Instant {
    Instant::now()
}

/// Ranges of ports, and the ports in each: outside the range that outgoing connections take theirs from.
const RANGES: u16 = 180;
const RANGE: u16 = 100;

/// Ranges that are this process's, and how many ports of the last one were given.
struct Ports {
    base: u16,
    given: u16,
    /// Listens on the first port of each range: whoever finds it taken takes another range.
    held: Vec<TcpListener>,
}

/// A port that is nobody else's, in this process or in another one that tests, also while nobody listens on it: a gateway that was
/// killed comes back to it.
pub fn free_port() -> u16 {
    static PORTS: Mutex<Ports> = Mutex::new(Ports { base: 0, given: RANGE, held: Vec::new() });
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if ports.given >= RANGE {
            let first = (std::process::id() % u32::from(RANGES)) as u16;
            let bases = (0..RANGES).map(|next| 12_000 + (first + next) % RANGES * RANGE);
            let mut free = bases.filter_map(|base| Some((base, TcpListener::bind(("127.0.0.1", base)).ok()?)));
            let (base, listener) = free.next().expect("a range of ports that is nobody's");
            (ports.base, ports.given) = (base, 1);
            ports.held.push(listener);
        }
        let port = ports.base + ports.given;
        ports.given += 1;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A phone with `slots` that answers at `time_scale` times the speed of a phone with the 0.8B model.
pub fn phone(slots: u16, time_scale: f64) -> PhoneConfig {
    PhoneConfig::default().with_model(MODEL).with_slots(slots).with_model_speed(ModelSpeed::QWEN_0_8B, time_scale)
}

/// Phones behind a fake relay, with TLS, as in life.
pub struct Fleet {
    pub relay: Relay,
    pub phones: Vec<PhoneHandle>,
}

impl Fleet {
    pub async fn start(configs: impl IntoIterator<Item = PhoneConfig>) -> Self {
        let relay = Relay::start_local().await.expect("a relay");
        let spawn = |(seed, config): (u64, PhoneConfig)| relay.spawn(config.with_seed(seed)).expect("a phone");
        let phones = (1..).zip(configs).map(spawn).collect();
        Self { relay, phones }
    }

    /// `count` equal phones.
    pub async fn of(count: usize, config: &PhoneConfig) -> Self {
        Self::start(std::iter::repeat_n(config.clone(), count)).await
    }

    pub fn over_subscribed(&self) -> u64 {
        self.phones.iter().map(|phone| phone.stats().over_subscribed).sum()
    }
}

/// A running `huntgroup serve`.
pub struct Gateway {
    pub child: Child,
    pub public: u16,
    pub admin: u16,
    pub tls: Option<u16>,
    dir: TempDir,
}

/// A gateway to be started.
pub struct Builder {
    config: String,
    dir: TempDir,
    tls: bool,
    strict: bool,
}

impl Gateway {
    /// A gateway over these phones. `config` is TOML beside the listeners, the pool's rules and the replicas.
    pub async fn over(fleet: &Fleet, config: &str) -> Self {
        let builder = Self::builder(config).replicas(fleet);
        let gateway = builder.start().await;
        gateway.wait_settled(fleet).await;
        gateway
    }

    /// Waits until all phones take work and nothing more is asked of them; what was is no part of a test.
    pub async fn wait_settled(&self, fleet: &Fleet) {
        self.wait_ready(fleet.phones.len()).await;
        self.wait_known().await;
        fleet.phones.iter().for_each(PhoneHandle::reset_stats);
    }

    pub fn builder(config: &str) -> Builder {
        Builder { config: config.to_owned(), dir: TempDir::new().expect("a folder"), tls: false, strict: false }
    }

    /// Waits until this many replicas take work.
    pub async fn wait_ready(&self, replicas: usize) {
        self.wait_for(&format!("{replicas} ready replicas"), async |gateway| gateway.states("ready").await == replicas)
            .await;
    }

    /// Waits until all that a replica is asked about itself has been asked of each, what costs it something included.
    pub async fn wait_known(&self) {
        let unknown = |replica: &Value| replica["carries_on"].is_null();
        self.wait_for("replicas that are known", async |gateway| {
            let answer = gateway.admin("GET", "/admin/replicas", None).await;
            !answer.json()["data"].as_array().into_iter().flatten().any(unknown)
        })
        .await;
    }

    /// Replicas in this state.
    pub async fn states(&self, state: &str) -> usize {
        let answer = self.admin("GET", "/admin/replicas", None).await;
        let replicas = answer.json()["data"].as_array().cloned().unwrap_or_default();
        replicas.iter().filter(|replica| replica["state"] == state).count()
    }

    /// Polls until `condition` holds. Looking takes at most half of the time, so that what is waited for gets on.
    pub async fn wait_for(&self, what: &str, mut condition: impl AsyncFnMut(&Self) -> bool) {
        let deadline = now() + PATIENCE;
        loop {
            let looked = now();
            if condition(self).await {
                return;
            }
            assert!(now() < deadline, "waited {PATIENCE:?} for {what}; log:\n{}", self.log());
            tokio::time::sleep(looked.elapsed().max(Duration::from_millis(10))).await;
        }
    }

    /// Everything it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A client of the public address.
    pub async fn client(&self) -> Client {
        Client::connect(self.public).await
    }

    pub async fn chat(&self, body: &Value) -> Answer {
        self.client().await.post("/v1/chat/completions", body).await.answer().await
    }

    pub async fn admin(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        Client::connect(self.admin).await.send(method, path, &[], body).await.answer().await
    }

    /// The sum over the series of a metric whose labels contain `with`.
    pub async fn metric(&self, name: &str, with: &str) -> f64 {
        let text = self.admin("GET", "/metrics", None).await.text();
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let values = text.lines().filter(of_name).filter(|line| line.contains(with));
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until nothing is in flight, queued or busy: what must be so whenever clients are gone.
    pub async fn wait_at_rest(&self) {
        self.wait_for("every gauge at 0", async |gateway| {
            gateway.metric("huntgroup_requests_in_flight", "").await == 0.0
                && gateway.metric("huntgroup_queue_depth", "").await == 0.0
                && gateway.metric("huntgroup_replica_slots", "state=\"busy\"").await == 0.0
        })
        .await;
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the process runs");
    }

    /// Waits for its end.
    pub async fn exited(&mut self) -> std::process::ExitStatus {
        let deadline = now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return status;
            }
            assert!(now() < deadline, "the process did not leave; log:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Starts the process again after its end.
    pub async fn restart(&mut self) {
        self.child = spawn(self.dir.path(), &[]);
        self.wait_for("the admin API", async |gateway| TcpStream::connect(("127.0.0.1", gateway.admin)).await.is_ok())
            .await;
    }

    /// A second process with the same configuration.
    pub fn successor(&self) -> Child {
        spawn(self.dir.path(), &["--upgrade"])
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have left by itself.
        if self.child.kill().is_ok() && self.child.wait().is_err() {
            eprintln!("the gateway could not be waited for");
        }
        if std::thread::panicking() {
            eprintln!("gateway log:\n{}", self.log());
        }
    }
}

impl Builder {
    /// The fleet's phones as configured replicas, and its authority as trusted.
    pub fn replicas(mut self, fleet: &Fleet) -> Self {
        for phone in &fleet.phones {
            self.config.push_str(&format!("\n[[replicas]]\nurl = \"{}\"\n", phone.url()));
        }
        self.trust(fleet)
    }

    pub fn trust(self, fleet: &Fleet) -> Self {
        fs::write(self.dir.path().join("ca.pem"), fleet.relay.ca_pem()).expect("a file");
        self
    }

    /// With the addresses that a gateway allows by default: no phone of a test has one.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// A secret that the configuration refers to as `file:NAME`.
    pub fn secret(self, name: &str, text: &str) -> Self {
        fs::write(self.dir.path().join(name), text).expect("a file");
        self
    }

    /// Listens with TLS as well, with a certificate of its own.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    pub async fn start(self) -> Gateway {
        let (public, admin) = (free_port(), free_port());
        let tls = self.tls.then(free_port);
        let path = self.dir.path();
        let shown = path.display();
        let trusts = path.join("ca.pem").exists();
        let ca = if trusts { format!("ca_file = \"{shown}/ca.pem\"\n") } else { String::new() };
        let tls_keys = tls.map(|port| {
            write_certificate(path);
            format!(
                "tls_listen = [\"127.0.0.1:{port}\"]\ntls_cert = \"{shown}/cert.pem\"\ntls_key = \"{shown}/key.pem\"\n"
            )
        });
        let near = if self.strict { "" } else { "allow_private = true\nallow_http = true\n" };
        let (server, rest) = split(&self.config);
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:{public}\"]\nauth = \"none\"\npid_file = \"{shown}/pid\"\n\
             upgrade_socket = \"{shown}/upgrade.sock\"\nmax_connections_per_address = 4096\n{}{server}\n\
             [admin]\nlisten = \"127.0.0.1:{admin}\"\n[store]\npath = \"{shown}/huntgroup.db\"\n\
             {}",
            tls_keys.unwrap_or_default(),
            with_pool(rest, &format!("{near}{ca}"))
        );
        fs::write(path.join("huntgroup.toml"), text).expect("a file");
        let child = spawn(path, &[]);
        let gateway = Gateway { child, public, admin, tls, dir: self.dir };
        gateway
            .wait_for("the listener", async |gateway| TcpStream::connect(("127.0.0.1", gateway.public)).await.is_ok())
            .await;
        gateway
            .wait_for("the admin API", async |gateway| TcpStream::connect(("127.0.0.1", gateway.admin)).await.is_ok())
            .await;
        gateway
    }
}

/// The pool's rules of every test, beside those that this one states.
fn with_pool(config: &str, rules: &str) -> String {
    match config.split_once("[pool]\n") {
        Some((before, after)) => format!("{before}[pool]\n{rules}{after}"),
        None => format!("[pool]\n{rules}{config}"),
    }
}

/// Lines before the first section belong to `[server]`.
fn split(config: &str) -> (&str, &str) {
    config.find('[').map_or((config, ""), |at| config.split_at(at))
}

fn spawn(dir: &Path, args: &[&str]) -> Child {
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).expect("a log file");
    Command::new(env!("CARGO_BIN_EXE_huntgroup"))
        .args(["serve", "--config"])
        .arg(dir.join("huntgroup.toml"))
        .args(args)
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a file handle"))
        .stderr(log)
        .spawn()
        .expect("huntgroup starts")
}

/// Writes a fresh self-signed certificate for `localhost`.
pub fn write_certificate(dir: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
    fs::write(dir.join("cert.pem"), made.cert.pem()).expect("a file");
    fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).expect("a file");
}

/// A chat request.
pub fn chat(prompt: &str, stream: bool, max_tokens: u32) -> Value {
    json!({
        "model": MODEL,
        "stream": stream,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": prompt}],
    })
}

/// The text of a phone's answer to [`chat`].
pub fn expected(prompt: &str, max_tokens: u32) -> String {
    fakephone::answer_text(MODEL, prompt, max_tokens as usize)
}

/// One HTTP/1.1 connection, read and written as it is.
pub struct Client {
    stream: TcpStream,
}

impl Client {
    pub async fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the port is open");
        stream.set_nodelay(true).expect("a socket option");
        Self { stream }
    }

    pub async fn post(self, path: &str, body: &Value) -> Exchange {
        self.send("POST", path, &[], Some(body)).await
    }

    pub async fn send(mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Exchange {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        self.stream.write_all(text.as_bytes()).await.expect("the request is taken");
        Exchange { stream: self.stream, buffer: Vec::new() }
    }
}

/// A request that has been sent.
pub struct Exchange {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// A whole answer, or what there was of one.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// The framing was completed: the client could not tell it from a whole answer.
    pub clean: bool,
}

impl Exchange {
    /// Reads until `text` has come; false at the end of the connection.
    pub async fn read_until(&mut self, text: &str) -> bool {
        loop {
            if find(&self.buffer, text.as_bytes()).is_some() {
                return true;
            }
            if !self.read().await {
                return false;
            }
        }
    }

    /// Reads as long as what has come is `short` of what is awaited; false at the end of the connection.
    pub async fn read_while(&mut self, short: impl Fn(&str) -> bool) -> bool {
        while short(&self.seen()) {
            if !self.read().await {
                return false;
            }
        }
        true
    }

    async fn read(&mut self) -> bool {
        let mut piece = [0; 16 << 10];
        let read =
            tokio::time::timeout(PATIENCE, self.stream.read(&mut piece)).await.expect("the gateway answers in time");
        match read {
            Ok(length) if length > 0 => {
                self.buffer.extend_from_slice(&piece[..length]);
                true
            }
            _ => false,
        }
    }

    /// What has come so far.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }

    /// Hangs up.
    pub fn leave(self) {
        drop(self.stream);
    }

    /// Reads to the end of the answer.
    pub async fn answer(mut self) -> Answer {
        if !self.read_until("\r\n\r\n").await {
            return Answer { status: 0, head: self.seen(), body: Vec::new(), clean: false };
        }
        let end = find(&self.buffer, b"\r\n\r\n").expect("a head") + 4;
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status line");
        if let Some(length) = header(&head, "content-length") {
            let length: usize = length.parse().expect("a length");
            while self.buffer.len() < end + length && self.read().await {}
            let body = self.buffer.split_off(end);
            return Answer { status, head, clean: body.len() == length, body };
        }
        let (mut body, mut at) = (Vec::new(), end);
        loop {
            let Some(line) = self.line(at).await else { return Answer { status, head, body, clean: false } };
            let size = usize::from_str_radix(line.trim(), 16).expect("a chunk size");
            at += line.len();
            while self.buffer.len() < at + size + 2 && self.read().await {}
            if self.buffer.len() < at + size + 2 {
                return Answer { status, head, body, clean: false };
            }
            if size == 0 {
                return Answer { status, head, body, clean: true };
            }
            body.extend_from_slice(&self.buffer[at..at + size]);
            at += size + 2;
        }
    }

    async fn line(&mut self, from: usize) -> Option<String> {
        loop {
            if let Some(end) = find(&self.buffer[from..], b"\r\n") {
                return Some(String::from_utf8_lossy(&self.buffer[from..from + end + 2]).into_owned());
            }
            if !self.read().await {
                return None;
            }
        }
    }
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}{}", self.head, self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// The JSON of every `data:` event.
    pub fn events(&self) -> Vec<Value> {
        let text = self.text();
        let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).expect("JSON")).collect()
    }

    /// The content of a chat answer, streamed or not.
    pub fn content(&self) -> String {
        if !self.head.contains("text/event-stream") {
            return self.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
        }
        let events = self.events();
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
    }

    /// The error object, wherever it is.
    pub fn error(&self) -> Option<Value> {
        if self.head.contains("text/event-stream") {
            return self.events().into_iter().find_map(|event| event.get("error").cloned());
        }
        serde_json::from_slice::<Value>(&self.body).ok()?.get("error").cloned()
    }

    /// Whether this is the whole answer to `prompt`: status, framing, text, and the end of a stream.
    pub fn is_whole(&self, prompt: &str, max_tokens: u32) -> bool {
        let ended = !self.head.contains("text/event-stream") || self.text().ends_with("data: [DONE]\n\n");
        self.status == 200 && self.clean && ended && self.content() == expected(prompt, max_tokens)
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
