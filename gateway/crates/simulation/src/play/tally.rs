//! From what became of each request to figures.

use scheduler::Class as Urgency;

use super::{
    ClassFigures, KeyFigures, Played, Player, Run, WasteShares,
    ending::Ending,
    stage::{Progress, Work},
};
use crate::{
    quantile::{mean, quantile},
    scenario::Class,
    workload::Request,
};

pub(super) fn played(run: &Run<'_>, player: &Player, ending: Ending) -> Played {
    let classes = run.scenario.classes.iter().enumerate();
    Played {
        scenario: run.scenario.name.clone(),
        player: player.name(),
        run: run.number,
        classes: classes.filter_map(|(index, class)| of_class(run, &ending, index, class)).collect(),
        waste: shares(&ending.work),
        decisions: ending.decisions,
        refused: ending.refused,
        end: ending.end,
    }
}

/// `None` if nothing of the class was measured.
fn of_class(run: &Run<'_>, ending: &Ending, index: usize, class: &Class) -> Option<ClassFigures> {
    let until = run.scenario.until_s();
    let all: Vec<(&Request, &Progress)> =
        run.workload.requests.iter().zip(&ending.requests).filter(|(request, _)| request.class == index).collect();
    let window = run.scenario.warmup_s..run.scenario.horizon_s;
    let measured: Vec<Times<'_>> = all
        .iter()
        .filter_map(|(request, progress)| Some((request, progress, progress.arrived?)))
        .filter(|(.., arrived)| class.urgency == Urgency::Batch || window.contains(arrived))
        .map(|(request, progress, arrived)| Times {
            request,
            progress,
            arrived,
            whole: progress.answered.unwrap_or(until) - arrived,
            first: progress.first_token.unwrap_or(until) - arrived,
        })
        .collect();
    let whole = sorted(measured.iter().map(|times| times.whole));
    let first = sorted(measured.iter().map(|times| times.first));
    let objective = |times: &&Times<'_>| {
        let time = if class.objective_on_first_token { times.first } else { times.whole };
        class.objective_s > 0.0 && time <= class.objective_s
    };
    let bounds = run.bounds.get(index);
    let average = mean(&whole)?;
    let last = measured.iter().map(|times| times.arrived + times.whole).fold(0.0, f64::max);
    let makespan = class.is_closed().then_some(last);
    Some(ClassFigures {
        name: class.name.clone(),
        requests: measured.len(),
        unfinished: measured.iter().filter(|times| times.progress.answered.is_none()).count(),
        mean: average,
        p50: quantile(&whole, 0.5)?,
        p99: quantile(&whole, 0.99)?,
        max: quantile(&whole, 1.0)?,
        ttft_mean: mean(&first)?,
        ttft_p50: quantile(&first, 0.5)?,
        ttft_p99: quantile(&first, 0.99)?,
        good: measured.iter().filter(objective).count() as f64 / measured.len() as f64,
        reuse: reuse(&measured),
        bound_ratio: bounds.and_then(|bounds| bounds.mean).map(|bound| average / bound),
        makespan,
        makespan_ratio: makespan.zip(bounds.and_then(|bounds| bounds.makespan)).map(|(last, bound)| last / bound),
        slot_seconds: measured.iter().map(|times| times.progress.slot_seconds_in_all).sum(),
        wasted_slot_seconds: measured.iter().map(|times| times.progress.wasted_slot_seconds).sum(),
        keys: class.keys.iter().enumerate().map(|(key, named)| of_key(key, &named.name, &all, &measured)).collect(),
        curve: (0..=100).filter_map(|percent| quantile(&whole, f64::from(percent) / 100.0)).collect(),
    })
}

/// A measured request. Seconds.
struct Times<'a> {
    request: &'a Request,
    progress: &'a Progress,
    arrived: f64,
    /// To the whole answer.
    whole: f64,
    /// To the first token.
    first: f64,
}

fn sorted(times: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    times
}

fn of_key(key: usize, name: &str, all: &[(&Request, &Progress)], measured: &[Times<'_>]) -> KeyFigures {
    let own = measured.iter().filter(|times| times.request.key == key).map(|times| times.whole);
    let own: Vec<f64> = own.collect();
    let held = all.iter().filter(|(request, _)| request.key == key).map(|(_, progress)| progress.slot_seconds);
    KeyFigures {
        name: name.to_owned(),
        requests: own.len(),
        mean: mean(&own).unwrap_or_default(),
        slot_seconds: held.sum(),
    }
}

/// A retry may find more than a perfect cache would have held: its own prompt. That is no reuse of anybody's work.
fn reuse(measured: &[Times<'_>]) -> f64 {
    let answered = || measured.iter().filter(|times| times.progress.answered.is_some());
    let possible: u64 = answered().map(|times| u64::from(times.request.spared())).sum();
    let used: u64 = answered().map(|times| u64::from(times.progress.cached.min(times.request.spared()))).sum();
    if possible == 0 { 1.0 } else { used as f64 / possible as f64 }
}

fn shares(work: &Work) -> WasteShares {
    let all = work.answered + work.failed + work.hedged + work.preempted;
    let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
    WasteShares {
        fail: share(work.failed),
        hedge: share(work.hedged),
        preempt: share(work.preempted),
        cold: share(work.cold),
    }
}
