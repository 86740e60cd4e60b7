//! A deadline that moves with every event, at the cost of a store: the timer itself is only touched when it fires, or when
//! the deadline comes nearer than what it was set to.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use scheduler::{SoftFailure, Timestamp};
use tokio::time::Sleep;

use super::Failed;
use crate::clock;

/// A timer that fires this much too late tells that the whole process stood still: suspended, or starved.
const PAUSE: Duration = Duration::from_millis(500);

/// When patience with a replica ends.
///
/// Time in which this process did not run is not the replica's: after a pause the timers fire before anybody has looked
/// at the sockets, where the answer may wait. So a deadline that is noticed far too late is moved, once, by as much.
pub struct Deadline {
    at: Timestamp,
    armed: Timestamp,
    timer: Pin<Box<Sleep>>,
    moved: bool,
}

impl Deadline {
    /// A deadline at `at`.
    pub fn new(at: Timestamp) -> Self {
        Self { at, armed: at, moved: false, timer: Box::pin(tokio::time::sleep_until(clock::instant(at))) }
    }

    /// Moves it.
    pub fn set(&mut self, at: Timestamp) {
        self.at = at;
        self.moved = false;
        if at < self.armed {
            self.armed = at;
            self.timer.as_mut().reset(clock::instant(at));
        }
    }

    /// Waits for something of the replica; `late` is the failure that it is not to come in time. Takes it pinned (`pin!`):
    /// moved in, it would stand twice in the attempt's state.
    pub async fn bound<F: Future + Unpin>(&mut self, late: SoftFailure, future: F) -> Result<F::Output, Failed> {
        // The replica comes last: one that never pauses must not outlast its deadline.
        tokio::select! {
            biased;
            () = self.passed() => Err(Failed::late(late)),
            done = future => Ok(done),
        }
    }

    /// Resolves when it has passed.
    async fn passed(&mut self) {
        loop {
            // A replica that never pauses keeps the runtime from looking at its timers: the clock is looked at as well.
            poll_fn(|cx| match self.timer.as_mut().poll(cx) {
                Poll::Pending if clock::now() >= self.at => Poll::Ready(()),
                fired => fired,
            })
            .await;
            let now = clock::now();
            let late = now.since(self.at);
            if late > PAUSE && !self.moved {
                self.moved = true;
                self.at = now + late;
            } else if now >= self.at {
                return;
            }
            self.armed = self.at;
            self.timer.as_mut().reset(clock::instant(self.at));
        }
    }
}
