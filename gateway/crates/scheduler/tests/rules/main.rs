//! The core's promises, told as short stories on a hand-held clock.

mod choice;
mod failover;
mod health;
mod hedge;
mod least_work;
mod limits;
mod operator;
mod relay;
mod rig;
