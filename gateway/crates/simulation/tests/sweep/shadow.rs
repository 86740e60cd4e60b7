//! A second, simple-minded account of what runs where, kept from events and effects alone. It knows nothing of how the
//! scheduler decides, only what it must never do.

use std::collections::{BTreeMap, BTreeSet};

use scheduler::{
    AttemptId, CancelReason, ChangeReason, Effect, Event, HardFailure, Outcome, ReplicaId, ReplicaState, RequestId,
    SoftFailure,
};

/// Attempts that cost a phone's time, and tries that reached something at all.
const MOST_ATTEMPTS: u32 = 3;
const MOST_TRIES: u32 = 9;
/// Attempts of one request at the same time, and how often it may be stopped for others.
const MOST_COPIES: usize = 3;
const MOST_GIVEN_BACK: u32 = 2;

#[derive(Debug, Default)]
pub struct Shadow {
    pub live: BTreeMap<RequestId, Request>,
    pub running: BTreeMap<AttemptId, Running>,
    /// Another copy of their request has won: they must be stopped at once.
    losers: BTreeSet<AttemptId>,
    pub replicas: BTreeMap<ReplicaId, Replica>,
    /// Some relay was held: an attempt that got nowhere may have been its fault, and may be made again.
    relay_was_held: bool,
    /// Sent again to a replica whose relay had swallowed the first attempt.
    pub refunded: u64,
}

#[derive(Debug, Default)]
pub struct Request {
    dispatches: u32,
    tries: u32,
    attempts: u32,
    given_back: u32,
    stream: bool,
    copies: BTreeSet<AttemptId>,
    /// Where it was, and whether it got through to there.
    sent: BTreeMap<ReplicaId, bool>,
}

#[derive(Debug)]
pub struct Running {
    pub request: RequestId,
    pub replica: ReplicaId,
    pub first_token: bool,
    /// The client has seen content of it.
    committed: bool,
}

#[derive(Debug)]
pub struct Replica {
    pub state: ReplicaState,
    pub running: usize,
    ceiling: usize,
    slots: usize,
    probing: bool,
    drained: bool,
    removed: bool,
}

impl Shadow {
    pub fn told(&mut self, event: &Event) {
        self.replicas.retain(|id, replica| {
            assert!(!replica.removed || replica.running == 0, "{id:?} was removed and {} still run", replica.running);
            !replica.removed
        });
        assert!(self.losers.is_empty(), "{:?} run on beside the copy that won", self.losers);
        match event {
            Event::RequestArrived { request, spec } => {
                let known = Request { stream: spec.stream, ..Request::default() };
                assert!(self.live.insert(*request, known).is_none());
            }
            Event::RequestAbandoned { request } => {
                for copy in self.live.remove(request).map(|request| request.copies).unwrap_or_default() {
                    self.free(copy);
                }
            }
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
            Event::AttemptEnded { attempt, outcome, content_sent, .. } => self.ended(*attempt, *outcome, *content_sent),
            Event::ReplicaUp { replica, spec } => {
                let slots = usize::from(spec.slots);
                let known = self.replicas.entry(*replica).or_insert(Replica {
                    state: ReplicaState::Joining,
                    running: 0,
                    ceiling: slots,
                    slots,
                    probing: false,
                    drained: false,
                    removed: false,
                });
                (known.slots, known.ceiling) = (slots, slots.max(known.running));
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
            Event::DrainReplica { .. } | Event::Configured { .. } | Event::Progress { .. } => {}
        }
    }

    fn ended(&mut self, attempt: AttemptId, outcome: Outcome, content_sent: bool) {
        let Some(running) = self.free(attempt) else { return };
        let over = content_sent || matches!(outcome, Outcome::Success | Outcome::RequestFault);
        if over {
            let request = self.live.remove(&running.request).expect("a running request should be live");
            self.losers.extend(request.copies);
        } else {
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

    fn free(&mut self, attempt: AttemptId) -> Option<Running> {
        let running = self.running.remove(&attempt)?;
        let replica =
            self.replicas.get_mut(&running.replica).expect("a replica with something running should be known");
        replica.running -= 1;
        replica.ceiling = replica.slots.max(replica.running);
        if let Some(request) = self.live.get_mut(&running.request) {
            request.copies.remove(&attempt);
        }
        Some(running)
    }

    pub fn heard(&mut self, effect: &Effect) {
        match *effect {
            Effect::Dispatch { request, attempt, replica, number, hedge } => {
                self.dispatched(request, attempt, replica, number, hedge)
            }
            Effect::Cancel { attempt, request, why } => {
                let running = self.free(attempt).expect("only a running attempt can be cancelled");
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
            Effect::Changed { replica, from, to, why } => {
                let known = self.replicas.get_mut(&replica).expect("a replica that changes should be known");
                assert_eq!(std::mem::replace(&mut known.state, to), from, "{replica:?} skipped a state");
                assert_ne!(from, to);
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
        if running.committed {
            assert_ne!(why, CancelReason::GivenBack, "{id:?} has shown content and is to begin again");
            self.live.remove(&id).expect("a running request should be live");
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

    fn dispatched(&mut self, id: RequestId, attempt: AttemptId, to: ReplicaId, number: u32, hedge: bool) {
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
        let works = matches!(replica.state, ReplicaState::Ready | ReplicaState::Suspect | ReplicaState::Probation);
        assert!(works, "{to:?} is {:?} and gets work", replica.state);
        replica.running += 1;
        assert!(replica.running <= replica.slots, "{to:?} runs {} on {} slots", replica.running, replica.slots);
        self.running.insert(attempt, Running { request: id, replica: to, first_token: false, committed: false });
    }
}
