//! Traces: one span a request and one an attempt, sent to a collector over OTLP.
//!
//! A span is made when the guard that accounts for the same thing is dropped (`record`), of what that guard knows anyway, so a
//! trace can't tell another story than the metrics and the log. A request that is not sampled costs a comparison. Spans go into
//! a bounded queue that one task empties ([`export`]): a collector that is slow or gone loses spans, which are counted, and holds
//! nobody up. Attributes are named by the semantic conventions, those for generative AI among them; prompts, answers and keys are
//! in no span.
//!
//! Rejected: the SDK with its layers (a second account of each request, kept in span extensions behind a lock, and thirteen
//! crates with a gRPC framework among them, for one JSON document that is specified and stable); passing the context on to
//! phones (no engine reads it, and a phone is not to learn which requests belong together).

mod context;
mod export;
mod span;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::HeaderMap;
use openai_wire::Route;
use prometheus::IntCounter;
use ring::rand::SystemRandom;
use scheduler::Timestamp;
use tokio::sync::mpsc;

pub use self::export::{Exporter, Target, TargetError};
pub(super) use self::span::{Attributes, Value};
use self::{
    context::{Context, Ids},
    span::Kind,
};
use crate::clock;

/// Spans that wait to be sent. 4,096: some 1,000 requests' worth, a few MB, and more than any phone pool begins in the two
/// seconds between two deliveries.
const QUEUE: usize = 4096;

/// Decides what is traced, and takes the spans.
pub struct Tracer {
    queue: mpsc::Sender<span::Span>,
    /// Share of the requests that bring no decision of their own, as bits of an `f64`.
    sample: AtomicU64,
    lost: IntCounter,
}

impl Tracer {
    /// A tracer whose spans `export` sends; `exported` and `lost` count them.
    pub(super) fn new(sample: f64, exported: IntCounter, lost: IntCounter) -> (Self, export::Inbox) {
        let (queue, spans) = mpsc::channel(QUEUE);
        let tracer = Self { queue, sample: AtomicU64::new(sample.to_bits()), lost: lost.clone() };
        (tracer, export::Inbox { spans, exported, lost })
    }

    /// Takes another share for requests from now on.
    pub fn set_sample(&self, sample: f64) {
        self.sample.store(sample.to_bits(), Ordering::Relaxed);
    }

    /// The trace of a request with this head, if it is to be traced: as its caller decided, else by lot.
    pub(super) fn begin(self: &Arc<Self>, headers: Option<&HeaderMap>) -> Option<Box<RequestTrace>> {
        let given = headers.and_then(Context::of);
        let sample = f64::from_bits(self.sample.load(Ordering::Relaxed));
        if sample <= 0.0 && given.is_none() {
            return None;
        }
        let ids = Ids::fresh(&SystemRandom::new())?;
        let sampled = given.as_ref().map_or_else(|| ids.is_within(sample), |given| given.sampled);
        if !sampled {
            return None;
        }
        let (trace, parent, state) = match given {
            Some(given) => (given.trace, Some(given.parent), given.state),
            None => (ids.trace, None, None),
        };
        Some(Box::new(RequestTrace { tracer: Arc::clone(self), trace, span: ids.span, parent, state }))
    }

    fn send(&self, span: span::Span) {
        if self.queue.try_send(span).is_err() {
            self.lost.inc();
        }
    }
}

/// The trace that a request's span belongs to.
pub(super) struct RequestTrace {
    tracer: Arc<Tracer>,
    trace: [u8; 16],
    span: [u8; 8],
    parent: Option<[u8; 8]>,
    state: Option<Box<str>>,
}

/// The trace that an attempt's span belongs to.
pub(super) struct AttemptTrace {
    tracer: Arc<Tracer>,
    trace: [u8; 16],
    request: [u8; 8],
    route: Route,
    model: Arc<str>,
    attributes: Attributes,
}

impl RequestTrace {
    /// As in a `traceparent`: what the log line names.
    pub(super) fn id(&self) -> String {
        hex::encode(self.trace)
    }

    /// The trace of an attempt of this request.
    pub(super) fn attempt(&self, route: Route, model: &Arc<str>, attributes: Attributes) -> Box<AttemptTrace> {
        let Self { tracer, trace, span, .. } = self;
        let (tracer, model) = (Arc::clone(tracer), Arc::clone(model));
        Box::new(AttemptTrace { tracer, trace: *trace, request: *span, route, model, attributes })
    }

    /// The request is over.
    pub(super) fn end(self, of: Ended<'_>, mut attributes: Attributes) {
        let Self { tracer, trace, span, parent, state } = self;
        attributes.push(("http.request.method", Value::Word("POST")));
        attributes.push(("http.route", Value::Word(of.route.path())));
        tracer.send(span::Span { state, ..of.span(Kind::Server, trace, span, parent, attributes) });
    }
}

impl AttemptTrace {
    /// More is known of the attempt.
    pub(super) fn add(&mut self, name: &'static str, value: Value) {
        self.attributes.push((name, value));
    }

    /// The attempt is over.
    pub(super) fn end(self, times: Times, error: Option<&'static str>) {
        let Self { tracer, trace, request, route, model, attributes } = self;
        let Some(ids) = Ids::fresh(&SystemRandom::new()) else { return };
        let of = Ended { route, model: &model, times, error };
        tracer.send(of.span(Kind::Client, trace, ids.span, Some(request), attributes));
    }
}

/// When something began, showed its first token, and ended.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) began: Timestamp,
    pub(super) first_token: Option<Timestamp>,
    pub(super) ended: Timestamp,
}

/// What ended.
pub(super) struct Ended<'a> {
    pub(super) route: Route,
    pub(super) model: &'a str,
    pub(super) times: Times,
    /// The outcome, if it is not the wanted one.
    pub(super) error: Option<&'static str>,
}

impl Ended<'_> {
    fn span(
        &self,
        kind: Kind,
        trace: [u8; 16],
        id: [u8; 8],
        parent: Option<[u8; 8]>,
        mut attributes: Attributes,
    ) -> span::Span {
        let operation = operation(self.route);
        attributes.push(("gen_ai.operation.name", Value::Word(operation)));
        attributes.push(("gen_ai.request.model", Value::Text(self.model.into())));
        if let Some(error) = self.error {
            attributes.push(("error.type", Value::Word(error)));
        }
        let (now, unix) = (clock::now(), clock::unix());
        // The clock of the gateway is monotonic; spans are told in the time of day.
        let day = |at: Timestamp| unix.saturating_sub(now.since(at));
        let Times { began, first_token, ended } = self.times;
        span::Span {
            trace,
            id,
            parent,
            state: None,
            name: format!("{operation} {}", self.model),
            kind,
            began: day(began),
            ended: day(ended),
            first_token: first_token.map(day),
            attributes,
            error: self.error,
        }
    }
}

/// The name of what a route does.
const fn operation(route: Route) -> &'static str {
    match route {
        Route::ChatCompletions | Route::Responses | Route::Messages => "chat",
        Route::Completions => "text_completion",
        Route::Embeddings => "embeddings",
        Route::Rerank => "rerank",
        Route::SystemOne => "decide",
    }
}

/// A length in seconds.
pub(super) fn seconds(length: Duration) -> Value {
    Value::Number(length.as_secs_f64())
}
