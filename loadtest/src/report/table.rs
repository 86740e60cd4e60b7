//! The report on a terminal.

use super::{
    ClassReport, Report,
    text::{number, plain, time, time_or_dash},
};
use crate::scenario::Point;
use std::io::{self, Write};

/// Prints a report; with colour if `colour`.
pub(crate) fn print(out: &mut dyn Write, report: &Report, colour: bool) -> io::Result<()> {
    let paint = |text: &str, code: &str| if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() };
    let totals = &report.totals;
    writeln!(
        out,
        "{}  {} against {}, seed {}",
        paint(&report.scenario, "1"),
        report.played,
        report.target,
        report.seed
    )?;
    writeln!(
        out,
        "{} requests in {}, {} errors, {} answers/s, {} tokens/s, {} second attempts\n",
        number(totals.requests as f64),
        time(report.elapsed_s),
        paint(&number(totals.errors as f64), if totals.errors > 0 { "31;1" } else { "32" }),
        number(totals.throughput_rps),
        number(totals.tokens_per_s),
        number(totals.second_attempts as f64),
    )?;
    grid(out, &classes(report))?;
    for error in &report.errors {
        let example = plain(&error.example);
        writeln!(
            out,
            "\n{} × {} ({} to {}): {example}",
            error.count,
            paint(&error.kind, "31"),
            time(error.first_at_s),
            time(error.last_at_s)
        )?;
    }
    fleet(out, report)?;
    if !report.events.is_empty() {
        writeln!(out)?;
    }
    for event in &report.events {
        let what = plain(&event.what);
        let what = if event.failed { paint(&format!("NOT DONE: {what}"), "31;1") } else { what };
        writeln!(out, "{:>7.1} s  {what}", event.at_s)?;
    }
    if !report.expectations.is_empty() {
        writeln!(out)?;
    }
    for outcome in &report.expectations {
        let mark = if outcome.holds { paint("ok    ", "32") } else { paint("FAILED", "31;1") };
        writeln!(out, "{mark}  {} is {}, expected {}", outcome.what, outcome.shown(), outcome.wanted())?;
    }
    writeln!(out, "\n{}", if report.passed { paint("PASSED", "32;1") } else { paint("FAILED", "31;1") })
}

fn classes(report: &Report) -> Vec<Vec<String>> {
    let head =
        ["class", "requests", "errors", "TTFT p50", "p99", "total p50", "p90", "p99", "max", "queue p99", "good"];
    let row = |class: &ClassReport| {
        vec![
            class.name.clone(),
            number(class.requests as f64),
            number(class.errors as f64),
            time_or_dash(class.ttft.at(Point::P50)),
            time_or_dash(class.ttft.at(Point::P99)),
            time_or_dash(class.total.at(Point::P50)),
            time_or_dash(class.total.at(Point::P90)),
            time_or_dash(class.total.at(Point::P99)),
            time_or_dash(class.total.at(Point::Max)),
            time_or_dash(class.queue.at(Point::P99)),
            class.good.map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", share * 100.0)),
        ]
    };
    std::iter::once(head.map(str::to_owned).to_vec()).chain(report.classes.iter().map(row)).collect()
}

/// Columns as wide as they must be; the first to the left, the others to the right.
pub(crate) fn grid(out: &mut dyn Write, rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cell = |(column, text): (usize, &String)| {
            let width = widths[column];
            if column == 0 { format!("{text:<width$}") } else { format!("{text:>width$}") }
        };
        writeln!(out, "{}", row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn fleet(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let Some(waste) = &report.waste else {
        return writeln!(
            out,
            "\nThe phones were not seen: over-subscription and waste are unknown (--control, --self)."
        );
    };
    writeln!(
        out,
        "\nphones: {} over-subscribed, {} attempts ({} completed, {} cancelled, {} failed, {} lost)",
        report.totals.over_subscribed.unwrap_or(0),
        number(waste.attempts as f64),
        number(waste.completed as f64),
        waste.cancelled,
        waste.failed,
        waste.lost
    )?;
    let prefill = waste
        .wasted_prefill_s
        .filter(|s| *s > 0.0)
        .map_or_else(String::new, |s| format!(", about {} of reading", time(s)));
    writeln!(
        out,
        "wasted: {} of {} tokens written ({:.2} %), {} prompt tokens{prefill}; cached {:.1} % of the prompt tokens",
        number(waste.wasted_tokens as f64),
        number(waste.written_tokens as f64),
        waste.wasted_tokens_share * 100.0,
        number(waste.wasted_prompt_tokens as f64),
        100.0 * waste.cached_tokens as f64 / waste.prompt_tokens.max(1) as f64
    )
}
