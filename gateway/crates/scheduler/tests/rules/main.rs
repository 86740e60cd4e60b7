//! The core's promises, told as short stories on a hand-held clock.

mod choice;
mod failover;
mod health;
mod hedge;
mod limits;
mod operator;
mod relay;
mod rig;
