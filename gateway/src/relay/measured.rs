//! What an attempt tells about its replica's speed.

use std::time::Duration;

use openai_wire::{EngineTimings, Usage};
use scheduler::{Timestamp, Timings};

/// What the engine says of itself.
pub fn by_engine(timings: &EngineTimings) -> Timings {
    let length = |millis: f64| Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default();
    Timings {
        prefill_tokens: timings.prompt_n,
        prefill: length(timings.prompt_ms),
        decode_tokens: timings.predicted_n,
        decode: length(timings.predicted_ms),
        cached_tokens: timings.cache_n,
        by_engine: true,
    }
}

/// Where the engine tells no timings: the first token's delay is prefill, the rest decode.
pub fn here(usage: &Usage, sent: Timestamp, first: Timestamp, ended: Timestamp) -> Timings {
    let tokens = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    Timings {
        prefill_tokens: tokens(usage.prompt_tokens.saturating_sub(usage.cached_tokens)),
        prefill: first.since(sent),
        decode_tokens: tokens(usage.completion_tokens.saturating_sub(1)),
        decode: ended.since(first),
        cached_tokens: tokens(usage.cached_tokens),
        by_engine: false,
    }
}

/// Of an answer that broke off: `tokens` were seen, one an event. What was read is not known, since a part of the prompt may
/// have been in the cache.
pub fn written(tokens: u64, first: Timestamp, last: Timestamp) -> Timings {
    Timings {
        decode_tokens: u32::try_from(tokens.saturating_sub(1)).unwrap_or(u32::MAX),
        decode: last.since(first),
        ..Timings::default()
    }
}
