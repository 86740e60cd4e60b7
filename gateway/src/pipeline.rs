//! The life of a request, read top to bottom. A stage answers with a value or an [`ApiError`]; none calls the next.
//!
//! accept → who → how often → what → when and where → send, fail over, copy → account

use std::{pin::pin, sync::Arc};

use http::header;
use openai_wire::Route;
use scheduler::{Outcome, RequestSpec};

use crate::{
    auth::Tenant,
    dispatch::{Grant, Place},
    error::{ApiError, shown},
    fleet::Replica,
    gateway::{Gateway, Held},
    listener::{Admitted, Exchange, Target},
    live::{Entry, LiveRequest},
    models,
    pressure::Level,
    ratelimit::{Permit, Queued},
    refusal::{Stop, cancelled, refused},
    relay::{self, Answer, Attempt, Failed, Finished, Unfinished, head::Facts},
    request,
    telemetry::{OTHER, RequestOutcome, RequestRecord},
};

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
        let (request, prefix) = request::decode(route, body, &self.fingerprint_key)?;
        let deadline = request::deadline(&exchange.head().headers, exchange.started())?;
        let wants_progress = request::wants_progress(&exchange.head().headers)?;
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
        let spec = request::spec(&request, prefix, model.id, tenant.id, class, deadline);
        permit
            .charge(u64::from(spec.prompt_tokens) + u64::from(spec.max_output.unwrap_or(request::USUAL_ANSWER)))
            .map_err(ApiError::from)?;
        let facts = Facts { id: &Arc::clone(exchange.id()), permit: Some(permit) };
        if request.stream {
            exchange.keep_stream_warm(|| relay::head::stream(&facts));
        } else {
            exchange.keep_plain_warm(|| relay::head::plain(200, &facts));
        }
        let queued = permit.enqueue().map_err(ApiError::from)?;
        record.queued();
        let place = self.dispatcher.submit(spec.clone());
        if wants_progress && request.stream {
            let (dispatcher, request) = (Arc::clone(&self.dispatcher), place.request());
            exchange.tell_progress(move || dispatcher.remaining_wait(request));
        }
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
        let answer = Answer::new(&request, spec.prompt_tokens, exchange, &self.config().streams);
        let (spec, place, facts, entry, held) = (&spec, &place, &facts, &entry, &mut held);
        let mut hunt = Hunt {
            gateway: self,
            exchange,
            record,
            spec,
            place,
            facts,
            entry,
            held,
            answer,
            queued: Some(queued),
            last: None,
        };
        let used = hunt.run().await.map_err(|stop| self.in_shape(stop, hunt.exchange, &hunt.answer));
        if used.is_err() && hunt.record.attempts() == 0 {
            // No replica saw it: its tokens were not used.
            permit.settle(Some(0));
        }
        permit.settle(used?.map(|used| used.min(request::dearest(&request).unwrap_or(used))));
        Ok(())
    }

    /// The tenant of a request.
    pub fn authenticate(&self, exchange: &Exchange) -> Result<Arc<Tenant>, ApiError> {
        let headers = &exchange.head().headers;
        let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        let x_api_key = headers.get("x-api-key").and_then(|value| value.to_str().ok());
        Ok(self.auth.authenticate(text(header::AUTHORIZATION), x_api_key, exchange.peer())?)
    }
}

/// A request that waits for a slot or runs on one.
struct Hunt<'a> {
    gateway: &'a Gateway,
    exchange: &'a mut Exchange,
    record: &'a mut RequestRecord,
    spec: &'a RequestSpec,
    place: &'a Place,
    facts: &'a Facts<'a>,
    entry: &'a Entry,
    held: &'a mut Held,
    answer: Answer<'a>,
    /// Its place in the tenant's queue, until the first slot is its.
    queued: Option<Queued>,
    /// How the last attempt failed.
    last: Option<Failed>,
}

impl Hunt<'_> {
    /// Waits for a slot, sends, copies; and again, as long as the client has seen no content. Tokens used, if known.
    async fn run(&mut self) -> Result<Option<u64>, Stop> {
        loop {
            let granted = self.exchange.drive(pin!(self.place.grant())).await?;
            self.queued = None;
            let grant =
                granted.map_err(|stopped| self.gateway.with_numbers(refused(stopped, self.last.take()), self.spec))?;
            let replica = self.gateway.fleet.replica(grant.replica());
            let named = replica.as_ref().and_then(|replica| replica.model_name(self.spec.model));
            let (Some(replica), Some(model)) = (replica, named) else {
                // Removed, or its model changed, in this very moment.
                grant.end(Outcome::Misconfigured, false, None);
                continue;
            };
            self.record.dispatched(&replica.label);
            self.gateway.log_placement(self.exchange.id(), self.place.request());
            match self.attempt(&grant, &replica, &model).await {
                Ok(finished) => {
                    self.record.attempt_ended("ok");
                    grant.end(Outcome::Success, true, finished.timings);
                    return self.deliver(finished, &replica).await;
                }
                Err(Unfinished::Interrupted(interrupted)) => {
                    self.record.attempt_ended("client_gone");
                    return Err(interrupted.into());
                }
                Err(Unfinished::Refused(error)) => {
                    self.record.attempt_ended(relay::OURS);
                    return Err(error.into());
                }
                Err(Unfinished::Cancelled(why)) => {
                    self.record.attempt_ended("cancelled");
                    grant.cancelled();
                    if self.answer.content_sent() {
                        return Err(cancelled(why).into());
                    }
                }
                Err(Unfinished::Failed(failed)) => {
                    // The record first: what the core does about the replica is logged with its reason.
                    self.record.attempt_ended(failed.name);
                    grant.end(failed.outcome, self.answer.content_sent(), None);
                    self.fail_over(failed, &replica)?;
                }
            }
        }
    }

    async fn attempt(&mut self, grant: &Grant, replica: &Replica, model: &str) -> Result<Finished, Unfinished> {
        // Pinned here: a `stopped` that outlives its attempt would take the next grant's wake-up.
        let stopped = pin!(self.place.stopped(grant.attempt()));
        let attempt = Attempt {
            gateway: self.gateway,
            replica,
            model,
            grant,
            record: self.record,
            entry: self.entry,
            facts: self.facts,
            stopped,
            expected: self.gateway.expected(grant, self.spec),
            prompt: self.spec.prompt_tokens,
            held: self.held,
        };
        self.answer.attempt(self.exchange, attempt).await
    }

    async fn deliver(&mut self, finished: Finished, replica: &Replica) -> Result<Option<u64>, Stop> {
        self.record.status(200);
        let Finished { rest, used, streamed, .. } = finished;
        let mut head = if streamed { relay::head::stream(self.facts) } else { relay::head::plain(200, self.facts) };
        let shown = self.gateway.config().server.expose_replica.then_some(&replica.label);
        relay::head::trace(&mut head, self.record, shown);
        relay::deliver(self.exchange, rest, streamed, head).await?;
        Ok(used)
    }

    /// What a failed attempt means for its request: another one, unless the client has seen content or it would be the same.
    fn fail_over(&mut self, failed: Failed, replica: &Replica) -> Result<(), Stop> {
        if self.answer.content_sent() {
            return Err(failed.answer.map_or(ApiError::Lost(failed.name), ApiError::Upstream).into());
        }
        if failed.is_final() {
            return Err(failed.answer.map_or(ApiError::Internal, ApiError::Upstream).into());
        }
        self.gateway.telemetry.failover(failed.phase, failed.name);
        tracing::info!(request = %self.exchange.id(), replica = %replica.label, why = failed.name, "failover");
        self.last = Some(failed);
        Ok(())
    }
}
