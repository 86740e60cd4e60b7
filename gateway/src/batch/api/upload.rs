//! A file on its way in: to the store piece by piece, as fast as that takes it, and seen by nobody before its end.
//!
//! Whatever ends an upload early (a cut connection, a refusal, a deadline, a panic) drops its [`Unfinished`] and with it all
//! that came. What a killed process leaves goes when its lease runs out.

use std::{
    mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use openai_wire::DecodeError;
use store::{BatchStore, FileKey, FileRecord, NewFile, Purpose, StoreError, UnixMillis};
use tokio::runtime::Handle;

use super::{
    Call, STAY, filename,
    form::{Form, Part},
    view::FileObject,
};
use crate::{
    batch::{BatchError, Batches, file_id, now},
    error::ApiError,
    gateway::Held,
    refusal::Stop,
};

/// Handed to the store at once. 1 MiB: a sync to disk costs about as much as writing it.
const PIECE: usize = 1 << 20;
/// A form around a file may take so much beside it.
const FORM: u64 = 64 << 10;
/// Uploads leave so much of the disk to others. 64 MiB: on one that is full to the brim nothing can be deleted either, for that is
/// written to the database's log first; and results of batches that run need room as well.
const SPARE: u64 = 64 << 20;
/// Longest value of a field that is no file.
const MAX_VALUE: usize = 256;

const PURPOSE: &str = "batch (a file of requests for POST /v1/batches)";
const FILE: &str = "a file whose name ends in .jsonl";
const ANCHOR: &str = "created_at";
const SECONDS: &str = "a whole number of seconds from 3600 to 2592000";

/// How long files of a call stay.
const EXPIRES_ANCHOR: &str = "expires_after[anchor]";
const EXPIRES_SECONDS: &str = "expires_after[seconds]";

/// What has come of a form.
#[derive(Default)]
struct Fields {
    purpose: bool,
    file: Option<Unfinished>,
    anchor: bool,
    stay: Option<Duration>,
}

/// A file that nobody sees yet. Dropped before it is finished, it leaves nothing.
struct Unfinished {
    batches: Arc<Batches>,
    key: FileKey,
    created: UnixMillis,
    runtime: Handle,
    is_finished: bool,
}

/// What one file, and all of a tenant, may take.
struct Limits {
    file: u64,
    tenant: u64,
    files: u32,
    stay: Duration,
    /// The folder that it all goes to, if that is on a disk.
    folder: Option<PathBuf>,
}

impl Call<'_> {
    /// `POST /v1/files`.
    pub(super) async fn upload(mut self) -> Result<(), Stop> {
        self.gateway.spare_memory()?;
        let limits = {
            let config = self.gateway.config();
            let batches = &config.batches;
            let (file, tenant) = (batches.max_file.as_u64(), batches.max_bytes_per_tenant.as_u64());
            let folder = folder(batches.file(&config.store.path));
            Limits { file, tenant, files: batches.max_files_per_tenant, stay: batches.keep_files, folder }
        };
        let file = self.receive(&limits).await?;
        self.record.moved(file.bytes);
        self.respond(&FileObject::from(file)).await
    }

    async fn receive(&mut self, limits: &Limits) -> Result<FileRecord, ApiError> {
        let batches = &self.gateway.batches;
        let owner = self.owner();
        let max = limits.file.saturating_add(FORM);
        let mut incoming = self.exchange.open_body(self.admitted, max, "batches.max_file")?;
        // Before the client is asked for it.
        let whose = owner.clone();
        let stored = batches.ask(move |store| store.stored(Some(&whose))).await?;
        if stored.bytes.saturating_add(incoming.expected().saturating_sub(FORM)) > limits.tenant {
            return Err(BatchError::Quota { max: limits.tenant }.into());
        }
        if stored.files >= u64::from(limits.files) {
            return Err(BatchError::TooManyFiles { max: limits.files }.into());
        }
        let (mut fields, mut held) = (Fields::default(), self.gateway.hold());
        let mut form = Form::new(self.exchange, &mut incoming)?;
        while let Some(mut part) = form.next().await? {
            fields.take(&mut part, batches, &owner, limits, &mut held).await?;
        }
        drop(form);
        // What follows the form means nothing, but a body that is cut there is cut.
        while self.exchange.next_piece(&mut incoming).await?.is_some() {}
        fields.finish().await
    }
}

impl Fields {
    async fn take(
        &mut self,
        part: &mut Part<'_>,
        batches: &Arc<Batches>,
        owner: &str,
        limits: &Limits,
        held: &mut Held,
    ) -> Result<(), ApiError> {
        match part.name() {
            "file" => {
                once("file", self.file.is_some())?;
                let wrong = DecodeError::Value { param: "file", expected: FILE };
                let name = part.filename().map(|name| filename::clean(&name)).ok_or(wrong)?;
                if !name.to_ascii_lowercase().ends_with(".jsonl") {
                    return Err(DecodeError::Value { param: "file", expected: FILE }.into());
                }
                let file = Unfinished::begin(batches, owner.to_owned(), name, limits.stay).await?;
                file.receive(part, owner, limits, held).await?;
                self.file = Some(file);
            }
            "purpose" => {
                once("purpose", mem::replace(&mut self.purpose, true))?;
                if part.text("purpose", MAX_VALUE, PURPOSE).await? != Purpose::Batch.name() {
                    return Err(DecodeError::Value { param: "purpose", expected: PURPOSE }.into());
                }
            }
            EXPIRES_ANCHOR => {
                once(EXPIRES_ANCHOR, mem::replace(&mut self.anchor, true))?;
                if part.text(EXPIRES_ANCHOR, MAX_VALUE, ANCHOR).await? != ANCHOR {
                    return Err(DecodeError::Value { param: EXPIRES_ANCHOR, expected: ANCHOR }.into());
                }
            }
            EXPIRES_SECONDS => {
                once(EXPIRES_SECONDS, self.stay.is_some())?;
                let text = part.text(EXPIRES_SECONDS, MAX_VALUE, SECONDS).await?;
                let digits = text.bytes().all(|byte| byte.is_ascii_digit());
                let seconds = text.parse().ok().filter(|seconds| digits && STAY.contains(seconds));
                let wrong = DecodeError::Value { param: EXPIRES_SECONDS, expected: SECONDS };
                self.stay = Some(Duration::from_secs(seconds.ok_or(wrong)?));
            }
            _ => part.skip().await?,
        }
        Ok(())
    }

    async fn finish(self) -> Result<FileRecord, ApiError> {
        let missing = |param, expected| DecodeError::Missing { param, expected };
        if !self.purpose {
            return Err(missing("purpose", PURPOSE).into());
        }
        let file = self.file.ok_or(missing("file", FILE))?;
        if self.anchor && self.stay.is_none() {
            return Err(missing(EXPIRES_SECONDS, SECONDS).into());
        }
        if self.stay.is_some() && !self.anchor {
            return Err(missing(EXPIRES_ANCHOR, ANCHOR).into());
        }
        Ok(file.finish(self.stay).await?)
    }
}

/// A field may stand in a form once.
fn once(param: &'static str, again: bool) -> Result<(), DecodeError> {
    if again { Err(DecodeError::Duplicate { param }) } else { Ok(()) }
}

impl Unfinished {
    async fn begin(
        batches: &Arc<Batches>,
        tenant: String,
        filename: String,
        stay: Duration,
    ) -> Result<Self, StoreError> {
        let (holder, runtime, created) = (batches.holder(), Handle::current(), now());
        let expires = Some(created.after(stay));
        let new = NewFile { id: file_id()?, tenant, purpose: Purpose::Batch, filename, created, expires };
        // Made where the file is: if the upload ends at this moment, it is dropped there.
        let owned = Arc::clone(batches);
        let begin = move |store: &BatchStore| {
            let key = store.begin_file(holder, new)?;
            Ok(Self { batches: owned, key, created, runtime, is_finished: false })
        };
        batches.ask(begin).await
    }

    /// Takes the content of a part. One piece is written while the next one comes.
    async fn receive(
        &self,
        part: &mut Part<'_>,
        owner: &str,
        limits: &Limits,
        held: &mut Held,
    ) -> Result<(), ApiError> {
        let mut pieces = Pieces { part, held, rest: Vec::new(), received: 0, max: limits.file };
        let mut full = pieces.next().await?;
        while !full.is_empty() {
            let writing = self.append(owner.to_owned(), full, limits);
            full = tokio::try_join!(pieces.next(), writing)?.0;
        }
        Ok(())
    }

    async fn append(&self, owner: String, piece: Vec<u8>, limits: &Limits) -> Result<(), ApiError> {
        let (key, max, folder) = (self.key, limits.tenant, limits.folder.clone());
        let append = move |store: &BatchStore| {
            if folder.is_some_and(|folder| free(&folder).is_some_and(|free| free < SPARE)) {
                return Err(StoreError::Full);
            }
            let fits = store.stored(Some(&owner))?.bytes.saturating_add(piece.len() as u64) <= max;
            if fits {
                store.append_file(key, piece)?;
            }
            Ok(fits)
        };
        if self.batches.ask(append).await? { Ok(()) } else { Err(BatchError::Quota { max }.into()) }
    }

    async fn finish(mut self, stay: Option<Duration>) -> Result<FileRecord, StoreError> {
        let (key, expires) = (self.key, stay.map(|stay| self.created.after(stay)));
        let file = self.batches.ask(move |store| store.finish_file(key, expires)).await?;
        self.is_finished = true;
        Ok(file)
    }
}

/// The folder of a database; none for one in memory.
fn folder(database: PathBuf) -> Option<PathBuf> {
    (database != Path::new(":memory:")).then(|| match database.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    })
}

/// Bytes that can still be written beside those in a folder, if the system says.
fn free(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// The content of a part in pieces for the store.
struct Pieces<'a, 'r> {
    part: &'a mut Part<'r>,
    /// The room for two of them: one comes while the other is written. Taken as they come: a promise takes none.
    held: &'a mut Held,
    /// What has come beyond the last piece.
    rest: Vec<u8>,
    received: u64,
    max: u64,
}

impl Pieces<'_, '_> {
    /// The next piece, full but for the last one; none at the end.
    async fn next(&mut self) -> Result<Vec<u8>, ApiError> {
        let mut piece = mem::take(&mut self.rest);
        while piece.len() < PIECE {
            let Some(bytes) = self.part.piece().await? else { break };
            if self.received < 2 * PIECE as u64 {
                self.held.grow(bytes.len())?;
            }
            self.received += bytes.len() as u64;
            if self.received > self.max {
                return Err(BatchError::FileTooLarge { max: self.max }.into());
            }
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - piece.len()));
            piece.extend_from_slice(now);
            self.rest.extend_from_slice(later);
        }
        Ok(piece)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let (batches, key) = (Arc::clone(&self.batches), self.key);
        // A process that ends right now leaves it to the lease.
        drop(self.runtime.spawn_blocking(move || batches.abandon(Some(key))));
    }
}
