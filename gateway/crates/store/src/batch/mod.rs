//! Files and batches: what tenants upload, what is run of it, and what came of it.
//!
//! # Choice
//! A database file of its own, beside the one of replicas and keys: the same engine and the same way of writing
//! (`writer`), but with content in it. The backup of the one that holds keys stays small, its writes don't wait behind a
//! gigabyte, and a disk that is full of results does not keep an operator from draining a phone. Rejected: content as
//! files in a directory. A batch's end is one transaction here (two files appear, counts and state change); beside a
//! database it would be an order of syncs and renames, and a search for leftovers at every start.
//!
//! # Guarantees
//! - A line is claimed by one holder at a time, and never again once it has a result.
//! - What is said under a lease that was taken away changes nothing (`holder`).
//! - A file that can be read never changes, and its content stays until no batch needs it.
//! - States and times of a batch only move forward.
//!
//! | file | holds |
//! |---|---|
//! | `store` | the surface |
//! | `record` | what goes in and comes out |
//! | `holder` | leases |
//! | `file` | files and their content |
//! | `lifecycle` | batches from their making to their end |
//! | `line` | claims and results |
//! | `sweep` | what goes at leisure |

#[cfg(test)]
mod conformance;
mod file;
mod holder;
mod lifecycle;
mod line;
mod record;
mod store;
mod sweep;

pub use self::{
    record::{
        BatchKey, BatchRecord, BatchState, BatchTimes, ClaimedLine, FileKey, FileRecord, FinishedLine, Holder, Kept,
        LineCounts, NewBatch, NewFile, NewLine, Page, PageOf, Purpose, ReleasedLine, Results, Seal, Stored, TokenUsage,
        UnfinishedLine,
    },
    store::BatchStore,
};
