//! Which nonces were used: each once, and the memory for it is bounded.
//!
//! A nonce is remembered for as long as its signature could pass for a present one. Nothing is dropped before that to make
//! room, because that would let a flood push out what it wants to say again: when there is no room, the call is refused.
//! One key has a share of the room, so that a phone that floods shuts out itself. Only calls with the right token and a
//! valid signature get here.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use ring::digest::{SHA256, digest};
use scheduler::Timestamp;

/// Nonces remembered. 32,768: 5,000 phones that call every 30 s, in twice the default window, and half as many again. Some MB.
const MAX_NONCES: usize = 32_768;
/// Nonces of one key. 64: a phone that calls every 2 s.
const MAX_OF_KEY: u16 = 64;

/// Why a nonce can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// It was.
    #[error("this announcement was made before: use a new nonce for each")]
    Seen,
    /// There is no room.
    #[error("too many announcements in a short time; try again in a minute")]
    Full,
}

type Mark = [u8; 16];

/// The nonces that were used lately.
#[derive(Default)]
pub(super) struct Book {
    seen: HashSet<Mark>,
    /// By the time when they may go. The same for all, so in the order in which they came; a longer window after a reload makes
    /// those behind it stay a little longer.
    order: VecDeque<(Timestamp, Mark, Mark)>,
    of_key: HashMap<Mark, u16>,
}

impl Book {
    /// Uses a nonce of a key.
    pub(super) fn spend(
        &mut self,
        key: &str,
        nonce: &str,
        window: Duration,
        now: Timestamp,
    ) -> Result<(), ReplayError> {
        self.forget(now);
        let (owner, mark) = (mark(&[key]), mark(&[key, nonce]));
        if self.seen.contains(&mark) {
            return Err(ReplayError::Seen);
        }
        let used = self.of_key.get(&owner).copied().unwrap_or_default();
        if self.seen.len() >= MAX_NONCES || used >= MAX_OF_KEY {
            return Err(ReplayError::Full);
        }
        self.of_key.insert(owner, used + 1);
        self.seen.insert(mark);
        // It was signed for a moment at most a window ahead of ours, and counts until a window after that.
        self.order.push_back((now + 2 * window, mark, owner));
        Ok(())
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some((_, mark, owner)) = self.order.pop_front_if(|(until, ..)| *until < now) {
            self.seen.remove(&mark);
            if let Some(used) = self.of_key.get_mut(&owner) {
                *used -= 1;
                if *used == 0 {
                    self.of_key.remove(&owner);
                }
            }
        }
    }
}

/// Parts have no line breaks inside, so different parts are different texts.
fn mark(parts: &[&str]) -> Mark {
    let digest = digest(&SHA256, parts.join("\n").as_bytes());
    let mut mark = Mark::default();
    mark.copy_from_slice(&digest.as_ref()[..16]);
    mark
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_nonce_is_used_once_for_as_long_as_its_signature_counts() {
        let mut book = Book::default();
        assert_eq!(book.spend("a", "1", WINDOW, at(0)), Ok(()));
        for second in [0, 59, 119, 120] {
            assert_eq!(book.spend("a", "1", WINDOW, at(second)), Err(ReplayError::Seen), "{second}");
        }
        assert_eq!(book.spend("b", "1", WINDOW, at(1)), Ok(()), "nonces are each key's own");
        assert_eq!(book.spend("a", "2", WINDOW, at(1)), Ok(()));
        assert_eq!(book.spend("a", "1", WINDOW, at(121)), Ok(()));
    }

    #[test]
    fn a_flood_of_one_key_shuts_out_that_key_alone() {
        let mut book = Book::default();
        assert_eq!(book.spend("victim", "1", WINDOW, at(0)), Ok(()));
        let spent = (0..1_000).filter(|n| book.spend("flood", &n.to_string(), WINDOW, at(0)).is_ok()).count();
        assert_eq!(spent, usize::from(MAX_OF_KEY));
        assert_eq!(book.spend("victim", "2", WINDOW, at(0)), Ok(()));
        assert_eq!(book.spend("victim", "1", WINDOW, at(0)), Err(ReplayError::Seen));
    }

    #[test]
    fn a_flood_of_keys_pushes_nothing_out_takes_bounded_memory_and_passes() {
        let mut book = Book::default();
        assert_eq!(book.spend("victim", "1", WINDOW, at(0)), Ok(()));
        let spent = (0..100_000).filter(|n| book.spend(&format!("k{n}"), "1", WINDOW, at(1)).is_ok()).count();
        assert_eq!(spent, MAX_NONCES - 1);
        assert_eq!((book.seen.len(), book.order.len(), book.of_key.len()), (MAX_NONCES, MAX_NONCES, MAX_NONCES));
        assert_eq!(book.spend("victim", "1", WINDOW, at(2)), Err(ReplayError::Seen));
        assert_eq!(book.spend("victim", "2", WINDOW, at(2)), Err(ReplayError::Full));
        assert_eq!(book.spend("victim", "2", WINDOW, at(200)), Ok(()));
        assert_eq!((book.seen.len(), book.of_key.len()), (1, 1));
    }
}
