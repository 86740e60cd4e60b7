//! Gauges of the pool: read from their source at each scrape, so that they can't drift from what the scheduler knows.
//!
//! Rejected: gauges moved by events. A missed event would stay wrong until the restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use prometheus::{Gauge, GaugeVec, IntCounterVec, Registry};
use scheduler::{Class, Limit, ReplicaState};

use super::{
    OTHER,
    batches::{BatchGauges, BatchSample},
    metrics::{counters, gauge, gauges},
    names,
};

/// The pool at one moment.
#[derive(Clone, Debug, Default)]
pub struct PoolSample {
    /// All replicas.
    pub replicas: Vec<ReplicaSample>,
    /// Waiting requests by model and class; what is missing is 0.
    pub queued: Vec<QueueSample>,
    /// Waiting requests by tenant; who is missing has none.
    pub queued_by_tenant: Vec<(Arc<str>, usize)>,
    /// Estimated waits of new requests by model and class.
    pub waits: Vec<WaitSample>,
    /// Decisions of the scheduler since its start, by kind.
    pub decisions: Vec<(&'static str, u64)>,
    /// Calls in which a database did not do its part, by database.
    pub store_failures: Vec<(&'static str, u64)>,
    /// Running attempts that are not their request's first.
    pub retries_in_flight: u32,
    /// Bytes of answers that can be joined.
    pub kept_answer_bytes: u64,
    /// Age in seconds of the oldest request that waits for a slot; 0 if none does.
    pub oldest_queued_s: f64,
    /// Age in seconds of the oldest request that runs on a replica; 0 if none does.
    pub oldest_running_s: f64,
    /// Batches that have not ended.
    pub batches: BatchSample,
    /// Phones that the chain assigns to our jobs, by where they stand; empty: the chain is not looked at.
    pub chain: BTreeMap<&'static str, usize>,
    /// Whether the last look at the chain saw all there is; `None`: nothing is looked up, or was yet.
    pub chain_readable: Option<bool>,
    /// Relays, and whether they are held to be down.
    pub relays: Vec<(String, bool)>,
    /// Deployments, the one that ends next first.
    pub deployments: Vec<DeploymentSample>,
    /// How many phones there should be.
    pub advice: Vec<AdviceSample>,
}

/// Replicas that end together.
#[derive(Clone, Debug)]
pub struct DeploymentSample {
    /// As in the admin API.
    pub name: String,
    /// Of all its replicas.
    pub slots: u32,
    /// Seconds until it ends, if that is known; negative once it is past.
    pub left_s: Option<f64>,
}

/// Capacity advice on one model.
#[derive(Clone, Debug)]
pub struct AdviceSample {
    /// Label of the model.
    pub model: Arc<str>,
    /// Phones that there should be; `None` while nothing can be said.
    pub wanted: Option<usize>,
    /// The share of requests that met their objective, by class.
    pub attained: Vec<(Class, f64)>,
}

/// One replica.
#[derive(Clone, Debug)]
pub struct ReplicaSample {
    /// As in logs and the admin API.
    pub label: Arc<str>,
    /// Labels of its models; empty while they are unknown.
    pub models: Vec<Arc<str>>,
    /// [`ReplicaState::name`].
    pub state: &'static str,
    /// Slots it may use now.
    pub slots: u32,
    /// Running attempts.
    pub busy: u32,
    /// Slots of attempts that were broken off, which may still work there.
    pub lingering: u32,
    /// Slots that work for others.
    pub foreign: u32,
    /// Prompt tokens per second, once measured.
    pub prefill_rate: Option<f64>,
    /// Answer tokens per second, once measured.
    pub decode_rate: Option<f64>,
    /// Seconds until its deployment ends, if that is known; negative once it is past.
    pub expiry_s: Option<f64>,
    /// How much may be asked of it, by what limits it; empty where nothing does.
    pub limits: Vec<(&'static str, Limit)>,
}

/// Requests of one model and class that wait.
#[derive(Clone, Debug)]
pub struct QueueSample {
    /// Label of the model.
    pub model: Arc<str>,
    /// How urgent.
    pub class: Class,
    /// How many.
    pub waiting: usize,
}

/// How long a new request of one model and class would wait.
#[derive(Clone, Debug)]
pub struct WaitSample {
    /// Label of the model.
    pub model: Arc<str>,
    /// How urgent.
    pub class: Class,
    /// For a slot.
    pub seconds: f64,
}

/// Gauges, and the counters that the scheduler keeps itself.
pub(super) struct PoolGauges {
    replicas: GaugeVec,
    slots: GaugeVec,
    prefill: GaugeVec,
    decode: GaugeVec,
    expiry: GaugeVec,
    limited: GaugeVec,
    relay_down: GaugeVec,
    deployment_end: GaugeVec,
    deployment_slots: GaugeVec,
    queue: GaugeVec,
    waits: GaugeVec,
    wanted: GaugeVec,
    attained: GaugeVec,
    decisions: IntCounterVec,
    store_failures: IntCounterVec,
    age: GaugeVec,
    retries: Gauge,
    kept_answers: Gauge,
    batches: BatchGauges,
    chain: GaugeVec,
    chain_readable: GaugeVec,
}

impl PoolGauges {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            replicas: gauges(registry, &names::REPLICAS),
            slots: gauges(registry, &names::REPLICA_SLOTS),
            prefill: gauges(registry, &names::REPLICA_PREFILL),
            decode: gauges(registry, &names::REPLICA_DECODE),
            expiry: gauges(registry, &names::REPLICA_EXPIRY),
            limited: gauges(registry, &names::REPLICA_LIMITED),
            relay_down: gauges(registry, &names::RELAY_DOWN),
            deployment_end: gauges(registry, &names::DEPLOYMENT_END),
            deployment_slots: gauges(registry, &names::DEPLOYMENT_SLOTS),
            queue: gauges(registry, &names::QUEUE_DEPTH),
            waits: gauges(registry, &names::ESTIMATED_WAIT),
            wanted: gauges(registry, &names::REPLICAS_WANTED),
            attained: gauges(registry, &names::OBJECTIVE_ATTAINED),
            decisions: counters(registry, &names::DECISIONS),
            store_failures: counters(registry, &names::STORE_FAILURES),
            age: gauges(registry, &names::REQUESTS_IN_FLIGHT_AGE),
            retries: gauge(registry, &names::RETRIES_IN_FLIGHT),
            kept_answers: gauge(registry, &names::KEPT_ANSWER_BYTES),
            batches: BatchGauges::new(registry),
            chain: gauges(registry, &names::CHAIN_REPLICAS),
            chain_readable: gauges(registry, &names::CHAIN_READABLE),
        }
    }

    /// Takes everything from the sample; what it no longer has, disappears. `models` are shown also when idle.
    pub(super) fn refresh(&self, sample: &PoolSample, models: &[Arc<str>], replicas_max: usize) {
        let families = [
            &self.replicas,
            &self.slots,
            &self.prefill,
            &self.decode,
            &self.expiry,
            &self.limited,
            &self.relay_down,
            &self.deployment_end,
            &self.deployment_slots,
            &self.queue,
            &self.waits,
            &self.wanted,
            &self.attained,
            &self.chain,
            &self.chain_readable,
        ];
        for family in families {
            family.reset();
        }
        for replica in sample.replicas.iter().take(replicas_max) {
            self.show(replica);
        }
        self.count_states(sample);
        self.show_deployments(&sample.deployments);
        self.count_queued(sample, models);
        for wait in &sample.waits {
            self.waits.with_label_values(&[&*wait.model, wait.class.name()]).set(wait.seconds);
        }
        for advice in &sample.advice {
            if let Some(wanted) = advice.wanted {
                self.wanted.with_label_values(&[&*advice.model]).set(wanted as f64);
            }
            for (class, share) in &advice.attained {
                self.attained.with_label_values(&[&*advice.model, class.name()]).set(*share);
            }
        }
        for (family, counts) in [(&self.decisions, &sample.decisions), (&self.store_failures, &sample.store_failures)] {
            for (name, count) in counts {
                let counter = family.with_label_values(&[name]);
                counter.inc_by(count.saturating_sub(counter.get()));
            }
        }
        self.age.with_label_values(&["queued"]).set(sample.oldest_queued_s);
        self.age.with_label_values(&["running"]).set(sample.oldest_running_s);
        self.retries.set(f64::from(sample.retries_in_flight));
        self.kept_answers.set(sample.kept_answer_bytes as f64);
        self.batches.refresh(&sample.batches);
        for (relay, down) in &sample.relays {
            self.relay_down.with_label_values(&[relay]).set(f64::from(u8::from(*down)));
        }
        if let Some(readable) = sample.chain_readable {
            self.chain_readable.with_label_values::<&str>(&[]).set(f64::from(u8::from(readable)));
        }
        for (state, count) in &sample.chain {
            self.chain.with_label_values(&[state]).set(*count as f64);
        }
    }

    fn show(&self, replica: &ReplicaSample) {
        let label = &*replica.label;
        let takes_work = TAKE_WORK.iter().any(|state| state.name() == replica.state);
        let taken = replica.busy + replica.lingering + replica.foreign;
        let free = if takes_work { replica.slots.saturating_sub(taken) } else { 0 };
        let states =
            [("busy", replica.busy), ("lingering", replica.lingering), ("foreign", replica.foreign), ("free", free)];
        for (state, count) in states {
            self.slots.with_label_values(&[label, state]).set(f64::from(count));
        }
        for (cause, limit) in &replica.limits {
            let level = if *limit == Limit::Paused { 2.0 } else { 1.0 };
            self.limited.with_label_values(&[label, cause]).set(level);
        }
        for (family, value) in [
            (&self.prefill, replica.prefill_rate),
            (&self.decode, replica.decode_rate),
            (&self.expiry, replica.expiry_s),
        ] {
            if let Some(value) = value {
                family.with_label_values(&[label]).set(value);
            }
        }
    }

    /// Those that end first by name, the rest together.
    fn show_deployments(&self, deployments: &[DeploymentSample]) {
        for (at, deployment) in deployments.iter().enumerate() {
            let name = if at < MOST_DEPLOYMENTS { deployment.name.as_str() } else { OTHER };
            self.deployment_slots.with_label_values(&[name]).add(f64::from(deployment.slots));
            let Some(left) = deployment.left_s else { continue };
            let end = self.deployment_end.with_label_values(&[name]);
            // Of those shown together the first counts, and they come in that order.
            if at <= MOST_DEPLOYMENTS {
                end.set(left);
            }
        }
    }

    fn count_states(&self, sample: &PoolSample) {
        let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for replica in &sample.replicas {
            if replica.models.is_empty() {
                *counts.entry((OTHER, replica.state)).or_default() += 1;
            }
            for model in &replica.models {
                *counts.entry((model, replica.state)).or_default() += 1;
            }
        }
        let models: BTreeSet<&str> = counts.keys().map(|(model, _)| *model).collect();
        for model in models {
            for state in ReplicaState::ALL {
                let count = counts.get(&(model, state.name())).copied().unwrap_or(0);
                self.replicas.with_label_values(&[model, state.name()]).set(f64::from(count));
            }
        }
    }

    fn count_queued(&self, sample: &PoolSample, models: &[Arc<str>]) {
        let served = sample.replicas.iter().flat_map(|replica| &replica.models);
        for model in served.chain(models) {
            for class in Class::ALL {
                // A new gauge is 0.
                self.queue.with_label_values(&[&**model, class.name()]);
            }
        }
        for queued in &sample.queued {
            let gauge = self.queue.with_label_values(&[&*queued.model, queued.class.name()]);
            gauge.add(queued.waiting as f64);
        }
    }
}

/// Deployments shown by name. 100: 6,400 phones at 64 a deployment.
const MOST_DEPLOYMENTS: usize = 100;
/// States in which the scheduler gives a replica new work.
const TAKE_WORK: [ReplicaState; 3] = [ReplicaState::Ready, ReplicaState::Suspect, ReplicaState::Probation];
