//! Copies of the core's state for those who look on.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    event::Class,
    id::{AttemptId, ModelId, ReplicaId, RequestId, TenantId},
    request::{Attempt, Request},
    scheduler::Scheduler,
    snapshot::{AttemptView, ReplicaView, RequestView, Snapshot},
    time::Timestamp,
};

impl Scheduler {
    /// Everything an operator may want to see.
    pub fn snapshot(&self, now: Timestamp) -> Snapshot {
        Snapshot {
            replicas: self.pool.replicas.iter().map(|(id, replica)| replica.view(*id)).collect(),
            queued: self.queue.depths(),
            queued_bytes: self.queue.bytes(),
            retries_in_flight: self.budget.retries,
            decisions: self.tally.decisions,
            wasted: self.tally.wasted,
            waits: self.waits(now),
            no_replica_wait: self.config.queue.no_replica_wait,
            relays_down: self.pool.relays.iter().filter(|(_, relay)| relay.is_down()).map(|(id, _)| *id).collect(),
        }
    }

    /// One replica; `None` if it is unknown or was removed.
    pub fn replica(&self, id: ReplicaId, _now: Timestamp) -> Option<ReplicaView> {
        self.pool.replicas.get(&id).map(|replica| replica.view(id))
    }

    /// One live request; `None` once it has ended.
    pub fn request(&self, id: RequestId, now: Timestamp) -> Option<RequestView> {
        self.requests.get(&id).map(|request| self.view(id, request, now))
    }

    /// All live requests, by id.
    pub fn requests(&self, now: Timestamp) -> Vec<RequestView> {
        self.requests.iter().map(|(id, request)| self.view(*id, request, now)).collect()
    }

    /// All running attempts, by number: a request may have several.
    pub fn attempts(&self) -> Vec<AttemptView> {
        let view = |(id, attempt): (&AttemptId, &Attempt)| AttemptView {
            attempt: *id,
            request: attempt.request,
            replica: attempt.replica,
            started: attempt.started,
            writes: attempt.first_token,
        };
        self.attempts.iter().map(view).collect()
    }

    /// How many requests wait, by tenant and model; only those of which some do.
    pub fn waiting_by_tenant(&self) -> BTreeMap<(TenantId, ModelId), usize> {
        let mut waiting = BTreeMap::new();
        for request in self.requests.values().filter(|request| request.copies().is_empty()) {
            *waiting.entry((request.spec.tenant, request.spec.model)).or_default() += 1;
        }
        waiting
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.queue.waiting() + self.parked.len()
    }

    fn waits(&self, now: Timestamp) -> BTreeMap<(ModelId, Class), Duration> {
        let served = self.pool.models.iter().filter(|(_, pool)| pool.serving_slots > 0);
        let all = served.flat_map(|(model, _)| Class::ALL.map(|class| (*model, class)));
        all.map(|(model, class)| ((model, class), self.estimate_wait(model, class, now))).collect()
    }

    pub(crate) fn view(&self, id: RequestId, request: &Request, now: Timestamp) -> RequestView {
        let copies = request.copies();
        let first = copies.first();
        let running = first.and_then(|id| self.attempts.get(&id).map(|attempt| (id, attempt.replica)));
        RequestView {
            request: id,
            model: request.spec.model,
            tenant: request.spec.tenant,
            class: request.spec.class,
            age: now.since(request.arrived),
            running,
            copies: copies.count() as u32,
            attempts: request.dispatches,
            part: request.part.map(|part| part.view()),
        }
    }
}
