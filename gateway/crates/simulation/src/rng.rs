//! SplitMix64 in named streams. Each kind of draw (arrivals, lifetimes, faults) has its own stream, so a change of what one
//! part draws leaves the others' fortunes as they were, and two policies meet the same phones and the same clients.

use std::f64::consts::TAU;

/// One stream of draws.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of that name in the run of that seed.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a: any hash that tells names apart does; this one is ten lines in any language that wants to compare.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self(hash ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// The one stream of a seed that stands for itself.
    pub const fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Sixty-four random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in 0..n; 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.unit() * n as f64) as usize).min(n.saturating_sub(1))
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Exponential with this mean: the time between events that know nothing of each other.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Standard normal (Box and Muller; two draws each time, so that the stream does not depend on who kept the spare).
    pub fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.unit(), self.unit());
        (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
    }

    /// One of several; `None` of none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }

    /// An index into `weights`, in proportion to them.
    pub fn weighted(&mut self, weights: impl Iterator<Item = f64> + Clone) -> usize {
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

    /// A random order (Fisher-Yates from the end).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_the_same_for_the_same_seed_and_name_only() {
        let draw = |seed, name| Rng::new(seed, name).bits();
        assert_eq!(draw(1, "arrivals"), draw(1, "arrivals"));
        assert_ne!(draw(1, "arrivals"), draw(1, "churn"));
        assert_ne!(draw(1, "arrivals"), draw(2, "arrivals"));
    }

    #[test]
    fn means_and_spreads_are_as_stated() {
        let mut rng = Rng::new(7, "test");
        let n = 100_000;
        let mean = |draws: Vec<f64>| draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean((0..n).map(|_| rng.unit()).collect()) - 0.5).abs() < 0.01);
        assert!((mean((0..n).map(|_| rng.exponential(3.0)).collect()) - 3.0).abs() < 0.05);
        assert!(mean((0..n).map(|_| rng.normal()).collect()).abs() < 0.02);
        assert!((mean((0..n).map(|_| rng.normal().powi(2)).collect()) - 1.0).abs() < 0.03);
        assert!((0..n).all(|_| rng.below(3) < 3));
        assert!((mean((0..n).map(|_| rng.weighted([1.0, 3.0].into_iter()) as f64).collect()) - 0.75).abs() < 0.02);
        assert_eq!(rng.pick::<u8>(&[]), None);
        let mut order = [0, 1, 2, 3];
        rng.shuffle(&mut order);
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
    }
}
