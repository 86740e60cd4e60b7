//! A phone at work: slots with prompt caches, and one processor that they share.
//!
//! Each request in a slot first reads, then writes, at the pace that [`Processor`] accounts for.
//!
//! The caches follow `phone::SlotCaches`, with a prompt's segments in the place of its tokens: a scenario plays thousands
//! of prompts of thousands of tokens. A slot is chosen as llama-server does: longest common prefix, if that is at least a
//! tenth of the prompt, else an empty slot, else the one unused for longest.

use crate::{
    phone::{Load, PhoneSpeed, Processor, Task},
    workload::{PhoneSpec, Prompt},
};

/// A phase ends when this little is left of it, seconds: events come at whole nanoseconds.
const REST: f64 = 1e-7;
const ALONE: Load = Load { active: 1, decoding: 1 };

/// A copy of a request, for a phone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    /// Tells copies apart.
    pub(super) copy: u64,
    /// Number of the request.
    pub(super) request: usize,
    /// With what is written of the answer behind it.
    pub(super) prompt: Prompt,
    /// Tokens of the answer that are written, and that are left to write.
    pub(super) written: u32,
    pub(super) output: u32,
}

/// A copy of a request in a slot. Seconds throughout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) order: Order,
    /// Prompt tokens found in the slot's cache.
    pub(super) cached: u32,
    pub(super) started: f64,
    /// When it had read.
    pub(super) read: Option<f64>,
    /// When its phone failed under it.
    lost_at: Option<f64>,
    /// Its present phase.
    task: Task,
    /// Reading, the fixed overhead included, and writing: alone on this phone at full speed.
    alone: [f64; 2],
    /// The same without the overhead on the reference phone.
    reference: [f64; 2],
    /// The phone's time that it got while reading.
    pub(super) reading_share: f64,
}

impl Job {
    /// Its phone failed.
    pub(super) const fn is_lost(&self) -> bool {
        self.task.lost
    }

    /// Reading what was not cached, on the reference phone.
    pub(super) const fn reference_reading(&self) -> f64 {
        self.reference[0]
    }

    /// What has been done of it, in seconds of the reference phone.
    pub(super) fn work(&self) -> f64 {
        let [reading, writing] = self.reference;
        match self.read {
            None => reading * self.share_done(),
            Some(_) => reading + writing * self.share_done(),
        }
    }

    /// Of this, the writing.
    pub(super) fn writing_work(&self) -> f64 {
        if self.read.is_some() { self.reference[1] * self.share_done() } else { 0.0 }
    }

    /// How long it wrote before its phone failed; 0 if that has not come to pass.
    pub(super) fn writing_time(&self) -> f64 {
        self.read.zip(self.lost_at).map_or(0.0, |(from, to)| to - from)
    }

    /// Tokens of the answer that are written by now.
    pub(super) fn written(&self) -> u32 {
        let share = if self.read.is_some() { self.share_done() } else { 0.0 };
        self.order.written + (share * f64::from(self.order.output)) as u32
    }

    /// Of its present phase.
    fn share_done(&self) -> f64 {
        let whole = self.alone[usize::from(self.read.is_some())];
        if whole > 0.0 { (1.0 - self.task.left.max(0.0) / whole).clamp(0.0, 1.0) } else { 1.0 }
    }

    /// Prompt tokens that its slot holds now.
    fn held(&self) -> u32 {
        let share = if self.read.is_some() { 1.0 } else { self.share_done() };
        let unread = f64::from(self.order.prompt.tokens() - self.cached);
        (f64::from(self.cached) + share * unread) as u32
    }
}

/// A phase of a job has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ripe {
    /// It has read; the first token is there.
    Read(Job),
    /// It is answered, and out of its slot.
    Done(Job),
}

#[derive(Clone, Debug, Default)]
struct Slot {
    cache: Option<Prompt>,
    /// When it was last taken or left, seconds.
    used: f64,
    job: Option<Job>,
}

#[derive(Clone, Debug)]
pub(super) struct Phone {
    processor: Processor,
    remembers: bool,
    slots: Vec<Slot>,
}

impl Phone {
    pub(super) fn new(speed: PhoneSpeed, spec: &PhoneSpec) -> Self {
        let slots = vec![Slot::default(); spec.slots];
        Self { processor: Processor::new(speed), remembers: spec.remembers, slots }
    }

    pub(super) fn is_up(&self) -> bool {
        self.processor.pace() > 0.0
    }

    /// Its own speed.
    pub(super) const fn speed(&self) -> &PhoneSpeed {
        self.processor.speed()
    }

    /// Present speed as a share of its own; 0 while it is down.
    pub(super) const fn factor(&self) -> f64 {
        self.processor.pace()
    }

    /// Its prompt cache works.
    pub(super) const fn remembers(&self) -> bool {
        self.remembers
    }

    pub(super) const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// What is in its slots.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.slots.iter().filter_map(|slot| slot.job.as_ref())
    }

    fn load(&self) -> Load {
        Load::of(self.jobs().map(|job| &job.task))
    }

    /// Lets time pass.
    pub(super) fn advance(&mut self, now: f64) {
        let stretch = self.processor.advance(now, self.load());
        for job in self.slots.iter_mut().filter_map(|slot| slot.job.as_mut()) {
            if job.read.is_none() {
                job.reading_share += stretch.reading();
            }
            job.task.pass(&stretch);
        }
    }

    /// How long until a phase of a job ends; `None` if none will as things are.
    pub(super) fn next(&self) -> Option<f64> {
        let load = self.load();
        self.jobs().filter_map(|job| self.processor.lasts(&job.task, load)).min_by(f64::total_cmp)
    }

    /// What each slot's job is to be told after `advance`, slot by slot.
    pub(super) fn ripe(&mut self, slot: usize) -> Option<Ripe> {
        let now = self.processor.now();
        let slot = self.slots.get_mut(slot)?;
        let job = slot.job.as_mut().filter(|job| !job.task.lost && job.task.left <= REST)?;
        if job.read.is_none() {
            job.read = Some(now);
            job.task = Task { left: job.alone[1], writes: true, lost: false };
            return Some(Ripe::Read(*job));
        }
        let job = slot.job.take()?;
        slot.cache = Some(job.order.prompt.extended(job.order.output));
        slot.used = now;
        Some(Ripe::Done(job))
    }

    /// Takes a request; `None` if all slots are busy. One that comes while the phone is down is lost, and nobody knows yet.
    pub(super) fn start(&mut self, order: Order, now: f64) -> Option<&Job> {
        self.advance(now);
        let (up, speed) = (self.is_up(), *self.speed());
        let index = self.best_slot(&order.prompt)?;
        let tokens = order.prompt.tokens();
        let slot = self.slots.get_mut(index)?;
        let found = slot.cache.as_ref().map_or(0, |cache| cache.common(&order.prompt));
        let cached = if self.remembers { found.min(tokens.saturating_sub(1)) } else { 0 };
        let (from, to, output) = (f64::from(cached), f64::from(tokens), f64::from(order.output));
        let model = &speed.model;
        let reading = speed.overhead_seconds + speed.prefill_seconds(from, to, ALONE);
        let job = Job {
            order,
            cached,
            started: now,
            read: None,
            lost_at: None,
            task: Task { left: reading, writes: false, lost: !up },
            alone: [reading, speed.decode_seconds(to, output, ALONE)],
            reference: [model.prefill_seconds(from, to), model.decode_seconds(to, output)],
            reading_share: 0.0,
        };
        slot.used = now;
        Some(slot.job.insert(job))
    }

    fn best_slot(&self, prompt: &Prompt) -> Option<usize> {
        let (mut warmest, mut longest) = (None, 0);
        let (mut coldest, mut oldest) = (None, f64::INFINITY);
        for (index, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.job.is_none()) {
            let common = slot.cache.as_ref().map_or(0, |cache| cache.common(prompt));
            if common > longest && u64::from(common) * 10 >= u64::from(prompt.tokens()) {
                (warmest, longest) = (Some(index), common);
            }
            let used = if slot.cache.is_some() { slot.used } else { -1.0 };
            if used < oldest {
                (coldest, oldest) = (Some(index), used);
            }
        }
        warmest.or(coldest)
    }

    /// Stops a copy. The slot keeps what has been read; `None` if the copy is not here.
    pub(super) fn stop(&mut self, copy: u64, now: f64) -> Option<Job> {
        self.advance(now);
        let up = self.is_up();
        let holds = |slot: &&mut Slot| slot.job.as_ref().is_some_and(|job| job.order.copy == copy);
        let slot = self.slots.iter_mut().find(holds)?;
        let job = slot.job.take()?;
        if up && !job.task.lost {
            slot.cache = Some(job.order.prompt.truncated(job.held()));
            slot.used = now;
        }
        Some(job)
    }

    /// Changes its speed; 0 is down. Going down loses all jobs and caches: gives what had been done of the jobs, if so, and what
    /// of that was writing.
    pub(super) fn change(&mut self, factor: f64, now: f64) -> Option<[f64; 2]> {
        self.advance(now);
        self.processor.set_pace(factor);
        if factor > 0.0 {
            return None;
        }
        let mut lost = [0.0; 2];
        for slot in &mut self.slots {
            slot.cache = None;
            if let Some(job) = slot.job.as_mut().filter(|job| !job.task.lost) {
                job.task.lost = true;
                job.lost_at = Some(now);
                lost = [lost[0] + job.work(), lost[1] + job.writing_work()];
            }
        }
        Some(lost)
    }

    /// Takes the lost jobs out of their slots: someone noticed.
    pub(super) fn take_lost(&mut self, now: f64) -> Vec<Job> {
        self.advance(now);
        let lost = |slot: &mut Slot| slot.job.take_if(|job| job.task.lost);
        self.slots.iter_mut().filter_map(lost).collect()
    }

    /// Seconds of reading and writing left to a copy at that moment, alone at the phone's present speed; `None` if it is
    /// not here, or lost.
    pub(super) fn remaining(&self, copy: u64, now: f64) -> Option<(f64, f64)> {
        let job = self.jobs().find(|job| job.order.copy == copy).filter(|job| !job.task.lost && self.is_up())?;
        let left = self.processor.left_after(&job.task, self.load(), now - self.processor.now());
        let (reading, writing) = if job.read.is_some() { (0.0, left) } else { (left, job.alone[1]) };
        Some((reading / self.factor(), writing / self.factor()))
    }
}

#[cfg(test)]
mod tests;
