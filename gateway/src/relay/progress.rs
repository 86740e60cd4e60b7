//! How far a replica has read its prompt, told to the core a few times.

use openai_wire::PromptProgress;
use scheduler::{AttemptId, Event};

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

#[cfg(test)]
mod tests {
    use super::*;

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
