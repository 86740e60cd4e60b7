//! What would have been, with other phones: the scheduler itself serves what came, in virtual time, on phones as fast as those
//! that are there were measured to be, with the same coming and going.
//!
//! One play is a stretch of what came, and of the absences of phones: it says as much about these as about the number of phones. So
//! the plays of a number take other stretches, spread evenly over what came, and absences as often as they are.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use scheduler::{Class, Measured, Pace, ReplicaId, Span, Timestamp, Usage};

use super::{Backlog, Objectives, churn, trace::Trace, up};
use crate::{
    play::{Progress, rehearse},
    rng::Rng,
    scenario::{
        Arrivals, Churn, Class as Kind, Continuation, Key, Length, Model, PhoneClass, Phones, Scenario, Template,
    },
    workload::{PhoneSpec, Request, Timeline, Workload},
};

/// Seconds until a gateway finds that a phone is gone: a probe's interval and patience.
const DETECT_S: f64 = 15.0;
/// Caches, and what waits, are as they will be after this long.
const WARM_S: f64 = 600.0;
/// But no more than this share of a play is for getting there.
const WARM_SHARE: f64 = 0.4;
/// Times that everything that came is played again in one play, at most.
const MOST_PASSES: f64 = 4.0;
/// A play is no longer than this: long enough for phones to go away and come back.
const LONGEST_S: f64 = 4.0 * 3600.0;
/// A cache that finds less of what it should is taken for none.
const REMEMBERS: f64 = 0.5;
/// Streams that share a phone get so many times the work done that one does: how fast lines are done is estimated from that.
const COMPANY: f64 = 1.3;
/// No absence is longer than so many of mean length.
const LONG_ABSENCE: f64 = 5.0;
/// Where successive plays begin: the golden ratio spreads any number of them evenly.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// One model's work, and what its phones are.
#[derive(Debug)]
pub(super) struct Rehearsal<'a> {
    usage: &'a Usage,
    objectives: &'a Objectives,
    pub(super) trace: Trace,
    scenario: Scenario,
    most_requests: usize,
    /// Lines of batches that wait, and how many of them have to be done per second.
    lines: (u64, f64),
    /// What a line takes of a phone in the middle, in seconds.
    line_s: f64,
    /// Phones' time that requests take, those of batches left out, per second.
    load: f64,
    /// Classes that count, by number.
    pub(super) counts: [bool; Class::ALL.len()],
}

/// What came of one play or several with one number of phones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Score {
    /// Requests in time, and all, by class; of batches, lines done and lines due.
    pub(super) met: [(f64, f64); Class::ALL.len()],
    /// The same in the five minutes of the play in which most came.
    pub(super) at_peak: [(f64, f64); Class::ALL.len()],
}

impl<'a> Rehearsal<'a> {
    pub(super) fn new(
        usage: &'a Usage,
        objectives: &'a Objectives,
        backlog: &[Backlog],
        reference: (f64, f64),
        most_requests: usize,
    ) -> Self {
        let trace = Trace::of(usage, !backlog.is_empty());
        let came = |class: Class| trace.requests.iter().any(|request| request.class == class as usize);
        let has_lines = trace.has_lines() && !backlog.is_empty();
        let counts = Class::ALL.map(|class| match class {
            Class::Batch => has_lines,
            class => objectives.of(class).is_some() && came(class),
        });
        let scenario = scenario(usage, &trace, reference);
        let mut rehearsal =
            Self { usage, objectives, trace, scenario, most_requests, lines: (0, 0.0), line_s: 0.0, load: 0.0, counts };
        let seconds = rehearsal.trace.requests.iter().map(|request| rehearsal.alone(request, reference).1).sum::<f64>();
        rehearsal.load = seconds / rehearsal.trace.length_s;
        if has_lines {
            let sample: Vec<f64> =
                rehearsal.trace.lines(64, 0).map(|line| rehearsal.alone(&line, reference).1).collect();
            rehearsal.line_s = sample.iter().sum::<f64>() / sample.len().max(1) as f64;
            let waiting = backlog.iter().map(|batch| batch.lines).sum();
            // The last of them takes as long as a line takes, however many phones there are.
            let left = |batch: &Backlog| (batch.left_s - rehearsal.line_s).max(batch.left_s / 2.0);
            let due = backlog.iter().map(|batch| batch.lines as f64 / left(batch)).sum();
            rehearsal.lines = (waiting, due);
        }
        rehearsal
    }

    /// Play number `number` of so many phones, which are these. `hurry`: everything comes so many times as fast.
    pub(super) fn play(&self, phones: &[Measured], number: u64, hurry: f64) -> Score {
        let lines_per_s = self.lines_per_s_with(phones.len(), hurry);
        let (warm_s, until_s) = self.times_s(lines_per_s, hurry);
        let from_s = (number as f64 * GOLDEN).fract() * self.trace.length_s;
        let mut requests = self.trace.stretch(from_s, until_s, hurry);
        let lines_from = requests.len();
        // Twice what is thought to be done: while a batch waits, it does.
        let offered = (2.0 * lines_per_s * until_s).ceil().min(self.lines.0 as f64) as usize;
        requests.extend(self.trace.lines(offered, number));
        let longest = self.objectives.longest_s();
        let reference = (self.scenario.model.prefill_tokens_per_second, self.scenario.model.decode_tokens_per_second);
        let end_s = until_s + longest + 1.0;
        let timelines = self.timelines(phones, (from_s, hurry), end_s, number);
        let phones: Vec<PhoneSpec> = phones.iter().map(|phone| spec(phone, reference)).collect();
        let mut scenario = self.scenario.clone();
        scenario.horizon_s = until_s;
        let workload = Arc::new(Workload { phones, timelines, requests, seed: number });
        let served = rehearse(&scenario, &workload, end_s);
        let (came, lines) = served.split_at(lines_from.min(served.len()));
        let mut score = Score::default();
        for class in [Class::Interactive, Class::Standard] {
            let times = self.times(class, came, &workload.requests, (warm_s, until_s), end_s);
            score.met[class as usize] = count(&times);
            score.at_peak[class as usize] = busiest(&times);
        }
        if self.counts[Class::Batch as usize] {
            score.met[Class::Batch as usize] = self.lines_done(lines, (warm_s, until_s), hurry);
        }
        score
    }

    /// Lines that were done while any waited, and how many were due in that time.
    fn lines_done(&self, lines: &[Progress], (warm_s, until_s): (f64, f64), hurry: f64) -> (f64, f64) {
        let last_s = lines.iter().map(|line| line.answered.unwrap_or(until_s)).fold(0.0, f64::max).min(until_s);
        let from_s = if last_s > 2.0 * warm_s { warm_s } else { 0.0 };
        let within = |line: &&Progress| line.answered.is_some_and(|at| (from_s..=last_s).contains(&at));
        (lines.iter().filter(within).count() as f64, self.lines.1 * hurry * (last_s - from_s))
    }

    /// When a play begins to count, and when it ends.
    fn times_s(&self, lines_per_s: f64, hurry: f64) -> (f64, f64) {
        let per_s = self.trace.requests.len() as f64 / self.trace.length_s * hurry + lines_per_s;
        let passes = if self.trace.requests.is_empty() { LONGEST_S } else { MOST_PASSES * self.trace.length_s };
        let mut until_s = (self.most_requests as f64 / per_s.max(1e-9)).min(passes).min(LONGEST_S);
        if lines_per_s > 0.0 {
            // No longer than lines wait, but for a few, which are soon done.
            until_s = until_s.min((self.lines.0 as f64 / lines_per_s).max(WARM_S));
        }
        (WARM_S.min(WARM_SHARE * until_s), until_s)
    }

    /// Lines that so many phones do in a second, beside all else.
    fn lines_per_s_with(&self, phones: usize, hurry: f64) -> f64 {
        if self.line_s <= 0.0 {
            return 0.0;
        }
        let all = phones as f64 * up(self.usage);
        COMPANY * (all - self.load * hurry).max(0.1 * all) / self.line_s
    }

    /// How fast phones are when: as they were when the stretch that is played came, and away as often as phones are. Where one stands
    /// for several, the others are as it was at other times.
    pub(super) fn timelines(
        &self,
        phones: &[Measured],
        (from_s, hurry): (f64, f64),
        until_s: f64,
        number: u64,
    ) -> Vec<Timeline> {
        let mut copies: BTreeMap<ReplicaId, u64> = BTreeMap::new();
        let of = |(place, phone): (usize, &Measured)| {
            let copy = copies.entry(phone.replica).or_default();
            let late_s = (*copy as f64 * GOLDEN).fract() * self.trace.length_s;
            *copy += 1;
            let pace = phone.pace.as_ref().map_or_else(Vec::new, |pace| {
                let spans = (until_s / Pace::SECONDS).ceil() as u32;
                let starts = (0..spans).map(|span| f64::from(span) * Pace::SECONDS);
                starts.map(|start| (start, pace.at(self.moment(from_s + late_s + start * hurry)))).collect()
            });
            Timeline::overlaid(&[pace, self.absences(place, until_s, number)])
        };
        phones.iter().enumerate().map(of).collect()
    }

    /// When that was of what comes again and again.
    fn moment(&self, at_s: f64) -> Timestamp {
        self.usage.since + Duration::from_secs_f64(at_s.rem_euclid(self.trace.length_s))
    }

    /// When a phone goes away in a play and comes back. It goes on where it was in the play before; and in each life and absence of
    /// mean length, an absence begins at any time, but it does, and long ones are as frequent as they are: drawn freely, they would be
    /// missing in many a play, and few plays have to say what comes of all.
    pub(super) fn absences(&self, phone: usize, until_s: f64, number: u64) -> Vec<(f64, f64)> {
        let Some(Churn { mean_up_s, mean_down_s }) = self.scenario.churn else { return Vec::new() };
        let (from_s, period_s) = (number as f64 * until_s, mean_up_s + mean_down_s);
        let begin = ((from_s - LONG_ABSENCE * mean_down_s) / period_s).max(0.0) as u64;
        let end = ((from_s + until_s) / period_s).ceil() as u64;
        let which = Rng::new(phone as u64, "away").unit();
        let mut changes: Vec<(f64, f64)> = Vec::new();
        for period in begin..end {
            let free = Rng::new(period, &format!("phone:{phone}:away")).unit();
            let goes_s = (period as f64 + free) * period_s - from_s;
            let long = (which + period as f64 * GOLDEN).fract();
            let comes_s = goes_s - mean_down_s * (1.0 - long).ln().max(-LONG_ABSENCE);
            match changes.last_mut() {
                _ if comes_s <= 0.0 => {}
                // It is away already.
                Some((comes, _)) if *comes >= goes_s => *comes = comes.max(comes_s),
                _ => changes.extend([(goes_s.max(0.0), 0.0), (comes_s, 1.0)]),
            }
        }
        changes
    }

    /// When requests of a class came, and whether they met their objective.
    fn times(
        &self,
        class: Class,
        served: &[Progress],
        requests: &[Request],
        (from_s, until_s): (f64, f64),
        end_s: f64,
    ) -> Vec<(f64, bool)> {
        let Some(objective) = self.objectives.of(class) else { return Vec::new() };
        let of_class = served.iter().zip(requests).filter(|(_, request)| request.class == class as usize);
        let times = of_class.filter_map(|(progress, _)| {
            let arrived = progress.arrived.filter(|arrived| (from_s..until_s).contains(arrived))?;
            Some((arrived, progress.first_token.unwrap_or(end_s) - arrived <= objective.ttft_s))
        });
        times.collect()
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
    pub(super) const fn lines_per_s(&self) -> f64 {
        self.lines.1
    }

    /// The work of a line on a phone in the middle, in seconds.
    pub(super) const fn line_s(&self) -> f64 {
        self.line_s
    }
}

/// How many are true, and how many there are.
fn count(times: &[(f64, bool)]) -> (f64, f64) {
    (times.iter().filter(|(_, good)| *good).count() as f64, times.len() as f64)
}

/// The same of the five minutes in which most came.
fn busiest(times: &[(f64, bool)]) -> (f64, f64) {
    let mut spans: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for (arrived, good) in times {
        let (met, all) = spans.entry((arrived / Span::SECONDS) as u64).or_default();
        (*met, *all) = (*met + f64::from(u8::from(*good)), *all + 1.0);
    }
    spans.into_values().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
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

fn scenario(usage: &Usage, trace: &Trace, reference: (f64, f64)) -> Scenario {
    let slow = &usage.slowdown;
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
        LONGEST_S,
        Phones { classes: vec![phone], jitter: 0.0, cache_works: 1.0 },
        churn(usage),
        Continuation::default(),
        Class::ALL.map(class).into(),
    )
}
