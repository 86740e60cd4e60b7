//! The feed of pool changes: what `GET /admin/events` streams.
//!
//! A ring of bounded length: who reads too slowly loses the oldest events and is told so by the reader's end of it.
//! Nobody who listens can hold the pool up.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use scheduler::{ChangeReason, ReplicaId, ReplicaState};
use tokio::sync::broadcast;

use crate::clock;

/// Events kept for slow readers. 1,024: all of a large pool going down at once fits.
const LENGTH: usize = 1024;

/// One thing that happened to the pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolEvent {
    /// Counts up by one.
    pub number: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Which replica.
    pub replica: ReplicaId,
    /// Its name in the pool.
    pub label: Arc<str>,
    /// What happened.
    pub what: PoolChange,
}

/// What happened to a replica.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolChange {
    /// It is new.
    Added {
        /// Where it is.
        url: String,
    },
    /// An operator, or a reload, changed what is stated.
    Stated,
    /// Another state.
    State {
        /// Before.
        from: ReplicaState,
        /// Now.
        to: ReplicaState,
        /// Why.
        why: ChangeReason,
        /// What the last probe had found.
        detail: Option<String>,
    },
    /// It gets no new work.
    DrainStarted,
    /// Nothing runs there any more.
    Drained,
    /// The drain is taken back.
    DrainEnded,
    /// It is gone.
    Removed,
}

impl PoolChange {
    /// The name in the feed.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Added { .. } => "added",
            Self::Stated => "changed",
            Self::State { .. } => "state",
            Self::DrainStarted => "draining",
            Self::Drained => "drained",
            Self::DrainEnded => "undrained",
            Self::Removed => "removed",
        }
    }
}

/// The sending end.
pub(super) struct Feed {
    sender: broadcast::Sender<PoolEvent>,
    number: AtomicU64,
}

impl Default for Feed {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(LENGTH), number: AtomicU64::new(1) }
    }
}

impl Feed {
    pub(super) fn send(&self, replica: ReplicaId, label: &Arc<str>, what: PoolChange) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let at_ms = clock::unix_ms();
        // Fails when nobody listens.
        drop(self.sender.send(PoolEvent { number, at_ms, replica, label: Arc::clone(label), what }));
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<PoolEvent> {
        self.sender.subscribe()
    }
}
