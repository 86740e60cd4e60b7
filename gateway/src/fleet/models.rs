//! The models that clients may name: configured, stated for a replica, or reported by one.
//!
//! A name, once known, keeps its id: a phone that flaps must not turn "no capacity now" into "no such model". Phones may
//! claim anything, so their share is bounded, and when it is full the names go that no replica claims any more: otherwise
//! one phone that invents names would keep all new models out until a restart. What operators say always fits.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use scheduler::ModelId;

use super::naming::Naming;

/// Models known because replicas report them. 256: more names than a pool of phones has, and as many as telemetry shows.
const MAX_REPORTED: usize = 256;

/// A model, aliases resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRef {
    /// Its number in the scheduler.
    pub id: ModelId,
    /// Its name: what clients use and metrics show.
    pub name: Arc<str>,
}

/// All known models. Copied on change, read without a lock.
#[derive(Clone, Debug, Default)]
pub(super) struct Models {
    by_name: BTreeMap<Arc<str>, Entry>,
    /// Names of aliases to names of models.
    aliases: HashMap<Arc<str>, Arc<str>>,
    reported: usize,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: ModelId,
    /// Seconds since 1970 when it became known.
    created: u64,
    /// Only replicas say so.
    reported: bool,
}

impl Models {
    /// Takes the configured models and aliases; what was known stays known.
    pub(super) fn configure(&mut self, naming: &Naming, now: u64) {
        self.aliases.clear();
        for (name, section) in naming.models() {
            let name = self.learn(name, now, false);
            for alias in &section.aliases {
                self.aliases.insert(alias.as_str().into(), Arc::clone(&name));
            }
        }
    }

    /// Takes a name that an operator states for a replica.
    pub(super) fn state(&mut self, name: &str, now: u64) {
        if !self.aliases.contains_key(name) {
            self.learn(name, now, false);
        }
    }

    /// Makes room: forgets what replicas once reported and is not in `claimed`.
    pub(super) fn forget_unclaimed(&mut self, claimed: &HashSet<ModelId>) {
        self.by_name.retain(|_, entry| !entry.reported || claimed.contains(&entry.id));
        self.reported = self.by_name.values().filter(|entry| entry.reported).count();
    }

    /// The model of a name that a replica reports, new or known; `None` when there are too many.
    pub(super) fn report(&mut self, name: &str, now: u64) -> Option<ModelRef> {
        if let Some(known) = self.resolve(name) {
            return Some(known);
        }
        if self.reported == MAX_REPORTED {
            return None;
        }
        self.learn(name, now, true);
        self.resolve(name)
    }

    fn learn(&mut self, name: &str, now: u64, reported: bool) -> Arc<str> {
        let shared = self.by_name.get_key_value(name).map_or_else(|| name.into(), |(name, _)| Arc::clone(name));
        let new = Entry { id: ModelId(self.next), created: now, reported };
        let entry = self.by_name.entry(Arc::clone(&shared)).or_insert(new);
        if entry.id == new.id {
            self.next += 1;
            self.reported += usize::from(reported);
        } else if entry.reported && !reported {
            entry.reported = false;
            self.reported -= 1;
        }
        shared
    }

    /// The model that a client's name means.
    pub(super) fn resolve(&self, name: &str) -> Option<ModelRef> {
        let name = self.aliases.get(name).map_or(name, |model| model);
        self.by_name.get_key_value(name).map(|(name, entry)| ModelRef { id: entry.id, name: Arc::clone(name) })
    }

    /// All models in order of their names, with the second they became known.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ModelRef, u64)> {
        self.by_name.iter().map(|(name, entry)| (ModelRef { id: entry.id, name: Arc::clone(name) }, entry.created))
    }

    /// All aliases with the model that each means.
    pub(super) fn aliases(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.aliases.iter()
    }

    /// The name of a model.
    pub(super) fn name(&self, id: ModelId) -> Option<Arc<str>> {
        self.by_name.iter().find(|(_, entry)| entry.id == id).map(|(name, _)| Arc::clone(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelSection;

    fn configured() -> Models {
        let section = ModelSection { aliases: vec!["gpt-4".into()], ..ModelSection::default() };
        let mut models = Models::default();
        models.configure(&Naming::new(&BTreeMap::from([("qwen".to_owned(), section)])), 7);
        models
    }

    #[test]
    fn an_alias_means_its_model_and_an_unknown_name_nothing() {
        let models = configured();
        assert_eq!(models.resolve("gpt-4"), models.resolve("qwen"));
        assert_eq!(models.resolve("gpt-5"), None);
    }

    #[test]
    fn a_model_keeps_its_id_through_reports_and_reloads() {
        let mut models = configured();
        let tiny = models.report("tiny", 8).unwrap();
        models.configure(&Naming::default(), 9);
        assert_eq!(models.report("tiny", 10), Some(tiny));
        assert!(models.resolve("qwen").is_some());
        assert_eq!(models.resolve("gpt-4"), None);
    }

    #[test]
    fn ten_thousand_invented_names_do_not_grow_the_registry_without_bound() {
        let mut models = configured();
        let accepted = (0..10_000).filter(|n| models.report(&format!("m{n}"), 0).is_some()).count();
        assert_eq!(accepted, MAX_REPORTED);
        assert!(models.report("qwen", 0).is_some());
    }

    #[test]
    fn a_stated_model_fits_whatever_phones_have_invented() {
        let mut models = configured();
        (0..MAX_REPORTED).for_each(|n| drop(models.report(&format!("m{n}"), 0)));
        models.state("new", 0);
        models.state("gpt-4", 0);
        assert!(models.resolve("new").is_some());
        assert_eq!(models.resolve("gpt-4"), models.resolve("qwen"));
        models.state("m7", 0);
        assert!(models.report("one more", 0).is_some(), "a stated name does not count among the reported ones");
    }

    #[test]
    fn invented_names_go_when_nobody_claims_them_and_others_keep_their_ids() {
        let mut models = configured();
        models.state("stated", 0);
        let ids: Vec<_> = (0..MAX_REPORTED).map(|n| models.report(&format!("m{n}"), 0).unwrap().id).collect();
        assert_eq!(models.report("new", 0), None);
        models.forget_unclaimed(&HashSet::from([ids[3]]));
        assert_eq!(models.resolve("m3").map(|model| model.id), Some(ids[3]));
        assert_eq!(models.resolve("m4"), None);
        assert!(models.resolve("stated").is_some() && models.resolve("qwen").is_some());
        let new = models.report("new", 0).unwrap();
        assert!(!ids.contains(&new.id), "a number is never given twice");
        let more = (0..MAX_REPORTED).filter(|n| models.report(&format!("n{n}"), 0).is_some()).count();
        assert_eq!(more, MAX_REPORTED - 2);
    }
}
