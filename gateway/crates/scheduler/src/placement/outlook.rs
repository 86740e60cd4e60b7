//! What a replica would mean for a request: how long it would take there, and what that does to others.
//!
//! Every number is in seconds, so that unlike things can be weighed: reading a prompt again, making three chats wait,
//! losing a minute's work to a phone that goes away. A term that an estimate cannot support is left out rather than
//! guessed.

use crate::{
    effect::ReplicaState,
    event::{Carry, Class, Limit},
    id::{ModelId, ReplicaId, RequestId},
    learned::Learned,
    model_pool::ModelPool,
    placement::{Job, Jobs},
    plan::Plan,
    replica::Replica,
    request::Request,
    scheduler::Scheduler,
    snapshot::{CandidateView, Onward},
    time::Timestamp,
};

/// What a second of delay counts by class: a guard's client waits for it, a batch's does not.
const WEIGHTS: [f64; Class::ALL.len()] = [10.0, 1.0, 0.3];
/// The rates of replicas of which nothing is known, in tokens per second: a 4B model on a common phone.
const UNKNOWN_RATES: (f64, f64) = (80.0, 10.0);
/// An answer shorter than this part of the reading gains nothing by sharing a replica.
const PROMPT_HEAVY: f64 = 0.3;
/// How much more the cached template of others counts than one reading of it: every later request would read it.
const EVICTION: f64 = 8.0;
/// A conversation's cache counts by the odds that it goes on, which fade the longer it is silent.
const EVICTION_CONVERSATION: f64 = 2.0;
const CONVERSATION_FADES: f64 = 60.0;
/// How much the throughput won by overlapping counts against the delay, per request that waits.
const THROUGHPUT: f64 = 3.0;
/// What counts of a request's own time on a replica that it tries out.
const TRIAL: f64 = 0.25;
/// One is tried out if it reads at that part of the typical speed at least. A slow one would otherwise look four times as fast each time
/// that it is back, and whoever comes first waits minutes for it: with a tenth of the phones away reviews took 7 % longer in the
/// mean, and 40 % at the 99th percentile. Where slow ones are needed they get work without it.
const AS_FAST: f64 = 0.9;
/// What is counted for a part that another group carries on, in times of what is left to do there: the text goes on as another
/// engine writes it, so the same group has it unless that takes twice as long. A factor, since half a minute is nothing to
/// an answer of a large model and five answers of a small one.
const DETOUR: f64 = 1.0;
/// What is counted for work on a replica that is to be spared, in times of what it takes there, and seconds: another one that will
/// have done it in twice the time has it.
const SPARING: (f64, f64) = (1.0, 1.0);
/// Seconds until a dead replica is noticed.
const DETECTION: f64 = 15.0;

pub(crate) fn weight(class: Class) -> f64 {
    WEIGHTS.get(class as usize).copied().unwrap_or(1.0)
}

/// A request that looks for a replica.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) request: &'a Request,
    pub(crate) plan: &'a Plan,
    /// Tokens to read, and to write. Where a part is written: behind the prompt, and the rest.
    pub(crate) tokens: f64,
    pub(crate) output: f64,
    /// The same if it begins anew.
    anew: (f64, f64),
    /// Seconds on a typical replica, the shared prefix warm, by what is known now.
    pub(crate) work: f64,
    pub(crate) weight: f64,
}

/// Seconds alone on a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Own {
    pub(crate) prefill: f64,
    pub(crate) decode: f64,
    pub(crate) cached: f64,
}

impl Own {
    pub(crate) fn total(&self) -> f64 {
        self.prefill + self.decode
    }
}

/// What starting there now costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    pub(crate) own: Own,
    /// Slots that work there, for whom ever.
    pub(crate) running: usize,
    /// What sharing adds for itself and, weighted, for the others, less the throughput that it wins.
    pub(crate) delay: f64,
    pub(crate) eviction: f64,
    pub(crate) risk: f64,
    /// What it counts that another group carries the part on.
    pub(crate) detour: f64,
    /// What it counts that the replica is to be spared.
    pub(crate) sparing: f64,
    /// What others already wait there for.
    pub(crate) claimed: f64,
    pub(crate) total: f64,
}

impl Ask<'_> {
    /// What a replica has written of it outlives the replica.
    pub(crate) fn is_kept(&self) -> bool {
        self.request.spec.carry != Carry::Never
    }

    /// What it asks of a replica: the rest of its answer, or all of it.
    fn at(self, replica: &Replica) -> Self {
        let onward = self.request.onward(&replica.spec);
        if self.request.part.is_none() || onward.carries_on() {
            return self;
        }
        Self { tokens: self.anew.0, output: self.anew.1, ..self }
    }
}

impl Cost {
    pub(crate) fn out_of_the_question(own: Own, running: usize) -> Self {
        Self { own, running, total: f64::INFINITY, ..Self::default() }
    }
}

/// A request beside others. Seconds from now.
struct Joined {
    /// When it ends.
    end: f64,
    /// By how much the others end later, weighted by class against it.
    delayed: f64,
    /// When all had ended without it, and with it.
    before: f64,
    after: f64,
}

/// A model's replicas at one moment, as one class of request sees them.
#[derive(Clone, Copy)]
pub(crate) struct Outlook<'a> {
    core: &'a Scheduler,
    pub(crate) pool: &'a ModelPool,
    pub(crate) learned: &'a Learned,
    pub(crate) now: Timestamp,
    typical: (f64, f64),
    model: ModelId,
    /// Look at everything: few requests are left, each matters.
    pub(crate) exact: bool,
}

impl Scheduler {
    pub(crate) fn outlook(&self, model: ModelId, now: Timestamp) -> Option<Outlook<'_>> {
        let (pool, learned) = (self.pool.models.get(&model)?, self.learned.get(&model)?);
        Some(Outlook { core: self, pool, learned, now, typical: pool.typical_rates(), model, exact: false })
    }
}

impl ModelPool {
    /// Rates of the middle replica, in tokens per second; also what a replica of which nothing is known is taken for.
    pub(crate) fn typical_rates(&self) -> (f64, f64) {
        let (prefill, decode) = (self.typical_prefill.get(), self.typical_decode.get());
        (prefill.unwrap_or(UNKNOWN_RATES.0), decode.unwrap_or(UNKNOWN_RATES.1))
    }
}

impl<'a> Outlook<'a> {
    pub(crate) fn exact(self, exact: bool) -> Self {
        Self { exact, ..self }
    }

    pub(crate) fn replica(&self, id: ReplicaId) -> Option<&'a Replica> {
        self.core.pool.replicas.get(&id)
    }

    pub(crate) fn ask(&self, id: RequestId) -> Option<Ask<'a>> {
        let request = self.core.requests.get(&id)?;
        let plan = &request.plan;
        let truth = self.core.insight.as_ref().map(|insight| insight.tokens(id));
        let anew = truth.unwrap_or((plan.prompt.tokens, plan.output));
        let (tokens, output) = match &request.part {
            None => anew,
            Some(part) if truth.is_some() => {
                (anew.0 + f64::from(part.tokens), (anew.1 - f64::from(part.tokens)).max(1.0))
            }
            Some(part) => (anew.0 + f64::from(part.tokens), part.rest(anew.1, request.spec.max_output)),
        };
        let work = self.learned.work(plan.shared, tokens, output, self.typical);
        Some(Ask { request, plan, tokens, output, anew, work, weight: weight(request.spec.class) })
    }

    /// Tokens per second alone on an empty context; `None` where it is known to be down.
    pub(crate) fn rates(&self, id: ReplicaId, replica: &Replica) -> Option<(f64, f64)> {
        match &self.core.insight {
            Some(insight) => insight.rates(id, self.now).map(|rates| (rates.prefill, rates.decode)),
            None => Some(replica.speeds.at(self.now, self.typical)),
        }
    }

    /// Tokens really found of those that a slot is believed to hold.
    fn found(&self, id: ReplicaId, replica: &Replica, believed: f64) -> f64 {
        let truth = self.core.insight.as_ref().map(|insight| insight.cache_yield(id));
        truth.map_or(believed, |truth| truth * believed / replica.slots.yield_().max(0.01))
    }

    /// Seconds alone, with that many prompt tokens cached.
    pub(crate) fn alone(&self, rates: (f64, f64), ask: &Ask<'_>, cached: f64) -> Own {
        let shape = &self.learned.shape;
        let cached = cached.min(ask.tokens - 1.0).max(0.0);
        let prefill = shape.overhead() + shape.prefill_work(cached, ask.tokens) / rates.0;
        Own { prefill, decode: shape.decode_work(ask.tokens, ask.output) / rates.1, cached }
    }

    /// Seconds alone in the slot it would get now.
    pub(crate) fn own(&self, id: ReplicaId, replica: &Replica, ask: &Ask<'_>) -> Option<Own> {
        let rates = self.rates(id, replica)?;
        let cached = self.found(id, replica, replica.slots.best_idle(&ask.plan.prompt));
        Some(self.alone(rates, &ask.at(replica), cached))
    }

    /// Seconds alone once what runs there has ended.
    pub(crate) fn own_later(&self, id: ReplicaId, replica: &Replica, ask: &Ask<'_>) -> Option<Own> {
        let rates = self.rates(id, replica)?;
        let cached = self.found(id, replica, replica.slots.later(&ask.plan.prompt));
        Some(self.alone(rates, &ask.at(replica), cached))
    }

    /// Seconds alone at best: with everything cached that could be.
    pub(crate) fn floor(&self, id: ReplicaId, replica: &Replica, ask: &Ask<'_>) -> f64 {
        let alone = |rates| self.alone(rates, &ask.at(replica), ask.plan.shared).total();
        self.rates(id, replica).map_or(f64::INFINITY, alone)
    }

    /// What is left of all that runs there: of the attempts in their order, then of what works there for nobody here.
    pub(crate) fn jobs(&self, id: ReplicaId, replica: &Replica) -> Jobs {
        let mut jobs = Jobs::default();
        let Some(rates) = self.rates(id, replica) else { return jobs };
        let shape = &self.learned.shape;
        let (active, writing) = self.core.activity(replica);
        let since = self.now.since(replica.touched).as_secs_f64();
        for attempt_id in &replica.running {
            let Some(attempt) = self.core.attempts.get(attempt_id) else { continue };
            let Some(request) = self.core.requests.get(&attempt.request) else { continue };
            let truth = self.core.insight.as_ref().and_then(|insight| insight.remaining(*attempt_id, self.now));
            let left = match truth {
                Some((prefill, decode)) => Job { prefill, decode, weight: 1.0 },
                None => {
                    let mut course = attempt.course;
                    course.pass(since, active, writing, shape);
                    course.left(shape, rates, request.spec.stream || course.first_token.is_some())
                }
            };
            jobs.add(Job { weight: weight(request.spec.class), ..left });
        }
        // Nobody is delayed who waits for nothing.
        replica.lingering.left(self.now).for_each(|prefill| jobs.add(Job { prefill, ..Job::default() }));
        jobs
    }

    /// What it costs to start there now. Infinite where it is out of the question or surely above `bound`.
    pub(crate) fn now_cost(&self, id: ReplicaId, replica: &Replica, ask: &Ask<'_>, bound: f64) -> Cost {
        self.cost_beside(id, replica, ask, bound, || self.jobs(id, replica))
    }

    /// The same, beside `jobs`; asked for only if it depends on them.
    pub(crate) fn cost_beside(
        &self,
        id: ReplicaId,
        replica: &Replica,
        ask: &Ask<'_>,
        bound: f64,
        jobs: impl FnOnce() -> Jobs,
    ) -> Cost {
        let running = replica.taken();
        let Some(own) = self.own(id, replica, ask) else { return Cost::out_of_the_question(Own::default(), running) };
        let claimed = replica.claimed;
        let lost = self.will_be_lost(id, &own, ask) || !replica.outlasts(own.total(), self.now);
        if self.trial(replica, ask) * own.total() + claimed >= bound || lost {
            return Cost::out_of_the_question(own, running);
        }
        let eviction = self.eviction(id, replica, ask);
        let risk = self.risk(id, replica, &own, ask);
        let detour = self.detour(replica, &own, ask);
        let sparing = sparing(replica, &own);
        let extra = claimed + eviction + risk + detour + sparing;
        let total = self.trial(replica, ask) * own.total() + extra;
        let alone = Cost { own, running, eviction, risk, detour, sparing, claimed, delay: 0.0, total };
        if running == 0 {
            return alone;
        }
        let gains_nothing = own.decode < PROMPT_HEAVY * own.prefill && !self.outranks(replica, ask);
        if gains_nothing && !self.exact && !self.is_overdue(ask.request) {
            return Cost::out_of_the_question(own, running);
        }
        let jobs = jobs();
        let Joined { end, delayed, before, after } = self.joined(&jobs, &own, ask);
        if !replica.outlasts(end, self.now) {
            return Cost::out_of_the_question(own, running);
        }
        // Overlapping frees the replica earlier than one after the other: worth more the more wait.
        let won = (before + own.total() - after).max(0.0);
        let delay = (end - own.total()) + delayed - THROUGHPUT * self.share_of_queue(id, replica, ask) * won;
        Cost { delay, total: alone.total + delay, ..alone }
    }

    /// A request beside `jobs`, and what it does to them.
    fn joined(&self, jobs: &Jobs, own: &Own, ask: &Ask<'_>) -> Joined {
        let shape = &self.learned.shape;
        let before = jobs.ends(shape);
        let after = jobs.with(Job { prefill: own.prefill, decode: own.decode, weight: ask.weight }).ends(shape);
        let end = after.iter().last().unwrap_or(0.0);
        let others = jobs.iter().zip(before.iter().zip(after.iter()));
        let delayed = others.map(|(job, (before, after))| job.weight / ask.weight * (after - before)).sum();
        Joined { end, delayed, before: before.last(), after: after.last() }
    }

    /// What counts of the time on it: less while it is back on probation and waits for the one request that shows whether
    /// it works again. Its past makes it look dear, so without this it would wait for ever beside others that are as fast.
    /// Nobody in a hurry is sent, nobody who has lost an attempt, and nobody to one that is slower than others.
    pub(crate) fn trial(&self, replica: &Replica, ask: &Ask<'_>) -> f64 {
        let hurry = ask.request.spec.class == Class::Interactive || ask.request.is_retry();
        let is_back = replica.health.state == ReplicaState::Probation && self.core.insight.is_none();
        let is_fast = || replica.speeds.at(self.now, self.typical).0 >= AS_FAST * self.typical.0;
        if is_back && !hurry && is_fast() { TRIAL } else { 1.0 }
    }

    /// Whether it is more urgent than something that runs there.
    fn outranks(&self, replica: &Replica, ask: &Ask<'_>) -> bool {
        let class = |attempt| Some(self.core.requests.get(&self.core.attempts.get(attempt)?.request)?.spec.class);
        replica.running.iter().filter_map(class).any(|class| weight(class) < ask.weight)
    }

    /// What it costs to wait for that replica: after the first that runs there has ended, or after all of them.
    pub(crate) fn later_cost(&self, id: ReplicaId, replica: &Replica, ask: &Ask<'_>, bound: f64) -> (f64, f64) {
        let Some(own) = self.own_later(id, replica, ask) else { return (f64::INFINITY, 0.0) };
        let claimed = replica.claimed;
        if own.total() + claimed >= bound {
            return (f64::INFINITY, own.total());
        }
        self.later_beside(replica, ask, own, bound, &self.jobs(id, replica))
    }

    /// The same, after `jobs`.
    pub(crate) fn later_beside(
        &self,
        replica: &Replica,
        ask: &Ask<'_>,
        own: Own,
        bound: f64,
        jobs: &Jobs,
    ) -> (f64, f64) {
        let shape = &self.learned.shape;
        let (claimed, detour) = (replica.claimed, self.detour(replica, &own, ask) + sparing(replica, &own));
        let ends = jobs.ends(shape);
        let all = ends.last();
        if !replica.outlasts(all + claimed + own.total(), self.now) {
            return (f64::INFINITY, own.total());
        }
        let best = all + claimed + own.total() + detour;
        let first = ends.first();
        if claimed > 0.0 || first >= all || first + own.total() + detour >= bound.min(best) {
            return (best, own.total());
        }
        let (first, rest) = jobs.after_first(shape);
        let Joined { end, delayed, .. } = self.joined(&rest, &own, ask);
        (best.min(first + end + delayed + detour), own.total())
    }

    /// What it counts that the text would go on as another group writes it.
    fn detour(&self, replica: &Replica, own: &Own, ask: &Ask<'_>) -> f64 {
        if ask.request.onward(&replica.spec) == Onward::OtherGroup { DETOUR * own.total() } else { 0.0 }
    }

    /// A simulation that knows when a replica goes away starts nothing there that would be lost, or would only be read.
    fn will_be_lost(&self, id: ReplicaId, own: &Own, ask: &Ask<'_>) -> bool {
        let lost = |left: f64| left < 1.3 * if ask.is_kept() { own.prefill } else { own.total() } + 1.0;
        self.left(id).is_some_and(lost)
    }

    /// Seconds until a replica goes away, if that is known.
    fn left(&self, id: ReplicaId) -> Option<f64> {
        let insight = self.core.insight.as_ref()?;
        Some(insight.up_until(id, self.now).since(self.now).as_secs_f64())
    }

    /// What is expected to be lost by the replica's going away: half of the work, the time until that is noticed, and doing
    /// it again. Of an answer that is carried on, what was written is kept: if it goes while it writes, it is the reading that is
    /// to be done again.
    fn risk(&self, id: ReplicaId, replica: &Replica, own: &Own, ask: &Ask<'_>) -> f64 {
        let again = DETECTION + self.learned.work(ask.plan.shared, ask.tokens, 0.0, self.typical);
        if let Some(left) = self.left(id) {
            return if left < own.total() { again } else { 0.0 };
        }
        let odds = 1.0 - (-replica.hazard.rate(self.learned.hazard.rate()) * own.total()).exp();
        let all = 0.5 * own.total() + DETECTION + ask.work;
        let writes = if ask.is_kept() { own.decode / own.total().max(f64::MIN_POSITIVE) } else { 0.0 };
        odds * ((1.0 - writes) * all + writes * again)
    }

    /// Whether a replica is kept free for more urgent requests than those of a class. Batch work keeps out of all that are
    /// kept, standard work out of most of the fast ones: a guard that shares a replica with a review waits twice as long.
    pub(crate) fn is_blocked(&self, class: Class, id: ReplicaId) -> bool {
        let reserved = &self.learned.reserved;
        let kept = match class {
            Class::Interactive => 0,
            Class::Standard => reserved.len().saturating_sub(1) * 4 / 5,
            Class::Batch => reserved.len(),
        };
        reserved.iter().take(kept).any(|kept| *kept == id)
    }

    /// The worth of the cache that it would overwrite.
    fn eviction(&self, id: ReplicaId, replica: &Replica, ask: &Ask<'_>) -> f64 {
        if ask.request.spec.class == Class::Interactive && self.is_reserved(id) {
            return 0.0;
        }
        let Some(held) = replica.slots.victim(&ask.plan.prompt, self.now) else { return 0.0 };
        let Some((prefill, _)) = self.rates(id, replica) else { return 0.0 };
        let shape = &self.learned.shape;
        let Some(key) = held.template else { return 0.0 };
        let Some(stats) = self.learned.index.stats(key) else { return 0.0 };
        let relative = stats.weight() / ask.weight;
        let share = if held.duplicated { 0.0 } else { self.learned.index.heat(key, self.now) };
        let template = EVICTION * share * shape.prefill_work(0.0, held.template_tokens) / prefill;
        let fade = (-held.age / CONVERSATION_FADES).exp();
        let rest = shape.prefill_work(held.template_tokens, held.tokens) / prefill;
        let goes_on = if held.same_conversation { 0.0 } else { stats.return_share() };
        relative * (template + EVICTION_CONVERSATION * goes_on * fade * rest)
    }

    pub(crate) fn is_reserved(&self, id: ReplicaId) -> bool {
        self.learned.reserved.contains(&id)
    }

    /// Requests of its class and above that wait, as far as this replica's part of the pool would serve them.
    fn share_of_queue(&self, id: ReplicaId, replica: &Replica, ask: &Ask<'_>) -> f64 {
        let waiting = self.core.queue.ahead_of(self.model, ask.request.spec.class).saturating_sub(1);
        if waiting == 0 {
            return 0.0;
        }
        let prefill = self.rates(id, replica).map_or(0.0, |rates| rates.0);
        waiting as f64 * prefill / self.pool_rate()
    }

    /// Work that waits in that class and those above it, in seconds of a typical replica.
    pub(crate) fn queued_work(&self, class: Class) -> f64 {
        self.core.queued_work(self.model, class, self.learned)
    }

    /// How many wait in that class.
    pub(crate) fn waiting_in(&self, class: Class) -> usize {
        self.core.queue.waiting_in(self.model, class)
    }

    /// Whether a replica beyond doubt serves the request, now or when a slot frees.
    pub(crate) fn has_sound(&self, ask: &Ask<'_>) -> bool {
        self.core.pool.has_sound(ask.request)
    }

    /// Prompt tokens per second of all that serve.
    pub(crate) fn pool_rate(&self) -> f64 {
        (self.typical.0 * self.pool.serving.max(1) as f64).max(f64::MIN_POSITIVE)
    }

    pub(crate) fn view(
        &self,
        id: ReplicaId,
        replica: &Replica,
        ask: &Ask<'_>,
        cost: &Cost,
        wait: f64,
    ) -> CandidateView {
        CandidateView {
            replica: id,
            onward: ask.request.onward(&replica.spec),
            free: replica.free() > 0,
            running: replica.running.len() as u32,
            reserved: self.is_reserved(id),
            cached_tokens: cost.own.cached,
            prefill: cost.own.prefill,
            decode: cost.own.decode,
            wait,
            delay: cost.delay,
            eviction: cost.eviction,
            risk: cost.risk,
            detour: cost.detour,
            sparing: cost.sparing,
            cost: cost.total,
        }
    }
}

/// What it counts that a replica is to be spared.
fn sparing(replica: &Replica, own: &Own) -> f64 {
    if replica.limit == Limit::Fewer { SPARING.0 * own.total() + SPARING.1 } else { 0.0 }
}
