//! The comparison on a terminal: one table a class, one row a policy.

use super::{Comparison, MarkRatios};
use crate::{
    report::{grid, number, time_or_dash},
    sim::{ratio, seeds, share, waste_table},
};
use std::io::{self, Write};

/// Prints how the policies compare.
pub(super) fn print(out: &mut dyn Write, comparison: &Comparison<'_>) -> io::Result<()> {
    writeln!(out, "{}, {}", comparison.scenario.name, seeds(comparison.seeds()))?;
    if !comparison.scenario.why.is_empty() {
        writeln!(out, "{}", comparison.scenario.why)?;
    }
    for class in comparison.classes() {
        writeln!(out)?;
        grid(out, &rows(comparison, class))?;
    }
    writeln!(out)?;
    grid(out, &waste_table(&comparison.policies))?;
    writeln!(out)
}

fn rows(comparison: &Comparison<'_>, name: &str) -> Vec<Vec<String>> {
    let closed = comparison.bound(name, "makespan").is_some();
    let mut head = vec![
        name,
        "mean",
        "× bound",
        "× least conn.",
        "× oracle",
        "p99",
        "× least conn.",
        "× oracle",
        "TTFT p99",
        "good",
        "reuse",
    ];
    if closed {
        head.extend(["makespan", "× bound", "× least conn."]);
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    let seconds = |bound: &str| time_or_dash(comparison.bound(name, bound));
    let none = || "–".to_owned();
    let mean = comparison.bound(name, "mean").or_else(|| comparison.bound(name, "service_mean"));
    let mut bound = vec!["bound".to_owned(), time_or_dash(mean)];
    bound.extend([none(), none(), none(), seconds("service_p99")]);
    bound.resize_with(11, none);
    if closed {
        bound.extend([seconds("makespan"), none(), none()]);
    }
    rows.push(bound);
    for figures in &comparison.policies {
        let Some(class) = figures.class(name) else { continue };
        let to = |mark: &str, figure: fn(&MarkRatios) -> Option<f64>| {
            ratio(MarkRatios::to(comparison, mark, figures, name).as_ref().and_then(figure))
        };
        let seconds = |figure: &str| time_or_dash(class.get(figure));
        let unfinished = class.get("unfinished").filter(|count| *count > 0.0);
        let mut row = vec![
            unfinished.map_or(figures.policy.to_owned(), |count| {
                format!("{} ({} without answer)", figures.policy, number(count))
            }),
            seconds("mean"),
            ratio(class.get("bound_ratio")),
            to("least_connections", |ratios| ratios.mean),
            to("oracle", |ratios| ratios.mean),
            seconds("p99"),
            to("least_connections", |ratios| ratios.p99),
            to("oracle", |ratios| ratios.p99),
            seconds("ttft_p99"),
            share(class.good()),
            share(class.get("reuse")),
        ];
        if closed {
            row.push(seconds("makespan"));
            row.push(ratio(class.get("makespan_ratio")));
            row.push(to("least_connections", |ratios| ratios.makespan));
        }
        rows.push(row);
    }
    rows
}
