//! Making, showing and ending batches.

use std::time::Duration;

use openai_wire::{DecodeError, Route};
use serde::Deserialize;
use serde_json::{Map, Value};
use store::{BatchRecord, NewBatch, Purpose, StoreError, UnixMillis};

use super::{
    Call, STAY, id,
    query::{Bounds, Query},
    view::{BatchObject, List},
};
use crate::{
    auth::Tenant,
    batch::{BatchError, Batches, ENDPOINTS, batch_id, now},
    error::{ApiError, shown},
    refusal::Stop,
    request,
};

const BOUNDS: Bounds = Bounds {
    limit: 1..=100,
    usual: 20,
    expected: "a whole number from 1 to 100",
    is_id: id::is_batch,
    id: "the id of a batch ('batch_…')",
};

/// The description of a batch. 256 KiB: the longest metadata, with every letter escaped.
const MAX_BODY: u64 = 256 << 10;
const MAX_KEYS: usize = 16;
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 512;

/// What a client sends again by itself it sends within minutes. 10 min, in milliseconds.
const RETRIED_WITHIN: u64 = 600_000;

const INPUT: &str = "the id of a file that was uploaded with the purpose batch ('file-…')";
const ENDPOINT: &str = "/v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses or /v1/systemone";
const WINDOW: &str = "24h, or another length from 1s to 7d: seconds, minutes, hours or days, as 90s, 30m, 12h or 2d";
const METADATA: &str =
    "an object with at most 16 keys of at most 64 characters, and strings of at most 512 characters as values";
const EXPIRES: &str = "{\"anchor\":\"created_at\",\"seconds\":N} with N from 3600 to 2592000";

/// A batch as its owner asks for it, not looked at yet.
#[derive(Deserialize)]
struct Asked {
    input_file_id: Option<Value>,
    endpoint: Option<Value>,
    completion_window: Option<Value>,
    metadata: Option<Value>,
    output_expires_after: Option<Value>,
}

/// One that can be made.
#[derive(Debug, PartialEq)]
struct Wanted {
    input_file: String,
    endpoint: Route,
    window: String,
    length: Duration,
    metadata: Value,
    output_expires_after: Option<Duration>,
}

/// What came of the wish for a new batch.
enum Made {
    Batch(Box<BatchRecord>),
    WrongPurpose(Purpose),
}

impl Call<'_> {
    /// `POST /v1/batches`.
    pub(super) async fn create_batch(self) -> Result<(), Stop> {
        let mut held = self.gateway.hold();
        let what = "the description of a batch";
        let body = self.exchange.read_body_within(self.admitted, MAX_BODY, what, &mut held).await?;
        let wanted = parse(&body)?;
        let max = self.gateway.config().batches.max_open_per_tenant;
        let headers = &self.exchange.head().headers;
        let key = request::idempotency_key(headers)?.map(str::to_owned);
        let again = request::retries(headers) > 0;
        let new = NewBatch { idempotency_key: key, ..wanted.into_new(self.tenant, now(), again, max)? };
        let batch = make(&self.gateway.batches, new).await?;
        self.gateway.batches.wake();
        let object = BatchObject::new(batch, super::super::Progress::default());
        self.respond(&object).await
    }

    /// `GET /v1/batches`.
    pub(super) async fn list_batches(self) -> Result<(), Stop> {
        let query = Query::new(self.exchange.head().uri.query());
        let mut page = query.page(&BOUNDS).map_err(ApiError::from)?;
        // The newest first, whatever is asked: there is no order here.
        page.ascending = false;
        let owner = self.owner();
        let found = self.gateway.batches.ask(move |store| store.batches(Some(&owner), page)).await;
        let found = found.map_err(ApiError::from)?;
        let batches = found.entries.into_iter().map(|batch| self.object(batch)).collect();
        self.respond(&List::new(batches, found.more)).await
    }

    /// `GET /v1/batches/{id}`.
    pub(super) async fn retrieve_batch(self, id: &str) -> Result<(), Stop> {
        let (owner, id) = (self.owner(), known(id)?);
        let found = self.gateway.batches.ask(move |store| store.batch(Some(&owner), &id)).await;
        let object = self.object(found.map_err(ApiError::from)?);
        self.respond(&object).await
    }

    /// `POST /v1/batches/{id}/cancel`.
    pub(super) async fn cancel_batch(self, id: &str) -> Result<(), Stop> {
        let (owner, id, at) = (self.owner(), known(id)?, now());
        let found = self.gateway.batches.ask(move |store| store.cancel_batch(Some(&owner), &id, at)).await;
        let batch = found.map_err(ApiError::from)?;
        self.gateway.batches.wake();
        let object = self.object(batch);
        self.respond(&object).await
    }

    fn object(&self, batch: BatchRecord) -> BatchObject {
        let progress = self.gateway.batches.progress(batch.key);
        BatchObject::new(batch, progress)
    }
}

/// An id that there may be.
fn known(text: &str) -> Result<String, ApiError> {
    if id::is_batch(text) { Ok(text.to_owned()) } else { Err(BatchError::NoSuchBatch(text.to_owned()).into()) }
}

async fn make(batches: &std::sync::Arc<Batches>, new: NewBatch) -> Result<BatchRecord, ApiError> {
    let input = shown(&new.input_file);
    let made = batches.ask(move |store| {
        let (tenant, file) = (new.tenant.clone(), new.input_file.clone());
        match store.create_batch(new) {
            Err(StoreError::UnknownFile(id)) => match store.file(&tenant, &file) {
                Ok(file) if file.purpose != Purpose::Batch => Ok(Made::WrongPurpose(file.purpose)),
                _ => Err(StoreError::UnknownFile(id)),
            },
            made => made.map(|batch| Made::Batch(Box::new(batch))),
        }
    });
    match made.await {
        Ok(Made::Batch(batch)) => Ok(*batch),
        Ok(Made::WrongPurpose(purpose)) => {
            let name = purpose.name();
            Err(BatchError::InputFile(format!("the file {input} has the purpose {name}; expected {INPUT}.")).into())
        }
        Err(StoreError::KeyReused) => Err(ApiError::KeyReused),
        Err(StoreError::UnknownFile(_)) => {
            Err(BatchError::InputFile(format!("no file {input} is here; expected {INPUT}.")).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads a batch's description. Members that mean nothing here are ignored.
fn parse(body: &[u8]) -> Result<Wanted, ApiError> {
    match body.trim_ascii_start().first() {
        None => return Err(DecodeError::Empty.into()),
        Some(b'[') => return Err(DecodeError::NotAnObject { found: "an array" }.into()),
        Some(b'"') => return Err(DecodeError::NotAnObject { found: "a string" }.into()),
        Some(_) => {}
    }
    let asked: Asked = serde_json::from_slice(body).map_err(|error| BatchError::Json(error.to_string()))?;
    let input_file = text("input_file_id", INPUT, asked.input_file_id)?;
    if !id::is_file(&input_file) {
        return Err(DecodeError::Value { param: "input_file_id", expected: INPUT }.into());
    }
    let endpoint = text("endpoint", ENDPOINT, asked.endpoint)?;
    let endpoint = ENDPOINTS.into_iter().find(|route| route.path() == endpoint);
    let endpoint = endpoint.ok_or(DecodeError::Value { param: "endpoint", expected: ENDPOINT })?;
    let window = text("completion_window", WINDOW, asked.completion_window)?;
    let length = length(&window).ok_or(DecodeError::Value { param: "completion_window", expected: WINDOW })?;
    let metadata = asked.metadata.map_or(Ok(Value::Null), metadata)?;
    let output_expires_after = asked.output_expires_after.map(stay).transpose()?;
    Ok(Wanted { input_file, endpoint, window, length, metadata, output_expires_after })
}

impl Wanted {
    fn into_new(self, tenant: &Tenant, created: UnixMillis, again: bool, max_open: u32) -> Result<NewBatch, ApiError> {
        Ok(NewBatch {
            id: batch_id()?,
            tenant: tenant.name.to_string(),
            input_file: self.input_file,
            endpoint: self.endpoint.path().to_owned(),
            completion_window: self.window,
            metadata: self.metadata,
            permissions: tenant.permissions(),
            output_expires_after: self.output_expires_after,
            created,
            expires: created.after(self.length),
            max_open,
            idempotency_key: None,
            again_since: again.then(|| UnixMillis(created.0.saturating_sub(RETRIED_WITHIN))),
        })
    }
}

fn text(param: &'static str, expected: &'static str, value: Option<Value>) -> Result<String, DecodeError> {
    match value {
        None => Err(DecodeError::Missing { param, expected }),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(DecodeError::Type { param: param.into(), expected: "a string", found: kind(&other) }),
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// `24h`, `30m`, `2d`, `90s`: from a second to seven days.
fn length(window: &str) -> Option<Duration> {
    const LONGEST: u64 = 7 * 24 * 3600;
    let (number, unit) = window.split_at_checked(window.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return None,
    };
    let plain = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
    let count = number.parse::<u64>().ok().filter(|_| plain)?.checked_mul(seconds)?;
    (1..=LONGEST).contains(&count).then(|| Duration::from_secs(count))
}

fn metadata(value: Value) -> Result<Value, DecodeError> {
    let wrong = DecodeError::Value { param: "metadata", expected: METADATA };
    let Value::Object(members) = value else { return Err(wrong) };
    let fits = |value: &Value| value.as_str().is_some_and(|text| text.chars().count() <= MAX_VALUE);
    let all_fit = |members: &Map<String, Value>| {
        members.len() <= MAX_KEYS && members.iter().all(|(key, value)| key.chars().count() <= MAX_KEY && fits(value))
    };
    if all_fit(&members) { Ok(Value::Object(members)) } else { Err(wrong) }
}

fn stay(value: Value) -> Result<Duration, DecodeError> {
    let anchored = value.get("anchor").and_then(Value::as_str) == Some("created_at");
    let seconds = value.get("seconds").and_then(Value::as_u64).filter(|seconds| anchored && STAY.contains(seconds));
    let wrong = DecodeError::Value { param: "output_expires_after", expected: EXPIRES };
    seconds.map(Duration::from_secs).ok_or(wrong)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(change: impl FnOnce(&mut Value)) -> Result<Wanted, ApiError> {
        let mut body = json!({
            "input_file_id": "file-a", "endpoint": "/v1/chat/completions", "completion_window": "24h", "colour": "red",
        });
        change(&mut body);
        parse(body.to_string().as_bytes())
    }

    #[test]
    fn a_batch_is_described_as_openai_has_it() {
        let wanted = asked(|_| {}).expect("right");
        let expected = Wanted {
            input_file: "file-a".into(),
            endpoint: Route::ChatCompletions,
            window: "24h".into(),
            length: Duration::from_secs(86_400),
            metadata: Value::Null,
            output_expires_after: None,
        };
        assert_eq!(wanted, expected);
        let more = asked(|body| {
            body["metadata"] = json!({"project": "night"});
            body["output_expires_after"] = json!({"anchor": "created_at", "seconds": 3600});
        })
        .expect("right");
        assert_eq!(more.metadata, json!({"project": "night"}));
        assert_eq!(more.output_expires_after, Some(Duration::from_secs(3600)));
        assert_eq!(asked(|body| body["metadata"] = Value::Null).expect("right").metadata, Value::Null);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let many: Map<String, Value> = (0..17).map(|number| (number.to_string(), json!("v"))).collect();
        for (member, value, code) in [
            ("input_file_id", Value::Null, "missing_required_parameter"),
            ("input_file_id", json!(7), "invalid_type"),
            ("input_file_id", json!("batch_a"), "invalid_value"),
            ("input_file_id", json!("file-../a"), "invalid_value"),
            ("endpoint", json!("/v1/messages"), "invalid_value"),
            ("endpoint", json!("chat/completions"), "invalid_value"),
            ("endpoint", json!(["/v1/chat/completions"]), "invalid_type"),
            ("completion_window", Value::Null, "missing_required_parameter"),
            ("completion_window", json!("24"), "invalid_value"),
            ("completion_window", json!(""), "invalid_value"),
            ("completion_window", json!("é"), "invalid_value"),
            ("metadata", json!("text"), "invalid_value"),
            ("metadata", json!({"k": 1}), "invalid_value"),
            ("metadata", json!({"k".repeat(65): "v"}), "invalid_value"),
            ("metadata", json!({"k": "v".repeat(513)}), "invalid_value"),
            ("metadata", Value::Object(many), "invalid_value"),
            ("output_expires_after", json!({"anchor": "created_at", "seconds": 60}), "invalid_value"),
            ("output_expires_after", json!({"seconds": 3600}), "invalid_value"),
            ("output_expires_after", json!([]), "invalid_value"),
        ] {
            let error = asked(|body| body[member] = value.clone()).expect_err(member);
            assert_eq!((error.status(), error.code()), (400, Some(code)), "{member}: {value}");
            assert_eq!(error.body().param.as_deref(), Some(member), "{value}");
        }
        for (body, code) in [
            ("", "invalid_json"),
            ("  ", "invalid_json"),
            ("{", "invalid_json"),
            ("[]", "invalid_type"),
            ("\"x\"", "invalid_type"),
            ("7", "invalid_json"),
            ("{\"endpoint\":\"a\",\"endpoint\":\"b\"}", "invalid_json"),
            ("{} {}", "invalid_json"),
        ] {
            assert_eq!(parse(body.as_bytes()).expect_err(body).code(), Some(code), "{body}");
        }
        let deep = format!("{{\"metadata\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(parse(deep.as_bytes()).expect_err("too deep").code(), Some("invalid_json"));
    }

    #[test]
    fn a_window_is_from_a_second_to_a_week() {
        for (text, minutes) in
            [("24h", 1440), ("1m", 1), ("90m", 90), ("120s", 2), ("1h", 60), ("168h", 10_080), ("7d", 10_080)]
        {
            assert_eq!(length(text), Some(Duration::from_secs(60 * minutes)), "{text}");
        }
        for text in
            ["0m", "169h", "8d", "0s", "1w", "h", "24H", " 24h", "+1h", "01h", "1.5h", "1h30m", "99999999999999999999h"]
        {
            assert_eq!(length(text), None, "{text}");
        }
    }
}
