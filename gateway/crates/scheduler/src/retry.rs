//! What a failed attempt means for its request, and how many retries may run.
//!
//! Attempts are limited because each costs a phone seconds to minutes. So what cost nothing is not counted among them: a
//! phone that could not be reached, one that said at once that it is full, a tunnel's page that says that nobody is
//! there. Otherwise three phones that died a moment ago would fail a request that a hundred others could serve.
//!
//! The budget is by count of what runs, not a token bucket refilled by successes: an attempt here lasts seconds to
//! minutes, so what hurts is the share of slots that retries hold at one moment. A request without budget waits for
//! it, like for a slot; refusing it would turn a moment's crowd into an error.
//!
//! An attempt that carries on an answer which the one before got further needs no room in it. The budget is there so that
//! failures do not feed on themselves: a retry repeats work, and the more of it runs, the less gets done. Carrying on
//! saves the work that begins anew otherwise, and where many phones die, waiting for the budget would let the written parts
//! pile up. It is a repetition again, with budget, once an attempt has added nothing.

use crate::{
    config::RetryConfig,
    event::{Carry, HardFailure, Left, Outcome, Part, SoftFailure},
};

/// Tries that reached something, as a multiple of the attempts that count: bounds the tour of a request through a pool
/// that is all full, loading or behind a tunnel's page. What could not be reached is bounded by the pool's size alone.
const TRIES_PER_ATTEMPT: u32 = 3;

/// What becomes of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It ends with this attempt.
    End,
    /// Another replica.
    Elsewhere(Cost),
}

/// What a failed attempt counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// One of the attempts that a request may have.
    Attempt,
    /// A try: turned away before any work.
    Try,
    /// Nothing: no engine was reached. Whatever stands in front of the replica may be to blame.
    Nothing,
}

/// The one retry rule.
pub(crate) fn next(outcome: Outcome, left: Left) -> Next {
    // What was seen and nobody may carry on has broken off.
    if matches!(left, Left::Closed | Left::Part(Part { seen: true, by: Carry::Never, .. })) {
        return Next::End;
    }
    match outcome {
        Outcome::Success | Outcome::CutShort | Outcome::RequestFault => Next::End,
        Outcome::Hard(HardFailure::Connect | HardFailure::Tls | HardFailure::Certificate) => {
            Next::Elsewhere(Cost::Nothing)
        }
        Outcome::Soft(SoftFailure::Busy { .. } | SoftFailure::BadAnswer)
        | Outcome::ContextExceeded
        | Outcome::Loading
        | Outcome::Misconfigured => Next::Elsewhere(Cost::Try),
        Outcome::Hard(HardFailure::Reset) | Outcome::Soft(_) => Next::Elsewhere(Cost::Attempt),
    }
}

/// Whether a request that had that much may have another attempt.
pub(crate) fn may_try_again(config: &RetryConfig, tries: u32, attempts: u32) -> bool {
    attempts < config.max_attempts.max(1) && tries < max_tries(config)
}

/// Tries that a request can have at most, attempts included.
pub(crate) fn max_tries(config: &RetryConfig) -> u32 {
    config.max_attempts.max(1).saturating_mul(TRIES_PER_ATTEMPT)
}

/// Running attempts, and how many of them are retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RetryBudget {
    pub(crate) running: u32,
    pub(crate) retries: u32,
}

impl RetryBudget {
    pub(crate) fn has_room(&self, config: &RetryConfig) -> bool {
        let share = (config.budget_share.max(0.0) * f64::from(self.running)) as u32;
        self.retries < share.max(config.budget_floor).max(1)
    }

    pub(crate) fn start(&mut self, retry: bool) {
        self.running += 1;
        self.retries += u32::from(retry);
    }

    pub(crate) fn end(&mut self, retry: bool) {
        self.running -= 1;
        self.retries -= u32::from(retry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SchedulerConfig;

    #[test]
    fn content_that_was_sent_ends_the_request_whatever_happened() {
        for outcome in [Outcome::Hard(HardFailure::Reset), Outcome::Soft(SoftFailure::Broken), Outcome::Loading] {
            assert_eq!(next(outcome, Left::Closed), Next::End);
            assert_ne!(next(outcome, Left::Nothing), Next::End);
        }
    }

    #[test]
    fn a_part_that_somebody_may_carry_on_ends_nothing() {
        let part = |seen, by| Left::Part(Part { tokens: 9, seen, by });
        let broken = Outcome::Soft(SoftFailure::Broken);
        for by in [Carry::SameGroup, Carry::Anyone] {
            assert_eq!(next(broken, part(true, by)), Next::Elsewhere(Cost::Attempt));
            assert_eq!(next(Outcome::RequestFault, part(true, by)), Next::End);
        }
        assert_eq!(next(broken, part(true, Carry::Never)), Next::End);
        assert_eq!(next(broken, part(false, Carry::Never)), Next::Elsewhere(Cost::Attempt));
    }

    #[test]
    fn a_full_phone_costs_a_try_but_no_attempt() {
        let config = SchedulerConfig::default().retry;
        assert!(may_try_again(&config, 8, 2));
        assert!(!may_try_again(&config, 9, 2));
        assert!(!may_try_again(&config, 3, 3));
    }

    #[test]
    fn retries_are_a_share_of_what_runs_but_never_fewer_than_the_floor() {
        let config = RetryConfig { max_attempts: 3, budget_share: 0.2, budget_floor: 3 };
        assert!(RetryBudget { running: 2, retries: 2 }.has_room(&config));
        assert!(!RetryBudget { running: 15, retries: 3 }.has_room(&config));
        assert!(RetryBudget { running: 20, retries: 3 }.has_room(&config));
        assert!(!RetryBudget { running: 20, retries: 4 }.has_room(&config));
    }
}
