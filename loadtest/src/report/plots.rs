//! Which plots a report has, and what each shows.

use super::{
    Distribution, Report,
    chart::{Chart, Scale},
    text::{escape, number, time},
};
use std::{borrow::Cow, fmt::Write as _};

/// A plot with its title, a line on how to read it, and its legend.
pub(crate) struct Plot {
    /// What it shows.
    pub(crate) title: Cow<'static, str>,
    /// How to read it.
    pub(crate) note: &'static str,
    /// Colour class and name of each series.
    pub(crate) legend: Vec<(String, String)>,
    /// The drawing.
    pub(crate) svg: String,
}

/// Colour class of a class of work.
pub(crate) fn colour(index: usize) -> String {
    format!("c{}", index % 6)
}

/// Every plot that has something to show.
pub(super) fn all(report: &Report) -> Vec<Plot> {
    [
        Some(throughput(report)),
        Some(requests(report)),
        cumulative(report, "Time to first token", |class| &class.ttft),
        cumulative(report, "Time to the whole answer", |class| &class.total),
        failures(report),
        Some(in_flight(report)),
        slots(report),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn seconds(value: f64) -> String {
    number((value * 1000.0).round() / 1000.0)
}

/// A time at the tick of an axis.
pub(crate) fn tick_time(value: f64) -> String {
    if value >= 1.0 { format!("{} s", number(value)) } else { format!("{} ms", number((value * 1e6).round() / 1e3)) }
}

/// A share at the tick of an axis.
pub(crate) fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

fn legend(report: &Report) -> Vec<(String, String)> {
    report.classes.iter().enumerate().map(|(index, class)| (colour(index), class.name.clone())).collect()
}

fn time_axis(report: &Report) -> Scale {
    Scale::Linear(0.0, report.elapsed_s.max(0.1))
}

fn events(chart: &mut Chart, report: &Report) {
    for event in &report.events {
        chart.event(event.at_s, &format!("{:.1} s: {}", event.at_s, event.what));
    }
}

fn bin_width(report: &Report) -> f64 {
    match report.timeline[..] {
        [ref first, ref second, ..] => second.at_s - first.at_s,
        _ => report.elapsed_s.max(0.1),
    }
}

fn throughput(report: &Report) -> Plot {
    let width = bin_width(report);
    let most = report.timeline.iter().map(|bin| bin.answered.iter().sum::<u64>() as f64 / width).fold(0.0, f64::max);
    let mut chart =
        Chart::new("Answers a second over time", time_axis(report), Scale::up_to(most), "seconds", [seconds, number]);
    for bin in &report.timeline {
        let (mut low, end) = (0.0, (bin.at_s + width).min(report.elapsed_s));
        let mut hint = format!("{:.1} s", bin.at_s);
        for (index, count) in bin.answered.iter().enumerate().filter(|(_, count)| **count > 0) {
            let high = low + *count as f64 / width;
            chart.bar(&colour(index), bin.at_s, end, low, high);
            write!(hint, ", {} {}/s", report.classes[index].name, number(*count as f64 / width)).ok();
            low = high;
        }
        chart.hint(bin.at_s, end, &hint);
    }
    events(&mut chart, report);
    Plot {
        title: "Answers a second".into(),
        note: "Whole answers, by class, when they ended.",
        legend: legend(report),
        svg: chart.finish(),
    }
}

fn requests(report: &Report) -> Plot {
    let y = Scale::log_around(report.points.iter().map(|point| f64::from(point.total_s).max(0.0001)));
    let mut chart =
        Chart::new("Duration of requests over time", time_axis(report), y, "started at, seconds", [seconds, tick_time]);
    for point in report.points.iter().filter(|point| !point.failed) {
        chart.dot(&colour(point.class as usize), f64::from(point.start_s), f64::from(point.total_s), false);
    }
    for point in report.points.iter().filter(|point| point.failed) {
        chart.dot("bad", f64::from(point.start_s), f64::from(point.total_s), true);
    }
    events(&mut chart, report);
    let mut legend = legend(report);
    if report.totals.errors > 0 {
        legend.push(("bad".to_owned(), "failed".to_owned()));
    }
    let note = "Each dot a request: when it started, how long it took. The slowest are always shown.";
    Plot { title: "Every request".into(), note, legend, svg: chart.finish() }
}

fn cumulative(report: &Report, title: &'static str, times: fn(&super::ClassReport) -> &Distribution) -> Option<Plot> {
    const SHARES: [f64; 4] = [0.99, 0.995, 0.999, 1.0];
    let measured = || report.classes.iter().enumerate().filter(|(_, class)| times(class).count() > 0);
    measured().next()?;
    let ends =
        measured().flat_map(|(_, class)| [0.0, 1.0].map(|q| times(class).quantile(q).unwrap_or(0.0).max(0.0001)));
    let mut chart = Chart::new(title, Scale::log_around(ends), Scale::Linear(0.0, 1.0), "within", [tick_time, percent]);
    let mut legend = Vec::new();
    for (index, class) in measured() {
        let shares = (0..99).map(|step| f64::from(step) / 100.0).chain(SHARES);
        let point = |share: f64| times(class).quantile(share).map(|time| (time.max(0.0001), share));
        chart.line(&colour(index), &shares.filter_map(point).collect::<Vec<_>>());
        let at = |q: f64| times(class).quantile(q).map(time).unwrap_or_default();
        legend.push((colour(index), format!("{}: p50 {}, p99 {}", class.name, at(0.5), at(0.99))));
    }
    Some(Plot {
        title: title.into(),
        note: "Share of the answers that came within this time. Further left is better.",
        legend,
        svg: chart.finish(),
    })
}

fn failures(report: &Report) -> Option<Plot> {
    if report.errors.is_empty() {
        return None;
    }
    let width = bin_width(report);
    let most = report.timeline.iter().map(|bin| bin.failed.iter().sum::<u64>() as f64).fold(0.0, f64::max);
    let mut chart = Chart::new("Errors over time", time_axis(report), Scale::up_to(most), "seconds", [seconds, number]);
    for bin in &report.timeline {
        let (mut low, end) = (0.0, (bin.at_s + width).min(report.elapsed_s));
        let mut hint = format!("{:.1} s", bin.at_s);
        for (index, count) in bin.failed.iter().enumerate().filter(|(_, count)| **count > 0) {
            let high = low + *count as f64;
            chart.bar(&format!("e{}", index % 6), bin.at_s, end, low, high);
            write!(hint, ", {} {}", report.kinds[index], count).ok();
            low = high;
        }
        chart.hint(bin.at_s, end, &hint);
    }
    events(&mut chart, report);
    let legend =
        report.kinds.iter().enumerate().map(|(index, kind)| (format!("e{}", index % 6), kind.clone())).collect();
    Some(Plot { title: "Errors".into(), note: "By kind, when the client saw them.", legend, svg: chart.finish() })
}

fn in_flight(report: &Report) -> Plot {
    let counts: Vec<(f64, f64)> = report.samples.iter().map(|sample| (sample.at_s, sample.in_flight as f64)).collect();
    let most = counts.iter().map(|(_, count)| *count).fold(1.0, f64::max);
    let mut chart =
        Chart::new("Requests under way", time_axis(report), Scale::up_to(most), "seconds", [seconds, number]);
    chart.line("c0", &counts);
    let mut legend = vec![("c0".to_owned(), "clients that wait for an answer".to_owned())];
    let busy: Option<Vec<(f64, f64)>> =
        report.samples.iter().map(|sample| Some((sample.at_s, sample.busy_slots? as f64))).collect();
    if let Some(busy) = busy.filter(|busy| !busy.is_empty()) {
        chart.line("c2", &busy);
        legend.push(("c2".to_owned(), "of those, worked on by a phone".to_owned()));
    }
    events(&mut chart, report);
    let note = "The distance between the lines is the gateway's queue.";
    Plot { title: "Requests under way".into(), note, legend, svg: chart.finish() }
}

fn slots(report: &Report) -> Option<Plot> {
    let series = |value: fn(&crate::observed::Sample) -> Option<u64>| -> Option<Vec<(f64, f64)>> {
        report.samples.iter().map(|sample| Some((sample.at_s, value(sample)? as f64))).collect()
    };
    let busy = series(|sample| sample.busy_slots)?;
    let alive = series(|sample| sample.slots)?;
    let over = series(|sample| sample.waiting_on_phones)?;
    let most = alive.iter().chain(&busy).map(|(_, count)| *count).fold(1.0, f64::max);
    let mut chart =
        Chart::new("Slots of the fleet", time_axis(report), Scale::up_to(most), "seconds", [seconds, number]);
    let floor: Vec<(f64, f64)> = busy.iter().map(|(at, _)| (*at, 0.0)).collect();
    chart.area("c2", &floor, &busy);
    chart.line("capacity", &alive);
    chart.line("bad", &over);
    events(&mut chart, report);
    let legend =
        [("capacity", "slots of phones that are well"), ("c2", "busy slots"), ("bad", "requests waiting on a phone")];
    let legend = legend.map(|(class, name)| (class.to_owned(), name.to_owned())).to_vec();
    let note = "Red should stay at 0: no phone gets more than its slots hold.";
    Some(Plot { title: "Slots".into(), note, legend, svg: chart.finish() })
}

/// Every phone as a cell, darker the busier it was.
pub(super) fn phones(report: &Report) -> String {
    let mut html = String::new();
    let mut group = None;
    for phone in &report.phones {
        if group != Some(&phone.group) {
            if group.is_some() {
                html.push_str("</div>");
            }
            let name = if phone.group.is_empty() { "phones" } else { &phone.group };
            write!(html, "<h3>{}</h3><div class=\"cells\">", escape(name)).ok();
            group = Some(&phone.group);
        }
        let share = phone.busy_share.clamp(0.0, 1.0);
        let over = if phone.over_subscribed > 0 { " over" } else { "" };
        let hint = format!(
            "{}: {} slots, {} busy, {} attempts, {} answered, {} over-subscribed",
            phone.name,
            phone.slots,
            percent(share),
            phone.attempts,
            phone.completed,
            phone.over_subscribed
        );
        write!(
            html,
            "<div class=\"cell{over}\" title=\"{}\"><i style=\"height:{:.0}%\"></i><b>{}</b></div>",
            escape(&hint),
            share * 100.0,
            number(phone.completed as f64)
        )
        .ok();
    }
    if group.is_some() {
        html.push_str("</div>");
    }
    html
}
