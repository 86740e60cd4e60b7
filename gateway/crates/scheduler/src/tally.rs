//! How often each kind of decision was taken, and what slot time led to nothing.

use std::time::Duration;

use crate::snapshot::{Decision, Waste};

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) decisions: [u64; Decision::ALL.len()],
    pub(crate) wasted: [f64; Waste::ALL.len()],
}

impl Tally {
    pub(crate) fn count(&mut self, decision: Decision) {
        if let Some(count) = self.decisions.get_mut(decision as usize) {
            *count += 1;
        }
    }

    pub(crate) fn waste(&mut self, why: Waste, slot_time: Duration) {
        if let Some(sum) = self.wasted.get_mut(why as usize) {
            *sum += slot_time.as_secs_f64();
        }
    }
}
