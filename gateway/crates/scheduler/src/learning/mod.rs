//! What the scheduler learns from traffic: how fast replicas are, how long answers get, how long replicas last, how
//! much urgent work arrives.
//!
//! Everything here is fed by phones that may be hot, broken or lying, so each estimator holds to the same rules. No
//! input is trusted: what is no finite, positive number measures nothing, and what is absurd is bounded. One sample
//! moves an estimate by a stated factor at most; many of the same kind are believed. Nothing is needed to start: priors
//! stand in, and weigh little. An update costs constant time (logarithmic where an order is kept) and reads no clock.

mod decayed;
mod history;
mod output;
mod rate;
mod reserve;
mod shape;
mod slope;
mod survival;
mod tokens;
mod trend;
mod typical;

pub(crate) use self::{
    decayed::Decayed,
    history::{Done, History},
    output::{Outputs, USUAL_ANSWER},
    rate::Rate,
    reserve::Reserve,
    shape::Shape,
    survival::{Hazard, PoolHazard},
    tokens::TokenRatio,
    typical::Typical,
};

/// The value, if it can be one: finite and above zero.
fn positive(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}

/// A count or a length that someone claims, between 0 and `most`; 0 for what is no number.
fn up_to(most: f64, value: f64) -> f64 {
    if value > 0.0 { value.min(most) } else { 0.0 }
}
