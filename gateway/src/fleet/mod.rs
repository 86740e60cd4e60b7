//! Replicas over time: configuration, admin API and probes become events of the scheduler.
//!
//! | file | holds |
//! |---|---|
//! | `pool` | [`Fleet`]: the pool, as the data path reads it |
//! | `replica` | [`Replica`]: what was stated, what was found, what happened |
//! | `url` | [`ReplicaUrl`]: an address that cannot be odd |
//! | `models`, `naming` | which names clients may use, and which replica's name each is |
//! | `dialect`, `answer`, `listing`, `probe`, `finding` | what an engine says about itself, and what that means |
//! | `prior`, `speeds` | how fast a replica should be before it is measured, and what was measured before a restart |
//! | `complaint` | why a replica gets no work, in words |
//! | `change`, `reconcile` | what operators and the configuration do to the pool |
//! | `watch` | the background task: probes in time, the scheduler's effects |
//! | `feed` | pool changes for those who watch |
//!
//! The scheduler decides what a replica's state is; this module tells it what was seen. Rejected: a task per replica (a
//! thousand timers that fire together), health decided here (two opinions), probes that only look at the status.

mod answer;
mod change;
mod complaint;
mod dialect;
mod feed;
mod finding;
mod learn;
mod listing;
mod models;
mod naming;
mod pool;
mod prior;
mod probe;
mod reconcile;
mod replica;
mod speeds;
mod url;
mod watch;

pub use self::{
    change::{Added, Amendment, ChangeError, Removal},
    dialect::{Dialect, position, route_names, routes},
    feed::{PoolChange, PoolEvent},
    finding::Finding,
    models::ModelRef,
    naming::NotServed,
    pool::{Fleet, ModelEntry},
    reconcile::Reconciled,
    replica::{Facts, LastProbe, Past, Replica, ServedModel, Stated, Transition},
    url::{ReplicaUrl, UrlError, UrlRules},
};
