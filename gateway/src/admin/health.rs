//! The process: alive, ready, measured.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};

use super::{
    Shared,
    view::{ErrorView, HealthView},
};

/// The process is alive.
#[utoipa::path(get, path = "/healthz", tag = "process",
    responses((status = 200, description = "Alive", body = HealthView)))]
pub(super) async fn healthz() -> Json<HealthView> {
    Json(HealthView { status: "ok" })
}

/// At least one replica takes work, and the process is not on its way out.
#[utoipa::path(get, path = "/readyz", tag = "process",
    responses((status = 200, description = "Ready", body = HealthView),
        (status = 503, description = "Not ready, and why", body = HealthView)))]
pub(super) async fn readyz(State(shared): State<Shared>) -> (StatusCode, Json<HealthView>) {
    let status = if shared.app.in_flight.is_draining() {
        "draining"
    } else if !shared.app.fleet.any_ready() {
        "no replica is ready"
    } else {
        return (StatusCode::OK, Json(HealthView { status: "ok" }));
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(HealthView { status }))
}

/// Metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "process",
    responses((status = 200, description = "Prometheus' text format", body = String, content_type = "text/plain"),
        (status = 401, body = ErrorView)))]
pub(super) async fn metrics(State(shared): State<Shared>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], shared.app.telemetry.render())
}
