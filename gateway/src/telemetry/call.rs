//! The guard that accounts for one call about files or batches, which no replica answers: made before anything can fail, and
//! counted and logged once, when it is dropped.

use std::{sync::Arc, thread};

use scheduler::Timestamp;

use super::{Telemetry, names};
use crate::clock;

/// One call, from its head to its end.
pub struct CallRecord {
    telemetry: Arc<Telemetry>,
    request_id: Arc<str>,
    call: &'static str,
    tenant: Option<Arc<str>>,
    started: Timestamp,
    bytes: u64,
    status: u16,
    outcome: &'static str,
}

impl CallRecord {
    /// A call whose head has just arrived; it is in flight until the record is dropped.
    pub fn new(telemetry: Arc<Telemetry>, request_id: Arc<str>, call: &'static str) -> Self {
        telemetry.in_flight.inc();
        let started = clock::now();
        Self {
            telemetry,
            request_id,
            call,
            tenant: None,
            started,
            bytes: 0,
            status: 0,
            outcome: names::OUTCOME_CLIENT_GONE,
        }
    }

    /// Who asks.
    pub fn identify(&mut self, tenant: Arc<str>) {
        self.tenant = Some(tenant);
    }

    /// Bytes of a file that came, or went out.
    pub fn moved(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// How it ended; the last call counts. Without one the client has left before its end.
    pub fn ended(&mut self, status: u16, outcome: &'static str) {
        self.status = status;
        self.outcome = outcome;
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        self.telemetry.in_flight.dec();
        let outcome = if thread::panicking() { names::OUTCOME_PANIC } else { self.outcome };
        self.telemetry.call(self.call, outcome);
        if self.telemetry.access_log() {
            let total = clock::now().since(self.started);
            tracing::info!(
                target: "access",
                request_id = &*self.request_id,
                tenant = self.tenant.as_deref().unwrap_or_default(),
                call = self.call,
                status = self.status,
                outcome,
                bytes = self.bytes,
                total_ms = u64::try_from(total.as_millis()).unwrap_or(u64::MAX),
            );
        }
    }
}
