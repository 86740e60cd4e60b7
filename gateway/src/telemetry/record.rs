//! The guard that accounts for one request, made before anything can fail and emitted when it is dropped.
//!
//! Whatever ends a request (an answer, an error, the client's hang-up that drops the future, a panic that unwinds through
//! it) drops the record, and drops it once. So every request counts exactly once, with how far it came. The outcome starts
//! as "client gone" because a dropped future is the one exit that can't say anything about itself.
//!
//! The time of a request has three parts: waits for a slot, attempts on replicas, and the rest, which is the gateway's own.
//! Each attempt has a guard of its own ([`AttemptRecord`]), for several copies may run at once: each counts as an attempt,
//! and the time in which any of them ran counts once.

use std::{sync::Arc, thread, time::Duration};

use openai_wire::Route;
use scheduler::{Class, Timestamp};

use super::{OTHER, Telemetry, access::Line, metrics::RequestSeries, names};
use crate::clock;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The whole answer was written.
    Ok,
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
    usage: Usage,
    status: u16,
    outcome: RequestOutcome,
}

struct Who {
    tenant: Arc<str>,
    model: Arc<str>,
    class: Class,
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
    end: Option<(&'static str, Timestamp)>,
}

impl Drop for AttemptRecord {
    fn drop(&mut self) {
        let dropped = if thread::panicking() { names::OUTCOME_PANIC } else { names::OUTCOME_CLIENT_GONE };
        let (outcome, ended) = self.end.unwrap_or_else(|| (dropped, clock::now()));
        self.telemetry.attempt(&self.replica, outcome);
        if self.hedge {
            self.telemetry.hedge_ended(outcome == names::OUTCOME_OK);
        }
        if outcome != names::OUTCOME_OK {
            self.telemetry.wasted(outcome, ended.since(self.started).as_secs_f64());
        }
    }
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
            usage: Usage::default(),
            status: 0,
            outcome: RequestOutcome::ClientGone,
        }
    }

    /// Who asks for what. `model` is the configured name; leave it out ([`OTHER`]) for one that is not configured.
    pub fn identify(&mut self, tenant: Arc<str>, model: Arc<str>, class: Class) {
        self.who = Some(Who { tenant, model, class });
    }

    /// It waits for a slot from now on.
    pub fn queued(&mut self) {
        self.phase = Phase::Queued(clock::now());
    }

    /// An attempt starts on this replica: the wait, if there was one, is over. A `hedge` is a second copy beside one that
    /// runs.
    pub fn dispatched(&mut self, replica: &Arc<str>, hedge: bool) -> AttemptRecord {
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
        let telemetry = Arc::clone(&self.telemetry);
        AttemptRecord { telemetry, replica: Arc::clone(replica), hedge, started: now, end: None }
    }

    /// The attempt is over. `outcome` is [`names::OUTCOME_OK`] for a whole answer, otherwise the kind of failure.
    /// Counts the attempt, and its slot time as wasted unless the answer is whole: callers count neither themselves.
    pub fn attempt_ended(&mut self, mut attempt: AttemptRecord, outcome: &'static str) {
        let now = clock::now();
        attempt.end = Some((outcome, now));
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

    /// The first content of the answer goes out; later calls change nothing.
    pub fn first_token(&mut self) {
        self.first_token.get_or_insert_with(clock::now);
    }

    /// Tokens read, written, and found in the replica's prompt cache; `estimated` if the replica did not state them.
    pub fn usage(&mut self, prompt: u64, completion: u64, cached: u64, estimated: bool) {
        self.usage = Usage { prompt, completion, cached, estimated };
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

    fn log(&self, ended: Timestamp, outcome: &'static str) {
        let who = self.who.as_ref();
        Line {
            request_id: &self.request_id,
            tenant: who.map_or("", |who| &who.tenant),
            model: who.map_or(OTHER, |who| &who.model),
            route: self.route.name(),
            class: who.map_or(Class::Standard, |who| who.class).name(),
            status: self.status,
            outcome,
            replica: self.replica.as_deref().unwrap_or_default(),
            attempts: self.attempts,
            queue: self.waited.unwrap_or_default(),
            first_token: self.first_token.map(|first| first.since(self.started)),
            total: ended.since(self.started),
            prompt_tokens: self.usage.prompt,
            completion_tokens: self.usage.completion,
            cached_tokens: self.usage.cached,
            estimated: self.usage.estimated,
        }
        .write();
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.telemetry.in_flight.dec();
        let now = clock::now();
        let outcome = self.outcome_name();
        if let Phase::Queued(since) = self.phase {
            self.add_wait(now.since(since));
        }
        let series = match &self.who {
            Some(who) => self.telemetry.request_series(&who.model, self.route, who.class),
            None => self.telemetry.request_series(&Arc::from(OTHER), self.route, Class::Standard),
        };
        self.observe(&series, now, outcome);
        if self.telemetry.access_log() {
            self.log(now, outcome);
        }
    }
}
