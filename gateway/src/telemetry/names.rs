//! Every metric, once: name, help, kind, labels, and who looks at it.
//!
//! Code names a metric by its constant here; no metric name is written anywhere else in the gateway. Dashboards, alert
//! rules and `gateway/docs/metrics.md` are checked against [`ALL`] by `gateway/tests/dashboards.rs`. Base units only.

/// How a metric moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Only grows; falls to 0 with a restart.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Observations in buckets; these are their upper bounds, without infinity.
    Histogram(&'static [f64]),
}

/// Who a metric is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// On a dashboard.
    Operator,
    /// For looking closer; on no dashboard.
    Debugging,
}

/// One metric.
#[derive(Debug)]
pub struct Metric {
    /// As Prometheus sees it.
    pub name: &'static str,
    /// One sentence, with the unit if it has one.
    pub help: &'static str,
    /// How it moves.
    pub kind: Kind,
    /// Names of its labels, in the order in which code gives their values.
    pub labels: &'static [&'static str],
    /// Who it is for.
    pub audience: Audience,
}

/// Waits and whole answers: a guard answers in 0.2 s, a 7,000-token prompt is read in minutes, a batch line may wait an hour.
const WAITS: &[f64] = &[
    0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0,
    3600.0,
];

/// One token: 20 ms on a fast small model, 110 ms on the fastest phones with a large one, seconds on a throttled phone.
const TOKENS: &[f64] =
    &[0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0];

/// Our own share: well under a millisecond, unless something is wrong.
const OVERHEAD: &[f64] = &[
    0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0,
];

/// Outcome of a request, or of an attempt, with a whole answer.
pub const OUTCOME_OK: &str = "ok";
/// Outcome of a request whose client left, and of the attempt that ran then.
pub const OUTCOME_CLIENT_GONE: &str = "client_gone";
/// Outcome of a request that a panic ended, and of the attempt that ran then.
pub const OUTCOME_PANIC: &str = "panic";
/// Outcome of an attempt that another copy of its request was faster than.
pub const OUTCOME_HEDGE_LOST: &str = "hedge_lost";
/// Outcome of an attempt whose slot went to a more urgent request.
pub const OUTCOME_GIVEN_BACK: &str = "given_back";
/// Outcome of an attempt that the core ended for another reason.
pub const OUTCOME_CANCELLED: &str = "cancelled";
/// Outcomes of attempts that are no fault of their replica, besides [`OUTCOME_OK`].
pub const BLAMELESS: [&str; 8] = [
    OUTCOME_CLIENT_GONE,
    OUTCOME_PANIC,
    OUTCOME_CANCELLED,
    OUTCOME_HEDGE_LOST,
    OUTCOME_GIVEN_BACK,
    "local",
    "request_fault",
    "context_exceeded",
];

/// Reasons of refusals that are there from the start, at 0; see `metrics`.
pub const SHED_REASONS: [&str; 5] = ["no_capacity", "queue_full", "overloaded", "deadline_exceeded", "draining"];

macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:expr, [$($label:literal),*], $audience:ident, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric =
                Metric { name: $name, help: $help, kind: $kind, labels: &[$($label),*], audience: Audience::$audience };
        )*

        /// Every metric, in the order of this file.
        pub const ALL: &[&Metric] = &[$(&$constant),*];
    };
}

use self::Kind::{Counter, Gauge, Histogram};

metrics! {
    REQUESTS = "huntgroup_requests_total", Counter, ["model", "route", "class", "outcome"], Operator,
        "Requests that ended, by how: ok, client_gone, panic, or the error's code.";
    REQUEST_DURATION = "huntgroup_request_duration_seconds", Histogram(WAITS), ["model", "route", "class"], Operator,
        "Seconds from a request's head to the end of its whole answer. Only requests that ended ok.";
    TIME_TO_FIRST_TOKEN = "huntgroup_time_to_first_token_seconds", Histogram(WAITS), ["model", "route", "class"], Operator,
        "Seconds from a request's head to the first content of its answer (TTFT), waits included.";
    TIME_PER_OUTPUT_TOKEN = "huntgroup_time_per_output_token_seconds", Histogram(TOKENS), ["model", "route", "class"], Operator,
        "Mean seconds per token of an answer after its first token.";
    QUEUE_WAIT = "huntgroup_queue_wait_seconds", Histogram(WAITS), ["model", "route", "class"], Operator,
        "Seconds a request waited for slots, all its waits summed, however it ended.";
    GATEWAY_OVERHEAD = "huntgroup_gateway_overhead_seconds", Histogram(OVERHEAD), ["model", "route", "class"], Operator,
        "Seconds of a request that ended ok and that neither the queue nor a replica took: reading the body, parsing, writing.";

    TOKENS_COUNTED = "huntgroup_tokens_total", Counter, ["model", "direction"], Operator,
        "Tokens of answered requests, direction prompt or completion.";
    CACHED_PROMPT_TOKENS = "huntgroup_cached_prompt_tokens_total", Counter, ["model"], Operator,
        "Prompt tokens that replicas had in their prompt cache; a part of the prompt tokens.";
    USAGE_ESTIMATED = "huntgroup_usage_estimated_total", Counter, ["model"], Debugging,
        "Requests whose token counts were estimated because their replica stated none.";

    REQUESTS_IN_FLIGHT = "huntgroup_requests_in_flight", Gauge, [], Operator,
        "Requests between their head and the end of their answer.";
    REQUESTS_IN_FLIGHT_AGE = "huntgroup_requests_in_flight_age_seconds", Gauge, ["phase"], Operator,
        "Age in seconds of the oldest request that waits for a slot (phase queued) or runs on a replica (phase running); 0 if there is none.";
    QUEUE_DEPTH = "huntgroup_queue_depth", Gauge, ["model", "class"], Operator,
        "Requests that wait for a slot.";
    SHED = "huntgroup_shed_total", Counter, ["reason"], Operator,
        "Requests refused because of load, by the reason's code.";
    DECISIONS = "huntgroup_decisions_total", Counter, ["decision"], Operator,
        "Decisions of the scheduler, by kind: how requests got their slots, or why they were left waiting beside free ones.";
    ESTIMATED_WAIT = "huntgroup_estimated_wait_seconds", Gauge, ["model", "class"], Operator,
        "Seconds that a request of this model and class which arrived now would wait for a slot, as the scheduler estimates.";

    ATTEMPTS = "huntgroup_attempts_total", Counter, ["replica", "outcome"], Operator,
        "Attempts that ended on a replica, by how.";
    FAILOVERS = "huntgroup_failovers_total", Counter, ["phase", "reason"], Operator,
        "Attempts that failed before the client saw content, so that their request asked for another replica, by phase (connect, head, body).";
    HEDGES = "huntgroup_hedges_total", Counter, ["outcome"], Operator,
        "Second copies of requests, by whether theirs was the answer: won or lost.";
    RETRIES_IN_FLIGHT = "huntgroup_retries_in_flight", Gauge, [], Debugging,
        "Running attempts that are not their request's first; the retry budget bounds them.";
    WASTED_SLOT_SECONDS = "huntgroup_wasted_slot_seconds_total", Counter, ["reason"], Operator,
        "Seconds of slots spent on attempts that brought no whole answer.";

    REPLICAS = "huntgroup_replicas", Gauge, ["model", "state"], Operator,
        "Replicas by state; one that serves several models counts for each.";
    REPLICA_SLOTS = "huntgroup_replica_slots", Gauge, ["replica", "state"], Operator,
        "Slots of a replica, state busy or free; a replica that takes no new work has none free.";
    REPLICA_PREFILL = "huntgroup_replica_prefill_tokens_per_second", Gauge, ["replica"], Operator,
        "Prompt tokens per second a replica reads, measured from traffic.";
    REPLICA_DECODE = "huntgroup_replica_decode_tokens_per_second", Gauge, ["replica"], Operator,
        "Tokens per second a replica writes for one answer, measured from traffic.";
    REPLICA_STATE_CHANGES = "huntgroup_replica_state_changes_total", Counter, ["replica", "to", "reason"], Operator,
        "Changes of a replica's state.";
    REPLICA_EXPIRY = "huntgroup_replica_seconds_to_expiry", Gauge, ["replica"], Operator,
        "Seconds until a replica's deployment ends; negative once it is past. Absent for replicas without a known end.";

    PANICS = "huntgroup_panics_total", Counter, [], Operator,
        "Panics that ended one request each; every one is a defect.";
    BUILD_INFO = "huntgroup_build_info", Gauge, ["version"], Operator,
        "Always 1; the label says what runs.";
    PROCESS_START = "process_start_time_seconds", Gauge, [], Operator,
        "When the process started, in seconds since 1970.";
    PROCESS_CPU = "process_cpu_seconds_total", Counter, [], Operator,
        "CPU seconds the process has used.";
    PROCESS_MEMORY = "process_resident_memory_bytes", Gauge, [], Operator,
        "Resident memory in bytes.";
    PROCESS_FDS = "process_open_fds", Gauge, [], Operator,
        "Open file descriptors.";
    PROCESS_FDS_LIMIT = "process_max_fds", Gauge, [], Operator,
        "Limit of open file descriptors.";
}
