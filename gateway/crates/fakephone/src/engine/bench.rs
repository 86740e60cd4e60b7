//! Where the requests in a phone's slots sit: their tasks on its processor, and the clock that these follow.
//!
//! Each request sleeps towards the end of its own task as things are. Whoever comes, goes, or turns from reading to
//! writing wakes the others of the same phone, four at the most, and they sleep anew. Timers count whole milliseconds and
//! fire about one late, which on a phone that lives twenty times as fast is a fiftieth of a second: tasks aim one earlier,
//! and are over half of one too early or too late. What a task was off by is made up for by the next one, so that it does
//! not add up.

use crate::clock;
use simulation::phone::{Load, PhoneSpeed, Processor, Task};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A request may lag this far behind its schedule and still catch up. More is time the client did not read: lost.
const LARGEST_LAG: Duration = Duration::from_millis(20);

/// What timers count, and about how late they fire.
const TICK: Duration = Duration::from_millis(1);

/// A task on a phone; given back with [`Bench::leave`].
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u64);

#[derive(Debug)]
pub(super) struct Bench {
    time_scale: f64,
    /// Time zero of the processor.
    since: Instant,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    processor: Processor,
    tasks: BTreeMap<u64, Task>,
    next: u64,
}

impl State {
    fn load(&self) -> Load {
        Load::of(self.tasks.values())
    }

    fn advance(&mut self, now: f64) {
        let stretch = self.processor.advance(now, self.load());
        self.tasks.values_mut().for_each(|task| task.pass(&stretch));
    }

    /// Gives a task something more to do; of its lateness at most `most` is caught up.
    fn begin(&mut self, place: &Place, seconds: f64, most: f64) {
        if let Some(task) = self.tasks.get_mut(&place.0) {
            task.left = task.left.max(-most) + seconds;
        }
    }

    /// The same if the task is so late that it would be done by now.
    fn catch_up(&mut self, place: &Place, seconds: f64) -> bool {
        let late = self.tasks.get_mut(&place.0).filter(|task| task.left + seconds <= 0.0);
        late.map(|task| task.left += seconds).is_some()
    }

    /// How long a task takes while nothing changes: 0 if it is done, `None` if it will not end like this.
    fn lasts(&self, place: &Place) -> Option<f64> {
        let Some(task) = self.tasks.get(&place.0).filter(|task| task.left > 0.0) else { return Some(0.0) };
        self.processor.lasts(task, self.load())
    }
}

impl Bench {
    pub(super) fn new(speed: PhoneSpeed, time_scale: f64) -> Self {
        let state = State { processor: Processor::new(speed), tasks: BTreeMap::new(), next: 0 };
        Self { time_scale, since: clock::now(), state: Mutex::new(state), changed: Notify::new() }
    }

    /// Everything as it is now.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance((clock::now() - self.since).as_secs_f64() * self.time_scale);
        state
    }

    /// Changes something that the others feel.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.notify_waiters();
        result
    }

    /// Goes on at this share of the phone's own speed.
    pub(super) fn set_pace(&self, pace: f64) {
        self.change(|state| state.processor.set_pace(pace));
    }

    /// One more, with nothing to do yet.
    pub(super) fn sit(&self) -> Place {
        self.change(|state| {
            let number = state.next;
            state.next += 1;
            state.tasks.insert(number, Task::default());
            Place(number)
        })
    }

    /// Turns from reading to writing.
    pub(super) fn write(&self, place: &Place) {
        self.change(|state| {
            if let Some(task) = state.tasks.get_mut(&place.0) {
                task.writes = true;
            }
        });
    }

    /// One less.
    pub(super) fn leave(&self, place: &Place) {
        self.change(|state| state.tasks.remove(&place.0));
    }

    /// Does something that takes so many seconds of the phone model alone.
    pub(super) async fn work(&self, place: &Place, seconds: f64) {
        let most = LARGEST_LAG.as_secs_f64() * self.time_scale;
        self.state().begin(place, seconds, most);
        let mut slept = false;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            match self.end_of(place) {
                End::Reached => break,
                End::At(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = changed => {}
                },
                End::Never => changed.await,
            }
            slept = true;
        }
        if !slept {
            tokio::task::yield_now().await;
        }
    }

    /// Takes one more thing on if the task is so late that it would be done by now.
    pub(super) fn catch_up(&self, place: &Place, seconds: f64) -> bool {
        self.state().catch_up(place, seconds)
    }

    fn end_of(&self, place: &Place) -> End {
        let lasts = self.state().lasts(place).map(|seconds| Duration::try_from_secs_f64(seconds / self.time_scale));
        match lasts {
            Some(Ok(length)) if length <= TICK / 2 => End::Reached,
            Some(Ok(length)) if length <= TICK => End::At(clock::now() + length),
            Some(Ok(length)) => clock::now().checked_add(length - TICK).map_or(End::Never, End::At),
            Some(Err(_)) | None => End::Never,
        }
    }
}

/// When a task ends while nothing changes.
enum End {
    Reached,
    /// Sleep until then, and look again.
    At(Instant),
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;
    use simulation::phone::ModelSpeed;

    const SPEED: PhoneSpeed = PhoneSpeed::reference(ModelSpeed { sharing_cost: 0.5, ..ModelSpeed::QWEN_4B });

    fn state(tasks: u64) -> State {
        let tasks = (0..tasks).map(|number| (number, Task::default())).collect();
        State { processor: Processor::new(SPEED), tasks, next: 0 }
    }

    /// How long `work` of the phone's takes while something else happens.
    async fn time_of(bench: &Bench, work: f64, meanwhile: impl Future<Output = ()>) -> f64 {
        let (place, began) = (bench.sit(), clock::now());
        let working = async {
            bench.work(&place, work).await;
            (clock::now() - began).as_secs_f64()
        };
        tokio::join!(working, meanwhile).0
    }

    #[tokio::test]
    async fn who_comes_and_goes_is_felt_at_once() {
        let bench = Bench::new(SPEED, 10.0);
        let other = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let place = bench.sit();
            bench.work(&place, 2.5).await;
            bench.leave(&place);
        };
        // 5 s of the phone's alone, 2.5 at half the pace, 2.5 alone.
        let took = time_of(&bench, 10.0, other).await;
        assert!((1.245..1.4).contains(&took), "{took}");
    }

    #[tokio::test]
    async fn a_change_of_pace_is_felt_at_once() {
        let bench = Bench::new(SPEED, 10.0);
        let pacer = async {
            for pace in [0.5, 0.0, 1.0] {
                tokio::time::sleep(Duration::from_millis(300)).await;
                bench.set_pace(pace);
            }
        };
        // 3 s of the phone's at full speed, 1.5 at half of it, none, 1.5 at full speed.
        let took = time_of(&bench, 6.0, pacer).await;
        assert!((1.045..1.2).contains(&took), "{took}");
    }

    #[test]
    fn who_turns_to_writing_shares_as_a_writer() {
        let mut state = state(2);
        let place = Place(0);
        state.begin(&place, 3.0, 0.0);
        assert_eq!(state.lasts(&place), Some(6.0));
        state.tasks.values_mut().for_each(|task| task.writes = true);
        // Two writers do 4/3 of what one does.
        assert!(state.lasts(&place).is_some_and(|seconds| (seconds - 4.5).abs() < 1e-9));
    }

    #[test]
    fn lateness_is_caught_up_as_far_as_it_goes_and_no_farther() {
        let (mut state, place) = (state(1), Place(0));
        state.begin(&place, 1.0, 0.2);
        state.advance(1.15);
        assert_eq!(state.lasts(&place), Some(0.0));
        assert!(state.catch_up(&place, 0.1) && !state.catch_up(&place, 0.1));
        state.begin(&place, 1.0, 0.2);
        assert!(state.lasts(&place).is_some_and(|seconds| (seconds - 0.95).abs() < 1e-9));
        state.advance(100.0);
        state.begin(&place, 1.0, 0.2);
        assert!(state.lasts(&place).is_some_and(|seconds| (seconds - 0.8).abs() < 1e-9));
    }
}
