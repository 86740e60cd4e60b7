//! Files and batches as clients see them: OpenAI's objects, and one member more.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use store::{BatchRecord, FileRecord, UnixMillis};
use utoipa::ToSchema;

use crate::batch::Progress;

/// OpenAI's file object.
#[derive(Clone, Debug, Serialize)]
pub struct FileObject {
    id: String,
    object: &'static str,
    bytes: u64,
    created_at: u64,
    expires_at: Option<u64>,
    filename: String,
    purpose: &'static str,
    status: &'static str,
    status_details: Option<String>,
}

impl From<FileRecord> for FileObject {
    fn from(file: FileRecord) -> Self {
        Self {
            id: file.id,
            object: "file",
            bytes: file.bytes,
            created_at: seconds(file.created),
            expires_at: file.expires.map(seconds),
            filename: file.filename,
            purpose: file.purpose.name(),
            status: "processed",
            status_details: None,
        }
    }
}

/// What is left of a deleted file.
#[derive(Clone, Debug, Serialize)]
pub struct Deleted {
    /// Its id.
    pub id: String,
    /// `file`.
    pub object: &'static str,
    /// True.
    pub deleted: bool,
}

/// OpenAI's batch object, and how it gets on.
#[derive(Clone, Debug, Serialize)]
pub struct BatchObject {
    #[serde(flatten)]
    stated: BatchView,
    huntgroup: Option<Outlook>,
}

/// OpenAI's batch object. Moments are in seconds since 1970.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct BatchView {
    /// `batch_…`.
    id: String,
    /// Always `batch`.
    object: &'static str,
    /// The path of the route that its lines are for.
    endpoint: String,
    /// The one model of its lines; null until they were looked at.
    model: Option<String>,
    /// Which lines were wrong, of a failed one.
    #[schema(value_type = Option<Object>)]
    errors: Option<Value>,
    /// Its file of requests.
    input_file_id: String,
    /// As its owner wrote it: `24h`.
    completion_window: String,
    /// `validating`, `failed`, `in_progress`, `finalizing`, `completed`, `expired`, `cancelling` or `cancelled`.
    status: &'static str,
    /// The file of its results; null if there are none, or not yet.
    output_file_id: Option<String>,
    /// The file of its errors; null if there are none, or not yet.
    error_file_id: Option<String>,
    /// When it was made.
    created_at: u64,
    /// When all its lines had been looked at.
    in_progress_at: Option<u64>,
    /// When its lines have to be done.
    expires_at: u64,
    /// When all its lines had results.
    finalizing_at: Option<u64>,
    /// When its files were there.
    completed_at: Option<u64>,
    /// When a line was found wrong.
    failed_at: Option<u64>,
    /// When its time was over.
    expired_at: Option<u64>,
    /// When somebody asked for its end.
    cancelling_at: Option<u64>,
    /// When it ended for that.
    cancelled_at: Option<u64>,
    /// Its lines.
    request_counts: RequestCounts,
    /// The tokens of all its answers.
    usage: Usage,
    /// Its owner's words.
    #[schema(value_type = Object)]
    metadata: Value,
}

/// Lines of a batch.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct RequestCounts {
    /// All; 0 until they were looked at.
    total: u32,
    /// With a result in the output file.
    completed: u32,
    /// With a result in the error file.
    failed: u32,
}

/// Tokens of a batch.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct Usage {
    /// Read.
    input_tokens: u64,
    /// Of these.
    input_tokens_details: InputDetails,
    /// Written.
    output_tokens: u64,
    /// Of these.
    output_tokens_details: OutputDetails,
    /// Both.
    total_tokens: u64,
}

/// Tokens that were read.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct InputDetails {
    /// Found in a cache.
    cached_tokens: u64,
}

/// Tokens that were written.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct OutputDetails {
    /// Phones do not count these apart: 0.
    reasoning_tokens: u64,
}

/// How a batch that is not terminal gets on: what OpenAI's object has no place for.
#[derive(Clone, Copy, Debug, Serialize)]
struct Outlook {
    running: u32,
    waiting_for: Option<&'static str>,
    lines_per_second: Option<f64>,
    seconds_left: Option<u64>,
    class: Option<&'static str>,
}

impl BatchObject {
    /// A batch, and how it gets on as far as this process knows.
    pub fn new(batch: BatchRecord, progress: Progress) -> Self {
        let outlook = Outlook {
            running: progress.running,
            waiting_for: progress.waits_for.map(|what| what.name()),
            lines_per_second: progress.rate,
            seconds_left: progress.left.map(whole_seconds),
            class: progress.class.map(|class| class.name()),
        };
        Self { huntgroup: (!batch.state.is_terminal()).then_some(outlook), stated: BatchView::from(batch) }
    }
}

impl From<BatchRecord> for BatchView {
    fn from(batch: BatchRecord) -> Self {
        let (times, counts, usage) = (batch.times, batch.counts, batch.usage);
        Self {
            id: batch.id,
            object: "batch",
            endpoint: batch.endpoint,
            model: batch.model,
            errors: batch.errors,
            input_file_id: batch.input_file,
            completion_window: batch.completion_window,
            status: batch.state.name(),
            output_file_id: batch.output_file,
            error_file_id: batch.error_file,
            created_at: seconds(times.created),
            in_progress_at: times.in_progress.map(seconds),
            expires_at: seconds(times.expires),
            finalizing_at: times.finalizing.map(seconds),
            completed_at: times.completed.map(seconds),
            failed_at: times.failed.map(seconds),
            expired_at: times.expired.map(seconds),
            cancelling_at: times.cancelling.map(seconds),
            cancelled_at: times.cancelled.map(seconds),
            request_counts: RequestCounts { total: counts.total, completed: counts.completed, failed: counts.failed },
            usage: Usage {
                input_tokens: usage.input,
                input_tokens_details: InputDetails { cached_tokens: usage.cached },
                output_tokens: usage.output,
                output_tokens_details: OutputDetails { reasoning_tokens: 0 },
                total_tokens: usage.input + usage.output,
            },
            metadata: batch.metadata,
        }
    }
}

/// A part of a list.
#[derive(Clone, Debug, Serialize)]
pub struct List<T> {
    object: &'static str,
    data: Vec<T>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl<T: Identified> List<T> {
    /// These, and whether there are more behind them.
    pub fn new(data: Vec<T>, has_more: bool) -> Self {
        let id = |entry: Option<&T>| entry.map(|entry| entry.id().to_owned());
        Self { object: "list", first_id: id(data.first()), last_id: id(data.last()), data, has_more }
    }
}

/// What a list can hold.
pub trait Identified {
    /// For clients.
    fn id(&self) -> &str;
}

impl Identified for FileObject {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Identified for BatchObject {
    fn id(&self) -> &str {
        &self.stated.id
    }
}

const fn seconds(at: UnixMillis) -> u64 {
    at.0 / 1000
}

/// Rounded up: what is not over has not 0 seconds left.
pub fn whole_seconds(length: Duration) -> u64 {
    length.as_secs() + u64::from(length.subsec_nanos() > 0)
}
