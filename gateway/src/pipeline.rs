//! The life of a request, read top to bottom. A stage answers with a value or an [`ApiError`]; none calls the next.
//!
//! accept → who → how often → what → when and where → send, fail over, copy → account

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use http::header;
use openai_wire::{DecodeError, Route};

use crate::{
    auth::Tenant,
    batch, clock,
    continued::Continued,
    error::{ApiError, shown},
    gateway::{Gateway, Held},
    hunt::Hunt,
    in_flight::Flying,
    listener::{Admitted, Exchange, Target},
    live::LiveRequest,
    models,
    pressure::Level,
    race::Race,
    ratelimit::Permit,
    refusal::Stop,
    relay::{self, Outlook, Shape, head::Facts},
    request,
    telemetry::{OTHER, RequestOutcome, RequestRecord},
};

/// What has come of a request when it is known whose it is.
pub(crate) struct Asked {
    /// Where to.
    pub route: Route,
    /// Who asks.
    pub tenant: Arc<Tenant>,
    /// What.
    pub body: Bytes,
    /// The room that the body takes.
    pub held: Held,
}

impl Gateway {
    /// Answers one request. Every path through here ends in exactly one answer, or in a client that is gone.
    pub async fn serve(self: &Arc<Self>, exchange: &mut Exchange) {
        let in_flight = self.in_flight.enter();
        let admitted = match exchange.admit() {
            Ok(admitted) => admitted,
            Err(error) => return self.refuse(exchange, None, &error, None).await,
        };
        match &admitted.target {
            Target::Inference(route) => self.infer(exchange, *route, &admitted, in_flight).await,
            Target::Models | Target::Model(_) => models::answer(self, exchange, &admitted.target).await,
            // Boxed: few requests are such calls, and no other must carry their state.
            Target::Files(_) | Target::Batches(_) => Box::pin(batch::api::answer(self, exchange, &admitted)).await,
            Target::Healthz => models::health(exchange, true).await,
            Target::Readyz => models::health(exchange, self.is_ready()).await,
        }
    }

    /// A request for a replica, with its accounting.
    async fn infer(self: &Arc<Self>, exchange: &mut Exchange, route: Route, admitted: &Admitted, in_flight: Flying) {
        let mut record = RequestRecord::new(Arc::clone(&self.telemetry), Arc::clone(exchange.id()), route);
        record.trace(Some(&exchange.head().headers));
        self.note_retry(exchange);
        if self.can_be_joined(exchange) {
            // Boxed: hardly any request is, and no other must carry its state.
            return Box::pin(self.join(exchange, route, admitted, record, in_flight)).await;
        }
        let _in_flight = in_flight;
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

    /// The stages of a request that nobody joins.
    async fn hunt(
        &self,
        exchange: &mut Exchange,
        route: Route,
        admitted: &Admitted,
        record: &mut RequestRecord,
        permit: &mut Option<Permit>,
    ) -> Result<(), Stop> {
        self.spare_memory()?;
        let tenant = self.authenticate(exchange)?;
        let permit = permit.insert(self.limiter.admit(&tenant).map_err(ApiError::from)?);
        let mut held = self.hold();
        let body = exchange.read_body(admitted, &mut held).await?;
        self.answer(exchange, Asked { route, tenant, body, held }, record, permit).await
    }

    /// The stages from a body on, which all requests go through.
    pub(crate) async fn answer(
        &self,
        exchange: &mut Exchange,
        asked: Asked,
        record: &mut RequestRecord,
        permit: &mut Permit,
    ) -> Result<(), Stop> {
        let Asked { route, tenant, body, held } = asked;
        let (request, prefix) = request::decode(route, body, &self.fingerprint_key)?;
        if request.stream && exchange.is_kept() {
            let expected = "false, or nothing: a line of a batch has one whole answer";
            return Err(ApiError::Decode(DecodeError::Value { param: "stream", expected }).into());
        }
        let deadline = request::deadline(&exchange.head().headers, exchange.started())?;
        // Of those who read a tape some want it, and some don't.
        let wants_progress = exchange.is_detached() || request::wants_progress(&exchange.head().headers)?;
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
        let wanted = request::carry(&exchange.head().headers, self.config().streams.carry)?;
        let mut spec = request::spec(&request, prefix, model.id, tenant.id, class, deadline);
        permit
            .charge(u64::from(spec.prompt_tokens) + u64::from(spec.max_output.unwrap_or(request::USUAL_ANSWER)))
            .map_err(ApiError::from)?;
        let queued = permit.enqueue().map_err(ApiError::from)?;
        let facts = Facts { id: &Arc::clone(exchange.id()), permit: Some(permit) };
        let outlook = (wants_progress && request.stream).then(Arc::<Outlook>::default);
        let (id, tokens) = (exchange.id(), spec.prompt_tokens);
        let shape = Shape::new(&request, tokens, id, &self.config().streams, wanted, outlook.clone());
        spec.carry = shape.carry();
        if request.stream {
            exchange.keep_stream_warm(|| relay::head::stream(&facts));
        } else {
            exchange.keep_plain_warm(|| relay::head::plain(200, &facts));
        }
        if let Some(filler) = shape.filler() {
            exchange.set_filler(filler);
        }
        record.queued();
        let place = self.dispatcher.submit(spec.clone());
        if let Some(outlook) = outlook {
            let (dispatcher, request) = (Arc::clone(&self.dispatcher), place.request());
            exchange.tell_progress(move || match dispatcher.remaining_wait(request) {
                Some(wait) => Some(format!("waiting, about {}", relay::seconds(wait))),
                None => outlook.words(clock::now()),
            });
        }
        exchange.open(&model.name, class, request.stream);
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
                continued: Continued::default(),
                queued: Some(queued),
                last: None,
            };
            hunt.run().await.map_err(|stop| self.in_shape(stop, hunt.exchange, &shape, hunt.seen()))
        };
        if used.is_err() && record.attempts() == 0 {
            // No replica saw it: its tokens were not used.
            permit.settle(Some(0));
        }
        permit.settle(used?.map(|used| used.min(request::dearest(&request).unwrap_or(used))));
        Ok(())
    }

    /// Counts a request that its client says is another try.
    fn note_retry(&self, exchange: &Exchange) {
        let retries = request::retries(&exchange.head().headers);
        if retries > 0 {
            self.telemetry.client_retry();
            tracing::info!(request = %exchange.id(), retries, "its client has tried before");
        }
    }

    /// What takes memory is refused while there is none.
    pub(crate) fn spare_memory(&self) -> Result<(), ApiError> {
        let is_short = self.pressure.level() == Level::Refuse;
        if is_short { Err(ApiError::Overloaded("limits.max_memory")) } else { Ok(()) }
    }

    /// The tenant of a request.
    pub fn authenticate(&self, exchange: &Exchange) -> Result<Arc<Tenant>, ApiError> {
        let headers = &exchange.head().headers;
        let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        let x_api_key = headers.get("x-api-key").and_then(|value| value.to_str().ok());
        Ok(self.auth.authenticate(text(header::AUTHORIZATION), x_api_key, exchange.peer())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::{Attempt, Stream};

    /// The size of what a request's task is made of: thousands wait, or stream, at once. An attempt and a stream are as many as
    /// there are slots, and hold what it takes to ask the replica for more.
    #[test]
    fn the_state_of_a_request_stays_small() {
        fn request<F>(_: fn(&'static Arc<Gateway>, &'static mut Exchange) -> F) -> usize {
            size_of::<F>()
        }
        fn attempt<F>(_: fn(Attempt<'static>) -> F) -> usize {
            size_of::<F>()
        }
        let request = request(|gateway, exchange| gateway.serve(exchange));
        let attempt = attempt(|attempt| attempt.run());
        println!("request {request}, attempt before content {attempt}, stream {}", size_of::<Stream<'_>>());
        assert!(request <= 21 << 8, "{request} bytes from its head to its end");
        assert!(attempt <= 11 << 8, "{attempt} bytes more for each copy until its first content");
        assert!(size_of::<Stream<'_>>() <= 7 << 7, "{} bytes more while it streams", size_of::<Stream<'_>>());
    }
}
