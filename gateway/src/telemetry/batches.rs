//! Gauges of batches, taken at each scrape from what the engine showed last, like those of the pool.

use prometheus::{Gauge, GaugeVec, Registry};

use super::{
    metrics::{gauge, gauges},
    names,
};

/// All batches that have not ended, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchSample {
    /// How many there are, by state; states that are not here keep their last number, so all are.
    pub states: Vec<(&'static str, u32)>,
    /// How many wait, by what for; all reasons.
    pub waiting: Vec<(&'static str, u32)>,
    /// Their lines.
    pub lines: LineSample,
    /// Until the last of those is done that can be estimated, in seconds.
    pub left_s: Option<f64>,
    /// Until the next one expires, in seconds.
    pub expiry_s: Option<f64>,
    /// What the one has to spare that has least: the time until it expires, less what it needs, in seconds. Negative: it
    /// will not make it.
    pub slack_s: Option<f64>,
    /// Bytes of files in the store.
    pub stored_bytes: u64,
}

/// Lines of batches that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineSample {
    /// Not begun, or to be tried again.
    pub waiting: u64,
    /// On their way, in the scheduler's queue or on a replica.
    pub running: u64,
    /// With a result in the output file.
    pub completed: u64,
    /// With a result in the error file.
    pub failed: u64,
}

pub(super) struct BatchGauges {
    batches: GaugeVec,
    waiting: GaugeVec,
    lines: GaugeVec,
    left: GaugeVec,
    expiry: GaugeVec,
    slack: GaugeVec,
    stored: Gauge,
}

impl BatchGauges {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            batches: gauges(registry, &names::BATCHES),
            waiting: gauges(registry, &names::BATCHES_WAITING),
            lines: gauges(registry, &names::BATCH_LINES),
            left: gauges(registry, &names::BATCH_LEFT),
            expiry: gauges(registry, &names::BATCH_EXPIRY),
            slack: gauges(registry, &names::BATCH_SLACK),
            stored: gauge(registry, &names::STORED_FILE_BYTES),
        }
    }

    /// Takes everything from the sample; times that nobody can tell disappear.
    pub(super) fn refresh(&self, sample: &BatchSample) {
        for (family, counts) in [(&self.batches, &sample.states), (&self.waiting, &sample.waiting)] {
            for (name, count) in counts {
                family.with_label_values(&[name]).set(f64::from(*count));
            }
        }
        let LineSample { waiting, running, completed, failed } = sample.lines;
        let lines = [("waiting", waiting), ("running", running), ("completed", completed), ("failed", failed)];
        for (state, count) in lines {
            self.lines.with_label_values(&[state]).set(count as f64);
        }
        let times = [(&self.left, sample.left_s), (&self.expiry, sample.expiry_s), (&self.slack, sample.slack_s)];
        for (family, seconds) in times {
            family.reset();
            if let Some(seconds) = seconds {
                family.with_label_values::<&str>(&[]).set(seconds);
            }
        }
        self.stored.set(sample.stored_bytes as f64);
    }
}
