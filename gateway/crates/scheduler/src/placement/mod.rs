//! The choice by remaining work: which waiting request starts on which replica, and when it is better not to start yet.
//!
//! Binding is late: nothing waits on a phone. A choice is made when a request arrives (which of the free replicas?), when
//! a slot frees (which of the waiting requests?), and every few seconds for slots that were left free on purpose. Each
//! compares expected completion: the request's own time there, what that adds to others, what a cache loses; against
//! waiting for a better replica. With nothing measured it comes down to the least busy replica.
//!
//! Rejected: solving the assignment of all waiting requests to all replicas at once. It is better by little where estimates
//! are this rough, and costs milliseconds a decision in a pool of a thousand.

mod choose;
mod demand;
mod explain;
mod outlook;
mod patience;
mod profile;
mod rescue;
mod reserve;
mod sharing;

pub(crate) use self::{
    outlook::{Ask, Cost, Outlook, Own},
    patience::Patience,
    profile::{Kind, Profile, Profiles},
    sharing::{Job, Jobs},
};
