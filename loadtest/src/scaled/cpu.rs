//! Whether this machine kept up.
//!
//! A twentieth of the time leaves a phone's second fifty milliseconds. A machine that is busy with something else then
//! measures itself, and nothing in the figures says so. Two things tell: how late timers fire, and how long the processes
//! waited for a core each time that they wanted one.

use super::time::Time;
use crate::clock;
use serde::Serialize;
use std::{sync::Mutex, time::Duration};

/// Between two looks at how late a timer fires.
const EVERY: Duration = Duration::from_millis(10);
/// Timers of the runtime count whole milliseconds: on an idle machine they fire so late in the mean, seconds of the world.
const GRAIN_S: f64 = 0.0011;
/// Mean lateness beyond that from which on a run is not to be believed. A short answer, a few tens of milliseconds of the
/// world, has about ten wake-ups one after the other in three processes, and each is late by some of this.
const LATE_S: f64 = 0.0005;
/// Mean wait for a core from which on a run is not to be believed; where a core is to spare it is less than half of it.
const WAIT_S: f64 = 0.0002;

/// What a run took of this machine, and what it did not get.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Cpu {
    /// Cores that clients and phones used in the mean.
    pub(super) loadtest_cores: f64,
    /// Cores that the gateway used in the mean.
    pub(super) gateway_cores: f64,
    /// How long clients and phones waited for a core in the mean, seconds of the scenario; `None` where the system does not
    /// tell.
    pub(super) loadtest_wait_s: Option<f64>,
    /// The same of the gateway.
    pub(super) gateway_wait_s: Option<f64>,
    /// How late timers fired in the mean, seconds of the scenario.
    pub(super) late_mean_s: f64,
    /// 99th percentile of the same.
    pub(super) late_p99_s: f64,
    /// The run was short of CPU: its figures are this machine's.
    pub(super) short: bool,
}

/// Watches one run.
pub(super) struct Watch {
    gateway: u32,
    before: [Ticks; 2],
    began_s: f64,
    late: Mutex<Vec<f64>>,
}

impl Watch {
    pub(super) fn begin(gateway: u32, time: &Time) -> Self {
        Self { gateway, before: both(gateway), began_s: time.now(), late: Mutex::default() }
    }

    /// Notes how late timers fire until it is cancelled.
    pub(super) async fn run(&self) {
        loop {
            let due = clock::now() + EVERY;
            tokio::time::sleep_until(due).await;
            let late = (clock::now() - due).as_secs_f64();
            self.late.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(late);
        }
    }

    /// What came of it.
    pub(super) fn end(&self, time: &Time) -> Cpu {
        let [own, gateway] = both(self.gateway);
        let [own_before, gateway_before] = self.before;
        let elapsed_s = ((time.now() - self.began_s) / time.scaled(1.0)).max(1e-3);
        let mut late = std::mem::take(&mut *self.late.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        late.sort_by(f64::total_cmp);
        let mean = late.iter().sum::<f64>() / late.len().max(1) as f64;
        let p99 = late.get(late.len() * 99 / 100).copied().unwrap_or(0.0);
        let (own, gateway) = (own.since(&own_before), gateway.since(&gateway_before));
        let starved = |ticks: &Ticks| ticks.wait().is_some_and(|wait_s| wait_s > WAIT_S);
        let wait_s = |ticks: &Ticks| ticks.wait().map(|wait_s| time.scaled(wait_s));
        Cpu {
            loadtest_cores: own.ran_s / elapsed_s,
            gateway_cores: gateway.ran_s / elapsed_s,
            loadtest_wait_s: wait_s(&own),
            gateway_wait_s: wait_s(&gateway),
            late_mean_s: time.scaled(mean),
            late_p99_s: time.scaled(p99),
            short: mean > GRAIN_S + LATE_S || starved(&own) || starved(&gateway),
        }
    }
}

/// What a process's threads have had so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    ran_s: f64,
    waited_s: f64,
    /// How often they had a core.
    slices: f64,
}

impl Ticks {
    fn since(&self, before: &Self) -> Self {
        Self {
            ran_s: self.ran_s - before.ran_s,
            waited_s: self.waited_s - before.waited_s,
            slices: self.slices - before.slices,
        }
    }

    /// Seconds that they waited for a core, in the mean.
    fn wait(&self) -> Option<f64> {
        (self.slices > 0.0).then(|| self.waited_s / self.slices)
    }
}

fn both(gateway: u32) -> [Ticks; 2] {
    [std::process::id(), gateway].map(|process| read(process).unwrap_or_default())
}

/// The sums over the threads of a process, as the kernel's scheduler accounts for them.
fn read(process: u32) -> Option<Ticks> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut sum = Ticks::default();
    for thread in threads.flatten() {
        // A thread may end meanwhile; those of both processes do not.
        let Ok(text) = std::fs::read_to_string(thread.path().join("schedstat")) else { continue };
        let ticks = parse(&text)?;
        sum.ran_s += ticks.ran_s;
        sum.waited_s += ticks.waited_s;
        sum.slices += ticks.slices;
    }
    Some(sum)
}

/// `schedstat`: nanoseconds on a core, nanoseconds of waiting for one, time slices.
fn parse(text: &str) -> Option<Ticks> {
    let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    let mut next = || Some(numbers.next()?? as f64);
    Some(Ticks { ran_s: next()? * 1e-9, waited_s: next()? * 1e-9, slices: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_account_is_read() {
        let ticks = parse("3000000000 1500000000 1000\n").expect("three numbers");
        assert!((ticks.ran_s - 3.0).abs() < 1e-9 && (ticks.waited_s - 1.5).abs() < 1e-9);
        assert!(ticks.wait().is_some_and(|wait_s| (wait_s - 0.0015).abs() < 1e-9));
        assert_eq!((parse("x"), parse("1 2"), Ticks::default().wait()), (None, None, None));
        assert!(read(std::process::id()).is_none_or(|ticks| ticks.slices > 0.0));
    }
}
