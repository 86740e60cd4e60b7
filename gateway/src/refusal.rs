//! How a request that gets no answer is told so: with a status while that is possible, inside the answer afterwards.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, header};
use openai_wire::Route;
use scheduler::{CancelReason, Outcome, RequestSpec, ShedReason};

use crate::{
    dispatch::Stopped,
    error::ApiError,
    gateway::Gateway,
    listener::{Exchange, Interrupted, insert},
    ratelimit::Permit,
    relay::{self, Answer, Failed, head::Facts},
    telemetry::{RequestOutcome, RequestRecord},
};

/// How a request ended early.
pub enum Stop {
    /// It can be told with a status, or with an event.
    Refused(ApiError),
    /// An answer that had begun ends with this event.
    Broken(ApiError, Bytes),
    /// The client left: there is nobody to tell.
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
    /// A refusal for load tells which limit was met, so that its reader can do something about it.
    pub(crate) fn with_numbers(&self, mut error: ApiError, spec: &RequestSpec) -> ApiError {
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

    /// Counts an error that ends a request.
    pub(crate) fn account(&self, record: &mut RequestRecord, error: &ApiError) {
        record.status(error.status());
        record.outcome(RequestOutcome::Error(error.outcome()));
        if let ApiError::Shed { .. } | ApiError::Overloaded(_) | ApiError::Draining = error {
            self.telemetry.shed(error.outcome());
        }
    }

    /// The shape in which a request's end can still be told.
    pub(crate) fn in_shape(&self, stop: Stop, exchange: &Exchange, answer: &Answer<'_>) -> Stop {
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
}

/// The core's refusal, in the words of the last replica where those are the answer.
pub fn refused(stopped: Stopped, last: Option<Failed>) -> ApiError {
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

/// Why a running attempt was ended, as its client is told.
pub fn cancelled(why: CancelReason) -> ApiError {
    match why {
        CancelReason::Deadline => {
            ApiError::Shed { reason: ShedReason::Deadline, retry_after: Duration::ZERO, last: None, detail: None }
        }
        CancelReason::DrainDeadline => ApiError::Lost("its replica was drained"),
        CancelReason::ReplicaRemoved => ApiError::Lost("its replica was removed"),
        // These end an attempt that has shown nothing; the request goes on.
        CancelReason::HedgeLost | CancelReason::GivenBack => ApiError::Internal,
    }
}
