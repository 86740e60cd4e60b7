//! The pure core: who runs where and when.
//!
//! Synchronous, single owner: events and the time go in, effects come out. It knows no async, clock, randomness
//! (a seed is handed in), lock, log, metric, JSON or HTTP. The gateway drives it with real time behind one mutex;
//! the simulation drives it on a heap of future events; both run exactly this code.

mod config;
mod effect;
mod event;
mod id;
mod snapshot;
mod time;

pub use crate::{config::*, effect::*, event::*, id::*, snapshot::*, time::Timestamp};
