//! A second, simple-minded account of what runs where, kept from events and effects alone. It knows nothing of how the
//! scheduler decides, only what it must never do.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use scheduler::{
    AttemptId, CancelReason, Carry, ChangeReason, Effect, Event, GroupId, HardFailure, Left, Limit, Outcome, Part,
    Release, ReplicaId, ReplicaState, RequestId, SoftFailure, Timestamp,
};

/// Attempts that cost a phone's time, and tries that reached something at all.
const MOST_ATTEMPTS: u32 = 3;
const MOST_TRIES: u32 = 9;
/// Attempts of one request at the same time, and how often it may be stopped for others.
const MOST_COPIES: usize = 3;
const MOST_GIVEN_BACK: u32 = 2;
/// Broken-off work keeps its slot this long at least where nothing is seen: by the settings, and on an engine that works on.
pub const LEAST_SHOWN: Duration = Duration::from_secs(20);
const LEAST_RUNS_ON: Duration = Duration::from_millis(100);
/// Between two looks at one replica, and how long one that is not answered holds up the next.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
const LOOK_LOST: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Shadow {
    pub live: BTreeMap<RequestId, Request>,
    pub running: BTreeMap<AttemptId, Running>,
    /// Another copy of their request has won: they must be stopped at once.
    losers: BTreeSet<AttemptId>,
    pub replicas: BTreeMap<ReplicaId, Replica>,
    /// Some relay was held: an attempt that got nowhere may have been its fault, and may be made again.
    pub relay_was_held: bool,
    /// Sent again to a replica whose relay had swallowed the first attempt.
    pub refunded: u64,
    /// Attempts that were broken off since the world last looked.
    pub broken_off: Vec<ReplicaId>,
    now: Timestamp,
    /// Answers carried on; of these by another group, and such as the core had taken from a replica that goes away.
    pub carried_on: u64,
    pub by_another_group: u64,
    pub taken_over: u64,
    /// Begun anew although a part was written.
    pub begun_anew: u64,
    /// Given to replicas that are to be spared, or that go away at a known time.
    pub to_spared: u64,
    pub to_ending: u64,
}

#[derive(Debug, Default)]
pub struct Request {
    dispatches: u32,
    tries: u32,
    attempts: u32,
    given_back: u32,
    stream: bool,
    carry: Option<Carry>,
    part: Option<Written>,
    copies: BTreeSet<AttemptId>,
    /// Where it was, and whether it got through to there.
    sent: BTreeMap<ReplicaId, bool>,
}

/// A part of an answer, who wrote it last, and how much of it was counted.
#[derive(Clone, Copy, Debug)]
struct Written {
    part: Part,
    group: Option<GroupId>,
    counted: u32,
}

#[derive(Debug)]
pub struct Running {
    pub request: RequestId,
    pub replica: ReplicaId,
    pub first_token: bool,
    /// The client has seen content of it.
    committed: bool,
    carries_on: bool,
}

#[derive(Debug)]
pub struct Replica {
    pub state: ReplicaState,
    pub running: usize,
    ceiling: usize,
    slots: usize,
    carries_on: bool,
    group: Option<GroupId>,
    probing: bool,
    drained: bool,
    removed: bool,
    limit: Limit,
    ends: Option<Timestamp>,
    release: Release,
    /// When attempts were broken off whose slots nothing has shown free since.
    left: Vec<Timestamp>,
    looked: Option<Timestamp>,
    looking: bool,
}

impl Replica {
    /// Slots that are taken for sure, whatever the scheduler makes of what it is told.
    fn taken(&mut self, now: Timestamp) -> usize {
        let least = if self.release == Release::Shown { LEAST_SHOWN } else { LEAST_RUNS_ON };
        self.left.retain(|since| now.since(*since) < least);
        self.running + self.left.len()
    }
}

impl Request {
    fn is_shown(&self) -> bool {
        self.part.is_some_and(|written| written.part.seen)
    }

    /// The answer got further: what failed before does not count any more.
    fn start_again(&mut self, running: &BTreeMap<AttemptId, Running>) {
        (self.tries, self.attempts) = (0, 0);
        let runs: BTreeSet<ReplicaId> = self.copies.iter().map(|copy| running[copy].replica).collect();
        self.sent.retain(|replica, _| runs.contains(replica));
    }
}

impl Shadow {
    pub fn told(&mut self, event: &Event, now: Timestamp) {
        self.now = now;
        self.replicas.retain(|id, replica| {
            assert!(!replica.removed || replica.running == 0, "{id:?} was removed and {} still run", replica.running);
            !replica.removed
        });
        assert!(self.losers.is_empty(), "{:?} run on beside the copy that won", self.losers);
        match event {
            Event::RequestArrived { request, spec } => {
                let known = Request { stream: spec.stream, carry: Some(spec.carry), ..Request::default() };
                assert!(self.live.insert(*request, known).is_none());
            }
            Event::RequestAbandoned { request } => {
                for copy in self.live.remove(request).map(|request| request.copies).unwrap_or_default() {
                    self.free(copy, true);
                }
            }
            Event::SlotsSeen { replica, busy, asked } => self.seen(*replica, *busy, *asked),
            Event::FirstToken { attempt } => {
                if let Some(running) = self.running.get_mut(attempt) {
                    let request = &self.live[&running.request];
                    running.first_token = true;
                    running.committed = request.stream;
                    if request.stream {
                        self.losers.extend(request.copies.iter().filter(|copy| *copy != attempt));
                    }
                }
            }
            Event::AttemptEnded { attempt, outcome, left, .. } => self.ended(*attempt, *outcome, *left),
            Event::ReplicaUp { replica, spec } => {
                let slots = usize::from(spec.slots);
                let known = self.replicas.entry(*replica).or_insert(Replica {
                    state: ReplicaState::Joining,
                    running: 0,
                    ceiling: slots,
                    slots,
                    carries_on: spec.carries_on,
                    group: spec.group,
                    probing: false,
                    drained: false,
                    removed: false,
                    limit: Limit::None,
                    ends: None,
                    release: spec.release,
                    left: Vec::new(),
                    looked: None,
                    looking: false,
                });
                (known.slots, known.ceiling) = (slots, slots.max(known.running));
                if std::mem::replace(&mut known.release, spec.release) != spec.release {
                    known.left.clear();
                    known.looking = false;
                }
                (known.carries_on, known.group) = (spec.carries_on, spec.group);
            }
            Event::ReplicaReported { replica, .. } => {
                if let Some(replica) = self.replicas.get_mut(replica) {
                    replica.probing = false;
                }
            }
            Event::ReplicaRemoved { replica } => {
                if let Some(replica) = self.replicas.get_mut(replica) {
                    replica.removed = true;
                }
            }
            Event::UndrainReplica { replica } => {
                if let Some(replica) = self.replicas.get_mut(replica) {
                    replica.drained = false;
                }
            }
            Event::ReplicaLimited { replica, limit } => {
                if let Some(replica) = self.replicas.get_mut(replica) {
                    replica.limit = *limit;
                }
            }
            Event::ReplicaEnding { replica, at } => {
                if let Some(replica) = self.replicas.get_mut(replica) {
                    replica.ends = *at;
                }
            }
            Event::DrainReplica { .. } | Event::Configured { .. } | Event::Progress { .. } => {}
            Event::ReplicaMoved { .. } => unreachable!("nothing here moves"),
        }
    }

    fn ended(&mut self, attempt: AttemptId, outcome: Outcome, left: Left) {
        let broken_off = matches!(
            outcome,
            Outcome::Hard(HardFailure::Reset)
                | Outcome::Soft(
                    SoftFailure::Broken | SoftFailure::NoFirstToken | SoftFailure::Stalled | SoftFailure::BadAnswer
                )
        );
        let Some(running) = self.free(attempt, broken_off) else { return };
        if outcome == Outcome::Success
            && let Some(replica) = self.replicas.get_mut(&running.replica).filter(|it| it.release == Release::RunsOn)
        {
            replica.left.clear();
        }
        let closed = matches!(left, Left::Closed | Left::Part(Part { seen: true, by: Carry::Never, .. }));
        if closed || matches!(outcome, Outcome::Success | Outcome::RequestFault) {
            let request = self.live.remove(&running.request).expect("a running request should be live");
            self.losers.extend(request.copies);
        } else if !self.advances(&running, left) {
            let request = self.live.get_mut(&running.request).expect("a running request should be live");
            let reached = !matches!(outcome, Outcome::Hard(HardFailure::Connect | HardFailure::Tls));
            let soft = matches!(
                outcome,
                Outcome::Soft(
                    SoftFailure::Status | SoftFailure::Broken | SoftFailure::NoFirstToken | SoftFailure::Stalled
                )
            );
            request.sent.insert(running.replica, reached);
            request.tries += u32::from(reached);
            request.attempts += u32::from(soft || outcome == Outcome::Hard(HardFailure::Reset));
        }
    }

    /// A look may show free slots; which, is the scheduler's to find out. Where all may still work it can't find any.
    fn seen(&mut self, replica: ReplicaId, busy: u16, asked: Timestamp) {
        let Some(replica) = self.replicas.get_mut(&replica).filter(|it| it.release == Release::Shown) else { return };
        replica.looking &= replica.looked.is_some_and(|looked| asked < looked);
        replica.looked = replica.looked.max(Some(asked));
        if usize::from(busy) < replica.running + replica.left.len() {
            replica.left.retain(|since| *since >= asked);
        }
    }

    /// What is left of an answer; whether that is more than there was.
    fn advances(&mut self, running: &Running, left: Left) -> bool {
        let Left::Part(part) = left else { return false };
        if part.by == Carry::Never || (part.tokens == 0 && !part.seen) {
            return false;
        }
        let group = self.replicas[&running.replica].group;
        let request = self.live.get_mut(&running.request).expect("a running request should be live");
        if part.seen && !request.is_shown() {
            self.losers.extend(&request.copies);
        }
        if !running.carries_on {
            let more = |before: Written| part.tokens > before.counted || part.seen != before.part.seen;
            if request.part.is_some_and(|before| !more(before)) {
                return false;
            }
            // It replaces what another copy had left.
            request.part = None;
        }
        let before = request.part;
        let advances = part.tokens > before.map_or(0, |before| before.counted);
        let seen = part.seen || request.is_shown();
        let group = before.filter(|_| !advances).map_or(group, |before| before.group);
        request.part = Some(Written { part: Part { seen, ..part }, group, counted: part.tokens });
        if advances {
            request.start_again(&self.running);
        }
        advances
    }

    /// The part that an attempt's request keeps.
    pub fn part(&self, attempt: AttemptId) -> Option<Part> {
        let running = self.running.get(&attempt)?;
        self.live.get(&running.request)?.part.map(|written| written.part)
    }

    fn free(&mut self, attempt: AttemptId, broken_off: bool) -> Option<Running> {
        let running = self.running.remove(&attempt)?;
        let replica =
            self.replicas.get_mut(&running.replica).expect("a replica with something running should be known");
        replica.running -= 1;
        replica.ceiling = replica.slots.max(replica.running);
        if broken_off {
            self.broken_off.push(running.replica);
            if replica.release != Release::AtOnce && serves(replica.state) {
                replica.left.push(self.now);
            }
        }
        if let Some(request) = self.live.get_mut(&running.request) {
            request.copies.remove(&attempt);
        }
        Some(running)
    }

    pub fn heard(&mut self, effect: &Effect, now: Timestamp) {
        self.now = now;
        match *effect {
            Effect::Dispatch { request, attempt, replica, number, hedge, carries_on } => {
                self.goes_on(request, replica, hedge, carries_on);
                self.dispatched(request, attempt, replica, number, hedge, carries_on);
            }
            Effect::Cancel { attempt, request, why } => {
                let running = self
                    .free(attempt, why != CancelReason::ReplicaRemoved)
                    .expect("only a running attempt can be cancelled");
                assert_eq!(running.request, request);
                let lost = self.losers.remove(&attempt);
                assert_eq!(why == CancelReason::HedgeLost, lost, "cancelled for {why:?}");
                let removed = self.replicas[&running.replica].removed;
                assert_eq!(why == CancelReason::ReplicaRemoved, removed, "cancelled for {why:?}");
                self.cancelled(&running, why);
            }
            Effect::Reject { request, retry_after, .. } => {
                let ended = self.live.remove(&request).expect("a request must end once");
                assert!(ended.copies.is_empty(), "{request:?} is refused while it runs");
                assert!((1..=60).contains(&retry_after.as_secs()));
            }
            Effect::Look { replica } => {
                let known = self.replicas.get_mut(&replica).expect("a replica that is looked at should be known");
                assert!(known.release == Release::Shown && !known.removed, "{replica:?} can't be looked at");
                let since = known.looked.map_or(Duration::MAX, |looked| now.since(looked));
                assert!(since >= BETWEEN_LOOKS, "{replica:?} is looked at again after {since:?}");
                assert!(!known.looking || since >= LOOK_LOST, "{replica:?} is looked at twice at once");
                (known.looked, known.looking) = (Some(now), true);
            }
            Effect::Changed { replica, from, to, why } => {
                let known = self.replicas.get_mut(&replica).expect("a replica that changes should be known");
                assert_eq!(std::mem::replace(&mut known.state, to), from, "{replica:?} skipped a state");
                assert_ne!(from, to);
                if !serves(to) && to != ReplicaState::Draining || from == ReplicaState::Draining {
                    // What it worked on went with it; a drain hides when.
                    known.left.clear();
                    known.looking = false;
                }
                self.relay_was_held |= why == ChangeReason::RelayDown;
            }
            Effect::Probe { replica } => {
                let known = self.replicas.get_mut(&replica).expect("a replica that is probed should be known");
                assert!(!std::mem::replace(&mut known.probing, true), "{replica:?} is probed twice");
            }
            Effect::Drained { replica } => {
                let known = self.replicas.get_mut(&replica).expect("a replica that is drained should be known");
                assert_eq!((known.state, known.running), (ReplicaState::Draining, 0));
                assert!(!std::mem::replace(&mut known.drained, true), "{replica:?} is drained twice");
            }
        }
    }

    /// What a stopped attempt means for its request.
    fn cancelled(&mut self, running: &Running, why: CancelReason) {
        let id = running.request;
        assert!(why != CancelReason::GivenBack || !running.carries_on, "{id:?} is to be read once more");
        if running.committed {
            assert_ne!(why, CancelReason::GivenBack, "{id:?} has shown content and is to begin again");
            let goes_away = matches!(why, CancelReason::ReplicaRemoved | CancelReason::DrainDeadline);
            let request = self.live.get_mut(&id).expect("a running request should be live");
            let Some(by) = request.carry.filter(|carry| goes_away && *carry != Carry::Never) else {
                self.live.remove(&id);
                return;
            };
            let group = self.replicas[&running.replica].group;
            let counted = request.part.map_or(0, |written| written.counted);
            request.part = Some(Written { part: Part { tokens: counted, seen: true, by }, group, counted });
            request.start_again(&self.running);
            self.taken_over += 1;
            return;
        }
        // A loser's request may have ended with the answer that won.
        let Some(request) = self.live.get_mut(&id) else {
            assert_eq!(why, CancelReason::HedgeLost, "a running request should be live");
            return;
        };
        if matches!(why, CancelReason::HedgeLost | CancelReason::GivenBack) {
            // Nobody failed: it may come back there.
            request.sent.remove(&running.replica);
        }
        if why == CancelReason::GivenBack && request.copies.is_empty() {
            request.given_back += 1;
            assert!(request.given_back <= MOST_GIVEN_BACK, "{id:?} is stopped again and again");
        }
    }

    /// What an attempt begins with.
    fn goes_on(&mut self, id: RequestId, to: ReplicaId, hedge: bool, carries_on: bool) {
        let request = self.live.get_mut(&id).expect("only a live request can be dispatched");
        let replica = &self.replicas[&to];
        let Some(Written { part, group, .. }) = request.part else {
            return assert!(!carries_on, "{id:?} carries on what nobody wrote");
        };
        if !carries_on {
            assert!(!part.seen, "{id:?} has shown content and begins anew");
            assert!(!hedge, "{id:?} begins anew beside a copy that may carry on");
            request.part = None;
            self.begun_anew += 1;
            return;
        }
        let same = group.is_some() && group == replica.group;
        assert!(replica.carries_on, "{to:?} can't carry on {id:?}");
        assert!(same || part.by == Carry::Anyone, "{to:?} is of another group and carries on {id:?}");
        self.carried_on += 1;
        self.by_another_group += u64::from(!same);
    }

    fn dispatched(
        &mut self,
        id: RequestId,
        attempt: AttemptId,
        to: ReplicaId,
        number: u32,
        hedge: bool,
        carries_on: bool,
    ) {
        let request = self.live.get_mut(&id).expect("only a live request can be dispatched");
        assert_eq!(hedge, !request.copies.is_empty(), "{id:?} runs twice unsaid, or is said to");
        let committed = request.copies.iter().any(|copy| self.running[copy].committed);
        assert!(!committed, "{id:?} has shown content of one copy and gets another");
        // Were all that run to fail, there must have been an attempt to spare for each.
        let running = request.copies.len() as u32;
        assert!(
            request.attempts + running < MOST_ATTEMPTS && request.tries + running < MOST_TRIES,
            "{id:?} goes on and on: {request:?}"
        );
        assert!(request.copies.insert(attempt) && request.copies.len() <= MOST_COPIES, "{id:?}: {request:?}");
        request.dispatches += 1;
        assert_eq!(request.dispatches, number);
        let replica = self.replicas.get_mut(&to).expect("a replica that gets work should be known");
        if let Some(reached) = request.sent.insert(to, true) {
            assert!(!reached && self.relay_was_held, "{id:?} was sent to {to:?} twice");
            self.refunded += 1;
        }
        assert!(!replica.removed, "{to:?} is removed and gets work");
        assert!(serves(replica.state), "{to:?} is {:?} and gets work", replica.state);
        assert!(replica.ends.is_none_or(|at| at > self.now), "{to:?} has come to its end and gets work");
        self.to_ending += u64::from(replica.ends.is_some());
        self.to_spared += u64::from(replica.limit == Limit::Fewer);
        let allowed = match replica.limit {
            Limit::None => replica.slots,
            Limit::Fewer => (replica.slots / 2).max(1),
            Limit::Paused => 0,
        };
        assert!(replica.running < allowed, "{to:?} is limited to {:?} and gets work", replica.limit);
        let taken = replica.taken(self.now);
        assert!(taken < replica.slots, "{to:?} gets work while {taken} of {} slots are taken", replica.slots);
        replica.running += 1;
        assert!(replica.running <= replica.slots, "{to:?} runs {} on {} slots", replica.running, replica.slots);
        let running = Running { request: id, replica: to, first_token: false, committed: false, carries_on };
        self.running.insert(attempt, running);
    }
}

fn serves(state: ReplicaState) -> bool {
    matches!(state, ReplicaState::Ready | ReplicaState::Suspect | ReplicaState::Probation)
}
