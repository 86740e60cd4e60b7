//! An attempt has failed: where its request goes now.

use crate::{
    effect::ShedReason,
    event::{Left, Outcome, Timings},
    id::{AttemptId, ReplicaId, RequestId},
    looks::breaks_off,
    pool::Prospect,
    request::{Attempt, Phase, Request, Tried},
    retry::{self, Cost, Next},
    scheduler::Scheduler,
    snapshot::Waste,
    time::Timestamp,
};

impl Scheduler {
    pub(crate) fn attempt_ended(
        &mut self,
        id: AttemptId,
        outcome: Outcome,
        left: Left,
        timings: Option<Timings>,
        now: Timestamp,
    ) {
        let Some(attempt) = self.attempts.get(&id).copied() else { return };
        self.study(id, outcome, timings.as_ref(), now);
        self.release(id, breaks_off(outcome), now);
        let next = retry::next(outcome, left);
        let advanced = match (next, left) {
            (Next::Elsewhere(_), Left::Part(part)) => self.keep(id, &attempt, part, timings.as_ref(), now),
            _ => None,
        };
        if !outcome.is_whole() && outcome != Outcome::RequestFault {
            self.tally.waste(Waste::Failed, now.since(attempt.started).saturating_sub(advanced.unwrap_or_default()));
        }
        match next {
            Next::Elsewhere(cost) if advanced.is_none() => self.charge(&attempt, cost),
            Next::Elsewhere(_) => {}
            // A whole answer that began anew, or none: either way the part was written in vain.
            Next::End if attempt.carried.is_some() && outcome.is_whole() => {}
            Next::End => self.lose_part(attempt.request, Waste::Failed),
        }
        let relay_down = self.learn(&attempt, outcome, now);
        if outcome.is_whole() {
            self.account_answer(attempt.request, attempt.carried, timings.as_ref());
        }
        match next {
            Next::End => {
                self.drop_rivals(attempt.request, id, now);
                self.forget(attempt.request);
            }
            Next::Elsewhere(_) => {
                if relay_down {
                    self.refund_one(attempt.request, &[attempt.replica]);
                }
                if outcome == Outcome::ContextExceeded {
                    self.too_long(&attempt);
                }
                self.fail_over(&attempt, now);
            }
        }
    }

    fn charge(&mut self, attempt: &Attempt, cost: Cost) {
        let Some(request) = self.requests.get_mut(&attempt.request) else { return };
        request.tries += u32::from(cost != Cost::Nothing);
        request.spent += u32::from(cost == Cost::Attempt);
        request.advanced &= cost != Cost::Attempt;
        if let Some(tried) = request.tried.iter_mut().find(|tried| tried.replica == attempt.replica) {
            tried.reached = cost != Cost::Nothing;
        }
    }

    fn too_long(&mut self, attempt: &Attempt) {
        let Some(request) = self.requests.get_mut(&attempt.request) else { return };
        request.too_long = true;
        if let Some(context) = self.pool.replicas.get(&attempt.replica).and_then(|r| r.spec.context_tokens) {
            request.need = request.need.more_than(context);
        }
    }

    /// Puts the request of a failed attempt where it belongs: on another replica, back into the queue, or out. While another
    /// copy of it runs it stays where it is.
    pub(crate) fn fail_over(&mut self, ended: &Attempt, now: Timestamp) {
        let id = ended.request;
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.failed = true;
        if !request.copies().is_empty() {
            return;
        }
        request.waits_again(ended.waited, now);
        self.retry(id, now);
    }

    /// Another attempt now, if a slot and the budget allow, or a place at the front of the queue; the end where none can come.
    fn retry(&mut self, id: RequestId, now: Timestamp) {
        let prospect = self.hope(id);
        let Some(request) = self.requests.get(&id) else { return };
        if waits_in_vain(request, prospect) || !retry::may_try_again(&self.config.retry, request.tries, request.spent) {
            return self.exhausted(id, now);
        }
        match self.choose(id, now) {
            Some(replica) if self.has_room(id, replica) => self.dispatch(id, replica, now),
            choice => {
                self.starved |= choice.is_some();
                self.enqueue(id, now);
            }
        }
    }

    /// No further attempt is allowed, or none is possible. If a relay is in doubt that would explain it, its verdict is
    /// waited for.
    pub(crate) fn exhausted(&mut self, id: RequestId, now: Timestamp) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let window = self.config.health.relay_window;
        let in_doubt = |tried: &Tried| {
            let relay = self.pool.replicas.get(&tried.replica).and_then(|r| self.pool.relays.get(&r.spec.relay));
            !tried.reached && relay.is_some_and(|relay| relay.in_doubt(&self.config.health, now))
        };
        let undecided = request.tried.iter().any(in_doubt);
        if undecided && retry::may_try_again(&self.config.retry, request.tries, request.spent) {
            request.phase = Phase::Parked { until: now + window };
            self.parked.insert(id);
            return self.schedule(id);
        }
        let reason = self.exhaustion(id);
        self.reject(id, reason, now);
    }

    pub(crate) fn exhaustion(&self, id: RequestId) -> ShedReason {
        let Some(request) = self.requests.get(&id) else { return ShedReason::AttemptsExhausted };
        let largest = self.pool.models.get(&request.spec.model).and_then(|m| m.largest_context(request.spec.route));
        let nothing_larger = request.need.measured && largest.is_none_or(|largest| largest < request.need.tokens);
        if request.too_long && (nothing_larger || request.spent == 0) {
            ShedReason::ContextExceeded
        } else if request.spent == 0 {
            // All were unreachable, full, loading or waiting for their operator: nobody worked on it and failed.
            ShedReason::NoCapacity
        } else {
            ShedReason::AttemptsExhausted
        }
    }

    /// A relay is down: what was tried through it in vain was not tried.
    pub(crate) fn refund(&mut self, members: &[ReplicaId], now: Timestamp) {
        for id in self.requests.keys().copied().collect::<Vec<_>>() {
            if self.refund_one(id, members) && self.parked.remove(&id) {
                self.retry(id, now);
            }
        }
    }

    /// Whether it had tried any of them in vain. `members` are sorted.
    fn refund_one(&mut self, id: RequestId, members: &[ReplicaId]) -> bool {
        let Some(request) = self.requests.get_mut(&id) else { return false };
        let before = request.tried.len();
        request.tried.retain(|tried| tried.reached || members.binary_search(&tried.replica).is_err());
        request.tried.len() < before
    }

    /// The budget has room again: places the retries that were passed over.
    pub(crate) fn place_retries(&mut self, now: Timestamp) {
        let lanes = self.queue.models.values().flat_map(|queue| queue.lanes.values());
        let returned = lanes.flat_map(|lane| lane.returned.values()).map(|place| place.request);
        let is_retry = |id: &RequestId| self.requests.get(id).is_some_and(Request::is_retry);
        let mut waiting: Vec<_> = returned.filter(is_retry).collect();
        waiting.sort_by_key(|id| self.requests.get(id).map(|request| (request.spec.class, request.order)));
        for id in waiting {
            let Some(replica) = self.choose(id, now) else { continue };
            if self.has_room(id, replica) {
                self.dispatch(id, replica, now);
            } else {
                self.starved = true;
                return;
            }
        }
    }
}

/// Nobody will come for it: all that could were asked, or what its client has seen can be carried on by nobody.
pub(crate) fn waits_in_vain(request: &Request, prospect: Prospect) -> bool {
    prospect == Prospect::Never && (!request.tried.is_empty() || request.is_shown())
}
