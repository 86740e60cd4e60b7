//! `loadtest replay`: a record of a gateway, played again exactly, and what it says.
//!
//! The figures are those of the record, since a replay that is not the same is an error: it answers what the gateway
//! decided, on what, and whether this program's scheduler would decide the same.

use crate::{
    cli,
    report::{self, Distribution, grid, number, time, time_or_dash},
    scenario::Point,
};
use anyhow::Context as _;
use scheduler::{Class, Decision, ShedReason, Waste};
use serde::{Serialize, Serializer};
use simulation::record::{Outcomes, Replayed, replay};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Write},
};

/// Plays the record and prints what it holds.
pub(crate) fn run(options: &cli::Replay) -> anyhow::Result<bool> {
    let shown = || options.record.display().to_string();
    let file = File::open(&options.record).with_context(shown)?;
    let replayed = replay(BufReader::new(file)).with_context(shown)?;
    let summary = Summary::new(&replayed);
    let mut out = io::stdout().lock();
    if options.json {
        serde_json::to_writer(&mut out, &summary)?;
        writeln!(out)?;
    } else {
        print(&mut out, &summary)?;
    }
    Ok(true)
}

/// What a record holds. Lengths of time in seconds.
#[derive(Serialize)]
struct Summary {
    seed: u64,
    /// From the first call to the last.
    elapsed_s: f64,
    events: u64,
    advances: u64,
    effects: u64,
    /// Effects of the last call that the record broke off before.
    unconfirmed: u64,
    /// The last line was not whole.
    torn: bool,
    peak_waiting: usize,
    decisions: BTreeMap<&'static str, u64>,
    /// Slot-seconds that led to no answer.
    wasted_slot_s: BTreeMap<&'static str, f64>,
    #[serde(serialize_with = "by_name")]
    classes: Vec<(&'static str, ClassSummary)>,
}

#[derive(Serialize)]
struct ClassSummary {
    requests: u64,
    answered: u64,
    failed: u64,
    abandoned: u64,
    refused: BTreeMap<String, u64>,
    unfinished: u64,
    #[serde(flatten)]
    total: Distribution,
    #[serde(flatten, serialize_with = "report::ttft")]
    ttft: Distribution,
}

impl Summary {
    fn new(replayed: &Replayed) -> Self {
        let decisions = Decision::ALL.map(Decision::name).into_iter().zip(replayed.snapshot.decisions);
        let wasted = Waste::ALL.map(Waste::name).into_iter().zip(replayed.snapshot.wasted);
        let classes = Class::ALL.map(Class::name).into_iter().zip(&replayed.classes);
        Self {
            seed: replayed.seed,
            elapsed_s: replayed.until.since(replayed.from).as_secs_f64(),
            events: replayed.events,
            advances: replayed.advances,
            effects: replayed.effects,
            unconfirmed: replayed.unconfirmed,
            torn: replayed.torn,
            peak_waiting: replayed.peak_waiting,
            decisions: decisions.collect(),
            wasted_slot_s: wasted.collect(),
            classes: classes.map(|(name, outcomes)| (name, ClassSummary::new(outcomes))).collect(),
        }
    }

    fn broke_off(&self) -> bool {
        self.torn || self.unconfirmed > 0
    }
}

impl ClassSummary {
    fn new(outcomes: &Outcomes) -> Self {
        let distribution = |seconds: &[f64]| seconds.iter().map(|seconds| *seconds as f32).collect();
        Self {
            requests: outcomes.arrived,
            answered: outcomes.answered,
            failed: outcomes.failed,
            abandoned: outcomes.abandoned,
            refused: outcomes.refused.iter().map(|(reason, count)| (name(*reason), *count)).collect(),
            unfinished: outcomes.unfinished,
            total: distribution(&outcomes.completion),
            ttft: distribution(&outcomes.ttft),
        }
    }
}

/// A reason as the record writes it.
fn name(reason: ShedReason) -> String {
    match serde_json::to_value(reason) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{reason:?}"),
    }
}

fn by_name<S: Serializer>(classes: &[(&str, ClassSummary)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(classes.iter().map(|(name, class)| (name, class)))
}

fn print(out: &mut dyn Write, summary: &Summary) -> io::Result<()> {
    writeln!(
        out,
        "{} events and {} timer calls in {}, seed {}: all {} effects are the same\n",
        number(summary.events as f64),
        number(summary.advances as f64),
        time(summary.elapsed_s),
        summary.seed,
        number(summary.effects as f64),
    )?;
    if summary.broke_off() {
        writeln!(
            out,
            "The record breaks off{}; {} effects of its last call are not in it.\n",
            if summary.torn { " in the middle of a line" } else { "" },
            summary.unconfirmed
        )?;
    }
    grid(out, &classes(summary))?;
    for (name, class) in &summary.classes {
        for (reason, count) in &class.refused {
            writeln!(out, "{name}: {} refused, {reason}", number(*count as f64))?;
        }
    }
    writeln!(out, "\nmost waiting at once: {}", number(summary.peak_waiting as f64))?;
    list(out, "decisions", summary.decisions.iter().map(|(name, count)| (*name, *count as f64)), number)?;
    list(out, "slot time without an answer", summary.wasted_slot_s.iter().map(|(name, s)| (*name, *s)), time)
}

fn classes(summary: &Summary) -> Vec<Vec<String>> {
    let head =
        ["class", "requests", "answered", "failed", "left", "refused", "TTFT p50", "p99", "total p50", "p90", "p99"];
    let row = |(name, class): &(&str, ClassSummary)| {
        let refused: u64 = class.refused.values().sum();
        let counts = [class.requests, class.answered, class.failed, class.abandoned, refused];
        let times = [
            class.ttft.at(Point::P50),
            class.ttft.at(Point::P99),
            class.total.at(Point::P50),
            class.total.at(Point::P90),
            class.total.at(Point::P99),
        ];
        let counts = counts.map(|count| number(count as f64));
        std::iter::once((*name).to_owned()).chain(counts).chain(times.map(time_or_dash)).collect()
    };
    let asked = summary.classes.iter().filter(|(_, class)| class.requests > 0);
    std::iter::once(head.map(str::to_owned).to_vec()).chain(asked.map(row)).collect()
}

/// What is not 0, in one line.
fn list<'n>(
    out: &mut dyn Write,
    what: &str,
    values: impl Iterator<Item = (&'n str, f64)>,
    shown: fn(f64) -> String,
) -> io::Result<()> {
    let some: Vec<String> =
        values.filter(|(_, value)| *value > 0.0).map(|(name, value)| format!("{name} {}", shown(value))).collect();
    writeln!(out, "{what}: {}", if some.is_empty() { "none".to_owned() } else { some.join(", ") })
}
