//! Fairness between tenants: start-time fair queueing.
//!
//! A request's *tag* is the virtual time at which its work would start if every tenant that waits were served in
//! proportion to its weight; requests of a class are taken in the order of their tags. A tenant with ten thousand waiting
//! requests has tags far in the future, so another's single request comes next; who waits for nothing saves nothing up.
//! Work is measured in seconds of a typical replica: that a request was sent to a slow phone is not its tenant's doing.
//! Deficit round robin was rejected: it needs a list of tenants per class and serves bursts.

use std::collections::BTreeMap;

use crate::{event::Class, id::TenantId};

/// Tags of one model.
#[derive(Debug, Default)]
pub(crate) struct Fair {
    /// Largest tag that was served, by class.
    virtual_time: [f64; Class::ALL.len()],
    /// Where the next request of a tenant starts; only of those that are ahead of the virtual time.
    next: BTreeMap<(Class, TenantId), f64>,
}

/// Tenants remembered before those that have caught up are swept out.
const SWEEP: usize = 1024;

impl Fair {
    /// The tag of a new request of that much work.
    pub(crate) fn tag(&mut self, class: Class, tenant: TenantId, work: f64, weight: f64) -> f64 {
        let floor = self.virtual_time.get(class as usize).copied().unwrap_or(0.0);
        if self.next.len() >= SWEEP {
            let virtual_time = self.virtual_time;
            self.next.retain(|(class, _), next| virtual_time.get(*class as usize).is_some_and(|time| *next > *time));
        }
        let next = self.next.entry((class, tenant)).or_insert(floor);
        let start = next.max(floor);
        *next = start + work.max(0.0) / weight.max(1e-6);
        start
    }

    /// A request was served: the virtual time moves on.
    pub(crate) fn served(&mut self, class: Class, tag: f64) {
        if let Some(time) = self.virtual_time.get_mut(class as usize) {
            *time = time.max(tag);
        }
    }

    /// A request turned out to be more work than its tag said (or less, if negative): its tenant's next ones start later.
    pub(crate) fn correct(&mut self, class: Class, tenant: TenantId, more: f64, weight: f64) {
        let floor = self.virtual_time.get(class as usize).copied().unwrap_or(0.0);
        if let Some(next) = self.next.get_mut(&(class, tenant)) {
            *next = (*next + more / weight.max(1e-6)).max(floor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: Class = Class::Standard;

    /// Serves the smallest tag again and again; returns how much work each of two tenants got.
    fn serve(weights: [f64; 2], works: [f64; 2], rounds: usize) -> [f64; 2] {
        let mut fair = Fair::default();
        let mut waiting: [f64; 2] =
            [0, 1].map(|t| fair.tag(CLASS, TenantId(t), works[t as usize], weights[t as usize]));
        let mut got = [0.0; 2];
        for _ in 0..rounds {
            let tenant = usize::from(waiting[1] < waiting[0]);
            fair.served(CLASS, waiting[tenant]);
            got[tenant] += works[tenant];
            waiting[tenant] = fair.tag(CLASS, TenantId(tenant as u32), works[tenant], weights[tenant]);
        }
        got
    }

    #[test]
    fn tenants_that_both_wait_get_work_in_proportion_to_their_weights() {
        let got = serve([1.0, 1.0], [1.0, 10.0], 1000);
        assert!((got[0] / got[1] - 1.0).abs() < 0.05, "{got:?}");
        let got = serve([3.0, 1.0], [2.0, 2.0], 1000);
        assert!((got[0] / got[1] - 3.0).abs() < 0.1, "{got:?}");
    }

    #[test]
    fn a_single_request_goes_before_another_tenants_flood() {
        let mut fair = Fair::default();
        let flood: Vec<f64> = (0..10_000).map(|_| fair.tag(CLASS, TenantId(1), 5.0, 1.0)).collect();
        fair.served(CLASS, flood[0]);
        assert!(fair.tag(CLASS, TenantId(2), 5.0, 1.0) < flood[1]);
    }

    #[test]
    fn who_asked_for_nothing_saved_nothing_up() {
        let mut fair = Fair::default();
        for _ in 0..100 {
            let tag = fair.tag(CLASS, TenantId(1), 1.0, 1.0);
            fair.served(CLASS, tag);
        }
        let late: Vec<f64> = (0..3).map(|_| fair.tag(CLASS, TenantId(2), 1.0, 1.0)).collect();
        assert!(late[0] >= 99.0 && late[2] >= 101.0, "{late:?}");
    }

    #[test]
    fn work_that_was_more_than_it_said_is_charged() {
        let mut fair = Fair::default();
        fair.tag(CLASS, TenantId(1), 1.0, 1.0);
        fair.correct(CLASS, TenantId(1), 9.0, 1.0);
        assert!((fair.tag(CLASS, TenantId(1), 1.0, 1.0) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn tenants_that_caught_up_are_forgotten() {
        let mut fair = Fair::default();
        for tenant in 0..10 * SWEEP as u32 {
            let tag = fair.tag(CLASS, TenantId(tenant), 1.0, 1.0);
            fair.served(CLASS, tag + 1.0);
        }
        assert!(fair.next.len() <= SWEEP);
    }
}
