//! Virtual time: the phone model, arrivals, and the event loop that drives `scheduler` without a socket or a clock.

pub mod driver;
pub mod phone;
pub mod record;
pub mod rng;
