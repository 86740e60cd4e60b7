//! The last kinds of refused calls, for operators: a phone that is refused serves nobody, and says so to nobody but us.
//!
//! A kind is what was wrong, whoever it was and whatever it sent: a flood from many addresses is one line with a large count, and a
//! deployment of phones that state the same field wrongly, each with a number of its own, can't push out what another gets wrong.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

use super::refusal::Refusal;

/// Kinds that are kept. 20: there are some 50 ways to be refused, few at a time, and a page shows no more.
const KINDS: usize = 20;

/// Calls that were refused for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// As the phone's answer has it, of what is behind it: [`Refusal::code`], [`Refusal::cause`].
    pub code: &'static str,
    /// The field or header that was wrong.
    pub field: Option<&'static str>,
    /// What was wrong, and what would be right: the words that the last phone was answered.
    pub message: String,
    /// Who called last.
    pub peer: IpAddr,
    /// How many there were.
    pub count: u64,
    /// The first, in milliseconds since 1970.
    pub first_ms: u64,
    /// The last, in milliseconds since 1970.
    pub last_ms: u64,
}

/// What was refused, the latest last.
#[derive(Default)]
pub(super) struct Ring(Mutex<VecDeque<Refused>>);

impl Ring {
    pub(super) fn note(&self, peer: IpAddr, refusal: &Refusal, now_ms: u64) {
        let refusal = refusal.cause();
        let (code, message) = (refusal.code(), refusal.to_string());
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let field = refusal.field();
        // Words about one phone differ from those about the next; what is wrong with both is the same.
        let is_same = |kind: &Refused| {
            (kind.code, kind.field) == (code, field) && (refusal.is_about_one() || kind.message == message)
        };
        let known = kinds.iter().position(is_same);
        let before = known.and_then(|at| kinds.remove(at));
        if kinds.len() == KINDS {
            kinds.pop_front();
        }
        let (count, first_ms) = before.map_or((0, now_ms), |kind| (kind.count, kind.first_ms));
        let count = count.saturating_add(1);
        kinds.push_back(Refused { code, field, message, peer, count, first_ms, last_ms: now_ms });
    }

    pub(super) fn latest(&self) -> Vec<Refused> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::AnnounceError;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn stated(why: impl ToString) -> Refusal {
        Refusal::Stated { field: "replica.slots", why: why.to_string() }
    }

    #[test]
    fn refusals_of_a_kind_are_one_line_that_tells_the_first_the_last_and_how_many() {
        let ring = Ring::default();
        ring.note(peer(1), &Refusal::Token, 1_000);
        ring.note(peer(2), &stated("must be from 1 to 1024, not 0"), 2_000);
        (0..100).for_each(|n| ring.note(peer(3), &Refusal::Token, 3_000 + n));
        let kinds = ring.latest();
        assert_eq!(kinds.len(), 2);
        let (token, slots) = (&kinds[0], &kinds[1]);
        assert_eq!((token.code, token.field, token.peer), ("invalid_registration_token", Some("token"), peer(3)));
        assert_eq!((token.count, token.first_ms, token.last_ms), (101, 1_000, 3_099));
        assert_eq!((slots.field, slots.count), (Some("replica.slots"), 1));
        assert_eq!(slots.message, "replica.slots must be from 1 to 1024, not 0");
    }

    #[test]
    fn phones_that_get_the_same_thing_wrong_are_one_kind_whatever_each_of_them_sent() {
        let ring = Ring::default();
        ring.note(peer(1), &Refusal::Token, 0);
        for n in 1..=100 {
            ring.note(peer(2), &stated(format!("must be from 1 to 1024, not {n}")), n);
            ring.note(peer(3), &Refusal::Announce(AnnounceError::Taken(format!("phone-{n}"))), n);
        }
        let kinds = ring.latest();
        let shown: Vec<_> = kinds.iter().map(|kind| (kind.code, kind.count)).collect();
        assert_eq!(shown, [("taken", 100), ("invalid_registration", 100), ("invalid_registration_token", 1)]);
        assert!(
            kinds[1].message.ends_with("not 100") && kinds[0].message.contains("phone-100"),
            "the last one's words"
        );
    }

    #[test]
    fn too_many_wrong_tokens_are_wrong_tokens() {
        let ring = Ring::default();
        (0..20).for_each(|n| ring.note(peer(1), &Refusal::Token, n));
        (20..1_000).for_each(|n| ring.note(peer(1), &Refusal::TooManyTries, n));
        let kinds = ring.latest();
        assert_eq!((kinds.len(), kinds[0].code, kinds[0].count), (1, "invalid_registration_token", 1_000));
        assert!(kinds[0].message.contains("missing or wrong"), "{}", kinds[0].message);
    }

    #[test]
    fn the_kind_that_was_refused_longest_ago_makes_room() {
        const FIELDS: [&str; KINDS] =
            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"];
        let ring = Ring::default();
        ring.note(peer(1), &Refusal::Token, 0);
        for (field, n) in FIELDS.into_iter().zip(1..) {
            ring.note(peer(1), &Refusal::Stated { field, why: "is wrong".into() }, n);
            ring.note(peer(1), &Refusal::Off, n);
        }
        let kinds = ring.latest();
        assert_eq!((kinds.len(), kinds[0].count, kinds[1].last_ms), (KINDS, 20, 20));
        assert!(!kinds.iter().any(|kind| matches!(kind.field, Some("token" | "a"))));
    }
}
