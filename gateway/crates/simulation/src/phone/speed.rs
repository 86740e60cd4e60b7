//! Speeds: the formulas, the presets, and what a neighbour costs.

use std::str::FromStr;

/// The speed of one model on the reference phone (the fastest of the published measurements).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelSpeed {
    /// Reading speed on an empty context, tokens per second.
    pub prefill_tokens_per_second: f64,
    /// How much longer each token takes to read for every token before it, seconds per token².
    pub prefill_slowdown: f64,
    /// Writing speed of one stream on an empty context, tokens per second.
    pub decode_tokens_per_second: f64,
    /// The context length at which writing takes twice as long per token, tokens.
    pub decode_half_speed_context: f64,
    /// What each further parallel stream costs: `k` streams write `k / (1 + cost·(k-1))` times what one writes.
    pub sharing_cost: f64,
}

/// Fitted: writing slows so little with the context that one value serves the three published models.
const DECODE_HALF_SPEED_CONTEXT: f64 = 20_000.0;
/// Fitted: four chats at 46 tokens/s in total on a phone that writes 22 tokens/s alone.
const SHARING_COST: f64 = 0.304;

impl ModelSpeed {
    /// Qwen3.5-9B: reads at most 85.2 tokens/s, writes 9.3 tokens/s, reads 7,000 tokens in 195 s.
    pub const QWEN_9B: Self = Self::fitted(85.2, 4.6e-6, 9.3);
    /// Qwen3.5-4B: reads 7,000 tokens in 97 s, writes about 18.5 tokens/s.
    pub const QWEN_4B: Self = Self::fitted(171.3, 2.291e-6, 18.5);
    /// Qwen3.5-0.8B: reads 7,000 tokens in 15 s, writes about 60 tokens/s.
    pub const QWEN_0_8B: Self = Self::fitted(1107.0, 3.54e-7, 60.0);
    /// Takes no time at all: for tests of everything but speed.
    pub const INSTANT: Self = Self::fitted(f64::INFINITY, 0.0, f64::INFINITY);

    const fn fitted(prefill: f64, slowdown: f64, decode: f64) -> Self {
        Self {
            prefill_tokens_per_second: prefill,
            prefill_slowdown: slowdown,
            decode_tokens_per_second: decode,
            decode_half_speed_context: DECODE_HALF_SPEED_CONTEXT,
            sharing_cost: SHARING_COST,
        }
    }

    /// Seconds to read the context positions `from..to` (tokens) on the reference phone, alone.
    pub fn prefill_seconds(&self, from: f64, to: f64) -> f64 {
        if to <= from {
            return 0.0;
        }
        (to - from) / self.prefill_tokens_per_second + 0.5 * self.prefill_slowdown * (to * to - from * from)
    }

    /// Seconds to write `tokens` after `context` tokens on the reference phone, alone.
    pub fn decode_seconds(&self, context: f64, tokens: f64) -> f64 {
        let mean_context = context + 0.5 * tokens;
        tokens / self.decode_tokens_per_second * (1.0 + mean_context / self.decode_half_speed_context)
    }

    /// What `streams` parallel streams write together, as a multiple of what one writes.
    pub fn parallel_gain(&self, streams: f64) -> f64 {
        if streams <= 0.0 { 0.0 } else { streams / (1.0 + self.sharing_cost * (streams - 1.0)) }
    }
}

/// What runs on a phone at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Requests that read or write.
    pub active: u32,
    /// Those of them that write.
    pub decoding: u32,
}

/// A phone: a model's reference speed and how this phone compares with the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PhoneSpeed {
    /// The model it runs.
    pub model: ModelSpeed,
    /// Reading speed as a share of the reference phone's.
    pub prefill_factor: f64,
    /// Writing speed as a share of the reference phone's.
    pub decode_factor: f64,
    /// Seconds a request costs before reading starts (template, tokenizing, sampler set-up).
    pub overhead_seconds: f64,
}

impl PhoneSpeed {
    /// The reference phone itself, with the overhead the published scenarios use.
    pub const fn reference(model: ModelSpeed) -> Self {
        Self { model, prefill_factor: 1.0, decode_factor: 1.0, overhead_seconds: 0.1 }
    }

    /// A phone that takes no time.
    pub const fn instant() -> Self {
        Self { overhead_seconds: 0.0, ..Self::reference(ModelSpeed::INSTANT) }
    }

    /// The same phone, `factor` times as fast in both phases.
    pub fn scaled(self, factor: f64) -> Self {
        self.scaled_by(factor, factor)
    }

    /// The same phone with its own factor for each phase.
    pub fn scaled_by(self, prefill: f64, decode: f64) -> Self {
        Self { prefill_factor: self.prefill_factor * prefill, decode_factor: self.decode_factor * decode, ..self }
    }

    /// Seconds to read the positions `from..to` while `load` (this request included) runs: readers share evenly.
    pub fn prefill_seconds(&self, from: f64, to: f64, load: Load) -> f64 {
        self.model.prefill_seconds(from, to) / self.prefill_factor * f64::from(load.active.max(1))
    }

    /// Seconds to write `tokens` after `context` while `load` (this request included) runs.
    pub fn decode_seconds(&self, context: f64, tokens: f64, load: Load) -> f64 {
        self.model.decode_seconds(context, tokens) / self.decode_factor / self.decode_share(load)
    }

    /// The part of its lone writing speed that a stream keeps under `load`; 1 when it is alone.
    pub fn decode_share(&self, load: Load) -> f64 {
        self.model.parallel_gain(f64::from(load.decoding.max(1))) / f64::from(load.active.max(1))
    }
}

/// A speed name that is none of `9b`, `4b`, `0.8b`, `instant`, or a factor that is no positive number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown speed {0:?}: expected 9b, 4b, 0.8b or instant, with an optional factor as in 4b*0.5")]
pub struct UnknownSpeed(pub String);

impl FromStr for PhoneSpeed {
    type Err = UnknownSpeed;

    /// Reads a preset's name with an optional factor: `9b`, `0.8b`, `4b*0.5`, `instant`.
    fn from_str(text: &str) -> Result<Self, UnknownSpeed> {
        let unknown = || UnknownSpeed(text.to_owned());
        let (name, factor) = match text.split_once('*') {
            Some((name, factor)) => (name.trim(), factor.trim().parse::<f64>().map_err(|_| unknown())?),
            None => (text.trim(), 1.0),
        };
        if !(factor.is_finite() && factor > 0.0) {
            return Err(unknown());
        }
        let phone = match name.to_ascii_lowercase().as_str() {
            "9b" => Self::reference(ModelSpeed::QWEN_9B),
            "4b" => Self::reference(ModelSpeed::QWEN_4B),
            "0.8b" => Self::reference(ModelSpeed::QWEN_0_8B),
            "instant" => Self::instant(),
            _ => return Err(unknown()),
        };
        Ok(phone.scaled(factor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Load = Load { active: 1, decoding: 1 };

    fn assert_near(value: f64, expected: f64, tolerance: f64) {
        assert!((value - expected).abs() <= tolerance, "{value} is not within {tolerance} of {expected}");
    }

    #[test]
    fn a_prompt_of_7000_tokens_is_read_in_the_published_times() {
        assert_near(ModelSpeed::QWEN_9B.prefill_seconds(0.0, 7000.0), 195.0, 1.0);
        assert_near(ModelSpeed::QWEN_4B.prefill_seconds(0.0, 7000.0), 97.0, 1.0);
        assert_near(ModelSpeed::QWEN_0_8B.prefill_seconds(0.0, 7000.0), 15.0, 0.1);
    }

    #[test]
    fn four_chats_on_a_small_phone_write_46_tokens_a_second_together() {
        let phone = PhoneSpeed::reference(ModelSpeed::QWEN_0_8B).scaled_by(0.22, 0.37);
        let four = Load { active: 4, decoding: 4 };
        let together = 4.0 / phone.decode_seconds(0.0, 1.0, four);
        assert_near(together, 46.0, 1.0);
    }

    #[test]
    fn reading_in_pieces_takes_as_long_as_reading_at_once() {
        let model = ModelSpeed::QWEN_4B;
        let pieces: f64 = (0..50).map(|i| model.prefill_seconds(f64::from(i) * 140.0, f64::from(i + 1) * 140.0)).sum();
        assert_near(pieces, model.prefill_seconds(0.0, 7000.0), 1e-6);
    }

    #[test]
    fn writing_in_pieces_takes_as_long_as_writing_at_once() {
        let model = ModelSpeed::QWEN_4B;
        let pieces: f64 = (0..100).map(|i| model.decode_seconds(500.0 + f64::from(i), 1.0)).sum();
        assert_near(pieces, model.decode_seconds(500.0, 100.0), 1e-6);
    }

    #[test]
    fn a_stretch_that_ends_before_it_starts_takes_no_time() {
        assert_eq!(ModelSpeed::QWEN_9B.prefill_seconds(10.0, 10.0), 0.0);
        assert_eq!(ModelSpeed::QWEN_9B.prefill_seconds(10.0, 3.0), 0.0);
    }

    #[test]
    fn a_neighbour_slows_both_phases_but_the_phone_writes_more_in_total() {
        let phone = PhoneSpeed::reference(ModelSpeed::QWEN_0_8B);
        let pair = Load { active: 2, decoding: 2 };
        let alone = phone.decode_seconds(0.0, 10.0, ALONE);
        let shared = phone.decode_seconds(0.0, 10.0, pair);
        assert!(shared > alone && shared < 2.0 * alone);
        assert_near(phone.prefill_seconds(0.0, 100.0, pair), 2.0 * phone.prefill_seconds(0.0, 100.0, ALONE), 1e-9);
    }

    #[test]
    fn half_the_speed_takes_twice_the_time() {
        let whole = PhoneSpeed::reference(ModelSpeed::QWEN_4B);
        let half = whole.scaled(0.5);
        assert_near(half.prefill_seconds(0.0, 900.0, ALONE), 2.0 * whole.prefill_seconds(0.0, 900.0, ALONE), 1e-9);
        assert_near(half.decode_seconds(900.0, 9.0, ALONE), 2.0 * whole.decode_seconds(900.0, 9.0, ALONE), 1e-9);
    }

    #[test]
    fn the_instant_phone_takes_no_time_under_any_load() {
        let phone = PhoneSpeed::instant();
        let crowd = Load { active: 40, decoding: 20 };
        assert_eq!(phone.prefill_seconds(0.0, 1e6, crowd), 0.0);
        assert_eq!(phone.decode_seconds(1e6, 1e3, crowd), 0.0);
        assert_eq!(phone.overhead_seconds, 0.0);
    }

    #[test]
    fn speeds_are_read_by_name_with_an_optional_factor() {
        let half: PhoneSpeed = "4B * 0.5".parse().expect("a preset and a factor");
        assert_eq!(half, PhoneSpeed::reference(ModelSpeed::QWEN_4B).scaled(0.5));
        for wrong in ["", "7b", "4b*", "4b*0", "4b*-1", "4b*inf", "4b*nan"] {
            assert_eq!(wrong.parse::<PhoneSpeed>(), Err(UnknownSpeed(wrong.to_owned())));
        }
    }
}
