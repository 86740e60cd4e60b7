//! The feed of pool changes: what `GET /admin/events` streams.
//!
//! A ring of bounded length: who reads too slowly loses the oldest events and is told so by the reader's end of it.
//! Nobody who listens can hold the pool up.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use scheduler::{ChangeReason, Limit, ReplicaId, ReplicaState};
use tokio::sync::broadcast;

use crate::clock;

/// The last events, kept for those who come later. 1,024: as many as a slow reader may lag behind.
const RECENT: usize = LENGTH;

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
    /// It is at another address.
    Moved {
        /// Where it was.
        from: String,
        /// Where it is.
        to: String,
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
    /// It has shown what it can do, or an operator has let it out of quarantine.
    Proven,
    /// It has not shown that it can do what it says.
    Unproven {
        /// What was wrong, and what to do.
        detail: String,
    },
    /// More, or less, is asked of it, by what it said about itself.
    Limited {
        /// How much.
        limit: Limit,
        /// Why; `None` where nothing is limited any more.
        reason: Option<String>,
    },
    /// Its deployment ends.
    Ending {
        /// The deployment.
        deployment: String,
        /// In how many seconds.
        ends_in_s: u64,
    },
    /// It is gone.
    Removed,
}

impl PoolChange {
    /// The name in the feed.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Added { .. } => "added",
            Self::Moved { .. } => "moved",
            Self::Stated => "changed",
            Self::State { .. } => "state",
            Self::DrainStarted => "draining",
            Self::Drained => "drained",
            Self::DrainEnded => "undrained",
            Self::Proven => "proven",
            Self::Unproven { .. } => "unproven",
            Self::Limited { .. } => "limited",
            Self::Ending { .. } => "ending",
            Self::Removed => "removed",
        }
    }
}

/// The sending end.
pub(super) struct Feed {
    sender: broadcast::Sender<PoolEvent>,
    recent: Mutex<Recent>,
}

#[derive(Default)]
struct Recent {
    number: u64,
    events: VecDeque<PoolEvent>,
}

impl Default for Feed {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(LENGTH), recent: Mutex::default() }
    }
}

impl Feed {
    pub(super) fn send(&self, replica: ReplicaId, label: &Arc<str>, what: PoolChange) {
        let mut recent = self.recent();
        recent.number += 1;
        let (number, at_ms) = (recent.number, clock::unix_ms());
        let event = PoolEvent { number, at_ms, replica, label: Arc::clone(label), what };
        if recent.events.len() == RECENT {
            recent.events.pop_front();
        }
        recent.events.push_back(event.clone());
        // Under the lock, so that nobody gets events out of order. Fails when nobody listens.
        drop(self.sender.send(event));
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<PoolEvent> {
        self.sender.subscribe()
    }

    /// The kept events with a larger number than `after`, at most `limit` of them, the oldest first.
    pub(super) fn since(&self, after: u64, limit: usize) -> Vec<PoolEvent> {
        let recent = self.recent();
        let newer = recent.events.iter().rev().take_while(|event| event.number > after).take(limit);
        let mut events: Vec<_> = newer.cloned().collect();
        events.reverse();
        events
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_kept_in_order_and_no_more_than_that() {
        let feed = Feed::default();
        for number in 0..3000 {
            feed.send(ReplicaId(number), &"phone".into(), PoolChange::Stated);
        }
        let numbers = |after, limit| feed.since(after, limit).iter().map(|event| event.number).collect::<Vec<_>>();
        assert_eq!(numbers(2997, 200), [2998, 2999, 3000]);
        assert_eq!(numbers(2997, 2), [2999, 3000]);
        assert_eq!(numbers(3000, 200), [0; 0]);
        assert_eq!((numbers(0, 5000).len(), numbers(0, 5000)[0]), (RECENT, 3000 - RECENT as u64 + 1));
    }
}
