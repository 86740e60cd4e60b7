//! Files that are there.

use super::{
    Call, id,
    query::{Bounds, Query},
    view::{Deleted, FileObject, List},
};
use crate::{batch::BatchError, error::ApiError, refusal::Stop};

const BOUNDS: Bounds = Bounds {
    limit: 1..=10_000,
    usual: 10_000,
    expected: "a whole number from 1 to 10000",
    is_id: id::is_file,
    id: "the id of a file ('file-…')",
};

impl Call<'_> {
    /// `GET /v1/files`.
    pub(super) async fn list_files(self) -> Result<(), Stop> {
        let query = Query::new(self.exchange.head().uri.query());
        let page = query.page(&BOUNDS).map_err(ApiError::from)?;
        let purpose = query.purpose().map_err(ApiError::from)?;
        let owner = self.owner();
        let found = self.gateway.batches.ask(move |store| store.files(&owner, purpose, page)).await;
        let found = found.map_err(ApiError::from)?;
        let files = found.entries.into_iter().map(FileObject::from).collect();
        self.respond(&List::new(files, found.more)).await
    }

    /// `GET /v1/files/{id}`.
    pub(super) async fn retrieve_file(self, id: &str) -> Result<(), Stop> {
        let id = file_id(id)?;
        let owner = self.owner();
        let file = self.gateway.batches.ask(move |store| store.file(&owner, &id)).await.map_err(ApiError::from)?;
        self.respond(&FileObject::from(file)).await
    }

    /// `DELETE /v1/files/{id}`.
    pub(super) async fn delete_file(self, id: &str) -> Result<(), Stop> {
        let id = file_id(id)?;
        let (owner, gone) = (self.owner(), id.clone());
        self.gateway.batches.ask(move |store| store.delete_file(&owner, &gone)).await.map_err(ApiError::from)?;
        self.respond(&Deleted { id, object: "file", deleted: true }).await
    }
}

/// An id that there may be.
pub(super) fn file_id(text: &str) -> Result<String, ApiError> {
    if id::is_file(text) { Ok(text.to_owned()) } else { Err(BatchError::NoSuchFile(text.to_owned()).into()) }
}
