//! How fast replicas were: measured by the gateway, kept so that a restart does not begin with guesses.
//!
//! Measurements are nobody's change: they leave no audit row. They go with their replica.

use rusqlite::{Connection, params};

use crate::{
    audit,
    error::StoreError,
    record::{Speed, UnixMillis},
};

/// All of them, by replica.
pub(crate) fn all(connection: &Connection) -> Result<Vec<Speed>, StoreError> {
    let mut statement = connection
        .prepare_cached("SELECT replica, models, prefill_rate, decode_rate, measured FROM speeds ORDER BY replica")?;
    let rows = statement.query_map([], |row| {
        Ok(Speed {
            replica: row.get(0)?,
            models: audit::json(row, 1)?,
            prefill_rate: row.get(2)?,
            decode_rate: row.get(3)?,
            measured: UnixMillis(row.get(4)?),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Keeps a measurement in place of the last one of its replica, unless that is gone or a newer one is kept.
pub(crate) fn put(connection: &Connection, speed: &Speed) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO speeds (replica, models, prefill_rate, decode_rate, measured) \
         SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM replicas WHERE id = ?1) \
         ON CONFLICT (replica) DO UPDATE SET models = excluded.models, prefill_rate = excluded.prefill_rate, \
         decode_rate = excluded.decode_rate, measured = excluded.measured WHERE excluded.measured >= measured",
    )?;
    let models = audit::to_json(&speed.models)?;
    statement.execute(params![speed.replica, models, speed.prefill_rate, speed.decode_rate, speed.measured.0])?;
    Ok(())
}

/// Forgets a replica's.
pub(crate) fn remove(connection: &Connection, replica: u32) -> Result<(), StoreError> {
    connection.prepare_cached("DELETE FROM speeds WHERE replica = ?1")?.execute([replica])?;
    Ok(())
}
