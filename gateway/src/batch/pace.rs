//! How fast a batch gets on, when it will be done, and how urgent that makes it.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use scheduler::{Class, ModelId, Timestamp};

use crate::gateway::Gateway;

/// Over how long the rate is taken. 5 min: several answers of a slow phone.
const WINDOW: Duration = Duration::from_secs(300);
/// Between two samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Fewer lines say nothing about a rate.
const ENOUGH: u32 = 5;
/// A batch is urgent when what is left of its time is less than this many times what it still needs...
const MARGIN: f64 = 1.5;
/// ... or, where nobody can say what it needs, less than this.
const SHORT: Duration = Duration::from_secs(600);
/// Tokens of an answer, until there are some: what a line of review or classification has.
const USUAL_ANSWER: f64 = 64.0;
/// Tokens of a prompt, until there are some: what a fraud reviewer reads.
const USUAL_PROMPT: f64 = 2_000.0;

/// How many lines had ended when.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    samples: VecDeque<(Timestamp, u32)>,
}

impl Pace {
    /// So many lines have ended by now, of all processes.
    pub fn note(&mut self, now: Timestamp, ended: u32) {
        if self.samples.back().is_some_and(|(at, _)| now.since(*at) < SAMPLE_EVERY) {
            return;
        }
        self.samples.push_back((now, ended));
        // One sample beyond the window stays: the rate is over all of it.
        while self.samples.get(1).is_some_and(|(at, _)| now.since(*at) > WINDOW) {
            self.samples.pop_front();
        }
    }

    /// Lines a second, over the last minutes; `None` until enough have ended.
    pub fn rate(&self, now: Timestamp) -> Option<f64> {
        let ((from, before), (_, ended)) = (self.samples.front()?, self.samples.back()?);
        let lines = ended.saturating_sub(*before);
        (lines >= ENOUGH).then(|| f64::from(lines) / now.since(*from).as_secs_f64().max(1.0))
    }

    /// Until `left` lines have ended: at the rate so far, or at what the pool can do. `None`: nobody can say.
    pub fn left(&self, now: Timestamp, left: u32, pool: Option<&Pool>) -> Option<Duration> {
        let rate = self.rate(now).or_else(|| pool.map(Pool::rate))?;
        Duration::try_from_secs_f64(f64::from(left) / rate).ok()
    }
}

/// How urgent a batch's lines are, which needs `left` and has `time_left`.
pub fn class(left: Option<Duration>, time_left: Duration) -> Class {
    let urgent = match left {
        // As numbers: what takes for ever, and half as much again, is no `Duration`.
        Some(left) => left.as_secs_f64() * MARGIN > time_left.as_secs_f64(),
        None => time_left < SHORT,
    };
    if urgent { Class::Standard } else { Class::Batch }
}

/// What serves a model now.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    slots: usize,
    /// Lines a second.
    rate: f64,
}

impl Pool {
    /// Slots of replicas that take requests.
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// Usual lines a second, if all of it worked on them.
    pub const fn rate(&self) -> f64 {
        self.rate
    }
}

/// What serves which model, by the replicas' measured speeds, or those that they are believed to have.
pub fn pools(gateway: &Gateway) -> HashMap<ModelId, Pool> {
    let mut pools: HashMap<ModelId, Pool> = HashMap::new();
    for view in gateway.dispatcher.snapshot().replicas {
        let Some(replica) = gateway.fleet.replica(view.replica).filter(|_| view.takes_work()) else { continue };
        let slots = view.limit.of(view.slots);
        let believed = replica.past().assumed();
        let prefill = view.prefill_rate.or(believed.map(|rates| rates.prefill));
        let decode = view.decode_rate.or(believed.map(|rates| rates.decode));
        let seconds = prefill.zip(decode).map(|(prefill, decode)| USUAL_PROMPT / prefill + USUAL_ANSWER / decode);
        for model in &replica.facts().models {
            let pool = pools.entry(model.id).or_default();
            pool.slots += usize::from(slots);
            pool.rate += seconds.map_or(0.0, |seconds| f64::from(slots) / seconds);
        }
    }
    pools
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_rate_is_that_of_the_last_minutes() {
        let mut pace = Pace::default();
        for second in 0..=1_000 {
            // Ten lines a second, and from 500 s on one.
            let ended = if second <= 500 { 10 * second } else { 5_000 + (second - 500) };
            pace.note(at(second), ended as u32);
        }
        let rate = pace.rate(at(1_000)).expect("a rate");
        assert!((0.95..1.05).contains(&rate), "{rate}");
        assert!(pace.samples.len() < 70);
        let left = pace.left(at(1_000), 600, None).expect("a time");
        assert!((570..640).contains(&left.as_secs()), "{left:?}");
    }

    #[test]
    fn until_lines_have_ended_the_pool_says_what_it_can() {
        let pool = Pool { slots: 4, rate: 2.0 };
        let mut pace = Pace::default();
        pace.note(at(1), 0);
        assert_eq!(pace.left(at(2), 100, Some(&pool)), Some(Duration::from_secs(50)));
        assert_eq!(pace.left(at(2), 100, None), None);
        assert_eq!(pace.left(at(2), 100, Some(&Pool::default())), None, "no speed, no time");
    }

    #[test]
    fn a_batch_whose_time_is_short_is_urgent() {
        let seconds = Duration::from_secs;
        assert_eq!(class(Some(seconds(100)), seconds(1_000)), Class::Batch);
        assert_eq!(class(Some(seconds(800)), seconds(1_000)), Class::Standard);
        assert_eq!(class(Some(Duration::MAX), seconds(1_000)), Class::Standard);
        assert_eq!(class(None, seconds(599)), Class::Standard);
        assert_eq!(class(None, seconds(86_000)), Class::Batch);
    }
}
