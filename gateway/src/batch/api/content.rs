//! The content of a file, or a part of it, as it is.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use pingora::http::ResponseHeader;
use store::{FileRecord, StoreError};

use super::{
    Call, filename, files,
    range::{self, Selection},
};
use crate::{
    batch::{BatchError, Batches},
    error::ApiError,
    listener::insert,
    refusal::Stop,
    relay::head::{self, Facts},
};

/// Read at once. 512 KiB: fewer would be more turns of the store's thread than needed, and a slow client holds so much.
const PIECE: u64 = 512 << 10;

impl Call<'_> {
    /// `GET /v1/files/{id}/content`.
    pub(super) async fn file_content(self, id: &str) -> Result<(), Stop> {
        self.gateway.spare_memory()?;
        let (owner, id) = (self.owner(), files::file_id(id)?);
        let batches = &self.gateway.batches;
        let file = batches.ask(move |store| store.file(&owner, &id)).await.map_err(ApiError::from)?;
        let is_head = self.exchange.head().method == http::Method::HEAD;
        // Ranges are for GET alone (RFC 9110, section 14.2).
        let selected = if is_head { Selection::Whole } else { selection(&self.exchange.head().headers, &file) };
        let (status, wanted) = match selected {
            Selection::Whole => (200, 0..file.bytes),
            Selection::Part(part) => (206, part),
            Selection::Outside => return Err(ApiError::from(BatchError::Range { length: file.bytes }).into()),
        };
        let mut head = content_head(status, &self.facts(), &file, wanted.end - wanted.start);
        if status == 206 {
            let range = format!("bytes {}-{}/{}", wanted.start, wanted.end - 1, file.bytes);
            put(&mut head, header::CONTENT_RANGE, range);
        }
        if is_head {
            self.exchange.begin(head).await?;
            return Ok(self.exchange.end().await?);
        }
        let mut held = self.gateway.hold();
        held.grow(PIECE.min(wanted.end - wanted.start) as usize)?;
        let mut at = wanted.start;
        // Read before the head goes out: while it has not, the answer can still be a refusal.
        let mut piece = read(batches, &file, at, wanted.end).await?;
        self.exchange.begin(head).await?;
        while !piece.is_empty() {
            at += piece.len() as u64;
            self.record.moved(piece.len() as u64);
            self.exchange.write(piece).await?;
            piece = read(batches, &file, at, wanted.end).await?;
        }
        Ok(self.exchange.end().await?)
    }
}

/// The next bytes before `end`; none there. Fewer than that would be a file that changed, which none does.
async fn read(batches: &Arc<Batches>, file: &FileRecord, at: u64, end: u64) -> Result<Bytes, ApiError> {
    let (key, length) = (file.key, (end - at).min(PIECE) as usize);
    if length == 0 {
        return Ok(Bytes::new());
    }
    match batches.ask(move |store| store.read_file(key, at, length)).await {
        Ok(piece) if piece.len() == length => Ok(piece.into()),
        // Deleted since.
        Ok(_) | Err(StoreError::UnknownFile(_)) => Err(BatchError::NoSuchFile(file.id.clone()).into()),
        Err(error) => Err(error.into()),
    }
}

/// A file never changes, so that its id tells all that a tag can.
fn tag(file: &FileRecord) -> String {
    format!("\"{}\"", file.id)
}

fn selection(headers: &HeaderMap, file: &FileRecord) -> Selection {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let tags_match = headers.get(header::IF_RANGE).is_none_or(|value| value.as_bytes() == tag(file).as_bytes());
    range::select(text(header::RANGE).filter(|_| tags_match), file.bytes)
}

fn content_head(status: u16, facts: &Facts<'_>, file: &FileRecord, length: u64) -> Box<ResponseHeader> {
    let mut head = head::plain(status, facts);
    insert(&mut head, header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    insert(&mut head, header::CONTENT_LENGTH, HeaderValue::from(length));
    insert(&mut head, header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    put(&mut head, header::ETAG, tag(file));
    put(&mut head, header::CONTENT_DISPOSITION, filename::attachment(&file.filename));
    head
}

/// Sets a header of ASCII without controls.
fn put(head: &mut ResponseHeader, name: http::HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        insert(head, name, value);
    }
}
