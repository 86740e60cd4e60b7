//! Virtual time: a heap of future happenings and the scheduler's own deadlines, whichever comes first. It drives the very
//! core that the gateway drives, in the same way: stamp the time, tell, perform the effects in order.
//!
//! What the world is made of (phones, clients, faults) is a [`World`]; the loop knows only time and order. Happenings of
//! the same moment come in the order in which they were put down, so a run is a function of its seed.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use scheduler::{Effect, Event, Scheduler, Timestamp};

/// What surrounds the scheduler.
pub trait World {
    /// Something that will happen.
    type Happening;

    /// Its time has come.
    fn happen(&mut self, happening: Self::Happening, agenda: &mut Agenda<Self::Happening>);

    /// The scheduler wants something done.
    fn perform(&mut self, effect: Effect, agenda: &mut Agenda<Self::Happening>);

    /// The scheduler is about to be told something; for those who keep a record.
    fn told(&mut self, _event: &Event, _now: Timestamp) {}

    /// The scheduler is about to be told that time passed; for those who keep a record.
    fn advanced(&mut self, _now: Timestamp) {}
}

/// The future, and what the scheduler is to be told now.
#[derive(Debug)]
pub struct Agenda<H> {
    now: Timestamp,
    future: BTreeMap<(Timestamp, u64), H>,
    order: u64,
    events: VecDeque<Event>,
}

impl<H> Default for Agenda<H> {
    /// At time zero, with nothing put down yet.
    fn default() -> Self {
        Self { now: Timestamp::ZERO, future: BTreeMap::new(), order: 0, events: VecDeque::new() }
    }
}

impl<H> Agenda<H> {
    /// The present.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Puts down what will happen after that long.
    pub fn after(&mut self, length: Duration, happening: H) {
        self.at(self.now + length, happening);
    }

    /// Puts down what will happen then, or at once if that is over.
    pub fn at(&mut self, moment: Timestamp, happening: H) {
        self.order += 1;
        self.future.insert((moment.max(self.now), self.order), happening);
    }

    /// Goes to the next moment at which something happens in the world, and takes what does.
    pub fn advance(&mut self) -> Option<H> {
        let ((at, _), happening) = self.future.pop_first()?;
        self.now = self.now.max(at);
        Some(happening)
    }

    /// Tells the scheduler, as soon as the present call returns.
    pub fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// When the next thing happens in the world.
    pub fn next(&self) -> Option<Timestamp> {
        self.future.first_key_value().map(|((at, _), _)| *at)
    }
}

/// A scheduler in a world.
#[derive(Debug)]
pub struct Simulation<W: World> {
    /// What surrounds the scheduler.
    pub world: W,
    /// The scheduler.
    pub scheduler: Scheduler,
    /// The future.
    pub agenda: Agenda<W::Happening>,
}

impl<W: World> Simulation<W> {
    /// At time zero, with nothing put down yet.
    pub fn new(scheduler: Scheduler, world: W) -> Self {
        Self { world, scheduler, agenda: Agenda::default() }
    }

    /// Goes to the next moment at which something happens. False when nothing ever will.
    pub fn step(&mut self) -> bool {
        let moments = [self.scheduler.next_deadline().map(|at| (at, 0)), self.agenda.next().map(|at| (at, 1))];
        let Some((at, whose)) = moments.into_iter().flatten().min() else { return false };
        self.agenda.now = self.agenda.now.max(at);
        if whose == 0 {
            self.world.advanced(self.agenda.now);
            self.scheduler.advance(self.agenda.now);
        } else if let Some(happening) = self.agenda.advance() {
            self.world.happen(happening, &mut self.agenda);
        }
        self.settle();
        true
    }

    /// Runs to that moment, and stands there.
    pub fn run_until(&mut self, end: Timestamp) {
        let next = |this: &Self| this.scheduler.next_deadline().into_iter().chain(this.agenda.next()).min();
        while next(self).is_some_and(|at| at <= end) && self.step() {}
        self.agenda.now = self.agenda.now.max(end);
        self.world.advanced(self.agenda.now);
        self.scheduler.advance(self.agenda.now);
        self.settle();
    }

    /// Tells the scheduler something from outside, now.
    pub fn tell(&mut self, event: Event) {
        self.agenda.tell(event);
        self.settle();
    }

    /// Performs effects and tells events until both have dried up. Effects come first: an event that answers an effect
    /// must not overtake those before it.
    fn settle(&mut self) {
        loop {
            while let Some(effect) = self.scheduler.poll_effect() {
                self.world.perform(effect, &mut self.agenda);
            }
            let Some(event) = self.agenda.events.pop_front() else { return };
            self.world.told(&event, self.agenda.now);
            self.scheduler.handle(event, self.agenda.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use scheduler::{
        Carry, Class, Left, ModelId, Outcome, Prefix, RelayId, Release, ReplicaId, ReplicaSpec, Report, RequestId,
        RequestSpec, RouteSet, SchedulerConfig, TenantId,
    };

    use super::*;

    /// One phone that answers everything after ten seconds, and the answers' times.
    #[derive(Default)]
    struct OnePhone(Vec<(RequestId, Timestamp)>);

    impl World for OnePhone {
        type Happening = (RequestId, Event);

        fn happen(&mut self, (request, event): Self::Happening, agenda: &mut Agenda<Self::Happening>) {
            self.0.push((request, agenda.now()));
            agenda.tell(event);
        }

        fn perform(&mut self, effect: Effect, agenda: &mut Agenda<Self::Happening>) {
            if let Effect::Dispatch { request, attempt, .. } = effect {
                let outcome = Outcome::Success;
                let end = Event::AttemptEnded { attempt, outcome, left: Left::Closed, timings: None };
                agenda.after(Duration::from_secs(10), (request, end));
            }
        }
    }

    #[test]
    fn three_requests_for_one_slot_are_answered_one_after_the_other() {
        let mut simulation = Simulation::new(Scheduler::new(SchedulerConfig::default(), 1), OnePhone::default());
        let replica = ReplicaId(1);
        let spec = ReplicaSpec {
            models: vec![ModelId(1)],
            routes: RouteSet(1),
            slots: 1,
            context_tokens: None,
            relay: RelayId(1),
            prior: None,
            carries_on: false,
            group: None,
            release: Release::AtOnce,
        };
        simulation.tell(Event::ReplicaUp { replica, spec });
        simulation.tell(Event::ReplicaReported { replica, report: Report::Ready });
        for request in 1..=3 {
            let spec = RequestSpec {
                model: ModelId(1),
                route: 0,
                tenant: TenantId(1),
                class: Class::Standard,
                deadline: None,
                prompt_tokens: 1,
                max_output: Some(1),
                stream: false,
                carry: Carry::Never,
                body_bytes: 1,
                prefix: Prefix::default(),
            };
            simulation.tell(Event::RequestArrived { request: RequestId(request), spec });
        }
        while simulation.step() {}
        let second = 1_000_000_000;
        let answers = [1, 2, 3].map(|n| (RequestId(n), Timestamp(n * 10 * second)));
        assert_eq!(simulation.world.0, answers);
        simulation.run_until(Timestamp(100 * second));
        assert_eq!(simulation.agenda.now(), Timestamp(100 * second));
    }
}
