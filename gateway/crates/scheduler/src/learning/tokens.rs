//! How many tokens a prompt really has, over what its bytes suggest. One per model: it depends on the tokenizer, the chat
//! template and the language that clients write.
//!
//! A mean of logarithms in which long prompts count more: their work matters, and what a template adds to a short one
//! would be taken for the tokenizer. Some engines report a constant instead of a count, so once there are a few samples
//! each counts as at most half as much again, or less, than the mean.

use super::positive;

/// No tokenizer is farther from four bytes a token than this factor.
const FARTHEST: f64 = 5.0;
/// Prompts that say little: below this many tokens, nothing; at the second, half as much as a long one.
const SHORTEST: f64 = 16.0;
const HALF_WORTH: f64 = 500.0;
const WEIGHT: f64 = 0.05;
/// What the ratio of one is worth at first, in long prompts.
const PRIOR_WORTH: f64 = 0.25;
/// Samples count in full until there are this many.
const SETTLED: f64 = 5.0;
const CLIP: f64 = 0.4;

/// Counted tokens over estimated ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenRatio {
    logarithm: f64,
    /// Long prompts behind it, while they are few.
    worth: f64,
}

impl TokenRatio {
    /// Between 0.2 and 5; 1 at first.
    pub(crate) fn get(&self) -> f64 {
        self.logarithm.exp().clamp(1.0 / FARTHEST, FARTHEST)
    }

    /// A prompt of `estimated` tokens by its bytes was counted as `counted` by a replica.
    pub(crate) fn observe(&mut self, estimated: f64, counted: f64) {
        let (Some(estimated), Some(counted)) = (positive(estimated), positive(counted)) else { return };
        if estimated < SHORTEST {
            return;
        }
        let weight = 1.0 / (1.0 + HALF_WORTH / estimated);
        let distance = (counted / estimated).clamp(1.0 / FARTHEST, FARTHEST).ln() - self.logarithm;
        let believed = if self.worth < SETTLED { distance } else { distance.clamp(-CLIP, CLIP) };
        self.worth = (self.worth + weight).min(1.0 / WEIGHT);
        self.logarithm += believed * weight / (self.worth + PRIOR_WORTH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn is_one_at_first_and_what_is_counted_after_a_few_long_prompts() {
        for truth in [0.7, 1.15, 2.5] {
            let mut ratio = TokenRatio::default();
            assert_eq!(ratio.get(), 1.0);
            for _ in 0..4 {
                ratio.observe(7000.0, 7000.0 * truth);
            }
            assert!((ratio.get() / truth).ln().abs() < 0.1, "{truth}: {}", ratio.get());
        }
    }

    #[test]
    fn what_a_template_adds_to_short_prompts_is_not_taken_for_the_tokenizer() {
        let mut ratio = TokenRatio::default();
        for _ in 0..500 {
            ratio.observe(20.0, 50.0);
            ratio.observe(7000.0, 7030.0);
        }
        assert!(ratio.get() < 1.1, "{}", ratio.get());
    }

    #[test]
    fn an_engine_that_reports_a_constant_does_not_set_it() {
        let (mut rng, mut ratio) = (Rng::new(3), TokenRatio::default());
        for round in 0..1000 {
            let estimated = 500.0 + 6500.0 * rng.unit();
            ratio.observe(estimated, if round > 10 && round % 4 == 0 { 10.0 } else { 1.2 * estimated });
        }
        assert!((ratio.get() / 1.2).ln().abs() < 0.2, "{}", ratio.get());
    }

    #[test]
    fn stays_within_five_times_whatever_is_counted() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1.0, 100.0, 1e300];
        let mut ratio = TokenRatio::default();
        for estimated in odd {
            for counted in odd {
                for _ in 0..300 {
                    ratio.observe(estimated, counted);
                }
                assert!((0.2..=5.0).contains(&ratio.get()), "{estimated} {counted}: {}", ratio.get());
            }
        }
    }
}
