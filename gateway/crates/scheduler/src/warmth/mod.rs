//! Which replica holds the beginning of which prompt: what makes a slow phone as good as a fast one.
//!
//! Most of the work of a request is reading what was read before: a shared template, or the conversation so far. An
//! engine keeps in each slot what that slot held last, and skips as much as the next prompt shares with it. So three
//! things are known here: what the [`slots`] of each replica probably hold, which beginnings are shared by many requests
//! of a model and who holds them ([`index`]), and how much of such a belief a replica turned out to be worth
//! ([`Slots::yield_`]).
//!
//! Rejected: a tree of tokens per replica, as servers with one cache for all requests keep. A phone's cache is a
//! handful of whole prompts, and a belief about them is a handful of fingerprints.

mod decayed;
mod generations;
mod holders;
mod index;
mod prompt;
mod slots;
mod stats;

pub(crate) use self::{
    decayed::Decayed,
    index::{Found, Index},
    prompt::{Prompt, Template, TemplateKey},
    slots::{Held, Slots},
    stats::TemplateStats,
};
