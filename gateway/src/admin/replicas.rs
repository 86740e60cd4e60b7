//! Replicas: list, add, change, drain, remove.

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use store::ReplicaSource;

use super::{
    Shared,
    answer::AdminError,
    form::{AddReplica, AmendReplica, Asked, Body, Drain, Id, OptionalBody},
    guard::Caller,
    view::{ChangedView, ErrorView, RemovedView, ReplicaList, ReplicaView},
};
use crate::fleet::{Added, Changed, Comeback, Replica};

impl Shared {
    /// The replica that a path names by number, name or address.
    fn find(&self, name: &str) -> Result<std::sync::Arc<Replica>, AdminError> {
        let not_found = || {
            let shown: String = name.chars().take(200).collect();
            AdminError::NotFound(format!("no replica has the number, name or url {shown:?}"))
        };
        self.app.fleet.find(name).ok_or_else(not_found)
    }

    fn view(&self, replica: &Replica) -> ReplicaView {
        ReplicaView::new(replica, &self.app)
    }

    fn changed(&self, Changed { replica, changed }: &Changed) -> ChangedView {
        ChangedView { changed: *changed, replica: self.view(replica) }
    }
}

/// All replicas.
#[utoipa::path(get, path = "/admin/replicas", tag = "replicas",
    responses((status = 200, description = "All replicas", body = ReplicaList)))]
pub(super) async fn list(State(shared): State<Shared>) -> Json<ReplicaList> {
    let data = shared.app.fleet.replicas().iter().map(|replica| shared.view(replica)).collect();
    Json(ReplicaList { object: "list", data })
}

/// One replica.
#[utoipa::path(get, path = "/admin/replicas/{id}", tag = "replicas",
    params(("id" = String, Path, description = "Number, name, or percent-encoded url")),
    responses((status = 200, description = "The replica", body = ReplicaView), (status = 404, body = ErrorView)))]
pub(super) async fn get(State(shared): State<Shared>, Id(id): Id) -> Result<Json<ReplicaView>, AdminError> {
    Ok(Json(shared.view(&*shared.find(&id)?)))
}

/// Adds a replica, or states the one at this url anew.
#[utoipa::path(post, path = "/admin/replicas", tag = "replicas", request_body = AddReplica,
    responses((status = 201, description = "It is new", body = ReplicaView),
        (status = 200, description = "It was there; what was stated differently is taken over", body = ReplicaView),
        (status = 400, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn add(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Body(form): Body<AddReplica>,
) -> Result<Response, AdminError> {
    let AddReplica { url, stated } = form;
    let added = shared.app.fleet.add(&url, stated.read()?, ReplicaSource::Admin, shared.by(&caller)).await?;
    let status = if matches!(added, Added::New(_)) { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = (status, Json(shared.view(added.replica()))).into_response();
    if let Ok(location) = HeaderValue::try_from(format!("/admin/replicas/{}", added.replica().id.0)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Changes what is stated about a replica.
#[utoipa::path(patch, path = "/admin/replicas/{id}", tag = "replicas", request_body = AmendReplica,
    params(("id" = String, Path, description = "Number, name, or percent-encoded url")),
    responses((status = 200, description = "The replica as it is now", body = ChangedView),
        (status = 400, body = ErrorView), (status = 404, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn amend(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    Body(form): Body<AmendReplica>,
) -> Result<Json<ChangedView>, AdminError> {
    let amendment = form.stated.read_change()?;
    let id = shared.find(&id)?.id;
    let changed = shared.app.fleet.amend(id, amendment, shared.by(&caller)).await?;
    Ok(Json(shared.changed(&changed)))
}

/// Starts nothing new there; what runs may end.
#[utoipa::path(post, path = "/admin/replicas/{id}/drain", tag = "replicas", request_body = Option<Drain>,
    params(("id" = String, Path, description = "Number, name, or percent-encoded url")),
    responses((status = 200, description = "It is draining; `drained` says whether it is empty", body = ChangedView),
        (status = 404, body = ErrorView)))]
pub(super) async fn drain(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    OptionalBody(form): OptionalBody<Drain>,
) -> Result<Json<ChangedView>, AdminError> {
    let deadline = form.read()?;
    let id = shared.find(&id)?.id;
    let changed = shared.app.fleet.drain(id, deadline, shared.by(&caller)).await?;
    Ok(Json(shared.changed(&changed)))
}

/// Takes a drain back.
#[utoipa::path(post, path = "/admin/replicas/{id}/undrain", tag = "replicas",
    params(("id" = String, Path, description = "Number, name, or percent-encoded url")),
    responses((status = 200, description = "It takes work again", body = ChangedView), (status = 404, body = ErrorView)))]
pub(super) async fn undrain(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
) -> Result<Json<ChangedView>, AdminError> {
    let id = shared.find(&id)?.id;
    let changed = shared.app.fleet.undrain(id, shared.by(&caller)).await?;
    Ok(Json(shared.changed(&changed)))
}

/// Lets a replica out of quarantine that has not shown what it can do: an operator has looked at it.
#[utoipa::path(post, path = "/admin/replicas/{id}/release", tag = "replicas",
    params(("id" = String, Path, description = "Number, name, or percent-encoded url")),
    responses((status = 200, description = "It takes work, if it is well; `changed` says whether it was in quarantine", body = ChangedView),
        (status = 404, body = ErrorView),
        (status = 409, description = "It is known less well than `registration.min_verification` asks for", body = ErrorView)))]
pub(super) async fn release(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
) -> Result<Json<ChangedView>, AdminError> {
    let id = shared.find(&id)?.id;
    let changed = shared.app.fleet.release(id, shared.by(&caller)).await?;
    Ok(Json(shared.changed(&changed)))
}

/// How to remove.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct RemoveQuery {
    force: Option<String>,
}

impl RemoveQuery {
    fn read(&self) -> Result<bool, AdminError> {
        match self.force.as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(_) => Err(AdminError::invalid("force", "must be true or false")),
        }
    }
}

/// Removes a replica: drained first, or at once with `force`.
#[utoipa::path(delete, path = "/admin/replicas/{id}", tag = "replicas",
    params(("id" = String, Path, description = "Number, name, or percent-encoded url"),
        ("force" = Option<bool>, Query, description = "At once: what runs there fails over or ends with an error")),
    responses((status = 200, description = "It is gone", body = RemovedView),
        (status = 202, description = "It is draining and goes once it is empty", body = RemovedView),
        (status = 404, body = ErrorView)))]
pub(super) async fn remove(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    Asked(query): Asked<RemoveQuery>,
) -> Result<(StatusCode, Json<RemovedView>), AdminError> {
    let force = query.read()?;
    let replica = shared.find(&id)?;
    let id = replica.id;
    let chain_is_read = shared.app.chain.status().node.is_some();
    let comes_back = shared.app.fleet.comes_back(&replica, chain_is_read);
    let removal = shared.app.fleet.remove(id, force, shared.by(&caller)).await?;
    let status = if removal.gone { StatusCode::OK } else { StatusCode::ACCEPTED };
    let notes: Vec<_> = comes_back.into_iter().map(Comeback::note).collect();
    let note = (!notes.is_empty()).then(|| notes.join(". "));
    Ok((status, Json(RemovedView { id: id.0, deleted: removal.gone, note })))
}
