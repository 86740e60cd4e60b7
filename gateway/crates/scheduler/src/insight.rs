//! What somebody knows better than the core can estimate it. Only a simulation can: it stands in for every estimate, so that
//! what the estimates cost can be told from what the policy costs.

use crate::{
    event::Rates,
    id::{AttemptId, ReplicaId, RequestId},
    time::Timestamp,
};

/// The truth, asked at a moment.
pub trait Insight: Send + std::fmt::Debug {
    /// True speed of a replica right now, slow phases included; `None` while it is in fact down.
    fn rates(&self, replica: ReplicaId, now: Timestamp) -> Option<Rates>;
    /// Share of a held prefix that the replica really finds: 1, or 0 where its cache does not work.
    fn cache_yield(&self, replica: ReplicaId) -> f64;
    /// Until when it will stay up.
    fn up_until(&self, replica: ReplicaId, now: Timestamp) -> Timestamp;
    /// True prompt tokens, and tokens of the whole answer.
    fn tokens(&self, request: RequestId) -> (f64, f64);
    /// Seconds of reading and of writing that are left to a running attempt, alone on its replica at its present speed.
    fn remaining(&self, attempt: AttemptId, now: Timestamp) -> Option<(f64, f64)>;
}
