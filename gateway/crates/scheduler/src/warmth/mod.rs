//! Which replica holds the beginning of which prompt: what makes a slow phone as good as a fast one.
//!
//! Most of the work of a request is reading what was read before: a shared template, or the conversation so far. An
//! engine keeps in each slot what that slot held last, and skips as much of the next prompt as agrees with it. So three
//! things are known here: what the slots of each replica probably hold ([`Slots`]), how much of such a belief the replica
//! turns out to be worth ([`Slots::yield_`]), and, for each model, which beginnings many requests share and who holds
//! them ([`Index`]).
//!
//! Rejected: a tree of tokens per replica, as servers with one cache for all requests need. A phone's cache is a handful of
//! whole prompts, and a belief about them is a handful of fingerprints.

mod generations;
mod holders;
mod index;
mod prompt;
mod sightings;
mod slot;
mod slots;
mod stats;

#[cfg(test)]
mod rig;

pub(crate) use self::{
    index::Index,
    prompt::{Prompt, TemplateKey},
    slots::Slots,
};
