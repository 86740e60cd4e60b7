//! Huntgroup: one stable OpenAI-compatible address in front of many phones.
//!
//! The modules in the order in which a request meets them; `pipeline` is the table of contents.

pub mod app;
pub mod listener;
pub mod models;
pub mod pipeline;

pub mod auth;
pub mod batch;
pub mod capacity;
pub mod chain;
pub mod continued;
pub mod dispatch;
pub mod explain;
pub mod hunt;
pub mod joining;
pub mod race;
pub mod ratelimit;
pub mod refusal;
pub mod relay;
pub mod request;
pub mod telemetry;
pub mod upstream;

pub mod admin;
pub mod cli;
pub mod config;
pub mod fleet;
pub mod registration;

pub mod clock;
pub mod error;
pub mod gateway;
pub mod in_flight;
pub mod live;
pub mod pressure;
pub mod shutdown;
