//! `loadtest advise`: capacity advice put to the test.
//!
//! A scenario is served with the phones that it has, and advice is taken from what the scheduler measured meanwhile. Then other
//! draws of it are served with the number that is advised, and with others around it, to find the smallest number that meets
//! every objective in the mean.

mod erlang;
mod truth;

use self::truth::{Judged, Truth};
use crate::{cli, sim};
use simulation::advice::{Advice, Confidence, Effort, Objectives, Trial};
use std::{
    io::{self, Write},
    num::NonZero,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A share that misses its objective by no more than this is as good as one that meets it.
const SHORT: f64 = 0.02;
/// A number is too large from this share above the smallest on, and more than one phone.
const ABOVE: f64 = 0.10;

/// True if nothing is wrong, or nothing was to be checked.
///
/// # Errors
/// A file is no scenario.
pub(crate) fn run(options: &cli::Advise) -> anyhow::Result<bool> {
    let scenarios = sim::read_all(&options.scenarios)?;
    let seeds = cli::runs(&options.seeds);
    let trials: Vec<Trial> = scenarios
        .iter()
        .flat_map(|(_, scenario)| seeds.iter().map(|seed| Trial::new(scenario, *seed, Objectives::default())))
        .flat_map(|trial| {
            let with =
                |count: &usize| trial.models().iter().fold(trial.clone(), |t, model| t.with_phones(*model, *count));
            if options.phones.is_empty() { vec![trial.clone()] } else { options.phones.iter().map(with).collect() }
        })
        .collect();
    let mut out = io::stdout().lock();
    writeln!(out, "{}", header())?;
    let mut rows = Vec::new();
    let mut truths: Vec<Truth> = Vec::new();
    for advised in in_parallel(&trials, |trial| advise(trial, options)).into_iter().flatten() {
        let row = Row::new(advised, &mut truths, options);
        writeln!(out, "{}", row.line())?;
        if options.reasons {
            row.advised.advice.reasons.iter().try_for_each(|reason| writeln!(out, "    {reason}"))?;
        }
        if options.plot {
            write!(out, "{}", row.plot())?;
        }
        out.flush()?;
        rows.push(row);
    }
    write!(out, "{}", summary(&rows, options.draws))?;
    Ok(!options.check || rows.iter().all(Row::is_right))
}

/// What was advised on one model in one run, and the work that was left then.
struct Advised {
    scenario: String,
    seed: u64,
    model: u32,
    measured: usize,
    advice: Advice,
    rest: Trial,
}

fn advise(trial: &Trial, options: &cli::Advise) -> Vec<Advised> {
    let (horizon_s, warmup_s) = trial.times_s();
    let at_s = options.at.unwrap_or(horizon_s);
    let window_s = options.window.unwrap_or((at_s - warmup_s).max(1.0));
    let effort = Effort { requests: options.requests, plays: options.plays };
    let (advised, rest) = trial.advise(at_s, window_s, effort);
    let of_model = |advised: simulation::advice::Advised| Advised {
        scenario: trial.name().to_owned(),
        seed: trial.run(),
        model: advised.model,
        measured: trial.phones(advised.model),
        advice: advised.advice,
        rest: rest.clone(),
    };
    advised.into_iter().map(of_model).collect()
}

fn in_parallel<T: Sync, R: Send>(items: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    let result = act(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// What was advised, and the truth about it.
struct Row {
    advised: Advised,
    /// What a formula would have advised, and what comes of that.
    formula: (Option<usize>, Option<Judged>),
    /// The smallest number that meets every objective.
    smallest: Option<usize>,
    /// With what is advised, with one fewer, and with fewer by what counts as too many.
    outcomes: [Option<Judged>; 3],
    tried: Vec<(usize, Judged)>,
}

/// So many more than the smallest number are no mistake.
fn allowed_above(phones: usize) -> usize {
    ((ABOVE * phones as f64) as usize).max(1)
}

fn header() -> String {
    format!(
        "{:22} {:>4} {:>5} {:>5} {:>6} {:>8} {:>6}  {:30} {:30}",
        "scenario",
        "seed",
        "model",
        "had",
        "wanted",
        "smallest",
        "Erlang",
        "in time with wanted, of 100",
        "with one fewer",
    )
}

fn summary(rows: &[Row], draws: u16) -> String {
    let count = |is_it: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| is_it(row)).count();
    let with_number = count(&|row| row.advised.advice.wanted.is_some());
    let fewer = count(&|row| row.outcomes[2].is_some_and(|judged| !judged.met()));
    let sure = |row: &Row| row.advised.advice.confidence == Confidence::Good;
    format!(
        "\nright: {} of {} ({} of {} whose confidence is good); short: {}; too many: {}. {fewer} of {with_number} need what is advised: with one phone or {:.0} % fewer an \
         objective is missed.\nright: in time within {:.0} points of each objective, in the mean over {draws} other draws (beside it its \
         standard error), and no more than one phone or {:.0} % above the smallest number that meets all of them.\nErlang's formula would be right in {}, short \
         in {}.\n",
        count(&Row::is_right),
        rows.len(),
        count(&|row| sure(row) && row.is_right()),
        count(&sure),
        count(&Row::is_short),
        count(&|row| row.is_too_many(row.advised.advice.wanted)),
        100.0 * ABOVE,
        100.0 * SHORT,
        100.0 * ABOVE,
        count(&|row| !row.misses(row.formula) && !row.is_too_many(row.formula.0)),
        count(&|row| row.misses(row.formula)),
    )
}

impl Row {
    fn new(advised: Advised, truths: &mut Vec<Truth>, options: &cli::Advise) -> Self {
        let (model, wanted) = (advised.model, advised.advice.wanted);
        let at = truths.iter().position(|truth| truth.is_of(&advised.rest, model)).unwrap_or_else(|| {
            truths.push(Truth::new(advised.rest.clone(), model, options.draws));
            truths.len() - 1
        });
        let truth = &mut truths[at];
        let smallest = truth.smallest(wanted.unwrap_or(advised.measured));
        let fewer = |by: usize| wanted.and_then(|wanted| wanted.checked_sub(by)).filter(|phones| *phones > 0);
        let outcomes =
            [fewer(0), fewer(1), fewer(allowed_above(wanted.unwrap_or(0)))].map(|phones| phones.map(|n| truth.of(n)));
        if options.plot {
            for around in smallest.into_iter().chain(wanted) {
                (around.saturating_sub(2).max(1)..=around + 2).for_each(|phones| {
                    truth.of(phones);
                });
            }
        }
        let formula = erlang::wanted(&advised.advice, advised.rest.up());
        let formula = (formula, formula.map(|phones| truth.of(phones)));
        Self { tried: truth.tried.clone(), advised, formula, smallest, outcomes }
    }

    fn is_right(&self) -> bool {
        !self.is_short() && !self.is_too_many(self.advised.advice.wanted)
    }

    fn is_short(&self) -> bool {
        self.misses((self.advised.advice.wanted, self.outcomes[0]))
    }

    /// An objective is missed with a number, or would be met by one and none is given.
    fn misses(&self, (phones, outcome): (Option<usize>, Option<Judged>)) -> bool {
        match (phones, outcome) {
            (Some(_), Some(judged)) => judged.shortfall() > SHORT,
            _ => self.smallest.is_some(),
        }
    }

    fn is_too_many(&self, phones: Option<usize>) -> bool {
        let too_many = |(phones, smallest): (usize, usize)| phones > smallest + allowed_above(smallest);
        phones.zip(self.smallest).is_some_and(too_many)
    }

    fn line(&self) -> String {
        let number = |number: Option<usize>| number.map_or("-".to_owned(), |number| number.to_string());
        let shares = |judged: Option<Judged>| judged.map_or(String::new(), |judged| shares(&judged));
        let wanted = self.advised.advice.wanted;
        let right = match (self.is_short(), self.is_too_many(wanted), wanted) {
            (true, ..) => "SHORT",
            (_, true, _) => "TOO MANY",
            (.., None) => "right: no number does",
            _ => "right",
        };
        format!(
            "{:22} {:>4} {:>5} {:>5} {:>6} {:>8} {:>6}  {:30} {:30} {right} ({}, confidence {})",
            self.advised.scenario,
            self.advised.seed,
            self.advised.model,
            self.advised.measured,
            number(wanted),
            number(self.smallest),
            number(self.formula.0),
            shares(self.outcomes[0]),
            shares(self.outcomes[1]),
            self.advised.advice.verdict.name(),
            self.advised.advice.confidence.name(),
        )
    }

    /// What is in time with how many phones, the worst class as a bar; and what the advice believed.
    fn plot(&self) -> String {
        const WIDTH: f64 = 50.0;
        let believed = |phones: usize| {
            let tried = self.advised.advice.tried.iter().find(|(tried, _)| *tried == phones);
            tried.map_or(String::new(), |(_, outcome)| {
                let shares = outcome.attained.map(|share| share.map(|share| (share, 0.0)));
                format!("believed {}", self::shares(&Judged { shares }))
            })
        };
        let lines = self.tried.iter().map(|(phones, judged)| {
            let worst = judged.shares.iter().flatten().map(|(mean, _)| *mean).fold(1.0, f64::min);
            let bar = "█".repeat((WIDTH * worst) as usize);
            let mark = if self.advised.advice.wanted == Some(*phones) { "← wanted" } else { "" };
            let met = if judged.met() { '+' } else { ' ' };
            format!("    {phones:>5} {met} {bar:50} {:30} {mark:8} {}\n", shares(judged), believed(*phones))
        });
        lines.collect()
    }
}

/// `i 95.1±0.3 s 99.9±0.1`.
fn shares(judged: &Judged) -> String {
    let shares = judged.shares.iter().zip(["i", "s", "b"]);
    let shown: Vec<String> = shares
        .filter_map(|(share, name)| {
            let (mean, error) = (*share)?;
            let error = if error > 0.0 { format!("±{:.1}", 100.0 * error) } else { String::new() };
            Some(format!("{name} {:.1}{error}", 100.0 * mean))
        })
        .collect();
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use simulation::scenario::{Arrivals, Scenario};

    use super::*;

    /// Guards on phones that are alike and stay: more or fewer phones make all the difference, chance makes little.
    const GUARDS: &str = include_str!("../../gateway/crates/simulation/tests/guards.json");

    #[test]
    fn advice_is_right_and_would_be_wrong_by_a_third() {
        let mut scenario = Scenario::from_json(GUARDS).expect("a scenario");
        (scenario.horizon_s, scenario.warmup_s) = (120.0, 30.0);
        scenario.phones.classes[0].count = 9;
        scenario.classes[0].arrivals = Arrivals::Poisson { rate: 6.0 };
        let trial = Trial::new(&scenario, 0, Objectives::default());
        let options = cli::Advise {
            scenarios: Vec::new(),
            phones: Vec::new(),
            seeds: Vec::new(),
            at: None,
            window: None,
            requests: 400,
            plays: 8,
            draws: 2,
            plot: false,
            reasons: false,
            check: true,
        };
        let mut truths = Vec::new();
        let mut row = |factor: f64| {
            let mut advised = advise(&trial, &options).remove(0);
            advised.advice.wanted = advised.advice.wanted.map(|wanted| (factor * wanted as f64).round() as usize);
            Row::new(advised, &mut truths, &options)
        };
        let right = row(1.0);
        assert!(right.is_right(), "{}{}", right.line(), right.plot());
        assert!(right.advised.advice.wanted >= Some(5), "a third is more than one phone: {}", right.line());
        for factor in [0.7, 1.3] {
            let wrong = row(factor);
            assert!(!wrong.is_right(), "{factor}: {}{}", wrong.line(), wrong.plot());
        }
    }
}
