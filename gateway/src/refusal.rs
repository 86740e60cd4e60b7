//! How a request that gets no answer is told so: with a status while that is possible, inside the answer afterwards.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, header};
use openai_wire::{AnswerStream, Route};
use scheduler::{CancelReason, Outcome, RequestSpec, ShedReason, Timestamp};

use crate::{
    clock,
    dispatch::Shed,
    error::ApiError,
    gateway::Gateway,
    listener::{Exchange, Interrupted, insert},
    ratelimit::Permit,
    relay::{self, Failed, Shape, head::Facts},
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
            ShedReason::Hopeless => {
                let estimate = self.dispatcher.estimate_wait(spec.model, spec.class);
                let max_age = queue.max_age.get(spec.class as usize).copied().flatten();
                Some(hopeless(estimate, max_age, spec, clock::now()))
            }
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

    /// The shape in which a request's end can still be told. `begun` is the stream that its client has seen a part of.
    pub(crate) fn in_shape(
        &self,
        stop: Stop,
        exchange: &Exchange,
        shape: &Shape<'_>,
        begun: Option<&AnswerStream>,
    ) -> Stop {
        match stop {
            Stop::Refused(error) => {
                let error = if self.in_flight.is_draining() { error.in_a_drain() } else { error };
                // Of those who read a tape some have their head, and some don't.
                if exchange.head_sent() || exchange.is_detached() {
                    let event = shape.error_event(begun, &error.body());
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

/// An estimated wait beside what there is for it.
fn hopeless(estimate: Duration, max_age: Option<Duration>, spec: &RequestSpec, now: Timestamp) -> String {
    let seconds = |length: Duration| length.as_secs_f64().ceil();
    let class = spec.class.name();
    let of_class = max_age
        .map(|age| (age, format!("requests of its class may wait {} s (scheduler.max_age_{class})", seconds(age))));
    let of_deadline =
        spec.deadline.map(|at| at.since(now)).map(|left| (left, format!("its deadline is in {} s", seconds(left))));
    let least = of_class.into_iter().chain(of_deadline).min();
    let allowed = least.map(|(_, words)| format!("; {words}")).unwrap_or_default();
    format!("It would wait about {} s{allowed}.", seconds(estimate))
}

/// The core's refusal, in the words of the last replica where those are the answer.
pub fn refused(shed: Shed, last: Option<Failed>) -> ApiError {
    let too_long = last.as_ref().is_some_and(|last| last.outcome == Outcome::ContextExceeded);
    match shed.reason {
        ShedReason::ContextExceeded | ShedReason::AttemptsExhausted if too_long => {
            let words = last.and_then(|last| last.answer);
            words.map_or(ApiError::Internal, ApiError::Upstream)
        }
        _ if last.as_ref().is_some_and(Failed::is_ours) => {
            ApiError::Overloaded("descriptors, ports or memory of its host")
        }
        reason => {
            ApiError::Shed { reason, retry_after: shed.retry_after, last: last.map(|last| last.name), detail: None }
        }
    }
}

/// Why an answer of which its client has seen a part was carried on by nobody.
pub fn lost(shed: &Shed, last: Option<&Failed>) -> ApiError {
    match shed.reason {
        ShedReason::Deadline => cancelled(CancelReason::Deadline),
        _ => ApiError::Lost(last.map_or("its replica went away", |last| last.name)),
    }
}

/// Why an answer was ended that its client was reading, as it is told.
pub fn cancelled(why: CancelReason) -> ApiError {
    match why {
        CancelReason::Deadline => {
            ApiError::Shed { reason: ShedReason::Deadline, retry_after: Duration::ZERO, last: None, detail: None }
        }
        CancelReason::DrainDeadline => ApiError::Lost("its replica was drained"),
        CancelReason::ReplicaRemoved => ApiError::Lost("its replica was removed"),
        // These end attempts that have shown nothing, and leave their request to go on.
        CancelReason::HedgeLost | CancelReason::GivenBack => ApiError::Internal,
    }
}

#[cfg(test)]
mod tests {
    use scheduler::{Carry, Class, ModelId, Prefix, TenantId};

    use super::*;

    #[test]
    fn a_hopeless_request_is_told_its_wait_and_the_nearer_of_its_bounds() {
        let now = Timestamp::ZERO + Duration::from_secs(100);
        let spec = |deadline| RequestSpec {
            model: ModelId(1),
            route: 0,
            tenant: TenantId(1),
            class: Class::Interactive,
            deadline,
            prompt_tokens: 1,
            max_output: None,
            stream: false,
            carry: Carry::Never,
            body_bytes: 1,
            prefix: Prefix::default(),
        };
        let (estimate, age) = (Duration::from_millis(339_500), Some(Duration::from_secs(120)));
        let by_class =
            "It would wait about 340 s; requests of its class may wait 120 s (scheduler.max_age_interactive).";
        assert_eq!(hopeless(estimate, age, &spec(None), now), by_class);
        assert_eq!(hopeless(estimate, age, &spec(Some(now + Duration::from_secs(200))), now), by_class);
        let soon = spec(Some(now + Duration::from_secs(30)));
        assert_eq!(hopeless(estimate, age, &soon, now), "It would wait about 340 s; its deadline is in 30 s.");
    }
}
