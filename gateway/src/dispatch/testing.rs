//! Requests whose core says what a test wants.

use std::sync::Arc;

use scheduler::{
    AttemptId, CancelReason, Carry, Class, Effect, ModelId, Prefix, ReplicaId, RequestSpec, SchedulerConfig, TenantId,
};

use super::{Dispatcher, Place};

/// A request for a model that nobody serves: the core leaves it waiting, and the test speaks in its stead.
pub(crate) struct Script {
    dispatcher: Arc<Dispatcher>,
    place: Place,
}

impl Script {
    pub(crate) fn new() -> Self {
        let dispatcher = Arc::new(Dispatcher::new(SchedulerConfig::default(), 1, None));
        let place = dispatcher.submit(request());
        Self { dispatcher, place }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn say(&self, effect: Effect) {
        self.dispatcher.say(effect);
    }

    pub(crate) fn cancel(&self, attempt: AttemptId, why: CancelReason) {
        self.say(Effect::Cancel { attempt, request: self.place.request(), why });
    }

    /// Whether the core still knows the request.
    pub(crate) fn is_live(&self) -> bool {
        self.dispatcher.requests().iter().any(|view| view.request == self.place.request())
    }
}

/// A slot on a replica of the same number.
pub(crate) fn dispatched(place: &Place, attempt: u64, hedge: bool) -> Effect {
    Effect::Dispatch {
        request: place.request(),
        attempt: AttemptId(attempt),
        replica: ReplicaId(u32::try_from(attempt).expect("a small number")),
        number: 1,
        hedge,
        carries_on: false,
    }
}

/// A request for model 1 without any wishes.
pub(crate) fn request() -> RequestSpec {
    RequestSpec {
        model: ModelId(1),
        route: 0,
        tenant: TenantId(1),
        class: Class::Standard,
        deadline: None,
        prompt_tokens: 10,
        max_output: None,
        stream: true,
        carry: Carry::Never,
        body_bytes: 100,
        prefix: Prefix::default(),
    }
}
