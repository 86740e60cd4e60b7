//! The pure core: who runs where and when.
//!
//! Synchronous, single owner: events and the time go in, effects come out. It knows no async, clock, randomness
//! (a seed is handed in), lock, log, metric, JSON or HTTP. The gateway drives it with real time behind one mutex;
//! the simulation drives it on a heap of future events; both run exactly this code.

mod config;
mod continuation;
mod copies;
mod course;
mod effect;
mod estimate;
mod event;
mod evidence;
mod failover;
mod fair;
mod fleet;
mod flow;
mod health;
mod hedge;
mod id;
mod insight;
mod invariants;
mod learned;
mod learning;
mod lingering;
mod looks;
mod model_pool;
mod placement;
mod plan;
mod pool;
mod prefix;
mod queue;
mod relay;
mod replica;
mod request;
mod retry;
mod rng;
mod scheduler;
mod selection;
mod snapshot;
mod speed;
mod tally;
mod time;
mod timer;
mod usage;
mod views;
mod warmth;

pub use crate::{
    config::*,
    effect::*,
    event::*,
    id::*,
    insight::Insight,
    prefix::Prefix,
    scheduler::Scheduler,
    snapshot::*,
    speed::Pace,
    time::Timestamp,
    usage::{Asked, Fate, Lives, Measured, Slowdown, Span, Usage},
};
