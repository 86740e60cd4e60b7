//! What stands between us and replicas, by number, as the scheduler knows it.
//!
//! A relay is known as long as a replica is behind it. Rejected: a table that only grows. Phones choose their addresses themselves.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use scheduler::RelayId;

use super::url::ReplicaUrl;

/// A relay. Every replica behind it holds it.
#[derive(Debug)]
pub struct Relay {
    /// As the scheduler knows it; another one once it was forgotten.
    pub id: RelayId,
    /// As `acu.run:443`.
    pub name: String,
}

/// The relays that replicas are behind.
#[derive(Default)]
pub(super) struct Relays(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_name: HashMap<String, Weak<Relay>>,
    next: u32,
}

impl Relays {
    /// What stands between us and this address.
    pub(super) fn of(&self, url: &ReplicaUrl) -> Arc<Relay> {
        let name = url.relay();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(relay) = known.by_name.get(&name).and_then(Weak::upgrade) {
            return relay;
        }
        known.by_name.retain(|_, relay| relay.strong_count() > 0);
        let relay = Arc::new(Relay { id: RelayId(known.next), name });
        known.next = known.next.wrapping_add(1);
        known.by_name.insert(relay.name.clone(), Arc::downgrade(&relay));
        relay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::UrlRules;

    fn url(text: &str) -> ReplicaUrl {
        ReplicaUrl::parse(text, &UrlRules::default()).unwrap()
    }

    #[test]
    fn a_relay_is_one_while_a_replica_is_behind_it_and_none_is_kept_longer() {
        let relays = Relays::default();
        let first = relays.of(&url("https://a.acu.run"));
        assert_eq!(relays.of(&url("https://b.acu.run")).id, first.id);
        let ids: Vec<_> = (0..1000).map(|n| relays.of(&url(&format!("https://a.r{n}.example"))).id).collect();
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 1000, "no number is given twice");
        assert!(!ids.contains(&first.id));
        assert!(relays.0.lock().unwrap().by_name.len() <= 2, "those that nobody is behind are forgotten");
        assert_eq!(relays.of(&url("https://c.acu.run")).id, first.id);
    }
}
