//! What operators do to the pool: add, state anew, drain, undrain, remove.
//!
//! The store comes first: what is not durable does not happen. Then the readers' view, then the scheduler. A replica that
//! the configuration states becomes the operator's as soon as he states something else about it; from then on the file
//! no longer overrules him. Rejected: refusing such changes (at night one wants to change what is wrong, not to find the
//! file), and letting every reload take them back silently. Of a phone that came by itself he states single fields (`held`). All that ends
//! with the replica's removal: what comes back begins anew.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use scheduler::{Event, ReplicaId};
use store::{By, NewReplica, ReplicaPatch, ReplicaRecord, ReplicaSecret, ReplicaSource, Store, StoreError};

use super::{
    dialect::Dialect,
    feed::PoolChange,
    pool::{Fleet, View},
    replica::{Replica, Stated},
    url::{ReplicaUrl, UrlError},
};
use crate::{
    clock,
    config::{Secret, StatedModels},
};

/// Labels of one replica that operators or phones state.
pub const MAX_LABELS: usize = 32;

/// Why the pool was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Not an address that a replica may have.
    #[error("url: {0}")]
    Url(#[from] UrlError),
    /// No such replica.
    #[error("no such replica")]
    Unknown,
    /// Another replica is called that.
    #[error("another replica is called {0:?}")]
    NameTaken(String),
    /// It is known less well than `registration.min_verification` asks for.
    #[error("it can't be let in: {0}")]
    Distrusted(String),
    /// More labels than a replica may have.
    #[error("labels must be at most {MAX_LABELS} together, not {0}")]
    Labels(usize),
    /// `pool.max_replicas`.
    #[error("the pool is full: pool.max_replicas is {0}")]
    Full(usize),
    /// The store did not take it.
    #[error("the store did not take the change: {0}")]
    Store(#[from] StoreError),
}

/// Changes to what is stated: the outer `None` leaves a field, an inner `None` takes the statement back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Amendment {
    /// For people and metrics; unique.
    pub name: Option<String>,
    /// Its models; empty: probed.
    pub models: Option<StatedModels>,
    /// Concurrent requests it takes.
    pub slots: Option<Option<u16>>,
    /// Tokens that prompt and answer of one slot must fit.
    pub context_tokens: Option<Option<u32>>,
    /// Its bearer token.
    pub key: Option<Option<Secret>>,
    /// The engine.
    pub dialect: Option<Option<Dialect>>,
    /// Free words for operators.
    pub labels: Option<LabelChange>,
    /// The end of its deployment, in seconds since 1970.
    pub expires_at: Option<Option<u64>>,
    /// What it costs.
    pub cost_acu_per_day: Option<Option<f64>>,
    /// What it says that it costs, where nobody vouches for that.
    pub claimed_cost_acu_per_day: Option<Option<f64>>,
    /// Prompt tokens a second that it reads.
    pub prefill_rate: Option<Option<f64>>,
    /// Answer tokens a second that it writes.
    pub decode_rate: Option<Option<f64>>,
}

/// A change to labels. It is made where nobody else changes them meanwhile, so of changes at once none is lost.
#[derive(Clone, Debug, PartialEq)]
pub enum LabelChange {
    /// These and no others.
    All(BTreeMap<String, String>),
    /// These by name, `None` takes one away; others stay.
    Some(BTreeMap<String, Option<String>>),
}

impl LabelChange {
    fn apply(&self, labels: &mut BTreeMap<String, String>) {
        match self {
            Self::All(all) => labels.clone_from(all),
            Self::Some(some) => {
                for (name, value) in some {
                    match value {
                        Some(value) => drop(labels.insert(name.clone(), value.clone())),
                        None => drop(labels.remove(name)),
                    }
                }
            }
        }
    }
}

impl Amendment {
    /// What is stated then.
    ///
    /// # Errors
    /// It would have too many labels.
    fn applied(&self, stated: &Stated) -> Result<Stated, ChangeError> {
        let mut then = stated.clone();
        self.apply(&mut then);
        let labels = then.labels.len();
        // What was there before a bound was lowered, or comes from a file, may stay.
        if labels > MAX_LABELS.max(stated.labels.len()) { Err(ChangeError::Labels(labels)) } else { Ok(then) }
    }

    pub(super) fn apply(&self, stated: &mut Stated) {
        fn set<T: Clone>(place: &mut T, value: &Option<T>) {
            if let Some(value) = value {
                place.clone_from(value);
            }
        }
        set(&mut stated.models, &self.models);
        set(&mut stated.slots, &self.slots);
        set(&mut stated.context_tokens, &self.context_tokens);
        set(&mut stated.key, &self.key);
        set(&mut stated.dialect, &self.dialect);
        self.labels.iter().for_each(|change| change.apply(&mut stated.labels));
        set(&mut stated.expires_at, &self.expires_at);
        set(&mut stated.cost_acu_per_day, &self.cost_acu_per_day);
        set(&mut stated.claimed_cost_acu_per_day, &self.claimed_cost_acu_per_day);
        set(&mut stated.prefill_rate, &self.prefill_rate);
        set(&mut stated.decode_rate, &self.decode_rate);
    }

    /// The same for the store, where `then` is what is stated with it.
    fn patch(self, then: &Stated) -> ReplicaPatch {
        ReplicaPatch {
            name: self.name,
            models: self.models.map(|models| models.0),
            slots: self.slots,
            context_tokens: self.context_tokens,
            dialect: self.dialect.map(|dialect| dialect.map(|dialect| dialect.name().to_owned())),
            labels: self.labels.map(|_| then.labels.clone()),
            expires_at: self.expires_at,
            cost_acu_per_day: self.cost_acu_per_day,
            prefill_rate: self.prefill_rate,
            decode_rate: self.decode_rate,
            api_key: self.key.map(|key| key.map(|key| ReplicaSecret(key.reveal().to_owned()))),
            held: Some(then.held.clone()),
        }
    }
}

/// The outcome of adding.
#[derive(Clone)]
pub enum Added {
    /// It is new.
    New(Arc<Replica>),
    /// It was there; what was stated differently is taken over.
    Changed(Arc<Replica>),
    /// It was there, just so.
    Unchanged(Arc<Replica>),
}

impl Added {
    /// The replica as it is now.
    pub fn replica(&self) -> &Arc<Replica> {
        match self {
            Self::New(replica) | Self::Changed(replica) | Self::Unchanged(replica) => replica,
        }
    }
}

/// The outcome of removing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Gone. Otherwise it goes once nothing runs there any more.
    pub gone: bool,
}

/// A replica after a change.
pub struct Changed {
    /// As it is now.
    pub replica: Arc<Replica>,
    /// Anything is different. Otherwise it was so already.
    pub changed: bool,
}

impl Fleet {
    /// Adds a replica, or states the one at this address anew. A replica that is on its way out stays. In a full pool the oldest of
    /// those makes room that came by themselves and have shown nothing yet.
    ///
    /// # Errors
    /// The address or name can't be used, the pool is full, or the store failed. Then nothing has changed.
    pub async fn add(
        &self,
        url: &str,
        amendment: Amendment,
        source: ReplicaSource,
        by: By,
    ) -> Result<Added, ChangeError> {
        let url = ReplicaUrl::parse(url, &self.settings.load().rules)?;
        let _changing = self.change.lock().await;
        let view = self.view.load_full();
        let known = view.of_url(&url).cloned();
        let id = known.as_ref().map(|replica| replica.id);
        if let Some(name) = amendment.name.as_deref().filter(|name| view.label_is_taken(name, id)) {
            return Err(ChangeError::NameTaken(name.to_owned()));
        }
        let max = self.settings.load().max_replicas;
        let is_full = known.is_none() && view.replicas.len() >= max;
        let makes_room = view.newcomers().next().filter(|_| is_full).and_then(|replica| self.replica(replica.id));
        if is_full && makes_room.is_none() {
            return Err(ChangeError::Full(max));
        }
        // What was removed begins anew, also before it has gone.
        let staying = known.as_ref().filter(|replica| !replica.past().leaving);
        let before = staying.map(|replica| replica.stated.clone()).unwrap_or_default();
        let mut stated = amendment.applied(&before)?;
        let name = match (amendment.name, &known) {
            (Some(name), _) => name,
            (None, Some(replica)) => replica.label.to_string(),
            (None, None) => free_name(&view, &url),
        };
        // Saying again what is stated already takes nothing over.
        let source = match staying {
            Some(replica) if stated == before && *replica.label == *name => replica.source,
            _ => source,
        };
        if is_stated_by_operator(source) {
            stated.held.clear();
            stated.claimed_cost_acu_per_day = None;
        }
        let (fields, api_key) = (stated.fields(), stated.secret());
        let new = NewReplica { url: url.to_string(), name, stated: fields, api_key, source, origin: None };
        let other = makes_room.as_ref().map(|replica| replica.record);
        let put = self
            .keep(move |store| match other {
                Some(other) => store.put_replica_over(by, other, new),
                None => store.put_replica(by, new),
            })
            .await?;
        if let Some(other) = &makes_room {
            tracing::info!(replica = &*other.label, "it makes room: the pool is full, and it has shown nothing yet");
            self.leave(other, true);
        }
        let returned = known.as_ref().is_some_and(|replica| std::mem::take(&mut replica.past().leaving));
        let changed = put.changed();
        let replica = self.take_over(put.record(), url);
        if returned {
            self.set_draining(&replica, put.record().drained, None);
        }
        Ok(match known {
            None => Added::New(replica),
            Some(_) if changed || returned => Added::Changed(replica),
            Some(_) => Added::Unchanged(replica),
        })
    }

    /// Changes what is stated about a replica.
    ///
    /// # Errors
    /// There is none, another is called that, or the store failed. Then nothing has changed.
    pub async fn amend(&self, id: ReplicaId, amendment: Amendment, by: By) -> Result<Changed, ChangeError> {
        let _changing = self.change.lock().await;
        let view = self.view.load_full();
        let replica = self.staying(id)?;
        if let Some(name) = amendment.name.as_deref().filter(|name| view.label_is_taken(name, Some(id))) {
            return Err(ChangeError::NameTaken(name.to_owned()));
        }
        let mut stated = amendment.applied(&replica.stated)?;
        if !is_stated_by_operator(replica.source) {
            stated.hold(&amendment, &replica.stated);
        }
        let renamed = amendment.name.as_deref().is_some_and(|name| *name != *replica.label);
        if stated == replica.stated && !renamed {
            return Ok(Changed { replica, changed: false });
        }
        let url = replica.url.clone();
        let put = if is_configured(replica.source) {
            let name = amendment.name.unwrap_or_else(|| replica.label.to_string());
            let (stated, api_key) = (stated.fields(), stated.secret());
            let source = ReplicaSource::Admin;
            let new = NewReplica { url: url.to_string(), name, stated, api_key, source, origin: None };
            self.keep(move |store| store.put_replica(by, new)).await?
        } else {
            let (patch, record) = (amendment.patch(&stated), replica.record);
            self.keep(move |store| store.patch_replica(by, record, patch)).await?
        };
        Ok(Changed { replica: self.take_over(put.record(), url), changed: true })
    }

    /// Starts nothing new there. With a deadline, what still runs then is cancelled.
    ///
    /// # Errors
    /// There is none, or the store failed. Then nothing has changed.
    pub async fn drain(&self, id: ReplicaId, deadline: Option<Duration>, by: By) -> Result<Changed, ChangeError> {
        let _changing = self.change.lock().await;
        let replica = self.staying(id)?;
        let record = replica.record;
        let put = self.keep(move |store| store.set_drained(by, record, true)).await?;
        self.set_draining(&replica, true, deadline);
        Ok(Changed { replica, changed: put.changed() || deadline.is_some() })
    }

    /// Takes a drain back.
    ///
    /// # Errors
    /// There is none, or the store failed. Then nothing has changed.
    pub async fn undrain(&self, id: ReplicaId, by: By) -> Result<Changed, ChangeError> {
        let _changing = self.change.lock().await;
        let replica = self.staying(id)?;
        let record = replica.record;
        let put = self.keep(move |store| store.set_drained(by, record, false)).await?;
        self.set_draining(&replica, false, None);
        Ok(Changed { replica, changed: put.changed() })
    }

    /// Takes a replica out of the pool: once it is empty, or at once with `force` (what runs fails over).
    ///
    /// # Errors
    /// There is none, or the store failed. Then nothing has changed.
    pub async fn remove(&self, id: ReplicaId, force: bool, by: By) -> Result<Removal, ChangeError> {
        let _changing = self.change.lock().await;
        let replica = self.replica(id).ok_or(ChangeError::Unknown)?;
        let record = replica.record;
        self.keep(move |store| store.remove_replica(by, record)).await?;
        self.leave(&replica, force);
        Ok(Removal { gone: self.replica(id).is_none() })
    }

    /// A replica that is not on its way out: of those nothing is kept any more.
    pub(super) fn staying(&self, id: ReplicaId) -> Result<Arc<Replica>, ChangeError> {
        self.replica(id).filter(|replica| !replica.past().leaving).ok_or(ChangeError::Unknown)
    }

    /// Nothing runs on a draining replica any more.
    pub(super) async fn drained(&self, id: ReplicaId) {
        let _changing = self.change.lock().await;
        let Some(replica) = self.replica(id) else { return };
        let (draining, leaving) = {
            let past = replica.past();
            (past.draining, past.leaving)
        };
        if leaving {
            self.forget(&replica);
        } else if draining {
            tracing::info!(replica = &*replica.label, "drained");
            self.feed.send(id, &replica.label, PoolChange::Drained);
        }
    }

    /// Puts what the store has now into the view, and tells the scheduler. The caller holds `change`.
    pub(super) fn take_over(&self, record: &ReplicaRecord, url: ReplicaUrl) -> Arc<Replica> {
        let known = self.view.load().of_url(&url).cloned();
        let relay = self.relays.of(&url);
        let replica = Arc::new(match &known {
            Some(known) => known.restated(record),
            None => Replica::new(record, url, relay),
        });
        let mut view = View::clone(&self.view.load_full());
        view.insert(Arc::clone(&replica));
        // A stated model is known before the replica answers, and also if it never does: "no capacity", not "no model".
        // Not of what a phone states about itself: that is known as what probes find is, so much and no longer.
        if is_stated_by_operator(replica.source) {
            for name in replica.stated.models.0.keys() {
                view.models.state(name, clock::unix().as_secs());
            }
        }
        self.view.store(Arc::new(view));
        match known {
            Some(known) => self.restated(&known, &replica),
            None => {
                tracing::info!(replica = &*replica.label, url = %replica.url, source = replica.source.name(), "replica added");
                self.feed.send(replica.id, &replica.label, PoolChange::Added { url: replica.url.to_string() });
                self.tell(&replica);
                // Not with the next look: until then it would be given work that its end, near or past, forbids.
                self.tell_end(&replica);
                if record.drained {
                    self.set_draining(&replica, true, None);
                }
            }
        }
        replica
    }

    fn restated(&self, before: &Replica, now: &Replica) {
        let same_door = before.origin.pin == now.origin.pin;
        if before.stated == now.stated && before.label == now.label && same_door {
            return;
        }
        if before.label != now.label {
            self.telemetry.forget_replica(&before.label);
        }
        tracing::info!(replica = &*now.label, "replica changed by statement");
        self.feed.send(now.id, &now.label, PoolChange::Stated);
        if before.stated.dialect != now.stated.dialect || before.stated.key != now.stated.key {
            now.past().learned = None;
        }
        // Whoever changed something may have repaired it.
        if is_stated_by_operator(now.source) {
            now.past().doubt = None;
        }
        self.tell_end(now);
        self.rethink(now);
        self.probe_soon(now.id);
    }

    /// Tells the scheduler, once. The caller holds `change`.
    pub(super) fn set_draining(&self, replica: &Replica, draining: bool, deadline: Option<Duration>) {
        let was = std::mem::replace(&mut replica.past().draining, draining);
        if draining {
            let deadline = deadline.map(|length| clock::now() + length);
            // Again as well: the deadline may be another one.
            self.dispatcher.handle(Event::DrainReplica { replica: replica.id, deadline });
        } else if was {
            self.dispatcher.handle(Event::UndrainReplica { replica: replica.id });
        }
        if was != draining {
            let what = if draining { PoolChange::DrainStarted } else { PoolChange::DrainEnded };
            tracing::info!(replica = &*replica.label, "{}", if draining { "draining" } else { "no longer draining" });
            self.feed.send(replica.id, &replica.label, what);
        }
    }

    /// Takes a replica out of the pool, now or when it is empty. The caller holds `change`.
    pub(super) fn leave(&self, replica: &Arc<Replica>, force: bool) {
        let idle = self.dispatcher.replica(replica.id).is_none_or(|view| view.running.is_empty());
        if force || idle {
            self.forget(replica);
        } else {
            replica.past().leaving = true;
            self.set_draining(replica, true, None);
        }
    }

    fn forget(&self, replica: &Replica) {
        // The scheduler first: it gives the replica no more work, and what ran there is told to stop.
        self.dispatcher.handle(Event::ReplicaRemoved { replica: replica.id });
        let mut view = View::clone(&self.view.load_full());
        view.remove(replica.id);
        self.view.store(Arc::new(view));
        replica.endpoint.close_idle();
        self.telemetry.forget_replica(&replica.label);
        self.telemetry.replica_left(replica.id);
        tracing::info!(replica = &*replica.label, url = %replica.url, "replica removed");
        self.feed.send(replica.id, &replica.label, PoolChange::Removed);
    }

    /// Runs a call of the store where it may block.
    pub(super) async fn keep<R: Send + 'static>(
        &self,
        call: impl FnOnce(&Store) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let store = Arc::clone(&self.store);
        tokio::task::spawn_blocking(move || call(&store)).await.unwrap_or(Err(StoreError::Closed))
    }
}

/// Whether the configuration states replicas of this source.
pub(super) fn is_configured(source: ReplicaSource) -> bool {
    matches!(source, ReplicaSource::Config | ReplicaSource::Flag)
}

/// Whether an operator states replicas of this source, and not the phone itself or the chain.
pub(super) fn is_stated_by_operator(source: ReplicaSource) -> bool {
    !matches!(source, ReplicaSource::Registration | ReplicaSource::Chain)
}

/// The shortest name for an address that no other replica has.
pub(super) fn free_name(view: &View, url: &ReplicaUrl) -> String {
    let [short, longer, unique] = url.names();
    [short, longer].into_iter().find(|name| !view.label_is_taken(name, None)).unwrap_or(unique)
}
