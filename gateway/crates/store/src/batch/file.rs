//! Files: written piece by piece by one holder, then visible and never changed.
//!
//! Content is in pieces that begin at multiples of their size, so that any byte is found by arithmetic, and neither writing
//! nor reading a file of gigabytes needs more memory than the caller asks for.
//!
//! A deleted file is a mark at first. Its content goes at leisure, in `sweep`, when no batch needs it.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::record::{FileKey, FileRecord, Holder, NewFile, Page, PageOf, Purpose, Stored};
use crate::{batch::holder, error::StoreError, record::UnixMillis};

/// Length of every piece but a file's last. 64 KiB: a row that is cheap to read for one line of it, and few enough of them.
pub(super) const PIECE: usize = 64 << 10;

const COLUMNS: &str = "key, id, tenant, purpose, filename, bytes, created, expires";

/// What a file is whose content is kept: not deleted, or needed by a batch that is not terminal.
const KEPT: &str = "(deleted = 0 OR EXISTS (SELECT 1 FROM batches WHERE input = files.key AND ended IS NULL))";

fn from_row(row: &Row<'_>) -> rusqlite::Result<FileRecord> {
    let purpose: String = row.get(3)?;
    let purpose = Purpose::by_name(&purpose).ok_or_else(|| {
        let why = format!("no purpose is called {purpose:?}");
        rusqlite::Error::FromSqlConversionFailure(3, rusqlite::types::Type::Text, why.into())
    })?;
    Ok(FileRecord {
        key: FileKey(row.get(0)?),
        id: row.get(1)?,
        tenant: row.get(2)?,
        purpose,
        filename: row.get(4)?,
        bytes: row.get(5)?,
        created: UnixMillis(row.get(6)?),
        expires: row.get::<_, Option<u64>>(7)?.map(UnixMillis),
    })
}

/// Begins a file.
pub(super) fn begin(connection: &Connection, owner: Holder, new: &NewFile) -> Result<FileKey, StoreError> {
    holder::alive(connection, owner)?;
    let mut statement = connection.prepare_cached(
        "INSERT INTO files (id, tenant, purpose, filename, created, expires, holder) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    let expires = new.expires.map(|at| at.0);
    let key = statement.insert(params![
        new.id,
        new.tenant,
        new.purpose.name(),
        new.filename,
        new.created.0,
        expires,
        owner.0
    ])?;
    u64::try_from(key).map(FileKey).map_err(|_| StoreError::Failed("no file numbers are left".into()))
}

/// Adds to the end of an unfinished file.
pub(super) fn append(connection: &Connection, key: FileKey, mut piece: &[u8]) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached("SELECT bytes FROM files WHERE key = ?1 AND holder IS NOT NULL")?;
    let mut end: u64 = statement.query_row([key.0], |row| row.get(0)).optional()?.ok_or(StoreError::LostClaim)?;
    let inside = usize::try_from(end % PIECE as u64).unwrap_or_default();
    if inside > 0 {
        let (head, rest) = piece.split_at(piece.len().min(PIECE - inside));
        let start = end - inside as u64;
        let mut last: Vec<u8> = connection
            .prepare_cached("SELECT bytes FROM pieces WHERE file = ?1 AND start = ?2")?
            .query_row([key.0, start], |row| row.get(0))?;
        last.extend_from_slice(head);
        connection
            .prepare_cached("UPDATE pieces SET bytes = ?3 WHERE file = ?1 AND start = ?2")?
            .execute(params![key.0, start, last])?;
        end += head.len() as u64;
        piece = rest;
    }
    let mut insert = connection.prepare_cached("INSERT INTO pieces (file, start, bytes) VALUES (?1, ?2, ?3)")?;
    for part in piece.chunks(PIECE) {
        insert.execute(params![key.0, end, part])?;
        end += part.len() as u64;
    }
    connection.prepare_cached("UPDATE files SET bytes = ?2 WHERE key = ?1")?.execute([key.0, end])?;
    Ok(())
}

/// Makes an unfinished file visible; `expires` replaces what was said before.
pub(super) fn finish(
    connection: &Connection,
    key: FileKey,
    expires: Option<UnixMillis>,
) -> Result<FileRecord, StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "UPDATE files SET holder = NULL, expires = coalesce(?2, expires) WHERE key = ?1 AND holder IS NOT NULL \
         RETURNING {COLUMNS}"
    ))?;
    let values = params![key.0, expires.map(|at| at.0)];
    statement.query_row(values, from_row).optional()?.ok_or(StoreError::LostClaim)
}

/// Whether it is an unfinished file of this holder, for this tenant.
pub(super) fn is_unfinished(
    connection: &Connection,
    owner: Holder,
    tenant: &str,
    key: FileKey,
) -> Result<bool, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT 1 FROM files WHERE key = ?1 AND holder = ?2 AND tenant = ?3")?;
    Ok(statement.exists(params![key.0, owner.0, tenant])?)
}

/// Forgets an unfinished file.
pub(super) fn abandon(connection: &Connection, key: FileKey) -> Result<(), StoreError> {
    connection
        .prepare_cached("UPDATE files SET deleted = 1, holder = NULL WHERE key = ?1 AND holder IS NOT NULL")?
        .execute([key.0])?;
    Ok(())
}

/// A tenant's file.
pub(super) fn by_id(connection: &Connection, tenant: &str, id: &str) -> Result<FileRecord, StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM files WHERE id = ?1 AND tenant = ?2 AND deleted = 0 AND holder IS NULL"
    ))?;
    statement.query_row([id, tenant], from_row).optional()?.ok_or_else(|| StoreError::UnknownFile(id.into()))
}

/// Some of a tenant's files.
pub(super) fn list(
    connection: &Connection,
    tenant: &str,
    purpose: Option<Purpose>,
    page: &PageOf,
) -> Result<Page<FileRecord>, StoreError> {
    let after = page.after.as_deref().map(|id| place(connection, tenant, id)).transpose()?;
    let (cut, after) = beyond(page, after);
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM files WHERE tenant = ?1 AND deleted = 0 AND holder IS NULL \
         AND (?2 IS NULL OR purpose = ?2) AND {cut}"
    ))?;
    let wanted = params![tenant, purpose.map(Purpose::name), after, most(page.limit.saturating_add(1))];
    paged(page, statement.query_map(wanted, from_row)?)
}

/// Where in the order a file is, also a deleted one whose content has not gone: a client may delete what it has listed.
fn place(connection: &Connection, tenant: &str, id: &str) -> Result<i64, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT key FROM files WHERE id = ?1 AND tenant = ?2 AND holder IS NULL")?;
    let key = statement.query_row([id, tenant], |row| row.get(0)).optional()?;
    key.ok_or_else(|| StoreError::UnknownFile(id.into()))
}

/// The end of a statement that reads a page by key, and its third argument; the fourth is one more than the page's limit.
pub(super) fn beyond(page: &PageOf, after: Option<i64>) -> (&'static str, i64) {
    if page.ascending {
        ("key > ?3 ORDER BY key LIMIT ?4", after.unwrap_or(0))
    } else {
        ("key < ?3 ORDER BY key DESC LIMIT ?4", after.unwrap_or(i64::MAX))
    }
}

/// A number of rows as the database takes it.
pub(super) fn most(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// A page out of one row more than that.
pub(super) fn paged<T>(page: &PageOf, rows: impl Iterator<Item = rusqlite::Result<T>>) -> Result<Page<T>, StoreError> {
    let mut entries: Vec<T> = rows.collect::<Result<_, _>>()?;
    let more = entries.len() > page.limit;
    entries.truncate(page.limit);
    Ok(Page { entries, more })
}

/// Bytes of a finished file.
pub(super) fn read(connection: &Connection, key: FileKey, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
    let mut statement = connection
        .prepare_cached(&format!("SELECT id, bytes FROM files WHERE key = ?1 AND holder IS NULL AND {KEPT}"))?;
    let known = statement.query_row([key.0], |row| row.get(1)).optional()?;
    let bytes: u64 = known.ok_or_else(|| StoreError::UnknownFile(format!("number {}", key.0)))?;
    let length = usize::try_from(bytes.saturating_sub(offset)).unwrap_or(usize::MAX).min(length);
    Content::of(connection, key).read(offset, length)
}

/// A file's content. Remembers the piece that it has read last: lines lie beside each other.
pub(super) struct Content<'c> {
    connection: &'c Connection,
    key: FileKey,
    start: u64,
    piece: Vec<u8>,
}

impl<'c> Content<'c> {
    pub(super) fn of(connection: &'c Connection, key: FileKey) -> Self {
        Self { connection, key, start: 0, piece: Vec::new() }
    }

    /// Exactly these bytes; it is an error if they are not there.
    pub(super) fn read(&mut self, mut offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let inside = usize::try_from(offset % PIECE as u64).unwrap_or_default();
            self.turn_to(offset - inside as u64)?;
            let end = self.piece.len().min(inside.saturating_add(length - bytes.len()));
            let Some(part) = self.piece.get(inside..end).filter(|part| !part.is_empty()) else {
                return Err(self.missing());
            };
            bytes.extend_from_slice(part);
            offset += part.len() as u64;
        }
        Ok(bytes)
    }

    fn turn_to(&mut self, start: u64) -> Result<(), StoreError> {
        if self.start == start && !self.piece.is_empty() {
            return Ok(());
        }
        let mut statement =
            self.connection.prepare_cached("SELECT bytes FROM pieces WHERE file = ?1 AND start = ?2")?;
        let piece = &mut self.piece;
        piece.clear();
        let found = statement.query_row([self.key.0, start], |row| {
            piece.extend_from_slice(row.get_ref(0)?.as_blob()?);
            Ok(())
        });
        self.start = start;
        found.optional()?.ok_or_else(|| self.missing())
    }

    fn missing(&self) -> StoreError {
        StoreError::Corrupt(format!("file number {} is shorter than it should be", self.key.0))
    }
}

/// Deletes a tenant's file.
pub(super) fn delete(connection: &Connection, tenant: &str, id: &str) -> Result<(), StoreError> {
    let deleted = connection
        .prepare_cached(
            "UPDATE files SET deleted = 1 WHERE id = ?1 AND tenant = ?2 AND deleted = 0 AND holder IS NULL",
        )?
        .execute([id, tenant])?;
    if deleted == 0 { Err(StoreError::UnknownFile(id.into())) } else { Ok(()) }
}

/// How much there is.
pub(super) fn stored(connection: &Connection, tenant: Option<&str>) -> Result<Stored, StoreError> {
    let whose = if tenant.is_some() { "tenant = ?1" } else { "?1 IS NULL" };
    let (bytes, files) = connection
        .prepare_cached(&format!(
            "SELECT coalesce(sum(bytes), 0), count(*) FILTER (WHERE holder IS NULL) FROM files \
             WHERE {whose} AND deleted = 0"
        ))?
        .query_row([tenant], |row| Ok((row.get::<_, u64>(0)?, row.get(1)?)))?;
    let needed: u64 = connection
        .prepare_cached(&format!("SELECT coalesce(sum(bytes), 0) FROM files WHERE {whose} AND deleted = 1 AND {KEPT}"))?
        .query_row([tenant], |row| row.get(0))?;
    let open_batches = connection
        .prepare_cached(&format!("SELECT count(*) FROM batches WHERE {whose} AND ended IS NULL"))?
        .query_row([tenant], |row| row.get(0))?;
    Ok(Stored { bytes: bytes + needed, files, open_batches })
}
