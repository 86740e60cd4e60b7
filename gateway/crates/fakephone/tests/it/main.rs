//! The fake phone over real sockets: what it speaks, how it fails, and what it counts.

mod binary;
mod breaks;
mod client;
mod continuation;
mod control;
mod dialects;
mod faults;
mod kept_streams;
mod kinds;
mod prefill;
mod relay;
mod slots;
mod work;

use std::time::Duration;

/// How long a condition may take to come about before a test fails.
const SOON: Duration = Duration::from_secs(10);
