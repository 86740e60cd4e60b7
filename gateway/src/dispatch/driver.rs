//! The mutex, the mailboxes, the timer.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use scheduler::{
    AttemptId, AttemptView, CancelReason, ChangeReason, Class, Effect, Event, Explanation, ModelId, ReplicaId,
    ReplicaState, ReplicaView, RequestId, RequestSpec, RequestView, Scheduler, SchedulerConfig, Snapshot, TenantId,
    Timestamp, Usage,
};
use tokio::sync::Notify;

use super::{
    place::{Mailbox, Message, Place, Shed},
    record::Record,
};
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
    /// Ask it how many of its slots work.
    Look(ReplicaId),
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
    record: Option<Record>,
    waiting: HashMap<RequestId, Arc<Mailbox>>,
    fleet_effects: VecDeque<FleetEffect>,
    next_request: u64,
    /// What the timer task sleeps towards; it is woken only when something earlier comes up.
    armed: Timestamp,
}

impl Dispatcher {
    /// A dispatcher with an empty pool. `seed` drives every random choice of the core. `record` was begun with the same
    /// settings and seed.
    pub fn new(config: SchedulerConfig, seed: u64, record: Option<Record>) -> Self {
        Self {
            core: Mutex::new(Core {
                record,
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
            core.handle(Event::RequestArrived { request, spec }, now);
            request
        });
        Place::new(Arc::clone(self), request, mailbox)
    }

    /// Tells the core that something happened.
    pub fn handle(&self, event: Event) {
        self.with(|core, now| core.handle(event, now));
    }

    /// The same about an attempt, unless the core has cancelled that before: then its word is taken out of the mailbox, and
    /// the core is told nothing.
    pub(super) fn unless_cancelled(&self, mailbox: &Mailbox, attempt: AttemptId, event: Event) -> Option<CancelReason> {
        self.with(|core, now| {
            // What is due by now comes first, as it would in `handle`.
            core.advance(now);
            let cancelled = mailbox.retract(attempt);
            if cancelled.is_none() {
                core.handle(event, now);
            }
            cancelled
        })
    }

    /// The request is over for the driver; forgets its mailbox.
    pub(super) fn abandon(&self, request: RequestId) {
        self.with(|core, now| {
            if core.waiting.remove(&request).is_some() {
                core.handle(Event::RequestAbandoned { request }, now);
            }
        });
    }

    /// The state of everything.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().scheduler.snapshot(clock::now())
    }

    /// What was measured of every model over the last `window`. The core is held for a copy, some hundred kilobytes a model.
    pub fn usage(&self, window: Duration) -> Vec<Usage> {
        self.lock().scheduler.usage(window.as_secs_f64(), clock::now())
    }

    /// Replicas of each model that serve, or did and are away for now; and their slots.
    pub fn there(&self) -> BTreeMap<ModelId, (usize, usize)> {
        self.lock().scheduler.there()
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

    /// Everything at one moment: what [`Dispatcher::snapshot`] and [`Dispatcher::requests`] say, and the running attempts.
    pub fn look(&self) -> (Snapshot, Vec<RequestView>, Vec<AttemptView>) {
        let (core, now) = (self.lock(), clock::now());
        (core.scheduler.snapshot(now), core.scheduler.requests(now), core.scheduler.attempts())
    }

    /// How many requests wait, by tenant and model.
    pub fn waiting_by_tenant(&self) -> BTreeMap<(TenantId, ModelId), usize> {
        self.lock().scheduler.waiting_by_tenant()
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
                () = tokio::time::sleep_until(clock::instant(deadline)) => self.with(Core::advance),
            }
        }
    }

    /// Ends the record, if there is one: writes what is under way, and waits for that.
    pub fn end_record(&self) {
        let record = self.lock().record.take();
        if let Some(record) = record {
            record.end();
        }
    }

    /// Says what the core would say: to test what a request makes of it.
    #[cfg(test)]
    pub(super) fn say(&self, effect: Effect) {
        self.with(|core, _| core.deliver(effect));
    }

    fn with<R>(&self, act: impl FnOnce(&mut Core, Timestamp) -> R) -> R {
        let (result, rearm, fleet) = {
            let mut core = self.lock();
            let result = act(&mut core, clock::now());
            let next = core.scheduler.next_deadline().unwrap_or(Timestamp::NEVER);
            (result, next < core.armed, !core.fleet_effects.is_empty())
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
    fn handle(&mut self, event: Event, now: Timestamp) {
        if let Some(record) = &mut self.record {
            record.event(&event, now);
        }
        self.scheduler.handle(event, now);
        self.perform();
    }

    fn advance(&mut self, now: Timestamp) {
        if let Some(record) = &mut self.record {
            record.advance(now);
        }
        self.scheduler.advance(now);
        self.perform();
    }

    fn perform(&mut self) {
        while let Some(effect) = self.scheduler.poll_effect() {
            if let Some(record) = &mut self.record {
                record.effect(&effect);
            }
            self.deliver(effect);
        }
    }

    /// Puts an effect where it is performed: into its request's mailbox, or before `fleet`.
    fn deliver(&mut self, effect: Effect) {
        match effect {
            Effect::Dispatch { request, attempt, replica, hedge, carries_on, .. } => {
                self.tell(request, Message::Dispatched { attempt, replica, hedge, carries_on });
            }
            Effect::Cancel { attempt, request, why } => self.tell(request, Message::Cancelled { attempt, why }),
            Effect::Reject { request, reason, retry_after } => {
                self.tell(request, Message::Rejected(Shed { reason, retry_after }));
                self.waiting.remove(&request);
            }
            Effect::Changed { replica, from, to, why } => {
                self.fleet_effects.push_back(FleetEffect::Changed { replica, from, to, why });
            }
            Effect::Probe { replica } => self.fleet_effects.push_back(FleetEffect::Probe(replica)),
            Effect::Look { replica } => self.fleet_effects.push_back(FleetEffect::Look(replica)),
            Effect::Drained { replica } => self.fleet_effects.push_back(FleetEffect::Drained(replica)),
        }
    }

    fn tell(&self, request: RequestId, message: Message) {
        if let Some(mailbox) = self.waiting.get(&request) {
            mailbox.put(message);
        }
    }
}
