//! How long a replica may be silent: by its own measured speeds, within the operator's bounds.
//!
//! A long prefill and a dead phone look alike: silence. Where the engine reports how far it has read, each report says how
//! much longer this one needs ([`Reading`]), so one that is slow but moves is never given up, and one that stands still is
//! given up long before the time that a full context may take. A report that repeats the last one is no sign of life.

use std::time::Duration;

use openai_wire::PromptProgress;
use scheduler::Timestamp;

use crate::config;

/// What a replica's measured speeds promise; `None` until there is a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// Reading the prompt.
    pub prefill: Option<Duration>,
    /// Writing one token.
    pub token: Option<Duration>,
}

/// Longest step of a replica of which nothing is known: a batch of 2,048 tokens (llama.cpp's usual one) at 20 tokens a
/// second, the slowest phone that a large model was measured on.
const UNKNOWN_STEP: Duration = Duration::from_secs(100);
/// Parts of a prompt of which each may take as long as `first_token_cap`. 8: a full context within a few hours, and an end
/// to a replica that claims a token more every now and then.
const PARTS: u64 = 8;

/// How long the first sign of progress may take: some times what the replica's own speed says for this prompt, within
/// bounds.
pub fn first_token(streams: &config::Streams, expected: Option<Duration>) -> Duration {
    some_times(expected, streams.first_token_factor).max(streams.first_token_min).min(streams.first_token_cap)
}

/// How long the next token may take: some times what the replica usually takes for one, within bounds.
pub fn gap(streams: &config::Streams, expected: Option<Duration>) -> Duration {
    some_times(expected, streams.gap_factor).max(streams.gap_min).min(streams.gap_cap)
}

/// How a replica gets on with a prompt, by its own reports.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// By its measured speed.
    expected: Option<Duration>,
    /// The first report, and the last that was news.
    steps: Option<(Step, Step)>,
    total: u32,
    /// The longest time between two.
    longest: Option<Duration>,
    /// The last of the parts that has begun, and when.
    part: (u64, Timestamp),
}

/// Tokens behind it at a moment.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: Timestamp,
    read: u32,
}

impl Reading {
    /// Nothing was reported. `expected` is what the replica's speeds promise for the whole prompt, `sent` when it was asked.
    pub fn new(expected: Option<Duration>, sent: Timestamp) -> Self {
        Self { expected, steps: None, total: 0, longest: None, part: (0, sent) }
    }

    /// Takes a report; whether the replica has read on.
    pub fn note(&mut self, seen: &PromptProgress, now: Timestamp) -> bool {
        let step = Step { at: now, read: seen.read };
        match &mut self.steps {
            None => self.steps = Some((step, step)),
            Some((_, last)) if seen.read > last.read => {
                self.longest = self.longest.max(Some(now.since(last.at)));
                *last = step;
            }
            Some(_) => return false,
        }
        self.total = seen.total;
        let part = u64::from(seen.read) * PARTS / u64::from(seen.total.max(1));
        if part > self.part.0 {
            self.part = (part, now);
        }
        true
    }

    /// The share of the prompt that is behind it, in percent; `None` before the first report.
    pub fn percent(&self) -> Option<u32> {
        let (_, last) = self.steps?;
        u32::try_from(u64::from(last.read) * 100 / u64::from(self.total.max(1))).ok()
    }

    /// How long it still reads, from its last step on: at the pace of its steps, else as its speeds promise. `None` if there
    /// is neither.
    pub fn left(&self) -> Option<Duration> {
        let (first, last) = self.steps?;
        let left = f64::from(self.total.saturating_sub(last.read));
        if last.read > first.read {
            return Some(some_times(Some(last.at.since(first.at)), left / f64::from(last.read - first.read)));
        }
        Some(some_times(Some(self.expected?), left / f64::from(self.total.max(1))))
    }

    /// When patience ends with a replica whose last step is known; `None` before the first report.
    pub fn deadline(&self, streams: &config::Streams) -> Option<Timestamp> {
        let (_, last) = self.steps?;
        let patience = match (self.longest, self.left()) {
            // It has a pace: the time for what is left, and never more than a step that is long even for it.
            (Some(longest), Some(left)) => some_times(Some(left), streams.first_token_factor)
                .min(some_times(Some(longest), streams.gap_factor))
                .max(longest)
                .max(streams.gap_min),
            (_, Some(left)) => some_times(Some(left), streams.first_token_factor).max(streams.first_token_min),
            (_, None) => some_times(Some(UNKNOWN_STEP), streams.first_token_factor).max(streams.first_token_min),
        };
        Some((last.at + patience.min(streams.first_token_cap)).min(self.part.1 + streams.first_token_cap))
    }
}

/// `mul_f64` that doesn't panic: speeds come from replicas, which can claim a token in the age of the universe.
fn some_times(expected: Option<Duration>, factor: f64) -> Duration {
    let seconds = expected.unwrap_or_default().as_secs_f64() * factor;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + s(seconds)
    }

    fn seen(read: u32, total: u32) -> PromptProgress {
        PromptProgress { total, read, cached: 0 }
    }

    /// How long after the last of these reports (second, tokens read of 7,000) patience ends.
    fn patience(expected: Option<Duration>, reports: &[(u64, u32)]) -> Duration {
        let mut reading = Reading::new(expected, Timestamp::ZERO);
        for (second, read) in reports {
            reading.note(&seen(*read, 7_000), at(*second));
        }
        let last = reports.last().expect("a report").0;
        reading.deadline(&config::Streams::default()).expect("it has reported").since(at(last))
    }

    #[test]
    fn a_slow_replica_that_moves_is_never_given_up() {
        let streams = config::Streams::default();
        // The slowest phones with llama.cpp's usual batch, and with small batches; the last throttles to a third half-way.
        let phones: [(u32, &dyn Fn(u32) -> u64); 4] =
            [(2_048, &|_| 102), (2_048, &|_| 51), (128, &|_| 3), (128, &|read| if read < 3_500 { 3 } else { 9 })];
        for (batch, time) in phones {
            let whole = s((0..7_000).step_by(batch as usize).map(time).sum());
            // Not measured; measured; measured when it was thrice as fast.
            for expected in [None, Some(whole), Some(whole / 3)] {
                let mut reading = Reading::new(expected, Timestamp::ZERO);
                let (mut now, mut read) = (at(1), 0);
                reading.note(&seen(read, 7_000), now);
                while read < 7_000 {
                    let until = reading.deadline(&streams).expect("it has reported");
                    now += s(time(read));
                    assert!(now < until, "batch {batch}, {read} read, expected {expected:?}");
                    read = (read + batch).min(7_000);
                    assert!(reading.note(&seen(read, 7_000), now));
                }
            }
        }
    }

    #[test]
    fn a_replica_that_stands_still_is_given_up_by_the_length_of_its_own_steps() {
        // 128 tokens each 3 s: half a minute of silence is long.
        assert_eq!(patience(Some(s(175)), &[(1, 0), (4, 128), (7, 256)]), s(30));
        // 2,048 tokens each 50 s: three times what is left, 97 s, is less than ten steps.
        let left = 4_952.0 / 2_048.0 * 50.0 * 3.0;
        assert!((patience(None, &[(1, 0), (51, 2_048)]).as_secs_f64() - left).abs() < 0.001);
        // All is read: the first token is a token like others, unless a neighbour's batch comes before it.
        assert_eq!(patience(None, &[(1, 0), (2, 7_000)]), s(30));
        assert_eq!(patience(None, &[(1, 0), (91, 7_000)]), s(90));
    }

    #[test]
    fn before_a_pace_can_be_seen_the_measured_speed_counts_then_the_slowest_known_step() {
        assert_eq!(patience(Some(s(175)), &[(1, 0)]), s(525));
        assert_eq!(patience(Some(s(175)), &[(1, 3_500)]).as_secs_f64(), 262.5);
        assert_eq!(patience(Some(s(2)), &[(1, 0)]), s(60));
        assert_eq!(patience(None, &[(1, 0)]), s(300));
    }

    #[test]
    fn a_report_that_repeats_the_last_is_no_sign_of_life() {
        let streams = config::Streams::default();
        let mut reading = Reading::new(None, Timestamp::ZERO);
        assert!(reading.note(&seen(100, 7_000), at(1)) && reading.note(&seen(200, 7_000), at(5)));
        let until = reading.deadline(&streams);
        assert!(!reading.note(&seen(200, 7_000), at(20)) && !reading.note(&seen(100, 7_000), at(25)));
        assert_eq!(reading.deadline(&streams), until);
        assert_eq!(reading.percent(), Some(2));
    }

    #[test]
    fn a_token_now_and_then_does_not_hold_a_slot_for_ever() {
        let streams = config::Streams::default();
        let mut reading = Reading::new(None, Timestamp::ZERO);
        let (mut now, mut read) = (Timestamp::ZERO, 1);
        reading.note(&seen(read, u32::MAX), now);
        while now < reading.deadline(&streams).expect("it has reported") {
            (now, read) = (now + s(29), read + 1);
            reading.note(&seen(read, u32::MAX), now);
        }
        assert!(now <= Timestamp::ZERO + streams.first_token_cap + s(29), "{now:?}");
    }

    #[test]
    fn speeds_that_no_replica_has_end_at_the_bounds() {
        let streams = config::Streams::default();
        for expected in [Some(Duration::MAX), Some(Duration::ZERO), None] {
            let first = first_token(&streams, expected);
            assert!((streams.first_token_min..=streams.first_token_cap).contains(&first), "{first:?}");
            assert!((streams.gap_min..=streams.gap_cap).contains(&gap(&streams, expected)));
        }
    }
}
