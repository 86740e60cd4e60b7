//! The one place that reads the clock. Everything else is handed a [`Timestamp`].

use std::{
    sync::LazyLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use scheduler::Timestamp;

static START: LazyLock<Instant> = LazyLock::new(read);

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn read() -> Instant {
    Instant::now()
}

/// Monotonic time since the process first asked.
pub fn now() -> Timestamp {
    let start = *START;
    Timestamp(u64::try_from(read().saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX))
}

/// The tokio instant of a timestamp, for `sleep_until` and `timeout_at`.
pub fn instant(at: Timestamp) -> tokio::time::Instant {
    let capped = Duration::from_nanos(at.0.min(FAR.as_nanos() as u64));
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
