//! Live and simulated side by side: table, JSON, page.

use super::{
    batch,
    cpu::Cpu,
    off::{Pair, ratios},
};
use crate::{
    clock, compare,
    report::{Plot, escape, figure, grid, time},
    sim::{Figures, print_figures, ratio, share},
};
use serde_json::{Value, json};
use simulation::scenario::Scenario;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, Write},
};

/// What came of all runs.
pub(super) struct Report<'s> {
    pub(super) scenario: &'s Scenario,
    pub(super) speedup: f64,
    pub(super) live: Figures,
    pub(super) simulated: Figures,
    pub(super) pairs: Vec<Pair>,
    pub(super) within: Option<f64>,
    /// What clients saw instead of answers; they asked again.
    pub(super) failures: BTreeMap<String, u64>,
    /// By run.
    pub(super) cpu: Vec<Cpu>,
    /// By run, of what was sent as files.
    pub(super) batches: Vec<OfBatches>,
}

/// What came of a run's batches.
pub(super) struct OfBatches {
    pub(super) figures: batch::Figures,
    pub(super) plots: Vec<Plot>,
}

impl Report<'_> {
    /// Everything is as near as it was asked to be, and true of batches what must be.
    pub(super) fn holds(&self) -> bool {
        self.pairs.iter().all(Pair::holds) && self.batches.iter().all(|batches| batches.figures.holds())
    }

    /// This machine did not keep up, so the figures are not the gateway's.
    pub(super) fn is_short_of_cpu(&self) -> bool {
        self.cpu.iter().any(|cpu| cpu.short)
    }

    /// As one JSON object.
    ///
    /// # Errors
    /// Never, in effect: everything is numbers and names.
    pub(super) fn json(&self) -> serde_json::Result<Value> {
        Ok(json!({
            "scenario": self.scenario.name, "why": self.scenario.why, "speedup": self.speedup,
            "policy": self.simulated.policy, "seeds": self.live.seeds, "horizon_s": self.scenario.horizon_s,
            "live": figures(&self.live)?, "simulated": figures(&self.simulated)?, "bounds": self.live.bounds,
            "ratios": ratios(&self.pairs), "within": self.within, "holds": self.holds(),
            "off": self.pairs.iter().filter(|pair| !pair.holds()).collect::<Vec<_>>(),
            "asked_again": self.failures, "cpu": self.cpu, "short_of_cpu": self.is_short_of_cpu(),
            "batches": self.batches.iter().map(|batches| &batches.figures).collect::<Vec<_>>(),
        }))
    }

    /// As tables.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let named = |figures: &Figures, policy| Figures { policy, ..figures.clone() };
        print_figures(out, &[named(&self.live, "live"), named(&self.simulated, "simulated")])?;
        grid(out, &self.rows())?;
        writeln!(out, "\n{}", self.summary())
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["class", "figure", "live", "simulated", "ratio", ""].map(str::to_owned).to_vec()];
        let mut before = "";
        for pair in &self.pairs {
            let shown = |value| if pair.figure == "reuse" { share(Some(value)) } else { time(value) };
            let class = if pair.class == before { "" } else { pair.class.as_str() };
            before = &pair.class;
            let verdict = match pair.allowed {
                Some(allowed) if !pair.holds() => format!("off by more than {}", share(Some(allowed))),
                _ => String::new(),
            };
            let cells =
                [class, pair.figure, &shown(pair.live), &shown(pair.simulated), &ratio(Some(pair.ratio)), &verdict];
            rows.push(cells.map(str::to_owned).to_vec());
        }
        rows
    }

    /// How it was played, and whether to believe it.
    fn summary(&self) -> String {
        let mut text = format!("{} times as fast as the scenario.", self.speedup);
        if !self.failures.is_empty() {
            let kinds: Vec<String> = self.failures.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            write!(text, " Clients got no answer and asked again: {}.", kinds.join(", ")).ok();
        }
        for cpu in &self.cpu {
            let waited = |wait_s: Option<f64>| {
                wait_s.map_or_else(String::new, |wait_s| {
                    format!(" (which waited {} for a core in the mean)", time(wait_s))
                })
            };
            write!(
                text,
                "\nCores used: clients and phones {:.2}{}, gateway {:.2}{}. Timers were {} late in the mean, {} at p99.",
                cpu.loadtest_cores,
                waited(cpu.loadtest_wait_s),
                cpu.gateway_cores,
                waited(cpu.gateway_wait_s),
                time(cpu.late_mean_s),
                time(cpu.late_p99_s)
            )
            .ok();
        }
        for line in self.batches.iter().flat_map(|batches| batches.figures.lines()) {
            write!(text, "\n{line}").ok();
        }
        if self.is_short_of_cpu() {
            text.push_str("\nThis run was short of CPU: what it measured is this machine, not the gateway.");
        }
        text
    }

    /// As a page that needs nothing but itself.
    pub(super) fn page(&self) -> String {
        let named = |figures: &Figures, policy| Figures { policy, ..figures.clone() };
        let mut table = String::from("<div class=\"scroll dense\"><table>");
        for (index, row) in self.rows().iter().enumerate() {
            let cell = if index == 0 { "<th>" } else { "<td>" };
            let cells: Vec<String> = row.iter().map(|text| escape(text)).collect();
            write!(table, "<tr>{cell}{}</tr>", cells.join(cell)).ok();
        }
        table.push_str("</table></div>");
        if !self.batches.is_empty() {
            table.push_str("<section class=\"plots\">");
            self.batches.iter().flat_map(|batches| &batches.plots).for_each(|plot| figure(&mut table, plot));
            table.push_str("</section>");
        }
        let notes: String =
            self.summary().lines().map(|line| format!("<p class=\"note\">{}</p>", escape(line))).collect();
        let heading = compare::Heading {
            title: format!("{}, live and simulated", self.scenario.name),
            about:
                "The same phones and the same requests, served once by a gateway through sockets in a fraction of the \
                    time, and once by the simulator. Times are the scenario's."
                    .to_owned(),
            more: notes + &table,
        };
        let both = vec![named(&self.live, "live"), named(&self.simulated, "simulated")];
        compare::page(&heading, &[compare::Comparison::new(self.scenario, both)], clock::unix_seconds())
    }
}

/// The figures of one way of playing, without what both have.
fn figures(figures: &Figures) -> serde_json::Result<Value> {
    let mut json = serde_json::to_value(figures)?;
    if let Some(fields) = json.as_object_mut() {
        fields.retain(|key, _| !["scenario", "policy", "seeds", "bounds"].contains(&key.as_str()));
    }
    Ok(json)
}
