//! What is left when a play is over.

use std::collections::BTreeMap;

use super::stage::{Progress, Work};

#[derive(Clone, Debug, Default)]
pub(super) struct Ending {
    /// What became of each request, by number.
    pub(super) requests: Vec<Progress>,
    pub(super) work: Work,
    pub(super) decisions: BTreeMap<&'static str, u64>,
    pub(super) refused: BTreeMap<&'static str, u64>,
    /// When it was over, seconds.
    pub(super) end: f64,
}
