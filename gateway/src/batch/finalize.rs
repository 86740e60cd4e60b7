//! Writing a batch's files, from the results that are stored and the lines that have none.
//!
//! It blocks, so it runs on a thread of its own. Cut off at any point it leaves files that nobody sees, and begins anew.

use std::sync::atomic::{AtomicBool, Ordering};

use store::{BatchRecord, BatchStore, FileKey, Holder, NewFile, Purpose, Results, Seal, StoreError, UnixMillis};

use super::{Batches, entry::unanswered, file_id, now};

/// Read from the store and written to a file at once.
const PIECE: usize = 1 << 20;
/// Lines without a result that are read at once.
const PAGE: usize = 1_000;

/// Writes the files of a sealed batch of which `holder` has the job, and ends it. `expires`: when they
/// are deleted by themselves. Returns early when `stop` is set.
///
/// # Errors
/// The database failed; the batch is still to be ended.
pub fn finalize(
    batches: &Batches,
    store: &BatchStore,
    holder: Holder,
    batch: &BatchRecord,
    expires: UnixMillis,
    stop: &AtomicBool,
) -> Result<(), StoreError> {
    let began = batch.times.in_progress.is_some();
    let mut output = Writer::new(batches, store, holder, batch, "output", expires)?;
    let mut errors = Writer::new(batches, store, holder, batch, "error", expires)?;
    if began {
        copy(store, batch, Results::Completed, &mut output, stop)?;
        copy(store, batch, Results::Failed, &mut errors, stop)?;
        tell_unfinished(store, batch, &mut errors, stop)?;
    }
    if stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    output.flush()?;
    errors.flush()?;
    let closed = store.close_batch(holder, batch.key, output.key, errors.key, now())?;
    output.keep();
    errors.keep();
    tracing::info!(
        batch = %closed.id,
        state = closed.state.name(),
        completed = closed.counts.completed,
        failed = closed.counts.failed,
        "batch ended"
    );
    Ok(())
}

fn copy(
    store: &BatchStore,
    batch: &BatchRecord,
    which: Results,
    to: &mut Writer<'_>,
    stop: &AtomicBool,
) -> Result<(), StoreError> {
    let mut after = 0;
    while !stop.load(Ordering::Relaxed) {
        let page = store.results(batch.key, which, after, PIECE)?;
        let Some((last, _)) = page.last() else { break };
        after = *last;
        for (_, record) in &page {
            to.line(record)?;
        }
    }
    Ok(())
}

fn tell_unfinished(
    store: &BatchStore,
    batch: &BatchRecord,
    to: &mut Writer<'_>,
    stop: &AtomicBool,
) -> Result<(), StoreError> {
    let (code, message) = match batch.seal {
        Some(Seal::Cancelled) => ("batch_cancelled", "This request was not run: its batch was cancelled before."),
        _ => ("batch_expired", "This request could not be executed before the completion window expired."),
    };
    let name = batch.id.trim_start_matches("batch_");
    let mut after = 0;
    while !stop.load(Ordering::Relaxed) {
        let page = store.unfinished(batch.key, after, PAGE)?;
        let Some(last) = page.last() else { break };
        after = last.number;
        for line in &page {
            to.line(&unanswered(&line.custom_id, &format!("{name}_{}", line.number), code, message))?;
        }
    }
    Ok(())
}

/// A file that is begun with its first line.
struct Writer<'a> {
    batches: &'a Batches,
    store: &'a BatchStore,
    holder: Holder,
    new: Option<NewFile>,
    key: Option<FileKey>,
    buffer: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(
        batches: &'a Batches,
        store: &'a BatchStore,
        holder: Holder,
        batch: &BatchRecord,
        what: &str,
        expires: UnixMillis,
    ) -> Result<Self, StoreError> {
        let new = NewFile {
            id: file_id()?,
            tenant: batch.tenant.clone(),
            purpose: Purpose::BatchOutput,
            filename: format!("{}_{what}.jsonl", batch.id),
            created: now(),
            expires: Some(expires),
        };
        Ok(Self { batches, store, holder, new: Some(new), key: None, buffer: Vec::new() })
    }

    fn line(&mut self, record: &[u8]) -> Result<(), StoreError> {
        self.buffer.extend_from_slice(record);
        self.buffer.push(b'\n');
        if self.buffer.len() >= PIECE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        if let Some(new) = self.new.take() {
            self.key = Some(self.store.begin_file(self.holder, new)?);
        }
        match self.key {
            Some(key) => self.store.append_file(key, std::mem::take(&mut self.buffer)),
            None => Ok(()),
        }
    }

    /// It is a file that people read now.
    fn keep(&mut self) {
        self.key = None;
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.batches.abandon(Some(key));
        }
    }
}
