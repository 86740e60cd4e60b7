//! The life of a request, read top to bottom. A stage answers with a value or an [`ApiError`]; none calls the next.
//!
//! accept → who → how often → what → when and where → send, fail over, copy → account

use std::{pin::pin, sync::Arc};

use http::header;
use openai_wire::{AnswerStream, Route};
use pingora::http::ResponseHeader;
use scheduler::{CancelReason, Outcome, RequestSpec};

use crate::{
    auth::Tenant,
    dispatch::{Grant, Place, Shed},
    error::{ApiError, shown},
    fleet::Replica,
    gateway::{Gateway, Held},
    listener::{Admitted, Exchange, Target},
    live::{Entry, LiveRequest},
    models,
    pressure::Level,
    race::{Race, Turn},
    ratelimit::{Permit, Queued},
    refusal::{Stop, cancelled, refused},
    relay::{self, Attempt, Broken, Client, Decided, Failed, Finished, Shape, Stream, Unfinished, head::Facts},
    request,
    telemetry::{
        AttemptRecord, OTHER, RequestOutcome, RequestRecord,
        names::{OUTCOME_CANCELLED, OUTCOME_CLIENT_GONE, OUTCOME_GIVEN_BACK, OUTCOME_HEDGE_LOST, OUTCOME_OK},
    },
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
        let shape = Shape::new(&request, spec.prompt_tokens, exchange.id(), &self.config().streams);
        if request.stream {
            exchange.keep_stream_warm(|| relay::head::stream(&facts));
        } else {
            exchange.keep_plain_warm(|| relay::head::plain(200, &facts));
        }
        if let Some(filler) = shape.filler() {
            exchange.set_filler(filler);
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
        let used = {
            let mut hunt = Hunt {
                gateway: self,
                exchange,
                record,
                spec: &spec,
                place: &place,
                facts: &facts,
                entry: &entry,
                held: &held,
                shape: &shape,
                race: Race::default(),
                begun: None,
                queued: Some(queued),
                last: None,
            };
            hunt.run().await.map_err(|stop| self.in_shape(stop, hunt.exchange, &shape, hunt.begun.as_ref()))
        };
        if used.is_err() && record.attempts() == 0 {
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

/// A copy that was sent.
struct Runner {
    /// Its slot.
    grant: Grant,
    /// Where it runs.
    replica: Arc<Replica>,
    /// Accounts for it.
    record: AttemptRecord,
}

/// A request that waits for a slot or runs on one, or on several.
struct Hunt<'a> {
    gateway: &'a Gateway,
    exchange: &'a mut Exchange,
    record: &'a mut RequestRecord,
    spec: &'a RequestSpec,
    place: &'a Place,
    facts: &'a Facts<'a>,
    entry: &'a Entry,
    held: &'a Held,
    shape: &'a Shape<'a>,
    /// The copies of which the client has seen nothing.
    race: Race<'a, Runner, Result<Decided, Unfinished>>,
    /// The stream of which it has.
    begun: Option<AnswerStream>,
    /// Its place in the tenant's queue, until the first slot is its.
    queued: Option<Queued>,
    /// How the last attempt failed.
    last: Option<Failed>,
}

impl Hunt<'_> {
    /// Waits for slots, sends a copy to each, and gives the client the first answer; and again, as long as there is none.
    /// Tokens used, if known.
    async fn run(&mut self) -> Result<Option<u64>, Stop> {
        loop {
            let turn = self.exchange.drive(pin!(self.race.next(self.place))).await;
            match turn.inspect_err(|_| self.stop_all(OUTCOME_CLIENT_GONE))? {
                Turn::Granted(grant) => self.send(grant),
                Turn::Shed(shed) => return Err(self.shed(shed)),
                Turn::Cancelled(runner, why) => self.cancelled(runner, why),
                Turn::Ended(runner, Err(Unfinished::Failed(failed))) => self.fail_over(runner, failed)?,
                Turn::Ended(runner, Err(Unfinished::Refused(error))) => return Err(self.give_up(runner, error)),
                // It was on its way when the head of a stream went out.
                Turn::Ended(runner, Ok(Decided::Whole(_))) if self.shape.is_stream() && self.exchange.head_sent() => {
                    self.fail_over(runner, Failed::not_a_stream())?;
                }
                Turn::Ended(runner, Ok(Decided::Whole(answer))) => return self.deliver(runner, answer).await,
                Turn::Ended(runner, Ok(Decided::Begun(stream))) => match runner.grant.first_token() {
                    Ok(()) => return self.copy(runner, stream).await,
                    Err(why) => self.cancelled(runner, why),
                },
            }
        }
    }

    /// Sends a copy on its way.
    fn send(&mut self, grant: Grant) {
        self.queued = None;
        let replica = self.gateway.fleet.replica(grant.replica());
        let named = replica.as_ref().and_then(|replica| replica.model_name(self.spec.model));
        let (Some(replica), Some(model)) = (replica, named) else {
            // Removed, or its model changed, in this very moment.
            return grant.end(Outcome::Misconfigured, false, None);
        };
        if grant.is_hedge() {
            tracing::info!(request = %self.exchange.id(), replica = %replica.label, "second copy");
        }
        let attempt = Attempt {
            gateway: self.gateway,
            shape: self.shape,
            replica: Arc::clone(&replica),
            model,
            number: grant.attempt(),
            expected: self.gateway.expected(&grant, self.spec),
            held: self.held,
            head_sent: self.exchange.head_sent(),
        };
        self.gateway.log_placement(self.exchange.id(), self.place.request());
        let record = self.record.dispatched(&replica.label, grant.is_hedge());
        self.race.start(grant.attempt(), Runner { grant, replica, record }, attempt.run());
    }

    /// The core ended an attempt of which the client has seen nothing: the request waits, unless another copy runs.
    fn cancelled(&mut self, runner: Runner, why: CancelReason) {
        let outcome = outcome(why);
        tracing::info!(request = %self.exchange.id(), replica = %runner.replica.label, outcome, ?why, "stopped");
        self.record.attempt_ended(runner.record, outcome);
        runner.grant.cancelled();
    }

    /// What a failed attempt means for its request: another one, unless it would be the same.
    fn fail_over(&mut self, runner: Runner, failed: Failed) -> Result<(), Stop> {
        // The record first: what the core does about the replica is logged with its reason.
        self.record.attempt_ended(runner.record, failed.name);
        runner.grant.end(failed.outcome, false, None);
        if failed.is_final() {
            self.stop_all(OUTCOME_HEDGE_LOST);
            return Err(failed.answer.map_or(ApiError::Internal, ApiError::Upstream).into());
        }
        let others = !self.race.is_empty();
        if !others {
            self.gateway.telemetry.failover(failed.phase, failed.name);
        }
        let what = if others { "a copy failed" } else { "failover" };
        tracing::info!(request = %self.exchange.id(), replica = %runner.replica.label, why = failed.name, "{what}");
        self.last = Some(failed);
        Ok(())
    }

    /// The answer is there, and can't be taken.
    fn give_up(&mut self, runner: Runner, error: ApiError) -> Stop {
        self.record.attempt_ended(runner.record, relay::OURS);
        self.stop_all(relay::OURS);
        error.into()
    }

    /// The core refuses the request.
    fn shed(&mut self, shed: Shed) -> Stop {
        self.stop_all(OUTCOME_CANCELLED);
        self.gateway.with_numbers(refused(shed, self.last.take()), self.spec).into()
    }

    /// Ends all copies that run.
    fn stop_all(&mut self, outcome: &'static str) {
        for runner in self.race.stop_all() {
            self.record.attempt_ended(runner.record, outcome);
            runner.grant.cancelled();
        }
    }

    /// This answer is the client's: copies it, to its end.
    async fn copy(&mut self, runner: Runner, mut stream: Box<Stream>) -> Result<Option<u64>, Stop> {
        self.stop_all(OUTCOME_HEDGE_LOST);
        if stream.has_begun() {
            self.record.first_token();
        }
        let stopped = pin!(self.place.stopped(runner.grant.attempt()));
        let head = Some(self.head(true, &runner.replica));
        let mut client = Client { exchange: self.exchange, head, entry: self.entry, stopped };
        let Err(broken) = stream.copy(&mut client).await else {
            let (finished, begun) = stream.finish(&self.gateway.upstream, &runner.replica);
            self.begun = Some(begun);
            return self.deliver(runner, finished).await;
        };
        let (timings, begun) = stream.broken();
        self.begun = Some(begun);
        match broken {
            Broken::Interrupted(interrupted) => {
                self.record.attempt_ended(runner.record, OUTCOME_CLIENT_GONE);
                Err(interrupted.into())
            }
            Broken::Cancelled(why) => {
                self.record.attempt_ended(runner.record, outcome(why));
                runner.grant.cancelled();
                Err(cancelled(why).into())
            }
            Broken::Failed(failed) => {
                self.record.attempt_ended(runner.record, failed.name);
                runner.grant.end(failed.outcome, true, timings);
                Err(failed.answer.map_or(ApiError::Lost(failed.name), ApiError::Upstream).into())
            }
        }
    }

    /// Writes what is left of a whole answer, and frees its slot before that.
    async fn deliver(&mut self, runner: Runner, answer: Finished) -> Result<Option<u64>, Stop> {
        self.stop_all(OUTCOME_HEDGE_LOST);
        if let Some((usage, estimated)) = &answer.usage {
            self.record.usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, *estimated);
        }
        self.record.attempt_ended(runner.record, OUTCOME_OK);
        runner.grant.end(Outcome::Success, true, answer.timings);
        self.record.status(200);
        let used = answer.used();
        let head = self.head(answer.streamed, &runner.replica);
        relay::deliver(self.exchange, answer, head).await?;
        Ok(used)
    }

    /// The head of the answer, with how it came about.
    fn head(&self, streamed: bool, replica: &Replica) -> Box<ResponseHeader> {
        let mut head = if streamed { relay::head::stream(self.facts) } else { relay::head::plain(200, self.facts) };
        let shown = self.gateway.config().server.expose_replica.then_some(&replica.label);
        relay::head::trace(&mut head, self.record, shown);
        head
    }
}

/// The outcome of an attempt that the core ended.
fn outcome(why: CancelReason) -> &'static str {
    match why {
        CancelReason::HedgeLost => OUTCOME_HEDGE_LOST,
        CancelReason::GivenBack => OUTCOME_GIVEN_BACK,
        CancelReason::ReplicaRemoved | CancelReason::DrainDeadline | CancelReason::Deadline => OUTCOME_CANCELLED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what a request's task is made of: thousands wait, or stream, at once.
    #[test]
    fn the_state_of_a_request_stays_small() {
        fn request<F>(_: fn(&'static Gateway, &'static mut Exchange) -> F) -> usize {
            size_of::<F>()
        }
        fn attempt<F>(_: fn(Attempt<'static>) -> F) -> usize {
            size_of::<F>()
        }
        let request = request(|gateway, exchange| gateway.serve(exchange));
        let attempt = attempt(|attempt| attempt.run());
        println!("request {request}, attempt before content {attempt}, stream {}", size_of::<Stream>());
        assert!(request <= 5 << 10, "{request} bytes from its head to its end");
        assert!(attempt <= 5 << 9, "{attempt} bytes more for each copy until its first content");
        assert!(size_of::<Stream>() <= 3 << 8, "{} bytes more while it streams", size_of::<Stream>());
    }
}
