//! What holds after every call. Checked in debug builds, so in every test and in the seeded sweep; a release build
//! pays nothing. A violation is a fault of the core, never of its input, hence the assertions.
//!
//! 1. Slots in use are the running attempts and those that were broken off and may work on, and no more than a replica has (or
//!    had, when its slots were reduced). Of the latter each has an end in sight, and where a look can show it, a look to come.
//! 2. Every live request is in exactly one place: waiting, running or parked; an ended one is nowhere.
//! 3. No free slot is left that a waiting request may use, unless a retry has no budget, or the policy means it to wait and
//!    will look again.
//! 4. No request was on one replica twice, nor on more than allowed, nor given back more often than allowed, since its answer
//!    got further last. Its copies run on different replicas; once its client has seen content there is one. An answer of which
//!    the client has seen a part never begins anew, and waits only where somebody may carry it on.
//! 5. The retry budget, the second copies' count and the tenants' counts count what runs, no tenant beyond its cap; the
//!    queue's sums are the sums of what waits, within the bounds.
//! 6. Nobody is forgotten: what can only change with news has a deadline or a probe outstanding.
//! 7. The next deadline lies ahead.
//! 8. The pool's indexes say what its replicas say.
//! 9. Drained means empty; nothing runs where nothing may be, and nothing is offered in quarantine, when paused or at the end.

use crate::{scheduler::Scheduler, time::Timestamp};

#[cfg(not(debug_assertions))]
pub(crate) fn check(_: &Scheduler, _: Timestamp) {}

#[cfg(debug_assertions)]
pub(crate) use checked::check;

#[cfg(debug_assertions)]
mod checked {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{Scheduler, Timestamp};
    use crate::{
        config::Policy,
        copies::Copies,
        effect::ReplicaState,
        event::{Limit, Release},
        failover::waits_in_vain,
        hedge::MAX_GIVEN_BACK,
        id::{ReplicaId, RequestId},
        pool::Prospect,
        replica::{Replica, Standing},
        request::{Attempt, Phase, Request},
        retry,
        timer::Timer,
    };

    /// Above this many live requests only the sums are checked: the rest would make large tests quadratic.
    const THOROUGH: usize = 2_000;

    pub(crate) fn check(core: &Scheduler, now: Timestamp) {
        assert!(core.timers.next().is_none_or(|at| at > now), "the next deadline is due already");
        assert!(core.pool.dirty.is_empty() && core.pool.woken.is_empty(), "not settled");
        sums(core);
        if core.requests.len() > THOROUGH {
            return;
        }
        core.requests.iter().for_each(|(id, request)| check_request(core, *id, request, now));
        let mut running: BTreeMap<ReplicaId, usize> = BTreeMap::new();
        core.attempts.values().for_each(|attempt| *running.entry(attempt.replica).or_default() += 1);
        for (id, replica) in &core.pool.replicas {
            check_replica(core, *id, replica, running.get(id).copied().unwrap_or(0));
        }
        check_models(core);
        core.timers.iter().for_each(|(timer, _)| check_owner(core, timer));
    }

    fn sums(core: &Scheduler) {
        let retries = core.attempts.values().filter(|attempt| attempt.retry).count();
        let counted = (core.budget.running as usize, core.budget.retries as usize);
        assert_eq!(counted, (core.attempts.len(), retries), "the retry budget miscounts");
        let running = core.attempts.len() - core.hedges as usize;
        let live = core.queue.waiting() + running + core.parked.len();
        assert_eq!(
            core.requests.len(),
            live,
            "a request is nowhere, or in two places, or the second copies are miscounted"
        );
        let mut running_of = BTreeMap::new();
        for request in core.attempts.values().filter_map(|attempt| core.requests.get(&attempt.request)) {
            *running_of.entry(request.spec.tenant).or_insert(0) += 1;
        }
        assert_eq!(core.running_of, running_of, "the tenants' slots are miscounted");
        let capped = core.config.policy == Policy::LeastWork && !core.reconfigured;
        for (tenant, running) in running_of.into_iter().filter(|_| capped) {
            let most = core.config.tenants.get(&tenant).and_then(|share| share.max_running);
            assert!(most.is_none_or(|most| running <= most), "{tenant:?} holds {running} slots");
        }
        let bounds = &core.config.queue;
        assert!(
            core.reconfigured || core.queue.fresh() <= bounds.max_requests,
            "{} wait where {} may",
            core.queue.fresh(),
            bounds.max_requests
        );
        assert!(!core.requests.is_empty() || (core.queue.bytes() == 0 && core.queue.depths().is_empty()));
    }

    fn check_request(core: &Scheduler, id: RequestId, request: &Request, now: Timestamp) {
        let tried: BTreeSet<ReplicaId> = request.tried.iter().map(|tried| tried.replica).collect();
        assert_eq!(tried.len(), request.tried.len(), "{id:?} was on one replica twice");
        let limits = core.reconfigured || request.tries <= retry::max_tries(&core.config.retry);
        assert!(limits, "{id:?} had {} tries", request.tries);
        assert_eq!(core.parked.contains(&id), matches!(request.phase, Phase::Parked { .. }));
        assert!(request.given_back <= MAX_GIVEN_BACK, "{id:?} was given back {} times", request.given_back);
        match request.phase {
            Phase::Running(copies) => {
                check_copies(core, id, copies, &tried);
                assert!(request.spec.deadline.is_none_or(|at| at > now), "{id:?} runs beyond its deadline");
            }
            Phase::Parked { until } => assert!(until > now, "{id:?} is parked for good"),
            Phase::Waiting { orphan_since } => {
                let prospect = core.pool.prospect(request);
                assert_eq!(orphan_since.is_none(), prospect == Prospect::Now, "{id:?} misjudges its prospects");
                assert!(!waits_in_vain(request, prospect), "{id:?} waits in vain");
                let passed_over = core.starved && request.is_retry() && !core.budget.has_room(&core.config.retry);
                let ticks = core.timers.get(Timer::Tick(request.spec.model)).is_some();
                let patient = core.config.policy == Policy::LeastWork && ticks;
                let remembered = passed_over || patient || core.free_for(id).is_none();
                assert!(remembered, "{id:?} waits beside a free slot and nobody will look again");
                if orphan_since.is_some() {
                    assert!(core.timers.get(Timer::Request(id)).is_some(), "{id:?} waits for nobody for good");
                }
            }
        }
    }

    fn check_copies(core: &Scheduler, id: RequestId, copies: Copies, tried: &BTreeSet<ReplicaId>) {
        let attempts: Vec<&Attempt> = copies.iter().filter_map(|copy| core.attempts.get(&copy)).collect();
        assert!(!attempts.is_empty() && attempts.len() == copies.count(), "{id:?} runs nowhere");
        assert!(attempts.iter().all(|attempt| attempt.request == id), "{id:?} runs another's attempt");
        let replicas: BTreeSet<ReplicaId> = attempts.iter().map(|attempt| attempt.replica).collect();
        assert_eq!(replicas.len(), attempts.len(), "{id:?} runs twice on one replica");
        assert!(replicas.is_subset(tried), "{id:?} may be sent to where it runs");
        let carried_on = |attempt: &&Attempt| attempt.carried.is_some();
        let shown = core.requests.get(&id).is_some_and(Request::is_shown);
        assert!(!shown || attempts.iter().all(carried_on), "{id:?} began anew, and its client has seen a part");
        let committed = attempts.iter().filter(|attempt| attempt.committed).count();
        assert!(committed == 0 || attempts.len() == 1, "{id:?} is committed and still has {} copies", attempts.len());
    }

    fn check_replica(core: &Scheduler, id: ReplicaId, replica: &Replica, running: usize) {
        for attempt in &replica.running {
            assert_eq!(core.attempts.get(attempt).map(|attempt| attempt.replica), Some(id), "a slot is held by nobody");
        }
        assert_eq!(running, replica.running.len(), "{id:?} runs what holds no slot");
        assert!(replica.slots.run_just(&replica.running), "{id:?} is believed to run other attempts than it does");
        let held = replica.held();
        assert!(held <= replica.ceiling, "{id:?} holds {held} slots of {}", replica.ceiling);
        check_lingering(core, id, replica);
        assert_eq!(replica.indexed, Some(replica.facts()), "{id:?} changed beside the indexes");
        if let Some(drain) = replica.drain {
            assert_eq!(
                drain.said,
                replica.running.is_empty(),
                "{id:?} is drained and nobody said so, or not and somebody did"
            );
        }
        let waits_for_news = matches!(replica.health.state, ReplicaState::Out | ReplicaState::Suspect);
        let news = replica.health.probing || replica.health.probe_at.is_some();
        assert!(!waits_for_news || news, "{id:?} is {:?} for good", replica.health.state);
        assert_eq!(core.timers.get(Timer::Probe(id)), replica.health.probe_at);
        assert_eq!(core.timers.get(Timer::Rested(id)), replica.rests_until);
        let end = replica.ending.filter(|ending| !ending.over).map(|ending| ending.at);
        assert_eq!(core.timers.get(Timer::End(id)), end.filter(|at| *at != Timestamp::NEVER));
        let barred = replica.health.state == ReplicaState::Quarantine
            || replica.limit == Limit::Paused
            || replica.is_over()
            || replica.drain.is_some();
        assert!(!barred || replica.free() == 0, "{id:?} may take no work and is offered");
        let offered = replica.ranks.iter().filter(|rank| rank.is_some()).count();
        let wanted = if replica.free() > 0 { replica.spec.models.len() } else { 0 };
        assert_eq!(offered, wanted, "{id:?} is offered without a free slot, or is not with one");
    }

    fn check_lingering(core: &Scheduler, id: ReplicaId, replica: &Replica) {
        let lingering = &replica.lingering;
        let (shown, serves) = (replica.spec.release == Release::Shown, replica.health.serves());
        assert_eq!(core.timers.get(Timer::Bound(id)), lingering.next_bound());
        assert!(replica.spec.release != Release::AtOnce || lingering.count() == 0, "{id:?} frees slots at once");
        assert!(serves || lingering.count() == 0, "{id:?} is out of service and its slots are waited for");
        assert!(shown || lingering.foreign() == 0, "{id:?} can't be looked at and works for others");
        assert!(lingering.foreign() <= replica.spec.slots.max(1), "{id:?} works for others in slots that it has not");
        let hidden = lingering.count() > 0 || lingering.foreign() > 0 || lingering.is_unseen();
        let looks = core.timers.get(Timer::Look(id)).is_some();
        assert!(looks || !(hidden && shown && serves), "{id:?} is never looked at");
        assert!(!looks || (shown && serves), "{id:?} is looked at for nothing");
    }

    fn check_models(core: &Scheduler) {
        for (model, pool) in &core.pool.models {
            let offered: BTreeSet<ReplicaId> = pool.offers.iter().map(|(id, _)| id).collect();
            let free: BTreeSet<ReplicaId> =
                pool.members.iter().copied().filter(|id| core.pool.replicas[id].free() > 0).collect();
            assert_eq!(
                (offered.len(), &offered),
                (pool.offers.iter().count(), &free),
                "{model:?} offers the wrong replicas"
            );
            let members = || pool.members.iter().map(|id| &core.pool.replicas[id]);
            let serving = members().filter(|replica| replica.standing() == Standing::Serving);
            let slots: usize = serving.clone().map(|replica| usize::from(replica.facts().slots)).sum();
            assert_eq!((pool.serving, pool.serving_slots), (serving.count(), slots), "{model:?} miscounts who serves");
            assert_eq!(pool.out, members().filter(|replica| replica.facts().out).count());
            assert_eq!(pool.soft_out, members().filter(|replica| replica.facts().soft_out).count());
        }
        for (id, relay) in &core.pool.relays {
            let serves = |member: &&ReplicaId| core.pool.replicas[*member].standing() == Standing::Serving;
            assert_eq!(relay.active, relay.members.iter().filter(serves).count(), "{id:?} miscounts its members");
        }
    }

    fn check_owner(core: &Scheduler, timer: Timer) {
        let known = match timer {
            Timer::Request(id) => core.requests.contains_key(&id),
            Timer::Late(id) => core.attempts.contains_key(&id),
            Timer::Tick(model) => core.ticking.contains(&model),
            Timer::Probe(id)
            | Timer::Rested(id)
            | Timer::Drain(id)
            | Timer::End(id)
            | Timer::Look(id)
            | Timer::Bound(id) => core.pool.replicas.contains_key(&id),
        };
        assert!(known, "{timer:?} concerns nobody");
    }
}
