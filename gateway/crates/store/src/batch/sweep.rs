//! Cleaning up, a bounded part at a time, so that no caller waits long behind it.

use std::time::Duration;

use rusqlite::{Connection, params};

use crate::{error::StoreError, record::UnixMillis};

/// Small rows of one step: files, lines, batches. About 10 ms.
const ROWS: usize = 1_000;
/// Content of one step, in bytes: every page of it is read and freed. About 50 ms.
const BYTES: u64 = 4 << 20;
/// Free pages that one step gives back to the file system, each of which may have to be swapped with one at the file's end.
const PAGES: u32 = 1_000;

/// Does a part of everything that may be done. Whether there is more.
pub(super) fn sweep(connection: &Connection, now: UnixMillis, keep_batches: Duration) -> Result<bool, StoreError> {
    let parts = [
        expire_files(connection, now)?,
        drop_orphans(connection)?,
        drop_content(connection)?,
        drop_lines(connection)?,
        drop_batches(connection, now, keep_batches)?,
        // After the others: it gives back what they have freed.
        give_back(connection)?,
    ];
    Ok(parts.contains(&true))
}

fn expire_files(connection: &Connection, now: UnixMillis) -> Result<bool, StoreError> {
    let deleted = connection
        .prepare_cached(
            "UPDATE files SET deleted = 1 WHERE key IN (SELECT key FROM files WHERE deleted = 0 AND expires IS NOT NULL \
             AND expires <= ?1 AND holder IS NULL LIMIT ?2)",
        )?
        .execute(params![now.0, ROWS])?;
    Ok(deleted == ROWS)
}

/// Unfinished files whose holder is gone. A holder takes its files with it, so there are none unless the file was edited.
fn drop_orphans(connection: &Connection) -> Result<bool, StoreError> {
    connection
        .prepare_cached(
            "UPDATE files SET deleted = 1, holder = NULL WHERE holder IS NOT NULL \
             AND NOT EXISTS (SELECT 1 FROM holders WHERE id = files.holder)",
        )?
        .execute([])?;
    Ok(false)
}

/// Content of deleted files that no open batch needs, and the rows of those that have none left.
fn drop_content(connection: &Connection) -> Result<bool, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT key FROM files WHERE deleted = 1 \
         AND NOT EXISTS (SELECT 1 FROM batches WHERE input = files.key AND ended IS NULL) LIMIT ?1",
    )?;
    let files: Vec<u64> = statement.query_map([ROWS], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut left = BYTES;
    for &file in &files {
        let whole = drop_rows(connection, "pieces", "bytes", "file", file, &mut left)?;
        if !whole {
            return Ok(true);
        }
        connection.prepare_cached("DELETE FROM files WHERE key = ?1")?.execute([file])?;
    }
    Ok(files.len() == ROWS)
}

/// Lines and results of terminal batches.
fn drop_lines(connection: &Connection) -> Result<bool, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT key FROM batches WHERE ended IS NOT NULL AND swept = 0 LIMIT ?1")?;
    let batches: Vec<u64> = statement.query_map([ROWS], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let (mut bytes, mut rows) = (BYTES, ROWS);
    for &batch in &batches {
        let dropped = connection
            .prepare_cached(
                "DELETE FROM lines WHERE batch = ?1 \
                 AND number IN (SELECT number FROM lines WHERE batch = ?1 ORDER BY number LIMIT ?2)",
            )?
            .execute(params![batch, rows])?;
        rows -= dropped;
        if rows == 0 || !drop_rows(connection, "results", "record", "batch", batch, &mut bytes)? {
            return Ok(true);
        }
        connection.prepare_cached("UPDATE batches SET swept = 1 WHERE key = ?1")?.execute([batch])?;
    }
    Ok(batches.len() == ROWS)
}

/// Deletes the rows of `table` whose `owner` is this one, as far as `left` bytes of `content` allow. Whether none is left.
fn drop_rows(
    connection: &Connection,
    table: &str,
    content: &str,
    owner: &str,
    number: u64,
    left: &mut u64,
) -> Result<bool, StoreError> {
    let mut statement = connection
        .prepare_cached(&format!("SELECT rowid, length({content}) FROM {table} WHERE {owner} = ?1 LIMIT ?2"))?;
    let rows = statement.query_map(params![number, ROWS], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let rows: Vec<(i64, u64)> = rows.collect::<Result<_, _>>()?;
    let mut delete = connection.prepare_cached(&format!("DELETE FROM {table} WHERE rowid = ?1"))?;
    for (row, bytes) in &rows {
        if *left == 0 {
            return Ok(false);
        }
        *left = left.saturating_sub(*bytes);
        delete.execute([row])?;
    }
    Ok(rows.len() < ROWS)
}

/// Terminal batches that nobody has to see any more.
fn drop_batches(connection: &Connection, now: UnixMillis, keep: Duration) -> Result<bool, StoreError> {
    let keep = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
    let Some(before) = now.0.checked_sub(keep) else { return Ok(false) };
    let dropped = connection
        .prepare_cached(
            "DELETE FROM batches WHERE key IN (SELECT key FROM batches WHERE ended IS NOT NULL AND swept = 1 \
             AND ended <= ?1 ORDER BY ended LIMIT ?2)",
        )?
        .execute(params![before, ROWS])?;
    Ok(dropped == ROWS)
}

/// Makes the file shorter by some of its free pages.
fn give_back(connection: &Connection) -> Result<bool, StoreError> {
    let free = || connection.pragma_query_value(None, "freelist_count", |row| row.get::<_, u32>(0));
    if free()? == 0 {
        return Ok(false);
    }
    // One page goes with each row of the answer.
    let mut statement = connection.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(free()? > 0)
}
