//! Replicas: stated, changed, drained, removed.

use rusqlite::{Connection, OptionalExtension as _, Row, params, types::ValueRef};
use serde_json::{Map, Value, json};

use crate::{
    audit,
    error::StoreError,
    record::{
        By, NewReplica, Origin, Proof, Put, ReplicaPatch, ReplicaRecord, ReplicaSecret, ReplicaSource, StatedFields,
        UnixMillis, Verification,
    },
    speed,
};

const COLUMNS: &str = "id, url, name, models, slots, context_tokens, dialect, labels, expires_at, cost_acu_per_day, \
                       api_key, drained, source, created, updated, prefill_rate, decode_rate, deployment, processor, \
                       public_key, pin, verification, announced, proven, \
                       proven_models, held, claimed_cost_acu_per_day";

fn from_row(row: &Row<'_>) -> rusqlite::Result<ReplicaRecord> {
    let source = named(row, 12, &ReplicaSource::ALL, |source| source.name())?;
    let verification = named(row, 21, &Verification::ALL, |level| level.name())?;
    Ok(ReplicaRecord {
        id: row.get(0)?,
        url: row.get(1)?,
        name: row.get(2)?,
        stated: StatedFields {
            models: audit::json(row, 3)?,
            slots: row.get(4)?,
            context_tokens: row.get(5)?,
            dialect: row.get(6)?,
            labels: audit::json(row, 7)?,
            expires_at: row.get(8)?,
            cost_acu_per_day: row.get(9)?,
            prefill_rate: row.get(15)?,
            decode_rate: row.get(16)?,
            held: audit::json(row, 25)?,
            claimed_cost_acu_per_day: row.get(26)?,
        },
        api_key: row.get::<_, Option<String>>(10)?.map(ReplicaSecret),
        drained: row.get(11)?,
        source,
        created: UnixMillis(row.get(13)?),
        updated: UnixMillis(row.get(14)?),
        origin: Origin {
            deployment: row.get(17)?,
            processor: row.get(18)?,
            public_key: row.get(19)?,
            pin: row.get(20)?,
            verification,
            announced: row.get::<_, Option<u64>>(22)?.map(UnixMillis),
        },
        proven: proof(row)?,
    })
}

fn proof(row: &Row<'_>) -> rusqlite::Result<Option<Proof>> {
    let Some(at) = row.get::<_, Option<u64>>(23)?.map(UnixMillis) else { return Ok(None) };
    let has_models = row.get_ref(24)? != ValueRef::Null;
    let models = has_models.then(|| audit::json(row, 24)).transpose()?;
    Ok(Some(Proof { at, models }))
}

/// Reads a column that has the name of one of `all`.
fn named<T: Copy>(row: &Row<'_>, column: usize, all: &[T], name: impl Fn(T) -> &'static str) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    all.iter().copied().find(|known| name(*known) == text).ok_or_else(|| {
        let why = format!("nothing is called {text:?} there");
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, why.into())
    })
}

/// All replicas, by number.
pub(crate) fn all(connection: &Connection) -> Result<Vec<ReplicaRecord>, StoreError> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM replicas ORDER BY id"))?;
    let rows = statement.query_map([], from_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn by_url(connection: &Connection, url: &str) -> Result<Option<ReplicaRecord>, StoreError> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM replicas WHERE url = ?1"))?;
    Ok(statement.query_row([url], from_row).optional()?)
}

/// The replica with a number.
pub(crate) fn by_id(connection: &Connection, id: u32) -> Result<ReplicaRecord, StoreError> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM replicas WHERE id = ?1"))?;
    statement.query_row([id], from_row).optional()?.ok_or(StoreError::UnknownReplica(id))
}

/// Adds a replica, or states the one at that address anew; whether it is drained stays as it is.
pub(crate) fn put(connection: &Connection, by: &By, new: NewReplica) -> Result<Put<ReplicaRecord>, StoreError> {
    let NewReplica { url, name, stated, api_key, source, origin } = new;
    if let Some(old) = by_url(connection, &url)? {
        let origin = origin.unwrap_or_else(|| old.origin.clone());
        let wanted = ReplicaRecord { name, stated, api_key, source, origin, ..old.clone() };
        return write(connection, by, "replica.update", &old, wanted);
    }
    let blank = ReplicaRecord {
        id: 0,
        url,
        name,
        stated,
        api_key,
        drained: false,
        source,
        origin: origin.unwrap_or_default(),
        proven: None,
        created: by.at,
        updated: by.at,
    };
    let mut statement = connection.prepare_cached(
        "INSERT INTO replicas (url, name, models, slots, context_tokens, dialect, labels, expires_at, \
         cost_acu_per_day, api_key, drained, source, created, updated, prefill_rate, decode_rate, \
         deployment, processor, public_key, pin, verification, announced, held, \
         claimed_cost_acu_per_day) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, ?11, ?12, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)",
    )?;
    let stated = &blank.stated;
    let id = statement.insert(params![
        blank.url,
        blank.name,
        audit::to_json(&stated.models)?,
        stated.slots,
        stated.context_tokens,
        stated.dialect,
        audit::to_json(&stated.labels)?,
        stated.expires_at,
        stated.cost_acu_per_day,
        blank.api_key.as_ref().map(|secret| &secret.0),
        blank.source.name(),
        by.at.0,
        stated.prefill_rate,
        stated.decode_rate,
        blank.origin.deployment,
        blank.origin.processor,
        blank.origin.public_key,
        blank.origin.pin,
        blank.origin.verification.name(),
        blank.origin.announced.map(|at| at.0),
        audit::to_json(&stated.held)?,
        stated.claimed_cost_acu_per_day,
    ])?;
    let id = u32::try_from(id).map_err(|_| StoreError::Failed("no replica numbers are left".into()))?;
    let record = ReplicaRecord { id, ..blank };
    audit::write(connection, by, "replica.add", &target(id), &Value::Object(shown(&record)))?;
    Ok(Put::Created(record))
}

/// Changes what a patch names.
pub(crate) fn patch(
    connection: &Connection,
    by: &By,
    id: u32,
    patch: ReplicaPatch,
) -> Result<Put<ReplicaRecord>, StoreError> {
    let old = by_id(connection, id)?;
    let before = old.stated.clone();
    let stated = StatedFields {
        models: patch.models.unwrap_or(before.models),
        slots: patch.slots.unwrap_or(before.slots),
        context_tokens: patch.context_tokens.unwrap_or(before.context_tokens),
        dialect: patch.dialect.unwrap_or(before.dialect),
        labels: patch.labels.unwrap_or(before.labels),
        expires_at: patch.expires_at.unwrap_or(before.expires_at),
        cost_acu_per_day: patch.cost_acu_per_day.unwrap_or(before.cost_acu_per_day),
        prefill_rate: patch.prefill_rate.unwrap_or(before.prefill_rate),
        decode_rate: patch.decode_rate.unwrap_or(before.decode_rate),
        claimed_cost_acu_per_day: before.claimed_cost_acu_per_day,
        held: patch.held.unwrap_or(before.held),
    };
    let name = patch.name.unwrap_or_else(|| old.name.clone());
    let api_key = patch.api_key.unwrap_or_else(|| old.api_key.clone());
    write(connection, by, "replica.update", &old, ReplicaRecord { name, stated, api_key, ..old.clone() })
}

/// Takes a replica out of use, or back.
pub(crate) fn set_drained(
    connection: &Connection,
    by: &By,
    id: u32,
    drained: bool,
) -> Result<Put<ReplicaRecord>, StoreError> {
    let old = by_id(connection, id)?;
    let action = if drained { "replica.drain" } else { "replica.undrain" };
    write(connection, by, action, &old, ReplicaRecord { drained, ..old.clone() })
}

/// Another address for the same replica: its number, its speeds and whether it is drained stay. What it proved, it proved
/// of the address before, unless it is sure that it is the same phone (`is_same`).
pub(crate) fn relocate(
    connection: &Connection,
    by: &By,
    id: u32,
    new: NewReplica,
    is_same: bool,
) -> Result<Put<ReplicaRecord>, StoreError> {
    let old = by_id(connection, id)?;
    let NewReplica { url, name, stated, api_key, source, origin } = new;
    let proven = old.proven.clone().filter(|_| is_same || old.url == url);
    let origin = origin.unwrap_or_else(|| old.origin.clone());
    let wanted = ReplicaRecord { url, name, stated, api_key, source, origin, proven, ..old.clone() };
    write(connection, by, "replica.move", &old, wanted)
}

/// Notes how a replica proved itself at the address that it has, or that it has to do so again.
pub(crate) fn set_proven(
    connection: &Connection,
    by: &By,
    id: u32,
    proven: Option<Proof>,
) -> Result<Put<ReplicaRecord>, StoreError> {
    let old = by_id(connection, id)?;
    let action = if proven.is_some() { "replica.prove" } else { "replica.doubt" };
    write(connection, by, action, &old, ReplicaRecord { proven, ..old.clone() })
}

/// Forgets a replica; its number is not given again. `None`: there was none.
pub(crate) fn remove(connection: &Connection, by: &By, id: u32) -> Result<Option<ReplicaRecord>, StoreError> {
    let old = match by_id(connection, id) {
        Err(StoreError::UnknownReplica(_)) => return Ok(None),
        old => old?,
    };
    connection.prepare_cached("DELETE FROM replicas WHERE id = ?1")?.execute([id])?;
    speed::remove(connection, id)?;
    audit::write(connection, by, "replica.remove", &target(id), &Value::Object(shown(&old)))?;
    Ok(Some(old))
}

/// Writes a changed record with its audit row, or nothing if nothing changed. That it announced itself again is no change.
fn write(
    connection: &Connection,
    by: &By,
    action: &str,
    old: &ReplicaRecord,
    wanted: ReplicaRecord,
) -> Result<Put<ReplicaRecord>, StoreError> {
    if *old == wanted {
        return Ok(Put::Unchanged(wanted));
    }
    let difference = difference(old, &wanted);
    let is_news = difference.as_object().is_some_and(|fields| !fields.is_empty());
    let new = ReplicaRecord { updated: if is_news { by.at } else { old.updated }, ..wanted };
    let mut statement = connection.prepare_cached(
        "UPDATE replicas SET name = ?2, models = ?3, slots = ?4, context_tokens = ?5, dialect = ?6, labels = ?7, \
         expires_at = ?8, cost_acu_per_day = ?9, api_key = ?10, drained = ?11, source = ?12, updated = ?13, \
         prefill_rate = ?14, decode_rate = ?15, url = ?16, deployment = ?17, processor = ?18, public_key = ?19, \
         pin = ?20, verification = ?21, announced = ?22, proven = ?23, proven_models = ?24, held = ?25, claimed_cost_acu_per_day = ?26 WHERE id = ?1",
    )?;
    let stated = &new.stated;
    statement.execute(params![
        new.id,
        new.name,
        audit::to_json(&stated.models)?,
        stated.slots,
        stated.context_tokens,
        stated.dialect,
        audit::to_json(&stated.labels)?,
        stated.expires_at,
        stated.cost_acu_per_day,
        new.api_key.as_ref().map(|secret| &secret.0),
        new.drained,
        new.source.name(),
        new.updated.0,
        stated.prefill_rate,
        stated.decode_rate,
        new.url,
        new.origin.deployment,
        new.origin.processor,
        new.origin.public_key,
        new.origin.pin,
        new.origin.verification.name(),
        new.origin.announced.map(|at| at.0),
        new.proven.as_ref().map(|proof| proof.at.0),
        new.proven.as_ref().and_then(|proof| proof.models.as_ref()).map(audit::to_json).transpose()?,
        audit::to_json(&stated.held)?,
        stated.claimed_cost_acu_per_day,
    ])?;
    if !is_news {
        return Ok(Put::Unchanged(new));
    }
    audit::write(connection, by, action, &target(new.id), &difference)?;
    Ok(Put::Updated(new))
}

fn target(id: u32) -> String {
    format!("replica:{id}")
}

/// A record for the audit trail: everything but its credential.
fn shown(record: &ReplicaRecord) -> Map<String, Value> {
    let mut fields = Map::new();
    if let Ok(Value::Object(stated)) = serde_json::to_value(&record.stated) {
        fields = stated;
    }
    fields.insert("url".into(), json!(record.url));
    fields.insert("name".into(), json!(record.name));
    fields.insert("drained".into(), json!(record.drained));
    fields.insert("source".into(), json!(record.source.name()));
    fields.insert("deployment".into(), json!(record.origin.deployment));
    fields.insert("processor".into(), json!(record.origin.processor));
    fields.insert("public_key".into(), json!(record.origin.public_key));
    fields.insert("pin".into(), json!(record.origin.pin));
    fields.insert("verification".into(), json!(record.origin.verification.name()));
    fields.insert("proven".into(), json!(record.proven));
    fields.insert("api_key".into(), if record.api_key.is_some() { json!("***") } else { Value::Null });
    fields
}

/// `{field: {"from", "to"}}` for every field that differs.
fn difference(old: &ReplicaRecord, new: &ReplicaRecord) -> Value {
    let (before, after) = (shown(old), shown(new));
    let changed = after.into_iter().filter(|(name, value)| before.get(name) != Some(value));
    let mut fields: Map<String, Value> =
        changed.map(|(name, to)| (name.clone(), json!({ "from": before.get(&name), "to": to }))).collect();
    if old.api_key != new.api_key {
        fields.entry("api_key").or_insert_with(|| json!({ "from": "***", "to": "***" }));
    }
    Value::Object(fields)
}
