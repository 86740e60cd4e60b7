//! What the admin API takes: bodies read strictly, with errors that name the field.

use std::collections::BTreeMap;

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request, rejection::BytesRejection},
    http::{StatusCode, request::Parts},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use store::KeyLimits;
use utoipa::ToSchema;

use super::answer::AdminError;
use crate::{
    config::{RATES, Secret, StatedModels, is_replica_name},
    fleet::{Amendment, Dialect},
};

/// Letters in a name, a label or a model. 256: the longest file name.
const MAX_TEXT: usize = 256;
/// Labels of one replica.
const MAX_LABELS: usize = 32;
/// Models of one replica.
const MAX_MODELS: usize = 64;

/// A JSON body.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = AdminError;

    async fn from_request(request: Request, state: &S) -> Result<Self, AdminError> {
        let body = bytes(request, state).await?;
        let mut reader = serde_json::Deserializer::from_slice(&body);
        let value = T::deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
        value.map(Self).map_err(misread)
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
        serde_json::from_slice(&body).map(Self).map_err(misread)
    }
}

pub(super) async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, AdminError> {
    Bytes::from_request(request, state).await.map_err(|rejection: BytesRejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE { AdminError::TooLarge } else { AdminError::BodyLost }
    })
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
            return Err(AdminError::invalid("models", format!("a replica has at most {MAX_MODELS} models")));
        }
        for name in models.keys().chain(models.values().flatten()) {
            check_text("models", name)?;
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
    /// Free words; replaces all of them.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub(super) labels: Option<Option<BTreeMap<String, String>>>,
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
            labels: self.labels.map(|labels| read_labels(labels.unwrap_or_default())).transpose()?,
            expires_at: self.expires_at,
            cost_acu_per_day: self.cost_acu_per_day,
            prefill_rate: self.prefill_rate,
            decode_rate: self.decode_rate,
        })
    }
}

fn check_text(param: &str, text: &str) -> Result<(), AdminError> {
    let letters = text.chars().count();
    if text.trim().is_empty() || letters > MAX_TEXT || text.chars().any(char::is_control) {
        let why = format!("must have 1 to {MAX_TEXT} letters, none of them a control character");
        return Err(AdminError::invalid(param, why));
    }
    Ok(())
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

fn read_labels(labels: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, AdminError> {
    if labels.len() > MAX_LABELS {
        return Err(AdminError::invalid("labels", format!("a replica has at most {MAX_LABELS} labels")));
    }
    for (name, value) in &labels {
        check_text("labels", name)?;
        if !value.is_empty() {
            check_text("labels", value)?;
        }
    }
    Ok(labels)
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
    pub(super) fn read(&self) -> Result<Option<std::time::Duration>, AdminError> {
        let Some(seconds) = self.deadline_s else { return Ok(None) };
        if !(0.0..=604_800.0).contains(&seconds) {
            return Err(AdminError::invalid("deadline_s", "must be from 0 to 604800 (a week)"));
        }
        Ok(Some(std::time::Duration::from_secs_f64(seconds)))
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
        serde_json::from_str::<AmendReplica>(json).map_err(misread)?.stated.read()
    }

    #[test]
    fn null_takes_back_and_nothing_leaves() {
        let amendment = amend(r#"{"slots": null, "labels": null, "context_tokens": 4096}"#).unwrap();
        assert_eq!(amendment.slots, Some(None));
        assert_eq!(amendment.context_tokens, Some(Some(4096)));
        assert_eq!(amendment.labels, Some(BTreeMap::new()));
        assert_eq!(amendment.expires_at, None);
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

    #[test]
    fn wrong_values_name_their_field() {
        for (json, word) in [
            (r#"{"slots": 0}"#, "from 1 to 1024"),
            (r#"{"slotz": 1}"#, "slotz"),
            (r#"{"dialect": "vllm"}"#, "one of llama"),
            (r#"{"expires_at": 1795996149000000}"#, "from 0 to"),
            (r#"{"name": "a b"}"#, "1 to 128"),
            (r#"{"api_key": "a\nb"}"#, "visible"),
            (r#"{"models": ["\u001b[2J"]}"#, "control character"),
            (r#"{"cost_acu_per_day": -1}"#, "from 0 to 1000000"),
            (r#"{"decode_rate": 0}"#, "from 0.01 to 1000000"),
        ] {
            let error = amend(json).unwrap_err();
            assert!(error.to_string().contains(word), "{json}: {error}");
        }
    }
}
