//! The background task: probes spread over time, and what the scheduler wants done to the pool.
//!
//! One task keeps one list of due times. A replica's next probe is set when the last one ended, an interval later by a
//! jitter of its own, so a pool that came up together drifts apart; at most [`MAX_PROBES`] run at once. A replica that
//! is out is left alone until the scheduler asks. Rejected: a timer per replica, and a sweep that asks all at once.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use scheduler::{ChangeReason, Event, ReplicaId, ReplicaState, Timestamp};
use tokio::task::JoinSet;

use super::{
    feed::PoolChange,
    finding::Finding,
    pool::Fleet,
    probe::{Probed, Question, probe},
    replica::{LastProbe, Replica, Transition},
    speeds::KEEP_EVERY,
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

/// Looking at every replica's connections costs little, but not nothing.
const SWEEP_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Which replica is due when.
#[derive(Default)]
struct Agenda {
    by_time: BTreeSet<(Timestamp, ReplicaId)>,
    due: HashMap<ReplicaId, Timestamp>,
}

impl Agenda {
    /// At `at`, or when it already was due if that is earlier.
    fn by(&mut self, id: ReplicaId, at: Timestamp) {
        match self.due.get(&id) {
            Some(earlier) if *earlier <= at => {}
            _ => {
                self.forget(id);
                self.due.insert(id, at);
                self.by_time.insert((at, id));
            }
        }
    }

    fn forget(&mut self, id: ReplicaId) {
        if let Some(at) = self.due.remove(&id) {
            self.by_time.remove(&(at, id));
        }
    }

    fn next(&self) -> Timestamp {
        self.by_time.first().map_or(Timestamp::NEVER, |(at, _)| *at)
    }

    fn take_due(&mut self, now: Timestamp) -> Option<ReplicaId> {
        let (at, id) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.forget(id);
        Some(id)
    }
}

/// A probe that has ended.
struct Done {
    id: ReplicaId,
    full: bool,
    took: Duration,
    probed: Probed,
}

#[derive(Default)]
struct Watch {
    agenda: Agenda,
    running: JoinSet<Done>,
    asked: HashSet<ReplicaId>,
    /// When everything was last asked of a replica.
    full_at: HashMap<ReplicaId, Timestamp>,
    /// When the last first probe of a new replica is due.
    first_probe: Timestamp,
    /// When stale connections were closed last.
    swept: Timestamp,
    /// When measured speeds were kept last.
    kept: Timestamp,
    /// Feeds the jitter.
    count: u64,
}

impl Watch {
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
            let keep = watch.kept + KEEP_EVERY;
            tokio::select! {
                () = stop.wait() => break,
                effects = self.dispatcher.fleet_effects() => {
                    for effect in effects {
                        self.perform(effect, &mut watch).await;
                    }
                }
                Some(done) = watch.running.join_next() => self.finish(done, &mut watch).await,
                () = self.wake.notified() => {
                    for id in self.take_urgent() {
                        watch.full_at.remove(&id);
                        watch.agenda.by(id, clock::now());
                    }
                }
                () = tokio::time::sleep_until(clock::instant(next)), if may_start => {}
                () = tokio::time::sleep_until(clock::instant(sweep)) => {}
                () = tokio::time::sleep_until(clock::instant(keep)) => {
                    self.keep_speeds().await;
                    watch.kept = clock::now();
                }
            }
            self.start_due(&mut watch);
            if clock::now() >= sweep {
                self.close_stale();
                watch.swept = clock::now();
            }
        }
        self.keep_speeds().await;
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
            FleetEffect::Drained(id) => self.drained(id).await,
        }
    }

    fn note_change(&self, id: ReplicaId, from: ReplicaState, to: ReplicaState, why: ChangeReason) {
        let Some(replica) = self.replica(id) else { return };
        let detail = match to {
            ReplicaState::Ready | ReplicaState::Probation | ReplicaState::Draining => None,
            _ => self.complaint(&replica),
        };
        replica.past().note(Transition { at_ms: clock::unix_ms(), from, to, why, detail: detail.clone() });
        self.telemetry.replica_changed(&replica.label, to.name(), why.name());
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
                continue;
            };
            if watch.asked.contains(&id) {
                continue; // Its answer is on the way.
            }
            match self.depth(&replica, watch.full_at.get(&id).copied(), now) {
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
        watch.running.spawn(async move {
            let began = clock::now();
            let question = Question {
                endpoint: &replica.endpoint,
                key: replica.bearer(),
                dialect: replica.dialect(),
                dialect_stated: replica.stated.dialect.is_some(),
                models_stated: !replica.stated.models.0.is_empty(),
                full,
                limit,
            };
            let probed = tokio::time::timeout(limit * MAX_LIMITS, probe(&upstream, question)).await;
            let dialect = question.dialect;
            let probed = probed.unwrap_or(Probed { finding: Finding::TimedOut, dialect, learned: None });
            Done { id: replica.id, full, took: clock::now() - began, probed }
        });
    }

    async fn finish(&self, done: Result<Done, tokio::task::JoinError>, watch: &mut Watch) {
        let Done { id, full, took, probed } = match done {
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
        let Some(replica) = self.replica(id) else { return };
        let finding = self.take_in(&replica, probed).await;
        if full && finding == Finding::Ready {
            watch.full_at.insert(id, clock::now());
        } else if full {
            watch.full_at.remove(&id);
        }
        if matches!(finding, Finding::Unreachable(_)) {
            replica.endpoint.close_idle();
        }
        tracing::debug!(replica = &*replica.label, took_ms = took.as_millis(), %finding, "probed");
        let report = finding.report();
        replica.past().probe = Some(LastProbe { at_ms: clock::unix_ms(), took, finding });
        if let Some(report) = report {
            self.dispatcher.handle(Event::ReplicaReported { replica: id, report });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_due_once_at_its_earliest_time() {
        let mut agenda = Agenda::default();
        let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
        agenda.by(ReplicaId(1), at(10));
        agenda.by(ReplicaId(2), at(7));
        agenda.by(ReplicaId(1), at(5));
        agenda.by(ReplicaId(1), at(20));
        assert_eq!(agenda.next(), at(5));
        assert_eq!(agenda.take_due(at(6)), Some(ReplicaId(1)));
        assert_eq!(agenda.take_due(at(6)), None);
        assert_eq!(agenda.take_due(at(60)), Some(ReplicaId(2)));
        assert_eq!(agenda.next(), Timestamp::NEVER);
    }
}
