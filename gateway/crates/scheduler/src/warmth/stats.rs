//! What is known of one template, beside who holds it: how often it comes, for whom, and what follows.

use crate::{learning::Decayed, time::Timestamp};

/// How far back traffic looks, in seconds: long enough for a mean, short enough for the hour of the day.
pub(super) const LOOK_BACK: f64 = 600.0;
/// What one arrival counts in a mean over arrivals, once there are some.
const SHARE: f64 = 0.05;

#[derive(Clone, Debug)]
pub(crate) struct TemplateStats {
    /// Work of the requests with this template that wait now, in the unit in which [`Self::add`] is told of it.
    pub(crate) queued_work: f64,
    work: Decayed,
    weight: f64,
    weighed: u32,
    tokens: Decayed,
    returns: f64,
    arrived: u32,
}

impl Default for TemplateStats {
    fn default() -> Self {
        let sum = || Decayed::new(LOOK_BACK);
        Self { queued_work: 0.0, work: sum(), weight: 1.0, weighed: 0, tokens: sum(), returns: 0.0, arrived: 0 }
    }
}

impl TemplateStats {
    /// A request with this template came, of that much work and urgency.
    pub(crate) fn add(&mut self, work: f64, weight: f64, now: Timestamp) {
        self.work.add(work, now);
        mean(&mut self.weight, weight, &mut self.weighed);
    }

    /// Work that comes per second, of requests with this template, given the seconds since any could.
    pub(crate) fn rate(&self, now: Timestamp, since_start: f64) -> f64 {
        self.work.rate(now, since_start)
    }

    /// How urgent its requests are on average; 1 until one was [added](Self::add).
    pub(crate) fn weight(&self) -> f64 {
        self.weight
    }

    /// Share of its requests that are later turns of a conversation, 0 to 1. As likely is it that a prompt with this
    /// template comes back, longer.
    pub(crate) fn return_share(&self) -> f64 {
        self.returns
    }

    pub(super) fn arrive(&mut self, tokens: f64, returns: bool, now: Timestamp) {
        self.tokens.add(tokens, now);
        mean(&mut self.returns, if returns { 1.0 } else { 0.0 }, &mut self.arrived);
    }

    /// Its tokens times its recent arrivals.
    pub(super) fn tokens(&self, now: Timestamp) -> f64 {
        self.tokens.sum(now)
    }
}

/// The plain mean of the first samples, then one that forgets.
fn mean(mean: &mut f64, sample: f64, samples: &mut u32) {
    *samples = samples.saturating_add(1);
    *mean += (sample - *mean) * SHARE.max(1.0 / f64::from(*samples));
}
