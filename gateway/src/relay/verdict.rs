//! What an attempt's end means for the replica and for the request.

use std::time::Duration;

use openai_wire::{Fault, StreamError, UpstreamError};
use scheduler::{Outcome, SoftFailure};

use crate::upstream::Failure;

/// The name of a failure for want of something here: descriptors, ports, room.
pub const OURS: &str = "local";

/// A failed attempt.
#[derive(Debug)]
pub struct Failed {
    /// For the scheduler.
    pub outcome: Outcome,
    /// In metrics, logs, and the message of a final error.
    pub name: &'static str,
    /// How far it came: `connect`, `head` or `body`.
    pub phase: &'static str,
    /// The replica's own words, when they are the request's answer.
    pub answer: Option<Box<UpstreamError>>,
}

impl Failed {
    /// Not an answer, but no word of the replica either.
    fn new(outcome: Outcome, name: &'static str, phase: &'static str) -> Self {
        Self { outcome, name, phase, answer: None }
    }

    /// One object where the client's stream has begun.
    pub fn not_a_stream() -> Self {
        Self::new(Outcome::Soft(SoftFailure::BadAnswer), "not_a_stream", "head")
    }

    /// The replica does not carry the answer on, though it should be able to. No mark against it, nor against the request,
    /// which others have taken.
    pub fn not_carried_on() -> Self {
        Self::new(Outcome::Soft(SoftFailure::Busy { retry_after: Some(Duration::ZERO) }), "not_carried_on", "head")
    }

    /// Whether the replica refused because it was asked for a stream, as far as its words say.
    pub fn blames_streaming(&self) -> bool {
        let words =
            self.answer.as_ref().filter(|_| self.is_final()).map(|error| error.body.message.to_ascii_lowercase());
        words.is_some_and(|words| words.contains("stream"))
    }

    /// Whether no other replica would say anything else.
    pub fn is_final(&self) -> bool {
        self.outcome == Outcome::RequestFault
    }

    /// Whether this host was short of something: no replica was to blame.
    pub fn is_ours(&self) -> bool {
        self.name == OURS
    }

    /// The way to the replica failed.
    pub fn transport(failure: &Failure) -> Self {
        let outcome = match (failure.hard(), failure) {
            (Some(hard), _) => Outcome::Hard(hard),
            (None, Failure::Forbidden(_)) => Outcome::Misconfigured,
            (None, failure) => Outcome::Soft(match failure {
                // Ours, not the replica's: it is given a rest of no length, and the request goes elsewhere.
                Failure::Local(_) | Failure::Request(_) => SoftFailure::Busy { retry_after: Some(Duration::ZERO) },
                Failure::Timeout => SoftFailure::NoFirstToken,
                _ => SoftFailure::Broken,
            }),
        };
        let phase = match failure {
            Failure::BeforeHead(_) | Failure::Stale(_) | Failure::Timeout => "head",
            Failure::InBody(_) | Failure::TooLarge(_) => "body",
            _ => "connect",
        };
        Self::new(outcome, if matches!(failure, Failure::Local(_)) { OURS } else { failure.name() }, phase)
    }

    /// The replica answered with an error, as a status or inside a 200.
    ///
    /// A 503 without a time to come back is an engine that does not work, not one that is full.
    pub fn answered(error: UpstreamError, status: u16, retry_after: Option<Duration>) -> Self {
        let (outcome, name) = match error.fault {
            Fault::Request | Fault::Output | Fault::RouteMissing => (Outcome::RequestFault, "request_fault"),
            Fault::ContextExceeded { .. } => (Outcome::ContextExceeded, "context_exceeded"),
            Fault::Loading => (Outcome::Loading, "loading"),
            Fault::WrongKey | Fault::ModelMissing => (Outcome::Misconfigured, "misconfigured"),
            Fault::Busy if status == 503 && retry_after.is_none() => (Outcome::Soft(SoftFailure::Status), "status"),
            Fault::Busy => (Outcome::Soft(SoftFailure::Busy { retry_after }), "busy"),
            Fault::Engine => (Outcome::Soft(SoftFailure::Status), "status"),
            Fault::NotEngine => (Outcome::Soft(SoftFailure::BadAnswer), "not_engine"),
        };
        Self { outcome, name, phase: "head", answer: Some(Box::new(error)) }
    }

    /// Patience with the replica ended.
    pub fn late(late: SoftFailure) -> Self {
        let (name, phase) =
            if matches!(late, SoftFailure::Stalled) { ("stalled", "body") } else { ("no_first_token", "head") };
        Self::new(Outcome::Soft(late), name, phase)
    }

    /// A stream went wrong.
    pub fn streamed(error: StreamError) -> Self {
        let (outcome, name) = match error {
            StreamError::Upstream(error) => return Self { phase: "body", ..Self::answered(error, 200, None) },
            StreamError::Cut => (SoftFailure::Broken, "cut"),
            StreamError::Malformed { .. } => (SoftFailure::Broken, "malformed"),
            StreamError::TooLong => (SoftFailure::Broken, "too_large"),
        };
        Self::new(Outcome::Soft(outcome), name, "body")
    }
}

#[cfg(test)]
mod tests {
    use openai_wire::{Route, classify_error};

    use super::*;

    fn said(status: u16, message: &str) -> Failed {
        let body = serde_json::json!({"error": {"message": message}}).to_string();
        let error = classify_error(Route::ChatCompletions, status, Some("application/json"), body.as_bytes());
        Failed::answered(error, status, None)
    }

    #[test]
    fn a_refusal_to_stream_is_told_by_its_words_and_no_other_failure_is() {
        assert!(said(400, "logprobs is not supported with tools + stream").blames_streaming());
        assert!(said(422, "Streaming is not available for this model").blames_streaming());
        assert!(!said(400, "'messages' is required").blames_streaming());
        assert!(!said(500, "the stream broke").blames_streaming(), "that is no refusal");
        assert!(!Failed::late(SoftFailure::Stalled).blames_streaming());
    }

    #[test]
    fn a_replica_that_does_not_carry_on_is_not_blamed_and_another_is_asked() {
        let failed = Failed::not_carried_on();
        assert!(!failed.is_final() && !failed.is_ours());
        assert_eq!(failed.outcome, Outcome::Soft(SoftFailure::Busy { retry_after: Some(Duration::ZERO) }));
    }
}
