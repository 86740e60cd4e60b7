//! `loadtest compare`: several policies serve the same scenarios, side by side with what none can beat.
//!
//! | question | module |
//! |---|---|
//! | how much better or worse than a mark | [`ratios`] |
//! | table on the terminal | [`table`] |
//! | the page | [`page`], its plots [`plots`] and [`bars`] |

mod bars;
mod page;
mod plots;
mod ratios;
mod table;

pub(crate) use page::{Heading, page};

use crate::{
    cli, clock,
    sim::{Figures, Order, Progress, Watcher, play_all, read_all},
};
use anyhow::Context as _;
use ratios::MarkRatios;
use serde::Serialize;
use serde_json::{Map, Value};
use simulation::scenario::Scenario;
use std::io::{self, Write};

/// One scenario, served by several policies.
pub(crate) struct Comparison<'s> {
    scenario: &'s Scenario,
    /// In the order in which they were asked for; at least one.
    policies: Vec<Figures>,
}

/// `loadtest compare`.
pub(crate) fn run(options: &cli::Compare) -> anyhow::Result<bool> {
    let scenarios = read_all(&options.scenarios)?;
    let players = cli::chosen(&options.policies);
    let seeds = cli::runs(&options.seeds);
    let order = |scenario| Order { scenario, players: players.clone(), seeds: seeds.clone() };
    let orders: Vec<Order<'_>> = scenarios.iter().map(|(_, scenario)| order(scenario)).collect();
    let mut collector = Collector {
        json: options.json,
        progress: Progress::new(),
        orders: &orders,
        begun: Vec::new(),
        whole: Vec::new(),
    };
    play_all(&orders, &mut collector)?;
    if let Some(path) = &options.html {
        let page = page(&Heading::of(&collector.whole), &collector.whole, clock::unix_seconds());
        std::fs::write(path, page).with_context(|| path.display().to_string())?;
    }
    Ok(true)
}

/// Prints each scenario when all its policies are played, and keeps it for the page.
struct Collector<'o, 's> {
    json: bool,
    progress: Progress,
    orders: &'o [Order<'s>],
    begun: Vec<Figures>,
    whole: Vec<Comparison<'s>>,
}

impl Watcher for Collector<'_, '_> {
    fn played(&mut self, done: usize, all: usize) {
        self.progress.show(done, all);
    }

    fn finished(&mut self, figures: Figures) -> anyhow::Result<()> {
        self.begun.push(figures);
        let order = self.orders.get(self.whole.len()).filter(|order| order.players.len() == self.begun.len());
        let Some(order) = order else { return Ok(()) };
        let comparison = Comparison::new(order.scenario, std::mem::take(&mut self.begun));
        self.progress.clear();
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, &comparison.json()?)?;
            writeln!(out)?;
        } else {
            table::print(&mut out, &comparison)?;
        }
        self.whole.push(comparison);
        Ok(())
    }
}

impl<'s> Comparison<'s> {
    /// What several policies, at least one, made of a scenario.
    pub(crate) const fn new(scenario: &'s Scenario, policies: Vec<Figures>) -> Self {
        Self { scenario, policies }
    }

    /// The figures of a policy, if it is among them.
    fn policy(&self, name: &str) -> Option<&Figures> {
        self.policies.iter().find(|figures| figures.policy == name)
    }

    /// Names of the classes, in the scenario's order.
    fn classes(&self) -> impl Iterator<Item = &str> {
        self.scenario.classes.iter().map(|class| class.name.as_str())
    }

    fn seeds(&self) -> &[u64] {
        self.policies.first().map_or(&[], |figures| &figures.seeds)
    }

    /// A lower bound of a class.
    fn bound(&self, class: &str, bound: &str) -> Option<f64> {
        self.policies.first()?.bound(class, bound)
    }

    /// As one JSON object: bounds once, and beside each class's figures how they compare.
    fn json(&self) -> serde_json::Result<Value> {
        #[derive(Serialize)]
        struct Head<'c> {
            scenario: &'c str,
            why: &'c str,
            seeds: &'c [u64],
        }
        let head = Head { scenario: &self.scenario.name, why: &self.scenario.why, seeds: self.seeds() };
        let mut json = serde_json::to_value(head)?;
        let mut policies = Map::new();
        for figures in &self.policies {
            let mut one = serde_json::to_value(figures)?;
            for class in &figures.classes {
                let ratios = MarkRatios::all(self, figures, &class.name);
                one["classes"][&class.name]["ratios"] = serde_json::to_value(ratios)?;
            }
            if let Some(fields) = one.as_object_mut() {
                fields.retain(|key, _| !["scenario", "policy", "seeds", "bounds"].contains(&key.as_str()));
            }
            policies.insert(figures.policy.to_owned(), one);
        }
        json["bounds"] = self.policies.first().map(|figures| serde_json::to_value(&figures.bounds)).transpose()?.into();
        json["policies"] = Value::Object(policies);
        Ok(json)
    }
}
