//! How long prompts and answers are.

use serde::Deserialize;

use crate::rng::Rng;

/// A distribution of lengths in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "dist", rename_all = "lowercase", deny_unknown_fields)]
pub enum Length {
    /// Every whole number from `min` to `max` alike.
    Uniform {
        /// The shortest.
        min: f64,
        /// The longest.
        max: f64,
    },
    /// Log-normal, cut to `min..=max`.
    LogNormal {
        /// Mean, before it is cut.
        mean: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// The shortest.
        min: f64,
        /// The longest.
        max: f64,
    },
}

impl Length {
    /// One length; at least 1.
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        let tokens = match *self {
            Self::Uniform { min, max } => min + (rng.unit() * (max - min + 1.0)).floor(),
            Self::LogNormal { mean, sigma, min, max } => {
                let tokens = mean * (sigma * rng.normal() - 0.5 * sigma * sigma).exp();
                tokens.max(min).min(max).round()
            }
        };
        (tokens as u32).max(1)
    }

    /// The shortest and the longest.
    pub const fn limits(&self) -> (f64, f64) {
        match *self {
            Self::Uniform { min, max } | Self::LogNormal { min, max, .. } => (min, max),
        }
    }
}
