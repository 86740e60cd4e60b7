//! The driver of the pure scheduler, and the guards through which a request holds its place and its slots.
//!
//! [`Dispatcher`] keeps the core behind one plain mutex with no await inside: stamp `now`, `handle`, perform the effects,
//! unlock. Each waiting request has a mailbox of its own, so performing an effect wakes exactly the task it is for.
//! Rejected: an actor with channels (one more wake-up per decision), sharding (the choice needs the pool).
//!
//! The core and a request's task may decide about an attempt in the same moment: the core cancels what has just answered.
//! The mutex orders them. Every word of the core is in the mailbox when the mutex is free, so a task that tells of its
//! answer looks, under the mutex, whether the attempt was cancelled before ([`Grant::first_token`], [`Grant::end`]).

mod driver;
mod place;
mod record;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use driver::{Dispatcher, FleetEffect};
pub use place::{Grant, Place, Shed, Word};
pub use record::Record;
