//! Requests that are being answered now, for the operator's list, and for cancelling one.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use dashmap::DashMap;
use scheduler::{Class, RequestId, Timestamp};
use tokio::sync::Notify;

/// One live request as an operator sees it.
#[derive(Clone, Debug)]
pub struct LiveRequest {
    /// `x-request-id`.
    pub id: Arc<str>,
    /// Its number in the scheduler.
    pub request: RequestId,
    /// Who asks.
    pub tenant: Arc<str>,
    /// What for.
    pub model: Arc<str>,
    /// The route's name.
    pub route: &'static str,
    /// How urgent.
    pub class: Class,
    /// Since when.
    pub started: Timestamp,
    /// Content events so far.
    pub content_events: Arc<AtomicU64>,
}

impl LiveRequest {
    /// `queued`, `prefill` (sent, nothing came yet) or `decode`, for one that runs on a replica or does not.
    pub fn phase(&self, runs: bool) -> &'static str {
        match (runs, self.content_events.load(Ordering::Relaxed)) {
            (false, 0) => "queued",
            (true, 0) => "prefill",
            _ => "decode",
        }
    }
}

/// All of them.
#[derive(Default)]
pub struct Live {
    requests: DashMap<Arc<str>, (LiveRequest, Arc<Notify>)>,
}

/// A request's entry; gone when dropped.
pub struct Entry {
    live: Arc<Live>,
    id: Arc<str>,
    content_events: Arc<AtomicU64>,
}

impl Live {
    /// Lists a request until the entry is dropped.
    pub fn enter(self: &Arc<Self>, request: LiveRequest, cancel: Arc<Notify>) -> Entry {
        let id = Arc::clone(&request.id);
        let content_events = Arc::clone(&request.content_events);
        self.requests.insert(Arc::clone(&id), (request, cancel));
        Entry { live: Arc::clone(self), id, content_events }
    }

    /// A copy of the list, the oldest first.
    pub fn list(&self) -> Vec<LiveRequest> {
        let mut all: Vec<_> = self.requests.iter().map(|entry| entry.value().0.clone()).collect();
        all.sort_by_key(|request| request.started);
        all
    }

    /// The request with this `x-request-id`.
    pub fn find(&self, id: &str) -> Option<LiveRequest> {
        self.requests.get(id).map(|entry| entry.value().0.clone())
    }

    /// Ends a request with an error; false if there is none with this id.
    pub fn cancel(&self, id: &str) -> bool {
        self.requests.get(id).inspect(|entry| entry.value().1.notify_one()).is_some()
    }

    /// Ends all of them.
    pub fn cancel_all(&self) {
        for entry in &self.requests {
            entry.value().1.notify_one();
        }
    }
}

impl Entry {
    /// Counts content that has come.
    pub fn progress(&self, content_events: u64) {
        self.content_events.store(content_events, Ordering::Relaxed);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.live.requests.remove(&self.id);
    }
}
