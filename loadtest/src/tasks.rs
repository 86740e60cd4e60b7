//! Tasks that end with their owner.

use std::{
    future::Future,
    sync::{Mutex, PoisonError},
};
use tokio::task::JoinSet;

/// A set of tasks that are cancelled when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    /// Starts a task in this set; forgets those that have ended.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while set.try_join_next().is_some() {}
        set.spawn(task);
    }
}
