//! How a cost grows with something, as a share of what it is without: `y = level × (1 + slope × x)`.
//!
//! The level is not what is sought: it carries whatever is wrong with the rate that the cost was measured by, alike at
//! every `x`. The slope is sought, and it is the ratio of the two coefficients of a straight line. The line is fitted by
//! least squares over samples that fade, so it needs five sums and no samples.
//!
//! Traffic often does not say what the slope is: where all prompts are equally long, every slope fits. So the fit is
//! held to the prior by a few samples' worth of evidence (a ridge), and what traffic does not say stays as it was. The
//! ridge pulls at the ratio and not at the level, so a pool that is uniformly slower than believed bends nothing.
//!
//! Samples are weighted by how far they are expected to scatter, which is in proportion to the cost, and one that is far
//! from the line counts as if it were a factor of two from it. Fitting logarithms instead was rejected: they bend the
//! line.

use super::positive;

/// Samples after which an old one counts 1/e.
const MEMORY: f64 = 500.0;
/// What the prior is worth: squared relative distance, in samples. About thirty samples of mixed length move the
/// estimate halfway.
const STIFFNESS: f64 = 4.0;
/// What the level of one is worth, in samples: just enough to have a line before there are samples.
const ANCHOR: f64 = 1.0;
/// A sample counts as at most this factor from the line.
const CLIP: f64 = 2.0;
/// Farthest `x`, as multiples of where the cost has doubled by the prior.
const FARTHEST: f64 = 100.0;
/// The level stays within this factor of one.
const LEVEL: f64 = 20.0;

/// A slope that is learned. In units of the prior: `x` is 1 where the cost has doubled by the prior.
#[derive(Clone, Debug)]
pub(crate) struct Slope {
    prior: f64,
    most: f64,
    /// Sums of weight times 1, x, x², y, xy.
    sums: [f64; 5],
    level: f64,
    relative: f64,
}

impl Slope {
    /// A slope that is `prior` until something else is seen, and within 0 and `most` always.
    pub(crate) fn new(prior: f64, most: f64) -> Self {
        Self { prior, most: most / prior, sums: [0.0; 5], level: 1.0, relative: 1.0 }
    }

    pub(crate) fn get(&self) -> f64 {
        self.relative * self.prior
    }

    /// The cost at `x` was `y` times what it is at 0 by the rate believed. `weight` is 1 for a sample of full worth.
    pub(crate) fn observe(&mut self, x: f64, y: f64, weight: f64) {
        let (Some(y), Some(weight)) = (positive(y), positive(weight)) else { return };
        let x = super::up_to(FARTHEST, x * self.prior);
        let weight = weight.min(1.0);
        let growth = 1.0 + self.relative * x;
        let line = self.level * growth;
        let y = y.clamp(line / CLIP, line * CLIP);
        let counted = weight / (growth * growth);
        let keep = 1.0 - weight / MEMORY;
        for (sum, part) in self.sums.iter_mut().zip([1.0, x, x * x, y, x * y]) {
            *sum = *sum * keep + counted * part;
        }
        self.fit();
    }

    /// Minimises Σ weight (y - level - rise x)² + STIFFNESS (rise - level)² + ANCHOR (level - 1)².
    fn fit(&mut self) {
        let [n, x, xx, y, xy] = self.sums;
        let (n, x, xx, y) = (n + STIFFNESS + ANCHOR, x - STIFFNESS, xx + STIFFNESS, y + ANCHOR);
        // Positive: the penalties alone make the matrix definite.
        let determinant = n * xx - x * x;
        let (level, rise) = ((y * xx - x * xy) / determinant, (n * xy - x * y) / determinant);
        let Some(level) = positive(level) else { return };
        self.level = level.clamp(1.0 / LEVEL, LEVEL);
        self.relative = (rise / level).clamp(0.0, self.most);
    }
}
