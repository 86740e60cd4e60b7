//! Quantiles of a sample, by the nearest rank: a time that really occurred, never one between two.

/// The smallest value that is at least as large as the share `q` of `sorted`; `None` of nothing.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// The arithmetic mean; `None` of nothing.
pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_value_of_the_sample() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        let at = |q| quantile(&sorted, q);
        assert_eq!(
            [at(0.0), at(0.5), at(0.99), at(0.991), at(1.0)].map(Option::unwrap),
            [1.0, 100.0, 198.0, 199.0, 200.0]
        );
        assert_eq!((quantile(&[], 0.5), mean(&[]), mean(&[1.0, 3.0])), (None, None, Some(2.0)));
    }
}
