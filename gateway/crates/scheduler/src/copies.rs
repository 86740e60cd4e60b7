//! The attempts of one request that run at the same time.
//!
//! There are hardly ever two and never more than three, so they lie inside the request: a queued request, of which there
//! may be ten thousand, pays six words for it and no allocation.

use crate::id::AttemptId;

/// Copies of a request that may run at once. 3: one that is stuck, one that turns out to be stuck as well, and one more. Each
/// takes a slot from others.
pub(crate) const MAX_COPIES: usize = 3;

/// A small set of attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies([Option<AttemptId>; MAX_COPIES]);

impl Copies {
    /// Whether there was room for it.
    pub(crate) fn insert(&mut self, attempt: AttemptId) -> bool {
        let Some(room) = self.0.iter_mut().find(|copy| copy.is_none()) else { return false };
        *room = Some(attempt);
        true
    }

    pub(crate) fn remove(&mut self, attempt: AttemptId) {
        for copy in self.0.iter_mut().filter(|copy| **copy == Some(attempt)) {
            *copy = None;
        }
    }

    /// The one that has run longest: attempts are numbered as they start.
    pub(crate) fn first(self) -> Option<AttemptId> {
        self.iter().min()
    }

    /// In no order.
    pub(crate) fn iter(self) -> impl Iterator<Item = AttemptId> {
        self.0.into_iter().flatten()
    }

    pub(crate) fn count(self) -> usize {
        self.iter().count()
    }

    pub(crate) fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_three_and_the_first_is_the_oldest_that_is_left() {
        let mut copies = Copies::default();
        assert!((1..=3).all(|id| copies.insert(AttemptId(id))));
        assert!(!copies.insert(AttemptId(4)));
        copies.remove(AttemptId(1));
        assert!(copies.insert(AttemptId(5)));
        assert_eq!((copies.first(), copies.count()), (Some(AttemptId(2)), 3));
        [2, 3, 5].into_iter().for_each(|id| copies.remove(AttemptId(id)));
        assert!(copies.is_empty() && copies.first().is_none());
    }
}
