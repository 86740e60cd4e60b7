//! Looking at the gateway's memory and the phones' slots a few times a second.

use super::super::{stage::Stage, time::Time};
use serde::Serialize;
use simulation::{play::Run, workload::Timeline};
use std::time::Duration;

/// Between two looks, in the world's time.
const EVERY: Duration = Duration::from_millis(250);

/// What was seen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Sample {
    /// When, seconds of the scenario; below 0 while the files are uploaded.
    pub(super) at_s: f64,
    /// Resident memory of the gateway; null where the system does not tell.
    pub(super) gateway_bytes: Option<u64>,
    /// Slots that work.
    pub(super) busy: u64,
    /// Slots of phones that are up.
    pub(super) up: u64,
}

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub(in crate::scaled) struct Samples(pub(super) Vec<Sample>);

impl Samples {
    /// Looks now and then, until it is cancelled. What was seen is in `self` at any time. Without a time the scenario has not
    /// begun.
    pub(in crate::scaled) async fn watch(&mut self, run: &Run<'_>, stage: &Stage, time: Option<&Time>) {
        let phones: Vec<(u64, &Timeline)> =
            run.workload.phones.iter().map(|phone| phone.slots as u64).zip(&run.workload.timelines).collect();
        loop {
            let at_s = time.map_or(-1.0, Time::now);
            let now_s = at_s.max(0.0);
            let is_up = |timeline: &Timeline| {
                timeline.phases().iter().any(|phase| phase.is_up() && (phase.start..phase.end).contains(&now_s))
            };
            self.0.push(Sample {
                at_s,
                gateway_bytes: resident(stage.gateway.id()),
                busy: stage.phones.iter().map(|phone| u64::from(phone.stats().running_now)).sum(),
                up: phones.iter().filter(|(_, timeline)| is_up(timeline)).map(|(slots, _)| slots).sum(),
            });
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Those of the scenario's time.
    pub(super) fn played(&self) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(|sample| sample.at_s >= 0.0)
    }

    /// Slot time in which phones worked, from one moment to another, seconds of the scenario.
    pub(super) fn busy_slot_s(&self, from_s: f64, to_s: f64) -> f64 {
        self.sum(from_s, to_s, |sample| sample.busy)
    }

    /// Slot time of phones that were up, from one moment to another, seconds of the scenario.
    pub(super) fn slot_s(&self, from_s: f64, to_s: f64) -> f64 {
        self.sum(from_s, to_s, |sample| sample.up)
    }

    fn sum(&self, from_s: f64, to_s: f64, value: fn(&Sample) -> u64) -> f64 {
        let played: Vec<&Sample> = self.played().collect();
        let step = |pair: &[&Sample]| match pair {
            [one, next] => (next.at_s.min(to_s) - one.at_s.max(from_s)).max(0.0) * value(one) as f64,
            _ => 0.0,
        };
        played.windows(2).map(step).sum()
    }
}

/// Resident memory of a process, bytes.
fn resident(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix("kB")?;
    Some(1024 * kib.trim().parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_time_is_what_was_busy_for_how_long() {
        let sample = |at_s, busy| Sample { at_s, gateway_bytes: None, busy, up: 10 };
        let samples = Samples(vec![sample(-1.0, 7), sample(0.0, 2), sample(10.0, 4), sample(20.0, 0)]);
        assert_eq!(samples.busy_slot_s(0.0, 20.0), 60.0);
        assert_eq!(samples.busy_slot_s(5.0, 15.0), 30.0);
        assert_eq!(samples.slot_s(5.0, 15.0), 100.0);
        assert!(resident(std::process::id()).is_none_or(|bytes| bytes > 1 << 20));
    }
}
