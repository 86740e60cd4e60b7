//! `POST /admin/register`: the `CALLBACK_URL` of the phones' apps.
//!
//! The only route that is for phones, and the only one with rules of its own. It has no host names, origins or content types to
//! check: those protect an operator's browser, which holds nothing that counts here. A page that does not know the token gets
//! nowhere, and one that does needs no browser; phones call by whatever name the operator gave them, and many send no content
//! type. It is on the operator's listener, and, so that nothing else of that is in reach of the internet, on one of its own that
//! knows nothing but this (`registration.listen`).

use std::{net::IpAddr, sync::Arc};

use axum::{
    Extension, Json, Router,
    extract::{ConnectInfo, Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::{
    answer::{self, AdminError},
    connections::Peer,
    form::{self, AmendReplica, MaxBody},
    guard::{Caller, to_its_end},
    view::ErrorView,
};
use crate::{
    fleet::Amendment,
    registration::{Message, Refusal, Refused, Registrar, Taken},
};

/// Where phones call.
pub(super) const PATH: &str = "/admin/register";
/// Largest body. 16 KiB: a phone says where it is, who it is, and how it is.
pub(super) const MAX_BODY: usize = 16 << 10;

/// What a phone is told.
#[derive(Serialize, ToSchema)]
pub(super) struct RegisteredView {
    /// What became of it: `accepted`, `moved`, `known`, `leaving`, `error` or `heartbeat`.
    outcome: &'static str,
    /// Its replica's number; null: it named none that is known.
    id: Option<u32>,
    /// Its replica's name.
    name: Option<String>,
    /// How well it is known now: `token`, `signed` or `assigned`.
    verification: Option<&'static str>,
}

impl From<Taken> for RegisteredView {
    fn from(taken: Taken) -> Self {
        let replica = taken.replica.as_ref();
        Self {
            outcome: taken.outcome,
            id: replica.map(|replica| replica.id.0),
            name: replica.map(|replica| replica.label.to_string()),
            verification: replica.map(|replica| replica.origin.verification.name()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let body = json!({
            "error": { "message": self.to_string(), "type": kind, "param": self.field(), "code": self.code() }
        });
        let mut response = (status, Json(body)).into_response();
        if let Some(wait) = self.retry_after() {
            let seconds = wait.as_secs().clamp(1, 60);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A phone announces itself: the `CALLBACK_URL` of the example apps. Carries `registration.token` instead of the admin token.
#[utoipa::path(post, path = "/admin/register", tag = "replicas",
    params(("token" = String, Query, description = "registration.token"),
        ("X-PublicKey" = Option<String>, Header, description = "Ed25519 key, in hex, of a call that is signed"),
        ("X-Signature" = Option<String>, Header, description = "Over the lines huntgroup-registration-v1, X-Timestamp and X-Nonce, and the body behind them; in hex"),
        ("X-Timestamp" = Option<String>, Header, description = "Seconds or milliseconds since 1970"),
        ("X-Nonce" = Option<String>, Header, description = "8 to 64 of a-z, A-Z, 0-9, '-', '_'; another one each time")),
    request_body(content = Object, description = "`{\"event\": \"started\", \"url\": …}` (also `webUrl`, `data.url`); later `ready`, \
        `heartbeat`, `error`, `leaving`; optional `deployment`, `processor`, `replica`, `report`. Any content type"),
    responses((status = 201, description = "A new replica", body = RegisteredView),
        (status = 200, description = "Its replica is known", body = RegisteredView),
        (status = 202, description = "Noted; it named no replica that is known", body = RegisteredView),
        (status = 400, body = ErrorView), (status = 401, body = ErrorView), (status = 403, body = ErrorView),
        (status = 404, description = "Registration is off, or a heartbeat of a phone that is not known", body = ErrorView),
        (status = 409, body = ErrorView), (status = 413, body = ErrorView), (status = 429, body = ErrorView)))]
pub(super) async fn register(
    State(registrar): State<Arc<Registrar>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let peer = caller.peer.ip();
    let ended = take(&registrar, peer, request).await;
    registrar.account(peer, &ended);
    match ended {
        Ok(taken) => {
            let status = match (&taken.replica, taken.outcome) {
                (None, _) => StatusCode::ACCEPTED,
                (Some(_), "accepted") => StatusCode::CREATED,
                (Some(_), _) => StatusCode::OK,
            };
            (status, Json(RegisteredView::from(taken))).into_response()
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn take(registrar: &Registrar, peer: IpAddr, request: Request) -> Result<Taken, Refusal> {
    let admitted = registrar.admit(peer, request.uri().query())?;
    let headers = request.headers().clone();
    let body = form::bytes(request, &()).await.map_err(|error| match error {
        AdminError::TooLarge { max } => Refusal::TooLarge { max },
        _ => Refusal::BodyLost,
    })?;
    let message = Message::read(&body)?;
    let stated = message.replica.clone().map(stated).transpose()?.unwrap_or_default();
    registrar.take(&admitted, &headers, &body, &message, stated).await
}

/// What `replica` may hold, and the path of each in messages.
const FIELDS: [(&str, &str); 10] = [
    ("models", "replica.models"),
    ("slots", "replica.slots"),
    ("context_tokens", "replica.context_tokens"),
    ("api_key", "replica.api_key"),
    ("dialect", "replica.dialect"),
    ("labels", "replica.labels"),
    ("expires_at", "replica.expires_at"),
    ("cost_acu_per_day", "replica.cost_acu_per_day"),
    ("prefill_rate", "replica.prefill_rate"),
    ("decode_rate", "replica.decode_rate"),
];

/// What a phone states about its replica: as an operator may, but for its name, which is the operator's.
///
/// # Errors
/// The first field that is wrong, or what else `replica` holds. Never repeats it: the reader's own words would.
fn stated(replica: serde_json::Value) -> Result<Amendment, Refusal> {
    let refuse = |field, why: String| Err(Refusal::Stated { field, why });
    let serde_json::Value::Object(fields) = &replica else {
        return refuse("replica", "must be an object".into());
    };
    if fields.contains_key("name") {
        return refuse("replica.name", "is the operator's to give".into());
    }
    for (name, value) in fields {
        let Some((_, path)) = FIELDS.iter().find(|(known, _)| known == name) else {
            let known = FIELDS.map(|(known, _)| known).join(", ");
            return refuse("replica", format!("holds something that it may not; it may hold {known}"));
        };
        let alone = serde_json::Value::Object([(name.clone(), value.clone())].into_iter().collect());
        let Ok(form) = serde_json::from_value::<AmendReplica>(alone) else {
            return refuse(path, "is not of the type, or in the range, that it has in POST /admin/replicas".into());
        };
        if let Err(error) = form.stated.read() {
            return refuse(path, error.what());
        }
    }
    let whole = serde_json::from_value::<AmendReplica>(replica).ok().and_then(|form| form.stated.read().ok());
    whole.map_or_else(|| refuse("replica", "can't be read".into()), Ok)
}

/// Refused calls.
#[derive(Serialize, ToSchema)]
pub(crate) struct RefusedList {
    /// Always `list`.
    object: &'static str,
    /// The latest first, at most 20.
    data: Vec<RefusedView>,
}

/// Calls that were refused for the same reason. It is in the gateway's words; nothing of it was sent by a phone, but for numbers.
#[derive(Serialize, ToSchema)]
pub(crate) struct RefusedView {
    /// Why, as the phones were answered: `error.code`.
    reason: &'static str,
    /// The field of the body, or the header, that was wrong; null: it is not one alone.
    field: Option<&'static str>,
    /// What was wrong, and what would be right.
    message: String,
    /// The address that called last.
    peer: String,
    /// How many there were since the start of the process.
    count: u64,
    /// The first, in seconds since 1970.
    first_at: f64,
    /// The last, in seconds since 1970.
    last_at: f64,
}

impl From<Refused> for RefusedView {
    fn from(refused: Refused) -> Self {
        Self {
            reason: refused.code,
            field: refused.field,
            message: refused.message,
            peer: refused.peer.to_string(),
            count: refused.count,
            first_at: refused.first_ms as f64 / 1e3,
            last_at: refused.last_ms as f64 / 1e3,
        }
    }
}

/// The latest first.
pub(super) fn refused_now(registrar: &Registrar) -> Vec<RefusedView> {
    registrar.refused().into_iter().map(RefusedView::from).collect()
}

/// Which phones' announcements were refused lately, and why: the last 20 kinds of refusals since the start of the process.
#[utoipa::path(get, path = "/admin/registrations/refused", tag = "replicas",
    responses((status = 200, description = "The latest first", body = RefusedList)))]
pub(super) async fn refused(State(registrar): State<Arc<Registrar>>) -> Json<RefusedList> {
    Json(RefusedList { object: "list", data: refused_now(&registrar) })
}

/// The listener that knows this route and nothing else.
pub(super) fn router(registrar: Arc<Registrar>) -> Router {
    Router::new()
        .route(PATH, post(register).layer(Extension(MaxBody(MAX_BODY))))
        .fallback(async || AdminError::NotFound(format!("phones call POST {PATH} here; nothing else is")))
        .method_not_allowed_fallback(answer::no_such_method)
        .layer(axum::middleware::from_fn(door))
        .with_state(registrar)
}

async fn door(ConnectInfo(Peer { address, .. }): ConnectInfo<Peer>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Caller { peer: address });
    let mut response = to_its_end(next.run(request)).await;
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_statement_names_its_field_and_repeats_nothing_of_it() {
        for (replica, field, word) in [
            (json!({"slots": 0}), "replica.slots", "from 1 to 1024, not 0"),
            (json!({"slots": 70_000}), "replica.slots", "range"),
            (json!({"slots": "secret"}), "replica.slots", "type"),
            (json!({"models": "secret"}), "replica.models", "type"),
            (json!({"models": ["\u{1b}[2J"]}), "replica.models", "control character"),
            (json!({"labels": {"secret": 7}}), "replica.labels", "type"),
            (json!({"decode_rate": -1}), "replica.decode_rate", "from 0.01"),
            (json!({"name": "secret"}), "replica.name", "operator's"),
            (json!({"secret": 1}), "replica", "it may hold models, slots"),
            (json!([1]), "replica", "object"),
        ] {
            let refusal = stated(replica.clone()).unwrap_err();
            assert_eq!(refusal.field(), Some(field), "{replica}");
            let text = refusal.to_string();
            assert!(text.starts_with(field) && text.contains(word) && !text.contains("secret"), "{replica}: {text}");
        }
        assert!(stated(json!({"slots": 4, "models": ["a"], "labels": null})).is_ok());
    }
}
