//! All replicas, and what has to be known of them at once: per model who is free, how many serve, how large their
//! contexts are. Every change of a replica goes through [`Pool::modify`], which moves it in the indexes; nothing else
//! may, so an index can't be forgotten.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    config::{HealthConfig, Policy},
    effect::ReplicaState,
    event::{Limit, ReplicaSpec},
    id::{ModelId, RelayId, ReplicaId},
    model_pool::{Contexts, ModelPool},
    relay::{Miss, Relay, RelayVerdict},
    replica::{Facts, Replica, Standing},
    request::Request,
    rng::Rng,
    selection::{Candidate, rank},
    speed::{Speeds, overall},
    time::Timestamp,
};

/// The fastest speed must change by more than this before all of a model are ranked anew.
const RERANK: f64 = 1.1;

/// Whether a waiting request can hope for a replica that it has not tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// One serves.
    Now,
    /// One may come (back).
    Later,
    Never,
}

#[derive(Debug, Default)]
pub(crate) struct Pool {
    pub(crate) replicas: BTreeMap<ReplicaId, Replica>,
    pub(crate) models: BTreeMap<ModelId, ModelPool>,
    pub(crate) relays: BTreeMap<RelayId, Relay>,
    /// Replicas that may turn out to serve anything.
    pub(crate) unknown: usize,
    /// Models whose members changed their standing.
    pub(crate) dirty: BTreeSet<ModelId>,
    /// `unknown` changed: every waiting request's prospects may have.
    pub(crate) unknown_changed: bool,
    /// Replicas that got a free slot, or can do more than before.
    pub(crate) woken: BTreeSet<ReplicaId>,
}

impl Pool {
    /// Changes a replica, and whatever the pool knows of it.
    pub(crate) fn modify<R>(
        &mut self,
        id: ReplicaId,
        policy: Policy,
        rng: &mut Rng,
        change: impl FnOnce(&mut Replica) -> R,
    ) -> Option<R> {
        let result = change(self.replicas.get_mut(&id)?);
        self.reindex(id, policy, rng);
        Some(result)
    }

    pub(crate) fn add(&mut self, id: ReplicaId, replica: Replica, policy: Policy, rng: &mut Rng) {
        self.replicas.insert(id, replica);
        self.enter(id);
        self.reindex(id, policy, rng);
    }

    /// Replaces the description.
    pub(crate) fn describe(&mut self, id: ReplicaId, spec: ReplicaSpec, policy: Policy, rng: &mut Rng) {
        self.leave(id);
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.speeds.expect(spec.prior);
            replica.slots.resize(spec.slots);
            replica.lingering.described(&replica.spec, &spec);
            replica.spec = spec;
            replica.raise_ceiling();
        }
        self.enter(id);
        self.reindex(id, policy, rng);
    }

    pub(crate) fn remove(&mut self, id: ReplicaId) {
        self.leave(id);
        self.woken.remove(&id);
        self.replicas.remove(&id);
    }

    /// Ranks every replica anew: the policy changed.
    pub(crate) fn rank_all(&mut self, policy: Policy, rng: &mut Rng) {
        for id in self.replicas.keys().copied().collect::<Vec<_>>() {
            self.rerank(id, policy, rng);
        }
    }

    fn enter(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.ranks = vec![None; replica.spec.models.len()];
        replica.counted = replica.speeds.believed();
        replica.place_by_speed = place_by_speed(replica.counted);
        replica.free_indexed = 0;
        for model in &replica.spec.models {
            let pool = self.models.entry(*model).or_default();
            pool.members.insert(id);
            if let Some(speed) = replica.speeds.overall() {
                pool.speeds.insert((speed.to_bits(), id));
                pool.reference = pool.reference.or(Some(speed));
            }
            pool.recount((None, None), replica.counted);
            pool.order.insert((replica.place_by_speed, id));
        }
        self.relays.entry(replica.spec.relay).or_default().members.insert(id);
    }

    fn leave(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let facts = replica.indexed.take();
        for (model, rank) in replica.spec.models.iter().zip(&replica.ranks) {
            let Some(pool) = self.models.get_mut(model) else { continue };
            pool.members.remove(&id);
            if let Some(rank) = rank {
                pool.offers.remove(*rank, id);
            }
            if let Some(speed) = replica.speeds.overall() {
                pool.speeds.remove(&(speed.to_bits(), id));
            }
            pool.recount(replica.counted, (None, None));
            pool.order.remove(&(replica.place_by_speed, id));
            if let Some(facts) = facts {
                pool.count(&replica.spec, facts, false);
            }
            if pool.members.is_empty() {
                self.models.remove(model);
            }
            self.dirty.insert(*model);
        }
        if facts.is_some_and(|facts| facts.standing == Standing::Coming) && replica.spec.models.is_empty() {
            self.unknown -= 1;
            self.unknown_changed = true;
        }
        if let Some(relay) = self.relays.get_mut(&replica.spec.relay) {
            relay.active -= usize::from(facts.is_some_and(is_active));
            relay.forget(id);
            if relay.members.is_empty() {
                self.relays.remove(&replica.spec.relay);
            }
        }
    }

    fn reindex(&mut self, id: ReplicaId, policy: Policy, rng: &mut Rng) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let facts = replica.facts();
        let before = replica.indexed.replace(facts);
        if before != Some(facts) {
            for model in &replica.spec.models {
                let Some(pool) = self.models.get_mut(model) else { continue };
                if let Some(before) = before {
                    pool.count(&replica.spec, before, false);
                }
                pool.count(&replica.spec, facts, true);
                self.dirty.insert(*model);
            }
            if replica.spec.models.is_empty() {
                let coming = |facts: Facts| usize::from(facts.standing == Standing::Coming);
                self.unknown = self.unknown + coming(facts) - before.map_or(0, coming);
                self.unknown_changed = true;
            }
            if let Some(relay) = self.relays.get_mut(&replica.spec.relay) {
                relay.active =
                    relay.active + usize::from(is_active(facts)) - usize::from(before.is_some_and(is_active));
            }
        }
        if replica.free() > replica.free_indexed {
            self.woken.insert(id);
        }
        replica.free_indexed = replica.free();
        self.rerank(id, policy, rng);
    }

    fn rerank(&mut self, id: ReplicaId, policy: Policy, rng: &mut Rng) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let free = replica.free() > 0;
        let offer = replica.offer();
        let speed = replica.speeds.overall();
        let candidate = Candidate {
            last_resort: replica.health.state == ReplicaState::Suspect || replica.limit != Limit::None,
            running: replica.taken(),
            usable: replica.usable(),
            relative_speed: None,
            idle_since: replica.idle_since,
            last_dispatch: replica.last_dispatch,
        };
        for (model, place) in replica.spec.models.iter().zip(&mut replica.ranks) {
            let Some(pool) = self.models.get_mut(model) else { continue };
            if let Some(old) = place.take() {
                pool.offers.remove(old, id);
            }
            if free {
                let relative_speed = speed.zip(pool.reference).map(|(speed, reference)| speed / reference);
                let rank = rank(policy, &Candidate { relative_speed, ..candidate }, rng.next());
                pool.offers.insert(rank, id, offer);
                *place = Some(rank);
            }
        }
    }

    /// Measures a replica's speed, and ranks its models anew when the fastest is another or has changed.
    pub(crate) fn measure(&mut self, id: ReplicaId, policy: Policy, rng: &mut Rng, change: impl FnOnce(&mut Speeds)) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let before = replica.speeds.overall();
        change(&mut replica.speeds);
        let Some(after) = replica.speeds.overall() else { return };
        let (counted, place) = (replica.counted, replica.place_by_speed);
        replica.counted = replica.speeds.believed();
        replica.place_by_speed = place_by_speed(replica.counted);
        let mut rerank = BTreeSet::new();
        for model in &replica.spec.models {
            let Some(pool) = self.models.get_mut(model) else { continue };
            pool.recount(counted, replica.counted);
            pool.order.remove(&(place, id));
            pool.order.insert((replica.place_by_speed, id));
            if let Some(before) = before {
                pool.speeds.remove(&(before.to_bits(), id));
            }
            pool.speeds.insert((after.to_bits(), id));
            let fastest = pool.speeds.last().map_or(after, |(bits, _)| f64::from_bits(*bits));
            let moved = pool.reference.is_none_or(|old| fastest > old * RERANK || fastest < old / RERANK);
            if moved {
                pool.reference = Some(fastest);
                rerank.extend(pool.members.iter().copied());
            }
        }
        for id in rerank {
            self.rerank(id, policy, rng);
        }
    }

    pub(crate) fn has_room(&self, id: ReplicaId) -> bool {
        self.replicas.get(&id).is_some_and(|replica| replica.free() > 0)
    }

    /// Whether the pool of each of its models can spare a replica for soft failures: another one serves, and not too
    /// many are out for that already.
    pub(crate) fn can_spare(&self, id: ReplicaId, config: &HealthConfig) -> bool {
        let Some(replica) = self.replicas.get(&id) else { return false };
        let serving = replica.standing() == Standing::Serving;
        replica.spec.models.iter().filter_map(|model| self.models.get(model)).all(|pool| {
            let others = pool.serving - usize::from(serving);
            let most = (config.max_soft_ejected * (pool.serving + pool.out) as f64) as usize;
            others > 0 && pool.soft_out < most.max(1)
        })
    }

    /// The replicas of a model whose soft marks are to be ignored, because too few serve beside them.
    pub(crate) fn to_lift(&self, model: ModelId, config: &HealthConfig) -> Vec<ReplicaId> {
        let Some(pool) = self.models.get(&model) else { return Vec::new() };
        let short = (pool.serving as f64) < config.panic_share * (pool.serving + pool.soft_out) as f64;
        if pool.soft_out == 0 || !short {
            return Vec::new();
        }
        let soft_out = |id: &ReplicaId| self.replicas.get(id).is_some_and(|replica| replica.facts().soft_out);
        pool.members.iter().copied().filter(soft_out).collect()
    }

    pub(crate) fn prospect(&self, request: &Request) -> Prospect {
        let later = if self.unknown > 0 { Prospect::Later } else { Prospect::Never };
        let Some(pool) = self.models.get(&request.spec.model) else { return later };
        if self.untried(request, pool, &pool.serving_contexts, |facts| facts.standing == Standing::Serving) {
            Prospect::Now
        } else if self.untried(request, pool, &pool.coming_contexts, |facts| facts.standing == Standing::Coming) {
            Prospect::Later
        } else {
            later
        }
    }

    /// Whether a replica that is beyond doubt serves the request, now or when a slot frees.
    pub(crate) fn has_sound(&self, request: &Request) -> bool {
        let pool = self.models.get(&request.spec.model);
        pool.is_some_and(|pool| self.untried(request, pool, &pool.sound_contexts, |facts| facts.sound))
    }

    /// Whether some replica of a kind fits the request and was not tried; `contexts` are those of the kind.
    fn untried(&self, request: &Request, pool: &ModelPool, contexts: &Contexts, kind: impl Fn(Facts) -> bool) -> bool {
        let route = request.spec.route;
        let threshold = pool.threshold(route, request.need);
        let fits = |replica: &&Replica| {
            replica.indexed.is_some_and(&kind)
                && replica.spec.routes.contains(route)
                && replica.context() >= threshold
                && replica.spec.models.contains(&request.spec.model)
        };
        if request.is_shown() {
            // Few are, so nothing is counted ahead for them.
            let members = pool.members.iter().filter(|id| !request.has_tried(**id));
            let open = |replica: &&Replica| request.onward(&replica.spec).is_open();
            return members.filter_map(|id| self.replicas.get(id)).filter(fits).any(|replica| open(&replica));
        }
        let tried = request.tried.iter().filter_map(|tried| self.replicas.get(&tried.replica)).filter(fits).count();
        contexts.at_least(route, threshold) > tried
    }

    /// Even half the estimate is more than any replica of the model holds.
    pub(crate) fn surely_too_long(&self, model: ModelId, prompt_tokens: u32) -> bool {
        let Some(pool) = self.models.get(&model) else { return false };
        pool.members.iter().filter_map(|id| self.replicas.get(id)).all(|r| prompt_tokens / 2 > r.context())
    }

    /// There was no way to a replica: what that says of its relay.
    pub(crate) fn missed(
        &mut self,
        id: ReplicaId,
        miss: Miss,
        config: &HealthConfig,
        now: Timestamp,
    ) -> Option<(RelayId, RelayVerdict)> {
        let relay = self.replicas.get(&id)?.spec.relay;
        let active = |id| self.replicas.get(&id).and_then(|r: &Replica| r.indexed).is_some_and(is_active);
        Some((relay, self.relays.get_mut(&relay)?.failed(id, miss, active, config, now)))
    }

    /// Whether what stands in front of a replica is held to be down.
    pub(crate) fn is_relay_down(&self, id: ReplicaId) -> bool {
        let relay = self.replicas.get(&id).and_then(|replica| self.relays.get(&replica.spec.relay));
        relay.is_some_and(Relay::is_down)
    }

    /// A replica was reached. All members of its relay, if that was held to be down until now.
    pub(crate) fn reached(&mut self, id: ReplicaId) -> Vec<ReplicaId> {
        let Some(replica) = self.replicas.get(&id) else { return Vec::new() };
        let Some(relay) = self.relays.get_mut(&replica.spec.relay) else { return Vec::new() };
        if relay.reached(id) { relay.members.iter().copied().collect() } else { Vec::new() }
    }
}

fn place_by_speed(believed: (Option<f64>, Option<f64>)) -> u64 {
    overall(believed.0, believed.1).unwrap_or(0.0).to_bits()
}

/// Takes work, so it can fail like the others of its relay.
fn is_active(facts: Facts) -> bool {
    facts.standing == Standing::Serving
}
