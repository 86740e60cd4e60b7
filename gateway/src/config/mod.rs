//! The configuration: what an operator wrote, as types that cannot be wrong.
//!
//! A file is read in one pass into [`Config`] ([`load`]): durations, sizes, addresses, secrets already looked up. All
//! mistakes are gathered ([`ConfigErrors`]) and told at once. Every section lists its keys once ([`visit::Section`]);
//! reading, ranges, suggestions and reloads ([`Config::diff`]) all follow that list, and a test holds
//! `config/huntgroup.toml` to it. The reasons for the defaults stand beside them, in each section's type.

mod batches;
mod bytes;
mod capacity;
mod chain;
mod check;
mod diff;
mod duration;
mod hours;
mod idempotency;
mod load;
mod mistake;
mod moment;
mod pool;
mod quarantine;
mod raw;
mod registration;
mod replicas;
pub mod secret;
mod server;
mod streams;
mod tenants;
#[cfg(test)]
mod tests;
pub mod value;
pub mod visit;

use std::collections::BTreeMap;

use scheduler::{SchedulerConfig, Share, TenantId};

use self::visit::{Section, Visitor};
pub use self::{
    batches::Batches,
    bytes::{ByteSize, SizeError},
    capacity::Capacity,
    chain::{Chain, RpcUrl},
    diff::Changes,
    duration::{DurationError, show as show_duration},
    idempotency::{Idempotency, JoinByBody},
    load::{Overrides, load, parse},
    mistake::{ConfigErrors, Mistake, Place},
    moment::Moment,
    pool::{Health, Pool, Scheduling},
    quarantine::{Quarantine, Quarantined, Reports, Use},
    registration::Registration,
    replicas::{ModelSection, StatedModels, StatedReplica},
    secret::Secret,
    server::{Admin, Auth, LogFormat, LogLevel, Server, StoreFile, Telemetry},
    streams::{Keepalive, Streams},
    tenants::{Limits, TenantLimits, TenantSection},
};
pub(crate) use self::{
    check::{ANONYMOUS, is_name, is_replica_name, unstated_models},
    replicas::RATES,
};

/// Everything that can be set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The public listener.
    pub server: Server,
    /// The operator's listener.
    pub admin: Admin,
    /// What survives a restart.
    pub store: StoreFile,
    /// How replicas are reached.
    pub pool: Pool,
    /// How replicas come by themselves.
    pub registration: Registration,
    /// What replicas that nobody vouches for have to show.
    pub quarantine: Quarantine,
    /// What follows from what phones say about themselves.
    pub reports: Reports,
    /// When a replica is not used.
    pub health: Health,
    /// Who gets which replica.
    pub scheduler: Scheduling,
    /// How long silence may last.
    pub streams: Streams,
    /// Deployments that are looked up on the chain.
    pub chain: Chain,
    /// How clients that lost their connection come back.
    pub idempotency: Idempotency,
    /// Files of requests that are run at leisure.
    pub batches: Batches,
    /// What clients are promised.
    pub capacity: Capacity,
    /// Bounds for everybody.
    pub limits: Limits,
    /// Tenants by name.
    pub tenants: BTreeMap<String, TenantSection>,
    /// Replicas that the file states.
    pub replicas: Vec<StatedReplica>,
    /// Models by the name that clients use.
    pub models: BTreeMap<String, ModelSection>,
    /// Logs.
    pub telemetry: Telemetry,
}

impl Config {
    /// The core's settings; `tenants` are the shares of tenants by their numbers, which the configuration does not know.
    pub fn scheduler(&self, tenants: BTreeMap<TenantId, Share>) -> SchedulerConfig {
        SchedulerConfig {
            tenants,
            hedge: self.scheduler.hedge.clone(),
            policy: self.scheduler.policy,
            queue: self.scheduler.queue.clone(),
            retry: self.scheduler.retry.clone(),
            release: self.scheduler.release.clone(),
            health: self.health.ejection.clone(),
        }
    }
}

impl Section for Config {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.section("server", &mut self.server);
        v.section("admin", &mut self.admin);
        v.section("store", &mut self.store);
        v.section("pool", &mut self.pool);
        v.section("registration", &mut self.registration);
        v.section("quarantine", &mut self.quarantine);
        v.section("reports", &mut self.reports);
        v.section("health", &mut self.health);
        v.section("scheduler", &mut self.scheduler);
        v.section("streams", &mut self.streams);
        v.section("chain", &mut self.chain);
        v.section("idempotency", &mut self.idempotency);
        v.section("batches", &mut self.batches);
        v.section("capacity", &mut self.capacity);
        v.section("limits", &mut self.limits);
        // After `limits`: tenants start as a copy of it.
        v.named("tenants", &mut self.tenants, &TenantSection::new(self.limits.tenant));
        v.tables("replicas", &mut self.replicas);
        v.named("models", &mut self.models, &ModelSection::default());
        v.section("telemetry", &mut self.telemetry);
    }
}
