//! A copy of the core's state for the admin API, metrics and tests.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    effect::{ChangeReason, ReplicaState},
    event::Class,
    id::{AttemptId, ModelId, ReplicaId, RequestId, TenantId},
    time::Timestamp,
};

/// Everything an operator may want to see, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All replicas, by id.
    pub replicas: Vec<ReplicaView>,
    /// Waiting requests by model and class.
    pub queued: BTreeMap<(ModelId, Class), usize>,
    /// Bytes of waiting bodies.
    pub queued_bytes: u64,
    /// Running attempts that are not their request's first.
    pub retries_in_flight: u32,
}

/// One replica.
#[derive(Clone, Debug)]
pub struct ReplicaView {
    /// Which.
    pub replica: ReplicaId,
    /// Where it stands.
    pub state: ReplicaState,
    /// Since when.
    pub since: Timestamp,
    /// Why it is there.
    pub why: ChangeReason,
    /// Slots it has.
    pub slots: u16,
    /// Slots it may use now (fewer in probation and slow start).
    pub usable_slots: u16,
    /// Running attempts.
    pub running: Vec<AttemptId>,
    /// When an `Out` replica may be probed again.
    pub penalty_until: Option<Timestamp>,
    /// It said that it is full: it gets no new work before this.
    pub rests_until: Option<Timestamp>,
    /// Ejections since it was last good for a while; each doubles the next penalty.
    pub ejections: u32,
    /// Prompt tokens per second, from traffic.
    pub prefill_rate: Option<f64>,
    /// Answer tokens per second, from traffic.
    pub decode_rate: Option<f64>,
    /// Whole answers, and failed attempts, since it came up.
    pub outcomes: (u64, u64),
}

/// One live request.
#[derive(Clone, Debug)]
pub struct RequestView {
    /// Which.
    pub request: RequestId,
    /// What for.
    pub model: ModelId,
    /// Who asks.
    pub tenant: TenantId,
    /// How urgent.
    pub class: Class,
    /// Time since it arrived.
    pub age: Duration,
    /// Where it runs; `None` while it waits.
    pub running: Option<(AttemptId, ReplicaId)>,
    /// Attempts so far.
    pub attempts: u32,
}
