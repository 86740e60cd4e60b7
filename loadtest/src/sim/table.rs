//! The figures on a terminal.

use super::{ClassMeans, Figures};
use crate::report::{grid, number, time_or_dash};
use simulation::play::WasteShares;
use std::io::{self, Write};

/// Prints how several policies served one scenario.
pub(crate) fn print(out: &mut dyn Write, policies: &[Figures]) -> io::Result<()> {
    let Some(first) = policies.first() else { return Ok(()) };
    writeln!(out, "{}, {}", first.scenario, seeds(&first.seeds))?;
    let mut rows = vec![head()];
    for figures in policies {
        rows.extend(figures.classes.iter().enumerate().map(|(index, class)| {
            let policy = if index == 0 { figures.policy } else { "" };
            row(policy, class)
        }));
    }
    grid(out, &rows)?;
    writeln!(out)?;
    grid(out, &waste_table(policies))?;
    writeln!(out)
}

/// What the phones did in vain, by policy.
pub(crate) fn waste_table(policies: &[Figures]) -> Vec<Vec<String>> {
    let head = ["work in vain", "lost", "second copies", "given back", "read again", "refused"];
    std::iter::once(head.map(str::to_owned).to_vec()).chain(policies.iter().map(waste_row)).collect()
}

/// `seed 0`, or `mean over seeds 0, 1, 2`.
pub(crate) fn seeds(seeds: &[u64]) -> String {
    let shown: Vec<String> = seeds.iter().map(u64::to_string).collect();
    if let [one] = &shown[..] { format!("seed {one}") } else { format!("mean over seeds {}", shown.join(", ")) }
}

fn head() -> Vec<String> {
    let names = [
        "policy",
        "class",
        "n",
        "mean",
        "p50",
        "p99",
        "TTFT mean",
        "p99",
        "good",
        "reuse",
        "× bound",
        "makespan",
        "× bound",
    ];
    names.map(str::to_owned).to_vec()
}

fn row(policy: &str, class: &ClassMeans) -> Vec<String> {
    let seconds = |figure: &str| time_or_dash(class.get(figure));
    let unfinished = class.get("unfinished").filter(|count| *count > 0.0);
    let requests = number(class.requests.round());
    vec![
        policy.to_owned(),
        class.name.clone(),
        unfinished.map_or(requests.clone(), |count| format!("{requests} ({} without answer)", number(count))),
        seconds("mean"),
        seconds("p50"),
        seconds("p99"),
        seconds("ttft_mean"),
        seconds("ttft_p99"),
        share(class.good()),
        share(class.get("reuse")),
        ratio(class.get("bound_ratio")),
        seconds("makespan"),
        ratio(class.get("makespan_ratio")),
    ]
}

fn waste_row(figures: &Figures) -> Vec<String> {
    let waste = figures.waste;
    let refused: f64 = figures.refused.values().sum();
    let shares: [fn(&WasteShares) -> f64; 4] =
        [|waste| waste.fail, |waste| waste.hedge, |waste| waste.preempt, |waste| waste.cold];
    let shares = shares.map(|of| share(waste.as_ref().map(of)));
    std::iter::once(figures.policy.to_owned()).chain(shares).chain([number(refused)]).collect()
}

/// `12.3 %`, or a dash.
pub(crate) fn share(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{:.1} %", value * 100.0))
}

/// `0.012`, `1.23`, `45.6`, `789`, or a dash.
pub(crate) fn ratio(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value < 0.1 => format!("{value:.3}"),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => number(value.round()),
    }
}
