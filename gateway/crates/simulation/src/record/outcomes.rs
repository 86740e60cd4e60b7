//! What came of the requests of a record.

use std::collections::BTreeMap;

use scheduler::{AttemptId, Class, Effect, Event, RequestId, Scheduler, ShedReason, Timestamp};

/// What came of the requests of one class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcomes {
    /// Requests that arrived.
    pub arrived: u64,
    /// Of those, answered whole.
    pub answered: u64,
    /// Of those, ended by the failure of a replica after content was sent, or by their own fault.
    pub failed: u64,
    /// Of those, given up by their client.
    pub abandoned: u64,
    /// Of those, refused, by reason.
    pub refused: BTreeMap<ShedReason, u64>,
    /// Of those, still under way when the record ends.
    pub unfinished: u64,
    /// From arrival to the whole answer, seconds, in the order of the answers.
    pub completion: Vec<f64>,
    /// From arrival to the first token of the answer, seconds, where it was seen; of one that was carried on, that of its first
    /// part.
    pub ttft: Vec<f64>,
}

/// A request under way.
struct Live {
    class: Class,
    arrived: Timestamp,
    running: Vec<AttemptId>,
    /// The first token of what is left of its answer.
    first_token: Option<Timestamp>,
}

/// An attempt under way.
struct Running {
    request: RequestId,
    first_token: Option<Timestamp>,
}

/// An attempt that is over, in the call that is being played.
struct Over {
    request: RequestId,
    first_token: Option<Timestamp>,
    whole: bool,
}

/// Follows requests from outside the scheduler.
#[derive(Default)]
pub(super) struct Ledger {
    live: BTreeMap<RequestId, Live>,
    running: BTreeMap<AttemptId, Running>,
    over: Vec<Over>,
    classes: [Outcomes; Class::ALL.len()],
}

impl Ledger {
    /// The scheduler was told this.
    pub(super) fn told(&mut self, event: &Event, now: Timestamp) {
        match event {
            Event::RequestArrived { request, spec } => {
                let live = Live { class: spec.class, arrived: now, running: Vec::new(), first_token: None };
                self.live.insert(*request, live);
                self.class(spec.class).arrived += 1;
            }
            Event::RequestAbandoned { request } => {
                if let Some(live) = self.end(*request) {
                    self.class(live.class).abandoned += 1;
                }
            }
            Event::FirstToken { attempt } => {
                if let Some(running) = self.running.get_mut(attempt) {
                    running.first_token.get_or_insert(now);
                }
            }
            Event::AttemptEnded { attempt, outcome, .. } => self.over(*attempt, outcome.is_whole()),
            _ => {}
        }
    }

    /// The scheduler wants this.
    pub(super) fn wanted(&mut self, effect: &Effect) {
        match *effect {
            Effect::Dispatch { request, attempt, carries_on, .. } => {
                if let Some(live) = self.live.get_mut(&request) {
                    live.running.push(attempt);
                    let first_token = live.first_token.filter(|_| carries_on);
                    self.running.insert(attempt, Running { request, first_token });
                }
            }
            Effect::Cancel { attempt, .. } => self.over(attempt, false),
            Effect::Reject { request, reason, .. } => {
                if let Some(live) = self.end(request) {
                    *self.class(live.class).refused.entry(reason).or_default() += 1;
                }
            }
            Effect::Changed { .. } | Effect::Probe { .. } | Effect::Look { .. } | Effect::Drained { .. } => {}
        }
    }

    /// A call and its effects are done: requests whose attempt is over and that the scheduler forgot have ended with it.
    pub(super) fn settled(&mut self, scheduler: &Scheduler, now: Timestamp) {
        for Over { request, first_token, whole } in std::mem::take(&mut self.over) {
            if scheduler.request(request, now).is_some() {
                continue;
            }
            let Some(live) = self.end(request) else { continue };
            let outcomes = self.class(live.class);
            if !whole {
                outcomes.failed += 1;
                continue;
            }
            outcomes.answered += 1;
            outcomes.completion.push(now.since(live.arrived).as_secs_f64());
            outcomes.ttft.extend(first_token.map(|at| at.since(live.arrived).as_secs_f64()));
        }
    }

    /// What came of all, by class as in [`Class::ALL`].
    pub(super) fn finish(mut self) -> [Outcomes; Class::ALL.len()] {
        for live in std::mem::take(&mut self.live).into_values() {
            self.class(live.class).unfinished += 1;
        }
        self.classes
    }

    fn over(&mut self, attempt: AttemptId, whole: bool) {
        if let Some(Running { request, first_token }) = self.running.remove(&attempt) {
            if let Some(live) = self.live.get_mut(&request) {
                live.first_token = first_token.or(live.first_token);
            }
            self.over.push(Over { request, first_token, whole });
        }
    }

    fn end(&mut self, request: RequestId) -> Option<Live> {
        let live = self.live.remove(&request)?;
        for attempt in &live.running {
            self.running.remove(attempt);
        }
        Some(live)
    }

    fn class(&mut self, class: Class) -> &mut Outcomes {
        let [interactive, standard, batch] = &mut self.classes;
        match class {
            Class::Interactive => interactive,
            Class::Standard => standard,
            Class::Batch => batch,
        }
    }
}
