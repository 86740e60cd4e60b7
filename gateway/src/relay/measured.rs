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

/// How the words of an answer came: by that writing is timed where the engine tells no timings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Pieces of content so far.
    events: u64,
    /// Of those, in the first reading: how long they took is not known.
    at_first: u64,
    /// Readings with content since.
    readings: u32,
    /// Some of the time was not the writer's.
    disturbed: bool,
}

/// Readings by which writing is timed. 4: of what a tunnel hands over in fewer, most of the time is the tunnel's.
const ENOUGH: u32 = 4;

impl Pace {
    /// So many pieces of content were read at once.
    pub fn note(&mut self, events: u64) {
        if events == 0 {
            return;
        }
        match self.events {
            0 => self.at_first = events,
            _ => self.readings = self.readings.saturating_add(1),
        }
        self.events += events;
    }

    /// The answer was held up by something else than its writer: a client that does not read, a lost connection, another prompt.
    pub fn disturb(&mut self) {
        self.disturbed = true;
    }

    /// How long all but the first of `tokens` took, from the pieces that came in this time after the first ones. Zero: it can't be told.
    fn writing(&self, tokens: u64, span: Duration) -> Duration {
        let timed = self.events.saturating_sub(self.at_first);
        if self.disturbed || self.readings < ENOUGH || timed == 0 || tokens == 0 {
            return Duration::ZERO;
        }
        let timed_tokens = tokens as f64 * timed as f64 / self.events as f64;
        let all = span.as_secs_f64() * (tokens - 1) as f64 / timed_tokens;
        Duration::try_from_secs_f64(all).unwrap_or_default()
    }
}

fn count(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

/// Where the engine tells no timings: the first token's delay is prefill, the rest decode.
pub fn here(usage: &Usage, pace: &Pace, sent: Timestamp, first: Timestamp, last: Timestamp) -> Timings {
    Timings {
        prefill_tokens: count(usage.prompt_tokens.saturating_sub(usage.cached_tokens)),
        prefill: first.since(sent),
        decode_tokens: count(usage.completion_tokens.saturating_sub(1)),
        decode: pace.writing(usage.completion_tokens, last.since(first)),
        cached_tokens: count(usage.cached_tokens),
        by_engine: false,
    }
}

/// Of an answer that broke off, or of a part: one token a piece. What was read is not known, since a part of the prompt may
/// have been in the cache.
pub fn written(pace: &Pace, first: Timestamp, last: Timestamp) -> Timings {
    Timings {
        decode_tokens: count(pace.events.saturating_sub(1)),
        decode: pace.writing(pace.events, last.since(first)),
        ..Timings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp(millis * 1_000_000)
    }

    /// What was read, in pieces at once.
    fn pace(readings: &[u64]) -> Pace {
        let mut pace = Pace::default();
        readings.iter().for_each(|events| pace.note(*events));
        pace
    }

    fn rate(timings: &Timings) -> Option<f64> {
        let seconds = timings.decode.as_secs_f64();
        (seconds > 0.0).then(|| f64::from(timings.decode_tokens) / seconds)
    }

    #[test]
    fn tokens_that_came_one_by_one_are_timed_from_the_first() {
        let one_by_one = pace(&[1; 11]);
        let timings = written(&one_by_one, at(500), at(1_500));
        assert_eq!((timings.decode_tokens, timings.decode), (10, Duration::from_secs(1)));
        let usage = Usage { prompt_tokens: 100, completion_tokens: 11, cached_tokens: 40 };
        let timings = here(&usage, &one_by_one, at(0), at(500), at(1_500));
        assert_eq!((timings.prefill_tokens, timings.prefill), (60, Duration::from_millis(500)));
        assert_eq!((timings.decode_tokens, timings.decode), (10, Duration::from_secs(1)));
    }

    #[test]
    fn what_came_with_the_first_token_took_no_time_that_is_known() {
        // 20 at once, then ten a second.
        let mut readings = vec![20];
        readings.extend([1; 10]);
        let timings = written(&pace(&readings), at(0), at(1_000));
        assert_eq!(timings.decode_tokens, 29, "all of them are a part of the answer");
        assert!((rate(&timings).unwrap() - 10.0).abs() < 1e-6, "{timings:?}");
    }

    #[test]
    fn an_answer_that_is_cut_off_after_a_few_tokens_or_a_burst_tells_no_speed() {
        for readings in [&[][..], &[5], &[1, 1], &[1, 1, 1, 1], &[40, 1], &[30, 30, 30, 30]] {
            assert_eq!(rate(&written(&pace(readings), at(0), at(1))), None, "{readings:?}");
        }
        assert!(rate(&written(&pace(&[1, 1, 1, 1, 1]), at(0), at(400))).is_some());
    }

    #[test]
    fn time_that_was_not_the_writers_is_not_taken_for_his() {
        let mut held_up = pace(&[1; 50]);
        held_up.disturb();
        assert_eq!(rate(&written(&held_up, at(0), at(60_000))), None);
        let usage = Usage { prompt_tokens: 100, completion_tokens: 50, cached_tokens: 0 };
        let timings = here(&usage, &held_up, at(0), at(500), at(60_000));
        assert_eq!(
            (rate(&timings), timings.prefill),
            (None, Duration::from_millis(500)),
            "what was read before is known"
        );
    }
}
