//! A map from fingerprints that forgets what was not asked for lately, in bounded memory.
//!
//! Two generations: what is used moves to the young one; when that is full the old one is dropped and the young one
//! becomes old. So everything lives for at least as many uses of others as one generation holds, at one comparison per
//! use: a list ordered by use costs two more pointers per entry and as many cache misses.

#[expect(clippy::disallowed_types, reason = "the hasher is fixed and nothing iterates: no order to be random")]
use std::collections::HashMap;
use std::{
    hash::{BuildHasherDefault, Hasher},
    mem,
};

/// Keys are fingerprints: hashed already, by a function that clients cannot choose for.
#[derive(Clone, Copy, Default)]
pub(super) struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 << 8) ^ self.0.rotate_right(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[expect(clippy::disallowed_types, reason = "the hasher is fixed and nothing iterates: no order to be random")]
type Map<V> = HashMap<u64, V, BuildHasherDefault<Identity>>;

#[derive(Debug)]
pub(super) struct Generations<V> {
    young: Map<V>,
    old: Map<V>,
    limit: usize,
}

impl<V: Default> Generations<V> {
    /// `limit`: entries of one generation.
    pub fn new(limit: usize) -> Self {
        Self { young: Map::default(), old: Map::default(), limit }
    }

    /// Looks without counting as use.
    pub fn get(&self, key: u64) -> Option<&V> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    /// What is known of `key`, now used; `None` if it is unknown.
    pub fn touch(&mut self, key: u64) -> Option<&mut V> {
        if !self.young.contains_key(&key) {
            let value = self.old.remove(&key)?;
            self.make_room(1);
            self.young.insert(key, value);
        }
        self.young.get_mut(&key)
    }

    /// What is known of `key`, now used; new if it was unknown.
    pub fn entry(&mut self, key: u64) -> &mut V {
        if !self.young.contains_key(&key) {
            let known = self.old.remove(&key);
            self.make_room(1);
            self.young.insert(key, known.unwrap_or_default());
        }
        self.young.entry(key).or_default()
    }

    /// The next `entries` new ones go to one generation.
    pub fn make_room(&mut self, entries: usize) {
        if self.young.len() + entries > self.limit {
            self.age();
        }
    }

    /// Drops what was not used since the last call.
    pub fn age(&mut self) {
        // The dropped generation's memory serves the new one: no growing, which takes long, at every turn.
        mem::swap(&mut self.young, &mut self.old);
        self.young.clear();
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}
