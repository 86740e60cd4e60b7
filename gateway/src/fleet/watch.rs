//! The background task: probes spread over time, and what the scheduler wants done to the pool.
//!
//! One task keeps one list of due times. A replica's next probe is set when the last one ended, an interval later by a
//! jitter of its own, so a pool that came up together drifts apart; at most [`MAX_PROBES`] run at once. A replica that
//! is out is left alone until the scheduler asks. What costs a phone something is asked beside that (`trial`). Rejected: a
//! timer per replica, and a sweep that asks all at once.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use scheduler::{ChangeReason, Event, ReplicaId, ReplicaState, Report, Timestamp};
use tokio::task::JoinSet;

use super::{
    agenda::Agenda,
    endings::{LOOK_EVERY, Told},
    feed::PoolChange,
    finding::Finding,
    pool::Fleet,
    probe::{Probed, Question, probe},
    quarantine::Exams,
    replica::{LastProbe, Replica, Transition},
    slots::{Seen, look},
    speeds::KEEP_EVERY,
    trial::Trials,
    url::ReplicaUrl,
};
use crate::{clock, dispatch::FleetEffect, shutdown::Stop};

/// Probes under way at once. 32: a pool of 1,000 whose every probe times out after 5 s is still through in 160 s, and a
/// healthy one in 3 s; few enough not to look like a flood to the relay.
const MAX_PROBES: usize = 32;
/// Between the first probes of replicas that come together. 5 ms: a pool of 100 is through in half a second.
const FIRST_PROBE_GAP: Duration = Duration::from_millis(5);
/// Models, slots and routes of an idle, healthy replica are asked for again after this long: it may have been
/// redeployed without our noticing, but they hardly ever change.
const FULL_EVERY: Duration = Duration::from_secs(300);
/// Questions of a full probe answered one after the other; no probe takes longer than this many limits.
const MAX_LIMITS: u32 = 4;

/// Looks under way at once, one a replica: as many as probes, for the same reasons. One beyond is left out; the scheduler asks
/// again.
const MAX_LOOKS: usize = 32;
/// From one look at a replica's slots to the next, whoever wants it: the engine puts off its own look for clients that hung up
/// at every question.
const LOOKS_APART: Duration = Duration::from_secs(1);
/// A probe looks as well, unless somebody has looked just now.
const SEEN_JUST_NOW: Duration = Duration::from_secs(2);

/// Replicas are lost for days before they are forgotten; a minute more is nothing.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// Looking at every replica's connections costs little, but not nothing.
const SWEEP_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// A probe that has ended.
struct Done {
    id: ReplicaId,
    /// Where it was asked.
    url: ReplicaUrl,
    full: bool,
    took: Duration,
    probed: Probed,
}

/// A look at a replica's slots that has ended; `None`: it did not say.
struct Looked {
    id: ReplicaId,
    /// Where it was asked.
    url: ReplicaUrl,
    seen: Option<Seen>,
}

#[derive(Default)]
struct Watch {
    agenda: Agenda,
    running: JoinSet<Done>,
    asked: HashSet<ReplicaId>,
    looks: JoinSet<Looked>,
    /// Replicas that are being looked at.
    looking: HashSet<ReplicaId>,
    /// When a replica was last asked for its slots.
    looked_at: HashMap<ReplicaId, Timestamp>,
    /// To be looked at as soon as their probe, which does that too, has ended.
    look_after: HashSet<ReplicaId>,
    trials: Trials,
    exams: Exams,
    /// When the ends of all replicas, and how old their reports are, were looked at last.
    ends_at: Timestamp,
    told: Told,
    /// When everything was last asked of a replica.
    full_at: HashMap<ReplicaId, Timestamp>,
    /// When the last first probe of a new replica is due.
    first_probe: Timestamp,
    /// When stale connections were closed last.
    swept: Timestamp,
    /// When measured speeds were kept last.
    kept: Timestamp,
    /// When it was last looked who is lost.
    forgot: Timestamp,
    /// Feeds the jitter.
    count: u64,
}

impl Watch {
    /// A replica's slots may be looked at again from then on.
    fn next_look(&self, id: ReplicaId) -> Timestamp {
        self.looked_at.get(&id).map_or(Timestamp::ZERO, |at| *at + LOOKS_APART)
    }

    /// A moment for the first probe of a new replica: now, if it comes alone.
    fn first_probe(&mut self) -> Timestamp {
        self.first_probe = clock::now().max(self.first_probe + FIRST_PROBE_GAP);
        self.first_probe
    }
}

impl Fleet {
    /// Keeps the pool's state true until `stop`: probes, and performs what the scheduler decides about replicas.
    pub async fn run(self: Arc<Self>, mut stop: Stop) {
        let mut watch = Watch::default();
        loop {
            let (next, may_start) = (watch.agenda.next(), watch.running.len() < MAX_PROBES);
            let sweep = watch.swept + self.settings.load().idle.max(SWEEP_AT_MOST_EVERY);
            let (keep, trial) = (watch.kept + KEEP_EVERY, watch.trials.next());
            let (exam, ends) = (self.next_exam(&watch.exams), watch.ends_at + LOOK_EVERY);
            let forget = watch.forgot + self.settings.load().registration.forget_unproven_after.min(FORGET_EVERY);
            tokio::select! {
                () = stop.wait() => break,
                effects = self.dispatcher.fleet_effects() => {
                    for effect in effects {
                        self.perform(effect, &mut watch).await;
                    }
                }
                Some(done) = watch.running.join_next() => self.finish(done, &mut watch).await,
                Some(looked) = watch.looks.join_next() => self.looked(looked, &mut watch),
                Some(tried) = watch.trials.ended() => self.tried(tried, &mut watch.trials).await,
                Some(examined) = watch.exams.ended() => {
                    if let Some(id) = self.examined(examined, &mut watch.exams).await {
                        watch.trials.want(id, false);
                    }
                }
                () = self.wake.notified() => {
                    for id in self.take_urgent() {
                        watch.full_at.remove(&id);
                        watch.agenda.by(id, clock::now());
                    }
                }
                () = tokio::time::sleep_until(clock::instant(next)), if may_start => {}
                () = tokio::time::sleep_until(clock::instant(trial)) => {}
                () = tokio::time::sleep_until(clock::instant(exam)) => {}
                () = tokio::time::sleep_until(clock::instant(sweep)) => {}
                () = tokio::time::sleep_until(clock::instant(ends)) => {
                    self.look_at_ends(&mut watch.told).await;
                    self.replicas().iter().for_each(|replica| self.limit(replica));
                    watch.ends_at = clock::now();
                }
                () = tokio::time::sleep_until(clock::instant(forget)) => {
                    self.forget_lost().await;
                    self.forget_unproven().await;
                    watch.forgot = clock::now();
                }
                () = tokio::time::sleep_until(clock::instant(keep)) => {
                    self.keep_speeds().await;
                    self.keep_service().await;
                    watch.kept = clock::now();
                }
            }
            self.start_due(&mut watch);
            self.start_trials(&mut watch.trials);
            self.start_exams(&mut watch.exams);
            if clock::now() >= sweep {
                self.close_stale();
                watch.swept = clock::now();
            }
        }
        self.keep_speeds().await;
        self.keep_service().await;
    }

    /// Phones have closed these connections by now, or are about to: each would keep a descriptor until its next use.
    fn close_stale(&self) {
        let idle = self.settings.load().idle;
        for replica in self.view.load().replicas.values() {
            replica.endpoint.close_stale(idle);
        }
    }

    async fn perform(&self, effect: FleetEffect, watch: &mut Watch) {
        match effect {
            FleetEffect::Probe(id) => {
                let Some(replica) = self.replica(id) else { return };
                let is_new = replica.past().state == ReplicaState::Joining;
                let at = if is_new { watch.first_probe() } else { clock::now() };
                watch.agenda.by(id, at);
            }
            FleetEffect::Changed { replica, from, to, why } => self.note_change(replica, from, to, why),
            FleetEffect::Look(id) => self.look(id, watch),
            FleetEffect::Drained(id) => self.drained(id).await,
        }
    }

    /// Looks at a replica's slots as soon as may be.
    fn look(&self, id: ReplicaId, watch: &mut Watch) {
        if watch.asked.contains(&id) {
            watch.look_after.insert(id);
            return;
        }
        let Some(replica) = self.replica(id) else { return };
        if watch.looks.len() >= MAX_LOOKS || !watch.looking.insert(id) {
            return;
        }
        let at = clock::now().max(watch.next_look(id));
        watch.looked_at.insert(id, at);
        let (upstream, limit) = (Arc::clone(&self.upstream), self.settings.load().health.timeout);
        watch.looks.spawn(async move {
            tokio::time::sleep_until(clock::instant(at)).await;
            Looked { id, url: replica.url.clone(), seen: look(&upstream, &replica, limit).await }
        });
    }

    fn looked(&self, looked: Result<Looked, tokio::task::JoinError>, watch: &mut Watch) {
        match looked {
            Ok(Looked { id, url, seen }) => {
                watch.looking.remove(&id);
                let is_there = self.replica(id).is_some_and(|replica| replica.url == url);
                seen.into_iter().filter(|_| is_there).for_each(|seen| self.tell_seen(id, seen, watch));
            }
            Err(error) => {
                // A bug, not the phone: its number is lost with the task. The scheduler gives such looks up.
                tracing::error!(%error, "a look at a replica's slots panicked");
                watch.looks.abort_all();
                watch.looking.clear();
            }
        }
    }

    fn tell_seen(&self, replica: ReplicaId, Seen { busy, asked }: Seen, watch: &Watch) {
        if watch.trials.is_tried(replica) || watch.exams.is_asked(replica) {
            return; // It works for us; the scheduler would take it for somebody else's.
        }
        self.dispatcher.handle(Event::SlotsSeen { replica, busy, asked });
    }

    fn note_change(&self, id: ReplicaId, from: ReplicaState, to: ReplicaState, why: ChangeReason) {
        let Some(replica) = self.replica(id) else { return };
        let detail = match to {
            ReplicaState::Ready | ReplicaState::Probation | ReplicaState::Draining => None,
            ReplicaState::Quarantine => self.quarantine_reason(&replica),
            _ => self.complaint(&replica),
        };
        replica.past().note(Transition { at_ms: clock::unix_ms(), from, to, why, detail: detail.clone() });
        self.telemetry.replica_changed(&replica.label, to.name(), why.name());
        self.telemetry.replica_takes_work(id, replica.takes_work());
        let label = &replica.label;
        // A macro, because the level of an event is a constant.
        macro_rules! tell {
            ($level:ident) => {
                tracing::$level!(
                    replica = &**label,
                    from = from.name(),
                    to = to.name(),
                    why = why.name(),
                    detail = detail.as_deref(),
                    "replica changed"
                )
            };
        }
        match to {
            ReplicaState::Out | ReplicaState::Misconfigured => tell!(warn),
            _ => tell!(info),
        }
        self.feed.send(id, label, PoolChange::State { from, to, why, detail });
        self.heard.notify_waiters();
    }

    fn start_due(&self, watch: &mut Watch) {
        let now = clock::now();
        while watch.running.len() < MAX_PROBES
            && let Some(id) = watch.agenda.take_due(now)
        {
            let Some(replica) = self.replica(id) else {
                watch.full_at.remove(&id);
                watch.looked_at.remove(&id);
                continue;
            };
            if watch.asked.contains(&id) {
                continue; // Its answer is on the way.
            }
            // One that answers a test question should not be asked more than whether it lives.
            let light = watch.exams.is_asked(id);
            match self.depth(&replica, watch.full_at.get(&id).copied(), now).map(|full| full && !light) {
                Some(full) => self.start(replica, full, watch),
                None => watch.agenda.by(id, now + self.settings.load().health.interval),
            }
        }
    }

    /// Whether to ask for everything; `None`: not to ask at all now.
    fn depth(&self, replica: &Replica, full_at: Option<Timestamp>, now: Timestamp) -> Option<bool> {
        let view = self.dispatcher.replica(replica.id)?;
        if view.state == ReplicaState::Out && view.penalty_until.is_some_and(|until| until > now) {
            return None;
        }
        let facts = replica.facts();
        if facts.dialect.is_none() || facts.models.is_empty() {
            return Some(true);
        }
        let is_well = matches!(
            view.state,
            ReplicaState::Ready | ReplicaState::Suspect | ReplicaState::Probation | ReplicaState::Draining
        );
        let is_known = full_at.is_some_and(|at| now.since(at) < FULL_EVERY);
        Some(view.running.is_empty() && !(is_well && is_known))
    }

    fn start(&self, replica: Arc<Replica>, full: bool, watch: &mut Watch) {
        watch.asked.insert(replica.id);
        let limit = self.settings.load().health.timeout;
        let upstream = Arc::clone(&self.upstream);
        let slots_from = watch.next_look(replica.id);
        watch.running.spawn(async move {
            let began = clock::now();
            let question = Question {
                endpoint: &replica.endpoint,
                key: replica.bearer(),
                dialect: replica.dialect(),
                dialect_stated: replica.stated.dialect.is_some(),
                models_stated: !replica.stated.models.0.is_empty(),
                full,
                slots_from,
                limit,
            };
            let probed = tokio::time::timeout(limit * MAX_LIMITS, probe(&upstream, question)).await;
            let dialect = question.dialect;
            let probed = probed.unwrap_or(Probed { finding: Finding::TimedOut, dialect, learned: None, seen: None });
            Done { id: replica.id, url: replica.url.clone(), full, took: clock::now() - began, probed }
        });
    }

    async fn finish(&self, done: Result<Done, tokio::task::JoinError>, watch: &mut Watch) {
        let Done { id, url, full, took, probed } = match done {
            Ok(done) => done,
            Err(error) => {
                // A bug, not the phone: its number is lost with the task, so all outstanding ones are asked again.
                tracing::error!(%error, "a probe panicked");
                let lost: Vec<_> = watch.asked.drain().collect();
                for id in lost {
                    watch.agenda.by(id, clock::now() + self.settings.load().health.interval);
                }
                return;
            }
        };
        watch.asked.remove(&id);
        let wanted = watch.look_after.remove(&id);
        let Some(replica) = self.replica(id) else { return };
        if replica.url != url {
            // It moved meanwhile: what was found is not found there.
            watch.full_at.remove(&id);
            return watch.agenda.by(id, clock::now());
        }
        let seen = probed.seen;
        let finding = self.take_in(&replica, probed).await;
        if full && finding == Finding::Ready {
            watch.full_at.insert(id, clock::now());
            if self.is_unproven(&replica) {
                self.want_exam(&replica, &mut watch.exams);
            } else {
                watch.trials.want(id, seen.is_some_and(|seen| seen.busy > 0));
            }
        } else if full {
            watch.full_at.remove(&id);
        }
        if finding.is_away() {
            replica.endpoint.close_idle();
        }
        tracing::debug!(replica = &*replica.label, took_ms = took.as_millis(), %finding, "probed");
        let report = finding.report();
        let report = match report {
            Some(Report::Ready) if self.is_unproven(&replica) => Some(Report::Unproven),
            report => report,
        };
        if matches!(report, Some(Report::Ready | Report::Unproven | Report::Loading)) {
            replica.past().last_sign = clock::now();
        }
        replica.past().probe = Some(LastProbe { at_ms: clock::unix_ms(), took, finding });
        if let Some(seen) = seen {
            // Before the report: if that brings it into service, it is known already what works there.
            watch.looked_at.insert(id, seen.asked);
            self.tell_seen(id, seen, watch);
        }
        let is_ready = report == Some(Report::Ready);
        if let Some(report) = report {
            self.dispatcher.handle(Event::ReplicaReported { replica: id, report });
        }
        let just_now = watch.looked_at.get(&id).is_some_and(|at| clock::now() - *at < SEEN_JUST_NOW);
        let lists_slots = self.replica(id).is_some_and(|replica| replica.facts().lists_slots);
        // What the probe showed may be older than what the scheduler wants to know.
        if lists_slots && (wanted || is_ready && !just_now) {
            self.look(id, watch);
        }
        self.heard.notify_waiters();
        watch.count += 1;
        let wait = self.pause(&replica, report_missing(&replica), watch.count);
        watch.agenda.by(id, clock::now() + wait);
    }

    /// Until the next probe of this replica.
    fn pause(&self, replica: &Replica, not_asked: bool, count: u64) -> Duration {
        let interval = self.settings.load().health.interval;
        let state = self.dispatcher.replica(replica.id).map(|view| view.state);
        let base = match state {
            _ if not_asked => Duration::from_secs(1).min(interval),
            Some(ReplicaState::Joining | ReplicaState::Loading) => interval / 2,
            // An operator has to act, and the gateway hears of it when he does it here.
            Some(ReplicaState::Misconfigured) => interval * 3,
            _ => interval,
        };
        base.mul_f64(0.9 + 0.2 * share_of(replica, count))
    }
}

fn report_missing(replica: &Replica) -> bool {
    replica.past().probe.as_ref().is_some_and(|last| last.finding.report().is_none())
}

/// A number from 0 to 1 that is this replica's own, and another one for each `count`.
fn share_of(replica: &Replica, count: u64) -> f64 {
    let mut hasher = DefaultHasher::new();
    (&replica.url, count).hash(&mut hasher);
    (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64
}
