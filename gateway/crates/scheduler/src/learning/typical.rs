//! The rate that is typical of a pool: the median of what its replicas were measured at. It stands in for replicas that
//! have not been measured.
//!
//! A median, because a pool mixes phones that differ ten times and a mean is that of the fast ones. Exact, because it
//! costs little: the rates are kept in two halves, and the median is where they meet.

use std::collections::BTreeMap;

use super::positive;

/// The median of a changing set of rates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Typical {
    /// As many as in `upper`, or one more; none above any of `upper`.
    lower: Half,
    upper: Half,
}

/// Rates by their bits, since positive floats order like them, and how often each occurs.
#[derive(Clone, Debug, Default)]
struct Half {
    counts: BTreeMap<u64, u32>,
    len: usize,
}

impl Half {
    fn add(&mut self, rate: u64) {
        let count = self.counts.entry(rate).or_default();
        *count = count.saturating_add(1);
        self.len += 1;
    }

    /// Whether it was there.
    fn remove(&mut self, rate: u64) -> bool {
        let Some(count) = self.counts.get_mut(&rate) else { return false };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&rate);
        }
        self.len -= 1;
        true
    }

    fn first(&self) -> Option<u64> {
        self.counts.first_key_value().map(|(rate, _)| *rate)
    }

    fn last(&self) -> Option<u64> {
        self.counts.last_key_value().map(|(rate, _)| *rate)
    }
}

impl Typical {
    /// A replica's rate is `new` and was `old`. What is no rate is none.
    pub(crate) fn set(&mut self, old: Option<f64>, new: Option<f64>) {
        if let Some(old) = old.and_then(positive).map(f64::to_bits)
            && !self.lower.remove(old)
        {
            self.upper.remove(old);
        }
        // Before what is new is put in: an emptied half would not say where that belongs.
        self.balance();
        if let Some(new) = new.and_then(positive).map(f64::to_bits) {
            let half = if self.lower.last().is_some_and(|last| new > last) { &mut self.upper } else { &mut self.lower };
            half.add(new);
        }
        self.balance();
    }

    /// The median, of an even number the geometric mean of the middle two; `None` when empty.
    pub(crate) fn get(&self) -> Option<f64> {
        let low = f64::from_bits(self.lower.last()?);
        if self.lower.len > self.upper.len {
            return Some(low);
        }
        // Roots first: the product of two large ones is no number.
        Some(low.sqrt() * f64::from_bits(self.upper.first()?).sqrt())
    }

    fn balance(&mut self) {
        while self.lower.len > self.upper.len + 1 {
            let Some(rate) = self.lower.last() else { return };
            self.lower.remove(rate);
            self.upper.add(rate);
        }
        while self.upper.len > self.lower.len {
            let Some(rate) = self.upper.first() else { return };
            self.upper.remove(rate);
            self.lower.add(rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn sorted_median(rates: &[f64]) -> Option<f64> {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len().checked_sub(1)? / 2;
        Some(if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle] * sorted[middle + 1]).sqrt() })
    }

    #[test]
    fn is_the_median_through_any_changes() {
        for seed in 0..20 {
            let (mut rng, mut typical) = (Rng::new(seed), Typical::default());
            let mut rates: Vec<f64> = Vec::new();
            for _ in 0..500 {
                // Few values, so that many are equal.
                let new = (1.0 + 20.0 * rng.unit()).floor();
                let at = (rng.unit() * rates.len() as f64) as usize;
                match rng.next() % 3 {
                    0 if !rates.is_empty() => typical.set(Some(rates.swap_remove(at)), None),
                    1 if !rates.is_empty() => typical.set(Some(std::mem::replace(&mut rates[at], new)), Some(new)),
                    _ => {
                        rates.push(new);
                        typical.set(None, Some(new));
                    }
                }
                match (typical.get(), sorted_median(&rates)) {
                    (Some(is), Some(should)) => assert!((is - should).abs() < 1e-9, "{is} {should}"),
                    (is, should) => assert_eq!(is, should),
                }
            }
        }
    }

    #[test]
    fn the_fast_few_do_not_set_it() {
        let mut typical = Typical::default();
        for rate in [10.0, 11.0, 12.0, 400.0, 500.0] {
            typical.set(None, Some(rate));
        }
        assert_eq!(typical.get(), Some(12.0));
    }

    #[test]
    fn what_is_no_rate_or_was_never_there_changes_nothing() {
        let mut typical = Typical::default();
        for odd in [f64::NAN, f64::INFINITY, 0.0, -0.0, -5.0] {
            typical.set(Some(odd), Some(odd));
        }
        assert_eq!(typical.get(), None);
        typical.set(None, Some(7.0));
        typical.set(Some(8.0), None);
        assert_eq!(typical.get(), Some(7.0));
        typical.set(None, Some(f64::MAX));
        assert!(typical.get().is_some_and(f64::is_finite));
    }
}
