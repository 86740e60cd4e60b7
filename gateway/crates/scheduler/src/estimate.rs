//! How long a request would wait: the work that waits before it and what is left of the work that runs, over what the
//! replicas get through, less what more urgent requests keep taking. Feeds `Retry-After`, the admin API and the verdict that
//! a request would wait in vain; all of these forgive an estimate that is half wrong, and none forgives a lie.

use std::time::Duration;

use crate::{
    event::Class,
    id::{ModelId, RequestId},
    model_pool::ModelPool,
    replica::Standing,
    request::{Phase, Request},
    scheduler::Scheduler,
    selection::UNMEASURED_SERVICE,
    snapshot::Decision,
    speed::overall,
    time::Timestamp,
};

/// Bounds of `Retry-After`: sooner is a busy loop, later makes one official client raise and the other sleep.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long a throughput stands.
const THROUGHPUT_STANDS: Duration = Duration::from_secs(5);
/// More urgent requests leave at least this part of the pool, or the estimate would be for ever.
const LEFT: f64 = 0.1;

impl Scheduler {
    /// How long a request of this model and class that arrived now would wait for a slot. Without a serving replica:
    /// as long as it would be kept waiting for one.
    pub fn estimate_wait(&self, model: ModelId, class: Class, now: Timestamp) -> Duration {
        let Some(pool) = self.pool.models.get(&model).filter(|pool| pool.serving_slots > 0) else {
            return self.config.queue.no_replica_wait;
        };
        let ahead = self.queue.ahead_of(model, class);
        if ahead == 0 && !pool.offers.is_empty() {
            return Duration::ZERO;
        }
        self.drained(model, class, pool, self.queued(model, class), ahead, now)
    }

    /// How long a waiting request will still wait; `None` once it runs or has ended. Much cheaper than to explain it: every
    /// waiting client may ask now and then.
    pub fn remaining_wait(&self, id: RequestId, now: Timestamp) -> Option<Duration> {
        let request = self.requests.get(&id)?;
        matches!(request.phase, Phase::Waiting { .. }).then(|| self.wait_of(request, now))
    }

    /// The same for a request that waits: what is before it, not behind it.
    pub(crate) fn wait_of(&self, request: &Request, now: Timestamp) -> Duration {
        let (model, class) = (request.spec.model, request.spec.class);
        let Some(pool) = self.pool.models.get(&model).filter(|pool| pool.serving_slots > 0) else {
            return self.config.queue.no_replica_wait;
        };
        let all = self.queue.ahead_of(model, class).max(1);
        let ahead = self.ahead(request);
        let part = ahead as f64 / all as f64;
        self.drained(model, class, pool, part * self.queued(model, class), ahead, now)
    }

    fn queued(&self, model: ModelId, class: Class) -> f64 {
        self.learned.get(&model).map_or(0.0, |learned| self.queued_work(model, class, learned))
    }

    /// Requests that are served before this one, as the order stands.
    pub(crate) fn ahead(&self, request: &Request) -> usize {
        let class = request.spec.class;
        let above = Class::ALL.into_iter().filter(|above| *above < class);
        let above: usize = above.map(|above| self.queue.waiting_in(request.spec.model, above)).sum();
        above + self.queue.before(request)
    }

    /// Seconds until `work` (seconds of a typical replica), of that many requests, has found slots.
    fn drained(
        &self,
        model: ModelId,
        class: Class,
        pool: &ModelPool,
        work: f64,
        ahead: usize,
        now: Timestamp,
    ) -> Duration {
        let measured = pool.service.get();
        let service = measured.unwrap_or(UNMEASURED_SERVICE.as_secs_f64());
        let slots = pool.serving_slots as f64;
        let learned = self.learned.get(&model).filter(|_| measured.is_some());
        let seconds = match learned {
            None => (ahead + 1) as f64 * service / slots,
            Some(learned) => {
                let shape = &learned.shape;
                let throughput = learned.throughput.unwrap_or_else(|| self.throughput(pool, |slots| shape.gain(slots)));
                let above = Class::ALL.into_iter().filter(|above| *above < class).max();
                let urgent = above.map_or(0.0, |above| learned.demand(above, now));
                // With nothing before it, a slot frees after the part of a service time that falls to each of them.
                // Engines that tell no times leave the rates unmeasured; that answers come sooner than planned still shows.
                let sooner = learned.pace.get().map_or(1.0, |pace| pace.min(1.0));
                sooner * work / (throughput - urgent).max(LEFT * throughput) + service / slots
            }
        };
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Works out anew what the pool gets through, if that is due: it changes slowly and costs a walk over the pool.
    pub(crate) fn refresh_throughput(&mut self, model: ModelId, now: Timestamp) {
        let (Some(pool), Some(learned)) = (self.pool.models.get(&model), self.learned.get(&model)) else { return };
        if learned.throughput.is_some() && now.since(learned.throughput_at) < THROUGHPUT_STANDS {
            return;
        }
        let throughput = self.throughput(pool, |slots| learned.shape.gain(slots));
        if let Some(learned) = self.learned.get_mut(&model) {
            (learned.throughput, learned.throughput_at) = (Some(throughput), now);
        }
    }

    /// Seconds of a typical replica's work that all serving ones do per second.
    fn throughput(&self, pool: &ModelPool, gain: impl Fn(f64) -> f64) -> f64 {
        let typical = pool.typical_rates();
        let typical = overall(Some(typical.0), Some(typical.1)).unwrap_or(1.0);
        let members = pool.members.iter().filter_map(|id| self.pool.replicas.get(id));
        let serving = members.filter(|replica| replica.standing() == Standing::Serving && !replica.is_others());
        let each = serving.map(|replica| {
            let speed = overall(replica.counted.0, replica.counted.1).unwrap_or(typical) / typical;
            // Reading shares a replica without gain, writing gains: between the two.
            speed * f64::midpoint(1.0, gain(f64::from(replica.ours().max(1))))
        });
        each.sum::<f64>().max(f64::MIN_POSITIVE)
    }

    /// Whether a request on its arrival may be told that it would wait in vain: even half of the estimate is more than its
    /// class or its deadline allows.
    pub(crate) fn is_hopeless(&mut self, id: RequestId, now: Timestamp) -> bool {
        let Some(model) = self.requests.get(&id).map(|request| request.spec.model) else { return false };
        self.refresh_throughput(model, now);
        let Some(spec) = self.requests.get(&id).map(|request| &request.spec) else { return false };
        let Some(pool) = self.pool.models.get(&spec.model).filter(|pool| pool.serving_slots > 0) else { return false };
        let age = self.config.queue.max_age.get(spec.class as usize).copied().flatten();
        let deadline = spec.deadline.map(|at| at.since(now));
        let Some(allowed) = age.into_iter().chain(deadline).min() else { return false };
        // Without a measured answer the estimate is a guess, and nobody is refused for a guess.
        let hopeless = pool.service.get().is_some() && self.estimate_wait(spec.model, spec.class, now) / 2 > allowed;
        if hopeless {
            self.tally.count(Decision::Hopeless);
        }
        hopeless
    }

    pub(crate) fn retry_after(&self, model: ModelId, class: Class, now: Timestamp) -> Duration {
        self.estimate_wait(model, class, now).clamp(RETRY_AFTER.0, RETRY_AFTER.1)
    }
}
