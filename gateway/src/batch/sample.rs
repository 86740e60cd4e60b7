//! What the gauges show of batches: the engine's last look, counted.

use std::sync::atomic::Ordering;

use store::{BatchRecord, BatchState, UnixMillis};

use super::{Batches, Progress, WaitsFor, now};
use crate::telemetry::{BatchSample, LineSample};

impl Batches {
    /// What the gauges show. Asks no database.
    pub fn sample(&self) -> BatchSample {
        let stored_bytes = self.stored.load(Ordering::Relaxed);
        BatchSample { stored_bytes, ..count(&self.list(), now()) }
    }

    /// So many bytes of files are stored.
    pub(super) fn note_stored(&self, bytes: u64) {
        self.stored.store(bytes, Ordering::Relaxed);
    }
}

fn count(open: &[(BatchRecord, Progress)], now: UnixMillis) -> BatchSample {
    let of_state = |state| open.iter().filter(|(batch, _)| batch.state == state).count();
    let waiting = |what| open.iter().filter(|(_, progress)| progress.waits_for == Some(what)).count();
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let states = BatchState::ALL.into_iter().filter(|state| !state.is_terminal());
    let mut sample = BatchSample {
        states: states.map(|state| (state.name(), number(of_state(state)))).collect(),
        waiting: WaitsFor::ALL.into_iter().map(|what| (what.name(), number(waiting(what)))).collect(),
        ..BatchSample::default()
    };
    for (batch, progress) in open {
        add(&mut sample.lines, batch, progress);
        if let Some(left) = progress.left {
            sample.left_s = Some(sample.left_s.unwrap_or(0.0).max(left.as_secs_f64()));
        }
        // What is sealed can't expire any more.
        if batch.seal.is_some() {
            continue;
        }
        let expiry = (batch.times.expires.0 as f64 - now.0 as f64) / 1e3;
        sample.expiry_s = Some(sample.expiry_s.unwrap_or(f64::INFINITY).min(expiry));
        if let Some(left) = progress.left {
            let slack = expiry - left.as_secs_f64();
            sample.slack_s = Some(sample.slack_s.unwrap_or(f64::INFINITY).min(slack));
        }
    }
    sample
}

fn add(lines: &mut LineSample, batch: &BatchRecord, progress: &Progress) {
    let counts = batch.counts;
    let without = counts.total.saturating_sub(counts.completed + counts.failed);
    let running = progress.running.min(without);
    lines.running += u64::from(running);
    lines.waiting += u64::from(without - running);
    lines.completed += u64::from(counts.completed);
    lines.failed += u64::from(counts.failed);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;
    use store::{BatchKey, BatchTimes, FileKey, LineCounts, Seal, TokenUsage};

    use super::*;

    fn batch(state: BatchState, expires_s: u64, counts: [u32; 3]) -> BatchRecord {
        BatchRecord {
            key: BatchKey(1),
            id: "batch_a".into(),
            tenant: "bank".into(),
            endpoint: "/v1/completions".into(),
            input_file: "file-a".into(),
            input: FileKey(1),
            completion_window: "24h".into(),
            metadata: Value::Null,
            permissions: Value::Null,
            output_expires_after: None,
            state,
            seal: (state == BatchState::Finalizing).then_some(Seal::Complete),
            model: Some("tiny".into()),
            errors: None,
            output_file: None,
            error_file: None,
            times: BatchTimes { expires: UnixMillis(expires_s * 1_000), ..BatchTimes::default() },
            counts: LineCounts { total: counts[0], completed: counts[1], failed: counts[2] },
            usage: TokenUsage::default(),
        }
    }

    fn progress(running: u32, left_s: Option<u64>, waits_for: Option<WaitsFor>) -> Progress {
        Progress { running, left: left_s.map(Duration::from_secs), waits_for, ..Progress::default() }
    }

    #[test]
    fn lines_and_batches_are_counted_and_the_times_are_those_of_the_worst() {
        let open = [
            (batch(BatchState::InProgress, 1_000, [100, 40, 2]), progress(8, Some(300), None)),
            (batch(BatchState::InProgress, 400, [10, 0, 0]), progress(0, Some(500), Some(WaitsFor::Hours))),
            (batch(BatchState::InProgress, 200, [7, 0, 0]), progress(0, None, Some(WaitsFor::Replica))),
            (batch(BatchState::Finalizing, 50, [5, 5, 0]), progress(0, None, None)),
        ];
        let sample = count(&open, UnixMillis(100_000));
        assert_eq!(sample.states, [("validating", 0), ("in_progress", 3), ("finalizing", 1), ("cancelling", 0)]);
        assert_eq!(sample.waiting, [("replica", 1), ("hours", 1), ("memory", 0), ("disk", 0)]);
        assert_eq!(sample.lines, LineSample { waiting: 67, running: 8, completed: 45, failed: 2 });
        assert_eq!((sample.left_s, sample.expiry_s, sample.slack_s), (Some(500.0), Some(100.0), Some(-200.0)));
    }

    #[test]
    fn without_batches_there_are_no_times_and_every_count_is_nothing() {
        let sample = count(&[], UnixMillis(100_000));
        assert_eq!((sample.left_s, sample.expiry_s, sample.slack_s), (None, None, None));
        assert_eq!((sample.states.len(), sample.waiting.len(), sample.lines), (4, 4, LineSample::default()));
        assert!(sample.states.iter().chain(&sample.waiting).all(|(_, count)| *count == 0));
    }
}
