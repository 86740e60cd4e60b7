//! Tenants' API keys: made, listed, revoked.

use std::sync::Arc;

use axum::{Extension, Json, extract::State, http::StatusCode};
use scheduler::Class;
use store::StoreError;

use super::{
    Shared,
    answer::AdminError,
    form::{Body, CreateKey, Id},
    guard::Caller,
    view::{ErrorView, KeyList, KeyView, NewKeyView},
};
use crate::auth::{AuthSetupError, KeyRequest};

impl From<AuthSetupError> for AdminError {
    fn from(error: AuthSetupError) -> Self {
        match error {
            AuthSetupError::Store(StoreError::UnknownKey(_)) => Self::NotFound("no key has that number".into()),
            AuthSetupError::Store(error) => Self::Store(error),
            AuthSetupError::TenantName(_) => Self::invalid("tenant", error.to_string()),
            AuthSetupError::NoRandomness(_) | AuthSetupError::UnknownClass { .. } => Self::Ours(error.to_string()),
        }
    }
}

/// All keys, revoked ones too. The keys themselves are not known any more.
#[utoipa::path(get, path = "/admin/keys", tag = "keys",
    responses((status = 200, description = "All keys", body = KeyList)))]
pub(super) async fn list(State(shared): State<Shared>) -> Result<Json<KeyList>, AdminError> {
    let records = shared.keep(|store| store.keys()).await?;
    Ok(Json(KeyList { object: "list", data: records.iter().map(KeyView::from).collect() }))
}

/// Makes a key. It is shown once, in this answer.
#[utoipa::path(post, path = "/admin/keys", tag = "keys", request_body = CreateKey,
    responses((status = 201, description = "The key", body = NewKeyView), (status = 400, body = ErrorView)))]
pub(super) async fn create(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Body(form): Body<CreateKey>,
) -> Result<(StatusCode, Json<NewKeyView>), AdminError> {
    let request = read(form)?;
    let (auth, by) = (Arc::clone(&shared.app.auth), shared.by(&caller));
    let issued = shared.keep(move |store| Ok(auth.issue(store, by, request))).await??;
    let view = NewKeyView { key: issued.key.reveal().to_owned(), kept: KeyView::from(&issued.record) };
    Ok((StatusCode::CREATED, Json(view)))
}

fn read(form: CreateKey) -> Result<KeyRequest, AdminError> {
    let limits = form.limits();
    let positive = [
        ("requests_per_minute", limits.requests_per_minute),
        ("tokens_per_minute", limits.tokens_per_minute),
        ("max_in_flight", limits.max_in_flight),
        // Every request is in the queue for a moment.
        ("max_queued", limits.max_queued),
    ];
    if let Some((name, _)) = positive.into_iter().find(|(_, limit)| *limit == Some(0)) {
        return Err(AdminError::invalid(name, "must be 1 or more; leave it out for the tenant's own limit"));
    }
    let (class, max_class) =
        (read_class("class", form.class.as_deref())?, read_class("max_class", form.max_class.as_deref())?);
    if let (Some(class), Some(max_class)) = (class, max_class)
        && class < max_class
    {
        return Err(AdminError::invalid("class", "must not be more urgent than max_class"));
    }
    Ok(KeyRequest { tenant: form.tenant, models: form.models, limits, class, max_class })
}

fn read_class(param: &str, name: Option<&str>) -> Result<Option<Class>, AdminError> {
    let Some(name) = name else { return Ok(None) };
    let class = Class::ALL.into_iter().find(|class| class.name() == name);
    class.map(Some).ok_or_else(|| AdminError::invalid(param, "must be interactive, standard or batch"))
}

/// Ends a key, at once. Once more is no error.
#[utoipa::path(delete, path = "/admin/keys/{id}", tag = "keys",
    params(("id" = u32, Path, description = "The key's number")),
    responses((status = 200, description = "The key as it is now", body = KeyView), (status = 404, body = ErrorView)))]
pub(super) async fn revoke(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
) -> Result<Json<KeyView>, AdminError> {
    let id = id.parse().map_err(|_| AdminError::NotFound("no key has that number".into()))?;
    let (auth, by) = (Arc::clone(&shared.app.auth), shared.by(&caller));
    let revoked = shared.keep(move |store| Ok(auth.revoke(store, by, id))).await??;
    Ok(Json(KeyView::from(revoked.record())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_nothing_is_refused_and_names_its_field() {
        for field in ["requests_per_minute", "tokens_per_minute", "max_in_flight", "max_queued"] {
            let form = |limit: u32| serde_json::from_value(serde_json::json!({"tenant": "t", field: limit})).unwrap();
            let error = read(form(0)).map(drop).unwrap_err();
            assert!(matches!(&error, AdminError::Invalid { param: Some(param), .. } if param == field), "{error}");
            assert!(read(form(1)).is_ok() && read(form(u32::MAX)).is_ok());
        }
    }
}
