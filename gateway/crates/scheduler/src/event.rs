//! What the driver tells the core.

use std::time::Duration;

use crate::{
    config::SchedulerConfig,
    id::{AttemptId, GroupId, ModelId, RelayId, ReplicaId, RequestId, TenantId},
    prefix::Prefix,
    time::Timestamp,
};

/// Something that happened in the world.
#[expect(
    clippy::large_enum_variant,
    reason = "most events are arrivals, and an allocation for each costs more than the room"
)]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Event {
    /// A request that passed every check wants a slot. Answered by `Dispatch` or `Reject`.
    RequestArrived {
        /// New in this run.
        request: RequestId,
        /// What it needs.
        spec: RequestSpec,
    },
    /// The client left, or the driver gave up. Ends the request in whatever phase it is and frees its slot;
    /// its running attempts are over with it (no `AttemptEnded` follows), and count as soft failures of their replicas where
    /// these were long overdue by their own measured speed. Unknown or ended requests are ignored.
    RequestAbandoned {
        /// Which.
        request: RequestId,
    },
    /// The replica reads the prompt of an attempt and says how far it is (engines that report progress). Unknown attempts
    /// are ignored.
    Progress {
        /// Which.
        attempt: AttemptId,
        /// Prompt tokens behind it, those found in its cache included.
        read_tokens: u32,
        /// Of these, tokens found in its cache.
        cached_tokens: u32,
    },
    /// The first content of an attempt has arrived from the replica. Where the request's answer is streamed, its client
    /// sees it: a second copy that runs elsewhere is cancelled.
    FirstToken {
        /// Which.
        attempt: AttemptId,
    },
    /// The attempt is over. After a failure that leaves nothing, or a part that can be carried on, the request has its other
    /// copies; without any it goes back to the front of the queue (and later ends in another `Dispatch` or a `Reject`).
    /// Everything else ends the request, and what else of it runs is cancelled. Unknown attempts are ignored.
    AttemptEnded {
        /// Which.
        attempt: AttemptId,
        /// How.
        outcome: Outcome,
        /// What there is of its answer.
        left: Left,
        /// What was measured, if anything was. Also of attempts that failed after they had answered in part.
        timings: Option<Timings>,
    },
    /// How many of a replica's slots work, by its own list of them ([`Effect::Look`](crate::Effect::Look) asks). Unknown
    /// replicas are ignored.
    SlotsSeen {
        /// Which.
        replica: ReplicaId,
        /// Slots that work for anybody. The count is true of some moment between `asked` and now.
        busy: u16,
        /// When the question was sent.
        asked: Timestamp,
    },
    /// A replica exists (or its static description changed). A new one starts in `Joining` and a probe is asked for.
    ReplicaUp {
        /// Which.
        replica: ReplicaId,
        /// Its description; replaces an earlier one.
        spec: ReplicaSpec,
    },
    /// The replica is at another address now, and in `Joining` again: what it showed at the last one, and what still runs there,
    /// says nothing about this one. Its speeds and what it runs stay. Unknown replicas are ignored.
    ReplicaMoved {
        /// Which.
        replica: ReplicaId,
    },
    /// A probe, or a heartbeat, says something about a replica.
    ReplicaReported {
        /// Which.
        replica: ReplicaId,
        /// What.
        report: Report,
    },
    /// The replica is gone for good: running attempts are cancelled (and fail over, or are carried on elsewhere), the replica is
    /// forgotten.
    ReplicaRemoved {
        /// Which.
        replica: ReplicaId,
    },
    /// Start nothing new there. `Drained` follows when nothing runs any more.
    DrainReplica {
        /// Which.
        replica: ReplicaId,
        /// Cancel what still runs then: those attempts fail over, and where content was sent are carried on elsewhere.
        deadline: Option<Timestamp>,
    },
    /// Take a drain back.
    UndrainReplica {
        /// Which.
        replica: ReplicaId,
    },
    /// How much may be asked of a replica from now on, by what it said about itself. What runs there runs on. Unknown replicas
    /// are ignored.
    ReplicaLimited {
        /// Which.
        replica: ReplicaId,
        /// How much; replaces an earlier one.
        limit: Limit,
    },
    /// A replica goes away for good at a known time: from now on nothing is started there that would, as far as can be told, not
    /// be done by then, and from then on nothing at all. What runs there runs on. Unknown replicas are ignored.
    ReplicaEnding {
        /// Which.
        replica: ReplicaId,
        /// When; replaces an earlier one. `None`: not in sight (any more).
        at: Option<Timestamp>,
    },
    /// New settings; take effect at once and lose nothing.
    Configured {
        /// All of them.
        config: SchedulerConfig,
    },
}

/// How urgent a request is. Ordered: the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Class {
    /// Someone is waiting for the first token.
    Interactive,
    /// The default.
    Standard,
    /// Whenever there is room.
    Batch,
}

impl Class {
    /// All of them, the most urgent first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Standard, Self::Batch];

    /// The name in headers, configuration and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Standard => "standard",
            Self::Batch => "batch",
        }
    }
}

/// The kinds of work a replica can do; bit positions are the driver's (one per public route).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RouteSet(pub u16);

impl RouteSet {
    /// Whether the kind of work with this bit position is in the set.
    pub const fn contains(self, route: u8) -> bool {
        (route as u32) < u16::BITS && self.0 & (1 << route) != 0
    }
}

/// What a request needs, as far as the choice of replica is concerned.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestSpec {
    /// The model, aliases resolved.
    pub model: ModelId,
    /// Bit position in [`RouteSet`].
    pub route: u8,
    /// Who asks.
    pub tenant: TenantId,
    /// How urgent.
    pub class: Class,
    /// Answered with 504 after this.
    pub deadline: Option<Timestamp>,
    /// Tokens of the prompt as its bytes suggest (bytes / 4). The core corrects it per model by what replicas count.
    pub prompt_tokens: u32,
    /// Most tokens the answer may have, if the request says so.
    pub max_output: Option<u32>,
    /// The client sees the answer as it is written.
    pub stream: bool,
    /// Who may carry its answer on, if the replica that writes it goes away.
    pub carry: Carry,
    /// Bytes the gateway holds for it while it waits.
    pub body_bytes: u64,
    /// Fingerprints of the prompt's blocks; empty when unknown.
    pub prefix: Prefix,
}

/// A replica's description: stated by the operator or found by probing.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReplicaSpec {
    /// Models it serves; empty until known.
    pub models: Vec<ModelId>,
    /// Routes it serves.
    pub routes: RouteSet,
    /// Concurrent requests it takes; at least 1.
    pub slots: u16,
    /// Tokens that prompt and answer of one slot must fit, if known.
    pub context_tokens: Option<u32>,
    /// What it is reached through.
    pub relay: RelayId,
    /// How fast it should be, until it is measured: stated, or typical of its model.
    pub prior: Option<Rates>,
    /// Whether it can carry on an answer that another replica has begun.
    pub carries_on: bool,
    /// Replicas of one group write the same answer, token by token, where nothing is drawn by lot: same engine build, same
    /// settings, same model file. `None` until that is known: it is then in a group of its own.
    pub group: Option<GroupId>,
    /// When the slot of work that was broken off is free again.
    pub release: Release,
}

/// Who may carry on an answer whose replica went away. Ordered: the most permissive last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Carry {
    /// Nobody: it breaks off.
    #[default]
    Never,
    /// A replica of the same group: the answer is what it would have been.
    SameGroup,
    /// Any replica of the model that can: one of the same group if there is a choice, else the answer is a good one, and
    /// another than it would have been.
    Anyone,
}

/// What an attempt that ended leaves of its request's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Left {
    /// Nothing of use, or nothing beyond the part that an earlier attempt left: that stays. Without one, a failure begins anew
    /// elsewhere.
    Nothing,
    /// A part that another replica can carry on. Replaces an earlier one.
    Part(Part),
    /// No further attempt is possible: the answer is whole, or the client has seen a part that nobody can carry on.
    Closed,
}

/// A part of an answer, over all attempts so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Part {
    /// Tokens written. The replica that carries it on reads them behind the prompt.
    pub tokens: u32,
    /// The client has seen something of it: where nobody can carry it on, it has broken off. Else it may also begin anew.
    pub seen: bool,
    /// Who may carry it on; never [`Carry::Never`].
    pub by: Carry,
}

/// When the slot of an attempt is free again that was broken off before its answer was whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Release {
    /// At once: the engine stops when its connection closes, and can't be asked.
    #[default]
    AtOnce,
    /// When the engine's list of slots shows it free. Engines that should stop at once may do so a long prefill later.
    Shown,
    /// When the work would have been done: the engine does not notice that nobody waits, and can't be asked.
    RunsOn,
}

/// How fast a replica reads and writes one request alone, on an empty context.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rates {
    /// Prompt tokens per second.
    pub prefill: f64,
    /// Answer tokens per second.
    pub decode: f64,
}

/// How much may be asked of a replica that is well. Ordered: the mildest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Limit {
    /// All that it has slots for.
    #[default]
    None,
    /// Half of its slots (one at least), and only where others are not free soon.
    Fewer,
    /// Nothing new.
    Paused,
}

impl Limit {
    /// The name in the admin API, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fewer => "fewer",
            Self::Paused => "paused",
        }
    }

    /// Slots that may be used of those that there are.
    pub fn of(self, slots: u16) -> u16 {
        match self {
            Self::None => slots,
            Self::Fewer => (slots / 2).max(1).min(slots),
            Self::Paused => 0,
        }
    }
}

/// What a probe found. The driver reads the body, not only the status.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Report {
    /// Alive and able to serve.
    Ready,
    /// Alive, its model is not loaded yet.
    Loading,
    /// Alive and able to serve, by its own word only: no work until it has shown it.
    Unproven,
    /// It will not work until an operator does something: wrong key, wrong model.
    Misconfigured,
    /// There is no way to it: no connection, or silence in the handshake.
    Unreachable,
    /// What stands in front of it answers, and lets nobody through to it: the handshake is broken off.
    NotThere,
    /// The way to it is open, and at its end is no engine: closed without an answer, another's page, another's certificate.
    Closed,
    /// It answered, and the answer says that it is broken (5xx, HTML, status "error").
    Failing,
    /// No answer in time. No evidence while a request of ours runs there.
    TimedOut,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Outcome {
    /// A whole answer.
    Success,
    /// A whole answer, ended here for an engine that does not end where it is told to, and may work on.
    CutShort,
    /// Hard: nobody there.
    Hard(HardFailure),
    /// Soft: there, and not well.
    Soft(SoftFailure),
    /// The request's own fault (4xx), or the model's. Ends the request, says nothing about the replica.
    RequestFault,
    /// The prompt does not fit this replica's context: try one with a larger context. Says nothing about its health.
    ContextExceeded,
    /// 503 "Loading model": elsewhere, and this one is `Loading` until a probe says otherwise.
    Loading,
    /// 401/403 to our own key, the model is not there, or its address is not allowed: elsewhere, and `Misconfigured`.
    Misconfigured,
}

impl Outcome {
    /// Whether there is a whole answer.
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::Success | Self::CutShort)
    }
}

/// Hard failures: connect, TLS, certificate, reset before the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum HardFailure {
    /// There is no way to it: refused, unreachable, name not found, no connection in time, or silence in the handshake.
    Connect,
    /// What stands in front of it answers, and lets nobody through to it: the handshake is broken off.
    Tls,
    /// Somebody was reached whose certificate, or TLS, is refused.
    Certificate,
    /// The connection broke after it was set up and before any head.
    Reset,
}

/// Soft failures.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum SoftFailure {
    /// A 5xx of the engine.
    Status,
    /// 429, or 503 with Retry-After: full. The replica gets no new work for that long (capped).
    Busy {
        /// What the replica asked for.
        retry_after: Option<Duration>,
    },
    /// Not what the route answers with: HTML of a tunnel, empty, malformed.
    BadAnswer,
    /// The body broke off.
    Broken,
    /// No head, or no first progress, in its deadline.
    NoFirstToken,
    /// The gap between tokens passed its deadline.
    Stalled,
}

/// What was measured of an attempt. Rates are per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Timings {
    /// Prompt tokens that were really read (not cached).
    pub prefill_tokens: u32,
    /// How long that took.
    pub prefill: Duration,
    /// Tokens written.
    pub decode_tokens: u32,
    /// How long that took, from the first token on.
    pub decode: Duration,
    /// Prompt tokens found in the replica's cache.
    pub cached_tokens: u32,
    /// The engine took the times itself; else they were taken here, with the network and the engine's start-up in `prefill`.
    pub by_engine: bool,
}
