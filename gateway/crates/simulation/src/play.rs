//! A policy serves a scenario: who plays, the play, the figures.

mod figures;
mod player;

pub use self::{
    figures::{ClassFigures, KeyFigures, Played, WasteShares},
    player::{Player, UnknownPlayer},
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
    pub workload: Workload,
    /// What no player can beat, by class.
    pub bounds: Vec<ClassBounds>,
}

impl<'a> Run<'a> {
    /// Draws run number `number`.
    pub fn new(scenario: &'a Scenario, number: u64) -> Self {
        let workload = Workload::draw(scenario, number);
        let bounds = bounds(scenario, &workload);
        Self { scenario, number, workload, bounds }
    }

    /// Lets a player serve it.
    pub fn play(&self, player: &Player) -> Played {
        Played { scenario: self.scenario.name.clone(), player: player.name(), run: self.number, ..Played::default() }
    }
}

/// Lets a player serve run number `seed` of a scenario: [`Run::new`] and [`Run::play`] in one.
pub fn play(scenario: &Scenario, player: &Player, seed: u64) -> Played {
    Run::new(scenario, seed).play(player)
}
