//! Batches as plots.

use super::{Figures, figures::Batch, samples::Sample};
use crate::report::{Chart, Plot, Scale, number};
use simulation::{
    play::Run,
    workload::{PhoneSpec, Timeline},
};

/// Points of the line of what the phones could do.
const STEPS: usize = 100;

/// All plots of a run. `simulated`: of each class, by index, times within which 0, 1, … 100 % of the answers came.
pub(in crate::scaled) fn plots(figures: &Figures, run: &Run<'_>, simulated: &[Vec<f64>]) -> Vec<Plot> {
    let end_s = figures.samples.iter().map(|sample| sample.at_s).fold(1.0, f64::max);
    let mut classes: Vec<usize> = figures.batches.iter().map(|batch| batch.class).collect();
    classes.dedup();
    let mut plots: Vec<Plot> = classes
        .into_iter()
        .map(|class| {
            let batches: Vec<&Batch> = figures.batches.iter().filter(|batch| batch.class == class).collect();
            done(&batches, run, class, simulated.get(class).map_or(&[][..], Vec::as_slice), end_s)
        })
        .collect();
    plots.push(slots(figures, end_s));
    plots.extend(memory(figures, end_s));
    plots
}

/// Seconds at the tick of an axis.
fn seconds(value: f64) -> String {
    number(value.round())
}

fn done(batches: &[&Batch], run: &Run<'_>, class: usize, simulated: &[f64], end_s: f64) -> Plot {
    let name = run.scenario.classes.get(class).map_or("", |class| class.name.as_str());
    let due_s = batches.iter().map(|batch| batch.due_s).fold(f64::INFINITY, f64::min);
    let lines = batches.iter().map(|batch| batch.lines).sum::<usize>() as f64;
    let end_s = simulated.last().map_or(end_s, |last_s| end_s.max(due_s + last_s));
    let title = format!("{name}: lines with results");
    let mut chart = Chart::new(
        &title,
        Scale::Linear(0.0, end_s),
        Scale::up_to(lines),
        "seconds of the scenario",
        [seconds, number],
    );
    let mut legend = Vec::new();
    if let Some(bound_s) = run.bounds.get(class).and_then(|bounds| bounds.makespan) {
        let could = |at_s: f64| {
            let all = run.workload.phones.iter().zip(&run.workload.timelines);
            all.map(|(phone, timeline): (&PhoneSpec, &Timeline)| phone.prefill_factor * timeline.full_seconds(at_s))
                .sum::<f64>()
        };
        let (whole, step_s) = (could(bound_s).max(1e-9), bound_s / STEPS as f64);
        let points: Vec<(f64, f64)> =
            (0..=STEPS).map(|step| step as f64 * step_s).map(|at_s| (at_s, lines * could(at_s) / whole)).collect();
        chart.line("capacity", &points);
        legend.push(("capacity".to_owned(), "what no policy can beat on these phones".to_owned()));
    }
    if simulated.len() > 1 {
        let share = |percent: usize| percent as f64 / (simulated.len() - 1) as f64;
        let points: Vec<(f64, f64)> =
            simulated.iter().enumerate().map(|(percent, after_s)| (due_s + after_s, lines * share(percent))).collect();
        chart.line("c1", &points);
        legend.push(("c1".to_owned(), "simulated".to_owned()));
    }
    for (index, batch) in batches.iter().enumerate() {
        let colour = if index == 0 { "c0".to_owned() } else { crate::report::colour(index + 1) };
        let points: Vec<(f64, f64)> = batch.done.iter().map(|(at_s, count)| (*at_s, *count as f64)).collect();
        chart.line(&colour, &points);
        legend.push((colour, format!("live, {}", batch.name)));
    }
    let note = "How many lines had results when. Further left is better.";
    Plot { title: title.into(), note, legend, svg: chart.finish() }
}

fn slots(figures: &Figures, end_s: f64) -> Plot {
    let series = |value: fn(&Sample) -> u64| -> Vec<(f64, f64)> {
        let played = figures.samples.iter().filter(|sample| sample.at_s >= 0.0);
        played.map(|sample| (sample.at_s, value(sample) as f64)).collect()
    };
    let (busy, up) = (series(|sample| sample.busy), series(|sample| sample.up));
    let floor: Vec<(f64, f64)> = busy.iter().map(|(at_s, _)| (*at_s, 0.0)).collect();
    let most = up.iter().chain(&busy).map(|(_, count)| *count).fold(1.0, f64::max);
    let mut chart = Chart::new(
        "Slots",
        Scale::Linear(0.0, end_s),
        Scale::up_to(most),
        "seconds of the scenario",
        [seconds, number],
    );
    chart.area("c2", &floor, &busy);
    chart.line("capacity", &up);
    let legend = [("capacity", "slots of phones that are up"), ("c2", "slots that work")];
    Plot {
        title: "Slots".into(),
        note: "What lies between the two is kept for the urgent, waits for the right line, or has not been found to be back.",
        legend: legend.map(|(class, name)| (class.to_owned(), name.to_owned())).to_vec(),
        svg: chart.finish(),
    }
}

fn memory(figures: &Figures, end_s: f64) -> Option<Plot> {
    let megabytes = |sample: &Sample| Some((sample.at_s.max(0.0), sample.gateway_bytes? as f64 / 1e6));
    let points: Vec<(f64, f64)> = figures.samples.iter().filter_map(megabytes).collect();
    let most = points.iter().map(|(_, size)| *size).fold(1.0, f64::max);
    let mut chart = Chart::new(
        "Memory of the gateway",
        Scale::Linear(0.0, end_s),
        Scale::up_to(most),
        "seconds of the scenario",
        [seconds, |value| format!("{} MB", number(value))],
    );
    chart.line("c0", &points);
    (!points.is_empty()).then(|| Plot {
        title: "Memory of the gateway".into(),
        note: "Resident. What stands upright at 0 are the uploads, before the scenario begins.",
        legend: vec![("c0".to_owned(), "gateway".to_owned())],
        svg: chart.finish(),
    })
}
