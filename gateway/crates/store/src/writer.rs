//! The thread that owns the connection, and the commit that waiting calls share.
//!
//! A sync to disk takes milliseconds, whatever is in it. So the thread takes every call that waits when it is free, runs
//! each inside its own savepoint of one transaction, commits once, and only then answers them all. A call that fails
//! undoes only itself; a commit that fails fails all of them. Nobody hears "done" before it is durable.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use rusqlite::{Connection, Savepoint, TransactionBehavior};

use crate::{error::StoreError, open::OpenedFile};

/// Calls that wait. 256: more callers than that wait in their own threads, which is back-pressure.
const QUEUE: usize = 256;
/// Calls that share a commit: bounds how long the first of them waits for the last.
const GROUP: usize = 128;

/// A call on its way through the thread.
trait Call: Send {
    /// Runs inside the transaction; its result is kept back.
    fn run(&mut self, savepoint: &mut Savepoint<'_>) -> Result<(), StoreError>;
    /// The commit is through, or is not.
    fn finish(self: Box<Self>, commit: Result<(), StoreError>);
}

struct Pending<F, T> {
    body: Option<F>,
    result: Option<Result<T, StoreError>>,
    answer: SyncSender<Result<T, StoreError>>,
}

impl<F, T> Call for Pending<F, T>
where
    F: FnOnce(&mut Savepoint<'_>) -> Result<T, StoreError> + Send,
    T: Send,
{
    fn run(&mut self, savepoint: &mut Savepoint<'_>) -> Result<(), StoreError> {
        let Some(body) = self.body.take() else { return Err(StoreError::Closed) };
        match body(savepoint) {
            Ok(value) => {
                self.result = Some(Ok(value));
                Ok(())
            }
            Err(error) => {
                self.result = Some(Err(error.clone()));
                Err(error)
            }
        }
    }

    fn finish(self: Box<Self>, commit: Result<(), StoreError>) {
        let result = match (self.result, commit) {
            (Some(Ok(value)), Ok(())) => Ok(value),
            (Some(Err(error)), _) | (_, Err(error)) => Err(error),
            (None, Ok(())) => Err(StoreError::Closed),
        };
        // The caller may have given up; the change stands either way.
        self.answer.send(result).unwrap_or_default();
    }
}

/// The way to the thread. Dropping it lets the thread finish what waits, close the database, and end.
pub(crate) struct Writer {
    calls: Option<SyncSender<Box<dyn Call>>>,
    thread: Option<JoinHandle<()>>,
    /// The last call failed by the database's fault.
    failing: AtomicBool,
    /// Calls that failed by the database's fault.
    failures: AtomicU64,
}

impl Writer {
    /// Starts the thread.
    pub(crate) fn start(connection: Connection, file: Option<OpenedFile>) -> Result<Self, StoreError> {
        let (calls, waiting) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || work(connection, file.as_ref(), &waiting))
            .map_err(|error| StoreError::Failed(error.to_string()))?;
        Ok(Self {
            calls: Some(calls),
            thread: Some(thread),
            failing: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        })
    }

    /// A way to no thread: every call is answered with `Closed`.
    pub(crate) const fn closed() -> Self {
        Self { calls: None, thread: None, failing: AtomicBool::new(false), failures: AtomicU64::new(0) }
    }

    /// Runs `body` in a transaction and returns once that is durable.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        body: impl FnOnce(&mut Savepoint<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = sync_channel(1);
        let call = Box::new(Pending { body: Some(body), result: None, answer });
        let calls = self.calls.as_ref().ok_or(StoreError::Closed)?;
        let result = match calls.send(call) {
            Ok(()) => answered.recv().unwrap_or(Err(StoreError::Closed)),
            Err(_) => Err(StoreError::Closed),
        };
        let failed = result.as_ref().is_err_and(StoreError::is_of_the_database);
        self.failing.store(failed, Ordering::Relaxed);
        self.failures.fetch_add(u64::from(failed), Ordering::Relaxed);
        result
    }

    /// Whether the last call got what the database owes it.
    pub(crate) fn is_well(&self) -> bool {
        self.calls.is_some() && !self.failing.load(Ordering::Relaxed)
    }

    /// Calls that did not get what the database owes them. Those to no thread are not among them: there was no database to fail.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been answered with `Closed`; there is nobody left to tell.
            thread.join().unwrap_or_default();
        }
    }
}

fn work(mut connection: Connection, file: Option<&OpenedFile>, waiting: &Receiver<Box<dyn Call>>) {
    while let Ok(first) = waiting.recv() {
        let mut group = vec![first];
        group.extend(waiting.try_iter().take(GROUP - 1));
        let commit = file.map_or(Ok(()), OpenedFile::check).and_then(|()| run_group(&mut connection, &mut group));
        for call in group {
            call.finish(commit.clone());
        }
    }
}

fn run_group(connection: &mut Connection, group: &mut [Box<dyn Call>]) -> Result<(), StoreError> {
    let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for call in group {
        let mut savepoint = transaction.savepoint()?;
        // A panic in one call must not take the store away from all others.
        let run = catch_unwind(AssertUnwindSafe(|| call.run(&mut savepoint)));
        if matches!(run, Ok(Ok(()))) {
            savepoint.commit()?;
        } else if savepoint.is_autocommit() {
            // A full disk ends the whole transaction, and what the other calls did with it.
            return match run {
                Ok(Err(error)) => Err(error),
                _ => Err(StoreError::Closed),
            };
        } else {
            savepoint.finish()?; // rolls back
        }
    }
    Ok(transaction.commit()?)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    fn writer() -> Writer {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (x INTEGER UNIQUE)").unwrap();
        Writer::start(connection, None).unwrap()
    }

    fn insert(writer: &Writer, x: i64) -> Result<(), StoreError> {
        writer.call(move |savepoint| Ok(savepoint.execute("INSERT INTO t VALUES (?)", [x]).map(drop)?))
    }

    fn count(writer: &Writer) -> i64 {
        writer.call(|savepoint| Ok(savepoint.query_row("SELECT count(*) FROM t", [], |row| row.get(0))?)).unwrap()
    }

    #[test]
    fn a_call_that_fails_or_panics_undoes_only_itself() {
        let writer = writer();
        insert(&writer, 1).unwrap();
        let failed: Result<(), _> = writer.call(|savepoint| {
            savepoint.execute("INSERT INTO t VALUES (2)", [])?;
            Err(StoreError::UnknownKey(7))
        });
        assert_eq!(failed, Err(StoreError::UnknownKey(7)));
        let panicked: Result<(), _> = writer.call(|savepoint| {
            savepoint.execute("INSERT INTO t VALUES (3)", [])?;
            panic!("on purpose");
        });
        assert_eq!(panicked, Err(StoreError::Closed));
        insert(&writer, 4).unwrap();
        assert_eq!(count(&writer), 2);
    }

    #[test]
    fn calls_that_wait_together_share_a_commit_and_each_hears_its_own_result() {
        let writer = writer();
        let (started, start) = sync_channel::<()>(1);
        let (go, wait) = sync_channel::<()>(1);
        std::thread::scope(|scope| {
            // The first call holds the thread until the others wait.
            scope.spawn(|| {
                writer.call(move |_| {
                    started.send(()).unwrap();
                    wait.recv().unwrap();
                    Ok(())
                })
            });
            start.recv().unwrap();
            let barrier = Arc::new(Barrier::new(41));
            let calls: Vec<_> = (0..40)
                .map(|x| {
                    let (barrier, writer) = (barrier.clone(), &writer);
                    scope.spawn(move || {
                        barrier.wait();
                        insert(writer, x / 2) // each number twice: one of the two must fail
                    })
                })
                .collect();
            barrier.wait();
            go.send(()).unwrap();
            let done = calls.into_iter().map(|call| call.join().unwrap()).filter(Result::is_ok).count();
            assert_eq!(done, 20);
        });
        assert_eq!(count(&writer), 20);
    }

    #[test]
    fn a_full_disk_fails_the_call_and_space_heals_it() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (x)").unwrap();
        let writer = Writer::start(connection, None).unwrap();
        let limit = |pages: u32| {
            writer.call(move |savepoint| {
                Ok(savepoint.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?)
            })
        };
        let write = || writer.call(|savepoint| Ok(savepoint.execute("INSERT INTO t VALUES (zeroblob(100000))", [])?));
        limit(4).unwrap();
        assert_eq!(write(), Err(StoreError::Full));
        assert_eq!((writer.is_well(), writer.failures()), (false, 1));
        limit(1_000_000).unwrap();
        assert_eq!(write(), Ok(1));
        let refused: Result<(), _> = writer.call(|_| Err(StoreError::UnknownKey(7)));
        assert_eq!(refused, Err(StoreError::UnknownKey(7)));
        assert_eq!((writer.is_well(), writer.failures()), (true, 1), "a refusal is no failure");
        assert_eq!(count(&writer), 1);
    }

    #[test]
    fn calls_that_share_a_commit_with_one_that_fills_the_disk_hear_that_it_is_full() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (x); PRAGMA max_page_count = 4").unwrap();
        let (answers, group): (Vec<_>, Vec<Box<dyn Call>>) = [10, 100_000, 20]
            .map(|bytes| {
                let (answer, answered) = sync_channel(1);
                let body = move |savepoint: &mut Savepoint<'_>| {
                    Ok(savepoint.execute("INSERT INTO t VALUES (zeroblob(?))", [bytes]).map(drop)?)
                };
                (answered, Box::new(Pending { body: Some(body), result: None, answer }) as Box<dyn Call>)
            })
            .into_iter()
            .unzip();
        let mut group = group;
        let commit = run_group(&mut connection, &mut group);
        for call in group {
            call.finish(commit.clone());
        }
        for answered in answers {
            assert_eq!(answered.recv().unwrap(), Err(StoreError::Full));
        }
        let rows: u32 = connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "what was not acknowledged is not there");
    }
}
