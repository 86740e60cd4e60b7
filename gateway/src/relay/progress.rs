//! How far a replica has come, told to the core a few times, and to a client that wants to know.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use openai_wire::PromptProgress;
use scheduler::{AttemptId, Event, Timestamp};

use super::patience::Reading;

/// Most reports of one attempt: engines send one per batch of some hundred tokens, and each costs the core's lock.
const MAX: u32 = 8;

/// What the core was told of one attempt.
#[derive(Default)]
pub struct Reports {
    told: u32,
    read: u32,
}

impl Reports {
    /// The next report, if what was seen is news: the first, and then each further eighth of the prompt.
    pub fn due(&mut self, attempt: AttemptId, seen: &PromptProgress) -> Option<Event> {
        let step = (seen.total / MAX).max(1);
        if self.told == MAX || self.told > 0 && seen.read < self.read.saturating_add(step) {
            return None;
        }
        self.told += 1;
        self.read = seen.read;
        Some(Event::Progress { attempt, read_tokens: seen.read, cached_tokens: seen.cached })
    }
}

/// What a waiting client is told of the attempt that runs; of several, of the one that reported last.
#[derive(Debug, Default)]
pub struct Outlook {
    /// Percent of the prompt that is read, and 1; or [`SILENT`], or [`WRITING`].
    phase: AtomicU32,
    /// When it will be read; nanoseconds of the clock, 0 if nobody can say.
    read_by: AtomicU64,
}

const SILENT: u32 = 0;
const WRITING: u32 = u32::MAX;

impl Outlook {
    /// An attempt starts.
    pub(super) fn begin(&self) {
        self.phase.store(SILENT, Ordering::Relaxed);
    }

    /// It reads, and has said so at `now`.
    pub(super) fn read(&self, reading: &Reading, now: Timestamp) {
        let by = reading.left().map_or(0, |left| (now + left).0);
        self.read_by.store(by, Ordering::Relaxed);
        self.phase.store(reading.percent().map_or(SILENT, |percent| percent + 1), Ordering::Relaxed);
    }

    /// Its answer has begun.
    pub(super) fn write(&self) {
        self.phase.store(WRITING, Ordering::Relaxed);
    }

    /// In words; `None` as long as nothing is known.
    pub fn words(&self, now: Timestamp) -> Option<String> {
        match self.phase.load(Ordering::Relaxed) {
            SILENT => None,
            WRITING => Some("writing".to_owned()),
            percent => {
                let left = Timestamp(self.read_by.load(Ordering::Relaxed)).since(now);
                let about =
                    if left > Duration::ZERO { format!(", about {} left", seconds(left)) } else { String::new() };
                Some(format!("reading, {} %{about}", percent - 1))
            }
        }
    }
}

/// A length as clients are told: whole seconds, never none.
pub fn seconds(length: Duration) -> String {
    format!("{:.0} s", length.as_secs_f64().ceil().max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_what_is_read_how_long_the_rest_takes_and_that_it_writes() {
        let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
        let outlook = Outlook::default();
        assert_eq!(outlook.words(at(0)), None);
        let mut reading = Reading::new(None, Timestamp::ZERO);
        let report = |read| PromptProgress { total: 4_000, read, cached: 0 };
        reading.note(&report(0), at(10));
        outlook.read(&reading, at(10));
        assert_eq!(outlook.words(at(11)).as_deref(), Some("reading, 0 %"));
        reading.note(&report(1_000), at(20));
        outlook.read(&reading, at(20));
        assert_eq!(outlook.words(at(25)).as_deref(), Some("reading, 25 %, about 25 s left"));
        assert_eq!(outlook.words(at(90)).as_deref(), Some("reading, 25 %"), "late: nobody knows");
        outlook.write();
        assert_eq!(outlook.words(at(91)).as_deref(), Some("writing"));
        outlook.begin();
        assert_eq!(outlook.words(at(92)), None, "another replica begins");
    }

    #[test]
    fn the_first_report_and_every_eighth_of_the_prompt_are_told_and_no_more() {
        let mut reports = Reports::default();
        let mut told = Vec::new();
        for read in (100..=4_000).step_by(100) {
            let seen = PromptProgress { total: 4_000, read, cached: 100 };
            told.extend(reports.due(AttemptId(1), &seen).map(|_| read));
        }
        assert_eq!(told, [100, 600, 1100, 1600, 2100, 2600, 3100, 3600]);
        // A phone that claims another prompt with every event gets no further.
        let silly = |read| PromptProgress { total: 1, read, cached: 0 };
        assert!((10_000..20_000).all(|read| reports.due(AttemptId(1), &silly(read)).is_none()));
    }
}
