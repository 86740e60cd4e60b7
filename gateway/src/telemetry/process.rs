//! This process as its operator sees it: memory, CPU, descriptors, under the names every Prometheus client uses.
//!
//! Read from `/proc/self` at each scrape; where there is none, the gauges stay 0. The prometheus crate's own collector
//! was rejected: it adds `procfs` and five more crates for five numbers.

use std::fs;

use prometheus::{Counter, Gauge, Registry};

use super::{
    metrics::{counter, gauge},
    names,
};
use crate::clock;

pub(super) struct ProcessGauges {
    cpu: Counter,
    memory: Gauge,
    fds: Gauge,
    fds_limit: Gauge,
}

impl ProcessGauges {
    pub(super) fn new(registry: &Registry) -> Self {
        gauge(registry, &names::PROCESS_START).set(clock::unix().as_secs_f64());
        Self {
            cpu: counter(registry, &names::PROCESS_CPU),
            memory: gauge(registry, &names::PROCESS_MEMORY),
            fds: gauge(registry, &names::PROCESS_FDS),
            fds_limit: gauge(registry, &names::PROCESS_FDS_LIMIT),
        }
    }

    pub(super) fn refresh(&self) {
        if let Some(seconds) = read("/proc/self/stat").as_deref().and_then(cpu_seconds) {
            self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
        }
        if let Some(bytes) = read("/proc/self/status").as_deref().and_then(resident_bytes) {
            self.memory.set(bytes);
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // The directory itself is open while it is read.
            self.fds.set(entries.count().saturating_sub(1) as f64);
        }
        if let Some(limit) = read("/proc/self/limits").as_deref().and_then(fd_limit) {
            self.fds_limit.set(limit);
        }
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// USER_HZ: 100 on every Linux that Rust has a std for (see proc(5), time(7)).
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system time. The name in parentheses may hold anything, so fields are counted after the last one.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// The soft limit; "unlimited" is no number and leaves the gauge as it is.
fn fd_limit(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 500 0 0 0 150 50 0 0 20 0 9 0 100 1 1";
        assert_eq!(cpu_seconds(stat), Some(2.0));
    }

    #[test]
    fn memory_and_descriptors_are_read_as_the_kernel_writes_them() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2048.0 * 1024.0));
        assert_eq!(fd_limit("Limit  Soft Hard\nMax open files            1024      4096      files\n"), Some(1024.0));
        assert_eq!(fd_limit("Max open files            unlimited      unlimited      files\n"), None);
    }
}
