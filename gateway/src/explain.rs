//! Placements, explained in the log: for those who ask why, after the fact.
//!
//! One line at debug (target `huntgroup::scheduler`) for each slot that a request gets, with the best candidates and the terms
//! of their cost. `GET /admin/requests/{id}/explain` says the same of a request that is there. Without that level it costs
//! one look at a flag; with it the core is asked once more, so it is nothing for a busy day.

use scheduler::{CandidateView, RequestId};
use tracing::Level;

use crate::gateway::Gateway;

const TARGET: &str = "huntgroup::scheduler";
/// Candidates in a line: the chosen one, and what it was chosen over.
const SHOWN: usize = 3;

impl Gateway {
    /// A request has got a slot.
    pub(crate) fn log_placement(&self, id: &str, request: RequestId) {
        if !tracing::enabled!(target: TARGET, Level::DEBUG) {
            return;
        }
        let Some(explanation) = self.dispatcher.explain(request) else { return };
        let replica = explanation.view.running.map(|(_, replica)| self.name(replica)).unwrap_or_default();
        let candidates: Vec<String> =
            explanation.candidates.iter().take(SHOWN).map(|candidate| self.terms(candidate)).collect();
        tracing::debug!(
            target: TARGET,
            request = id,
            decision = explanation.decision.map(|decision| decision.name()),
            replica,
            age_s = explanation.view.age.as_secs_f64(),
            prompt_tokens = explanation.prompt_tokens,
            shared_tokens = explanation.shared_tokens,
            output_tokens = explanation.output_tokens,
            work_s = explanation.work,
            candidates = candidates.join("; "),
            "placed"
        );
    }

    fn name(&self, replica: scheduler::ReplicaId) -> String {
        self.fleet.replica(replica).map_or_else(|| replica.0.to_string(), |replica| replica.label.to_string())
    }

    fn terms(&self, candidate: &CandidateView) -> String {
        let CandidateView { wait, prefill, decode, delay, eviction, sparing, risk, cost, .. } = candidate;
        format!(
            "{} {:.1} s: wait {wait:.1}, prefill {prefill:.1}, decode {decode:.1}, delay {delay:.1}, \
             eviction {eviction:.1}, sparing {sparing:.1}, risk {risk:.1}, {:.0} tokens cached",
            self.name(candidate.replica),
            wait + cost,
            candidate.cached_tokens
        )
    }
}
