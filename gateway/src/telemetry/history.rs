//! The last hour in points of ten seconds, for whoever looks without a Prometheus at hand.
//!
//! What ends is counted when it ends; how full the pool is, is looked at when an interval closes. Times to the first token go
//! into counts over a fixed ladder of lengths, each 5 % longer than the one before: a quantile is read off with an error of
//! at most half of that, and the memory is the same for one request and for a million. Rejected: the histograms
//! of `metrics` (their buckets are too wide for a median), keeping every length.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use scheduler::Class;

use crate::{clock, shutdown::Stop};

/// Seconds of one point.
pub const EVERY_S: u64 = 10;
/// Points kept: an hour.
pub const POINTS: usize = 360;

/// The shortest length that is told from shorter ones, seconds.
const SHORTEST: f64 = 1e-3;
/// From one step of the ladder to the next.
const STEP: f64 = 1.05;
/// Steps: up to an hour and a half.
const STEPS: usize = 320;

/// What happened in ten seconds, and how things stood at their end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// The end, in seconds since 1970.
    pub at: u64,
    /// Requests that got their whole answer.
    pub requests: u64,
    /// Requests that failed through no fault of their client: refused because of load, late, or lost with a replica.
    pub failed: u64,
    /// Tokens read.
    pub prompt_tokens: u64,
    /// Tokens written.
    pub completion_tokens: u64,
    /// Median and 95th percentile of the time to the first token in seconds, by class as in [`Class::ALL`], of requests that ended;
    /// `None` if none did.
    pub ttft: [Option<[f64; 2]>; Class::ALL.len()],
    /// 95th percentile of the waits for a slot in seconds, of requests that ended; `None` if none did.
    pub waits_p95: Option<f64>,
    /// How full the pool is.
    pub level: Level,
}

/// How full the pool is at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Requests that wait.
    pub queued: usize,
    /// Requests that run.
    pub busy: usize,
    /// Slots of replicas that take work.
    pub slots: usize,
    /// Replicas that are ready.
    pub ready: usize,
}

/// The end of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) class: Class,
    /// It got its whole answer; `None`: neither that, nor is anybody here to blame.
    pub(super) good: Option<bool>,
    pub(super) prompt: u64,
    pub(super) completion: u64,
    pub(super) first_token: Option<Duration>,
    pub(super) waited: Option<Duration>,
}

/// The hour.
pub struct History {
    running: Mutex<Interval>,
    points: Mutex<VecDeque<Point>>,
}

#[derive(Default)]
struct Interval {
    point: Point,
    ttft: [Lengths; Class::ALL.len()],
    waits: Lengths,
}

impl Default for History {
    fn default() -> Self {
        Self { running: Mutex::default(), points: Mutex::new(VecDeque::with_capacity(POINTS)) }
    }
}

impl History {
    pub(super) fn ended(&self, ended: Ended) {
        let mut running = self.running();
        let point = &mut running.point;
        match ended.good {
            Some(true) => point.requests += 1,
            Some(false) => point.failed += 1,
            None => {}
        }
        point.prompt_tokens += ended.prompt;
        point.completion_tokens += ended.completion;
        if let Some(first) = ended.first_token {
            running.ttft[ended.class as usize].add(first.as_secs_f64());
        }
        if let Some(waited) = ended.waited {
            running.waits.add(waited.as_secs_f64());
        }
    }

    /// Ends the running interval at `at`, in seconds since 1970, and begins the next.
    pub fn close(&self, at: u64, level: Level) {
        let ended = std::mem::take(&mut *self.running());
        let ttft = ended.ttft.each_ref().map(|lengths| Some([lengths.quantile(0.5)?, lengths.quantile(0.95)?]));
        let point = Point { at, level, ttft, waits_p95: ended.waits.quantile(0.95), ..ended.point };
        let mut points = self.kept();
        if points.len() == POINTS {
            points.pop_front();
        }
        points.push_back(point);
    }

    /// The points, oldest first.
    pub fn points(&self) -> Vec<Point> {
        self.kept().iter().copied().collect()
    }

    /// The newest point.
    pub fn newest(&self) -> Option<Point> {
        self.kept().back().copied()
    }

    /// Closes an interval every ten seconds of the time of day, until `stop`.
    pub async fn keep(&self, level: impl Fn() -> Level, mut stop: Stop) {
        loop {
            let now = clock::unix();
            let end = (now.as_secs() / EVERY_S + 1) * EVERY_S;
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(Duration::from_secs(end).saturating_sub(now)) => self.close(end, level()),
            }
        }
    }

    fn running(&self) -> MutexGuard<'_, Interval> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Point>> {
        self.points.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lengths of time, counted by the step of the ladder that each reaches.
struct Lengths {
    counts: Box<[u32; STEPS]>,
    total: u64,
}

impl Default for Lengths {
    fn default() -> Self {
        Self { counts: Box::new([0; STEPS]), total: 0 }
    }
}

impl Lengths {
    fn add(&mut self, seconds: f64) {
        let step = ((seconds / SHORTEST).max(1.0).ln() / STEP.ln()) as usize;
        let count = &mut self.counts[step.min(STEPS - 1)];
        *count = count.saturating_add(1);
        self.total += 1;
    }

    /// In seconds, the middle of the step in which that share of the lengths is reached; `None` if there are none.
    fn quantile(&self, share: f64) -> Option<f64> {
        if self.total == 0 {
            return None;
        }
        let wanted = (share * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let step = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted
        })?;
        Some(SHORTEST * STEP.powf(step as f64 + 0.5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(class: Class, good: Option<bool>, first_token: Option<Duration>) -> Ended {
        Ended { class, good, prompt: 10, completion: 3, first_token, waited: Some(Duration::from_secs(2)) }
    }

    #[test]
    fn a_point_has_what_ended_in_its_ten_seconds_and_nothing_else() {
        let history = History::default();
        let ms = |ms| Some(Duration::from_millis(ms));
        for length in 1..=100 {
            history.ended(ended(Class::Interactive, Some(true), ms(length * 10)));
        }
        history.ended(ended(Class::Batch, Some(false), None));
        history.ended(ended(Class::Batch, None, None));
        let level = Level { queued: 1, busy: 2, slots: 3, ready: 4 };
        history.close(1000, level);
        history.close(1010, Level::default());
        let [first, second] = history.points()[..] else { panic!("two points") };
        assert_eq!((first.at, first.requests, first.failed, first.level), (1000, 100, 1, level));
        assert_eq!((first.prompt_tokens, first.completion_tokens), (1020, 306));
        let [Some([median, late]), None, None] = first.ttft else { panic!("{:?}", first.ttft) };
        assert!((median / 0.5 - 1.0).abs() < 0.03 && (late / 0.95 - 1.0).abs() < 0.03, "{median} {late}");
        assert!((first.waits_p95.unwrap() / 2.0 - 1.0).abs() < 0.03);
        assert_eq!(second, Point { at: 1010, ..Point::default() });
        assert_eq!(history.newest(), Some(second));
    }

    #[test]
    fn an_hour_is_kept() {
        let history = History::default();
        for at in 0..1000 {
            history.close(at, Level::default());
        }
        let points = history.points();
        assert_eq!((points.len(), points[0].at, points[POINTS - 1].at), (POINTS, 640, 999));
    }

    #[test]
    fn lengths_out_of_any_range_are_counted_at_its_ends() {
        let mut lengths = Lengths::default();
        assert_eq!(lengths.quantile(0.5), None);
        for odd in [0.0, -1.0, 1e9, f64::INFINITY] {
            lengths.add(odd);
        }
        assert!(lengths.quantile(0.5).unwrap() < 2e-3);
        assert!(lengths.quantile(1.0).unwrap() > 5_000.0);
    }
}
