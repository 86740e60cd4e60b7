//! The audit trail.

use axum::{Json, extract::State};
use serde::Deserialize;

use super::{
    Shared,
    answer::AdminError,
    form::Asked,
    view::{AuditList, AuditView, ErrorView},
};

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 999;

/// Which part of the trail.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AuditQuery {
    limit: Option<String>,
    before: Option<String>,
}

fn number<T: std::str::FromStr>(param: &str, text: Option<&str>) -> Result<Option<T>, AdminError> {
    text.map(|text| text.parse().map_err(|_| AdminError::invalid(param, "must be a whole number"))).transpose()
}

/// Every change that was made: who, when, what.
#[utoipa::path(get, path = "/admin/audit", tag = "process",
    params(("limit" = Option<usize>, Query, description = "1 to 999; 100 if left out"),
        ("before" = Option<u64>, Query, description = "Only changes with a smaller number")),
    responses((status = 200, description = "The newest first", body = AuditList), (status = 400, body = ErrorView)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Asked(query): Asked<AuditQuery>,
) -> Result<Json<AuditList>, AdminError> {
    let limit = number("limit", query.limit.as_deref())?.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(AdminError::invalid("limit", format!("must be from 1 to {MAX_LIMIT}")));
    }
    let before = number("before", query.before.as_deref())?;
    // One more than asked for tells whether there is more.
    let mut records = shared.keep(move |store| store.audit(before, limit + 1)).await?;
    let has_more = records.len() > limit;
    records.truncate(limit);
    Ok(Json(AuditList { object: "list", data: records.into_iter().map(AuditView::from).collect(), has_more }))
}
