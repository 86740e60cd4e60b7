//! The client-facing error, in the shape each API's own SDK reads.
//!
//! Four keys, always: a missing key makes one SDK print "no body" instead of the message. In a stream the event must
//! carry an `error` object: that is what makes both official SDKs raise; a bare `type: "error"` event passes for data.

use crate::json::quote;
use crate::route::Route;
use bytes::Bytes;
use std::borrow::Cow;

/// An error as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorBody {
    /// What was wrong and what would be right; may be shown to people.
    pub message: String,
    /// `type`: `invalid_request_error`, `rate_limit_error`, `insufficient_quota` or `server_error`.
    pub kind: &'static str,
    /// The parameter at fault.
    pub param: Option<String>,
    /// Machine-readable reason.
    pub code: Option<Cow<'static, str>>,
}

impl ErrorBody {
    /// `{"error":{"message","type","param","code"}}`.
    pub fn to_json(&self) -> Bytes {
        self.to_json_for(Route::ChatCompletions)
    }

    /// The body for a route. On [`Route::Messages`] also what Anthropic's SDK looks for: a top-level `type` and its own
    /// names of error types.
    pub fn to_json_for(&self, route: Route) -> Bytes {
        let mut out = Vec::with_capacity(self.message.len() + 128);
        self.write_json(route, &mut out);
        out.into()
    }

    /// The event for a stream already begun ([`crate::AnswerStream::error_event`]), with the number that
    /// [`Route::Responses`] counts in.
    pub(crate) fn to_sse_numbered(&self, route: Route, sequence: u64) -> Bytes {
        let mut out = Vec::with_capacity(2 * self.message.len() + 256);
        match route {
            Route::Responses => {
                out.extend_from_slice(b"event: error\ndata: {\"type\":\"error\",");
                self.write_fields(None, &mut out);
                out.extend_from_slice(format!(",\"sequence_number\":{sequence},\"error\":{{").as_bytes());
                self.write_fields(Some(self.kind), &mut out);
                out.extend_from_slice(b"}}");
            }
            Route::Messages => {
                out.extend_from_slice(b"event: error\ndata: ");
                self.write_json(route, &mut out);
            }
            _ => {
                out.extend_from_slice(b"data: ");
                self.write_json(route, &mut out);
            }
        }
        out.extend_from_slice(b"\n\n");
        out.into()
    }

    fn write_json(&self, route: Route, out: &mut Vec<u8>) {
        if route == Route::Messages {
            out.extend_from_slice(b"{\"type\":\"error\",\"error\":{");
            self.write_fields(Some(self.anthropic_kind()), out);
        } else {
            out.extend_from_slice(b"{\"error\":{");
            self.write_fields(Some(self.kind), out);
        }
        out.extend_from_slice(b"}}");
    }

    fn write_fields(&self, kind: Option<&str>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"message\":");
        quote(&self.message, out);
        if let Some(kind) = kind {
            out.extend_from_slice(b",\"type\":");
            quote(kind, out);
        }
        out.extend_from_slice(b",\"param\":");
        write_or_null(self.param.as_deref(), out);
        out.extend_from_slice(b",\"code\":");
        write_or_null(self.code.as_deref(), out);
    }

    /// Anthropic's name for this type of error.
    fn anthropic_kind(&self) -> &'static str {
        match (self.kind, self.code.as_deref()) {
            ("server_error", Some("no_capacity" | "queue_full" | "overloaded" | "draining")) => "overloaded_error",
            ("server_error", _) => "api_error",
            ("insufficient_quota", _) => "rate_limit_error",
            (_, Some("invalid_api_key")) => "authentication_error",
            (_, Some("model_not_allowed")) => "permission_error",
            (_, Some("model_not_found")) => "not_found_error",
            (other, _) => other,
        }
    }
}

fn write_or_null(text: Option<&str>, out: &mut Vec<u8>) {
    match text {
        Some(text) => quote(text, out),
        None => out.extend_from_slice(b"null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn body() -> ErrorBody {
        ErrorBody {
            message: "no \"room\"\n\u{1}".into(),
            kind: "server_error",
            param: None,
            code: Some(Cow::Borrowed("queue_full")),
        }
    }

    fn data(event: &[u8]) -> Value {
        let text = std::str::from_utf8(event).expect("utf-8");
        assert!(text.ends_with("\n\n"));
        let line = text.lines().find(|line| line.starts_with("data: ")).expect("data line");
        serde_json::from_str(&line[6..]).expect("json")
    }

    #[test]
    fn all_four_keys_are_there_even_when_null() {
        let value: Value = serde_json::from_slice(&body().to_json()).expect("json");
        let expected =
            json!({"error":{"message":"no \"room\"\n\u{1}","type":"server_error","param":null,"code":"queue_full"}});
        assert_eq!(value, expected);
    }

    #[test]
    fn messages_clients_find_both_shapes() {
        let value: Value = serde_json::from_slice(&body().to_json_for(Route::Messages)).expect("json");
        assert_eq!(value["type"], "error");
        assert_eq!(value["error"]["type"], "overloaded_error");
        assert_eq!(value["error"]["code"], "queue_full");
        assert!(value["error"]["param"].is_null());
        assert!(body().to_sse_numbered(Route::Messages, 0).starts_with(b"event: error\ndata: "));
    }

    #[test]
    fn every_stream_error_has_the_error_object_that_makes_sdks_raise() {
        for route in [Route::ChatCompletions, Route::Completions, Route::Responses, Route::Messages] {
            let value = data(&body().to_sse_numbered(route, 0));
            assert_eq!(value["error"]["message"], "no \"room\"\n\u{1}", "{route:?}");
            assert_eq!(value["error"]["code"], "queue_full");
        }
        let typed = data(&body().to_sse_numbered(Route::Responses, 7));
        assert_eq!((&typed["type"], &typed["sequence_number"]), (&json!("error"), &json!(7)));
        assert_eq!(typed["code"], "queue_full");
    }
}
