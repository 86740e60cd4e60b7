//! How many requests are between their head and their end: what a drain waits for.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Counts requests, and tells when none is left.
#[derive(Default)]
pub struct InFlight {
    count: AtomicUsize,
    draining: AtomicBool,
    idle: Notify,
}

/// One request in flight.
pub struct Flying(Arc<InFlight>);

impl InFlight {
    /// Counts one until the guard is dropped.
    pub fn enter(self: &Arc<Self>) -> Flying {
        self.count.fetch_add(1, Ordering::Relaxed);
        Flying(Arc::clone(self))
    }

    /// The process is leaving: it is not ready any more, and what its limit ends is told so.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether [`InFlight::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Requests in flight.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Resolves when none is.
    pub async fn none(&self) {
        loop {
            let idle = self.idle.notified();
            if self.count() == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
