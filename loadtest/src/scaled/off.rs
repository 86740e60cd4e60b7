//! How far the live figures are from the simulated ones.

use crate::sim::Figures;
use serde::Serialize;
use simulation::scenario::Scenario;
use std::collections::BTreeMap;

/// Figures that are compared, and how many times the given share each may be off: a mean of thousands is steady, a 99th
/// percentile hangs on a few.
const COMPARED: [(&str, Option<f64>); 7] = [
    ("mean", Some(1.0)),
    ("p50", None),
    ("p99", Some(2.0)),
    ("ttft_mean", Some(1.0)),
    ("ttft_p99", Some(2.0)),
    ("makespan", Some(1.0)),
    ("reuse", None),
];

/// A figure of a class, live and simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Pair {
    /// The class.
    pub(super) class: String,
    /// Its name.
    pub(super) figure: &'static str,
    /// Seconds of the scenario, or a share.
    pub(super) live: f64,
    /// The same.
    pub(super) simulated: f64,
    /// Live over simulated.
    pub(super) ratio: f64,
    /// How far from 1 the ratio may be, if that was asked for and is asked of this figure.
    pub(super) allowed: Option<f64>,
}

impl Pair {
    /// It is as near as it was asked to be.
    pub(super) fn holds(&self) -> bool {
        // In both directions alike: half as much is as far as twice as much.
        self.allowed.is_none_or(|allowed| self.ratio.max(1.0 / self.ratio) <= 1.0 + allowed)
    }
}

/// All that both have, class by class.
pub(super) fn pairs(scenario: &Scenario, live: &Figures, simulated: &Figures, within: Option<f64>) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for class in &scenario.classes {
        let (Some(live), Some(simulated)) = (live.class(&class.name), simulated.class(&class.name)) else { continue };
        for (figure, times) in COMPARED {
            // Plain answers show no first token.
            if figure.starts_with("ttft_") && !class.objective_on_first_token {
                continue;
            }
            let (Some(live), Some(simulated)) = (live.get(figure), simulated.get(figure)) else { continue };
            if simulated > 0.0 {
                let allowed = within.zip(times).map(|(within, times)| within * times);
                let (class, ratio) = (class.name.clone(), live / simulated);
                pairs.push(Pair { class, figure, live, simulated, ratio, allowed });
            }
        }
    }
    pairs
}

/// By class and figure: live over simulated.
pub(super) fn ratios(pairs: &[Pair]) -> BTreeMap<&str, BTreeMap<&str, f64>> {
    let mut ratios: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for pair in pairs {
        ratios.entry(&pair.class).or_default().insert(pair.figure, pair.ratio);
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(ratio: f64, allowed: Option<f64>) -> Pair {
        Pair { class: "c".into(), figure: "mean", live: ratio, simulated: 1.0, ratio, allowed }
    }

    #[test]
    fn too_little_is_as_wrong_as_too_much() {
        assert!(pair(1.14, Some(0.15)).holds() && pair(0.88, Some(0.15)).holds());
        assert!(!pair(1.16, Some(0.15)).holds() && !pair(0.8, Some(0.15)).holds());
        assert!(pair(7.0, None).holds());
        assert!(!pair(0.0, Some(0.15)).holds() && !pair(f64::NAN, Some(0.15)).holds());
    }

    #[test]
    fn ratios_are_by_class_and_figure() {
        assert_eq!(ratios(&[pair(1.5, None)])["c"]["mean"], 1.5);
    }
}
