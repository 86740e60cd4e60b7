//! How much better or worse a policy is than others that everyone knows.

use super::Comparison;
use crate::sim::Figures;
use serde::Serialize;
use std::collections::BTreeMap;

/// Those that others are measured against, where they are part of the play: what most proxies do, and what perfect
/// knowledge would do.
pub(super) const MARKS: [&str; 2] = ["least_connections", "oracle"];

/// Figures of a class over the same figures of a mark: below 1 is better than the mark. `None` where one of the two has
/// none, or the mark's is 0.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct MarkRatios {
    pub(super) mean: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) ttft_mean: Option<f64>,
    pub(super) ttft_p99: Option<f64>,
    pub(super) makespan: Option<f64>,
}

impl MarkRatios {
    /// Against one mark; `None` if it is not part of the play.
    pub(super) fn to(comparison: &Comparison<'_>, mark: &str, figures: &Figures, class: &str) -> Option<Self> {
        let mark = comparison.policy(mark)?.class(class)?;
        let own = figures.class(class)?;
        let ratio = |figure: &str| {
            let of = mark.get(figure).filter(|value| *value > 0.0)?;
            Some(own.get(figure)? / of)
        };
        Some(Self {
            mean: ratio("mean"),
            p99: ratio("p99"),
            ttft_mean: ratio("ttft_mean"),
            ttft_p99: ratio("ttft_p99"),
            makespan: ratio("makespan"),
        })
    }

    /// Against every mark that is part of the play.
    pub(super) fn all(comparison: &Comparison<'_>, figures: &Figures, class: &str) -> BTreeMap<&'static str, Self> {
        MARKS.into_iter().filter_map(|mark| Some((mark, Self::to(comparison, mark, figures, class)?))).collect()
    }
}
