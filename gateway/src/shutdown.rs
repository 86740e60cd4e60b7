//! The one place that spawns tasks and knows when they end.
//!
//! Every task is spawned through [`Tasks`], on the runtime of whoever calls, and watches [`Stop`]. What was
//! rejected: bare spawns (nobody waits for them, a panic goes unseen).

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex, watch},
    task::JoinSet,
};

/// Tells tasks to end.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Resolves once the process is told to end (also when it has been already).
    pub async fn wait(&mut self) {
        // An error means that the sender is gone: the process is ending as well.
        drop(self.0.wait_for(|stopped| *stopped).await);
    }

    /// Whether the process has been told to end.
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }
}

/// The registered tasks of one process.
#[derive(Clone)]
pub struct Tasks {
    stop: Arc<watch::Sender<bool>>,
    running: Arc<Mutex<JoinSet<()>>>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self { stop: Arc::new(watch::Sender::new(false)), running: Arc::default() }
    }
}

impl Tasks {
    /// A receiver of the stop signal.
    pub fn stop_signal(&self) -> Stop {
        Stop(self.stop.subscribe())
    }

    /// Runs `task` on the current runtime. It should end soon after its [`Stop`] says so.
    pub async fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.running.lock().await;
        // Tasks that end by themselves are spawned again and again: their ends must not pile up.
        while running.try_join_next().is_some() {}
        running.spawn(async move {
            task.await;
            tracing::trace!(name, "task ended");
        });
    }

    /// Tells every task to end and waits for them, at most `limit`; what is left is aborted.
    pub async fn stop(&self, limit: Duration) {
        self.stop.send_replace(true);
        let mut running = self.running.lock().await;
        let all = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(limit, all).await.is_err() {
            tracing::warn!("tasks did not end in {limit:?}, aborting them");
            running.shutdown().await;
        }
    }
}
