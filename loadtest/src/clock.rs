//! The only place of this crate that reads a clock.

use tokio::time::Instant;

/// The present moment of the runtime's clock.
#[expect(clippy::disallowed_methods, reason = "the one place of this crate that reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Seconds since 1970, for the date in a report.
pub(crate) fn unix_seconds() -> u64 {
    unix() as u64
}

/// Seconds since 1970 with their fractions, as fake phones note them.
#[expect(clippy::disallowed_methods, reason = "the one place of this crate that reads the clock")]
pub(crate) fn unix() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
