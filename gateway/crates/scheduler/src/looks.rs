//! Slots of work that was broken off: how long they stay taken, and the looks that end that. What a look means is in
//! `lingering`.

use std::time::Duration;

use crate::{
    effect::Effect,
    event::{HardFailure, Outcome, Release, SoftFailure},
    id::ReplicaId,
    learning::USUAL_ANSWER,
    lingering::{BrokenOff, Sight},
    replica::Replica,
    request::Attempt,
    scheduler::Scheduler,
    time::Timestamp,
    timer::Timer,
};

/// An attempt that was heard of holds its slot for sure this long after it was sent, one that was not after that long: its
/// request has surely arrived.
const ARRIVED_HEARD: Duration = Duration::from_secs(1);
const ARRIVED: Duration = Duration::from_secs(5);

impl Scheduler {
    /// What a broken-off attempt leaves behind on its replica, if anything. Before it is forgotten.
    pub(crate) fn remains(&self, attempt: &Attempt, now: Timestamp) -> Option<BrokenOff> {
        let replica = self.pool.replicas.get(&attempt.replica).filter(|replica| replica.health.serves())?;
        let config = &self.config.release;
        let bound = |rest: Duration| Duration::try_from_secs_f64(config.factor.max(1.0) * rest.as_secs_f64());
        match replica.spec.release {
            Release::AtOnce => None,
            Release::Shown => {
                let rest = self.rest_of(attempt, replica, attempt.course.output, now);
                let bound = bound(rest).unwrap_or(config.cap).max(config.min).min(config.cap);
                let writes = attempt.course.first_token.is_some();
                Some(BrokenOff::new(attempt.started, rest, writes, bound, now))
            }
            Release::RunsOn => {
                // Engines of this kind know no limit: the answer is as long as they make it.
                let rest = self.rest_of(attempt, replica, attempt.course.output.max(USUAL_ANSWER), now);
                let bound = bound(rest).unwrap_or(config.cap).min(config.cap);
                Some(BrokenOff::runs_on(attempt.started, rest, bound, now))
            }
        }
    }

    /// How long the replica would work on an attempt if that went on, with an answer of so many tokens.
    fn rest_of(&self, attempt: &Attempt, replica: &Replica, output: f64, now: Timestamp) -> Duration {
        let seconds = || {
            let request = self.requests.get(&attempt.request)?;
            let learned = self.learned.get(&request.spec.model)?;
            let typical = self.pool.models.get(&request.spec.model)?.typical_rates();
            let mut course = attempt.course;
            course.output = output;
            let visible = request.spec.stream || course.first_token.is_some();
            let left = course.left(&learned.shape, replica.speeds.at(now, typical), visible);
            Some((left.prefill + left.decode) * replica.running.len().max(1) as f64)
        };
        seconds().map_or(Duration::MAX, |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// The replica's slots were seen.
    pub(crate) fn slots_seen(&mut self, id: ReplicaId, busy: u16, asked: Timestamp, now: Timestamp) {
        let asked = asked.min(now);
        let Some(replica) = self.pool.replicas.get(&id).filter(|replica| replica.spec.release == Release::Shown) else {
            return;
        };
        let ours = || replica.running.iter().filter_map(|attempt| self.attempts.get(attempt));
        let sight = Sight {
            busy: usize::from(busy),
            asked,
            running: replica.running.len(),
            surely: ours().filter(|attempt| surely_works(attempt, asked)).count(),
            writing: ours().filter(|attempt| writes(attempt, asked)).count(),
            blurred: replica.idle_since > asked,
            slots: replica.spec.slots,
        };
        self.change_lingering(id, now, |replica| replica.lingering.see(&sight));
    }

    /// A whole answer came from a replica; on an engine that works on one thing at a time it says that earlier work is done.
    pub(crate) fn answered(&mut self, attempt: &Attempt, now: Timestamp) {
        let lingers = |replica: &Replica| replica.spec.release == Release::RunsOn && replica.lingering.count() > 0;
        if self.pool.replicas.get(&attempt.replica).is_some_and(lingers) {
            self.change_lingering(attempt.replica, now, |replica| replica.lingering.answered(attempt.started));
        }
    }

    /// The time of a look has come, or it was not answered in time.
    pub(crate) fn look_due(&mut self, id: ReplicaId, now: Timestamp) {
        let mut due = false;
        self.change_lingering(id, now, |replica| due = replica.lingering.look(now));
        if due {
            self.effects.push_back(Effect::Look { replica: id });
        }
    }

    /// The bound of work that was broken off has passed: its slot is given again.
    pub(crate) fn bound_due(&mut self, id: ReplicaId, now: Timestamp) {
        self.change_lingering(id, now, |replica| replica.lingering.expire(now));
    }

    fn change_lingering(&mut self, id: ReplicaId, now: Timestamp, change: impl FnOnce(&mut Replica)) {
        self.pool.modify(id, self.config.policy, &mut self.rng, |replica| {
            change(replica);
            replica.raise_ceiling();
        });
        self.plan_looks(id, now);
    }

    /// Sets when the next look, and the next bound, is due.
    pub(crate) fn plan_looks(&mut self, id: ReplicaId, now: Timestamp) {
        let Some(replica) = self.pool.replicas.get(&id) else { return };
        let looks = replica.spec.release == Release::Shown && replica.health.serves();
        let look = looks.then(|| replica.lingering.next_look(now)).flatten();
        self.timers.set(Timer::Bound(id), replica.lingering.next_bound());
        self.timers.set(Timer::Look(id), look);
    }
}

/// Whether the replica may still work on an attempt that ended so.
pub(crate) fn breaks_off(outcome: Outcome) -> bool {
    match outcome {
        Outcome::CutShort
        | Outcome::Hard(HardFailure::Reset)
        | Outcome::Soft(
            SoftFailure::BadAnswer | SoftFailure::Broken | SoftFailure::NoFirstToken | SoftFailure::Stalled,
        ) => true,
        // It answered, or was never reached.
        Outcome::Success
        | Outcome::Hard(HardFailure::Connect | HardFailure::Tls | HardFailure::Certificate)
        | Outcome::Soft(SoftFailure::Status | SoftFailure::Busy { .. })
        | Outcome::RequestFault
        | Outcome::ContextExceeded
        | Outcome::Loading
        | Outcome::Misconfigured => false,
    }
}

/// Whether an attempt that runs had its slot when the question was sent, and at every moment since.
fn surely_works(attempt: &Attempt, asked: Timestamp) -> bool {
    let heard = attempt.course.progress.is_some() || attempt.first_token;
    let age = asked.since(attempt.started);
    writes(attempt, asked) || age >= if heard { ARRIVED_HEARD } else { ARRIVED }
}

fn writes(attempt: &Attempt, asked: Timestamp) -> bool {
    attempt.course.first_token.is_some_and(|at| at <= asked)
}
