//! The life of a request in the core: it arrives, waits, is placed, ends. What happens when an attempt fails is in
//! `failover`.

use std::{cell::Cell, time::Duration};

use crate::{
    config::Policy,
    copies::Copies,
    course::Course,
    effect::{CancelReason, Effect, ShedReason},
    event::{Outcome, RequestSpec, SoftFailure},
    failover::waits_in_vain,
    id::{AttemptId, ModelId, ReplicaId, RequestId},
    learning::USUAL_ANSWER,
    pool::Prospect,
    queue::Look,
    request::{Attempt, Phase, Request, Tried},
    scheduler::Scheduler,
    snapshot::{Onward, Waste},
    time::Timestamp,
    timer::Timer,
    usage::Fate,
};

/// An abandoned attempt tells against its replica from this many times its own expectation on: twice is a busy phone.
const OVERDUE_FACTOR: f64 = 3.0;
/// And not before this: short prompts are answered late for many reasons.
const OVERDUE_MIN: Duration = Duration::from_secs(15);

impl Scheduler {
    pub(crate) fn arrive(&mut self, id: RequestId, spec: RequestSpec, now: Timestamp) {
        if self.requests.contains_key(&id) {
            return;
        }
        self.arrivals += 1;
        self.requests.insert(id, Request::new(spec, self.arrivals, now));
        self.plan(id, now);
        let Some(request) = self.requests.get(&id) else { return };
        let spec = &request.spec;
        if spec.deadline.is_some_and(|deadline| deadline <= now) {
            return self.reject(id, ShedReason::Deadline, now);
        }
        if self.pool.surely_too_long(spec.model, spec.prompt_tokens) {
            return self.reject(id, ShedReason::ContextExceeded, now);
        }
        match self.choose(id, now).or_else(|| self.make_room(id, now)) {
            Some(replica) if self.pool.has_room(replica) => self.dispatch(id, replica, now),
            // Room was made, and shows in a moment: it is the first in the queue for it.
            Some(_) if !self.queue_is_full(id) => self.enqueue(id, now),
            Some(_) => self.reject(id, ShedReason::QueueFull, now),
            None if self.is_hopeless(id, now) => self.reject(id, ShedReason::Hopeless, now),
            None if self.queue_is_full(id) => self.reject(id, ShedReason::QueueFull, now),
            None => self.enqueue(id, now),
        }
    }

    fn queue_is_full(&self, id: RequestId) -> bool {
        let Some(spec) = self.requests.get(&id).map(|request| &request.spec) else { return false };
        let bounds = &self.config.queue;
        let slots = self.pool.models.get(&spec.model).map_or(0, |pool| pool.slots()).max(1);
        self.queue.fresh() >= bounds.max_requests
            || self.queue.waiting_for(spec.model) >= slots.saturating_mul(bounds.max_per_slot)
            || self.queue.bytes().saturating_add(spec.body_bytes) > bounds.max_bytes
    }

    pub(crate) fn abandon(&mut self, id: RequestId, now: Timestamp) {
        let Some(request) = self.requests.get(&id) else { return };
        for copy in request.copies().iter() {
            let Some(attempt) = self.attempts.get(&copy).copied() else { continue };
            let overdue = self.is_overdue(&attempt, now);
            self.tally.waste(Waste::Abandoned, now.since(attempt.started));
            self.release(copy, true, now);
            if overdue {
                self.learn(&attempt, Outcome::Soft(SoftFailure::NoFirstToken), now);
            }
        }
        self.lose_part(id, Waste::Abandoned);
        self.account_fate(id, Fate::Abandoned);
        self.forget(id);
    }

    /// Whether a replica has long been late with the first token of an attempt by its own measured speed. The client's
    /// patience ends before ours, so a replica that freezes on every request would never be told apart from an impatient
    /// client. Nothing is known of a replica that was never measured: its first answers may take as long as they take.
    fn is_overdue(&self, attempt: &Attempt, now: Timestamp) -> bool {
        let own = || {
            let spec = &self.requests.get(&attempt.request)?.spec;
            let speeds = &self.pool.replicas.get(&attempt.replica)?.speeds;
            // A plain answer shows no first token, so its writing counts as well.
            let writing = spec.max_output.map_or(USUAL_ANSWER, f64::from) / speeds.decode.measured()?;
            let reading = f64::from(spec.prompt_tokens) + f64::from(attempt.carried.unwrap_or(0));
            Some(reading / speeds.prefill.measured()? + writing)
        };
        let patience = |own: f64| (OVERDUE_FACTOR * own).max(OVERDUE_MIN.as_secs_f64());
        !attempt.first_token && own().is_some_and(|own| now.since(attempt.started).as_secs_f64() > patience(own))
    }

    pub(crate) fn first_token(&mut self, id: AttemptId, now: Timestamp) {
        let Some(replica) = self.attempts.get(&id).map(|attempt| attempt.replica) else { return };
        self.touch(replica, now);
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let Some(request) = self.requests.get(&attempt.request) else { return };
        attempt.first_token = true;
        attempt.course.first_token.get_or_insert(now);
        attempt.committed = request.spec.stream;
        let Attempt { request, replica, committed, .. } = *attempt;
        self.account_first_token(id, now);
        if committed {
            self.drop_rivals(request, id, now);
        }
        self.seen_alive(replica, now);
    }

    /// The engine says how far it has read.
    pub(crate) fn progress(&mut self, id: AttemptId, read_tokens: u32, cached_tokens: u32, now: Timestamp) {
        let Some(replica) = self.attempts.get(&id).map(|attempt| attempt.replica) else { return };
        self.touch(replica, now);
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.course.progress = Some((f64::from(read_tokens), f64::from(cached_tokens)));
        }
        self.seen_alive(replica, now);
    }

    /// The replica on which a request starts now, if any.
    pub(crate) fn choose(&mut self, id: RequestId, now: Timestamp) -> Option<ReplicaId> {
        match self.config.policy {
            Policy::LeastWork => self.place(id, now),
            Policy::LeastBusy | Policy::RoundRobin => self.free_for(id),
        }
    }

    /// The first replica by rank that is free for a request; for one of which a part is written, the first that would write as
    /// its writer did. A request that already lost an attempt does not gamble on a doubtful replica while a sound one serves: right
    /// after many phones died the dead ones are the free ones. Where the end is near, it would have to be told what a request takes.
    pub(crate) fn free_for(&self, id: RequestId) -> Option<ReplicaId> {
        let request = self.requests.get(&id)?;
        let pool = self.pool.models.get(&request.spec.model).filter(|pool| !pool.offers.is_empty())?;
        let context = pool.threshold(request.spec.route, request.need);
        let gamble = !request.is_retry() || !self.pool.has_sound(request);
        let doubtful = |id| self.pool.replicas.get(&id).is_none_or(|replica| replica.is_doubtful(request));
        let ends = |id| self.pool.replicas.get(&id).is_none_or(|replica| replica.ending.is_some());
        let free = |barred: &dyn Fn(ReplicaId) -> bool| {
            let barred = |id| request.has_tried(id) || barred(id) || ends(id) || (!gamble && doubtful(id));
            pool.offers.choose(request.spec.route, context, barred)
        };
        if request.part.is_none() {
            return free(&|_| false);
        }
        let ways = [Onward::SameGroup, Onward::OtherGroup, Onward::Anew];
        ways.into_iter().find_map(|way| free(&|replica| self.pool.plain_onward(replica, request) != way))
    }

    pub(crate) fn dispatch(&mut self, id: RequestId, replica: ReplicaId, now: Timestamp) {
        self.unclaim(id);
        self.leave_queue(id);
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.phase = Phase::Running(Copies::default());
        let waited = request.waited(now);
        self.start(id, replica, waited, false, now);
        self.schedule(id);
    }

    /// Starts an attempt of a running request: its first copy, or a second one (`hedge`).
    pub(crate) fn start(&mut self, id: RequestId, replica: ReplicaId, waited: Duration, hedge: bool, now: Timestamp) {
        let onward = self.onward(id, replica);
        if !onward.carries_on() && self.requests.get(&id).is_some_and(|request| request.part.is_some()) {
            self.begin_anew(id);
        }
        let Some(request) = self.requests.get_mut(&id) else { return };
        let Phase::Running(copies) = &mut request.phase else { return };
        debug_assert!(onward.is_open(), "{id:?} is sent where it can't go on");
        self.dispatches += 1;
        let attempt = AttemptId(self.dispatches);
        copies.insert(attempt);
        request.dispatches += 1;
        request.tried.push(Tried { replica, reached: true });
        let number = request.dispatches;
        let retry = request.needs_room(onward) && !hedge;
        let carried = request.part.map(|part| part.tokens);
        let record = Attempt {
            request: id,
            replica,
            started: now,
            retry,
            first_token: false,
            committed: false,
            waited,
            course: Course::default(),
            carried,
            kept: None,
            looks: 0,
        };
        *self.running_of.entry(request.spec.tenant).or_default() += 1;
        self.touch(replica, now);
        self.attempts.insert(attempt, record);
        self.begin(attempt, now);
        self.budget.start(retry);
        self.hedges += u32::from(hedge);
        let order = self.dispatches;
        self.pool.modify(replica, self.config.policy, &mut self.rng, |replica| {
            replica.running.insert(attempt);
            replica.last_dispatch = order;
        });
        self.watch(attempt, now);
        let carries_on = carried.is_some();
        self.effects.push_back(Effect::Dispatch { request: id, attempt, replica, number, hedge, carries_on });
    }

    /// Takes an attempt out of its slot. The slot is free by that, unless the attempt was broken off and the replica may work
    /// on.
    pub(crate) fn release(&mut self, id: AttemptId, broken_off: bool, now: Timestamp) {
        let Some(replica) = self.attempts.get(&id).map(|attempt| attempt.replica) else { return };
        self.touch(replica, now);
        let Some(attempt) = self.attempts.remove(&id) else { return };
        self.account_slot(attempt.request, now.since(attempt.started).as_secs_f64());
        let remains = (broken_off && !self.is_elsewhere(&attempt)).then(|| self.remains(&attempt, now)).flatten();
        self.timers.set(Timer::Late(id), None);
        self.finish(id, &attempt, now);
        self.free_of_tenant(&attempt);
        self.budget.end(attempt.retry);
        if let Some(Phase::Running(copies)) = self.requests.get_mut(&attempt.request).map(|request| &mut request.phase)
        {
            copies.remove(id);
            self.hedges -= u32::from(!copies.is_empty());
        }
        self.pool.modify(attempt.replica, self.config.policy, &mut self.rng, |replica| {
            replica.running.remove(&id);
            remains.into_iter().for_each(|work| replica.lingering.add(work));
            replica.raise_ceiling();
            replica.idle_since = now;
        });
        if remains.is_some() {
            self.plan_looks(attempt.replica, now);
        }
        self.check_drained(attempt.replica);
    }

    pub(crate) fn enqueue(&mut self, id: RequestId, now: Timestamp) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let orphan = self.pool.prospect(request) != Prospect::Now;
        request.phase = Phase::Waiting { orphan_since: orphan.then_some(now) };
        let pool = self.pool.models.get(&request.spec.model);
        let lane_orphan = pool.is_none_or(|pool| pool.serving_fit(request.spec.route, request.need) == 0);
        let model = request.spec.model;
        self.queue.push(id, request, lane_orphan);
        self.note_waiting(id, true);
        self.schedule(id);
        self.look_again(model, now);
    }

    fn leave_queue(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        if self.queue.remove(request) {
            self.note_waiting(id, false);
        }
    }

    fn free_of_tenant(&mut self, attempt: &Attempt) {
        let Some(tenant) = self.requests.get(&attempt.request).map(|request| request.spec.tenant) else { return };
        if let Some(running) = self.running_of.get_mut(&tenant) {
            *running -= 1;
            if *running == 0 {
                self.running_of.remove(&tenant);
            }
        }
    }

    pub(crate) fn reject(&mut self, id: RequestId, reason: ShedReason, now: Timestamp) {
        let Some(request) = self.requests.get(&id) else { return };
        let retry_after = self.retry_after(request.spec.model, request.spec.class, now);
        self.account_fate(id, Fate::Refused);
        self.lose_part(id, if reason == ShedReason::Deadline { Waste::Abandoned } else { Waste::Failed });
        self.forget(id);
        self.effects.push_back(Effect::Reject { request: id, reason, retry_after });
    }

    /// The request has ended, however it did.
    pub(crate) fn forget(&mut self, id: RequestId) {
        self.unclaim(id);
        self.leave_queue(id);
        if let Some(request) = self.requests.remove(&id) {
            self.account_end(&request, self.now);
            self.parked.remove(&id);
            self.timers.set(Timer::Request(id), None);
        }
    }

    /// The replica of a running attempt goes away. The request fails over, and carries on what its client has seen; it ends where
    /// it may not.
    pub(crate) fn cancel(&mut self, id: AttemptId, why: CancelReason, now: Timestamp) {
        let tokens = self.written_by_now(id, now);
        let Some(attempt) = self.stop(id, why, now) else { return };
        if self.outlives(&attempt, why) {
            self.keep_shown(&attempt, tokens, now);
        } else if attempt.committed {
            self.lose_part(attempt.request, Waste::Failed);
            return self.forget(attempt.request);
        }
        self.fail_over(&attempt, now);
    }

    /// A running request's deadline has passed.
    fn overrun(&mut self, id: RequestId, copies: Copies, now: Timestamp) {
        let mut committed = false;
        for copy in copies.iter() {
            committed |= self.stop(copy, CancelReason::Deadline, now).is_some_and(|attempt| attempt.committed);
        }
        if committed {
            self.lose_part(id, Waste::Abandoned);
            self.forget(id);
        } else {
            self.reject(id, ShedReason::Deadline, now);
        }
    }

    /// Sets the deadline at which the request's earliest limit passes.
    pub(crate) fn schedule(&mut self, id: RequestId) {
        let at = self.requests.get(&id).and_then(|request| self.limits(request).map(|(at, _)| at).min());
        self.timers.set(Timer::Request(id), at);
    }

    /// When a request must end, and why, in its present phase.
    fn limits(&self, request: &Request) -> impl Iterator<Item = (Timestamp, ShedReason)> + use<> {
        let bounds = &self.config.queue;
        let deadline = request.spec.deadline.map(|at| (at, ShedReason::Deadline));
        let phase = match request.phase {
            Phase::Running(_) => [None, None],
            Phase::Parked { until } => [Some((until, ShedReason::AttemptsExhausted)), None],
            Phase::Waiting { orphan_since } => [
                bounds.max_age[request.spec.class as usize]
                    .map(|age| (request.queued_from + age, ShedReason::QueueAge)),
                orphan_since.map(|since| (since + bounds.no_replica_wait, ShedReason::NoCapacity)),
            ],
        };
        [deadline].into_iter().chain(phase).flatten()
    }

    pub(crate) fn request_due(&mut self, id: RequestId, now: Timestamp) {
        let Some(request) = self.requests.get(&id) else { return };
        let Some((_, reason)) = self.limits(request).filter(|(at, _)| *at <= now).min() else { return };
        match request.phase {
            Phase::Running(copies) => self.overrun(id, copies, now),
            Phase::Parked { .. } => self.reject(id, self.exhaustion(id), now),
            Phase::Waiting { .. } => {
                let held_back = reason == ShedReason::QueueAge
                    && request.is_retry()
                    && self.free_for(id).is_some_and(|replica| !self.has_room(id, replica));
                self.reject(id, if held_back { ShedReason::RetryBudget } else { reason }, now);
            }
        }
    }

    /// Gives the free slots of a replica to those whose turn it is.
    pub(crate) fn fill(&mut self, id: ReplicaId, now: Timestamp) {
        while let Some(request) = self.next_on(id, now) {
            self.dispatch(request, id, now);
        }
        let Some(replica) = self.pool.replicas.get(&id).filter(|replica| replica.free() > 0) else { return };
        for model in replica.spec.models.clone() {
            self.look_again(model, now);
        }
    }

    /// Who waits beside a slot that was left free (on purpose, for want of budget or of a tenant's share) gets it later.
    fn look_again(&mut self, model: ModelId, now: Timestamp) {
        let free = self.pool.models.get(&model).is_some_and(|pool| !pool.offers.is_empty());
        if self.config.policy == Policy::LeastWork && free && self.queue.waiting_for(model) > 0 {
            self.arm_tick(model, now);
        }
    }

    fn next_on(&mut self, id: ReplicaId, now: Timestamp) -> Option<RequestId> {
        match self.config.policy {
            Policy::LeastWork => self.next_by_work(id, now),
            Policy::LeastBusy | Policy::RoundRobin => self.next_for(id, now),
        }
    }

    fn next_for(&mut self, id: ReplicaId, now: Timestamp) -> Option<RequestId> {
        // These policies estimate nothing, so before a known end they start nothing.
        let replica = self.pool.replicas.get(&id).filter(|replica| replica.free() > 0 && replica.ending.is_none())?;
        let retries = self.budget.has_room(&self.config.retry);
        let look = Look { now, promote_after: self.config.queue.promote_after, retries };
        let unaffordable = Cell::new(false);
        let untried = |request: RequestId| {
            let may = |request: &Request| {
                let onward = self.pool.plain_onward(id, request);
                let may = onward.is_open()
                    && !(request.has_tried(id) || replica.is_doubtful(request) && self.pool.has_sound(request));
                let affordable = retries || !request.needs_room(onward);
                unaffordable.set(unaffordable.get() || may && !affordable);
                may && affordable
            };
            self.requests.get(&request).is_some_and(may)
        };
        let (mut best, mut starved) = (None, false);
        for model in &replica.spec.models {
            let (Some(queue), Some(pool)) = (self.queue.models.get(model), self.pool.models.get(model)) else {
                continue;
            };
            let (turn, passed_over) = queue.next(
                &look,
                |lane| {
                    replica.spec.routes.contains(lane.route)
                        && replica.context() >= pool.threshold(lane.route, lane.need)
                },
                untried,
            );
            starved |= passed_over;
            best = best.into_iter().chain(turn).min();
        }
        self.starved |= starved || unaffordable.get();
        best.map(|turn| turn.request)
    }

    /// The members of a model changed: who waits for them may have to wait for less long, for longer, or in vain.
    pub(crate) fn reassess(&mut self, model: ModelId, now: Timestamp) {
        self.lift_soft_marks(model, now);
        let Some(queue) = self.queue.models.get_mut(&model) else { return };
        let mut affected = Vec::new();
        for (key, lane) in &mut queue.lanes {
            let pool = self.pool.models.get(&model);
            let orphan = pool.is_none_or(|pool| pool.serving_fit(key.route, key.need) == 0);
            if std::mem::replace(&mut lane.orphan, orphan) != orphan {
                affected.extend(lane.fresh.values().map(|place| place.request));
            }
            affected.extend(lane.returned.values().map(|place| place.request));
        }
        for id in affected {
            let prospect = self.hope(id);
            let Some(request) = self.requests.get_mut(&id) else { continue };
            let Phase::Waiting { orphan_since } = request.phase else { continue };
            if waits_in_vain(request, prospect) {
                self.leave_queue(id);
                self.exhausted(id, now);
                continue;
            }
            let since = (prospect != Prospect::Now).then(|| orphan_since.unwrap_or(now));
            if since != orphan_since {
                request.phase = Phase::Waiting { orphan_since: since };
                self.schedule(id);
            }
        }
        let Some(pool) = self.pool.models.get(&model) else { return };
        let largest = pool.largest_contexts();
        let same_fit = self.fit_seen.insert(model, largest).is_some_and(|seen| seen == largest);
        if same_fit && self.config.policy == Policy::LeastWork {
            // What fits where is as it was: who waits beside a free slot does so on purpose.
            return self.look_again(model, now);
        }
        // The largest context may have changed, and with it what fits where.
        self.pool.woken.extend(pool.offers.iter().map(|(replica, _)| replica));
    }
}
