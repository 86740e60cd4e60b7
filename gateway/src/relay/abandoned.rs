//! Streams that phones keep writing for nobody, and the task that ends them.
//!
//! Problem: a phone that keeps a stream ([`super::resume`]) writes on when its connection closes. Only a word of ours frees its
//! slot, and whoever was reading has been dropped by then: a future can't do anything more at its own end.
//!
//! Choice: the stream goes into a bounded queue, and one task that runs as long as the process has it deleted. A phone that
//! can't be reached is asked again a moment later, and a last time when the pool says that it is back. What is lost by that
//! is a slot until the answer's own end, no more; `scheduler` counts it as taken until it is seen free.
//!
//! Rejected: a task for each (a request spawns none), and waiting for the deletion in the request (its client has left, and
//! its slot would count as ours all the while).

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use scheduler::{ReplicaId, ReplicaState, Timestamp};
use tokio::{
    sync::{broadcast, mpsc},
    task::JoinSet,
};

use super::resume::Kept;
use crate::{
    clock,
    fleet::{PoolChange, PoolEvent},
    shutdown::Stop,
    upstream::Upstream,
};

/// Streams that wait to be deleted. 1,024: all slots of a large pool, let go at once.
const MOST_WAITING: usize = 1024;
/// Deletions under way at once. 32, as probes: no flood to the relay.
const MOST_AT_ONCE: usize = 32;
/// Streams of phones that could not be reached. Beyond it the oldest is given up.
const MOST_LATER: usize = 256;
/// A deletion may take so long. 5 s: connecting to a phone through the tunnel takes one or two.
const LIMIT: Duration = Duration::from_secs(5);
/// From a failed try to the next one. The last one comes earlier if the phone is back earlier, and later it would find the
/// answer at its end.
const AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];
/// What the end of the process waits for deletions.
const AT_THE_END: Duration = Duration::from_secs(2);

/// The queue of such streams.
pub struct Abandoned {
    queue: mpsc::Sender<Kept>,
    /// For the task.
    waiting: Mutex<Option<mpsc::Receiver<Kept>>>,
}

impl Default for Abandoned {
    fn default() -> Self {
        let (queue, waiting) = mpsc::channel(MOST_WAITING);
        Self { queue, waiting: Mutex::new(Some(waiting)) }
    }
}

/// A stream, and how often its deletion has failed.
struct Orphan {
    kept: Kept,
    failed: usize,
}

/// Those that are tried again, and when.
#[derive(Default)]
struct Later(Vec<(Timestamp, Orphan)>);

impl Abandoned {
    /// Has a stream deleted.
    pub(super) fn take_in(&self, kept: Kept) {
        if self.queue.try_send(kept).is_err() {
            // The phone then writes to the answer's own end.
            tracing::warn!("too many abandoned streams at once: one is left to its phone");
        }
    }

    /// Deletes what is taken in, until `stop`; only the first call does anything. `pool` tells of phones that are back.
    pub async fn run(
        self: Arc<Self>,
        upstream: Arc<Upstream>,
        mut pool: broadcast::Receiver<PoolEvent>,
        mut stop: Stop,
    ) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut waiting) = waiting else { return };
        let (mut running, mut later) = (JoinSet::new(), Later::default());
        loop {
            let may_start = running.len() < MOST_AT_ONCE;
            tokio::select! {
                () = stop.wait() => break,
                Some(kept) = waiting.recv(), if may_start => start(&upstream, Orphan { kept, failed: 0 }, &mut running),
                Some(done) = running.join_next() => later.note(done),
                Ok(event) = pool.recv() => {
                    if is_back(&event.what) {
                        later.hurry(event.replica);
                    }
                }
                () = tokio::time::sleep_until(clock::instant(later.next())), if may_start => {
                    while running.len() < MOST_AT_ONCE && let Some(orphan) = later.due() {
                        start(&upstream, orphan, &mut running);
                    }
                }
            }
        }
        while let Ok(kept) = waiting.try_recv() {
            start(&upstream, Orphan { kept, failed: 0 }, &mut running);
        }
        let all = async { while running.join_next().await.is_some() {} };
        drop(tokio::time::timeout(AT_THE_END, all).await);
    }
}

/// A replica that takes work again.
fn is_back(what: &PoolChange) -> bool {
    matches!(what, PoolChange::State { to: ReplicaState::Ready | ReplicaState::Probation, .. })
}

/// Deletes a stream; gives it back if the phone could not be reached.
fn start(upstream: &Arc<Upstream>, orphan: Orphan, running: &mut JoinSet<Option<Orphan>>) {
    let upstream = Arc::clone(upstream);
    running.spawn(async move {
        let kept = &orphan.kept;
        let answer = upstream.delete(&kept.endpoint, &kept.path(), kept.bearer(), LIMIT).await;
        // What the engine does not know is over. A server's error is the tunnel's word.
        let done = answer.is_ok_and(|answer| answer.status < 500);
        (!done).then_some(Orphan { failed: orphan.failed + 1, ..orphan })
    });
}

impl Later {
    /// A deletion has ended.
    fn note(&mut self, done: Result<Option<Orphan>, tokio::task::JoinError>) {
        let orphan = match done {
            Ok(None) => return,
            Ok(Some(orphan)) => orphan,
            Err(error) => return tracing::error!(%error, "the deletion of a stream panicked"),
        };
        match AGAIN_AFTER.get(orphan.failed - 1) {
            Some(after) => {
                if self.0.len() == MOST_LATER {
                    self.0.remove(0);
                }
                self.0.push((clock::now() + *after, orphan));
            }
            None => tracing::info!(replica = orphan.kept.replica.0, "an abandoned stream is left to its phone"),
        }
    }

    /// Its phone is back.
    fn hurry(&mut self, replica: ReplicaId) {
        let now = clock::now();
        self.0.iter_mut().filter(|(_, orphan)| orphan.kept.replica == replica).for_each(|(at, _)| *at = now);
    }

    fn next(&self) -> Timestamp {
        self.0.iter().map(|(at, _)| *at).min().unwrap_or(Timestamp::NEVER)
    }

    fn due(&mut self) -> Option<Orphan> {
        let now = clock::now();
        let due = self.0.iter().position(|(at, _)| *at <= now)?;
        Some(self.0.remove(due).1)
    }
}
