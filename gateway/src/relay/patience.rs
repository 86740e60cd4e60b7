//! How long a replica may be silent: by its own measured speeds, within the operator's bounds.

use std::time::Duration;

use crate::config;

/// What a replica's measured speeds promise; `None` until there is a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// Reading the prompt.
    pub prefill: Option<Duration>,
    /// Writing one token.
    pub token: Option<Duration>,
}

/// How long the first token may take: some times what the replica's own speed says for this prompt, within bounds.
pub fn first_token(streams: &config::Streams, expected: Option<Duration>) -> Duration {
    some_times(expected, streams.first_token_factor).max(streams.first_token_min).min(streams.first_token_cap)
}

/// How long the next token may take: some times what the replica usually takes for one, within bounds.
pub fn gap(streams: &config::Streams, expected: Option<Duration>) -> Duration {
    some_times(expected, streams.gap_factor).max(streams.gap_min).min(streams.gap_cap)
}

/// `mul_f64` that doesn't panic: speeds come from replicas, which can claim a token in the age of the universe.
fn some_times(expected: Option<Duration>, factor: f64) -> Duration {
    let seconds = expected.unwrap_or_default().as_secs_f64() * factor;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
