//! The search for the smallest number of phones that will do.
//!
//! More phones do better, but for chance: so the border between the numbers that fail and those that do is closed in on from where
//! it is expected, first in steps that grow, then by halving. One play of a number is a sample. What was seen of all numbers is
//! taken together: the shares in time are smoothed until more phones are nowhere worse than fewer (isotonic regression), and the
//! numbers at the border are played again while it is not clear on which side of it they are and plays are left.

use std::collections::BTreeMap;

use scheduler::{Class, Measured};

use super::{
    Objectives, Outcome, alike,
    rehearsal::{Rehearsal, Score},
};

/// No objective needs more than this many times what the work takes: urgent work that comes all at once does not come all the time.
const MOST_SPARE: f64 = 8.0;
/// Phones beside that, for small numbers.
const SOME_SPARE: usize = 64;
/// Above this many phones one more or less is not looked for, but one in twenty.
const EXACT: usize = 40;
/// Plays for the phones of a kind.
const KIND_PLAYS: u32 = 4;
/// Plays from which on it may be clear that a number fails, and that it does: where one play in ten is bad because several phones are
/// away at once, six good ones in a row say little.
const FEWEST_PLAYS: usize = 6;
const PLAYS_TO_TRUST: usize = 16;
/// So many standard errors away from the objective a share is clear.
const CLEAR: f64 = 2.0;
/// No error is smaller: plays are few.
const LEAST_ERROR: f64 = 0.01;
/// No more than this is held against a number: where phones go away, a share may lie close above its objective for any number.
const MOST_DOUBT: f64 = 0.01;

#[derive(Debug)]
pub(super) struct Search<'a> {
    rehearsal: &'a Rehearsal<'a>,
    objectives: &'a Objectives,
    phones: &'a [Measured],
    /// Phones' time that the work takes, per second.
    load: f64,
    /// Plays that are left.
    plays: u32,
    plain: Curve,
    /// It ran out of plays.
    pub(super) cut_short: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        rehearsal: &'a Rehearsal<'a>,
        objectives: &'a Objectives,
        phones: &'a [Measured],
        load: f64,
        plays: u32,
    ) -> Self {
        Self { rehearsal, objectives, phones, load, plays, plain: Curve::default(), cut_short: false }
    }

    /// The smallest number of phones that meets every objective; from `guess` on. `None`: none does.
    pub(super) fn fewest(&mut self, guess: usize) -> Option<usize> {
        // The rest is for fewer phones than there are.
        let plays = (3 * self.plays).div_ceil(4);
        let mut curve = std::mem::take(&mut self.plain);
        let found = self.smallest(&mut curve, guess, 1.0, plays);
        self.plain = curve;
        found
    }

    /// The same when everything comes `hurry` times as fast, and in the busiest minutes of the plays too, but for chance.
    pub(super) fn fewest_in_a_hurry(&mut self, guess: usize, hurry: f64) -> Option<usize> {
        self.smallest(&mut Curve { at_peak: true, ..Curve::default() }, guess, hurry, self.plays)
    }

    /// Plays that number if it was not played yet.
    pub(super) fn try_(&mut self, phones: usize) {
        if !self.plain.scores.contains_key(&phones) {
            self.plain.play(phones, |number| self.rehearsal.play(&alike(self.phones, phones), number, 1.0));
        }
    }

    fn smallest(&mut self, curve: &mut Curve, guess: usize, hurry: f64, plays: u32) -> Option<usize> {
        let most = ((MOST_SPARE * self.load * hurry).ceil() as usize + SOME_SPARE).max(2 * self.phones.len());
        let least = (self.load * hurry).floor() as usize;
        let mut at = guess.clamp(1, most);
        let mut step = (at / 4).max(1);
        for _ in 0..plays {
            self.plays = self.plays.saturating_sub(1);
            curve.play(at, |number| self.rehearsal.play(&alike(self.phones, at), number, hurry));
            let (fails, does) = self.border(curve);
            at = match does {
                None if fails >= most => return None,
                None => {
                    let further = (fails + step).max(self.load.ceil() as usize).min(most);
                    step *= 2;
                    further
                }
                // What can't hold the work is not tried, nor what is far below.
                Some(does) if fails == 0 && does > least.max(1) => (does - (does / 4).max(1)).max(least).max(1),
                Some(does) if fails > 0 && does - fails > width(does) => usize::midpoint(fails, does),
                Some(does) => match self.unclear(curve, [fails, does]) {
                    Some(unclear) => unclear,
                    None => return Some(does),
                },
            };
        }
        let (fails, does) = self.border(curve);
        self.cut_short |= does.is_none_or(|does| does - fails > width(does).max(does.saturating_sub(least)));
        does
    }

    /// The greatest number that fails, 0 if none does; and the smallest that does.
    fn border(&self, curve: &Curve) -> (usize, Option<usize>) {
        let shares = curve.smoothed();
        let does = shares
            .iter()
            .find(|(phones, shares)| {
                self.met(&curve.doubted(**phones, shares)) && (!curve.at_peak || self.holds_at_peak(curve, **phones))
            })
            .map(|(phones, _)| *phones);
        let fails = shares.keys().rev().find(|phones| does.is_none_or(|does| **phones < does)).copied().unwrap_or(0);
        (fails, does)
    }

    fn holds_at_peak(&self, curve: &Curve, phones: usize) -> bool {
        let scores = curve.scores.get(&phones).map_or(&[][..], Vec::as_slice);
        [Class::Interactive, Class::Standard].into_iter().all(|class| {
            let (met, all) = scores.iter().fold((0.0, 0.0), |sum, score| {
                let (met, all) = score.at_peak[class as usize];
                (sum.0 + met, sum.1 + all)
            });
            let Some(wanted) = self.wanted(class).filter(|_| all > 0.0) else { return true };
            met / all >= wanted - CLEAR * (wanted * (1.0 - wanted) / all).sqrt()
        })
    }

    /// Which of these is not clear, and was played less.
    fn unclear(&self, curve: &Curve, border: [usize; 2]) -> Option<usize> {
        let unclear = border.into_iter().filter_map(|phones| {
            let scores = curve.scores.get(&phones)?;
            let clear = |class: Class| {
                let (share, error) = mean(scores, class)?;
                let gap = share - self.wanted(class)?;
                Some((gap.abs() > CLEAR * error.max(LEAST_ERROR), gap < 0.0))
            };
            let classes = Class::ALL.into_iter().filter_map(clear);
            // It fails for sure if one class does, and does for sure if all do.
            let (all, fails) =
                classes.fold((true, false), |(all, any), (clear, below)| (all && clear, any || (clear && below)));
            let sure = (fails && scores.len() >= FEWEST_PLAYS) || (all && scores.len() >= PLAYS_TO_TRUST);
            (!sure).then_some((scores.len(), phones))
        });
        unclear.min().map(|(_, phones)| phones)
    }

    /// What a class is promised, if it counts.
    fn wanted(&self, class: Class) -> Option<f64> {
        let share = self.objectives.of(class).map_or(1.0, |objective| objective.share);
        self.rehearsal.counts[class as usize].then_some(share)
    }

    fn met(&self, shares: &Shares) -> bool {
        Class::ALL.into_iter().zip(shares).all(|(class, share)| match (self.wanted(class), share) {
            (Some(wanted), Some(share)) => *share >= wanted,
            _ => true,
        })
    }

    /// How many of one phone, beside those that are there, do what `most` others do. `None` if that was not found out.
    pub(super) fn more_of(&self, phone: &Measured, most: usize) -> Option<usize> {
        let mut curve = Curve::default();
        let (mut at, mut does) = (most, None);
        for _ in 0..KIND_PLAYS {
            let phones: Vec<Measured> = self.phones.iter().chain(std::iter::repeat_n(phone, at)).cloned().collect();
            curve.play(at, |number| self.rehearsal.play(&phones, number, 1.0));
            let (fails, smallest) = self.border(&curve);
            does = smallest;
            at = match smallest {
                Some(does) if does - fails <= 1 => does,
                Some(does) => usize::midpoint(fails, does),
                None => 2 * at,
            };
        }
        does
    }

    pub(super) fn tried(self) -> Vec<(usize, Outcome)> {
        let shares = self.plain.smoothed();
        let outcome = |shares: &Shares| Outcome {
            attained: shares.map(|share| share.map(|share| share.min(1.0))),
            met: self.met(shares),
        };
        shares.iter().map(|(phones, shares)| (*phones, outcome(shares))).collect()
    }
}

/// By class as in [`Class::ALL`].
type Shares = [Option<f64>; Class::ALL.len()];

/// What came of numbers of phones.
#[derive(Debug, Default)]
struct Curve {
    /// Objectives are to be met in the busiest minutes too.
    at_peak: bool,
    scores: BTreeMap<usize, Vec<Score>>,
}

impl Curve {
    fn play(&mut self, phones: usize, play: impl FnOnce(u64) -> Score) {
        let scores = self.scores.entry(phones).or_default();
        scores.push(play(scores.len() as u64));
    }

    /// Shares of a number of phones, less what they may well be too high by: the standard error of its plays, but not much. Too few
    /// phones are the worse mistake.
    fn doubted(&self, phones: usize, shares: &Shares) -> Shares {
        let scores = self.scores.get(&phones).map_or(&[][..], Vec::as_slice);
        let mut doubted = *shares;
        for (class, share) in Class::ALL.into_iter().zip(&mut doubted) {
            let error = mean(scores, class).map_or(0.0, |(_, error)| error.min(MOST_DOUBT));
            *share = share.map(|share| share - error);
        }
        doubted
    }

    /// The shares in time by number of phones, those of neighbours taken together until more phones are nowhere worse.
    fn smoothed(&self) -> BTreeMap<usize, Shares> {
        let mut smoothed: BTreeMap<usize, Shares> =
            self.scores.keys().map(|phones| (*phones, Shares::default())).collect();
        for class in Class::ALL {
            // Pool adjacent violators: met, all, and the numbers of phones that this is of.
            let mut pools: Vec<(f64, f64, Vec<usize>)> = Vec::new();
            for (phones, scores) in &self.scores {
                let (met, all) = total(scores, class);
                if all <= 0.0 {
                    continue;
                }
                pools.push((met, all, vec![*phones]));
                while let [.., before, last] = &mut pools[..]
                    && before.0 / before.1 > last.0 / last.1
                {
                    *before = (before.0 + last.0, before.1 + last.1, [&before.2[..], &last.2[..]].concat());
                    pools.pop();
                }
            }
            for (met, all, numbers) in pools {
                for phones in numbers {
                    if let Some(shares) = smoothed.get_mut(&phones) {
                        shares[class as usize] = Some(met / all);
                    }
                }
            }
        }
        smoothed
    }
}

fn total(scores: &[Score], class: Class) -> (f64, f64) {
    let of_class = scores.iter().map(|score| score.met[class as usize]);
    of_class.fold((0.0, 0.0), |sum, (met, all)| (sum.0 + met, sum.1 + all))
}

/// The share in time over several plays, and its standard error; `None` where nothing came.
fn mean(scores: &[Score], class: Class) -> Option<(f64, f64)> {
    let (met, all) = total(scores, class);
    if all <= 0.0 {
        return None;
    }
    let share = met / all;
    let off: f64 =
        scores.iter().map(|score| score.met[class as usize]).map(|(met, all)| (met - share * all).powi(2)).sum();
    let plays = scores.len() as f64;
    Some((share, (off * plays / (plays - 1.0).max(1.0)).sqrt() / all))
}

/// Borders are found to so many phones.
fn width(phones: usize) -> usize {
    (phones.saturating_sub(EXACT) / 20).max(1)
}
