//! `[server]`, `[admin]`, `[store]` and `[telemetry]`: the process itself.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use super::{
    bytes::ByteSize,
    secret::Secret,
    value::named,
    visit::{Section, Visitor, live, restart},
};

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Who may use the public API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Holders of a key.
    Required,
    /// Everybody, as the tenant "anonymous".
    None,
}
named!(Auth, "\"required\" or \"none\"", "required" => Auth::Required, "none" => Auth::None);

/// The public listener and what a client may cost before it is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Plain HTTP. All addresses, port 8080: what a container publishes.
    pub listen: Vec<SocketAddr>,
    /// TLS; needs `tls_cert` and `tls_key`.
    pub tls_listen: Vec<SocketAddr>,
    /// PEM, leaf first.
    pub tls_cert: Option<PathBuf>,
    /// PEM.
    pub tls_key: Option<PathBuf>,
    /// Threads that serve; `None`: one a core.
    pub threads: Option<usize>,
    /// Who may use the public API.
    pub auth: Auth,
    /// Longest drain. 600 s: an answer of a 9B model on a phone takes minutes.
    pub drain_limit: Duration,
    /// Client connections; `None`: 45 % of the descriptor limit, so that each may have one to a replica and some stay.
    pub max_connections: Option<usize>,
    /// From one address. 256: a backend's pool fits, a flood does not.
    pub max_connections_per_address: usize,
    /// For a whole request header. 10 s, HAProxy's standard against slow senders.
    pub header_deadline: Duration,
    /// For a whole body, on top of its size. 30 s.
    pub body_deadline: Duration,
    /// More time for each started 64 KiB of body. 1 s: 64 KiB/s is slower than any link worth serving.
    pub body_deadline_per_64k: Duration,
    /// Largest request body. 16 MiB: pictures in base64 fit.
    pub max_body: ByteSize,
    /// A client that reads nothing for this long is cut off. 60 s.
    pub write_timeout: Duration,
    /// Between two requests on a connection. 60 s: longer than client pools keep idle connections.
    pub keepalive_timeout: Duration,
    /// Where the process id is written.
    pub pid_file: Option<PathBuf>,
    /// Where a new process takes over the listeners.
    pub upgrade_socket: Option<PathBuf>,
    /// Whether answers name the replica in `x-huntgroup-replica`.
    pub expose_replica: bool,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080))],
            tls_listen: Vec::new(),
            tls_cert: None,
            tls_key: None,
            threads: None,
            auth: Auth::Required,
            drain_limit: seconds(600),
            max_connections: None,
            max_connections_per_address: 256,
            header_deadline: seconds(10),
            body_deadline: seconds(30),
            body_deadline_per_64k: seconds(1),
            max_body: ByteSize::mib(16),
            write_timeout: seconds(60),
            keepalive_timeout: seconds(60),
            pid_file: None,
            upgrade_socket: None,
            expose_replica: true,
        }
    }
}

impl Section for Server {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.list(restart("listen"), &mut self.listen);
        v.list(restart("tls_listen"), &mut self.tls_listen);
        v.value(live("tls_cert"), &mut self.tls_cert);
        v.value(live("tls_key"), &mut self.tls_key);
        v.ranged(restart("threads"), &mut self.threads, 1..=1024);
        v.value(live("auth"), &mut self.auth);
        v.ranged(live("drain_limit"), &mut self.drain_limit, seconds(0)..=seconds(86_400));
        v.ranged(live("max_connections"), &mut self.max_connections, 1..=10_000_000);
        v.ranged(live("max_connections_per_address"), &mut self.max_connections_per_address, 1..=10_000_000);
        v.ranged(live("header_deadline"), &mut self.header_deadline, seconds(1)..=seconds(300));
        v.ranged(live("body_deadline"), &mut self.body_deadline, seconds(1)..=seconds(3600));
        v.ranged(live("body_deadline_per_64k"), &mut self.body_deadline_per_64k, seconds(0)..=seconds(60));
        v.ranged(live("max_body"), &mut self.max_body, ByteSize::kib(1)..=ByteSize::mib(1024));
        v.ranged(live("write_timeout"), &mut self.write_timeout, seconds(1)..=seconds(3600));
        v.ranged(live("keepalive_timeout"), &mut self.keepalive_timeout, seconds(1)..=seconds(3600));
        v.value(restart("pid_file"), &mut self.pid_file);
        v.value(restart("upgrade_socket"), &mut self.upgrade_socket);
        v.value(live("expose_replica"), &mut self.expose_replica);
    }
}

/// The operator's listener.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Loopback by default; anything else needs `token`.
    pub listen: SocketAddr,
    /// Bearer token of every admin call.
    pub token: Option<Secret>,
    /// Whether `/metrics` and health on a loopback listener are readable without the token.
    pub public_metrics: bool,
    /// Host names that requests may carry besides addresses and `localhost`: a page of a foreign site that
    /// rebinds its name to this address is refused.
    pub hosts: Vec<String>,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9091)),
            token: None,
            public_metrics: true,
            hosts: Vec::new(),
        }
    }
}

impl Section for Admin {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.value(restart("listen"), &mut self.listen);
        v.value(live("token"), &mut self.token);
        v.value(live("public_metrics"), &mut self.public_metrics);
        v.list(live("hosts"), &mut self.hosts);
    }
}

/// What survives a restart.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreFile {
    /// The database file, or `:memory:` for none.
    pub path: PathBuf,
}

impl Default for StoreFile {
    fn default() -> Self {
        Self { path: "huntgroup.db".into() }
    }
}

impl Section for StoreFile {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.value(restart("path"), &mut self.path);
    }
}

/// The shape of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}
named!(LogFormat, "\"text\" or \"json\"", "text" => LogFormat::Text, "json" => LogFormat::Json);

/// The least urgent line that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Something is broken.
    Error,
    /// Something may break.
    Warn,
    /// What happened.
    Info,
    /// How it happened.
    Debug,
    /// Everything.
    Trace,
}
named!(LogLevel, "\"error\", \"warn\", \"info\", \"debug\" or \"trace\"",
    "error" => LogLevel::Error, "warn" => LogLevel::Warn, "info" => LogLevel::Info,
    "debug" => LogLevel::Debug, "trace" => LogLevel::Trace);

/// What is written about the gateway's work.
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// The shape of log lines.
    pub log: LogFormat,
    /// The least urgent line that is logged.
    pub log_level: LogLevel,
    /// One line a request.
    pub access_log: bool,
    /// Where spans are sent over OTLP.
    pub otlp_endpoint: Option<String>,
    /// Headers of those deliveries, such as a credential.
    pub otlp_headers: Option<Secret>,
    /// Share of the requests that are traced whose caller does not decide.
    pub trace_sample: f64,
    /// What the spans call this gateway.
    pub service_name: String,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            log: LogFormat::Text,
            log_level: LogLevel::Info,
            access_log: true,
            otlp_endpoint: None,
            otlp_headers: None,
            trace_sample: 1.0,
            service_name: "huntgroup".into(),
        }
    }
}

impl Section for Telemetry {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.value(restart("log"), &mut self.log);
        v.value(restart("log_level"), &mut self.log_level);
        v.value(live("access_log"), &mut self.access_log);
        v.value(restart("otlp_endpoint"), &mut self.otlp_endpoint);
        v.value(restart("otlp_headers"), &mut self.otlp_headers);
        v.ranged(live("trace_sample"), &mut self.trace_sample, 0.0..=1.0);
        v.value(restart("service_name"), &mut self.service_name);
    }
}
