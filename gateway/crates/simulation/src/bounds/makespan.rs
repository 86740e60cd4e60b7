//! The makespan bound: a batch is through no sooner than the phones' priced time adds up to the requests' prices. Each time
//! a phone comes up it must read a template once before its cache is worth anything.

use super::{Fleet, prices::Prices};
use crate::workload::{PhoneSpec, Request, Timeline};

/// No batch takes longer than three years; if it would, no phone is up.
const LONGEST_S: f64 = 1e8;
/// Halvings of the interval: to the last bit of the time.
const HALVINGS: u32 = 60;

/// When a batch that is there from time 0 on can be through, seconds. The longest single answer is another bound.
pub(super) fn bound(fleet: &Fleet<'_>, prices: &Prices<'_>, requests: &[&Request]) -> f64 {
    let needed: f64 = requests.iter().map(|request| prices.of(fleet, request)).sum();
    let template = requests.iter().map(|request| request.shared).min().unwrap_or(0);
    let cold = |phone: &PhoneSpec| match phone.remembers {
        true => fleet.model.prefill_seconds(0.0, template.into()) / phone.prefill_factor,
        false => 0.0,
    };
    let phones: Vec<(&Timeline, f64, f64)> = fleet
        .timelines
        .iter()
        .zip(fleet.phones)
        .zip(&prices.of_phones)
        .map(|((timeline, phone), price)| (timeline, cold(phone), *price))
        .collect();
    let done =
        |end: f64| phones.iter().map(|(timeline, cold, price)| price * useful(timeline, *cold, end)).sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    while done(high) < needed && high < LONGEST_S {
        high *= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if done(middle) < needed { low = middle } else { high = middle }
    }
    high
}

/// Seconds of full speed before `end`, less `cold` each time that the phone comes up.
fn useful(timeline: &Timeline, cold: f64, end: f64) -> f64 {
    let (mut sum, mut up) = (0.0, 0.0f64);
    for phase in timeline.phases().iter().take_while(|phase| phase.start < end) {
        if phase.is_up() {
            up += (phase.end.min(end) - phase.start) * phase.factor;
        } else {
            sum += (up - cold).max(0.0);
            up = 0.0;
        }
    }
    sum + (up - cold).max(0.0)
}
