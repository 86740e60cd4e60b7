//! The parts that the stages work with, put together once, and the settings that a reload exchanges.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};

use crate::{
    auth::Authenticator,
    batch::Batches,
    capacity::Adviser,
    config::Config,
    dispatch::Dispatcher,
    error::ApiError,
    fleet::{Fleet, Replica},
    in_flight::InFlight,
    joining::Joining,
    listener::{ClientLimits, ConnectionLimits, default_max},
    live::Live,
    pressure::Pressure,
    ratelimit::Limiter,
    relay::{Abandoned, Expected},
    request::FingerprintKey,
    shutdown::Tasks,
    telemetry::Telemetry,
    upstream::Upstream,
};

/// What the stages work with. Built by `app`; a reload swaps the parts that may change.
pub struct Gateway {
    settings: ArcSwap<Settings>,
    /// Who runs where and when.
    pub dispatcher: Arc<Dispatcher>,
    /// The replicas.
    pub fleet: Arc<Fleet>,
    /// The keys.
    pub auth: Arc<Authenticator>,
    /// The tenants' limits.
    pub limiter: Arc<Limiter>,
    /// Metrics.
    pub telemetry: Arc<Telemetry>,
    /// What is being answered.
    pub live: Arc<Live>,
    /// Requests between their head and their end.
    pub in_flight: Arc<InFlight>,
    /// Files and batches.
    pub batches: Arc<Batches>,
    /// How many phones there should be.
    pub adviser: Arc<Adviser>,
    /// Answers that can be joined.
    pub joining: Arc<Joining>,
    /// What runs beside the connections of clients.
    pub tasks: Tasks,
    /// The connections to replicas.
    pub upstream: Arc<Upstream>,
    /// Streams that phones keep writing for nobody.
    pub abandoned: Arc<Abandoned>,
    /// How close the process is to its memory's end.
    pub pressure: Arc<Pressure>,
    /// What prompts are fingerprinted with.
    pub fingerprint_key: FingerprintKey,
    buffered: Arc<AtomicU64>,
}

/// What a reload replaces as one.
struct Settings {
    config: Config,
    client: Arc<ClientLimits>,
    connections: Arc<ConnectionLimits>,
}

impl Gateway {
    /// The parts put together.
    #[expect(clippy::too_many_arguments, reason = "every part once, from the one place that makes them")]
    pub fn new(
        config: Config,
        dispatcher: Arc<Dispatcher>,
        fleet: Arc<Fleet>,
        auth: Arc<Authenticator>,
        limiter: Arc<Limiter>,
        telemetry: Arc<Telemetry>,
        upstream: Arc<Upstream>,
        batches: Arc<Batches>,
    ) -> Self {
        Self {
            settings: ArcSwap::from_pointee(Settings::new(config)),
            dispatcher,
            fleet,
            auth,
            limiter,
            telemetry,
            live: Arc::default(),
            in_flight: Arc::default(),
            batches,
            adviser: Arc::default(),
            joining: Arc::default(),
            tasks: Tasks::default(),
            upstream,
            abandoned: Arc::default(),
            pressure: Arc::default(),
            fingerprint_key: FingerprintKey::default(),
            buffered: Arc::default(),
        }
    }

    /// The current configuration.
    pub fn config(&self) -> impl Deref<Target = Config> + use<> {
        ConfigRef(self.settings.load())
    }

    /// Deadlines and bounds towards clients.
    pub fn client_limits(&self) -> Arc<ClientLimits> {
        Arc::clone(&self.settings.load().client)
    }

    /// Bounds of connections.
    pub fn connection_limits(&self) -> Arc<ConnectionLimits> {
        Arc::clone(&self.settings.load().connections)
    }

    /// Takes over what a reload may change here.
    pub fn reconfigure(&self, config: Config) {
        self.settings.store(Arc::new(Settings::new(config)));
    }

    /// The share of `limits.max_buffered_bytes` that a request takes until its end; nothing yet.
    pub fn hold(&self) -> Held {
        let max = self.config().limits.max_buffered_bytes.as_u64();
        Held { bytes: 0, max, counted: Arc::clone(&self.buffered) }
    }

    /// How long a replica needs for a prompt of so many tokens and for a token, by its measured speeds; until there are any,
    /// by those that it is believed to have.
    pub fn expected(&self, replica: &Replica, tokens: u32) -> Expected {
        let (prefill, decode) = self.dispatcher.speeds(replica.id);
        let believed = if prefill.is_none() { replica.past().assumed() } else { None };
        let prefill = prefill.or(believed.map(|rates| rates.prefill));
        let length = |tokens: f64, rate: Option<f64>| Duration::try_from_secs_f64(tokens / rate?).ok();
        Expected { prefill: length(f64::from(tokens), prefill), token: length(1.0, decode) }
    }

    /// Whether to send us requests.
    pub fn is_ready(&self) -> bool {
        !self.in_flight.is_draining() && self.fleet.any_ready()
    }
}

struct ConfigRef(Guard<Arc<Settings>>);

impl Deref for ConfigRef {
    type Target = Config;
    fn deref(&self) -> &Config {
        &self.0.config
    }
}

impl Settings {
    fn new(config: Config) -> Self {
        let (server, streams) = (&config.server, &config.streams);
        let client = Arc::new(ClientLimits {
            max_body: server.max_body.as_u64(),
            body_deadline: server.body_deadline,
            body_deadline_per_64k: server.body_deadline_per_64k,
            head_after: streams.head_after,
            keepalive_interval: streams.keepalive_interval,
            keepalive_json_after: streams.keepalive_json_after,
        });
        let connections = Arc::new(ConnectionLimits {
            max: server.max_connections.unwrap_or_else(default_max),
            max_per_address: server.max_connections_per_address,
            header_deadline: server.header_deadline,
            keepalive: server.keepalive_timeout,
            write_timeout: server.write_timeout,
        });
        Self { config, client, connections }
    }
}

/// Bytes held for a request: what has come of its body, and of a plain answer. Counted as they come: what a head
/// promises is not there yet, and a promise must not take room from others.
pub struct Held {
    bytes: u64,
    max: u64,
    counted: Arc<AtomicU64>,
}

impl Held {
    /// Nothing yet, of the same whole.
    pub fn part(&self) -> Self {
        Self { bytes: 0, max: self.max, counted: Arc::clone(&self.counted) }
    }

    /// Takes room for more.
    pub fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let bytes = bytes as u64;
        if self.counted.fetch_add(bytes, Ordering::Relaxed) + bytes > self.max {
            self.counted.fetch_sub(bytes, Ordering::Relaxed);
            return Err(ApiError::Overloaded("limits.max_buffered_bytes"));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counted.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
