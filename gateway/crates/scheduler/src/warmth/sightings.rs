//! Which beginnings of prompts were seen before, by how many requests.
//!
//! Two kinds of prompts begin with what was seen before. Different requests with the same *template* part at its end: from
//! there on each is new. A later turn of a *conversation* goes on from where the prompt before it ended. Only the former
//! count as several requests for what they share; else the third turn of every conversation would make its first a
//! template.
//!
//! Templates nest: all of a client's requests may begin with the same words, and each of its tasks go on with its own
//! instructions. The longest beginning is the one worth holding, but not if it is hardly longer: ten questions that each
//! come often must not make ten templates out of one.

use std::time::Duration;

use super::generations::Generations;
use crate::{prefix::Prefix, time::Timestamp};

/// Fingerprints of one generation: those that are new in some thousand requests.
pub(super) const MOST_SEEN: usize = 65_536;
/// What was not seen for one to two of these is forgotten.
const LIFE: Duration = Duration::from_secs(600);
/// What so many requests share is a template.
const SHARED_BY: u16 = 3;
/// Where fewer than this part of the requests go on alike, a template ends.
const PARTING: u16 = 2;
/// A template within a template is longer by at least this factor.
const LONGER: f64 = 1.25;

/// One cut.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Requests that have it, but for those that went on from an earlier one.
    requests: u16,
    /// Some prompt has cuts beyond it.
    inner: bool,
}

/// How a prompt relates to those before it. In numbers of cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sighting {
    /// Seen before.
    pub(super) known: usize,
    /// Its template.
    pub(super) template: usize,
    /// It goes on from where an earlier prompt ended, beyond the template.
    pub(super) returns: bool,
}

#[derive(Debug)]
pub(super) struct Sightings {
    cuts: Generations<Seen>,
    aged: Timestamp,
}

impl Default for Sightings {
    fn default() -> Self {
        Self { cuts: Generations::new(MOST_SEEN), aged: Timestamp::ZERO }
    }
}

impl Sightings {
    /// A request came, with the fingerprints of its prompt.
    pub(super) fn arrive(&mut self, fingerprints: &[u64], now: Timestamp) -> Sighting {
        if self.cuts.make_room(fingerprints.len()) {
            self.aged = now;
        } else if now.since(self.aged) >= LIFE {
            self.cuts.age();
            self.aged = now;
        }
        // A beginning is used whenever what follows it is, so it is forgotten no sooner: what is known is in one piece.
        let (mut known, mut inner) = (0, true);
        while let Some(seen) = fingerprints.get(known).and_then(|cut| self.cuts.touch(*cut)) {
            (known, inner) = (known + 1, seen.inner);
        }
        let goes_on = !inner && known < fingerprints.len();
        let mut depth = Depth::default();
        for (cut, fingerprint) in (1..).zip(fingerprints) {
            let seen = self.cuts.entry(*fingerprint);
            seen.inner |= cut < fingerprints.len();
            if !goes_on || cut > known {
                seen.requests = seen.requests.saturating_add(1);
            }
            depth.pass(cut, seen.requests);
        }
        let template = depth.end();
        Sighting { known, template, returns: goes_on && known > template }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.cuts.len()
    }
}

/// Finds the template's end on a walk along the cuts.
#[derive(Default)]
struct Depth {
    found: usize,
    last: usize,
    requests: u16,
}

impl Depth {
    fn pass(&mut self, cut: usize, requests: u16) {
        if requests < SHARED_BY {
            return;
        }
        if requests < self.requests / PARTING {
            self.settle();
        }
        (self.last, self.requests) = (cut, requests);
    }

    fn settle(&mut self) {
        let longer = f64::from(Prefix::cut(self.last)) >= LONGER * f64::from(Prefix::cut(self.found));
        if longer {
            self.found = self.last;
        }
    }

    fn end(mut self) -> usize {
        self.settle();
        self.found
    }
}
