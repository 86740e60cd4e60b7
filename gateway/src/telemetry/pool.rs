//! Gauges of the pool: read from their source at each scrape, so that they can't drift from what the scheduler knows.
//!
//! Rejected: gauges moved by events. A missed event would stay wrong until the restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use prometheus::{Gauge, GaugeVec, IntCounterVec, Registry};
use scheduler::{Class, ReplicaState};

use super::{
    OTHER,
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
    /// Estimated waits of new requests by model and class.
    pub waits: Vec<WaitSample>,
    /// Decisions of the scheduler since its start, by kind.
    pub decisions: Vec<(&'static str, u64)>,
    /// Running attempts that are not their request's first.
    pub retries_in_flight: u32,
    /// Age in seconds of the oldest request that waits for a slot; 0 if none does.
    pub oldest_queued_s: f64,
    /// Age in seconds of the oldest request that runs on a replica; 0 if none does.
    pub oldest_running_s: f64,
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
    /// Prompt tokens per second, once measured.
    pub prefill_rate: Option<f64>,
    /// Answer tokens per second, once measured.
    pub decode_rate: Option<f64>,
    /// Seconds until its deployment ends, if that is known; negative once it is past.
    pub expiry_s: Option<f64>,
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
    queue: GaugeVec,
    waits: GaugeVec,
    decisions: IntCounterVec,
    age: GaugeVec,
    retries: Gauge,
}

impl PoolGauges {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            replicas: gauges(registry, &names::REPLICAS),
            slots: gauges(registry, &names::REPLICA_SLOTS),
            prefill: gauges(registry, &names::REPLICA_PREFILL),
            decode: gauges(registry, &names::REPLICA_DECODE),
            expiry: gauges(registry, &names::REPLICA_EXPIRY),
            queue: gauges(registry, &names::QUEUE_DEPTH),
            waits: gauges(registry, &names::ESTIMATED_WAIT),
            decisions: counters(registry, &names::DECISIONS),
            age: gauges(registry, &names::REQUESTS_IN_FLIGHT_AGE),
            retries: gauge(registry, &names::RETRIES_IN_FLIGHT),
        }
    }

    /// Takes everything from the sample; what it no longer has, disappears. `models` are shown also when idle.
    pub(super) fn refresh(&self, sample: &PoolSample, models: &[Arc<str>], replicas_max: usize) {
        let families =
            [&self.replicas, &self.slots, &self.prefill, &self.decode, &self.expiry, &self.queue, &self.waits];
        for family in families {
            family.reset();
        }
        for replica in sample.replicas.iter().take(replicas_max) {
            self.show(replica);
        }
        self.count_states(sample);
        self.count_queued(sample, models);
        for wait in &sample.waits {
            self.waits.with_label_values(&[&*wait.model, wait.class.name()]).set(wait.seconds);
        }
        for (decision, count) in &sample.decisions {
            let counter = self.decisions.with_label_values(&[decision]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
        self.age.with_label_values(&["queued"]).set(sample.oldest_queued_s);
        self.age.with_label_values(&["running"]).set(sample.oldest_running_s);
        self.retries.set(f64::from(sample.retries_in_flight));
    }

    fn show(&self, replica: &ReplicaSample) {
        let label = &*replica.label;
        let takes_work = TAKE_WORK.iter().any(|state| state.name() == replica.state);
        let free = if takes_work { replica.slots.saturating_sub(replica.busy) } else { 0 };
        self.slots.with_label_values(&[label, "busy"]).set(f64::from(replica.busy));
        self.slots.with_label_values(&[label, "free"]).set(f64::from(free));
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

/// States in which the scheduler gives a replica new work.
const TAKE_WORK: [ReplicaState; 3] = [ReplicaState::Ready, ReplicaState::Suspect, ReplicaState::Probation];
