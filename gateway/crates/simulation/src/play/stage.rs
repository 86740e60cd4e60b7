//! What is there whoever plays: phones with their failures, requests with their times, and the account of both.
//!
//! The stage knows no policy. It is told what to start and stop, and gives news of what a gateway could notice.

use std::{collections::BTreeMap, sync::Arc};

use scheduler::Timestamp;

use super::{
    ending::Ending,
    phone::{Job, Order, Phone, Ripe},
};
use crate::{
    driver::Agenda,
    phone::PhoneSpeed,
    scenario::Scenario,
    workload::{Phase, Request, Start, Workload},
};

/// What will happen on the stage.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    /// A request comes.
    Arrives(usize),
    /// A phase of a job ends on a phone; stale if the phone has changed since.
    Due { phone: usize, version: u64 },
    /// A phone's speed changes.
    Turns(usize),
    /// A failure gets noticed, unless the phone is back.
    Noticed { phone: usize, failure: u32 },
}

/// What a gateway could notice.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// A request came.
    Arrived(usize),
    /// The first token of a copy.
    Read { phone: usize, job: Job },
    /// A copy was the first of its request to answer.
    Answered { phone: usize, job: Job },
    /// A phone is found to have failed, or to be back; with what is found to be lost on it.
    Noticed { phone: usize, up: bool, lost: Vec<Job> },
}

/// Why a copy is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Another copy answered.
    HedgeLost,
    /// Its slot is wanted for something else.
    Preempted,
}

/// Work by what became of it, in seconds of the reference phone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) answered: f64,
    pub(super) failed: f64,
    pub(super) hedged: f64,
    pub(super) preempted: f64,
    /// Reading what a perfect cache would have held; also counted above.
    pub(super) cold: f64,
}

/// What is kept of an answer whose phone failed.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    tokens: u32,
    /// Seconds of the reference phone.
    work: f64,
    /// Slot time in which it was written, seconds.
    slot_seconds: f64,
}

/// What has become of a request. Times are seconds since the start of the play; `None` if it has not come to that.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// When it came.
    pub arrived: Option<f64>,
    /// When the first token of its answer came.
    pub first_token: Option<f64>,
    /// When the whole answer was there.
    pub answered: Option<f64>,
    /// Prompt tokens that the answering phone had cached.
    pub cached: u32,
    /// Slot time that it had between the end of the warm-up and the horizon, seconds.
    pub slot_seconds: f64,
    /// Slot time that it had in all, seconds.
    pub slot_seconds_in_all: f64,
    /// Of this, what came to nothing: all of a copy that did not answer, but for the writing of what another carried on.
    pub wasted_slot_seconds: f64,
}

#[derive(Debug)]
struct Device {
    phone: Phone,
    /// Number of its present phase.
    phase: usize,
    /// When it goes down next, seconds.
    down_at: f64,
    /// Counts what makes a put-down end of a phase stale.
    version: u64,
    failures: u32,
    /// Not known to be down.
    seen_up: bool,
}

/// All that is there.
#[derive(Debug)]
pub(super) struct Stage {
    workload: Arc<Workload>,
    overhead_s: f64,
    detect_s: f64,
    horizon_s: f64,
    /// Slot time is counted in here, seconds.
    window: (f64, f64),
    devices: Vec<Device>,
    requests: Vec<Progress>,
    /// What is kept of their answers; stays empty where nothing is.
    kept: Vec<Kept>,
    /// Answers are carried on.
    keeps: bool,
    /// Where each running copy is.
    places: BTreeMap<u64, usize>,
    /// Requests without an answer that have come, or will whatever happens.
    open: usize,
    work: Work,
}

/// Seconds as a moment.
pub(super) fn moment(seconds: f64) -> Timestamp {
    Timestamp((seconds * 1e9).round() as u64)
}

/// A moment in seconds.
pub(super) fn seconds(moment: Timestamp) -> f64 {
    moment.0 as f64 * 1e-9
}

impl Stage {
    /// At time zero. Puts down all that comes by itself. `keeps`: what is written when a phone fails is kept for another.
    pub(super) fn new<H: From<Happening>>(
        scenario: &Scenario,
        workload: Arc<Workload>,
        keeps: bool,
        agenda: &mut Agenda<H>,
    ) -> Self {
        let arrivals =
            workload.requests.iter().enumerate().filter_map(|(number, request)| Some((number, request.arrival()?)));
        let mut open = 0;
        for (number, time) in arrivals {
            open += 1;
            agenda.at(moment(time), Happening::Arrives(number).into());
        }
        let reference =
            PhoneSpeed { overhead_seconds: scenario.overhead_s, ..PhoneSpeed::reference(scenario.model.speed()) };
        let phones = workload.phones.iter().map(|spec| {
            let phone = Phone::new(reference.scaled_by(spec.prefill_factor, spec.decode_factor), spec);
            Device { phone, phase: 0, down_at: f64::INFINITY, version: 0, failures: 0, seen_up: true }
        });
        let mut stage = Self {
            devices: phones.collect(),
            requests: vec![Progress::default(); workload.requests.len()],
            kept: vec![Kept::default(); workload.requests.len()],
            keeps,
            workload,
            overhead_s: scenario.overhead_s,
            detect_s: scenario.detect_s,
            horizon_s: scenario.horizon_s,
            window: (scenario.warmup_s, scenario.horizon_s),
            places: BTreeMap::new(),
            open,
            work: Work::default(),
        };
        for phone in 0..stage.devices.len() {
            stage.enter_phase(phone, 0, agenda);
        }
        stage
    }

    /// What each request costs a phone before it is read, seconds.
    pub(super) const fn overhead_s(&self) -> f64 {
        self.overhead_s
    }

    pub(super) fn request(&self, number: usize) -> Option<&Request> {
        self.workload.requests.get(number)
    }

    pub(super) fn progress(&self, request: usize) -> Option<&Progress> {
        self.requests.get(request)
    }

    pub(super) fn phone(&self, number: usize) -> Option<&Phone> {
        self.devices.get(number).map(|device| &device.phone)
    }

    /// Where a copy runs.
    pub(super) fn phone_of(&self, copy: u64) -> Option<&Phone> {
        self.places.get(&copy).and_then(|phone| self.phone(*phone))
    }

    /// It is known to have failed, and not to be back.
    pub(super) fn is_known_down(&self, phone: usize) -> bool {
        self.devices.get(phone).is_some_and(|device| !device.seen_up)
    }

    /// When a phone goes down next, seconds; now, if it is down.
    pub(super) fn down_at(&self, phone: usize) -> f64 {
        self.devices.get(phone).map_or(0.0, |device| device.down_at)
    }

    /// All requests that came are answered or refused, and no more come by themselves.
    pub(super) const fn is_over(&self) -> bool {
        self.open == 0
    }

    /// Ends the play.
    pub(super) fn ending(&mut self, now: f64) -> Ending {
        let running: Vec<Job> = self.devices.iter().flat_map(|device| device.phone.jobs()).copied().collect();
        for job in &running {
            self.count_slot_time(job, now);
        }
        Ending { requests: std::mem::take(&mut self.requests), work: self.work, end: now, ..Ending::default() }
    }

    /// Its time has come.
    pub(super) fn happen<H: From<Happening>>(&mut self, happening: Happening, agenda: &mut Agenda<H>) -> Vec<News> {
        match happening {
            Happening::Arrives(request) => self.arrive(request, agenda.now()),
            Happening::Due { phone, version } => self.due(phone, version, agenda),
            Happening::Turns(phone) => self.turn(phone, agenda),
            Happening::Noticed { phone, failure } => self.notice_failure(phone, failure, agenda.now()),
        }
    }

    fn arrive(&mut self, request: usize, now: Timestamp) -> Vec<News> {
        let Some(progress) = self.requests.get_mut(request) else { return Vec::new() };
        progress.arrived = Some(seconds(now));
        vec![News::Arrived(request)]
    }

    fn due<H: From<Happening>>(&mut self, phone: usize, version: u64, agenda: &mut Agenda<H>) -> Vec<News> {
        let now = seconds(agenda.now());
        let Some(device) = self.devices.get_mut(phone).filter(|device| device.version == version) else {
            return Vec::new();
        };
        device.phone.advance(now);
        let ripe: Vec<Ripe> = (0..device.phone.slots()).filter_map(|slot| device.phone.ripe(slot)).collect();
        self.reschedule(phone, agenda);
        let news = ripe.into_iter().filter_map(|ripe| match ripe {
            Ripe::Read(job) => {
                let progress = self.requests.get_mut(job.order.request)?;
                progress.first_token = progress.first_token.or(Some(now));
                Some(News::Read { phone, job })
            }
            Ripe::Done(job) => self.finish(&job, agenda).then_some(News::Answered { phone, job }),
        });
        news.collect()
    }

    /// Whether it is the first copy to answer.
    fn finish<H: From<Happening>>(&mut self, job: &Job, agenda: &mut Agenda<H>) -> bool {
        let now = seconds(agenda.now());
        let held = self.count_slot_time(job, now);
        self.places.remove(&job.order.copy);
        let number = job.order.request;
        let Some(progress) = self.requests.get_mut(number).filter(|progress| progress.answered.is_none()) else {
            self.work.hedged += job.work();
            self.waste_slot_time(number, held);
            return false;
        };
        progress.answered = Some(now);
        progress.cached = job.cached;
        self.work.answered += job.work();
        if job.order.written == 0 {
            self.give_up(number);
        } else if let Some(kept) = self.kept.get_mut(number) {
            self.work.answered += std::mem::take(&mut kept.work);
            kept.slot_seconds = 0.0;
        }
        self.open -= 1;
        if let Some(Start::After(think_s)) = self.request(number + 1).map(|next| next.start) {
            let next = now + think_s;
            if next < self.horizon_s {
                self.open += 1;
                agenda.at(moment(next), Happening::Arrives(number + 1).into());
            }
        }
        true
    }

    fn turn<H: From<Happening>>(&mut self, phone: usize, agenda: &mut Agenda<H>) -> Vec<News> {
        let now = seconds(agenda.now());
        let Some(phase) = self.devices.get(phone).map(|device| device.phase + 1) else { return Vec::new() };
        let factor = self.phases(phone).get(phase).map_or(1.0, |phase| phase.factor);
        self.enter_phase(phone, phase, agenda);
        let Some(device) = self.devices.get_mut(phone) else { return Vec::new() };
        let was_up = device.phone.is_up();
        let lost = device.phone.change(factor, now);
        if let Some([lost, writing]) = lost.filter(|_| was_up) {
            // What was written is counted by what becomes of it.
            self.work.failed += lost - if self.keeps { writing } else { 0.0 };
            device.failures += 1;
            agenda.at(moment(now + self.detect_s), Happening::Noticed { phone, failure: device.failures }.into());
        }
        let returned = !was_up && device.phone.is_up();
        let news = if returned { self.notice(phone, true, now) } else { Vec::new() };
        self.reschedule(phone, agenda);
        news
    }

    fn phases(&self, phone: usize) -> &[Phase] {
        self.workload.timelines.get(phone).map_or(&[], |timeline| timeline.phases())
    }

    fn enter_phase<H: From<Happening>>(&mut self, phone: usize, phase: usize, agenda: &mut Agenda<H>) {
        let coming = self.phases(phone).get(phase..).unwrap_or_default();
        let down_at = coming.iter().find(|phase| !phase.is_up()).map_or(f64::INFINITY, |phase| phase.start);
        let end = coming.first().map_or(f64::INFINITY, |phase| phase.end);
        if end.is_finite() {
            agenda.at(moment(end), Happening::Turns(phone).into());
        }
        if let Some(device) = self.devices.get_mut(phone) {
            (device.phase, device.down_at) = (phase, down_at);
        }
    }

    fn notice_failure(&mut self, phone: usize, failure: u32, now: Timestamp) -> Vec<News> {
        let same = |device: &Device| device.failures == failure && !device.phone.is_up();
        if self.devices.get(phone).is_some_and(same) { self.notice(phone, false, seconds(now)) } else { Vec::new() }
    }

    fn notice(&mut self, phone: usize, up: bool, now: f64) -> Vec<News> {
        let Some(device) = self.devices.get_mut(phone) else { return Vec::new() };
        device.seen_up = up;
        let lost = device.phone.take_lost(now);
        for job in &lost {
            self.places.remove(&job.order.copy);
            // That of its writing is counted by what becomes of it.
            let undecided = if self.keeps { job.writing_time() } else { 0.0 };
            let held = self.count_slot_time(job, now);
            self.waste_slot_time(job.order.request, held - undecided);
        }
        vec![News::Noticed { phone, up, lost }]
    }

    /// Keeps what a lost copy had written; tokens of the answer that are kept now.
    pub(super) fn keep(&mut self, job: &Job) -> u32 {
        let (number, writing_time) = (job.order.request, job.writing_time());
        let Some(kept) = self.kept.get(number).copied() else { return 0 };
        if job.written() <= kept.tokens {
            self.work.failed += job.writing_work();
            self.waste_slot_time(number, writing_time);
            return kept.tokens;
        }
        if job.order.written == 0 {
            // Another copy began anew and got further.
            self.give_up(number);
        }
        if let Some(kept) = self.kept.get_mut(number) {
            kept.tokens = job.written();
            kept.work += job.writing_work();
            kept.slot_seconds += writing_time;
        }
        job.written()
    }

    /// What is kept of an answer is of no use.
    fn give_up(&mut self, request: usize) {
        if let Some(kept) = self.kept.get_mut(request).map(std::mem::take) {
            self.work.failed += kept.work;
            self.waste_slot_time(request, kept.slot_seconds);
        }
    }

    /// Starts a copy of a request, which carries on what is kept of its answer or begins anew. False if the phone has no free
    /// slot.
    pub(super) fn start<H: From<Happening>>(
        &mut self,
        copy: u64,
        request: usize,
        phone: usize,
        carries_on: bool,
        agenda: &mut Agenda<H>,
    ) -> bool {
        if !carries_on {
            self.give_up(request);
        }
        let Some(asked) = self.workload.requests.get(request) else { return false };
        let Some(device) = self.devices.get_mut(phone) else { return false };
        let written = self.kept.get(request).map_or(0, |kept| kept.tokens);
        let (prompt, output) = (asked.prompt.extended(written), asked.output.saturating_sub(written));
        let order = Order { copy, request, prompt, written, output };
        let Some(job) = device.phone.start(order, seconds(agenda.now())) else { return false };
        let (warm, tokens) = (f64::from(asked.spared()), f64::from(prompt.tokens()));
        self.work.cold += job.reference_reading();
        self.work.cold -= device.phone.speed().model.prefill_seconds(warm, tokens);
        self.places.insert(copy, phone);
        self.reschedule(phone, agenda);
        true
    }

    /// Stops a copy, if it runs.
    pub(super) fn stop<H: From<Happening>>(&mut self, copy: u64, why: Stop, agenda: &mut Agenda<H>) {
        let now = seconds(agenda.now());
        let Some(phone) = self.places.remove(&copy) else { return };
        let Some(job) = self.devices.get_mut(phone).and_then(|device| device.phone.stop(copy, now)) else { return };
        let held = self.count_slot_time(&job, now);
        self.waste_slot_time(job.order.request, held);
        match why {
            // Its work has been counted when its phone failed, but for what could have been kept.
            _ if job.is_lost() => self.work.failed += if self.keeps { job.writing_work() } else { 0.0 },
            Stop::HedgeLost => self.work.hedged += job.work(),
            Stop::Preempted => self.work.preempted += job.work(),
        }
        self.reschedule(phone, agenda);
    }

    /// A request was refused: it will have no answer.
    pub(super) const fn refuse(&mut self) {
        self.open -= 1;
    }

    fn reschedule<H: From<Happening>>(&mut self, phone: usize, agenda: &mut Agenda<H>) {
        let Some(device) = self.devices.get_mut(phone) else { return };
        device.version += 1;
        if let Some(length) = device.phone.next() {
            let at = moment(seconds(agenda.now()) + length);
            agenda.at(at, Happening::Due { phone, version: device.version }.into());
        }
    }

    /// Counts the slot time that a copy had; seconds.
    fn count_slot_time(&mut self, job: &Job, now: f64) -> f64 {
        let (start, end) = self.window;
        let held = now - job.started;
        if let Some(progress) = self.requests.get_mut(job.order.request) {
            progress.slot_seconds += (now.min(end) - job.started.max(start)).max(0.0);
            progress.slot_seconds_in_all += held;
        }
        held
    }

    fn waste_slot_time(&mut self, request: usize, seconds: f64) {
        if let Some(progress) = self.requests.get_mut(request) {
            progress.wasted_slot_seconds += seconds;
        }
    }
}
