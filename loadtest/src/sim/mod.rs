//! Scenarios played in virtual time: an hour of a hundred phones takes seconds, and is the same every time.
//!
//! | question | module |
//! |---|---|
//! | what is played by which thread | [`runner`] |
//! | what the runs of a scenario come to | [`figures`] |
//! | what the terminal shows meanwhile | [`progress`] |
//! | tables | [`table`] |
//! | whether the figures are within a file's ranges | [`check`] |

mod check;
mod figures;
mod progress;
mod runner;
mod table;

pub(crate) use figures::{ClassMeans, Figures, Measured};
pub(crate) use progress::Progress;
pub(crate) use runner::{Order, Watcher, play_all};
pub(crate) use table::{print as print_figures, ratio, seeds, share, waste_table};

use crate::cli;
use anyhow::{Context as _, bail};
use simulation::scenario::Scenario;
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

/// `loadtest sim`: true if everything is as it should be.
pub(crate) fn run(options: &cli::Sim) -> anyhow::Result<bool> {
    if options.policies.contains(&cli::Choice::List) {
        writeln!(io::stdout(), "{}", cli::players())?;
        return Ok(true);
    }
    let scenarios = read_all(&options.scenarios)?;
    if options.check {
        return check::run(&scenarios);
    }
    let players = cli::chosen(&options.policies);
    let seeds = cli::runs(&options.seeds);
    let order = |(_, scenario)| Order { scenario, players: players.clone(), seeds: seeds.clone() };
    let orders: Vec<Order<'_>> = scenarios.iter().map(|(path, scenario)| order((path, scenario))).collect();
    let mut printer =
        Printer { json: options.json, progress: Progress::new(), policies: players.len(), table: Vec::new() };
    play_all(&orders, &mut printer)?;
    Ok(true)
}

/// Reads all files before the first is played.
///
/// # Errors
/// What is wrong, with the file.
pub(crate) fn read_all(paths: &[PathBuf]) -> anyhow::Result<Vec<(PathBuf, Scenario)>> {
    paths.iter().map(|path| Ok((path.clone(), read_scenario(path)?))).collect()
}

/// Reads one file.
///
/// # Errors
/// What is wrong, with the file.
pub(crate) fn read_scenario(path: &Path) -> anyhow::Result<Scenario> {
    let shown = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(shown)?;
    if path.extension().is_some_and(|extension| extension == "toml") {
        bail!("{}: TOML scenarios are for `loadtest live`; expected one in JSON, as in scenarios/sim", shown());
    }
    Scenario::from_json(&text).with_context(shown)
}

/// Prints what is finished as it comes.
struct Printer {
    json: bool,
    progress: Progress,
    /// Results of one scenario.
    policies: usize,
    table: Vec<Figures>,
}

impl Watcher for Printer {
    fn played(&mut self, done: usize, all: usize) {
        self.progress.show(done, all);
    }

    fn finished(&mut self, figures: Figures) -> anyhow::Result<()> {
        self.progress.clear();
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, &figures)?;
            writeln!(out)?;
            return Ok(());
        }
        self.table.push(figures);
        if self.table.len() == self.policies {
            table::print(&mut out, &std::mem::take(&mut self.table))?;
        }
        Ok(())
    }
}
