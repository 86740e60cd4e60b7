//! `loadtest sim --check`: whether a scenario's figures are where its file says.
//!
//! The file says it by policy, class and figure, as the mean over its own seeds; a play is exact, so the ranges are as
//! narrow as whoever wrote them wants changes to be noticed. What a file says of something that does not exist is a
//! mistake in the file, not a figure outside its range.

use super::{Figures, Order, Progress, Watcher, play_all};
use anyhow::{Context as _, bail};
use simulation::{
    play::{ClassFigures, Player},
    scenario::{Range, Scenario},
};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::PathBuf,
};

/// Plays what the ranges name; true if all figures are within theirs.
pub(super) fn run(scenarios: &[(PathBuf, Scenario)]) -> anyhow::Result<bool> {
    let (stated, silent): (Vec<_>, Vec<_>) = scenarios.iter().partition(|(_, scenario)| states_something(scenario));
    for (path, _) in &silent {
        writeln!(io::stdout(), "{}: has no \"ranges\", so there is nothing to check", path.display())?;
    }
    if stated.is_empty() {
        bail!("expected at least one file with \"ranges\": {{POLICY: {{CLASS: {{FIGURE: [lowest, highest]}}}}}}");
    }
    let orders: Vec<Order<'_>> = stated.into_iter().map(order).collect::<anyhow::Result<_>>()?;
    let ranges = orders
        .iter()
        .flat_map(|order| order.players.iter().filter_map(|player| order.scenario.ranges.get(player.name())));
    let mut checker =
        Checker { ranges: ranges.collect::<Vec<_>>().into_iter(), progress: Progress::new(), checked: 0, outside: 0 };
    play_all(&orders, &mut checker)?;
    let Checker { checked, outside, .. } = checker;
    writeln!(io::stdout(), "{} of {checked} figures are within their ranges", checked - outside)?;
    Ok(outside == 0)
}

fn states_something(scenario: &Scenario) -> bool {
    scenario.ranges.values().flat_map(BTreeMap::values).any(|figures| !figures.is_empty())
}

/// What a file's ranges ask for.
fn order((path, scenario): &(PathBuf, Scenario)) -> anyhow::Result<Order<'_>> {
    let player = |name: &String| Player::named(name).with_context(|| format!("{}: ranges.{name}", path.display()));
    let players = scenario.ranges.keys().map(player).collect::<anyhow::Result<Vec<Player>>>()?;
    for (policy, classes) in &scenario.ranges {
        for (class, figures) in classes {
            let unknown = |figure: &&String| !ClassFigures::FIGURES.contains(&figure.as_str());
            if let Some(figure) = figures.keys().find(unknown) {
                let known = ClassFigures::FIGURES.join(", ");
                bail!(
                    "{}: ranges.{policy}.{class}: unknown figure {figure:?}: expected one of {known}",
                    path.display()
                );
            }
        }
    }
    Ok(Order { scenario, players, seeds: scenario.seeds.clone() })
}

/// Ranges by class and figure.
type ClassRanges = BTreeMap<String, BTreeMap<String, Range>>;

struct Checker<'s> {
    /// Those of each result, in the order of the results.
    ranges: std::vec::IntoIter<&'s ClassRanges>,
    progress: Progress,
    checked: usize,
    outside: usize,
}

impl Watcher for Checker<'_> {
    fn played(&mut self, done: usize, all: usize) {
        self.progress.show(done, all);
    }

    fn finished(&mut self, figures: Figures) -> anyhow::Result<()> {
        self.progress.clear();
        let Some(ranges) = self.ranges.next() else { return Ok(()) };
        let all =
            ranges.iter().flat_map(|(class, figures)| figures.iter().map(move |(name, range)| (class, name, range)));
        for (class, name, [low, high]) in all {
            let value = figures.class(class).and_then(|class| class.get(name));
            self.checked += 1;
            if value.is_some_and(|value| (*low..=*high).contains(&value)) {
                continue;
            }
            self.outside += 1;
            let shown = value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.6}"));
            let Figures { scenario, policy, .. } = &figures;
            writeln!(io::stdout(), "{scenario}, {policy}: {class} {name} is {shown}, expected {low} to {high}")?;
        }
        Ok(())
    }
}
