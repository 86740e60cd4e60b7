//! Every way to say no to a phone. None of them repeats what it sent.

use std::time::Duration;

use super::{parse::FormError, replay::ReplayError, signature::SignatureError};
use crate::fleet::AnnounceError;

/// Why a call was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// `registration.token`.
    #[error(
        "phones can't register here: set registration.token, and give them CALLBACK_URL = http(s)://HOST/admin/register?token=TOKEN"
    )]
    Off,
    /// Too many wrong tokens from this address.
    #[error("too many wrong tokens from this address; wait a minute")]
    TooManyTries,
    /// Not the token, or none.
    #[error("the registration token is missing or wrong: POST /admin/register?token=TOKEN")]
    Token,
    /// Too long.
    #[error("the body is larger than the {max} bytes that a registration may have")]
    TooLarge {
        /// Bytes.
        max: usize,
    },
    /// It did not come to its end.
    #[error("the body did not arrive")]
    BodyLost,
    /// Not what a phone says.
    #[error(transparent)]
    Form(#[from] FormError),
    /// What it states about its replica.
    #[error("{field} {why}")]
    Stated {
        /// What is wrong: `replica`, or a field of it.
        field: &'static str,
        /// Why, and what would be right.
        why: String,
    },
    /// Not by the holder of the key, or not now.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// Said before.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The pool does not take it.
    #[error(transparent)]
    Announce(#[from] AnnounceError),
}

impl Refusal {
    /// As it is counted.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Off | Self::TooManyTries | Self::Token => "refused_token",
            Self::TooLarge { .. } | Self::BodyLost | Self::Form(_) | Self::Stated { .. } => "refused_form",
            Self::Signature(SignatureError::NotNow) => "refused_replay",
            Self::Signature(_) => "refused_signature",
            Self::Replay(ReplayError::Seen) => "refused_replay",
            Self::Replay(ReplayError::Full) => "refused_rate",
            Self::Announce(error) => match error {
                AnnounceError::Url(_) => "refused_url",
                AnnounceError::Unknown => "refused_form",
                AnnounceError::Older => "refused_replay",
                AnnounceError::KnownBetter(_) | AnnounceError::Taken(_) => "refused_identity",
                AnnounceError::TooMany(_) | AnnounceError::TooManyUnproven(_) | AnnounceError::Full(_) => {
                    "refused_rate"
                }
                AnnounceError::Store(_) => "failed",
            },
        }
    }

    /// What is behind it: too many wrong tokens are wrong tokens, so that what is to be corrected is one line with all that it causes.
    pub(super) fn cause(&self) -> &Self {
        match self {
            Self::TooManyTries => &Self::Token,
            cause => cause,
        }
    }

    /// The status of the answer.
    pub fn status(&self) -> u16 {
        match self {
            Self::Off => 404,
            Self::TooManyTries | Self::Replay(ReplayError::Full) => 429,
            Self::Token => 401,
            Self::TooLarge { .. } => 413,
            Self::BodyLost | Self::Form(_) | Self::Stated { .. } => 400,
            Self::Signature(_) => 403,
            Self::Replay(ReplayError::Seen) => 409,
            Self::Announce(error) => match error {
                AnnounceError::Url(_) => 400,
                AnnounceError::Unknown => 404,
                AnnounceError::Older
                | AnnounceError::KnownBetter(_)
                | AnnounceError::Taken(_)
                | AnnounceError::Full(_) => 409,
                AnnounceError::TooMany(_) | AnnounceError::TooManyUnproven(_) => 429,
                AnnounceError::Store(_) => 503,
            },
        }
    }

    /// For programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Off => "registration_off",
            Self::TooManyTries => "too_many_attempts",
            Self::Token => "invalid_registration_token",
            Self::TooLarge { .. } | Self::BodyLost | Self::Form(_) | Self::Stated { .. } => "invalid_registration",
            Self::Signature(SignatureError::NotNow) => "not_now",
            Self::Signature(_) => "invalid_signature",
            Self::Replay(ReplayError::Seen) => "replayed",
            Self::Replay(ReplayError::Full) => "too_many_registrations",
            Self::Announce(error) => match error {
                AnnounceError::Url(_) => "url_not_allowed",
                AnnounceError::Unknown => "unknown_phone",
                AnnounceError::Older => "older_announcement",
                AnnounceError::KnownBetter(_) => "signature_needed",
                AnnounceError::Taken(_) => "taken",
                AnnounceError::Full(_) => "pool_full",
                AnnounceError::TooMany(_) => "too_many_registrations",
                AnnounceError::TooManyUnproven(_) => "too_many_unproven",
                AnnounceError::Store(_) => "store_failed",
            },
        }
    }

    /// The field of the body, or the header, that is wrong; `None`: it is not one alone.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Token => Some("token"),
            Self::Form(error) => error.field(),
            Self::Stated { field, .. } => Some(field),
            Self::Signature(error) => error.header(),
            Self::Replay(ReplayError::Seen) => Some("X-Nonce"),
            Self::Announce(AnnounceError::Url(_)) => Some("url"),
            _ => None,
        }
    }

    /// Whether its words are about one phone: they hold a number that it sent, or a replica's name.
    pub(super) fn is_about_one(&self) -> bool {
        matches!(
            self,
            Self::Stated { .. }
                | Self::Announce(AnnounceError::KnownBetter(_) | AnnounceError::Taken(_) | AnnounceError::Store(_))
        )
    }

    /// When to try again, if that may help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::TooManyTries
            | Self::Replay(ReplayError::Full)
            | Self::Announce(AnnounceError::TooManyUnproven(_)) => Some(Duration::from_secs(60)),
            Self::Announce(AnnounceError::TooMany(wait)) => Some(*wait),
            Self::Announce(AnnounceError::Store(_)) => Some(Duration::from_secs(5)),
            _ => None,
        }
    }
}
