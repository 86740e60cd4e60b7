//! What the choice by remaining work knows of a request, from its arrival on.

use crate::{
    id::ReplicaId,
    snapshot::{CandidateView, Decision},
    time::Timestamp,
    warmth::Prompt,
};

/// What a request is expected to need, and what was decided about it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) prompt: Prompt,
    /// Prompt tokens that a warm replica need not read.
    pub(crate) shared: f64,
    /// Answer tokens expected.
    pub(crate) output: f64,
    /// Seconds on a typical replica, the shared prefix warm.
    pub(crate) work: f64,
    /// Its place in the order of its class; see [`Fair`](crate::fair::Fair).
    pub(crate) tag: f64,
    /// How often a later request was preferred on a replica that is warm for it.
    pub(crate) passed_over: u8,
    /// How often a later request got a slot that this one could have had; one that is less urgent counts as several.
    pub(crate) overtaken: u16,
    /// The replica it waits for, and the seconds it will take there.
    pub(crate) claim: Option<(ReplicaId, f64)>,
    /// It takes what is free from then on: as long as the free replica that it once declined would have taken.
    pub(crate) patient_until: Option<Timestamp>,
    /// The last decision about it.
    pub(crate) decision: Option<Decision>,
    /// The candidates that were compared when it was placed, the best first.
    pub(crate) compared: Vec<CandidateView>,
}
