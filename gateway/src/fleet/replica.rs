//! One replica: what was stated, what was found, what happened.
//!
//! Stated things change rarely and replace the whole value; found things and the past live behind it and survive that,
//! so a request that holds an `Arc<Replica>` always sees one consistent statement.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use scheduler::{
    ChangeReason, GroupId, Limit, ModelId, Rates, Release, ReplicaId, ReplicaSpec, ReplicaState, RouteSet, Timestamp,
};
use store::{
    Origin, Proof, ReplicaRecord, ReplicaSecret, ReplicaSource, Speed, StatedFields, UnixMillis, Verification,
};
use tokio::sync::Notify;

use super::{
    announce::Said, dialect::Dialect, finding::Finding, limits::Limited, prior::prior, probe::Learned,
    quarantine::Doubt, relays::Relay, report::Reported, url::ReplicaUrl,
};
use crate::{
    clock,
    config::{Moment, Secret, StatedModels, StatedReplica},
    telemetry::Price,
    upstream::{Endpoint, Pin},
};

/// State changes kept per replica: enough to see a pattern, few enough for 5,000 replicas.
const HISTORY: usize = 20;

/// Slots of a replica that neither says nor is said to have more: the large models take one request at a time.
pub(super) const DEFAULT_SLOTS: u16 = 1;

/// What the operator says about a replica. What it leaves open is found by probing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stated {
    /// Its models.
    pub models: StatedModels,
    /// Concurrent requests it takes.
    pub slots: Option<u16>,
    /// Tokens that prompt and answer of one slot must fit.
    pub context_tokens: Option<u32>,
    /// Sent to it as a bearer token.
    pub key: Option<Secret>,
    /// The engine.
    pub dialect: Option<Dialect>,
    /// Free words for operators.
    pub labels: BTreeMap<String, String>,
    /// The end of its deployment, in seconds since 1970.
    pub expires_at: Option<u64>,
    /// What it costs.
    pub cost_acu_per_day: Option<f64>,
    /// Prompt tokens a second that it reads.
    pub prefill_rate: Option<f64>,
    /// Answer tokens a second that it writes.
    pub decode_rate: Option<f64>,
    /// What it says that it costs, where nobody vouches for that: with the token anybody may say anything, and a key can be anybody's.
    pub claimed_cost_acu_per_day: Option<f64>,
    /// Which of these an operator states of a phone that came by itself, by the names that they have in the admin API: what the phone
    /// says of them changes nothing. Empty of others: there all is.
    pub held: BTreeSet<String>,
}

impl Stated {
    /// From what was kept. A dialect that this program does not know is found by probing.
    pub(super) fn from_record(fields: &StatedFields, key: Option<&ReplicaSecret>) -> Self {
        Self {
            models: StatedModels(fields.models.clone()),
            slots: fields.slots,
            context_tokens: fields.context_tokens,
            key: key.map(|key| Secret::new(key.0.clone())),
            dialect: fields.dialect.as_deref().and_then(Dialect::by_name),
            labels: fields.labels.clone(),
            expires_at: fields.expires_at,
            cost_acu_per_day: fields.cost_acu_per_day,
            prefill_rate: fields.prefill_rate,
            decode_rate: fields.decode_rate,
            claimed_cost_acu_per_day: fields.claimed_cost_acu_per_day,
            held: fields.held.clone(),
        }
    }

    /// As it is kept.
    pub(super) fn fields(&self) -> StatedFields {
        StatedFields {
            models: self.models.0.clone(),
            slots: self.slots,
            context_tokens: self.context_tokens,
            dialect: self.dialect.map(|dialect| dialect.name().to_owned()),
            labels: self.labels.clone(),
            expires_at: self.expires_at,
            cost_acu_per_day: self.cost_acu_per_day,
            prefill_rate: self.prefill_rate,
            decode_rate: self.decode_rate,
            claimed_cost_acu_per_day: self.claimed_cost_acu_per_day,
            held: self.held.clone(),
        }
    }

    /// Its credential as it is kept.
    pub(super) fn secret(&self) -> Option<ReplicaSecret> {
        self.key.as_ref().map(|key| ReplicaSecret(key.reveal().to_owned()))
    }
}

impl From<&StatedReplica> for Stated {
    fn from(replica: &StatedReplica) -> Self {
        Self {
            models: replica.models.clone(),
            slots: replica.slots,
            context_tokens: replica.context_tokens,
            key: replica.api_key.clone(),
            dialect: replica.dialect.and_then(|dialect| Dialect::by_name(dialect.name())),
            labels: replica.labels.clone(),
            expires_at: replica.expires_at.map(Moment::unix_seconds),
            cost_acu_per_day: replica.cost_acu_per_day,
            prefill_rate: replica.prefill_rate,
            decode_rate: replica.decode_rate,
            claimed_cost_acu_per_day: None,
            held: BTreeSet::new(),
        }
    }
}

/// A model that a replica serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// Its number in the scheduler.
    pub id: ModelId,
    /// The clients' name.
    pub name: Arc<str>,
    /// The replica's own name.
    pub own: Arc<str>,
}

/// What is known about a replica now, by statement or by probe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The engine, once known.
    pub dialect: Option<Dialect>,
    /// What the engine calls its build.
    pub build: Option<String>,
    /// Its models; empty until known.
    pub models: Vec<ServedModel>,
    /// Its routes.
    pub routes: RouteSet,
    /// Concurrent requests it takes.
    pub slots: u16,
    /// Tokens that prompt and answer of one slot must fit.
    pub context_tokens: Option<u32>,
    /// Parameters of its largest model, if the engine counts them.
    pub parameters: Option<u64>,
    /// Its list of slots says which of them work.
    pub lists_slots: bool,
    /// The replicas that write the same answers.
    pub group: Option<GroupId>,
    /// It can carry on an answer that another replica has begun: as it has shown, or others of its group.
    pub carries_on: bool,
    /// The same as it has shown itself; `None` until it was tried.
    pub has_carried_on: Option<bool>,
    /// It keeps what it streams, so that a lost stream can be read on.
    pub keeps_streams: bool,
}

/// A change of state.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Before.
    pub from: ReplicaState,
    /// Then.
    pub to: ReplicaState,
    /// Why.
    pub why: ChangeReason,
    /// What was wrong, if it left the service.
    pub detail: Option<String>,
}

/// The last probe.
#[derive(Clone, Debug)]
pub struct LastProbe {
    /// Milliseconds since 1970, when it ended.
    pub at_ms: u64,
    /// How long it took.
    pub took: Duration,
    /// What it found.
    pub finding: Finding,
}

/// What happened to a replica.
#[derive(Clone, Debug)]
pub struct Past {
    /// Where it stands.
    pub state: ReplicaState,
    /// The last changes, oldest first.
    pub history: VecDeque<Transition>,
    /// The last probe.
    pub probe: Option<LastProbe>,
    /// An operator drains it.
    pub draining: bool,
    /// It goes away once it is empty.
    pub leaving: bool,
    /// Milliseconds since 1970 when it came.
    pub added_ms: u64,
    /// When it came to this address, or this process began if that was later. Not by the wall clock, which may be set while it is away.
    pub(super) there_since: Timestamp,
    /// It has taken work at this address.
    pub(super) has_served: bool,
    /// When it last said anything by itself.
    pub heard_ms: Option<u64>,
    /// When it was last heard of or reached; before that, when this process began. By the same clock.
    pub(super) last_sign: Timestamp,
    /// It sends heartbeats.
    pub beats: bool,
    /// What it said last, beside where it is.
    pub said: Option<Said>,
    /// How it is, as it said last.
    pub report: Option<Reported>,
    /// What the last full probe learned, and a trial since.
    pub(super) learned: Option<Learned>,
    /// A trial of this engine has ended, with or without an answer.
    pub(super) tried: bool,
    /// How much may be asked of it, by its last report.
    pub limited: Limited,
    /// Why it has not proved itself yet, after a test question.
    pub(super) doubt: Option<Doubt>,
    /// When the scheduler believes that it goes away.
    pub(super) ends: Option<Timestamp>,
    /// Why what was learned does not fit what is stated.
    pub(super) mismatch: Option<Finding>,
    /// What the scheduler was told last.
    pub(super) told: Option<ReplicaSpec>,
}

impl Past {
    fn new(added_ms: u64, heard_ms: Option<u64>) -> Self {
        Self {
            state: ReplicaState::Joining,
            history: VecDeque::new(),
            probe: None,
            draining: false,
            leaving: false,
            added_ms,
            there_since: clock::now(),
            has_served: false,
            heard_ms,
            last_sign: clock::now(),
            beats: false,
            said: None,
            report: None,
            limited: Limited::default(),
            doubt: None,
            ends: None,
            learned: None,
            tried: false,
            mismatch: None,
            told: None,
        }
    }

    /// How fast the scheduler was told to think it, until it has measured.
    pub fn assumed(&self) -> Option<Rates> {
        self.told.as_ref()?.prior
    }

    /// It said something by itself.
    pub(super) fn hear(&mut self, now_ms: u64) {
        self.heard_ms = self.heard_ms.max(Some(now_ms));
        self.last_sign = clock::now();
    }

    /// It is at another address, where another engine may run; what happened so far stays.
    pub(super) fn begin_anew(&mut self, now_ms: u64) {
        self.hear(now_ms);
        (self.there_since, self.has_served) = (self.last_sign, false);
        (self.learned, self.tried, self.mismatch) = (None, false, None);
        (self.probe, self.said, self.report) = (None, None, None);
        self.doubt = None;
    }

    /// Notes a change of state; the oldest is forgotten.
    pub(super) fn note(&mut self, transition: Transition) {
        self.state = transition.to;
        self.has_served |= transition.to.takes_work();
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(transition);
    }
}

/// A suspect is probed at once; what is not cleared up after this long is no passing doubt.
const LONG_DOUBT_MS: u64 = 20_000;

/// 5 minutes: a phone loads its model in less.
const TIME_TO_SHOW: Duration = Duration::from_secs(300);

/// A phone that serves at one address.
pub struct Replica {
    /// Its number in the scheduler, never used again.
    pub id: ReplicaId,
    /// Its number in the store. Another one once it was removed and added again before it had emptied.
    pub(super) record: u32,
    /// Unique in the pool: the stated name, or made of the host. In metrics, logs and `x-huntgroup-replica`.
    pub label: Arc<str>,
    /// Where it is.
    pub url: ReplicaUrl,
    /// The connections to it.
    pub endpoint: Arc<Endpoint>,
    /// Sent to it as a bearer token.
    pub key: Option<Secret>,
    /// Where it comes from.
    pub source: ReplicaSource,
    /// What the operator says.
    pub stated: Stated,
    /// Who it is.
    pub origin: Origin,
    /// How it proved itself; `None`: not yet.
    pub proven: Option<Proof>,
    /// What it is reached through.
    pub relay: Arc<Relay>,
    facts: Arc<ArcSwap<Facts>>,
    past: Arc<Mutex<Past>>,
    /// Work is about to be sent to it.
    pub(super) work: Arc<Notify>,
}

/// A replica's connections, which accept nothing but the pinned key if there is one.
fn endpoint(url: &ReplicaUrl, origin: &Origin) -> Arc<Endpoint> {
    let endpoint = Endpoint::new(url.tls(), &url.host(), url.port());
    // What is no pin fits no key: a replica that is to be pinned is never asked without.
    let pin = origin.pin.as_ref().map(|pin| pin.parse().unwrap_or(Pin::NOBODY));
    Arc::new(match pin {
        Some(pin) => endpoint.pinned(pin),
        None => endpoint,
    })
}

/// The replica's own names of its models; `None`: they are not known.
pub(super) fn own_names(facts: &Facts) -> Option<Vec<String>> {
    let mut names: Vec<String> = facts.models.iter().map(|model| model.own.to_string()).collect();
    names.sort();
    names.dedup();
    (!names.is_empty()).then_some(names)
}

impl Replica {
    pub(super) fn new(record: &ReplicaRecord, url: ReplicaUrl, relay: Arc<Relay>) -> Self {
        let stated = Stated::from_record(&record.stated, record.api_key.as_ref());
        let facts = Facts { slots: stated.slots.unwrap_or(DEFAULT_SLOTS), ..Facts::default() };
        Self {
            id: ReplicaId(record.id),
            record: record.id,
            label: record.name.as_str().into(),
            endpoint: endpoint(&url, &record.origin),
            url,
            key: stated.key.clone(),
            source: record.source,
            stated,
            origin: record.origin.clone(),
            proven: record.proven.clone(),
            relay,
            facts: Arc::new(ArcSwap::from_pointee(facts)),
            past: Arc::new(Mutex::new(Past::new(record.created.0, record.origin.announced.map(|at| at.0)))),
            work: Arc::default(),
        }
    }

    /// The same replica with other statements: its connections, facts and past are shared.
    pub(super) fn restated(&self, record: &ReplicaRecord) -> Self {
        let stated = Stated::from_record(&record.stated, record.api_key.as_ref());
        Self {
            id: self.id,
            record: record.id,
            label: if *self.label == *record.name { Arc::clone(&self.label) } else { record.name.as_str().into() },
            url: self.url.clone(),
            // Another key opens another door: what is open was verified for the one before.
            endpoint: if record.origin.pin == self.origin.pin {
                Arc::clone(&self.endpoint)
            } else {
                endpoint(&self.url, &record.origin)
            },
            key: stated.key.clone(),
            source: record.source,
            stated,
            origin: record.origin.clone(),
            proven: record.proven.clone(),
            relay: Arc::clone(&self.relay),
            facts: Arc::clone(&self.facts),
            past: Arc::clone(&self.past),
            work: Arc::clone(&self.work),
        }
    }

    /// The same replica at another address: its facts and past are shared, its connections are not.
    pub(super) fn moved(&self, record: &ReplicaRecord, url: ReplicaUrl, relay: Arc<Relay>) -> Self {
        let endpoint = endpoint(&url, &record.origin);
        Self { endpoint, url, relay, ..self.restated(record) }
    }

    /// Says that a client's request is about to be sent to it: what we try there for ourselves ends.
    pub fn work_comes(&self) {
        self.work.notify_waiters();
    }

    /// What is known now.
    pub fn facts(&self) -> Arc<Facts> {
        self.facts.load_full()
    }

    pub(super) fn set_facts(&self, facts: Facts) {
        self.facts.store(Arc::new(facts));
    }

    /// The replica's own name for a model; `None` if it does not serve it.
    pub fn model_name(&self, model: ModelId) -> Option<Arc<str>> {
        self.facts.load().models.iter().find(|served| served.id == model).map(|served| Arc::clone(&served.own))
    }

    /// Whether it has proved itself, with the models that it serves now.
    pub fn is_proven(&self) -> bool {
        let Some(proof) = &self.proven else { return false };
        let shown = |own: &str| proof.models.as_ref().is_none_or(|models| models.iter().any(|model| model == own));
        self.facts.load().models.iter().all(|served| shown(&served.own))
    }

    /// Whether it came by itself, nobody vouches for it, and it has shown nothing yet: it neither served nor ever proved itself here.
    pub(super) fn is_newcomer(&self) -> bool {
        let by_itself = self.source == ReplicaSource::Registration && self.origin.verification < Verification::Assigned;
        let past = self.past();
        by_itself && self.proven.is_none() && !past.has_served && !past.leaving
    }

    /// Whether one that has shown nothing yet has had its time for it: it has failed the test questions, or was there for long enough.
    pub(super) fn has_had_its_time(&self, now: Timestamp) -> bool {
        let past = self.past();
        past.doubt.is_some() || now.since(past.there_since) >= TIME_TO_SHOW
    }

    /// What it would have proved by now: that it serves its models.
    pub(super) fn proof(&self, at: UnixMillis) -> Proof {
        Proof { at, models: own_names(&self.facts()) }
    }

    /// The engine, once known.
    pub fn dialect(&self) -> Option<Dialect> {
        self.facts.load().dialect.or(self.stated.dialect)
    }

    /// Its routes; empty until known.
    pub fn routes(&self) -> RouteSet {
        self.facts.load().routes
    }

    /// The replica's bearer token, if it needs one.
    pub fn bearer(&self) -> Option<&str> {
        self.key.as_ref().map(Secret::reveal)
    }

    /// The replicas that write the same answers as it does, as the scheduler was told; `None` until that is known.
    pub fn group(&self) -> Option<GroupId> {
        self.past().told.as_ref()?.group
    }

    /// The job that it runs, or what an operator's label `deployment_id` or `deployment` says.
    pub fn deployment(&self) -> Option<&str> {
        let labels = &self.stated.labels;
        let label = || labels.get("deployment_id").or_else(|| labels.get("deployment")).map(String::as_str);
        self.origin.deployment.as_deref().or_else(label).filter(|name| !name.is_empty())
    }

    /// What happened so far. Held only to read or write it: never across an await.
    pub fn past(&self) -> MutexGuard<'_, Past> {
        // Plain data, valid after every assignment.
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the scheduler gives it work, as far as its last change says.
    pub fn takes_work(&self) -> bool {
        let past = self.past();
        past.state.takes_work() && past.limited.level() != Limit::Paused
    }

    /// Whether it can be counted on: it takes work, and is not in doubt for longer than a probe needs to clear that up. A
    /// suspect that the pool keeps as its last resort is tried, but promises nothing.
    pub(super) fn is_sound(&self, now_ms: u64) -> bool {
        let past = self.past();
        match past.state {
            _ if past.limited.level() == Limit::Paused => false,
            ReplicaState::Ready | ReplicaState::Probation => true,
            ReplicaState::Suspect => past.history.back().is_some_and(|last| now_ms < last.at_ms + LONG_DOUBT_MS),
            _ => false,
        }
    }

    /// What a phone says that it costs, while nobody else says anything about that.
    pub fn claimed_cost(&self) -> Option<f64> {
        self.stated.claimed_cost_acu_per_day.filter(|_| self.stated.cost_acu_per_day.is_none())
    }

    /// What it costs, as far as that is known.
    pub fn price(&self) -> Price {
        let slots = self.stated.slots.unwrap_or(self.facts.load().slots).max(1);
        let deployment = self.origin.deployment.as_deref().map(Arc::from);
        Price { acu_per_day: self.stated.cost_acu_per_day, slots, deployment }
    }

    /// As the scheduler sees it; `kept` is how fast it was before a restart.
    pub(super) fn spec(&self, kept: Option<&Speed>) -> ReplicaSpec {
        let facts = self.facts.load();
        ReplicaSpec {
            models: facts.models.iter().map(|served| served.id).collect(),
            routes: facts.routes,
            slots: self.stated.slots.unwrap_or(facts.slots).max(1),
            context_tokens: self.stated.context_tokens.or(facts.context_tokens),
            relay: self.relay.id,
            prior: prior(&self.stated, kept, &facts),
            carries_on: facts.carries_on,
            group: facts.group,
            release: self.dialect().map_or(Release::AtOnce, |dialect| dialect.release(facts.lists_slots)),
        }
    }
}
