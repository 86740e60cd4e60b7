//! How close the process is to its memory's end, and what it gives up on the way there, in steps: idle connections first,
//! then kept ones, then new requests. What runs is never touched, and the operator's listener always answers.
//!
//! Bodies and queues have bounds of their own; this is the bound on everything together, so that the process refuses before
//! the system kills it.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::shutdown::Stop;

/// How often memory is looked at. A second: at a gigabyte a second of growth no bound would help.
const INTERVAL: Duration = Duration::from_secs(1);
/// Shares of the limit at which each step begins, in percent. 85, 92, 95: the distance from the first to the last is
/// what idle connections can give back.
const STEPS: [(u64, Level); 3] = [(95, Level::Refuse), (92, Level::Close), (85, Level::Shrink)];

/// What is given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Nothing.
    #[default]
    Calm,
    /// Connections may idle for a few seconds only.
    Shrink,
    /// Connections close after their answer.
    Close,
    /// New requests are refused.
    Refuse,
}

/// The present level; read on every request.
#[derive(Debug, Default)]
pub struct Pressure {
    level: AtomicU8,
    used: AtomicU64,
    limit: AtomicU64,
}

impl Pressure {
    /// The present level.
    pub fn level(&self) -> Level {
        match self.level.load(Ordering::Relaxed) {
            0 => Level::Calm,
            1 => Level::Shrink,
            2 => Level::Close,
            _ => Level::Refuse,
        }
    }

    /// Bytes of memory in use, and how many may be, as of the last second; `None` where the system does not say.
    pub fn memory(&self) -> Option<(u64, u64)> {
        let (used, limit) = (self.used.load(Ordering::Relaxed), self.limit.load(Ordering::Relaxed));
        (used > 0 && limit > 0).then_some((used, limit))
    }

    /// Looks at the process's memory until `stop`. `stated` is `limits.max_memory`; without it the limit is the control
    /// group's, or the machine's memory.
    pub async fn watch(self: Arc<Self>, stated: impl Fn() -> Option<u64>, mut stop: Stop) {
        let found = limit_found();
        loop {
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            let (Some(used), Some(limit)) = (resident(), stated().or(found)) else { continue };
            self.used.store(used, Ordering::Relaxed);
            self.limit.store(limit, Ordering::Relaxed);
            let (before, now) = (self.level(), level(used, limit));
            if before != now {
                tracing::warn!(used, limit, from = ?before, to = ?now, "memory pressure");
                self.level.store(now as u8, Ordering::Relaxed);
            }
        }
    }
}

fn level(used: u64, limit: u64) -> Level {
    let percent = used.saturating_mul(100) / limit.max(1);
    STEPS.into_iter().find(|(from, _)| percent >= *from).map_or(Level::Calm, |(_, level)| level)
}

/// Resident memory of this process, bytes.
fn resident() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// What this process may have: the smallest limit of its control groups, else the machine's memory.
fn limit_found() -> Option<u64> {
    let machine = kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:");
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let path = text.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
        group_limit(&path, |path| fs::read_to_string(format!("/sys/fs/cgroup{path}/memory.max")).ok())
    });
    group.into_iter().chain(machine).min()
}

/// The smallest `memory.max` from a group up to the root.
fn group_limit(path: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut path = path.trim_end_matches('/');
    let mut smallest = None;
    loop {
        let here = read(path).and_then(|text| text.trim().parse::<u64>().ok());
        smallest = smallest.into_iter().chain(here).min();
        match path.rfind('/') {
            Some(at) => path = &path[..at],
            None => return smallest,
        }
    }
}

/// The value of a line such as `VmRSS:   1234 kB`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_grows_with_the_share_of_memory_used() {
        let at = |percent: u64| level(percent * 10, 1000);
        assert_eq!(
            [at(0), at(84), at(85), at(91), at(92), at(94), at(95), at(200)].map(|level| level as u8),
            [0, 0, 1, 1, 2, 2, 3, 3]
        );
    }

    #[test]
    fn the_smallest_limit_on_the_way_to_the_root_counts() {
        let read = |path: &str| match path {
            "/pod/gateway" => Some("max\n".to_owned()),
            "/pod" => Some("1000\n".to_owned()),
            "" => Some("5000\n".to_owned()),
            _ => None,
        };
        assert_eq!(group_limit("/pod/gateway", read), Some(1000));
        assert_eq!(group_limit("/", read), Some(5000));
        assert_eq!(group_limit("/other", |_| None), None);
    }

    #[test]
    fn this_process_has_memory_and_a_limit() {
        let (used, limit) = (resident().expect("resident"), limit_found().expect("a limit"));
        assert!(used > 1 << 20 && limit > used, "{used} of {limit}");
    }
}
