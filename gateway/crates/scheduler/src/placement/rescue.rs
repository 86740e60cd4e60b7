//! Second copies of requests that are late, and batch work stopped for requests that cannot wait.
//!
//! A copy is priced in the seconds of reading that it takes from others: it is sent only to a replica that is free, and
//! only if it is expected to answer well before the copy that runs. What an unfinished attempt shows of its replica is
//! learned at once, or second copies would hide a slow replica from its own estimate.

use std::time::Duration;

use crate::{
    config::Policy,
    event::Class,
    id::{AttemptId, ModelId, ReplicaId, RequestId},
    placement::Outlook,
    replica::Replica,
    scheduler::Scheduler,
    snapshot::Decision,
    time::Timestamp,
    timer::Timer,
};

/// An urgent request is late after that many times its own time (and half a second), another after that many times its
/// own time among its neighbours (and 15 s).
const LATE_URGENT: (f64, f64) = (2.0, 0.5);
const LATE: (f64, f64) = (1.6, 15.0);
/// A copy must be expected to end in this part of what is left of the one that runs.
const GAIN: f64 = 0.6;
/// The same for the last of a batch, whose copies run on replicas that have nothing else to do.
const GAIN_STRAGGLER: f64 = 0.75;
/// Looks at one attempt, before it is left to its deadline.
const MOST_LOOKS: u8 = 20;
/// Free replicas looked at.
const LOOKED_AT: usize = 32;
/// A batch request is stopped for an urgent one that would otherwise wait this many seconds, and this many times longer than
/// it would take on an idle replica.
const UNBEARABLE: (f64, f64) = (3.0, 3.0);
/// What a second of work lost by that counts.
const LOST_WORK: f64 = 0.03;
/// Running batch requests looked at for one to stop.
const VICTIMS: usize = 64;

impl Scheduler {
    /// Sets when an attempt that has just begun will be late.
    pub(crate) fn watch(&mut self, id: AttemptId, now: Timestamp) {
        if !self.config.hedge.enabled || self.config.policy != Policy::LeastWork {
            return;
        }
        let Some(attempt) = self.attempts.get(&id) else { return };
        let Some(request) = self.requests.get(&attempt.request) else { return };
        let running = self.pool.replicas.get(&attempt.replica).map_or(1, Replica::taken);
        let own = attempt.course.own;
        let after = match request.spec.class {
            Class::Interactive => (LATE_URGENT.0 * own).max(own + LATE_URGENT.1),
            Class::Standard | Class::Batch => LATE.0 * own * running as f64 + LATE.1,
        };
        self.timers.set(Timer::Late(id), Some(now + seconds(after)));
    }

    /// An attempt is late: sends a copy of its request elsewhere, or looks again later.
    pub(crate) fn late(&mut self, id: AttemptId, now: Timestamp) {
        let Some(attempt) = self.attempts.get(&id).copied() else { return };
        let Some(request) = self.requests.get(&attempt.request) else { return };
        let hedges = self.config.policy == Policy::LeastWork;
        if !hedges || attempt.committed || request.copies().count() != 1 {
            return;
        }
        let class = request.spec.class;
        let (model, request_id) = (request.spec.model, attempt.request);
        let urgent = class == Class::Interactive;
        if class == Class::Batch && self.queue.waiting_in(model, class) > 0 {
            // What waits needs the replica more. The last ones are copied when nothing waits any more.
            return;
        }
        let left = self.outlook(model, now).and_then(|outlook| left_of(&outlook, self, id));
        let age = now.since(attempt.started).as_secs_f64();
        let left = left.unwrap_or(0.0).max(if urgent { age } else { 0.0 });
        if self.has_hedge_room(Decision::HedgedLate)
            && let Some(replica) = self.quickest_free(request_id, GAIN * left, now)
        {
            self.believe_late(id, now);
            if self.hedge(request_id, replica, Decision::HedgedLate, now) {
                return;
            }
        }
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.looks += 1;
        if attempt.looks < MOST_LOOKS {
            let own = attempt.course.own;
            let again = if urgent { own.max(0.3) } else { (0.3 * own).max(10.0) };
            self.timers.set(Timer::Late(id), Some(now + seconds(again)));
        }
    }

    /// The free replica that would answer the request first, if in less than `limit` seconds.
    fn quickest_free(&self, id: RequestId, limit: f64, now: Timestamp) -> Option<ReplicaId> {
        let request = self.requests.get(&id)?;
        let outlook = self.outlook(request.spec.model, now)?.exact(true);
        let ask = outlook.ask(id)?;
        let (mut best, mut bound) = (None, limit);
        for (id, _) in outlook.pool.offers.iter().take(LOOKED_AT) {
            let Some(replica) = outlook.replica(id) else { continue };
            let onward = ask.request.onward(&replica.spec);
            let copies = ask.request.part.is_none() || onward.carries_on();
            if !copies || !outlook.may_run(id, replica, &ask) {
                continue;
            }
            let cost = outlook.now_cost(id, replica, &ask, bound).total;
            if cost < bound {
                (best, bound) = (Some(id), cost);
            }
        }
        best
    }

    /// What an attempt that is late says of its replica: it is at most as fast as it has shown itself so far.
    pub(crate) fn believe_late(&mut self, id: AttemptId, now: Timestamp) {
        let Some(attempt) = self.attempts.get(&id).copied() else { return };
        self.touch(attempt.replica, now);
        let Some(course) = self.attempts.get(&id).map(|attempt| attempt.course) else { return };
        let Some(model) = self.requests.get(&attempt.request).map(|request| request.spec.model) else { return };
        let Some(shape) = self.learned.get(&model).map(|learned| learned.shape.clone()) else { return };
        self.pool.measure(attempt.replica, self.config.policy, &mut self.rng, |speeds| match course.first_token {
            None => {
                let reading = course.read - shape.overhead();
                speeds.prefill.at_most(shape.prefill_work(course.cached, course.tokens), reading, now);
            }
            // What it has written is not known here, only that it is not all.
            Some(_) => speeds.decode.at_most(shape.decode_work(course.tokens, course.output), course.written, now),
        });
    }

    /// When nothing of a batch waits any more, copies the running requests that have the most left to replicas that would
    /// answer them sooner and have nothing else to do. Returns whether that may become worthwhile.
    pub(crate) fn copy_stragglers(&mut self, model: ModelId, now: Timestamp) -> bool {
        if !self.config.hedge.enabled
            || self.config.policy != Policy::LeastWork
            || self.queue.waiting_in(model, Class::Batch) > 0
        {
            return false;
        }
        let mut running = self.running_batch(model, now);
        if running.is_empty() {
            return false;
        }
        running.sort_by(|a, b| b.0.total_cmp(&a.0));
        let Some(outlook) = self.outlook(model, now) else { return true };
        let free = outlook.pool.offers.iter().map(|(id, _)| id);
        let idle = |id: &ReplicaId| outlook.replica(*id).is_some_and(Replica::is_idle);
        let idle: Vec<ReplicaId> = free.filter(idle).filter(|id| !outlook.is_reserved(*id)).take(LOOKED_AT).collect();
        let mut next = running.into_iter();
        let mut straggler = next.next();
        for replica in idle {
            let Some((left, id, request)) = straggler else { break };
            if !self.is_quicker(request, replica, GAIN_STRAGGLER * left, now) {
                continue;
            }
            self.believe_late_if(id, now);
            self.hedge(request, replica, Decision::HedgedStraggler, now);
            straggler = next.next();
        }
        true
    }

    fn is_quicker(&self, request: RequestId, id: ReplicaId, limit: f64, now: Timestamp) -> bool {
        let cost = || {
            let spec = &self.requests.get(&request)?.spec;
            let outlook = self.outlook(spec.model, now)?;
            let (ask, replica) = (outlook.ask(request)?, outlook.replica(id)?);
            Some(outlook.now_cost(id, replica, &ask, limit).total)
        };
        cost().is_some_and(|cost| cost < limit)
    }

    fn believe_late_if(&mut self, id: AttemptId, now: Timestamp) {
        let late = self
            .attempts
            .get(&id)
            .is_some_and(|attempt| now.since(attempt.started).as_secs_f64() > LATE.0 * attempt.course.own + LATE.1);
        if late {
            self.believe_late(id, now);
        }
    }

    /// Running batch attempts of requests that may have another copy: seconds left, attempt, request.
    fn running_batch(&self, model: ModelId, now: Timestamp) -> Vec<(f64, AttemptId, RequestId)> {
        let Some(outlook) = self.outlook(model, now) else { return Vec::new() };
        let mut running = Vec::new();
        for id in &outlook.pool.members {
            let Some(replica) = outlook.replica(*id).filter(|replica| !replica.running.is_empty()) else { continue };
            let ends = outlook.jobs(*id, replica).ends(&outlook.learned.shape);
            for (attempt, end) in replica.running.iter().zip(ends.iter()) {
                let Some(request_id) = self.attempts.get(attempt).map(|attempt| attempt.request) else { continue };
                let Some(request) = self.requests.get(&request_id) else { continue };
                if request.spec.class == Class::Batch && request.copies().count() < crate::copies::MAX_COPIES {
                    running.push((end, *attempt, request_id));
                }
            }
        }
        running
    }

    /// Stops a batch request for an urgent one that would otherwise wait unbearably long. The replica it ran on.
    pub(crate) fn make_room(&mut self, id: RequestId, now: Timestamp) -> Option<ReplicaId> {
        let request = self.requests.get(&id)?;
        let gives_back = self.config.policy == Policy::LeastWork && self.config.hedge.give_back;
        if !gives_back || !self.may_start(id) || request.spec.class != Class::Interactive {
            return None;
        }
        let outlook = self.outlook(request.spec.model, now)?;
        let ask = outlook.ask(id)?;
        let (mut soonest, mut ideal) = (f64::INFINITY, f64::INFINITY);
        let mut victims: Vec<(f64, AttemptId, ReplicaId)> = Vec::new();
        for replica_id in outlook.pool.by_speed().take(VICTIMS) {
            let Some(replica) = outlook.replica(replica_id) else { continue };
            if !outlook.may_run(replica_id, replica, &ask) {
                continue;
            }
            let own = outlook.own(replica_id, replica, &ask).filter(|own| replica.outlasts(own.total(), now));
            let Some(own) = own else { continue };
            ideal = ideal.min(own.total());
            soonest = soonest.min(outlook.later_cost(replica_id, replica, &ask, soonest).0);
            if soonest <= UNBEARABLE.0 {
                return None;
            }
            let batch =
                replica.running.iter().filter(|attempt| self.is_batch(**attempt) && self.may_give_back(**attempt));
            let least = batch.map(|attempt| (self.spent(*attempt, now), *attempt)).min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((spent, attempt)) = least {
                let others = replica.running.len() as f64;
                victims.push((own.total() * others + LOST_WORK * spent, attempt, replica_id));
            }
        }
        let unbearable = UNBEARABLE.0.max(UNBEARABLE.1 * ideal);
        if soonest <= unbearable {
            return None;
        }
        let (cost, attempt, replica) = victims.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
        if cost >= 0.8 * soonest || !self.give_back(attempt, now) {
            return None;
        }
        Some(replica)
    }

    fn is_batch(&self, id: AttemptId) -> bool {
        let request = self.attempts.get(&id).and_then(|attempt| self.requests.get(&attempt.request));
        request.is_some_and(|request| request.spec.class == Class::Batch)
    }

    /// Seconds of a replica that would be lost.
    fn spent(&self, id: AttemptId, now: Timestamp) -> f64 {
        self.attempts.get(&id).map_or(0.0, |attempt| now.since(attempt.started).as_secs_f64())
    }
}

/// Seconds that are left to an attempt, as its replica shares itself now.
fn left_of(outlook: &Outlook<'_>, core: &Scheduler, id: AttemptId) -> Option<f64> {
    let replica_id = core.attempts.get(&id)?.replica;
    let replica = outlook.replica(replica_id)?;
    let ends = outlook.jobs(replica_id, replica).ends(&outlook.learned.shape);
    replica.running.iter().zip(ends.iter()).find(|(attempt, _)| **attempt == id).map(|(_, end)| end)
}

fn seconds(length: f64) -> Duration {
    Duration::try_from_secs_f64(length).unwrap_or(Duration::MAX)
}
