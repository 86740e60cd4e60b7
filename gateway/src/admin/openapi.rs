//! The admin API's own description.

use axum::Json;
use utoipa::OpenApi;

use super::{
    advice, audit, batches, chain, console, cost, deployments, events, explain, form, health, import, keys, queue,
    register, reload, replicas, requests, view, watch,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "huntgroup admin API",
        description = "Replicas, keys, batches, live requests, events, metrics. Every call but health carries \
            `Authorization: Bearer TOKEN` when `admin.token` is set. Every change is durable and audited before it is answered.",
    ),
    paths(
        console::page, console::icon, console::file,
        replicas::list, replicas::add, import::import, replicas::get, replicas::amend, replicas::remove, replicas::drain,
        replicas::undrain, replicas::release, deployments::list, register::register, register::refused, chain::get,
        keys::list, keys::create, keys::revoke, batches::list, batches::get, batches::cancel,
        requests::list, requests::cancel, explain::explain, queue::list, advice::show, cost::cost,
        events::events, watch::watch, watch::history,
        audit::list, reload::reload, openapi, health::metrics, health::healthz, health::readyz,
    ),
    components(schemas(form::ModelsForm, view::ErrorView, view::ErrorBody, watch::PoolNow, watch::Delta, watch::Totals,
        watch::QueueNow, watch::RegistrationNow, watch::RequestsNow, watch::BatchesNow, watch::PointView, watch::EventsNow, watch::EventNow)),
    tags(
        (name = "replicas", description = "Phones that serve a model"),
        (name = "keys", description = "Tenants' API keys"),
        (name = "batches", description = "Tenants' files of requests, run at leisure"),
        (name = "requests", description = "What is being answered now"),
        (name = "console", description = "The page for browsers; its files need no token, and hold no data"),
        (name = "process", description = "The gateway itself"),
    ),
)]
struct Description;

/// The description as JSON, as it is committed.
pub fn document() -> String {
    let mut text = Description::openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// This description.
#[utoipa::path(get, path = "/admin/openapi.json", tag = "process",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(super) async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Description::openapi())
}
