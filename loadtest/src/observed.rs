//! The fleet by time, as any way of playing a scenario observes it.

use serde::Serialize;

/// The fleet at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// Seconds from the start.
    pub(crate) at_s: f64,
    /// Requests that clients wait for.
    pub(crate) in_flight: u64,
    /// Slots that work, when phones can be seen.
    pub(crate) busy_slots: Option<u64>,
    /// Slots of phones that are well.
    pub(crate) slots: Option<u64>,
    /// Requests that wait on a phone for one of its slots.
    pub(crate) waiting_on_phones: Option<u64>,
    /// Requests so far that came to a phone whose slots were all taken.
    pub(crate) over_subscribed: Option<u64>,
}

/// Something that was done to the fleet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Event {
    /// Seconds from the start.
    pub(crate) at_s: f64,
    /// What.
    pub(crate) what: String,
    /// It should have been done, and could not be.
    pub(crate) failed: bool,
}

/// What one phone has done.
#[derive(Debug, Clone, Default)]
pub(crate) struct PhoneCounts {
    /// Its name.
    pub(crate) name: String,
    /// Its group, if it is known.
    pub(crate) group: Option<usize>,
    /// Its slots.
    pub(crate) slots: u64,
    /// Whether it is well now.
    pub(crate) well: bool,
    /// Its counters.
    pub(crate) stats: fakephone::PhoneStats,
    /// Mean of its busy slots over all samples.
    pub(crate) mean_busy: f64,
}

/// Everything observed in one play.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// By time.
    pub(crate) samples: Vec<Sample>,
    /// By time.
    pub(crate) events: Vec<Event>,
    /// By number; empty when phones can't be seen.
    pub(crate) phones: Vec<PhoneCounts>,
    /// What still ran when nobody waited for anything any more.
    pub(crate) left: Option<Left>,
}

/// What still runs when nobody waits for anything any more, as the gateway counts it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Left {
    /// Busy slots, all replicas together.
    pub(crate) busy_slots: f64,
    /// Queued requests.
    pub(crate) queued: f64,
}
