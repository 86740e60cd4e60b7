//! A connection that only reads, beside the one that writes.
//!
//! In write-ahead mode the two do not wait for each other: a reader sees what is committed when it begins. So a download goes on
//! beside uploads, and a batch can be looked at while nothing can be written.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use rusqlite::{Connection, TransactionBehavior};

use crate::{
    error::StoreError,
    open::{self, OpenedFile},
};

/// Answers one question at a time, in the caller's thread.
pub(crate) struct Reader {
    connection: Mutex<Connection>,
    file: OpenedFile,
}

impl Reader {
    /// Reads a database that was opened before.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { connection: Mutex::new(open::open_to_read(path)?), file: OpenedFile::at(path)? })
    }

    /// Answers a question about one moment.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.file.check()?;
        // A panic in a question has undone its transaction, and there is nothing else that it could have left half-done.
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
        question(&transaction)
    }
}
