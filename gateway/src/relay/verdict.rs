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
        let outcome = match failure.hard() {
            Some(hard) => Outcome::Hard(hard),
            None => Outcome::Soft(match failure {
                // Ours, not the replica's: it is given a rest of no length, and the request goes elsewhere.
                Failure::Local(_) | Failure::Request(_) => SoftFailure::Busy { retry_after: Some(Duration::ZERO) },
                Failure::Timeout => SoftFailure::NoFirstToken,
                _ => SoftFailure::Broken,
            }),
        };
        let phase = match failure {
            Failure::BeforeHead(_) | Failure::Timeout => "head",
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
