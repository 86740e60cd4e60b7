//! Batches of all tenants: how far they are, and ending one.

use axum::{Extension, Json, extract::State};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{BatchRecord, PageOf, StoreError};
use utoipa::ToSchema;

use super::{Shared, answer::AdminError, form::Asked, form::Id, guard::Caller, now, view::ErrorView};
use crate::batch::{
    BatchError, Progress,
    api::view::{BatchView, whole_seconds},
};

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 999;

/// Batches.
#[derive(Serialize, ToSchema)]
pub(super) struct BatchList {
    /// Always `list`.
    object: &'static str,
    /// The newest first.
    data: Vec<OperatorsBatch>,
    /// There is more: ask with `after` set to the last id.
    has_more: bool,
}

/// A batch as its tenant sees it, whose it is, and how it gets on.
#[derive(Serialize, ToSchema)]
pub(super) struct OperatorsBatch {
    #[serde(flatten)]
    stated: BatchView,
    /// Whose.
    tenant: String,
    /// How it gets on; null once it has ended.
    progress: Option<ProgressView>,
}

/// How a batch gets on, as of the last second.
#[derive(Serialize, ToSchema)]
pub(super) struct ProgressView {
    /// Lines on their way, in the queue or on a replica.
    running: u32,
    /// Why none is, though some could be: `replica` (none serves its model), `hours` (`batches.hours`), `memory` or `disk`.
    waiting_for: Option<&'static str>,
    /// Lines that ended a second, over the last minutes; null until some have.
    lines_per_second: Option<f64>,
    /// Until all lines have results, at that pace or at the replicas' measured speeds; null if nobody can say.
    seconds_left: Option<u64>,
    /// How urgent its lines are now: `batch`, or `standard` when its time is short.
    class: Option<&'static str>,
    /// Lines with results, of all its lines, from 0 to 1; null until they were looked at.
    done_share: Option<f64>,
}

impl OperatorsBatch {
    fn new(batch: BatchRecord, progress: Progress) -> Self {
        let counts = batch.counts;
        let done = f64::from(counts.completed) + f64::from(counts.failed);
        let shown = ProgressView {
            running: progress.running,
            waiting_for: progress.waits_for.map(|what| what.name()),
            lines_per_second: progress.rate.map(|rate| (rate * 1e3).round() / 1e3),
            seconds_left: progress.left.map(whole_seconds),
            class: progress.class.map(|class| class.name()),
            done_share: (counts.total > 0).then(|| done / f64::from(counts.total)),
        };
        Self {
            tenant: batch.tenant.clone(),
            progress: (!batch.state.is_terminal()).then_some(shown),
            stated: BatchView::from(batch),
        }
    }
}

/// Which batches.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BatchQuery {
    state: Option<String>,
    tenant: Option<String>,
    limit: Option<String>,
    after: Option<String>,
}

/// A query that was understood.
struct Wanted {
    open: bool,
    tenant: Option<String>,
    page: PageOf,
}

impl BatchQuery {
    fn read(self) -> Result<Wanted, AdminError> {
        let open = match self.state.as_deref() {
            None | Some("open") => true,
            Some("all") => false,
            Some(_) => return Err(AdminError::invalid("state", "must be open or all")),
        };
        let limit = self.limit.map_or(Some(DEFAULT_LIMIT), |text| text.parse().ok());
        let limit = limit.filter(|limit| (1..=MAX_LIMIT).contains(limit));
        let limit = limit
            .ok_or_else(|| AdminError::invalid("limit", format!("must be a whole number from 1 to {MAX_LIMIT}")))?;
        Ok(Wanted { open, tenant: self.tenant, page: PageOf { after: self.after, limit, ascending: false } })
    }
}

impl Shared {
    fn batch(&self, batch: BatchRecord) -> OperatorsBatch {
        let progress = self.app.batches.progress(batch.key);
        OperatorsBatch::new(batch, progress)
    }

    async fn batches(&self, wanted: Wanted) -> Result<(Vec<BatchRecord>, bool), StoreError> {
        let Wanted { open, tenant, page } = wanted;
        if !open {
            let found = self.app.batches.ask(move |store| store.batches(tenant.as_deref(), page)).await?;
            return Ok((found.entries, found.more));
        }
        self.app
            .batches
            .ask(move |store| {
                // It may have ended since the page before.
                let after = page.after.map(|id| store.batch(tenant.as_deref(), &id)).transpose()?;
                let mut open = store.open_batches()?;
                open.retain(|batch| {
                    let of_tenant = tenant.as_ref().is_none_or(|tenant| batch.tenant == *tenant);
                    of_tenant && after.as_ref().is_none_or(|after| batch.key < after.key)
                });
                open.reverse();
                let more = open.len() > page.limit;
                open.truncate(page.limit);
                Ok((open, more))
            })
            .await
    }
}

/// Batches of all tenants.
#[utoipa::path(get, path = "/admin/batches", tag = "batches",
    params(("state" = Option<String>, Query, description = "`open`: those that have not ended (the default); `all`"),
        ("tenant" = Option<String>, Query, description = "Only this tenant's"),
        ("limit" = Option<usize>, Query, description = "1 to 999; 100 if left out"),
        ("after" = Option<String>, Query, description = "The id that the page before ended with")),
    responses((status = 200, description = "The newest first", body = BatchList), (status = 400, body = ErrorView)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Asked(query): Asked<BatchQuery>,
) -> Result<Json<BatchList>, AdminError> {
    let found = shared.batches(query.read()?).await;
    let (batches, has_more) = found.map_err(|error| match error {
        StoreError::UnknownBatch(_) => {
            AdminError::invalid("after", "must be the id of a batch that this list can have")
        }
        error => BatchError::from(error).into(),
    })?;
    let data = batches.into_iter().map(|batch| shared.batch(batch)).collect();
    Ok(Json(BatchList { object: "list", data, has_more }))
}

/// One batch.
#[utoipa::path(get, path = "/admin/batches/{id}", tag = "batches",
    params(("id" = String, Path, description = "`batch_…`")),
    responses((status = 200, description = "The batch", body = OperatorsBatch), (status = 404, body = ErrorView)))]
pub(super) async fn get(State(shared): State<Shared>, Id(id): Id) -> Result<Json<OperatorsBatch>, AdminError> {
    let batch = shared.app.batches.ask(move |store| store.batch(None, &id)).await.map_err(BatchError::from)?;
    Ok(Json(shared.batch(batch)))
}

/// Ends a batch: no further line is begun, and what has results by now is written to its files. Once more is no error.
#[utoipa::path(post, path = "/admin/batches/{id}/cancel", tag = "batches",
    params(("id" = String, Path, description = "`batch_…`")),
    responses((status = 200, description = "It is cancelling", body = OperatorsBatch), (status = 404, body = ErrorView),
        (status = 409, description = "It has ended, or all its lines have results", body = ErrorView)))]
pub(super) async fn cancel(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
) -> Result<Json<OperatorsBatch>, AdminError> {
    let cancelled = shared.app.batches.ask(move |store| {
        let open = store.batch(None, &id)?.seal.is_none();
        Ok((store.cancel_batch(None, &id, now())?, open))
    });
    let (batch, is_new) = cancelled.await.map_err(BatchError::from)?;
    shared.app.batches.wake();
    if is_new {
        let (by, target, detail) = (shared.by(&caller), batch.id.clone(), json!({ "tenant": batch.tenant }));
        shared.keep(move |store| store.note(by, "batch.cancel".into(), target, detail)).await?;
    }
    Ok(Json(shared.batch(batch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_what_is_wrong_with_it() {
        let read = |json| serde_json::from_value::<BatchQuery>(json).unwrap().read();
        let usual = read(json!({})).unwrap();
        assert!(usual.open && usual.tenant.is_none() && usual.page.limit == DEFAULT_LIMIT && !usual.page.ascending);
        assert!(!read(json!({ "state": "all" })).unwrap().open);
        for (query, field) in [
            (json!({ "state": "failed" }), "state"),
            (json!({ "limit": "0" }), "limit"),
            (json!({ "limit": "1000" }), "limit"),
            (json!({ "limit": "ten" }), "limit"),
        ] {
            let error = read(query).map(drop).unwrap_err();
            assert!(matches!(&error, AdminError::Invalid { param: Some(param), .. } if param == field), "{error}");
        }
    }
}
