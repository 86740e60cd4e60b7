//! The surface: what the gateway asks of whatever keeps files and batches.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use rusqlite::Connection;
use serde_json::Value;

use super::{
    file, holder, lifecycle, line,
    record::{
        BatchKey, BatchRecord, ClaimedLine, FileKey, FileRecord, FinishedLine, Holder, Kept, NewBatch, NewFile,
        NewLine, Page, PageOf, Purpose, ReleasedLine, Results, Stored, UnfinishedLine,
    },
    sweep,
};
use crate::{error::StoreError, open, reader::Reader, record::UnixMillis, schema, writer::Writer};

/// Files, batches, their lines and results. Clones share it; the last one to go closes it. Methods block for about the time
/// of one sync to disk; those that wait at the same time share one.
///
/// Questions that change nothing go past the thread that writes: they wait for no sync, and are answered on a full disk too. In
/// memory there is one connection, which does both.
#[derive(Clone)]
pub struct BatchStore {
    writer: Arc<Writer>,
    reader: Option<Arc<Reader>>,
}

impl fmt::Debug for BatchStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BatchStore")
    }
}

impl BatchStore {
    /// Opens or creates the database file; `:memory:` is [`BatchStore::in_memory`].
    ///
    /// # Errors
    /// The file can't be opened, is another program's, is damaged, or is newer than this program.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if path.as_os_str() == ":memory:" {
            return Self::in_memory();
        }
        let (connection, file) = (open::open_file(path, &schema::BATCHES)?, open::OpenedFile::at(path)?);
        let reader = Reader::open(path)?;
        Ok(Self { writer: Arc::new(Writer::start(connection, Some(file))?), reader: Some(Arc::new(reader)) })
    }

    /// A store that forgets everything at the end.
    ///
    /// # Errors
    /// There is no memory or thread for it.
    pub fn in_memory() -> Result<Self, StoreError> {
        Ok(Self { writer: Arc::new(Writer::start(open::open_memory(&schema::BATCHES)?, None)?), reader: None })
    }

    /// A store that is not there yet: every call is answered with `Closed`.
    pub fn closed() -> Self {
        Self { writer: Arc::new(Writer::closed()), reader: None }
    }

    /// Whether the database did its part in the last call that could have changed something.
    pub fn is_well(&self) -> bool {
        self.writer.is_well()
    }

    /// Calls that could have changed something and in which the database did not do its part, since it was opened.
    pub fn failures(&self) -> u64 {
        self.writer.failures()
    }

    /// What is committed by now, as one moment.
    fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &self.reader {
            Some(reader) => reader.ask(question),
            None => self.writer.call(|transaction| question(transaction)),
        }
    }

    // Holders

    /// A number for a process that works on batches, good until `now + lease` unless renewed. As with
    /// [`renew`](Self::renew), those whose lease ran out lose what they have.
    ///
    /// # Errors
    /// The database failed.
    pub fn register(&self, now: UnixMillis, lease: Duration) -> Result<Holder, StoreError> {
        self.writer.call(move |transaction| holder::register(transaction, now, lease))
    }

    /// Keeps `holder` for another `lease`, and takes everything from those whose lease ran out: their lines wait again,
    /// their unfinished files go, their jobs are anybody's.
    ///
    /// # Errors
    /// `LostClaim`: its own lease ran out before, and another holder has taken what it had; register anew and give up what was
    /// claimed. The database failed.
    pub fn renew(&self, holder: Holder, now: UnixMillis, lease: Duration) -> Result<(), StoreError> {
        self.writer.call(move |transaction| holder::renew(transaction, holder, now, lease))
    }

    /// Ends a holder: everything that it has goes back as if its lease had run out.
    ///
    /// # Errors
    /// The database failed.
    pub fn resign(&self, holder: Holder) -> Result<(), StoreError> {
        self.writer.call(move |transaction| holder::resign(transaction, holder))
    }

    // Files

    /// Begins a file that nobody sees before it is finished.
    ///
    /// # Errors
    /// `LostClaim`; the database failed.
    pub fn begin_file(&self, holder: Holder, new: NewFile) -> Result<FileKey, StoreError> {
        self.writer.call(move |transaction| file::begin(transaction, holder, &new))
    }

    /// Adds to its end. Any length; 1 MiB at a time makes good use of a commit.
    ///
    /// # Errors
    /// `LostClaim`: it was taken away, or is finished. `Full`; the database failed. The file is as before.
    pub fn append_file(&self, key: FileKey, piece: Vec<u8>) -> Result<(), StoreError> {
        self.writer.call(move |transaction| file::append(transaction, key, &piece))
    }

    /// Makes it visible. From now on it never changes. `expires`, if given, replaces what was said at its beginning: a
    /// form may state it behind the content.
    ///
    /// # Errors
    /// `LostClaim`; the database failed.
    pub fn finish_file(&self, key: FileKey, expires: Option<UnixMillis>) -> Result<FileRecord, StoreError> {
        self.writer.call(move |transaction| file::finish(transaction, key, expires))
    }

    /// Forgets an unfinished file. Nothing happens to a finished one, or to one that is gone.
    ///
    /// # Errors
    /// The database failed.
    pub fn abandon_file(&self, key: FileKey) -> Result<(), StoreError> {
        self.writer.call(move |transaction| file::abandon(transaction, key))
    }

    /// A file of a tenant.
    ///
    /// # Errors
    /// `UnknownFile`, also for those of others; the database failed.
    pub fn file(&self, tenant: &str, id: &str) -> Result<FileRecord, StoreError> {
        let (tenant, id) = (tenant.to_owned(), id.to_owned());
        self.read(move |connection| file::by_id(connection, &tenant, &id))
    }

    /// The files of a tenant. `UnknownFile` if there is none that the page before could have ended with.
    ///
    /// # Errors
    /// `UnknownFile`; the database failed.
    pub fn files(&self, tenant: &str, purpose: Option<Purpose>, page: PageOf) -> Result<Page<FileRecord>, StoreError> {
        let tenant = tenant.to_owned();
        self.read(move |connection| file::list(connection, &tenant, purpose, &page))
    }

    /// The bytes of a file from `offset` on: at most `length`, fewer (or none) at its end. Also of a deleted file that a
    /// batch still needs.
    ///
    /// # Errors
    /// `UnknownFile`: it is not finished, or it was deleted and no batch needs it. The database failed.
    pub fn read_file(&self, key: FileKey, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        self.read(move |connection| file::read(connection, key, offset, length))
    }

    /// Deletes a file of a tenant. Batches that read it go on.
    ///
    /// # Errors
    /// `UnknownFile`; the database failed.
    pub fn delete_file(&self, tenant: &str, id: &str) -> Result<(), StoreError> {
        let (tenant, id) = (tenant.to_owned(), id.to_owned());
        self.writer.call(move |transaction| file::delete(transaction, &tenant, &id))
    }

    /// How much there is; of one tenant, or of all.
    ///
    /// # Errors
    /// The database failed.
    pub fn stored(&self, tenant: Option<&str>) -> Result<Stored, StoreError> {
        let tenant = tenant.map(str::to_owned);
        self.read(move |connection| file::stored(connection, tenant.as_deref()))
    }

    // Batches

    /// Makes a batch, or finds the one that this is ([`NewBatch::idempotency_key`], [`NewBatch::again_since`]).
    ///
    /// # Errors
    /// `UnknownFile`: its input is not there, is another tenant's, or has another purpose. `TooManyOpen`. `KeyReused`. The database
    /// failed.
    pub fn create_batch(&self, new: NewBatch) -> Result<BatchRecord, StoreError> {
        self.writer.call(move |transaction| lifecycle::create(transaction, &new))
    }

    /// A batch, of a tenant or (`None`) of anybody.
    ///
    /// # Errors
    /// `UnknownBatch`, also for those of others; the database failed.
    pub fn batch(&self, tenant: Option<&str>, id: &str) -> Result<BatchRecord, StoreError> {
        let (tenant, id) = (tenant.map(str::to_owned), id.to_owned());
        self.read(move |connection| lifecycle::by_id(connection, tenant.as_deref(), &id))
    }

    /// The batches of a tenant, or (`None`) of all.
    ///
    /// # Errors
    /// `UnknownBatch`: none that the page before could have ended with. The database failed.
    pub fn batches(&self, tenant: Option<&str>, page: PageOf) -> Result<Page<BatchRecord>, StoreError> {
        let tenant = tenant.map(str::to_owned);
        self.read(move |connection| lifecycle::list(connection, tenant.as_deref(), &page))
    }

    /// All batches that are not terminal, the oldest first.
    ///
    /// # Errors
    /// The database failed.
    pub fn open_batches(&self) -> Result<Vec<BatchRecord>, StoreError> {
        self.read(lifecycle::open)
    }

    /// Ends a batch in its owner's (or, `None`, the operator's) name: it is sealed, and `cancelling`. One that is
    /// cancelling already stays as it is, and so does one whose time was over before: it ends as expired.
    ///
    /// # Errors
    /// `UnknownBatch`. `WrongState`: it is terminal, or finalizing. The database failed.
    pub fn cancel_batch(&self, tenant: Option<&str>, id: &str, now: UnixMillis) -> Result<BatchRecord, StoreError> {
        let (tenant, id) = (tenant.map(str::to_owned), id.to_owned());
        self.writer.call(move |transaction| lifecycle::cancel(transaction, tenant.as_deref(), &id, now))
    }

    /// Seals all batches whose time is over. Those that were sealed before keep their reason.
    ///
    /// # Errors
    /// The database failed.
    pub fn expire_batches(&self, now: UnixMillis) -> Result<(), StoreError> {
        self.writer.call(move |transaction| lifecycle::expire(transaction, now))
    }

    /// The one-process work on a batch (looking at its lines; writing its files) is this holder's, until
    /// [`release_job`](Self::release_job) or the end of its lease. False: it is another's, or the batch is terminal. The
    /// own one again is true.
    ///
    /// # Errors
    /// `LostClaim`; the database failed.
    pub fn claim_job(&self, holder: Holder, batch: BatchKey) -> Result<bool, StoreError> {
        self.writer.call(move |transaction| lifecycle::claim_job(transaction, holder, batch))
    }

    /// Gives it back.
    ///
    /// # Errors
    /// The database failed.
    pub fn release_job(&self, holder: Holder, batch: BatchKey) -> Result<(), StoreError> {
        self.writer.call(move |transaction| lifecycle::release_job(transaction, holder, batch))
    }

    // Looking at lines: needs the job.

    /// Forgets lines that an interrupted look has left.
    ///
    /// # Errors
    /// `LostClaim`; the database failed.
    pub fn clear_lines(&self, holder: Holder, batch: BatchKey) -> Result<(), StoreError> {
        self.writer.call(move |transaction| line::clear(transaction, holder, batch))
    }

    /// Adds lines. All are new, and their custom ids differ: the caller has made sure.
    ///
    /// # Errors
    /// `LostClaim`: the job is not its, or the batch is past validation or sealed. The database failed.
    pub fn add_lines(&self, holder: Holder, batch: BatchKey, lines: Vec<NewLine>) -> Result<(), StoreError> {
        self.writer.call(move |transaction| line::add(transaction, holder, batch, &lines))
    }

    /// All lines were right: from now on they can be claimed. `total` lines were added.
    ///
    /// # Errors
    /// `LostClaim`, as for [`add_lines`](Self::add_lines); the database failed.
    pub fn start_batch(
        &self,
        holder: Holder,
        batch: BatchKey,
        model: &str,
        now: UnixMillis,
    ) -> Result<BatchRecord, StoreError> {
        let model = model.to_owned();
        self.writer.call(move |transaction| lifecycle::start(transaction, holder, batch, &model, now))
    }

    /// A line was wrong: the batch failed with this `errors` object, and its lines go.
    ///
    /// # Errors
    /// `LostClaim`; the database failed.
    pub fn fail_batch(
        &self,
        holder: Holder,
        batch: BatchKey,
        errors: Value,
        now: UnixMillis,
    ) -> Result<BatchRecord, StoreError> {
        self.writer.call(move |transaction| lifecycle::fail(transaction, holder, batch, &errors, now))
    }

    // Running lines

    /// Claims up to `limit` lines that wait, in the order of their affinity and number. At most `max_bytes` of text, but
    /// always one line if any waits. None of a batch that is sealed or not in progress.
    ///
    /// # Errors
    /// `LostClaim`; the database failed.
    pub fn claim_lines(
        &self,
        holder: Holder,
        batch: BatchKey,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<ClaimedLine>, StoreError> {
        self.writer.call(move |transaction| line::claim(transaction, holder, batch, limit, max_bytes))
    }

    /// Stores results, one word for each. When the last line of a batch has its result, the batch is sealed and finalizing.
    ///
    /// # Errors
    /// `LostClaim`: none was stored. `Full`, or the database failed: none was stored, and all may be tried again.
    pub fn finish_lines(
        &self,
        holder: Holder,
        lines: Vec<FinishedLine>,
        now: UnixMillis,
    ) -> Result<Vec<Kept>, StoreError> {
        self.writer.call(move |transaction| line::finish(transaction, holder, &lines, now))
    }

    /// Gives claims back. Those that are another's by now stay so.
    ///
    /// # Errors
    /// The database failed.
    pub fn release_lines(&self, holder: Holder, lines: Vec<ReleasedLine>) -> Result<(), StoreError> {
        self.writer.call(move |transaction| line::release(transaction, holder, &lines))
    }

    // Writing a batch's files: needs the job, and a seal.

    /// Results in the order of their lines, of lines with a larger number than `after`: as many as fit into `max_bytes`, at
    /// least one. Each is its line's number and its record.
    ///
    /// # Errors
    /// The database failed.
    pub fn results(
        &self,
        batch: BatchKey,
        which: Results,
        after: u32,
        max_bytes: usize,
    ) -> Result<Vec<(u32, Vec<u8>)>, StoreError> {
        self.read(move |connection| line::results(connection, batch, which, after, max_bytes))
    }

    /// Lines without a result, in order, with a larger number than `after`.
    ///
    /// # Errors
    /// The database failed.
    pub fn unfinished(&self, batch: BatchKey, after: u32, limit: usize) -> Result<Vec<UnfinishedLine>, StoreError> {
        self.read(move |connection| line::unfinished(connection, batch, after, limit))
    }

    /// Ends a sealed batch: its files (unfinished ones of this holder; `None`: it would be empty) become visible, its lines
    /// without a result count as failed, and its state is what the seal says. One transaction.
    ///
    /// # Errors
    /// `LostClaim`: the job or a file is not its, or there is no seal. The database failed.
    pub fn close_batch(
        &self,
        holder: Holder,
        batch: BatchKey,
        output: Option<FileKey>,
        errors: Option<FileKey>,
        now: UnixMillis,
    ) -> Result<BatchRecord, StoreError> {
        self.writer.call(move |transaction| lifecycle::close(transaction, holder, batch, output, errors, now))
    }

    // Cleaning up

    /// Does a bounded part of what may be done at leisure: files whose time is over are deleted, content that nobody
    /// needs goes, with the lines and results of terminal batches, and with terminal batches that ended `keep_batches`
    /// ago. Whether there is more to do.
    ///
    /// # Errors
    /// The database failed.
    pub fn sweep(&self, now: UnixMillis, keep_batches: Duration) -> Result<bool, StoreError> {
        self.writer.call(move |transaction| sweep::sweep(transaction, now, keep_batches))
    }

    /// Looks at the tables, or changes how the database works.
    #[cfg(test)]
    pub(super) fn inspect<T: Send + 'static>(
        &self,
        body: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.call(|transaction| Ok(body(transaction)?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn questions_are_answered_while_something_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let store = BatchStore::open(&directory.path().join("batches.db")).unwrap();
        let (started, start) = sync_channel::<()>(1);
        let (go, wait) = sync_channel::<()>(1);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                store.writer.call(move |transaction| {
                    holder::register(transaction, UnixMillis(1), Duration::from_secs(9))?;
                    started.send(()).unwrap();
                    wait.recv().unwrap();
                    Ok(())
                })
            });
            start.recv().unwrap();
            assert_eq!(store.open_batches(), Ok(Vec::new()));
            assert_eq!(store.stored(None), Ok(Stored::default()));
            go.send(()).unwrap();
            assert_eq!(writing.join().unwrap(), Ok(()));
        });
    }
}
