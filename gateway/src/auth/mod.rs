//! Who asks: from a key to a [`Tenant`].
//!
//! Keys stand in the configuration or were made while the gateway runs (and are then in the store, as digests). Both are
//! put into one immutable table, which a reload, a new key or a revocation replaces as a whole; a look-up takes no lock.
//! Missing, malformed, unknown and revoked keys are one error: what exists is nobody's business. Rejected: asking the store
//! for each request (a disk in the path of every request), and caching its answers (a revoked key would live on).

mod failed_logins;
mod failures;
pub mod key;
mod table;
mod tenant;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use scheduler::{Share, TenantId};
use store::{By, KeyLimits, KeyRecord, NewKey, Put, Store, StoreError, UnixMillis};

pub use self::tenant::Tenant;
pub(crate) use self::{failed_logins::FailedLogins, failures::network};
use self::{
    failures::FailureBudget,
    key::{NoRandomness, Pepper},
    table::{Stated, Table, TenantIds},
};
use crate::{
    config::{Config, Secret, is_name},
    error::ApiError,
    ratelimit::Ticks,
};

/// Why nobody is known to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Missing, malformed, unknown or revoked.
    #[error("no valid key")]
    Invalid,
    /// Too many wrong keys from this address; this one was not looked at.
    #[error("too many wrong keys")]
    TooMany {
        /// When the next look is possible.
        retry_after: Duration,
    },
}

impl From<AuthError> for ApiError {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Invalid => Self::InvalidKey,
            AuthError::TooMany { retry_after } => Self::TooManyFailures { retry_after },
        }
    }
}

/// Why the keys can't be used, made or ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthSetupError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system gave no randomness.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// A stored key has a class that does not exist.
    #[error("key {key} has the class {class:?}, which does not exist")]
    UnknownClass {
        /// Its number.
        key: u32,
        /// What is stored.
        class: String,
    },
    /// Not a tenant's name.
    #[error("{0:?} is not a tenant's name: 1 to 64 of a-z, A-Z, 0-9, '-', '_', '.', and not \"anonymous\"")]
    TenantName(String),
}

/// A key to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRequest {
    /// Whose; need not be in the configuration.
    pub tenant: String,
    /// Models it may use; empty: as its tenant.
    pub models: Vec<String>,
    /// Its own limits.
    pub limits: KeyLimits,
    /// How urgent its requests are that do not say.
    pub class: Option<scheduler::Class>,
    /// The most urgent class it may ask for.
    pub max_class: Option<scheduler::Class>,
}

/// A key just made: the only moment at which it is known.
#[derive(Clone, Debug)]
pub struct Issued {
    /// To be shown once.
    pub key: Secret,
    /// What is kept.
    pub record: KeyRecord,
}

/// Knows all keys.
#[derive(Debug)]
pub struct Authenticator {
    pepper: Pepper,
    table: ArcSwap<Table>,
    failures: ArcSwap<FailureBudget>,
    /// What the table is made of besides the store. Held while a new one is made, so that the newest wins.
    stated: Mutex<(Stated, TenantIds)>,
    ticks: Ticks,
}

impl Authenticator {
    /// Reads configuration and store. Blocks for the store.
    ///
    /// # Errors
    /// The store failed, or holds what can't be.
    pub fn new(config: &Config, store: &Store) -> Result<Self, AuthSetupError> {
        Self::with_ticks(config, store, Ticks::Process)
    }

    /// [`Authenticator::new`] on another clock.
    ///
    /// # Errors
    /// The same.
    pub fn with_ticks(config: &Config, store: &Store, ticks: Ticks) -> Result<Self, AuthSetupError> {
        let at = UnixMillis(crate::clock::unix_ms());
        let pepper = Pepper::new(&store.pepper(By { at, who: "gateway".into() }, Pepper::generate()?)?);
        let (stated, mut ids) = (Stated::from(config), TenantIds::default());
        let table = Table::new(&stated, &mut ids, &store.keys()?, &pepper)?;
        let failures = FailureBudget::new(failures_per_minute(config), ticks.clone());
        Ok(Self {
            pepper,
            table: ArcSwap::from_pointee(table),
            failures: ArcSwap::from_pointee(failures),
            stated: Mutex::new((stated, ids)),
            ticks,
        })
    }

    /// The models that keys and tenants are limited to, by tenant.
    pub fn named_models(&self) -> BTreeMap<Arc<str>, BTreeSet<String>> {
        self.table.load().named_models()
    }

    /// Whether there is no key that would be let in.
    pub fn is_closed(&self) -> bool {
        self.table.load().is_closed()
    }

    /// Takes a new configuration and what the store has now. Blocks for the store.
    ///
    /// # Errors
    /// The store failed, or holds what can't be; then everything stays as it was.
    pub fn reconfigure(&self, config: &Config, store: &Store) -> Result<(), AuthSetupError> {
        let mut held = self.held();
        let (stated, ids) = &mut *held;
        let new = Stated::from(config);
        self.table.store(Arc::new(Table::new(&new, ids, &store.keys()?, &self.pepper)?));
        *stated = new;
        let per_minute = failures_per_minute(config);
        if self.failures.load().per_minute != per_minute {
            self.failures.store(Arc::new(FailureBudget::new(per_minute, self.ticks.clone())));
        }
        Ok(())
    }

    /// What the configured tenants get of a crowded pool. All others have the usual share; a tenant that is configured has
    /// its own also where its keys were made while the gateway runs.
    pub fn shares(&self) -> BTreeMap<TenantId, Share> {
        let mut held = self.held();
        let (stated, ids) = &mut *held;
        stated.shares(ids)
    }

    /// The names of all tenants known so far, by number.
    pub fn tenant_names(&self) -> BTreeMap<TenantId, Arc<str>> {
        self.held().1.names().into_iter().map(|(id, name)| (id, Arc::from(name))).collect()
    }

    /// Who asks. `authorization` and `x_api_key` are the headers of these names; a bearer token goes before the other.
    ///
    /// # Errors
    /// There is no valid key, or too many wrong ones came from this address.
    pub fn authenticate(
        &self,
        authorization: Option<&str>,
        x_api_key: Option<&str>,
        peer: IpAddr,
    ) -> Result<Arc<Tenant>, AuthError> {
        let table = self.table.load();
        if let Some(everybody) = table.everybody() {
            return Ok(Arc::clone(everybody));
        }
        let failures = self.failures.load();
        if let Some(retry_after) = failures.blocked(peer) {
            return Err(AuthError::TooMany { retry_after });
        }
        // A request without any key guesses nothing, so it is refused but not counted.
        let key = authorization.and_then(bearer).or(x_api_key).ok_or(AuthError::Invalid)?;
        let found = if key::is_well_formed(key) { table.find(&self.pepper, key) } else { None };
        found.cloned().ok_or_else(|| {
            failures.count(peer);
            AuthError::Invalid
        })
    }

    /// The tenant of work that was asked for earlier, with the permissions of that time ([`Tenant::permissions`]).
    pub fn recall(&self, tenant: &str, permissions: &serde_json::Value) -> Arc<Tenant> {
        let mut held = self.held();
        Arc::new(Tenant::recalled(held.1.of(tenant), tenant, permissions))
    }

    /// Makes a key, keeps its digest, and lets it in at once. Blocks for the store.
    ///
    /// # Errors
    /// The tenant's name is none; the store failed.
    pub fn issue(&self, store: &Store, by: By, request: KeyRequest) -> Result<Issued, AuthSetupError> {
        if !is_name(&request.tenant) || request.tenant == crate::config::ANONYMOUS {
            return Err(AuthSetupError::TenantName(request.tenant));
        }
        let key = key::generate()?;
        let class = |class: Option<scheduler::Class>| class.map(|class| class.name().to_owned());
        let new = NewKey {
            tenant: request.tenant,
            prefix: key::shown_prefix(&key).to_owned(),
            digest: self.pepper.digest(&key).0,
            limits: request.limits,
            models: request.models,
            class: class(request.class),
            max_class: class(request.max_class),
        };
        let mut held = self.held();
        let record = store.create_key(by, new)?;
        self.refresh(&mut held, store)?;
        Ok(Issued { key: Secret::new(key), record })
    }

    /// Ends a key at once, here and in the store. Blocks for the store.
    ///
    /// # Errors
    /// There is no such key; the store failed.
    pub fn revoke(&self, store: &Store, by: By, id: u32) -> Result<Put<KeyRecord>, AuthSetupError> {
        let mut held = self.held();
        let ended = store.revoke_key(by, id)?;
        self.refresh(&mut held, store)?;
        Ok(ended)
    }

    /// Knows what another process has changed of the keys. Blocks for the store.
    ///
    /// # Errors
    /// The store failed, or holds what can't be; then everything stays as it was.
    pub fn follow(&self, store: &Store) -> Result<(), AuthSetupError> {
        self.refresh(&mut self.held(), store)
    }

    fn refresh(&self, held: &mut (Stated, TenantIds), store: &Store) -> Result<(), AuthSetupError> {
        let (stated, ids) = held;
        self.table.store(Arc::new(Table::new(stated, ids, &store.keys()?, &self.pepper)?));
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, (Stated, TenantIds)> {
        // A panic while it was held left whole values behind: they are replaced, never changed in place.
        self.stated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failures_per_minute(config: &Config) -> NonZeroU32 {
    NonZeroU32::new(config.limits.failed_auth_per_minute).unwrap_or(NonZeroU32::MIN)
}

/// The token of a bearer header; the scheme in any case, as RFC 9110 has it.
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

#[cfg(test)]
mod tests;
