//! What the admin API shows. Types of their own: the inner ones may change, these are a promise.
//!
//! Moments are seconds since 1970, lengths end in their unit, absent things are null.

use std::collections::BTreeMap;

use scheduler::{Limit, Rates, ReplicaState};
use serde::Serialize;
use store::{AuditRecord, KeyRecord};
use utoipa::ToSchema;

use super::AppState;
use crate::fleet::{LastProbe, PhoneReport, Replica, Reported, Said, Transition, route_names};

/// A list.
#[derive(Serialize, ToSchema)]
pub(super) struct ReplicaList {
    /// Always `list`.
    pub(super) object: &'static str,
    /// All replicas, by number.
    pub(super) data: Vec<ReplicaView>,
}

/// A replica.
#[derive(Serialize, ToSchema)]
pub struct ReplicaView {
    /// Its number.
    pub id: u32,
    /// Unique; also in metrics, logs and `x-huntgroup-replica`.
    pub name: String,
    /// Its address.
    pub url: String,
    /// `joining`, `loading`, `quarantine`, `ready`, `suspect`, `out`, `probation`, `draining` or `misconfigured`.
    pub state: &'static str,
    /// Seconds since it is in this state.
    pub state_for_s: f64,
    /// Why it is in this state.
    pub state_reason: &'static str,
    /// Whether it gets new work, now or when a slot frees.
    pub takes_work: bool,
    /// It was in the pool before the gateway was started, and has not answered since.
    pub missing: bool,
    /// What keeps it from working, and what to do about it: the last probe's finding, or how its last requests failed. Of one that works:
    /// what its phone said within the last hour is wrong.
    pub problem: Option<String>,
    /// Seconds until it may be tried again.
    pub penalty_s: Option<f64>,
    /// Seconds until it gets new work, when it said that it is full.
    pub rests_s: Option<f64>,
    /// Models by the name that clients use.
    pub models: Vec<String>,
    /// The replica's own names, where they differ.
    pub model_names: BTreeMap<String, String>,
    /// Routes it serves.
    pub routes: Vec<&'static str>,
    /// Concurrent requests it takes.
    pub slots: u16,
    /// Of those, usable now (fewer on probation).
    pub usable_slots: u16,
    /// Requests running there.
    pub in_flight: usize,
    /// Slots of requests that were broken off, which may still work there.
    pub lingering: u16,
    /// Slots that work for others: seen in the engine's own list, twice in a row.
    pub foreign: u16,
    /// Tokens that prompt and answer of one slot must fit.
    pub context_tokens: Option<u32>,
    /// `llama`, `qvac`, `mnn`, `mnn_app`, `laya` or `openai`, once known.
    pub dialect: Option<&'static str>,
    /// What the engine calls its build.
    pub build: Option<String>,
    /// The same for replicas that write the same answers, word by word, where nothing is drawn by lot; `null` if that is not known.
    pub group: Option<String>,
    /// Whether it carries on an answer that another has begun; `null` until it was tried: its group's word counts meanwhile.
    pub carries_on: Option<bool>,
    /// Prompt tokens a second, measured from traffic.
    pub prefill_tokens_per_second: Option<f64>,
    /// Answer tokens a second, measured from traffic.
    pub decode_tokens_per_second: Option<f64>,
    /// What is assumed until it is measured: stated, measured before a restart, or typical of its model's size.
    pub assumed: Option<AssumedView>,
    /// Whole answers since it came up.
    pub answers: u64,
    /// Failed attempts since it came up.
    pub failures: u64,
    /// Attempts by how they ended, since this process began: `ok`, and the kinds of failure of `huntgroup_attempts_total`.
    pub attempts: BTreeMap<&'static str, u64>,
    /// An operator drains it.
    pub draining: bool,
    /// It is drained: nothing runs there, and nothing new will.
    pub drained: bool,
    /// It goes away once it is empty.
    pub removing: bool,
    /// Who stated it: `config`, `flag`, `admin`, `import`, `registration` or `chain`.
    pub source: &'static str,
    /// How well it is known who it is: `none` (an operator says so), `token`, `signed` or `assigned` (by a key of the chain).
    pub verification: &'static str,
    /// The job that it runs, or what its label `deployment_id` or `deployment` says.
    pub deployment: Option<String>,
    /// The phone's address on the chain.
    pub processor: Option<String>,
    /// Its Ed25519 key, in hex.
    pub public_key: Option<String>,
    /// Its certificate must carry a key that is known.
    pub pin: bool,
    /// When it last announced itself; of what it signed, the signed moment.
    pub announced_at: Option<f64>,
    /// When it last said anything by itself.
    pub heard_at: Option<f64>,
    /// It used to send heartbeats, and has missed three.
    pub silent: bool,
    /// What it said last, beside where it is.
    pub last_event: Option<SaidView>,
    /// How much less is asked of it, by what its phone says about itself; null: nothing limits it.
    pub limit: Option<LimitView>,
    /// How its phone is, as it said last.
    pub report: Option<ReportView>,
    /// When it showed what it can do, or an operator let it in; null: not yet at this address.
    pub proven_at: Option<f64>,
    /// Seconds until its deployment ends; negative once it is past.
    pub ends_in_s: Option<f64>,
    /// When it came into the pool.
    pub added_at: u64,
    /// When its deployment ends.
    pub expires_at: Option<u64>,
    /// What it costs.
    pub cost_acu_per_day: Option<f64>,
    /// What it says that it costs, where nobody vouches for that: it counts in no amount until an operator states a price, or the
    /// chain lists the phone.
    pub claimed_cost_acu_per_day: Option<f64>,
    /// What an operator states about it though it came by itself: what it says of these itself changes nothing.
    pub held: Vec<String>,
    /// Free words.
    pub labels: BTreeMap<String, String>,
    /// Whether a key is sent to it. The key itself is never shown.
    pub has_api_key: bool,
    /// What the operator stated; the rest was found by probing.
    pub stated: StatedView,
    /// The last probe.
    pub last_probe: Option<ProbeView>,
    /// The last changes of state, oldest first.
    pub history: Vec<TransitionView>,
}

/// How much less is asked of a replica.
#[derive(Serialize, ToSchema)]
pub struct LimitView {
    /// `fewer`: half of its slots, and only when others are not free soon; `paused`: nothing new.
    pub level: &'static str,
    /// Why.
    pub reason: String,
}

/// How a phone is. What it does not tell is null.
#[derive(Serialize, ToSchema)]
pub struct ReportView {
    /// When it said so.
    pub at: f64,
    /// Its battery's charge, in percent.
    pub battery: Option<f64>,
    /// Its battery is being charged.
    pub charging: Option<bool>,
    /// The battery's temperature, in degrees Celsius.
    pub temperature: Option<f64>,
    /// Its network is paid for by volume.
    pub metered: Option<bool>,
    /// Somebody looks at it.
    pub screen_on: Option<bool>,
}

impl From<&Reported> for ReportView {
    fn from(reported: &Reported) -> Self {
        let PhoneReport { battery, charging, temperature, metered, screen_on } = reported.report;
        Self { at: seconds(reported.at_ms), battery, charging, temperature, metered, screen_on }
    }
}

/// What a phone said.
#[derive(Serialize, ToSchema)]
pub struct SaidView {
    /// When.
    pub at: f64,
    /// The event, in its own word.
    pub event: String,
    /// What is wrong, in its own words.
    pub problem: Option<String>,
}

impl From<&Said> for SaidView {
    fn from(said: &Said) -> Self {
        Self { at: seconds(said.at_ms), event: said.event.clone(), problem: said.problem.clone() }
    }
}

/// What the operator stated about a replica.
#[derive(Serialize, ToSchema)]
pub struct StatedView {
    /// Models, with the replica's own name where stated.
    pub models: BTreeMap<String, Option<String>>,
    /// Slots.
    pub slots: Option<u16>,
    /// Context.
    pub context_tokens: Option<u32>,
    /// Engine.
    pub dialect: Option<&'static str>,
    /// Prompt tokens a second.
    pub prefill_rate: Option<f64>,
    /// Answer tokens a second.
    pub decode_rate: Option<f64>,
}

/// A speed that is assumed of a replica, one request alone.
#[derive(Serialize, ToSchema)]
pub struct AssumedView {
    /// Prompt tokens a second.
    pub prefill_tokens_per_second: f64,
    /// Answer tokens a second.
    pub decode_tokens_per_second: f64,
}

impl From<Rates> for AssumedView {
    fn from(rates: Rates) -> Self {
        Self { prefill_tokens_per_second: rates.prefill, decode_tokens_per_second: rates.decode }
    }
}

/// A probe.
#[derive(Serialize, ToSchema)]
pub struct ProbeView {
    /// When it ended.
    pub at: f64,
    /// How long it took.
    pub took_ms: f64,
    /// One word.
    pub result: &'static str,
    /// A sentence.
    pub detail: String,
}

/// A change of state.
#[derive(Serialize, ToSchema)]
pub struct TransitionView {
    /// When.
    pub at: f64,
    /// Before.
    pub from: &'static str,
    /// Then.
    pub to: &'static str,
    /// Why.
    pub reason: &'static str,
    /// What was wrong, if it left the service.
    pub detail: Option<String>,
}

fn seconds(at_ms: u64) -> f64 {
    at_ms as f64 / 1e3
}

impl From<&LastProbe> for ProbeView {
    fn from(probe: &LastProbe) -> Self {
        Self {
            at: seconds(probe.at_ms),
            took_ms: probe.took.as_secs_f64() * 1e3,
            result: probe.finding.name(),
            detail: probe.finding.to_string(),
        }
    }
}

impl From<&Transition> for TransitionView {
    fn from(change: &Transition) -> Self {
        Self {
            at: seconds(change.at_ms),
            from: change.from.name(),
            to: change.to.name(),
            reason: change.why.name(),
            detail: change.detail.clone(),
        }
    }
}

impl ReplicaView {
    /// A replica as it is now.
    pub(super) fn new(replica: &Replica, app: &AppState) -> Self {
        let view = app.dispatcher.replica(replica.id);
        let view = view.as_ref();
        let (facts, past, now) = (replica.facts(), replica.past().clone(), crate::clock::now());
        let state = view.map_or(past.state, |view| view.state);
        let in_flight = view.map_or(0, |view| view.running.len());
        let is_well = matches!(state, ReplicaState::Ready | ReplicaState::Probation | ReplicaState::Draining);
        let foreign = view.map_or(0, |view| view.foreign);
        let stated = &replica.stated;
        Self {
            id: replica.id.0,
            name: replica.label.to_string(),
            url: replica.url.to_string(),
            state: state.name(),
            state_for_s: view.map_or(0.0, |view| now.since(view.since).as_secs_f64()),
            state_reason: view.map_or("", |view| view.why.name()),
            takes_work: view.is_some_and(scheduler::ReplicaView::takes_work),
            missing: app.fleet.is_missing(replica),
            problem: if is_well { app.fleet.hindrance(replica, foreign) } else { app.fleet.complaint(replica) },
            penalty_s: view.and_then(|view| view.penalty_until).map(|until| until.since(now).as_secs_f64()),
            rests_s: view
                .and_then(|view| view.rests_until)
                .filter(|until| *until > now)
                .map(|until| until.since(now).as_secs_f64()),
            models: facts.models.iter().map(|model| model.name.to_string()).collect(),
            model_names: facts
                .models
                .iter()
                .filter(|model| model.name != model.own)
                .map(|model| (model.name.to_string(), model.own.to_string()))
                .collect(),
            routes: route_names(facts.routes),
            slots: view.map_or(facts.slots, |view| view.slots),
            usable_slots: view.map_or(0, |view| view.usable_slots),
            in_flight,
            lingering: view.map_or(0, |view| view.lingering),
            foreign,
            context_tokens: stated.context_tokens.or(facts.context_tokens),
            dialect: replica.dialect().map(|dialect| dialect.name()),
            build: facts.build.clone(),
            group: facts.group.map(|group| format!("{:016x}", group.0)),
            carries_on: facts.has_carried_on,
            prefill_tokens_per_second: view.and_then(|view| view.prefill_rate),
            decode_tokens_per_second: view.and_then(|view| view.decode_rate),
            assumed: past.assumed().map(AssumedView::from),
            answers: view.map_or(0, |view| view.outcomes.0),
            failures: view.map_or(0, |view| view.outcomes.1),
            attempts: app.telemetry.attempts(&replica.label).into_iter().collect(),
            draining: past.draining,
            drained: past.draining && in_flight == 0,
            removing: past.leaving,
            source: replica.source.name(),
            verification: replica.origin.verification.name(),
            deployment: replica.deployment().map(str::to_owned),
            processor: replica.origin.processor.clone(),
            public_key: replica.origin.public_key.clone(),
            pin: replica.origin.pin.is_some(),
            announced_at: replica.origin.announced.map(|at| seconds(at.0)),
            heard_at: past.heard_ms.map(seconds),
            silent: app.fleet.is_silent(replica),
            last_event: past.said.as_ref().map(SaidView::from),
            limit: (past.limited.level() != Limit::None)
                .then(|| LimitView { level: past.limited.level().name(), reason: past.limited.reason.clone() }),
            report: past.report.as_ref().map(ReportView::from),
            proven_at: replica.proven.as_ref().map(|proof| seconds(proof.at.0)),
            ends_in_s: stated.expires_at.map(|end| end as f64 - crate::clock::unix().as_secs() as f64),
            added_at: past.added_ms / 1000,
            expires_at: stated.expires_at,
            cost_acu_per_day: stated.cost_acu_per_day,
            claimed_cost_acu_per_day: replica.claimed_cost(),
            held: stated.held.iter().cloned().collect(),
            labels: stated.labels.clone(),
            has_api_key: replica.key.is_some(),
            stated: StatedView {
                models: stated.models.0.clone(),
                slots: stated.slots,
                context_tokens: stated.context_tokens,
                dialect: stated.dialect.map(|dialect| dialect.name()),
                prefill_rate: stated.prefill_rate,
                decode_rate: stated.decode_rate,
            },
            last_probe: past.probe.as_ref().map(ProbeView::from),
            history: past.history.iter().map(TransitionView::from).collect(),
        }
    }
}

/// A replica after a change.
#[derive(Serialize, ToSchema)]
pub(super) struct ChangedView {
    /// Whether anything is different. False: it was so already.
    pub(super) changed: bool,
    /// As it is now.
    #[serde(flatten)]
    pub(super) replica: ReplicaView,
}

/// What happened to a removed replica.
#[derive(Serialize, ToSchema)]
pub(super) struct RemovedView {
    /// Its number.
    pub(super) id: u32,
    /// It is gone. Otherwise it is draining and goes once it is empty.
    pub(super) deleted: bool,
    /// What brings it back.
    pub(super) note: Option<String>,
}

/// What became of an imported list.
#[derive(Serialize, ToSchema)]
pub struct Imported {
    /// New replicas.
    pub added: usize,
    /// Replicas that are stated differently now.
    pub changed: usize,
    /// Replicas that were there, just so.
    pub unchanged: usize,
    /// What could not be taken, with the reason.
    pub refused: Vec<RefusedItem>,
}

/// An element of an imported list that could not be taken.
#[derive(Serialize, ToSchema)]
pub struct RefusedItem {
    /// Its place in the list, from 0.
    pub index: usize,
    /// Why.
    pub reason: String,
}

/// A list of keys.
#[derive(Serialize, ToSchema)]
pub(super) struct KeyList {
    /// Always `list`.
    pub(super) object: &'static str,
    /// All keys, revoked ones too.
    pub(super) data: Vec<KeyView>,
}

/// A tenant's key. The key itself was shown once, when it was made.
#[derive(Serialize, ToSchema)]
pub struct KeyView {
    /// Its number.
    pub id: u32,
    /// Whose.
    pub tenant: String,
    /// Its first letters.
    pub prefix: String,
    /// When it was made.
    pub created_at: u64,
    /// When it stopped working.
    pub revoked_at: Option<u64>,
    /// Requests a minute; null: as the tenant.
    pub requests_per_minute: Option<u32>,
    /// Tokens a minute; null: as the tenant.
    pub tokens_per_minute: Option<u32>,
    /// Requests running or waiting at once; null: as the tenant.
    pub max_in_flight: Option<u32>,
    /// Requests waiting at once; null: as the tenant.
    pub max_queued: Option<u32>,
    /// Models it may use; empty: as the tenant.
    pub models: Vec<String>,
    /// How urgent its requests are that do not say; null: as the tenant.
    pub class: Option<String>,
    /// The most urgent class it may ask for; null: as the tenant.
    pub max_class: Option<String>,
}

impl From<&KeyRecord> for KeyView {
    fn from(record: &KeyRecord) -> Self {
        let key = &record.key;
        Self {
            id: record.id,
            tenant: key.tenant.clone(),
            prefix: key.prefix.clone(),
            created_at: record.created.0 / 1000,
            revoked_at: record.revoked.map(|at| at.0 / 1000),
            requests_per_minute: key.limits.requests_per_minute,
            tokens_per_minute: key.limits.tokens_per_minute,
            max_in_flight: key.limits.max_in_flight,
            max_queued: key.limits.max_queued,
            models: key.models.clone(),
            class: key.class.clone(),
            max_class: key.max_class.clone(),
        }
    }
}

/// A key that was made just now.
#[derive(Serialize, ToSchema)]
pub struct NewKeyView {
    /// The key. It is not kept and not shown again.
    pub key: String,
    /// What is kept.
    #[serde(flatten)]
    pub kept: KeyView,
}

/// A list of live requests.
#[derive(Serialize, ToSchema)]
pub(super) struct RequestList {
    /// Always `list`.
    pub(super) object: &'static str,
    /// The oldest first.
    pub(super) data: Vec<RequestView>,
}

/// A request that is being answered.
#[derive(Serialize, ToSchema)]
pub struct RequestView {
    /// As in `x-request-id`.
    pub id: String,
    /// Who asks.
    pub tenant: String,
    /// What for.
    pub model: String,
    /// The route.
    pub route: &'static str,
    /// `interactive`, `standard` or `batch`.
    pub class: &'static str,
    /// `queued`, `prefill` (sent, nothing came yet) or `decode`.
    pub phase: &'static str,
    /// Where it runs.
    pub replica: Option<String>,
    /// Tries so far.
    pub attempts: u32,
    /// Since it arrived.
    pub age_s: f64,
    /// Pieces of content so far.
    pub content_events: u64,
}

/// What was done about a request.
#[derive(Serialize, ToSchema)]
pub(super) struct CancelledView {
    /// Which.
    pub(super) id: String,
    /// It was told to end.
    pub(super) cancelled: bool,
}

/// The audit trail.
#[derive(Serialize, ToSchema)]
pub(super) struct AuditList {
    /// Always `list`.
    pub(super) object: &'static str,
    /// The newest first.
    pub(super) data: Vec<AuditView>,
    /// There is more: ask with `before` set to the last number.
    pub(super) has_more: bool,
}

/// One change that was made.
#[derive(Serialize, ToSchema)]
pub(super) struct AuditView {
    /// Its number.
    pub(super) id: u64,
    /// When.
    pub(super) at: f64,
    /// Who.
    pub(super) who: String,
    /// What.
    pub(super) action: String,
    /// To what.
    pub(super) target: String,
    /// What is different.
    #[schema(value_type = Object)]
    pub(super) detail: serde_json::Value,
}

impl From<AuditRecord> for AuditView {
    fn from(record: AuditRecord) -> Self {
        let AuditRecord { id, at, who, action, target, detail } = record;
        Self { id, at: seconds(at.0), who, action, target, detail }
    }
}

/// What a reload changed.
#[derive(Serialize, ToSchema)]
pub(super) struct ReloadView {
    /// Keys whose new values are in force.
    pub(super) applied: Vec<String>,
    /// Keys whose new values wait for a restart.
    pub(super) needs_restart: Vec<String>,
}

/// How the process is.
#[derive(Serialize, ToSchema)]
pub(super) struct HealthView {
    /// `ok`, or why not.
    pub(super) status: &'static str,
}

/// An error, in the shape of the public API.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorView {
    /// It.
    pub(super) error: ErrorBody,
}

/// What is wrong.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorBody {
    /// For people.
    pub(super) message: String,
    /// `invalid_request_error` or `server_error`.
    pub(super) r#type: String,
    /// The field, if it is one.
    pub(super) param: Option<String>,
    /// For programs.
    pub(super) code: Option<String>,
}
