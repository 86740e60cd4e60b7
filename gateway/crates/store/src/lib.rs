//! What survives a restart: replicas, keys, the audit trail of every change to them, and how fast replicas were.
//!
//! # Choice
//! An embedded SQLite database. One file, no service to run, transactions, and a format that operators can open with
//! tools they have. Rejected: a journal with snapshots of our own (less code to depend on, but recovery, compaction and
//! queries would all be ours to get right), and a database service as a requirement (most installations are one
//! gateway). Several gateways will share a service; it comes behind [`Store`], and must pass the same conformance suite.
//!
//! # Guarantees
//! - A method that returned `Ok` is durable: write-ahead log with `synchronous = FULL`, so the log is on disk before the
//!   answer. The process may be killed at any point; the machine may lose power, as far as its disk is honest.
//! - A change and its audit row are one transaction. There is no change without who, when, and what.
//! - Changes are idempotent: the same one again is [`Put::Unchanged`] and leaves no audit row.
//! - Replica and key numbers are never given twice, also not after removal.
//!
//! # Shape
//! One thread owns the one connection (`writer`). Calls queue up, and those that wait at the same time share one commit
//! (`writer` says how), so that the price of a sync is paid per group, not per call. Calls block for the time of a commit:
//! callers on an async runtime use a blocking thread. Nothing here reads a clock or makes randomness: moments, digests
//! and peppers are arguments. That is also what claims with expiry and fencing need, when several gateways work off one
//! store: the claimant's clock and token come in with the call and are compared inside the transaction.
//!
//! The tables are described in `gateway/docs/schema.md`, which a test holds to the truth.

mod audit;
#[cfg(test)]
mod conformance;
mod error;
mod key;
mod open;
mod record;
mod replica;
mod schema;
mod speed;
mod store;
mod writer;

pub use crate::{
    error::StoreError,
    record::{
        AuditRecord, By, KeyLimits, KeyRecord, NewKey, NewReplica, Put, ReplicaPatch, ReplicaRecord, ReplicaSecret,
        ReplicaSource, Speed, StatedFields, UnixMillis,
    },
    store::Store,
};
