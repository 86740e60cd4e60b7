//! What no policy can beat.

use serde::Serialize;

use crate::{scenario::Scenario, workload::Workload};

/// Lower bounds of one class, seconds. Absent where they make no sense for its kind of arrivals.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassBounds {
    /// The class.
    pub name: String,
    /// Mean of the shortest possible answers: on the best phone, alone, the shared prefix cached.
    pub service_mean: f64,
    /// 99th percentile of the same.
    pub service_p99: f64,
    /// Mean if all phones were one that always serves the shortest remaining work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooled_mean: Option<f64>,
    /// Mean if work flowed to the fastest phones first, none more than fully busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fluid_mean: Option<f64>,
    /// 99th percentile of the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fluid_p99: Option<f64>,
    /// Load of this class alone as a share of what the phones can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// The largest of the bounds on the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// When the last answer of a batch can come at the earliest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub makespan: Option<f64>,
}

/// The bounds of each class, in the scenario's order.
pub fn bounds(scenario: &Scenario, _workload: &Workload) -> Vec<ClassBounds> {
    scenario.classes.iter().map(|class| ClassBounds { name: class.name.clone(), ..ClassBounds::default() }).collect()
}
