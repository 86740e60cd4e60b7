//! The driver of the pure scheduler, and the guards through which a request holds its place and its slot.
//!
//! [`Dispatcher`] keeps the core behind one plain mutex with no await inside: stamp `now`, `handle`, drain the effects,
//! unlock, perform them. Each waiting request has a mailbox of its own, so performing an effect wakes exactly the task
//! it is for. Rejected: an actor with channels (one more wake-up per decision), sharding (the choice needs the pool).

mod driver;
mod place;

pub use driver::{Dispatcher, FleetEffect};
pub use place::{Grant, Place, Stopped};
