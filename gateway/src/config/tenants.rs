//! `[limits]` and `[tenants.*]`: who may ask, and how much.
//!
//! A tenant starts as a copy of `[limits]`; what it states replaces that, and `"none"` takes a limit away. So a
//! `None` here always means "no limit", never "look elsewhere".

use scheduler::{Class, Share};

use super::{
    bytes::ByteSize,
    secret::Secret,
    visit::{Section, Visitor, live},
};

/// Bounds of one tenant; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// Requests a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens a minute, prompt and answer together.
    pub tokens_per_minute: Option<u32>,
    /// Requests running or waiting at once.
    pub max_in_flight: Option<u32>,
    /// Requests waiting at once.
    pub max_queued: Option<u32>,
}

impl TenantLimits {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.ranged(live("requests_per_minute"), &mut self.requests_per_minute, 1..=100_000_000);
        v.ranged(live("tokens_per_minute"), &mut self.tokens_per_minute, 1..=u32::MAX);
        v.ranged(live("max_in_flight"), &mut self.max_in_flight, 1..=1_000_000);
        v.ranged(live("max_queued"), &mut self.max_queued, 1..=1_000_000);
    }
}

/// Bounds for everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What a tenant has that states nothing itself. No limits: the operator's own backends come first.
    pub tenant: TenantLimits,
    /// Failed authentications of one address in a minute; more are refused without a look-up. 20.
    pub failed_auth_per_minute: u32,
    /// Bodies and answers that the gateway holds at once. 256 MiB.
    pub max_buffered_bytes: ByteSize,
    /// Resident memory of the process; from 85 % of it on the gateway gives up idle connections, then refuses. `None`: the
    /// control group's limit, or the machine's memory.
    pub max_memory: Option<ByteSize>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tenant: TenantLimits::default(),
            failed_auth_per_minute: 20,
            max_buffered_bytes: ByteSize::mib(256),
            max_memory: None,
        }
    }
}

impl Section for Limits {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        self.tenant.visit(v);
        v.ranged(live("failed_auth_per_minute"), &mut self.failed_auth_per_minute, 1..=1_000_000);
        let range = ByteSize::mib(1)..=ByteSize::mib(1 << 20);
        v.ranged(live("max_buffered_bytes"), &mut self.max_buffered_bytes, range.clone());
        v.ranged(live("max_memory"), &mut self.max_memory, range);
    }
}

/// One tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantSection {
    /// Its keys, besides those made with `huntgroup keys create`.
    pub keys: Vec<Secret>,
    /// Its bounds.
    pub limits: TenantLimits,
    /// What it gets of a crowded pool.
    pub share: Share,
    /// The models it may use; empty: all.
    pub models: Vec<String>,
    /// How urgent a request is that does not say.
    pub class: Class,
    /// The most urgent class it may ask for; more urgent requests run in this one.
    pub max_class: Class,
}

impl TenantSection {
    /// A tenant that states nothing.
    pub fn new(limits: TenantLimits) -> Self {
        Self {
            keys: Vec::new(),
            limits,
            share: Share::default(),
            models: Vec::new(),
            class: Class::Standard,
            max_class: Class::Interactive,
        }
    }
}

impl Section for TenantSection {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.list(live("keys"), &mut self.keys);
        self.limits.visit(v);
        // Above 0: who gets nothing would wait for ever.
        v.ranged(live("weight"), &mut self.share.weight, 0.001..=1000.0);
        v.ranged(live("max_running"), &mut self.share.max_running, 1..=1_000_000);
        v.list(live("models"), &mut self.models);
        v.value(live("class"), &mut self.class);
        v.value(live("max_class"), &mut self.max_class);
    }
}
