//! Advice put to the test: a scenario is measured with one number of phones, and played with the number that is advised.

use std::sync::Arc;

use scheduler::{Class, Usage};

use super::{Advice, Backlog, Effort, Objectives, Outcome, Question, advise};
use crate::{
    play::{Progress, Run, serve},
    scenario::{Arrivals, Scenario},
    workload::{PhoneSpec, Timeline, Workload},
};

/// A scenario, as one run of it draws it, and what is promised.
#[derive(Clone, Debug)]
pub struct Trial {
    scenario: Scenario,
    run: u64,
    objectives: Objectives,
    /// The phones that were measured, and stay when others come.
    own: Arc<[PhoneSpec]>,
}

/// What was measured of one model, and what was advised.
#[derive(Clone, Debug)]
pub struct Advised {
    /// Number of the model in the scenario.
    pub model: u32,
    /// The advice.
    pub advice: Advice,
}

impl Trial {
    /// Classes of urgency batch that come all at once are batches, and their objective is their deadline, from their arrival.
    pub fn new(scenario: &Scenario, run: u64, objectives: Objectives) -> Self {
        Self { scenario: scenario.clone(), run, objectives, own: Arc::new([]) }
    }

    /// The scenario's name.
    pub fn name(&self) -> &str {
        &self.scenario.name
    }

    /// The number of the run.
    pub const fn run(&self) -> u64 {
        self.run
    }

    /// The same as another run of it draws it: other requests and absences, and other phones of the same kinds beside those that
    /// were measured.
    #[must_use]
    pub fn in_run(&self, run: u64) -> Self {
        Self { run, ..self.clone() }
    }

    /// When arrivals end, and when the warm-up does, in seconds.
    pub const fn times_s(&self) -> (f64, f64) {
        (self.scenario.horizon_s, self.scenario.warmup_s)
    }

    /// True if it is the same work on the same phones, whatever the run.
    pub fn is_like(&self, other: &Self) -> bool {
        self.scenario == other.scenario && self.objectives == other.objectives && self.own == other.own
    }

    /// The models of the scenario, by number.
    pub fn models(&self) -> Vec<u32> {
        let mut models: Vec<u32> = self.scenario.phones.classes.iter().map(|kind| kind.model).collect();
        models.sort_unstable();
        models.dedup();
        models
    }

    /// Phones of a model that the scenario has.
    pub fn phones(&self, model: u32) -> usize {
        self.scenario.phones.classes.iter().filter(|kind| kind.model == model).map(|kind| kind.count).sum()
    }

    /// The share of time that a phone is there.
    pub fn up(&self) -> f64 {
        self.scenario.churn.map_or(1.0, |churn| churn.up())
    }

    /// The same with so many phones of a model.
    #[must_use]
    pub fn with_phones(&self, model: u32, phones: usize) -> Self {
        Self { scenario: self.scenario.with_phones(model, phones), ..self.clone() }
    }

    /// What is advised after so many seconds, from what was measured in the last `window_s`; and the same work on the phones that
    /// were measured, with what was left of batches by then. Requests come until then.
    pub fn advise(&self, at_s: f64, window_s: f64, effort: Effort) -> (Vec<Advised>, Self) {
        let mut longer = self.scenario.clone();
        longer.horizon_s = longer.horizon_s.max(at_s);
        let run = Run::new(&longer, self.run);
        let (usage, served) = run.measure(at_s, window_s);
        let mut rest = Self { own: run.workload.phones.clone().into(), ..self.clone() };
        let mut backlogs: Vec<(u32, Backlog)> = Vec::new();
        for (index, class) in rest.scenario.classes.iter_mut().enumerate().filter(|(_, class)| is_batch(class)) {
            let Arrivals::Closed { at, .. } = class.arrivals else { continue };
            let left = run.workload.of_class(index).filter(|(number, _)| !is_answered(served.get(*number))).count();
            let left_s = at + class.objective_s - at_s;
            backlogs.push((class.model, Backlog { lines: left as u64, left_s }));
            class.arrivals = Arrivals::Closed { n: left, at: rest.scenario.warmup_s };
            class.objective_s = left_s;
        }
        let of = |usage: &Usage| {
            let model = usage.model.0 - 1;
            let backlog: Vec<Backlog> =
                backlogs.iter().filter(|(of, _)| *of == model).map(|(_, backlog)| *backlog).collect();
            let question = Question { usage, objectives: &self.objectives, backlog: &backlog, effort, last: None };
            Advised { model, advice: advise(&question) }
        };
        (usage.iter().map(of).collect(), rest)
    }

    /// What the run draws, but that its phones have come and gone for long, and those of each kind that were measured are among
    /// them.
    fn settled(&self) -> Arc<Workload> {
        let mut workload = Workload::draw(&self.scenario, self.run);
        let mut own = self.own.to_vec();
        for phone in &mut workload.phones {
            if let Some(at) = own.iter().position(|own| own.class == phone.class) {
                *phone = own.remove(at);
            }
        }
        let until_s = SETTLES + self.scenario.until_s();
        for (phone, timeline) in workload.timelines.iter_mut().enumerate() {
            *timeline = Timeline::draw(&self.scenario, phone, until_s, workload.seed).from(SETTLES);
        }
        Arc::new(workload)
    }

    /// What comes of a model's work, with the phones that the scenario has: everything that arrives between warm-up and horizon; where
    /// there are batches, before the last of their lines is done, for nothing is promised more easily than when they are gone. Phones
    /// are away, and slow, from the start on as often as later.
    pub fn outcome(&self, model: u32) -> Outcome {
        let workload = self.settled();
        let longest = self.objectives.longest_s();
        let deadlines = self.scenario.classes.iter().filter(|class| is_batch(class)).map(|class| class.objective_s);
        let until_s = deadlines
            .map(|deadline| self.scenario.warmup_s + deadline)
            .fold(self.scenario.horizon_s + longest, f64::max)
            + 1.0;
        let served = serve(&self.scenario, &workload, until_s);
        let of_model = || self.scenario.classes.iter().enumerate().filter(|(_, class)| class.model == model);
        let lines = of_model().filter(|(_, class)| is_batch(class)).flat_map(|(index, _)| workload.of_class(index));
        let lines_end = lines.map(|(number, _)| served.get(number).and_then(|line| line.answered).unwrap_or(until_s));
        let ends = lines_end.reduce(f64::max).unwrap_or(until_s).min(self.scenario.horizon_s);
        let mut counts = [(0_u32, 0_u32); Class::ALL.len()];
        for (index, class) in of_model() {
            let within = |arrived: f64| (self.scenario.warmup_s..ends).contains(&arrived);
            for (number, _) in workload.of_class(index) {
                let Some(progress) = served.get(number) else { continue };
                let Some(arrived) = progress.arrived.filter(|arrived| is_batch(class) || within(*arrived)) else {
                    continue;
                };
                let met = match self.objectives.of(class.urgency) {
                    Some(objective) => progress.first_token.is_some_and(|first| first - arrived <= objective.ttft_s),
                    None if is_batch(class) => progress.answered.is_some_and(|end| end - arrived <= class.objective_s),
                    None => continue,
                };
                let (good, all) = &mut counts[class.urgency as usize];
                (*good, *all) = (*good + u32::from(met), *all + 1);
            }
        }
        let attained = counts.map(|(good, all)| (all > 0).then(|| f64::from(good) / f64::from(all)));
        let short = |(class, share): (Class, Option<f64>)| {
            let wanted = self.objectives.of(class).map_or(1.0, |objective| objective.share);
            share.is_some_and(|share| share < wanted)
        };
        let met = !Class::ALL.into_iter().zip(attained).any(short);
        Outcome { attained, met }
    }
}

/// Phones have been there for this long when a scenario begins to judge: seconds.
const SETTLES: f64 = 4.0 * 3600.0;

fn is_batch(class: &crate::scenario::Class) -> bool {
    class.urgency == Class::Batch && class.is_closed() && class.objective_s > 0.0
}

fn is_answered(progress: Option<&Progress>) -> bool {
    progress.is_some_and(|progress| progress.answered.is_some())
}
