//! Lines: claimed, given back, done; and what came of them.
//!
//! A line waits, is claimed by one holder, or has its result. Every change names the state and the holder that it comes
//! from, so that what a slow or lapsed process says late changes nothing. Lines that wait have an index of their own:
//! those that are done cost a claim nothing.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::record::{
    BatchKey, BatchState, ClaimedLine, FileKey, FinishedLine, Holder, Kept, LineCounts, NewLine, ReleasedLine, Results,
    TokenUsage, UnfinishedLine,
};
use crate::{
    batch::{
        file::{Content, most},
        holder, lifecycle,
    },
    error::StoreError,
    record::UnixMillis,
};

// `state` in the table; 0 waits.
const CLAIMED: u8 = 1;
const COMPLETED: u8 = 2;
const FAILED: u8 = 3;

/// Most tokens of one line that count. 2⁴⁰: no answer has as many, and the sum over a batch fits whatever a replica says.
const MOST_TOKENS: u64 = 1 << 40;

/// Forgets the lines of a batch that is validated.
pub(super) fn clear(connection: &Connection, worker: Holder, key: BatchKey) -> Result<(), StoreError> {
    lifecycle::validation(connection, worker, key)?;
    connection.prepare_cached("DELETE FROM lines WHERE batch = ?1")?.execute([key.0])?;
    Ok(())
}

/// Adds lines to a batch that is validated.
pub(super) fn add(connection: &Connection, worker: Holder, key: BatchKey, lines: &[NewLine]) -> Result<(), StoreError> {
    lifecycle::validation(connection, worker, key)?;
    let mut statement = connection.prepare_cached(
        "INSERT INTO lines (batch, number, custom_id, affinity, offset, length) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for line in lines {
        statement.execute(params![key.0, line.number, line.custom_id, line.affinity, line.offset, line.length])?;
    }
    Ok(())
}

/// The input of a batch whose lines may be begun, and may get results.
fn running(connection: &Connection, key: BatchKey) -> Result<Option<FileKey>, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT input FROM batches WHERE key = ?1 AND state = ?2 AND seal IS NULL")?;
    let found = statement.query_row(params![key.0, BatchState::InProgress.name()], |row| row.get(0).map(FileKey));
    Ok(found.optional()?)
}

/// Claims lines that wait.
pub(super) fn claim(
    connection: &Connection,
    worker: Holder,
    key: BatchKey,
    limit: usize,
    max_bytes: usize,
) -> Result<Vec<ClaimedLine>, StoreError> {
    holder::alive(connection, worker)?;
    let Some(input) = running(connection, key)? else { return Ok(Vec::new()) };
    let waiting = first_waiting(connection, key, limit, max_bytes)?;
    let mut update =
        connection.prepare_cached("UPDATE lines SET state = ?3, holder = ?4 WHERE batch = ?1 AND number = ?2")?;
    let mut claimed: Vec<(ClaimedLine, u64, usize)> = Vec::with_capacity(waiting.len());
    for (line, offset, length) in waiting {
        update.execute(params![key.0, line.number, CLAIMED, worker.0])?;
        claimed.push((line, offset, length));
    }
    // In the order of the file: each piece of it is read once.
    let mut by_place: Vec<&mut (ClaimedLine, u64, usize)> = claimed.iter_mut().collect();
    by_place.sort_by_key(|(_, offset, _)| *offset);
    let mut content = Content::of(connection, input);
    for (line, offset, length) in by_place {
        line.text = content.read(*offset, *length)?;
    }
    Ok(claimed.into_iter().map(|(line, ..)| line).collect())
}

/// Lines that wait, with their offset and length, in the order in which they are claimed.
fn first_waiting(
    connection: &Connection,
    key: BatchKey,
    limit: usize,
    max_bytes: usize,
) -> Result<Vec<(ClaimedLine, u64, usize)>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT number, custom_id, tries, offset, length FROM lines WHERE batch = ?1 AND state = 0 \
         ORDER BY affinity, number LIMIT ?2",
    )?;
    let mut rows = statement.query(params![key.0, most(limit)])?;
    let (mut waiting, mut bytes) = (Vec::new(), 0_usize);
    while let Some(row) = rows.next()? {
        let length: usize = row.get(4)?;
        bytes = bytes.saturating_add(length);
        if bytes > max_bytes && !waiting.is_empty() {
            break;
        }
        let line = ClaimedLine { number: row.get(0)?, custom_id: row.get(1)?, tries: row.get(2)?, text: Vec::new() };
        waiting.push((line, row.get(3)?, length));
    }
    Ok(waiting)
}

/// Stores results of claimed lines.
pub(super) fn finish(
    connection: &Connection,
    worker: Holder,
    lines: &[FinishedLine],
    now: UnixMillis,
) -> Result<Vec<Kept>, StoreError> {
    holder::alive(connection, worker)?;
    let mut done = connection.prepare_cached(
        "UPDATE lines SET state = ?4, holder = NULL WHERE batch = ?1 AND number = ?2 AND state = 1 AND holder = ?3",
    )?;
    let mut store =
        connection.prepare_cached("INSERT INTO results (batch, failed, number, record) VALUES (?1, ?2, ?3, ?4)")?;
    // `None`: it takes no results.
    let mut batches: BTreeMap<BatchKey, Option<(LineCounts, TokenUsage)>> = BTreeMap::new();
    let mut kept = Vec::with_capacity(lines.len());
    for line in lines {
        let tally = match batches.entry(line.batch) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(unknown) => {
                unknown.insert(running(connection, line.batch)?.map(|_| Default::default()))
            }
        };
        let Some((counts, usage)) = tally else {
            kept.push(Kept::TooLate);
            continue;
        };
        let state = if line.failed { FAILED } else { COMPLETED };
        if done.execute(params![line.batch.0, line.number, worker.0, state])? == 0 {
            kept.push(Kept::TooLate);
            continue;
        }
        store.execute(params![line.batch.0, line.failed, line.number, line.record])?;
        counts.completed += u32::from(!line.failed);
        counts.failed += u32::from(line.failed);
        usage.input += line.usage.input.min(MOST_TOKENS);
        usage.cached += line.usage.cached.min(MOST_TOKENS);
        usage.output += line.usage.output.min(MOST_TOKENS);
        kept.push(Kept::Stored);
    }
    for (key, tally) in batches {
        if let Some((counts, usage)) = tally.filter(|(counts, _)| *counts != LineCounts::default()) {
            lifecycle::count(connection, key, counts, usage, now)?;
        }
    }
    Ok(kept)
}

/// Gives claims back.
pub(super) fn release(connection: &Connection, worker: Holder, lines: &[ReleasedLine]) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(
        "UPDATE lines SET state = 0, holder = NULL, tries = tries + ?4 \
         WHERE batch = ?1 AND number = ?2 AND state = 1 AND holder = ?3",
    )?;
    for line in lines {
        statement.execute(params![line.batch.0, line.number, worker.0, line.tried])?;
    }
    Ok(())
}

/// Results in the order of their lines.
pub(super) fn results(
    connection: &Connection,
    key: BatchKey,
    which: Results,
    after: u32,
    max_bytes: usize,
) -> Result<Vec<(u32, Vec<u8>)>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT number, record FROM results WHERE batch = ?1 AND failed = ?2 AND number > ?3 ORDER BY number",
    )?;
    let mut rows = statement.query(params![key.0, which == Results::Failed, after])?;
    let (mut results, mut bytes) = (Vec::new(), 0_usize);
    while let Some(row) = rows.next()? {
        let record = row.get_ref(1)?.as_blob().map_err(|error| StoreError::Corrupt(error.to_string()))?;
        bytes = bytes.saturating_add(record.len());
        if bytes > max_bytes && !results.is_empty() {
            break;
        }
        results.push((row.get(0)?, record.to_vec()));
    }
    Ok(results)
}

/// Lines without a result, in order.
pub(super) fn unfinished(
    connection: &Connection,
    key: BatchKey,
    after: u32,
    limit: usize,
) -> Result<Vec<UnfinishedLine>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT number, custom_id FROM lines WHERE batch = ?1 AND number > ?2 AND state < ?3 ORDER BY number LIMIT ?4",
    )?;
    let rows = statement.query_map(params![key.0, after, COMPLETED, most(limit)], |row| {
        Ok(UnfinishedLine { number: row.get(0)?, custom_id: row.get(1)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
