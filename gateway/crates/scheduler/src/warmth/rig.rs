//! Prompts for the tests: texts whose parts are named, cut as the shell cuts them.

use super::{
    index::{Found, Index},
    prompt::Prompt,
};
use crate::{prefix::Prefix, rng::Rng, time::Timestamp};

pub(super) fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000_000)
}

/// A text made of parts: each a name and a length in tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Text(Vec<(u64, u32)>);

impl Text {
    pub(super) fn new(parts: &[(u64, u32)]) -> Self {
        Self(parts.to_vec())
    }

    pub(super) fn then(&self, name: u64, tokens: u32) -> Self {
        let mut parts = self.0.clone();
        parts.push((name, tokens));
        Self(parts)
    }

    pub(super) fn tokens(&self) -> u32 {
        self.0.iter().map(|(_, tokens)| tokens).sum()
    }

    /// Each fingerprint depends on every token before its cut.
    pub(super) fn prefix(&self) -> Prefix {
        let total = self.tokens();
        Prefix::new(Prefix::cuts().take_while(|cut| *cut <= total).map(|cut| {
            let mut left = cut;
            let mut hash = 0;
            for (name, tokens) in &self.0 {
                let taken = left.min(*tokens);
                hash = Rng::new(hash ^ Rng::new(*name).next().wrapping_add(u64::from(taken))).next();
                left -= taken;
                if left == 0 {
                    break;
                }
            }
            hash
        }))
    }

    /// As it looks to an index that knows nothing.
    pub(super) fn prompt(&self) -> Prompt {
        Prompt::new(self.prefix(), f64::from(self.tokens()), 1.0, &Found::default())
    }

    /// As it looks to this index, which counts it.
    pub(super) fn arrive(&self, index: &mut Index, now: Timestamp) -> (Prompt, Found) {
        let found = index.arrive(&self.prefix(), now);
        (Prompt::new(self.prefix(), f64::from(self.tokens()), 1.0, &found), found)
    }
}
