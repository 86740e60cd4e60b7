//! What can go wrong with the store.

use std::path::PathBuf;

use crate::batch::BatchState;

/// Why the store did not do it. The change was not made, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The file is no SQLite database, or one of another program.
    #[error("{path} is not a database of huntgroup; nothing was changed", path = .0.display())]
    Foreign(PathBuf),
    /// A newer huntgroup wrote it.
    #[error("{path} has schema version {found}, this program knows up to {known}; use the newer program", path = .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The file is damaged.
    #[error("the database is damaged ({0}); restore it from a backup, or move it away to start empty")]
    Corrupt(String),
    /// The file can't be opened or created.
    #[error("can't open {path}: {why}", path = .path.display())]
    Unopened {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// No space is left. Calls work again once there is.
    #[error("no space is left for the database")]
    Full,
    /// Another file is at the path, or none.
    #[error(
        "the database file {path} was deleted or replaced while it was open; put it back, or restart to use what is there",
        path = .0.display()
    )]
    Gone(PathBuf),
    /// Another process holds the database for longer than the busy timeout.
    #[error("the database is busy in another process")]
    Busy,
    /// The disk failed, or the database said something else that no caller can act on.
    #[error("the database failed: {0}")]
    Failed(String),
    /// The thread that owns the database is gone.
    #[error("the store is closed")]
    Closed,
    /// No replica has this number.
    #[error("no replica {0}")]
    UnknownReplica(u32),
    /// No key has this number.
    #[error("no key {0}")]
    UnknownKey(u32),
    /// A key with this digest exists.
    #[error("that key exists")]
    DuplicateKey,
    /// No file of this tenant that can be read has this id.
    #[error("no file {0}")]
    UnknownFile(String),
    /// No batch of this tenant has this id.
    #[error("no batch {0}")]
    UnknownBatch(String),
    /// The tenant has as many batches that have not ended as it may have.
    #[error("{0} batches have not ended, which is the limit")]
    TooManyOpen(u32),
    /// The idempotency key has made another batch.
    #[error("that idempotency key has made another batch")]
    KeyReused,
    /// The batch has come too far for it.
    #[error("the batch is {} already", .0.name())]
    WrongState(BatchState),
    /// What was claimed is another's by now, or nobody's: the lease ran out, or it was given back or ended.
    #[error("the claim was lost; register anew, and give up what was claimed")]
    LostClaim,
}

impl StoreError {
    /// The database could not do its part, whatever was asked of it.
    pub const fn is_of_the_database(&self) -> bool {
        match self {
            Self::Foreign(_)
            | Self::Newer { .. }
            | Self::Corrupt(_)
            | Self::Unopened { .. }
            | Self::Full
            | Self::Gone(_)
            | Self::Busy
            | Self::Failed(_)
            | Self::Closed => true,
            Self::UnknownReplica(_)
            | Self::UnknownKey(_)
            | Self::DuplicateKey
            | Self::UnknownFile(_)
            | Self::UnknownBatch(_)
            | Self::TooManyOpen(_)
            | Self::KeyReused
            | Self::WrongState(_)
            | Self::LostClaim => false,
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode;
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Corrupt(error.to_string()),
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            _ => match error {
                // A value that no version of ours has written.
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::InvalidColumnType(..) => Self::Corrupt(error.to_string()),
                _ => Self::Failed(error.to_string()),
            },
        }
    }
}
