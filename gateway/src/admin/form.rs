//! What the admin API takes: bodies read strictly, with errors that name the field.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Map, Value};
use store::KeyLimits;
use utoipa::ToSchema;

use super::answer::AdminError;
use crate::{
    config::{RATES, Secret, StatedModels, is_replica_name},
    fleet::{Amendment, Dialect, LabelChange, MAX_LABELS},
};

/// For a whole body, and more for each 64 KiB that it is said to have. As on the public side.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
const BODY_DEADLINE_PER_64K: Duration = Duration::from_secs(1);
/// Largest body of most calls. 64 KiB: a replica with labels and models fits.
const MAX_BODY: usize = 64 << 10;
/// Letters in a name, a label or a model. 256: the longest file name.
const MAX_TEXT: usize = 256;
/// Fields of an object, twice those of the largest form: in a larger one no wrong one is looked for.
const MAX_FIELDS: usize = 32;
/// Models of one replica.
const MAX_MODELS: usize = 64;

/// The largest body of a call, put on its route as an extension.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaxBody(pub(super) usize);

/// A JSON body.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = AdminError;

    async fn from_request(request: Request, state: &S) -> Result<Self, AdminError> {
        let body = bytes(request, state).await?;
        let mut reader = serde_json::Deserializer::from_slice(&body);
        let value = T::deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
        value.map(Self).map_err(|error| wrong_field::<T>(&body).unwrap_or_else(|| misread(error)))
    }
}

/// The one thing that a path names.
pub(super) struct Id(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = AdminError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AdminError> {
        let id = Path::<String>::from_request_parts(parts, state).await;
        id.map(|Path(id)| Self(id)).map_err(|_| AdminError::NotFound("nothing is called that: it is not UTF-8".into()))
    }
}

/// What stands behind the question mark.
pub(super) struct Asked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = AdminError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AdminError> {
        let asked = Query::<T>::from_request_parts(parts, state).await;
        asked
            .map(|Query(asked)| Self(asked))
            .map_err(|rejection| AdminError::Invalid { param: None, message: rejection.body_text() })
    }
}

/// A JSON body that may be left out.
pub(super) struct OptionalBody<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalBody<T> {
    type Rejection = AdminError;

    async fn from_request(request: Request, state: &S) -> Result<Self, AdminError> {
        let body = bytes(request, state).await?;
        if body.trim_ascii().is_empty() {
            return Ok(Self(T::default()));
        }
        serde_json::from_slice(&body)
            .map(Self)
            .map_err(|error| wrong_field::<T>(&body).unwrap_or_else(|| misread(error)))
    }
}

/// A whole body, if it comes in time.
pub(super) async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, AdminError> {
    let limit = body_time(request.headers());
    bytes_within(limit, request, state).await
}

async fn bytes_within<S: Send + Sync>(limit: Duration, mut request: Request, state: &S) -> Result<Bytes, AdminError> {
    let max = request.extensions().get().map_or(MAX_BODY, |MaxBody(max)| *max);
    DefaultBodyLimit::max(max).apply(&mut request);
    let come = tokio::time::timeout(limit, Bytes::from_request(request, state)).await;
    come.map_err(|_| AdminError::BodySlow)?.map_err(|rejection: BytesRejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => AdminError::TooLarge { max },
        _ => AdminError::BodyLost,
    })
}

/// How long a body may take, by the length that it is said to have.
fn body_time(headers: &HeaderMap) -> Duration {
    let length: Option<u32> = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    BODY_DEADLINE + BODY_DEADLINE_PER_64K * length.map_or(0, |length| length.div_ceil(64 << 10))
}

/// The field of an object that is of a wrong type, which a reader of flattened fields does not tell: alone it has the same error, or
/// without it there is another.
fn wrong_field<T: DeserializeOwned>(body: &[u8]) -> Option<AdminError> {
    let fields: Map<String, Value> = serde_json::from_slice(body).ok()?;
    let wrong = |fields: Map<String, Value>| Some(serde_json::from_value::<T>(fields.into()).err()?.to_string());
    let why = wrong(fields.clone()).filter(|_| fields.len() <= MAX_FIELDS)?;
    let is_wrong = |(name, value): &(&String, &Value)| {
        let mut others = fields.clone();
        others.remove(*name);
        let alone = [((*name).clone(), (*value).clone())].into_iter().collect();
        wrong(alone).is_some_and(|alone| alone == why)
            || wrong(others).is_none_or(|others| others != why && !others.starts_with("missing field"))
    };
    let is_named = why.starts_with("missing field") || why.starts_with("unknown field");
    let (named, _) = fields.iter().find(is_wrong).filter(|_| !is_named)?;
    Some(AdminError::invalid(named, format!("has a wrong value: {why}")))
}

fn misread(error: serde_json::Error) -> AdminError {
    if error.is_data() {
        AdminError::Invalid { param: None, message: error.to_string() }
    } else {
        AdminError::NotJson(error.to_string())
    }
}

/// Tells `null` (take it back) from nothing (leave it).
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Models as a list of names, or as names with the replica's own.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "models must be a list of names, or an object of names and the replica's own names")]
pub(super) enum ModelsForm {
    /// `["model", …]`.
    List(Vec<String>),
    /// `{"model": "name on the replica" or null, …}`.
    Map(BTreeMap<String, Option<String>>),
}

impl ModelsForm {
    fn read(self) -> Result<StatedModels, AdminError> {
        let models: BTreeMap<_, _> = match self {
            Self::List(names) => names.into_iter().map(|name| (name, None)).collect(),
            Self::Map(models) => models,
        };
        if models.len() > MAX_MODELS {
            return Err(AdminError::invalid("models", format!("must be at most {MAX_MODELS}, not {}", models.len())));
        }
        if !models.keys().chain(models.values().flatten()).all(|name| is_text(name)) {
            return Err(AdminError::invalid("models", format!("must be names {TEXT}")));
        }
        Ok(StatedModels(models))
    }
}

/// A replica to add.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddReplica {
    /// `https://HOST[:PORT]`, nothing more.
    #[schema(example = "https://0123456789abcdef.acu.run")]
    pub url: String,
    /// What is stated; the rest is found by probing.
    #[serde(flatten)]
    pub stated: StatedForm,
}

/// Changes to a replica. What is left out stays; `null` takes a statement back, and probing finds it.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AmendReplica {
    /// What is stated.
    #[serde(flatten)]
    pub stated: StatedForm,
}

/// What an operator may state about a replica.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct StatedForm {
    /// Unique; also in metrics, logs and `x-huntgroup-replica`. The host's first label if left out.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// Its models.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<ModelsForm>)]
    pub(super) models: Option<Option<ModelsForm>>,
    /// Concurrent requests it takes, 1 to 1024.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u16>)]
    pub(super) slots: Option<Option<u16>>,
    /// Tokens that prompt and answer of one slot must fit.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>)]
    pub(super) context_tokens: Option<Option<u32>>,
    /// Sent to it as a bearer token. Never shown again.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    pub(super) api_key: Option<Option<String>>,
    /// `llama`, `qvac`, `mnn`, `mnn_app`, `laya` or `openai`.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    pub(super) dialect: Option<Option<String>>,
    /// Free words, at most 32. POST replaces all of them. PATCH merges them (RFC 7396): text sets one, `null` takes one away, others stay;
    /// `null` for `labels` itself takes all away.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, Option<String>>>)]
    pub(super) labels: Option<Option<BTreeMap<String, Option<String>>>>,
    /// When its deployment ends, in seconds since 1970.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    pub(super) expires_at: Option<Option<u64>>,
    /// What it costs.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<f64>)]
    pub(super) cost_acu_per_day: Option<Option<f64>>,
    /// Prompt tokens a second that it reads, one request alone. Believed until it is measured.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<f64>)]
    pub(super) prefill_rate: Option<Option<f64>>,
    /// Answer tokens a second that it writes, one request alone. Believed until it is measured.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<f64>)]
    pub(super) decode_rate: Option<Option<f64>>,
}

impl StatedForm {
    /// A change: labels that are not named stay.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub(super) fn read_change(mut self) -> Result<Amendment, AdminError> {
        let change = match self.labels.take() {
            Some(Some(labels)) => Some(LabelChange::Some(check_labels(labels)?)),
            Some(None) => Some(LabelChange::All(BTreeMap::new())),
            None => None,
        };
        Ok(Amendment { labels: change, ..self.read()? })
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub(super) fn read(self) -> Result<Amendment, AdminError> {
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        check_range("slots", self.slots.flatten(), 1..=1024)?;
        check_range("context_tokens", self.context_tokens.flatten(), 1..=100_000_000)?;
        // Milliseconds are the likeliest mistake, and would lie in the year 30,000.
        check_range("expires_at", self.expires_at.flatten(), 0..=253_402_300_799)?;
        check_range("cost_acu_per_day", self.cost_acu_per_day.flatten(), 0.0..=1_000_000.0)?;
        check_range("prefill_rate", self.prefill_rate.flatten(), RATES)?;
        check_range("decode_rate", self.decode_rate.flatten(), RATES)?;
        Ok(Amendment {
            name: self.name,
            models: self
                .models
                .map(|models| models.map_or(Ok(StatedModels::default()), ModelsForm::read))
                .transpose()?,
            slots: self.slots,
            context_tokens: self.context_tokens,
            key: self.api_key.map(|key| key.map(read_key).transpose()).transpose()?,
            dialect: self.dialect.map(|dialect| dialect.map(|name| read_dialect(&name)).transpose()).transpose()?,
            labels: self.labels.map(|labels| all_labels(labels.unwrap_or_default())).transpose()?,
            expires_at: self.expires_at,
            // Nothing is shown as -0.
            cost_acu_per_day: self.cost_acu_per_day.map(|cost| cost.map(f64::abs)),
            claimed_cost_acu_per_day: None,
            prefill_rate: self.prefill_rate,
            decode_rate: self.decode_rate,
        })
    }
}

/// What [`is_text`] asks for.
const TEXT: &str = "of 1 to 256 letters, none of them a control character";

fn is_text(text: &str) -> bool {
    !text.trim().is_empty() && text.chars().count() <= MAX_TEXT && !text.chars().any(char::is_control)
}

/// A name becomes a metric's label and a part of a URL.
fn check_name(name: &str) -> Result<(), AdminError> {
    if is_replica_name(name) {
        return Ok(());
    }
    Err(AdminError::invalid("name", "must be 1 to 128 of a-z, A-Z, 0-9, '-', '_', '.', ':'"))
}

fn check_range<T: PartialOrd + std::fmt::Display>(
    param: &str,
    value: Option<T>,
    range: std::ops::RangeInclusive<T>,
) -> Result<(), AdminError> {
    match value {
        Some(value) if !range.contains(&value) => {
            let why = format!("must be from {} to {}, not {value}", range.start(), range.end());
            Err(AdminError::invalid(param, why))
        }
        _ => Ok(()),
    }
}

fn read_key(key: String) -> Result<Secret, AdminError> {
    let visible = key.bytes().all(|byte| byte.is_ascii_graphic());
    if !(1..=4096).contains(&key.len()) || !visible {
        return Err(AdminError::invalid("api_key", "must be 1 to 4096 visible ASCII characters"));
    }
    Ok(Secret::new(key))
}

fn read_dialect(name: &str) -> Result<Dialect, AdminError> {
    Dialect::by_name(name).ok_or_else(|| {
        let known = Dialect::ALL.map(Dialect::name).join(", ");
        AdminError::invalid("dialect", format!("must be one of {known}"))
    })
}

/// Names and values; a value may be empty, or taken away.
fn check_labels(labels: BTreeMap<String, Option<String>>) -> Result<BTreeMap<String, Option<String>>, AdminError> {
    let is_value = |value: &String| value.is_empty() || is_text(value);
    if labels.keys().all(|name| is_text(name)) && labels.values().flatten().all(is_value) {
        return Ok(labels);
    }
    Err(AdminError::invalid("labels", format!("must have names {TEXT}, and values alike or empty")))
}

/// All that there are to be.
fn all_labels(labels: BTreeMap<String, Option<String>>) -> Result<LabelChange, AdminError> {
    let all: BTreeMap<_, _> =
        check_labels(labels)?.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    if all.len() > MAX_LABELS {
        return Err(AdminError::invalid("labels", format!("must be at most {MAX_LABELS}, not {}", all.len())));
    }
    Ok(LabelChange::All(all))
}

/// How to drain.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// What still runs then is cancelled, and fails over if its client has seen nothing yet. Left out: never.
    #[serde(default)]
    pub deadline_s: Option<f64>,
}

impl Drain {
    /// The deadline as a length.
    ///
    /// # Errors
    /// It is negative, or longer than a week.
    pub(super) fn read(&self) -> Result<Option<Duration>, AdminError> {
        let Some(seconds) = self.deadline_s else { return Ok(None) };
        if !(0.0..=604_800.0).contains(&seconds) {
            return Err(AdminError::invalid("deadline_s", "must be from 0 to 604800 (a week)"));
        }
        Ok(Some(Duration::from_secs_f64(seconds)))
    }
}

/// A key to make.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// Whose: 1 to 64 of a-z, A-Z, 0-9, `-`, `_`, `.`.
    pub tenant: String,
    /// Requests a minute; left out: as the tenant.
    pub requests_per_minute: Option<u32>,
    /// Tokens a minute; left out: as the tenant.
    pub tokens_per_minute: Option<u32>,
    /// Requests running or waiting at once; left out: as the tenant.
    pub max_in_flight: Option<u32>,
    /// Requests waiting at once; left out: as the tenant.
    pub max_queued: Option<u32>,
    /// Models it may use; empty: as the tenant.
    #[serde(default)]
    pub models: Vec<String>,
    /// How urgent its requests are that do not say.
    pub class: Option<String>,
    /// The most urgent class it may ask for.
    pub max_class: Option<String>,
}

impl CreateKey {
    /// Its own limits.
    pub(super) fn limits(&self) -> KeyLimits {
        KeyLimits {
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            max_in_flight: self.max_in_flight,
            max_queued: self.max_queued,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amend(json: &str) -> Result<Amendment, AdminError> {
        serde_json::from_str::<AmendReplica>(json).map_err(misread)?.stated.read_change()
    }

    #[test]
    fn null_takes_back_and_nothing_leaves() {
        let amendment = amend(r#"{"slots": null, "labels": null, "context_tokens": 4096}"#).unwrap();
        assert_eq!(amendment.slots, Some(None));
        assert_eq!(amendment.context_tokens, Some(Some(4096)));
        assert_eq!(amendment.labels, Some(LabelChange::All(BTreeMap::new())));
        assert_eq!(amendment.expires_at, None);
    }

    #[test]
    fn a_price_of_nothing_has_no_sign() {
        let cost = amend(r#"{"cost_acu_per_day": -0.0}"#).unwrap().cost_acu_per_day.flatten().unwrap();
        assert!(cost == 0.0 && cost.is_sign_positive());
    }

    #[test]
    fn models_are_a_list_or_a_map() {
        let list = amend(r#"{"models": ["a", "b"]}"#).unwrap().models.unwrap();
        assert_eq!(list.0.keys().collect::<Vec<_>>(), ["a", "b"]);
        let map = amend(r#"{"models": {"a": "/x.gguf", "b": null}}"#).unwrap().models.unwrap();
        assert_eq!(map.0["a"].as_deref(), Some("/x.gguf"));
        assert!(amend(r#"{"models": "a"}"#).unwrap_err().to_string().contains("list of names"));
    }

    #[tokio::test]
    async fn a_path_or_query_that_is_odd_is_answered_in_our_shape() {
        use axum::{Router, routing::get};
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        #[derive(serde::Deserialize)]
        struct Query {
            #[serde(rename = "limit")]
            _limit: Option<String>,
        }
        async fn named(Id(_): Id, Asked(_): Asked<Query>) {}
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        let router = Router::new().route("/{id}", get(named));
        tasks.spawn(async move { axum::serve(listener, router).await });
        for (path, status) in [("/x", 200), ("/x?limit=1", 200), ("/%ff", 404), ("/x?limit=1&limit=2", 400)] {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
            assert!(status == 200 || answer.contains("content-type: application/json"), "{path}: {answer}");
        }
    }

    #[tokio::test]
    async fn a_body_that_stops_or_trickles_is_not_waited_for() {
        use axum::response::IntoResponse as _;
        use futures_util::{StreamExt as _, stream};
        let byte = |()| async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        };
        for body in [stream::pending().boxed(), stream::unfold((), byte).boxed()] {
            let request = Request::new(axum::body::Body::from_stream(body));
            let error = bytes_within(Duration::from_millis(20), request, &()).await.unwrap_err();
            assert!(matches!(error, AdminError::BodySlow), "{error}");
            assert_eq!(error.into_response().status(), StatusCode::REQUEST_TIMEOUT);
        }
    }

    #[test]
    fn a_body_has_time_by_the_length_that_it_is_said_to_have() {
        for (length, seconds) in [(None, 30), (Some("100"), 31), (Some("8388608"), 158), (Some("99999999999"), 30)] {
            let mut headers = HeaderMap::new();
            headers.extend(length.map(|length| (header::CONTENT_LENGTH, length.parse().unwrap())));
            assert_eq!(body_time(&headers), Duration::from_secs(seconds), "{length:?}");
        }
    }

    #[test]
    fn a_field_of_a_wrong_type_is_named() {
        for (json, field) in [
            (r#"{"url": "https://a", "labels": {"a": 1}}"#, Some("labels")),
            (r#"{"url": "https://a", "slots": "two", "name": "a"}"#, Some("slots")),
            (r#"{"url": 7}"#, Some("url")),
            (r#"{"url": "https://a", "decode_rate": "x", "slots": "two"}"#, Some("decode_rate")),
            (r#"{"slots": 1}"#, None),
            (r#"{"url": "https://a", "slotz": 1}"#, None),
        ] {
            let error = wrong_field::<AddReplica>(json.as_bytes());
            let named = error.as_ref().and_then(|error| match error {
                AdminError::Invalid { param, .. } => param.as_deref(),
                _ => None,
            });
            assert_eq!(named, field, "{json}: {error:?}");
        }
    }

    #[test]
    fn wrong_values_name_their_field() {
        for (json, word) in [
            (r#"{"slots": 0}"#, "from 1 to 1024"),
            (r#"{"slotz": 1}"#, "slotz"),
            (r#"{"dialect": "vllm"}"#, "one of llama"),
            (r#"{"expires_at": 1795996149000000}"#, "from 0 to"),
            (r#"{"name": "a b"}"#, "1 to 128"),
            (r#"{"api_key": "a\nb"}"#, "visible"),
            (
                r#"{"models": ["\u001b[2J"]}"#,
                "models must be names of 1 to 256 letters, none of them a control character",
            ),
            (r#"{"labels": {"room": "\u001b[2J"}}"#, "labels must have names of 1 to 256 letters"),
            (r#"{"labels": {"": "x"}}"#, "labels must have names"),
            (r#"{"cost_acu_per_day": -1}"#, "from 0 to 1000000"),
            (r#"{"decode_rate": 0}"#, "from 0.01 to 1000000"),
        ] {
            let error = amend(json).unwrap_err();
            assert!(error.to_string().contains(word), "{json}: {error}");
        }
    }
}
