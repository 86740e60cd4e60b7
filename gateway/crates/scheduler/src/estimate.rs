//! How long a new request would wait: what stands before it, times what such work takes, over the slots that serve it.
//! Deliberately simple: it feeds `Retry-After` and the operator's view, both of which forgive a factor of two.

use std::time::Duration;

use crate::{
    event::Class,
    id::{ModelId, RequestId},
    scheduler::Scheduler,
    selection::UNMEASURED_SERVICE,
    time::Timestamp,
};

/// Bounds of `Retry-After`: sooner is a busy loop, later makes one official client raise and the other sleep.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

impl Scheduler {
    /// How long a request of this model and class that arrived now would wait for a slot. Without a serving replica:
    /// as long as it would be kept waiting for one.
    pub fn estimate_wait(&self, model: ModelId, class: Class, _now: Timestamp) -> Duration {
        let Some(pool) = self.pool.models.get(&model).filter(|pool| pool.serving_slots > 0) else {
            return self.config.queue.no_replica_wait;
        };
        let ahead = self.queue.ahead_of(model, class);
        if ahead == 0 && !pool.offers.is_empty() {
            return Duration::ZERO;
        }
        let service = pool.service.get().unwrap_or(UNMEASURED_SERVICE.as_secs_f64());
        let seconds = (ahead + 1) as f64 * service / pool.serving_slots as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Whether a request on its arrival may be told that it would wait in vain: even half of the estimate is more than its
    /// class or its deadline allows.
    pub(crate) fn is_hopeless(&self, id: RequestId, now: Timestamp) -> bool {
        let Some(spec) = self.requests.get(&id).map(|request| &request.spec) else { return false };
        let Some(pool) = self.pool.models.get(&spec.model).filter(|pool| pool.serving_slots > 0) else { return false };
        let age = self.config.queue.max_age.get(spec.class as usize).copied().flatten();
        let deadline = spec.deadline.map(|at| at.since(now));
        let Some(allowed) = age.into_iter().chain(deadline).min() else { return false };
        // Without a measured answer the estimate is a guess, and nobody is refused for a guess.
        pool.service.get().is_some() && self.estimate_wait(spec.model, spec.class, now) / 2 > allowed
    }

    pub(crate) fn retry_after(&self, model: ModelId, class: Class, now: Timestamp) -> Duration {
        self.estimate_wait(model, class, now).clamp(RETRY_AFTER.0, RETRY_AFTER.1)
    }
}
