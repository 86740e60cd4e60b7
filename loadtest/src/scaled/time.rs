//! The scenario's time and the world's.

use crate::clock;
use std::time::Duration;
use tokio::time::Instant;

/// The scenario's time: it began at a moment, and passes faster than the world's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    began: Instant,
    speedup: f64,
}

impl Time {
    /// It begins now.
    pub(super) fn begin(speedup: f64) -> Self {
        Self { began: clock::now(), speedup }
    }

    /// Seconds of the scenario since it began.
    pub(super) fn now(&self) -> f64 {
        (clock::now() - self.began).as_secs_f64() * self.speedup
    }

    /// When it will be so many seconds; a year from now for what never comes.
    pub(super) fn instant(&self, seconds: f64) -> Instant {
        const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
        let length = Duration::try_from_secs_f64(seconds / self.speedup).unwrap_or(FAR);
        self.began + length.min(FAR)
    }

    /// A length of the world's in seconds of the scenario.
    pub(super) fn scaled(&self, seconds: f64) -> f64 {
        seconds * self.speedup
    }

    /// Waits until then, to half a millisecond of the world's before or after. Timers count whole milliseconds and fire
    /// about one late, which would be in every figure.
    pub(super) async fn sleep_until(&self, seconds: f64) {
        const TICK: Duration = Duration::from_millis(1);
        let at = self.instant(seconds);
        loop {
            let left = at.saturating_duration_since(clock::now());
            if left <= TICK / 2 {
                return;
            }
            tokio::time::sleep_until(if left > TICK { at - TICK } else { at }).await;
        }
    }
}
