//! The state of everything at one moment, as the live feed shows it. One pass over replicas, requests and attempts each.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use scheduler::{
    AttemptView, Class, Limit, ModelId, ReplicaId, ReplicaState, RequestId, RequestView, Snapshot, Timestamp,
};

use super::{
    super::AppState,
    view::{
        BatchNow, BatchesNow, ChainTrouble, ClassQueue, Doing, LimitNow, MAX_MODELS, Memory, ModelQueue, QueueNow,
        ReplicaNow, RequestNow, RequestsNow, States, TenantQueue, Text, Totals, rounded,
    },
};
use crate::{
    clock,
    fleet::{Comeback, Replica},
    live::LiveRequest,
};

/// Requests shown of one replica.
pub(super) const MAX_SLOTS_SHOWN: usize = 16;
/// Requests shown of all.
const MAX_REQUESTS: usize = 200;
/// Tenants shown that wait.
const MAX_TENANTS: usize = 20;
/// Models shown.
const MAX_QUEUES: usize = 256;
/// What replicas are counted as that would take work, but are spared.
const PAUSED: &str = "paused";
/// Batches shown.
const MAX_BATCHES: usize = 100;

/// What is shown.
pub(super) struct Look {
    pub(super) replicas: BTreeMap<ReplicaId, ReplicaNow>,
    pub(super) totals: Totals,
    pub(super) queue: QueueNow,
    pub(super) requests: RequestsNow,
}

/// The time of day of the gateway's timestamps. It must not jitter, or everything would seem to change at every look: it is
/// taken anew only when the time of day was set.
#[derive(Clone, Copy, Default)]
pub(super) struct Calendar {
    /// Seconds since 1970 at timestamp 0.
    zero: f64,
}

impl Calendar {
    pub(super) fn refresh(&mut self) {
        let zero = clock::unix().as_secs_f64() - passed(clock::now());
        if (zero - self.zero).abs() > 1.0 {
            self.zero = zero;
        }
    }

    /// Seconds since 1970, to the tenth.
    pub(super) fn of(self, at: Timestamp) -> f64 {
        ((self.zero + passed(at)) * 10.0).round() / 10.0
    }
}

/// The world's seconds since timestamp 0.
fn passed(at: Timestamp) -> f64 {
    at.since(Timestamp::ZERO).as_secs_f64() / clock::pace().unwrap_or(1.0)
}

pub(super) fn look(app: &AppState, calendar: Calendar) -> Look {
    let (snapshot, requests, attempts) = app.dispatcher.look();
    let live = app.live.list();
    let by_number: HashMap<RequestId, &LiveRequest> = live.iter().map(|request| (request.request, request)).collect();
    let scheduled: HashMap<RequestId, &RequestView> = requests.iter().map(|view| (view.request, view)).collect();
    let fleet: HashMap<ReplicaId, Arc<Replica>> =
        app.fleet.replicas().into_iter().map(|replica| (replica.id, replica)).collect();
    let doing = doing(&attempts, &by_number, calendar);
    let replicas = replicas(app, &snapshot, &fleet, doing, calendar);
    Look {
        totals: totals(app, &snapshot),
        queue: queue(app, &snapshot, &fleet, &live, &scheduled),
        requests: requests_now(&live, &scheduled, &fleet, calendar),
        replicas,
    }
}

fn doing(
    attempts: &[AttemptView],
    live: &HashMap<RequestId, &LiveRequest>,
    calendar: Calendar,
) -> HashMap<ReplicaId, Vec<Doing>> {
    let mut doing: HashMap<ReplicaId, Vec<Doing>> = HashMap::new();
    for attempt in attempts {
        let Some(request) = live.get(&attempt.request) else { continue };
        let there = doing.entry(attempt.replica).or_default();
        if there.len() < MAX_SLOTS_SHOWN {
            there.push(Doing {
                request: Text::from(&request.id),
                phase: if attempt.writes { "decode" } else { "prefill" },
                class: request.class.name(),
                tenant: Text::from(&request.tenant),
                model: Text::from(&request.model),
                since: calendar.of(attempt.started),
            });
        }
    }
    doing
}

fn replicas(
    app: &AppState,
    snapshot: &Snapshot,
    fleet: &HashMap<ReplicaId, Arc<Replica>>,
    mut doing: HashMap<ReplicaId, Vec<Doing>>,
    calendar: Calendar,
) -> BTreeMap<ReplicaId, ReplicaNow> {
    let (now, chain_is_read) = (clock::now(), app.chain.status().node.is_some());
    let shown = |view: &scheduler::ReplicaView| {
        let replica = fleet.get(&view.replica)?;
        let (facts, stated) = (replica.facts(), &replica.stated);
        let (draining, removing, limit, assumed, finding) = {
            let past = replica.past();
            let level = past.limited.level();
            let limit = (level != Limit::None).then(|| (level, past.limited.reason.clone()));
            let finding = past.probe.as_ref().map(|probe| probe.finding.name());
            (past.draining, past.leaving, limit, past.assumed(), finding)
        };
        let is_well = matches!(view.state, ReplicaState::Ready | ReplicaState::Probation | ReplicaState::Draining);
        let problem = if is_well { app.fleet.hindrance(replica, view.foreign) } else { app.fleet.complaint(replica) };
        let penalty = view.penalty_until.filter(|until| *until > now);
        Some((
            view.replica,
            ReplicaNow {
                id: view.replica.0,
                name: Text::from(&replica.label),
                url: Text::from(replica.url.to_string()),
                state: view.state.name(),
                since_s: calendar.of(view.since),
                reason: view.why.name(),
                takes_work: view.takes_work(),
                missing: app.fleet.is_missing(replica),
                finding: finding.filter(|_| problem.is_some()),
                problem: problem.map(Text::from),
                problem_next: penalty.map(|_| Text::from("it is tried again by itself".to_owned())),
                slots: view.slots,
                usable: view.usable_slots,
                busy: view.running.len(),
                lingering: view.lingering,
                foreign: view.foreign,
                models: facts.models.iter().take(MAX_MODELS).map(|model| Text::from(&model.name)).collect(),
                prefill: view.prefill_rate.map(rounded),
                decode: view.decode_rate.map(rounded),
                prefill_assumed: assumed.map(|rates| rounded(rates.prefill)),
                decode_assumed: assumed.map(|rates| rounded(rates.decode)),
                answers: view.outcomes.0,
                failures: view.outcomes.1,
                source: replica.source.name(),
                comes_back: app.fleet.comes_back(replica, chain_is_read).into_iter().map(Comeback::name).collect(),
                verification: replica.origin.verification.name(),
                deployment: replica.deployment().map(|name| Text::from(name.to_owned())),
                limit: limit.map(|(level, reason)| LimitNow { level: level.name(), reason: Text::from(reason) }),
                expires_at: stated.expires_at,
                cost: stated.cost_acu_per_day,
                draining,
                drained: draining && view.running.is_empty(),
                removing,
                dialect: replica.dialect().map(|dialect| dialect.name()),
                penalty_until: penalty.map(|until| calendar.of(until)),
                doing: doing.remove(&view.replica).unwrap_or_default(),
            },
        ))
    };
    snapshot.replicas.iter().filter_map(shown).collect()
}

fn totals(app: &AppState, snapshot: &Snapshot) -> Totals {
    let names = ReplicaState::ALL.iter().map(|state| state.name()).chain([PAUSED]);
    let mut states = States(names.map(|name| (name, 0)).collect());
    let (mut slots, mut busy, mut free) = (0, 0, 0);
    for replica in &snapshot.replicas {
        let standing = if replica.is_paused() { PAUSED } else { replica.state.name() };
        if let Some((_, count)) = states.0.iter_mut().find(|(name, _)| *name == standing) {
            *count += 1;
        }
        busy += replica.running.len();
        if replica.takes_work() {
            let usable = usize::from(replica.usable_slots);
            let taken = replica.running.len() + usize::from(replica.lingering) + usize::from(replica.foreign);
            slots += usable;
            free += usable.saturating_sub(taken);
        }
    }
    let whole = |bytes: u64| bytes >> 20 << 20;
    Totals {
        replicas: states,
        slots,
        busy,
        free,
        in_flight: app.in_flight.count(),
        queued: snapshot.queued.values().sum(),
        relays_down: app.fleet.relays_down(snapshot),
        chain: chain(app),
        store_ok: app.store.is_well() && app.batches.is_well(),
        draining: app.in_flight.is_draining(),
        memory: app.pressure.memory().map(|(used, limit)| Memory { used: whole(used), limit: whole(limit) }),
    }
}

fn chain(app: &AppState) -> Option<ChainTrouble> {
    let status = app.chain.status();
    let seen_at = status.seen_ms.map(|ms| (ms / 1000) as f64);
    status.trouble().map(|why| ChainTrouble { why: Text::from(why), partial: status.failures == 0, seen_at })
}

/// How many wait, and since when the oldest does.
#[derive(Clone, Copy, Default)]
struct Waiting {
    count: usize,
    oldest: Duration,
}

impl Waiting {
    fn add(&mut self, age: Duration) {
        self.count += 1;
        self.oldest = self.oldest.max(age);
    }

    fn oldest_s(self) -> f64 {
        self.oldest.as_secs_f64().floor()
    }
}

/// What can be counted on for a model.
#[derive(Clone, Copy, Default)]
struct Served {
    ready: usize,
    slots: usize,
}

fn queue(
    app: &AppState,
    snapshot: &Snapshot,
    fleet: &HashMap<ReplicaId, Arc<Replica>>,
    live: &[LiveRequest],
    scheduled: &HashMap<RequestId, &RequestView>,
) -> QueueNow {
    let (mut classes, mut tenants) = ([Waiting::default(); Class::ALL.len()], HashMap::<&str, Waiting>::new());
    for request in live {
        let Some(view) = scheduled.get(&request.request).filter(|view| view.running.is_none()) else { continue };
        classes[view.class as usize].add(view.age);
        tenants.entry(&request.tenant).or_default().add(view.age);
    }
    let mut models: BTreeMap<ModelId, Served> = BTreeMap::new();
    for view in &snapshot.replicas {
        let Some(replica) = fleet.get(&view.replica) else { continue };
        for model in &replica.facts().models {
            let served = models.entry(model.id).or_default();
            served.ready += usize::from(view.is_ready());
            served.slots += if view.takes_work() { usize::from(view.usable_slots) } else { 0 };
        }
    }
    for (model, _) in snapshot.queued.keys() {
        models.entry(*model).or_default();
    }
    let estimate = |model: ModelId, class| snapshot.waits.get(&(model, class)).map(|wait| rounded(wait.as_secs_f64()));
    let of_class = |class: Class| ClassQueue {
        class: class.name(),
        waiting: classes[class as usize].count,
        oldest_s: (classes[class as usize].count > 0).then(|| classes[class as usize].oldest_s()),
        estimate_s: models.keys().filter_map(|model| estimate(*model, class)).reduce(f64::max),
    };
    let waiting = |model| Class::ALL.iter().filter_map(|class| snapshot.queued.get(&(model, *class))).sum();
    let of_model = |(model, served): (&ModelId, &Served)| {
        Some(ModelQueue {
            model: Text::from(&app.fleet.model_name(*model)?),
            waiting: waiting(*model),
            estimate_s: estimate(*model, Class::Standard),
            ready: served.ready,
            slots: served.slots,
        })
    };
    let mut by_model: Vec<_> = models.iter().filter_map(of_model).collect();
    by_model.sort_by(|a, b| a.model.cmp(&b.model));
    by_model.truncate(MAX_QUEUES);
    let (by_tenant, others) = by_tenant(tenants);
    let refused_after_s = snapshot.no_replica_wait.as_secs_f64();
    QueueNow { by_class: Class::ALL.map(of_class).into(), by_tenant, others, by_model, refused_after_s }
}

/// The tenants of which most wait, and how many wait of all others.
fn by_tenant(waiting: HashMap<&str, Waiting>) -> (Vec<TenantQueue>, usize) {
    let mut all: Vec<_> = waiting.into_iter().collect();
    all.sort_by(|(a, one), (b, other)| other.count.cmp(&one.count).then_with(|| a.cmp(b)));
    let others = all.iter().skip(MAX_TENANTS).map(|(_, waiting)| waiting.count).sum();
    let shown = |(tenant, waiting): (&str, Waiting)| TenantQueue {
        tenant: Text::from(tenant.to_owned()),
        waiting: waiting.count,
        oldest_s: waiting.oldest_s(),
    };
    (all.into_iter().take(MAX_TENANTS).map(shown).collect(), others)
}

fn requests_now(
    live: &[LiveRequest],
    scheduled: &HashMap<RequestId, &RequestView>,
    fleet: &HashMap<ReplicaId, Arc<Replica>>,
    calendar: Calendar,
) -> RequestsNow {
    let shown = |request: &LiveRequest| {
        let view = scheduled.get(&request.request);
        let running = view.and_then(|view| view.running);
        let content_events = request.content_events.load(Ordering::Relaxed);
        RequestNow {
            id: Text::from(&request.id),
            tenant: Text::from(&request.tenant),
            model: Text::from(&request.model),
            route: request.route,
            class: request.class.name(),
            phase: request.phase(running.is_some()),
            replica: running.and_then(|(_, id)| fleet.get(&id)).map(|replica| Text::from(&replica.label)),
            since: calendar.of(request.started),
            attempts: view.map_or(0, |view| view.attempts),
            content_events,
        }
    };
    RequestsNow { total: live.len(), data: live.iter().take(MAX_REQUESTS).map(shown).collect() }
}

/// Batches that have not ended, as of the engine's last look.
pub(super) fn batches(app: &AppState) -> BatchesNow {
    let now = clock::unix_ms();
    let shown = |(batch, progress): (store::BatchRecord, crate::batch::Progress)| BatchNow {
        id: batch.id,
        tenant: Text::from(batch.tenant),
        model: batch.model.map(Text::from),
        state: batch.state.name(),
        total: batch.counts.total,
        completed: batch.counts.completed,
        failed: batch.counts.failed,
        running: progress.running,
        eta_s: progress.left.map(|left| left.as_secs()),
        expires_in_s: batch.times.expires.0.saturating_sub(now) / 1000,
        waits_for: progress.waits_for.map(|what| what.name()),
    };
    BatchesNow { data: app.batches.newest(MAX_BATCHES).into_iter().map(shown).collect() }
}
