//! Who works on batches: leases, and taking what a lapsed one has.
//!
//! Fencing is by the row: whoever has none is nobody, whatever it believes. The row goes in the same transaction that gives
//! away what it had, so there is no moment at which two have the same line.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::record::Holder;
use crate::{error::StoreError, record::UnixMillis};

/// No lease is longer. Ten minutes, like the longest that can be configured.
const LONGEST: Duration = Duration::from_secs(600);

/// A new one, which nobody was before.
pub(super) fn register(connection: &Connection, now: UnixMillis, lease: Duration) -> Result<Holder, StoreError> {
    take_lapsed(connection, now)?;
    let id = connection.prepare_cached("INSERT INTO holders (expires) VALUES (?1)")?.insert([end(now, lease)])?;
    u64::try_from(id).map(Holder).map_err(|_| StoreError::Failed("no holder numbers are left".into()))
}

/// Makes a lease longer, and ends those that are over. One that is over, and that nobody has noticed, goes on: nothing that
/// it has is another's. Whoever could not write for a while (a full disk) keeps what it has worked on.
pub(super) fn renew(
    connection: &Connection,
    holder: Holder,
    now: UnixMillis,
    lease: Duration,
) -> Result<(), StoreError> {
    // A clock that was set back must not make a lease shorter.
    let renewed = connection
        .prepare_cached("UPDATE holders SET expires = max(expires, ?2) WHERE id = ?1")?
        .execute(params![holder.0, end(now, lease)])?;
    if renewed == 0 {
        return Err(StoreError::LostClaim);
    }
    take_lapsed(connection, now)
}

/// Ends one. Nothing happens if it has ended.
pub(super) fn resign(connection: &Connection, holder: Holder) -> Result<(), StoreError> {
    connection
        .prepare_cached("UPDATE lines SET state = 0, holder = NULL WHERE state = 1 AND holder = ?1")?
        .execute([holder.0])?;
    connection.prepare_cached("UPDATE files SET deleted = 1, holder = NULL WHERE holder = ?1")?.execute([holder.0])?;
    connection
        .prepare_cached("UPDATE batches SET holder = NULL WHERE ended IS NULL AND holder = ?1")?
        .execute([holder.0])?;
    connection.prepare_cached("DELETE FROM holders WHERE id = ?1")?.execute([holder.0])?;
    Ok(())
}

/// Refuses one that has ended.
pub(super) fn alive(connection: &Connection, holder: Holder) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM holders WHERE id = ?1")?;
    statement.query_row([holder.0], |_| Ok(())).optional()?.ok_or(StoreError::LostClaim)
}

fn take_lapsed(connection: &Connection, now: UnixMillis) -> Result<(), StoreError> {
    // One that ends later was given when the clock was ahead: whoever has it may be gone, and what it has would be nobody's until
    // the clock is there again.
    connection.prepare_cached("UPDATE holders SET expires = ?1 WHERE expires > ?1")?.execute([end(now, LONGEST)])?;
    let mut statement = connection.prepare_cached("SELECT id FROM holders WHERE expires <= ?1")?;
    let lapsed: Vec<u64> = statement.query_map([now.0], |row| row.get(0))?.collect::<Result<_, _>>()?;
    lapsed.into_iter().try_for_each(|id| resign(connection, Holder(id)))
}

fn end(now: UnixMillis, lease: Duration) -> i64 {
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    i64::try_from(now.0).unwrap_or(i64::MAX).saturating_add(lease)
}
