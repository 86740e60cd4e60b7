//! Which choices of an answer have got how far.

use crate::stream::transcript::MAX_CHOICES;

/// A set of choices; their indexes are below [`MAX_CHOICES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChoiceSet(u128);

const _: () = assert!(MAX_CHOICES <= u128::BITS, "a choice is a bit");

impl ChoiceSet {
    /// The first `count`.
    pub fn up_to(count: u32) -> Self {
        Self(u128::MAX.checked_shr(u128::BITS.saturating_sub(count)).unwrap_or(0))
    }

    pub fn add(&mut self, index: u32) {
        self.0 |= Self::bit(index);
    }

    pub fn has(self, index: u32) -> bool {
        self.0 & Self::bit(index) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of both.
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not in `other`.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The lowest.
    pub fn first(self) -> Option<u32> {
        (!self.is_empty()).then(|| self.0.trailing_zeros())
    }

    /// The only one, if there is one only.
    pub fn only(self) -> Option<u32> {
        self.first().filter(|_| self.0.is_power_of_two())
    }

    /// From the lowest on.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..MAX_CHOICES).filter(move |index| self.has(*index))
    }

    fn bit(index: u32) -> u128 {
        // Beyond the last there is none: the scan refuses such an index.
        1_u128.checked_shl(index).unwrap_or(0)
    }
}

/// How far an answer's choices have got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Choices {
    /// Those whose role the client has.
    pub roles: ChoiceSet,
    /// Those that the answer has spoken of.
    pub seen: ChoiceSet,
    /// Those with a finish reason.
    pub finished: ChoiceSet,
}

impl Choices {
    /// Those that are still to be written, of all that are `due` or have begun.
    pub fn open(self, due: ChoiceSet) -> ChoiceSet {
        self.seen.with(due).without(self.finished)
    }
}
