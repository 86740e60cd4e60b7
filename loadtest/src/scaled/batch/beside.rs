//! What other classes feel of a batch: the same requests on the same phones, with it and without.

use super::goes_as_file;
use crate::report::{number, time_or_dash};
use serde::Serialize;
use simulation::{
    play::{Played, Player, Progress, Run},
    scenario::Scenario,
};

/// Times of the classes that came while batches ran, and of the same requests without batches.
#[derive(Clone, Debug, Serialize)]
pub(in crate::scaled) struct Beside {
    /// Until when their requests came, seconds of the scenario.
    until_s: f64,
    classes: Vec<Class>,
}

#[derive(Clone, Debug, Serialize)]
struct Class {
    name: String,
    /// What was timed: `ttft`, or `total` of classes whose objective is not on the first token.
    timed: &'static str,
    live: Pair,
    simulated: Pair,
}

#[derive(Clone, Debug, Serialize)]
struct Pair {
    with: Option<Times>,
    without: Option<Times>,
}

/// Seconds of the scenario.
#[derive(Clone, Debug, Serialize)]
struct Times {
    n: usize,
    p50: f64,
    p99: f64,
}

/// The scenario without what goes as a file, and with requests up to `until_s` only; `None` if nothing is left.
pub(in crate::scaled) fn without_files(scenario: &Scenario, until_s: f64) -> Option<Scenario> {
    let mut alone = super::super::shortened(scenario.clone(), Some(until_s));
    alone.classes.retain(|class| !goes_as_file(class));
    (!alone.classes.is_empty()).then_some(alone)
}

impl Beside {
    /// Puts side by side what came of `run`, live, and of the play without files, `alone`; and what the simulator says of both.
    pub(in crate::scaled) fn new(
        run: &Run<'_>,
        player: &Player,
        requests: &[Progress],
        alone: &Run<'_>,
        live_alone: &Played,
    ) -> Self {
        let until_s = alone.scenario.horizon_s;
        let short = super::super::shortened(run.scenario.clone(), Some(until_s));
        let short = Run::new(&short, run.number);
        let live = short.figures(player, of_the_first(run, &short, requests), until_s);
        let (simulated, simulated_alone) = (short.play(player), alone.play(player));
        let classes = alone.scenario.classes.iter().map(|class| {
            let first = class.objective_on_first_token;
            let times = |played: &Played| times(played, &class.name, first);
            Class {
                name: class.name.clone(),
                timed: if first { "ttft" } else { "total" },
                live: Pair { with: times(&live), without: times(live_alone) },
                simulated: Pair { with: times(&simulated), without: times(&simulated_alone) },
            }
        });
        Self { until_s, classes: classes.collect() }
    }

    /// In words, a line a class.
    pub(super) fn lines(&self) -> Vec<String> {
        let pair = |pair: &Pair| {
            let of = |times: &Option<Times>| {
                let at = |point: fn(&Times) -> f64| time_or_dash(times.as_ref().map(point));
                format!("{} and {}", at(|times| times.p50), at(|times| times.p99))
            };
            format!("{} beside the batch, {} without", of(&pair.with), of(&pair.without))
        };
        let line = |class: &Class| {
            let timed = if class.timed == "ttft" { "time to the first token" } else { "time to the whole answer" };
            let n = class.live.with.as_ref().map_or(0, |times| times.n);
            format!(
                "{}, {} requests, {timed}, p50 and p99: live {}; simulated {}.",
                class.name,
                number(n as f64),
                pair(&class.live),
                pair(&class.simulated)
            )
        };
        self.classes.iter().map(line).collect()
    }
}

/// What became of the requests that a shortened run has: of each class the first.
fn of_the_first(run: &Run<'_>, short: &Run<'_>, requests: &[Progress]) -> Vec<Progress> {
    let of_class = |class| {
        let count = short.workload.of_class(class).count();
        run.workload.of_class(class).take(count).map(|(number, _)| requests.get(number).copied().unwrap_or_default())
    };
    (0..run.scenario.classes.len()).flat_map(of_class).collect()
}

fn times(played: &Played, name: &str, first_token: bool) -> Option<Times> {
    let class = played.classes.iter().find(|class| class.name == name)?;
    let (p50, p99) = if first_token { (class.ttft_p50, class.ttft_p99) } else { (class.p50, class.p99) };
    Some(Times { n: class.requests, p50, p99 })
}
