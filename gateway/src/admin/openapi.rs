//! The admin API's own description.

use axum::Json;
use utoipa::OpenApi;

use super::{audit, events, explain, form, health, import, keys, queue, reload, replicas, requests, view};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "huntgroup admin API",
        description = "Replicas, keys, live requests, events, metrics. Every call but health carries \
            `Authorization: Bearer TOKEN` when `admin.token` is set. Every change is durable and audited before it is answered.",
    ),
    paths(
        replicas::list, replicas::add, import::import, replicas::get, replicas::amend, replicas::remove, replicas::drain,
        replicas::undrain, keys::list, keys::create, keys::revoke, requests::list, requests::cancel, explain::explain,
        queue::list, events::events,
        audit::list, reload::reload, openapi, health::metrics, health::healthz, health::readyz,
    ),
    components(schemas(form::ModelsForm, view::ErrorView, view::ErrorBody)),
    tags(
        (name = "replicas", description = "Phones that serve a model"),
        (name = "keys", description = "Tenants' API keys"),
        (name = "requests", description = "What is being answered now"),
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
