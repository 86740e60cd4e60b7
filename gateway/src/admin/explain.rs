//! Why a request is where it is: what it needs, and what each replica would mean for it.

use axum::{Json, extract::State};
use scheduler::{CandidateView, Explanation};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    AppState, Shared,
    answer::AdminError,
    form::Id,
    view::{ErrorView, RequestView},
};

/// Why a request waits, or runs where it runs. Lengths of time are in seconds; null where there is no end to them.
#[derive(Serialize, ToSchema)]
pub struct ExplanationView {
    /// The request.
    pub request: RequestView,
    /// Why it waits, or how it came to run: `placed`, `taken`, `waited`, `waited_warm`, `reserved`, `passed_over`, `promoted`,
    /// `hedged_late`, `hedged_straggler`, `gave_back` or `retried`, as in `huntgroup_decisions_total`.
    pub decision: Option<&'static str>,
    /// Prompt tokens, as replicas of its model count.
    pub prompt_tokens: f64,
    /// Of these, tokens that other requests were seen to begin with as well.
    pub shared_tokens: f64,
    /// Answer tokens expected.
    pub output_tokens: f64,
    /// What it costs a typical replica of the pool.
    pub work_s: Option<f64>,
    /// Requests that wait before it; null once it runs.
    pub ahead: Option<usize>,
    /// The wait that is still before it, estimated; null once it runs.
    pub wait_s: Option<f64>,
    /// The replicas looked at, the best first: now, if it waits; when it was placed, if it runs. At most 20.
    pub candidates: Vec<CandidateReport>,
}

/// What one replica would mean for the request. Lengths of time are in seconds; null where there is no end to them.
#[derive(Serialize, ToSchema)]
pub struct CandidateReport {
    /// Its name.
    pub replica: String,
    /// It has a free slot.
    pub free: bool,
    /// Requests running there.
    pub running: u32,
    /// Its free slots are kept for more urgent arrivals.
    pub reserved: bool,
    /// Prompt tokens that it is believed to hold, and need not read.
    pub cached_tokens: f64,
    /// Until a slot is free there.
    pub wait_s: Option<f64>,
    /// Reading the rest of the prompt, alone.
    pub prefill_s: Option<f64>,
    /// Writing the answer, alone.
    pub decode_s: Option<f64>,
    /// What sharing the replica adds for it and, weighted by class, for what runs there.
    pub delay_s: Option<f64>,
    /// The worth of what the replica holds and would lose.
    pub eviction_s: Option<f64>,
    /// What it counts that the phone is to be spared.
    pub sparing_s: Option<f64>,
    /// The expected loss by the replica going away in between.
    pub risk_s: Option<f64>,
    /// What is compared, the least wins: the sum of the terms, the wait included. Null: out of the question.
    pub cost_s: Option<f64>,
}

/// Seconds, to the millisecond; JSON has no infinity.
pub(super) fn seconds(length: f64) -> Option<f64> {
    length.is_finite().then(|| (length * 1e3).round() / 1e3)
}

impl ExplanationView {
    fn new(request: RequestView, explanation: &Explanation, app: &AppState) -> Self {
        let waits = explanation.view.running.is_none();
        Self {
            request,
            decision: explanation.decision.map(|decision| decision.name()),
            prompt_tokens: explanation.prompt_tokens.round(),
            shared_tokens: explanation.shared_tokens.round(),
            output_tokens: explanation.output_tokens.round(),
            work_s: seconds(explanation.work),
            ahead: waits.then_some(explanation.ahead),
            wait_s: explanation.wait.filter(|_| waits).and_then(|wait| seconds(wait.as_secs_f64())),
            candidates: explanation.candidates.iter().map(|candidate| CandidateReport::new(candidate, app)).collect(),
        }
    }
}

impl CandidateReport {
    fn new(candidate: &CandidateView, app: &AppState) -> Self {
        let replica = app.fleet.replica(candidate.replica);
        Self {
            replica: replica.map_or_else(|| candidate.replica.0.to_string(), |replica| replica.label.to_string()),
            free: candidate.free,
            running: candidate.running,
            reserved: candidate.reserved,
            cached_tokens: candidate.cached_tokens.round(),
            wait_s: seconds(candidate.wait),
            prefill_s: seconds(candidate.prefill),
            decode_s: seconds(candidate.decode),
            delay_s: seconds(candidate.delay),
            eviction_s: seconds(candidate.eviction),
            sparing_s: seconds(candidate.sparing),
            risk_s: seconds(candidate.risk),
            cost_s: seconds(candidate.wait + candidate.cost),
        }
    }
}

/// Why a request waits, or runs where it runs.
#[utoipa::path(get, path = "/admin/requests/{id}/explain", tag = "requests",
    params(("id" = String, Path, description = "As in `x-request-id`")),
    responses((status = 200, description = "The candidates with the terms of their cost", body = ExplanationView),
        (status = 404, description = "No such request is being answered now", body = ErrorView)))]
pub(super) async fn explain(State(shared): State<Shared>, Id(id): Id) -> Result<Json<ExplanationView>, AdminError> {
    let gone = || AdminError::NotFound("no such request is being answered now".into());
    let live = shared.app.live.find(&id).ok_or_else(gone)?;
    let explanation = shared.app.dispatcher.explain(live.request).ok_or_else(gone)?;
    let request = shared.request(&live, Some(&explanation.view));
    Ok(Json(ExplanationView::new(request, &explanation, &shared.app)))
}
