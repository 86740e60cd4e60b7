//! The tables, and how an older file becomes a newer one.
//!
//! The file's `user_version` is the number of steps it has taken. Steps are only ever added, never edited: each runs in
//! one transaction with its version, so that a crash leaves the file before or after a step, never within.

use rusqlite::Connection;

use crate::error::StoreError;

/// A kind of database.
#[derive(Debug)]
pub(crate) struct Schema {
    /// Marks the file as ours, so that a wrong path never damages another program's database, or the other one of ours.
    pub(crate) application_id: i32,
    /// All steps, the first for an empty file.
    pub(crate) migrations: &'static [&'static str],
    /// What is looked at when it is opened.
    pub(crate) checked: Checked,
    /// Whether its file gets shorter when rows go.
    pub(crate) gives_back: bool,
}

/// What is looked at when a database is opened, before anything is written to it.
#[derive(Debug)]
pub(crate) enum Checked {
    /// All of it.
    Everything,
    /// These tables of the first step, and their indices.
    Tables(&'static [&'static str]),
}

/// Replicas, keys and the audit trail ("hunt").
pub(crate) const STATE: Schema = Schema {
    application_id: 0x6875_6e74,
    migrations: &[
        include_str!("schema/0001-replicas-keys-audit.sql"),
        include_str!("schema/0002-speeds.sql"),
        include_str!("schema/0003-origin.sql"),
        include_str!("schema/0004-proven-models.sql"),
        include_str!("schema/0005-held.sql"),
        include_str!("schema/0006-claimed-cost.sql"),
    ],
    checked: Checked::Everything,
    gives_back: false,
};

/// Files and batches ("hunb"). It may hold gigabytes, and a check reads what it checks: of these tables, which have a row
/// for each file and batch, it takes milliseconds; of all, minutes in which no batch would run. A damaged page elsewhere
/// fails the call that reads it.
pub(crate) const BATCHES: Schema = Schema {
    application_id: 0x6875_6e62,
    migrations: &[include_str!("schema/batches-0001.sql")],
    checked: Checked::Tables(&["holders", "files", "batches"]),
    gives_back: true,
};

/// Takes the steps that the file has not taken.
///
/// # Errors
/// A step failed; the file is as it was before it.
pub(crate) fn migrate(connection: &mut Connection, application_id: i32, steps: &[&str]) -> Result<(), StoreError> {
    let taken = version(connection)?;
    for (number, step) in (1_u32..).zip(steps).skip(taken as usize) {
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        // Another process may have taken it while this one waited for the lock.
        if version(&transaction)? < number {
            transaction.execute_batch(step)?;
            transaction.pragma_update(None, "application_id", application_id)?;
            transaction.pragma_update(None, "user_version", number)?;
        }
        transaction.commit()?;
    }
    Ok(())
}

/// How many steps the file has taken.
pub(crate) fn version(connection: &Connection) -> Result<u32, StoreError> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(connection: &Connection) -> Vec<String> {
        let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
        let mut statement = connection.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn step_1_makes_the_tables_of_an_empty_file() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, STATE.application_id, &STATE.migrations[..1]).unwrap();
        assert_eq!(version(&connection).unwrap(), 1);
        assert_eq!(names(&connection), ["audit", "keys", "meta", "replicas"]);
    }

    #[test]
    fn step_2_keeps_the_replicas_and_states_no_speed_for_them() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, STATE.application_id, &STATE.migrations[..1]).unwrap();
        let row = "INSERT INTO replicas (url, name, models, labels, drained, source, created, updated) \
                   VALUES ('https://a.acu.run', 'a', '{}', '{}', 0, 'admin', 1, 1)";
        connection.execute_batch(row).unwrap();
        migrate(&mut connection, STATE.application_id, &STATE.migrations[..2]).unwrap();
        let kept: (String, Option<f64>, Option<f64>) = connection
            .query_row("SELECT name, prefill_rate, decode_rate FROM replicas", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .unwrap();
        assert_eq!(kept, ("a".into(), None, None));
        assert_eq!(names(&connection), ["audit", "keys", "meta", "replicas", "speeds"]);
    }

    #[test]
    fn step_3_keeps_the_replicas_as_ones_that_announced_nothing_and_proved_nothing() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, STATE.application_id, &STATE.migrations[..2]).unwrap();
        let row = "INSERT INTO replicas (url, name, models, labels, drained, source, created, updated) \
                   VALUES ('https://a.acu.run', 'a', '{}', '{}', 0, 'admin', 1, 1)";
        connection.execute_batch(row).unwrap();
        migrate(&mut connection, STATE.application_id, &STATE.migrations[..3]).unwrap();
        let kept: (String, String, Option<u64>, Option<u64>) = connection
            .query_row("SELECT name, verification, announced, proven FROM replicas", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })
            .unwrap();
        assert_eq!(kept, ("a".into(), "none".into(), None, None));
    }

    #[test]
    fn step_4_keeps_what_was_proved_whatever_the_models_were() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, STATE.application_id, &STATE.migrations[..3]).unwrap();
        let row = "INSERT INTO replicas (url, name, models, labels, drained, source, created, updated, proven) \
                   VALUES ('https://a.acu.run', 'a', '{}', '{}', 0, 'registration', 1, 1, 7)";
        connection.execute_batch(row).unwrap();
        migrate(&mut connection, STATE.application_id, &STATE.migrations[..4]).unwrap();
        let kept: (Option<u64>, Option<String>) = connection
            .query_row("SELECT proven, proven_models FROM replicas", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!(kept, (Some(7), None));
    }

    #[test]
    fn step_6_makes_claims_of_the_prices_that_nobody_vouches_for() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, STATE.application_id, &STATE.migrations[..5]).unwrap();
        for (name, source, verification, held) in [
            ("claims", "registration", "signed", "[\"slots\"]"),
            ("held", "registration", "token", "[\"cost_acu_per_day\"]"),
            ("listed", "registration", "assigned", "[]"),
            ("operators", "admin", "none", "[]"),
        ] {
            let row = "INSERT INTO replicas (url, name, models, labels, drained, source, created, updated, \
                       verification, held, cost_acu_per_day) VALUES (?1, ?1, '{}', '{}', 0, ?2, 1, 1, ?3, ?4, 0.5)";
            connection.execute(row, [name, source, verification, held]).unwrap();
        }
        migrate(&mut connection, STATE.application_id, &STATE.migrations[..6]).unwrap();
        let sql = "SELECT name FROM replicas WHERE cost_acu_per_day IS NULL AND claimed_cost_acu_per_day = 0.5";
        let claims: String = connection.query_row(sql, [], |row| row.get(0)).unwrap();
        let sql = "SELECT count(*) FROM replicas WHERE cost_acu_per_day = 0.5 AND claimed_cost_acu_per_day IS NULL";
        let others: u32 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!((claims.as_str(), others), ("claims", 3));
    }

    #[test]
    fn steps_are_taken_once_and_in_order() {
        let mut connection = Connection::open_in_memory().unwrap();
        let steps = ["CREATE TABLE a (x)", "ALTER TABLE a ADD COLUMN y", "INSERT INTO a VALUES (1, 2)"];
        migrate(&mut connection, STATE.application_id, &steps[..1]).unwrap();
        migrate(&mut connection, STATE.application_id, &steps).unwrap();
        migrate(&mut connection, STATE.application_id, &steps).unwrap();
        let rows: u32 = connection.query_row("SELECT count(*) FROM a WHERE y = 2", [], |row| row.get(0)).unwrap();
        assert_eq!((rows, version(&connection).unwrap()), (1, 3));
    }

    #[test]
    fn a_step_that_fails_leaves_the_file_as_it_was_before_it() {
        let mut connection = Connection::open_in_memory().unwrap();
        let steps = ["CREATE TABLE a (x)", "CREATE TABLE b (x); INSERT INTO nowhere VALUES (1)"];
        migrate(&mut connection, STATE.application_id, &steps).unwrap_err();
        assert_eq!((names(&connection), version(&connection).unwrap()), (vec!["a".to_owned()], 1));
    }

    #[test]
    fn the_first_step_makes_the_tables_of_batches() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, BATCHES.application_id, &BATCHES.migrations[..1]).unwrap();
        assert_eq!(version(&connection).unwrap(), 1);
        assert_eq!(names(&connection), ["batches", "files", "holders", "lines", "pieces", "results"]);
        let Checked::Tables(checked) = BATCHES.checked else { panic!("it may be large") };
        assert!(checked.iter().all(|table| names(&connection).contains(&(*table).to_owned())));
    }

    #[test]
    fn the_schema_page_names_every_table_and_column() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema.md")).unwrap();
        let parts: Vec<&str> = page.split("\n# ").collect();
        assert_eq!(parts.len(), 2, "one for each kind of database");
        for (part, schema) in parts.into_iter().zip([STATE, BATCHES]) {
            let mut connection = Connection::open_in_memory().unwrap();
            migrate(&mut connection, schema.application_id, schema.migrations).unwrap();
            assert!(part.contains(&format!("version {}", schema.migrations.len())), "the page is for another version");
            assert!(part.contains(&format!("{:#x}", schema.application_id)), "the page has another mark");
            assert_eq!(documented(part), columns(&connection));
        }
    }

    /// Tables and columns of a part of the page.
    fn documented(part: &str) -> Vec<(String, String)> {
        let mut documented = Vec::new();
        for section in part.split("\n## ").skip(1) {
            let table = section.lines().next().unwrap_or("").trim_matches('`');
            let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
            documented.extend(rows.filter_map(|row| row.split('`').next()).map(|column| (table.into(), column.into())));
        }
        documented.sort();
        documented
    }

    /// Tables and columns of a database.
    fn columns(connection: &Connection) -> Vec<(String, String)> {
        let mut real = Vec::new();
        for table in names(connection) {
            let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?)").unwrap();
            let columns = statement.query_map([&table], |row| row.get::<_, String>(0)).unwrap();
            real.extend(columns.map(|column| (table.clone(), column.unwrap())));
        }
        real.sort();
        real
    }
}
