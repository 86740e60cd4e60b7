//! The configuration against the pool: at the start and on every reload, only what differs is touched.
//!
//! The store holds all replicas, each with who stated it last. The configuration adds its own, states anew those that
//! are its own, and removes (drained first) those of its own that it no longer has. What operators stated through the
//! admin API is not its business: it stays, also where the configuration states the same address differently.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use store::{By, NewReplica, ReplicaRecord, ReplicaSource, StoreError, UnixMillis};

use super::{
    change::is_configured,
    pool::{Fleet, Settings, View},
    replica::{Replica, Stated},
    url::ReplicaUrl,
};
use crate::{
    clock,
    config::{Config, StatedReplica},
};

/// What a reconciliation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Replicas that are new in the pool.
    pub added: usize,
    /// Replicas stated anew.
    pub changed: usize,
    /// Replicas on their way out.
    pub removed: usize,
}

impl Fleet {
    /// Makes the pool what the store and this configuration say.
    ///
    /// # Errors
    /// The store failed; the pool is as it was.
    pub async fn reconcile(&self, config: &Config) -> Result<Reconciled, StoreError> {
        let settings = Settings::new(config);
        // Once: later the pool knows better.
        let begins = self.view.load().replicas.is_empty();
        if begins {
            self.recall_speeds().await?;
        }
        let _changing = self.change.lock().await;
        let before = self.keep(|store| store.replicas()).await?;
        let plan = plan(&settings, &config.replicas, &before);
        let by = || By { at: UnixMillis(clock::unix_ms()), who: "config".into() };
        let (put, gone) = (plan.put, plan.gone);
        let records = self
            .keep(move |store| {
                store.put_replicas(by(), put)?;
                for id in gone {
                    store.remove_replica(by(), id)?;
                }
                store.replicas()
            })
            .await?;
        if self.settings.load().quarantine.of != settings.quarantine.of {
            self.prove_by_service(Replica::takes_work).await?;
        }
        self.settings.store(Arc::new(settings));
        self.configure_models();
        if begins {
            self.recall_models(&records);
        }
        let done = self.follow(&records);
        if done != Reconciled::default() {
            let Reconciled { added, changed, removed } = done;
            tracing::info!(added, changed, removed, "replicas follow the configuration");
        }
        Ok(done)
    }

    /// Takes over what another process has changed of the replicas that are known here: drains, statements, moves, removals. New ones
    /// are that process's business.
    ///
    /// # Errors
    /// The store failed; the pool is as it was.
    pub async fn follow_store(&self) -> Result<(), StoreError> {
        let _changing = self.change.lock().await;
        let mut records = self.keep(|store| store.replicas()).await?;
        let known: BTreeSet<u32> = self.replicas().iter().map(|replica| replica.record).collect();
        records.retain(|record| known.contains(&record.id));
        self.follow(&records);
        Ok(())
    }

    fn configure_models(&self) {
        let mut view = View::clone(&self.view.load_full());
        view.models.configure(&self.settings.load().naming, clock::unix().as_secs());
        self.view.store(Arc::new(view));
    }

    /// What replicas served before a restart stays known: a phone that can't be reached now must not turn "no capacity now" into "no
    /// such model". The caller holds `change`.
    fn recall_models(&self, records: &[ReplicaRecord]) {
        let (kept, now) = (self.kept_speeds.load(), clock::unix().as_secs());
        let mut view = View::clone(&self.view.load_full());
        let speeds = records.iter().filter_map(|record| kept.get(&record.id));
        for name in speeds.flat_map(|speed| &speed.models) {
            // Beyond the bound it is known when its replica says so.
            drop(view.models.report(name, now));
        }
        self.view.store(Arc::new(view));
    }

    /// Makes the pool what the records say.
    fn follow(&self, records: &[ReplicaRecord]) -> Reconciled {
        let mut done = Reconciled::default();
        let rules = self.settings.load().rules.clone();
        let mut wanted = BTreeSet::new();
        for record in records {
            match ReplicaUrl::parse(&record.url, &rules) {
                Ok(url) => {
                    wanted.insert(url.clone());
                    self.follow_one(record, url, &mut done);
                }
                Err(error) => tracing::warn!(replica = record.name, "not used: its url {error}"),
            }
        }
        for replica in self.replicas().iter().filter(|replica| !wanted.contains(&replica.url)) {
            if !replica.past().leaving {
                done.removed += 1;
                self.leave(replica, false);
            }
        }
        done
    }

    fn follow_one(&self, record: &ReplicaRecord, url: ReplicaUrl, done: &mut Reconciled) {
        let known = self.view.load().of_url(&url).cloned();
        let Some(known) = known else {
            // In an upgrade the predecessor may have moved it, or drained it, after this process had read the store.
            if let Some(moved) = self.replicas().iter().find(|replica| replica.record == record.id) {
                done.changed += 1;
                self.settle(moved, record, url);
                return;
            }
            done.added += 1;
            self.take_over(record, url);
            return;
        };
        let stated = Stated::from_record(&record.stated, record.api_key.as_ref());
        let (returned, draining) = {
            let mut past = known.past();
            (std::mem::take(&mut past.leaving), past.draining)
        };
        if returned || draining != record.drained {
            self.set_draining(&known, record.drained, None);
        }
        if returned || stated != known.stated || *record.name != *known.label || record.source != known.source {
            done.changed += 1;
            self.take_over(record, url);
        } else {
            // Names may be claimed differently now.
            self.rethink(&known);
        }
    }
}

/// What is to be done to the store.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    put: Vec<NewReplica>,
    gone: Vec<u32>,
}

fn plan(settings: &Settings, configured: &[StatedReplica], records: &[ReplicaRecord]) -> Plan {
    let known: BTreeMap<&str, &ReplicaRecord> = records.iter().map(|record| (record.url.as_str(), record)).collect();
    let mut names: BTreeSet<String> = records.iter().map(|record| record.name.clone()).collect();
    let mut stated_urls = BTreeSet::new();
    let mut plan = Plan::default();
    for replica in configured {
        let url = match ReplicaUrl::parse(&replica.url, &settings.rules) {
            Ok(url) => url,
            Err(error) => {
                tracing::error!(name = replica.name, "a replica of the configuration is not used: its url {error}");
                continue;
            }
        };
        let text = url.to_string();
        let record = known.get(text.as_str()).copied();
        if !stated_urls.insert(text.clone()) {
            continue;
        }
        let stated = Stated::from(replica);
        if let Some(record) = record.filter(|record| !is_configured(record.source)) {
            if record.stated != stated.fields() {
                let name = record.name.as_str();
                tracing::info!(replica = name, "stated by an operator, who overrules the configuration");
            }
            continue;
        }
        let name = name_of(replica, &url, record, &names);
        names.insert(name.clone());
        let new = NewReplica {
            url: text,
            name,
            stated: stated.fields(),
            api_key: stated.secret(),
            source: ReplicaSource::Config,
            origin: None,
        };
        if !record.is_some_and(|record| says_the_same(record, &new)) {
            plan.put.push(new);
        }
    }
    let is_gone = |record: &&ReplicaRecord| is_configured(record.source) && !stated_urls.contains(&record.url);
    plan.gone = records.iter().filter(is_gone).map(|record| record.id).collect();
    plan
}

fn says_the_same(record: &ReplicaRecord, new: &NewReplica) -> bool {
    let ReplicaRecord { name, stated, api_key, source, .. } = record;
    (name, stated, api_key, *source) == (&new.name, &new.stated, &new.api_key, new.source)
}

fn name_of(
    replica: &StatedReplica,
    url: &ReplicaUrl,
    record: Option<&ReplicaRecord>,
    taken: &BTreeSet<String>,
) -> String {
    let own = record.map(|record| record.name.as_str());
    let free = |name: &str| Some(name) == own || !taken.contains(name);
    if let Some(name) = replica.name.as_deref().filter(|name| free(name)) {
        return name.to_owned();
    }
    if let Some(own) = own.filter(|_| replica.name.is_none()) {
        return own.to_owned();
    }
    let [short, longer, unique] = url.names();
    [short, longer].into_iter().find(|name| free(name)).unwrap_or(unique)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StatedModels;

    fn settings() -> Settings {
        Settings::new(&Config::default())
    }

    fn configured(url: &str, slots: u16) -> StatedReplica {
        StatedReplica { url: url.into(), slots: Some(slots), ..StatedReplica::default() }
    }

    fn record(id: u32, url: &str, slots: u16, source: ReplicaSource) -> ReplicaRecord {
        let replica = configured(url, slots);
        ReplicaRecord {
            id,
            url: url.into(),
            name: ReplicaUrl::read(url).unwrap().names()[0].clone(),
            stated: Stated::from(&replica).fields(),
            api_key: None,
            drained: false,
            source,
            origin: store::Origin::default(),
            proven: None,
            created: UnixMillis(0),
            updated: UnixMillis(0),
        }
    }

    fn urls(plan: &Plan) -> Vec<&str> {
        plan.put.iter().map(|new| new.url.as_str()).collect()
    }

    #[test]
    fn only_what_differs_is_touched() {
        let records = [
            record(1, "https://a.acu.run", 1, ReplicaSource::Config),
            record(2, "https://b.acu.run", 1, ReplicaSource::Config),
            record(3, "https://c.acu.run", 1, ReplicaSource::Config),
            record(4, "https://d.acu.run", 1, ReplicaSource::Admin),
        ];
        let file = [
            configured("https://A.acu.run/", 1),
            configured("https://b.acu.run", 2),
            configured("https://e.acu.run", 1),
        ];
        let plan = plan(&settings(), &file, &records);
        assert_eq!(urls(&plan), ["https://b.acu.run", "https://e.acu.run"]);
        assert_eq!(plan.gone, [3]);
    }

    #[test]
    fn what_an_operator_stated_stands_against_the_file() {
        let records = [record(1, "https://a.acu.run", 4, ReplicaSource::Admin)];
        assert_eq!(plan(&settings(), &[configured("https://a.acu.run", 1)], &records), Plan::default());
        assert_eq!(plan(&settings(), &[], &records), Plan::default());
    }

    #[test]
    fn names_are_unique_and_stay() {
        let mut named = configured("https://a.canary.acu.run", 1);
        named.models = StatedModels::default();
        let file = [configured("https://a.acu.run", 1), named];
        let plan = plan(&settings(), &file, &[]);
        let names: Vec<_> = plan.put.iter().map(|new| new.name.as_str()).collect();
        assert_eq!(names, ["a", "a:443"]);
    }

    #[test]
    fn an_address_stated_twice_counts_once() {
        let file = [configured("https://a.acu.run", 1), configured("https://a.acu.run/", 2)];
        assert_eq!(plan(&settings(), &file, &[]).put.len(), 1);
    }
}
