//! Work on a whole batch: looking at its lines, and writing its files.

use std::{collections::HashMap, sync::Arc, time::Duration};

use scheduler::TenantId;
use store::{BatchKey, BatchState, StoreError};

use super::{Engine, LOOK_EVERY};
use crate::{
    batch::{
        finalize::finalize,
        now,
        validate::{Rules, validate},
        window::{Due, next_job},
    },
    clock,
};

/// After work on a whole batch that failed.
const JOB_AGAIN: Duration = Duration::from_secs(10);
/// Batches that are looked at, or whose files are written, at once. 4: each holds up to some 30 MiB and a thread, and the disk is one.
const MAX_JOBS: usize = 4;

impl Engine {
    /// Looks at new batches and ends those that are sealed.
    pub(super) fn start_jobs(&mut self) {
        if self.gateway.in_flight.is_draining() {
            return;
        }
        let now = clock::now();
        let mut jobs: HashMap<TenantId, usize> = HashMap::new();
        for batch in self.open.values().filter(|batch| batch.job) {
            *jobs.entry(batch.tenant.id).or_default() += 1;
        }
        // Results that are still to be stored need not be waited for: the store takes none for a sealed batch.
        let mut due: Vec<Due> = self
            .open
            .iter()
            .filter(|(_, batch)| !batch.job && !batch.over && batch.job_not_before <= now)
            .filter(|(_, batch)| match (batch.record.state, batch.record.seal) {
                (_, Some(_)) => batch.running.is_empty(),
                (state, None) => state == BatchState::Validating,
            })
            .map(|(key, batch)| Due { batch: *key, tenant: batch.tenant.id, sealed: batch.record.seal.is_some() })
            .collect();
        while self.jobs.len() < MAX_JOBS
            && let Some(next) = next_job(&mut due, &mut jobs)
        {
            self.start_job(next);
        }
    }

    fn start_job(&mut self, key: BatchKey) {
        let Some(batch) = self.open.get_mut(&key) else { return };
        batch.job = true;
        let (record, tenant) = (batch.record.clone(), Arc::clone(&batch.tenant));
        let (batches, gateway, stop) =
            (Arc::clone(&self.batches), Arc::clone(&self.gateway), Arc::clone(&self.stop_jobs));
        let holder = self.batches.holder();
        self.jobs.spawn(async move {
            let done = batches.ask(move |store| {
                if !store.claim_job(holder, key)? {
                    return Ok(());
                }
                let worked = if record.seal.is_some() {
                    let kept = record.output_expires_after.unwrap_or(gateway.config().batches.keep_files);
                    finalize(&gateway.batches, store, holder, &record, now().after(kept), &stop)
                } else {
                    let config = gateway.config();
                    let may_use = |model: &str| {
                        let known = gateway.fleet.resolve_model(model);
                        tenant.may_use(known.as_ref().map_or(model, |model| &model.name))
                    };
                    let rules = Rules {
                        max_lines: config.batches.max_lines,
                        max_line: config.server.max_body.as_usize(),
                        may_use: &may_use,
                    };
                    validate(store, holder, &record, &rules, &stop)
                };
                let released = store.release_job(holder, key);
                match worked {
                    // Cancelled or expired in the meantime, or the lease is lost: the next look sees which.
                    Ok(()) | Err(StoreError::LostClaim) => released,
                    Err(error) => Err(error),
                }
            });
            (key, done.await)
        });
    }

    pub(super) fn job_ended(&mut self, key: BatchKey, done: Result<(), StoreError>) {
        let Some(batch) = self.open.get_mut(&key) else { return };
        batch.job = false;
        batch.job_without_space = done == Err(StoreError::Full);
        // Another process may have it, or it failed: no hurry.
        batch.job_not_before = clock::now() + if done.is_ok() { LOOK_EVERY } else { JOB_AGAIN };
        if let Err(error) = done {
            // What else fails may be this batch's alone: the others go on.
            self.unwritable |= error == StoreError::Full;
            tracing::warn!(%error, batch = %batch.record.id, "batches: work on a batch failed, and will be tried again");
        }
    }
}
