//! Refusals in the log: the first of a kind at once, then how many there were. Whoever reaches the port can be refused as often
//! as he likes, and must not write our log.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use scheduler::Timestamp;

use super::refusal::Refusal;
use crate::clock;

/// Between two lines about refusals of a kind.
const EVERY: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Kind {
    told: Option<Timestamp>,
    untold: u64,
}

impl Kind {
    /// Whether this one is told, and with how many before it that were not.
    fn tell(&mut self, now: Timestamp) -> Option<u64> {
        if self.told.is_some_and(|told| now.since(told) < EVERY) {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// What was told last of each kind; there are as many as outcomes.
#[derive(Default)]
pub(super) struct Quiet(Mutex<BTreeMap<&'static str, Kind>>);

impl Quiet {
    pub(super) fn refused(&self, peer: IpAddr, refusal: &Refusal) {
        let refusal = refusal.cause();
        let outcome = refusal.outcome();
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(untold) = kinds.entry(outcome).or_default().tell(clock::now()) {
            tracing::warn!(%peer, outcome, why = %refusal, more_before = untold, "a phone's call was refused");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_and_then_a_number() {
        let mut kind = Kind::default();
        let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
        assert_eq!(kind.tell(at(0)), Some(0));
        assert!((0..1_000).all(|_| kind.tell(at(9)).is_none()));
        assert_eq!((kind.tell(at(10)), kind.tell(at(25))), (Some(1_000), Some(0)));
    }
}
