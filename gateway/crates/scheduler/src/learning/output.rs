//! How long the answer to a request will be, before it is written. One of these per model.
//!
//! Answers of one tenant and class resemble each other (a reviewer writes a line, a chat writes a page), and one tenant's
//! say little of another's. So each tenant has a mean per class, held to what all tenants of the class get, that to
//! what all get from the model, and that to a prior: a new tenant starts at its class, and a few answers are enough to
//! leave it. The limit of a request bounds the expectation and does not enter the mean.
//!
//! Tenants are remembered up to a number; the one that was not heard of for longest is forgotten.

use std::collections::BTreeMap;

use crate::{event::Class, id::TenantId};

/// Before anything is known.
const PRIOR: f64 = 256.0;
/// Answers that what is held to is worth.
const PRIOR_WORTH: f64 = 2.0;
/// Weight of an answer once there are many.
const WEIGHT: f64 = 0.03;
/// An answer counts as at most this many times the expectation, and a step: one runaway answer is not a habit.
const CLIP: f64 = 4.0;
const STEP: f64 = 64.0;
/// Longer than any answer.
const LONGEST: f64 = 1e6;
const MOST_TENANTS: usize = 4096;

/// Expected answer tokens per tenant and class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outputs {
    all: Mean,
    classes: [Mean; Class::ALL.len()],
    tenants: BTreeMap<TenantId, Tenant>,
    /// Tenants by when they were heard of last.
    heard: BTreeMap<u64, TenantId>,
    /// Answers so far.
    answers: u64,
}

#[derive(Clone, Debug, Default)]
struct Tenant {
    heard: u64,
    classes: [Mean; Class::ALL.len()],
}

/// A mean that forgets, and how many samples are behind it.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: f64,
    samples: f64,
}

impl Mean {
    /// The mean, held to what is expected without it.
    fn held_to(self, prior: f64) -> f64 {
        (self.value * self.samples + prior * PRIOR_WORTH) / (self.samples + PRIOR_WORTH)
    }

    fn add(&mut self, sample: f64) {
        self.samples = (self.samples + 1.0).min(1.0 / WEIGHT);
        self.value += (sample - self.value) / self.samples;
    }
}

impl Outputs {
    /// Expected tokens of an answer, never above the request's limit.
    pub(crate) fn expect(&self, tenant: TenantId, class: Class, limit: Option<u32>) -> f64 {
        let known = self.tenants.get(&tenant).map(|tenant| tenant.classes);
        let expected = self.expect_of(known.as_ref(), class);
        limit.map_or(expected, |limit| expected.min(f64::from(limit)))
    }

    fn expect_of(&self, tenant: Option<&[Mean; Class::ALL.len()]>, class: Class) -> f64 {
        let mean = |means: &[Mean]| means.get(class as usize).copied().unwrap_or_default();
        let of_class = mean(&self.classes).held_to(self.all.held_to(PRIOR));
        tenant.map_or(of_class, |tenant| mean(tenant).held_to(of_class))
    }

    /// A whole answer had this many tokens.
    pub(crate) fn observe(&mut self, tenant: TenantId, class: Class, tokens: f64) {
        if !(tokens.is_finite() && tokens >= 0.0) {
            return;
        }
        let expected = self.expect(tenant, class, None);
        let tokens = tokens.min(CLIP * expected + STEP).min(LONGEST);
        self.all.add(tokens);
        let add = |means: &mut [Mean]| {
            if let Some(mean) = means.get_mut(class as usize) {
                mean.add(tokens);
            }
        };
        add(&mut self.classes);
        add(&mut self.hear_of(tenant).classes);
        self.forget();
    }

    fn hear_of(&mut self, tenant: TenantId) -> &mut Tenant {
        self.answers += 1;
        let known = self.tenants.entry(tenant).or_default();
        self.heard.remove(&known.heard);
        self.heard.insert(self.answers, tenant);
        known.heard = self.answers;
        known
    }

    fn forget(&mut self) {
        if self.tenants.len() <= MOST_TENANTS {
            return;
        }
        if let Some((_, stalest)) = self.heard.pop_first() {
            self.tenants.remove(&stalest);
        }
    }
}
