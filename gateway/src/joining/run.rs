//! A request that can be joined, from its head to the end of its answer: what differs from one that can't.
//!
//! Who asks comes first, then the body, then whether it has been asked before, and only then the tenant's limits: a retry of
//! a request that was lost on the way is no further one. A new one goes through the usual stages in its own task. It
//! counts in the metrics as the request of its first client, whether that one stays or not; a joined one counts as a request
//! with an outcome of its own and without tokens, attempts and times, which are counted where they were spent.

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use openai_wire::Route;

use super::{By, Digest, Found, Name};
use crate::{
    clock,
    config::JoinByBody,
    error::ApiError,
    gateway::Gateway,
    in_flight::Flying,
    listener::{Admitted, Exchange, caught},
    pipeline::Asked,
    refusal::Stop,
    request,
    telemetry::{RequestOutcome, RequestRecord},
};

/// What a request is told by.
struct Told {
    name: Name,
    digest: Digest,
    joins: bool,
    asked: Asked,
}

impl Gateway {
    /// Whether a request with this head can be joined, or join another.
    pub(crate) fn can_be_joined(&self, exchange: &Exchange) -> bool {
        request::has_idempotency_key(&exchange.head().headers)
            || self.config().idempotency.join_by_body != JoinByBody::Off
    }

    /// Answers a request that can be joined, or joins another.
    pub(crate) async fn join(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        route: Route,
        admitted: &Admitted,
        mut record: RequestRecord,
        in_flight: Flying,
    ) {
        let told = match self.tell(exchange, route, admitted).await {
            Ok(told) => told,
            Err(error) => {
                self.account(&mut record, &error);
                return self.refuse(exchange, Some(route), &error, None).await;
            }
        };
        let Told { name, digest, joins, asked } = told;
        let limits = self.config().idempotency.clone();
        match self.joining.find(name, digest, joins, exchange.id(), &limits, clock::now()) {
            Found::Other => {
                self.account(&mut record, &ApiError::KeyReused);
                self.refuse(exchange, Some(route), &ApiError::KeyReused, None).await;
            }
            Found::Joined(reader, whole) => {
                self.telemetry.joined(whole);
                tracing::info!(request = %exchange.id(), first = %reader.first(), whole, "joined");
                record.joined(Arc::clone(reader.first()));
                let tenant = Arc::clone(&asked.tenant);
                // The body is known by what it says.
                drop(asked);
                self.follow(exchange, reader, &tenant, route, Some(record)).await;
            }
            Found::New(recorder, reader) => {
                let tenant = Arc::clone(&asked.tenant);
                let in_flight = Arc::new(in_flight);
                let run = Run { gateway: Arc::clone(self), exchange: exchange.detached(recorder), asked, record };
                // Boxed: its state must not stand in that of the client which waits for it.
                self.tasks.spawn("request", Box::pin(run.guarded(Arc::clone(&in_flight)))).await;
                self.follow(exchange, reader, &tenant, route, None).await;
            }
        }
    }

    /// Who asks, and for what.
    async fn tell(&self, exchange: &mut Exchange, route: Route, admitted: &Admitted) -> Result<Told, ApiError> {
        self.spare_memory()?;
        let tenant = self.authenticate(exchange)?;
        let headers = &exchange.head().headers;
        let key = request::idempotency_key(headers)?.map(Arc::from);
        let by_body = self.config().idempotency.join_by_body;
        let joins = key.is_some() || by_body == JoinByBody::Always || request::retries(headers) > 0;
        let mut held = self.hold();
        let body = exchange.read_body(admitted, &mut held).await?;
        let digest = Digest::of(route, &body);
        let name = Name { tenant: tenant.id, by: key.map_or(By::Body(digest), By::Key) };
        Ok(Told { name, digest, joins, asked: Asked { route, tenant, body, held } })
    }
}

/// A request in its own task.
struct Run {
    gateway: Arc<Gateway>,
    exchange: Exchange,
    asked: Asked,
    record: RequestRecord,
}

impl Run {
    /// Runs to the end. A panic is this request's alone: what it held is dropped, its recorder with it, which is an end to all
    /// readers.
    async fn guarded(self, in_flight: Arc<Flying>) {
        let telemetry = Arc::clone(&self.gateway.telemetry);
        if caught(pin!(self.finish())).await.is_err() {
            telemetry.panic_seen();
        }
        drop(in_flight);
    }

    async fn finish(mut self) {
        let mut permit = None;
        let answered = match self.gateway.limiter.admit(&self.asked.tenant) {
            Ok(admitted) => {
                let permit = permit.insert(admitted);
                self.gateway.answer(&mut self.exchange, self.asked, &mut self.record, permit).await
            }
            Err(limited) => Err(ApiError::from(limited).into()),
        };
        let (error, event) = match answered {
            Ok(()) => return self.record.outcome(RequestOutcome::Ok),
            // The record's outcome is that from the start.
            Err(Stop::Gone) => return,
            Err(Stop::Refused(error)) => (error, Bytes::new()),
            Err(Stop::Broken(error, event)) => (error, event),
        };
        self.gateway.account(&mut self.record, &error);
        self.exchange.fail(error, event);
    }
}
