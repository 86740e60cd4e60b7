//! Answers that are carried on: what a request keeps of an answer whose replica went away, and who may go on with it.
//!
//! An answer costs a phone a minute's writing, and phones go away within minutes. Begun anew it costs all of that again; an
//! answer that takes longer than phones last would never be whole, and one whose client has seen a part can't begin anew at
//! all. So what was written is kept: the next replica reads it behind the prompt and writes the rest.
//!
//! What the client has seen can only be carried on, by those whose text fits it. What nobody has seen may also begin anew: a
//! part is worth the writing that it saves, so where costs are compared, it is weighed; where they are not, it is carried on as
//! long as somebody serves who can.
//!
//! Attempts are limited because a request that fails on one phone after the other is the request's fault. One that got
//! further on each is not: so *progress* starts the count again, and only attempts that add nothing are counted. Progress is
//! measured by what the driver counted, never by an estimate.
//!
//! A request that is carried on keeps its class, and comes before the others of it. One class more urgent was tried, with phones that
//! last a minute: it answered the standard requests by a tenth sooner, and the first tokens of the interactive ones came by an
//! eighth later; a broken answer is no reason to break the order of classes.
//!
//! A second copy of a request carries on what the first does. Letting one begin anew beside it was rejected: the driver
//! would have to keep two beginnings of one answer, and the shorter is hardly ever the better.

use std::time::Duration;

use crate::{
    effect::CancelReason,
    event::{Carry, Part, ReplicaSpec, Timings},
    id::{AttemptId, GroupId, ReplicaId, RequestId},
    pool::{Pool, Prospect},
    replica::Standing,
    request::{Attempt, Need, Request},
    scheduler::Scheduler,
    snapshot::{Onward, Waste},
    time::Timestamp,
};

/// What is left of an answer is at least this part of what was expected of all of it: one that is longer than expected already
/// is not about to end.
const LEAST_REST: f64 = 0.2;

/// The part of an answer that a request keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kept {
    /// Its tokens, as the driver counted them, or as estimated where the core ended the attempt.
    pub(crate) tokens: u32,
    /// As the driver counted them last.
    counted: u32,
    /// The client has seen something of it.
    pub(crate) seen: bool,
    by: Carry,
    /// The replica that wrote the end of it, and its group.
    writer: ReplicaId,
    group: Option<GroupId>,
    /// Slot time in which it was written.
    written_in: Duration,
}

impl Kept {
    fn onward(&self, spec: &ReplicaSpec) -> Onward {
        let same = self.group.is_some() && self.group == spec.group;
        match (spec.carries_on, self.by) {
            (true, _) if same => Onward::SameGroup,
            (true, Carry::Anyone) => Onward::OtherGroup,
            _ if !self.seen => Onward::Anew,
            (true, _) => Onward::WrongGroup,
            (false, _) => Onward::Unable,
        }
    }

    /// Tokens that are left to write of an answer of which so many are expected.
    pub(crate) fn rest(&self, expected: f64, limit: Option<u32>) -> f64 {
        let rest = (expected - f64::from(self.tokens)).max(LEAST_REST * expected);
        let most = limit.map_or(f64::INFINITY, |limit| f64::from(limit.saturating_sub(self.tokens)));
        rest.min(most).max(1.0)
    }

    pub(crate) fn view(&self) -> Part {
        Part { tokens: self.tokens, seen: self.seen, by: self.by }
    }
}

impl Request {
    /// How a replica would go on with it.
    pub(crate) fn onward(&self, spec: &ReplicaSpec) -> Onward {
        self.part.as_ref().map_or(Onward::Anew, |part| part.onward(spec))
    }

    /// Its client has seen a part of its answer: it can't begin anew.
    pub(crate) fn is_shown(&self) -> bool {
        self.part.is_some_and(|part| part.seen)
    }

    /// An attempt that goes on like that needs room in the retry budget; see `retry`.
    pub(crate) fn needs_room(&self, onward: Onward) -> bool {
        self.failed && (!self.advanced || !onward.carries_on())
    }

    /// The context that it needs, with the part that is to be read behind the prompt.
    fn measure(&mut self) {
        let part = self.part.map_or(0, |part| part.tokens);
        let estimate = Need::estimated(self.spec.prompt_tokens.saturating_add(part));
        self.need = match self.need.measured {
            true => Need { tokens: self.need.tokens.max(estimate.tokens), measured: true },
            false => estimate,
        };
    }
}

impl Pool {
    /// Whether a replica serves, now or when a slot frees, that can carry on the part of a request.
    pub(crate) fn has_carrier(&self, request: &Request) -> bool {
        let Some(pool) = self.models.get(&request.spec.model).filter(|_| request.part.is_some()) else { return false };
        let threshold = pool.threshold(request.spec.route, request.need);
        let members = pool.members.iter().filter_map(|id| Some((*id, self.replicas.get(id)?)));
        members.into_iter().any(|(id, replica)| {
            replica.standing() == Standing::Serving
                && replica.spec.routes.contains(request.spec.route)
                && replica.context() >= threshold
                && !request.has_tried(id)
                && request.onward(&replica.spec).carries_on()
        })
    }

    /// How a replica may go on with a request where costs are not compared: what can be carried on does not begin anew.
    pub(crate) fn plain_onward(&self, id: ReplicaId, request: &Request) -> Onward {
        let Some(replica) = self.replicas.get(&id) else { return Onward::Unable };
        match request.onward(&replica.spec) {
            Onward::Anew if self.has_carrier(request) => Onward::Unable,
            onward => onward,
        }
    }
}

impl Scheduler {
    /// How a replica would go on with a request.
    pub(crate) fn onward(&self, id: RequestId, replica: ReplicaId) -> Onward {
        let request = self.requests.get(&id);
        let replica = self.pool.replicas.get(&replica);
        request.zip(replica).map_or(Onward::Unable, |(request, replica)| request.onward(&replica.spec))
    }

    /// Whether the retry budget allows that a request starts on a replica.
    pub(crate) fn has_room(&self, id: RequestId, replica: ReplicaId) -> bool {
        let onward = self.onward(id, replica);
        let needs = self.requests.get(&id).is_some_and(|request| request.needs_room(onward));
        !needs || self.budget.has_room(&self.config.retry)
    }

    /// Keeps the part that a failed attempt left. Returns whether the attempt got the answer further, and then the slot time that
    /// it wrote in.
    pub(crate) fn keep(
        &mut self,
        id: AttemptId,
        attempt: &Attempt,
        part: Part,
        timings: Option<&Timings>,
        now: Timestamp,
    ) -> Option<Duration> {
        if part.by == Carry::Never || (part.tokens == 0 && !part.seen) {
            return None;
        }
        if part.seen && !self.requests.get(&attempt.request).is_some_and(Request::is_shown) {
            // Copies that began anew write another answer than the one that the client has seen a part of.
            self.drop_rivals(attempt.request, id, now);
        }
        let written = writing_time(attempt, timings, now);
        self.keep_part(attempt, part, Some(part.tokens), written)
    }

    fn keep_part(
        &mut self,
        attempt: &Attempt,
        part: Part,
        counted: Option<u32>,
        written: Duration,
    ) -> Option<Duration> {
        if attempt.carried.is_none() {
            let before = self.requests.get(&attempt.request).and_then(|request| request.part);
            let longer = |before: &Kept| counted.is_none_or(|counted| counted > before.counted);
            if before.is_some_and(|before| !longer(&before) && before.seen == part.seen) {
                // What another copy has left is more than this one wrote.
                return None;
            }
            // What another copy has left is given up for this.
            self.lose_part(attempt.request, Waste::Failed);
        }
        let group = self.pool.replicas.get(&attempt.replica).and_then(|replica| replica.spec.group);
        let writer = (attempt.replica, group);
        let request = self.requests.get_mut(&attempt.request)?;
        let before = request.part;
        let told = before.map_or(0, |kept| kept.counted);
        let advanced = counted.is_none_or(|counted| counted > told);
        let (writer, group) = before.filter(|_| !advanced).map_or(writer, |kept| (kept.writer, kept.group));
        request.part = Some(Kept {
            tokens: part.tokens,
            counted: counted.unwrap_or(told),
            seen: part.seen || before.is_some_and(|kept| kept.seen),
            by: part.by,
            writer,
            group,
            written_in: before.map_or(Duration::ZERO, |kept| kept.written_in)
                + if advanced { written } else { Duration::ZERO },
        });
        request.measure();
        if !advanced {
            return None;
        }
        self.start_count_again(attempt);
        Some(written)
    }

    /// The answer got further: what failed before is no mark against the request any more.
    fn start_count_again(&mut self, attempt: &Attempt) {
        let Some(request) = self.requests.get_mut(&attempt.request) else { return };
        (request.tries, request.spent, request.advanced) = (0, 0, true);
        let running: Vec<ReplicaId> =
            request.copies().iter().filter_map(|copy| self.attempts.get(&copy)).map(|copy| copy.replica).collect();
        request.tried.retain(|tried| tried.replica == attempt.replica || running.contains(&tried.replica));
    }

    /// Whether a request that waits can hope for a replica. One whose answer just got further may go on where it was, once, if
    /// nobody else ever could: that replica has shown that it can.
    pub(crate) fn hope(&mut self, id: RequestId) -> Prospect {
        let Some(request) = self.requests.get_mut(&id) else { return Prospect::Never };
        let prospect = self.pool.prospect(request);
        let writer = request.part.map(|part| part.writer).filter(|writer| request.has_tried(*writer));
        let Some(writer) = writer.filter(|_| prospect == Prospect::Never && request.advanced) else { return prospect };
        request.untry(writer);
        request.advanced = false;
        self.pool.prospect(request)
    }

    /// Whether what a client has seen of an attempt's answer is carried on elsewhere if the core ends the attempt.
    pub(crate) fn outlives(&self, attempt: &Attempt, why: CancelReason) -> bool {
        let carry = self.requests.get(&attempt.request).map_or(Carry::Never, |request| request.spec.carry);
        let goes_away = matches!(why, CancelReason::ReplicaRemoved | CancelReason::DrainDeadline);
        goes_away && attempt.committed && carry != Carry::Never
    }

    /// Keeps what the client has seen of an attempt that the core ends. How much that is can only be estimated.
    pub(crate) fn keep_shown(&mut self, attempt: &Attempt, tokens: u32, now: Timestamp) {
        let Some(by) = self.requests.get(&attempt.request).map(|request| request.spec.carry) else { return };
        let part = Part { tokens, seen: true, by };
        self.keep_part(attempt, part, None, writing_time(attempt, None, now));
    }

    /// Tokens that an answer probably has by now, those of earlier attempts included.
    pub(crate) fn written_by_now(&mut self, id: AttemptId, now: Timestamp) -> u32 {
        let Some(replica) = self.attempts.get(&id).map(|attempt| attempt.replica) else { return 0 };
        self.touch(replica, now);
        let Some(attempt) = self.attempts.get(&id) else { return 0 };
        let written = || {
            let request = self.requests.get(&attempt.request)?;
            let outlook = self.outlook(request.spec.model, now)?;
            let (_, decode) = outlook.rates(attempt.replica, outlook.replica(attempt.replica)?)?;
            let course = &attempt.course;
            let all = outlook.learned.shape.decode_work(course.tokens, course.output) / decode;
            let most = request.spec.max_output.map_or(f64::INFINITY, f64::from);
            Some((course.output * course.written / all.max(f64::MIN_POSITIVE)).min(most))
        };
        // It has begun, so there is something.
        attempt.carried.unwrap_or(0).saturating_add(written().map_or(1, |tokens| (tokens as u32).max(1)))
    }

    /// Nobody will carry on what a request keeps: the time in which it was written is lost.
    pub(crate) fn lose_part(&mut self, id: RequestId, why: Waste) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if let Some(part) = request.part.take() {
            self.tally.waste(why, part.written_in);
        }
    }

    /// The request begins anew. It must not be in the queue, where its place depends on what it needs.
    pub(crate) fn begin_anew(&mut self, id: RequestId) {
        self.lose_part(id, Waste::Failed);
        if let Some(request) = self.requests.get_mut(&id) {
            request.measure();
        }
    }
}

/// Slot time of an attempt in which it wrote.
pub(crate) fn writing_time(attempt: &Attempt, timings: Option<&Timings>, now: Timestamp) -> Duration {
    let measured = timings.map(|timings| timings.decode);
    let since = attempt.course.first_token.map(|at| now.since(at));
    measured.or(since).unwrap_or_default().min(now.since(attempt.started))
}
