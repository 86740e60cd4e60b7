//! When the jobs of one replica will be done, if nothing is added: they share one processor.
//!
//! Each of k jobs gets a k-th of the time to read its prompt; those that write together gain a little, since one pass over
//! the weights serves all of them. A closed formula exists for equal jobs only, so the next completion is computed again
//! after each; replicas run a handful of jobs, so that costs less than a cache miss.

use crate::learning::Shape;

/// Most jobs of one replica that are looked at; more slots than that make no difference to a choice.
pub(crate) const MOST: usize = 16;

/// Work that is left of one job, in seconds of the whole replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Job {
    pub(crate) prefill: f64,
    pub(crate) decode: f64,
    /// How much a second of its delay counts.
    pub(crate) weight: f64,
}

/// The jobs of one replica.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Jobs {
    jobs: [Job; MOST],
    len: usize,
}

/// Seconds from now to the end of each job, in the order in which they were added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    ends: [f64; MOST],
    len: usize,
}

impl Ends {
    pub(crate) fn first(&self) -> f64 {
        self.iter().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn last(&self) -> f64 {
        self.iter().fold(0.0, f64::max)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = f64> + '_ {
        self.ends.iter().copied().take(self.len)
    }
}

impl Jobs {
    pub(crate) fn add(&mut self, job: Job) {
        if let Some(place) = self.jobs.get_mut(self.len) {
            *place = job;
            self.len += 1;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter().take(self.len)
    }

    pub(crate) fn with(mut self, job: Job) -> Self {
        self.add(job);
        self
    }

    /// When each ends.
    pub(crate) fn ends(&self, shape: &Shape) -> Ends {
        self.run(shape, usize::MAX).0
    }

    /// When the first ends, and what is left of the others then.
    pub(crate) fn after_first(&self, shape: &Shape) -> (f64, Self) {
        let (ends, left) = self.run(shape, 1);
        let mut rest = Self::default();
        let unfinished = left.iter().zip(ends.iter()).filter(|(_, end)| end.is_infinite());
        unfinished.for_each(|(job, _)| rest.add(*job));
        (ends.first(), rest)
    }

    /// Runs until `stop` jobs have ended: those have a finite end, and the jobs hold what is left of the others.
    fn run(&self, shape: &Shape, stop: usize) -> (Ends, Self) {
        /// Less than this is rounding.
        const DONE: f64 = 1e-9;
        let mut left = *self;
        let mut ends = Ends { ends: [f64::INFINITY; MOST], len: self.len };
        let (mut now, mut ended) = (0.0, 0);
        while ended < stop.min(self.len) {
            let (mut active, mut writing) = (0.0, 0.0);
            for (job, _) in left.iter().zip(ends.iter()).filter(|(_, end)| end.is_infinite()) {
                active += 1.0;
                writing += f64::from(u8::from(job.prefill <= 0.0));
            }
            if active == 0.0 {
                break;
            }
            let (read, write) = (1.0 / active, (shape.gain(writing) / active).max(f64::MIN_POSITIVE));
            let span = |job: &Job| if job.prefill > 0.0 { job.prefill / read } else { job.decode / write };
            let unfinished = left.iter().zip(ends.iter()).filter(|(_, end)| end.is_infinite());
            let step = unfinished.map(|(job, _)| span(job)).fold(f64::INFINITY, f64::min);
            if !step.is_finite() {
                break;
            }
            now += step;
            for (job, end) in left.jobs.iter_mut().zip(&mut ends.ends).take(self.len) {
                if end.is_finite() {
                    continue;
                }
                if job.prefill > 0.0 {
                    job.prefill -= read * step;
                    if job.prefill < DONE {
                        job.prefill = 0.0;
                    }
                } else {
                    job.decode -= write * step;
                }
                if job.prefill <= 0.0 && job.decode < DONE {
                    *end = now;
                    ended += 1;
                }
            }
        }
        (ends, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(all: &[(f64, f64)]) -> Jobs {
        let mut jobs = Jobs::default();
        all.iter().for_each(|(prefill, decode)| jobs.add(Job { prefill: *prefill, decode: *decode, weight: 1.0 }));
        jobs
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn one_job_takes_its_work() {
        let ends = jobs(&[(3.0, 2.0)]).ends(&Shape::default());
        assert!(near(ends.first(), 5.0) && near(ends.last(), 5.0));
    }

    #[test]
    fn two_readers_share_evenly_and_two_writers_gain_by_company() {
        let shape = Shape::default();
        let readers = jobs(&[(3.0, 0.0), (5.0, 0.0)]).ends(&shape);
        assert!(near(readers.first(), 6.0) && near(readers.last(), 8.0));
        let writers = jobs(&[(0.0, 4.0), (0.0, 4.0)]).ends(&shape);
        assert!(near(writers.last(), 8.0 / shape.gain(2.0)) && writers.last() < 8.0);
    }

    #[test]
    fn what_is_left_after_the_first_takes_as_long_as_it_would_have() {
        let shape = Shape::default();
        let all = jobs(&[(1.0, 2.0), (4.0, 1.0), (0.0, 6.0)]);
        let (first, rest) = all.after_first(&shape);
        let ends = all.ends(&shape);
        assert!(near(first, ends.first()));
        assert!(near(first + rest.ends(&shape).last(), ends.last()));
        assert_eq!(rest.iter().count(), 2);
    }

    #[test]
    fn nothing_ends_at_once_and_more_jobs_than_looked_at_are_left_out() {
        assert_eq!(Jobs::default().ends(&Shape::default()).last(), 0.0);
        let many = jobs(&[(1.0, 1.0); MOST + 5]);
        assert_eq!(many.iter().count(), MOST);
        assert!(many.ends(&Shape::default()).last().is_finite());
    }
}
