//! Batches: a tenant's file of requests, run on the pool at leisure, with a file of results at the end.
//!
//! Problem: work that may wait until morning is sent as thousands of requests at once, or by a script that dies at night. Choice:
//! the OpenAI Files and Batch API, and an engine that sends each line through the same stages as any client's request,
//! as the least urgent class, and stores its result before it counts. `gateway/docs/decisions/0012-batches.md` has what was
//! rejected.
//!
//! | file | holds |
//! |---|---|
//! | `api` | what clients see: files and batches, as calls and objects |
//! | `engine` | the task that owns all work on batches: what is due, who works on it, until when |
//! | `validate` | reading the lines of a new batch |
//! | `window` | how many lines of which batch may be on their way |
//! | `line` | one line on its way: a request without a client |
//! | `entry` | a line of an input, output or error file |
//! | `pace` | how fast a batch gets on, and how urgent that makes it |
//! | `finalize` | writing a batch's files |
//! | `sample` | what the gauges show |

pub mod api;

mod engine;
mod entry;
mod finalize;
mod line;
mod pace;
mod sample;
mod validate;
mod window;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use openai_wire::Route;
use scheduler::Class;
use store::{BatchKey, BatchRecord, BatchStore, FileKey, Holder, StoreError, UnixMillis};
use tokio::sync::Notify;

pub use self::{api::BatchError, engine::Engine};
use crate::{auth::key::random_name, clock};

/// What batches can be for.
pub const ENDPOINTS: [Route; 5] =
    [Route::ChatCompletions, Route::Completions, Route::Embeddings, Route::Responses, Route::SystemOne];

/// Letters and digits of an id: more than anybody can guess.
const ID_LETTERS: usize = 24;

/// A number that the store gives to none: this process has no lease yet.
const NOBODY: Holder = Holder(0);

/// Files and batches of this process.
pub struct Batches {
    path: PathBuf,
    store: ArcSwap<BatchStore>,
    holder: ArcSwap<Holder>,
    /// Something is new: a batch, or the end of one.
    due: Notify,
    open: Mutex<BTreeMap<BatchKey, (BatchRecord, Progress)>>,
    /// Failures of stores before the present one, and to have one.
    failures: AtomicU64,
    /// Bytes of files, as of the last time they were added up.
    stored: AtomicU64,
    /// Unfinished files that nobody wants, and that the store could not forget yet.
    abandoned: Mutex<Vec<FileKey>>,
}

/// How a batch that is not terminal gets on, as far as this process knows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Lines on their way.
    pub running: u32,
    /// Why no line is on its way, though some could be.
    pub waits_for: Option<WaitsFor>,
    /// Lines a second, over the last minutes; `None` until some have ended.
    pub rate: Option<f64>,
    /// Until all lines have results, at that rate, or at the pool's measured speeds; `None` if nobody can say.
    pub left: Option<Duration>,
    /// How urgent its lines are now.
    pub class: Option<Class>,
}

/// What a batch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// No replica serves its model now.
    Replica,
    /// The hours in which batches run.
    Hours,
    /// Memory.
    Memory,
    /// Space on the disk.
    Disk,
}

impl WaitsFor {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Replica, Self::Hours, Self::Memory, Self::Disk];

    /// In words of the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Hours => "hours",
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

impl Batches {
    /// Those of the store at `path`, with a lease of that length on what is claimed in it. A store that can't be had now (its
    /// disk is full) is asked for again by the engine: it must not keep the gateway from its other work. Blocks.
    ///
    /// # Errors
    /// The file is not one of ours, is damaged, or is in a place where there can be none.
    pub fn open(path: &Path, lease: Duration) -> Result<Self, StoreError> {
        let batches = Self {
            path: path.to_path_buf(),
            store: ArcSwap::from_pointee(BatchStore::closed()),
            holder: ArcSwap::from_pointee(NOBODY),
            due: Notify::new(),
            open: Mutex::default(),
            failures: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            abandoned: Mutex::default(),
        };
        match batches.enter(lease) {
            Ok(()) => {}
            Err(error @ (StoreError::Full | StoreError::Busy | StoreError::Failed(_))) => {
                tracing::error!(%error, "batches: the store can't be had; files and batches wait for it");
            }
            Err(error) => return Err(error),
        }
        Ok(batches)
    }

    /// Opens the store, unless it is open, and registers there. Blocks.
    fn enter(&self, lease: Duration) -> Result<(), StoreError> {
        let holder = match self.store.load().register(now(), lease) {
            Err(StoreError::Closed) => {
                let opened = BatchStore::open(&self.path).inspect_err(|_| {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                })?;
                self.failures.fetch_add(self.store.swap(Arc::new(opened)).failures(), Ordering::Relaxed);
                self.store.load().register(now(), lease)
            }
            registered => registered,
        }?;
        self.holder.store(Arc::new(holder));
        self.note_stored(self.store.load().stored(None)?.bytes);
        Ok(())
    }

    /// Asks the store, off the threads that serve.
    ///
    /// # Errors
    /// Those of the question.
    pub async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        question: impl FnOnce(&BatchStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.store.load_full();
        self.run(move || question(&store)).await
    }

    /// Runs what blocks, off the threads that serve.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        // An error means that the work panicked, or that the process ends.
        tokio::task::spawn_blocking(work).await.unwrap_or(Err(StoreError::Closed))
    }

    /// Forgets an unfinished file, and those that could not be forgotten before: on a full disk that fails. Blocks.
    fn abandon(&self, key: Option<FileKey>) {
        let mut keys = std::mem::take(&mut *self.abandoned.lock().unwrap_or_else(PoisonError::into_inner));
        keys.extend(key);
        keys.retain(|key| {
            let forgotten = self.store.load().abandon_file(*key);
            if let Err(error) = &forgotten {
                tracing::warn!(%error, "batches: an unfinished file can't be forgotten yet");
            }
            forgotten.is_err()
        });
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
    }

    /// In whose name this process works.
    pub fn holder(&self) -> Holder {
        **self.holder.load()
    }

    /// Whether the store is there and did its part in the last call.
    pub fn is_well(&self) -> bool {
        self.store.load().is_well()
    }

    /// Calls in which the store did not do its part, and attempts to have one, since this process began.
    pub fn store_failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed) + self.store.load().failures()
    }

    /// Something is new for the engine.
    pub fn wake(&self) {
        self.due.notify_one();
    }

    /// How a batch gets on.
    pub fn progress(&self, batch: BatchKey) -> Progress {
        self.shown().get(&batch).map(|(_, progress)| *progress).unwrap_or_default()
    }

    /// All batches that have not ended, as of the engine's last look.
    pub fn list(&self) -> Vec<(BatchRecord, Progress)> {
        self.shown().values().cloned().collect()
    }

    /// The newest of these, at most `limit`, the newest first.
    pub fn newest(&self, limit: usize) -> Vec<(BatchRecord, Progress)> {
        self.shown().values().rev().take(limit).cloned().collect()
    }

    fn show(&self, open: BTreeMap<BatchKey, (BatchRecord, Progress)>) {
        *self.shown() = open;
    }

    fn shown(&self) -> MutexGuard<'_, BTreeMap<BatchKey, (BatchRecord, Progress)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An id for a new file.
///
/// # Errors
/// The system gave no randomness.
pub fn file_id() -> Result<String, StoreError> {
    id("file-")
}

/// An id for a new batch.
///
/// # Errors
/// The system gave no randomness.
pub fn batch_id() -> Result<String, StoreError> {
    id("batch_")
}

fn id(prefix: &str) -> Result<String, StoreError> {
    random_name(prefix, ID_LETTERS).map_err(|error| StoreError::Failed(error.to_string()))
}

/// The time of day, as the store has it.
pub fn now() -> UnixMillis {
    UnixMillis(clock::unix_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    #[test]
    fn a_store_that_can_not_be_had_yet_keeps_no_gateway_from_starting() {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().join("batches.db");
        // A folder in its place is a mistake, which no time heals.
        let nowhere = Batches::open(directory.path(), LEASE).map(|batches| batches.holder());
        assert!(matches!(nowhere, Err(StoreError::Unopened { .. })), "{nowhere:?}");
        let batches = Batches::open(&path, LEASE).expect("ours");
        assert_ne!(batches.holder(), NOBODY);
        batches.store.store(Arc::new(BatchStore::closed()));
        batches.holder.store(Arc::new(NOBODY));
        assert_eq!(batches.store.load().open_batches(), Err(StoreError::Closed));
        let away = directory.path().join("away.db");
        std::fs::rename(&path, &away).expect("it is there");
        std::fs::create_dir(&path).expect("there is room");
        assert_eq!(batches.store_failures(), 0, "there was no store to fail");
        batches.enter(LEASE).expect_err("a folder is in its place");
        assert_eq!(batches.store_failures(), 1);
        std::fs::remove_dir(&path).expect("it is empty");
        std::fs::rename(&away, &path).expect("it is there");
        batches.enter(LEASE).expect("it is there");
        assert_ne!(batches.holder(), NOBODY);
        assert_eq!(batches.store.load().open_batches(), Ok(Vec::new()));
        assert_eq!(batches.store_failures(), 1, "a new store forgets nothing");
    }
}
