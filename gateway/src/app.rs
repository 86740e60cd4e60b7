//! The composition root: builds every part from the configuration, hands each what it needs, and owns the order in which
//! things start and stop. The only module that sees everything.

mod reload;
mod signals;

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use pingora::{
    server::{
        RunArgs, Server, ShutdownWatch,
        configuration::{Opt, ServerConf},
    },
    services::background::{BackgroundService, background_service},
};
use store::Store;

pub use self::reload::{ReloadError, Reloader};
use self::signals::Signals;
use crate::{
    admin,
    auth::{AuthSetupError, Authenticator},
    batch::{self, Batches},
    chain, clock,
    config::{Config, Overrides},
    dispatch::{Dispatcher, Record},
    fleet::Fleet,
    gateway::Gateway,
    listener::{Certificate, CertificateError, Door},
    ratelimit::Limiter,
    registration::Registrar,
    shutdown::Stop,
    shutdown::Tasks,
    telemetry::{Exporter, PoolSample, Target, TargetError, Telemetry, TelemetryOptions},
    upstream::{TlsError, Upstream},
};

/// The last frames of an HTTP/2 stream are only queued when its request ends; they get this long to leave.
const LINGER: Duration = Duration::from_millis(300);
/// Between two looks at what the successor has done. 100 ms: so long may a key live on that it has ended, or work be given to a phone
/// that it drains.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);
/// Replicas have said by then what they serve, or are not there.
const HEARD_WITHIN: Duration = Duration::from_secs(60);
/// Background tasks get this long to end.
const TASKS_LIMIT: Duration = Duration::from_secs(5);

/// What the command line adds to the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the configuration came from; a reload reads it again.
    pub config_path: Option<PathBuf>,
    /// Flags that win over the file.
    pub overrides: Overrides,
    /// Take the listeners over from the running process.
    pub upgrade: bool,
}

/// Why the gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// An address can't be listened on.
    #[error("{what} {address}: {source}")]
    Listen {
        /// The key in the configuration.
        what: &'static str,
        /// Its value.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// No runtime to start with.
    #[error("runtime: {0}")]
    Runtime(std::io::Error),
    /// The store.
    #[error("store: {0}")]
    Store(#[from] store::StoreError),
    /// The store of files and batches.
    #[error("batches: {0}")]
    Batches(store::StoreError),
    /// The keys in configuration and store.
    #[error(transparent)]
    Auth(#[from] AuthSetupError),
    /// TLS towards replicas.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// TLS towards clients.
    #[error("server.tls_cert: {0}")]
    Certificate(#[from] CertificateError),
    /// The collector of traces.
    #[error(transparent)]
    Traces(#[from] TargetError),
    /// The transport.
    #[error("listener: {0}")]
    Transport(Box<pingora::Error>),
    /// The scheduler's record.
    #[error("scheduler.record {0}: {1}")]
    Record(PathBuf, std::io::Error),
    /// The process id file.
    #[error("server.pid_file {0}: {1}")]
    PidFile(PathBuf, std::io::Error),
    /// An upgrade needs to know whom to take over from.
    #[error("--upgrade: {0}")]
    Upgrade(&'static str),
}

/// Runs until a signal ends it. Blocks the calling thread.
pub fn run(config: Config, options: Options) -> Result<(), AppError> {
    std::panic::set_hook(Box::new(note_panic));
    let parts = Parts::build(&config, options.clone())?;
    let mut server = Server::new_with_opt_and_conf(opt(&options), server_conf(&config));
    let door = Door::new(Arc::clone(&parts.gateway), clock::unix().as_nanos() as u64);
    let public = door.service(&config.server.listen, &config.server.tls_listen, parts.certificate.clone());
    server.add_service(public.map_err(AppError::Transport)?);
    let (shown, gateway) = (parts.shown(&config), Arc::clone(&parts.gateway));
    fill_pool(&parts, &config)?;
    let (reloader, desks) = (Arc::clone(&parts.reloader), Tasks::default());
    let signals = Signals::new(config.server.upgrade_socket.clone(), desks.clone());
    let parts = tokio::sync::Mutex::new(Some(parts));
    server.add_service(background_service("beside", Beside { parts, desks }));
    if options.upgrade {
        signals::call_predecessor(&config)?;
    }
    server.bootstrap();
    if options.upgrade {
        catch_up(&reloader)?;
    }
    if let Some(path) = &config.server.pid_file {
        std::fs::write(path, format!("{}\n", std::process::id())).map_err(|e| AppError::PidFile(path.clone(), e))?;
    }
    tracing::info!("{shown}");
    hint(&gateway);
    server.run(RunArgs { shutdown_signal: Box::new(signals) });
    Ok(())
}

/// The pool is known before the first client is: a model of a configured replica must not be an unknown one.
fn fill_pool(parts: &Parts, config: &Config) -> Result<(), AppError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AppError::Runtime)?;
    runtime.block_on(parts.gateway.fleet.reconcile(config))?;
    Ok(())
}

/// The predecessor takes no more changes now. Those that it took after this process had read the store are taken over; there is no way
/// back, so without them is better than not at all.
fn catch_up(reloader: &Reloader) -> Result<(), AppError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AppError::Runtime)?;
    if let Err(error) = runtime.block_on(reloader.catch_up()) {
        tracing::error!("what the predecessor has changed last is not known: reload with POST /admin/reload\n{error}");
    }
    Ok(())
}

/// What a newcomer would otherwise learn from refusals.
fn hint(gateway: &Gateway) {
    if gateway.auth.is_closed() {
        tracing::warn!("no API key is known yet: make one with `huntgroup keys create --tenant NAME`");
    }
    if gateway.fleet.replicas().is_empty() {
        tracing::warn!("no replicas yet: add one with `huntgroup replicas add URL`");
    }
}

fn opt(options: &Options) -> Opt {
    Opt { upgrade: options.upgrade, ..Opt::default() }
}

fn server_conf(config: &Config) -> ServerConf {
    let mut conf = ServerConf::default();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    conf.threads = config.server.threads.unwrap_or(cores);
    // Sleeping the grace period out is not how we drain: `Beside` leaves when nothing is in flight. This is the bound.
    conf.grace_period_seconds = Some(config.server.drain_limit.as_secs() + 60);
    conf.graceful_shutdown_timeout_seconds = Some(1);
    if let Some(socket) = &config.server.upgrade_socket {
        conf.upgrade_sock = socket.display().to_string();
    }
    conf
}

/// Everything that runs beside the public listener.
struct Parts {
    gateway: Arc<Gateway>,
    certificate: Option<Arc<Certificate>>,
    admin: TcpListener,
    phones: Option<TcpListener>,
    state: admin::AppState,
    reloader: Arc<Reloader>,
    exporter: Option<Exporter>,
    chain: Arc<chain::ChainWatch>,
}

impl Parts {
    fn build(config: &Config, options: Options) -> Result<Self, AppError> {
        if !options.upgrade {
            for address in config.server.listen.iter().chain(&config.server.tls_listen) {
                can_listen("server.listen", *address)?;
            }
        }
        let admin = shared_listener("admin.listen", config.admin.listen, options.upgrade)?;
        let phones = config.registration.listen;
        let phones =
            phones.map(|address| shared_listener("registration.listen", address, options.upgrade)).transpose()?;
        let store = Arc::new(Store::open(&config.store.path)?);
        let batches = Batches::open(&config.batches.file(&config.store.path), config.batches.lease);
        let batches = Arc::new(batches.map_err(AppError::Batches)?);
        let telemetry = Telemetry::new(TelemetryOptions {
            access_log: config.telemetry.access_log,
            version: env!("CARGO_PKG_VERSION"),
        });
        let collector = Target::new(&config.telemetry, &config.pool, &format!("{:016x}", seed()))?;
        let exporter = collector.map(|target| telemetry.trace_to(target, config.telemetry.trace_sample));
        let upstream = Arc::new(Upstream::new(&config.pool)?);
        let auth = Arc::new(Authenticator::new(config, &store)?);
        let dispatcher = Arc::new(dispatcher(config, &auth)?);
        let fleet = Fleet::new(
            config,
            Arc::clone(&dispatcher),
            Arc::clone(&upstream),
            Arc::clone(&telemetry),
            Arc::clone(&store),
        );
        let limiter = Arc::new(Limiter::new());
        let certificate = match (&config.server.tls_cert, &config.server.tls_key) {
            (Some(certificate), Some(key)) => Some(Arc::new(Certificate::load(certificate, key)?)),
            _ => None,
        };
        let gateway = Arc::new(Gateway::new(
            config.clone(),
            dispatcher,
            Arc::clone(&fleet),
            Arc::clone(&auth),
            limiter,
            Arc::clone(&telemetry),
            upstream,
            batches,
        ));
        let (sampled, joining, counted, kept) =
            (Arc::clone(&fleet), Arc::clone(&gateway.joining), Arc::clone(&gateway.batches), Arc::clone(&store));
        let chain = chain::ChainWatch::new(config.chain.clone(), Arc::clone(&fleet), Arc::clone(&telemetry));
        let watched = Arc::clone(&chain);
        let adviser = Arc::clone(&gateway.adviser);
        let (tenants, waiting) = (Arc::clone(&auth), Arc::clone(&gateway.dispatcher));
        telemetry.set_pool_source(Box::new(move || PoolSample {
            kept_answer_bytes: joining.bytes(),
            batches: counted.sample(),
            store_failures: vec![("state", kept.failures()), ("batches", counted.store_failures())],
            chain: watched.sample(),
            chain_readable: watched.status().is_readable(),
            queued_by_tenant: queued_by_tenant(&tenants, &waiting),
            advice: adviser.sample(),
            ..sampled.sample()
        }));
        let reloader =
            Reloader::new(Arc::clone(&gateway), certificate.clone(), Arc::clone(&store), Arc::clone(&chain), options);
        let reloader = Arc::new(reloader);
        let current = Arc::clone(&gateway);
        let settings = move || current.config().registration.clone();
        let registrar = Arc::new(Registrar::new(Arc::clone(&fleet), Arc::clone(&telemetry), settings));
        let state = admin::AppState {
            registrar,
            fleet,
            auth,
            store,
            telemetry,
            live: Arc::clone(&gateway.live),
            dispatcher: Arc::clone(&gateway.dispatcher),
            in_flight: Arc::clone(&gateway.in_flight),
            batches: Arc::clone(&gateway.batches),
            pressure: Arc::clone(&gateway.pressure),
            adviser: Arc::clone(&gateway.adviser),
            chain: Arc::clone(&chain),
            reload: Arc::clone(&reloader) as Arc<dyn admin::Reload>,
            config: config.admin.clone(),
        };
        Ok(Self { gateway, certificate, admin, phones, state, reloader, exporter, chain })
    }

    fn shown(&self, config: &Config) -> String {
        let list = |addresses: &[SocketAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let tls = if config.server.tls_listen.is_empty() {
            String::new()
        } else {
            format!(", TLS on {}", list(&config.server.tls_listen))
        };
        let phones = config.registration.listen.map(|address| format!("; phones register on {address}"));
        let (public, admin) = (list(&config.server.listen), config.admin.listen);
        format!("huntgroup listens on {public}{tls}; admin on {admin}{}", phones.unwrap_or_default())
    }
}

/// How many requests of each tenant wait.
fn queued_by_tenant(auth: &Authenticator, dispatcher: &Dispatcher) -> Vec<(Arc<str>, usize)> {
    let names = auth.tenant_names();
    let waiting = dispatcher.waiting_by_tenant();
    waiting.into_iter().filter_map(|((tenant, _), count)| Some((Arc::clone(names.get(&tenant)?), count))).collect()
}

/// The service of everything that is no public listener: the scheduler's timer, the fleet, the operator's listener, and
/// the end of the process.
struct Beside {
    parts: tokio::sync::Mutex<Option<Parts>>,
    /// The listeners of operators and phones, which end first in an upgrade.
    desks: Tasks,
}

#[async_trait]
impl BackgroundService for Beside {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let Some(parts) = self.parts.lock().await.take() else { return };
        signals::survive_file_size_limit();
        let gateway = Arc::clone(&parts.gateway);
        let tasks = gateway.tasks.clone();
        let (dispatcher, fleet) = (Arc::clone(&gateway.dispatcher), Arc::clone(&gateway.fleet));
        let stop = tasks.stop_signal();
        tasks.spawn("timer", async move { dispatcher.run_timer(stop).await }).await;
        let stop = tasks.stop_signal();
        tasks.spawn("fleet", fleet.run(stop)).await;
        let (abandoned, upstream) = (Arc::clone(&gateway.abandoned), Arc::clone(&gateway.upstream));
        tasks.spawn("abandoned", abandoned.run(upstream, gateway.fleet.events(), tasks.stop_signal())).await;
        tasks.spawn("chain", parts.chain.run(tasks.stop_signal())).await;
        let engine = batch::Engine::new(Arc::clone(&gateway));
        tasks.spawn("batches", engine.run(tasks.stop_signal())).await;
        if let Some(exporter) = parts.exporter {
            tasks.spawn("traces", exporter.run(tasks.stop_signal())).await;
        }
        if let Some(phones) = parts.phones {
            let registrar = Arc::clone(&parts.state.registrar);
            let stop = self.desks.stop_signal();
            self.desks.spawn("registration", admin::serve_phones(phones, registrar, stop)).await;
        }
        tasks.spawn("models", name_unknown_models(Arc::clone(&gateway), tasks.stop_signal())).await;
        let adviser = Arc::clone(&gateway.adviser).run(Arc::clone(&gateway), tasks.stop_signal());
        tasks.spawn("capacity", adviser).await;
        let follower = Follower {
            auth: Arc::clone(&parts.state.auth),
            store: Arc::clone(&parts.state.store),
            fleet: Arc::clone(&gateway.fleet),
        };
        tasks.spawn("follow", follower.run(self.desks.stop_signal(), tasks.stop_signal())).await;
        let stop = self.desks.stop_signal();
        self.desks.spawn("admin", admin::serve(parts.admin, parts.state, stop)).await;
        let (watched, stop) = (Arc::clone(&gateway), tasks.stop_signal());
        let stated = move || watched.config().limits.max_memory.map(|limit| limit.as_u64());
        tasks.spawn("memory", Arc::clone(&gateway.pressure).watch(stated, stop)).await;
        let (kept, stop) = (Arc::clone(&gateway), tasks.stop_signal());
        tasks.spawn("history", async move { kept.telemetry.history().keep(|| kept.fleet.level(), stop).await }).await;
        let stop = tasks.stop_signal();
        tasks.spawn("reload", signals::reload_on_hangup(Arc::clone(&parts.reloader), stop)).await;

        // An error means that the server is gone, which is an end as well.
        drop(shutdown.wait_for(|stopping| *stopping).await);
        drain(&gateway).await;
        tokio::join!(tasks.stop(TASKS_LIMIT), self.desks.stop(TASKS_LIMIT));
        gateway.dispatcher.end_record();
        tracing::info!("drained; goodbye");
        leave();
    }
}

/// After a hand-over clients are still let in here for some seconds, by the keys and to the replicas that there are then: operators
/// tell the successor, and this process follows.
struct Follower {
    auth: Arc<Authenticator>,
    store: Arc<Store>,
    fleet: Arc<Fleet>,
}

impl Follower {
    async fn run(self, mut handed_over: Stop, mut stop: Stop) {
        tokio::select! {
            () = stop.wait() => return,
            () = handed_over.wait() => {}
        }
        let mut known = None;
        loop {
            match self.follow(known).await {
                Ok(version) => known = Some(version),
                Err(error) => tracing::debug!(%error, "what the successor does is not known"),
            }
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(FOLLOW_EVERY) => {}
            }
        }
    }

    /// Does what has been done since the store had the version `known`. Which it has now.
    async fn follow(&self, known: Option<i64>) -> Result<i64, AuthSetupError> {
        let (auth, store) = (Arc::clone(&self.auth), Arc::clone(&self.store));
        let read = tokio::task::spawn_blocking(move || {
            // Before anything else: what is changed meanwhile is seen the next time.
            let version = store.version()?;
            if known != Some(version) {
                auth.follow(&store)?;
            }
            Ok::<_, AuthSetupError>(version)
        });
        let version = read.await.unwrap_or(Err(store::StoreError::Closed.into()))?;
        if known != Some(version) {
            self.fleet.follow_store().await?;
        }
        Ok(version)
    }
}

/// Says once which models keys name that nobody is known to serve, as soon as the replicas have said what they do.
async fn name_unknown_models(gateway: Arc<Gateway>, mut stop: Stop) {
    tokio::select! {
        () = stop.wait() => return,
        () = gateway.fleet.all_heard(HEARD_WITHIN) => {}
    }
    let is_unknown = |model: &String| gateway.fleet.resolve_model(model).is_none();
    let mut unknown = Vec::new();
    for (tenant, models) in gateway.auth.named_models() {
        let models: Vec<_> = models.into_iter().filter(is_unknown).collect();
        if !models.is_empty() {
            unknown.push(format!("{tenant}: {}", models.join(", ")));
        }
    }
    if !unknown.is_empty() {
        let models = unknown.join("; ");
        tracing::warn!(
            models,
            "keys may use models that nobody states and no replica has reported: are the names right?"
        );
    }
}

/// Waits until nothing is in flight, the drain limit passes, or a second signal ends the patience.
async fn drain(gateway: &Gateway) {
    gateway.in_flight.drain();
    let limit = gateway.config().server.drain_limit;
    tracing::info!(in_flight = gateway.in_flight.count(), ?limit, "draining");
    tokio::select! {
        () = gateway.in_flight.none() => {}
        () = signals::second_signal() => tracing::warn!("a second signal: leaving now"),
        () = tokio::time::sleep(limit) => {
            tracing::warn!(in_flight = gateway.in_flight.count(), "the drain limit passed: ending what still runs");
            gateway.live.cancel_all();
            // The error events need a moment to go out.
            if tokio::time::timeout(Duration::from_secs(2), gateway.in_flight.none()).await.is_err() {
                tracing::warn!("some clients do not take their error event");
            }
        }
    }
    tokio::time::sleep(LINGER).await;
}

#[expect(clippy::disallowed_methods, reason = "pingora would sleep the whole grace period; all guards have run by now")]
fn leave() -> ! {
    std::process::exit(0)
}

/// A panic in a request ends that request. One in pingora's listening service would leave the process without a listener.
fn note_panic(info: &std::panic::PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let trace = std::backtrace::Backtrace::capture();
    tracing::error!(place, "panic: {}\n{trace}", info.payload_as_str().unwrap_or("no message"));
    if place.contains("services/listening.rs") {
        abandon_ship();
    }
}

#[expect(clippy::disallowed_methods, reason = "a gateway that does not listen must not look alive")]
fn abandon_ship() -> ! {
    std::process::exit(1)
}

/// Fails early and in words where pingora would panic in a task and leave the process without a listener.
fn can_listen(what: &'static str, address: SocketAddr) -> Result<(), AppError> {
    let socket = || {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(1)
    };
    socket().map_err(|source| AppError::Listen { what, address, source })
}

/// The operator's listener, or the phones'. Its port is shared with a predecessor during an upgrade.
fn shared_listener(what: &'static str, address: SocketAddr, upgrade: bool) -> Result<TcpListener, AppError> {
    if !upgrade {
        can_listen(what, address)?;
    }
    let socket = || {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(128)?;
        Ok(TcpListener::from(socket))
    };
    socket().map_err(|source| AppError::Listen { what, address, source })
}

/// The scheduler, and its record where the operator wants one.
fn dispatcher(config: &Config, auth: &Authenticator) -> Result<Dispatcher, AppError> {
    let (core, seed) = (config.scheduler(auth.shares()), seed());
    let begin =
        |path: &PathBuf| Record::create(path, &core, seed).map_err(|error| AppError::Record(path.clone(), error));
    let record = config.scheduler.record.as_ref().map(begin).transpose()?;
    Ok(Dispatcher::new(core, seed, record))
}

/// Drives every random choice of the scheduler; another one in each run.
fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
