//! When the requests of a class come.

use crate::{rng::Rng, scenario::Arrivals};

/// The times of a class of that name, seconds, in order.
pub(super) fn draw(arrivals: &Arrivals, class: &str, horizon_s: f64, seed: u64) -> Vec<f64> {
    let mut gaps = Rng::new(seed, &format!("class:{class}:arrivals"));
    match *arrivals {
        Arrivals::Closed { n, at } => vec![at; n],
        Arrivals::Poisson { rate } => {
            let next = |now: &f64| Some(now + gaps.exponential(1.0 / rate)).filter(|time| *time < horizon_s);
            std::iter::successors(Some(0.0), next).skip(1).collect()
        }
        Arrivals::OnOff { rate_hi, rate_lo, mean_hi_s, mean_lo_s } => {
            let phases = Rng::new(seed, &format!("class:{class}:state"));
            bursts([(rate_lo, mean_lo_s), (rate_hi, mean_hi_s)], gaps, phases, horizon_s)
        }
    }
}

/// Arrivals in alternating phases, each a rate and a mean length. A gap that reaches beyond its phase is drawn anew in the
/// next one, which changes nothing: it has no memory.
fn bursts(kinds: [(f64, f64); 2], mut gaps: Rng, mut phases: Rng, horizon_s: f64) -> Vec<f64> {
    let mut times = Vec::new();
    let mut start = 0.0;
    for (rate, mean_s) in kinds.into_iter().cycle() {
        if start >= horizon_s {
            break;
        }
        let end = start + phases.exponential(mean_s);
        if rate > 0.0 {
            let next = |now: &f64| Some(now + gaps.exponential(1.0 / rate)).filter(|time| *time < end.min(horizon_s));
            times.extend(std::iter::successors(Some(start), next).skip(1));
        }
        start = end;
    }
    times
}
