//! What can go wrong with a request, as its client sees it.

use std::borrow::Cow;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// No connection.
    #[error("no connection: {0}")]
    Connect(std::io::ErrorKind),
    /// The connection ended before the head of an answer.
    #[error("the connection ended before the answer")]
    EofBeforeHead,
    /// The connection was reset before the head of an answer.
    #[error("the connection was reset before the answer")]
    ResetBeforeHead,
    /// No head in time.
    #[error("no answer in time")]
    TimeoutHead,
    /// A status other than 200.
    #[error("status {status}, code {code:?}: {message}")]
    Status {
        /// HTTP status.
        status: u16,
        /// The error's code, `html` for a page, or empty.
        code: String,
        /// What the error says.
        message: String,
    },
    /// The body ended early, so that a client notices.
    #[error("the connection ended in the middle of the answer")]
    EofInBody,
    /// A stream ended well-formed, but without a finish: HTTP alone can't tell it from a short answer.
    #[error("the stream ended as if it were whole, but it was not")]
    SilentCut,
    /// An error in a stream that had begun.
    #[error("an error in the stream, code {code:?}: {message}")]
    ErrorEvent {
        /// The error's code, or empty.
        code: String,
        /// What the error says.
        message: String,
    },
    /// The head came, but not the whole answer in time.
    #[error("the answer was not whole in time")]
    TimeoutBody,
    /// The body is not what the API promises.
    #[error("not an answer of the API: {0}")]
    BadBody(&'static str),
    /// The answer belongs to another prompt.
    #[error("the answer belongs to another prompt: {0}")]
    WrongAnswer(String),
    /// Tokens are missing or came twice.
    #[error("tokens were lost or doubled: {got} of {wanted}, right up to {right}")]
    TokensLostOrDoubled {
        /// Words that came.
        got: usize,
        /// Words that should have come.
        wanted: usize,
        /// Words that were right from the start.
        right: usize,
    },
}

impl Failure {
    /// A short name, to count by.
    pub(crate) fn kind(&self) -> Cow<'static, str> {
        let fixed = match self {
            Self::Status { status, code, .. } if code.is_empty() => return format!("http_{status}").into(),
            Self::Status { status, code, .. } => return format!("http_{status}_{code}").into(),
            Self::ErrorEvent { code, .. } if !code.is_empty() => return format!("sse_error_event_{code}").into(),
            Self::ErrorEvent { .. } => "sse_error_event",
            Self::Connect(_) => "no_connection",
            Self::EofBeforeHead => "eof_before_head",
            Self::ResetBeforeHead => "reset_before_head",
            Self::TimeoutHead => "timeout_head",
            Self::EofInBody => "stream_eof_in_body",
            Self::SilentCut => "silent_cut",
            Self::TimeoutBody => "timeout_body",
            Self::BadBody(_) => "bad_body",
            Self::WrongAnswer(_) => "wrong_answer",
            Self::TokensLostOrDoubled { .. } => "tokens_lost_or_doubled",
        };
        fixed.into()
    }

    /// Reads the body of an error answer.
    pub(crate) fn of_status(status: u16, html: bool, body: &[u8]) -> Self {
        let (code, message) = error_of(body).unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
            (if html { "html".to_owned() } else { String::new() }, text)
        });
        Self::Status { status, code, message }
    }
}

/// Code (or type) and message of an error object, if `body` holds one.
pub(super) fn error_of(body: &[u8]) -> Option<(String, String)> {
    let value: serde_json::Value = serde_json::from_slice(body).ok()?;
    let error = value.get("error").filter(|error| !error.is_null())?;
    let name = [&error["code"], &error["type"]].into_iter().find_map(|name| name.as_str()).unwrap_or_default();
    // A name comes from the other side: only what can be a name of ours is counted by.
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name: String = name.chars().filter(|c| plain(*c)).take(40).collect();
    let message = error["message"].as_str().or(error.as_str()).unwrap_or_default();
    Some((name, message.chars().take(200).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_named_by_its_status_and_code() {
        let body = br#"{"error":{"message":"full","type":"server_error","param":null,"code":"queue_full"}}"#;
        assert_eq!(Failure::of_status(503, false, body).kind(), "http_503_queue_full");
        assert_eq!(Failure::of_status(502, true, b"<html>").kind(), "http_502_html");
        assert_eq!(Failure::of_status(500, false, b"").kind(), "http_500");
        let hostile = br#"{"error":{"code":"<b>\u001b[31m\n"}}"#;
        assert_eq!(Failure::of_status(500, false, hostile).kind(), "http_500_b31m");
    }
}
