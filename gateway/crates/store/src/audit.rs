//! The audit trail: written in the transaction of each change, read newest first.

use rusqlite::{Connection, Row, params};
use serde_json::Value;

use crate::{
    error::StoreError,
    record::{AuditRecord, By, UnixMillis},
};

/// Most records of one reading.
pub(crate) const PAGE: usize = 1_000;

/// Writes the row that belongs to a change.
pub(crate) fn write(
    connection: &Connection,
    by: &By,
    action: &str,
    target: &str,
    detail: &Value,
) -> Result<(), StoreError> {
    let mut statement =
        connection.prepare_cached("INSERT INTO audit (at, who, action, target, detail) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    statement.execute(params![by.at.0, by.who, action, target, detail.to_string()])?;
    Ok(())
}

/// Reads records, newest first, those before a number if one is given.
pub(crate) fn read(connection: &Connection, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>, StoreError> {
    let before = before.and_then(|id| i64::try_from(id).ok()).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(
        "SELECT id, at, who, action, target, detail FROM audit WHERE id < ?1 ORDER BY id DESC LIMIT ?2",
    )?;
    let rows = statement.query_map(params![before, limit.min(PAGE)], from_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    Ok(AuditRecord {
        id: row.get(0)?,
        at: UnixMillis(row.get(1)?),
        who: row.get(2)?,
        action: row.get(3)?,
        target: row.get(4)?,
        detail: json(row, 5)?,
    })
}

/// Reads a column of JSON.
pub(crate) fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    serde_json::from_str(text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}

/// What is written to a column of JSON.
pub(crate) fn to_json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Failed(error.to_string()))
}
