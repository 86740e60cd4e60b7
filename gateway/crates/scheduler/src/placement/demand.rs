//! Where requests meet what was learned: what a new one needs, what runs where, and what its end teaches.

use crate::{
    config::Policy,
    course::Course,
    event::{Class, Outcome, Timings},
    id::{AttemptId, ModelId, ReplicaId, RequestId},
    learned::Learned,
    model_pool::ModelPool,
    placement::Outlook,
    plan::Plan,
    replica::{Replica, Standing},
    request::Attempt,
    scheduler::Scheduler,
    time::Timestamp,
    warmth::Prompt,
};

/// Fewer prompt tokens, or less time, measure the round trip and not the reading.
const MIN_PREFILL: (u32, f64) = (32, 0.02);
/// Fewer answer tokens measure the network's jitter, not the writing; and engines time all but the first token and count it with the
/// others, so that an answer that ends after four seems a third faster than its phone is.
const MIN_DECODE: u32 = 8;

impl Scheduler {
    /// Works out what a new request needs, and its place in the order of its class.
    pub(crate) fn plan(&mut self, id: RequestId, now: Timestamp) {
        let Some(request) = self.requests.get(&id) else { return };
        let spec = &request.spec;
        let (model, class, tenant) = (spec.model, spec.class, spec.tenant);
        let learned = self.learned.entry(model).or_insert_with(|| Learned::new(now));
        let scale = learned.tokens.get();
        let tokens = (f64::from(spec.prompt_tokens) * scale).max(1.0);
        let found = learned.index.arrive(&spec.prefix, now);
        let prompt = Prompt::new(spec.prefix.clone(), tokens, scale, &found);
        let shared = (found.shared * scale)
            .max(prompt.template.map_or(0.0, |template| template.tokens))
            .min(tokens - 1.0)
            .max(0.0);
        let output = learned.outputs.expect(tenant, class, spec.max_output);
        let typical =
            self.pool.models.get(&model).map_or_else(|| ModelPool::default().typical_rates(), ModelPool::typical_rates);
        let work = learned.work(shared, tokens, output, typical);
        let weight = self.config.share(tenant).weight;
        let fair = self.config.policy == Policy::LeastWork;
        let tag = if fair { learned.fair.tag(class, tenant, work, weight) } else { 0.0 };
        learned.note_demand(class, work, now);
        if let Some(template) = &prompt.template {
            learned.index.stats_mut(template.key).add(work, super::outlook::weight(class), now);
        }
        learned.ledger.arrived(class, now);
        if class == Class::Interactive {
            learned.reserve.arrived(now);
        }
        if let Some(request) = self.requests.get_mut(&id) {
            request.plan = Plan { prompt, shared, output, work, tag, ..Plan::default() };
        }
    }

    /// Answers turned out longer or shorter since a request arrived: expects what is known now.
    pub(crate) fn expect_again(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let spec = &request.spec;
        if let Some(learned) = self.learned.get(&spec.model) {
            request.plan.output = learned.outputs.expect(spec.tenant, spec.class, spec.max_output);
        }
    }

    /// Work that waits in a class and those above it, in seconds of a typical replica; corrected by how far such plans were
    /// off lately, because what waits was planned when less was known.
    pub(crate) fn queued_work(&self, model: ModelId, class: Class, learned: &Learned) -> f64 {
        let classes = Class::ALL.into_iter().filter(|above| *above <= class);
        classes.map(|above| self.queue.work_in(model, above) * learned.plan_error(above)).sum()
    }

    /// The waiting work of a request's template grew (or shrank) by it.
    pub(crate) fn note_waiting(&mut self, id: RequestId, waits: bool) {
        let Some(request) = self.requests.get(&id) else { return };
        let Some(template) = request.plan.prompt.template else { return };
        let Some(learned) = self.learned.get_mut(&request.spec.model) else { return };
        let stats = learned.index.stats_mut(template.key);
        let change = if waits { request.plan.work } else { -request.plan.work };
        stats.queued_work = (stats.queued_work + change).max(0.0);
    }

    /// How many attempts a replica shares itself among, and how many of them write.
    pub(crate) fn activity(&self, replica: &Replica) -> (f64, f64) {
        let attempts = replica.running.iter().filter_map(|id| self.attempts.get(id));
        attempts.fold((0.0, 0.0), |(active, writing), attempt| {
            (active + 1.0, writing + f64::from(u8::from(attempt.course.first_token.is_some())))
        })
    }

    /// Brings the accounts of a replica's attempts up to now. To be called before anything changes there.
    pub(crate) fn touch(&mut self, id: ReplicaId, now: Timestamp) {
        let Some(replica) = self.pool.replicas.get(&id) else { return };
        let seconds = now.since(replica.touched).as_secs_f64();
        let (active, writing) = self.activity(replica);
        if seconds > 0.0 && active > 0.0 {
            for attempt_id in &replica.running {
                let Some(attempt) = self.attempts.get_mut(attempt_id) else { continue };
                let model = self.requests.get(&attempt.request).map(|request| request.spec.model);
                let Some(learned) = model.and_then(|model| self.learned.get(&model)) else { continue };
                attempt.course.pass(seconds, active, writing, &learned.shape);
            }
        }
        if let Some(replica) = self.pool.replicas.get_mut(&id) {
            replica.touched = now;
        }
    }

    /// An attempt begins: what it should take, and what its slot will hold.
    pub(crate) fn begin(&mut self, id: AttemptId, now: Timestamp) {
        let Some(attempt) = self.attempts.get(&id).copied() else { return };
        let Some(request) = self.requests.get(&attempt.request) else { return };
        let (model, class) = (request.spec.model, request.spec.class);
        let own = self.outlook(model, now).and_then(|outlook| {
            let (ask, replica) = (outlook.ask(attempt.request)?, outlook.replica(attempt.replica)?);
            Some((outlook.own(attempt.replica, replica, &ask)?, ask.tokens, ask.output))
        });
        let prompt = request.plan.prompt.clone();
        let tag = request.plan.tag;
        let Some(replica) = self.pool.replicas.get_mut(&attempt.replica) else { return };
        let held = replica.slots.take(id, &prompt, now);
        let Some(learned) = self.learned.get_mut(&model) else { return };
        learned.index.follow(attempt.replica, &replica.slots);
        learned.fair.served(class, tag);
        if let Some((own, tokens, output)) = own {
            if class == Class::Interactive {
                learned.reserve.served(own.total());
            }
            if let Some(attempt) = self.attempts.get_mut(&id) {
                let (cached, own, reading) = (own.cached, own.total(), own.prefill);
                attempt.course = Course { tokens, held, cached, output, own, reading, ..Course::default() };
            }
        }
    }

    /// An attempt is over: what its slot holds now.
    pub(crate) fn finish(&mut self, id: AttemptId, attempt: &Attempt, now: Timestamp) {
        let Some(model) = self.requests.get(&attempt.request).map(|request| request.spec.model) else { return };
        let Some(learned) = self.learned.get_mut(&model) else { return };
        let Some(replica) = self.pool.replicas.get_mut(&attempt.replica) else { return };
        let kept = attempt.kept.unwrap_or_else(|| {
            let course = &attempt.course;
            let read = (course.read / course.reading.max(1e-3)).min(1.0);
            let begun = course.cached + read * (course.tokens - course.cached);
            if course.first_token.is_some() { course.tokens } else { begun }
        });
        if kept > 0.0 {
            replica.slots.release(id, kept, now);
        } else {
            replica.slots.lost(id);
        }
        learned.index.follow(attempt.replica, &replica.slots);
    }

    /// What the end of an attempt says about speeds, sizes and caches. Before its slot is freed.
    pub(crate) fn study(&mut self, id: AttemptId, outcome: Outcome, timings: Option<&Timings>, now: Timestamp) {
        let Some(replica) = self.attempts.get(&id).map(|attempt| attempt.replica) else { return };
        self.touch(replica, now);
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let good = outcome.is_whole();
        let counted = timings.map(|t| f64::from(t.prefill_tokens) + f64::from(t.cached_tokens)).filter(|t| *t > 0.0);
        let written = timings.map_or(0.0, |timings| f64::from(timings.decode_tokens));
        // It was read behind the prompt, and is a part of the answer.
        let carried = f64::from(attempt.carried.unwrap_or(0));
        attempt.kept = match outcome {
            Outcome::Success | Outcome::CutShort => Some(counted.unwrap_or(attempt.course.tokens) + written),
            Outcome::RequestFault | Outcome::ContextExceeded | Outcome::Soft(_) => None,
            Outcome::Hard(_) | Outcome::Loading | Outcome::Misconfigured => Some(0.0),
        };
        let attempt = *attempt;
        let Some(timings) = timings else { return };
        let Some(request) = self.requests.get(&attempt.request) else { return };
        let (model, class, tenant) = (request.spec.model, request.spec.class, request.spec.tenant);
        let estimated = f64::from(request.spec.prompt_tokens);
        let (work, typical) = (request.plan.work, self.pool.models.get(&model).map(|pool| pool.typical_rates()));
        let shared = request.plan.shared;
        let Some(learned) = self.learned.get_mut(&model) else { return };
        let of_prompt = |tokens: f64| (tokens - carried).max(1.0);
        if let Some(counted) = counted {
            learned.tokens.observe(estimated, of_prompt(counted));
        }
        let counted = counted.unwrap_or(attempt.course.tokens);
        let prompt = of_prompt(counted);
        let found = f64::from(timings.cached_tokens);
        if let Some(replica) = self.pool.replicas.get_mut(&attempt.replica) {
            replica.slots.observe(id, attempt.course.held, found, prompt);
            learned.index.follow(attempt.replica, &replica.slots);
        }
        if good {
            let answer = carried + written;
            learned.outputs.observe(tenant, class, answer);
            let weight = self.config.share(tenant).weight;
            if let Some(typical) = typical {
                let really = learned.work(shared, prompt, answer, typical);
                learned.fair.correct(class, tenant, really - work, weight);
                learned.note_plan(class, really / work.max(f64::MIN_POSITIVE));
            }
        }
        self.study_speed(&attempt, model, timings, counted, now);
    }

    fn study_speed(&mut self, attempt: &Attempt, model: ModelId, timings: &Timings, counted: f64, now: Timestamp) {
        let Some(learned) = self.learned.get_mut(&model) else { return };
        let Some(replica) = self.pool.replicas.get(&attempt.replica) else { return };
        let course = &attempt.course;
        let (reading, writing) = (timings.prefill.as_secs_f64(), timings.decode.as_secs_f64());
        let elapsed = now.since(attempt.started).as_secs_f64();
        let until_first =
            course.first_token.map_or((elapsed - writing).max(0.0), |at| at.since(attempt.started).as_secs_f64());
        let whole = |share: f64, time: f64| if time > 0.0 { (share / time).clamp(0.0, 1.0) } else { 1.0 };
        // Where the first token cannot be seen, all of the time was booked as reading.
        let booked = if course.first_token.is_some() { until_first } else { elapsed };
        let read_share = whole(course.read, booked);
        let shape = &mut learned.shape;
        if timings.by_engine && course.first_token.is_some() && reading > 0.0 {
            shape.observe_overhead((until_first - reading).max(0.0) * read_share);
        }
        let cached = f64::from(timings.cached_tokens);
        let net = reading * read_share - if timings.by_engine { 0.0 } else { shape.overhead() };
        let prefill = (timings.prefill_tokens >= MIN_PREFILL.0 && net > MIN_PREFILL.1).then_some(net);
        let write_share =
            if course.first_token.is_some() { whole(course.written, elapsed - until_first) } else { read_share };
        let net_writing = writing * write_share;
        let decode = (timings.decode_tokens >= MIN_DECODE && net_writing > 0.0).then_some(net_writing);
        let tokens = f64::from(timings.decode_tokens);
        if let Some(measured) = replica.speeds.prefill.measured()
            && let Some(net) = prefill
        {
            shape.observe_prefill(cached, counted, net, measured);
        }
        let streams = replica.running.len() as f64;
        if let Some(measured) = replica.speeds.decode.measured()
            && decode.is_some()
        {
            shape.observe_decode(counted, tokens, writing, write_share, streams, measured);
        }
        let (read_work, write_work) = (shape.prefill_work(cached, counted), shape.decode_work(counted, tokens));
        self.pool.measure(attempt.replica, self.config.policy, &mut self.rng, |speeds| {
            if let Some(net) = prefill {
                speeds.prefill.observe(read_work, net, net, now);
            }
            if let Some(net) = decode {
                speeds.decode.observe(write_work, net, net, now);
            }
        });
    }

    /// Follows whether a replica serves: how long such replicas last.
    pub(crate) fn note_service(&mut self, id: ReplicaId, now: Timestamp) {
        let Some(replica) = self.pool.replicas.get_mut(&id) else { return };
        let (serves, gone) = (replica.standing() == Standing::Serving, replica.standing() == Standing::Gone);
        let Some(since) = replica.up_since else {
            replica.up_since = serves.then_some(now);
            if let Some(away) = replica.down_since.take_if(|_| serves || gone) {
                self.note_lives(id, |lives| {
                    lives.down_s += now.since(away).as_secs_f64();
                    lives.returns += f64::from(u8::from(serves));
                });
            }
            return;
        };
        if serves {
            return;
        }
        replica.up_since = None;
        let lived = now.since(since).as_secs_f64();
        let died = replica.standing() == Standing::Coming;
        replica.hazard.lived(lived);
        if died {
            // It may have restarted; what it really held shows when it is back.
            replica.hazard.died();
            replica.slots.forget();
            replica.down_since = Some(now);
        }
        for model in &replica.spec.models {
            let Some(learned) = self.learned.get_mut(model) else { continue };
            learned.hazard.lived(lived);
            if died {
                learned.hazard.died();
            }
            learned.index.follow(id, &replica.slots);
        }
        self.note_lives(id, |lives| {
            lives.up_s += lived;
            lives.deaths += f64::from(u8::from(died));
            lives.forget();
        });
    }
}

impl Outlook<'_> {
    /// How fast it reads, if it serves.
    pub(crate) fn serving_rate(&self, id: ReplicaId) -> Option<f64> {
        let replica = self.replica(id).filter(|replica| replica.standing() == Standing::Serving)?;
        self.rates(id, replica).map(|rates| rates.0)
    }
}
