//! Answers of the admin API: JSON, and one shape of error, the same as the public API's.

use axum::{
    Json,
    http::{HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{batch::BatchError, fleet::ChangeError, fleet::UrlError, listener::Oversize};

/// A refused call.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminError {
    /// The body is not what the route takes.
    #[error("{}{message}", param.as_ref().map(|param| format!("{param} ")).unwrap_or_default())]
    Invalid {
        /// The field, if it is one.
        param: Option<String>,
        /// What is wrong: of a field what it must be, and the field is put before.
        message: String,
    },
    /// The body is no JSON.
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    /// The body is not said to be JSON.
    #[error("send the body as Content-Type: application/json")]
    ContentType,
    /// The body is too large.
    #[error("the body is larger than the {max} bytes that this call takes")]
    TooLarge {
        /// Bytes.
        max: usize,
    },
    /// The head is too large.
    #[error(transparent)]
    Head(#[from] Oversize),
    /// The body did not come.
    #[error("the body broke off")]
    BodyLost,
    /// The body did not come in time.
    #[error("the body did not arrive in time")]
    BodySlow,
    /// No token, or a wrong one.
    #[error("this needs the admin token: Authorization: Bearer TOKEN")]
    Token,
    /// Too many wrong tokens from this address.
    #[error("too many wrong tokens from this address; wait a minute")]
    TooManyLogins,
    /// A host name that is not ours.
    #[error(
        "the admin API does not answer to that host name; use an address or localhost, or list the name in admin.hosts"
    )]
    Host,
    /// Another site's page.
    #[error("the admin API does not answer pages of other sites")]
    Origin,
    /// No such thing.
    #[error("{0}")]
    NotFound(String),
    /// No such path.
    #[error("no such path: {0}; GET /admin/openapi.json describes those that are")]
    NoPath(String),
    /// Not this method.
    #[error("{0} does not work here")]
    NoMethod(Method),
    /// The pool refused a change.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A batch is not there, or not in a state for it.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The store.
    #[error("the store: {0}")]
    Store(#[from] store::StoreError),
    /// A reload changed nothing.
    #[error(transparent)]
    Reload(#[from] super::ReloadRefused),
    /// Too many readers of events.
    #[error("too many readers of the event feed already")]
    TooManyReaders,
    /// Our fault.
    #[error("{0}")]
    Ours(String),
}

impl AdminError {
    pub(super) fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::Invalid { param: Some(param.into()), message: message.into() }
    }

    /// What is wrong, without the field.
    pub(super) fn what(&self) -> String {
        match self {
            Self::Invalid { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Invalid { .. }
            | Self::NotJson(_)
            | Self::BodyLost
            | Self::Change(ChangeError::Url(_) | ChangeError::Labels(_)) => StatusCode::BAD_REQUEST,
            Self::Reload(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::BodySlow => StatusCode::REQUEST_TIMEOUT,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Head(oversize) => StatusCode::from_u16(oversize.status()).unwrap_or(StatusCode::BAD_REQUEST),
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::TooManyLogins => StatusCode::TOO_MANY_REQUESTS,
            Self::Host | Self::Origin => StatusCode::FORBIDDEN,
            Self::NotFound(_) | Self::NoPath(_) | Self::Change(ChangeError::Unknown) => StatusCode::NOT_FOUND,
            Self::NoMethod(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Change(ChangeError::NameTaken(_) | ChangeError::Full(_) | ChangeError::Distrusted(_)) => {
                StatusCode::CONFLICT
            }
            Self::Store(_) | Self::Change(ChangeError::Store(_)) | Self::TooManyReaders => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Batch(error) => StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            Self::Ours(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::Invalid { .. } | Self::Change(ChangeError::Labels(_)) => "invalid_value",
            Self::NotJson(_) => "invalid_json",
            Self::TooLarge { .. } => "body_too_large",
            Self::Head(_) => "head_too_large",
            Self::Token => "invalid_admin_token",
            Self::TooManyLogins => "too_many_attempts",
            Self::Host => "host_not_allowed",
            Self::Origin => "origin_not_allowed",
            Self::NotFound(_) | Self::Change(ChangeError::Unknown) | Self::Batch(BatchError::NoSuchBatch(_)) => {
                "not_found"
            }
            Self::Batch(BatchError::TooLate(_)) => "wrong_state",
            Self::Change(ChangeError::Url(UrlError::Suffix | UrlError::Private | UrlError::Http)) => "url_not_allowed",
            Self::Change(ChangeError::Url(_)) => "invalid_url",
            Self::Change(ChangeError::NameTaken(_)) => "name_taken",
            Self::Change(ChangeError::Full(_)) => "pool_full",
            Self::Change(ChangeError::Distrusted(_)) => "not_verified",
            Self::Store(_) | Self::Batch(_) | Self::Change(ChangeError::Store(_)) => "store_failed",
            Self::Reload(_) => "invalid_configuration",
            _ => return None,
        })
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::Invalid { param, .. } => param.as_deref(),
            Self::Change(ChangeError::Url(_)) => Some("url"),
            Self::Change(ChangeError::NameTaken(_)) => Some("name"),
            Self::Change(ChangeError::Labels(_)) => Some("labels"),
            _ => None,
        }
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let status = self.status();
        let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let body = json!({
            "error": { "message": self.to_string(), "type": kind, "param": self.param(), "code": self.code() }
        });
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        match self {
            Self::Token => drop(headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            Self::TooManyLogins => drop(headers.insert(header::RETRY_AFTER, HeaderValue::from_static("60"))),
            _ => {}
        }
        response
    }
}

pub(super) async fn no_such_path(uri: Uri) -> AdminError {
    AdminError::NoPath(uri.path().chars().take(200).collect())
}

pub(super) async fn no_such_method(method: Method) -> AdminError {
    AdminError::NoMethod(method)
}
