//! Replicas whose end is known.

use scheduler::{
    ChangeReason, Event, Outcome, Policy, Rates, ReplicaId, ReplicaSpec, ReplicaState, Report, RequestSpec,
    SchedulerConfig, ShedReason, Timestamp,
};

use crate::rig::{Rig, config, request, seconds, spec};

const FIRST: ReplicaId = ReplicaId(1);

/// One replica that reads 100 and writes 10 tokens a second.
fn rig(policy: Policy) -> Rig {
    let mut rig = Rig::new(SchedulerConfig { policy, ..config() });
    let prior = Some(Rates { prefill: 100.0, decode: 10.0 });
    rig.ready(1, ReplicaSpec { prior, ..spec(2) });
    rig
}

fn of_seconds(reading: u32) -> RequestSpec {
    RequestSpec { prompt_tokens: 100 * reading, max_output: Some(1), ..request() }
}

fn ends(rig: &mut Rig, at: Option<Timestamp>) {
    rig.tell(Event::ReplicaEnding { replica: FIRST, at });
}

#[test]
fn nothing_is_started_that_would_not_be_done_before_the_end() {
    let mut rig = rig(Policy::LeastWork);
    let at = rig.now + seconds(60);
    ends(&mut rig, Some(at));
    assert_eq!((rig.state(1), rig.view(1).ends_at), (ReplicaState::Ready, Some(at)));
    let (_, attempt, _) = rig.place(of_seconds(10));
    rig.end(attempt, Outcome::Success);
    let long = rig.ask(of_seconds(70));
    assert_eq!(rig.dispatched(long), None);
    let (_, attempt, _) = rig.place(of_seconds(10));
    rig.end(attempt, Outcome::Success);
    rig.pass(seconds(50));
    let short = rig.ask(of_seconds(10));
    assert_eq!(rig.dispatched(short), None, "what would have been done before would not be any more");
    let at = rig.now + seconds(600);
    ends(&mut rig, Some(at));
    assert!(rig.dispatched(long).is_some(), "the deployment was extended");
}

#[test]
fn at_the_end_it_drains_by_itself_and_what_runs_there_runs_on() {
    for policy in [Policy::LeastWork, Policy::LeastBusy] {
        let mut rig = rig(policy);
        let (running, attempt, _) = rig.place(of_seconds(30));
        let at = rig.now + seconds(10);
        ends(&mut rig, Some(at));
        rig.pass(seconds(10));
        assert_eq!(rig.changes(), [(1, ReplicaState::Draining, ChangeReason::Ending)]);
        assert_eq!((rig.view(1).why, rig.view(1).since), (ChangeReason::Ending, at));
        assert!(rig.core.request(running, rig.now).is_some_and(|view| view.running.is_some()));
        let late = rig.ask(of_seconds(1));
        assert_eq!(rig.dispatched(late), None);
        rig.end(attempt, Outcome::Success);
        rig.pass(config().queue.no_replica_wait);
        assert_eq!(rig.rejected(late).map(|(reason, _)| reason), Some(ShedReason::NoCapacity));
    }
}

#[test]
fn an_end_that_is_put_off_takes_the_drain_back_and_an_operators_drain_stays() {
    let mut rig = rig(Policy::LeastWork);
    let now = rig.now;
    ends(&mut rig, Some(now));
    assert_eq!(rig.state(1), ReplicaState::Draining);
    rig.report(1, Report::Unreachable);
    rig.report(1, Report::Unreachable);
    rig.report(1, Report::Ready);
    rig.heard();
    ends(&mut rig, None);
    assert_eq!(rig.state(1), ReplicaState::Out, "what was seen meanwhile counts");
    let (now, later) = (rig.now, rig.now + seconds(600));
    ends(&mut rig, Some(now));
    rig.tell(Event::DrainReplica { replica: FIRST, deadline: None });
    ends(&mut rig, Some(later));
    assert_eq!((rig.state(1), rig.view(1).why), (ReplicaState::Draining, ChangeReason::Operator));
    rig.tell(Event::UndrainReplica { replica: FIRST });
    assert_ne!(rig.state(1), ReplicaState::Draining);
}

#[test]
fn the_policies_that_estimate_nothing_start_nothing_once_the_end_is_near() {
    for policy in [Policy::LeastBusy, Policy::RoundRobin] {
        let mut rig = rig(policy);
        let at = rig.now + seconds(600);
        ends(&mut rig, Some(at));
        let waiting = rig.ask(request());
        assert_eq!(rig.dispatched(waiting), None);
        ends(&mut rig, None);
        assert!(rig.dispatched(waiting).is_some());
    }
}
