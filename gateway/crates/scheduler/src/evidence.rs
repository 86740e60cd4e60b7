//! What a replica is judged by.

use std::time::Duration;

use crate::{config::HealthConfig, rng::Rng, time::Timestamp};

/// Why a replica is out; decides what may lift it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Nobody there, or its own probe says that it is broken. Never ignored.
    Hard,
    /// It answered requests badly. Ignored when too much of the pool is out for it.
    Soft,
    /// Its relay is down: held, not judged.
    Relay,
    /// It was never there: nothing to be made good, once it is.
    Absent,
}

/// Something that says something about a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    Success,
    Hard,
    Soft,
    Loading,
    Misconfigured,
    /// The time set by `probe_at` has come.
    ProbeDue,
    /// All of its relay fail alike.
    RelayDown,
    /// Another replica of its relay is back.
    RelayBack,
    /// Too few are left: soft marks are ignored.
    PoolShort,
    /// The settings changed.
    Configured,
}

/// What must be known beside the evidence.
pub(crate) struct Context<'a> {
    pub(crate) now: Timestamp,
    pub(crate) config: &'a HealthConfig,
    pub(crate) rng: &'a mut Rng,
    pub(crate) slots: u16,
    /// The pool can spare it.
    pub(crate) may_eject_soft: bool,
    /// Something of ours runs there.
    pub(crate) busy: bool,
    /// Something of ours runs there and has begun to answer.
    pub(crate) answering: bool,
    /// What it writes is carried on when it goes away.
    pub(crate) carries_on: bool,
    /// It is known what it serves.
    pub(crate) models_known: bool,
    /// What stands in front of it is down.
    pub(crate) relay_down: bool,
}

impl Context<'_> {
    /// A length varied up and down, so that what failed together does not come back together.
    pub(crate) fn jittered(&mut self, length: Duration) -> Duration {
        let share = self.config.penalty_jitter.clamp(0.0, 1.0);
        length.mul_f64(1.0 + share * (2.0 * self.rng.unit() - 1.0))
    }
}
