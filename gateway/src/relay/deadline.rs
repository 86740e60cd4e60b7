//! A deadline that moves with every event, at the cost of a store: the timer itself is only touched when it fires, or when
//! the deadline comes nearer than what it was set to.

use std::pin::Pin;

use scheduler::Timestamp;
use tokio::time::Sleep;

use crate::clock;

/// When patience with a replica ends.
pub struct Deadline {
    at: Timestamp,
    armed: Timestamp,
    timer: Pin<Box<Sleep>>,
}

impl Deadline {
    /// A deadline at `at`.
    pub fn new(at: Timestamp) -> Self {
        Self { at, armed: at, timer: Box::pin(tokio::time::sleep_until(clock::instant(at))) }
    }

    /// Moves it.
    pub fn set(&mut self, at: Timestamp) {
        self.at = at;
        if at < self.armed {
            self.armed = at;
            self.timer.as_mut().reset(clock::instant(at));
        }
    }

    /// Resolves when it has passed.
    pub async fn passed(&mut self) {
        loop {
            self.timer.as_mut().await;
            if clock::now() >= self.at {
                return;
            }
            self.armed = self.at;
            self.timer.as_mut().reset(clock::instant(self.at));
        }
    }
}
