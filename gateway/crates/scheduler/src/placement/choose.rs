//! Choosing: a replica for a request, a request for a replica.

use std::time::Duration;

use crate::{
    event::Class,
    id::{ModelId, ReplicaId, RequestId},
    placement::{Ask, Cost, Jobs, Kind, Outlook, Patience, Profile},
    queue::{LaneKey, Position},
    replica::{Replica, Standing},
    request::Request,
    scheduler::Scheduler,
    snapshot::{CandidateView, Decision, Onward},
    time::Timestamp,
    timer::Timer,
};

/// Free replicas looked at for one request, the fastest first.
const MOST_FREE: usize = 40;
/// And of those that hold its prefix.
const MOST_WARM: usize = 8;
/// Waiting requests that a free slot looks at; of batches more, to choose by length.
const WINDOW: usize = 20;
const WINDOW_BATCH: usize = 48;
/// An arrival behind that many of its class waits for its turn.
const BEHIND: usize = 64;
/// Requests in a row that decline a slot before it is left alone until something changes.
const MOST_REFUSALS: usize = 8;
/// The same where something runs already.
const MOST_REFUSALS_JOINING: usize = 3;
/// The same for the last of a batch, each of which is placed exactly.
const MOST_REFUSALS_TAIL: usize = 24;
/// Later requests of a class that may be preferred to the first on a replica that is cold for it.
const PREFERRED: usize = 12;
/// And how often that may happen to one request.
const MOST_PASSED_OVER: u8 = 6;
/// A request that was overtaken so often, and so often for each serving replica, is next, and declines nothing: in the larger pool more
/// start while it waits for as long. Five times the window, so that batch work keeps the order that ends it soonest: at less than half of
/// that, ten phones took a twelfth longer for a batch, and read twice as much again.
const MOST_OVERTAKEN: usize = 224;
const MOST_OVERTAKEN_PER_REPLICA: usize = 4;
/// What came so much later counts alone: what was there already, such as the rest of a batch, has an end, and its order is chosen so that
/// it comes soon. A batch of three thousand lines took 2 to 3 % longer when they counted as well.
const TOGETHER: Duration = Duration::from_secs(10);
/// As how many a less urgent one counts that overtakes.
const LESS_URGENT: u16 = 24;
/// Cold: takes that many times what it would take warm. Warm: no more than that.
const COLD: f64 = 1.2;
const WARM: f64 = 1.1;
/// How often slots that were left free on purpose are looked at again.
const TICK: Duration = Duration::from_secs(5);
/// So many of them at a time: a decision must not take long.
const SLICE: usize = 4;
/// The last requests of a batch: so many per replica, but no more than that.
const TAIL_PER_REPLICA: usize = 2;
const TAIL: usize = 1500;
/// Of the slots given while less urgent classes wait for longer than `promote_after`, one in so many is theirs.
const STARVING_SHARE: f64 = 1.0 / 20.0;

/// The best free replica.
struct Found {
    replica: ReplicaId,
    cost: Cost,
    compared: Vec<CandidateView>,
}

impl Scheduler {
    /// The replica on which a request should start now, if any.
    pub(crate) fn place(&mut self, id: RequestId, now: Timestamp) -> Option<ReplicaId> {
        let request = self.requests.get(&id)?;
        let model = request.spec.model;
        // Others that wait have had the free slots offered and declined them; beyond a window of them, it is not its turn.
        let behind = self.queue.waiting_in(model, request.spec.class) >= BEHIND && !request.has_run();
        if behind || !self.may_start(id) || self.pool.models.get(&model)?.offers.is_empty() {
            return None;
        }
        self.unclaim(id);
        self.reserve(model, now);
        let found = self.best_free(id, now)?;
        match self.weigh(id, found.replica, &found.cost, false, now) {
            Patience::Take => {
                self.overtake(id, found.replica);
                self.placed(id, Decision::Placed, found.compared);
                Some(found.replica)
            }
            Patience::Wait(why, claim) => {
                self.wait(id, why, claim, &found.cost, now);
                None
            }
        }
    }

    /// Whether its tenant may have another slot.
    pub(crate) fn may_start(&self, id: RequestId) -> bool {
        if self.config.tenants.is_empty() {
            return true;
        }
        let Some(request) = self.requests.get(&id) else { return false };
        let cap = self.config.share(request.spec.tenant).max_running;
        cap.is_none_or(|cap| self.running_of.get(&request.spec.tenant).copied().unwrap_or(0) < cap)
    }

    fn best_free(&self, id: RequestId, now: Timestamp) -> Option<Found> {
        let request = self.requests.get(&id)?;
        let outlook = self.outlook(request.spec.model, now)?;
        let ask = outlook.ask(id)?;
        let prompt = &ask.plan.prompt;
        let index = &outlook.learned.index;
        let template = prompt.template.into_iter().flat_map(|template| index.holders(template.key)).take(MOST_WARM);
        let warm = index.conversation_holders(prompt).take(MOST_WARM).chain(template);
        // Few may carry an answer on, and they may not be the fastest.
        let open = |other: &ReplicaId| request.part.is_none() || self.onward(id, *other).is_open();
        let fast = outlook.pool.offers.iter().map(|(id, _)| id).filter(open).take(MOST_FREE);
        let (mut best, mut second) = (None::<(ReplicaId, Cost)>, None);
        for id in warm.chain(fast) {
            let Some(replica) = outlook.replica(id) else { continue };
            let bound = best.map_or(f64::INFINITY, |(_, cost)| cost.total);
            // Even warm it would take longer than the best one does.
            if outlook.floor(id, replica, &ask) * outlook.trial(replica, &ask) > bound {
                continue;
            }
            if replica.free() == 0 || !outlook.may_run(id, replica, &ask) {
                continue;
            }
            let cost = outlook.now_cost(id, replica, &ask, bound);
            let worse = cost.total >= bound;
            // Joining what runs there must beat running after it.
            if worse || cost.running > 0 && outlook.later_cost(id, replica, &ask, cost.total).0 < cost.total {
                continue;
            }
            second = best.replace((id, cost));
        }
        let (replica, cost) = best?;
        let view = |(id, cost): (ReplicaId, Cost)| outlook.replica(id).map(|r| outlook.view(id, r, &ask, &cost, 0.0));
        let compared = best.into_iter().chain(second).filter_map(view).collect();
        Some(Found { replica, cost, compared })
    }

    /// Whether to take a free replica at that cost or to wait.
    fn weigh(&mut self, id: RequestId, replica: ReplicaId, cost: &Cost, exact: bool, now: Timestamp) -> Patience {
        let Some(model) = self.requests.get(&id).map(|request| request.spec.model) else { return Patience::Take };
        let Some(outlook) = self.outlook(model, now).map(|outlook| outlook.exact(exact)) else { return Patience::Take };
        let Some(ask) = outlook.ask(id) else { return Patience::Take };
        if ask.request.part.is_some() || ask.request.is_retry() {
            return outlook.patience_of_one(&ask, replica, cost);
        }
        let kind = Kind::of(&ask, &outlook);
        if let Some(profile) = outlook.learned.profiles.get(kind, outlook.pool.members.len(), now) {
            return outlook.patience(&ask, replica, cost, profile);
        }
        let profile = Profile::take(&outlook, &ask, kind);
        let verdict = outlook.patience(&ask, replica, cost, &profile);
        if let Some(learned) = self.learned.get_mut(&model) {
            learned.profiles.put(kind, profile);
        }
        verdict
    }

    /// The waiting request that should start on a replica with a free slot, if any.
    pub(crate) fn next_by_work(&mut self, id: ReplicaId, now: Timestamp) -> Option<RequestId> {
        let replica = self.pool.replicas.get(&id).filter(|replica| replica.free() > 0)?;
        let models = replica.spec.models.clone();
        for model in models {
            if !self.queue.models.contains_key(&model) {
                continue;
            }
            self.reserve(model, now);
            let first = self.starving(model, now);
            let classes = Class::ALL.into_iter().filter(|class| Some(*class) != first);
            for class in first.into_iter().chain(classes) {
                let Some(request) = self.next_of_class(model, class, id, now) else { continue };
                if first == Some(class) {
                    self.tally.count(Decision::Promoted);
                }
                self.overtake(request, id);
                return Some(request);
            }
        }
        None
    }

    fn next_of_class(&mut self, model: ModelId, class: Class, id: ReplicaId, now: Timestamp) -> Option<RequestId> {
        let waiting = self.queue.waiting_in(model, class);
        if waiting == 0 {
            return None;
        }
        let reserved = self.outlook(model, now).is_some_and(|outlook| outlook.is_blocked(class, id));
        if reserved {
            self.tally.count(Decision::Reserved);
            return None;
        }
        let serving = self.pool.models.get(&model)?.serving;
        let tail = class == Class::Batch && waiting <= (TAIL_PER_REPLICA * serving).min(TAIL);
        let mut window = std::mem::take(&mut self.window);
        window.clear();
        self.fill_window(model, class, id, &mut window);
        if class == Class::Batch {
            self.sort_batch(&mut window, model, id, tail, now);
        }
        window.iter().for_each(|request| self.unclaim(*request));
        let chosen = self.first_willing(&window, id, tail, now);
        self.window = window;
        chosen
    }

    fn fill_window(&mut self, model: ModelId, class: Class, id: ReplicaId, window: &mut Vec<RequestId>) {
        let (Some(queue), Some(pool)) = (self.queue.models.get(&model), self.pool.models.get(&model)) else { return };
        let Some(replica) = self.pool.replicas.get(&id) else { return };
        // As `ModelPool::threshold`, with what does not depend on the lane worked out once.
        let context = replica.context();
        let largest: [bool; 16] =
            std::array::from_fn(|route| pool.largest_context(route as u8).is_some_and(|largest| context >= largest));
        let fits = |lane: &LaneKey| {
            let is_largest =
                !lane.need.measured && largest.get(usize::from(lane.route)).is_some_and(|largest| *largest);
            replica.spec.routes.contains(lane.route) && (context >= lane.need.tokens || is_largest)
        };
        let retries = self.budget.has_room(&self.config.retry);
        let onward =
            |id: &RequestId| self.requests.get(id).map_or(Onward::Unable, |request| request.onward(&replica.spec));
        // Those that it could never carry on must not crowd out the others.
        let open = |id| onward(&id).is_open();
        queue.window(class, fits, open, if class == Class::Batch { WINDOW_BATCH } else { WINDOW }, window);
        let mut starved = false;
        window.retain(|request_id| {
            let Some(request) = self.requests.get(request_id) else { return false };
            let too_many = !retries && request.needs_room(onward(request_id));
            starved |= too_many;
            let doubtful = replica.is_doubtful(request) && self.pool.has_sound(request);
            !too_many && !doubtful && !request.has_tried(id) && self.may_start(*request_id)
        });
        self.starved |= starved;
    }

    /// Batches: the longest first, so that none is left over at the end; a slow replica takes the short ones. Before all, those that
    /// were overtaken too often: a queue that is filled as it empties has no end.
    fn sort_batch(&self, window: &mut [RequestId], model: ModelId, id: ReplicaId, tail: bool, now: Timestamp) {
        // Positive floats order like their bits.
        let work = |id: &RequestId| self.requests.get(id).map_or(0.0, |request| request.plan.work.max(0.0)).to_bits();
        window.sort_by_cached_key(|id| std::cmp::Reverse(work(id)));
        let Some(outlook) = self.outlook(model, now) else { return };
        let slow = outlook.replica(id).and_then(|replica| outlook.rates(id, replica));
        let slow = slow.is_some_and(|rates| rates.0 < outlook.pool.weighted_rate());
        if slow && !tail {
            window.reverse();
        }
        let order = |id: &RequestId| {
            let overdue = self.requests.get(id).filter(|request| outlook.is_overdue(request));
            (overdue.is_none(), overdue.map(Position::of))
        };
        window.sort_by_cached_key(order);
    }

    fn first_willing(&mut self, window: &[RequestId], id: ReplicaId, tail: bool, now: Timestamp) -> Option<RequestId> {
        let most = if tail { MOST_REFUSALS_TAIL } else { MOST_REFUSALS };
        let replica = self.pool.replicas.get(&id)?;
        let model = self.requests.get(window.first()?)?.spec.model;
        // Where joining what runs there is no good for the first few, it hardly is for the rest.
        let most = if replica.is_idle() || tail { most } else { MOST_REFUSALS_JOINING };
        let jobs = self.outlook(model, now)?.jobs(id, replica);
        let mut refusals = 0;
        for (at, request) in window.iter().enumerate() {
            self.expect_again(*request);
            let cost = self.cost_there(*request, id, tail, &jobs, now);
            let verdict = match cost {
                Some(cost) if cost.total.is_finite() => {
                    self.weigh(*request, id, &cost, tail && refusals + 1 < most, now)
                }
                _ => Patience::Wait(Decision::Waited, None),
            };
            match (verdict, cost) {
                (Patience::Take, Some(cost)) => {
                    let preferred = self.suits_better(window, at, id, &cost, now);
                    return Some(self.start_there(*request, preferred, id, &cost, now));
                }
                (Patience::Wait(why, claim), Some(cost)) => self.wait(*request, why, claim, &cost, now),
                (_, None) => {}
            }
            refusals += 1;
            if refusals >= most {
                return None;
            }
        }
        None
    }

    /// A request gets a slot: those that waited for one like it before, or are more urgent, were overtaken.
    fn overtake(&mut self, by: RequestId, id: ReplicaId) {
        let Some(request) = self.requests.get(&by) else { return };
        let (model, class, position) = (request.spec.model, request.spec.class, Position::of(request));
        let arrived = request.arrived;
        let mut window = std::mem::take(&mut self.window);
        for waiting in Class::ALL.into_iter().filter(|waiting| *waiting <= class) {
            window.clear();
            if self.queue.waiting_in(model, waiting) > 0 {
                self.fill_window(model, waiting, id, &mut window);
            }
            for other in window.iter().filter(|other| **other != by) {
                let Some(other) = self.requests.get_mut(other) else { continue };
                let later = Position::of(other) < position && arrived > other.arrived + TOGETHER;
                let counts = if waiting < class { LESS_URGENT } else { u16::from(later) };
                other.plan.overtaken = other.plan.overtaken.saturating_add(counts);
            }
        }
        self.window = window;
    }

    fn cost_there(&self, request: RequestId, id: ReplicaId, exact: bool, jobs: &Jobs, now: Timestamp) -> Option<Cost> {
        let spec = &self.requests.get(&request)?.spec;
        let outlook = self.outlook(spec.model, now)?.exact(exact);
        let (ask, replica) = (outlook.ask(request)?, outlook.replica(id)?);
        let cost = outlook.cost_beside(id, replica, &ask, f64::INFINITY, || *jobs);
        let after = || {
            let own = outlook.own_later(id, replica, &ask)?;
            Some(outlook.later_beside(replica, &ask, own, cost.total, jobs).0)
        };
        let shares = cost.running > 0 && cost.total.is_finite() && !outlook.is_overdue(ask.request);
        if shares && after().is_some_and(|after| after < cost.total) {
            return Some(Cost { total: f64::INFINITY, ..cost });
        }
        Some(cost)
    }

    /// A request for which the replica is warm while it is cold for the one whose turn it is.
    fn suits_better(
        &self,
        window: &[RequestId],
        at: usize,
        id: ReplicaId,
        cost: &Cost,
        now: Timestamp,
    ) -> Option<RequestId> {
        let first = window.get(at)?;
        let request = self.requests.get(first)?;
        let batch = request.spec.class == Class::Batch;
        let interactive = request.spec.class == Class::Interactive;
        let outlook = self.outlook(request.spec.model, now)?;
        // Batch work has no order, but for what was overtaken too often.
        let too_often = outlook.is_overdue(request) || !batch && request.plan.passed_over >= MOST_PASSED_OVER;
        if cost.running > 0 || interactive || too_often {
            return None;
        }
        let replica = outlook.replica(id)?;
        let rates = outlook.rates(id, replica)?;
        let warm = |ask: &Ask<'_>| outlook.alone(rates, ask, ask.plan.shared).total();
        if cost.own.total() <= COLD * warm(&outlook.ask(*first)?) {
            return None;
        }
        let others = window.iter().take(if batch { WINDOW_BATCH } else { PREFERRED });
        others.copied().filter(|other| other != first).find(|other| {
            let Some(ask) = outlook.ask(*other) else { return false };
            let own = outlook.own(id, replica, &ask).filter(|own| replica.outlasts(own.total(), now));
            own.is_some_and(|own| own.total() < WARM * warm(&ask))
        })
    }

    fn start_there(
        &mut self,
        first: RequestId,
        preferred: Option<RequestId>,
        id: ReplicaId,
        cost: &Cost,
        now: Timestamp,
    ) -> RequestId {
        let chosen = preferred.unwrap_or(first);
        if preferred.is_some() {
            self.tally.count(Decision::PassedOver);
            if let Some(request) = self.requests.get_mut(&first) {
                request.plan.passed_over = request.plan.passed_over.saturating_add(1);
                request.plan.decision = Some(Decision::PassedOver);
            }
        }
        let cost = if preferred.is_some() { None } else { Some(*cost) };
        let view = || {
            let outlook = self.outlook(self.requests.get(&chosen)?.spec.model, now)?;
            let (ask, replica) = (outlook.ask(chosen)?, outlook.replica(id)?);
            let cost = cost.unwrap_or_else(|| outlook.now_cost(id, replica, &ask, f64::INFINITY));
            Some(outlook.view(id, replica, &ask, &cost, 0.0))
        };
        let compared = view().into_iter().collect();
        self.placed(chosen, Decision::Taken, compared);
        chosen
    }

    fn placed(&mut self, id: RequestId, decision: Decision, compared: Vec<CandidateView>) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let decision = match compared.first() {
            Some(first) if first.onward.carries_on() => Decision::CarriedOn,
            _ if request.has_run() => Decision::Retried,
            _ => decision,
        };
        request.plan.decision = Some(decision);
        request.plan.compared = compared;
        self.tally.count(decision);
        let (model, class) = (request.spec.model, request.spec.class);
        self.earn_turns(model, class);
    }

    /// It stays in the queue although a slot is free.
    fn wait(&mut self, id: RequestId, why: Decision, claim: Option<(ReplicaId, f64)>, declined: &Cost, now: Timestamp) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.plan.decision != Some(why) {
            request.plan.decision = Some(why);
            self.tally.count(why);
        }
        if declined.total.is_finite() && request.plan.patient_until.is_none() {
            let patience = Duration::try_from_secs_f64(declined.total).unwrap_or(Duration::MAX);
            request.plan.patient_until = Some(now + patience);
        }
        request.plan.claim = claim;
        let model = request.spec.model;
        if let Some((replica, seconds)) = claim
            && let Some(replica) = self.pool.replicas.get_mut(&replica)
        {
            replica.claimed += seconds;
        }
        self.arm_tick(model, now);
    }

    /// Takes back what a request meant to do somewhere.
    pub(crate) fn unclaim(&mut self, id: RequestId) {
        let Some((replica, seconds)) = self.requests.get_mut(&id).and_then(|request| request.plan.claim.take()) else {
            return;
        };
        if let Some(replica) = self.pool.replicas.get_mut(&replica) {
            let left = replica.claimed - seconds;
            // Sums of floats drift: what is almost nothing is nothing.
            replica.claimed = if left > 1e-6 { left } else { 0.0 };
        }
    }

    /// A class whose eldest has waited too long and that has earned a turn.
    fn starving(&self, model: ModelId, now: Timestamp) -> Option<Class> {
        let (learned, queue) = (self.learned.get(&model)?, self.queue.models.get(&model)?);
        let after = self.config.queue.promote_after;
        [Class::Standard, Class::Batch].into_iter().find(|class| {
            let earned = learned.credit.get(*class as usize).is_some_and(|credit| *credit >= 1.0);
            earned && queue.eldest(*class).is_some_and(|since| now.since(since) >= after)
        })
    }

    fn earn_turns(&mut self, model: ModelId, served: Class) {
        let Some(learned) = self.learned.get_mut(&model) else { return };
        for class in [Class::Standard, Class::Batch] {
            let Some(credit) = learned.credit.get_mut(class as usize) else { continue };
            if class == served {
                *credit = 0.0;
            } else if class > served && self.queue.waiting_in(model, class) > 0 {
                *credit = (*credit + STARVING_SHARE).min(1.0);
            }
        }
    }

    /// Looks again, soon, at slots that were left free.
    pub(crate) fn arm_tick(&mut self, model: ModelId, now: Timestamp) {
        if self.ticking.insert(model) {
            self.timers.set(Timer::Tick(model), Some(now + TICK));
        }
    }

    /// Looks again at the free slots of a model, and at what could run twice.
    pub(crate) fn tick(&mut self, model: ModelId, now: Timestamp) {
        self.ticking.remove(&model);
        let offers = self.pool.models.get(&model).into_iter().flat_map(|pool| pool.offers.iter());
        let idle = |id: &ReplicaId| self.pool.replicas.get(id).is_some_and(Replica::is_idle);
        let (mut free, shared): (Vec<ReplicaId>, Vec<ReplicaId>) = offers.map(|(id, _)| id).partition(idle);
        // Those that run something are looked at whenever something there ends.
        free.extend(shared.into_iter().take(SLICE));
        let turn = self.learned.get_mut(&model).map_or(0, |learned| {
            learned.tick += 1;
            learned.tick
        });
        let slices = free.len().div_ceil(SLICE).max(1);
        for id in free.iter().skip(turn % slices * SLICE).take(SLICE) {
            self.fill(*id, now);
        }
        let watching = self.copy_stragglers(model, now);
        let waiting = self.queue.waiting_for(model) > 0;
        let left = self.pool.models.get(&model).is_some_and(|pool| !pool.offers.is_empty());
        if waiting && left || watching {
            // A slot that was declined again asked for a whole turn; all of them together take that long.
            self.ticking.insert(model);
            self.timers.set(Timer::Tick(model), Some(now + TICK / slices as u32));
        }
    }
}

impl Outlook<'_> {
    /// Whether it was overtaken so often that it is next.
    pub(crate) fn is_overdue(&self, request: &Request) -> bool {
        let most = MOST_OVERTAKEN + MOST_OVERTAKEN_PER_REPLICA * self.pool.serving;
        usize::from(request.plan.overtaken) >= most.min(usize::from(u16::MAX))
    }

    /// Whether the request may run there at all, free or not.
    pub(crate) fn may_run(&self, id: ReplicaId, replica: &Replica, ask: &Ask<'_>) -> bool {
        let spec = &ask.request.spec;
        replica.standing() == Standing::Serving
            && replica.rests_until.is_none()
            && replica.spec.routes.contains(spec.route)
            && replica.context() >= self.pool.threshold(spec.route, ask.request.need)
            && !ask.request.has_tried(id)
            && ask.request.onward(&replica.spec).is_open()
            && !self.is_blocked(spec.class, id)
            && (!replica.is_doubtful(ask.request) || !self.has_sound(ask))
    }
}
