//! What survives a restart: replicas, keys, the audit trail of every change to them, and how fast replicas were; and, in
//! a database of their own, files and batches (`batch`).
//!
//! # Choice
//! Embedded SQLite databases. One file each, no service to run, transactions, and a format that operators can open with
//! tools they have. Rejected: a journal with snapshots of our own (less code to depend on, but recovery, compaction and
//! queries would all be ours to get right), and a database service as a requirement (most installations are one
//! gateway). Several gateways will share a service; it comes behind [`Store`] and [`BatchStore`], and must pass the same
//! conformance suites.
//!
//! # Guarantees
//! - A method that returned `Ok` is durable: write-ahead log with `synchronous = FULL`, so the log is on disk before the
//!   answer. The process may be killed at any point; the machine may lose power, as far as its disk is honest.
//! - A change of replicas or keys and its audit row are one transaction: no change without who, when, and what.
//! - Those changes are idempotent: the same one again is [`Put::Unchanged`] and leaves no audit row.
//! - Replica and key numbers are never given twice, also not after removal.
//!
//! # Shape
//! One thread owns the one connection of a database (`writer`). Calls queue up, and those that wait at the same time
//! share one commit (`writer` says how), so that the price of a sync is paid per group, not per call. Calls block for the
//! time of a commit: callers on an async runtime use a blocking thread. Nothing here reads a clock or makes randomness:
//! moments, digests and peppers are arguments. So it is with claims: the claimant's clock and number come in with the
//! call and are compared inside the transaction, and several gateways may work off one store.
//!
//! The tables are described in `gateway/docs/schema.md`, which a test holds to the truth.

mod audit;
mod batch;
#[cfg(test)]
mod conformance;
mod error;
mod key;
mod open;
mod reader;
mod record;
mod replica;
mod schema;
mod speed;
mod store;
mod writer;

pub use crate::{
    batch::{
        BatchKey, BatchRecord, BatchState, BatchStore, BatchTimes, ClaimedLine, FileKey, FileRecord, FinishedLine,
        Holder, Kept, LineCounts, NewBatch, NewFile, NewLine, Page, PageOf, Purpose, ReleasedLine, Results, Seal,
        Stored, TokenUsage, UnfinishedLine,
    },
    error::StoreError,
    record::{
        AuditRecord, By, KeyLimits, KeyRecord, NewKey, NewReplica, Origin, Proof, Put, ReplicaPatch, ReplicaRecord,
        ReplicaSecret, ReplicaSource, Speed, StatedFields, UnixMillis, Verification,
    },
    store::Store,
};
