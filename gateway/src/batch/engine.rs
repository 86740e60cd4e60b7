//! The task that owns all work on batches: what is due, who works on it, and until when.
//!
//! It holds no line's fate in memory alone: a line is claimed in the store before it is begun, its result is stored before it
//! counts, and whatever a process that ends has claimed is another's when its lease runs out. So there is nothing to recover at a
//! start but the list of batches that have not ended.
//!
//! The task itself is here; what it does with lines is in `lines`, with whole batches in `jobs`.
//!
//! Results wait for the one write that is under way and go into the next one together: at 500 results a second a disk that needs 10 ms
//! for a sync stores five at a time.

mod jobs;
mod lines;
mod open;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use scheduler::{ModelId, Timestamp};
use store::{BatchKey, BatchRecord, FinishedLine, ReleasedLine, StoreError};
use tokio::task::JoinSet;

use self::{
    lines::{Released, Unstored, Written},
    open::Open,
};
use super::{
    Batches, NOBODY, WaitsFor,
    line::Ended,
    now,
    pace::{self, Pace, Pool},
};
use crate::{clock, gateway::Gateway, in_flight::Flying, listener::Ids, pressure::Level, shutdown::Stop};

/// Between two looks at everything. 1 s: how late a batch may expire, and how old what is shown may be.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two times at which lines are begun: shorter than the shortest answers, so that no slot stands empty for long, and at 500
/// lines a second ten at once.
const BEGIN_EVERY: Duration = Duration::from_millis(20);
/// Between two rounds of cleaning up.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Between two steps of a round, each of which keeps the store for some 50 ms: two thirds of its time are for others.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);

/// Runs the batches of this process.
pub struct Engine {
    gateway: Arc<Gateway>,
    batches: Arc<Batches>,
    ids: Ids,
    open: BTreeMap<BatchKey, Open>,
    lines: JoinSet<(BatchKey, u32, Ended, Flying)>,
    jobs: JoinSet<(BatchKey, Result<(), StoreError>)>,
    /// Claims on their way back, and those that could not be given back before.
    releases: JoinSet<Released>,
    unreleased: Vec<ReleasedLine>,
    /// Results that are not stored yet; their guards keep a drain waiting.
    results: VecDeque<Unstored>,
    /// Bytes of them.
    result_bytes: usize,
    /// The ones that are being written.
    writing: JoinSet<Written>,
    write_after: Timestamp,
    /// Bytes of lines that are claimed.
    bytes: u64,
    stop_jobs: Arc<AtomicBool>,
    /// The disk was full, or took nothing, when it was last written to.
    unwritable: bool,
    pool: HashMap<ModelId, Pool>,
    swept: Timestamp,
    /// The round that is under way.
    sweeping: JoinSet<Result<(), StoreError>>,
    renewed: Timestamp,
}

/// Whether a write that failed says that others would fail as well: what is worked out meanwhile can't be stored.
const fn is_about_the_disk(error: &StoreError) -> bool {
    matches!(error, StoreError::Full | StoreError::Failed(_) | StoreError::Gone(_))
}

impl Engine {
    /// An engine that has not begun.
    pub fn new(gateway: Arc<Gateway>) -> Self {
        let batches = Arc::clone(&gateway.batches);
        Self {
            gateway,
            batches,
            // Another number than that of the public listener, which takes the nanosecond of its start.
            ids: Ids::new(clock::unix().as_nanos() as u64 ^ (1 << 63)),
            open: BTreeMap::new(),
            lines: JoinSet::new(),
            jobs: JoinSet::new(),
            releases: JoinSet::new(),
            unreleased: Vec::new(),
            results: VecDeque::new(),
            result_bytes: 0,
            writing: JoinSet::new(),
            write_after: Timestamp::ZERO,
            bytes: 0,
            stop_jobs: Arc::default(),
            unwritable: false,
            pool: HashMap::new(),
            swept: Timestamp::ZERO,
            sweeping: JoinSet::new(),
            renewed: clock::now(),
        }
    }

    /// Runs until the process ends. What was claimed and has no result by then goes back.
    pub async fn run(mut self, mut stop: Stop) {
        let (mut look_at, mut begin_at) = (Timestamp::ZERO, Timestamp::ZERO);
        let mut begin = false;
        loop {
            let now = clock::now();
            if now >= look_at {
                self.look().await;
                look_at = clock::now() + LOOK_EVERY;
                begin = true;
            }
            if begin && now >= begin_at {
                self.begin().await;
                begin_at = clock::now() + BEGIN_EVERY;
                begin = false;
            }
            self.write();
            let next = if begin { look_at.min(begin_at) } else { look_at };
            tokio::select! {
                biased;
                () = stop.wait() => break,
                Some(Ok(ended)) = self.lines.join_next() => {
                    self.line_ended(ended);
                    begin = true;
                }
                Some(Ok(written)) = self.writing.join_next() => self.written(written),
                Some(Ok((key, done))) = self.jobs.join_next() => {
                    self.job_ended(key, done);
                    look_at = Timestamp::ZERO;
                }
                Some(Ok(released)) = self.releases.join_next() => {
                    self.released(released);
                    begin = true;
                }
                Some(Ok(swept)) = self.sweeping.join_next() => self.swept(swept),
                () = self.batches.due.notified() => look_at = Timestamp::ZERO,
                () = tokio::time::sleep_until(clock::instant(next)) => {}
            }
        }
        self.end().await;
    }

    /// Takes everything in: batches that came, were cancelled or expired, the pool, the own lease.
    async fn look(&mut self) {
        let now = clock::now();
        if now.since(self.renewed) >= self.gateway.config().batches.lease / 3 {
            self.renew().await;
        }
        if self.batches.holder() == NOBODY {
            return;
        }
        self.release(Vec::new());
        let batches = Arc::clone(&self.batches);
        let open = batches.ask(|store| {
            store.expire_batches(super::now())?;
            store.open_batches()
        });
        match open.await {
            Ok(open) => self.take_in(open),
            Err(error) => {
                self.unwritable |= is_about_the_disk(&error);
                tracing::warn!(%error, "batches: the store can't be asked");
            }
        }
        self.pool = pace::pools(&self.gateway);
        self.sweep();
        self.start_jobs();
        self.show();
    }

    fn take_in(&mut self, open: Vec<BatchRecord>) {
        let keys: Vec<BatchKey> = open.iter().map(|record| record.key).collect();
        for (key, batch) in &mut self.open {
            batch.over = keys.binary_search(key).is_err();
        }
        for record in open {
            match self.open.get_mut(&record.key) {
                Some(batch) => batch.record = record,
                None => {
                    let tenant = self.gateway.auth.recall(&record.tenant, &record.permissions);
                    self.open.insert(record.key, Open::new(record, tenant));
                }
            }
        }
        let now = clock::now();
        for batch in self.open.values_mut() {
            if !batch.has_lines() {
                batch.call_back();
            }
            let counts = batch.record.counts;
            batch.pace.note(now, counts.completed + counts.failed);
        }
        self.give_back(|_, batch| !batch.has_lines());
        self.open.retain(|_, batch| !batch.over || !batch.running.is_empty() || batch.job);
    }

    async fn renew(&mut self) {
        let (holder, lease) = (self.batches.holder(), self.gateway.config().batches.lease);
        if holder == NOBODY {
            return self.register(lease).await;
        }
        match self.batches.ask(move |store| store.renew(holder, now(), lease)).await {
            Ok(()) => {
                self.renewed = clock::now();
                // It took a little. Whether it takes results, only they can tell.
                self.unwritable &= self.has_unstored();
                // Lines of a process that is gone may wait again.
                self.open.values_mut().for_each(|batch| batch.exhausted = false);
            }
            Err(StoreError::LostClaim) => {
                tracing::warn!("batches: this process was not heard of for too long; what it had claimed is given up");
                self.give_up();
                self.register(lease).await;
            }
            Err(error) => {
                self.unwritable |= is_about_the_disk(&error);
                tracing::warn!(%error, "batches: the lease can't be renewed");
            }
        }
    }

    async fn register(&mut self, lease: Duration) {
        let batches = Arc::clone(&self.batches);
        let entered = self.batches.run(move || batches.enter(lease)).await;
        self.renewed = clock::now();
        if let Err(error) = entered {
            self.unwritable |= is_about_the_disk(&error);
            tracing::warn!(%error, "batches: no lease");
        }
    }

    /// What was claimed is another's by now.
    fn give_up(&mut self) {
        self.open.values_mut().for_each(Open::call_back);
        self.drop_claimed(|_, _| true);
        self.results.clear();
        self.result_bytes = 0;
        self.unreleased.clear();
    }

    /// Begins a round of cleaning up, if it is time for one. A round goes on until nothing is left: what tenants have deleted is no
    /// part of their room any more, and must leave the disk about as fast as they can upload.
    fn sweep(&mut self) {
        let is_due = self.swept == Timestamp::ZERO || clock::now().since(self.swept) >= SWEEP_EVERY;
        if !is_due || !self.sweeping.is_empty() {
            return;
        }
        let (batches, gateway) = (Arc::clone(&self.batches), Arc::clone(&self.gateway));
        self.sweeping.spawn(async move {
            loop {
                let (owned, keep) = (Arc::clone(&batches), gateway.config().batches.keep_batches);
                let more = batches.ask(move |store| {
                    owned.abandon(None);
                    store.sweep(now(), keep)
                });
                if !more.await? {
                    break;
                }
                tokio::time::sleep(SWEEP_PAUSE).await;
            }
            batches.note_stored(batches.ask(|store| store.stored(None)).await?.bytes);
            Ok(())
        });
    }

    fn swept(&mut self, swept: Result<(), StoreError>) {
        self.swept = clock::now();
        if let Err(error) = swept {
            tracing::warn!(%error, "batches: cleaning up failed");
        }
    }

    /// Tells how all batches get on, and how urgent they are.
    fn show(&mut self) {
        let (now, unix) = (clock::now(), super::now());
        let is_their_hour = self.gateway.config().batches.is_their_hour(clock::unix());
        let short_of_memory = self.gateway.pressure.level() >= Level::Shrink;
        let mut shown = BTreeMap::new();
        for (key, batch) in &mut self.open {
            let model = batch.record.model.as_deref().and_then(|name| self.gateway.fleet.resolve_model(name));
            let pool = model.and_then(|model| self.pool.get(&model.id)).filter(|pool| pool.slots() > 0);
            let rate = batch.pace.rate(now);
            let left = (batch.has_lines()).then(|| batch.pace.left(now, batch.left(), pool)).flatten();
            if batch.has_lines() {
                let time_left = Duration::from_millis(batch.record.times.expires.0.saturating_sub(unix.0));
                batch.class = pace::class(left, time_left);
            }
            let waits_for = if batch.job_without_space {
                Some(WaitsFor::Disk)
            } else if !batch.has_lines() || !batch.running.is_empty() {
                None
            } else if self.unwritable {
                Some(WaitsFor::Disk)
            } else if !is_their_hour {
                Some(WaitsFor::Hours)
            } else if pool.is_none() {
                Some(WaitsFor::Replica)
            } else {
                short_of_memory.then_some(WaitsFor::Memory)
            };
            if waits_for.is_some() {
                // What it does not get done while it can't get on says nothing about its pace.
                batch.pace = Pace::default();
            }
            let running = u32::try_from(batch.running.len()).unwrap_or(u32::MAX);
            let class = batch.has_lines().then(|| batch.class.max(batch.tenant.max_class));
            let progress = super::Progress { running, waits_for, rate, left, class };
            shown.insert(*key, (batch.record.clone(), progress));
        }
        self.batches.show(shown);
    }

    /// The end of the process: what has a result is stored, all else goes back.
    async fn end(mut self) {
        self.stop_jobs.store(true, Ordering::Relaxed);
        self.sweeping.abort_all();
        while let Some(Ok(written)) = self.writing.join_next().await {
            self.written(written);
        }
        while let Some(Ok(ended)) = self.lines.try_join_next() {
            self.line_ended(ended);
        }
        let holder = self.batches.holder();
        let results: Vec<FinishedLine> = self.results.drain(..).map(|(line, _)| line).collect();
        self.lines.shutdown().await;
        while self.jobs.join_next().await.is_some() || self.releases.join_next().await.is_some() {}
        let ended = self.batches.ask(move |store| {
            let kept = if results.is_empty() { Ok(Vec::new()) } else { store.finish_lines(holder, results, now()) };
            // Also after a failed write: what was not stored is run again.
            store.resign(holder).and(kept)
        });
        if let Err(error) = ended.await {
            tracing::warn!(%error, "batches: what this process had claimed comes back when its lease is over");
        }
    }
}
