//! Slots that are taken although no attempt of ours runs in them: by work that was broken off here and may go on there, and
//! by work of others.
//!
//! Engines that should stop when their connection closes often do so late: a prompt is read to the end of its batch, or to
//! its own end while a neighbour writes; some never notice. Work sent there meanwhile waits in the engine's own queue, which
//! is blind and can't be left. So a cancel is believed only when it is seen: a look at the engine's list of slots, or where
//! there is none, the time that the work would have taken. A look counts; it names nobody. What it shows is set against what
//! may explain it, and every doubt is decided for "still taken": a slot that is given again too late costs a moment, one given
//! too early costs a request minutes. Rejected: asking the list which request is whose (there is no number that both sides
//! know), and ending the old work by another request (not every engine has one).

use std::time::Duration;

use crate::{
    event::{Release, ReplicaSpec},
    time::Timestamp,
};

/// From a break-off to the first look. Engines stop writing at the next token, within 20 ms; the rest is the way there.
const FIRST_LOOK: Duration = Duration::from_millis(250);
/// From one look to the next. An engine looks for clients that hung up once a second, and every question puts that off: asked
/// each second it would never find out.
const NEXT_LOOK: Duration = Duration::from_secs(2);
/// Looks are never closer together, whatever they are for.
const CLOSEST: Duration = Duration::from_secs(1);
/// While only work of others is there. They come and go as they like; this often costs the phone nothing.
const LOOK_AT_OTHERS: Duration = Duration::from_secs(10);
/// A look that was not answered by then never will be: probes give up sooner.
const LOST: Duration = Duration::from_secs(10);
/// A look this old still says how a replica comes into service.
const FRESH: Duration = Duration::from_secs(2);
/// What is expected of work that stops at its next token, and the least that is expected of any that is still there.
const SOON: Duration = Duration::from_millis(300);
/// How long the work of others goes on, as far as anybody knows: a long request of this pool's own kind.
const FOREIGN: f64 = 60.0;

/// Work that was broken off and may go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BrokenOff {
    /// When it was sent.
    pub(crate) began: Timestamp,
    /// When it was broken off.
    pub(crate) since: Timestamp,
    /// When it has probably ended.
    pub(crate) expected: Timestamp,
    /// When its slot is given again, whatever is seen or not.
    pub(crate) until: Timestamp,
}

impl BrokenOff {
    /// Broken off now; `writes`: its answer had begun.
    pub(crate) fn new(began: Timestamp, rest: Duration, writes: bool, bound: Duration, now: Timestamp) -> Self {
        let expected = now + if writes { rest.min(SOON) } else { rest };
        Self { began, since: now, expected, until: now + bound }
    }

    /// The same of an engine that works on to the end.
    pub(crate) fn runs_on(began: Timestamp, rest: Duration, bound: Duration, now: Timestamp) -> Self {
        Self { began, since: now, expected: now + rest, until: now + bound }
    }
}

/// What a look showed, beside what is known here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    /// Slots that work.
    pub(crate) busy: usize,
    pub(crate) asked: Timestamp,
    /// Attempts of ours that run now, those of them that surely had a slot at the moment of the look, and of these the ones
    /// whose answers were arriving.
    pub(crate) running: usize,
    pub(crate) surely: usize,
    pub(crate) writing: usize,
    /// An attempt of ours ended after the question was sent: the look may show it.
    pub(crate) blurred: bool,
    pub(crate) slots: u16,
}

/// The slots of one replica that work for nobody here.
#[derive(Debug)]
pub(crate) struct Lingering {
    /// The oldest first.
    broken_off: Vec<BrokenOff>,
    /// Slots that work for others: seen in two looks in a row.
    foreign: u16,
    /// What the last look showed beyond ours.
    beyond: u16,
    /// Its slots were not seen since then, when it was last out of service: what it works on is anybody's guess.
    unseen: Option<Timestamp>,
    /// When it was last asked.
    asked: Option<Timestamp>,
    /// A look was asked for and not answered yet.
    looking: bool,
}

impl Default for Lingering {
    fn default() -> Self {
        let unseen = Some(Timestamp::ZERO);
        Self { broken_off: Vec::new(), foreign: 0, beyond: 0, unseen, asked: None, looking: false }
    }
}

impl Lingering {
    /// Slots of work that was broken off.
    pub(crate) fn count(&self) -> usize {
        self.broken_off.len()
    }

    /// Slots that work for others.
    pub(crate) fn foreign(&self) -> u16 {
        self.foreign
    }

    /// Nothing is known of its slots; a look is under way or will be.
    pub(crate) fn is_unseen(&self) -> bool {
        self.unseen.is_some()
    }

    /// Seconds of work expected of each slot that is taken.
    pub(crate) fn left(&self, now: Timestamp) -> impl Iterator<Item = f64> + '_ {
        let broken_off = self.broken_off.iter().map(move |work| work.expected.since(now).max(SOON).as_secs_f64());
        broken_off.chain((0..self.foreign).map(|_| FOREIGN))
    }

    pub(crate) fn add(&mut self, work: BrokenOff) {
        self.broken_off.push(work);
    }

    /// The bound of some has passed.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        self.broken_off.retain(|work| work.until > now);
    }

    /// An engine that works on one thing at a time gave the whole answer to what was sent at `began`: what was sent before
    /// is done.
    pub(crate) fn answered(&mut self, began: Timestamp) {
        self.broken_off.retain(|work| work.began >= began);
    }

    /// Out of service: what it worked on went with it, or shows in the first look when it is back.
    pub(crate) fn leave(&mut self, now: Timestamp) {
        *self = Self { unseen: Some(now), asked: self.asked, looking: self.looking, ..Self::default() };
    }

    /// (Back) in service.
    pub(crate) fn enter(&mut self, now: Timestamp) {
        let age = self.asked.map_or(Duration::MAX, |asked| now.since(asked));
        self.looking &= age < LOST;
        if age > FRESH {
            self.unseen.get_or_insert(now);
            (self.foreign, self.beyond) = (0, 0);
        }
    }

    /// Its description is another one now.
    pub(crate) fn described(&mut self, before: &ReplicaSpec, now: &ReplicaSpec) {
        self.foreign = self.foreign.min(now.slots);
        match now.release {
            release if release == before.release => {}
            Release::AtOnce => *self = Self { asked: self.asked, ..Self::default() },
            Release::RunsOn => (self.foreign, self.beyond, self.looking) = (0, 0, false),
            Release::Shown => self.unseen = Some(Timestamp::ZERO),
        }
    }

    /// When the next bound passes.
    pub(crate) fn next_bound(&self) -> Option<Timestamp> {
        self.broken_off.iter().map(|work| work.until).min()
    }

    /// When the next look is due, or the one that is under way is given up.
    pub(crate) fn next_look(&self, now: Timestamp) -> Option<Timestamp> {
        let after = |pause: Duration| self.asked.map_or(now, |asked| asked + pause);
        if self.looking {
            return Some(after(LOST));
        }
        if self.unseen.is_some() {
            return Some(after(CLOSEST));
        }
        let newest = self.broken_off.last().map(|work| work.since);
        match newest {
            Some(since) if self.asked.is_none_or(|asked| asked <= since) => {
                Some((since + FIRST_LOOK).max(after(CLOSEST)))
            }
            Some(_) => Some(after(NEXT_LOOK)),
            None if self.beyond > self.foreign => Some(after(NEXT_LOOK)),
            None => (self.foreign > 0).then(|| after(LOOK_AT_OTHERS)),
        }
    }

    /// The time of the next look has come. Whether to ask for it.
    pub(crate) fn look(&mut self, now: Timestamp) -> bool {
        if std::mem::take(&mut self.looking) {
            // Nobody says any more that others work there, and a replica that can't be asked is tried.
            (self.foreign, self.beyond, self.unseen) = (0, 0, None);
        }
        let due = self.next_look(now).is_some_and(|at| at <= now);
        if due {
            (self.looking, self.asked) = (true, Some(now));
        }
        due
    }

    pub(crate) fn see(&mut self, sight: &Sight) {
        let asked = sight.asked;
        self.looking &= self.asked.is_some_and(|last| asked < last);
        self.asked = self.asked.max(Some(asked));
        if sight.busy < sight.writing {
            // A list that does not have what arrives here is not this engine's, or of another moment.
            return;
        }
        let may_go_on = sight.busy.saturating_sub(sight.surely);
        let before = self.broken_off.iter().filter(|work| work.since < asked).count();
        let mut seen_free = before.saturating_sub(may_go_on);
        self.broken_off.retain(|work| {
            let free = work.since < asked && seen_free > 0;
            seen_free -= usize::from(free);
            !free
        });
        self.see_others(sight);
    }

    fn see_others(&mut self, sight: &Sight) {
        let slots = |count: usize| u16::try_from(count).unwrap_or(u16::MAX).min(sight.slots);
        let most = slots(sight.busy.saturating_sub(sight.surely));
        self.foreign = self.foreign.min(most);
        if sight.blurred {
            return;
        }
        let least = slots(sight.busy.saturating_sub(sight.running + self.broken_off.len()));
        // Two looks in a row make sure that it was not a request of ours on its way. After an outage one is enough: what
        // runs there then is what was left behind.
        let first = self.unseen.take_if(|since| *since <= sight.asked).is_some();
        let confirmed = if first { least } else { least.min(self.beyond) };
        self.foreign = self.foreign.max(confirmed);
        self.beyond = least;
    }
}
