//! The phone model: how long a phone takes to read a prompt and to write an answer.
//!
//! Problem: the simulator (virtual time) and the fake phone (real sockets) must agree on what a phone is, or a policy
//! that wins in one loses in the other. Choice: closed formulas over numbers, with time handed in, fitted to published
//! measurements. Rejected: a table of measured points per phone (nothing between the points, nothing for another
//! prompt length) and a queueing model (a phone's slots share one processor, so a slot has no rate of its own).
//!
//! Three facts shape the formulas. Reading slows as the context grows, because attention looks back at everything read
//! so far: the time of a stretch is linear plus quadratic. Writing slows with the context too, but mildly. Parallel
//! streams share the processor, with some gain, because one pass over the weights serves them all.

mod cache;
mod processor;
mod speed;

pub use cache::{SlotCaches, SlotChoice, common_prefix};
pub use processor::{Processor, Stretch, Task};
pub use speed::{Load, ModelSpeed, PhoneSpeed, UnknownSpeed};
