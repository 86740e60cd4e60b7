//! What is kept of files and batches, as types.

use std::time::Duration;

use serde_json::Value;

use crate::record::UnixMillis;

/// A process that works on batches, as the store numbers it. Never given twice: it is the fencing token of every claim. A
/// process whose lease ran out is given a new one, and nothing that it does under the old one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder(pub u64);

/// A file in the store, visible or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey(pub u64);

/// A batch in the store. Grows in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchKey(pub u64);

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Requests, uploaded by a tenant.
    Batch,
    /// Results, or errors, of a batch.
    BatchOutput,
}

impl Purpose {
    /// Its name in the public API and in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::BatchOutput => "batch_output",
        }
    }

    /// The purpose with that name.
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Batch, Self::BatchOutput].into_iter().find(|purpose| purpose.name() == name)
    }
}

/// A file before it has content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// For clients: `file-…`. The caller makes it, unguessable.
    pub id: String,
    /// Whose.
    pub tenant: String,
    /// What for.
    pub purpose: Purpose,
    /// As its owner named it; a label, never a path.
    pub filename: String,
    /// When its upload began.
    pub created: UnixMillis,
    /// When it is deleted by itself.
    pub expires: Option<UnixMillis>,
}

/// A file that can be read. Its content never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    /// In the store.
    pub key: FileKey,
    /// For clients.
    pub id: String,
    /// Whose.
    pub tenant: String,
    /// What for.
    pub purpose: Purpose,
    /// As its owner named it.
    pub filename: String,
    /// Length of its content.
    pub bytes: u64,
    /// When its upload began.
    pub created: UnixMillis,
    /// When it is deleted by itself.
    pub expires: Option<UnixMillis>,
}

/// Where a list goes on, and how much of it is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOf {
    /// The id that the page before ended with; the beginning without.
    pub after: Option<String>,
    /// Most entries.
    pub limit: usize,
    /// The oldest first; else the newest.
    pub ascending: bool,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// Its entries, in the order asked for.
    pub entries: Vec<T>,
    /// Whether there are more behind them.
    pub more: bool,
}

/// How far a batch has come. The order of the variants is the order of a batch's life; it never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BatchState {
    /// Its lines are read and checked.
    Validating,
    /// A line was wrong; none was run.
    Failed,
    /// Its lines are run.
    InProgress,
    /// All lines have results; its files are written.
    Finalizing,
    /// Done.
    Completed,
    /// Its time was over before all lines had results.
    Expired,
    /// Its owner wants no more of it; its files are written.
    Cancelling,
    /// Ended by its owner.
    Cancelled,
}

impl BatchState {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Validating,
        Self::Failed,
        Self::InProgress,
        Self::Finalizing,
        Self::Completed,
        Self::Expired,
        Self::Cancelling,
        Self::Cancelled,
    ];

    /// Its name in the public API and in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state with that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Nothing happens to it any more.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }
}

/// Why no line of a batch is begun any more, and no result taken. A sealed batch is ended by
/// [`close_batch`](super::BatchStore::close_batch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seal {
    /// All lines have results.
    Complete,
    /// Its time is over.
    Expired,
    /// Its owner ended it.
    Cancelled,
}

/// A batch before its lines were looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBatch {
    /// For clients: `batch_…`. The caller makes it, unguessable.
    pub id: String,
    /// Whose.
    pub tenant: String,
    /// The id of a file of the same tenant with the purpose [`Purpose::Batch`].
    pub input_file: String,
    /// The path of the route that all its lines are for.
    pub endpoint: String,
    /// As its owner wrote it: `24h`.
    pub completion_window: String,
    /// JSON object of its owner's words, or null.
    pub metadata: Value,
    /// What the key that it was made with may, in the gateway's words; the store only keeps it.
    pub permissions: Value,
    /// How long its output and error files stay, if its owner said so.
    pub output_expires_after: Option<Duration>,
    /// Now.
    pub created: UnixMillis,
    /// When its lines have to be done.
    pub expires: UnixMillis,
    /// Batches that its tenant may have open with it.
    pub max_open: u32,
    /// Its owner's name for making it. The same again is not made: it is the batch that there is.
    pub idempotency_key: Option<String>,
    /// It is said to be asked for again: one that was asked for in the same words, and made since then, is meant.
    pub again_since: Option<UnixMillis>,
}

/// When a batch reached which state. Unix milliseconds; absent: it did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTimes {
    /// Created.
    pub created: UnixMillis,
    /// Its lines have to be done by then.
    pub expires: UnixMillis,
    /// All lines were right.
    pub in_progress: Option<UnixMillis>,
    /// All lines had results.
    pub finalizing: Option<UnixMillis>,
    /// Completed.
    pub completed: Option<UnixMillis>,
    /// Failed.
    pub failed: Option<UnixMillis>,
    /// Expired.
    pub expired: Option<UnixMillis>,
    /// Its owner asked for its end.
    pub cancelling: Option<UnixMillis>,
    /// Cancelled.
    pub cancelled: Option<UnixMillis>,
}

/// Lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// All; 0 until they were looked at.
    pub total: u32,
    /// Lines of the output file.
    pub completed: u32,
    /// Lines of the error file.
    pub failed: u32,
}

/// Tokens of all answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Read.
    pub input: u64,
    /// Of these, found in a cache.
    pub cached: u64,
    /// Written.
    pub output: u64,
}

/// A batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchRecord {
    /// In the store.
    pub key: BatchKey,
    /// For clients.
    pub id: String,
    /// Whose.
    pub tenant: String,
    /// The path of its route.
    pub endpoint: String,
    /// The id of its input file, which may have been deleted since.
    pub input_file: String,
    /// Its input, also when the file was deleted; nothing once the batch is terminal.
    pub input: FileKey,
    /// As its owner wrote it.
    pub completion_window: String,
    /// Its owner's words.
    pub metadata: Value,
    /// What the key that it was made with may, in the gateway's words.
    pub permissions: Value,
    /// How long its files stay.
    pub output_expires_after: Option<Duration>,
    /// How far it has come.
    pub state: BatchState,
    /// Why no line is begun any more.
    pub seal: Option<Seal>,
    /// The one model of its lines; `None` until they were looked at.
    pub model: Option<String>,
    /// The errors of a failed one, as its `errors` object.
    pub errors: Option<Value>,
    /// The id of the file of its results; `None` if there are none.
    pub output_file: Option<String>,
    /// The id of the file of its errors; `None` if there are none.
    pub error_file: Option<String>,
    /// When it reached which state.
    pub times: BatchTimes,
    /// Its lines.
    pub counts: LineCounts,
    /// Its tokens.
    pub usage: TokenUsage,
}

/// A line of an input file that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLine {
    /// Its number in the file, from 1.
    pub number: u32,
    /// Its owner's name for it.
    pub custom_id: String,
    /// Lines with the same number probably begin with the same prompt: they are claimed one after the other.
    pub affinity: i64,
    /// Where it begins in the file.
    pub offset: u64,
    /// Its length without the line feed.
    pub length: u32,
}

/// A line to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedLine {
    /// Its number in the file.
    pub number: u32,
    /// Its owner's name for it.
    pub custom_id: String,
    /// How often it failed by no fault of its own.
    pub tries: u32,
    /// The line, as it is in the file.
    pub text: Vec<u8>,
}

/// A line with a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedLine {
    /// Whose.
    pub batch: BatchKey,
    /// Its number in the file.
    pub number: u32,
    /// It goes to the error file.
    pub failed: bool,
    /// The line of the output or error file, without a line feed in or behind it.
    pub record: Vec<u8>,
    /// Its tokens.
    pub usage: TokenUsage,
}

/// A claim that is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasedLine {
    /// Whose.
    pub batch: BatchKey,
    /// Its number in the file.
    pub number: u32,
    /// It was tried, and failed by no fault of its own.
    pub tried: bool,
}

/// What became of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is stored, and counts.
    Stored,
    /// It came too late: the batch is sealed, or the line is another's by now, or has a result. Nothing was changed.
    TooLate,
}

/// Which of a batch's two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// The output file.
    Completed,
    /// The error file.
    Failed,
}

/// A line that has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedLine {
    /// Its number in the file.
    pub number: u32,
    /// Its owner's name for it.
    pub custom_id: String,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of files, also of those that are being written, and of deleted ones that a batch still needs.
    pub bytes: u64,
    /// Files that can be read.
    pub files: u64,
    /// Batches that are not terminal.
    pub open_batches: u64,
}
