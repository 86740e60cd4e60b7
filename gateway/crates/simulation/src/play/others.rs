//! What others do: load balancers that choose at once, and a plain central queue.
//!
//! The first send each request on at once, and it queues at its phone; a failed phone's requests are sent on again. The
//! second keeps them until a phone is idle. Neither is given less than it has in life: they hear of failures as soon as the
//! core does, retry without limit, and those that weigh by speed measure it.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use scheduler::Timestamp;

use super::{
    balancer::{Balancer, Seen},
    beliefs::Beliefs,
    ending::Ending,
    phone::Job,
    player::Early,
    stage::{Happening, News, Stage, moment, seconds},
};
use crate::{driver::Agenda, scenario::Scenario, workload::Workload};

/// Weight of a new measurement of a phone's speed, at least and at most; more the longer the reading was.
const WEIGHT: f64 = 0.3;
const LEAST_OF_WEIGHT: f64 = 0.2;
/// Readings shorter than this measure the overhead, seconds of the reference phone.
const MEASURABLE_S: f64 = 0.05;
/// What a measurement is believed to show at all, as a share of the reference phone's speed.
const CREDIBLE: (f64, f64) = (0.005, 5.0);

/// How requests find their phone.
#[derive(Debug)]
pub(super) enum Way {
    /// At once.
    Early(Early),
    /// In order of arrival, each to the fastest phone, when that has nothing else to do.
    Central,
}

/// Plays until all is answered, or for as long as the scenario is played.
pub(super) fn play(scenario: &Scenario, workload: &Arc<Workload>, way: &Way) -> Ending {
    let mut agenda = Agenda::default();
    let stage = Stage::new(scenario, Arc::clone(workload), false, &mut agenda);
    let beliefs = Beliefs::draw(scenario, workload);
    let seen: Vec<Seen> = beliefs.speeds.iter().map(|(reads, _)| Seen::new(*reads)).collect();
    let desk = match way {
        Way::Early(choice) => Desk::Early {
            balancer: Balancer::new(*choice, beliefs.rng),
            queues: vec![VecDeque::new(); seen.len()],
            stranded: Vec::new(),
        },
        Way::Central => Desk::Central { waiting: BTreeSet::new(), changed: false },
    };
    let until = moment(scenario.until_s());
    let mut office = Office { stage, agenda, seen, desk, copies: 0 };
    while !office.stage.is_over() && office.agenda.next().is_some_and(|next| next <= until) {
        office.step();
    }
    let now = if office.stage.is_over() { office.agenda.now() } else { until };
    office.stage.ending(seconds(now))
}

#[derive(Debug)]
enum Desk {
    Early {
        balancer: Balancer,
        /// By phone.
        queues: Vec<VecDeque<usize>>,
        /// They came while no phone was up.
        stranded: Vec<usize>,
    },
    Central {
        waiting: BTreeSet<(Timestamp, usize)>,
        /// Something came, or a phone is free.
        changed: bool,
    },
}

#[derive(Debug)]
struct Office {
    stage: Stage,
    agenda: Agenda<Happening>,
    seen: Vec<Seen>,
    desk: Desk,
    copies: u64,
}

impl Office {
    fn step(&mut self) {
        let Some(happening) = self.agenda.advance() else { return };
        for news in self.stage.happen(happening, &mut self.agenda) {
            self.hear(news);
        }
        // A batch comes at one moment, and is looked at as one.
        if self.agenda.next() != Some(self.agenda.now()) {
            self.serve_waiting();
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Arrived(request) => self.take(request),
            News::Read { phone, job } => self.measure(phone, &job),
            News::Answered { phone, job } => self.freed(phone, &job),
            News::Noticed { phone, up, lost } => self.noticed(phone, up, &lost),
        }
    }

    /// A request that came, or was lost.
    fn take(&mut self, request: usize) {
        let now = seconds(self.agenda.now());
        match &mut self.desk {
            Desk::Central { waiting, changed } => {
                let arrived = self.stage.progress(request).and_then(|progress| progress.arrived);
                waiting.insert((moment(arrived.unwrap_or(now)), request));
                *changed = true;
            }
            Desk::Early { balancer, queues, stranded } => {
                let prompt = self.stage.request(request).map(|request| request.prompt).unwrap_or_default();
                let Some(phone) = balancer.choose(&mut self.seen, &prompt, now) else { return stranded.push(request) };
                self.copies += 1;
                if let Some(seen) = self.seen.get_mut(phone) {
                    seen.in_flight += 1;
                }
                let started = self.stage.start(self.copies, request, phone, false, &mut self.agenda);
                if let Some(queue) = queues.get_mut(phone).filter(|_| !started) {
                    queue.push_back(request);
                }
            }
        }
    }

    fn measure(&mut self, phone: usize, job: &Job) {
        let reference_s = job.reference_reading();
        let Some(seen) = self.seen.get_mut(phone).filter(|_| reference_s > MEASURABLE_S) else { return };
        let own_s = (job.reading_share - self.stage.overhead_s()).max(0.02);
        let speed = (reference_s / own_s).clamp(CREDIBLE.0, CREDIBLE.1);
        let weight = WEIGHT * reference_s.clamp(LEAST_OF_WEIGHT, 1.0);
        seen.speed = ((1.0 - weight) * seen.speed.ln() + weight * speed.ln()).exp();
    }

    fn freed(&mut self, phone: usize, job: &Job) {
        self.left(phone, job);
        match &mut self.desk {
            Desk::Central { changed, .. } => *changed = true,
            Desk::Early { queues, .. } => {
                if let Some(next) = queues.get_mut(phone).and_then(VecDeque::pop_front) {
                    self.copies += 1;
                    self.stage.start(self.copies, next, phone, false, &mut self.agenda);
                }
            }
        }
    }

    fn left(&mut self, phone: usize, job: &Job) {
        let now = seconds(self.agenda.now());
        if let Some(seen) = self.seen.get_mut(phone) {
            seen.in_flight -= 1;
            seen.answered_after(now - job.started, now);
        }
    }

    fn noticed(&mut self, phone: usize, up: bool, lost: &[Job]) {
        for job in lost {
            self.left(phone, job);
        }
        let mut again: Vec<usize> = lost.iter().map(|job| job.order.request).collect();
        if let Some(seen) = self.seen.get_mut(phone) {
            seen.turned(up);
        }
        match &mut self.desk {
            Desk::Central { changed, .. } => *changed = true,
            Desk::Early { queues, stranded, .. } => {
                let queued = queues.get_mut(phone).map(std::mem::take).unwrap_or_default();
                if let Some(seen) = self.seen.get_mut(phone) {
                    seen.in_flight -= queued.len();
                }
                again.extend(queued);
                again.append(stranded);
            }
        }
        for request in again {
            self.take(request);
        }
    }

    /// The central queue gives to idle phones what waits longest.
    fn serve_waiting(&mut self) {
        let Desk::Central { waiting, changed } = &mut self.desk else { return };
        if !std::mem::take(changed) {
            return;
        }
        while let Some((_, request)) = waiting.first().copied() {
            let idle = self.seen.iter_mut().enumerate().filter(|(_, seen)| seen.up && seen.in_flight == 0);
            let Some((phone, seen)) = idle.max_by(|a, b| a.1.speed.total_cmp(&b.1.speed)) else { return };
            waiting.pop_first();
            seen.in_flight += 1;
            self.copies += 1;
            self.stage.start(self.copies, request, phone, false, &mut self.agenda);
        }
    }
}
