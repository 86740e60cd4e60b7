//! The life of a replica in the core: it joins, is judged by what it does, drains, goes.

use crate::{
    effect::{CancelReason, ChangeReason, Effect, ReplicaState},
    event::{HardFailure, Limit, Outcome, ReplicaSpec, Report, SoftFailure},
    evidence::{Context, Evidence},
    health::Health,
    id::{AttemptId, ModelId, ReplicaId},
    lingering::Lingering,
    relay::{Miss, RelayVerdict},
    replica::{Drain, Ending, Replica},
    request::Attempt,
    rng::Rng,
    scheduler::Scheduler,
    time::Timestamp,
    timer::Timer,
};

impl Scheduler {
    pub(crate) fn replica_up(&mut self, id: ReplicaId, mut spec: ReplicaSpec, now: Timestamp) {
        spec.models.sort_unstable();
        spec.models.dedup();
        spec.slots = spec.slots.max(1);
        let Some(replica) = self.pool.replicas.get(&id) else {
            self.pool.add(id, Replica::new(spec, now), self.config.policy, &mut self.rng);
            return self.judge(id, now, |_, _| {});
        };
        if replica.spec == spec {
            return;
        }
        self.pool.describe(id, spec, self.config.policy, &mut self.rng);
        self.index_slots(id);
        self.plan_looks(id, now);
        self.judge(id, now, |health, context| {
            health.described(context);
            // The operator may have just repaired it.
            if health.state == ReplicaState::Misconfigured {
                health.ask_probe();
            }
        });
    }

    pub(crate) fn replica_moved(&mut self, id: ReplicaId, now: Timestamp) {
        let Some(replica) = self.pool.replicas.get(&id) else { return };
        let from = replica.state();
        self.pool.modify(id, self.config.policy, &mut self.rng, |replica| {
            replica.health = Health::moved(now);
            replica.lingering = Lingering::default();
            replica.slots.forget();
            replica.judged_from = now;
            (replica.rests_until, replica.full_row) = (None, 0);
        });
        self.timers.set(Timer::Rested(id), None);
        self.index_slots(id);
        self.judge(id, now, |_, _| {});
        self.changed(id, from, ChangeReason::Moved);
    }

    /// It runs at an address that its replica has left.
    pub(crate) fn is_elsewhere(&self, attempt: &Attempt) -> bool {
        self.pool.replicas.get(&attempt.replica).is_some_and(|replica| attempt.started < replica.judged_from)
    }

    pub(crate) fn remove_replica(&mut self, id: ReplicaId, now: Timestamp) {
        let Some(replica) = self.pool.replicas.get_mut(&id) else { return };
        let running: Vec<AttemptId> = replica.running.iter().copied().collect();
        // Nothing that is cancelled may fail over to it, and its drain ends unsaid.
        replica.drain = Some(Drain { since: now, deadline: None, said: true });
        self.pool.modify(id, self.config.policy, &mut self.rng, |_| {});
        for attempt in running {
            self.cancel(attempt, CancelReason::ReplicaRemoved, now);
        }
        self.pool.remove(id);
        self.index_slots(id);
        let timers =
            [Timer::Probe(id), Timer::Rested(id), Timer::Drain(id), Timer::End(id), Timer::Look(id), Timer::Bound(id)];
        for timer in timers {
            self.timers.set(timer, None);
        }
    }

    /// Its slots or its models are others now, or it is gone: enters anew who holds what.
    fn index_slots(&mut self, id: ReplicaId) {
        self.learned.values_mut().for_each(|learned| learned.index.forget(id));
        let Some(replica) = self.pool.replicas.get(&id) else { return };
        for model in &replica.spec.models {
            if let Some(learned) = self.learned.get_mut(model) {
                learned.index.follow(id, &replica.slots);
            }
        }
    }

    pub(crate) fn drain(&mut self, id: ReplicaId, deadline: Option<Timestamp>, now: Timestamp) {
        let Some(replica) = self.pool.replicas.get(&id) else { return };
        let from = replica.state();
        self.pool.modify(id, self.config.policy, &mut self.rng, |replica| match &mut replica.drain {
            Some(drain) => drain.deadline = deadline,
            None => replica.drain = Some(Drain { since: now, deadline, said: false }),
        });
        self.timers.set(Timer::Drain(id), deadline);
        self.changed(id, from, ChangeReason::Operator);
        self.check_drained(id);
    }

    pub(crate) fn undrain(&mut self, id: ReplicaId, now: Timestamp) {
        if self.pool.replicas.get(&id).is_none_or(|replica| replica.drain.is_none()) {
            return;
        }
        self.timers.set(Timer::Drain(id), None);
        self.pool.modify(id, self.config.policy, &mut self.rng, |replica| replica.drain = None);
        self.changed(id, ReplicaState::Draining, ChangeReason::Operator);
        self.look_at_anew(id, now);
    }

    /// It takes work again, if its health allows that.
    fn look_at_anew(&mut self, id: ReplicaId, now: Timestamp) {
        self.judge(id, now, |health, _| {
            if health.state != ReplicaState::Ready && health.probe_at.is_none() {
                health.ask_probe();
            }
        });
    }

    pub(crate) fn drain_due(&mut self, id: ReplicaId, now: Timestamp) {
        let Some(replica) = self.pool.replicas.get(&id).filter(|replica| replica.drain.is_some()) else { return };
        for attempt in replica.running.iter().copied().collect::<Vec<_>>() {
            self.cancel(attempt, CancelReason::DrainDeadline, now);
        }
    }

    /// How much may be asked of it from now on.
    pub(crate) fn limit(&mut self, id: ReplicaId, limit: Limit) {
        if self.pool.replicas.get(&id).is_some_and(|replica| replica.limit != limit) {
            self.pool.modify(id, self.config.policy, &mut self.rng, |replica| replica.limit = limit);
        }
    }

    /// When it goes away for good.
    pub(crate) fn ends(&mut self, id: ReplicaId, at: Option<Timestamp>, now: Timestamp) {
        let Some(replica) = self.pool.replicas.get(&id) else { return };
        let (from, over) = (replica.state(), replica.is_over());
        let ending = at.map(|at| Ending { at, over: at <= now });
        if replica.ending == ending {
            return;
        }
        self.pool.modify(id, self.config.policy, &mut self.rng, |replica| replica.ending = ending);
        self.timers.set(Timer::End(id), at.filter(|at| *at > now));
        self.changed(id, from, ChangeReason::Ending);
        // It may do more than before.
        self.pool.woken.insert(id);
        if over && ending.is_none_or(|ending| !ending.over) {
            self.look_at_anew(id, now);
        }
    }

    /// Its end has come.
    pub(crate) fn end_due(&mut self, id: ReplicaId) {
        let Some(replica) = self.pool.replicas.get(&id) else { return };
        let from = replica.state();
        self.pool.modify(id, self.config.policy, &mut self.rng, |replica| {
            replica.ending.iter_mut().for_each(|ending| ending.over = true);
        });
        self.changed(id, from, ChangeReason::Ending);
    }

    /// Says `Drained` once per drain.
    pub(crate) fn check_drained(&mut self, id: ReplicaId) {
        let Some(replica) = self.pool.replicas.get_mut(&id).filter(|replica| replica.running.is_empty()) else {
            return;
        };
        if let Some(drain) = replica.drain.as_mut().filter(|drain| !drain.said) {
            drain.said = true;
            self.timers.set(Timer::Drain(id), None);
            self.effects.push_back(Effect::Drained { replica: id });
        }
    }

    /// It may be asked again after it called itself full.
    pub(crate) fn rested(&mut self, id: ReplicaId) {
        self.pool.modify(id, self.config.policy, &mut self.rng, |replica| replica.rests_until = None);
    }

    pub(crate) fn reported(&mut self, id: ReplicaId, report: &Report, now: Timestamp) {
        if !self.pool.replicas.contains_key(&id) {
            return;
        }
        // First the relay: a replica that is held for it is not ejected, and one behind a relay that is back has its own failure.
        match report {
            Report::Unreachable | Report::NotThere if self.is_answering(id) => {}
            Report::Unreachable => self.missed(id, Miss::NoWay, now),
            Report::NotThere => self.missed(id, Miss::NotThere, now),
            Report::TimedOut => {}
            Report::Ready
            | Report::Loading
            | Report::Unproven
            | Report::Misconfigured
            | Report::Closed
            | Report::Failing => {
                self.reached(id, |member| member != id, now);
            }
        }
        self.judge(id, now, |health, context| health.report(report, context));
    }

    /// What the end of an attempt says about its replica. Returns whether its relay is down.
    pub(crate) fn learn(&mut self, attempt: &Attempt, outcome: Outcome, now: Timestamp) -> bool {
        let id = attempt.replica;
        self.pool.modify(id, self.config.policy, &mut self.rng, |replica| match outcome {
            Outcome::Success | Outcome::CutShort => {
                replica.outcomes.0 += 1;
                replica.full_row = 0;
            }
            Outcome::RequestFault | Outcome::ContextExceeded => {}
            _ => replica.outcomes.1 += 1,
        });
        match outcome {
            Outcome::Success | Outcome::CutShort => {
                self.served(attempt, now);
                self.answered(attempt, now);
                self.observe(id, Evidence::Success, now);
            }
            // It ran at an address where the replica is no more.
            _ if self.is_elsewhere(attempt) => return false,
            Outcome::Hard(kind) => {
                match kind {
                    HardFailure::Connect => self.missed(id, Miss::NoWay, now),
                    HardFailure::Tls => self.missed(id, Miss::NotThere, now),
                    HardFailure::Certificate | HardFailure::Reset => {}
                }
                self.observe(id, Evidence::Hard, now);
            }
            Outcome::Soft(SoftFailure::Busy { retry_after }) => self.rest(id, retry_after, now),
            Outcome::Soft(_) => self.observe(id, Evidence::Soft, now),
            Outcome::Loading => self.observe(id, Evidence::Loading, now),
            Outcome::Misconfigured => self.observe(id, Evidence::Misconfigured, now),
            Outcome::RequestFault | Outcome::ContextExceeded => {}
        }
        // A bad answer may come from the tunnel; these come from the phone.
        let alive = outcome.is_whole()
            || matches!(outcome, Outcome::RequestFault | Outcome::ContextExceeded | Outcome::Loading);
        if alive {
            self.seen_alive(id, now);
        }
        self.pool.is_relay_down(id)
    }

    fn served(&mut self, attempt: &Attempt, now: Timestamp) {
        let Some(request) = self.requests.get(&attempt.request) else { return };
        if let Some(pool) = self.pool.models.get_mut(&request.spec.model) {
            pool.service.add(now.since(attempt.started).as_secs_f64());
        }
        if let Some(learned) = self.learned.get_mut(&request.spec.model)
            && attempt.course.own > 0.0
        {
            learned.pace.add(now.since(attempt.started).as_secs_f64() / attempt.course.own);
        }
    }

    fn rest(&mut self, id: ReplicaId, asked: Option<std::time::Duration>, now: Timestamp) {
        let cap = self.config.health.penalty_cap;
        let until = self.pool.modify(id, self.config.policy, &mut self.rng, |replica| {
            let until = now + replica.rest(asked, cap);
            *replica.rests_until.insert(until)
        });
        self.timers.set(Timer::Rested(id), until);
    }

    /// A sign of life; if its relay was held to be down, the others are asked at once.
    pub(crate) fn seen_alive(&mut self, id: ReplicaId, now: Timestamp) {
        self.reached(id, |_| true, now);
    }

    /// The way to a replica is open: if its relay was held to be down, its replicas are asked at once, as far as they are `asked`.
    fn reached(&mut self, id: ReplicaId, asked: impl Fn(ReplicaId) -> bool, now: Timestamp) {
        for member in self.pool.reached(id).into_iter().filter(|member| asked(*member)) {
            self.observe(member, Evidence::RelayBack, now);
        }
    }

    /// There was no way to a replica: what that means for all behind its relay.
    fn missed(&mut self, id: ReplicaId, miss: Miss, now: Timestamp) {
        let Some((relay, verdict)) = self.pool.missed(id, miss, &self.config.health, now) else { return };
        if verdict == RelayVerdict::Up {
            return;
        }
        let Some(relay) = self.pool.relays.get(&relay) else { return };
        let members: Vec<ReplicaId> = relay.members.iter().copied().collect();
        for member in &members {
            match verdict {
                RelayVerdict::Down => self.observe(*member, Evidence::RelayDown, now),
                RelayVerdict::Back if *member != id => self.observe(*member, Evidence::RelayBack, now),
                RelayVerdict::Doubtful if self.is_to_be_asked(*member) => {
                    self.judge(*member, now, |health, _| health.ask_probe());
                }
                RelayVerdict::Up | RelayVerdict::Back | RelayVerdict::Doubtful => {}
            }
        }
        if verdict == RelayVerdict::Down {
            self.refund(&members, now);
        }
    }

    fn is_to_be_asked(&self, id: ReplicaId) -> bool {
        self.pool.replicas.get(&id).is_some_and(|replica| replica.health.serves()) && !self.is_failing(id)
    }

    fn is_failing(&self, id: ReplicaId) -> bool {
        let relay = self.pool.replicas.get(&id).and_then(|replica| self.pool.relays.get(&replica.spec.relay));
        relay.is_some_and(|relay| relay.is_failing(id))
    }

    /// Too few of the model are left beside those out for soft failures: these are used again.
    pub(crate) fn lift_soft_marks(&mut self, model: ModelId, now: Timestamp) {
        for id in self.pool.to_lift(model, &self.config.health) {
            self.observe(id, Evidence::PoolShort, now);
        }
    }

    pub(crate) fn observe(&mut self, id: ReplicaId, evidence: Evidence, now: Timestamp) {
        self.judge(id, now, |health, context| health.observe(evidence, context));
    }

    /// Runs the health machine of a replica and makes its verdict known.
    fn judge(&mut self, id: ReplicaId, now: Timestamp, judge: impl FnOnce(&mut Health, &mut Context<'_>)) {
        let Some(replica) = self.pool.replicas.get(&id) else { return };
        let from = replica.state();
        let mut context = Context {
            now,
            config: &self.config.health,
            rng: &mut Rng::new(self.rng.next()),
            slots: replica.spec.slots,
            may_eject_soft: self.pool.can_spare(id, &self.config.health),
            // A prompt that nobody waits for any more keeps it as silent as one of ours.
            busy: !replica.is_idle(),
            answering: self.is_answering(id),
            carries_on: replica.spec.carries_on,
            models_known: !replica.spec.models.is_empty(),
            relay_down: self.pool.is_relay_down(id),
        };
        let verdict = self.pool.modify(id, self.config.policy, &mut self.rng, |replica| {
            let served = replica.health.serves();
            judge(&mut replica.health, &mut context);
            match (served, replica.health.serves()) {
                (true, false) => replica.lingering.leave(now),
                (false, true) => replica.lingering.enter(now),
                _ => {}
            }
            (replica.health.take_probe(), replica.health.probe_at, replica.health.why)
        });
        let Some((probe, probe_at, why)) = verdict else { return };
        self.plan_looks(id, now);
        self.note_service(id, now);
        self.changed(id, from, why);
        self.timers.set(Timer::Probe(id), probe_at);
        if probe {
            self.effects.push_back(Effect::Probe { replica: id });
        }
    }

    fn is_answering(&self, id: ReplicaId) -> bool {
        let Some(replica) = self.pool.replicas.get(&id) else { return false };
        replica.running.iter().any(|attempt| self.attempts.get(attempt).is_some_and(|attempt| attempt.first_token))
    }

    fn changed(&mut self, replica: ReplicaId, from: ReplicaState, why: ChangeReason) {
        let Some(to) = self.pool.replicas.get(&replica).map(Replica::state) else { return };
        if from != to {
            self.effects.push_back(Effect::Changed { replica, from, to, why });
        }
    }
}
