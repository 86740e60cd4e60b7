//! A span, and the document in which OTLP sends many.
//!
//! OTLP over HTTP in its JSON encoding: numbers of traces and spans in hexadecimal, whole numbers and times as text.

use std::{sync::Arc, time::Duration};

use serde_json::{Value as Json, json};

/// What a span says beside its times.
pub(in crate::telemetry) type Attributes = Vec<(&'static str, Value)>;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::telemetry) enum Value {
    /// One of ours.
    Word(&'static str),
    /// A configured or found name.
    Text(Arc<str>),
    /// A count.
    Count(u64),
    /// A measure.
    Number(f64),
    /// A fact.
    Flag(bool),
}

/// Who called whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A client called us.
    Server = 2,
    /// We called a replica.
    Client = 3,
}

/// Something that began and ended.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) trace: [u8; 16],
    pub(super) id: [u8; 8],
    pub(super) parent: Option<[u8; 8]>,
    pub(super) state: Option<Box<str>>,
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Since 1970, as the other times.
    pub(super) began: Duration,
    pub(super) ended: Duration,
    pub(super) first_token: Option<Duration>,
    pub(super) attributes: Attributes,
    pub(super) error: Option<&'static str>,
}

/// Status of a span that failed; one that did not has none.
const STATUS_ERROR: u8 = 2;

/// The body of one delivery.
pub(super) fn document(resource: &Json, spans: &[Span]) -> Vec<u8> {
    let spans: Vec<Json> = spans.iter().map(Span::json).collect();
    let scope = json!({ "name": "huntgroup", "version": env!("CARGO_PKG_VERSION") });
    let document = json!({ "resourceSpans": [{
        "resource": resource,
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] });
    document.to_string().into_bytes()
}

/// What sends the spans.
pub(super) fn resource(service: &str, instance: &str) -> Json {
    let text = |name: &str, value: &str| json!({ "key": name, "value": { "stringValue": value } });
    json!({ "attributes": [
        text("service.name", service),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", instance),
        text("telemetry.sdk.name", "huntgroup"),
        text("telemetry.sdk.language", "rust"),
        text("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
    ] })
}

impl Span {
    fn json(&self) -> Json {
        let attributes: Vec<Json> = self.attributes.iter().map(|(key, value)| attribute(key, value)).collect();
        let mut span = json!({
            "traceId": hex::encode(self.trace),
            "spanId": hex::encode(self.id),
            "name": self.name,
            "kind": self.kind as u8,
            "startTimeUnixNano": self.began.as_nanos().to_string(),
            "endTimeUnixNano": self.ended.max(self.began).as_nanos().to_string(),
            "attributes": attributes,
        });
        if let Some(parent) = &self.parent {
            span["parentSpanId"] = hex::encode(parent).into();
        }
        if let Some(state) = &self.state {
            span["traceState"] = (**state).into();
        }
        if let Some(first) = self.first_token {
            span["events"] = json!([{ "name": "first_token", "timeUnixNano": first.as_nanos().to_string() }]);
        }
        if let Some(error) = self.error {
            span["status"] = json!({ "code": STATUS_ERROR, "message": error });
        }
        span
    }
}

fn attribute(key: &str, value: &Value) -> Json {
    let value = match value {
        Value::Word(word) => json!({ "stringValue": word }),
        Value::Text(text) => json!({ "stringValue": **text }),
        Value::Count(count) => json!({ "intValue": count.to_string() }),
        Value::Number(number) => json!({ "doubleValue": number }),
        Value::Flag(flag) => json!({ "boolValue": flag }),
    };
    json!({ "key": key, "value": value })
}
