//! One replica's speed in one phase, reading or writing, in tokens of work per second.
//!
//! What is known is one of three: samples, with or without a prior behind them; a prior alone; or nothing but that an
//! attempt has not finished in some time. How samples are believed is [`Trend`]'s matter; this turns times into
//! samples, and keeps out what is none.

use super::{
    history::History,
    positive,
    trend::{BOUND_WEIGHT, Trend, remaining},
};
use crate::time::Timestamp;

/// A prior is worth less than half of a whole sample: it says what such phones do, not what this one does.
const PRIOR_WORTH: f64 = 0.4;
/// Where work takes this many times what it takes in the mean, the rest is left out of [`Rate::mean`].
const STALL: f64 = 3.0;
/// The least that a sample can weigh.
const LIGHTEST: f64 = 0.2;
/// Slower is not serving, faster is no phone.
const SLOWEST: f64 = 1e-3;
const FASTEST: f64 = 1e6;

/// A replica's speed in one phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    trend: Option<Trend>,
    measured: bool,
    /// At most this fast, said by unfinished attempts before anything was measured or stated.
    ceiling: Option<(f64, Timestamp)>,
    /// What it did in the last two hours.
    done: History,
}

impl Rate {
    /// A rate nobody has measured. A prior that is no rate is none.
    pub(crate) fn new(prior: Option<f64>) -> Self {
        let trend = prior.and_then(logarithm).map(|prior| Trend::new(prior, PRIOR_WORTH, Timestamp::ZERO));
        Self { trend, measured: false, ceiling: None, done: History::default() }
    }

    /// Measured at least once.
    pub(crate) fn known(&self) -> bool {
        self.measured
    }

    /// Tokens per second now. `fallback` is what is typical of the pool, for a replica that has neither sample nor prior.
    pub(crate) fn at(&self, now: Timestamp, fallback: f64) -> f64 {
        if let Some(trend) = self.trend {
            return trend.at(now).exp();
        }
        let typical = logarithm(fallback).unwrap_or_default();
        let lower = self
            .ceiling
            .map_or(0.0, |(ceiling, since)| (ceiling - typical).min(0.0) * BOUND_WEIGHT * remaining(since, now));
        (typical + lower).exp()
    }

    /// The long-run rate, of a replica that was measured.
    pub(crate) fn measured(&self) -> Option<f64> {
        self.trend.filter(|_| self.measured).map(|trend| trend.long_run().exp())
    }

    /// All that it did in the last two hours over the time that this took, hot phases and cool ones; of a replica that was measured.
    pub(crate) fn mean(&self, now: Timestamp) -> Option<f64> {
        let done = self.done.sum(now);
        positive(done.work / done.seconds).map(bounded)
    }

    /// What it did when.
    pub(crate) const fn done(&self) -> &History {
        &self.done
    }

    /// So much work took so long. `weight` is 1 for a sample of full worth, less for one that is mostly noise.
    pub(crate) fn observe(&mut self, work: f64, seconds: f64, weight: f64, now: Timestamp) {
        let Some(sample) = ratio(work, seconds) else { return };
        let weight = if weight > LIGHTEST { weight.min(1.0) } else { LIGHTEST };
        self.ceiling = None;
        self.measured = true;
        // A phone that stands still is one that is away, more than one that is slow.
        let most = self.mean(now).map_or(seconds, |mean| STALL * work / mean);
        self.done.add(work, seconds.min(most), now);
        match &mut self.trend {
            Some(trend) => trend.observe(sample, weight, now),
            None => self.trend = Some(Trend::new(sample, weight, now)),
        }
    }

    /// An attempt that has not finished its work in this time: the rate is at most `work_bound / seconds`. Without this,
    /// second copies hide a slow replica from its own estimate.
    pub(crate) fn at_most(&mut self, work_bound: f64, seconds: f64, now: Timestamp) {
        let Some(seconds) = positive(seconds) else { return };
        if !(work_bound.is_finite() && work_bound >= 0.0) {
            return;
        }
        let bound = bounded(work_bound / seconds).ln();
        match &mut self.trend {
            Some(trend) => trend.at_most(bound, now),
            None => self.ceiling = Some((self.ceiling.map_or(bound, |(ceiling, _)| ceiling.min(bound)), now)),
        }
    }
}

fn bounded(rate: f64) -> f64 {
    rate.clamp(SLOWEST, FASTEST)
}

fn logarithm(rate: f64) -> Option<f64> {
    positive(rate).map(|rate| bounded(rate).ln())
}

/// The logarithm of a measured rate.
fn ratio(work: f64, seconds: f64) -> Option<f64> {
    logarithm(positive(work)? / positive(seconds)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const FALLBACK: f64 = 50.0;

    fn at(seconds: f64) -> Timestamp {
        Timestamp((seconds * 1e9) as u64)
    }

    /// A replica that is measured every ten seconds.
    struct Measured {
        rate: Rate,
        now: f64,
    }

    impl Measured {
        fn new(prior: Option<f64>) -> Self {
            Self { rate: Rate::new(prior), now: 0.0 }
        }

        fn sees(&mut self, rate: f64, samples: usize) -> &mut Self {
            for _ in 0..samples {
                self.now += 10.0;
                self.rate.observe(rate * 7.0, 7.0, 1.0, at(self.now));
            }
            self
        }

        fn believes(&self) -> f64 {
            self.rate.at(at(self.now), FALLBACK)
        }

        /// How far off, as a factor of at least one.
        fn off(&self, truth: f64) -> f64 {
            (self.believes() / truth).ln().abs().exp()
        }
    }

    #[test]
    fn unmeasured_it_is_its_prior_or_the_pools_typical() {
        assert!((Rate::new(Some(120.0)).at(at(5.0), FALLBACK) - 120.0).abs() < 1e-9);
        assert!((Rate::new(None).at(at(5.0), FALLBACK) - FALLBACK).abs() < 1e-9);
        for no_rate in [f64::NAN, 0.0, -3.0, f64::INFINITY] {
            assert!((Rate::new(Some(no_rate)).at(at(5.0), FALLBACK) - FALLBACK).abs() < 1e-9);
        }
        assert!(!Rate::new(Some(120.0)).known());
        assert_eq!(Rate::new(Some(120.0)).measured(), None);
    }

    #[test]
    fn the_first_sample_is_believed_and_most_of_the_way_against_a_prior() {
        let mut replica = Measured::new(None);
        replica.sees(200.0, 1);
        assert!(replica.rate.known());
        assert!(replica.off(200.0) < 1.001);
        for truth in [60.0, 20.0] {
            let mut replica = Measured::new(Some(40.0));
            let before = replica.off(truth);
            replica.sees(truth, 1);
            assert!(replica.off(truth).ln() < 0.5 * before.ln());
        }
    }

    #[test]
    fn a_prior_that_is_wrong_three_times_either_way_is_corrected_in_three_samples() {
        for prior in [30.0, 300.0] {
            let mut replica = Measured::new(Some(prior));
            replica.sees(100.0, 3);
            assert!(replica.off(100.0) < 1.2, "{prior}: {}", replica.believes());
            assert!(replica.rate.measured().is_some_and(|rate| (rate / 100.0).ln().abs() < 0.3));
        }
    }

    #[test]
    fn scattered_samples_average_out() {
        for seed in 0..20 {
            let (mut rng, mut replica) = (Rng::new(seed), Measured::new(Some(100.0)));
            for _ in 0..200 {
                replica.sees(100.0 * (1.2 * (rng.unit() - 0.5)).exp(), 1);
            }
            assert!(replica.off(100.0) < 1.5, "{seed}: {}", replica.believes());
            assert!(replica.rate.measured().is_some_and(|rate| (rate / 100.0).ln().abs() < 0.3));
        }
    }

    #[test]
    fn one_absurd_sample_moves_it_by_a_factor_of_three_at_most_and_less_when_it_flatters() {
        for absurd in [1e-9, 1e12] {
            for history in [1, 2, 30] {
                let mut replica = Measured::new(Some(100.0));
                replica.sees(100.0, history).sees(absurd, 1);
                assert!(replica.off(100.0) < 3.001, "{absurd} after {history}: {}", replica.believes());
            }
        }
        let mut replica = Measured::new(None);
        replica.sees(100.0, 30).sees(1e12, 1);
        assert!(replica.believes() < 145.0, "{}", replica.believes());
        replica.sees(100.0, 5);
        assert!(replica.off(100.0) < 1.1);
    }

    #[test]
    fn a_replica_that_really_changed_is_followed() {
        for truth in [5.0, 2000.0] {
            let mut replica = Measured::new(None);
            replica.sees(100.0, 30).sees(truth, 7);
            assert!(replica.off(truth) < 1.35, "{truth}: {}", replica.believes());
        }
    }

    #[test]
    fn throttling_is_followed_in_a_few_samples_and_so_is_its_end() {
        let mut replica = Measured::new(Some(90.0));
        replica.sees(100.0, 30).sees(50.0, 4);
        assert!(replica.off(50.0) < 1.25, "{}", replica.believes());
        replica.sees(50.0, 20).sees(100.0, 4);
        assert!(replica.off(100.0) < 1.25, "{}", replica.believes());
    }

    #[test]
    fn without_news_the_rate_returns_to_the_long_run() {
        let mut replica = Measured::new(None);
        replica.sees(100.0, 60).sees(25.0, 3);
        let hot = replica.believes();
        assert!(hot < 50.0);
        let long_run = replica.rate.measured().expect("measured");
        assert!(long_run > 75.0);
        let later = |seconds| replica.rate.at(at(replica.now + seconds), FALLBACK);
        assert!((later(3000.0) / long_run).ln().abs() < 0.01);
        let half = (hot.ln() + long_run.ln()) / 2.0;
        assert!((later(crate::learning::trend::RETURN * std::f64::consts::LN_2).ln() - half).abs() < 0.01);
    }

    #[test]
    fn light_samples_move_it_less() {
        let believed = |weight: f64| {
            let mut replica = Measured::new(None);
            replica.sees(100.0, 20);
            replica.rate.observe(200.0, 1.0, weight, at(replica.now));
            replica.believes()
        };
        assert!(believed(0.2) < believed(0.5) && believed(0.5) < believed(1.0));
        assert_eq!(believed(0.0), believed(LIGHTEST));
        assert_eq!(believed(f64::NAN), believed(LIGHTEST));
        assert_eq!(believed(1e9), believed(1.0));
    }

    #[test]
    fn an_unfinished_attempt_lowers_the_rate_and_never_raises_it() {
        let mut replica = Measured::new(None);
        replica.sees(100.0, 30);
        replica.rate.at_most(1000.0, 5.0, at(replica.now));
        assert!((replica.believes() - 100.0).abs() < 0.01);
        replica.rate.at_most(1000.0, 40.0, at(replica.now));
        assert!((replica.believes() - 50.0).abs() < 0.01, "{}", replica.believes());
        replica.rate.at_most(0.0, 1e9, at(replica.now));
        assert!(replica.believes() > 50.0 / 3.001);
    }

    #[test]
    fn a_replica_that_never_finished_is_believed_slower_than_typical_for_a_while() {
        let mut rate = Rate::new(None);
        rate.at_most(100.0, 50.0, at(100.0));
        assert!(!rate.known());
        assert!((rate.at(at(100.0), FALLBACK) - 10.0).abs() < 0.01);
        assert!(rate.at(at(5000.0), FALLBACK) > 49.0);
        rate.at_most(1e9, 1.0, at(100.0));
        assert!(rate.at(at(100.0), FALLBACK) <= FALLBACK);
        rate.observe(700.0, 7.0, 1.0, at(200.0));
        assert!((rate.at(at(200.0), FALLBACK) - 100.0).abs() < 0.01);
    }

    #[test]
    fn whatever_is_claimed_it_stays_a_usable_rate() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1.0, 1e300];
        let mut rng = Rng::new(11);
        for prior in [None, Some(1e300), Some(1e-300), Some(10.0)] {
            let mut rate = Rate::new(prior);
            for round in 0..20_000 {
                let mut pick = || odd.get((rng.unit() * odd.len() as f64) as usize).copied().unwrap_or(1.0);
                let (work, seconds, weight, fallback) = (pick(), pick(), pick(), pick());
                // Time may seem to go back.
                let now = at(f64::from(round * 7919 % 5000));
                if round % 3 == 0 {
                    rate.at_most(work, seconds, now);
                } else {
                    rate.observe(work, seconds, weight, now);
                }
                let believed = rate.at(now, fallback);
                assert!((SLOWEST * 0.99..=FASTEST * 1.01).contains(&believed), "{believed}");
                assert!(rate.measured().is_none_or(|rate| (SLOWEST * 0.99..=FASTEST * 1.01).contains(&rate)));
            }
        }
    }

    #[test]
    fn the_same_samples_give_the_same_rate_to_the_bit() {
        let run = || {
            let (mut rng, mut replica) = (Rng::new(5), Measured::new(Some(80.0)));
            for _ in 0..500 {
                replica.sees(10.0 + 300.0 * rng.unit(), 1);
            }
            replica.believes().to_bits()
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn the_mean_is_of_the_time_spent_and_a_stall_is_not_a_speed() {
        let mut rate = Rate::new(Some(1000.0));
        assert_eq!(rate.mean(at(0.0)), None);
        for second in 0..20 {
            let speed = if second % 2 == 0 { 100.0 } else { 50.0 };
            rate.observe(speed * 5.0, 5.0, 1.0, at(f64::from(second)));
        }
        let mean = rate.mean(at(20.0)).expect("it is measured");
        assert!((mean - 75.0).abs() < 1.0, "{mean}");
        rate.observe(500.0, 5000.0, 1.0, at(21.0));
        let mean = rate.mean(at(21.0)).expect("it is measured");
        assert!(mean > 60.0, "{mean}");
    }
}
