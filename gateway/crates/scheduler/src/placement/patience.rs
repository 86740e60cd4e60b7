//! Whether a request should leave a free replica alone and wait for a better one.
//!
//! "Each waits for what is best for itself" is unstable: everybody queues for the few fast replicas. So the *drain rule*: a
//! request waits only if the replicas that are better for it would, net of what keeps arriving for them, get through all
//! the work that waits before the free one would have answered it. Then nobody has lost by its waiting.
//!
//! Three cases differ. A conversation is held by one replica, so what matters is when that one is free. Urgent requests and
//! the last ones of a batch are few: there what matters is which slot frees next and who has claimed it. And a cold
//! reading is an investment where the replica will serve more requests with that prefix.
//!
//! Waiting has an end: a request that has waited for as long as the first replica it declined would have taken declines
//! no longer, and neither does one that was overtaken too often: what it declines others take, so that what it waits for
//! may never come.

use crate::{
    event::Class,
    id::ReplicaId,
    placement::{Ask, Cost, Outlook, profile::Drain, profile::Profile, profile::WARM},
    snapshot::Decision,
};

/// A wait must be that much better than the free replica: estimates err, and a free slot is a fact.
const MARGIN: f64 = 0.9;
/// How far ahead a cold reading may pay itself back, in seconds.
const INVESTMENT: f64 = 600.0;
/// Most replicas looked at one by one.
const LOOKED_AT: usize = 40;
/// Up to that many urgent requests that wait are placed one by one; a crowd is a matter of throughput.
const FEW: usize = 24;
/// The walk over replicas by speed stops where even a warm cache could not make one that much worse than the best win.
const HOPELESS: f64 = 1.4;

/// The verdict on a free replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Patience {
    Take,
    /// Wait, and where for, if it is one replica; with the seconds it will take there.
    Wait(Decision, Option<(ReplicaId, f64)>),
}

impl Outlook<'_> {
    /// Whether to wait rather than start on that free replica at that cost.
    pub(crate) fn patience(&self, ask: &Ask<'_>, id: ReplicaId, cost: &Cost, profile: &Profile) -> Patience {
        if self.has_waited_enough(ask) {
            return Patience::Take;
        }
        let limit = MARGIN * (certain(cost) - self.investment(ask, id, cost));
        let few = || self.waiting_in(Class::Interactive) <= FEW;
        if self.exact || ask.request.spec.class == Class::Interactive && few() {
            return self.unless_better(ask, id, limit);
        }
        if let Some(claim) = self.conversation(ask, id, limit) {
            return Patience::Wait(Decision::WaitedWarm, Some(claim));
        }
        let class = ask.request.spec.class;
        let mine = if cost.running == 0 && cost.own.total() < limit { ask.work / cost.own.total() } else { 0.0 };
        let mut all = profile.faster(limit, ask.work);
        all.rate = (all.rate - mine).max(0.0);
        let waiting = self.queued_work(class);
        if drains(all, waiting.max(ask.work), self.learned.demand(class, self.now), limit) {
            return Patience::Wait(Decision::Waited, None);
        }
        if cost.own.cached > WARM * ask.tokens {
            return Patience::Take;
        }
        let Some(template) = &ask.plan.prompt.template else { return Patience::Take };
        let warm = profile.warm_and_faster(limit, ask.work);
        let (waiting, demand) = self.template_work(template.key, ask.work);
        if !drains(warm, waiting, demand, limit) {
            return Patience::Take;
        }
        let holders = self.learned.index.holders(template.key).take(LOOKED_AT);
        match self.soonest(ask, holders.filter(|holder| *holder != id), limit) {
            Some(claim) => Patience::Wait(Decision::WaitedWarm, Some(claim)),
            None => Patience::Take,
        }
    }

    /// The same for a request that lost an attempt, or has a part of its answer written: the pool as a whole says little about the
    /// few that it has not tried, or that may carry it on.
    pub(crate) fn patience_of_one(&self, ask: &Ask<'_>, id: ReplicaId, cost: &Cost) -> Patience {
        if self.has_waited_enough(ask) { Patience::Take } else { self.unless_better(ask, id, MARGIN * certain(cost)) }
    }

    /// It has waited for long enough.
    fn has_waited_enough(&self, ask: &Ask<'_>) -> bool {
        self.is_overdue(ask.request) || ask.plan.patient_until.is_some_and(|until| until <= self.now)
    }

    fn unless_better(&self, ask: &Ask<'_>, id: ReplicaId, limit: f64) -> Patience {
        let better = self.best_later(ask, id, limit);
        better.map_or(Patience::Take, |claim| Patience::Wait(Decision::Waited, Some(claim)))
    }

    /// What a cold reading there is worth to the requests that will come with the same prefix, in seconds.
    fn investment(&self, ask: &Ask<'_>, id: ReplicaId, cost: &Cost) -> f64 {
        let Some(template) = &ask.plan.prompt.template else { return 0.0 };
        if ask.request.spec.class == Class::Interactive || self.exact {
            return 0.0;
        }
        let Some(replica) = self.replica(id) else { return 0.0 };
        let Some(rates) = self.rates(id, replica) else { return 0.0 };
        let warm = self.alone(rates, ask, template.tokens);
        let extra = (cost.own.prefill - warm.prefill).max(0.0);
        let (waiting, demand) = self.template_work(template.key, 0.0);
        let coming = (demand * INVESTMENT + waiting) / ask.work.max(f64::MIN_POSITIVE);
        let served_here = coming * rates.0 / self.pool_rate();
        if served_here > 1.0 { extra * (1.0 - 1.0 / served_here) } else { 0.0 }
    }

    /// The replica that will have answered it first, if that is before `limit`.
    fn best_later(&self, ask: &Ask<'_>, free: ReplicaId, limit: f64) -> Option<(ReplicaId, f64)> {
        let open = |id: &ReplicaId| {
            ask.request.part.is_none()
                || self.replica(*id).is_some_and(|replica| ask.request.onward(&replica.spec).is_open())
        };
        self.soonest(ask, self.pool.by_speed().filter(|id| *id != free).filter(open).take(LOOKED_AT), limit)
    }

    /// The same among the replicas that hold its conversation.
    fn conversation(&self, ask: &Ask<'_>, free: ReplicaId, limit: f64) -> Option<(ReplicaId, f64)> {
        let prompt = &ask.plan.prompt;
        let holders = self.learned.index.conversation_holders(prompt).filter(|id| *id != free);
        let better = |id: &ReplicaId| {
            let template = prompt.template.map_or(0.0, |template| template.tokens);
            self.replica(*id).is_some_and(|replica| replica.slots.later(prompt) > template + 0.1 * ask.tokens)
        };
        self.soonest(ask, holders.filter(better), limit)
    }

    fn soonest(&self, ask: &Ask<'_>, among: impl Iterator<Item = ReplicaId>, limit: f64) -> Option<(ReplicaId, f64)> {
        let (mut best, mut bound) = (None, limit);
        for (at, id) in among.enumerate() {
            let Some(replica) = self.replica(id) else { continue };
            if at % 8 == 7 && self.floor(id, replica, ask) > HOPELESS * bound {
                break;
            }
            let idle = replica.is_idle() && replica.claimed <= 0.0;
            if idle || !self.may_run(id, replica, ask) {
                continue;
            }
            let (cost, own) = self.later_cost(id, replica, ask, bound);
            if cost < bound {
                (best, bound) = (Some((id, own)), cost);
            }
        }
        best
    }

    /// Work that waits for, and work per second that arrives with, a template.
    fn template_work(&self, key: crate::warmth::TemplateKey, at_least: f64) -> (f64, f64) {
        let age = self.learned.age(self.now);
        self.learned
            .index
            .stats(key)
            .map_or((at_least, 0.0), |stats| (stats.queued_work.max(at_least), stats.rate(self.now, age)))
    }
}

/// What the free replica costs, without the risk: the replica that would be waited for goes away as easily, and is not charged
/// for it. Where phones come and go, everybody would wait for those that are busy: reviews that are begun anew took a tenth longer on
/// phones that last for a quarter of an hour, a third on such as last for five minutes. To charge both is as good there, and one that
/// waits for throughput waits for no replica that could be charged.
fn certain(cost: &Cost) -> f64 {
    cost.total - cost.risk
}

/// Whether replicas of that throughput get through the waiting work, beside what arrives, within the limit.
fn drains(drain: Drain, waiting: f64, demand: f64, limit: f64) -> bool {
    drain.rate > demand && drain.seconds + waiting / (drain.rate - demand) < limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_slower_than_what_arrives_never_drains() {
        let drain = Drain { rate: 2.0, seconds: 10.0 };
        assert!(drains(drain, 20.0, 1.0, 31.0));
        assert!(!drains(drain, 20.0, 1.0, 30.0));
        assert!(!drains(drain, 0.0, 2.0, 1e9));
    }
}
