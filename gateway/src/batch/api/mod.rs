//! What clients see of files and batches: the calls of the OpenAI Files and Batch API, and their objects.
//!
//! | file | holds |
//! |---|---|
//! | `upload`, `form`, `filename` | a file on its way in |
//! | `files`, `content`, `range` | files that are there |
//! | `batches` | making, showing and ending batches |
//! | `query`, `id` | what stands behind a path, and in it |
//! | `view` | the objects |
//! | `error` | every way to say no |
//!
//! Every call is one of a tenant: what is another's is not there.

mod batches;
mod content;
mod error;
mod filename;
mod files;
mod form;
mod id;
mod query;
mod range;
mod upload;
pub mod view;

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

pub use self::error::BatchError;
use crate::{
    auth::Tenant,
    error::ApiError,
    gateway::Gateway,
    listener::{Admitted, BatchesCall, Exchange, FilesCall, Target},
    ratelimit::Permit,
    refusal::Stop,
    relay::head::{self, Facts},
    telemetry::{CallRecord, names},
};

/// How long a file can be told to stay, in seconds. An hour to 30 days.
const STAY: std::ops::RangeInclusive<u64> = 3_600..=2_592_000;

/// One call, when it is known whose it is.
struct Call<'a> {
    gateway: &'a Arc<Gateway>,
    exchange: &'a mut Exchange,
    admitted: &'a Admitted,
    tenant: &'a Tenant,
    permit: &'a Permit,
    record: &'a mut CallRecord,
}

/// Answers a call about files or batches.
pub async fn answer(gateway: &Arc<Gateway>, exchange: &mut Exchange, admitted: &Admitted) {
    let name = match &admitted.target {
        Target::Files(call) => call.name(),
        Target::Batches(call) => call.name(),
        // The gateway sends no others here.
        _ => return,
    };
    let mut record = CallRecord::new(Arc::clone(&gateway.telemetry), Arc::clone(exchange.id()), name);
    let mut permit = None;
    match answer_to(gateway, exchange, admitted, &mut record, &mut permit).await {
        Ok(()) => record.ended(200, names::OUTCOME_OK),
        Err(Stop::Gone) => {}
        Err(Stop::Refused(error) | Stop::Broken(error, _)) => {
            record.ended(error.status(), error.outcome());
            if exchange.head_sent() {
                // Without its end nobody takes it for whole.
                tracing::warn!(request = %exchange.id(), %error, "the content of a file broke off");
            } else {
                gateway.refuse(exchange, None, &error, permit.as_ref()).await;
            }
        }
    }
}

async fn answer_to(
    gateway: &Arc<Gateway>,
    exchange: &mut Exchange,
    admitted: &Admitted,
    record: &mut CallRecord,
    permit: &mut Option<Permit>,
) -> Result<(), Stop> {
    let tenant = gateway.authenticate(exchange)?;
    record.identify(Arc::clone(&tenant.name));
    let permit = permit.insert(gateway.limiter.admit(&tenant).map_err(ApiError::from)?);
    let call = Call { gateway, exchange, admitted, tenant: &tenant, permit, record };
    match &admitted.target {
        Target::Files(FilesCall::Upload) => call.upload().await,
        Target::Files(FilesCall::List) => call.list_files().await,
        Target::Files(FilesCall::Retrieve(id)) => call.retrieve_file(id).await,
        Target::Files(FilesCall::Delete(id)) => call.delete_file(id).await,
        Target::Files(FilesCall::Content(id)) => call.file_content(id).await,
        Target::Batches(BatchesCall::Create) => call.create_batch().await,
        Target::Batches(BatchesCall::List) => call.list_batches().await,
        Target::Batches(BatchesCall::Retrieve(id)) => call.retrieve_batch(id).await,
        Target::Batches(BatchesCall::Cancel(id)) => call.cancel_batch(id).await,
        _ => Ok(()),
    }
}

impl Call<'_> {
    fn facts(&self) -> Facts<'_> {
        Facts { id: self.exchange.id(), permit: Some(self.permit) }
    }

    fn owner(&self) -> String {
        self.tenant.name.to_string()
    }

    async fn respond(self, object: &impl Serialize) -> Result<(), Stop> {
        let head = head::plain(200, &self.facts());
        // Strings, numbers and maps of them always serialise.
        let body = serde_json::to_vec(object).map_err(|_| ApiError::Internal)?;
        Ok(self.exchange.respond(head, [Bytes::from(body)]).await?)
    }
}
