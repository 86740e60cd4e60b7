//! The core serves the stage: news become events, effects become starts and stops, as the gateway does it in life.
//!
//! What a gateway would do beside the core is done here: it probes, it finds that connections are refused, it reports a
//! phone as ready again and again until the core believes it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use scheduler::{
    AttemptId, CancelReason, Carry, Decision, Effect, Event, HardFailure, Left, Outcome, Part, ReplicaId, ReplicaState,
    Report, RequestId, Scheduler, ShedReason, SoftFailure, Timings, Usage,
};

use super::{
    asks::{self, Asks},
    beliefs::Beliefs,
    ending::Ending,
    phone::Job,
    player::CoreSetup,
    stage::{Happening, News, Progress, Stage, Stop, moment, seconds},
    truth::Shared,
};
use crate::{
    driver::{Agenda, Simulation, World},
    scenario::Scenario,
    workload::Workload,
};

/// What a probe takes there and back, and a request to a phone that its tunnel knows to be gone.
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// A phone that does not serve though it could is reported again after this.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Plays until all is answered, or for as long as the scenario is played.
pub(super) fn play(scenario: &Scenario, workload: &Arc<Workload>, setup: &CoreSetup) -> Ending {
    let beliefs = Beliefs::draw(scenario, workload);
    finish(begin(scenario, workload, setup, &beliefs), scenario.until_s())
}

/// The same for a gateway that knows its phones, and for so many seconds at most. What became of each request.
pub(crate) fn rehearse(scenario: &Scenario, workload: &Arc<Workload>, until_s: f64) -> Vec<Progress> {
    let beliefs = Beliefs::exact(workload);
    finish(begin(scenario, workload, &CoreSetup::DEFAULT, &beliefs), until_s).requests
}

/// The same for a gateway that has to get to know them.
pub(crate) fn serve(scenario: &Scenario, workload: &Arc<Workload>, until_s: f64) -> Vec<Progress> {
    let beliefs = Beliefs::draw(scenario, workload);
    finish(begin(scenario, workload, &CoreSetup::DEFAULT, &beliefs), until_s).requests
}

/// What the core has measured after so many seconds of a play, over the last `window_s`; and what had become of each request.
pub(super) fn measure(
    scenario: &Scenario,
    workload: &Arc<Workload>,
    at_s: f64,
    window_s: f64,
) -> (Vec<Usage>, Vec<Progress>) {
    let beliefs = Beliefs::draw(scenario, workload);
    let mut simulation = begin(scenario, workload, &CoreSetup::DEFAULT, &beliefs);
    simulation.run_until(moment(at_s));
    let usage = simulation.scheduler.usage(window_s, simulation.agenda.now());
    let requests = simulation.world.stage.lock().ending(at_s).requests;
    (usage, requests)
}

/// At time zero, with the phones there.
fn begin(scenario: &Scenario, workload: &Arc<Workload>, setup: &CoreSetup, beliefs: &Beliefs) -> Simulation<Gateway> {
    let mut agenda = Agenda::default();
    let carry = asks::carry(scenario, setup);
    let stage = Shared::new(Stage::new(scenario, Arc::clone(workload), carry != Carry::Never, &mut agenda));
    let scheduler = Scheduler::new(asks::config(setup), workload.seed);
    let scheduler = if setup.oracle { scheduler.with_insight(Box::new(stage.clone())) } else { scheduler };
    let world = Gateway {
        asks: Asks::new(scenario, workload, beliefs, setup),
        states: vec![ReplicaState::Joining; workload.phones.len()],
        beating: vec![false; workload.phones.len()],
        refused: BTreeMap::new(),
        carry,
        stage,
    };
    let mut simulation = Simulation { scheduler, world, agenda };
    for (replica, spec) in asks::replicas(scenario, workload, beliefs, setup) {
        simulation.tell(Event::ReplicaUp { replica, spec });
        simulation.tell(Event::ReplicaReported { replica, report: Report::Ready });
    }
    simulation
}

fn finish(mut simulation: Simulation<Gateway>, until_s: f64) -> Ending {
    let until = moment(until_s);
    while !simulation.world.stage.lock().is_over() && simulation.agenda.now() <= until && simulation.step() {}
    let now = simulation.agenda.now().min(until);
    let decisions = simulation.scheduler.snapshot(now).decisions;
    Ending {
        decisions: Decision::ALL.into_iter().map(Decision::name).zip(decisions).collect(),
        refused: simulation.world.refused,
        ..simulation.world.stage.lock().ending(seconds(now))
    }
}

/// What will happen in the gateway's world.
#[derive(Clone, Copy, Debug)]
enum Coming {
    Stage(Happening),
    /// A probe comes back.
    Probed(usize),
    /// The phone says again that it is there.
    Beats(usize),
    /// A request comes back that its phone did not take.
    Returned {
        attempt: AttemptId,
        outcome: Outcome,
    },
}

impl From<Happening> for Coming {
    fn from(happening: Happening) -> Self {
        Self::Stage(happening)
    }
}

#[derive(Debug)]
struct Gateway {
    stage: Shared,
    asks: Asks,
    /// Where the core has each phone.
    states: Vec<ReplicaState>,
    /// A heartbeat is put down, by phone.
    beating: Vec<bool>,
    refused: BTreeMap<&'static str, u64>,
    /// Who may carry on what a phone had written.
    carry: Carry,
}

impl World for Gateway {
    type Happening = Coming;

    fn happen(&mut self, coming: Coming, agenda: &mut Agenda<Coming>) {
        match coming {
            Coming::Stage(happening) => {
                let news = self.stage.lock().happen(happening, agenda);
                for news in news {
                    self.report(news, agenda);
                }
            }
            Coming::Probed(phone) => {
                let report = if self.is_up(phone) { Report::Ready } else { Report::Unreachable };
                agenda.tell(Event::ReplicaReported { replica: replica(phone), report });
            }
            Coming::Beats(phone) => self.beat(phone, agenda),
            Coming::Returned { attempt, outcome } => {
                agenda.tell(Event::AttemptEnded { attempt, outcome, left: Left::Nothing, timings: None });
            }
        }
    }

    fn perform(&mut self, effect: Effect, agenda: &mut Agenda<Coming>) {
        match effect {
            Effect::Dispatch { request, attempt, replica, carries_on, .. } => {
                self.dispatch(request, attempt, replica, carries_on, agenda);
            }
            Effect::Cancel { attempt, why, .. } => {
                let why = if why == CancelReason::HedgeLost { Stop::HedgeLost } else { Stop::Preempted };
                self.stage.lock().stop(attempt.0, why, agenda);
            }
            Effect::Reject { reason, .. } => {
                self.stage.lock().refuse();
                *self.refused.entry(name(reason)).or_default() += 1;
            }
            Effect::Changed { replica, to, .. } => {
                if let Some(state) = self.states.get_mut(replica.0 as usize) {
                    *state = to;
                }
                self.keep_beating(replica.0 as usize, agenda);
            }
            Effect::Probe { replica } => agenda.after(ROUND_TRIP, Coming::Probed(replica.0 as usize)),
            Effect::Look { .. } | Effect::Drained { .. } => {}
        }
    }
}

impl Gateway {
    fn is_up(&self, phone: usize) -> bool {
        self.stage.lock().phone(phone).is_some_and(|phone| phone.is_up())
    }

    fn report(&mut self, news: News, agenda: &mut Agenda<Coming>) {
        match news {
            News::Arrived(request) => {
                let Some(spec) = self.asks.ask(request) else { return };
                agenda.tell(Event::RequestArrived { request: RequestId(request as u64), spec });
            }
            News::Read { job, .. } => agenda.tell(Event::FirstToken { attempt: AttemptId(job.order.copy) }),
            News::Answered { job, .. } => {
                let attempt = AttemptId(job.order.copy);
                let timings = Some(self.timings(&job, seconds(agenda.now())));
                agenda.tell(Event::AttemptEnded { attempt, outcome: Outcome::Success, left: Left::Closed, timings });
            }
            News::Noticed { phone, up, lost } => {
                for job in lost {
                    let (attempt, outcome) = (AttemptId(job.order.copy), Outcome::Hard(HardFailure::Reset));
                    let left = self.left(&job);
                    agenda.tell(Event::AttemptEnded { attempt, outcome, left, timings: None });
                }
                let report = if up { Report::Ready } else { Report::Unreachable };
                agenda.tell(Event::ReplicaReported { replica: replica(phone), report });
                self.keep_beating(phone, agenda);
            }
        }
    }

    /// What is left of an answer whose phone failed. Its client waits for all of it, and has seen nothing.
    fn left(&self, job: &Job) -> Left {
        if self.carry == Carry::Never {
            return Left::Nothing;
        }
        match self.stage.lock().keep(job) {
            0 => Left::Nothing,
            tokens => Left::Part(Part { tokens, seen: false, by: self.carry }),
        }
    }

    /// What an engine says: reading as it lasted beside whatever else ran, without the start-up.
    fn timings(&self, job: &Job, now: f64) -> Timings {
        let overhead_s = self.stage.lock().overhead_s();
        let read = job.read.unwrap_or(now);
        let length = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
        Timings {
            prefill_tokens: job.order.prompt.tokens().saturating_sub(job.cached),
            prefill: length(read - job.started - overhead_s),
            decode_tokens: job.order.output,
            decode: length(now - read),
            cached_tokens: job.cached,
            by_engine: true,
        }
    }

    /// The phone takes the request, or it comes back: its tunnel knows that the phone is gone, or the phone is full.
    fn dispatch(
        &self,
        request: RequestId,
        attempt: AttemptId,
        replica: ReplicaId,
        carries_on: bool,
        agenda: &mut Agenda<Coming>,
    ) {
        let mut stage = self.stage.lock();
        let phone = replica.0 as usize;
        let outcome = if stage.is_known_down(phone) {
            Outcome::Hard(HardFailure::Connect)
        } else if stage.start(attempt.0, request.0 as usize, phone, carries_on, agenda) {
            return;
        } else {
            Outcome::Soft(SoftFailure::Busy { retry_after: None })
        };
        agenda.after(ROUND_TRIP, Coming::Returned { attempt, outcome });
    }

    /// Phones that could serve and do not are reported again and again. Those that do serve are not: it would say nothing.
    fn keep_beating(&mut self, phone: usize, agenda: &mut Agenda<Coming>) {
        let serving = self.states.get(phone).is_none_or(|state| *state == ReplicaState::Ready);
        if serving || !self.is_up(phone) {
            return;
        }
        if let Some(beating) = self.beating.get_mut(phone).filter(|beating| !**beating) {
            *beating = true;
            agenda.after(HEARTBEAT, Coming::Beats(phone));
        }
    }

    fn beat(&mut self, phone: usize, agenda: &mut Agenda<Coming>) {
        if let Some(beating) = self.beating.get_mut(phone) {
            *beating = false;
        }
        if self.is_up(phone) {
            agenda.tell(Event::ReplicaReported { replica: replica(phone), report: Report::Ready });
        }
        self.keep_beating(phone, agenda);
    }
}

const fn replica(phone: usize) -> ReplicaId {
    ReplicaId(phone as u32)
}

const fn name(reason: ShedReason) -> &'static str {
    match reason {
        ShedReason::NoCapacity => "no_capacity",
        ShedReason::QueueFull => "queue_full",
        ShedReason::QueueAge => "queue_age",
        ShedReason::Hopeless => "hopeless",
        ShedReason::Deadline => "deadline",
        ShedReason::AttemptsExhausted => "attempts_exhausted",
        ShedReason::RetryBudget => "retry_budget",
        ShedReason::ContextExceeded => "context_exceeded",
    }
}
