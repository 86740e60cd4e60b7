//! A new configuration for a running process: read, compared, applied part by part. Streams and running requests feel
//! nothing; an invalid file changes nothing.

use std::sync::Arc;

use async_trait::async_trait;
use scheduler::Event;
use serde_json::json;
use store::{By, Store, UnixMillis};
use tokio::sync::Mutex;

use super::Options;
use crate::{
    admin,
    auth::AuthSetupError,
    chain, clock,
    config::{self, Changes, Config, ConfigErrors},
    gateway::Gateway,
    listener::{Certificate, CertificateError},
    upstream::TlsError,
};

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// All mistakes of the file.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The certificate that it names.
    #[error("server.tls_cert: {0}")]
    Certificate(#[from] CertificateError),
    /// The authorities that it names for replicas.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Its keys.
    #[error(transparent)]
    Auth(#[from] AuthSetupError),
    /// The replicas could not be stored.
    #[error("replicas: {0}")]
    Fleet(String),
}

/// Knows where the configuration came from and whom it concerns.
pub struct Reloader {
    gateway: Arc<Gateway>,
    certificate: Option<Arc<Certificate>>,
    store: Arc<Store>,
    chain: Arc<chain::ChainWatch>,
    options: Options,
    /// One reload at a time.
    running: Mutex<()>,
}

impl Reloader {
    /// For a gateway that runs with what `options` named.
    pub fn new(
        gateway: Arc<Gateway>,
        certificate: Option<Arc<Certificate>>,
        store: Arc<Store>,
        chain: Arc<chain::ChainWatch>,
        options: Options,
    ) -> Self {
        Self { gateway, certificate, store, chain, options, running: Mutex::default() }
    }

    /// Reads the configuration again and applies what changed. `who` is for the log.
    pub async fn reload(&self, who: &str) -> Result<Changes, ReloadError> {
        let _one = self.running.lock().await;
        let config = config::load(self.options.config_path.as_deref(), self.options.overrides.clone())?;
        let changes = self.gateway.config().diff(&config);
        // What can refuse comes first.
        if let (Some(current), Some(certificate), Some(key)) =
            (&self.certificate, &config.server.tls_cert, &config.server.tls_key)
        {
            current.reload(certificate, key)?;
        }
        self.gateway.upstream.reconfigure(&config.pool)?;
        self.reconfigure_keys(&config).await?;
        self.apply(config).await?;
        self.note(who, &changes).await?;
        tracing::info!(who, applied = ?changes.applied, needs_restart = ?changes.needs_restart, "configuration reloaded");
        Ok(changes)
    }

    /// Takes over what another process has changed in the store since this one read it.
    pub async fn catch_up(&self) -> Result<(), ReloadError> {
        let config = Config::clone(&self.gateway.config());
        self.reconfigure_keys(&config).await?;
        self.apply(config).await
    }

    async fn reconfigure_keys(&self, config: &Config) -> Result<(), ReloadError> {
        let (auth, store, config) = (Arc::clone(&self.gateway.auth), Arc::clone(&self.store), config.clone());
        Ok(blocking(move || auth.reconfigure(&config, &store)).await?)
    }

    /// A reload is audited whoever asked for it.
    async fn note(&self, who: &str, changes: &Changes) -> Result<(), ReloadError> {
        let at = UnixMillis(clock::unix_ms());
        let (store, by) = (Arc::clone(&self.store), By { at, who: who.into() });
        let detail = json!({ "applied": changes.applied, "needs_restart": changes.needs_restart });
        let noted = blocking(move || store.note(by, "reload".into(), "config".into(), detail)).await;
        Ok(noted.map_err(AuthSetupError::from)?)
    }

    async fn apply(&self, config: Config) -> Result<(), ReloadError> {
        let gateway = &self.gateway;
        // The keys have been read anew before, and the tenants' numbers with them.
        gateway.dispatcher.handle(Event::Configured { config: config.scheduler(gateway.auth.shares()) });
        gateway.telemetry.set_access_log(config.telemetry.access_log);
        gateway.telemetry.set_trace_sample(config.telemetry.trace_sample);
        gateway.fleet.reconcile(&config).await.map_err(|error| ReloadError::Fleet(error.to_string()))?;
        // After the fleet: what comes from there must be allowed by the new rules.
        self.chain.reconfigure(config.chain.clone());
        gateway.reconfigure(config);
        Ok(())
    }
}

/// The store blocks, so it is called where that is allowed.
async fn blocking<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> R {
    match tokio::task::spawn_blocking(call).await {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

#[async_trait]
impl admin::Reload for Reloader {
    async fn reload(&self, who: &str) -> Result<Changes, admin::ReloadRefused> {
        self.reload(who).await.map_err(|error| admin::ReloadRefused(error.to_string()))
    }

    fn admin(&self) -> config::Admin {
        self.gateway.config().admin.clone()
    }
}
