//! The operator's listener: replicas, keys, batches, live requests, events, metrics, and the console, a page for browsers.
//!
//! Its own router on its own address, so that no public path can lead here. Every call passes [`guard`] first. Changes
//! go through `fleet`, `auth` and the store, which make them durable and write the audit trail. The bodies are types of
//! their own (`view`, `form`), described by `gateway/docs/openapi.json`, which a test holds to the truth.

mod advice;
mod answer;
mod audit;
mod batches;
mod chain;
mod connections;
mod console;
mod cost;
mod deployments;
mod events;
mod explain;
mod form;
mod guard;
mod health;
mod import;
mod keys;
mod openapi;
mod queue;
mod register;
mod reload;
mod replicas;
mod requests;
mod routes;
mod view;
mod watch;

use std::sync::Arc;

use axum::{Router, extract::FromRef, middleware::from_fn};
use store::{By, Store, UnixMillis};
use tokio::sync::Semaphore;

use self::{
    connections::{Bounded, Peer},
    guard::Caller,
    watch::Watch,
};
pub use self::{
    form::{AddReplica, AmendReplica, CreateKey, Drain},
    openapi::document,
    reload::{Reload, ReloadRefused},
    routes::ROUTES,
    view::{Imported, KeyView, NewKeyView, ReplicaView, RequestView},
};
use crate::{
    auth::{Authenticator, FailedLogins},
    batch::Batches,
    capacity::Adviser,
    chain::ChainWatch,
    clock, config,
    dispatch::Dispatcher,
    fleet::Fleet,
    in_flight::InFlight,
    live::Live,
    pressure::Pressure,
    registration::Registrar,
    shutdown::Stop,
    telemetry::Telemetry,
};

/// Readers of the event feed at once. 32: consoles and scripts of a handful of operators.
const MAX_EVENT_READERS: usize = 32;

/// What the admin API works on.
#[derive(Clone)]
pub struct AppState {
    /// The pool.
    pub fleet: Arc<Fleet>,
    /// Tenants and their keys.
    pub auth: Arc<Authenticator>,
    /// What survives a restart.
    pub store: Arc<Store>,
    /// Metrics.
    pub telemetry: Arc<Telemetry>,
    /// Requests being answered.
    pub live: Arc<Live>,
    /// The scheduler.
    pub dispatcher: Arc<Dispatcher>,
    /// Files and batches.
    pub batches: Arc<Batches>,
    /// How many phones there should be.
    pub adviser: Arc<Adviser>,
    /// The chain, watched.
    pub chain: Arc<ChainWatch>,
    /// Whether the process drains.
    pub in_flight: Arc<InFlight>,
    /// How close the process is to its memory's end.
    pub pressure: Arc<Pressure>,
    /// Takes what phones say.
    pub registrar: Arc<Registrar>,
    /// Reads the configuration again.
    pub reload: Arc<dyn Reload>,
    /// `[admin]` as it was at the start: the listener. What a reload can change is asked of `reload`.
    pub config: config::Admin,
}

/// What every handler gets.
#[derive(Clone)]
struct Shared {
    app: AppState,
    stop: Stop,
    event_readers: Arc<Semaphore>,
    failed_logins: Arc<FailedLogins>,
    watch: Arc<Watch>,
}

impl Shared {
    fn by(&self, caller: &Caller) -> By {
        By { at: now(), who: caller.who() }
    }

    /// Runs a call of the store where it may block.
    async fn keep<R: Send + 'static>(
        &self,
        call: impl FnOnce(&Store) -> Result<R, store::StoreError> + Send + 'static,
    ) -> Result<R, store::StoreError> {
        let store = Arc::clone(&self.app.store);
        tokio::task::spawn_blocking(move || call(&store)).await.unwrap_or(Err(store::StoreError::Closed))
    }
}

fn now() -> UnixMillis {
    UnixMillis(clock::unix_ms())
}

fn router(shared: Shared) -> Router {
    routes::router()
        .fallback(answer::no_such_path)
        .method_not_allowed_fallback(answer::no_such_method)
        .layer(axum::middleware::from_fn_with_state(shared.clone(), guard::guard))
        .with_state(shared)
}

impl FromRef<Shared> for Arc<Registrar> {
    fn from_ref(shared: &Shared) -> Self {
        Self::clone(&shared.app.registrar)
    }
}

fn listening(listener: std::net::TcpListener) -> std::io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// Serves `POST /admin/register` and nothing else until `stop`, for phones.
pub async fn serve_phones(listener: std::net::TcpListener, registrar: Arc<Registrar>, mut stop: Stop) {
    let listener = match listening(listener) {
        Ok(listener) => Bounded::brief(listener),
        Err(error) => return tracing::error!(%error, "phones can't register"),
    };
    let service =
        register::router(registrar).layer(from_fn(connections::serving)).into_make_service_with_connect_info::<Peer>();
    let serving = axum::serve(listener, service).with_graceful_shutdown(async move { stop.wait().await });
    if let Err(error) = serving.await {
        tracing::error!(%error, "phones can no longer register");
    }
}

/// Serves the admin API until `stop`, then lets running calls end. Streams of events end with `stop`.
pub async fn serve(listener: std::net::TcpListener, app: AppState, stop: Stop) {
    match listener.local_addr() {
        Ok(address) if !address.ip().is_loopback() && app.config.token.is_none() => {
            tracing::error!(%address, "no admin API: the address is public and admin.token is not set");
            return;
        }
        Ok(_) => {}
        Err(error) => return tracing::error!(%error, "no admin API"),
    }
    let listener = match listening(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "no admin API"),
    };
    let mut ending = stop.clone();
    let watch = Arc::<Watch>::default();
    let looking = watch::run(Arc::clone(&watch), app.clone(), stop.clone());
    let event_readers = Arc::new(Semaphore::new(MAX_EVENT_READERS));
    let shared = Shared { app, stop, event_readers, failed_logins: Arc::default(), watch };
    let service = router(shared).layer(from_fn(connections::serving)).into_make_service_with_connect_info::<Peer>();
    let serving =
        axum::serve(Bounded::new(listener), service).with_graceful_shutdown(async move { ending.wait().await });
    let (served, ()) = tokio::join!(serving.into_future(), looking);
    if let Err(error) = served {
        tracing::error!(%error, "the admin API ended");
    }
}
