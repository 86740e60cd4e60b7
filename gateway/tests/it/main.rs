//! The gateway as a process, in front of simulated phones behind a simulated relay.

mod harness;

mod admin;
mod chaos;
mod drain;
mod failover;
mod hangup;
mod health;
mod hedging;
mod hostile_client;
mod hostile_phone;
mod overload;
mod record;
mod speeds;
mod streaming;
mod tls;
mod waiting;
