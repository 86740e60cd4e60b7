//! Phones that the chain knows: who is assigned to our jobs, where they answer, and by which key to know them.
//!
//! | file | holds |
//! |---|---|
//! | `address`, `job` | accounts and jobs, as people write them |
//! | `scale`, `shape`, `keys` | the chain's encoding, read strictly; what is kept where |
//! | `phone` | from a published key to an address and a pin |
//! | `rpc`, `look` | a node, asked; all that concerns us at one block, and whether that is all there is |
//! | `plan`, `watch` | what that makes of the pool; the background task |
//!
//! The chain is asked and never written to. See decision 0015.

mod address;
mod job;
mod keys;
mod look;
mod phone;
mod plan;
mod rpc;
mod scale;
mod shape;
mod watch;

pub use self::{
    address::{AccountId, AddressError},
    job::{JobError, JobId},
    look::Doubt,
    plan::{Phone, Stage},
    rpc::Runtime,
    shape::{Registration, Schedule},
    watch::{ChainWatch, Status},
};
