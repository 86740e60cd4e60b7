//! What came out of a play.

use std::collections::BTreeMap;

use serde::Serialize;

/// All figures of one play. Times are seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Played {
    /// The scenario.
    pub scenario: String,
    /// Who served it.
    pub player: &'static str,
    /// The number of the run.
    pub run: u64,
    /// By class, in the scenario's order; classes of which nothing was measured are left out.
    pub classes: Vec<ClassFigures>,
    /// What the phones did in vain.
    pub waste: WasteShares,
    /// How often the core took which kind of decision; empty for players that are not the core.
    pub decisions: BTreeMap<&'static str, u64>,
    /// Requests that the core refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// When it was over.
    pub end: f64,
}

/// The figures of one class. Measured are the requests that arrive between the end of the warm-up and the horizon, and of a
/// batch all; a request without an answer counts as answered when the play was broken off.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassFigures {
    /// The class.
    pub name: String,
    /// Requests measured.
    pub requests: usize,
    /// Of these, without an answer.
    pub unfinished: usize,
    /// Time from arrival to the whole answer: mean.
    pub mean: f64,
    /// Its median.
    pub p50: f64,
    /// Its 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
    /// Time from arrival to the first token: mean.
    pub ttft_mean: f64,
    /// Its median.
    pub ttft_p50: f64,
    /// Its 99th percentile.
    pub ttft_p99: f64,
    /// Share that met the class's objective.
    pub good: f64,
    /// Share of the tokens that a perfect cache could have supplied which the phones' caches did supply; over the answered.
    pub reuse: f64,
    /// Mean over its lower bound; of classes that have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_ratio: Option<f64>,
    /// When the last answer of a batch came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub makespan: Option<f64>,
    /// The same over its lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub makespan_ratio: Option<f64>,
    /// Slot time that the measured requests had in all, seconds.
    pub slot_seconds: f64,
    /// Of this, what came to nothing: all of copies that did not answer, but for the writing of what another carried on.
    pub wasted_slot_seconds: f64,
    /// By key, in the scenario's order.
    pub keys: Vec<KeyFigures>,
    /// Times from arrival to the whole answer that 0, 1, … 100 % of the requests do not exceed; for plots.
    #[serde(skip)]
    pub curve: Vec<f64>,
}

impl ClassFigures {
    /// The names of the figures that [`Self::get`] knows.
    pub const FIGURES: [&'static str; 15] = [
        "mean",
        "p50",
        "p99",
        "max",
        "ttft_mean",
        "ttft_p50",
        "ttft_p99",
        "good",
        "reuse",
        "bound_ratio",
        "makespan",
        "makespan_ratio",
        "unfinished",
        "slot_seconds",
        "wasted_slot_seconds",
    ];

    /// The figure of that name; `None` if there is none, or the class does not have it.
    pub fn get(&self, figure: &str) -> Option<f64> {
        match figure {
            "mean" => Some(self.mean),
            "p50" => Some(self.p50),
            "p99" => Some(self.p99),
            "max" => Some(self.max),
            "ttft_mean" => Some(self.ttft_mean),
            "ttft_p50" => Some(self.ttft_p50),
            "ttft_p99" => Some(self.ttft_p99),
            "good" => Some(self.good),
            "reuse" => Some(self.reuse),
            "bound_ratio" => self.bound_ratio,
            "makespan" => self.makespan,
            "makespan_ratio" => self.makespan_ratio,
            "unfinished" => Some(self.unfinished as f64),
            "slot_seconds" => Some(self.slot_seconds),
            "wasted_slot_seconds" => Some(self.wasted_slot_seconds),
            _ => None,
        }
    }
}

/// The figures of one key of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KeyFigures {
    /// The key.
    pub name: String,
    /// Requests measured.
    pub requests: usize,
    /// Mean time from arrival to the whole answer.
    pub mean: f64,
    /// Slot time it had between the end of the warm-up and the horizon.
    pub slot_seconds: f64,
}

/// What was done in vain, as shares of all work done; work is counted in seconds of the reference phone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WasteShares {
    /// Lost with a phone.
    pub fail: f64,
    /// Second copies of requests that another copy answered.
    pub hedge: f64,
    /// Given back to more urgent work.
    pub preempt: f64,
    /// Read although a perfect cache would have held it. Not disjoint from the others.
    pub cold: f64,
}
