//! Which plots a comparison has.

use super::{
    Comparison, MarkRatios,
    bars::{Bar, bars},
};
use crate::{
    report::{Chart, Plot, Scale, colour, percent, tick_time, time},
    sim::{ClassMeans, ratio},
};
use std::fmt::Write as _;

/// The plots of one class.
pub(super) fn of_class(comparison: &Comparison<'_>, class: &str) -> Vec<Plot> {
    [lengths(comparison, class), curves(comparison, class)].into_iter().flatten().collect()
}

/// Bars of the mean and the 99th percentile; of a batch, of the mean and the makespan.
fn lengths(comparison: &Comparison<'_>, name: &str) -> Option<Plot> {
    let closed = comparison.bound(name, "makespan").is_some();
    let outer = if closed { "makespan" } else { "p99" };
    let bar = |figures: &crate::sim::Figures| {
        let class = figures.class(name)?;
        let hint = hint(comparison, figures, class);
        Some(Bar { name: figures.policy.to_owned(), inner: class.get("mean")?, outer: class.get(outer)?, hint })
    };
    let rows: Vec<Bar> = comparison.policies.iter().filter_map(bar).collect();
    let (bound, note) = if closed {
        (
            comparison.bound(name, "makespan"),
            "Dark: mean time to a whole answer. Light: until the last answer. The line: no policy can be through before.",
        )
    } else {
        (
            comparison.bound(name, "mean").or_else(|| comparison.bound(name, "service_mean")),
            "Dark: mean time to the whole answer. Light: 99 % came within. The line: no policy can have a lower mean. \
             Logarithmic where the shortest would be a hair.",
        )
    };
    let svg = bars(&format!("Times of {name} by policy"), &rows, bound);
    (!rows.is_empty()).then(|| Plot {
        title: format!("{name}: time to the whole answer").into(),
        note,
        legend: Vec::new(),
        svg,
    })
}

fn hint(comparison: &Comparison<'_>, figures: &crate::sim::Figures, class: &ClassMeans) -> String {
    let mut text = figures.policy.to_owned();
    for (figure, name) in
        [("mean", "mean"), ("p50", "p50"), ("p99", "p99"), ("ttft_p99", "TTFT p99"), ("makespan", "makespan")]
    {
        if let Some(value) = class.get(figure) {
            write!(text, ", {name} {}", time(value)).ok();
        }
    }
    if let Some(value) = class.get("bound_ratio").or_else(|| class.get("makespan_ratio")) {
        write!(text, ", {} times the bound", ratio(Some(value))).ok();
    }
    for (mark, ratios) in MarkRatios::all(comparison, figures, &class.name) {
        write!(text, ", {} times the mean of {mark}", ratio(ratios.mean)).ok();
    }
    text
}

/// Series with a colour of their own; more can't be told apart.
const COLOURS: usize = 6;

/// Names of the policies that get a colour: those that are asked about most, then as they come.
fn coloured<'c>(comparison: &'c Comparison<'_>) -> Vec<&'c str> {
    const FIRST: [&str; 4] = ["default", "oracle", "least_connections", "fifo_fastest"];
    let played = || comparison.policies.iter().map(|figures| figures.policy);
    let first = FIRST.into_iter().filter(|name| played().any(|policy| policy == *name));
    first.chain(played().filter(|name| !FIRST.contains(name))).take(COLOURS).collect()
}

/// The share of answers that came within a time.
fn curves(comparison: &Comparison<'_>, name: &str) -> Option<Plot> {
    let curve = |figures: &crate::sim::Figures| {
        let curve = &figures.class(name)?.curve;
        let steps = curve.len().checked_sub(1).filter(|steps| *steps > 0)?;
        let point = |(step, time): (usize, &f64)| (time.max(1e-4), step as f64 / steps as f64);
        Some((figures.policy, curve.iter().enumerate().map(point).collect::<Vec<(f64, f64)>>()))
    };
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = comparison.policies.iter().filter_map(curve).collect();
    let ends = lines.iter().flat_map(|(_, points)| [points.first(), points.last()]).flatten().map(|(time, _)| *time);
    let x = Scale::log_around(ends.collect::<Vec<_>>().into_iter());
    let title = format!("{name}: answers within a time");
    let mut chart = Chart::new(&title, x, Scale::Linear(0.0, 1.0), "within", [tick_time, percent]);
    let coloured = coloured(comparison);
    let class_of = |policy: &str| coloured.iter().position(|name| *name == policy).map(colour);
    // Coloured ones are drawn last, above the others, and the first of them on top.
    let above =
        |policy: &str| std::cmp::Reverse(coloured.iter().position(|name| *name == policy).unwrap_or(usize::MAX));
    lines.sort_by_key(|(policy, _)| above(policy));
    for (policy, points) in &lines {
        chart.named_line(class_of(policy).as_deref().unwrap_or("other"), policy, points);
    }
    let mut legend: Vec<(String, String)> =
        lines.iter().rev().filter_map(|(policy, _)| Some((class_of(policy)?, (*policy).to_owned()))).collect();
    if lines.len() > legend.len() {
        legend.push(("other".to_owned(), "others (point at a line)".to_owned()));
    }
    (!lines.is_empty()).then(|| Plot {
        title: title.into(),
        note: "Share of the answers that came within this time. Further left is better.",
        legend,
        svg: chart.finish(),
    })
}
