//! Exact distributions of times.
//!
//! A play has at most some millions of requests; sorting their times once is cheap and exact, so nothing is gained by
//! buckets, which would be off by their width exactly where it matters.

use crate::scenario::Point;
use serde::{Serialize, Serializer, ser::SerializeMap as _};

/// Sorted times, seconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Distribution(Vec<f32>);

impl FromIterator<f32> for Distribution {
    fn from_iter<I: IntoIterator<Item = f32>>(times: I) -> Self {
        let mut sorted: Vec<f32> = times.into_iter().collect();
        sorted.sort_unstable_by(f32::total_cmp);
        Self(sorted)
    }
}

impl Distribution {
    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest time that is at least as long as the share `q` of them.
    pub(crate) fn quantile(&self, q: f64) -> Option<f64> {
        let rank = (q * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.clamp(1, self.0.len().max(1)) - 1).map(|time| f64::from(*time))
    }

    /// One of the named points.
    pub(crate) fn at(&self, point: Point) -> Option<f64> {
        match point {
            Point::Mean => self.mean(),
            Point::P50 => self.quantile(0.5),
            Point::P90 => self.quantile(0.9),
            Point::P99 => self.quantile(0.99),
            Point::Max => self.quantile(1.0),
        }
    }

    fn mean(&self) -> Option<f64> {
        let sum: f64 = self.0.iter().map(|time| f64::from(*time)).sum();
        (!self.0.is_empty()).then(|| sum / self.0.len() as f64)
    }

    fn write<S: Serializer>(&self, prefix: &str, serializer: S) -> Result<S::Ok, S::Error> {
        const POINTS: [(&str, Point); 5] =
            [("mean", Point::Mean), ("p50", Point::P50), ("p90", Point::P90), ("p99", Point::P99), ("max", Point::Max)];
        let mut map = serializer.serialize_map(Some(POINTS.len()))?;
        for (name, point) in POINTS {
            map.serialize_entry(&format!("{prefix}{name}"), &self.at(point))?;
        }
        map.end()
    }
}

impl Serialize for Distribution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.write("", serializer)
    }
}

/// Its points with `ttft_` before their names.
pub(crate) fn ttft<S: Serializer>(times: &Distribution, serializer: S) -> Result<S::Ok, S::Error> {
    times.write("ttft_", serializer)
}

/// Its points with `queue_` before their names.
pub(super) fn queue<S: Serializer>(times: &Distribution, serializer: S) -> Result<S::Ok, S::Error> {
    times.write("queue_", serializer)
}

/// Its points with `gap_` before their names.
pub(super) fn gap<S: Serializer>(times: &Distribution, serializer: S) -> Result<S::Ok, S::Error> {
    times.write("gap_", serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Distribution = (1..=100).rev().map(|n| n as f32).collect();
        assert_eq!((times.at(Point::P50), times.at(Point::P90)), (Some(50.0), Some(90.0)));
        assert_eq!((times.at(Point::P99), times.at(Point::Max)), (Some(99.0), Some(100.0)));
        assert_eq!(times.at(Point::Mean), Some(50.5));
        assert_eq!(times.quantile(0.0), Some(1.0));
    }

    #[test]
    fn one_time_is_every_percentile_and_none_is_none() {
        let one: Distribution = [3.0].into_iter().collect();
        assert_eq!((one.at(Point::P50), one.at(Point::P99)), (Some(3.0), Some(3.0)));
        assert_eq!(Distribution::default().at(Point::P99), None);
        assert_eq!(Distribution::default().at(Point::Mean), None);
    }
}
