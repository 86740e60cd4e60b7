//! What the core is told of phones and requests, and its settings for a play.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use scheduler::{
    Carry, Class as Urgency, GroupId, ModelId, QueueConfig, Rates, RelayId, Release, ReplicaId, ReplicaSpec,
    RequestSpec, RetryConfig, RouteSet, SchedulerConfig, TenantId,
};

use super::{beliefs::Beliefs, player::CoreSetup};
use crate::{
    scenario::{Class, Scenario},
    workload::Workload,
};

/// The model of that number in the scenario.
pub(super) const fn model(number: u32) -> ModelId {
    ModelId(number + 1)
}

const ROUTE: u8 = 0;
/// A token is four bytes of text.
const BYTES_PER_TOKEN: u64 = 4;
/// Longer than any play waits for a phone.
const DAY: Duration = Duration::from_secs(86_400);

/// Nothing is refused: a refused request would make the figures of the others better.
pub(super) fn config(setup: &CoreSetup) -> SchedulerConfig {
    let usual = SchedulerConfig::default();
    SchedulerConfig {
        policy: setup.policy,
        queue: QueueConfig {
            max_requests: usize::MAX,
            max_per_slot: usize::MAX,
            max_bytes: u64::MAX,
            max_age: [None; 3],
            no_replica_wait: DAY,
            ..usual.queue
        },
        retry: RetryConfig { max_attempts: 1000, budget_share: 1.0, ..usual.retry },
        ..usual
    }
}

/// The phones, as the core is told of them. Each has a relay of its own: their failures have nothing to do with each other.
pub(super) fn replicas(
    scenario: &Scenario,
    workload: &Workload,
    beliefs: &Beliefs,
    setup: &CoreSetup,
) -> Vec<(ReplicaId, ReplicaSpec)> {
    let groups = u64::from(scenario.continuation.groups);
    let phones = workload.phones.iter().zip(priors(scenario, beliefs)).zip(0..);
    let told = phones.map(|((phone, told), number)| {
        let prior = setup.prior.map(|factor| Rates { prefill: factor * told.prefill, decode: factor * told.decode });
        let kind = scenario.phones.classes.get(phone.class).map_or(0, |kind| kind.model);
        let spec = ReplicaSpec {
            models: vec![model(kind)],
            routes: RouteSet(1 << ROUTE),
            slots: u16::try_from(phone.slots).unwrap_or(u16::MAX),
            context_tokens: None,
            relay: RelayId(number),
            prior,
            carries_on: setup.carries_on,
            group: setup.carries_on.then_some(GroupId(u64::from(number) % groups)),
            release: Release::AtOnce,
        };
        (ReplicaId(number), spec)
    });
    told.collect()
}

/// Who may carry on an answer whose phone went away.
pub(super) fn carry(scenario: &Scenario, setup: &CoreSetup) -> Carry {
    if setup.carries_on { scenario.continuation.by } else { Carry::Never }
}

/// The speeds of the phones, tokens per second, as a gateway is told them before it has measured any.
pub(super) fn priors(scenario: &Scenario, beliefs: &Beliefs) -> Vec<Rates> {
    let model = &scenario.model;
    let told = beliefs.speeds.iter().map(|(reads, writes)| Rates {
        prefill: reads * model.prefill_tokens_per_second,
        decode: writes * model.decode_tokens_per_second,
    });
    told.collect()
}

/// Says what a request asks.
#[derive(Debug)]
pub(super) struct Asks {
    workload: Arc<Workload>,
    /// By request.
    prompt_tokens: Vec<u32>,
    /// By class.
    kinds: Vec<(ModelId, Urgency)>,
    tenants: BTreeMap<(usize, usize), TenantId>,
    carry: Carry,
}

impl Asks {
    pub(super) fn new(scenario: &Scenario, workload: &Arc<Workload>, beliefs: &Beliefs, setup: &CoreSetup) -> Self {
        let keys = |(index, class): (usize, &Class)| (0..class.keys.len()).map(move |key| (index, key));
        let keys = scenario.classes.iter().enumerate().flat_map(keys);
        let believed = workload.requests.iter().zip(&beliefs.sizes).map(|(request, error)| {
            let tokens = f64::from(request.prompt.tokens()) * error * setup.size;
            (tokens.round() as u32).max(1)
        });
        Self {
            prompt_tokens: believed.collect(),
            kinds: scenario.classes.iter().map(|class| (model(class.model), class.urgency)).collect(),
            tenants: keys.zip((0..).map(TenantId)).collect(),
            workload: Arc::clone(workload),
            carry: carry(scenario, setup),
        }
    }

    /// A request, as the core is told of it. Answers are not streamed: what was lost with a phone and can't be carried on is
    /// asked again from the start.
    pub(super) fn ask(&self, number: usize) -> Option<RequestSpec> {
        let request = self.workload.requests.get(number)?;
        let (model, class) = *self.kinds.get(request.class)?;
        Some(RequestSpec {
            model,
            route: ROUTE,
            tenant: *self.tenants.get(&(request.class, request.key))?,
            class,
            deadline: None,
            prompt_tokens: *self.prompt_tokens.get(number)?,
            max_output: None,
            stream: false,
            carry: self.carry,
            body_bytes: u64::from(request.prompt.tokens()) * BYTES_PER_TOKEN,
            prefix: request.prompt.fingerprints(),
        })
    }
}
