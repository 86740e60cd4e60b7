//! What a reload changes: which keys it applies and which wait for a restart.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher as _},
    ops::RangeInclusive,
};

use super::{
    Config,
    value::{Ranged, Value},
    visit::{Key, Reload, Section, Visitor},
};

/// Keys whose values differ, as paths such as `streams.head_after`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// In force as soon as the new configuration is taken.
    pub applied: Vec<String>,
    /// In force after a restart or upgrade; until then the old values hold.
    pub needs_restart: Vec<String>,
}

impl Changes {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.needs_restart.is_empty()
    }
}

impl Config {
    /// What is different in `new`.
    pub fn diff(&self, new: &Self) -> Changes {
        let (old, new) = (fingerprints(self), fingerprints(new));
        let mut changes = Changes::default();
        let paths = old.keys().chain(new.keys().filter(|path| !old.contains_key(*path)));
        for path in paths.filter(|path| old.get(*path) != new.get(*path)) {
            let Some((reload, _)) = new.get(path).or_else(|| old.get(path)) else { continue };
            match reload {
                Reload::Live => changes.applied.push(path.clone()),
                Reload::Restart => changes.needs_restart.push(path.clone()),
            }
        }
        changes.applied.sort();
        changes.needs_restart.sort();
        changes
    }
}

/// All keys of the file, as paths; those under chosen names are left out.
pub(super) fn all_keys() -> Vec<String> {
    fingerprints(&Config::default()).into_keys().collect()
}

fn fingerprints(config: &Config) -> BTreeMap<String, (Reload, u64)> {
    let mut walk = Fingerprints { path: String::new(), found: BTreeMap::new() };
    config.clone().visit(&mut walk);
    walk.found
}

/// Notes a hash of every value: secrets take part without being copied around.
struct Fingerprints {
    path: String,
    found: BTreeMap<String, (Reload, u64)>,
}

impl Fingerprints {
    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    fn note(&mut self, key: Key, feed: impl FnOnce(&mut DefaultHasher)) {
        let mut hasher = DefaultHasher::new();
        feed(&mut hasher);
        self.found.insert(self.path_of(key.name), (key.reload, hasher.finish()));
    }

    fn within<S: Section>(&mut self, name: &str, place: &mut S) {
        let inner = self.path_of(name);
        let outer = std::mem::replace(&mut self.path, inner);
        place.visit(self);
        self.path = outer;
    }
}

impl Visitor for Fingerprints {
    fn value<T: Value>(&mut self, key: Key, place: &mut T) {
        self.note(key, |hasher| place.feed(hasher));
    }

    fn ranged<T: Ranged>(&mut self, key: Key, place: &mut T, _: RangeInclusive<T::Inner>) {
        self.value(key, place);
    }

    fn required<T: Value>(&mut self, key: Key, place: &mut T) {
        self.value(key, place);
    }

    fn list<T: Value>(&mut self, key: Key, place: &mut Vec<T>) {
        self.note(key, |hasher| place.iter().for_each(|value| value.feed(hasher)));
    }

    fn map<T: Value>(&mut self, key: Key, place: &mut BTreeMap<String, T>) {
        self.note(key, |hasher| {
            for (name, value) in place.iter() {
                name.feed(hasher);
                value.feed(hasher);
            }
        });
    }

    fn section<S: Section>(&mut self, name: &'static str, place: &mut S) {
        self.within(name, place);
    }

    fn named<S: Section + Clone>(&mut self, name: &'static str, place: &mut BTreeMap<String, S>, _: &S) {
        for (chosen, section) in place {
            self.within(&format!("{name}.{chosen}"), section);
        }
    }

    fn tables<S: Section + Default>(&mut self, name: &'static str, place: &mut Vec<S>) {
        for (index, section) in place.iter_mut().enumerate() {
            let label = section.label().unwrap_or_else(|| index.to_string());
            self.within(&format!("{name}[{label}]"), section);
        }
    }
}
