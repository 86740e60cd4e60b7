//! Keys: made, listed, revoked; and the installation's pepper.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde_json::json;

use crate::{
    audit,
    error::StoreError,
    record::{By, KeyRecord, NewKey, Put, UnixMillis},
};

const COLUMNS: &str = "id, tenant, prefix, digest, limits, models, class, max_class, created, revoked";

fn from_row(row: &Row<'_>) -> rusqlite::Result<KeyRecord> {
    Ok(KeyRecord {
        id: row.get(0)?,
        key: NewKey {
            tenant: row.get(1)?,
            prefix: row.get(2)?,
            digest: row.get(3)?,
            limits: audit::json(row, 4)?,
            models: audit::json(row, 5)?,
            class: row.get(6)?,
            max_class: row.get(7)?,
        },
        created: UnixMillis(row.get(8)?),
        revoked: row.get::<_, Option<u64>>(9)?.map(UnixMillis),
    })
}

/// All keys, revoked ones too, by number.
pub(crate) fn all(connection: &Connection) -> Result<Vec<KeyRecord>, StoreError> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM keys ORDER BY id"))?;
    let rows = statement.query_map([], from_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Adds a key.
pub(crate) fn create(connection: &Connection, by: &By, new: NewKey) -> Result<KeyRecord, StoreError> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO keys (tenant, prefix, digest, limits, models, class, max_class, created) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    let inserted = statement.insert(params![
        new.tenant,
        new.prefix,
        new.digest,
        audit::to_json(&new.limits)?,
        audit::to_json(&new.models)?,
        new.class,
        new.max_class,
        by.at.0,
    ]);
    let id = match inserted {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) => {
            return Err(StoreError::DuplicateKey);
        }
        id => u32::try_from(id?).map_err(|_| StoreError::Failed("no key numbers are left".into()))?,
    };
    let detail = json!({
        "tenant": new.tenant, "prefix": new.prefix, "limits": new.limits, "models": new.models,
        "class": new.class, "max_class": new.max_class,
    });
    audit::write(connection, by, "key.create", &format!("key:{id}"), &detail)?;
    Ok(KeyRecord { id, key: new, created: by.at, revoked: None })
}

/// Ends a key.
pub(crate) fn revoke(connection: &Connection, by: &By, id: u32) -> Result<Put<KeyRecord>, StoreError> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM keys WHERE id = ?1"))?;
    let old = statement.query_row([id], from_row).optional()?.ok_or(StoreError::UnknownKey(id))?;
    if old.revoked.is_some() {
        return Ok(Put::Unchanged(old));
    }
    connection.prepare_cached("UPDATE keys SET revoked = ?2 WHERE id = ?1")?.execute(params![id, by.at.0])?;
    let detail = json!({ "tenant": old.key.tenant, "prefix": old.key.prefix });
    audit::write(connection, by, "key.revoke", &format!("key:{id}"), &detail)?;
    Ok(Put::Updated(KeyRecord { revoked: Some(by.at), ..old }))
}

/// The installation's pepper: the kept one, or else `fresh`, which is kept from now on.
pub(crate) fn pepper(connection: &Connection, by: &By, fresh: [u8; 32]) -> Result<[u8; 32], StoreError> {
    let kept = connection.query_row("SELECT value FROM meta WHERE name = 'pepper'", [], |row| row.get(0)).optional()?;
    if let Some(pepper) = kept {
        return Ok(pepper);
    }
    connection.execute("INSERT INTO meta (name, value) VALUES ('pepper', ?1)", [fresh])?;
    audit::write(connection, by, "pepper.create", "meta:pepper", &json!({}))?;
    Ok(fresh)
}
