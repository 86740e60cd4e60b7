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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn at(seconds: f64) -> Timestamp {
        Timestamp((seconds * 1e9) as u64)
    }

    /// Urgent requests at this rate until then.
    fn arrive(reserve: &mut Reserve, rng: &mut Rng, from: f64, to: f64, rate: f64) {
        let mut now = from;
        while now < to {
            reserve.arrived(at(now));
            now -= (1.0 - rng.unit()).ln() / rate;
        }
    }

    fn serving_in(seconds: f64) -> Reserve {
        let mut reserve = Reserve::default();
        for _ in 0..200 {
            reserve.served(seconds);
        }
        reserve
    }

    #[test]
    fn without_urgent_work_nothing_is_kept_free() {
        assert_eq!(Reserve::default().wanted(at(100.0), 100), 0);
        assert_eq!(serving_in(5.0).wanted(at(100.0), 100), 0);
    }

    #[test]
    fn two_deviations_above_the_load_are_kept_free() {
        let mut rng = Rng::new(1);
        let mut reserve = serving_in(2.0);
        arrive(&mut reserve, &mut rng, 0.0, 600.0, 2.0);
        // A load of 4, at peaks up to 6: 4 + 2·2 to 6 + 2·2.45.
        let wanted = reserve.wanted(at(600.0), 1000);
        assert!((8..=12).contains(&wanted), "{wanted}");
    }

    #[test]
    fn a_peak_is_remembered_for_a_minute_and_forgotten_in_ten() {
        let mut rng = Rng::new(2);
        let mut reserve = serving_in(2.0);
        arrive(&mut reserve, &mut rng, 0.0, 100.0, 5.0);
        let during = reserve.wanted(at(100.0), 1000);
        let after = reserve.wanted(at(160.0), 1000);
        assert!(after * 4 > during && after < during, "{during} {after}");
        assert_eq!(reserve.wanted(at(1000.0), 1000), 0);
    }

    #[test]
    fn a_share_of_the_replicas_at_most_and_never_all() {
        let mut rng = Rng::new(3);
        let mut reserve = serving_in(60.0);
        arrive(&mut reserve, &mut rng, 0.0, 100.0, 5.0);
        for (serving, most) in [(0, 0), (1, 0), (2, 1), (7, 2), (100, 15), (1000, 150)] {
            assert_eq!(reserve.wanted(at(100.0), serving), most, "{serving}");
        }
    }

    #[test]
    fn one_urgent_request_keeps_one_replica_free() {
        let mut reserve = Reserve::default();
        reserve.arrived(at(10.0));
        assert_eq!(reserve.wanted(at(10.0), 100), 1);
    }

    #[test]
    fn a_request_that_hung_is_no_habit() {
        let mut reserve = serving_in(0.5);
        for second in 0..60 {
            reserve.arrived(at(f64::from(second)));
        }
        let before = reserve.wanted(at(60.0), 1000);
        reserve.served(1e9);
        assert!(reserve.wanted(at(60.0), 1000) <= before + 1);
    }

    #[test]
    fn odd_times_are_ignored_and_time_may_go_back() {
        let mut reserve = Reserve::default();
        for seconds in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1e300] {
            for _ in 0..1000 {
                reserve.served(seconds);
            }
            reserve.arrived(at(100.0));
            reserve.arrived(at(1.0));
            assert!(reserve.wanted(at(50.0), 100) <= 15);
        }
    }
}
