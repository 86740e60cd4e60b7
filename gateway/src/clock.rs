//! The one place that reads the clock. Everything else is handed a [`Timestamp`].
//!
//! A load test may play an hour in three minutes ([`run_faster`]): the gateway's clock, and so all that the scheduler
//! counts in seconds (half-lives, looks, penalties, patience), then runs as fast as the played phones do. Rejected: to
//! speed up the phones and leave the gateway's seconds alone; its constants would then mean twenty times as much, and what is
//! measured is another scheduler than the one that was simulated.

use std::{
    sync::{LazyLock, OnceLock},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use scheduler::Timestamp;

static START: LazyLock<Instant> = LazyLock::new(read);
/// How many seconds pass here in one of the world's; unset: one.
static PACE: OnceLock<f64> = OnceLock::new();

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn read() -> Instant {
    Instant::now()
}

/// Lets this process live `times` as fast as the world, from before anybody asks for the time; only the first call counts.
/// Time-outs of sockets and the time of day stay the world's.
pub fn run_faster(times: f64) {
    PACE.get_or_init(|| times);
}

/// How much faster than the world this process lives, if it does.
pub fn pace() -> Option<f64> {
    PACE.get().copied()
}

/// Monotonic time since the process first asked.
pub fn now() -> Timestamp {
    let start = *START;
    let passed = read().saturating_duration_since(start);
    let passed = PACE.get().map_or(passed, |pace| passed.mul_f64(*pace));
    Timestamp(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
}

/// The tokio instant of a timestamp, for `sleep_until` and `timeout_at`.
pub fn instant(at: Timestamp) -> tokio::time::Instant {
    let capped = Duration::from_nanos(at.0.min(FAR.as_nanos() as u64));
    let capped = PACE.get().map_or(capped, |pace| capped.div_f64(*pace));
    tokio::time::Instant::from_std(*START + capped)
}

/// Ten years: far enough to stand for "never", near enough for every timer.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Wall-clock time since 1970, for what people and clients read. Never for deadlines: it may jump.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// [`unix`] in milliseconds.
pub fn unix_ms() -> u64 {
    u64::try_from(unix().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_when_its_timestamp_is_now() {
        let at = now() + Duration::from_millis(20);
        let left = instant(at).into_std().saturating_duration_since(read());
        assert!(left <= Duration::from_millis(20) && left > Duration::ZERO, "{left:?}");
        assert!(instant(Timestamp::NEVER) > instant(at));
    }
}
