//! `[batches]`: files of requests that are run at leisure.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    bytes::ByteSize,
    hours::Hours,
    visit::{Section, Visitor, live, restart},
};

const fn hours(count: u64) -> Duration {
    Duration::from_secs(3600 * count)
}

/// What batches may take, and when they run.
#[derive(Clone, Debug, PartialEq)]
pub struct Batches {
    /// The database file of files and batches. `None`: beside the store's, or in memory as that is.
    pub path: Option<PathBuf>,
    /// One file. 200 MiB: what the public API takes.
    pub max_file: ByteSize,
    /// Lines of one batch. 50,000: what the public API takes.
    pub max_lines: u32,
    /// All files of one tenant. 10 GiB: fifty of the largest.
    pub max_bytes_per_tenant: ByteSize,
    /// Files of one tenant. 20,000: their sizes are added up at each piece of an upload, in about 10 ms; a night's batch has three.
    pub max_files_per_tenant: u32,
    /// Batches of one tenant that have not ended. 100.
    pub max_open_per_tenant: u32,
    /// Lines on their way at once, of all batches, those that wait for a slot too: three for each slot keep a pool busy. 10,000: a
    /// thousand phones with three slots each. Bodies are bounded by `limits.max_buffered_bytes` besides.
    pub max_running: u32,
    /// A line that failed by no fault of its own is tried so often. Each time is several replicas already.
    pub max_tries: u32,
    /// A process that was not heard of for this long has lost the lines that it had claimed. 15 s: longer than any sync to disk,
    /// and short enough that lines of a process that was killed are soon another's.
    pub lease: Duration,
    /// When lines are begun, in UTC; empty: always. What runs then ends in its own time.
    pub hours: Vec<Hours>,
    /// Files are deleted after this long, if their owner does not say otherwise.
    pub keep_files: Duration,
    /// Batches that have ended are forgotten after this long.
    pub keep_batches: Duration,
}

impl Default for Batches {
    fn default() -> Self {
        Self {
            path: None,
            max_file: ByteSize::mib(200),
            max_lines: 50_000,
            max_bytes_per_tenant: ByteSize::mib(10 << 10),
            max_files_per_tenant: 20_000,
            max_open_per_tenant: 100,
            max_running: 10_000,
            max_tries: 3,
            lease: Duration::from_secs(15),
            hours: Vec::new(),
            keep_files: hours(30 * 24),
            keep_batches: hours(90 * 24),
        }
    }
}

impl Batches {
    /// Whether lines are begun at that time since 1970.
    pub fn is_their_hour(&self, unix: Duration) -> bool {
        self.hours.is_empty() || self.hours.iter().any(|hours| hours.contain(unix))
    }

    /// Where the database is, beside a store at `store`.
    pub fn file(&self, store: &Path) -> PathBuf {
        let beside = || {
            if store == Path::new(":memory:") {
                return store.to_path_buf();
            }
            let stem = store.file_stem().unwrap_or_default().to_string_lossy();
            store.with_file_name(format!("{stem}-batches.db"))
        };
        self.path.clone().unwrap_or_else(beside)
    }
}

impl Section for Batches {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.value(restart("path"), &mut self.path);
        v.ranged(live("max_file"), &mut self.max_file, ByteSize::kib(1)..=ByteSize::mib(4 << 10));
        v.ranged(live("max_lines"), &mut self.max_lines, 1..=1_000_000);
        v.value(live("max_bytes_per_tenant"), &mut self.max_bytes_per_tenant);
        v.ranged(live("max_files_per_tenant"), &mut self.max_files_per_tenant, 1..=1_000_000);
        v.ranged(live("max_open_per_tenant"), &mut self.max_open_per_tenant, 1..=100_000);
        v.ranged(live("max_running"), &mut self.max_running, 1..=100_000);
        v.ranged(live("max_tries"), &mut self.max_tries, 1..=100);
        v.ranged(live("lease"), &mut self.lease, Duration::from_secs(1)..=Duration::from_secs(600));
        v.list(live("hours"), &mut self.hours);
        v.ranged(live("keep_files"), &mut self.keep_files, hours(1)..=hours(3650 * 24));
        v.ranged(live("keep_batches"), &mut self.keep_batches, hours(1)..=hours(3650 * 24));
    }
}
