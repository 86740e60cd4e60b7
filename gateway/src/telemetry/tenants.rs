//! The series of each tenant, kept at hand like those of a model.
//!
//! A tenant is a name in the configuration or of a key, so there are as many as operators make. The first hundred have series of
//! their own; the others share one. A histogram of TTFT is some twenty series a tenant, and Prometheus keeps them all.

use std::sync::{Arc, Mutex, PoisonError};

use dashmap::DashMap;
use prometheus::{GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use scheduler::Class;

use super::{
    OTHER,
    metrics::{counters, gauges, histograms, int_gauges},
    names,
};

/// Tenants with series of their own.
pub(super) const TENANTS_MAX: usize = 100;

/// The families, and the series of all tenants seen so far.
pub(super) struct Tenants {
    requests: IntCounterVec,
    tokens: IntCounterVec,
    first_token: HistogramVec,
    in_flight: IntGaugeVec,
    queued: GaugeVec,
    series: DashMap<Arc<str>, Arc<TenantSeries>>,
    /// Held while a tenant gets its series.
    new: Mutex<()>,
}

/// The series of one tenant.
pub(super) struct TenantSeries {
    label: Arc<str>,
    /// Whole answers, by class in its order.
    ok: [IntCounter; Class::ALL.len()],
    pub(super) prompt: IntCounter,
    pub(super) completion: IntCounter,
    pub(super) first_token: Histogram,
    pub(super) in_flight: IntGauge,
}

impl Tenants {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            requests: counters(registry, &names::TENANT_REQUESTS),
            tokens: counters(registry, &names::TENANT_TOKENS),
            first_token: histograms(registry, &names::TENANT_TIME_TO_FIRST_TOKEN),
            in_flight: int_gauges(registry, &names::TENANT_REQUESTS_IN_FLIGHT),
            queued: gauges(registry, &names::TENANT_QUEUE_DEPTH),
            series: DashMap::new(),
            new: Mutex::new(()),
        }
    }

    /// The series of a tenant, or those that it shares.
    pub(super) fn of(&self, tenant: &Arc<str>) -> Arc<TenantSeries> {
        if let Some(series) = self.series.get(tenant) {
            return Arc::clone(&series);
        }
        let _new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
        let has_own = self.series.contains_key(tenant) || self.series.len() < TENANTS_MAX;
        let label = if has_own { Arc::clone(tenant) } else { Arc::from(OTHER) };
        let series = self.series.entry(Arc::clone(&label)).or_insert_with(|| Arc::new(self.make(label)));
        Arc::clone(&series)
    }

    /// A request of a tenant ended.
    pub(super) fn ended(&self, series: &TenantSeries, class: Class, outcome: &'static str) {
        match series.ok.get(class as usize).filter(|_| outcome == names::OUTCOME_OK) {
            Some(counter) => counter.inc(),
            None => self.requests.with_label_values(&[&*series.label, class.name(), outcome]).inc(),
        }
    }

    /// Shows how many requests wait, by tenant; who is not in it has none.
    pub(super) fn refresh(&self, queued: &[(Arc<str>, usize)]) {
        self.queued.reset();
        for entry in &self.series {
            self.queued.with_label_values(&[&**entry.key()]);
        }
        for (tenant, waiting) in queued {
            self.queued.with_label_values(&[&*self.of(tenant).label]).add(*waiting as f64);
        }
    }

    fn make(&self, label: Arc<str>) -> TenantSeries {
        let name = &*label;
        TenantSeries {
            ok: Class::ALL.map(|class| self.requests.with_label_values(&[name, class.name(), names::OUTCOME_OK])),
            prompt: self.tokens.with_label_values(&[name, "prompt"]),
            completion: self.tokens.with_label_values(&[name, "completion"]),
            first_token: self.first_token.with_label_values(&[name]),
            in_flight: self.in_flight.with_label_values(&[name]),
            label,
        }
    }
}
