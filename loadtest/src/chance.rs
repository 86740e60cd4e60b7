//! Reproducible randomness: SplitMix64 with named streams.
//!
//! Every random draw of a workload comes from a stream named after what it decides, so that a change of one class leaves
//! all others as they were, and nothing depends on the order in which answers come back.

/// A stream of random numbers that depends on its seed and name alone.
#[derive(Debug, Clone)]
pub(crate) struct Chance(u64);

impl Chance {
    /// The stream called `name` under `seed`.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponentially distributed with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Normally distributed with mean 0 and deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.unit(), self.unit());
        (-2.0 * radius.ln()).sqrt() * (2.0 * std::f64::consts::PI * angle).cos()
    }

    /// Uniform in `0..bound`; `bound` must be above 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((self.unit() * bound as f64) as usize).min(bound - 1)
    }

    /// An index into `weights`, in proportion to them.
    pub(crate) fn pick(&mut self, weights: impl Iterator<Item = f64> + Clone) -> usize {
        let mut left = self.unit() * weights.clone().sum::<f64>();
        let mut last = 0;
        for (index, weight) in weights.enumerate() {
            if left < weight {
                return index;
            }
            left -= weight;
            last = index;
        }
        last
    }

    /// A random order of `items` (Fisher-Yates from the end).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_depends_on_its_seed_and_name_alone() {
        let draw = |seed, name| {
            (0..4).map(|_| 0).scan(Chance::new(seed, name), |chance, _| Some(chance.bits())).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
    }

    #[test]
    fn draws_have_the_means_they_promise() {
        let mut chance = Chance::new(7, "means");
        let mean = |draw: &mut dyn FnMut() -> f64| (0..20_000).map(|_| draw()).sum::<f64>() / 20_000.0;
        assert!((mean(&mut || chance.unit()) - 0.5).abs() < 0.01);
        assert!((mean(&mut || chance.exponential(3.0)) - 3.0).abs() < 0.1);
        assert!(mean(&mut || chance.normal()).abs() < 0.03);
        assert!((mean(&mut || chance.pick([1.0, 3.0].into_iter()) as f64) - 0.75).abs() < 0.02);
    }
}
