//! A scenario: a fleet, the work that arrives, what goes wrong meanwhile, and what must come out.
//!
//! One file is a load test, a test of the policy and its documentation at once. Every length of time in it is real
//! time; `fleet.time_scale` makes the *phones* faster than life, so that a live play of a scenario ends soon and a
//! simulated play of the same file gives figures in the same unit. Everything here is data: how it is played is none of
//! its business.

mod expect;
mod fleet;
mod read;
mod table;
mod work;

pub(crate) use expect::{Bound, Clock, Expectation, Measure, Point, Statistic, Total};
pub(crate) use fleet::{Fleet, PhoneGroup, Pick, Step, StepAt};
pub(crate) use read::read;
#[cfg(test)]
pub(crate) use simulation::scenario::Length;
pub(crate) use simulation::scenario::Template;
pub(crate) use table::parse_seconds;
pub(crate) use work::{Arrivals, Class};

/// A scenario, as read from its file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scenario {
    /// Short name, for tables and file names.
    pub(crate) name: String,
    /// What should happen, and why.
    pub(crate) why: String,
    /// Source of everything random in it.
    pub(crate) seed: u64,
    /// How long work arrives, seconds. Answers may come later.
    pub(crate) duration_s: f64,
    /// Requests that start before this are left out of the times, seconds.
    pub(crate) warmup_s: f64,
    /// How long a client waits for one answer, seconds.
    pub(crate) timeout_s: f64,
    /// The phones.
    pub(crate) fleet: Fleet,
    /// The kinds of work.
    pub(crate) classes: Vec<Class>,
    /// What happens to the fleet, by time.
    pub(crate) steps: Vec<StepAt>,
    /// What must come out.
    pub(crate) expect: Vec<Expectation>,
}
