//! What operators see: metrics, the log, one line per request.
//!
//! | file | holds |
//! |---|---|
//! | `names` | every metric once: name, help, kind, labels |
//! | `metrics` | the families built from `names`, and the series a request touches, kept at hand |
//! | `pool` | gauges of the pool, read from their source at each scrape |
//! | `batches` | gauges of batches, with those of the pool |
//! | `tenants` | the series of each tenant |
//! | `cost`, `account` | the books: what the pool costs, and what for |
//! | `process` | memory, CPU and descriptors of this process |
//! | `record` | [`RequestRecord`], [`AttemptRecord`]: the guards that account for one request and for each try of it |
//! | `history` | the last hour in points of ten seconds |
//! | `call` | [`CallRecord`]: the same for a call about files or batches |
//! | `access` | the log line of one request |
//! | `trace` | spans of requests and attempts, and the task that sends them to a collector |
//! | `init` | where log lines go |
//!
//! Labels come from configuration and from what probes found, never from what a client wrote: an unknown model is
//! [`OTHER`], and so is what passes the caps. Prompts, answers and keys are never logged and never labels. Rejected: the global registry (two
//! gateways in one test process would share it), a metrics facade (its recorder is global as well), counting at several
//! places of the path (an early return would skip one; the record's drop can't be skipped).

mod access;
mod account;
mod batches;
mod call;
mod cost;
#[cfg(test)]
mod cost_tests;
pub mod history;
mod init;
mod metrics;
pub mod names;
mod pool;
mod process;
mod record;
mod tenants;
#[cfg(test)]
mod tests;
mod trace;

pub use account::{Account, Price, Sheet, Split, Upkeep};
pub use batches::{BatchSample, LineSample};
pub use call::CallRecord;
pub use cost::{PoolPrice, Statement, Window};
pub use history::{History, Level, Point};
pub use init::{InitError, LogFormat, LogOptions, init};
pub use metrics::{OTHER, Telemetry, TelemetryOptions};
pub use pool::{AdviceSample, DeploymentSample, PoolSample, QueueSample, ReplicaSample, WaitSample};
pub use record::{AttemptRecord, AttemptTold, RequestOutcome, RequestRecord};
pub use trace::{Exporter, Target, TargetError};
