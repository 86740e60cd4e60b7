//! Fingerprints of a prompt's beginning, and how much of it two prompts share.
//!
//! A prompt is cut at fixed positions, the same for every prompt; fingerprint *i* stands for everything before cut *i*.
//! So two prompts share exactly what lies before the last cut at which their fingerprints agree, found by bisection. The
//! cuts get wider with the distance (an error of a thirtieth of what is shared costs nothing): a prompt of 30,000 tokens
//! takes 160 fingerprints, 1,280 bytes. One fingerprint per fixed block was rejected: 4 KB for the same prompt, of which
//! thousands may wait.

#![expect(
    clippy::disallowed_types,
    reason = "never changed once made; slots and waiting requests hold the same thousand bytes"
)]

use std::sync::Arc;

/// The first cuts are this many tokens apart.
const FIRST_STEP: u32 = 32;
/// After so many cuts the distance doubles.
const CUTS_PER_STEP: usize = 32;

/// Fingerprints of a prompt's beginning. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(from = "Vec<u64>"))]
pub struct Prefix(Arc<[u64]>);

impl Prefix {
    /// Most fingerprints: prompts that agree in all of them, 31,744 tokens, are taken to share just these.
    pub const MAX_CUTS: usize = 160;

    /// From the fingerprints at the cuts, the first cut first. Each must depend on everything before its cut. What is
    /// beyond [`Self::MAX_CUTS`] is left out.
    pub fn new(fingerprints: impl IntoIterator<Item = u64>) -> Self {
        Self(fingerprints.into_iter().take(Self::MAX_CUTS).collect())
    }

    /// The token positions of the cuts, in estimated tokens (a token is four bytes of text).
    pub fn cuts() -> impl Iterator<Item = u32> {
        (1..=Self::MAX_CUTS).map(Self::cut)
    }

    /// The fingerprints, the first cut first.
    pub fn fingerprints(&self) -> &[u64] {
        &self.0
    }

    /// Tokens before the last cut; 0 when unknown.
    pub fn tokens(&self) -> u32 {
        Self::cut(self.0.len())
    }

    /// How many fingerprints two prompts share.
    pub fn common(&self, other: &Self) -> usize {
        let most = self.0.len().min(other.0.len());
        // They chain, so they agree up to some cut and nowhere beyond it.
        let agree = |cut: usize| self.0.get(cut) == other.0.get(cut);
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = usize::midpoint(low, high);
            if agree(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Tokens before the cut number `cut`, counted from 1; 0 for 0.
    pub fn cut(cut: usize) -> u32 {
        let (doublings, rest) = (cut / CUTS_PER_STEP, (cut % CUTS_PER_STEP) as u32);
        let before = (CUTS_PER_STEP as u32 * FIRST_STEP) * ((1 << doublings) - 1);
        before + rest * (FIRST_STEP << doublings)
    }
}

/// As [`Prefix::new`]: fingerprints from outside are cut to what a prompt may have.
#[cfg(feature = "serde")]
impl From<Vec<u64>> for Prefix {
    fn from(fingerprints: Vec<u64>) -> Self {
        Self::new(fingerprints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_lie_a_thirtieth_apart_and_reach_thirty_thousand_tokens() {
        let cuts: Vec<u32> = Prefix::cuts().collect();
        assert_eq!((cuts[0], cuts[31], cuts[32], cuts[159]), (32, 1024, 1088, 31_744));
        assert!(cuts.windows(2).all(|pair| pair[1] > pair[0] && pair[1] - pair[0] <= 32.max(pair[1] / 16)));
        assert_eq!(Prefix::cut(0), 0);
    }

    #[test]
    fn what_two_prompts_share_ends_where_they_first_differ() {
        let one = Prefix::new([1, 2, 3, 4, 5]);
        for shared in 0..=5u64 {
            let other = Prefix::new((1..=6).map(|cut| if cut <= shared { cut } else { cut + 100 }));
            assert_eq!(one.common(&other) as u64, shared);
            assert_eq!(other.common(&one) as u64, shared);
        }
        assert_eq!(one.common(&Prefix::default()), 0);
        assert_eq!(one.tokens(), 160);
    }
}
