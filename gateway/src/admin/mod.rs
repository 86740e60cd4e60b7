//! The operator's listener: replicas, keys, live requests, events, metrics.
//!
//! Its own router on its own address, so that no public path can lead here. Every call passes [`guard`] first. Changes
//! go through `fleet`, `auth` and the store, which make them durable and write the audit trail. The bodies are types of
//! their own (`view`, `form`), described by `gateway/docs/openapi.json`, which a test holds to the truth.

mod answer;
mod audit;
mod connections;
mod events;
mod explain;
mod failed_logins;
mod form;
mod guard;
mod health;
mod import;
mod keys;
mod openapi;
mod queue;
mod reload;
mod replicas;
mod requests;
mod routes;
mod view;

use std::{net::SocketAddr, sync::Arc};

use axum::{Router, serve::ListenerExt as _};
use store::{By, Store, UnixMillis};
use tokio::sync::Semaphore;

use self::{connections::Bounded, failed_logins::FailedLogins, guard::Caller};
pub use self::{
    form::{AddReplica, AmendReplica, CreateKey, Drain},
    openapi::document,
    reload::{Reload, ReloadRefused},
    routes::ROUTES,
    view::{Imported, KeyView, NewKeyView, ReplicaView, RequestView},
};
use crate::{
    auth::Authenticator, clock, config, dispatch::Dispatcher, fleet::Fleet, in_flight::InFlight, live::Live,
    shutdown::Stop, telemetry::Telemetry,
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
    /// Whether the process drains.
    pub in_flight: Arc<InFlight>,
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

/// The admin API. Streams of events end with `stop`.
pub fn router(app: AppState, stop: Stop) -> Router {
    let shared =
        Shared { app, stop, event_readers: Arc::new(Semaphore::new(MAX_EVENT_READERS)), failed_logins: Arc::default() };
    routes::router()
        .fallback(answer::no_such_path)
        .method_not_allowed_fallback(answer::no_such_method)
        .layer(axum::middleware::from_fn_with_state(shared.clone(), guard::guard))
        .with_state(shared)
}

/// Serves the admin API until `stop`, then lets running calls end.
pub async fn serve(listener: std::net::TcpListener, app: AppState, stop: Stop) {
    match listener.local_addr() {
        Ok(address) if !address.ip().is_loopback() && app.config.token.is_none() => {
            tracing::error!(%address, "no admin API: the address is public and admin.token is not set");
            return;
        }
        Ok(_) => {}
        Err(error) => return tracing::error!(%error, "no admin API"),
    }
    let listener = match listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener)) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "no admin API"),
    };
    let mut ending = stop.clone();
    let service = router(app, stop).into_make_service_with_connect_info::<SocketAddr>();
    // Tapped only because axum tells the peer's address of its own listeners alone.
    let listener = Bounded::new(listener).tap_io(|_| ());
    let served = axum::serve(listener, service).with_graceful_shutdown(async move { ending.wait().await }).await;
    if let Err(error) = served {
        tracing::error!(%error, "the admin API ended");
    }
}
