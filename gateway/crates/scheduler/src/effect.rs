//! What the core asks the driver to do.

use std::time::Duration;

use crate::id::{AttemptId, ReplicaId, RequestId};

/// One thing to do. The order matters: perform them as they come.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Effect {
    /// Send the request to the replica. The slot is taken until `AttemptEnded` or `RequestAbandoned`.
    Dispatch {
        /// Which request.
        request: RequestId,
        /// New in this run.
        attempt: AttemptId,
        /// Where.
        replica: ReplicaId,
        /// The first try is 1.
        number: u32,
        /// A second copy beside one that runs already. The first that shows content to a streaming client, or the first whole
        /// answer to another, wins; the core cancels the others ([`CancelReason::HedgeLost`]).
        hedge: bool,
        /// It carries on the part that an earlier attempt left ([`Left::Part`](crate::Left)); else it begins anew.
        carries_on: bool,
    },
    /// Stop a running attempt: it is over, its slot is free. Its request goes on: with another copy that runs, or another
    /// `Dispatch` or a `Reject` follows. It has ended where another copy's answer ended it. If this was the copy whose content a
    /// streaming client has seen, the reason decides: a replica that goes away ([`CancelReason::ReplicaRemoved`],
    /// [`CancelReason::DrainDeadline`]) leaves the request to be carried on (a `Dispatch` that says so, or a `Reject`, follows),
    /// unless its [`Carry`](crate::Carry) is `Never`; else it has ended.
    Cancel {
        /// Which.
        attempt: AttemptId,
        /// Its request.
        request: RequestId,
        /// Why.
        why: CancelReason,
    },
    /// The request ends without an answer.
    Reject {
        /// Which.
        request: RequestId,
        /// Why.
        reason: ShedReason,
        /// When trying again makes sense, from the queue's own estimate, without jitter.
        retry_after: Duration,
    },
    /// A replica changed its state.
    Changed {
        /// Which.
        replica: ReplicaId,
        /// Before.
        from: ReplicaState,
        /// Now.
        to: ReplicaState,
        /// Why.
        why: ChangeReason,
    },
    /// Probe this replica as soon as may be and report. At most one is outstanding per replica.
    Probe {
        /// Which.
        replica: ReplicaId,
    },
    /// Ask this replica how many of its slots work ([`Event::SlotsSeen`](crate::Event::SlotsSeen)), as soon as may be.
    Look {
        /// Which.
        replica: ReplicaId,
    },
    /// A draining replica has nothing running any more.
    Drained {
        /// Which.
        replica: ReplicaId,
    },
}

/// Why a running attempt is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum CancelReason {
    /// The operator removed the replica.
    ReplicaRemoved,
    /// The drain's deadline passed.
    DrainDeadline,
    /// The request's own deadline passed.
    Deadline,
    /// Another copy of the request was faster.
    HedgeLost,
    /// More urgent work needs the slot; the request is queued again, or goes on with its other copy, and has lost no attempt.
    GivenBack,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum ShedReason {
    /// 503 `no_capacity`: no replica that could serve it came up in time.
    NoCapacity,
    /// 503 `queue_full`: the queue's bound by count or by bytes.
    QueueFull,
    /// 503 `overloaded`: waited longer than its class may.
    QueueAge,
    /// 503 `overloaded`: by the queue's own estimate it would wait longer than its class, or its deadline, allows; said at
    /// once instead of after the wait.
    Hopeless,
    /// 504 `deadline_exceeded`.
    Deadline,
    /// 502 `upstream_error`: tried on as many replicas as allowed, or as there are.
    AttemptsExhausted,
    /// 502 `upstream_error`: too much of the traffic is retries already.
    RetryBudget,
    /// 400 `context_length_exceeded`: no replica of the model has a context that large.
    ContextExceeded,
}

/// Where a replica stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum ReplicaState {
    /// Known, not probed yet.
    Joining,
    /// Alive, model not loaded.
    Loading,
    /// Alive, and takes no work until it has shown that it can do it.
    Quarantine,
    /// Takes work.
    Ready,
    /// One sign of trouble: still takes work, a probe is under way.
    Suspect,
    /// Takes no work until a probe succeeds: after its penalty, or, if it was never reached, as soon as it is.
    Out,
    /// The probe succeeded: exactly one real request, then slot after slot.
    Probation,
    /// Takes no new work because an operator said so, or because its deployment has ended.
    Draining,
    /// Takes no work until an operator acts.
    Misconfigured,
}

impl ReplicaState {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Joining,
        Self::Loading,
        Self::Quarantine,
        Self::Ready,
        Self::Suspect,
        Self::Out,
        Self::Probation,
        Self::Draining,
        Self::Misconfigured,
    ];

    /// Whether a replica gets new work in it.
    pub const fn takes_work(self) -> bool {
        matches!(self, Self::Ready | Self::Suspect | Self::Probation)
    }

    /// The name in the admin API, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Loading => "loading",
            Self::Quarantine => "quarantine",
            Self::Ready => "ready",
            Self::Suspect => "suspect",
            Self::Out => "out",
            Self::Probation => "probation",
            Self::Draining => "draining",
            Self::Misconfigured => "misconfigured",
        }
    }
}

/// Why a replica changed its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum ChangeReason {
    /// A probe said so.
    Probe,
    /// Connect, TLS, reset.
    HardFailure,
    /// 5xx, broken, stalled.
    SoftFailure,
    /// Its penalty is over.
    PenaltyOver,
    /// A request succeeded.
    Success,
    /// The operator.
    Operator,
    /// The replica answered 503 "Loading model".
    Loading,
    /// Wrong key or wrong model.
    Misconfigured,
    /// Every replica of its relay failed at once: held, not ejected.
    RelayDown,
    /// Too little of the pool is left: the marks of soft failures are ignored.
    PoolProtection,
    /// It is at another address, where it has shown nothing yet.
    Moved,
    /// It has yet to show that it can do what it says.
    Unproven,
    /// It has shown that it can do what it says.
    Proven,
    /// Its deployment has ended, or has not after all.
    Ending,
}

impl ChangeReason {
    /// The name in the admin API, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::HardFailure => "hard_failure",
            Self::SoftFailure => "soft_failure",
            Self::PenaltyOver => "penalty_over",
            Self::Success => "success",
            Self::Operator => "operator",
            Self::Loading => "loading",
            Self::Misconfigured => "misconfigured",
            Self::RelayDown => "relay_down",
            Self::PoolProtection => "pool_protection",
            Self::Moved => "moved",
            Self::Unproven => "unproven",
            Self::Proven => "proven",
            Self::Ending => "ending",
        }
    }
}
