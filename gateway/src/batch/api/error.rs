//! How calls about files and batches are refused, beside what is wrong with any request.

use std::{borrow::Cow, time::Duration};

use store::{BatchState, StoreError};

use crate::error::{ApiError, shown};

/// Why a call about a file or a batch was refused.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// None of this tenant's; it may be another's.
    #[error("No such File object: {}", shown(.0))]
    NoSuchFile(String),
    /// None of this tenant's; it may be another's.
    #[error("No batch found with id '{}'.", shown(.0))]
    NoSuchBatch(String),
    /// The description of a batch can't be read.
    #[error("The request body is not valid JSON: {0}.")]
    Json(String),
    /// The form is not one that can be read.
    #[error("The body is not valid multipart/form-data: {0}.")]
    Form(Cow<'static, str>),
    /// The file is larger than one may be.
    #[error("The file is larger than {max} bytes (batches.max_file).")]
    FileTooLarge {
        /// Bytes.
        max: u64,
    },
    /// The tenant's files are larger together than they may be.
    #[error(
        "With this file your files would be larger than {max} bytes together (batches.max_bytes_per_tenant). \
         Delete those that you need no more, or wait until they expire."
    )]
    Quota {
        /// Bytes.
        max: u64,
    },
    /// The tenant has as many files as it may have.
    #[error(
        "You have {max} files, which is the limit (batches.max_files_per_tenant). Delete those that you need no more, or wait \
         until they expire."
    )]
    TooManyFiles {
        /// Files.
        max: u32,
    },
    /// The input of a new batch is not a file that it can read.
    #[error("Invalid 'input_file_id': {0}")]
    InputFile(String),
    /// As many batches run as may.
    #[error(
        "You have {max} batches that have not ended, which is the limit (batches.max_open_per_tenant). \
         Wait until one has, or cancel one."
    )]
    TooManyBatches {
        /// Batches.
        max: u32,
    },
    /// It is too late to cancel it.
    #[error("Cannot cancel a batch with status '{}': its results are {}.", .0.name(), results(*.0))]
    TooLate(BatchState),
    /// None of the bytes asked for is in the file.
    #[error("The requested range is not within the file's {length} bytes.")]
    Range {
        /// Bytes.
        length: u64,
    },
    /// The disk is full.
    #[error(
        "The gateway has no space left to store this. Nothing was kept of it; its operator has to make room before it can \
         be stored."
    )]
    StorageFull,
    /// The database can't answer now.
    #[error("The gateway's store of files and batches does not answer. Try again later.")]
    StorageUnavailable,
}

/// What is true of the results of a batch that can't be cancelled.
const fn results(state: BatchState) -> &'static str {
    match state {
        BatchState::Finalizing => "complete, and being written",
        BatchState::Failed => "none: none of its requests was run",
        _ => "final",
    }
}

impl From<StoreError> for BatchError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::UnknownFile(id) => Self::NoSuchFile(id),
            StoreError::UnknownBatch(id) => Self::NoSuchBatch(id),
            StoreError::WrongState(state) => Self::TooLate(state),
            StoreError::TooManyOpen(max) => Self::TooManyBatches { max },
            StoreError::Full => Self::StorageFull,
            // Whatever it is, only an operator can act on it, who finds it in the log.
            error => {
                tracing::error!(%error, "the store of files and batches failed");
                Self::StorageUnavailable
            }
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        BatchError::from(error).into()
    }
}

impl BatchError {
    /// HTTP status.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Json(_) | Self::Form(_) | Self::InputFile(_) => 400,
            Self::NoSuchFile(_) | Self::NoSuchBatch(_) => 404,
            Self::TooLate(_) => 409,
            Self::FileTooLarge { .. } | Self::Quota { .. } | Self::TooManyFiles { .. } => 413,
            Self::Range { .. } => 416,
            Self::TooManyBatches { .. } => 429,
            Self::StorageUnavailable => 503,
            Self::StorageFull => 507,
        }
    }

    /// The `code` of the error object.
    pub const fn code(&self) -> Option<&'static str> {
        match self {
            Self::NoSuchFile(_)
            | Self::NoSuchBatch(_)
            | Self::TooLate(_)
            | Self::Range { .. }
            | Self::FileTooLarge { .. } => None,
            Self::Json(_) => Some("invalid_json"),
            Self::Form(_) => Some("invalid_multipart"),
            Self::InputFile(_) => Some("invalid_input_file"),
            Self::Quota { .. } | Self::TooManyFiles { .. } => Some("storage_quota_exceeded"),
            Self::TooManyBatches { .. } => Some("batch_limit_exceeded"),
            Self::StorageFull => Some("storage_full"),
            Self::StorageUnavailable => Some("storage_unavailable"),
        }
    }

    /// The parameter at fault, if one is.
    pub const fn param(&self) -> Option<&'static str> {
        match self {
            Self::NoSuchFile(_) | Self::NoSuchBatch(_) => Some("id"),
            Self::FileTooLarge { .. } => Some("file"),
            Self::InputFile(_) => Some("input_file_id"),
            _ => None,
        }
    }

    /// Whether sending it again soon can't help: somebody has to do something first.
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::TooLate(_) | Self::TooManyBatches { .. } | Self::StorageFull)
    }

    /// When trying again makes sense.
    pub const fn retry_after(&self) -> Option<Duration> {
        if matches!(self, Self::StorageUnavailable) { Some(Duration::from_secs(2)) } else { None }
    }
}
