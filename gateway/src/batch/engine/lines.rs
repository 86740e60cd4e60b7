//! Lines: claimed, begun, given back, and their results stored.

use std::{collections::HashMap, sync::Arc, time::Duration};

use scheduler::{Class, ModelId};
use store::{BatchKey, ClaimedLine, FinishedLine, Holder, Kept, ReleasedLine, StoreError};

use super::{
    Engine, is_about_the_disk,
    open::{Open, Running},
};
use crate::{
    batch::{
        ENDPOINTS,
        line::{self, Ended, Work},
        now,
        window::{Ready, Room, share},
    },
    clock,
    fleet::ModelRef,
    in_flight::Flying,
    pressure::Level,
    telemetry::names::{LINE_COMPLETED, LINE_FAILED, LINE_LATE, LINE_RETRIED, LINE_RETURNED},
};

/// Fewest lines that are claimed at once, and how many more than are begun at once: a claim is a write of its own.
const FEWEST_CLAIMED: usize = 16;
const CLAIM_AHEAD: usize = 2;
/// Lines that had no luck wait for this long: there was no room, or no phone.
const PAUSE: Duration = Duration::from_secs(2);
/// After a write that failed.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
/// Results that wait to be stored before no further lines are begun.
const MAX_UNSTORED: usize = 2_000;
/// Results that are stored at once, and their bytes: they are there twice while they are written.
const GROUP: usize = 256;
const GROUP_BYTES: usize = 4 << 20;
/// The share of `limits.max_buffered_bytes` that claimed lines may take, and results that wait to be stored as much again.
const SHARE_OF_BUFFER: u64 = 4;

/// A result that is not stored yet.
pub(super) type Unstored = (FinishedLine, Flying);
/// Claims that were given back as this holder's, and what the store said to it.
pub(super) type Released = (Holder, Vec<ReleasedLine>, Result<(), StoreError>);
/// Results, and what the store said to them.
pub(super) type Written = (Vec<Unstored>, Result<Vec<Kept>, StoreError>);

/// Bytes of claimed lines.
fn bytes_of<'a>(lines: impl IntoIterator<Item = &'a ClaimedLine>) -> u64 {
    lines.into_iter().map(|line| line.text.len() as u64).sum()
}

impl Engine {
    /// Gives back what is claimed of these batches: it will not be begun.
    pub(super) fn give_back(&mut self, of: impl FnMut(BatchKey, &Open) -> bool) {
        let released = self.drop_claimed(of);
        self.release(released);
    }

    /// Forgets what is claimed of these batches.
    pub(super) fn drop_claimed(&mut self, mut of: impl FnMut(BatchKey, &Open) -> bool) -> Vec<ReleasedLine> {
        let mut dropped = Vec::new();
        for (key, batch) in &mut self.open {
            if of(*key, batch) {
                self.bytes -= bytes_of(&batch.claimed);
                let released = |line: ClaimedLine| ReleasedLine { batch: *key, number: line.number, tried: false };
                dropped.extend(batch.claimed.drain(..).map(released));
            }
        }
        dropped
    }

    /// Gives these claims back, and those that could not be given back before.
    pub(super) fn release(&mut self, mut lines: Vec<ReleasedLine>) {
        lines.append(&mut self.unreleased);
        if lines.is_empty() {
            return;
        }
        let (batches, holder) = (Arc::clone(&self.batches), self.batches.holder());
        self.releases.spawn(async move {
            let asked = lines.clone();
            let released = batches.ask(move |store| store.release_lines(holder, asked)).await;
            (holder, lines, released)
        });
    }

    pub(super) fn released(&mut self, (holder, lines, released): Released) {
        match released {
            Ok(()) => {
                for line in lines {
                    if let Some(batch) = self.open.get_mut(&line.batch) {
                        batch.exhausted = false;
                    }
                }
            }
            Err(error) => {
                self.unwritable |= is_about_the_disk(&error);
                tracing::warn!(%error, lines = lines.len(), "batches: lines can't be given back, and will be tried again");
                // As long as the lease is renewed nobody else takes them.
                if holder == self.batches.holder() {
                    self.unreleased.extend(lines);
                }
            }
        }
    }

    /// Begins as many lines as there is a use for.
    pub(super) async fn begin(&mut self) {
        let config = self.gateway.config();
        let (is_their_hour, max_running) =
            (config.batches.is_their_hour(clock::unix()), config.batches.max_running as usize);
        let max_bytes = config.limits.max_buffered_bytes.as_u64() / SHARE_OF_BUFFER;
        drop(config);
        let too_much = self.results.len() >= MAX_UNSTORED || self.result_bytes as u64 >= max_bytes;
        if self.unwritable
            || too_much
            || !is_their_hour
            || self.gateway.in_flight.is_draining()
            || self.gateway.pressure.level() >= Level::Shrink
        {
            return self.give_back(|_, _| true);
        }
        let (ready, rooms, models) = self.ready();
        self.give_back_stranded(&rooms, &models);
        if ready.is_empty() {
            return;
        }
        let running: usize = self.open.values().map(|batch| batch.running.len()).sum();
        let shares =
            share(&ready, &rooms, &self.gateway.dispatcher.waiting_by_tenant(), max_running.saturating_sub(running));
        for (key, count) in shares {
            self.claim(key, count, max_bytes).await;
            let Some(model) = models.get(&key) else { continue };
            for _ in 0..count {
                if !self.begin_one(key, model) {
                    break;
                }
            }
        }
    }

    /// Claimed lines of batches whose model nobody serves go back: others need the memory that they take.
    fn give_back_stranded(&mut self, rooms: &HashMap<ModelId, Room>, models: &HashMap<BatchKey, ModelRef>) {
        let is_served =
            |key: &BatchKey| models.get(key).and_then(|model| rooms.get(&model.id)).is_some_and(|room| room.slots > 0);
        self.give_back(|key, batch| !batch.claimed.is_empty() && !is_served(&key));
    }

    /// The batches of which lines could be begun, and the models that they are for.
    fn ready(&mut self) -> (Vec<Ready>, HashMap<ModelId, Room>, HashMap<BatchKey, ModelRef>) {
        let now = clock::now();
        let (mut ready, mut rooms, mut models) = (Vec::new(), HashMap::new(), HashMap::new());
        for (key, batch) in &mut self.open {
            let idle = batch.exhausted && batch.claimed.is_empty();
            if !batch.has_lines() || idle || batch.not_before > now || batch.is_called_back() {
                continue;
            }
            let Some(model) = batch.record.model.as_deref().and_then(|name| self.gateway.fleet.resolve_model(name))
            else {
                continue;
            };
            let slots = self.pool.get(&model.id).map_or(0, |pool| pool.slots());
            rooms.insert(model.id, Room { slots });
            let (tenant, running) = (batch.tenant.id, batch.running.len());
            let urgent = batch.class != Class::Batch;
            ready.push(Ready { batch: *key, tenant, model: model.id, urgent, running });
            models.insert(*key, model);
        }
        (ready, rooms, models)
    }

    /// Sees to it that `count` lines of a batch are there to be begun, if it has as many and memory allows.
    async fn claim(&mut self, key: BatchKey, count: usize, max_bytes: u64) {
        let Some(batch) = self.open.get_mut(&key) else { return };
        if batch.exhausted || batch.claimed.len() >= count {
            return;
        }
        let room = max_bytes.saturating_sub(self.bytes);
        if room == 0 && self.bytes > 0 {
            return;
        }
        let limit = (CLAIM_AHEAD * count - batch.claimed.len()).max(FEWEST_CLAIMED);
        let (holder, room) = (self.batches.holder(), usize::try_from(room).unwrap_or(usize::MAX));
        match self.batches.ask(move |store| store.claim_lines(holder, key, limit, room)).await {
            Ok(lines) => {
                // Fewer may also have come because of their size: asked again, there will be none.
                batch.exhausted = lines.is_empty();
                self.bytes += bytes_of(&lines);
                batch.claimed.extend(lines);
            }
            Err(error) => {
                self.unwritable |= is_about_the_disk(&error);
                batch.not_before = clock::now() + PAUSE;
                tracing::warn!(%error, "batches: no lines could be claimed");
            }
        }
    }

    /// Begins one line of a batch; false: none is claimed.
    fn begin_one(&mut self, key: BatchKey, model: &ModelRef) -> bool {
        let Some(batch) = self.open.get_mut(&key) else { return false };
        let Some(route) = ENDPOINTS.into_iter().find(|route| route.path() == batch.record.endpoint) else {
            return false;
        };
        let Some(line) = batch.claimed.pop_front() else { return false };
        let exchange = line::exchange(&self.gateway, route, batch.class, self.ids.request_id());
        let number = line.number;
        let (bytes, holder) = (line.text.len() as u64, self.batches.holder());
        let running = Running { bytes, holder, cancel: exchange.cancel_signal(), called_back: false };
        batch.running.insert(number, running);
        tracing::trace!(batch = %batch.record.id, number, model = %model.name, "line begun");
        let max_tries = self.gateway.config().batches.max_tries;
        let work = Work { batch: key, route, tenant: Arc::clone(&batch.tenant), line, max_tries };
        let (gateway, flying) = (Arc::clone(&self.gateway), self.gateway.in_flight.enter());
        self.lines.spawn(async move {
            let ended = line::run(gateway, work, exchange).await;
            (key, number, ended, flying)
        });
        true
    }

    pub(super) fn line_ended(&mut self, (key, number, ended, flying): (BatchKey, u32, Ended, Flying)) {
        let Some(batch) = self.open.get_mut(&key) else { return };
        let Some(line) = batch.running.remove(&number) else { return };
        self.bytes -= line.bytes;
        if line.holder != self.batches.holder() {
            // It is another's by now, perhaps this process's own under its new lease: nothing that is said here is about that.
            return self.gateway.telemetry.batch_line(LINE_LATE);
        }
        let draining = self.gateway.in_flight.is_draining();
        let tried = match ended {
            Ended::Finished(result) => {
                // Also that of a line that was called back: if it is in time, it counts.
                self.result_bytes += result.record.len();
                self.results.push_back((result, flying));
                return;
            }
            Ended::Tried => !line.called_back && !draining,
            Ended::Untried => {
                if !line.called_back {
                    batch.not_before = clock::now() + PAUSE;
                }
                false
            }
        };
        self.gateway.telemetry.batch_line(if tried { LINE_RETRIED } else { LINE_RETURNED });
        self.release(vec![ReleasedLine { batch: key, number, tried }]);
    }

    /// Whether any results are still to be stored.
    pub(super) fn has_unstored(&self) -> bool {
        !self.results.is_empty() || !self.writing.is_empty()
    }

    /// Stores results, if none are being stored now.
    pub(super) fn write(&mut self) {
        if !self.writing.is_empty() || self.results.is_empty() || self.write_after > clock::now() {
            return;
        }
        let (mut group, mut bytes) = (Vec::new(), 0);
        while group.len() < GROUP && bytes < GROUP_BYTES {
            let Some(result) = self.results.pop_front() else { break };
            bytes += result.0.record.len();
            group.push(result);
        }
        self.result_bytes -= bytes;
        let (batches, holder) = (Arc::clone(&self.batches), self.batches.holder());
        self.writing.spawn(async move {
            let lines: Vec<FinishedLine> = group.iter().map(|(line, _)| line.clone()).collect();
            let kept = batches.ask(move |store| store.finish_lines(holder, lines, now())).await;
            (group, kept)
        });
    }

    pub(super) fn written(&mut self, (group, kept): Written) {
        match kept {
            Ok(kept) => {
                self.unwritable = false;
                for ((line, _), kept) in group.iter().zip(kept) {
                    let outcome = match kept {
                        Kept::TooLate => LINE_LATE,
                        Kept::Stored if line.failed => LINE_FAILED,
                        Kept::Stored => LINE_COMPLETED,
                    };
                    self.gateway.telemetry.batch_line(outcome);
                    if self.open.get(&line.batch).is_some_and(Open::is_empty) {
                        // That may have been its last result: its files are due.
                        self.batches.wake();
                    }
                }
            }
            Err(StoreError::LostClaim) => group.iter().for_each(|_| self.gateway.telemetry.batch_line(LINE_LATE)),
            Err(error) => {
                self.unwritable |= is_about_the_disk(&error);
                self.write_after = clock::now() + WRITE_AGAIN;
                tracing::warn!(%error, results = group.len(), "batches: results can't be stored, and will be tried again");
                for result in group.into_iter().rev() {
                    self.result_bytes += result.0.record.len();
                    self.results.push_front(result);
                }
            }
        }
    }
}
