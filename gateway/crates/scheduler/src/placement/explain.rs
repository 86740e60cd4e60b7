//! Why a request is where it is, in the terms in which it was decided.

use crate::{
    id::{ReplicaId, RequestId},
    placement::{Ask, Cost, Outlook, Own},
    replica::{Replica, Standing},
    request::Phase,
    scheduler::Scheduler,
    snapshot::{CandidateView, Explanation},
    time::Timestamp,
};

impl Scheduler {
    /// Why a live request is where it is; `None` once it has ended. Of one that runs: what was compared when it was placed.
    pub fn explain(&self, id: RequestId, now: Timestamp) -> Option<Explanation> {
        let request = self.requests.get(&id)?;
        let plan = &request.plan;
        let waits = matches!(request.phase, Phase::Waiting { .. });
        Some(Explanation {
            view: self.view(id, request, now),
            prompt_tokens: plan.prompt.tokens,
            shared_tokens: plan.shared,
            output_tokens: plan.output,
            work: plan.work,
            ahead: if waits { self.ahead(request) } else { 0 },
            wait: waits.then(|| self.wait_of(request, now)),
            decision: plan.decision,
            candidates: if waits { self.candidates(id, now) } else { plan.compared.clone() },
        })
    }

    /// Each replica that could serve it, as it would be weighed now; and those that could, were they able to carry its answer on.
    fn candidates(&self, id: RequestId, now: Timestamp) -> Vec<CandidateView> {
        let Some(request) = self.requests.get(&id) else { return Vec::new() };
        let Some(outlook) = self.outlook(request.spec.model, now) else { return Vec::new() };
        let Some(ask) = outlook.ask(id) else { return Vec::new() };
        let members = outlook.pool.members.iter().filter_map(|id| Some((*id, outlook.replica(*id)?)));
        let serving = members.filter(|(_, replica)| replica.standing() == Standing::Serving);
        let weighed = serving.filter_map(|(id, replica)| match request.onward(&replica.spec).is_open() {
            true => outlook.may_run(id, replica, &ask).then(|| outlook.weighed(id, replica, &ask)),
            false => Some(outlook.barred(id, replica, &ask)),
        });
        let mut candidates: Vec<CandidateView> = weighed.collect();
        candidates.sort_by(|a, b| (a.wait + a.cost).total_cmp(&(b.wait + b.cost)).then(a.replica.cmp(&b.replica)));
        candidates.truncate(Explanation::CANDIDATES);
        candidates
    }
}

impl Outlook<'_> {
    fn barred(&self, id: ReplicaId, replica: &Replica, ask: &Ask<'_>) -> CandidateView {
        let cost = Cost::out_of_the_question(Own::default(), replica.running.len());
        self.view(id, replica, ask, &cost, 0.0)
    }

    fn weighed(&self, id: ReplicaId, replica: &Replica, ask: &Ask<'_>) -> CandidateView {
        let cost = self.exact(true).now_cost(id, replica, ask, f64::INFINITY);
        if replica.free() > 0 {
            return self.view(id, replica, ask, &cost, 0.0);
        }
        // Not free: what counts is when its first attempt ends, and what it will hold then.
        let wait = self.jobs(id, replica).ends(&self.learned.shape).first();
        let wait = if wait.is_finite() { wait } else { 0.0 };
        let (later, own) = self.later_cost(id, replica, ask, f64::INFINITY);
        let view = self.view(id, replica, ask, &cost, wait);
        let cached = self.own_later(id, replica, ask).map_or(0.0, |own| own.cached);
        CandidateView {
            cached_tokens: cached,
            delay: (later - wait - own).max(0.0),
            cost: (later - wait).max(own),
            ..view
        }
    }
}
