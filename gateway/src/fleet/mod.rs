//! Replicas over time: configuration, admin API and probes become events of the scheduler.
//!
//! | file | holds |
//! |---|---|
//! | `pool` | [`Fleet`]: the pool, as the data path reads it |
//! | `replica` | [`Replica`]: what was stated, what was found, what happened |
//! | `url` | [`ReplicaUrl`]: an address that cannot be odd |
//! | `models`, `naming` | which names clients may use, and which replica's name each is |
//! | `dialect`, `answer`, `listing`, `probe`, `finding` | what an engine says about itself, and what that means |
//! | `slots`, `group`, `carry`, `resumable` | what works there, who writes the same answers, who can carry one on, who keeps a stream |
//! | `prior`, `speeds` | how fast a replica should be before it is measured, and what was measured before a restart |
//! | `complaint` | why a replica gets no work, in words |
//! | `change`, `reconcile` | what operators and the configuration do to the pool |
//! | `announce`, `identity` | what phones and the chain say: who is new, who moved, who is forgotten |
//! | `deployed` | instances of a deployment, from a list taken in again |
//! | `report`, `limits` | what phones say about themselves, and what follows |
//! | `quarantine`, `exam`, `written`, `decision` | what a replica has to show before it gets work, and the questions |
//! | `places` | how many are asked at once, and whose turn is over |
//! | `endings` | the known end of deployments |
//! | `watch`, `agenda` | the background task: probes in time, the scheduler's effects |
//! | `trial` | the questions that cost a phone something, asked while it has nothing to do |
//! | `feed` | pool changes for those who watch |
//!
//! The scheduler decides what a replica's state is; this module tells it what was seen. Rejected: a task per replica (a
//! thousand timers that fire together), health decided here (two opinions), probes that only look at the status.

mod agenda;
mod announce;
mod answer;
mod carry;
mod change;
mod comeback;
mod complaint;
mod decision;
mod deployed;
mod dialect;
mod endings;
mod exam;
mod feed;
mod finding;
mod group;
mod held;
mod identity;
mod learn;
mod limits;
mod listing;
mod models;
mod naming;
mod places;
mod pool;
mod prior;
mod probe;
mod quarantine;
mod reconcile;
mod relays;
mod replica;
mod report;
mod resumable;
mod room;
#[cfg(test)]
mod samples;
mod slots;
mod speeds;
mod trial;
mod url;
mod watch;
mod written;

pub use self::{
    announce::{AnnounceError, Announced, Announcement, Assignment, Said},
    change::{Added, Amendment, ChangeError, Changed, LabelChange, MAX_LABELS, Removal},
    comeback::Comeback,
    dialect::{Dialect, position, route_names, routes},
    endings::Deployment,
    feed::{PoolChange, PoolEvent},
    finding::Finding,
    limits::{Cause, Limited},
    models::ModelRef,
    naming::NotServed,
    pool::{Fleet, ModelEntry},
    reconcile::Reconciled,
    replica::{Facts, LastProbe, Past, Replica, ServedModel, Stated, Transition},
    report::{PhoneReport, ReportError, Reported},
    url::{ReplicaUrl, UrlError, UrlRules},
};
