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
