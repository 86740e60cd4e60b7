//! `[pool]`, `[health]` and `[scheduler]`: the replicas, and who gets which.

use std::{path::PathBuf, time::Duration};

use scheduler::{HealthConfig, HedgeConfig, Policy, QueueConfig, ReleaseConfig, RetryConfig, SchedulerConfig};

use super::{
    bytes::ByteSize,
    visit::{Section, Visitor, live, restart},
};

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// How replicas are reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// PEM certificates that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// Whether replicas may have private, loopback or link-local addresses. Off: "add replica" must not be a way in.
    pub allow_private: bool,
    /// Whether replicas may be reached without TLS. Off: prompts cross the internet.
    pub allow_http: bool,
    /// Host names must end with one of these; empty: any.
    pub url_suffixes: Vec<String>,
    /// For a TCP connection. 3 s: a relay answers in milliseconds, a lost first packet is sent again after 1 s.
    pub connect_timeout: Duration,
    /// For the TLS handshake. 5 s: a phone whose network just went away hangs exactly here.
    pub tls_timeout: Duration,
    /// How long an unused connection is kept. 4 s: phones close theirs after 5 s.
    pub idle: Duration,
    /// How long a name's addresses are remembered. 30 s.
    pub dns_ttl: Duration,
    /// Most replicas. 5,000: five times the largest pool that was simulated.
    pub max_replicas: usize,
    /// From so long before a deployment's known end on nothing is started there that would not be done. 15 minutes: what runs
    /// longer than that is carried on elsewhere.
    pub drain_before_end: Duration,
    /// Replicas that came by themselves or from the chain are forgotten so long after their deployment's end. 24 h: renewed within
    /// a day, a phone keeps its history.
    pub forget_ended_after: Duration,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            ca_file: None,
            allow_private: false,
            allow_http: false,
            url_suffixes: Vec::new(),
            connect_timeout: seconds(3),
            tls_timeout: seconds(5),
            idle: seconds(4),
            dns_ttl: seconds(30),
            max_replicas: 5_000,
            drain_before_end: seconds(900),
            forget_ended_after: seconds(86_400),
        }
    }
}

impl Section for Pool {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.value(live("ca_file"), &mut self.ca_file);
        v.value(live("allow_private"), &mut self.allow_private);
        v.value(live("allow_http"), &mut self.allow_http);
        v.list(live("url_suffixes"), &mut self.url_suffixes);
        v.ranged(live("connect_timeout"), &mut self.connect_timeout, Duration::from_millis(100)..=seconds(60));
        v.ranged(live("tls_timeout"), &mut self.tls_timeout, Duration::from_millis(100)..=seconds(60));
        v.ranged(live("idle"), &mut self.idle, seconds(0)..=seconds(600));
        v.ranged(live("dns_ttl"), &mut self.dns_ttl, seconds(1)..=seconds(3600));
        v.ranged(live("max_replicas"), &mut self.max_replicas, 1..=100_000);
        v.ranged(live("drain_before_end"), &mut self.drain_before_end, seconds(0)..=seconds(86_400));
        v.ranged(live("forget_ended_after"), &mut self.forget_ended_after, seconds(60)..=seconds(365 * 86_400));
    }
}

/// How the gateway learns whether a replica is well, and what it does when one is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// Between two probes of a replica. 10 s: readiness is back within 10 s of the cause going.
    pub interval: Duration,
    /// For a probe's answer. 5 s: a phone that reads a prompt answers late, and is not dead.
    pub timeout: Duration,
    /// Ejection, penalty, probation, pool protection.
    pub ejection: HealthConfig,
}

impl Default for Health {
    fn default() -> Self {
        Self { interval: seconds(10), timeout: seconds(5), ejection: SchedulerConfig::default().health }
    }
}

impl Section for Health {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.ranged(live("interval"), &mut self.interval, seconds(1)..=seconds(600));
        v.ranged(live("timeout"), &mut self.timeout, Duration::from_millis(100)..=seconds(60));
        let e = &mut self.ejection;
        v.ranged(live("hard_failures"), &mut e.hard_failures, 1..=100);
        v.ranged(live("soft_failures"), &mut e.soft_failures, 1..=100);
        v.ranged(live("min_success_share"), &mut e.min_success_share, 0.0..=1.0);
        v.ranged(live("min_samples"), &mut e.min_samples, 1..=1_000);
        v.ranged(live("success_window"), &mut e.success_window, seconds(60)..=seconds(86_400));
        v.ranged(live("penalty"), &mut e.penalty, Duration::from_millis(100)..=seconds(3600));
        v.ranged(live("penalty_cap"), &mut e.penalty_cap, seconds(1)..=seconds(86_400));
        v.ranged(live("penalty_jitter"), &mut e.penalty_jitter, 0.0..=0.9);
        v.ranged(live("max_soft_ejected"), &mut e.max_soft_ejected, 0.0..=1.0);
        v.ranged(live("panic_share"), &mut e.panic_share, 0.0..=1.0);
        v.ranged(live("relay_window"), &mut e.relay_window, Duration::from_millis(100)..=seconds(600));
        v.ranged(live("relay_min_replicas"), &mut e.relay_min_replicas, 2..=100_000);
    }
}

/// Who gets which replica, and how long the others wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduling {
    /// The choice of replica.
    pub policy: Policy,
    /// Bounds of the queue.
    pub queue: QueueConfig,
    /// Attempts and the retry budget.
    pub retry: RetryConfig,
    /// Second copies of slow requests, and work given back.
    pub hedge: HedgeConfig,
    /// How long a slot stays taken by work that was broken off.
    pub release: ReleaseConfig,
    /// Where everything that the scheduler is told and wants is written, to be played again with `loadtest replay`. Off: it
    /// grows with every request, and is for looking into one decision.
    pub record: Option<PathBuf>,
}

impl Default for Scheduling {
    fn default() -> Self {
        let SchedulerConfig { policy, queue, retry, hedge, release, .. } = SchedulerConfig::default();
        Self { policy, queue, retry, hedge, release, record: None }
    }
}

impl Section for Scheduling {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.value(live("policy"), &mut self.policy);
        let q = &mut self.queue;
        v.ranged(live("max_queued"), &mut q.max_requests, 0..=1_000_000);
        v.ranged(live("max_queued_per_slot"), &mut q.max_per_slot, 1..=100_000);
        let mut bytes = ByteSize(q.max_bytes);
        v.ranged(live("max_queued_bytes"), &mut bytes, ByteSize::mib(1)..=ByteSize::mib(1 << 20));
        q.max_bytes = bytes.0;
        let day = seconds(86_400);
        let [interactive, standard, batch] = &mut q.max_age;
        v.ranged(live("max_age_interactive"), interactive, seconds(1)..=day);
        v.ranged(live("max_age_standard"), standard, seconds(1)..=day);
        v.ranged(live("max_age_batch"), batch, seconds(1)..=7 * day);
        v.ranged(live("no_replica_wait"), &mut q.no_replica_wait, seconds(0)..=day);
        v.ranged(live("promote_after"), &mut q.promote_after, seconds(1)..=day);
        let r = &mut self.retry;
        v.ranged(live("max_attempts"), &mut r.max_attempts, 1..=10);
        v.ranged(live("retry_share"), &mut r.budget_share, 0.0..=1.0);
        v.ranged(live("retry_floor"), &mut r.budget_floor, 0..=1_000);
        let h = &mut self.hedge;
        v.value(live("hedge"), &mut h.enabled);
        v.ranged(live("hedge_share"), &mut h.budget_share, 0.0..=1.0);
        v.value(live("give_back"), &mut h.give_back);
        let r = &mut self.release;
        v.ranged(live("release_min"), &mut r.min, seconds(0)..=seconds(3600));
        v.ranged(live("release_factor"), &mut r.factor, 1.0..=10.0);
        v.ranged(live("release_cap"), &mut r.cap, seconds(1)..=seconds(3600));
        v.value(restart("record"), &mut self.record);
    }
}
