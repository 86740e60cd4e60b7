//! Batches: made, sealed, ended. Their states and times only move forward.
//!
//! A batch is *sealed* when no line of it may be begun and no result taken any more. That is a column of its own, set
//! once: what a batch's files are written from can't change while they are written, whoever writes them and however
//! often.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde_json::Value;

use super::record::{
    BatchKey, BatchRecord, BatchState, BatchTimes, FileKey, Holder, LineCounts, NewBatch, Page, PageOf, Purpose, Seal,
    TokenUsage,
};
use crate::{
    audit,
    batch::{file, holder},
    error::StoreError,
    record::UnixMillis,
};

const COLUMNS: &str = "key, id, tenant, endpoint, input_file, input, completion_window, metadata, \
                       output_expires_after, state, seal, model, errors, output_file, error_file, created, expires, \
                       in_progress, finalizing, completed, failed, expired, cancelling, cancelled, lines, \
                       lines_completed, lines_failed, input_tokens, cached_tokens, output_tokens, permissions";

const fn seal_name(seal: Seal) -> &'static str {
    match seal {
        Seal::Complete => "complete",
        Seal::Expired => "expired",
        Seal::Cancelled => "cancelled",
    }
}

fn seal_by_name(name: &str) -> Option<Seal> {
    [Seal::Complete, Seal::Expired, Seal::Cancelled].into_iter().find(|seal| seal_name(*seal) == name)
}

fn known<T>(column: usize, name: &str, value: Option<T>) -> rusqlite::Result<T> {
    value.ok_or_else(|| {
        let why = format!("no version has written {name:?} here");
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, why.into())
    })
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<BatchRecord> {
    let time = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<u64>>(column)?.map(UnixMillis));
    let state: String = row.get(9)?;
    let seal: Option<String> = row.get(10)?;
    let has_errors = row.get_ref(12)? != rusqlite::types::ValueRef::Null;
    Ok(BatchRecord {
        key: BatchKey(row.get(0)?),
        id: row.get(1)?,
        tenant: row.get(2)?,
        endpoint: row.get(3)?,
        input_file: row.get(4)?,
        input: FileKey(row.get(5)?),
        completion_window: row.get(6)?,
        metadata: audit::json(row, 7)?,
        permissions: audit::json(row, 30)?,
        output_expires_after: row.get::<_, Option<u64>>(8)?.map(Duration::from_millis),
        state: known(9, &state, BatchState::by_name(&state))?,
        seal: seal.map(|seal| known(10, &seal, seal_by_name(&seal))).transpose()?,
        model: row.get(11)?,
        errors: if has_errors { Some(audit::json(row, 12)?) } else { None },
        output_file: row.get(13)?,
        error_file: row.get(14)?,
        times: BatchTimes {
            created: UnixMillis(row.get(15)?),
            expires: UnixMillis(row.get(16)?),
            in_progress: time(17)?,
            finalizing: time(18)?,
            completed: time(19)?,
            failed: time(20)?,
            expired: time(21)?,
            cancelling: time(22)?,
            cancelled: time(23)?,
        },
        counts: LineCounts { total: row.get(24)?, completed: row.get(25)?, failed: row.get(26)? },
        usage: TokenUsage { input: row.get(27)?, cached: row.get(28)?, output: row.get(29)? },
    })
}

/// `now`, or when it reached the state that it is in, if a clock says that this is later.
fn not_before(times: &BatchTimes, now: UnixMillis) -> UnixMillis {
    let reached = [times.in_progress, times.finalizing, times.cancelling];
    reached.into_iter().flatten().fold(times.created.max(now), UnixMillis::max)
}

/// Makes a batch.
pub(super) fn create(connection: &Connection, new: &NewBatch) -> Result<BatchRecord, StoreError> {
    if let Some(made) = made_before(connection, new)? {
        return Ok(made);
    }
    let input = file::by_id(connection, &new.tenant, &new.input_file)?;
    if input.purpose != Purpose::Batch {
        return Err(StoreError::UnknownFile(input.id));
    }
    // Here, and not before: of many that come at once each must see the others.
    let open: u32 = connection
        .prepare_cached("SELECT count(*) FROM batches WHERE tenant = ?1 AND ended IS NULL")?
        .query_row([&new.tenant], |row| row.get(0))?;
    if open >= new.max_open {
        return Err(StoreError::TooManyOpen(new.max_open));
    }
    let mut statement = connection.prepare_cached(&format!(
        "INSERT INTO batches (id, tenant, endpoint, input_file, input, completion_window, metadata, \
         output_expires_after, state, created, expires, permissions, idempotency_key) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) RETURNING {COLUMNS}"
    ))?;
    let stay = new.output_expires_after.map(|stay| u64::try_from(stay.as_millis()).unwrap_or(i64::MAX as u64));
    let values = params![
        new.id,
        new.tenant,
        new.endpoint,
        input.id,
        input.key.0,
        new.completion_window,
        audit::to_json(&new.metadata)?,
        stay,
        BatchState::Validating.name(),
        new.created.0,
        new.expires.0,
        audit::to_json(&new.permissions)?,
        new.idempotency_key,
    ];
    Ok(statement.query_row(values, from_row)?)
}

/// The batch that this one is, if it was made before.
fn made_before(connection: &Connection, new: &NewBatch) -> Result<Option<BatchRecord>, StoreError> {
    let in_the_same_words = |batch: &BatchRecord| {
        (&batch.input_file, &batch.endpoint, &batch.completion_window, &batch.metadata, batch.output_expires_after)
            == (&new.input_file, &new.endpoint, &new.completion_window, &new.metadata, new.output_expires_after)
    };
    if let Some(key) = &new.idempotency_key {
        let sql = format!("SELECT {COLUMNS} FROM batches WHERE tenant = ?1 AND idempotency_key = ?2");
        let batch = connection.prepare_cached(&sql)?.query_row([&new.tenant, key], from_row).optional()?;
        return match batch {
            Some(batch) if !in_the_same_words(&batch) => Err(StoreError::KeyReused),
            batch => Ok(batch),
        };
    }
    let Some(since) = new.again_since else { return Ok(None) };
    let sql = format!("SELECT {COLUMNS} FROM batches WHERE tenant = ?1 AND created >= ?2 ORDER BY key DESC LIMIT 100");
    let mut statement = connection.prepare_cached(&sql)?;
    for batch in statement.query_map(params![new.tenant, since.0], from_row)? {
        let batch = batch?;
        if in_the_same_words(&batch) {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

/// A batch, of a tenant or of anybody.
pub(super) fn by_id(connection: &Connection, tenant: Option<&str>, id: &str) -> Result<BatchRecord, StoreError> {
    let mut statement = connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM batches WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)"))?;
    statement.query_row(params![id, tenant], from_row).optional()?.ok_or_else(|| StoreError::UnknownBatch(id.into()))
}

fn by_key(connection: &Connection, key: BatchKey) -> Result<BatchRecord, StoreError> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM batches WHERE key = ?1"))?;
    Ok(statement.query_row([key.0], from_row)?)
}

/// Some batches, of a tenant or of all.
pub(super) fn list(
    connection: &Connection,
    tenant: Option<&str>,
    page: &PageOf,
) -> Result<Page<BatchRecord>, StoreError> {
    let after = match &page.after {
        Some(id) => Some(i64::try_from(by_id(connection, tenant, id)?.key.0).unwrap_or(i64::MAX)),
        None => None,
    };
    let (cut, after) = file::beyond(page, after);
    let whose = if tenant.is_some() { "tenant = ?1" } else { "?1 IS NULL" };
    // The second argument is a page's of files.
    let mut statement =
        connection.prepare_cached(&format!("SELECT {COLUMNS} FROM batches WHERE {whose} AND ?2 IS NULL AND {cut}"))?;
    let wanted = params![tenant, None::<u8>, after, file::most(page.limit.saturating_add(1))];
    file::paged(page, statement.query_map(wanted, from_row)?)
}

/// All that are not terminal.
pub(super) fn open(connection: &Connection) -> Result<Vec<BatchRecord>, StoreError> {
    let mut statement =
        connection.prepare_cached(&format!("SELECT {COLUMNS} FROM batches WHERE ended IS NULL ORDER BY key"))?;
    Ok(statement.query_map([], from_row)?.collect::<Result<_, _>>()?)
}

/// Seals a batch in its owner's name.
pub(super) fn cancel(
    connection: &Connection,
    tenant: Option<&str>,
    id: &str,
    now: UnixMillis,
) -> Result<BatchRecord, StoreError> {
    let batch = by_id(connection, tenant, id)?;
    match (batch.state, batch.seal) {
        (BatchState::Validating | BatchState::InProgress, None) => {}
        (BatchState::Validating | BatchState::InProgress | BatchState::Cancelling, _) => return Ok(batch),
        (state, _) => return Err(StoreError::WrongState(state)),
    }
    let mut statement = connection.prepare_cached(&format!(
        "UPDATE batches SET seal = ?2, state = ?3, cancelling = ?4 WHERE key = ?1 RETURNING {COLUMNS}"
    ))?;
    let at = not_before(&batch.times, now);
    let values = params![batch.key.0, seal_name(Seal::Cancelled), BatchState::Cancelling.name(), at.0];
    Ok(statement.query_row(values, from_row)?)
}

/// Seals those whose time is over.
pub(super) fn expire(connection: &Connection, now: UnixMillis) -> Result<(), StoreError> {
    connection
        .prepare_cached("UPDATE batches SET seal = ?2 WHERE ended IS NULL AND seal IS NULL AND expires <= ?1")?
        .execute(params![now.0, seal_name(Seal::Expired)])?;
    Ok(())
}

/// Takes the work on a batch that one process does, if it is free.
pub(super) fn claim_job(connection: &Connection, worker: Holder, key: BatchKey) -> Result<bool, StoreError> {
    holder::alive(connection, worker)?;
    let claimed = connection
        .prepare_cached(
            "UPDATE batches SET holder = ?2 \
             WHERE key = ?1 AND ended IS NULL AND (holder IS NULL OR holder = ?2)",
        )?
        .execute([key.0, worker.0])?;
    Ok(claimed == 1)
}

/// Gives it back.
pub(super) fn release_job(connection: &Connection, worker: Holder, key: BatchKey) -> Result<(), StoreError> {
    connection
        .prepare_cached("UPDATE batches SET holder = NULL WHERE key = ?1 AND holder = ?2")?
        .execute([key.0, worker.0])?;
    Ok(())
}

/// The batch, if its work is this holder's.
fn job(connection: &Connection, worker: Holder, key: BatchKey) -> Result<BatchRecord, StoreError> {
    holder::alive(connection, worker)?;
    let mut statement = connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM batches WHERE key = ?1 AND holder = ?2 AND ended IS NULL"))?;
    statement.query_row([key.0, worker.0], from_row).optional()?.ok_or(StoreError::LostClaim)
}

/// The batch, if its work is this holder's and is to look at its lines.
pub(super) fn validation(connection: &Connection, worker: Holder, key: BatchKey) -> Result<BatchRecord, StoreError> {
    let batch = job(connection, worker, key)?;
    if batch.state == BatchState::Validating && batch.seal.is_none() { Ok(batch) } else { Err(StoreError::LostClaim) }
}

/// Lets the lines be claimed. A batch without any is complete.
pub(super) fn start(
    connection: &Connection,
    worker: Holder,
    key: BatchKey,
    model: &str,
    now: UnixMillis,
) -> Result<BatchRecord, StoreError> {
    let batch = validation(connection, worker, key)?;
    let total: u32 = connection
        .prepare_cached("SELECT count(*) FROM lines WHERE batch = ?1")?
        .query_row([key.0], |row| row.get(0))?;
    let at = not_before(&batch.times, now);
    connection
        .prepare_cached("UPDATE batches SET state = ?2, in_progress = ?3, model = ?4, lines = ?5 WHERE key = ?1")?
        .execute(params![key.0, BatchState::InProgress.name(), at.0, model, total])?;
    count(connection, key, LineCounts::default(), TokenUsage::default(), at)?;
    by_key(connection, key)
}

/// Adds to the counts of a batch that is in progress; with the last result it is sealed.
pub(super) fn count(
    connection: &Connection,
    key: BatchKey,
    more: LineCounts,
    usage: TokenUsage,
    now: UnixMillis,
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "UPDATE batches SET lines_completed = lines_completed + ?2, lines_failed = lines_failed + ?3, \
             input_tokens = input_tokens + ?4, cached_tokens = cached_tokens + ?5, output_tokens = output_tokens + ?6 \
             WHERE key = ?1",
        )?
        .execute(params![key.0, more.completed, more.failed, usage.input, usage.cached, usage.output])?;
    connection
        .prepare_cached(
            "UPDATE batches SET seal = ?2, state = ?3, finalizing = max(?4, in_progress) \
             WHERE key = ?1 AND seal IS NULL AND lines_completed + lines_failed = lines",
        )?
        .execute(params![key.0, seal_name(Seal::Complete), BatchState::Finalizing.name(), now.0])?;
    Ok(())
}

/// Ends a batch with a line that was wrong. Its lines go.
pub(super) fn fail(
    connection: &Connection,
    worker: Holder,
    key: BatchKey,
    errors: &Value,
    now: UnixMillis,
) -> Result<BatchRecord, StoreError> {
    let batch = validation(connection, worker, key)?;
    connection.prepare_cached("DELETE FROM lines WHERE batch = ?1")?.execute([key.0])?;
    let mut statement = connection.prepare_cached(&format!(
        "UPDATE batches SET state = ?2, failed = ?3, ended = ?3, errors = ?4, holder = NULL \
         WHERE key = ?1 RETURNING {COLUMNS}"
    ))?;
    let at = not_before(&batch.times, now);
    let values = params![key.0, BatchState::Failed.name(), at.0, audit::to_json(errors)?];
    Ok(statement.query_row(values, from_row)?)
}

/// Ends a sealed batch.
pub(super) fn close(
    connection: &Connection,
    worker: Holder,
    key: BatchKey,
    output: Option<FileKey>,
    errors: Option<FileKey>,
    now: UnixMillis,
) -> Result<BatchRecord, StoreError> {
    let batch = job(connection, worker, key)?;
    let state = match batch.seal.ok_or(StoreError::LostClaim)? {
        Seal::Complete => BatchState::Completed,
        Seal::Expired => BatchState::Expired,
        Seal::Cancelled => BatchState::Cancelled,
    };
    let show = |file: Option<FileKey>| -> Result<Option<String>, StoreError> {
        let Some(file) = file else { return Ok(None) };
        if !file::is_unfinished(connection, worker, &batch.tenant, file)? {
            return Err(StoreError::LostClaim);
        }
        // Of lines that were not all looked at there is nothing to say.
        if batch.times.in_progress.is_none() {
            return file::abandon(connection, file).map(|()| None);
        }
        Ok(Some(file::finish(connection, file, None)?.id))
    };
    let (output, errors) = (show(output)?, show(errors)?);
    let mut statement = connection.prepare_cached(&format!(
        "UPDATE batches SET state = ?2, {} = ?3, ended = ?3, output_file = ?4, error_file = ?5, \
         lines_failed = lines - lines_completed, holder = NULL WHERE key = ?1 RETURNING {COLUMNS}",
        state.name()
    ))?;
    let at = not_before(&batch.times, now);
    Ok(statement.query_row(params![key.0, state.name(), at.0, output, errors], from_row)?)
}
