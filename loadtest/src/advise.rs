//! `loadtest advise`: capacity advice put to the test.
//!
//! A scenario is served with the phones that it has, and advice is taken from what the scheduler measured meanwhile. Then it is
//! served with the number that is advised, and with others around it, to find the smallest number that meets every objective.

use crate::{cli, sim};
use simulation::advice::{Effort, Objectives, Outcome, Trial, Verdict};
use std::{
    io::{self, Write},
    num::NonZero,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A share that misses its objective by no more than this is the chance of one run.
const SHORT: f64 = 0.02;
/// A number is too large from this share above the smallest on, and more than one phone.
const ABOVE: f64 = 0.10;
/// Numbers that are tried to find the smallest.
const MOST_TRIED: usize = 40;

/// What came of one model in one run.
struct Row {
    scenario: String,
    seed: u64,
    model: u32,
    measured: usize,
    wanted: Option<usize>,
    verdict: Verdict,
    /// With what is advised, and with one less.
    outcomes: [Option<Outcome>; 2],
    /// The smallest number that meets every objective.
    smallest: Option<usize>,
    tried: Vec<(usize, Outcome)>,
    reasons: Vec<String>,
}

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
    let mut all_right = true;
    let mut out = io::stdout().lock();
    writeln!(out, "{}", header())?;
    for rows in in_parallel(&trials, |trial| examine(trial, options)) {
        for row in rows {
            all_right &= row.is_right();
            writeln!(out, "{}", row.line())?;
            if options.reasons {
                row.reasons.iter().try_for_each(|reason| writeln!(out, "    {reason}"))?;
            }
            if options.plot {
                write!(out, "{}", row.plot())?;
            }
        }
    }
    writeln!(
        out,
        "\nright: in time within {:.0} points of each objective, and no more than one phone or {:.0} % above the smallest number that \
         meets all of them",
        100.0 * SHORT,
        100.0 * ABOVE,
    )?;
    Ok(all_right || !options.check)
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

fn examine(trial: &Trial, options: &cli::Advise) -> Vec<Row> {
    let (horizon_s, warmup_s) = trial.times_s();
    let at_s = options.at.unwrap_or(horizon_s);
    let window_s = options.window.unwrap_or((at_s - warmup_s).max(1.0));
    let effort = Effort { requests: options.requests, plays: options.plays };
    let (advised, rest) = trial.advise(at_s, window_s, effort);
    let rows = advised.into_iter().map(|advised| {
        let (model, advice) = (advised.model, advised.advice);
        let mut truth = Truth { trial: &rest, model, tried: Vec::new() };
        let smallest = truth.smallest(advice.wanted.unwrap_or_else(|| trial.phones(model)));
        let outcome = |phones: Option<usize>, truth: &mut Truth<'_>| phones.filter(|n| *n > 0).map(|n| truth.of(n));
        let outcomes = [
            outcome(advice.wanted, &mut truth),
            outcome(advice.wanted.map(|wanted| wanted.saturating_sub(1)), &mut truth),
        ];
        if options.plot {
            for around in smallest.into_iter().chain(advice.wanted) {
                (around.saturating_sub(3).max(1)..=around + 3).for_each(|phones| {
                    truth.of(phones);
                });
            }
        }
        truth.tried.sort_by_key(|(phones, _)| *phones);
        Row {
            scenario: trial.name().to_owned(),
            seed: trial.run(),
            model,
            measured: trial.phones(model),
            wanted: advice.wanted,
            verdict: advice.verdict,
            outcomes,
            smallest,
            tried: truth.tried,
            reasons: advice.reasons,
        }
    });
    rows.collect()
}

/// What really comes of how many phones.
struct Truth<'t> {
    trial: &'t Trial,
    model: u32,
    tried: Vec<(usize, Outcome)>,
}

impl Truth<'_> {
    fn of(&mut self, phones: usize) -> Outcome {
        if let Some((_, known)) = self.tried.iter().find(|(tried, _)| *tried == phones) {
            return *known;
        }
        let outcome = self.trial.with_phones(self.model, phones).outcome(self.model);
        self.tried.push((phones, outcome));
        outcome
    }

    /// The smallest number that meets every objective, from `guess` on; nothing if that is far.
    fn smallest(&mut self, guess: usize) -> Option<usize> {
        let mut at = guess.max(1);
        let meets = self.of(at).met;
        for _ in 0..MOST_TRIED {
            if meets {
                if at == 1 || !self.of(at - 1).met {
                    return Some(at);
                }
                at -= 1;
            } else {
                at += 1;
                if self.of(at).met {
                    return Some(at);
                }
            }
        }
        None
    }
}

fn header() -> String {
    format!(
        "{:26} {:>4} {:>5}  {:>5} {:>6} {:>8}  {:23} {:23} {}",
        "scenario", "seed", "model", "had", "wanted", "smallest", "in time with wanted", "with one less", ""
    )
}

impl Row {
    fn is_right(&self) -> bool {
        let (Some(wanted), Some(smallest)) = (self.wanted, self.smallest) else {
            return self.wanted.is_none() && self.smallest.is_none();
        };
        let above = ((ABOVE * smallest as f64) as usize).max(1);
        let close = self.outcomes[0].is_some_and(|outcome| shortfall(&outcome) <= SHORT);
        close && wanted <= smallest + above
    }

    fn line(&self) -> String {
        let number = |number: Option<usize>| number.map_or("-".to_owned(), |number| number.to_string());
        let shares = |outcome: Option<Outcome>| outcome.map_or(String::new(), |outcome| shares(&outcome));
        let right = match (self.is_right(), self.wanted) {
            (true, None) => "right: no number does",
            (true, _) => "right",
            (false, _) => "WRONG",
        };
        format!(
            "{:26} {:>4} {:>5}  {:>5} {:>6} {:>8}  {:23} {:23} {} ({})",
            self.scenario,
            self.seed,
            self.model,
            self.measured,
            number(self.wanted),
            number(self.smallest),
            shares(self.outcomes[0]),
            shares(self.outcomes[1]),
            right,
            self.verdict.name(),
        )
    }

    /// What is in time with how many phones, the worst class as a bar.
    fn plot(&self) -> String {
        const WIDTH: f64 = 50.0;
        let lines = self.tried.iter().map(|(phones, outcome)| {
            let worst = outcome.attained.iter().flatten().copied().fold(1.0, f64::min);
            let bar = "█".repeat((WIDTH * worst) as usize);
            let mark = if self.wanted == Some(*phones) { "← wanted" } else { "" };
            let met = if outcome.met { '+' } else { ' ' };
            format!("    {phones:>5} {met} {bar:50} {} {mark}\n", shares(outcome))
        });
        lines.collect()
    }
}

/// How far the worst class is from its objective.
fn shortfall(outcome: &Outcome) -> f64 {
    let objectives = Objectives::default();
    let wanted = [objectives.interactive.share, objectives.standard.share, 1.0];
    let short = outcome.attained.iter().zip(wanted).filter_map(|(share, wanted)| Some(wanted - (*share)?));
    short.fold(0.0, f64::max)
}

fn shares(outcome: &Outcome) -> String {
    let shares = outcome.attained.iter().zip(["i", "s", "b"]);
    let shown: Vec<String> =
        shares.filter_map(|(share, name)| Some(format!("{name} {:.1}%", 100.0 * (*share)?))).collect();
    shown.join(" ")
}
