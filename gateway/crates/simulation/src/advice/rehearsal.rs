//! What would have been, with other phones: the scheduler itself serves what came, in virtual time, on phones as fast as those
//! that are there were measured to be, with the same coming and going.

use std::{collections::BTreeMap, sync::Arc};

use scheduler::{Class, Measured, Span, Usage};

use super::{Backlog, Objectives, trace::Trace};
use crate::{
    play::{Progress, rehearse},
    scenario::{
        Arrivals, Churn, Class as Kind, Continuation, Key, Length, Model, PhoneClass, Phones, Scenario, Template,
    },
    workload::{PhoneSpec, Request, Timeline, Workload},
};

/// Seconds until a gateway finds that a phone is gone: a probe's interval and patience.
const DETECT_S: f64 = 15.0;
/// Caches, and what waits, are as they will be after this long.
const WARM_S: f64 = 600.0;
/// Of batches alone so much is played: long enough for phones to go away and come back.
const BATCH_S: f64 = 4.0 * 3600.0;
/// Times that the stretch is played before it counts, and for it to count, at most.
const MOST_PASSES: usize = 4;
/// Requests that make a share of one in twenty more than chance.
const ENOUGH: usize = 600;
/// A cache that finds less of what it should is taken for none.
const REMEMBERS: f64 = 0.5;
/// Of lines that are to be done in a stretch, when more of the batch follows: so many are offered, that its end does not count.
const BEYOND: f64 = 1.3;

/// One model's work, and what its phones are.
#[derive(Debug)]
pub(super) struct Rehearsal<'a> {
    usage: &'a Usage,
    objectives: &'a Objectives,
    pub(super) trace: Trace,
    scenario: Scenario,
    /// Passes before and in all.
    passes: (usize, usize),
    lines: Vec<Lump>,
    /// Classes that count, by number.
    pub(super) counts: [bool; Class::ALL.len()],
}

/// Lines that have to be done within a stretch.
#[derive(Clone, Copy, Debug)]
struct Lump {
    offered: usize,
    due: usize,
    within_s: f64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// By class as in [`Class::ALL`]: the share of requests that met their objective, where there are any; of lines of batches,
    /// those that were done in time over those that had to be.
    pub attained: [Option<f64>; Class::ALL.len()],
    /// Every objective was met.
    pub met: bool,
    /// Also in the five minutes in which most requests of a class came, as far as a miss is more than chance.
    pub met_at_peak: bool,
}

impl<'a> Rehearsal<'a> {
    pub(super) fn new(
        usage: &'a Usage,
        objectives: &'a Objectives,
        backlog: &[Backlog],
        reference: (f64, f64),
        most_requests: usize,
    ) -> Self {
        let mut trace = Trace::of(usage, most_requests, !backlog.is_empty());
        if trace.requests.is_empty() {
            let soonest = backlog.iter().map(|backlog| backlog.left_s).fold(f64::INFINITY, f64::min);
            trace.length_s = BATCH_S.min(soonest.max(60.0));
        }
        let before = if trace.requests.is_empty() { 0 } else { passes((WARM_S / trace.length_s).ceil()) };
        let counted = passes((ENOUGH as f64 / trace.requests.len().max(1) as f64).ceil());
        let counted = if trace.requests.is_empty() { 1 } else { counted };
        let lines = if trace.has_lines() { lumps(backlog, trace.length_s, most_requests) } else { Vec::new() };
        let came = |class: Class| trace.requests.iter().any(|request| request.class == class as usize);
        let counts = Class::ALL.map(|class| match class {
            Class::Batch => !lines.is_empty(),
            class => objectives.of(class).is_some() && came(class),
        });
        let scenario = scenario(usage, &trace, reference, (before + counted) as f64 * trace.length_s);
        Self { usage, objectives, trace, scenario, passes: (before, before + counted), lines, counts }
    }

    /// Plays it with these phones. `hurry`: everything comes so many times as fast.
    pub(super) fn play(&self, phones: &[Measured], hurry: f64) -> Outcome {
        let length_s = self.trace.length_s / hurry;
        let (before, all) = self.passes;
        let mut requests = self.trace.repeated(all, hurry);
        let lines_from = requests.len();
        for pass in before..all {
            for lump in &self.lines {
                requests.extend(self.trace.lines(lump.offered, pass as f64 * length_s, pass as u64));
            }
        }
        let longest = self.objectives.longest_s();
        let until_s = all as f64 * length_s + longest + 1.0;
        let reference = (self.scenario.model.prefill_tokens_per_second, self.scenario.model.decode_tokens_per_second);
        let phones: Vec<PhoneSpec> = phones.iter().map(|phone| spec(phone, reference)).collect();
        let seed = self.scenario.seed;
        let timelines = (0..phones.len()).map(|phone| Timeline::draw(&self.scenario, phone, until_s, seed)).collect();
        let workload = Arc::new(Workload { phones, timelines, requests, seed });
        let served = rehearse(&self.scenario, &workload, until_s);
        let (came, lines) = served.split_at(lines_from.min(served.len()));
        let mut outcome = Outcome { attained: [None; Class::ALL.len()], met: true, met_at_peak: true };
        for class in Class::ALL {
            let share = match class {
                Class::Batch => self.lines_done(lines, length_s, before),
                class => {
                    let times = self.times(class, came, &workload.requests, (before as f64 * length_s, until_s));
                    outcome.met_at_peak &= !self.counts[class as usize] || self.holds_at_peak(class, &times);
                    shares(times.iter().map(|(_, good)| *good))
                }
            };
            let wanted = if class == Class::Batch { 1.0 } else { self.objectives.of(class).map_or(0.0, |o| o.share) };
            outcome.met &= !self.counts[class as usize] || share.is_none_or(|share| share >= wanted);
            outcome.attained[class as usize] = share;
        }
        outcome
    }

    /// When requests of a class came, and whether they met their objective.
    fn times(
        &self,
        class: Class,
        served: &[Progress],
        requests: &[Request],
        (from, until): (f64, f64),
    ) -> Vec<(f64, bool)> {
        let Some(objective) = self.objectives.of(class) else { return Vec::new() };
        let of_class = served.iter().zip(requests).filter(|(_, request)| request.class == class as usize);
        let times = of_class.filter_map(|(progress, _)| {
            let arrived = progress.arrived.filter(|arrived| *arrived >= from)?;
            let waited = progress.first_token.unwrap_or(until) - arrived;
            let is_over = progress.first_token.is_some() || waited > objective.ttft_s;
            is_over.then_some((arrived, waited <= objective.ttft_s))
        });
        times.collect()
    }

    fn holds_at_peak(&self, class: Class, times: &[(f64, bool)]) -> bool {
        let Some(objective) = self.objectives.of(class) else { return true };
        let mut spans: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
        for (arrived, good) in times {
            let (met, all) = spans.entry((arrived / Span::SECONDS) as u64).or_default();
            (*met, *all) = (*met + u32::from(*good), *all + 1);
        }
        let Some((met, all)) = spans.into_values().max_by_key(|(_, all)| *all) else { return true };
        let all = f64::from(all);
        f64::from(met) / all >= objective.share - 2.0 * (objective.share * (1.0 - objective.share) / all).sqrt()
    }

    /// The worst of all lumps.
    fn lines_done(&self, mut served: &[Progress], length_s: f64, before: usize) -> Option<f64> {
        let mut worst: Option<f64> = None;
        for pass in before..self.passes.1 {
            for lump in &self.lines {
                let (these, rest) = served.split_at(lump.offered.min(served.len()));
                served = rest;
                let by = pass as f64 * length_s + lump.within_s;
                let done = these.iter().filter(|line| line.answered.is_some_and(|answered| answered <= by)).count();
                let share = (done as f64 / lump.due.max(1) as f64).min(1.0);
                worst = Some(worst.map_or(share, |worst| worst.min(share)));
            }
        }
        worst
    }

    /// Seconds of one phone with these rates that a request takes alone, what is shared found in its cache: until its first
    /// token, and in all.
    pub(super) fn alone(&self, request: &Request, rates: (f64, f64)) -> (f64, f64) {
        let slow = &self.usage.slowdown;
        let (from, to) = (f64::from(request.spared()), f64::from(request.prompt.tokens()));
        let output = f64::from(request.output);
        let reading = (to - from) * (1.0 + slow.reading * f64::midpoint(from, to)) / rates.0;
        let writing = output * (1.0 + slow.writing * (to + output / 2.0)) / rates.1;
        (slow.overhead + reading, slow.overhead + reading + writing)
    }

    /// Lines of batches that have to be done per second.
    pub(super) fn lines_per_s(&self) -> f64 {
        self.lines.iter().map(|lump| lump.due as f64 / lump.within_s).sum()
    }

    /// The work of a line on a phone with these rates, in seconds.
    pub(super) fn line_s(&self, rates: (f64, f64)) -> f64 {
        let sample: Vec<f64> = self.trace.lines(64, 0.0, 0).map(|line| self.alone(&line, rates).1).collect();
        sample.iter().sum::<f64>() / sample.len().max(1) as f64
    }
}

/// The share of those that are true; `None` if there are none.
fn shares(good: impl Iterator<Item = bool>) -> Option<f64> {
    let (met, all) = good.fold((0_u32, 0_u32), |(met, all), good| (met + u32::from(good), all + 1));
    (all > 0).then(|| f64::from(met) / f64::from(all))
}

fn passes(times: f64) -> usize {
    (times as usize).clamp(1, MOST_PASSES)
}

fn spec(phone: &Measured, reference: (f64, f64)) -> PhoneSpec {
    let rates = phone.rates.unwrap_or(reference);
    PhoneSpec {
        class: 0,
        prefill_factor: rates.0 / reference.0,
        decode_factor: rates.1 / reference.1,
        slots: usize::from(phone.slots.max(1)),
        remembers: phone.cache >= REMEMBERS,
    }
}

/// What of the batches falls into one stretch. Each has to get on at the pace that ends it in time; one that ends within the
/// stretch has to end.
fn lumps(backlog: &[Backlog], length_s: f64, most: usize) -> Vec<Lump> {
    let open = backlog.iter().filter(|backlog| backlog.lines > 0 && backlog.left_s > 0.0);
    let lumps = open.map(|backlog| {
        let lines = backlog.lines as f64;
        // A stretch of which not too many lines fall due.
        let within_s = length_s.min(backlog.left_s).min((backlog.left_s * most as f64 / lines).max(1.0));
        let due = (lines * within_s / backlog.left_s).ceil().max(1.0);
        let ends = within_s >= backlog.left_s;
        let offered = if ends { due } else { (BEYOND * due).ceil().min(lines) };
        Lump { offered: offered as usize, due: due as usize, within_s }
    });
    lumps.collect()
}

fn scenario(usage: &Usage, trace: &Trace, reference: (f64, f64), horizon_s: f64) -> Scenario {
    let slow = &usage.slowdown;
    let lives = &usage.lives;
    let churn = (lives.deaths > 0.0).then(|| Churn {
        mean_up_s: (lives.up_s / lives.deaths).max(1.0),
        mean_down_s: (lives.down_s / lives.deaths).max(0.1),
    });
    let keys = |_: &()| trace.tenants.iter().map(|tenant| Key { name: tenant.0.to_string(), weight: 1.0 }).collect();
    let class = |urgency: Class| Kind {
        name: urgency.name().to_owned(),
        model: 0,
        urgency,
        arrivals: Arrivals::Closed { n: 0, at: 0.0 },
        keys: keys(&()),
        templates: vec![Template { tokens: 0, weight: 1.0 }],
        suffix: Length::Uniform { min: 1.0, max: 1.0 },
        output: Length::Uniform { min: 1.0, max: 1.0 },
        objective_s: 0.0,
        objective_on_first_token: false,
        turns_mean: 0.0,
        think_s: 0.0,
        max_prompt: 0,
    };
    let phone = PhoneClass {
        name: "measured".to_owned(),
        count: 1,
        prefill_factor: 1.0,
        decode_factor: 1.0,
        slots: 1,
        model: 0,
    };
    Scenario::given(
        Model {
            name: String::new(),
            prefill_tokens_per_second: reference.0,
            prefill_slowdown: slow.reading / reference.0,
            decode_tokens_per_second: reference.1,
            decode_half_speed_context: 1.0 / slow.writing.max(1e-12),
            sharing_cost: slow.sharing,
        },
        slow.overhead,
        DETECT_S,
        horizon_s,
        Phones { classes: vec![phone], jitter: 0.0, cache_works: 1.0 },
        churn,
        Continuation::default(),
        Class::ALL.map(class).into(),
    )
}
