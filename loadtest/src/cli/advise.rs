//! The command that puts capacity advice to the test.

use super::Seeds;
use clap::Args;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  What would be advised after this, and is it right? With 6 phones measured, in three runs:
    loadtest advise scenarios/sim/advice-guards.json --phones 6 --seeds 0-2

  Does the advice hold? Fails where a number misses an objective, or is far too large:
    loadtest advise scenarios/sim/advice-alike.json scenarios/sim/advice-batch.json --seeds 5-9 --check

Exit codes: 0 played (and, with --check, all right), 1 not, 64 usage.";

/// `loadtest advise`.
#[derive(Debug, Args)]
pub(crate) struct Advise {
    /// Scenario files; scenarios/sim/advice-*.json are examples.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) scenarios: Vec<PathBuf>,

    /// Measure with so many phones of each model; by default as many as the file has.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) phones: Vec<usize>,

    /// Which runs: 0 is the scenario's own draw, others differ in everything random; 0,2,5 or 0-4.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub(crate) seeds: Vec<Seeds>,

    /// Advise after so many seconds; by default where the scenario's arrivals end.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) at: Option<f64>,

    /// From what was measured in the last so many seconds; by default all since the warm-up.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) window: Option<f64>,

    /// Requests of the stretch that is played again.
    #[arg(long, value_name = "N", default_value_t = 6000)]
    pub(crate) requests: usize,

    /// Plays at most.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) plays: u32,

    /// Other draws of the scenario that judge what is advised.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) draws: u16,

    /// Plot what is attained with how many phones.
    #[arg(long)]
    pub(crate) plot: bool,

    /// Show the reasons.
    #[arg(long)]
    pub(crate) reasons: bool,

    /// Fail where the number advised misses an objective, or is too large, by more than what is stated under the table.
    #[arg(long)]
    pub(crate) check: bool,
}
