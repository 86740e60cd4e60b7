//! The search for the smallest number of phones that will do.
//!
//! More phones do better, but for chance: so the border between the numbers that fail and those that do is closed in on from where
//! it is expected, first in steps that grow, then by halving. Every number is played at most once.

use std::collections::BTreeMap;

use scheduler::Measured;

use super::{
    alike,
    rehearsal::{Outcome, Rehearsal},
};

/// No objective needs more than this many times what the work takes: urgent work that comes all at once does not come all the time.
const MOST_SPARE: f64 = 8.0;
/// Phones beside that, for small numbers.
const SOME_SPARE: usize = 64;
/// Above this many phones one more or less is not looked for, but one in twenty.
const EXACT: usize = 40;
/// Plays for the phones of a kind.
const KIND_PLAYS: u32 = 4;

#[derive(Debug)]
pub(super) struct Search<'a> {
    rehearsal: &'a Rehearsal<'a>,
    phones: &'a [Measured],
    /// Phones' time that the work takes, per second.
    load: f64,
    plays: u32,
    played: BTreeMap<usize, Outcome>,
    /// It ran out of plays.
    pub(super) cut_short: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(rehearsal: &'a Rehearsal<'a>, phones: &'a [Measured], load: f64, plays: u32) -> Self {
        Self { rehearsal, phones, load, plays, played: BTreeMap::new(), cut_short: false }
    }

    /// The smallest number of phones that meets every objective; from `guess` on. `None`: none does.
    pub(super) fn fewest(&mut self, guess: usize) -> Option<usize> {
        self.smallest(guess, 1.0, false)
    }

    /// The same when everything comes `hurry` times as fast, and in the busiest minutes too.
    pub(super) fn fewest_at_peak(&mut self, guess: usize, hurry: f64) -> Option<usize> {
        self.smallest(guess, hurry, true)
    }

    /// Plays that number, if it was not played yet and a play is left.
    pub(super) fn outcome(&mut self, phones: usize) -> Option<Outcome> {
        self.try_(phones, 1.0, &mut BTreeMap::new())
    }

    fn smallest(&mut self, guess: usize, hurry: f64, peak: bool) -> Option<usize> {
        let most = ((MOST_SPARE * self.load * hurry).ceil() as usize + SOME_SPARE).max(2 * self.phones.len());
        let mut hurried = BTreeMap::new();
        let (mut fails, mut does) = (0, None);
        let mut at = guess.clamp(1, most);
        let mut step = (at / 4).max(1);
        loop {
            let Some(outcome) = self.try_(at, hurry, &mut hurried) else {
                self.cut_short = true;
                break;
            };
            if outcome.met && (outcome.met_at_peak || !peak) {
                does = Some(at);
            } else {
                fails = at;
            }
            at = match does {
                None if fails >= most => return None,
                None => {
                    let further = (fails + step).max(self.load.ceil() as usize).min(most);
                    step *= 2;
                    further
                }
                Some(does) if does - fails <= (does.saturating_sub(EXACT) / 20).max(1) => break,
                // What can't hold the work is not tried, nor what is far below.
                Some(does) if fails == 0 => {
                    (does - (does / 4).max(1)).max((self.load.floor() as usize).min(does - 1)).max(1)
                }
                Some(does) => usize::midpoint(fails, does),
            };
            if does == Some(1) || does == Some(at) {
                break;
            }
        }
        does
    }

    fn try_(&mut self, phones: usize, hurry: f64, hurried: &mut BTreeMap<usize, Outcome>) -> Option<Outcome> {
        let plain = hurry <= 1.0;
        let known = if plain { &self.played } else { &*hurried }.get(&phones).copied();
        if known.is_some() {
            return known;
        }
        self.plays = self.plays.checked_sub(1)?;
        let outcome = self.rehearsal.play(&alike(self.phones, phones), hurry);
        if plain { &mut self.played } else { hurried }.insert(phones, outcome);
        Some(outcome)
    }

    /// How many of one phone, beside those that are there, do what `most` others do. `None` if that was not found out.
    pub(super) fn more_of(&self, phone: &Measured, most: usize) -> Option<usize> {
        let with = |more: usize| {
            let phones: Vec<Measured> = self.phones.iter().chain(std::iter::repeat_n(phone, more)).copied().collect();
            self.rehearsal.play(&phones, 1.0).met
        };
        let (mut fails, mut does, mut plays) = (0, None, KIND_PLAYS);
        let mut at = most;
        while plays > 0 {
            plays -= 1;
            if with(at) {
                does = Some(at)
            } else {
                fails = at
            }
            at = match does {
                Some(does) if does - fails <= 1 => break,
                Some(does) => usize::midpoint(fails, does),
                None => 2 * at,
            };
        }
        does
    }

    pub(super) fn tried(self) -> Vec<(usize, Outcome)> {
        self.played.into_iter().collect()
    }
}
