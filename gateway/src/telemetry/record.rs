//! The guard that accounts for one request, made before anything can fail and emitted when it is dropped.
//!
//! Whatever ends a request (an answer, an error, the client's hang-up that drops the future, a panic that unwinds through
//! it) drops the record, and drops it once. So every request counts exactly once, with how far it came. The outcome starts
//! as "client gone" because a dropped future is the one exit that can't say anything about itself.
//!
//! The time of a request has three parts: waits for a slot, attempts on replicas, and the rest, which is the gateway's own.
//! Each attempt has a guard of its own ([`AttemptRecord`]), for several copies may run at once: each counts as an attempt,
//! and the time in which any of them ran counts once.
//!
//! Slot time is wasted where it brings nothing. The time in which a replica wrote a part that is kept is not, as long as the part
//! is carried on; so it is put aside, and counts when the part is given up.

use std::{sync::Arc, thread, time::Duration};

use http::HeaderMap;
use openai_wire::Route;
use scheduler::{Class, Timestamp, Waste};

use super::{
    OTHER, Telemetry,
    access::Line,
    account::{Answer, Price},
    cost::Meter,
    history::Ended,
    metrics::RequestSeries,
    names,
    tenants::TenantSeries,
    trace::{self, AttemptTrace, Attributes, RequestTrace, Times, Value},
};
use crate::clock;

/// The error's code of a request that nobody waits for any more.
const DEADLINE: &str = "deadline_exceeded";

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The whole answer was written.
    Ok,
    /// The whole answer of an earlier request was written: its tokens and times are counted there.
    Joined,
    /// The client left before that.
    ClientGone,
    /// It was answered, or its stream ended, with this error's code.
    Error(&'static str),
}

/// One request, from its head to its end.
pub struct RequestRecord {
    telemetry: Arc<Telemetry>,
    request_id: Arc<str>,
    route: Route,
    started: Timestamp,
    who: Option<Who>,
    phase: Phase,
    waited: Option<Duration>,
    upstream: Duration,
    attempts: u32,
    /// Attempts that run now.
    running: u32,
    /// Whose answer it is, else who was asked last.
    replica: Option<Arc<str>>,
    first_token: Option<Timestamp>,
    last_token: Option<Timestamp>,
    /// Slot time in which the part of an answer was written that is kept.
    kept: Kept,
    /// What ended attempts cost, in ACU.
    cost: f64,
    /// The price of one of them is not known.
    unpriced: bool,
    /// The part of the answer's slot time in which its prompt was read.
    reading: Option<f64>,
    usage: Usage,
    status: u16,
    outcome: RequestOutcome,
    /// The request whose answer this one was given.
    joined: Option<Arc<str>>,
    /// Where its span belongs, if it is traced.
    trace: Option<Box<RequestTrace>>,
}

/// A part of an answer that is kept.
#[derive(Default)]
struct Kept {
    slot: Duration,
    acu: f64,
}

struct Who {
    series: Flying,
    tenant: Arc<str>,
    model: Arc<str>,
    class: Class,
}

/// A tenant's series, in which the request is in flight.
struct Flying(Arc<TenantSeries>);

impl Flying {
    fn new(series: Arc<TenantSeries>) -> Self {
        series.in_flight.inc();
        Self(series)
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.0.in_flight.dec();
    }
}

/// What the time passes with.
#[derive(Clone, Copy)]
enum Phase {
    /// The gateway.
    Ours,
    /// A wait for a slot.
    Queued(Timestamp),
    /// Attempts on replicas.
    Running(Timestamp),
    /// The last of them is over; unless the request ends here it waits for the next slot since then.
    Ended(Timestamp),
}

/// One attempt, from its start to its end. Dropped without [`RequestRecord::attempt_ended`] it counts as one whose client
/// left, or as one that a panic ended.
pub struct AttemptRecord {
    telemetry: Arc<Telemetry>,
    replica: Arc<str>,
    hedge: bool,
    started: Timestamp,
    /// Time in which it wrote what is kept.
    kept: Duration,
    /// Runs until it is taken.
    meter: Option<Meter>,
    /// Where its span belongs, if its request is traced.
    trace: Option<Box<AttemptTrace>>,
}

impl AttemptRecord {
    /// What is known of it for those who look at traces; asked only if it is traced.
    pub fn tell(&mut self, told: impl FnOnce() -> AttemptTold) {
        let Some(trace) = &mut self.trace else { return };
        let AttemptTold { host, port, engine, carries_on } = told();
        trace.add("server.address", Value::Text(host.into()));
        trace.add("server.port", Value::Count(port.into()));
        trace.add("gen_ai.provider.name", Value::Word(engine.unwrap_or(OTHER)));
        trace.add("huntgroup.carries_on", Value::Flag(carries_on));
    }

    /// Counts it, once. What it cost, if that is known.
    fn settle(&mut self, outcome: &'static str, ended: Timestamp) -> Option<f64> {
        let meter = self.meter.take()?;
        let ran = ended.since(self.started);
        let wasted = (outcome != names::OUTCOME_OK).then(|| ran.saturating_sub(self.kept));
        self.telemetry.attempt(&self.replica, outcome);
        if self.hedge {
            self.telemetry.hedge_ended(outcome == names::OUTCOME_OK);
        }
        if let Some(wasted) = wasted {
            self.telemetry.wasted(outcome, wasted.as_secs_f64());
        }
        if let Some(mut trace) = self.trace.take() {
            trace.add("huntgroup.outcome", Value::Word(outcome));
            trace.end(Times { began: self.started, first_token: None, ended }, failure(outcome));
        }
        self.telemetry.ledger.end(meter, wasted.map(|time| (outcome, time)), ended)
    }
}

/// What a trace says of an attempt.
pub struct AttemptTold {
    /// The replica's host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its engine, once known.
    pub engine: Option<&'static str>,
    /// It carries on what another has begun.
    pub carries_on: bool,
}

impl Drop for AttemptRecord {
    fn drop(&mut self) {
        let dropped = if thread::panicking() { names::OUTCOME_PANIC } else { names::OUTCOME_CLIENT_GONE };
        self.settle(dropped, clock::now());
    }
}

/// The outcome, unless it is the wanted one.
fn failure(outcome: &'static str) -> Option<&'static str> {
    (![names::OUTCOME_OK, names::OUTCOME_JOINED].contains(&outcome)).then_some(outcome)
}

#[derive(Clone, Copy, Default)]
struct Usage {
    prompt: u64,
    completion: u64,
    cached: u64,
    estimated: bool,
}

impl RequestRecord {
    /// A request whose head has just arrived; it is in flight until the record is dropped.
    pub fn new(telemetry: Arc<Telemetry>, request_id: Arc<str>, route: Route) -> Self {
        telemetry.in_flight.inc();
        Self {
            telemetry,
            request_id,
            route,
            started: clock::now(),
            who: None,
            phase: Phase::Ours,
            waited: None,
            upstream: Duration::ZERO,
            attempts: 0,
            running: 0,
            replica: None,
            first_token: None,
            last_token: None,
            kept: Kept::default(),
            cost: 0.0,
            unpriced: false,
            reading: None,
            usage: Usage::default(),
            status: 0,
            outcome: RequestOutcome::ClientGone,
            joined: None,
            trace: None,
        }
    }

    /// It may be traced, as its head says if it has one.
    pub fn trace(&mut self, head: Option<&HeaderMap>) {
        self.trace = self.telemetry.tracer().and_then(|tracer| tracer.begin(head));
    }

    /// It is given the answer of an earlier request.
    pub fn joined(&mut self, first: Arc<str>) {
        self.joined = Some(first);
    }

    /// Who asks for what. `model` is the configured name; leave it out ([`OTHER`]) for one that is not configured.
    pub fn identify(&mut self, tenant: Arc<str>, model: Arc<str>, class: Class) {
        let known = self.who.take().map(|who| who.series);
        let series = known.unwrap_or_else(|| Flying::new(self.telemetry.tenants.of(&tenant)));
        self.who = Some(Who { series, tenant, model, class });
    }

    /// It waits for a slot from now on.
    pub fn queued(&mut self) {
        self.phase = Phase::Queued(clock::now());
    }

    /// An attempt starts on this replica: the wait, if there was one, is over. A `hedge` is a second copy beside one that
    /// runs.
    pub fn dispatched(&mut self, replica: &Arc<str>, hedge: bool, price: &Price) -> AttemptRecord {
        let now = clock::now();
        if let Phase::Queued(since) | Phase::Ended(since) = self.phase {
            self.add_wait(now.since(since));
        }
        if !matches!(self.phase, Phase::Running(_)) {
            self.phase = Phase::Running(now);
        }
        self.attempts += 1;
        self.running += 1;
        self.replica = Some(Arc::clone(replica));
        let (model, tenant) = self.payer();
        AttemptRecord {
            telemetry: Arc::clone(&self.telemetry),
            replica: Arc::clone(replica),
            hedge,
            started: now,
            kept: Duration::ZERO,
            meter: Some(self.telemetry.ledger.begin(&model, &tenant, price, now)),
            trace: self.trace.as_ref().map(|trace| self.traced(trace, replica, hedge)),
        }
    }

    fn traced(&self, trace: &RequestTrace, replica: &Arc<str>, hedge: bool) -> Box<AttemptTrace> {
        let model = self.who.as_ref().map_or_else(|| OTHER.into(), |who| Arc::clone(&who.model));
        let attributes = vec![
            ("huntgroup.replica", Value::Text(Arc::clone(replica))),
            ("huntgroup.attempt", Value::Count(self.attempts.into())),
            ("huntgroup.hedge", Value::Flag(hedge)),
        ];
        trace.attempt(self.route, &model, attributes)
    }

    /// The attempt is over. `outcome` is [`names::OUTCOME_OK`] for a whole answer, otherwise the kind of failure.
    /// Counts the attempt, and its slot time as wasted unless the answer is whole: callers count neither themselves.
    pub fn attempt_ended(&mut self, mut attempt: AttemptRecord, outcome: &'static str) {
        let now = clock::now();
        let cost = attempt.settle(outcome, now);
        match cost {
            Some(cost) => self.cost += cost,
            None => self.unpriced = true,
        }
        let ran = now.since(attempt.started);
        if !attempt.kept.is_zero() {
            self.kept.slot += attempt.kept;
            self.kept.acu += cost.unwrap_or_default() * attempt.kept.div_duration_f64(ran);
        }
        if outcome == names::OUTCOME_OK {
            self.replica = Some(Arc::clone(&attempt.replica));
        }
        self.last_token = Some(now);
        self.running = self.running.saturating_sub(1);
        if let Phase::Running(since) = self.phase
            && self.running == 0
        {
            self.upstream += now.since(since);
            self.phase = Phase::Ended(now);
        }
    }

    /// The same for an attempt that broke off, and of which a part is kept that it wrote in so much of its time.
    pub fn attempt_broke_off(&mut self, mut attempt: AttemptRecord, outcome: &'static str, written: Duration) {
        attempt.kept = written.min(clock::now().since(attempt.started));
        self.attempt_ended(attempt, outcome);
    }

    /// The part that was kept is given up, for an answer from its beginning.
    pub fn begins_anew(&mut self) {
        self.give_up(Waste::Failed);
    }

    fn give_up(&mut self, why: Waste) {
        let Kept { slot, acu } = std::mem::take(&mut self.kept);
        self.telemetry.wasted(why.name(), slot.as_secs_f64());
        if acu > 0.0 {
            let (model, tenant) = self.payer();
            self.telemetry.ledger.waste(&model, &tenant, why.name(), acu, clock::now());
        }
    }

    /// The model and the tenant that its slot time is for.
    fn payer(&self) -> (Arc<str>, Arc<str>) {
        match &self.who {
            Some(who) => (Arc::clone(&who.model), Arc::clone(&who.tenant)),
            None => (Arc::from(OTHER), Arc::from(OTHER)),
        }
    }

    /// What all its attempts cost, in ACU: known when there were some, all have ended, and all ran at a price.
    fn cost(&self) -> Option<f64> {
        let known = self.attempts > 0 && self.running == 0 && !self.unpriced;
        known.then_some(self.cost)
    }

    /// How long the replica of its answer read and wrote.
    pub fn timed(&mut self, reading: Duration, writing: Duration) {
        // Not as lengths: a phone may claim any, and two of the longest have no sum.
        let all = reading.as_secs_f64() + writing.as_secs_f64();
        self.reading = (all > 0.0).then(|| reading.as_secs_f64() / all);
    }

    /// Writes down a whole answer, and what it cost to read and to write it: known where one attempt did both.
    fn answered(&self, ended: Timestamp) {
        let reading = self.reading.filter(|_| self.attempts == 1);
        let split = reading.zip(self.cost()).map(|(share, cost)| (cost * share, cost * (1.0 - share)));
        let Usage { prompt: prompt_tokens, completion: completion_tokens, .. } = self.usage;
        let (model, tenant) = self.payer();
        let answer = Answer { prompt_tokens, completion_tokens, split };
        self.telemetry.ledger.answered(&model, &tenant, &answer, ended);
    }

    /// The first content of the answer goes out; later calls change nothing.
    pub fn first_token(&mut self) {
        self.first_token.get_or_insert_with(clock::now);
    }

    /// Tokens read, written, and found in the replica's prompt cache; `estimated` if the replica did not state them.
    pub fn usage(&mut self, prompt: u64, completion: u64, cached: u64, estimated: bool) {
        self.usage = Usage { prompt, completion, cached, estimated };
    }

    /// Tokens read, found in a cache, and written.
    pub fn tokens(&self) -> (u64, u64, u64) {
        (self.usage.prompt, self.usage.cached, self.usage.completion)
    }

    /// The status of the answer's head.
    pub fn status(&mut self, status: u16) {
        self.status = status;
    }

    /// How it ended; the last call counts.
    pub fn outcome(&mut self, outcome: RequestOutcome) {
        self.outcome = outcome;
    }

    /// The waits for slots so far, summed, the running one included.
    pub fn queue_wait(&self) -> Duration {
        let running = match self.phase {
            Phase::Queued(since) => clock::now().since(since),
            _ => Duration::ZERO,
        };
        self.waited.unwrap_or_default() + running
    }

    /// Time since the head arrived.
    pub fn elapsed(&self) -> Duration {
        clock::now().since(self.started)
    }

    /// Attempts started so far.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    fn add_wait(&mut self, wait: Duration) {
        self.waited = Some(self.waited.unwrap_or_default() + wait);
    }

    fn outcome_name(&self) -> &'static str {
        match self.outcome {
            _ if thread::panicking() => names::OUTCOME_PANIC,
            RequestOutcome::Ok => names::OUTCOME_OK,
            RequestOutcome::Joined => names::OUTCOME_JOINED,
            RequestOutcome::ClientGone => names::OUTCOME_CLIENT_GONE,
            RequestOutcome::Error(code) => code,
        }
    }

    fn observe(&self, series: &RequestSeries, ended: Timestamp, outcome: &'static str) {
        match outcome {
            names::OUTCOME_OK => series.ok.inc(),
            names::OUTCOME_CLIENT_GONE => series.client_gone.inc(),
            code => self.telemetry.failed(series, code),
        }
        let total = ended.since(self.started);
        if let Some(waited) = self.waited {
            series.queue_wait.observe(waited.as_secs_f64());
        }
        if let Some(first) = self.first_token {
            series.first_token.observe(first.since(self.started).as_secs_f64());
            // An answer of one token has no pace.
            if self.usage.completion > 1 {
                let writing = self.last_token.unwrap_or(ended).since(first).as_secs_f64();
                series.per_token.observe(writing / (self.usage.completion - 1) as f64);
            }
        }
        if outcome == names::OUTCOME_OK {
            series.duration.observe(total.as_secs_f64());
            let ours = total.saturating_sub(self.waited.unwrap_or_default()).saturating_sub(self.upstream);
            series.overhead.observe(ours.as_secs_f64());
        }
        series.prompt.inc_by(self.usage.prompt);
        series.completion.inc_by(self.usage.completion);
        series.cached.inc_by(self.usage.cached);
        series.estimated.inc_by(u64::from(self.usage.estimated));
    }

    fn observe_tenant(&self, who: &Who, outcome: &'static str) {
        let series = &who.series.0;
        self.telemetry.tenants.ended(series, who.class, outcome);
        if let Some(first) = self.first_token {
            series.first_token.observe(first.since(self.started).as_secs_f64());
        }
        series.prompt.inc_by(self.usage.prompt);
        series.completion.inc_by(self.usage.completion);
    }

    fn remember(&self, outcome: &'static str) {
        let good = match outcome {
            names::OUTCOME_OK | names::OUTCOME_JOINED => Some(true),
            names::OUTCOME_CLIENT_GONE | names::CLIENT_ERROR | names::RATE_LIMITED => None,
            _ => Some(false),
        };
        self.telemetry.history().ended(Ended {
            class: self.who.as_ref().map_or(Class::Standard, |who| who.class),
            good,
            prompt: self.usage.prompt,
            completion: self.usage.completion,
            first_token: self.first_token.map(|first| first.since(self.started)),
            waited: self.waited,
        });
    }

    /// What its span says.
    fn attributes(&self) -> Attributes {
        let mut attributes = vec![
            ("huntgroup.request_id", Value::Text(Arc::clone(&self.request_id))),
            ("gen_ai.provider.name", Value::Word("huntgroup")),
            ("gen_ai.usage.input_tokens", Value::Count(self.usage.prompt)),
            ("gen_ai.usage.output_tokens", Value::Count(self.usage.completion)),
            ("gen_ai.usage.cache_read.input_tokens", Value::Count(self.usage.cached)),
            ("huntgroup.attempts", Value::Count(self.attempts.into())),
            ("huntgroup.queue_seconds", trace::seconds(self.waited.unwrap_or_default())),
        ];
        if self.status != 0 {
            attributes.push(("http.response.status_code", Value::Count(self.status.into())));
        }
        if let Some(who) = &self.who {
            attributes.push(("huntgroup.tenant", Value::Text(Arc::clone(&who.tenant))));
            attributes.push(("huntgroup.class", Value::Word(who.class.name())));
        }
        if let Some(replica) = &self.replica {
            attributes.push(("huntgroup.replica", Value::Text(Arc::clone(replica))));
        }
        if let Some(first) = &self.joined {
            attributes.push(("huntgroup.joined", Value::Text(Arc::clone(first))));
        }
        attributes
    }

    fn log(&self, ended: Timestamp, outcome: &'static str) {
        let who = self.who.as_ref();
        Line {
            request_id: &self.request_id,
            trace_id: self.trace.as_ref().map(|trace| trace.id()),
            tenant: who.map_or("", |who| &who.tenant),
            model: who.map_or(OTHER, |who| &who.model),
            route: self.route.name(),
            class: who.map_or(Class::Standard, |who| who.class).name(),
            status: self.status,
            outcome,
            replica: self.replica.as_deref().unwrap_or_default(),
            joined: self.joined.as_deref().unwrap_or_default(),
            attempts: self.attempts,
            queue: self.waited.unwrap_or_default(),
            first_token: self.first_token.map(|first| first.since(self.started)),
            total: ended.since(self.started),
            prompt_tokens: self.usage.prompt,
            completion_tokens: self.usage.completion,
            cached_tokens: self.usage.cached,
            estimated: self.usage.estimated,
            cost: self.cost(),
        }
        .write();
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.telemetry.in_flight.dec();
        let now = clock::now();
        let outcome = self.outcome_name();
        match outcome {
            names::OUTCOME_OK => {}
            names::OUTCOME_CLIENT_GONE | DEADLINE => self.give_up(Waste::Abandoned),
            _ => self.give_up(Waste::Failed),
        }
        if let Phase::Queued(since) = self.phase {
            self.add_wait(now.since(since));
        }
        let series = match &self.who {
            Some(who) => self.telemetry.request_series(&who.model, self.route, who.class),
            None => self.telemetry.request_series(&Arc::from(OTHER), self.route, Class::Standard),
        };
        self.observe(&series, now, outcome);
        self.remember(outcome);
        if let Some(who) = &self.who {
            self.observe_tenant(who, outcome);
        }
        if outcome == names::OUTCOME_OK {
            self.answered(now);
        }
        if self.telemetry.access_log() {
            self.log(now, outcome);
        }
        if let Some(trace) = self.trace.take() {
            let model = self.who.as_ref().map_or(OTHER, |who| &who.model);
            let times = Times { began: self.started, first_token: self.first_token, ended: now };
            trace.end(trace::Ended { route: self.route, model, times, error: failure(outcome) }, self.attributes());
        }
    }
}
