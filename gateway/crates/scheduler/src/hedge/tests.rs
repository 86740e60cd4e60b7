//! The promises about copies and work given back, whatever the policy does with them.

use std::{collections::BTreeSet, time::Duration};

use super::*;
use crate::{
    config::{Policy, Share},
    effect::{ReplicaState, ShedReason},
    event::{
        Carry, Class, Event, HardFailure, Left, Outcome, Part, Release, ReplicaSpec, Report, RequestSpec, RouteSet,
        SoftFailure,
    },
    id::{GroupId, ModelId, RelayId, TenantId},
    prefix::Prefix,
};

const STATUS: Outcome = Outcome::Soft(SoftFailure::Status);
const RESET: Outcome = Outcome::Hard(HardFailure::Reset);
const LATE: Decision = Decision::HedgedLate;

struct Rig {
    core: Scheduler,
    now: Timestamp,
    requests: u64,
}

fn config() -> SchedulerConfig {
    // Whatever runs twice here, and whatever is given back, is told to.
    SchedulerConfig { policy: Policy::LeastBusy, ..SchedulerConfig::default() }
}

fn replica_spec(id: u32) -> ReplicaSpec {
    ReplicaSpec {
        models: vec![ModelId(1)],
        routes: RouteSet(1),
        slots: 1,
        context_tokens: Some(8192),
        relay: RelayId(id),
        prior: None,
        carries_on: false,
        group: None,
        release: Release::AtOnce,
    }
}

fn plain() -> RequestSpec {
    RequestSpec {
        model: ModelId(1),
        route: 0,
        tenant: TenantId(1),
        class: Class::Standard,
        deadline: None,
        prompt_tokens: 100,
        max_output: Some(100),
        stream: false,
        carry: Carry::Never,
        body_bytes: 1000,
        prefix: Prefix::default(),
    }
}

fn streamed() -> RequestSpec {
    RequestSpec { stream: true, ..plain() }
}

fn batch() -> RequestSpec {
    RequestSpec { class: Class::Batch, ..plain() }
}

impl Rig {
    /// With that many ready replicas of one slot, each behind its own relay.
    fn new(config: SchedulerConfig, replicas: u32) -> Self {
        let mut rig = Self { core: Scheduler::new(config, 1), now: Timestamp::ZERO, requests: 0 };
        (1..=replicas).for_each(|id| rig.ready(id, replica_spec(id)));
        rig
    }

    fn ready(&mut self, id: u32, spec: ReplicaSpec) {
        self.tell(Event::ReplicaUp { replica: ReplicaId(id), spec });
        self.tell(Event::ReplicaReported { replica: ReplicaId(id), report: Report::Ready });
        self.heard();
    }

    fn tell(&mut self, event: Event) {
        self.core.handle(event, self.now);
    }

    fn heard(&mut self) -> Vec<Effect> {
        std::iter::from_fn(|| self.core.poll_effect()).collect()
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.core.advance(self.now);
    }

    fn ask(&mut self, spec: RequestSpec) -> RequestId {
        self.requests += 1;
        self.tell(Event::RequestArrived { request: RequestId(self.requests), spec });
        RequestId(self.requests)
    }

    /// Asks, and expects to be placed at once.
    fn place(&mut self, spec: RequestSpec) -> (RequestId, AttemptId) {
        let request = self.ask(spec);
        self.heard();
        let attempt = self.core.requests[&request].copies().first().expect("the request should be placed at once");
        (request, attempt)
    }

    /// A second copy on any free replica, if that is allowed.
    fn hedge(&mut self, request: RequestId) -> Option<AttemptId> {
        let before = self.copies(request);
        let replicas: Vec<ReplicaId> = self.core.pool.replicas.keys().copied().collect();
        let done = replicas.into_iter().any(|replica| self.core.hedge(request, replica, LATE, self.now));
        self.settle();
        done.then(|| self.copies(request).difference(&before).copied().next().expect("it should be the new one"))
    }

    fn give_back(&mut self, attempt: AttemptId) -> bool {
        let done = self.core.give_back(attempt, self.now);
        self.settle();
        done
    }

    /// An event about nobody: the core settles what was done beside events, and checks its invariants.
    fn settle(&mut self) {
        self.tell(Event::RequestAbandoned { request: RequestId(0) });
    }

    fn end(&mut self, attempt: AttemptId, outcome: Outcome, left: Left) {
        self.tell(Event::AttemptEnded { attempt, outcome, left, timings: None });
    }

    fn copies(&self, request: RequestId) -> BTreeSet<AttemptId> {
        self.core.requests.get(&request).map(|request| request.copies().iter().collect()).unwrap_or_default()
    }

    fn at(&self, attempt: AttemptId) -> ReplicaId {
        self.core.attempts[&attempt].replica
    }

    fn is_live(&self, request: RequestId) -> bool {
        self.core.requests.contains_key(&request)
    }

    fn idle(&self) -> bool {
        self.core.attempts.is_empty() && self.core.pool.replicas.values().all(|replica| replica.running.is_empty())
    }

    fn wasted(&self, why: Waste) -> f64 {
        self.core.tally.wasted[why as usize]
    }
}

fn cancelled(heard: &[Effect]) -> Vec<(AttemptId, CancelReason)> {
    let cancel = |effect: &Effect| match effect {
        Effect::Cancel { attempt, why, .. } => Some((*attempt, *why)),
        _ => None,
    };
    heard.iter().filter_map(cancel).collect()
}

fn dispatched(heard: &[Effect]) -> Vec<(RequestId, u32, bool)> {
    let dispatch = |effect: &Effect| match effect {
        Effect::Dispatch { request, number, hedge, .. } => Some((*request, *number, *hedge)),
        _ => None,
    };
    heard.iter().filter_map(dispatch).collect()
}

fn rejected(heard: &[Effect]) -> Vec<ShedReason> {
    let reject = |effect: &Effect| match effect {
        Effect::Reject { reason, .. } => Some(*reason),
        _ => None,
    };
    heard.iter().filter_map(reject).collect()
}

#[test]
fn a_second_copy_runs_beside_the_first_and_is_no_retry() {
    let mut rig = Rig::new(config(), 2);
    let (request, first) = rig.place(plain());
    let second = rig.hedge(request).expect("a replica is free");
    assert_eq!(dispatched(&rig.heard()), [(request, 2, true)]);
    assert_ne!(rig.at(first), rig.at(second));
    let view = rig.core.request(request, rig.now).expect("it runs");
    assert_eq!((view.running, view.copies), (Some((first, rig.at(first))), 2));
    let snapshot = rig.core.snapshot(rig.now);
    assert_eq!((snapshot.retries_in_flight, snapshot.decisions[LATE as usize]), (0, 1));
}

#[test]
fn at_most_three_copies_run_and_none_twice_on_one_replica() {
    let mut config = config();
    config.hedge.budget_share = 1.0;
    let mut rig = Rig::new(config, 0);
    (1..=5).for_each(|id| rig.ready(id, ReplicaSpec { slots: 2, ..replica_spec(id) }));
    let (request, first) = rig.place(plain());
    assert!(!rig.core.hedge(request, rig.at(first), LATE, rig.now));
    assert!(rig.hedge(request).is_some() && rig.hedge(request).is_some());
    assert_eq!(rig.hedge(request), None);
    let replicas: BTreeSet<ReplicaId> = rig.copies(request).into_iter().map(|copy| rig.at(copy)).collect();
    assert_eq!(replicas.len(), 3);
}

#[test]
fn only_a_running_request_gets_a_copy_and_only_where_it_could_be_placed() {
    let mut rig = Rig::new(config(), 1);
    let (request, _) = rig.place(RequestSpec { prompt_tokens: 5000, ..plain() });
    let waiting = rig.ask(plain());
    rig.ready(2, ReplicaSpec { models: vec![ModelId(2)], ..replica_spec(2) });
    rig.ready(3, ReplicaSpec { context_tokens: Some(4096), routes: RouteSet(2), ..replica_spec(3) });
    rig.ready(4, ReplicaSpec { context_tokens: Some(4096), ..replica_spec(4) });
    assert_eq!(rig.copies(waiting).len(), 1, "the short one took the small replica");
    let late = rig.ask(plain());
    assert_eq!((rig.hedge(request), rig.hedge(late), rig.hedge(RequestId(77))), (None, None, None));
    rig.tell(Event::RequestAbandoned { request: late });
    rig.tell(Event::RequestAbandoned { request: waiting });
    assert_eq!(rig.hedge(request), None, "too small");
    rig.ready(5, replica_spec(5));
    rig.tell(Event::DrainReplica { replica: ReplicaId(5), deadline: None });
    assert_eq!(rig.hedge(request), None, "draining");
    rig.tell(Event::UndrainReplica { replica: ReplicaId(5) });
    assert!(rig.hedge(request).is_some());
}

#[test]
fn copies_keep_to_their_budget_but_one_may_always_run() {
    for (share, replicas, most) in [(0.0, 10, 1), (0.2, 4, 1), (0.2, 10, 2), (f64::NAN, 10, 1)] {
        let mut config = config();
        config.hedge.budget_share = share;
        let mut rig = Rig::new(config, replicas);
        let requests = [(); 2].map(|()| rig.place(plain()).0);
        let copies: Vec<_> = requests.iter().cycle().take(4).filter_map(|request| rig.hedge(*request)).collect();
        assert_eq!(copies.len(), most, "{share} of {replicas}");
        rig.end(copies[0], Outcome::Success, Left::Closed);
        assert_eq!(rig.core.hedges, most as u32 - 1);
    }
    let mut off = config();
    off.hedge.enabled = false;
    let mut rig = Rig::new(off, 2);
    let (request, _) = rig.place(plain());
    assert_eq!(rig.hedge(request), None);
}

#[test]
fn a_tenant_at_its_cap_gets_no_copy() {
    let mut config = config();
    config.tenants.insert(TenantId(1), Share { max_running: Some(2), ..Share::default() });
    let mut rig = Rig::new(config, 3);
    let (request, _) = rig.place(plain());
    let (_, other) = rig.place(plain());
    assert_eq!(rig.hedge(request), None);
    rig.end(other, Outcome::Success, Left::Closed);
    assert!(rig.hedge(request).is_some());
}

#[test]
fn a_copy_goes_on_from_the_wait_of_its_request() {
    let mut config = config();
    config.queue.max_age[Class::Standard as usize] = Some(Duration::from_secs(100));
    let mut rig = Rig::new(config, 3);
    let occupants = [(); 3].map(|()| rig.place(plain()).1);
    let request = rig.ask(plain());
    rig.pass(60);
    rig.end(occupants[0], Outcome::Success, Left::Closed);
    let first = rig.copies(request).into_iter().next().expect("a replica is free");
    rig.end(occupants[1], Outcome::Success, Left::Closed);
    let second = rig.hedge(request).expect("a replica is free");
    [first, second].into_iter().for_each(|copy| rig.end(copy, STATUS, Left::Nothing));
    rig.pass(39);
    assert!(rig.is_live(request), "it waits for the third");
    rig.heard();
    rig.pass(1);
    assert_eq!(rejected(&rig.heard()), [ShedReason::QueueAge]);
}

#[test]
fn a_copy_that_is_left_alone_is_no_second_copy_any_more() {
    let mut rig = Rig::new(config(), 4);
    let (request, first) = rig.place(plain());
    let (other, _) = rig.place(plain());
    rig.hedge(request).expect("a replica is free");
    assert_eq!(rig.hedge(other), None, "no budget");
    rig.end(first, STATUS, Left::Nothing);
    assert!(rig.hedge(other).is_some());
}

#[test]
fn copies_count_as_attempts_that_may_all_fail() {
    let mut config = config();
    (config.hedge.budget_share, config.retry.max_attempts) = (1.0, 3);
    let mut rig = Rig::new(config, 6);
    let (request, first) = rig.place(plain());
    rig.end(first, RESET, Left::Nothing);
    let mut copies = rig.copies(request);
    copies.insert(rig.hedge(request).expect("one of three attempts is over, one runs"));
    assert_eq!(rig.hedge(request), None, "that would be four");
    rig.heard();
    copies.into_iter().for_each(|copy| rig.end(copy, STATUS, Left::Nothing));
    assert_eq!(rejected(&rig.heard()), [ShedReason::AttemptsExhausted]);
}

#[test]
fn the_first_content_that_a_client_sees_stops_the_others_and_marks_nobody() {
    let mut config = config();
    config.hedge.budget_share = 1.0;
    let mut rig = Rig::new(config, 3);
    let (request, first) = rig.place(streamed());
    rig.pass(5);
    let (second, third) = (rig.hedge(request).expect("free"), rig.hedge(request).expect("free"));
    let losers = [first, third].map(|loser| rig.at(loser));
    rig.pass(2);
    rig.heard();
    rig.tell(Event::FirstToken { attempt: second });
    assert_eq!(cancelled(&rig.heard()), [(first, CancelReason::HedgeLost), (third, CancelReason::HedgeLost)]);
    assert_eq!(rig.copies(request), BTreeSet::from([second]));
    assert_eq!(rig.wasted(Waste::HedgeLost), 9.0);
    for loser in losers {
        let view = rig.core.replica(loser, rig.now).expect("it is known");
        assert_eq!((view.state, view.running.len(), view.outcomes), (ReplicaState::Ready, 0, (0, 0)));
    }
    assert_eq!(rig.hedge(request), None, "its client has seen content");
    // Late news of a loser changes nothing.
    rig.tell(Event::FirstToken { attempt: first });
    rig.end(third, RESET, Left::Nothing);
    assert_eq!(rig.heard(), []);
    rig.end(second, Outcome::Success, Left::Closed);
    assert!(!rig.is_live(request) && rig.idle());
}

#[test]
fn the_first_whole_answer_wins_where_nothing_is_shown_before() {
    for outcome in [Outcome::Success, Outcome::RequestFault] {
        let mut rig = Rig::new(config(), 2);
        let (request, first) = rig.place(plain());
        let second = rig.hedge(request).expect("a replica is free");
        rig.heard();
        rig.tell(Event::FirstToken { attempt: first });
        assert_eq!((rig.heard(), rig.copies(request).len()), (Vec::new(), 2));
        rig.end(second, outcome, Left::Nothing);
        assert_eq!(rig.heard(), [Effect::Cancel { attempt: first, request, why: CancelReason::HedgeLost }]);
        assert!(!rig.is_live(request) && rig.idle());
    }
}

#[test]
fn a_failed_copy_ends_nothing_while_another_runs_but_tells_about_its_replica() {
    let mut rig = Rig::new(config(), 3);
    let (request, first) = rig.place(streamed());
    let second = rig.hedge(request).expect("a replica is free");
    let ill = rig.at(first);
    rig.pass(3);
    rig.heard();
    rig.end(first, STATUS, Left::Nothing);
    let heard = rig.heard();
    assert!(dispatched(&heard).is_empty() && cancelled(&heard).is_empty() && rejected(&heard).is_empty());
    assert_eq!(rig.copies(request), BTreeSet::from([second]));
    assert_eq!(rig.core.replica(ill, rig.now).map(|view| view.state), Some(ReplicaState::Suspect));
    assert_eq!(rig.wasted(Waste::Failed), 3.0);
    rig.end(second, STATUS, Left::Nothing);
    assert_eq!(dispatched(&rig.heard()), [(request, 3, false)], "the last one is failed over");
    assert_eq!(rig.core.snapshot(rig.now).retries_in_flight, 1);
}

#[test]
fn a_prompt_too_long_for_one_copy_does_not_end_the_other() {
    let mut rig = Rig::new(config(), 0);
    for (id, context) in [(1, 4096), (2, 4096), (3, 4096), (4, 8192)] {
        rig.ready(id, ReplicaSpec { context_tokens: Some(context), ..replica_spec(id) });
    }
    let long = RequestSpec { prompt_tokens: 7000, ..plain() };
    let (_, occupant) = rig.place(long);
    let (request, first) = rig.place(plain());
    let second = rig.hedge(request).expect("a small replica is free");
    rig.end(first, Outcome::ContextExceeded, Left::Nothing);
    assert_eq!(rig.copies(request), BTreeSet::from([second]));
    rig.end(second, STATUS, Left::Nothing);
    assert!(rig.copies(request).is_empty(), "what is left is too small or taken");
    rig.end(occupant, Outcome::Success, Left::Closed);
    assert_eq!(rig.copies(request).into_iter().map(|copy| rig.at(copy)).collect::<Vec<_>>(), [ReplicaId(4)]);
}

#[test]
fn every_copy_is_freed_once_at_the_deadline_and_when_the_client_leaves() {
    let mut rig = Rig::new(config(), 2);
    let deadline = Some(rig.now + Duration::from_secs(10));
    let (request, first) = rig.place(RequestSpec { deadline, ..plain() });
    let second = rig.hedge(request).expect("a replica is free");
    rig.tell(Event::FirstToken { attempt: first });
    rig.heard();
    rig.pass(10);
    let heard = rig.heard();
    assert_eq!(cancelled(&heard), [(first, CancelReason::Deadline), (second, CancelReason::Deadline)]);
    assert_eq!(rejected(&heard), [ShedReason::Deadline], "nobody saw the first token");
    assert!(rig.idle());

    let (request, _) = rig.place(streamed());
    rig.hedge(request).expect("a replica is free");
    rig.heard();
    rig.pass(1);
    rig.tell(Event::RequestAbandoned { request });
    assert_eq!(rig.heard(), []);
    assert!(rig.idle());
    assert_eq!(rig.wasted(Waste::Abandoned), 22.0);
}

#[test]
fn a_replica_that_goes_takes_only_its_own_copy_along() {
    let mut rig = Rig::new(config(), 3);
    let (request, first) = rig.place(streamed());
    let second = rig.hedge(request).expect("a replica is free");
    let (removed, drained) = (rig.at(first), rig.at(second));
    rig.heard();
    rig.tell(Event::ReplicaRemoved { replica: removed });
    assert_eq!(rig.heard(), [Effect::Cancel { attempt: first, request, why: CancelReason::ReplicaRemoved }]);
    rig.tell(Event::DrainReplica { replica: drained, deadline: Some(rig.now + Duration::from_secs(1)) });
    rig.heard();
    rig.pass(1);
    let heard = rig.heard();
    assert_eq!(cancelled(&heard), [(second, CancelReason::DrainDeadline)]);
    assert!(heard.contains(&Effect::Drained { replica: drained }));
    assert_eq!(dispatched(&heard), [(request, 3, false)]);
    assert_eq!(rig.wasted(Waste::Failed), 1.0);
}

#[test]
fn where_a_copy_lost_the_request_may_go_again() {
    let mut rig = Rig::new(config(), 2);
    let (request, first) = rig.place(streamed());
    let second = rig.hedge(request).expect("a replica is free");
    let loser = rig.at(first);
    rig.tell(Event::FirstToken { attempt: second });
    rig.end(second, STATUS, Left::Nothing);
    assert_eq!(rig.copies(request).into_iter().map(|copy| rig.at(copy)).collect::<Vec<_>>(), [loser]);
}

#[test]
fn what_is_given_back_makes_room_for_more_urgent_work_and_comes_before_its_class() {
    let mut rig = Rig::new(config(), 1);
    let (first, attempt) = rig.place(batch());
    let replica = rig.at(attempt);
    let peer = rig.ask(batch());
    let urgent = rig.ask(RequestSpec { class: Class::Interactive, ..plain() });
    rig.pass(4);
    rig.heard();
    assert!(rig.give_back(attempt));
    let heard = rig.heard();
    assert_eq!(cancelled(&heard), [(attempt, CancelReason::GivenBack)]);
    assert_eq!(dispatched(&heard), [(urgent, 1, false)]);
    assert_eq!((rig.wasted(Waste::GivenBack), rig.core.tally.decisions[Decision::GaveBack as usize]), (4.0, 1));
    assert_eq!(
        rig.core.replica(replica, rig.now).map(|view| (view.state, view.outcomes)),
        Some((ReplicaState::Ready, (0, 0)))
    );
    let running = rig.copies(urgent).into_iter().next().expect("it runs");
    rig.end(running, Outcome::Success, Left::Closed);
    assert_eq!(dispatched(&rig.heard()), [(first, 2, false)], "on the same replica, before its peer");
    assert!(rig.copies(peer).is_empty());
    assert_eq!(rig.core.snapshot(rig.now).retries_in_flight, 0);
}

#[test]
fn given_back_work_needs_no_retry_budget_and_loses_no_attempt() {
    let mut config = config();
    (config.retry.budget_share, config.retry.budget_floor, config.retry.max_attempts) = (0.0, 1, 1);
    let mut rig = Rig::new(config, 3);
    let doomed = rig.place(plain());
    let (request, attempt) = rig.place(batch());
    // Takes the only place of the retry budget: nobody was reached, so nothing is spent.
    rig.end(doomed.1, Outcome::Hard(HardFailure::Connect), Left::Nothing);
    assert_eq!(rig.core.snapshot(rig.now).retries_in_flight, 1);
    assert!(rig.give_back(attempt));
    let again = rig.copies(request).into_iter().next().expect("its own replica is free, and no budget is needed");
    rig.end(again, Outcome::Success, Left::Closed);
    assert!(!rig.is_live(request));
}

#[test]
fn a_request_is_given_back_twice_at_most() {
    let mut rig = Rig::new(config(), 1);
    let (request, mut attempt) = rig.place(batch());
    for _ in 0..MAX_GIVEN_BACK {
        assert!(rig.give_back(attempt));
        attempt = rig.copies(request).into_iter().next().expect("its replica is free");
    }
    assert!(!rig.give_back(attempt));
    assert_eq!(rig.copies(request), BTreeSet::from([attempt]));
    assert!(!rig.give_back(AttemptId(77)));
}

#[test]
fn a_copy_beside_another_that_is_given_back_is_just_dropped() {
    let mut rig = Rig::new(config(), 2);
    let (request, first) = rig.place(batch());
    let second = rig.hedge(request).expect("a replica is free");
    let replica = rig.at(first);
    rig.heard();
    assert!(rig.give_back(first));
    assert_eq!(rig.heard(), [Effect::Cancel { attempt: first, request, why: CancelReason::GivenBack }]);
    assert_eq!(rig.copies(request), BTreeSet::from([second]));
    assert_eq!(rig.core.requests[&request].given_back, 0);
    assert!(rig.core.may_hedge(request, replica, Decision::HedgedLate), "it was not tried there");
}

#[test]
fn nothing_is_given_back_that_could_be_lost_by_it() {
    let mut off = config();
    off.hedge.give_back = false;
    let mut rig = Rig::new(off, 1);
    let (_, attempt) = rig.place(batch());
    assert!(!rig.give_back(attempt), "switched off");

    let mut rig = Rig::new(config(), 2);
    let (_, shown) = rig.place(streamed());
    let (_, hidden) = rig.place(plain());
    for attempt in [shown, hidden] {
        rig.tell(Event::FirstToken { attempt });
    }
    assert!(!rig.give_back(shown), "its client has seen content");
    rig.tell(Event::DrainReplica { replica: rig.at(hidden), deadline: None });
    assert!(!rig.give_back(hidden), "its slot is of use to nobody, and it might find no other");
    rig.tell(Event::UndrainReplica { replica: rig.at(hidden) });
    assert!(rig.give_back(hidden));

    let mut rig = Rig::new(config(), 0);
    rig.ready(1, ReplicaSpec { slots: 2, ..replica_spec(1) });
    let [first, second] = [(); 2].map(|()| rig.place(batch()).1);
    rig.tell(Event::ReplicaUp { replica: ReplicaId(1), spec: replica_spec(1) });
    assert!(!rig.give_back(first), "it has lost a slot: none would be free");
    rig.end(second, Outcome::Success, Left::Closed);
    assert!(rig.give_back(first));
}

#[test]
fn the_wait_of_what_was_given_back_goes_on_where_it_stopped() {
    let mut config = config();
    config.queue.max_age[Class::Standard as usize] = Some(Duration::from_secs(100));
    // Else it would be as urgent by now as what it makes room for.
    config.queue.promote_after = Duration::from_secs(1000);
    let mut rig = Rig::new(config, 1);
    let (_, occupant) = rig.place(plain());
    let request = rig.ask(plain());
    rig.pass(60);
    rig.end(occupant, Outcome::Success, Left::Closed);
    let attempt = rig.copies(request).into_iter().next().expect("the slot is free");
    rig.ask(RequestSpec { class: Class::Interactive, ..plain() });
    rig.pass(90);
    assert!(rig.give_back(attempt));
    rig.pass(39);
    assert!(rig.is_live(request));
    rig.heard();
    rig.pass(1);
    assert_eq!(rejected(&rig.heard()), [ShedReason::QueueAge]);
}

/// A rig whose replicas carry on, except the last, and an attempt there that left a part of its answer.
fn broken_off(replicas: u32, spec: RequestSpec) -> (Rig, RequestId, AttemptId) {
    let mut rig = Rig::new(config(), 0);
    let able = |id| ReplicaSpec { carries_on: true, group: Some(GroupId(1)), ..replica_spec(id) };
    (1..replicas).for_each(|id| rig.ready(id, able(id)));
    let (request, attempt) = rig.place(RequestSpec { carry: Carry::SameGroup, ..spec });
    rig.ready(replicas, ReplicaSpec { carries_on: false, ..able(replicas) });
    rig.tell(Event::FirstToken { attempt });
    let part = Part { tokens: 40, seen: rig.core.requests[&request].spec.stream, by: Carry::SameGroup };
    rig.end(attempt, STATUS, Left::Part(part));
    rig.heard();
    let attempt = rig.core.requests[&request].copies().first().expect("it should be carried on at once");
    (rig, request, attempt)
}

#[test]
fn copies_of_what_is_carried_on_carry_on_as_well_until_the_client_sees_more() {
    for spec in [streamed(), plain()] {
        let (mut rig, request, attempt) = broken_off(5, spec);
        let copy = rig.hedge(request).expect("two replicas that carry on are left");
        let carries = |effect: &Effect| matches!(effect, Effect::Dispatch { carries_on: true, hedge: true, .. });
        assert!(rig.heard().iter().any(carries));
        assert_ne!(rig.at(copy), ReplicaId(5));
        rig.end(copy, RESET, Left::Nothing);
        assert_eq!(rig.copies(request), BTreeSet::from([attempt]), "it goes on with the other");
        let stream = rig.core.requests[&request].spec.stream;
        rig.tell(Event::FirstToken { attempt });
        assert_eq!(rig.hedge(request).is_none(), stream);
    }
}

#[test]
fn where_only_others_are_left_what_is_carried_on_gets_no_copy() {
    let (mut rig, request, _) = broken_off(3, plain());
    assert_eq!(rig.hedge(request), None, "the last would have to begin anew");
}

#[test]
fn what_is_carried_on_is_not_given_back() {
    let (mut rig, _, attempt) = broken_off(3, batch());
    assert!(!rig.give_back(attempt));
}

#[test]
fn a_copy_that_broke_off_leaves_its_part_to_the_next_once_the_other_has_failed() {
    let mut rig = Rig::new(config(), 0);
    (1..=4).for_each(|id| rig.ready(id, ReplicaSpec { carries_on: true, group: Some(GroupId(1)), ..replica_spec(id) }));
    let (request, first) = rig.place(RequestSpec { carry: Carry::SameGroup, ..plain() });
    let second = rig.hedge(request).expect("others are free");
    rig.end(first, STATUS, Left::Part(Part { tokens: 40, seen: false, by: Carry::SameGroup }));
    assert_eq!(rig.copies(request), BTreeSet::from([second]));
    rig.heard();
    rig.end(second, RESET, Left::Nothing);
    let carries = |effect: &Effect| matches!(effect, Effect::Dispatch { carries_on: true, hedge: false, .. });
    assert!(rig.heard().iter().any(carries));
}
