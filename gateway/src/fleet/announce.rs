//! Phones come by themselves: they announce where they are, move, and are forgotten.
//!
//! One way in for what phones say and what the chain says. What an announcement may do is decided in `identity`; here it is
//! done, like every change: the store first, then the readers' view, then the scheduler. See decision 0013.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use scheduler::{Event, Timestamp};
use store::{By, NewReplica, Origin, ReplicaRecord, ReplicaSource, StoreError, UnixMillis, Verification};

use super::{
    change::{Amendment, free_name, is_stated_by_operator},
    feed::PoolChange,
    identity::{Moment, Plan, decide, merged, recognise},
    pool::{Fleet, View},
    replica::{Facts, Replica, Stated},
    room,
    url::{ReplicaUrl, UrlError},
};
use crate::clock;

/// Heartbeats that a phone may miss before it counts as silent.
const MISSED: u32 = 3;
/// That a phone announced itself again is kept this often: it costs a write to the disk, and is needed to the day.
const KEEP_ANNOUNCED_MS: u64 = 600_000;

/// What is said of a phone, by itself or by the chain.
#[derive(Clone, Debug)]
pub struct Announcement {
    /// Where it is; `None`: it is said of a phone that is known by its key or its place.
    pub url: Option<String>,
    /// The job that it runs.
    pub deployment: Option<String>,
    /// The phone's address on the chain.
    pub processor: Option<String>,
    /// Its Ed25519 key, 64 hex digits in lower case.
    pub public_key: Option<String>,
    /// What its certificate must carry, 64 hex digits in lower case.
    pub pin: Option<String>,
    /// How well that is known.
    pub verification: Verification,
    /// The moment that it signed, if it did.
    pub signed_at: Option<UnixMillis>,
    /// Who says so.
    pub source: ReplicaSource,
    /// What is stated with it. What an operator states about a replica stands against it.
    pub stated: Amendment,
    /// For the audit trail.
    pub by: By,
}

/// A key that the chain lists for a phone of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The job.
    pub deployment: String,
    /// The phone's address on the chain.
    pub processor: String,
}

/// What an announcement did.
#[derive(Clone)]
pub enum Announced {
    /// It is new.
    New(Arc<Replica>),
    /// It was known, and is at another address now.
    Moved(Arc<Replica>),
    /// It was known there; something about it is news.
    Changed(Arc<Replica>),
    /// Nothing is news.
    Known(Arc<Replica>),
}

impl Announced {
    /// The replica as it is now.
    pub fn replica(&self) -> &Arc<Replica> {
        match self {
            Self::New(replica) | Self::Moved(replica) | Self::Changed(replica) | Self::Known(replica) => replica,
        }
    }
}

/// Why an announcement changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// Not an address that a replica may have.
    #[error("url: {0}")]
    Url(#[from] UrlError),
    /// No address, and nobody of that key or place.
    #[error("no phone is known by that key, deployment and processor, or address; announce its url first")]
    Unknown,
    /// Something newer was signed with the same key.
    #[error("a newer announcement of this key is known; sign the present time")]
    Older,
    /// What is known of the phone was signed, and this is not, or not by a key of the chain.
    #[error("{0} is known by its signature; announcements of it must be signed by the same key")]
    KnownBetter(String),
    /// Another phone has that place or that address, and lives.
    #[error("another phone, {0}, has that place or address and is alive; it has to leave first")]
    Taken(String),
    /// `registration.max_new_per_minute`.
    #[error("too many phones have announced themselves in this minute (registration.max_new_per_minute); try again")]
    TooMany(Duration),
    /// `registration.max_unproven`.
    #[error(
        "too many phones that announced themselves have not shown yet that they run a model: registration.max_unproven is {0}; try again later, or have an operator add it"
    )]
    TooManyUnproven(usize),
    /// `pool.max_replicas`.
    #[error("the pool is full: pool.max_replicas is {0}")]
    Full(usize),
    /// The store did not take it.
    #[error("the store did not take it: {0}")]
    Store(#[from] StoreError),
}

/// A bound on changes: a bucket that a minute fills.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// When the bucket will be full again; earlier than now: it is full.
    full_at: Timestamp,
}

impl Arrivals {
    /// Takes one place of `per_minute`.
    ///
    /// # Errors
    /// There is none; it tells in how long there will be.
    fn take(&mut self, per_minute: u32, now: Timestamp) -> Result<(), Duration> {
        const MINUTE: Duration = Duration::from_secs(60);
        let each = MINUTE / per_minute.max(1);
        let full_at = self.full_at.max(now) + each;
        let ahead = full_at.since(now);
        if ahead > MINUTE {
            return Err(ahead.saturating_sub(MINUTE));
        }
        self.full_at = full_at;
        Ok(())
    }
}

impl Fleet {
    /// Takes in an announcement: a new phone, one that moved, or one that is known.
    ///
    /// # Errors
    /// The address can't be used, the phone or the address is another's, or there is no room. Then nothing has changed.
    pub async fn announce(&self, said: Announcement) -> Result<Announced, AnnounceError> {
        let settings = self.settings.load_full();
        let url = said.url.as_deref().map(|url| ReplicaUrl::parse(url, &settings.rules)).transpose()?;
        let said = self.believed(said);
        let _changing = self.change.lock().await;
        let view = self.view.load_full();
        let moment = Moment {
            now_ms: clock::unix_ms(),
            silence_ms: u64::try_from((settings.registration.heartbeat * MISSED).as_millis()).unwrap_or(u64::MAX),
        };
        let plan = decide(&view, &said, url.as_ref(), &moment)?;
        Ok(match plan {
            Plan::Hear(replica) => Announced::Known(self.replica(replica.id).ok_or(AnnounceError::Unknown)?),
            Plan::State(replica) => self.state(&view, replica, said).await?,
            Plan::Move(replica, at) => {
                let url = url.ok_or(AnnounceError::Unknown)?;
                self.relocate(&view, replica, at, url, said).await?
            }
            Plan::Enter(at) => {
                let url = url.ok_or(AnnounceError::Unknown)?;
                self.enter(&view, at, url, said).await?
            }
        })
    }

    /// The replica that an announcement is about, which it does not change.
    ///
    /// # Errors
    /// There is none, it is known better than this is, or it has said something newer.
    pub fn recognise(&self, said: Announcement) -> Result<Arc<Replica>, AnnounceError> {
        let url = said.url.as_deref().map(|url| ReplicaUrl::parse(url, &self.settings.load().rules)).transpose()?;
        let said = self.believed(said);
        let view = self.view.load_full();
        let id = recognise(&view, &said, url.as_ref())?.id;
        self.replica(id).ok_or(AnnounceError::Unknown)
    }

    /// What the chain says about keys, by key (64 hex digits in lower case): a signature of one of these is as good as its word.
    /// Replaces what it said before.
    pub fn set_assignments(&self, assignments: BTreeMap<String, Assignment>) {
        self.assignments.store(Arc::new(assignments));
    }

    /// Why a replica that announced itself gets no work, however well it answers: it is known less well than
    /// `registration.min_verification`. `None`: well enough, or stated by an operator.
    pub fn distrust(&self, replica: &Replica) -> Option<Verification> {
        let wanted = self.settings.load().registration.min_verification;
        let by_itself = !is_stated_by_operator(replica.source);
        (by_itself && replica.origin.verification < wanted).then_some(wanted)
    }

    /// Whether what a phone says may change what its replica gets: not if an operator states it, for everybody with the token can say so.
    pub fn heeds(&self, replica: &Replica) -> bool {
        !is_stated_by_operator(replica.source)
    }

    /// Whether a phone that used to send heartbeats has missed three.
    pub fn is_silent(&self, replica: &Replica) -> bool {
        let silence = self.settings.load().registration.heartbeat * MISSED;
        let past = replica.past();
        let heard = past.heard_ms.unwrap_or_default();
        past.beats && Duration::from_millis(clock::unix_ms().saturating_sub(heard)) > silence
    }

    /// A phone said something that changes nothing in the pool.
    pub fn heard_of(&self, replica: &Replica, event: &str, problem: Option<String>) {
        let mut past = replica.past();
        past.hear(clock::unix_ms());
        if event == "heartbeat" {
            // What it said before still holds.
            past.beats = true;
            return;
        }
        past.said = Some(Said { at_ms: clock::unix_ms(), event: event.to_owned(), problem });
    }

    /// An announcement with what the chain knows of its key, and of which it is known what in it is a mere claim.
    fn believed(&self, mut said: Announcement) -> Announcement {
        if said.verification == Verification::Signed
            && let Some(key) = &said.public_key
            && let Some(Assignment { deployment, processor }) = self.assignments.load().get(key)
        {
            said.verification = Verification::Assigned;
            said.deployment = Some(deployment.clone());
            said.processor = Some(processor.clone());
        }
        if said.source == ReplicaSource::Registration && said.verification < Verification::Assigned {
            said.stated.claimed_cost_acu_per_day = said.stated.cost_acu_per_day.take();
        }
        said
    }

    /// One more change that a phone makes by itself. Those that nobody can make up, by a key that the chain names or that of a replica
    /// that has proved itself, are counted apart: whoever has the token alone keeps none of them out.
    fn admit(&self, known: Option<&Replica>, said: &Announcement) -> Result<(), AnnounceError> {
        if said.source != ReplicaSource::Registration {
            return Ok(());
        }
        let per_minute = self.settings.load().registration.max_new_per_minute;
        let proves = |known: &Replica| known.proven.is_some() && is_the_same(known, said);
        let is_sure = said.verification == Verification::Assigned || known.is_some_and(proves);
        let arrivals = if is_sure { &self.sure_arrivals } else { &self.arrivals };
        let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.take(per_minute, clock::now()).map_err(AnnounceError::TooMany)
    }

    async fn state(&self, view: &View, known: &Replica, said: Announcement) -> Result<Announced, AnnounceError> {
        let returned = known.past().leaving;
        let new = restatement(view, known, known.url.to_string(), &said, returned);
        let is_news = returned || says_more(known, &new);
        if is_news {
            self.admit(Some(known), &said)?;
        }
        let is_phone = said.source == ReplicaSource::Registration;
        if is_phone {
            known.past().hear(clock::unix_ms());
        }
        // What is signed decides which word is the newest, so it is kept; that others live is kept now and then.
        let kept = known.origin.announced.map_or(0, |at| at.0);
        let keep = said.signed_at.is_some() || said.by.at.0.abs_diff(kept) >= KEEP_ANNOUNCED_MS && is_phone;
        if !is_news && !keep {
            return Ok(Announced::Known(self.replica(known.id).ok_or(AnnounceError::Unknown)?));
        }
        let by = said.by;
        let put = self.keep(move |store| store.put_replica(by, new)).await?;
        if returned {
            known.past().leaving = false;
        }
        let replica = self.take_over(put.record(), known.url.clone());
        if returned {
            // It is another's now, or may be: nothing that was known of it counts, and it shows anew what it is.
            replica.past().begin_anew(clock::unix_ms());
            self.dispatcher.handle(Event::ReplicaMoved { replica: replica.id });
            self.set_draining(&replica, put.record().drained, None);
            self.probe_soon(replica.id);
        }
        Ok(if is_news { Announced::Changed(replica) } else { Announced::Known(replica) })
    }

    async fn enter(
        &self,
        view: &View,
        at: Option<&Replica>,
        url: ReplicaUrl,
        said: Announcement,
    ) -> Result<Announced, AnnounceError> {
        let at = room::place(view, at, &said, &self.settings.load(), clock::now())?;
        self.admit(None, &said)?;
        let mut stated = Stated::default();
        said.stated.apply(&mut stated);
        let mut others = View::clone(view);
        at.iter().for_each(|at| others.remove(at.id));
        let wanted = said.stated.name.clone().filter(|name| !others.label_is_taken(name, None));
        let name = wanted.unwrap_or_else(|| free_name(&others, &url));
        let origin = Some(merged(None, &said, false));
        let (fields, api_key) = (stated.fields(), stated.secret());
        let new = NewReplica { url: url.to_string(), name, stated: fields, api_key, source: said.source, origin };
        let (by, other) = (said.by, at.map(|at| at.record));
        let put = self
            .keep(move |store| match other {
                Some(other) => store.put_replica_over(by, other, new),
                None => store.put_replica(by, new),
            })
            .await?;
        if let Some(at) = at.and_then(|at| self.replica(at.id)) {
            self.leave(&at, true);
        }
        Ok(Announced::New(self.take_over(put.record(), url)))
    }

    async fn relocate(
        &self,
        view: &View,
        known: &Replica,
        at: Option<&Replica>,
        url: ReplicaUrl,
        said: Announcement,
    ) -> Result<Announced, AnnounceError> {
        self.admit(Some(known), &said)?;
        let is_same = is_the_same(known, &said);
        let new = restatement(view, known, url.to_string(), &said, false);
        let (by, record, other) = (said.by, known.record, at.map(|at| at.record));
        let put = self
            .keep(move |store| match other {
                Some(other) => store.move_replica_over(by, record, other, new, is_same),
                None => store.move_replica(by, record, new, is_same),
            })
            .await?;
        if let Some(at) = at.and_then(|at| self.replica(at.id)) {
            self.leave(&at, true);
        }
        Ok(Announced::Moved(self.settle(known, put.record(), url)))
    }

    /// Puts a replica that moved into the view, and tells the scheduler that it begins anew. The caller holds `change`.
    pub(super) fn settle(&self, known: &Replica, record: &ReplicaRecord, url: ReplicaUrl) -> Arc<Replica> {
        let relay = self.relays.of(&url);
        let replica = Arc::new(known.moved(record, url, relay));
        // What is found there may be another engine with another model; until then its models are known as it had them.
        replica.set_facts(Facts { dialect: None, ..Facts::clone(&known.facts()) });
        replica.past().begin_anew(clock::unix_ms());
        let mut view = View::clone(&self.view.load_full());
        view.remove(known.id);
        view.insert(Arc::clone(&replica));
        self.view.store(Arc::new(view));
        known.endpoint.close_idle();
        tracing::info!(replica = &*replica.label, from = %known.url, to = %replica.url, "replica moved");
        let (from, to) = (known.url.to_string(), replica.url.to_string());
        self.feed.send(replica.id, &replica.label, PoolChange::Moved { from, to });
        self.dispatcher.handle(Event::ReplicaMoved { replica: replica.id });
        self.tell(&replica);
        self.probe_soon(replica.id);
        replica
    }

    /// Forgets replicas that came by themselves and did not show for `registration.forget_unproven_after` that they run a model.
    pub(super) async fn forget_unproven(&self) {
        let limit = self.settings.load().registration.forget_unproven_after;
        for replica in self.replicas() {
            let since = replica.past().there_since;
            if replica.is_newcomer() && clock::now().since(since) >= limit {
                self.forget_for(&replica, "it has not shown that it runs a model").await;
            }
        }
    }

    async fn forget_for(&self, replica: &Replica, why: &str) {
        let by = By { at: UnixMillis(clock::unix_ms()), who: "registration".into() };
        match self.remove(replica.id, false, by).await {
            Ok(_) => tracing::info!(replica = &*replica.label, why, "forgotten"),
            Err(error) => tracing::warn!(replica = &*replica.label, %error, "not forgotten"),
        }
    }

    /// Forgets replicas that came by themselves, were not heard of and not reached for `registration.forget_after`.
    pub(super) async fn forget_lost(&self) {
        let limit = self.settings.load().registration.forget_after;
        for replica in self.replicas() {
            let last = replica.past().last_sign;
            let by_itself = !is_stated_by_operator(replica.source);
            if by_itself && clock::now().since(last) >= limit {
                self.forget_for(&replica, "neither heard of nor reached for long").await;
            }
        }
    }
}

/// Whether an announcement was signed with the key by which the phone has been known: then it is the same phone wherever it is, and what it
/// proved it has proved.
fn is_the_same(known: &Replica, said: &Announcement) -> bool {
    let signs = known.origin.verification >= Verification::Signed && said.signed_at.is_some();
    signs && said.public_key.is_some() && known.origin.public_key == said.public_key
}

/// Whether this is more than what is known, beside that the phone announced itself again.
fn says_more(known: &Replica, new: &NewReplica) -> bool {
    let timeless = |origin: &Origin| Origin { announced: None, ..origin.clone() };
    let stated = Stated::from_record(&new.stated, new.api_key.as_ref());
    let same_origin = new.origin.as_ref().is_some_and(|origin| timeless(origin) == timeless(&known.origin));
    !same_origin || stated != known.stated || new.name != *known.label || new.source != known.source
}

/// What a phone said last, beside where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The event, in the phone's own word.
    pub event: String,
    /// What is wrong, in the phone's own words, if it said so.
    pub problem: Option<String>,
}

/// A known replica with what an announcement says; what an operator states about it stands.
fn restatement(view: &View, known: &Replica, url: String, said: &Announcement, returned: bool) -> NewReplica {
    let moved = url != known.url.to_string();
    // What was on its way out is nobody's any more, and so is what was stated about it.
    let operators = is_stated_by_operator(known.source) && !returned;
    let mut stated = if returned { Stated::default() } else { known.stated.clone() };
    if moved && (is_stated_by_operator(known.source) || stated.held.remove("api_key")) {
        // The operator has given it for the address that he knew.
        stated.key = None;
    }
    if !operators {
        said.stated.clone().without(&stated.held).apply(&mut stated);
    } else if moved {
        // The replica is not his any more, for nobody vouches for the address; what he states about the phone is.
        stated.hold_all();
    }
    let wanted = said.stated.name.clone().filter(|name| !operators && !view.label_is_taken(name, Some(known.id)));
    // The configuration would take back an address that it does not state.
    let source = match known.source {
        // An address that no operator states is nothing that one vouches for; and the configuration would take it back.
        ReplicaSource::Config | ReplicaSource::Flag | ReplicaSource::Admin | ReplicaSource::Import
            if moved || returned =>
        {
            said.source
        }
        ReplicaSource::Chain if said.source == ReplicaSource::Registration => said.source,
        known => known,
    };
    // What was on its way out may be anybody's address now.
    let origin = merged((!returned).then_some(&known.origin), said, moved);
    NewReplica {
        url,
        name: wanted.unwrap_or_else(|| known.label.to_string()),
        stated: stated.fields(),
        api_key: stated.secret(),
        source,
        origin: Some(origin),
    }
}
