//! A second, simple-minded account of what runs where, kept from events and effects alone. It knows nothing of how the
//! scheduler decides, only what it must never do.

use std::collections::BTreeMap;

use scheduler::{
    AttemptId, CancelReason, ChangeReason, Effect, Event, HardFailure, Outcome, ReplicaId, ReplicaState, RequestId,
    SoftFailure,
};

/// Attempts that cost a phone's time, and tries that reached something at all.
const MOST_ATTEMPTS: u32 = 3;
const MOST_TRIES: u32 = 9;

#[derive(Debug, Default)]
pub struct Shadow {
    pub live: BTreeMap<RequestId, Request>,
    pub running: BTreeMap<AttemptId, Running>,
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
    attempt: Option<AttemptId>,
    /// Where it was, and whether it got through to there.
    sent: BTreeMap<ReplicaId, bool>,
}

#[derive(Debug)]
pub struct Running {
    pub request: RequestId,
    pub replica: ReplicaId,
    pub first_token: bool,
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
        match event {
            Event::RequestArrived { request, .. } => {
                assert!(self.live.insert(*request, Request::default()).is_none());
            }
            Event::RequestAbandoned { request } => {
                if let Some(attempt) = self.live.remove(request).and_then(|request| request.attempt) {
                    self.free(attempt);
                }
            }
            Event::FirstToken { attempt } => {
                if let Some(running) = self.running.get_mut(attempt) {
                    running.first_token = true;
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
            self.live.remove(&running.request).expect("a running request should be live");
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
            request.attempt = None;
        }
        Some(running)
    }

    pub fn heard(&mut self, effect: &Effect) {
        match *effect {
            Effect::Dispatch { request, attempt, replica, number, .. } => {
                self.dispatched(request, attempt, replica, number)
            }
            Effect::Cancel { attempt, request, why } => {
                let running = self.free(attempt).expect("only a running attempt can be cancelled");
                assert_eq!(running.request, request);
                if running.first_token {
                    self.live.remove(&request).expect("a running request should be live");
                }
                let removed = self.replicas[&running.replica].removed;
                assert_eq!(why == CancelReason::ReplicaRemoved, removed, "cancelled for {why:?}");
            }
            Effect::Reject { request, retry_after, .. } => {
                let ended = self.live.remove(&request).expect("a request must end once");
                assert_eq!(ended.attempt, None, "{request:?} is refused while it runs");
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

    fn dispatched(&mut self, id: RequestId, attempt: AttemptId, to: ReplicaId, number: u32) {
        let request = self.live.get_mut(&id).expect("only a live request can be dispatched");
        assert_eq!(request.attempt.replace(attempt), None, "{id:?} runs twice");
        request.dispatches += 1;
        assert_eq!(request.dispatches, number);
        assert!(request.attempts < MOST_ATTEMPTS && request.tries < MOST_TRIES, "{id:?} goes on and on: {request:?}");
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
        self.running.insert(attempt, Running { request: id, replica: to, first_token: false });
    }
}
