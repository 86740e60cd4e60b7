//! What can go wrong with the store.

use std::path::PathBuf;

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
