//! The pool of replicas: read on every request, changed now and then.
//!
//! Readers take one immutable [`View`] without a lock. Whoever changes the pool does it under one mutex: copy, change,
//! swap, then tell the scheduler, so that the scheduler never names a replica that readers don't know.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use arc_swap::ArcSwap;
use scheduler::{Decision, ModelId, ReplicaId, ReplicaState, Snapshot};
use store::{Speed, Store};
use tokio::sync::{Notify, broadcast};

use super::{
    announce::{Arrivals, Assignment},
    endings::Deployment,
    feed::{Feed, PoolEvent},
    models::{ModelRef, Models},
    naming::Naming,
    relays::Relays,
    replica::Replica,
    url::{ReplicaUrl, UrlRules},
};
use crate::{
    clock,
    config::{Config, Health, Quarantine, Registration, Reports},
    dispatch::Dispatcher,
    telemetry::{DeploymentSample, Level, PoolSample, QueueSample, ReplicaSample, Telemetry, WaitSample},
    upstream::Upstream,
};

/// Relays that have a gauge. 100: phones share a handful; in a test, or a network of one's own, each may be its own.
const MAX_RELAYS: usize = 100;

/// Replicas over time. Shared by the data path, the admin API and [`Fleet::run`].
pub struct Fleet {
    pub(super) dispatcher: Arc<Dispatcher>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) store: Arc<Store>,
    pub(super) feed: Feed,
    pub(super) view: ArcSwap<View>,
    pub(super) settings: ArcSwap<Settings>,
    /// Measured before the last restart, by number in the store.
    pub(super) kept_speeds: ArcSwap<BTreeMap<u32, Speed>>,
    /// What the chain says about keys.
    pub(super) assignments: ArcSwap<BTreeMap<String, Assignment>>,
    /// How many changes phones may still make by themselves.
    pub(super) arrivals: Mutex<Arrivals>,
    /// Of those that can't be made up.
    pub(super) sure_arrivals: Mutex<Arrivals>,
    /// When this pool began, in milliseconds since 1970: replicas that are older were known before.
    began_ms: u64,
    /// Held while the pool is changed.
    pub(super) change: tokio::sync::Mutex<()>,
    /// There is something in `urgent`.
    pub(super) wake: Notify,
    /// A replica said something, or left.
    pub(super) heard: Notify,
    /// Replicas to probe as soon as may be.
    pub(super) urgent: Mutex<BTreeSet<ReplicaId>>,
    pub(super) relays: Relays,
}

/// What the configuration says about all replicas.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) rules: UrlRules,
    pub(super) max_replicas: usize,
    pub(super) health: Health,
    pub(super) registration: Registration,
    pub(super) quarantine: Quarantine,
    pub(super) reports: Reports,
    pub(super) drain_before_end: Duration,
    pub(super) forget_ended_after: Duration,
    /// Unused connections are closed after this.
    pub(super) idle: Duration,
    pub(super) naming: Naming,
    /// The addresses that it states, whoever has stated more about them since.
    pub(super) configured: HashSet<ReplicaUrl>,
}

impl Settings {
    pub(super) fn new(config: &Config) -> Self {
        let rules = UrlRules::from(&config.pool);
        Self {
            configured: config.replicas.iter().filter_map(|one| ReplicaUrl::parse(&one.url, &rules).ok()).collect(),
            rules,
            max_replicas: config.pool.max_replicas,
            health: config.health.clone(),
            registration: config.registration.clone(),
            quarantine: config.quarantine.clone(),
            reports: config.reports.clone(),
            drain_before_end: config.pool.drain_before_end,
            forget_ended_after: config.pool.forget_ended_after,
            idle: config.pool.idle,
            naming: Naming::new(&config.models),
        }
    }
}

/// The pool at one moment.
#[derive(Clone, Default)]
pub(super) struct View {
    pub(super) replicas: BTreeMap<ReplicaId, Arc<Replica>>,
    pub(super) by_url: HashMap<ReplicaUrl, ReplicaId>,
    pub(super) models: Models,
}

impl View {
    pub(super) fn of_url(&self, url: &ReplicaUrl) -> Option<&Arc<Replica>> {
        self.replicas.get(self.by_url.get(url)?)
    }

    pub(super) fn insert(&mut self, replica: Arc<Replica>) {
        self.by_url.insert(replica.url.clone(), replica.id);
        self.replicas.insert(replica.id, replica);
    }

    pub(super) fn remove(&mut self, id: ReplicaId) {
        if let Some(replica) = self.replicas.remove(&id) {
            self.by_url.remove(&replica.url);
        }
    }

    /// Replicas that came by themselves and have shown nothing yet, the oldest first.
    pub(super) fn newcomers(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.values().map(AsRef::as_ref).filter(|replica| replica.is_newcomer())
    }

    pub(super) fn label_is_taken(&self, label: &str, except: Option<ReplicaId>) -> bool {
        self.replicas.values().any(|replica| &*replica.label == label && Some(replica.id) != except)
    }
}

/// One line of `GET /v1/models`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// What clients may ask for.
    pub name: Arc<str>,
    /// The model that this name is an alias of.
    pub alias_of: Option<Arc<str>>,
    /// Whether a replica serves it now.
    pub ready: bool,
    /// Seconds since 1970 when it became known.
    pub created: u64,
}

impl Fleet {
    /// An empty pool with the configuration's models. [`Fleet::reconcile`] fills it.
    pub fn new(
        config: &Config,
        dispatcher: Arc<Dispatcher>,
        upstream: Arc<Upstream>,
        telemetry: Arc<Telemetry>,
        store: Arc<Store>,
    ) -> Arc<Self> {
        let settings = Settings::new(config);
        let mut view = View::default();
        view.models.configure(&settings.naming, clock::unix().as_secs());
        Arc::new(Self {
            dispatcher,
            upstream,
            telemetry,
            store,
            feed: Feed::default(),
            view: ArcSwap::from_pointee(view),
            settings: ArcSwap::from_pointee(settings),
            kept_speeds: ArcSwap::default(),
            assignments: ArcSwap::default(),
            arrivals: Mutex::default(),
            sure_arrivals: Mutex::default(),
            began_ms: clock::unix_ms(),
            change: tokio::sync::Mutex::new(()),
            wake: Notify::new(),
            heard: Notify::new(),
            urgent: Mutex::default(),
            relays: Relays::default(),
        })
    }

    /// A replica of the pool.
    pub fn replica(&self, id: ReplicaId) -> Option<Arc<Replica>> {
        self.view.load().replicas.get(&id).cloned()
    }

    /// All replicas, by id.
    pub fn replicas(&self) -> Vec<Arc<Replica>> {
        self.view.load().replicas.values().cloned().collect()
    }

    /// The replica with this number, name or address.
    pub fn find(&self, text: &str) -> Option<Arc<Replica>> {
        let view = self.view.load();
        let by_number = || view.replicas.get(&ReplicaId(text.parse().ok()?));
        let by_label = || view.replicas.values().find(|replica| &*replica.label == text);
        let by_url = || view.of_url(&ReplicaUrl::read(text).ok()?);
        by_label().or_else(by_number).or_else(by_url).cloned()
    }

    /// The model that a client's name means; `None`: never heard of.
    pub fn resolve_model(&self, name: &str) -> Option<ModelRef> {
        self.view.load().models.resolve(name)
    }

    /// The same, but while some replica has not been heard yet (after a start, in an upgrade) an unknown name may be its
    /// model's: waits for what it says, at most `patience`.
    pub async fn await_model(&self, name: &str, patience: Duration) -> Option<ModelRef> {
        if let Some(model) = self.resolve_model(name) {
            return Some(model);
        }
        let heard = async {
            loop {
                let changed = self.heard.notified();
                if self.resolve_model(name).is_some() || !self.has_more_to_hear() {
                    return;
                }
                changed.await;
            }
        };
        // However the wait ends, what is known then counts.
        drop(tokio::time::timeout(patience, heard).await);
        self.resolve_model(name)
    }

    /// Waits until every replica was asked, and has said what it serves unless it is not there; at most `patience`.
    pub async fn all_heard(&self, patience: Duration) {
        let heard = async {
            loop {
                let changed = self.heard.notified();
                if !self.has_more_to_hear() {
                    return;
                }
                changed.await;
            }
        };
        // However the wait ends, what is known then counts.
        drop(tokio::time::timeout(patience, heard).await);
    }

    /// Whether a replica was not asked yet, or has not loaded what it will serve. One that did not answer doesn't count:
    /// it may never come, and unknown names are refused at once.
    fn has_more_to_hear(&self) -> bool {
        self.view.load().replicas.values().any(|replica| {
            let (not_asked, loading) = {
                let past = replica.past();
                (past.probe.is_none(), past.state == ReplicaState::Loading)
            };
            not_asked || (loading && replica.facts().models.is_empty())
        })
    }

    /// The name of a model.
    pub fn model_name(&self, id: ModelId) -> Option<Arc<str>> {
        self.view.load().models.name(id)
    }

    /// Every name that clients may ask for, in order.
    pub fn models(&self) -> Vec<ModelEntry> {
        let view = self.view.load();
        let served: BTreeSet<ModelId> = view
            .replicas
            .values()
            .filter(|replica| replica.takes_work())
            .flat_map(|replica| replica.facts().models.iter().map(|model| model.id).collect::<Vec<_>>())
            .collect();
        let mut entries: Vec<_> = view
            .models
            .iter()
            .map(|(model, created)| ModelEntry {
                ready: served.contains(&model.id),
                name: model.name,
                alias_of: None,
                created,
            })
            .collect();
        for (alias, model) in view.models.aliases() {
            let of = entries.iter().find(|entry| entry.name == *model);
            let (ready, created) = of.map_or((false, 0), |entry| (entry.ready, entry.created));
            entries.push(ModelEntry { name: Arc::clone(alias), alias_of: Some(Arc::clone(model)), ready, created });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries
    }

    /// Whether at least one replica can be counted on.
    pub fn any_ready(&self) -> bool {
        let now_ms = clock::unix_ms();
        self.view.load().replicas.values().any(|replica| replica.is_sound(now_ms))
    }

    /// Whether a replica was in the pool before this process began, and has not answered it yet.
    pub fn is_missing(&self, replica: &Replica) -> bool {
        let past = replica.past();
        past.added_ms < self.began_ms && past.learned.is_none()
    }

    /// Tokens that a slot of the replica with the largest context for this model has; `None` if that is not known.
    pub fn largest_context(&self, model: ModelId) -> Option<u32> {
        let view = self.view.load();
        let serving = view.replicas.values().map(|replica| replica.facts());
        serving
            .filter(|facts| facts.models.iter().any(|m| m.id == model))
            .filter_map(|facts| facts.context_tokens)
            .max()
    }

    /// Pool changes from now on. A reader that falls too far behind is told so and has missed some.
    pub fn events(&self) -> broadcast::Receiver<PoolEvent> {
        self.feed.subscribe()
    }

    /// The last pool changes with a larger number than `after`, at most `limit`, the oldest first.
    pub fn recent_events(&self, after: u64, limit: usize) -> Vec<PoolEvent> {
        self.feed.since(after, limit)
    }

    /// The relays that are down, as `acu.run:443`: those that have a gauge of 1.
    pub fn relays_down(&self, snapshot: &Snapshot) -> Vec<String> {
        if snapshot.relays_down.is_empty() {
            return Vec::new();
        }
        let relays = relay_samples(&self.view.load(), snapshot);
        relays.into_iter().filter(|(_, down)| *down).map(|(name, _)| name).collect()
    }

    /// How full the pool is now, for the history.
    pub fn level(&self) -> Level {
        let snapshot = self.dispatcher.snapshot();
        let mut level = Level { queued: snapshot.queued.values().sum(), ..Level::default() };
        for replica in &snapshot.replicas {
            level.ready += usize::from(replica.is_ready());
            level.busy += replica.running.len();
            level.slots += if replica.takes_work() { usize::from(replica.usable_slots) } else { 0 };
        }
        level
    }

    /// What the gauges show.
    pub fn sample(&self) -> PoolSample {
        let snapshot = self.dispatcher.snapshot();
        let view = self.view.load();
        let now = clock::unix().as_secs();
        let (mut oldest_queued, mut oldest_running) = (0.0_f64, 0.0_f64);
        for request in self.dispatcher.requests() {
            let oldest = if request.running.is_some() { &mut oldest_running } else { &mut oldest_queued };
            *oldest = oldest.max(request.age.as_secs_f64());
        }
        PoolSample {
            replicas: replica_samples(&view, &snapshot, now),
            queued: queue_samples(&view, &snapshot),
            waits: wait_samples(&view, &snapshot),
            decisions: Decision::ALL.into_iter().map(Decision::name).zip(snapshot.decisions).collect(),
            retries_in_flight: snapshot.retries_in_flight,
            deployments: deployment_samples(self.deployments(), now),
            relays: relay_samples(&view, &snapshot),
            oldest_queued_s: oldest_queued,
            oldest_running_s: oldest_running,
            ..PoolSample::default()
        }
    }

    /// Has a replica probed, in full, as soon as may be.
    pub fn probe_soon(&self, id: ReplicaId) {
        self.urgent.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(id);
        self.wake.notify_one();
    }

    /// What [`Fleet::probe_soon`] has gathered.
    pub(super) fn take_urgent(&self) -> BTreeSet<ReplicaId> {
        std::mem::take(&mut *self.urgent.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

fn replica_samples(view: &View, snapshot: &Snapshot, now: u64) -> Vec<ReplicaSample> {
    let sample = |state: &scheduler::ReplicaView| {
        let replica = view.replicas.get(&state.replica)?;
        let facts = replica.facts();
        Some(ReplicaSample {
            label: Arc::clone(&replica.label),
            models: facts.models.iter().map(|model| Arc::clone(&model.name)).collect(),
            state: state.state.name(),
            slots: state.usable_slots.into(),
            busy: u32::try_from(state.running.len()).unwrap_or(u32::MAX),
            lingering: state.lingering.into(),
            foreign: state.foreign.into(),
            prefill_rate: state.prefill_rate,
            decode_rate: state.decode_rate,
            expiry_s: replica.stated.expires_at.map(|at| at as f64 - now as f64),
            limits: replica.past().limited.causes().map(|(cause, limit)| (cause.name(), limit)).collect(),
        })
    };
    snapshot.replicas.iter().filter_map(sample).collect()
}

/// The relays of replicas, those that are down first. What is announced under made-up names has none.
fn relay_samples(view: &View, snapshot: &Snapshot) -> Vec<(String, bool)> {
    let known = view.replicas.values().filter(|replica| !replica.is_newcomer());
    let relays: BTreeMap<String, bool> =
        known.map(|replica| (replica.relay.name.clone(), snapshot.relays_down.contains(&replica.relay.id))).collect();
    let (down, up): (Vec<_>, Vec<_>) = relays.into_iter().partition(|(_, down)| *down);
    down.into_iter().chain(up).take(MAX_RELAYS).collect()
}

fn deployment_samples(deployments: Vec<Deployment>, now: u64) -> Vec<DeploymentSample> {
    let sample = |deployment: Deployment| DeploymentSample {
        name: deployment.name,
        slots: deployment.slots,
        left_s: deployment.ends_at.map(|end| end as f64 - now as f64),
    };
    deployments.into_iter().map(sample).collect()
}

fn queue_samples(view: &View, snapshot: &Snapshot) -> Vec<QueueSample> {
    let sample = |(&(model, class), &waiting): (&(ModelId, scheduler::Class), &usize)| {
        Some(QueueSample { model: view.models.name(model)?, class, waiting })
    };
    snapshot.queued.iter().filter_map(sample).collect()
}

/// Models that no replica serves have no estimate: what new requests would wait for is not in sight.
fn wait_samples(view: &View, snapshot: &Snapshot) -> Vec<WaitSample> {
    let sample = |(&(model, class), wait): (&(ModelId, scheduler::Class), &Duration)| {
        Some(WaitSample { model: view.models.name(model)?, class, seconds: wait.as_secs_f64() })
    };
    snapshot.waits.iter().filter_map(sample).collect()
}
