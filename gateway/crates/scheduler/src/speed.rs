//! How fast a replica is, from its own traffic.
//!
//! Rates differ by factors, not by differences (a warm phone reads at half its speed, a cold engine at a tenth), so the
//! mean is taken of logarithms. A plain mean would follow the rare fast sample; a median needs a window per replica.
//! One sample moves the estimate by at most a factor of three: a stall or a wrong clock of the engine is one sample.

use std::time::Duration;

use crate::event::Timings;

/// Weight of a new sample once there are a few: the last ten or so count, about what a phone needs to heat up.
const WEIGHT: f64 = 0.2;
/// One sample counts as at most this many times more, or less, than the estimate.
const CLIP: f64 = 3.0;
/// Fewer prompt tokens measure the round trip, not the reading.
const MIN_PREFILL_TOKENS: u32 = 32;
/// Fewer answer tokens measure the network's jitter, not the writing.
const MIN_DECODE_TOKENS: u32 = 8;
/// The request that replicas are compared by: a prompt and an answer of common size.
const TYPICAL_PROMPT: f64 = 1000.0;
const TYPICAL_ANSWER: f64 = 200.0;
/// Phones read this many times faster than they write; stands in for a rate that was not measured yet.
const PREFILL_PER_DECODE: f64 = 10.0;

/// A mean of logarithms that forgets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogMean {
    mean: f64,
    samples: u32,
}

impl LogMean {
    pub(crate) fn add(&mut self, value: f64) {
        if !(value.is_finite() && value > 0.0) {
            return;
        }
        let mut sample = value.ln();
        if self.samples > 0 {
            sample = sample.clamp(self.mean - CLIP.ln(), self.mean + CLIP.ln());
        }
        self.samples = self.samples.saturating_add(1);
        self.mean += (sample - self.mean) * WEIGHT.max(1.0 / f64::from(self.samples));
    }

    pub(crate) fn get(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.mean.exp())
    }
}

/// The measured rates of one replica, in tokens per second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speeds {
    prefill: LogMean,
    decode: LogMean,
}

impl Speeds {
    pub(crate) fn add(&mut self, timings: &Timings) {
        if timings.prefill_tokens >= MIN_PREFILL_TOKENS {
            self.prefill.add(rate(timings.prefill_tokens, timings.prefill));
        }
        if timings.decode_tokens >= MIN_DECODE_TOKENS {
            self.decode.add(rate(timings.decode_tokens, timings.decode));
        }
    }

    pub(crate) fn prefill(&self) -> Option<f64> {
        self.prefill.get()
    }

    pub(crate) fn decode(&self) -> Option<f64> {
        self.decode.get()
    }

    /// Typical requests per second on an idle replica: one number to compare replicas by. `None` until measured.
    pub(crate) fn overall(&self) -> Option<f64> {
        let (prefill, decode) = match (self.prefill(), self.decode()) {
            (Some(prefill), Some(decode)) => (prefill, decode),
            (Some(prefill), None) => (prefill, prefill / PREFILL_PER_DECODE),
            (None, Some(decode)) => (decode * PREFILL_PER_DECODE, decode),
            (None, None) => return None,
        };
        Some(1.0 / (TYPICAL_PROMPT / prefill + TYPICAL_ANSWER / decode))
    }
}

fn rate(tokens: u32, time: Duration) -> f64 {
    f64::from(tokens) / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timings(prefill: (u32, u64), decode: (u32, u64)) -> Timings {
        Timings {
            prefill_tokens: prefill.0,
            prefill: Duration::from_millis(prefill.1),
            decode_tokens: decode.0,
            decode: Duration::from_millis(decode.1),
            cached_tokens: 0,
            by_engine: true,
        }
    }

    #[test]
    fn rates_settle_at_what_is_measured() {
        let mut speeds = Speeds::default();
        for _ in 0..20 {
            speeds.add(&timings((1000, 4000), (100, 5000)));
        }
        assert!((speeds.prefill().unwrap() - 250.0).abs() < 1.0);
        assert!((speeds.decode().unwrap() - 20.0).abs() < 0.1);
    }

    #[test]
    fn one_absurd_sample_moves_the_rate_by_less_than_a_third() {
        let mut speeds = Speeds::default();
        for _ in 0..20 {
            speeds.add(&timings((1000, 4000), (100, 5000)));
        }
        speeds.add(&timings((1000, 1), (100, 1)));
        assert!(speeds.prefill().unwrap() < 250.0 * 1.3);
        assert!(speeds.decode().unwrap() < 20.0 * 1.3);
    }

    #[test]
    fn a_few_tokens_or_no_time_at_all_measure_nothing() {
        let mut speeds = Speeds::default();
        speeds.add(&timings((31, 100), (7, 100)));
        speeds.add(&timings((1000, 0), (1000, 0)));
        assert_eq!((speeds.prefill(), speeds.decode(), speeds.overall()), (None, None, None));
    }

    #[test]
    fn a_replica_that_only_ever_read_can_still_be_compared() {
        let (mut reader, mut both) = (Speeds::default(), Speeds::default());
        reader.add(&timings((1000, 1000), (0, 0)));
        both.add(&timings((1000, 4000), (100, 4000)));
        assert!(reader.overall().unwrap() > both.overall().unwrap());
    }
}
