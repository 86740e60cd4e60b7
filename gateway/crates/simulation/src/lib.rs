//! Virtual time: the phone model, scenarios and the work they draw, and the event loop that drives `scheduler` without a
//! socket or a clock.
//!
//! From a file to figures: [`scenario`] reads it, [`workload`] draws its phones and requests, [`bounds`] says what nothing
//! can beat, [`play`] lets a policy serve them.

pub mod bounds;
pub mod driver;
pub mod phone;
pub mod play;
mod quantile;
pub mod record;
pub mod rng;
pub mod scenario;
pub mod workload;
