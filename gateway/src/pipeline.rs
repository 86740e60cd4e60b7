//! The life of a request, read top to bottom. A stage answers with a value or an [`ApiError`]; none calls the next.
//!
//! accept → who → how often → what → when and where → send, fail over, copy → account

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, header};
use openai_wire::Route;
use scheduler::{CancelReason, Outcome, RequestSpec, ShedReason};

use crate::{
    auth::Tenant,
    dispatch::{Grant, Place, Stopped},
    error::ApiError,
    gateway::{Gateway, Held},
    listener::{Admitted, Exchange, Interrupted, Target, insert},
    live::{Entry, LiveRequest},
    models,
    pressure::Level,
    ratelimit::Permit,
    relay::{self, Answer, Attempt, Expected, Failed, Finished, Unfinished, head::Facts},
    request,
    telemetry::{OTHER, RequestOutcome, RequestRecord},
};

/// How a request ended early.
enum Stop {
    Refused(ApiError),
    /// An answer that had begun ends with this event.
    Broken(ApiError, Bytes),
    Gone,
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

impl From<Interrupted> for Stop {
    fn from(interrupted: Interrupted) -> Self {
        match interrupted {
            Interrupted::ClientGone => Self::Gone,
            Interrupted::Cancelled => Self::Refused(ApiError::Cancelled),
        }
    }
}

impl Gateway {
    /// Answers one request. Every path through here ends in exactly one answer, or in a client that is gone.
    pub async fn serve(&self, exchange: &mut Exchange) {
        let _in_flight = self.in_flight.enter();
        let admitted = match exchange.admit() {
            Ok(admitted) => admitted,
            Err(error) => return self.refuse(exchange, None, &error, None).await,
        };
        match &admitted.target {
            Target::Inference(route) => self.infer(exchange, *route, &admitted).await,
            Target::Models | Target::Model(_) => models::answer(self, exchange, &admitted.target).await,
            Target::Healthz => models::health(exchange, true).await,
            Target::Readyz => models::health(exchange, self.is_ready()).await,
        }
    }

    /// A request for a replica, with its accounting.
    async fn infer(&self, exchange: &mut Exchange, route: Route, admitted: &Admitted) {
        let mut record = RequestRecord::new(Arc::clone(&self.telemetry), Arc::clone(exchange.id()), route);
        let mut permit = None;
        match self.hunt(exchange, route, admitted, &mut record, &mut permit).await {
            Ok(()) => record.outcome(RequestOutcome::Ok),
            Err(Stop::Gone) => record.outcome(RequestOutcome::ClientGone),
            Err(Stop::Refused(error)) => {
                self.account(&mut record, &error);
                self.refuse(exchange, Some(route), &error, permit.as_ref()).await;
            }
            Err(Stop::Broken(error, event)) => {
                self.account(&mut record, &error);
                exchange.abort_with(event).await;
            }
        }
    }

    /// The stages.
    async fn hunt(
        &self,
        exchange: &mut Exchange,
        route: Route,
        admitted: &Admitted,
        record: &mut RequestRecord,
        permit: &mut Option<Permit>,
    ) -> Result<(), Stop> {
        if self.pressure.level() == Level::Refuse {
            return Err(ApiError::Overloaded("limits.max_memory").into());
        }
        let tenant = self.authenticate(exchange)?;
        let permit = permit.insert(self.limiter.admit(&tenant).map_err(ApiError::from)?);
        let mut held = self.hold();
        let body = exchange.read_body(admitted, &mut held).await?;
        let request = request::decode(route, body)?;
        let deadline = request::deadline(&exchange.head().headers, exchange.started())?;
        record.identify(Arc::clone(&tenant.name), OTHER.into(), tenant.default_class);
        let patience = self.config().scheduler.queue.no_replica_wait;
        let model = exchange.drive(pin!(self.fleet.await_model(&request.model, patience))).await?;
        let model = model.ok_or_else(|| ApiError::ModelNotFound { model: shown(&request.model) })?;
        let usual = self.config().models.get(&*model.name).and_then(|model| model.default_class);
        let class = request::class(&exchange.head().headers, &request, &tenant, usual)?;
        record.identify(Arc::clone(&tenant.name), Arc::clone(&model.name), class);
        if !tenant.may_use(&model.name) {
            return Err(ApiError::ModelNotAllowed { model: shown(&request.model) }.into());
        }
        let spec = request::spec(&request, model.id, tenant.id, class, deadline);
        permit.charge(u64::from(spec.prompt_tokens) + u64::from(spec.output_tokens)).map_err(ApiError::from)?;
        let facts = Facts { id: &Arc::clone(exchange.id()), permit: Some(permit) };
        if request.stream {
            exchange.keep_stream_warm(|| relay::head::stream(&facts));
        } else {
            exchange.keep_plain_warm(|| relay::head::plain(200, &facts));
        }
        let queued = permit.enqueue().map_err(ApiError::from)?;
        record.queued();
        let place = self.dispatcher.submit(spec.clone());
        let entry = self.live.enter(
            LiveRequest {
                id: Arc::clone(exchange.id()),
                request: place.request(),
                tenant: Arc::clone(&tenant.name),
                model: Arc::clone(&model.name),
                route: route.name(),
                class,
                started: exchange.started(),
                content_events: Arc::default(),
            },
            exchange.cancel_signal(),
        );
        let mut answer = Answer::new(&request, spec.prompt_tokens, exchange, &self.config().streams);
        let first = exchange.drive(pin!(place.grant())).await;
        drop(queued);
        let used = match first {
            Ok(first) => self.run(exchange, &mut answer, &spec, &place, first, &facts, record, &entry, &mut held).await,
            Err(interrupted) => Err(interrupted.into()),
        };
        let used = used.map_err(|stop| self.in_shape(stop, exchange, &answer));
        if used.is_err() && record.attempts() == 0 {
            // No replica saw it: its tokens were not used.
            permit.settle(Some(0));
        }
        permit.settle(used?);
        Ok(())
    }

    /// Sends, copies; fails over, with a slot that it waits for each time, as long as the client has seen no content. Tokens used, if known.
    #[expect(clippy::too_many_arguments, reason = "the heart of the request: each is a part of it, none is optional")]
    async fn run(
        &self,
        exchange: &mut Exchange,
        answer: &mut Answer<'_>,
        spec: &RequestSpec,
        place: &Place,
        mut granted: Result<Grant, Stopped>,
        facts: &Facts<'_>,
        record: &mut RequestRecord,
        entry: &Entry,
        held: &mut Held,
    ) -> Result<Option<u64>, Stop> {
        let mut last: Option<Failed> = None;
        loop {
            let grant = granted.map_err(|stopped| self.with_numbers(refused(stopped, last.take()), spec))?;
            let replica = self.fleet.replica(grant.replica());
            let named = replica.as_ref().and_then(|replica| replica.model_name(spec.model));
            let (Some(replica), Some(model)) = (replica, named) else {
                // Removed, or its model changed, in this very moment.
                grant.end(Outcome::Misconfigured, false, None);
                granted = exchange.drive(pin!(place.grant())).await?;
                continue;
            };
            record.dispatched(&replica.label);
            let ended = {
                // In a block of its own: a `stopped` that outlives its attempt would take the next grant's wake-up.
                let stopped = pin!(place.stopped(grant.attempt()));
                let (expected, prompt) = (self.expected(&grant, spec), spec.prompt_tokens);
                let (replica, model, grant) = (&*replica, &*model, &grant);
                let (gateway, held) = (self, &mut *held);
                let attempt =
                    Attempt { gateway, replica, model, grant, record, entry, facts, stopped, expected, prompt, held };
                answer.attempt(exchange, attempt).await
            };
            match ended {
                Ok(Finished { rest, timings, used, streamed }) => {
                    grant.end(Outcome::Success, true, timings);
                    record.attempt_ended("ok");
                    record.status(200);
                    let mut head = if streamed { relay::head::stream(facts) } else { relay::head::plain(200, facts) };
                    relay::head::trace(
                        &mut head,
                        record,
                        self.config().server.expose_replica.then_some(&replica.label),
                    );
                    relay::deliver(exchange, rest, streamed, head).await?;
                    return Ok(used);
                }
                Err(Unfinished::Interrupted(interrupted)) => {
                    record.attempt_ended("client_gone");
                    return Err(interrupted.into());
                }
                Err(Unfinished::Refused(error)) => {
                    record.attempt_ended(relay::OURS);
                    return Err(error.into());
                }
                Err(Unfinished::Cancelled(why)) => {
                    let sent = answer.content_sent();
                    grant.cancelled();
                    record.attempt_ended("cancelled");
                    if sent {
                        return Err(cancelled(why).into());
                    }
                }
                Err(Unfinished::Failed(failed)) => {
                    let sent = answer.content_sent();
                    grant.end(failed.outcome, sent, None);
                    record.attempt_ended(failed.name);
                    if sent {
                        return Err(failed.answer.map_or(ApiError::Lost(failed.name), ApiError::Upstream).into());
                    }
                    if failed.is_final() {
                        return Err(failed.answer.map_or(ApiError::Internal, ApiError::Upstream).into());
                    }
                    self.telemetry.failover(failed.phase, failed.name);
                    tracing::info!(request = %exchange.id(), replica = %replica.label, why = failed.name, "failover");
                    last = Some(failed);
                }
            }
            granted = exchange.drive(pin!(place.grant())).await?;
        }
    }

    /// A refusal for load tells which limit was met, so that its reader can do something about it.
    fn with_numbers(&self, mut error: ApiError, spec: &RequestSpec) -> ApiError {
        let ApiError::Shed { reason, detail, .. } = &mut error else { return error };
        let config = self.config();
        let queue = &config.scheduler.queue;
        *detail = match reason {
            ShedReason::QueueFull => Some(format!(
                "Limits: {} requests in all (scheduler.max_queued), {} per slot of the model (scheduler.max_queued_per_slot), \
                 {} bytes of bodies (scheduler.max_queued_bytes).",
                queue.max_requests, queue.max_per_slot, queue.max_bytes
            )),
            ShedReason::ContextExceeded => self.fleet.largest_context(spec.model).map(|largest| {
                format!("The prompt has about {} tokens, the largest context is {largest}.", spec.prompt_tokens)
            }),
            ShedReason::NoCapacity => Some(format!(
                "It waits for one at most {} s (scheduler.no_replica_wait).",
                queue.no_replica_wait.as_secs_f32()
            )),
            _ => None,
        };
        error
    }

    fn account(&self, record: &mut RequestRecord, error: &ApiError) {
        record.status(error.status());
        record.outcome(RequestOutcome::Error(error.outcome()));
        if let ApiError::Shed { .. } | ApiError::Overloaded(_) | ApiError::Draining = error {
            self.telemetry.shed(error.outcome());
        }
    }

    /// The shape in which a request's end can still be told.
    fn in_shape(&self, stop: Stop, exchange: &Exchange, answer: &Answer<'_>) -> Stop {
        match stop {
            Stop::Refused(error) => {
                let error = if self.in_flight.is_draining() { error.in_a_drain() } else { error };
                if exchange.head_sent() {
                    let event = answer.error_event(&error.body());
                    Stop::Broken(error, event)
                } else {
                    Stop::Refused(error)
                }
            }
            stop => stop,
        }
    }

    /// Says no with a status; nothing has gone out yet.
    pub async fn refuse(
        &self,
        exchange: &mut Exchange,
        route: Option<Route>,
        error: &ApiError,
        permit: Option<&Permit>,
    ) {
        let body = error.body();
        let mut head = relay::head::refusal(error, &Facts { id: &Arc::clone(exchange.id()), permit });
        if error.closes() || !exchange.skip_body().await {
            exchange.close_after();
            insert(&mut head, header::CONNECTION, HeaderValue::from_static("close"));
        }
        let json = route.map_or_else(|| body.to_json(), |route| body.to_json_for(route));
        // The client may have left in the meantime: nothing is owed to it then.
        if exchange.respond(head, [json]).await.is_err() {
            tracing::debug!(request = %exchange.id(), "the client left before its refusal");
        }
    }

    /// The answer to a request whose handler panicked.
    pub async fn after_panic(&self, exchange: &mut Exchange) {
        if !exchange.head_sent() {
            self.refuse(exchange, None, &ApiError::Internal, None).await;
        }
    }

    /// The tenant of a request.
    pub fn authenticate(&self, exchange: &Exchange) -> Result<Arc<Tenant>, ApiError> {
        let headers = &exchange.head().headers;
        let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        let x_api_key = headers.get("x-api-key").and_then(|value| value.to_str().ok());
        Ok(self.auth.authenticate(text(header::AUTHORIZATION), x_api_key, exchange.peer())?)
    }

    /// How long the replica needs for this prompt and for a token, by its measured speeds.
    fn expected(&self, grant: &Grant, spec: &RequestSpec) -> Expected {
        let (prefill, decode) = self.dispatcher.speeds(grant.replica());
        let length = |tokens: f64, rate: Option<f64>| Duration::try_from_secs_f64(tokens / rate?).ok();
        Expected { prefill: length(f64::from(spec.prompt_tokens), prefill), token: length(1.0, decode) }
    }
}

/// A name of a client as it may be shown: bounded, no control characters.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// The core's refusal, in the words of the last replica where those are the answer.
fn refused(stopped: Stopped, last: Option<Failed>) -> ApiError {
    match stopped {
        Stopped::Cancelled(why) => cancelled(why),
        Stopped::Shed { reason: ShedReason::ContextExceeded, .. }
        | Stopped::Shed { reason: ShedReason::AttemptsExhausted, .. }
            if last.as_ref().is_some_and(|last| last.outcome == Outcome::ContextExceeded) =>
        {
            let words = last.and_then(|last| last.answer);
            words.map_or(ApiError::Internal, ApiError::Upstream)
        }
        Stopped::Shed { .. } if last.as_ref().is_some_and(Failed::is_ours) => {
            ApiError::Overloaded("descriptors, ports or memory of its host")
        }
        Stopped::Shed { reason, retry_after } => {
            ApiError::Shed { reason, retry_after, last: last.map(|last| last.name), detail: None }
        }
    }
}

fn cancelled(why: CancelReason) -> ApiError {
    match why {
        CancelReason::Deadline => {
            ApiError::Shed { reason: ShedReason::Deadline, retry_after: Duration::ZERO, last: None, detail: None }
        }
        CancelReason::DrainDeadline => ApiError::Lost("its replica was drained"),
        CancelReason::ReplicaRemoved => ApiError::Lost("its replica was removed"),
    }
}
