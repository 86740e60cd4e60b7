//! Whether a replica is to be used: the state machine of one replica, from what its requests and probes show.
//!
//! Hard evidence (nobody answers) is acted on fast and always; soft evidence (it answers badly) slowly, and only while
//! the pool can spare the replica, because half a pool that fails alike points at the requests, not at the phones.
//! A plain circuit breaker over an error rate was rejected: a phone sees too few requests an hour for a rate, and
//! "busy reading a long prompt", "full", "loading" and "wrong key" are not errors that a pause cures.
//! No verdict ever touches what already runs.
//!
//! A replica that joins and is not reached is out as well, with its reason, once that is no accident: it is looked at as often as
//! before, and comes into service as one that joins. It has failed nobody, so there is no penalty.
//!
//! A replica that nobody vouches for is in quarantine until it has shown what it can do: alive as far as its probes go, and so
//! worth waiting for, but without work. Whether it needs that is the driver's to know; it reports `Unproven` until then.
//! No penalty outlives a quarantine: its questions are the probation.
//!
//! Penalties double, since a phone that fails again and again costs each time what it had done. Where answers are carried on
//! it does not: what it wrote is kept, and the choice weighs how long it lasts. So there a penalty doubles only for a phone that
//! was back for less long than it was out, and one that comes and goes is used while it is there.

use std::{collections::VecDeque, time::Duration};

use crate::{
    config::HealthConfig,
    effect::{ChangeReason, ReplicaState},
    event::Report,
    evidence::{Context, Evidence, Mark},
    time::Timestamp,
};

/// Outcomes remembered for the share of good ones: a busy phone makes as many in an hour.
const WINDOW: usize = 128;
/// Idle probes in a row without an answer that make a replica suspect.
const TIMEOUTS_SUSPECT: u32 = 3;
/// And that eject it, if the pool can spare it.
const TIMEOUTS_OUT: u32 = 5;

#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) state: ReplicaState,
    pub(crate) since: Timestamp,
    pub(crate) why: ChangeReason,
    pub(crate) mark: Option<Mark>,
    /// In `Out` the end of the penalty, in `Suspect` the next look.
    pub(crate) probe_at: Option<Timestamp>,
    /// A probe was asked for and not reported yet.
    pub(crate) probing: bool,
    /// Slots in use at most while in probation.
    pub(crate) allowed: u16,
    pub(crate) ejections: u32,
    /// The last penalty, and when the replica was in service again after it.
    penalty: Duration,
    served_from: Timestamp,
    hard_row: u32,
    soft_row: u32,
    /// Probes in a row that failed by themselves.
    failed_probes: u32,
    /// Probes in a row without an answer while nothing of ours ran.
    timeouts: u32,
    window: VecDeque<(Timestamp, bool)>,
    last_failure: Timestamp,
    /// The last report was good.
    pub(crate) alive: bool,
    wants_probe: bool,
}

impl Health {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            state: ReplicaState::Joining,
            since: now,
            why: ChangeReason::Operator,
            mark: None,
            probe_at: None,
            probing: false,
            allowed: 1,
            ejections: 0,
            penalty: Duration::ZERO,
            served_from: now,
            hard_row: 0,
            soft_row: 0,
            failed_probes: 0,
            timeouts: 0,
            window: VecDeque::new(),
            last_failure: now,
            alive: false,
            wants_probe: true,
        }
    }

    /// At another address, where nothing is known of it.
    pub(crate) fn moved(now: Timestamp) -> Self {
        Self { why: ChangeReason::Moved, ..Self::new(now) }
    }

    /// Takes work: some, or all it has slots for.
    pub(crate) fn serves(&self) -> bool {
        matches!(self.state, ReplicaState::Ready | ReplicaState::Suspect | ReplicaState::Probation)
    }

    /// Ready, and its last request and probe were no failures. A good probe ends a suspicion or a penalty, but only a good
    /// answer redeems a failed request: there are engines whose health check is fine and whose answers are not.
    pub(crate) fn is_sound(&self) -> bool {
        self.state == ReplicaState::Ready && self.hard_row + self.soft_row + self.failed_probes == 0
    }

    pub(crate) fn usable(&self, slots: u16) -> u16 {
        match self.state {
            ReplicaState::Ready | ReplicaState::Suspect => slots,
            ReplicaState::Probation => self.allowed.min(slots),
            _ => 0,
        }
    }

    /// Whether a probe has to be asked for now; at most one is outstanding.
    pub(crate) fn take_probe(&mut self) -> bool {
        let ask = std::mem::take(&mut self.wants_probe) && !self.probing;
        self.probing |= ask;
        ask
    }

    pub(crate) fn ask_probe(&mut self) {
        self.wants_probe = true;
    }

    pub(crate) fn observe(&mut self, evidence: Evidence, context: &mut Context<'_>) {
        match evidence {
            Evidence::Success => self.on_success(context),
            // What still ran when it was taken out belongs to the same incident.
            Evidence::Hard | Evidence::Soft if !self.serves() => {}
            Evidence::Hard => {
                self.hard_row += 1;
                self.on_failure(context);
                self.on_hard(context);
            }
            Evidence::Soft => {
                self.hard_row = 0;
                self.soft_row += 1;
                self.on_failure(context);
                self.on_soft(context);
            }
            Evidence::Loading if self.serves() => self.enter(ReplicaState::Loading, ChangeReason::Loading, context),
            Evidence::Loading => {}
            Evidence::Misconfigured => self.enter(ReplicaState::Misconfigured, ChangeReason::Misconfigured, context),
            Evidence::ProbeDue => {
                self.probe_at = None;
                self.wants_probe = true;
            }
            Evidence::RelayDown => self.hold(context),
            Evidence::RelayBack => {
                if self.mark == Some(Mark::Relay) {
                    self.probe_at = None;
                    self.wants_probe = true;
                }
            }
            Evidence::Configured => {
                self.probe_at = self.probe_at.map(|at| at.min(context.now + context.config.penalty_cap))
            }
            Evidence::PoolShort => {
                if self.state == ReplicaState::Out && self.mark == Some(Mark::Soft) {
                    self.enter(ReplicaState::Suspect, ChangeReason::PoolProtection, context);
                    self.wants_probe = true;
                }
            }
        }
    }

    pub(crate) fn report(&mut self, report: &Report, context: &mut Context<'_>) {
        self.probing = false;
        self.alive = *report == Report::Ready;
        if *report != Report::TimedOut {
            self.timeouts = 0;
        }
        match report {
            Report::Ready => self.on_ready(context),
            Report::Loading => {
                self.failed_probes = 0;
                if !self.serving_penalty() {
                    self.enter(ReplicaState::Loading, ChangeReason::Probe, context);
                }
            }
            Report::Unproven => {
                self.failed_probes = 0;
                if !self.serving_penalty() {
                    self.mark = None;
                    self.enter(ReplicaState::Quarantine, ChangeReason::Unproven, context);
                }
            }
            Report::Misconfigured => self.enter(ReplicaState::Misconfigured, ChangeReason::Probe, context),
            // Its answers arrive: whatever the probe met, it was not a dead phone.
            Report::Unreachable | Report::NotThere | Report::Closed | Report::Failing if context.answering => {}
            Report::Unreachable | Report::NotThere | Report::Closed => {
                self.on_failed_probe(ChangeReason::HardFailure, context);
            }
            Report::Failing => self.on_failed_probe(ChangeReason::Probe, context),
            // A phone that reads a long prompt answers nothing else meanwhile.
            Report::TimedOut if context.busy => {}
            Report::TimedOut => self.on_idle_timeout(context),
        }
        self.look_again_later(context);
    }

    /// The models became known, or were changed: a replica that already answered need not wait for another probe.
    pub(crate) fn described(&mut self, context: &mut Context<'_>) {
        if self.alive && context.models_known {
            match self.state {
                ReplicaState::Joining => self.enter(ReplicaState::Ready, ChangeReason::Probe, context),
                ReplicaState::Quarantine => self.enter(ReplicaState::Ready, ChangeReason::Proven, context),
                ReplicaState::Out if self.owes_nothing() => {
                    self.enter(ReplicaState::Ready, ChangeReason::Probe, context);
                }
                _ => {}
            }
        }
        self.allowed = self.allowed.min(context.slots.max(1));
    }

    fn on_success(&mut self, context: &mut Context<'_>) {
        (self.hard_row, self.soft_row, self.failed_probes, self.timeouts) = (0, 0, 0, 0);
        self.remember(true, context);
        match self.state {
            ReplicaState::Suspect => self.enter(ReplicaState::Ready, ChangeReason::Success, context),
            ReplicaState::Probation => {
                self.allowed = self.allowed.saturating_add(1);
                if self.allowed >= context.slots {
                    self.enter(ReplicaState::Ready, ChangeReason::Success, context);
                }
            }
            ReplicaState::Ready => {
                let good_for = context.now.since(self.since.max(self.last_failure));
                if good_for >= context.config.penalty_cap {
                    self.ejections = 0;
                }
            }
            // A stream that outlived the verdict ended well: no reason to wait for the penalty before looking.
            ReplicaState::Out if self.mark != Some(Mark::Soft) => {
                self.probe_at = None;
                self.wants_probe = true;
            }
            _ => {}
        }
    }

    fn on_ready(&mut self, context: &mut Context<'_>) {
        self.failed_probes = 0;
        match self.state {
            ReplicaState::Joining | ReplicaState::Quarantine | ReplicaState::Out if !context.models_known => {}
            ReplicaState::Quarantine => self.enter(ReplicaState::Ready, ChangeReason::Proven, context),
            ReplicaState::Joining | ReplicaState::Suspect | ReplicaState::Misconfigured => {
                self.enter(ReplicaState::Ready, ChangeReason::Probe, context);
            }
            ReplicaState::Loading if self.mark.is_none() => {
                self.enter(ReplicaState::Ready, ChangeReason::Probe, context);
            }
            ReplicaState::Out if self.owes_nothing() => {
                self.enter(ReplicaState::Ready, ChangeReason::Probe, context);
            }
            ReplicaState::Out if self.serving_penalty() => {}
            ReplicaState::Out | ReplicaState::Loading => {
                self.enter(ReplicaState::Probation, ChangeReason::PenaltyOver, context);
            }
            ReplicaState::Ready | ReplicaState::Probation | ReplicaState::Draining => {}
        }
    }

    fn on_hard(&mut self, context: &mut Context<'_>) {
        let row = self.hard_row + self.failed_probes;
        match self.state {
            ReplicaState::Ready | ReplicaState::Suspect if row < context.config.hard_failures => {
                if self.state == ReplicaState::Ready {
                    self.enter(ReplicaState::Suspect, ChangeReason::HardFailure, context);
                }
                self.wants_probe = true;
            }
            ReplicaState::Ready | ReplicaState::Suspect | ReplicaState::Probation => {
                self.eject(Mark::Hard, ChangeReason::HardFailure, context);
            }
            _ => {}
        }
    }

    fn on_soft(&mut self, context: &mut Context<'_>) {
        let bad = self.state == ReplicaState::Probation
            || self.soft_row >= context.config.soft_failures
            || self.mostly_bad(context.config);
        if bad && context.may_eject_soft {
            self.eject(Mark::Soft, ChangeReason::SoftFailure, context);
        } else {
            self.distrust(ChangeReason::SoftFailure, context);
        }
    }

    /// The probe failed by itself, whatever the requests were.
    fn on_failed_probe(&mut self, why: ChangeReason, context: &mut Context<'_>) {
        self.failed_probes += 1;
        self.last_failure = context.now;
        let row = self.hard_row + self.failed_probes;
        match self.state {
            ReplicaState::Ready | ReplicaState::Suspect if row < context.config.hard_failures => {
                if self.state == ReplicaState::Ready {
                    self.enter(ReplicaState::Suspect, why, context);
                }
                self.wants_probe = true;
            }
            ReplicaState::Loading | ReplicaState::Quarantine if row < context.config.hard_failures => {
                self.wants_probe = true;
            }
            ReplicaState::Joining if row >= context.config.hard_failures => self.miss(why, context),
            ReplicaState::Ready
            | ReplicaState::Suspect
            | ReplicaState::Probation
            | ReplicaState::Loading
            | ReplicaState::Quarantine => {
                self.eject(Mark::Hard, why, context);
            }
            // It was held for its relay, which is back without it.
            ReplicaState::Out if self.mark == Some(Mark::Relay) && !context.relay_down => {
                (self.mark, self.why) = (Some(Mark::Absent), why);
            }
            _ => {}
        }
    }

    fn on_idle_timeout(&mut self, context: &mut Context<'_>) {
        self.timeouts += 1;
        if self.state == ReplicaState::Joining && self.timeouts >= TIMEOUTS_SUSPECT {
            return self.miss(ChangeReason::Probe, context);
        }
        if !self.serves() || self.timeouts < TIMEOUTS_SUSPECT {
            return;
        }
        if self.timeouts >= TIMEOUTS_OUT && context.may_eject_soft {
            self.eject(Mark::Soft, ChangeReason::Probe, context);
        } else {
            self.distrust(ChangeReason::Probe, context);
        }
    }

    /// The pool cannot spare it: used when nothing better is free, and looked at.
    fn distrust(&mut self, why: ChangeReason, context: &mut Context<'_>) {
        match self.state {
            ReplicaState::Ready => self.enter(ReplicaState::Suspect, why, context),
            ReplicaState::Probation => self.allowed = 1,
            _ => {}
        }
        self.wants_probe |= why != ChangeReason::Probe;
    }

    fn hold(&mut self, context: &mut Context<'_>) {
        if self.state == ReplicaState::Out {
            if self.mark == Some(Mark::Hard) {
                // Ejected by the same outage, a moment before it was understood.
                self.ejections = self.ejections.saturating_sub(1);
            }
        } else if self.serves()
            || matches!(self.state, ReplicaState::Joining | ReplicaState::Loading | ReplicaState::Quarantine)
        {
            self.enter(ReplicaState::Out, ChangeReason::RelayDown, context);
        } else {
            return;
        }
        (self.hard_row, self.failed_probes) = (0, 0);
        self.mark = Some(Mark::Relay);
        self.why = ChangeReason::RelayDown;
        self.probe_at = Some(context.now + context.jittered(context.config.penalty));
    }

    fn eject(&mut self, mark: Mark, why: ChangeReason, context: &mut Context<'_>) {
        let config = context.config;
        if context.carries_on && context.now.since(self.served_from) >= self.penalty {
            self.ejections = 0;
        }
        let doublings = self.ejections.min(30);
        let penalty = config.penalty.saturating_mul(1 << doublings).min(config.penalty_cap);
        let penalty = context.jittered(penalty).min(config.penalty_cap);
        self.ejections = self.ejections.saturating_add(1);
        self.enter(ReplicaState::Out, why, context);
        self.mark = Some(mark);
        self.penalty = penalty;
        self.probe_at = Some(context.now + penalty);
        (self.hard_row, self.soft_row, self.failed_probes, self.timeouts) = (0, 0, 0, 0);
        self.window.clear();
    }

    /// It joined, and is not there: out, without a penalty. It is looked at again later.
    fn miss(&mut self, why: ChangeReason, context: &Context<'_>) {
        let (mark, why) = if context.relay_down { (Mark::Relay, ChangeReason::RelayDown) } else { (Mark::Absent, why) };
        self.enter(ReplicaState::Out, why, context);
        self.mark = Some(mark);
        (self.failed_probes, self.timeouts) = (0, 0);
    }

    /// A state in which nothing happens without news must ask for news again.
    fn look_again_later(&mut self, context: &mut Context<'_>) {
        let waits_for_news = matches!(self.state, ReplicaState::Out | ReplicaState::Suspect);
        if waits_for_news && self.probe_at.is_none() && !self.wants_probe && !self.probing {
            self.probe_at = Some(context.now + context.jittered(context.config.penalty));
        }
    }

    /// Out, and not yet to be looked at again.
    fn serving_penalty(&self) -> bool {
        self.state == ReplicaState::Out && !self.owes_nothing() && self.probe_at.is_some()
    }

    /// Whether it is out by no failure of its own.
    fn owes_nothing(&self) -> bool {
        matches!(self.mark, Some(Mark::Relay | Mark::Absent))
    }

    fn on_failure(&mut self, context: &Context<'_>) {
        self.last_failure = context.now;
        self.remember(false, context);
    }

    fn remember(&mut self, good: bool, context: &Context<'_>) {
        let old = |at: Timestamp| context.now.since(at) > context.config.success_window;
        while self.window.len() >= WINDOW || self.window.front().is_some_and(|(at, _)| old(*at)) {
            self.window.pop_front();
        }
        self.window.push_back((context.now, good));
    }

    fn mostly_bad(&self, config: &HealthConfig) -> bool {
        let good = self.window.iter().filter(|(_, good)| *good).count();
        self.window.len() >= config.min_samples.max(1) as usize
            && (good as f64) < config.min_success_share * self.window.len() as f64
    }

    fn enter(&mut self, state: ReplicaState, why: ChangeReason, context: &Context<'_>) {
        if self.state == state {
            return;
        }
        let served = self.serves();
        self.state = state;
        if self.serves() && !served {
            self.served_from = context.now;
        }
        self.since = context.now;
        self.why = why;
        self.allowed = 1;
        self.probe_at = None;
        // A phone that loads its model after an ejection still owes the probation; after a hold, or when it was
        // never there, it owes nothing.
        let keeps = matches!(state, ReplicaState::Out | ReplicaState::Loading) && !self.owes_nothing();
        self.mark = self.mark.filter(|_| keeps);
    }
}
