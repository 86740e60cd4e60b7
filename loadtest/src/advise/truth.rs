//! What really comes of so many phones: the mean over several draws, none of which is the one that was measured.
//!
//! A draw is other requests at the same rates and other absences, on the phones that were measured and, where there are to be more,
//! others of the same kinds: all that advice can know about is what draws have in common. One alone says as much about itself as
//! about the number of phones.

use simulation::advice::{Objectives, Outcome, Trial};

use super::in_parallel;

/// Of lines of batches, whose objective is all of them, so many must be done in time: in the mean over several draws it is hardly
/// ever all.
const LINES: f64 = 0.99;
/// Where this many times what was guessed, and some, do not meet every objective, no number does.
const MOST: usize = 3;
const SOME: usize = 10;
/// The draws: no run that anyone measures.
const FIRST_RUN: u64 = 1_000_000;

/// Shares of requests in time, by class as in `scheduler::Class::ALL`: the mean over the draws, and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Judged {
    pub(super) shares: [Option<(f64, f64)>; 3],
}

impl Judged {
    fn of(outcomes: &[Outcome]) -> Self {
        let of_class = |class: usize| {
            let shares: Vec<f64> = outcomes.iter().filter_map(|outcome| *outcome.attained.get(class)?).collect();
            let count = shares.len() as f64;
            let mean = shares.iter().sum::<f64>() / count;
            let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
            (count > 0.0).then(|| (mean, (variance / count).sqrt()))
        };
        Self { shares: [0, 1, 2].map(of_class) }
    }

    /// How far the worst class is from its objective; 0 if every one is met.
    pub(super) fn shortfall(&self) -> f64 {
        let objectives = Objectives::default();
        let wanted = [objectives.interactive.share, objectives.standard.share, LINES];
        let short = self.shares.iter().zip(wanted).filter_map(|(share, wanted)| Some(wanted - (*share)?.0));
        short.fold(0.0, f64::max)
    }

    pub(super) fn met(&self) -> bool {
        self.shortfall() <= 0.0
    }
}

/// One model's work, played with any number of phones.
#[derive(Debug)]
pub(super) struct Truth {
    trial: Trial,
    model: u32,
    draws: u16,
    /// What came of each number that was tried, in their order.
    pub(super) tried: Vec<(usize, Judged)>,
}

impl Truth {
    pub(super) const fn new(trial: Trial, model: u32, draws: u16) -> Self {
        Self { trial, model, draws, tried: Vec::new() }
    }

    /// True if this is the truth about the same work with the same phones.
    pub(super) fn is_of(&self, trial: &Trial, model: u32) -> bool {
        self.model == model && self.trial.is_like(trial)
    }

    pub(super) fn of(&mut self, phones: usize) -> Judged {
        match self.tried.binary_search_by_key(&phones, |(tried, _)| *tried) {
            Ok(at) => self.tried.get(at).map(|(_, judged)| *judged).unwrap_or_default(),
            Err(at) => {
                let trial = self.trial.with_phones(self.model, phones);
                let runs: Vec<u64> = (FIRST_RUN..).take(usize::from(self.draws)).collect();
                let judged = Judged::of(&in_parallel(&runs, |run| trial.in_run(*run).outcome(self.model)));
                self.tried.insert(at, (phones, judged));
                judged
            }
        }
    }

    /// The smallest number that meets every objective: `guess` is tried, then further away, then between. More phones do better,
    /// but for the chance that the draws leave. `None`: no number that was tried does.
    pub(super) fn smallest(&mut self, guess: usize) -> Option<usize> {
        let (mut fails, mut does) = (0, None);
        let (mut at, mut step) = (guess.max(1), 1);
        while at <= MOST * guess + SOME {
            if self.of(at).met() {
                does = Some(at);
            } else {
                fails = at;
            }
            at = match does {
                None => fails + step,
                Some(does) if does - fails <= 1 => return Some(does),
                Some(does) if fails == 0 => does.saturating_sub(step).max(1),
                Some(does) => usize::midpoint(fails, does),
            };
            step *= 2;
        }
        None
    }
}
