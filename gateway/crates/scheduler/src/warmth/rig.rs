//! Texts for the tests, made of named parts and cut as prompts are.

use super::{
    index::{Found, Index},
    prompt::Prompt,
};
use crate::{prefix::Prefix, rng::Rng, time::Timestamp};

pub(super) fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000_000)
}

pub(super) fn below(rng: &mut Rng, n: u32) -> u32 {
    (rng.unit() * f64::from(n)) as u32
}

/// Parts, each with a name and a length in tokens. Different parts differ from their first token on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Text(Vec<(u64, u32)>);

impl Text {
    pub(super) fn new(name: u64, tokens: u32) -> Self {
        Self(vec![(name, tokens)])
    }

    pub(super) fn then(&self, name: u64, tokens: u32) -> Self {
        let mut parts = self.0.clone();
        parts.push((name, tokens));
        Self(parts)
    }

    pub(super) fn tokens(&self) -> u32 {
        self.0.iter().map(|(_, tokens)| tokens).sum()
    }

    /// How many tokens two texts begin with in common.
    pub(super) fn common(&self, other: &Self) -> u32 {
        let mut common = 0;
        for (one, two) in self.0.iter().zip(&other.0) {
            common += if one.0 == two.0 { one.1.min(two.1) } else { 0 };
            if one != two {
                break;
            }
        }
        common
    }

    /// Its first tokens.
    pub(super) fn first(&self, tokens: u32) -> Self {
        let mut left = tokens;
        let parts = self.0.iter().map(|(name, length)| {
            let taken = left.min(*length);
            left -= taken;
            (*name, taken)
        });
        Self(parts.filter(|(_, taken)| *taken > 0).collect())
    }

    /// Each fingerprint depends on every token before its cut.
    pub(super) fn prefix(&self) -> Prefix {
        let mix =
            |before: u64, name: u64, tokens: u32| Rng::new(before ^ Rng::new(name).next() ^ u64::from(tokens)).next();
        let (mut cuts, mut fingerprints) = (Prefix::cuts().peekable(), Vec::new());
        let (mut begin, mut before) = (0, 0);
        for (name, tokens) in &self.0 {
            while let Some(cut) = cuts.next_if(|cut| *cut <= begin + tokens) {
                fingerprints.push(mix(before, *name, cut - begin));
            }
            (begin, before) = (begin + tokens, mix(before, *name, *tokens));
        }
        Prefix::new(fingerprints)
    }

    /// As it looks before anything was learned.
    pub(super) fn prompt(&self) -> Prompt {
        Prompt::new(self.prefix(), f64::from(self.tokens()), 1.0, &Found::default())
    }

    /// As it looks to this index, which counts it.
    pub(super) fn arrive(&self, index: &mut Index, now: Timestamp) -> Prompt {
        let found = index.arrive(&self.prefix(), now);
        Prompt::new(self.prefix(), f64::from(self.tokens()), 1.0, &found)
    }
}

/// An index that has seen so many different requests with this template.
pub(super) fn index_of(template: &Text, requests: u64) -> Index {
    let mut index = Index::default();
    for request in 0..requests {
        template.then(1_000_000 + request, 500).arrive(&mut index, Timestamp::ZERO);
    }
    index
}

/// The distance between cuts around that many tokens: no belief is more exact.
pub(super) fn step(tokens: u32) -> f64 {
    let after = Prefix::cuts().position(|cut| cut > tokens).unwrap_or(Prefix::MAX_CUTS);
    f64::from(Prefix::cut(after + 1) - Prefix::cut(after))
}
