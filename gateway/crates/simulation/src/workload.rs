//! What a scenario and a seed draw: phones with all that will befall them, and all requests.
//!
//! Everything is drawn before anything is served, each kind of draw from a stream of its own name, so phones, failures and
//! requests are the same whatever policy serves them. Only when the next turn of a conversation comes depends on the
//! service: its think time is drawn, and starts with the answer.

mod arrivals;
mod phones;
mod prompt;
mod requests;
mod timeline;

pub use self::{
    phones::PhoneSpec,
    prompt::{Prompt, Segment},
    requests::{Request, Start},
    timeline::{Phase, Timeline},
};
use crate::scenario::Scenario;

/// The scenario's own seed and the number of the run make the seed of the draws; runs lie this far apart, so that files
/// whose seeds are close share no run.
const RUN_STRIDE: u64 = 100_000;

/// All that is drawn.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The phones, in the order of their numbers.
    pub phones: Vec<PhoneSpec>,
    /// How fast each of them is when.
    pub timelines: Vec<Timeline>,
    /// The requests, by class; the turns of a conversation one after the other.
    pub requests: Vec<Request>,
    /// The seed that all draws of this run come from.
    pub seed: u64,
}

impl Workload {
    /// Draws run number `run` of a scenario.
    pub fn draw(scenario: &Scenario, run: u64) -> Self {
        let seed = scenario.seed.wrapping_add(run.wrapping_mul(RUN_STRIDE));
        let phones = phones::draw(&scenario.phones, seed);
        let timelines =
            (0..phones.len()).map(|phone| Timeline::draw(scenario, phone, scenario.until_s(), seed)).collect();
        Self { phones, timelines, requests: requests::draw(scenario, seed), seed }
    }

    /// The requests of a class, with their numbers.
    pub fn of_class(&self, class: usize) -> impl Iterator<Item = (usize, &Request)> {
        self.requests.iter().enumerate().filter(move |(_, request)| request.class == class)
    }
}

#[cfg(test)]
pub(crate) mod tests;
