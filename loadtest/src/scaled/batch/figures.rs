//! Batches in figures.

use super::{
    super::{clients::Clients, stage::Stage},
    Beside, Ran,
    ledger::{Check, begun},
    samples::{Sample, Samples},
};
use crate::{
    live::Metrics,
    report::{number, time, time_or_dash},
};
use serde::Serialize;

/// All that is known of the batches of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(in crate::scaled) struct Figures {
    /// Each of them.
    pub(super) batches: Vec<Batch>,
    /// Lines that failed by no fault of their own, and were tried again.
    retried: f64,
    /// Lines that came back untried.
    returned: f64,
    /// Lines that reached a phone more than once, for whatever reason: copies, failing over, tries.
    begun_twice: u64,
    /// Slot time while batches ran, seconds of the scenario: of phones that were up, of this busy, of this in vain.
    slot_s: f64,
    busy_slot_s: f64,
    wasted_slot_s: f64,
    /// Resident memory of the gateway, bytes: before the first upload, the most during uploads, the most afterwards, at the end.
    memory: Memory,
    /// What was seen, by time.
    pub(super) samples: Vec<Sample>,
    /// What must be true.
    pub(super) ledger: Vec<Check>,
    /// Other classes, with and without batches.
    pub(in crate::scaled) beside: Option<Beside>,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Memory {
    before: Option<u64>,
    uploading: Option<u64>,
    running: Option<u64>,
    after: Option<u64>,
}

/// One batch. Seconds of the world where the gateway's own work is meant, of the scenario elsewhere.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Batch {
    /// The class, and the key if there are several.
    pub(super) name: String,
    /// Index of the class.
    #[serde(skip)]
    pub(super) class: usize,
    status: String,
    pub(super) lines: usize,
    bytes: usize,
    result_bytes: usize,
    /// World.
    accepted_s: f64,
    /// World.
    validated_s: Option<f64>,
    /// World.
    finalized_s: Option<f64>,
    pub(super) due_s: f64,
    /// When the last result was there.
    pub(super) last_s: f64,
    /// When so many lines had results; not in the JSON.
    #[serde(skip)]
    pub(super) done: Vec<(f64, u64)>,
}

pub(super) fn figures(clients: &Clients, stage: &Stage, ran: &[Ran], samples: Samples, metrics: &Metrics) -> Figures {
    let batches: Vec<Batch> = ran.iter().map(batch).collect();
    let from_s = batches.iter().map(|batch| batch.due_s).fold(f64::INFINITY, f64::min);
    let to_s = batches.iter().map(|batch| batch.last_s).fold(0.0, f64::max);
    let ended = |outcome: &str| metrics.sum("huntgroup_batch_lines_ended_total", &[outcome]);
    let is_line = |number: &usize| {
        clients.run.requests.get(*number).is_some_and(|request| clients.run.goes_as_file(request.class))
    };
    let most = |uploading: bool| {
        let those = samples.0.iter().filter(|sample| (sample.at_s < 0.0) == uploading);
        those.filter_map(|sample| sample.gateway_bytes).max()
    };
    let at = |sample: Option<&Sample>| sample.and_then(|sample| sample.gateway_bytes);
    Figures {
        retried: ended("outcome=\"retried\""),
        returned: ended("outcome=\"returned\""),
        begun_twice: begun(stage).iter().filter(|(number, times)| is_line(number) && times.len() > 1).count() as u64,
        slot_s: samples.slot_s(from_s, to_s),
        busy_slot_s: samples.busy_slot_s(from_s, to_s),
        wasted_slot_s: metrics.sum("huntgroup_wasted_slot_seconds_total", &[]),
        memory: Memory {
            before: at(samples.0.first()),
            uploading: most(true),
            running: most(false),
            after: at(samples.0.last()),
        },
        samples: samples.0,
        batches,
        ..Figures::default()
    }
}

fn batch(ran: &Ran) -> Batch {
    let Ran { upload, course } = ran;
    let done: Vec<(f64, u64)> = course.looks.iter().map(|look| (look.at_s, look.completed + look.failed)).collect();
    let all = done.last().map_or(0, |(_, count)| *count);
    Batch {
        name: upload.name.clone(),
        class: upload.class,
        status: course.status.clone(),
        lines: upload.lines.len(),
        bytes: upload.bytes,
        result_bytes: course.output.len() + course.errors.len(),
        accepted_s: upload.accepted_s,
        validated_s: course.validated_s,
        finalized_s: course.finalized_s,
        due_s: upload.due_s,
        last_s: done.iter().find(|(_, count)| *count == all).map_or(0.0, |(at_s, _)| *at_s),
        done,
    }
}

impl Figures {
    /// Everything is true that must be.
    pub(in crate::scaled) fn holds(&self) -> bool {
        self.ledger.iter().all(Check::holds)
    }

    /// When the last result of all was there, seconds of the scenario.
    pub(in crate::scaled) fn last_s(&self) -> f64 {
        self.batches.iter().map(|batch| batch.last_s).fold(0.0, f64::max)
    }

    /// In words, a line each.
    pub(in crate::scaled) fn lines(&self) -> Vec<String> {
        let megabytes = |bytes: f64| format!("{} MB", number((bytes / 1e5).round() / 10.0));
        let memory = |bytes: Option<u64>| bytes.map_or_else(|| "–".to_owned(), |bytes| megabytes(bytes as f64));
        let share = |part: f64| 100.0 * part / self.busy_slot_s.max(1e-9);
        let mut lines: Vec<String> = self
            .batches
            .iter()
            .map(|batch| {
                format!(
                    "{}: {}, {} lines ({}), taken in {}, looked at in {}, results ({}) written in {} of this machine's time.",
                    batch.name,
                    batch.status,
                    number(batch.lines as f64),
                    megabytes(batch.bytes as f64),
                    time(batch.accepted_s),
                    time_or_dash(batch.validated_s),
                    megabytes(batch.result_bytes as f64),
                    time_or_dash(batch.finalized_s),
                )
            })
            .collect();
        lines.push(format!(
            "Lines tried again: {}, returned untried: {}, sent to more than one phone: {}. Slots of phones that were up: \
             {:.1} % busy; of the busy time {:.2} % in vain.",
            number(self.retried),
            number(self.returned),
            number(self.begun_twice as f64),
            100.0 * self.busy_slot_s / self.slot_s.max(1e-9),
            share(self.wasted_slot_s),
        ));
        lines.push(format!(
            "Memory of the gateway: {} before, at most {} during uploads, {} afterwards, {} at the end.",
            memory(self.memory.before),
            memory(self.memory.uploading),
            memory(self.memory.running),
            memory(self.memory.after),
        ));
        lines.extend(self.beside.iter().flat_map(Beside::lines));
        for check in &self.ledger {
            let example = check.example.as_deref().unwrap_or_default();
            lines.push(if check.holds() {
                format!("ok: {}.", check.what)
            } else {
                format!("FAILED: {}: not so {} times, first {example}", check.what, number(check.wrong as f64))
            });
        }
        lines
    }
}
