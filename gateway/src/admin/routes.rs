//! The table of routes, from which both the router and the test of the description are made.

use axum::{Extension, Router, routing::MethodRouter};

use super::{
    Shared, advice, audit, batches, chain, console, cost, deployments, events, explain, form::MaxBody, health, import,
    keys, openapi, queue, register, reload, replicas, requests, watch,
};

/// Largest imported list. 8 MiB: 5,000 replicas with their history fit.
const MAX_IMPORT: usize = 8 << 20;

macro_rules! routes {
    ($($path:literal { $($method:ident => $handler:path $([$limit:expr])?),+ })+) => {
        /// Every route: method and path.
        pub const ROUTES: &[(&str, &str)] = &[$($((stringify!($method), $path)),+),+];

        pub(super) fn router() -> Router<Shared> {
            Router::new()
                $(.route($path, MethodRouter::new()$(.$method($handler)$(.layer(Extension(MaxBody($limit))))?)+))+
        }
    };
}

routes! {
    "/" { get => console::page }
    "/favicon.svg" { get => console::icon }
    "/console/{file}" { get => console::file }
    "/admin/replicas" { get => replicas::list, post => replicas::add }
    "/admin/replicas/import" { post => import::import [MAX_IMPORT] }
    "/admin/replicas/{id}" { get => replicas::get, patch => replicas::amend, delete => replicas::remove }
    "/admin/replicas/{id}/drain" { post => replicas::drain }
    "/admin/replicas/{id}/undrain" { post => replicas::undrain }
    "/admin/replicas/{id}/release" { post => replicas::release }
    "/admin/deployments" { get => deployments::list }
    "/admin/register" { post => register::register [register::MAX_BODY] }
    "/admin/registrations/refused" { get => register::refused }
    "/admin/keys" { get => keys::list, post => keys::create }
    "/admin/keys/{id}" { delete => keys::revoke }
    "/admin/batches" { get => batches::list }
    "/admin/batches/{id}" { get => batches::get }
    "/admin/batches/{id}/cancel" { post => batches::cancel }
    "/admin/chain" { get => chain::get }
    "/admin/requests" { get => requests::list }
    "/admin/requests/{id}" { delete => requests::cancel }
    "/admin/requests/{id}/explain" { get => explain::explain }
    "/admin/queue" { get => queue::list }
    "/admin/cost" { get => cost::cost }
    "/admin/advice" { get => advice::show }
    "/admin/events" { get => events::events }
    "/admin/watch" { get => watch::watch }
    "/admin/history" { get => watch::history }
    "/admin/audit" { get => audit::list }
    "/admin/reload" { post => reload::reload }
    "/admin/openapi.json" { get => openapi::openapi }
    "/metrics" { get => health::metrics }
    "/healthz" { get => health::healthz }
    "/readyz" { get => health::readyz }
}
