//! The complete list of the ways in which we say no.
//!
//! Stages return [`ApiError`] as data; [`ApiError::status`] and its siblings are the only place that knows what a client
//! sees of it. The official SDKs send a request three times on 408, 409, 429 and 5xx unless `x-should-retry: false`:
//! minutes of phone work would be tripled, so every answer that trying again can't better carries that header.

use std::{
    borrow::Cow,
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

use openai_wire::{DecodeError, ErrorBody, UpstreamError};
use scheduler::ShedReason;

use crate::{batch::BatchError, telemetry::names};

/// Longest `Retry-After`: above it one of the official SDKs raises, and the other sleeps.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A refusal.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The request's framing or head is not acceptable.
    #[error("{message}")]
    Transport {
        /// 400, 408, 411, 413, 415, 417, 431.
        status: u16,
        /// What was wrong, and what would be right.
        message: Cow<'static, str>,
    },
    /// The body is not what the route takes.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A header of ours has a value that it can't have.
    #[error("{header}: {message}")]
    Header {
        /// Which.
        header: &'static str,
        /// What would be right.
        message: Cow<'static, str>,
    },
    /// No such path.
    #[error("no route {0}")]
    UnknownPath(String),
    /// The path exists, not with this method.
    #[error("method not allowed")]
    Method {
        /// Methods that it has.
        allow: &'static str,
    },
    /// Missing, malformed, unknown or revoked key: one answer for all.
    #[error("invalid API key")]
    InvalidKey,
    /// Too many wrong keys from this address.
    #[error("too many failed attempts")]
    TooManyFailures {
        /// When the next look-up is possible.
        retry_after: Duration,
    },
    /// The key may not use this model.
    #[error("model not allowed")]
    ModelNotAllowed {
        /// As the client wrote it.
        model: String,
    },
    /// Neither configured nor served by any replica.
    #[error("model not found")]
    ModelNotFound {
        /// As the client wrote it.
        model: String,
    },
    /// The idempotency key belongs to another request.
    #[error("idempotency key reused")]
    KeyReused,
    /// The tenant's limit.
    #[error("rate limited: {message}")]
    RateLimited {
        /// Names the limit.
        message: String,
        /// When there is room again.
        retry_after: Duration,
    },
    /// The scheduler refused.
    #[error("shed: {reason:?}")]
    Shed {
        /// Why.
        reason: ShedReason,
        /// The queue's own estimate.
        retry_after: Duration,
        /// What the last replica did, when one was tried.
        last: Option<&'static str>,
        /// The numbers behind it: the limit that was met.
        detail: Option<String>,
    },
    /// We are going away.
    #[error("draining")]
    Draining,
    /// We hold as many bytes as we may.
    #[error("overloaded: {0}")]
    Overloaded(&'static str),
    /// A replica's final word: the request's own fault.
    #[error("upstream: {}", .0.body.message)]
    Upstream(Box<UpstreamError>),
    /// A running answer broke off.
    #[error("answer lost: {0}")]
    Lost(&'static str),
    /// A file or a batch can't be had, made or ended.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// An operator cancelled the request.
    #[error("cancelled by an operator")]
    Cancelled,
    /// Our own fault.
    #[error("internal error")]
    Internal,
}

impl ApiError {
    /// A refusal for the request's framing or head.
    pub fn transport(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self::Transport { status, message: message.into() }
    }

    /// What a cancelled request is told while the process drains: it was the drain's limit that ended it.
    pub fn in_a_drain(self) -> Self {
        if matches!(self, Self::Cancelled) { Self::Draining } else { self }
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::Transport { status, .. } => *status,
            Self::Decode(_) | Self::Header { .. } => 400,
            Self::UnknownPath(_) | Self::ModelNotFound { .. } => 404,
            Self::Method { .. } => 405,
            Self::InvalidKey => 401,
            Self::ModelNotAllowed { .. } => 403,
            Self::KeyReused => 422,
            Self::TooManyFailures { .. } | Self::RateLimited { .. } => 429,
            Self::Shed { reason, .. } => match reason {
                ShedReason::NoCapacity | ShedReason::QueueFull | ShedReason::QueueAge | ShedReason::Hopeless => 503,
                ShedReason::Deadline => 504,
                ShedReason::AttemptsExhausted | ShedReason::RetryBudget => 502,
                ShedReason::ContextExceeded => 400,
            },
            Self::Draining | Self::Overloaded(_) | Self::Cancelled => 503,
            Self::Upstream(error) => error.status,
            Self::Lost(_) => 502,
            Self::Batch(error) => error.status(),
            Self::Internal => 500,
        }
    }

    /// The `code` of the error object, and the `outcome` in metrics where it is set.
    pub fn code(&self) -> Option<&str> {
        Some(match self {
            Self::Transport { .. } | Self::UnknownPath(_) | Self::Method { .. } | Self::Internal => return None,
            Self::Header { .. } => "invalid_header",
            Self::Decode(error) => return error.code(),
            Self::InvalidKey => "invalid_api_key",
            Self::TooManyFailures { .. } | Self::RateLimited { .. } => "rate_limit_exceeded",
            Self::ModelNotAllowed { .. } => "model_not_allowed",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::KeyReused => "idempotency_key_reused",
            Self::Shed { reason, .. } => shed_code(*reason),
            Self::Draining => "draining",
            Self::Overloaded(_) => "overloaded",
            Self::Cancelled => "cancelled",
            Self::Upstream(error) => return error.body.code.as_deref(),
            Self::Lost(_) => "upstream_error",
            Self::Batch(error) => return error.code(),
        })
    }

    /// The outcome in metrics: one word, of a fixed set.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Shed { reason: ShedReason::ContextExceeded, .. } => names::CLIENT_ERROR,
            Self::Shed { reason, .. } => shed_code(*reason),
            Self::Draining => "draining",
            Self::Overloaded(_) => "overloaded",
            Self::Cancelled => "cancelled",
            Self::Lost(_) => "upstream_error",
            Self::Internal => "internal_error",
            Self::RateLimited { .. } | Self::TooManyFailures { .. } => names::RATE_LIMITED,
            Self::Upstream(error) if error.status >= 500 => "upstream_error",
            Self::Batch(error) if error.status() >= 500 => error.code().unwrap_or("internal_error"),
            _ => names::CLIENT_ERROR,
        }
    }

    /// When trying again makes sense; jittered, so that those refused together do not return together.
    pub fn retry_after(&self) -> Option<Duration> {
        let length = match self {
            Self::Shed { reason, retry_after, .. } if !self.is_final() && *reason != ShedReason::ContextExceeded => {
                *retry_after
            }
            Self::TooManyFailures { retry_after } | Self::RateLimited { retry_after, .. } => *retry_after,
            Self::Draining | Self::Overloaded(_) => Duration::from_secs(2),
            Self::Batch(error) => error.retry_after()?,
            _ => return None,
        };
        Some(length.min(MAX_RETRY_AFTER).mul_f64(0.8 + 0.4 * chance()).clamp(Duration::from_secs(1), MAX_RETRY_AFTER))
    }

    /// Whether sending it again can't help, or would repeat minutes of work that has failed already.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Shed { reason, .. } => {
                matches!(reason, ShedReason::AttemptsExhausted | ShedReason::RetryBudget | ShedReason::Deadline)
            }
            Self::Upstream(error) => error.status >= 500,
            Self::Batch(error) => error.is_final(),
            Self::Lost(_) | Self::Cancelled | Self::KeyReused => true,
            _ => false,
        }
    }

    /// Whether the connection can't be used any further.
    pub fn closes(&self) -> bool {
        matches!(self, Self::Transport { .. } | Self::Draining | Self::Internal)
    }

    /// The error object.
    pub fn body(&self) -> ErrorBody {
        if let Self::Upstream(error) = self {
            return error.body.clone();
        }
        let kind = match self.status() {
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let param = match self {
            Self::Decode(error) => error.param().map(str::to_owned),
            Self::Header { header, .. } => Some((*header).to_owned()),
            Self::Batch(error) => error.param().map(str::to_owned),
            Self::ModelNotFound { .. } | Self::ModelNotAllowed { .. } => Some("model".to_owned()),
            Self::Shed { reason: ShedReason::ContextExceeded, .. } => Some("messages".to_owned()),
            _ => None,
        };
        ErrorBody { message: self.message(), kind, param, code: self.code().map(|code| Cow::Owned(code.to_owned())) }
    }

    fn message(&self) -> String {
        match self {
            Self::Transport { message, .. } => message.to_string(),
            Self::Decode(error) => error.to_string(),
            Self::Header { header, message } => format!("Header {header}: {message}"),
            Self::UnknownPath(path) => {
                format!("Unknown path {path}. The base URL ends in /v1, for instance /v1/chat/completions.")
            }
            Self::Method { allow } => format!("This path answers {allow} only."),
            Self::InvalidKey => "Invalid API key. Send a valid one as 'Authorization: Bearer <key>'.".into(),
            Self::TooManyFailures { .. } => "Too many requests with a wrong API key from this address.".into(),
            Self::ModelNotAllowed { model } => format!("This API key may not use the model '{model}'."),
            Self::ModelNotFound { model } => {
                format!("The model '{model}' does not exist here. GET /v1/models lists those that do.")
            }
            Self::KeyReused => {
                "This Idempotency-Key was sent with another route or body. A retry repeats the request byte by byte; \
                 a new request needs a new key."
                    .into()
            }
            Self::RateLimited { message, .. } => message.clone(),
            Self::Shed { reason, last, detail, .. } => {
                let detail = detail.as_deref().map(|detail| format!(" {detail}")).unwrap_or_default();
                shed_message(*reason, *last) + &detail
            }
            Self::Draining => "This gateway is going away. Try again: another one answers.".into(),
            Self::Overloaded(what) => format!("The gateway holds as much as it may ({what}). Try again later."),
            Self::Upstream(error) => error.body.message.clone(),
            Self::Lost(why) => format!("The answer was lost on its way ({why}). What was received is not complete."),
            Self::Batch(error) => error.to_string(),
            Self::Cancelled => "An operator cancelled this request.".into(),
            Self::Internal => "The gateway failed on this request. That is its fault, not yours.".into(),
        }
    }
}

const fn shed_code(reason: ShedReason) -> &'static str {
    match reason {
        ShedReason::NoCapacity => "no_capacity",
        ShedReason::QueueFull => "queue_full",
        ShedReason::QueueAge | ShedReason::Hopeless => "overloaded",
        ShedReason::Deadline => "deadline_exceeded",
        ShedReason::AttemptsExhausted | ShedReason::RetryBudget => "upstream_error",
        ShedReason::ContextExceeded => "context_length_exceeded",
    }
}

fn shed_message(reason: ShedReason, last: Option<&'static str>) -> String {
    let tried = last.map(|last| format!(" The last replica tried: {last}.")).unwrap_or_default();
    match reason {
        ShedReason::NoCapacity => format!("No replica that serves this model came up in time.{tried}"),
        ShedReason::QueueFull => "The queue for this model is full.".into(),
        ShedReason::QueueAge => {
            "This request waited for a free replica as long as its class may (scheduler.max_age_*).".into()
        }
        ShedReason::Hopeless => {
            "By the queue's own estimate this request would wait longer than it may, so it is refused now.".into()
        }
        ShedReason::Deadline => "The request's deadline passed before an answer was there.".into(),
        ShedReason::AttemptsExhausted => format!("Every replica that was tried failed on this request.{tried}"),
        ShedReason::RetryBudget => format!("A replica failed, and too much of the traffic is retries already.{tried}"),
        ShedReason::ContextExceeded => {
            "The prompt is longer than the context of every replica that serves this model.".into()
        }
    }
}

/// A client's words as they may be shown: bounded, no control characters.
pub fn shown(words: &str) -> String {
    words.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// A random number from 0 to 1. For jitter only.
fn chance() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let share = bits as f64 / (1_u64 << 53) as f64;
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_load_says_when_to_come_back_within_a_minute() {
        for seconds in [0, 1, 30, 3600] {
            let error = ApiError::Shed {
                reason: ShedReason::QueueFull,
                retry_after: Duration::from_secs(seconds),
                last: None,
                detail: None,
            };
            let told = error.retry_after().expect("told");
            assert!((Duration::from_secs(1)..=MAX_RETRY_AFTER).contains(&told), "{told:?}");
            assert!(!error.is_final());
        }
    }

    #[test]
    fn work_that_failed_everywhere_is_not_sent_three_times() {
        for reason in [ShedReason::AttemptsExhausted, ShedReason::RetryBudget, ShedReason::Deadline] {
            let error = ApiError::Shed { reason, retry_after: Duration::ZERO, last: Some("connect"), detail: None };
            assert!(error.is_final());
            assert_eq!(error.retry_after(), None);
        }
    }
}
