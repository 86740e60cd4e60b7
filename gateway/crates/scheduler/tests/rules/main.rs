//! The core's promises, told as short stories on a hand-held clock.

mod choice;
mod continuation;
mod ending;
mod failover;
mod health;
mod hedge;
mod least_work;
mod limited;
mod limits;
mod lingering;
mod operator;
mod quarantine;
mod relay;
mod rig;
