//! A map from fingerprints that forgets what was not used lately, in bounded memory.
//!
//! Two generations: what is used moves to the young one; when that is full, or by the clock, the old one is dropped and the
//! young one becomes old. So everything lives for as many uses of others as a generation holds, at least. A list in
//! the order of use was rejected: two more pointers per entry and as many more cache misses per use.

#[expect(
    clippy::disallowed_types,
    reason = "the hasher is fixed and nothing iterates: it has no order to be random"
)]
use std::collections::HashMap;
use std::{
    hash::{BuildHasherDefault, Hasher},
    mem,
};

/// Fingerprints are hashes already, by a function whose outcome clients cannot choose.
#[derive(Clone, Copy, Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[expect(clippy::disallowed_types, reason = "the hasher is fixed and nothing iterates: it has no order to be random")]
type Map<V> = HashMap<u64, V, BuildHasherDefault<Identity>>;

#[derive(Debug)]
pub(super) struct Generations<V> {
    young: Map<V>,
    old: Map<V>,
    limit: usize,
}

impl<V: Default> Generations<V> {
    /// `limit`: entries of one generation. Their memory is taken now, and filled as it is used: growing a full map would
    /// take longer than a decision may.
    pub(super) fn new(limit: usize) -> Self {
        let map = || Map::with_capacity_and_hasher(limit, BuildHasherDefault::default());
        Self { young: map(), old: map(), limit }
    }

    /// Looks, which is no use.
    pub(super) fn get(&self, fingerprint: u64) -> Option<&V> {
        self.young.get(&fingerprint).or_else(|| self.old.get(&fingerprint))
    }

    /// Uses what is known of the fingerprint; `None` if nothing is.
    pub(super) fn touch(&mut self, fingerprint: u64) -> Option<&mut V> {
        if let Some(known) = self.old.remove(&fingerprint) {
            self.make_room(1);
            self.young.insert(fingerprint, known);
        }
        self.young.get_mut(&fingerprint)
    }

    /// Uses what is known of the fingerprint, or begins to know it.
    pub(super) fn entry(&mut self, fingerprint: u64) -> &mut V {
        let known = self.old.remove(&fingerprint);
        if known.is_some() || !self.young.contains_key(&fingerprint) {
            self.make_room(1);
        }
        self.young.entry(fingerprint).or_insert_with(|| known.unwrap_or_default())
    }

    /// Sees to it that the next `entries` new ones come into one generation. Says whether it had to age.
    pub(super) fn make_room(&mut self, entries: usize) -> bool {
        let full = self.young.len() + entries > self.limit;
        if full {
            self.age();
        }
        full
    }

    /// Forgets what was not used since the last time.
    pub(super) fn age(&mut self) {
        mem::swap(&mut self.young, &mut self.old);
        self.young.clear();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_goes_within_bounds() {
        let mut map: Generations<u32> = Generations::new(100);
        *map.entry(0) = 7;
        for fingerprint in 1..10_000 {
            *map.entry(fingerprint) += 1;
            assert_eq!(map.touch(0).copied(), Some(7), "used all the time");
            assert!(map.len() <= 200);
        }
        assert_eq!(map.get(9_950).copied(), Some(1), "young enough");
        assert_eq!(map.get(9_000), None, "two generations ago");
    }

    #[test]
    fn looking_is_no_use() {
        let mut map: Generations<u32> = Generations::new(100);
        *map.entry(1) = 1;
        map.age();
        assert_eq!(map.get(1), Some(&1));
        map.age();
        assert_eq!(map.get(1), None);
        assert_eq!(map.touch(1), None);
    }
}
