//! What a phone has seen and done, for tests and reports.
//!
//! Counting is by guard: an [`Attempt`] is made when a request that makes the model work has been read, and files its
//! outcome when it is dropped, so no path out of a request can forget to count.

use crate::clock;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// Counters of one phone, or sums over many.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PhoneStats {
    /// Requests for work that were read.
    pub started: u64,
    /// Answered whole.
    pub completed: u64,
    /// Left by the client before the end.
    pub cancelled: u64,
    /// Ended by a fault, or refused with an error.
    pub failed: u64,
    /// Ended because the phone died under them.
    pub lost: u64,
    /// Holding a place in the engine.
    pub running_now: u32,
    /// Waiting for one.
    pub waiting_now: u32,
    /// The most that held a place at once.
    pub peak_running: u32,
    /// The most that held or wanted one at once: above the slots, the phone was over-subscribed.
    pub peak_in_flight: u32,
    /// Requests that came when every promised slot was taken.
    pub over_subscribed: u64,
    /// Requests that had to wait for a slot.
    pub waited: u64,
    /// The longest of those waits, seconds.
    pub longest_wait_s: f64,
    /// Requests that were no work: health, models, slots.
    pub probes: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections open.
    pub connections_open: u32,
    /// Prompt tokens of requests that got a slot.
    pub prompt_tokens: u64,
    /// Those of them found in a slot's cache.
    pub cached_tokens: u64,
    /// Tokens written.
    pub written_tokens: u64,
    /// When a client was last seen to leave.
    pub last_cancel: Option<CancelSeen>,
}

impl PhoneStats {
    /// Adds another phone's counters; peaks and waits take the larger.
    pub fn add(&mut self, other: &Self) {
        self.started += other.started;
        self.completed += other.completed;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.lost += other.lost;
        self.running_now += other.running_now;
        self.waiting_now += other.waiting_now;
        self.peak_running = self.peak_running.max(other.peak_running);
        self.peak_in_flight = self.peak_in_flight.max(other.peak_in_flight);
        self.over_subscribed += other.over_subscribed;
        self.waited += other.waited;
        self.longest_wait_s = self.longest_wait_s.max(other.longest_wait_s);
        self.probes += other.probes;
        self.connections += other.connections;
        self.connections_open += other.connections_open;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.written_tokens += other.written_tokens;
        let later = |seen: &CancelSeen| self.last_cancel.as_ref().is_none_or(|mine| mine.unix_s < seen.unix_s);
        if other.last_cancel.as_ref().is_some_and(later) {
            self.last_cancel.clone_from(&other.last_cancel);
        }
    }
}

/// What a request was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for a slot.
    Queued,
    /// Reading the prompt.
    Prefill,
    /// Writing the answer.
    Decode,
}

/// A client that left, and when the phone saw it.
#[derive(Debug, Clone, Serialize)]
pub struct CancelSeen {
    /// On this process's monotonic clock.
    #[serde(skip)]
    pub at: Instant,
    /// Seconds since 1970.
    pub unix_s: f64,
    /// What the request was doing.
    pub phase: Phase,
}

/// A request as the phone received it.
#[derive(Debug, Clone, Serialize)]
pub struct SeenRequest {
    /// Seconds since 1970.
    pub unix_s: f64,
    /// Number of the connection on this phone, from 1.
    pub connection: u64,
    /// Requests read on that connection before this one.
    pub earlier_on_connection: u32,
    /// Method.
    pub method: String,
    /// Target as sent.
    pub target: String,
    /// Headers as sent, in order.
    pub headers: Vec<(String, String)>,
    /// Length of the body, bytes.
    pub body_bytes: usize,
    /// SHA-256 of the whole body, hex.
    pub body_sha256: String,
    /// The body, up to the configured length, as text.
    pub body: String,
}

impl SeenRequest {
    /// The value of a header, by any spelling of its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

#[derive(Debug, Default)]
struct Pages {
    stats: PhoneStats,
    requests: VecDeque<SeenRequest>,
}

/// The book in which a phone files what happens to it.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pages: Mutex<Pages>,
    changed: Notify,
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the counters and wakes whoever waits for that.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut PhoneStats) -> T) -> T {
        let result = change(&mut self.pages().stats);
        self.changed.notify_waiters();
        result
    }

    pub(crate) fn stats(&self) -> PhoneStats {
        self.pages().stats.clone()
    }

    /// Sets the counters back, keeping what is true of the present moment.
    pub(crate) fn reset(&self) {
        self.update(|stats| {
            *stats = PhoneStats {
                running_now: stats.running_now,
                waiting_now: stats.waiting_now,
                peak_running: stats.running_now,
                peak_in_flight: stats.running_now + stats.waiting_now,
                connections_open: stats.connections_open,
                ..PhoneStats::default()
            };
        });
        self.pages().requests.clear();
    }

    pub(crate) fn file_request(&self, request: SeenRequest, kept: usize) {
        let mut pages = self.pages();
        pages.requests.push_back(request);
        while pages.requests.len() > kept {
            pages.requests.pop_front();
        }
    }

    pub(crate) fn requests(&self) -> Vec<SeenRequest> {
        self.pages().requests.iter().cloned().collect()
    }

    /// Resolves at the next change after it was first polled or enabled.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Completed,
    Cancelled,
    Failed,
    Lost,
}

/// One request for work on this phone; files its outcome when dropped, [`PhoneStats::lost`] unless told otherwise.
#[derive(Debug)]
pub(crate) struct Attempt {
    book: Arc<Book>,
    outcome: Outcome,
}

impl Attempt {
    pub(crate) fn start(book: &Arc<Book>) -> Self {
        book.update(|stats| stats.started += 1);
        Self { book: book.clone(), outcome: Outcome::Lost }
    }

    pub(crate) fn complete(&mut self) {
        self.turn_out(Outcome::Completed);
    }

    pub(crate) fn fail(&mut self) {
        self.turn_out(Outcome::Failed);
    }

    /// What becomes of work whose client has left changes nothing: it was cancelled.
    fn turn_out(&mut self, outcome: Outcome) {
        if self.outcome != Outcome::Cancelled {
            self.outcome = outcome;
        }
    }

    /// The client has left; seen now, whatever the phone does about it.
    pub(crate) fn cancel(&mut self, phase: Phase) {
        if self.outcome != Outcome::Cancelled {
            self.outcome = Outcome::Cancelled;
            let seen = CancelSeen { at: clock::now().into_std(), unix_s: clock::unix_seconds(), phase };
            self.book.update(|stats| {
                stats.cancelled += 1;
                stats.last_cancel = Some(seen);
            });
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.book.update(|stats| match self.outcome {
            Outcome::Completed => stats.completed += 1,
            Outcome::Failed => stats.failed += 1,
            Outcome::Lost => stats.lost += 1,
            Outcome::Cancelled => {}
        });
    }
}
