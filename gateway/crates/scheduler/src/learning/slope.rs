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
//! from the line counts as one at a stated factor from it. Fitting logarithms instead was rejected: they bend the
//! line.

use super::positive;

/// Samples after which an old one counts 1/e.
const MEMORY: f64 = 500.0;
/// What the prior is worth: squared relative distance, in samples. Some fifty samples of mixed length move the estimate
/// halfway.
const STIFFNESS: f64 = 1.0;
/// A sample counts as at most this factor from the line, and beyond the second it is about something else: a stall, a
/// lying clock, a rate that is not known yet.
const CLIP: f64 = 2.0;
const BEYOND: f64 = 4.0;
/// Weighs less than this: measures nothing.
const LIGHTEST: f64 = 1e-3;
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
        if weight < LIGHTEST {
            return;
        }
        let weight = weight.min(1.0);
        let growth = 1.0 + self.relative * x;
        let line = self.level * growth;
        if !(line / BEYOND..=line * BEYOND).contains(&y) {
            return;
        }
        let y = y.clamp(line / CLIP, line * CLIP);
        let counted = weight / (growth * growth);
        let keep = 1.0 - weight / MEMORY;
        for (sum, part) in self.sums.iter_mut().zip([1.0, x, x * x, y, x * y]) {
            *sum = *sum * keep + counted * part;
        }
        self.fit();
    }

    /// Minimises Σ weight (y - level - rise x)² + STIFFNESS (rise - level)².
    fn fit(&mut self) {
        let [n, x, xx, y, xy] = self.sums;
        let (n, x, xx) = (n + STIFFNESS, x - STIFFNESS, xx + STIFFNESS);
        // Positive from the first sample on, also where all have the same `x`.
        let determinant = n * xx - x * x;
        let (level, rise) = ((y * xx - x * xy) / determinant, (n * xy - x * y) / determinant);
        let Some(level) = positive(level) else { return };
        self.level = level.clamp(1.0 / LEVEL, LEVEL);
        self.relative = (rise / level).clamp(0.0, self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const PRIOR: f64 = 4e-4;

    fn slope() -> Slope {
        Slope::new(PRIOR, 4.0 * PRIOR)
    }

    /// Costs of a true slope, at a level, scattered by up to a third, seen at lengths of up to 12,000.
    fn feed(slope: &mut Slope, truth: f64, level: f64, samples: usize, rng: &mut Rng) {
        for _ in 0..samples {
            let x = 12_000.0 * rng.unit();
            let noise = (0.6 * (rng.unit() - 0.5)).exp();
            slope.observe(x, level * (1.0 + truth * x) * noise, 1.0);
        }
    }

    #[test]
    fn settles_at_the_true_slope_whatever_the_level() {
        for seed in 0..10 {
            let mut rng = Rng::new(seed);
            for (truth, level) in [(0.3, 1.0), (1.0, 3.0), (1.0, 0.3), (2.0, 1.0), (3.0, 0.5)] {
                let mut slope = slope();
                feed(&mut slope, truth * PRIOR, level, 1000, &mut rng);
                // Steep slopes are told apart badly, by what matters little: what a long prompt costs over a short one.
                let ratio = |slope: f64| (1.0 + slope * 7000.0) / (1.0 + slope * 500.0);
                let error = (ratio(slope.get()) / ratio(truth * PRIOR)).ln().abs();
                assert!(error < 0.15, "{truth} at {level}, seed {seed}: {}", slope.get() / PRIOR);
            }
        }
    }

    #[test]
    fn lengths_that_are_all_alike_say_nothing_about_the_slope() {
        let mut slope = slope();
        for _ in 0..2000 {
            slope.observe(7000.0, 2.0 * (1.0 + PRIOR * 7000.0), 1.0);
        }
        assert!((slope.get() / PRIOR - 1.0).abs() < 0.05, "{}", slope.get() / PRIOR);
    }

    #[test]
    fn a_few_samples_move_it_little_and_many_far() {
        let mut rng = Rng::new(1);
        let mut slope = slope();
        feed(&mut slope, 3.0 * PRIOR, 1.0, 3, &mut rng);
        assert!(slope.get() < 1.6 * PRIOR, "{}", slope.get() / PRIOR);
        feed(&mut slope, 3.0 * PRIOR, 1.0, 300, &mut rng);
        assert!(slope.get() > 2.2 * PRIOR, "{}", slope.get() / PRIOR);
    }

    #[test]
    fn one_sample_in_ten_that_is_absurd_does_not_bend_it() {
        for absurd in [1e-6, 0.3, 3.0, 1e6] {
            let (mut rng, mut slope) = (Rng::new(2), slope());
            for round in 0..1000 {
                feed(&mut slope, PRIOR, 1.0, 1, &mut rng);
                if round % 10 == 0 {
                    slope.observe(12_000.0, absurd, 1.0);
                }
            }
            assert!((slope.get() / PRIOR - 1.0).abs() < 0.5, "{absurd}: {}", slope.get() / PRIOR);
        }
    }

    #[test]
    fn follows_a_change_and_stays_within_its_bounds() {
        let (mut rng, mut slope) = (Rng::new(3), slope());
        feed(&mut slope, 8.0 * PRIOR, 1.0, 3000, &mut rng);
        assert!(slope.get() <= 4.0 * PRIOR);
        feed(&mut slope, 0.0, 1.0, 5000, &mut rng);
        assert!((0.0..0.1 * PRIOR).contains(&slope.get()), "{}", slope.get() / PRIOR);
    }

    #[test]
    fn no_input_makes_it_anything_but_a_number_within_bounds() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, f64::MIN_POSITIVE, 1.0, 1e300];
        let mut slope = slope();
        for x in odd {
            for y in odd {
                for weight in odd {
                    for _ in 0..20 {
                        slope.observe(x, y, weight);
                    }
                    assert!((0.0..=4.0 * PRIOR).contains(&slope.get()), "{x} {y} {weight}: {}", slope.get());
                }
            }
        }
    }
}
