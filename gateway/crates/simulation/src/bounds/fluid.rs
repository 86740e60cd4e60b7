//! The fluid bound: requests of typical size arrive evenly and flow to the phones that answer soonest, each up to what it
//! can do.

use super::{Fleet, Typical};

pub(super) struct Fluid {
    pub(super) mean: f64,
    pub(super) p99: f64,
    /// What arrives as a share of what all phones can do.
    pub(super) load: f64,
}

/// `rate` is in requests per second.
pub(super) fn bound(fleet: &Fleet<'_>, typical: &Typical, rate: f64) -> Fluid {
    let mut phones: Vec<(f64, f64)> = fleet
        .phones
        .iter()
        .zip(&fleet.shares)
        .map(|(phone, share)| {
            let reading = fleet.reading(phone, typical, true);
            let writing = fleet.writing(typical) / phone.decode_factor;
            let occupied = reading + writing / fleet.model.parallel_gain(phone.slots as f64);
            (fleet.overhead_s + reading + writing, share / occupied)
        })
        .collect();
    phones.sort_by(|a, b| a.0.total_cmp(&b.0));
    let load = rate / phones.iter().map(|(_, capacity)| capacity).sum::<f64>();
    let slowest = phones.last().map_or(0.0, |(answer, _)| *answer);
    let (mut left, mut sum, mut p99) = (rate, 0.0, None);
    for (answer, capacity) in phones {
        let served = capacity.min(left);
        sum += served * answer;
        left -= served;
        if left <= 0.01 * rate {
            p99 = p99.or(Some(answer));
        }
    }
    // More than the phones can do: the rest would wait for ever, and still take as long as on the slowest.
    sum += left * slowest;
    Fluid { mean: sum / rate, p99: p99.unwrap_or(slowest), load }
}
