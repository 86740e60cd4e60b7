//! A policy serves a scenario: who plays, the play, the figures.

mod asks;
mod balancer;
mod beliefs;
mod core;
mod ending;
mod figures;
mod others;
mod phone;
mod player;
mod stage;
mod tally;
mod truth;

use std::sync::Arc;

use scheduler::{Rates, Usage};

pub(crate) use self::core::{rehearse, serve};
use self::{beliefs::Beliefs, ending::Ending, others::Way, player::Kind};
pub use self::{
    figures::{ClassFigures, KeyFigures, Played, WasteShares},
    player::{Player, UnknownPlayer},
    stage::Progress,
};
use crate::{
    bounds::{ClassBounds, bounds},
    scenario::Scenario,
    workload::Workload,
};

/// One run of a scenario: what it draws and what nothing can beat. Made once, played by any number of players.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The number of the run: 0 draws from the scenario's own seed.
    pub number: u64,
    /// What it draws.
    pub workload: Arc<Workload>,
    /// What no player can beat, by class.
    pub bounds: Vec<ClassBounds>,
}

impl<'a> Run<'a> {
    /// Draws run number `number`.
    pub fn new(scenario: &'a Scenario, number: u64) -> Self {
        let workload = Workload::draw(scenario, number);
        let bounds = bounds(scenario, &workload);
        Self { scenario, number, workload: Arc::new(workload), bounds }
    }

    /// Lets a player serve it.
    pub fn play(&self, player: &Player) -> Played {
        let ending = match player.kind {
            Kind::Core(setup) => core::play(self.scenario, &self.workload, &setup),
            Kind::Early(choice) => others::play(self.scenario, &self.workload, &Way::Early(choice)),
            Kind::Central => others::play(self.scenario, &self.workload, &Way::Central),
        };
        tally::played(self, player, ending)
    }

    /// Lets the gateway's own policy serve it for so many seconds: what its core has measured by then over the last `window_s`
    /// seconds, by model, and what had become of each request.
    pub fn measure(&self, at_s: f64, window_s: f64) -> (Vec<Usage>, Vec<Progress>) {
        core::measure(self.scenario, &self.workload, at_s, window_s)
    }

    /// The figures of a play that happened elsewhere, such as behind real sockets: what became of each request, by its
    /// number, and when it was over, seconds. What the phones did in vain is not known of it.
    pub fn figures(&self, player: &Player, requests: Vec<Progress>, end: f64) -> Played {
        tally::played(self, player, Ending { requests, end, ..Ending::default() })
    }

    /// Reading and writing speeds that the core is told of the phones before it has measured any, tokens per second.
    pub fn priors(&self) -> Vec<Rates> {
        asks::priors(self.scenario, &Beliefs::draw(self.scenario, &self.workload))
    }
}

/// Lets a player serve run number `seed` of a scenario: [`Run::new`] and [`Run::play`] in one.
pub fn play(scenario: &Scenario, player: &Player, seed: u64) -> Played {
    Run::new(scenario, seed).play(player)
}

#[cfg(test)]
mod tests;
