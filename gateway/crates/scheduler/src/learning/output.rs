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

/// Tokens of an answer before anything is known: a chat turn.
pub(crate) const USUAL_ANSWER: f64 = 256.0;
/// Answers that what a mean is held to is worth: half a one, as tenants differ far more than the answers of one do.
const PRIOR_WORTH: f64 = 0.5;
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
    classes: PerClass,
    tenants: BTreeMap<TenantId, Tenant>,
    /// Tenants by when they were heard of last.
    heard: BTreeMap<u64, TenantId>,
    /// Answers so far.
    answers: u64,
}

#[derive(Clone, Debug, Default)]
struct Tenant {
    heard: u64,
    classes: PerClass,
}

type PerClass = [Mean; Class::ALL.len()];

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

fn of(means: &PerClass, class: Class) -> Mean {
    means.get(class as usize).copied().unwrap_or_default()
}

impl Outputs {
    /// Expected tokens of an answer, never above the request's limit.
    pub(crate) fn expect(&self, tenant: TenantId, class: Class, limit: Option<u32>) -> f64 {
        let of_class = of(&self.classes, class).held_to(self.all.held_to(USUAL_ANSWER));
        let known = self.tenants.get(&tenant);
        let expected = known.map_or(of_class, |known| of(&known.classes, class).held_to(of_class));
        limit.map_or(expected, |limit| expected.min(f64::from(limit)))
    }

    /// A whole answer had this many tokens.
    pub(crate) fn observe(&mut self, tenant: TenantId, class: Class, tokens: f64) {
        if !(tokens.is_finite() && tokens >= 0.0) {
            return;
        }
        let expected = self.expect(tenant, class, None);
        let tokens = tokens.min(CLIP * expected + STEP).min(LONGEST);
        self.all.add(tokens);
        let add = |means: &mut PerClass| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const REVIEWER: TenantId = TenantId(1);
    const CHAT: TenantId = TenantId(2);
    const NEW: TenantId = TenantId(3);

    fn fed(answers: usize) -> Outputs {
        let (mut rng, mut outputs) = (Rng::new(1), Outputs::default());
        for _ in 0..answers {
            outputs.observe(REVIEWER, Class::Standard, 15.0 + 25.0 * rng.unit());
            outputs.observe(CHAT, Class::Interactive, 200.0 + 400.0 * rng.unit());
        }
        outputs
    }

    #[test]
    fn starts_at_the_prior_and_never_exceeds_the_limit() {
        let outputs = Outputs::default();
        assert_eq!(outputs.expect(NEW, Class::Batch, None), USUAL_ANSWER);
        assert_eq!(outputs.expect(NEW, Class::Batch, Some(16)), 16.0);
        assert_eq!(outputs.expect(NEW, Class::Batch, Some(0)), 0.0);
    }

    #[test]
    fn a_tenants_own_answers_are_soon_what_is_expected_of_it() {
        let outputs = fed(8);
        let (short, long) =
            (outputs.expect(REVIEWER, Class::Standard, None), outputs.expect(CHAT, Class::Interactive, None));
        assert!((20.0..45.0).contains(&short), "{short}");
        assert!((320.0..480.0).contains(&long), "{long}");
    }

    #[test]
    fn a_new_tenant_starts_at_its_class_and_a_new_class_at_the_model() {
        let outputs = fed(100);
        assert!(outputs.expect(NEW, Class::Standard, None) < 60.0);
        let unseen = outputs.expect(NEW, Class::Batch, None);
        assert!((100.0..400.0).contains(&unseen), "{unseen}");
    }

    #[test]
    fn one_runaway_answer_is_not_a_habit_but_longer_answers_are_followed() {
        let mut outputs = fed(100);
        let before = outputs.expect(REVIEWER, Class::Standard, None);
        outputs.observe(REVIEWER, Class::Standard, 4e9);
        let after = outputs.expect(REVIEWER, Class::Standard, None);
        assert!(after < before + 8.0, "{before} {after}");
        for _ in 0..200 {
            outputs.observe(REVIEWER, Class::Standard, 900.0);
        }
        let habit = outputs.expect(REVIEWER, Class::Standard, None);
        assert!((700.0..=900.0).contains(&habit), "{habit}");
    }

    #[test]
    fn the_stalest_tenants_are_forgotten_and_the_heard_of_are_not() {
        let mut outputs = Outputs::default();
        for tenant in 0..20_000 {
            outputs.observe(TenantId(tenant), Class::Standard, 1000.0);
            outputs.observe(REVIEWER, Class::Standard, 10.0);
            assert!(outputs.tenants.len() <= MOST_TENANTS);
            assert_eq!(outputs.heard.len(), outputs.tenants.len());
        }
        assert!(outputs.expect(REVIEWER, Class::Standard, None) < 100.0);
        assert!(!outputs.tenants.contains_key(&TenantId(2)));
        assert!(outputs.tenants.contains_key(&TenantId(19_999)));
    }

    #[test]
    fn whatever_is_counted_expectations_stay_usable() {
        let mut outputs = Outputs::default();
        for tokens in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1e300] {
            for _ in 0..500 {
                outputs.observe(REVIEWER, Class::Standard, tokens);
            }
            let expected = outputs.expect(REVIEWER, Class::Standard, None);
            assert!((0.0..=LONGEST).contains(&expected), "{tokens}: {expected}");
        }
    }
}
