//! How a running attempt gets on: how much of its replica's time it got in each phase, and what is left of it.
//!
//! The attempts of a replica share it, so time on the clock says little. What counts is the *share*: the integral of the
//! part of the replica that an attempt had. Divided by it, work gives the replica's rate; subtracted from what the work
//! should take, it gives what is left. An attempt that is late by this account already says that its replica is slower
//! than believed.

use crate::{learning::Shape, placement::Job, time::Timestamp};

/// The account of one attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Course {
    /// Prompt tokens, and those of them believed cached (before and after the replica's yield).
    pub(crate) tokens: f64,
    pub(crate) held: f64,
    pub(crate) cached: f64,
    /// Answer tokens expected.
    pub(crate) output: f64,
    /// Seconds it should take alone, and those of them that it reads.
    pub(crate) own: f64,
    pub(crate) reading: f64,
    /// Seconds of the whole replica that it had while it read, and while it wrote.
    pub(crate) read: f64,
    pub(crate) written: f64,
    /// When its first token came, where that can be seen.
    pub(crate) first_token: Option<Timestamp>,
    /// Prompt tokens behind it by the engine's word, the cached ones included, and those.
    pub(crate) progress: Option<(f64, f64)>,
}

/// An attempt that has used this share of what its phase should take counts as late.
const LATE: f64 = 0.95;
/// Shares in seconds before which a rate seen so far says nothing.
const TELLING: f64 = 3.0;

impl Course {
    /// Time passed while `active` attempts ran on the replica, `writing` of which wrote.
    pub(crate) fn pass(&mut self, seconds: f64, active: f64, writing: f64, shape: &Shape) {
        if active <= 0.0 {
            return;
        }
        match self.first_token {
            None => self.read += seconds / active,
            Some(_) => self.written += seconds * shape.gain(writing) / active,
        }
    }

    /// What is left, in seconds of the whole replica at these rates (tokens per second). `visible`: its first token would
    /// be seen.
    pub(crate) fn left(&self, shape: &Shape, (prefill, decode): (f64, f64), visible: bool) -> Job {
        let reading = shape.overhead() + shape.prefill_work(self.cached, self.tokens) / prefill;
        let writing = shape.decode_work(self.tokens, self.output) / decode;
        let job = |prefill: f64, decode: f64| Job { prefill, decode, weight: 1.0 };
        if self.first_token.is_some() {
            return job(0.0, remaining(writing, self.written, 0.2 * writing));
        }
        if let Some((behind, cached)) = self.progress {
            let (done, all) = (shape.prefill_work(cached, behind), shape.prefill_work(cached, self.tokens));
            let rate = if self.read > TELLING && done > 0.0 { (done / self.read).min(1.3 * prefill) } else { prefill };
            return job(((all - done) / rate).max(0.0), writing);
        }
        if !visible && self.read > reading {
            // It may be writing by now: a plain answer shows nothing of that.
            return job(0.0, remaining(writing, self.read - reading, 0.05 * writing));
        }
        job(remaining(reading, self.read, 0.0), writing)
    }
}

/// What is left of work of that length after `spent`; once it is late, as much again as it is late.
fn remaining(length: f64, spent: f64, least: f64) -> f64 {
    let late = LATE * length;
    let left = if spent < late { length - spent } else { (length - late) + (spent - late) };
    left.max(least).max(1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: (f64, f64) = (100.0, 10.0);

    fn course() -> Course {
        Course { tokens: 1000.0, output: 100.0, ..Course::default() }
    }

    #[test]
    fn shares_add_up_by_phase() {
        let shape = Shape::default();
        let mut course = course();
        course.pass(10.0, 2.0, 0.0, &shape);
        course.first_token = Some(Timestamp(1));
        course.pass(10.0, 2.0, 2.0, &shape);
        course.pass(10.0, 0.0, 0.0, &shape);
        assert!((course.read - 5.0).abs() < 1e-9);
        assert!((course.written - 5.0 * shape.gain(2.0)).abs() < 1e-9);
    }

    #[test]
    fn what_is_left_shrinks_and_grows_again_once_it_is_late() {
        let shape = Shape::default();
        let left = |read| Course { read, ..course() }.left(&shape, RATES, true).prefill;
        assert!(left(0.0) > left(5.0) && left(5.0) > left(10.0));
        assert!(left(30.0) > left(20.0), "an attempt that is late is not about to end");
    }

    #[test]
    fn the_engines_word_beats_the_estimate() {
        let shape = Shape::default();
        let half = Course { progress: Some((500.0, 0.0)), read: 20.0, ..course() }.left(&shape, RATES, true).prefill;
        let blind = Course { read: 20.0, ..course() }.left(&shape, RATES, true).prefill;
        assert!(half > 15.0 && half < 40.0, "{half}");
        assert!(blind != half);
    }

    #[test]
    fn a_plain_answer_that_is_past_its_reading_is_taken_to_write() {
        let shape = Shape::default();
        let job = Course { read: 15.0, ..course() }.left(&shape, RATES, false);
        assert!(job.prefill == 0.0 && job.decode > 0.0);
    }
}
