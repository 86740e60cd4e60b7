//! The oracle's knowledge: the stage itself, asked by the core.
//!
//! The core owns what it asks, and the world owns the stage, so they share it behind a lock. It is never contended: all of a
//! play is one thread, and the world lets go of the stage before the core is told anything. The lock is there because the
//! core, and so what it owns, may be sent to another thread, which a plain shared cell forbids.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scheduler::{AttemptId, Insight, Rates, ReplicaId, RequestId, Timestamp};

use super::stage::{Stage, moment, seconds};

/// The stage, shared with the core.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Stage>>);

impl Shared {
    pub(super) fn new(stage: Stage) -> Self {
        Self(Arc::new(Mutex::new(stage)))
    }

    /// The stage; let go of it before the core is told anything.
    pub(super) fn lock(&self) -> MutexGuard<'_, Stage> {
        // A panic that left the stage half changed has ended the play.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Insight for Shared {
    fn rates(&self, replica: ReplicaId, _now: Timestamp) -> Option<Rates> {
        let stage = self.lock();
        let phone = stage.phone(replica.0 as usize).filter(|phone| phone.is_up())?;
        let (speed, factor) = (phone.speed(), phone.factor());
        Some(Rates {
            prefill: speed.model.prefill_tokens_per_second * speed.prefill_factor * factor,
            decode: speed.model.decode_tokens_per_second * speed.decode_factor * factor,
        })
    }

    fn cache_yield(&self, replica: ReplicaId) -> f64 {
        let remembers = self.lock().phone(replica.0 as usize).is_some_and(|phone| phone.remembers());
        if remembers { 1.0 } else { 0.0 }
    }

    fn up_until(&self, replica: ReplicaId, now: Timestamp) -> Timestamp {
        let down_at = self.lock().down_at(replica.0 as usize);
        if down_at.is_finite() { moment(down_at).max(now) } else { Timestamp::NEVER }
    }

    fn tokens(&self, request: RequestId) -> (f64, f64) {
        let stage = self.lock();
        let request = stage.request(request.0 as usize);
        request.map_or((0.0, 0.0), |request| (request.prompt.tokens().into(), request.output.into()))
    }

    fn remaining(&self, attempt: AttemptId, now: Timestamp) -> Option<(f64, f64)> {
        let stage = self.lock();
        stage.phone_of(attempt.0)?.remaining(attempt.0, seconds(now))
    }
}

#[cfg(test)]
mod tests;
