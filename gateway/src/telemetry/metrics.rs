//! The families built from `names`, and the counters that a request or a replica touches, kept at hand.
//!
//! Finding a series by its labels costs a hash over all of them and a lock. A request touches a dozen, so all of one
//! (model, route, class) are found once and kept as [`RequestSeries`]; per request that leaves one look-up, per streamed
//! event nothing. What a replica touches is kept likewise, which also makes it possible to forget the replica.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use dashmap::DashMap;
use openai_wire::Route;
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder, core::Collector,
};
use scheduler::{ChangeReason, Class, ReplicaId, ReplicaState};

use super::{
    account::Upkeep,
    cost::{CostSeries, Ledger, Statement, Window},
    history::History,
    names::{self, Kind, Metric},
    pool::{PoolGauges, PoolSample},
    process::ProcessGauges,
    tenants::Tenants,
    trace::{Exporter, Target, Tracer},
};
use crate::clock;

/// The label value of what is not configured, or does not fit under a cap any more.
pub const OTHER: &str = "other";

/// Replicas with series of their own. Ten times the largest pool planned for; at some fifteen series each, what one
/// Prometheus takes from one target without trouble.
const REPLICAS_MAX: usize = 5_000;

/// Models with series of their own. Models come from configuration and probes, and a phone may claim any number.
pub(super) const MODELS_MAX: usize = 256;

/// What telemetry needs to know once.
#[derive(Clone, Debug)]
pub struct TelemetryOptions {
    /// Write one log line per request (target `access`, level info); [`Telemetry::set_access_log`] changes it.
    pub access_log: bool,
    /// For `build_info`.
    pub version: &'static str,
}

/// All metrics of one gateway. Shared; every method is cheap and takes no lock for longer than a look-up.
pub struct Telemetry {
    registry: Registry,
    access_log: AtomicBool,
    tracer: OnceLock<Arc<Tracer>>,
    families: Families,
    series: DashMap<(Arc<str>, Route, Class), Arc<RequestSeries>>,
    models: DashMap<Arc<str>, ()>,
    replicas: DashMap<Arc<str>, Arc<ReplicaSeries>>,
    replica_count: AtomicUsize,
    pub(super) in_flight: IntGauge,
    panics: IntCounter,
    client_retries: IntCounter,
    pool: PoolGauges,
    pub(super) tenants: Tenants,
    pub(super) ledger: Ledger,
    cost: CostSeries,
    process: ProcessGauges,
    history: History,
    /// One scrape at a time: gauges are cleared and set again.
    source: Mutex<Option<PoolSource>>,
}

type PoolSource = Box<dyn Fn() -> PoolSample + Send + Sync>;

struct Families {
    requests: IntCounterVec,
    duration: HistogramVec,
    first_token: HistogramVec,
    per_token: HistogramVec,
    queue_wait: HistogramVec,
    overhead: HistogramVec,
    tokens: IntCounterVec,
    cached: IntCounterVec,
    estimated: IntCounterVec,
    shed: IntCounterVec,
    attempts: IntCounterVec,
    changes: IntCounterVec,
    quarantine: IntCounterVec,
    failovers: IntCounterVec,
    continuations: IntCounterVec,
    registrations: IntCounterVec,
    batch_lines: IntCounterVec,
    upstream_plain: IntCounterVec,
    spans: [IntCounter; 2],
    hedges: [IntCounter; 2],
    joined: [IntCounter; 2],
    wasted: CounterVec,
    calls: IntCounterVec,
    chain_polls: IntCounterVec,
}

/// The series of one (model, route, class).
pub(super) struct RequestSeries {
    pub(super) labels: (Arc<str>, Route, Class),
    pub(super) ok: IntCounter,
    pub(super) client_gone: IntCounter,
    pub(super) duration: Histogram,
    pub(super) first_token: Histogram,
    pub(super) per_token: Histogram,
    pub(super) queue_wait: Histogram,
    pub(super) overhead: Histogram,
    pub(super) prompt: IntCounter,
    pub(super) completion: IntCounter,
    pub(super) cached: IntCounter,
    pub(super) estimated: IntCounter,
}

/// The series of one replica, as they come up.
#[derive(Default)]
struct ReplicaSeries {
    /// The last scrape did not find the replica in the pool.
    missed: AtomicBool,
    attempts: Mutex<Vec<(&'static str, IntCounter)>>,
    /// How the last attempt ended that failed by the replica's fault.
    failure: Mutex<Option<&'static str>>,
    changes: Mutex<Vec<(&'static str, &'static str)>>,
}

impl Telemetry {
    /// Metrics of a gateway that has done nothing yet.
    pub fn new(options: TelemetryOptions) -> Arc<Self> {
        let registry = Registry::new();
        let families = Families::new(&registry);
        for reason in names::SHED_REASONS {
            families.shed.with_label_values(&[reason]);
        }
        for outcome in names::CONTINUATIONS_BY_OUTCOME {
            families.continuations.with_label_values(&[outcome]);
        }
        for outcome in names::REGISTRATIONS_BY_OUTCOME {
            families.registrations.with_label_values(&[outcome]);
        }
        for outcome in names::LINES_BY_OUTCOME {
            families.batch_lines.with_label_values(&[outcome]);
        }
        gauges(&registry, &names::BUILD_INFO).with_label_values(&[options.version]).set(1.0);
        Arc::new(Self {
            access_log: AtomicBool::new(options.access_log),
            tracer: OnceLock::new(),
            series: DashMap::new(),
            models: DashMap::new(),
            replicas: DashMap::new(),
            replica_count: AtomicUsize::new(0),
            in_flight: register(&registry, IntGauge::with_opts(opts(&names::REQUESTS_IN_FLIGHT))),
            panics: register(&registry, IntCounter::with_opts(opts(&names::PANICS))),
            client_retries: register(&registry, IntCounter::with_opts(opts(&names::CLIENT_RETRIES))),
            pool: PoolGauges::new(&registry),
            tenants: Tenants::new(&registry),
            ledger: Ledger::new(clock::now()),
            cost: CostSeries::new(&registry),
            process: ProcessGauges::new(&registry),
            history: History::default(),
            source: Mutex::new(None),
            families,
            registry,
        })
    }

    /// Turns the log line of each request on or off; holds for requests that end from now on.
    pub fn set_access_log(&self, on: bool) {
        self.access_log.store(on, Ordering::Relaxed);
    }

    /// Has requests from now on traced; the exporter sends their spans. Once.
    pub fn trace_to(&self, target: Target, sample: f64) -> Exporter {
        let [exported, lost] = self.families.spans.clone();
        let (tracer, inbox) = Tracer::new(sample, exported, lost);
        self.tracer.get_or_init(|| Arc::new(tracer));
        Exporter::new(target, inbox)
    }

    /// Takes another share of requests to be traced.
    pub fn set_trace_sample(&self, sample: f64) {
        if let Some(tracer) = self.tracer.get() {
            tracer.set_sample(sample);
        }
    }

    /// Decides what is traced, if anything is.
    pub(super) fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.tracer.get()
    }

    pub(super) fn access_log(&self) -> bool {
        self.access_log.load(Ordering::Relaxed)
    }

    /// The last hour.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Where the gauges of the pool come from; asked at each scrape.
    pub fn set_pool_source(&self, source: Box<dyn Fn() -> PoolSample + Send + Sync>) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = Some(source);
    }

    /// All metrics in Prometheus' text format 0.0.4.
    pub fn render(&self) -> String {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = source.as_ref() {
            let models: Vec<Arc<str>> = self.models.iter().map(|entry| Arc::clone(entry.key())).collect();
            let sample = source();
            self.forget_missing(&sample);
            self.pool.refresh(&sample, &models, REPLICAS_MAX);
            self.tenants.refresh(&sample.queued_by_tenant);
        }
        self.cost.refresh(&self.cost(Window::All));
        self.process.refresh();
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }

    /// A replica is in the pool, with this price from now on.
    pub fn replica_kept(&self, replica: ReplicaId, upkeep: Upkeep) {
        self.ledger.keep(replica, upkeep, clock::now());
    }

    /// A replica of the pool is given work from now on, or is not.
    pub fn replica_takes_work(&self, replica: ReplicaId, takes_work: bool) {
        self.ledger.takes_work(replica, takes_work, clock::now());
    }

    /// A replica has left the pool: it costs nothing any more.
    pub fn replica_left(&self, replica: ReplicaId) {
        self.ledger.left(replica, clock::now());
    }

    /// What the pool has cost in a time, and what for.
    pub fn cost(&self, window: Window) -> Statement {
        self.ledger.statement(window, clock::now())
    }

    /// A request was refused because of load.
    pub fn shed(&self, reason: &'static str) {
        self.families.shed.with_label_values(&[reason]).inc();
    }

    /// A replica was put its test questions: `passed`, `wrong_answer` or `failed`.
    pub fn quarantine(&self, outcome: &'static str) {
        self.families.quarantine.with_label_values(&[outcome]).inc();
    }

    /// A replica changed its state.
    pub fn replica_changed(&self, replica: &str, to: &'static str, reason: &'static str) {
        let (label, series) = self.replica(replica);
        {
            let mut changes = series.changes.lock().unwrap_or_else(PoisonError::into_inner);
            if !changes.contains(&(to, reason)) {
                changes.push((to, reason));
            }
        }
        self.families.changes.with_label_values(&[&*label, to, reason]).inc();
    }

    /// An attempt failed before the client saw content (in phase `connect`, `head` or `body`), and its request goes on.
    pub fn failover(&self, phase: &'static str, reason: &'static str) {
        self.families.failovers.with_label_values(&[phase, reason]).inc();
    }

    /// An answer had broken off in the middle; what became of it, as [`names::CONTINUATIONS_BY_OUTCOME`] has it.
    pub fn continuation(&self, outcome: &'static str) {
        self.families.continuations.with_label_values(&[outcome]).inc();
    }

    /// A phone called; what became of it, as [`names::REGISTRATIONS_BY_OUTCOME`] has it.
    pub fn registration(&self, outcome: &'static str) {
        self.families.registrations.with_label_values(&[outcome]).inc();
    }

    /// A replica gives an answer in one piece that could have been a stream.
    pub fn upstream_plain(&self, reason: &'static str) {
        self.families.upstream_plain.with_label_values(&[reason]).inc();
    }

    /// A second copy of a request ended; `won` if it brought the answer. [`RequestRecord`](super::RequestRecord) calls this
    /// for the attempts of its request.
    pub fn hedge_ended(&self, won: bool) {
        let [lost, of_use] = &self.families.hedges;
        if won { of_use } else { lost }.inc();
    }

    /// A request joined an earlier one, which was over by then or not.
    pub fn joined(&self, finished: bool) {
        let [running, over] = &self.families.joined;
        if finished { over } else { running }.inc();
    }

    /// A client says that it asks again.
    pub fn client_retry(&self) {
        self.client_retries.inc();
    }

    /// A line of a batch came back; what became of it, as [`names::LINES_BY_OUTCOME`] has it.
    pub fn batch_line(&self, outcome: &'static str) {
        self.families.batch_lines.with_label_values(&[outcome]).inc();
    }

    /// An attempt ended. [`RequestRecord`](super::RequestRecord) calls this for the attempts of its request.
    pub fn attempt(&self, replica: &Arc<str>, outcome: &'static str) {
        let (label, series) = self.replica(replica);
        if outcome != names::OUTCOME_OK && !names::BLAMELESS.contains(&outcome) {
            *series.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        }
        let mut attempts = series.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counter)) = attempts.iter().find(|(known, _)| *known == outcome) {
            return counter.inc();
        }
        let counter = self.families.attempts.with_label_values(&[&*label, outcome]);
        counter.inc();
        attempts.push((outcome, counter));
    }

    /// How many attempts ended how on a replica, since this process began.
    pub fn attempts(&self, replica: &str) -> Vec<(&'static str, u64)> {
        let Some(series) = self.replicas.get(replica).map(|entry| Arc::clone(entry.value())) else { return Vec::new() };
        let attempts = series.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.iter().map(|(outcome, counter)| (*outcome, counter.get())).collect()
    }

    /// How the last attempt ended that failed by the replica's fault.
    pub fn last_failure(&self, replica: &str) -> Option<&'static str> {
        let series = self.replicas.get(replica).map(|entry| Arc::clone(entry.value()))?;
        *series.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slot time went into an attempt that brought no whole answer. [`RequestRecord`](super::RequestRecord) calls this for
    /// the attempts of its request.
    pub fn wasted(&self, reason: &'static str, seconds: f64) {
        // The counter panics on negative amounts, and a sum never recovers from a NaN.
        if seconds > 0.0 && seconds.is_finite() {
            self.families.wasted.with_label_values(&[reason]).inc_by(seconds);
        }
    }

    /// Drops the series of a replica that is gone for good.
    pub fn forget_replica(&self, replica: &str) {
        let Some((label, series)) = self.replicas.remove(replica) else { return };
        self.replica_count.fetch_sub(1, Ordering::Relaxed);
        for (outcome, _) in series.attempts.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // An error says that the series is not there, which is what is wanted.
            self.families.attempts.remove_label_values(&[&*label, outcome]).unwrap_or_default();
        }
        for (to, reason) in series.changes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            self.families.changes.remove_label_values(&[&*label, to, reason]).unwrap_or_default();
        }
    }

    /// Forgets replicas that two scrapes in a row did not find in the pool: an attempt that ends after its replica was
    /// forgotten brings its series back. Two, because a replica's first change may come before the pool shows it.
    fn forget_missing(&self, sample: &PoolSample) {
        let present: HashSet<&str> = sample.replicas.iter().map(|replica| &*replica.label).collect();
        let mut gone = Vec::new();
        for entry in &self.replicas {
            let missing = !present.contains(&**entry.key()) && &**entry.key() != OTHER;
            if entry.value().missed.swap(missing, Ordering::Relaxed) && missing {
                gone.push(Arc::clone(entry.key()));
            }
        }
        gone.iter().for_each(|label| self.forget_replica(label));
    }

    /// A call about files or batches ended. [`CallRecord`](super::CallRecord) calls this.
    pub(super) fn call(&self, call: &'static str, outcome: &'static str) {
        self.families.calls.with_label_values(&[call, outcome]).inc();
    }

    /// The chain was looked at.
    pub fn chain_polled(&self, outcome: &'static str) {
        self.families.chain_polls.with_label_values(&[outcome]).inc();
    }

    /// A panic ended one request.
    pub fn panic_seen(&self) {
        self.panics.inc();
    }

    /// Counts the end of a request whose outcome is an error.
    pub(super) fn failed(&self, series: &RequestSeries, code: &'static str) {
        let (model, route, class) = &series.labels;
        self.families.requests.with_label_values(&[model, route.name(), class.name(), code]).inc();
    }

    pub(super) fn request_series(&self, model: &Arc<str>, route: Route, class: Class) -> Arc<RequestSeries> {
        let mut labels = (Arc::clone(model), route, class);
        if let Some(series) = self.series.get(&labels) {
            return Arc::clone(&series);
        }
        if !self.models.contains_key(model) {
            if self.models.len() >= MODELS_MAX {
                labels.0 = Arc::from(OTHER);
            }
            self.models.insert(Arc::clone(&labels.0), ());
        }
        let series =
            self.series.entry(labels.clone()).or_insert_with(|| Arc::new(self.families.request_series(labels)));
        Arc::clone(&series)
    }

    /// The label and the series of a replica; those past the cap share one.
    fn replica(&self, replica: &str) -> (Arc<str>, Arc<ReplicaSeries>) {
        if let Some(entry) = self.replicas.get(replica) {
            return (Arc::clone(entry.key()), Arc::clone(entry.value()));
        }
        let label = if self.replica_count.load(Ordering::Relaxed) < REPLICAS_MAX { replica } else { OTHER };
        let entry = self.replicas.entry(Arc::from(label)).or_insert_with(|| {
            self.replica_count.fetch_add(1, Ordering::Relaxed);
            Arc::new(self.families.replica_series(label))
        });
        (Arc::clone(entry.key()), Arc::clone(entry.value()))
    }
}

impl Families {
    fn new(registry: &Registry) -> Self {
        let hedges = counters(registry, &names::HEDGES);
        let spans = counters(registry, &names::TRACE_SPANS);
        let joined = counters(registry, &names::JOINED_REQUESTS);
        Self {
            requests: counters(registry, &names::REQUESTS),
            duration: histograms(registry, &names::REQUEST_DURATION),
            first_token: histograms(registry, &names::TIME_TO_FIRST_TOKEN),
            per_token: histograms(registry, &names::TIME_PER_OUTPUT_TOKEN),
            queue_wait: histograms(registry, &names::QUEUE_WAIT),
            overhead: histograms(registry, &names::GATEWAY_OVERHEAD),
            tokens: counters(registry, &names::TOKENS_COUNTED),
            cached: counters(registry, &names::CACHED_PROMPT_TOKENS),
            estimated: counters(registry, &names::USAGE_ESTIMATED),
            shed: counters(registry, &names::SHED),
            attempts: counters(registry, &names::ATTEMPTS),
            changes: counters(registry, &names::REPLICA_STATE_CHANGES),
            quarantine: counters(registry, &names::QUARANTINE),
            failovers: counters(registry, &names::FAILOVERS),
            continuations: counters(registry, &names::CONTINUATIONS),
            registrations: counters(registry, &names::REGISTRATIONS),
            batch_lines: counters(registry, &names::BATCH_LINES_ENDED),
            upstream_plain: counters(registry, &names::UPSTREAM_PLAIN),
            hedges: ["lost", "won"].map(|outcome| hedges.with_label_values(&[outcome])),
            spans: ["exported", "lost"].map(|outcome| spans.with_label_values(&[outcome])),
            joined: ["running", "finished"].map(|state| joined.with_label_values(&[state])),
            wasted: float_counters(registry, &names::WASTED_SLOT_SECONDS),
            calls: counters(registry, &names::BATCH_API_CALLS),
            chain_polls: counters(registry, &names::CHAIN_POLLS),
        }
    }

    /// Ways out start at 0: Prometheus sees no increase in a series that appears with its first count, and alerts are
    /// about exactly these.
    fn replica_series(&self, replica: &str) -> ReplicaSeries {
        let out = ReplicaState::Out.name();
        let reasons = [ChangeReason::HardFailure, ChangeReason::SoftFailure, ChangeReason::RelayDown];
        let changes: Vec<_> = reasons.into_iter().map(|reason| (out, reason.name())).collect();
        for (to, reason) in &changes {
            self.changes.with_label_values(&[replica, to, reason]);
        }
        ReplicaSeries { changes: Mutex::new(changes), ..ReplicaSeries::default() }
    }

    fn request_series(&self, labels: (Arc<str>, Route, Class)) -> RequestSeries {
        let (model, route, class) = (&*labels.0, labels.1.name(), labels.2.name());
        let three = [model, route, class];
        RequestSeries {
            ok: self.requests.with_label_values(&[model, route, class, names::OUTCOME_OK]),
            client_gone: self.requests.with_label_values(&[model, route, class, names::OUTCOME_CLIENT_GONE]),
            duration: self.duration.with_label_values(&three),
            first_token: self.first_token.with_label_values(&three),
            per_token: self.per_token.with_label_values(&three),
            queue_wait: self.queue_wait.with_label_values(&three),
            overhead: self.overhead.with_label_values(&three),
            prompt: self.tokens.with_label_values(&[model, "prompt"]),
            completion: self.tokens.with_label_values(&[model, "completion"]),
            cached: self.cached.with_label_values(&[model]),
            estimated: self.estimated.with_label_values(&[model]),
            labels,
        }
    }
}

fn opts(metric: &Metric) -> Opts {
    Opts::new(metric.name, metric.help)
}

/// Names, labels and buckets are constants, and a test builds all of them: a mistake among them can't reach anybody.
fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: prometheus::Result<C>) -> C {
    let collector = collector.expect("`names` holds only valid metrics");
    registry.register(Box::new(collector.clone())).expect("`names` holds each metric once");
    collector
}

pub(super) fn counters(registry: &Registry, metric: &Metric) -> IntCounterVec {
    register(registry, IntCounterVec::new(opts(metric), metric.labels))
}

pub(super) fn gauges(registry: &Registry, metric: &Metric) -> GaugeVec {
    register(registry, GaugeVec::new(opts(metric), metric.labels))
}

pub(super) fn int_gauges(registry: &Registry, metric: &Metric) -> IntGaugeVec {
    register(registry, IntGaugeVec::new(opts(metric), metric.labels))
}

pub(super) fn float_counters(registry: &Registry, metric: &Metric) -> CounterVec {
    register(registry, CounterVec::new(opts(metric), metric.labels))
}

pub(super) fn gauge(registry: &Registry, metric: &Metric) -> Gauge {
    register(registry, Gauge::with_opts(opts(metric)))
}

pub(super) fn counter(registry: &Registry, metric: &Metric) -> Counter {
    register(registry, Counter::with_opts(opts(metric)))
}

pub(super) fn histograms(registry: &Registry, metric: &Metric) -> HistogramVec {
    let Kind::Histogram(buckets) = metric.kind else { unreachable!("{} is no histogram", metric.name) };
    let opts = HistogramOpts::new(metric.name, metric.help).buckets(buckets.to_vec());
    register(registry, HistogramVec::new(opts, metric.labels))
}
