//! Virtual time: the phone model, scenarios and the work they draw, and the event loop that drives `scheduler` without a
//! socket or a clock.
//!
//! From a file to figures: [`scenario`] reads it, [`workload`] draws its phones and requests, [`bounds`] says what nothing
//! can beat, [`play`] lets a policy serve them. [`advice`] goes the other way: from what a scheduler measured to a scenario, played with
//! more or fewer phones.

pub mod advice;
pub mod bounds;
pub mod driver;
pub mod phone;
pub mod play;
mod quantile;
pub mod record;
pub mod rng;
pub mod scenario;
pub mod workload;
