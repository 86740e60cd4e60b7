//! What operators see: metrics, the log, one line per request.
//!
//! | file | holds |
//! |---|---|
//! | `names` | every metric once: name, help, kind, labels |
//! | `metrics` | the families built from `names`, and the series a request touches, kept at hand |
//! | `pool` | gauges of the pool, read from their source at each scrape |
//! | `process` | memory, CPU and descriptors of this process |
//! | `record` | [`RequestRecord`], [`AttemptRecord`]: the guards that account for one request and for each try of it |
//! | `access` | the log line of one request |
//! | `init` | where log lines go |
//!
//! Labels come from configuration and from what probes found, never from what a client wrote: an unknown model is
//! [`OTHER`], and so is what passes the caps. Prompts, answers and keys are never logged and never labels. Rejected: the global registry (two
//! gateways in one test process would share it), a metrics facade (its recorder is global as well), counting at several
//! places of the path (an early return would skip one; the record's drop can't be skipped).

mod access;
mod init;
mod metrics;
pub mod names;
mod pool;
mod process;
mod record;
#[cfg(test)]
mod tests;

pub use init::{InitError, LogFormat, LogOptions, init};
pub use metrics::{OTHER, Telemetry, TelemetryOptions};
pub use pool::{PoolSample, QueueSample, ReplicaSample, WaitSample};
pub use record::{AttemptRecord, RequestOutcome, RequestRecord};
