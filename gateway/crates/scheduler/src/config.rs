//! The core's settings. Every number has its reason beside it; the gateway fills them from its configuration file.

use std::{collections::BTreeMap, time::Duration};

use crate::id::TenantId;

/// How a replica is chosen among those with a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Policy {
    /// Where the request is answered soonest, at the least delay to the others: by measured speeds, warm prefixes and
    /// remaining work. May let a request wait for a better replica than the free one.
    LeastWork,
    /// Fewest busy slots in proportion, then the faster replica, then the one idle longest.
    LeastBusy,
    /// In turn. For comparison.
    RoundRobin,
}

/// All settings of the core.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SchedulerConfig {
    /// The choice of replica.
    pub policy: Policy,
    /// Queue bounds.
    pub queue: QueueConfig,
    /// Attempts and the retry budget.
    pub retry: RetryConfig,
    /// Ejection, penalty, probation, pool protection.
    pub health: HealthConfig,
    /// What tenants get of a crowded pool; those not named have weight 1 and no cap.
    pub tenants: BTreeMap<TenantId, Share>,
    /// Second copies of slow requests, and work given back.
    pub hedge: HedgeConfig,
    /// How long a slot stays taken by work that was broken off.
    pub release: ReleaseConfig,
}

/// A tenant's share of a crowded pool.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Share {
    /// Work it gets in proportion to others while both wait; above 0.
    pub weight: f64,
    /// Slots it may hold at once; what is beyond waits.
    pub max_running: Option<u32>,
}

impl SchedulerConfig {
    /// What a tenant gets.
    pub(crate) fn share(&self, tenant: TenantId) -> Share {
        self.tenants.get(&tenant).copied().unwrap_or_default()
    }
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1.0, max_running: None }
    }
}

/// Second copies of slow requests, and batch work given back to more urgent requests. Only with [`Policy::LeastWork`].
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HedgeConfig {
    /// Off: no request ever runs twice at once.
    pub enabled: bool,
    /// Second copies at once, at most this share of the serving replicas (but one may always run). 0.05: a copy costs
    /// others what it takes.
    pub budget_share: f64,
    /// A running batch request may be stopped and queued again when a more urgent one would wait long for a slot.
    pub give_back: bool,
}

/// How long the slot of broken-off work stays taken where nothing shows that it is free. See [`Release`](crate::Release).
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReleaseConfig {
    /// Times what the rest of the work should take by the replica's own speeds; at least 1. 1.5: such estimates are off by a
    /// third, and a slot given too early costs a request all that the old work still takes.
    pub factor: f64,
    /// At least this long where the engine's slots are looked at. 60 s: it is the looks that end it; the bound is for an engine
    /// that no longer answers them, and it must not pass before a long prompt is read.
    pub min: Duration,
    /// At most this long. 10 min: no prompt takes longer to read, and a phone that never shows a free slot is tried again.
    pub cap: Duration,
}

/// Bounds of the queue.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueConfig {
    /// Waiting requests, all models together. 10,000: a queue longer than that is not served in any client's patience.
    pub max_requests: usize,
    /// Waiting requests per slot of the model's pool. 10: at one minute a request, the last waits ten minutes.
    pub max_per_slot: usize,
    /// Bytes of waiting bodies. 256 MiB: what the gateway may hold for others' sake.
    pub max_bytes: u64,
    /// Longest wait by class (interactive, standard, batch); `None` waits as long as it takes.
    pub max_age: [Option<Duration>; 3],
    /// How long a request for a known model waits when no replica serves it now. 30 s: a phone that flaps is back by then.
    pub no_replica_wait: Duration,
    /// Protection from starvation: a request that has waited this long counts as one class more urgent, and after
    /// twice as long as two. 60 s.
    pub promote_after: Duration,
}

/// Attempts per request, and over all.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RetryConfig {
    /// Attempts per request, second copies included. 3: each costs seconds to minutes of a phone. Not counted are replicas
    /// that could not be reached, and, up to twice as many again, those that turned the request away at once (full, loading,
    /// too small, misconfigured, a tunnel's page).
    pub max_attempts: u32,
    /// Retries under way, at most this share of the requests in flight. 0.2: more would feed a collapse.
    pub budget_share: f64,
    /// But at least this many. 3: a small pool must be able to fail over.
    pub budget_floor: u32,
}

/// When a replica is not used, and how it comes back.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HealthConfig {
    /// Hard failures in a row that eject. 2: one may be a blip of the tunnel, the probe decides.
    pub hard_failures: u32,
    /// Soft failures in a row that eject. 3.
    pub soft_failures: u32,
    /// Ejects when fewer than this share of the outcomes in `success_window` are good. 0.7.
    pub min_success_share: f64,
    /// With at least this many outcomes. 5.
    pub min_samples: u32,
    /// The window of `min_success_share`. 1 h.
    pub success_window: Duration,
    /// First penalty; doubles with each ejection. 5 s. It starts anew for a replica that carries answers on and was back for longer than
    /// it had been out.
    pub penalty: Duration,
    /// Longest penalty, and the longest honoured Retry-After. 600 s.
    pub penalty_cap: Duration,
    /// Penalties vary by this share, up and down. 0.5: phones that failed together must not come back together.
    pub penalty_jitter: f64,
    /// At most this share of the pool is out because of soft failures. 0.3.
    pub max_soft_ejected: f64,
    /// Below this share of eligible replicas, soft ejections are ignored. 0.5.
    pub panic_share: f64,
    /// All replicas of one relay failing to connect within this time means the relay is down. 5 s.
    pub relay_window: Duration,
    /// A relay needs at least this many replicas to be judged. 3.
    pub relay_min_replicas: usize,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            policy: Policy::LeastWork,
            queue: QueueConfig {
                max_requests: 10_000,
                max_per_slot: 10,
                max_bytes: 256 << 20,
                max_age: [Some(Duration::from_secs(120)), Some(Duration::from_secs(600)), None],
                no_replica_wait: Duration::from_secs(30),
                promote_after: Duration::from_secs(60),
            },
            retry: RetryConfig { max_attempts: 3, budget_share: 0.2, budget_floor: 3 },
            health: HealthConfig {
                hard_failures: 2,
                soft_failures: 3,
                min_success_share: 0.7,
                min_samples: 5,
                success_window: Duration::from_secs(3600),
                penalty: Duration::from_secs(5),
                penalty_cap: Duration::from_secs(600),
                penalty_jitter: 0.5,
                max_soft_ejected: 0.3,
                panic_share: 0.5,
                relay_window: Duration::from_secs(5),
                relay_min_replicas: 3,
            },
            tenants: BTreeMap::new(),
            hedge: HedgeConfig { enabled: true, budget_share: 0.05, give_back: true },
            release: ReleaseConfig { factor: 1.5, min: Duration::from_secs(60), cap: Duration::from_secs(600) },
        }
    }
}
