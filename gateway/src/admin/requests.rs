//! Live requests: what each is doing, and ending one.

use std::{collections::HashMap, sync::atomic::Ordering};

use axum::{Extension, Json, extract::State};
use serde_json::json;

use super::{
    Shared,
    answer::AdminError,
    form::Id,
    guard::Caller,
    view::{CancelledView, ErrorView, RequestList, RequestView},
};
use crate::{clock, live::LiveRequest};

/// Requests that are being answered now.
#[utoipa::path(get, path = "/admin/requests", tag = "requests",
    responses((status = 200, description = "The oldest first", body = RequestList)))]
pub(super) async fn list(State(shared): State<Shared>) -> Json<RequestList> {
    let scheduled: HashMap<_, _> =
        shared.app.dispatcher.requests().into_iter().map(|request| (request.request, request)).collect();
    let data = shared.app.live.list().iter().map(|live| shared.request(live, scheduled.get(&live.request))).collect();
    Json(RequestList { object: "list", data })
}

impl Shared {
    pub(super) fn request(&self, live: &LiveRequest, scheduled: Option<&scheduler::RequestView>) -> RequestView {
        let running = scheduled.and_then(|request| request.running);
        let content_events = live.content_events.load(Ordering::Relaxed);
        let replica = running.and_then(|(_, id)| self.app.fleet.replica(id));
        RequestView {
            id: live.id.to_string(),
            tenant: live.tenant.to_string(),
            model: live.model.to_string(),
            route: live.route,
            class: live.class.name(),
            phase: live.phase(running.is_some()),
            replica: replica.map(|replica| replica.label.to_string()),
            attempts: scheduled.map_or(0, |request| request.attempts),
            age_s: clock::now().since(live.started).as_secs_f64(),
            content_events,
        }
    }
}

/// Ends a request with an error.
#[utoipa::path(delete, path = "/admin/requests/{id}", tag = "requests",
    params(("id" = String, Path, description = "As in `x-request-id`")),
    responses((status = 200, description = "It was told to end", body = CancelledView), (status = 404, body = ErrorView)))]
pub(super) async fn cancel(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
) -> Result<Json<CancelledView>, AdminError> {
    if !shared.app.live.cancel(&id) {
        return Err(AdminError::NotFound("no such request is being answered now".into()));
    }
    let (by, target) = (shared.by(&caller), format!("request:{id}"));
    shared.keep(move |store| store.note(by, "request.cancel".into(), target, json!({}))).await?;
    Ok(Json(CancelledView { id, cancelled: true }))
}
