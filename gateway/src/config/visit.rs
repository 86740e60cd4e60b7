//! One list of keys per section, for everything that needs one.
//!
//! Reading a file, saying "did you mean", telling two configurations apart and checking the reference file all need
//! the same list: names, places, ranges, and whether a running gateway can take a change. Each section writes it once,
//! in [`Section::visit`]; a [`Visitor`] walks it. Serde's derive was rejected: it stops at the first mistake, and an
//! operator wants them all.

use std::{collections::BTreeMap, ops::RangeInclusive};

use super::value::{Ranged, Value};

/// Whether a running gateway can take a changed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The next reload applies it.
    Live,
    /// Only a restart (or an upgrade) does: a socket, a thread count, a file held open.
    Restart,
}

/// A key of a section.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As written in the file, without its section.
    pub name: &'static str,
    /// What a change takes.
    pub reload: Reload,
}

/// A key that a reload applies.
pub const fn live(name: &'static str) -> Key {
    Key { name, reload: Reload::Live }
}

/// A key that needs a restart.
pub const fn restart(name: &'static str) -> Key {
    Key { name, reload: Reload::Restart }
}

/// A table of the file.
pub trait Section {
    /// Shows every key to the visitor, which may write to the places.
    fn visit<V: Visitor>(&mut self, visitor: &mut V);

    /// What tells an element of an array of tables from the others; shown in key paths.
    fn label(&self) -> Option<String> {
        None
    }
}

/// Walks over all keys of a configuration.
pub trait Visitor {
    /// A value that every reading of its type makes valid.
    fn value<T: Value>(&mut self, key: Key, place: &mut T);
    /// A value that must also be in a range.
    fn ranged<T: Ranged>(&mut self, key: Key, place: &mut T, range: RangeInclusive<T::Inner>);
    /// A value without a default.
    fn required<T: Value>(&mut self, key: Key, place: &mut T);
    /// An array of values.
    fn list<T: Value>(&mut self, key: Key, place: &mut Vec<T>);
    /// A table of names and values.
    fn map<T: Value>(&mut self, key: Key, place: &mut BTreeMap<String, T>);
    /// A table.
    fn section<S: Section>(&mut self, name: &'static str, place: &mut S);
    /// Tables under names that the operator chooses; each starts as a copy of `start`.
    fn named<S: Section + Clone>(&mut self, name: &'static str, place: &mut BTreeMap<String, S>, start: &S);
    /// An array of tables.
    fn tables<S: Section + Default>(&mut self, name: &'static str, place: &mut Vec<S>);
}
