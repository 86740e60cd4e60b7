//! Several copies of one request at once, and work that is given back.
//!
//! On slow phones a stuck attempt costs minutes, and failing over after a deadline costs them all. A second copy on a free
//! phone costs only what it takes from others, so there is a budget by count of what runs, like that of retries. The core
//! holds the promises here: who wins, that the losers are stopped, that nobody has too many. *When* a copy is worth its
//! price, and which work makes room for which, is the policy's business.
//!
//! A copy wins with the first content where the client watches the answer being written, because two answers cannot be
//! interleaved; with the first whole answer otherwise, because nothing was shown before. A copy that fails beside another
//! ends nothing: the request goes on with the rest, and only the last failure is failed over.
//!
//! Letting the attempts of a request race in the driver was rejected: the slots they hold, and who is freed when, are what
//! every choice here is made of.

use std::time::Duration;

use crate::{
    config::SchedulerConfig,
    continuation::writing_time,
    copies::MAX_COPIES,
    effect::{CancelReason, Effect},
    event::Release,
    id::{AttemptId, ReplicaId, RequestId},
    replica::{Replica, Standing},
    request::{Attempt, Phase, Request},
    retry,
    scheduler::Scheduler,
    snapshot::{Decision, Waste},
    time::Timestamp,
};

/// How often one request may be stopped for others. 2: its work so far is lost each time, and a third time would starve it.
pub(crate) const MAX_GIVEN_BACK: u8 = 2;

/// How many times more copies there may be of a batch's last requests.
const STRAGGLERS: f64 = 5.0;

impl Scheduler {
    /// Sends a second copy of a running request to a replica. Returns whether it did; see [`Self::may_hedge`].
    pub(crate) fn hedge(&mut self, id: RequestId, replica: ReplicaId, why: Decision, now: Timestamp) -> bool {
        if !self.may_hedge(id, replica, why) {
            return false;
        }
        let first = self.requests.get(&id).and_then(|request| request.copies().first());
        let Some(waited) = first.and_then(|first| self.attempts.get(&first)).map(|attempt| attempt.waited) else {
            return false;
        };
        self.start(id, replica, waited, true, now);
        self.tally.count(why);
        true
    }

    /// Whether a copy of the request may run beside those it has, on this replica, now: its client has seen nothing, its
    /// attempts suffice for one more, its tenant may have another slot, the replica is free, suits it and was not asked, and
    /// the budget has room.
    pub(crate) fn may_hedge(&self, id: RequestId, replica: ReplicaId, why: Decision) -> bool {
        let Some(request) = self.requests.get(&id) else { return false };
        let copies = request.copies();
        let running = copies.count();
        let committed = copies.iter().filter_map(|copy| self.attempts.get(&copy)).any(|attempt| attempt.committed);
        (1..MAX_COPIES).contains(&running)
            && !committed
            && !request.has_tried(replica)
            && (request.part.is_none() || self.onward(id, replica).carries_on())
            && self.has_hedge_room(why)
            && self.may_start(id)
            && may_run_beside(&self.config, request, running)
            && self
                .pool
                .replicas
                .get(&replica)
                .is_some_and(|replica| replica.free() > 0 && self.suits(replica, request))
    }

    /// Whether another second copy may run. Copies of a batch's last requests take replicas that nobody else wants, so there
    /// may be more of them.
    pub(crate) fn has_hedge_room(&self, why: Decision) -> bool {
        let config = &self.config.hedge;
        let serving: usize = self.pool.relays.values().map(|relay| relay.active).sum();
        let share = config.budget_share.max(0.0) * if why == Decision::HedgedStraggler { STRAGGLERS } else { 1.0 };
        let most = (share * serving as f64) as u32;
        config.enabled && self.hedges < most.max(1)
    }

    /// Stops a running attempt for more urgent work. Its request goes on with its other copy, or is queued again before the
    /// others of its class; it has lost no attempt. Returns whether it did: not where the client has seen content, where
    /// it carries an answer on (which would be read once more), where it happened to the request often enough, where no slot would be free by it, or where the request could not come back to
    /// this very replica.
    pub(crate) fn give_back(&mut self, id: AttemptId, now: Timestamp) -> bool {
        if !self.may_give_back(id) {
            return false;
        }
        let Some(attempt) = self.stop(id, CancelReason::GivenBack, now) else { return false };
        self.tally.count(Decision::GaveBack);
        let Some(request) = self.requests.get_mut(&attempt.request) else { return true };
        request.untry(attempt.replica);
        if request.copies().is_empty() {
            request.given_back += 1;
            request.waits_again(attempt.waited, now);
            self.enqueue(attempt.request, now);
        }
        true
    }

    /// Whether [`Self::give_back`] would stop this attempt.
    pub(crate) fn may_give_back(&self, id: AttemptId) -> bool {
        let Some(attempt) = self.attempts.get(&id) else { return false };
        let Some(request) = self.requests.get(&attempt.request) else { return false };
        let Some(replica) = self.pool.replicas.get(&attempt.replica) else { return false };
        // Not by its end on an engine that does not notice that.
        let frees_slot =
            replica.spec.release != Release::RunsOn && usize::from(replica.usable()) >= replica.running.len();
        if !self.config.hedge.give_back || attempt.committed || attempt.carried.is_some() || !frees_slot {
            return false;
        }
        // Its place in the queue must be a hopeful one: that its own replica may take it again makes it so.
        let may_wait = || request.given_back < MAX_GIVEN_BACK && may_run_beside(&self.config, request, 0);
        request.copies().count() > 1 || (may_wait() && self.suits(replica, request))
    }

    /// A copy has won: its request's others are stopped. What they tried is no mark against anybody.
    pub(crate) fn drop_rivals(&mut self, id: RequestId, winner: AttemptId, now: Timestamp) {
        let Some(request) = self.requests.get(&id) else { return };
        for rival in request.copies().iter().filter(|copy| *copy != winner) {
            let loser = self.stop(rival, CancelReason::HedgeLost, now);
            let request = self.requests.get_mut(&id);
            if let Some((request, loser)) = request.zip(loser) {
                request.untry(loser.replica);
            }
        }
    }

    /// Stops an attempt, tells the driver, and counts its slot time as wasted. What becomes of its request is the caller's
    /// business.
    pub(crate) fn stop(&mut self, id: AttemptId, why: CancelReason, now: Timestamp) -> Option<Attempt> {
        let attempt = self.attempts.get(&id).copied()?;
        self.effects.push_back(Effect::Cancel { attempt: id, request: attempt.request, why });
        let waste = match why {
            CancelReason::ReplicaRemoved | CancelReason::DrainDeadline => Waste::Failed,
            CancelReason::Deadline => Waste::Abandoned,
            CancelReason::HedgeLost => Waste::HedgeLost,
            CancelReason::GivenBack => Waste::GivenBack,
        };
        let kept = if self.outlives(&attempt, why) { writing_time(&attempt, None, now) } else { Duration::ZERO };
        self.tally.waste(waste, now.since(attempt.started).saturating_sub(kept));
        self.release(id, why != CancelReason::ReplicaRemoved, now);
        Some(attempt)
    }

    /// Whether a replica takes such work, now or when a slot frees.
    fn suits(&self, replica: &Replica, request: &Request) -> bool {
        let spec = &request.spec;
        let threshold = self.pool.models.get(&spec.model).map(|pool| pool.threshold(spec.route, request.need));
        replica.standing() == Standing::Serving
            && replica.spec.models.contains(&spec.model)
            && replica.spec.routes.contains(spec.route)
            && request.onward(&replica.spec).is_open()
            && threshold.is_some_and(|threshold| replica.context() >= threshold)
    }
}

impl Request {
    /// Back from a replica to the queue: what it ran does not count as waiting, what it waited before does.
    pub(crate) fn waits_again(&mut self, waited: Duration, now: Timestamp) {
        self.phase = Phase::Waiting { orphan_since: None };
        self.queued_from = Timestamp(now.0.saturating_sub(waited.as_nanos() as u64));
    }
}

/// Whether the attempts of a request suffice for one more beside `running` others, should they all fail.
fn may_run_beside(config: &SchedulerConfig, request: &Request, running: usize) -> bool {
    let running = running as u32;
    retry::may_try_again(&config.retry, request.tries + running, request.spent + running)
}

#[cfg(test)]
mod tests;
