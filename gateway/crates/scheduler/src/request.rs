//! What the core remembers of a live request and of a running attempt.

use std::time::Duration;

use crate::{
    continuation::Kept,
    copies::Copies,
    course::Course,
    event::RequestSpec,
    id::{ReplicaId, RequestId},
    plan::Plan,
    time::Timestamp,
    usage::Account,
};

/// How much context a replica must have to be asked.
///
/// The prompt's tokens are an estimate from its bytes, wrong by more than a sixteenth, so sizes are rounded down to
/// steps of that: requests of about the same size share one lane of the queue, and a free slot looks at lanes instead
/// of at requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Need {
    pub(crate) tokens: u32,
    /// A replica's own tokenizer said so. An estimate that exceeds every replica may still be tried on the largest.
    pub(crate) measured: bool,
}

impl Need {
    pub(crate) fn estimated(prompt_tokens: u32) -> Self {
        Self { tokens: prompt_tokens - prompt_tokens % step(prompt_tokens), measured: false }
    }

    /// A context of `context` tokens was too small: one step more at least.
    pub(crate) fn more_than(self, context: u32) -> Self {
        let step = step(context);
        let above = (context / step).saturating_add(1).saturating_mul(step);
        Self { tokens: self.tokens.max(above), measured: true }
    }
}

fn step(tokens: u32) -> u32 {
    (tokens.checked_ilog2().map_or(0, |log| (1u32 << log) / 16)).max(256)
}

/// Where a live request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Waiting {
        /// Since when no replica that serves now may take it.
        orphan_since: Option<Timestamp>,
    },
    /// On one replica or, where a second copy was worth it, on several.
    Running(Copies),
    /// Every replica is tried, some in vain through a relay that may be down: the verdict on the relay is its verdict.
    Parked { until: Timestamp },
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) spec: RequestSpec,
    pub(crate) arrived: Timestamp,
    /// Order of arrival.
    pub(crate) order: u64,
    pub(crate) need: Need,
    pub(crate) phase: Phase,
    /// The moment from which on its wait counts: arrival, moved by the time that it spent running.
    pub(crate) queued_from: Timestamp,
    /// Replicas it must not go to (again).
    pub(crate) tried: Vec<Tried>,
    /// Attempts so far.
    pub(crate) dispatches: u32,
    /// Those that reached something, and of these the ones that cost a phone's time.
    pub(crate) tries: u32,
    pub(crate) spent: u32,
    /// A replica found the prompt too long.
    pub(crate) too_long: bool,
    /// An attempt failed, or was lost with its replica.
    pub(crate) failed: bool,
    /// What is written of its answer, to be carried on.
    pub(crate) part: Option<Kept>,
    /// The last attempt that failed got the answer further.
    pub(crate) advanced: bool,
    /// How often it was stopped for more urgent work.
    pub(crate) given_back: u8,
    /// What the choice by remaining work knows of it.
    pub(crate) plan: Plan,
    /// What it took so far.
    pub(crate) account: Account,
}

/// One replica that a request was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    pub(crate) replica: ReplicaId,
    /// False when the attempt ended at connect or TLS.
    pub(crate) reached: bool,
}

impl Request {
    pub(crate) fn new(spec: RequestSpec, order: u64, now: Timestamp) -> Self {
        Self {
            need: Need::estimated(spec.prompt_tokens),
            spec,
            arrived: now,
            order,
            phase: Phase::Waiting { orphan_since: None },
            queued_from: now,
            tried: Vec::new(),
            dispatches: 0,
            tries: 0,
            spent: 0,
            too_long: false,
            failed: false,
            part: None,
            advanced: false,
            given_back: 0,
            plan: Plan::default(),
            account: Account::default(),
        }
    }

    /// Had a slot before, and lost it or gave it back: goes to the front of its class.
    pub(crate) fn has_run(&self) -> bool {
        self.dispatches > 0
    }

    /// An attempt of it failed: the next does not gamble. One that was only given back feeds no collapse.
    pub(crate) fn is_retry(&self) -> bool {
        self.failed
    }

    /// Its running attempts; none while it waits.
    pub(crate) fn copies(&self) -> Copies {
        match self.phase {
            Phase::Running(copies) => copies,
            Phase::Waiting { .. } | Phase::Parked { .. } => Copies::default(),
        }
    }

    /// What it was sent to does not count as tried: it was stopped there through no fault of either.
    pub(crate) fn untry(&mut self, replica: ReplicaId) {
        self.tried.retain(|tried| tried.replica != replica);
    }

    pub(crate) fn has_tried(&self, replica: ReplicaId) -> bool {
        self.tried.iter().any(|tried| tried.replica == replica)
    }

    /// Time spent waiting so far, all stints together.
    pub(crate) fn waited(&self, now: Timestamp) -> Duration {
        now.since(self.queued_from)
    }
}

/// One try on one replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) request: RequestId,
    pub(crate) replica: ReplicaId,
    pub(crate) started: Timestamp,
    pub(crate) retry: bool,
    pub(crate) first_token: bool,
    /// The client has seen content of it: no other copy may answer, and no other attempt follows.
    pub(crate) committed: bool,
    /// The wait of its request before it, to go on from if it fails.
    pub(crate) waited: Duration,
    /// How it gets on.
    pub(crate) course: Course,
    /// Tokens of the part that it carries on; `None`: it began anew.
    pub(crate) carried: Option<u32>,
    /// Tokens that its slot keeps, once that is known.
    pub(crate) kept: Option<f64>,
    /// How often it was found late and no better replica was free.
    pub(crate) looks: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_request_takes_less_than_two_kibibytes() {
        let fingerprints = crate::prefix::Prefix::MAX_CUTS * size_of::<u64>();
        // Itself, its place in the queue and its deadline, each in a map that may be half empty.
        let places = 2 * (size_of::<Request>() + 128);
        assert!(places + fingerprints < 3 * 1024, "{places} + {fingerprints}");
        assert!(size_of::<Request>() + fingerprints < 2048, "{} + {fingerprints}", size_of::<Request>());
    }

    #[test]
    fn an_estimate_is_never_rounded_up_and_loses_less_than_a_sixteenth() {
        for tokens in (0..300_000).step_by(37) {
            let need = Need::estimated(tokens).tokens;
            assert!(need <= tokens && tokens - need < 256.max(tokens / 16 + 1), "{tokens} became {need}");
        }
    }

    #[test]
    fn what_was_too_small_is_never_enough() {
        for context in [1, 255, 256, 4095, 4096, 8192, 131_072, u32::MAX - 1] {
            assert!(Need::estimated(10).more_than(context).tokens > context);
        }
    }
}
