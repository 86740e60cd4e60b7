//! The replicas of one model, counted: who serves, on how many slots, with how large contexts. Kept up to date by
//! [`Pool`](crate::pool::Pool), so that a decision reads counts instead of replicas.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    event::ReplicaSpec,
    id::ReplicaId,
    learning::Typical,
    replica::{Facts, Standing},
    request::Need,
    selection::Offers,
    speed::LogMean,
};

/// The replicas of one model.
#[derive(Debug, Default)]
pub(crate) struct ModelPool {
    pub(crate) members: BTreeSet<ReplicaId>,
    pub(crate) offers: Offers,
    pub(crate) serving_contexts: Contexts,
    pub(crate) sound_contexts: Contexts,
    pub(crate) coming_contexts: Contexts,
    pub(crate) serving: usize,
    pub(crate) out: usize,
    pub(crate) soft_out: usize,
    pub(crate) serving_slots: usize,
    coming_slots: usize,
    /// Measured speeds as bits: positive floats order like their bits.
    pub(crate) speeds: BTreeSet<(u64, ReplicaId)>,
    /// All members by believed speed, the same way; 0 where nothing is believed.
    pub(crate) order: BTreeSet<(u64, ReplicaId)>,
    /// Believed rates of the members.
    pub(crate) typical_prefill: Typical,
    pub(crate) typical_decode: Typical,
    prefill_sum: f64,
    prefill_squares: f64,
    /// The speed that others are compared with.
    pub(crate) reference: Option<f64>,
    /// Seconds from dispatch to a whole answer.
    pub(crate) service: LogMean,
}

/// Context sizes per route, sorted.
#[derive(Debug, Default)]
pub(crate) struct Contexts(BTreeMap<u8, Vec<u32>>);

impl Contexts {
    fn change(&mut self, spec: &ReplicaSpec, add: bool) {
        let context = spec.context_tokens.unwrap_or(u32::MAX);
        for route in (0..16).filter(|route| spec.routes.contains(*route)) {
            let sizes = self.0.entry(route).or_default();
            let at = sizes.partition_point(|size| *size < context);
            if add {
                sizes.insert(at, context);
            } else {
                sizes.remove(at);
            }
        }
    }

    fn largest(&self, route: u8) -> Option<u32> {
        self.0.get(&route)?.last().copied()
    }

    pub(crate) fn at_least(&self, route: u8, context: u32) -> usize {
        self.0.get(&route).map_or(0, |sizes| sizes.len() - sizes.partition_point(|size| *size < context))
    }
}

impl ModelPool {
    /// The largest context of the route among replicas that serve or may come.
    pub(crate) fn largest_context(&self, route: u8) -> Option<u32> {
        self.serving_contexts.largest(route).max(self.coming_contexts.largest(route))
    }

    /// The largest context of every route, as above.
    pub(crate) fn largest_contexts(&self) -> [Option<u32>; 16] {
        std::array::from_fn(|route| self.largest_context(route as u8))
    }

    /// The context a replica must have to be asked. What no replica seems to hold goes to the largest: the estimate may be
    /// off, and the replica's own tokenizer answers at once.
    pub(crate) fn threshold(&self, route: u8, need: Need) -> u32 {
        if need.measured {
            return need.tokens;
        }
        self.largest_context(route).map_or(need.tokens, |largest| need.tokens.min(largest))
    }

    /// The believed rates of a member are others now.
    pub(crate) fn recount(&mut self, before: (Option<f64>, Option<f64>), after: (Option<f64>, Option<f64>)) {
        self.typical_prefill.set(before.0, after.0);
        self.typical_decode.set(before.1, after.1);
        let (old, new) = (before.0.unwrap_or(0.0), after.0.unwrap_or(0.0));
        // Sums of floats drift by less than these can matter.
        self.prefill_sum = (self.prefill_sum + new - old).max(0.0);
        self.prefill_squares = (self.prefill_squares + new * new - old * old).max(0.0);
    }

    /// All members, the fastest first.
    pub(crate) fn by_speed(&self) -> impl Iterator<Item = ReplicaId> {
        self.order.iter().rev().map(|(_, id)| *id)
    }

    /// Prompt tokens per second of the replica that an average token is read by.
    pub(crate) fn weighted_rate(&self) -> f64 {
        if self.prefill_sum > 0.0 { self.prefill_squares / self.prefill_sum } else { 0.0 }
    }

    /// Slots of all that serve or may come.
    pub(crate) fn slots(&self) -> usize {
        self.serving_slots + self.coming_slots
    }

    /// How many serve a kind of request now.
    pub(crate) fn serving_fit(&self, route: u8, need: Need) -> usize {
        self.serving_contexts.at_least(route, self.threshold(route, need))
    }

    pub(crate) fn count(&mut self, spec: &ReplicaSpec, facts: Facts, add: bool) {
        let change = |counter: &mut usize, by: usize| if add { *counter += by } else { *counter -= by };
        change(&mut self.out, usize::from(facts.out));
        change(&mut self.soft_out, usize::from(facts.soft_out));
        if facts.sound {
            self.sound_contexts.change(spec, add);
        }
        match facts.standing {
            Standing::Serving => {
                change(&mut self.serving, 1);
                change(&mut self.serving_slots, usize::from(facts.slots));
                self.serving_contexts.change(spec, add);
            }
            Standing::Coming => {
                change(&mut self.coming_slots, usize::from(facts.slots));
                self.coming_contexts.change(spec, add);
            }
            Standing::Gone => {}
        }
    }
}
