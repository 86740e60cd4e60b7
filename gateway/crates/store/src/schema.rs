//! The tables, and how an older file becomes a newer one.
//!
//! The file's `user_version` is the number of steps it has taken. Steps are only ever added, never edited: each runs in
//! one transaction with its version, so that a crash leaves the file before or after a step, never within.

use rusqlite::Connection;

use crate::error::StoreError;

/// Marks the file as ours ("hunt"), so that a wrong path never damages another program's database.
pub(crate) const APPLICATION_ID: i32 = 0x6875_6e74;

/// All steps, the first for an empty file.
pub(crate) const MIGRATIONS: &[&str] =
    &[include_str!("schema/0001-replicas-keys-audit.sql"), include_str!("schema/0002-speeds.sql")];

/// Takes the steps that the file has not taken.
///
/// # Errors
/// A step failed; the file is as it was before it.
pub(crate) fn migrate(connection: &mut Connection, steps: &[&str]) -> Result<(), StoreError> {
    let taken = version(connection)?;
    for (number, step) in (1_u32..).zip(steps).skip(taken as usize) {
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        // Another process may have taken it while this one waited for the lock.
        if version(&transaction)? < number {
            transaction.execute_batch(step)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
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
        migrate(&mut connection, &MIGRATIONS[..1]).unwrap();
        assert_eq!(version(&connection).unwrap(), 1);
        assert_eq!(names(&connection), ["audit", "keys", "meta", "replicas"]);
    }

    #[test]
    fn step_2_keeps_the_replicas_and_states_no_speed_for_them() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &MIGRATIONS[..1]).unwrap();
        let row = "INSERT INTO replicas (url, name, models, labels, drained, source, created, updated) \
                   VALUES ('https://a.acu.run', 'a', '{}', '{}', 0, 'admin', 1, 1)";
        connection.execute_batch(row).unwrap();
        migrate(&mut connection, &MIGRATIONS[..2]).unwrap();
        let kept: (String, Option<f64>, Option<f64>) = connection
            .query_row("SELECT name, prefill_rate, decode_rate FROM replicas", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .unwrap();
        assert_eq!(kept, ("a".into(), None, None));
        assert_eq!(names(&connection), ["audit", "keys", "meta", "replicas", "speeds"]);
    }

    #[test]
    fn steps_are_taken_once_and_in_order() {
        let mut connection = Connection::open_in_memory().unwrap();
        let steps = ["CREATE TABLE a (x)", "ALTER TABLE a ADD COLUMN y", "INSERT INTO a VALUES (1, 2)"];
        migrate(&mut connection, &steps[..1]).unwrap();
        migrate(&mut connection, &steps).unwrap();
        migrate(&mut connection, &steps).unwrap();
        let rows: u32 = connection.query_row("SELECT count(*) FROM a WHERE y = 2", [], |row| row.get(0)).unwrap();
        assert_eq!((rows, version(&connection).unwrap()), (1, 3));
    }

    #[test]
    fn a_step_that_fails_leaves_the_file_as_it_was_before_it() {
        let mut connection = Connection::open_in_memory().unwrap();
        let steps = ["CREATE TABLE a (x)", "CREATE TABLE b (x); INSERT INTO nowhere VALUES (1)"];
        migrate(&mut connection, &steps).unwrap_err();
        assert_eq!((names(&connection), version(&connection).unwrap()), (vec!["a".to_owned()], 1));
    }

    #[test]
    fn the_schema_page_names_every_table_and_column() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, MIGRATIONS).unwrap();
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema.md")).unwrap();
        assert!(page.contains(&format!("version {}", MIGRATIONS.len())), "the page is for another version");
        let documented: Vec<(&str, &str)> = page
            .split("\n## ")
            .skip(1)
            .flat_map(|part| {
                let table = part.lines().next().unwrap_or("").trim_matches('`');
                let rows =
                    part.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|row| row.split('`').next());
                rows.map(move |column| (table, column)).collect::<Vec<_>>()
            })
            .collect();
        let mut real = Vec::new();
        for table in names(&connection) {
            let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?)").unwrap();
            let columns = statement.query_map([&table], |row| row.get::<_, String>(0)).unwrap();
            real.extend(columns.map(|column| (table.clone(), column.unwrap())));
        }
        let mut documented: Vec<_> = documented.iter().map(|(t, c)| ((*t).to_owned(), (*c).to_owned())).collect();
        documented.sort();
        real.sort();
        assert_eq!(documented, real);
    }
}
