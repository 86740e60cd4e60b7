//! How many replicas to keep free of lesser work for urgent requests that have not arrived yet.
//!
//! Urgent work occupies `a` replicas on average (arrivals per second times seconds each takes), and by chance about
//! `sqrt(a)` more or less. Two deviations above the mean are kept free. It is the recent *peak* of the arrivals that
//! counts, as they come in bursts: a reserve built when the burst is there comes after it. Taking work back from
//! replicas instead was rejected: it wastes what they have read and gains little.

use super::{decayed::Decayed, positive};
use crate::time::Timestamp;

/// Seconds over which arrivals are counted, and over which a peak of them fades.
const ARRIVALS: f64 = 20.0;
const PEAK: f64 = 60.0;
/// Deviations above the mean.
const DEVIATIONS: f64 = 2.0;
/// Less load than this is none.
const LEAST_LOAD: f64 = 1e-3;
/// At most this share of the replicas.
const MOST: f64 = 0.15;
/// Seconds an urgent request takes, before one was served.
const SERVICE: f64 = 0.5;
const SERVICE_WEIGHT: f64 = 0.05;
/// A time counts as at most this many times the mean, and a step: one that hung is no habit.
const SERVICE_CLIP: f64 = 4.0;
const SERVICE_STEP: f64 = 1.0;
const LONGEST_SERVICE: f64 = 600.0;

/// The room that urgent arrivals need.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    arrivals: Decayed,
    /// Arrivals per second at the last peak, and when that was.
    peak: f64,
    peaked: Timestamp,
    service: f64,
    served: f64,
}

impl Default for Reserve {
    fn default() -> Self {
        let arrivals = Decayed::new(ARRIVALS);
        Self { arrivals, peak: 0.0, peaked: Timestamp::ZERO, service: SERVICE, served: 1.0 }
    }
}

impl Reserve {
    /// An urgent request arrived.
    pub(crate) fn arrived(&mut self, now: Timestamp) {
        self.arrivals.add(1.0, now);
        // Between arrivals their rate falls faster than the peak does: new peaks are at arrivals.
        let rate = self.arrivals.sum(now) / ARRIVALS;
        if rate >= self.peak(now) {
            self.peak = rate;
            self.peaked = self.peaked.max(now);
        }
    }

    /// One took this long, from its dispatch to its end.
    pub(crate) fn served(&mut self, seconds: f64) {
        let Some(seconds) = positive(seconds) else { return };
        let believed = seconds.min(SERVICE_CLIP * self.service + SERVICE_STEP).min(LONGEST_SERVICE);
        self.served = (self.served + 1.0).min(1.0 / SERVICE_WEIGHT);
        self.service += (believed - self.service) / self.served;
    }

    /// How many of the replicas that serve to keep free; never all of them.
    pub(crate) fn wanted(&self, now: Timestamp, serving: usize) -> usize {
        let load = self.peak(now) * self.service;
        if load < LEAST_LOAD {
            return 0;
        }
        let room = (load + DEVIATIONS * load.sqrt()).ceil().max(1.0) as usize;
        let most = (serving as f64 * MOST).ceil() as usize;
        room.min(most).min(serving.saturating_sub(1))
    }

    fn peak(&self, now: Timestamp) -> f64 {
        self.peak * (-now.since(self.peaked).as_secs_f64() / PEAK).exp()
    }
}
