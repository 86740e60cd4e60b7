//! What a replica did in the last two hours, by spans of two minutes: how fast it is in the mean, and when it was faster or slower.

use std::collections::VecDeque;

use super::up_to;
use crate::time::Timestamp;

/// More than any work, and any time that it takes.
const MOST: f64 = 1e18;

/// Work, and the seconds that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Done {
    pub(crate) work: f64,
    pub(crate) seconds: f64,
}

impl Done {
    pub(crate) fn and(self, other: Self) -> Self {
        Self { work: self.work + other.work, seconds: self.seconds + other.seconds }
    }
}

/// Spans in which something was done, the oldest first, by their number.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(VecDeque<(u64, Done)>);

impl History {
    /// A span: two minutes. Phones get hot and cool down in some ten.
    pub(crate) const SECONDS: f64 = 120.0;
    /// Spans that are kept.
    pub(crate) const SPANS: usize = 60;

    /// The number of the span in which a moment lies.
    pub(crate) fn span(at: Timestamp) -> u64 {
        (seconds(at) / Self::SECONDS) as u64
    }

    /// When a span begins.
    pub(crate) fn begins(span: u64) -> Timestamp {
        Timestamp((span as f64 * Self::SECONDS * 1e9) as u64)
    }

    /// So much work took so long, until now: some of it in each of the spans since it began.
    pub(crate) fn add(&mut self, work: f64, seconds: f64, now: Timestamp) {
        let (work, seconds) = (up_to(MOST, work), up_to(MOST, seconds));
        let until = self::seconds(now);
        let last = Self::span(now);
        let from = (until - seconds).max(0.0);
        let first = ((from / Self::SECONDS) as u64).max(last.saturating_sub(Self::SPANS as u64));
        let length = (until - from).max(f64::MIN_POSITIVE);
        for span in first..=last {
            let begins = span as f64 * Self::SECONDS;
            let inside = (until.min(begins + Self::SECONDS) - from.max(begins)).max(0.0);
            let share = if first == last { 1.0 } else { inside / length };
            self.put(span, Done { work: work * share, seconds: seconds * share });
        }
    }

    fn put(&mut self, span: u64, done: Done) {
        // Time may seem to go back: what comes late counts where there is room for it.
        let at = self.0.partition_point(|(number, _)| *number < span);
        match self.0.get_mut(at).filter(|(number, _)| *number == span) {
            Some((_, sum)) => *sum = sum.and(done),
            None => self.0.insert(at, (span, done)),
        }
        while self.0.len() > Self::SPANS {
            self.0.pop_front();
        }
    }

    /// The oldest span that counts.
    pub(crate) fn oldest(now: Timestamp) -> u64 {
        Self::span(now).saturating_sub(Self::SPANS as u64 - 1)
    }

    /// All spans that are not too old, in their order.
    pub(crate) fn spans(&self, now: Timestamp) -> impl Iterator<Item = (u64, Done)> + '_ {
        let oldest = Self::oldest(now);
        self.0.iter().copied().filter(move |(span, _)| *span >= oldest)
    }

    /// What was done in all of them.
    pub(crate) fn sum(&self, now: Timestamp) -> Done {
        self.spans(now).fold(Done::default(), |sum, (_, done)| sum.and(done))
    }
}

fn seconds(at: Timestamp) -> f64 {
    at.since(Timestamp::ZERO).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp((seconds * 1e9) as u64)
    }

    #[test]
    fn work_counts_in_the_spans_that_it_was_done_in() {
        let mut history = History::default();
        history.add(300.0, 150.0, at(200.0));
        let spans: Vec<_> = history.spans(at(200.0)).collect();
        assert_eq!(spans.iter().map(|(span, _)| *span).collect::<Vec<_>>(), [0, 1]);
        assert!((spans[0].1.work - 140.0).abs() < 1e-6 && (spans[0].1.seconds - 70.0).abs() < 1e-6, "{spans:?}");
        assert!((spans[1].1.work - 160.0).abs() < 1e-6 && (spans[1].1.seconds - 80.0).abs() < 1e-6, "{spans:?}");
        assert_eq!(History::begins(1), at(120.0));
    }

    #[test]
    fn what_is_older_than_two_hours_is_forgotten() {
        let mut history = History::default();
        for minute in 0..600 {
            history.add(60.0, 30.0, at(60.0 * f64::from(minute) + 30.0));
        }
        let now = at(600.0 * 60.0 - 1.0);
        assert_eq!(history.spans(now).count(), 60);
        assert!((history.sum(now).work - 120.0 * 60.0).abs() < 1.0, "{:?}", history.sum(now));
        assert_eq!(history.sum(at(1e6)), Done::default());
    }

    #[test]
    fn nothing_makes_it_anything_but_numbers_and_few() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1.0, 1e300];
        let mut history = History::default();
        for (number, work) in odd.into_iter().cycle().take(800).enumerate() {
            let seconds = odd[number / 3 % odd.len()];
            // Time may seem to go back.
            history.add(work, seconds, at((number * 7919 % 50_000) as f64));
            assert!(history.0.len() <= 60);
        }
        history.add(1.0, 1.0, Timestamp::NEVER);
        let sum = history.sum(Timestamp::NEVER);
        assert!(sum.work.is_finite() && sum.seconds.is_finite(), "{sum:?}");
    }
}
