//! The mutex, the mailboxes, the timer.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use scheduler::{
    ChangeReason, Class, Effect, Event, Explanation, ModelId, ReplicaId, ReplicaState, ReplicaView, RequestId,
    RequestSpec, RequestView, Scheduler, SchedulerConfig, Snapshot, Timestamp,
};
use tokio::sync::Notify;

use super::place::{Mailbox, Message, Place};
use crate::{clock, shutdown::Stop};

/// What concerns the pool rather than one request; performed by `fleet`.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetEffect {
    /// A replica changed its state.
    Changed {
        /// Which.
        replica: ReplicaId,
        /// Before.
        from: ReplicaState,
        /// Now.
        to: ReplicaState,
        /// Why.
        why: ChangeReason,
    },
    /// Probe it now.
    Probe(ReplicaId),
    /// A draining replica is empty.
    Drained(ReplicaId),
}

/// Holds the scheduler. Shared by all requests and by `fleet`.
pub struct Dispatcher {
    core: Mutex<Core>,
    fleet: Notify,
    timer: Notify,
}

struct Core {
    scheduler: Scheduler,
    waiting: HashMap<RequestId, Arc<Mailbox>>,
    fleet_effects: VecDeque<FleetEffect>,
    next_request: u64,
    /// What the timer task sleeps towards; it is woken only when something earlier comes up.
    armed: Timestamp,
}

impl Dispatcher {
    /// A dispatcher with an empty pool. `seed` drives every random choice of the core.
    pub fn new(config: SchedulerConfig, seed: u64) -> Self {
        Self {
            core: Mutex::new(Core {
                scheduler: Scheduler::new(config, seed),
                waiting: HashMap::new(),
                fleet_effects: VecDeque::new(),
                next_request: 1,
                armed: Timestamp::NEVER,
            }),
            fleet: Notify::new(),
            timer: Notify::new(),
        }
    }

    /// Queues a request. Dropping the place abandons it, in whatever phase it is.
    pub fn submit(self: &Arc<Self>, spec: RequestSpec) -> Place {
        let mailbox = Arc::new(Mailbox::default());
        let request = self.with(|core, now| {
            let request = RequestId(core.next_request);
            core.next_request += 1;
            core.waiting.insert(request, Arc::clone(&mailbox));
            core.scheduler.handle(Event::RequestArrived { request, spec }, now);
            request
        });
        Place::new(Arc::clone(self), request, mailbox)
    }

    /// Tells the core that something happened.
    pub fn handle(&self, event: Event) {
        self.with(|core, now| core.scheduler.handle(event, now));
    }

    /// The request is over for the driver; forgets its mailbox.
    pub(super) fn abandon(&self, request: RequestId) {
        self.with(|core, now| {
            core.waiting.remove(&request);
            core.scheduler.handle(Event::RequestAbandoned { request }, now);
        });
    }

    /// The state of everything.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().scheduler.snapshot(clock::now())
    }

    /// The state of one replica.
    pub fn replica(&self, replica: ReplicaId) -> Option<ReplicaView> {
        self.lock().scheduler.replica(replica, clock::now())
    }

    /// Prompt tokens per second that a replica was measured to read, and answer tokens to write.
    pub fn speeds(&self, replica: ReplicaId) -> (Option<f64>, Option<f64>) {
        self.replica(replica).map_or((None, None), |view| (view.prefill_rate, view.decode_rate))
    }

    /// Why a live request is where it is.
    pub fn explain(&self, request: RequestId) -> Option<Explanation> {
        self.lock().scheduler.explain(request, clock::now())
    }

    /// How long a waiting request will still wait; `None` once it runs.
    pub fn remaining_wait(&self, request: RequestId) -> Option<Duration> {
        self.lock().scheduler.remaining_wait(request, clock::now())
    }

    /// How long a request that arrived now would wait for a slot.
    pub fn estimate_wait(&self, model: ModelId, class: Class) -> Duration {
        self.lock().scheduler.estimate_wait(model, class, clock::now())
    }

    /// All live requests.
    pub fn requests(&self) -> Vec<RequestView> {
        self.lock().scheduler.requests(clock::now())
    }

    /// Waits until there is something for `fleet` to do, and takes all of it.
    pub async fn fleet_effects(&self) -> Vec<FleetEffect> {
        loop {
            let woken = self.fleet.notified();
            let effects: Vec<_> = self.lock().fleet_effects.drain(..).collect();
            if !effects.is_empty() {
                return effects;
            }
            woken.await;
        }
    }

    /// Fires the core's deadlines until `stop`.
    pub async fn run_timer(&self, mut stop: Stop) {
        loop {
            let woken = self.timer.notified();
            let deadline = {
                let mut core = self.lock();
                core.armed = core.scheduler.next_deadline().unwrap_or(Timestamp::NEVER);
                core.armed
            };
            tokio::select! {
                () = stop.wait() => return,
                () = woken => {}
                () = tokio::time::sleep_until(clock::instant(deadline)) => self.with(|core, now| core.scheduler.advance(now)),
            }
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Core, Timestamp) -> R) -> R {
        let (result, rearm, fleet) = {
            let mut core = self.lock();
            let result = act(&mut core, clock::now());
            let fleet = core.perform();
            let next = core.scheduler.next_deadline().unwrap_or(Timestamp::NEVER);
            (result, next < core.armed, fleet)
        };
        if rearm {
            self.timer.notify_one();
        }
        if fleet {
            self.fleet.notify_one();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic in the core poisons nothing that a later event could not use: its state is changed event by event,
        // and refusing every later request would turn one bug into an outage.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// Delivers the effects; true if `fleet` has something to do.
    fn perform(&mut self) -> bool {
        let mut fleet = false;
        while let Some(effect) = self.scheduler.poll_effect() {
            match effect {
                Effect::Dispatch { request, attempt, replica, .. } => {
                    self.deliver(request, Message::Dispatched { attempt, replica });
                }
                Effect::Cancel { attempt, request, why } => self.deliver(request, Message::Cancelled { attempt, why }),
                Effect::Reject { request, reason, retry_after } => {
                    self.deliver(request, Message::Rejected { reason, retry_after });
                    self.waiting.remove(&request);
                }
                Effect::Changed { replica, from, to, why } => {
                    fleet = true;
                    self.fleet_effects.push_back(FleetEffect::Changed { replica, from, to, why });
                }
                Effect::Probe { replica } => {
                    fleet = true;
                    self.fleet_effects.push_back(FleetEffect::Probe(replica));
                }
                Effect::Drained { replica } => {
                    fleet = true;
                    self.fleet_effects.push_back(FleetEffect::Drained(replica));
                }
            }
        }
        fleet
    }

    fn deliver(&self, request: RequestId, message: Message) {
        if let Some(mailbox) = self.waiting.get(&request) {
            mailbox.put(message);
        }
    }
}
