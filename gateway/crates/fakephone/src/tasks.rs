//! Tasks that end with their owner.
//!
//! A phone's connections must not outlive the phone, nor a test's phones the test. Every task of this crate is spawned
//! into such a set; dropping the set ends them. Ended tasks are collected at every spawn and in [`Tasks::reap`], so the
//! set holds what runs, not what ran.

use std::future::Future;
use tokio::task::JoinSet;

/// A set of tasks that are cancelled when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Tasks(JoinSet<()>);

impl Tasks {
    /// Starts a task in this set.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.0.try_join_next().is_some() {}
        self.0.spawn(task);
    }

    /// Waits for one task to end and forgets it; waits for ever while there is none.
    pub(crate) async fn reap(&mut self) {
        if self.0.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
