//! The one processor of a phone, which everything in its slots shares.
//!
//! What a task has left is counted in seconds that it would take alone at the phone's full speed. How fast these pass
//! depends on what runs beside it and on the phone's present pace. Both change at moments only, so between two of them
//! everything is a straight line, and the next end is known in advance: in virtual time it is put down, behind a real
//! socket it is slept towards. Either way it is this account that says what is done.

use super::{Load, PhoneSpeed};

/// What a request does in its slot at present.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Task {
    /// Left of it: seconds that it would take alone at full speed. Below 0 it has been over for a while.
    pub left: f64,
    /// It writes; else it reads.
    pub writes: bool,
    /// It takes up its share, but nothing of it gets done: its phone failed under it.
    pub lost: bool,
}

impl Task {
    /// Lets a stretch of time pass.
    pub fn pass(&mut self, stretch: &Stretch) {
        if !self.lost {
            self.left -= stretch.shares[usize::from(self.writes)] * stretch.pace * stretch.length;
        }
    }
}

impl Load {
    /// What these tasks are together.
    pub fn of<'t>(tasks: impl Iterator<Item = &'t Task>) -> Self {
        tasks.fold(Self::default(), |load, task| Self {
            active: load.active + 1,
            decoding: load.decoding + u32::from(task.writes),
        })
    }
}

/// A time in which nothing about a phone changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// The share of the phone that a reader and a writer had.
    shares: [f64; 2],
    pace: f64,
    /// Seconds.
    length: f64,
}

impl Stretch {
    /// Seconds of the whole phone that a reader had.
    pub fn reading(&self) -> f64 {
        self.shares[0] * self.length
    }
}

/// A phone's processor. Times are seconds on any clock that only goes forward.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    speed: PhoneSpeed,
    /// Present speed as a share of its own; 0 while it is down.
    pace: f64,
    /// Everything is as it was at this time.
    now: f64,
}

impl Processor {
    /// At full speed, at time 0.
    pub const fn new(speed: PhoneSpeed) -> Self {
        Self { speed, pace: 1.0, now: 0.0 }
    }

    /// Its own speed.
    pub const fn speed(&self) -> &PhoneSpeed {
        &self.speed
    }

    /// Present speed as a share of its own; 0 while it is down.
    pub const fn pace(&self) -> f64 {
        self.pace
    }

    /// Changes its speed. The time before must have passed already.
    pub const fn set_pace(&mut self, pace: f64) {
        self.pace = pace;
    }

    /// Up to when time has passed.
    pub const fn now(&self) -> f64 {
        self.now
    }

    /// Lets time pass up to `now`; each task then has to [`Task::pass`] the stretch. Nothing may have changed in it.
    pub fn advance(&mut self, now: f64, load: Load) -> Stretch {
        let length = (now - self.now).max(0.0);
        self.now = self.now.max(now);
        Stretch { shares: self.shares(load), pace: self.pace, length }
    }

    /// How long a task takes from now on while nothing changes; `None` if it will not end like this.
    pub fn lasts(&self, task: &Task, load: Load) -> Option<f64> {
        if task.lost || self.pace <= 0.0 {
            return None;
        }
        let share = self.shares(load)[usize::from(task.writes)];
        Some(task.left.max(0.0) / (share * self.pace))
    }

    /// What a task has left after another `length` seconds in which nothing changes.
    pub fn left_after(&self, task: &Task, load: Load, length: f64) -> f64 {
        let share = self.shares(load)[usize::from(task.writes)];
        (task.left - share * self.pace * length).max(0.0)
    }

    /// The share of the phone that a reader and a writer get.
    fn shares(&self, load: Load) -> [f64; 2] {
        [1.0 / f64::from(load.active.max(1)), self.speed.decode_share(load)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phone::ModelSpeed;

    fn processor() -> Processor {
        Processor::new(PhoneSpeed::reference(ModelSpeed { sharing_cost: 0.5, ..ModelSpeed::QWEN_4B }))
    }

    fn task(left: f64, writes: bool) -> Task {
        Task { left, writes, lost: false }
    }

    #[test]
    fn readers_share_evenly_and_writers_gain_by_company() {
        let mut processor = processor();
        let mut tasks = [task(10.0, false), task(10.0, true), task(10.0, true)];
        let load = Load::of(tasks.iter());
        assert_eq!(load, Load { active: 3, decoding: 2 });
        let stretch = processor.advance(3.0, load);
        tasks.iter_mut().for_each(|task| task.pass(&stretch));
        assert!((tasks[0].left - 9.0).abs() < 1e-12 && (stretch.reading() - 1.0).abs() < 1e-12);
        // Two writers do 4/3 of what one does, in a third of the phone's time each.
        assert!((tasks[1].left - (10.0 - 4.0 / 3.0)).abs() < 1e-12);
    }

    #[test]
    fn what_is_foretold_comes_true_at_every_pace_but_not_on_a_phone_that_is_down() {
        let mut processor = processor();
        for pace in [1.0, 0.05, 3.0] {
            processor.set_pace(pace);
            let mut one = task(4.0, false);
            let load = Load { active: 2, decoding: 1 };
            let length = processor.lasts(&one, load).expect("it goes on");
            assert!((processor.left_after(&one, load, length / 2.0) - 2.0).abs() < 1e-9);
            one.pass(&processor.advance(processor.now() + length, load));
            assert!(one.left.abs() < 1e-9, "{} left at pace {pace}", one.left);
        }
        processor.set_pace(0.0);
        assert_eq!(processor.lasts(&task(4.0, false), Load::default()), None);
        assert_eq!(processor.lasts(&Task { lost: true, ..task(4.0, false) }, Load::default()), None);
    }

    #[test]
    fn time_does_not_go_back() {
        let mut processor = processor();
        processor.advance(5.0, Load::default());
        let mut one = task(4.0, false);
        one.pass(&processor.advance(3.0, Load { active: 1, decoding: 0 }));
        assert_eq!((one.left, processor.now()), (4.0, 5.0));
    }
}
