//! Opening a file: ours, whole, and of a version that this program knows; or an error that says what to do.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags};

use crate::{
    error::StoreError,
    schema::{Checked, Schema, migrate, version},
};

/// How long a call waits for another process (an upgrade's second gateway, a backup). 5 s: longer than any of our
/// transactions by far, shorter than a client's patience.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Statements that stay prepared: more than either database has.
const STATEMENTS: usize = 128;

/// How long the log file may stay once its content is in the database. 64 MiB: a burst of uploads must not hold disk
/// space for good.
const LOG_BYTES: u32 = 64 << 20;

/// Opens or creates a database file.
pub(crate) fn open_file(path: &Path, schema: &Schema) -> Result<Connection, StoreError> {
    create_private(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| unopened(path, error.to_string()))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    refuse_foreign(&connection, path, schema)?;
    prepare(connection, schema)
}

/// Opens a database that is open already a second time, to read.
pub(crate) fn open_to_read(path: &Path) -> Result<Connection, StoreError> {
    // Readers mark in the log's index how far they read: a connection that could write nothing at all could not read either.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| unopened(path, error.to_string()))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// The file that a connection has open, to notice when its path leads elsewhere.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    path: PathBuf,
    #[cfg(unix)]
    node: (u64, u64),
}

impl OpenedFile {
    /// Remembers what is at the path now.
    pub(crate) fn at(path: &Path) -> Result<Self, StoreError> {
        #[cfg(unix)]
        let node = node(path).map_err(|error| unopened(path, error.to_string()))?;
        Ok(Self {
            path: path.into(),
            #[cfg(unix)]
            node,
        })
    }

    /// SQLite writes happily into a file that was deleted or moved away: it would be lost at the next start.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        #[cfg(unix)]
        if node(&self.path).ok() != Some(self.node) {
            return Err(StoreError::Gone(self.path.clone()));
        }
        Ok(())
    }
}

#[cfg(unix)]
fn node(path: &Path) -> std::io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

/// Opens a database that is forgotten at the end.
pub(crate) fn open_memory(schema: &Schema) -> Result<Connection, StoreError> {
    prepare(Connection::open_in_memory()?, schema)
}

fn unopened(path: &Path, why: String) -> StoreError {
    StoreError::Unopened { path: path.into(), why }
}

/// Makes the file if it is not there, readable by its owner only: it holds replicas' credentials. The log beside it gets
/// the same mode from SQLite.
fn create_private(path: &Path) -> Result<(), StoreError> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop).map_err(|error| unopened(path, error.to_string()))
}

/// Only an empty database, or one that carries our mark, is written to.
fn refuse_foreign(connection: &Connection, path: &Path, schema: &Schema) -> Result<(), StoreError> {
    let foreign = || StoreError::Foreign(path.into());
    let mark: i32 = match connection.pragma_query_value(None, "application_id", |row| row.get(0)) {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => return Err(foreign()),
        mark => mark?,
    };
    let tables: u32 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    if mark != schema.application_id && (mark != 0 || tables > 0) {
        return Err(foreign());
    }
    let (found, known) = (version(connection)?, u32::try_from(schema.migrations.len()).unwrap_or(u32::MAX));
    if found > known {
        return Err(StoreError::Newer { path: path.into(), found, known });
    }
    Ok(())
}

fn prepare(mut connection: Connection, schema: &Schema) -> Result<Connection, StoreError> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    if schema.gives_back {
        // Has an effect on an empty file only, and before anything else touches it.
        connection.pragma_update(None, "auto_vacuum", "incremental")?;
    }
    // FULL: in write-ahead mode NORMAL does not sync the log at commit, and an acknowledged change could be lost.
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
    // A hostile or damaged schema must not run functions with side effects.
    connection.pragma_update(None, "trusted_schema", false)?;
    check(&connection, schema)?;
    migrate(&mut connection, schema.application_id, schema.migrations)?;
    Ok(connection)
}

fn check(connection: &Connection, schema: &Schema) -> Result<(), StoreError> {
    let look = |what: &str| -> Result<(), StoreError> {
        let verdict: String = connection.query_row(&format!("PRAGMA quick_check({what})"), [], |row| row.get(0))?;
        if verdict == "ok" { Ok(()) } else { Err(StoreError::Corrupt(verdict)) }
    };
    match schema.checked {
        Checked::Everything => look("1"),
        Checked::Tables(_) if version(connection)? == 0 => Ok(()),
        Checked::Tables(tables) => tables.iter().try_for_each(|table| look(table)),
    }
}
