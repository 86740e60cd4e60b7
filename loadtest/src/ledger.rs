//! What happened to every request, in few bytes each.

use crate::client::{Failure, Reply};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// One request. Times in seconds; starts count from the start of the play.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    /// Index of its class.
    pub(crate) class: u32,
    /// When it started, or should have.
    pub(crate) start_s: f32,
    /// Until the end of the answer, or of the failure.
    pub(crate) total_s: f32,
    /// Until the first token of a stream.
    pub(crate) ttft_s: Option<f32>,
    /// The longest pause of a stream.
    pub(crate) gap_s: Option<f32>,
    /// In the gateway's queue.
    pub(crate) queue_s: Option<f32>,
    /// Tokens of its prompt.
    pub(crate) prompt_tokens: u32,
    /// Tokens of its answer, as asked for.
    pub(crate) answer_tokens: u32,
    /// Attempts the gateway needed; 1 where it does not say.
    pub(crate) attempts: u32,
    /// Who answered: index into [`Book::replicas`].
    pub(crate) replica: Option<u32>,
    /// How it failed: index into [`Book::failures`].
    pub(crate) failure: Option<u32>,
}

/// A kind of failure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FailureKind {
    /// Its short name.
    pub(crate) kind: String,
    /// The first of its kind, in words.
    pub(crate) example: String,
}

/// All requests that have ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Book {
    /// In the order in which they ended.
    pub(crate) records: Vec<Record>,
    /// Kinds of failures, by first appearance.
    pub(crate) failures: Vec<FailureKind>,
    /// Names of replicas, by first appearance.
    pub(crate) replicas: Vec<String>,
    replica_numbers: BTreeMap<String, u32>,
}

/// Different kinds of failures told apart; names carry what the other side sends, so their number must be bounded.
const MOST_KINDS: usize = 64;
/// Different replicas told apart.
const MOST_REPLICAS: usize = 10_000;

/// The book, and what a progress line needs to know at any time.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    book: Mutex<Book>,
    started: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
}

/// A request that runs; counted as ended when dropped, however it ended.
pub(crate) struct Running<'l>(&'l Ledger);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Requests at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Sent so far.
    pub(crate) started: u64,
    /// Of those, over.
    pub(crate) ended: u64,
    /// Of those, without an answer.
    pub(crate) failed: u64,
}

impl Tally {
    /// Under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.ended)
    }
}

/// What is known of a request before its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    /// Index of its class.
    pub(crate) class: usize,
    /// Seconds from the start of the play.
    pub(crate) start_s: f64,
    /// Tokens of its prompt.
    pub(crate) prompt_tokens: u32,
    /// Tokens asked for.
    pub(crate) answer_tokens: u32,
}

impl Ledger {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is sent.
    pub(crate) fn start(&self) -> Running<'_> {
        self.started.fetch_add(1, Ordering::Relaxed);
        Running(self)
    }

    /// A request has ended.
    pub(crate) fn enter(&self, sent: Sent, reply: &Reply, result: &Result<(), Failure>) {
        if result.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        let mut book = self.book();
        let failure = result.as_ref().err().map(|failure| book.failure_number(failure));
        let replica = reply.replica.as_deref().and_then(|name| book.replica_number(name));
        book.records.push(Record {
            class: sent.class as u32,
            start_s: sent.start_s as f32,
            total_s: reply.total_s as f32,
            ttft_s: reply.ttft_s.map(|s| s as f32),
            gap_s: reply.gap_s.map(|s| s as f32),
            queue_s: reply.queue_s.map(|s| s as f32),
            prompt_tokens: sent.prompt_tokens,
            answer_tokens: sent.answer_tokens,
            attempts: reply.attempts.unwrap_or(1),
            replica,
            failure,
        });
    }

    /// The counts of this moment.
    pub(crate) fn tally(&self) -> Tally {
        // Ended first: a request that ends between the two reads must not make the difference negative.
        let ended = self.ended.load(Ordering::Relaxed);
        Tally { ended, started: self.started.load(Ordering::Relaxed), failed: self.failed.load(Ordering::Relaxed) }
    }

    /// All that was entered; the ledger is empty afterwards.
    pub(crate) fn take(&self) -> Book {
        std::mem::take(&mut *self.book())
    }
}

impl Book {
    fn failure_number(&mut self, failure: &Failure) -> u32 {
        let kind = failure.kind();
        let kind = if self.failures.len() >= MOST_KINDS { "other".into() } else { kind };
        let known = self.failures.iter().position(|known| known.kind == kind);
        known.unwrap_or_else(|| {
            self.failures.push(FailureKind { kind: kind.into_owned(), example: failure.to_string() });
            self.failures.len() - 1
        }) as u32
    }

    fn replica_number(&mut self, name: &str) -> Option<u32> {
        if let Some(number) = self.replica_numbers.get(name) {
            return Some(*number);
        }
        if self.replicas.len() >= MOST_REPLICAS {
            return None;
        }
        let number = self.replicas.len() as u32;
        self.replicas.push(name.to_owned());
        self.replica_numbers.insert(name.to_owned(), number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_kind_and_running_requests_by_guard() {
        let ledger = Ledger::default();
        let sent = Sent { class: 0, start_s: 0.0, prompt_tokens: 1, answer_tokens: 1 };
        let reply = Reply { replica: Some("pixel".into()), ..Reply::default() };
        let running = (ledger.start(), ledger.start());
        ledger.enter(sent, &reply, &Err(Failure::SilentCut));
        ledger.enter(sent, &reply, &Err(Failure::SilentCut));
        ledger.enter(sent, &Reply::default(), &Ok(()));
        drop(running.0);
        assert_eq!(ledger.tally(), Tally { started: 2, ended: 1, failed: 2 });
        let book = ledger.take();
        assert_eq!(book.failures.len(), 1);
        assert_eq!((&book.replicas[..], book.records[1].replica), (&["pixel".to_owned()][..], Some(0)));
        assert_eq!(book.records[2].failure, None);
    }
}
