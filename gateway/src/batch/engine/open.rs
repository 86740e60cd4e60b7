//! A batch that has not ended, as the engine has it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use scheduler::{Class, Timestamp};
use store::{BatchRecord, BatchState, ClaimedLine, Holder};
use tokio::sync::Notify;

use crate::{auth::Tenant, batch::pace::Pace};

/// A batch that has not ended.
pub(super) struct Open {
    pub(super) record: BatchRecord,
    pub(super) tenant: Arc<Tenant>,
    /// Lines that are claimed and not begun.
    pub(super) claimed: VecDeque<ClaimedLine>,
    /// Lines on their way.
    pub(super) running: HashMap<u32, Running>,
    /// None waited when they were last asked for.
    pub(super) exhausted: bool,
    /// It has ended, and its last lines come back here.
    pub(super) over: bool,
    /// This process validates it, or writes its files.
    pub(super) job: bool,
    pub(super) job_not_before: Timestamp,
    /// That work failed for want of space.
    pub(super) job_without_space: bool,
    /// No line is begun before.
    pub(super) not_before: Timestamp,
    pub(super) pace: Pace,
    pub(super) class: Class,
}

/// A line on its way.
pub(super) struct Running {
    pub(super) bytes: u64,
    /// In whose name it was claimed.
    pub(super) holder: Holder,
    pub(super) cancel: Arc<Notify>,
    /// It was called back.
    pub(super) called_back: bool,
}

impl Open {
    pub(super) fn new(record: BatchRecord, tenant: Arc<Tenant>) -> Self {
        Self {
            record,
            tenant,
            claimed: VecDeque::new(),
            running: HashMap::new(),
            exhausted: false,
            over: false,
            job: false,
            job_not_before: Timestamp::ZERO,
            job_without_space: false,
            not_before: Timestamp::ZERO,
            pace: Pace::default(),
            class: Class::Batch,
        }
    }

    pub(super) fn call_back(&mut self) {
        for line in self.running.values_mut().filter(|line| !line.called_back) {
            line.called_back = true;
            line.cancel.notify_one();
        }
    }

    /// Lines that were called back still come back: until then nobody knows which of them wait.
    pub(super) fn is_called_back(&self) -> bool {
        self.running.values().any(|line| line.called_back)
    }

    pub(super) fn has_lines(&self) -> bool {
        self.record.state == BatchState::InProgress && self.record.seal.is_none() && !self.over
    }

    /// Nothing of it is claimed or on its way here.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.claimed.is_empty()
    }

    pub(super) fn left(&self) -> u32 {
        let counts = self.record.counts;
        counts.total.saturating_sub(counts.completed + counts.failed)
    }
}
