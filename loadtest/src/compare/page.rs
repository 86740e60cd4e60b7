//! The comparison as one page that needs nothing but itself.

use super::{Comparison, MarkRatios, plots};
use crate::{
    report::{date, escape, figure, number, shell, short_time, time_or_dash},
    sim::{ratio, seeds, share},
};
use std::fmt::Write as _;

/// What a page says before its first scenario.
pub(crate) struct Heading {
    /// Of the page.
    pub(crate) title: String,
    /// What is compared.
    pub(crate) about: String,
    /// HTML that follows, before everything else.
    pub(crate) more: String,
}

impl Heading {
    /// Of policies that were played in virtual time.
    pub(super) fn of(comparisons: &[Comparison<'_>]) -> Self {
        let title = match comparisons {
            [one] => format!("Policies on {}", one.scenario.name),
            many => format!("Policies on {} scenarios", many.len()),
        };
        let about = "Each policy served the same phones and the same requests, in virtual time. A bound is what no policy can \
                     beat, whatever it knows; ratios below 1 are better than what they are taken against.";
        Self { title, about: about.to_owned(), more: String::new() }
    }
}

/// The whole page.
pub(crate) fn page(heading: &Heading, comparisons: &[Comparison<'_>], made_unix: u64) -> String {
    let mut body = String::new();
    write!(
        body,
        "<header><h1>{}</h1><p>{}</p><p class=\"note\">Made on {} UTC, {}.</p>{}</header>",
        escape(&heading.title),
        escape(&heading.about),
        date(made_unix),
        comparisons.first().map(|one| seeds(one.seeds())).unwrap_or_default(),
        heading.more
    )
    .ok();
    if comparisons.len() > 1 {
        overview(&mut body, comparisons);
    }
    for comparison in comparisons {
        scenario(&mut body, comparison);
    }
    shell(&heading.title, &body)
}

/// Every class of every scenario by policy: how many times the bound.
fn overview(out: &mut String, comparisons: &[Comparison<'_>]) {
    out.push_str(
        "<section><h2>Times the bound</h2><p class=\"note\">The mean time to the whole answer over its lower bound; of a \
         batch, its makespan. The best of a row is bold.</p><div class=\"scroll dense\"><table><tr><th>scenario<th>class",
    );
    for figures in comparisons.first().map_or(&[][..], |one| &one.policies) {
        write!(out, "<th>{}", escape(figures.policy)).ok();
    }
    out.push_str("</tr>");
    for comparison in comparisons {
        for class in comparison.classes() {
            let value = |figures: &crate::sim::Figures| {
                let class = figures.class(class)?;
                class.get("makespan_ratio").or_else(|| class.get("bound_ratio"))
            };
            let values: Vec<Option<f64>> = comparison.policies.iter().map(value).collect();
            let best = values.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            let name = &comparison.scenario.name;
            write!(out, "<tr><td><a href=\"#{0}\">{0}</a><td>{1}", escape(name), escape(class)).ok();
            for value in values {
                let (open, close) = if value == Some(best) { ("<b>", "</b>") } else { ("", "") };
                write!(out, "<td>{open}{}{close}", ratio(value)).ok();
            }
            out.push_str("</tr>");
        }
    }
    out.push_str("</table></div></section>");
}

fn scenario(out: &mut String, comparison: &Comparison<'_>) {
    let scenario = comparison.scenario;
    let phones: usize = scenario.phones.classes.iter().map(|class| class.count).sum();
    write!(
        out,
        "<section id=\"{}\"><h2>{}</h2>{}<p class=\"note\">{} phones with {}; work arrives for {}, of which the first {} \
         are not in the figures; {}.</p></section><section class=\"plots\">",
        escape(&scenario.name),
        escape(&scenario.name),
        if scenario.why.is_empty() { String::new() } else { format!("<p>{}</p>", escape(&scenario.why)) },
        number(phones as f64),
        escape(&scenario.model.name),
        short_time(scenario.horizon_s),
        short_time(scenario.warmup_s),
        seeds(comparison.seeds())
    )
    .ok();
    for plot in comparison.classes().flat_map(|class| plots::of_class(comparison, class)) {
        figure(out, &plot);
    }
    out.push_str("</section><section>");
    for class in comparison.classes() {
        table(out, comparison, class);
    }
    waste(out, comparison);
    out.push_str("</section>");
}

fn table(out: &mut String, comparison: &Comparison<'_>, name: &str) {
    let closed = comparison.bound(name, "makespan").is_some();
    let more = if closed { "<th>makespan<th>× bound" } else { "" };
    write!(
        out,
        "<h3>{}</h3><div class=\"scroll dense\"><table><tr><th>policy<th>mean<th>× bound<th>× least conn.<th>× oracle<th>p50<th>p99\
         <th>× least conn.<th>× oracle<th>TTFT p99<th>good<th>reuse{more}</tr>",
        escape(name)
    )
    .ok();
    let seconds = |bound: &str| time_or_dash(comparison.bound(name, bound));
    let mean = comparison.bound(name, "mean").or_else(|| comparison.bound(name, "service_mean"));
    write!(
        out,
        "<tr class=\"soft\"><td>bound<td>{}<td><td><td><td><td>{}<td><td><td><td><td>",
        time_or_dash(mean),
        seconds("service_p99")
    )
    .ok();
    if closed {
        write!(out, "<td>{}<td>", seconds("makespan")).ok();
    }
    out.push_str("</tr>");
    for figures in &comparison.policies {
        let Some(class) = figures.class(name) else { continue };
        let marks = MarkRatios::all(comparison, figures, name);
        let to = |mark: &str, figure: fn(&MarkRatios) -> Option<f64>| ratio(marks.get(mark).and_then(figure));
        let unfinished = class.get("unfinished").filter(|count| *count > 0.0);
        let unfinished = unfinished
            .map(|count| format!(" <span class=\"bad\">{} without answer</span>", number(count)))
            .unwrap_or_default();
        let mut cells = vec![
            time_or_dash(class.get("mean")),
            ratio(class.get("bound_ratio")),
            to("least_connections", |ratios| ratios.mean),
            to("oracle", |ratios| ratios.mean),
            time_or_dash(class.get("p50")),
            time_or_dash(class.get("p99")),
            to("least_connections", |ratios| ratios.p99),
            to("oracle", |ratios| ratios.p99),
            time_or_dash(class.get("ttft_p99")),
            share(class.good()),
            share(class.get("reuse")),
        ];
        if closed {
            cells.extend([time_or_dash(class.get("makespan")), ratio(class.get("makespan_ratio"))]);
        }
        write!(out, "<tr><td>{}{unfinished}<td>{}</tr>", escape(figures.policy), cells.join("<td>")).ok();
    }
    out.push_str("</table></div>");
}

fn waste(out: &mut String, comparison: &Comparison<'_>) {
    out.push_str(
        "<h3>Work in vain</h3><p class=\"note\">Shares of all work that phones did: lost with a phone, second copies that were \
         not needed, given back to more urgent work, and read again although a perfect cache would have held it.</p>\
         <div class=\"scroll dense\"><table><tr><th>policy<th>lost<th>second copies<th>given back<th>read again<th><th>refused</tr>",
    );
    for figures in &comparison.policies {
        let Some(waste) = figures.waste else { continue };
        let cells = [waste.fail, waste.hedge, waste.preempt, waste.cold].map(|value| share(Some(value)));
        write!(
            out,
            "<tr><td>{}<td>{}<td><div class=\"share\"><i style=\"width:{:.1}%\"></i></div><td>{}</tr>",
            escape(figures.policy),
            cells.join("<td>"),
            (waste.cold * 100.0).clamp(0.0, 100.0),
            number(figures.refused.values().sum())
        )
        .ok();
    }
    out.push_str("</table></div>");
}
