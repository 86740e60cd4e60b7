//! Every metric, once: name, help, kind, labels, and who looks at it.
//!
//! Code names a metric by its constant here; no metric name is written anywhere else in the gateway. Dashboards, alert
//! rules and `gateway/docs/metrics.md` are checked against [`ALL`] by `gateway/tests/dashboards.rs`. Base units only.

use openai_wire::Obstacle;

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
/// Outcome of a request that was given the whole answer of an earlier one.
pub const OUTCOME_JOINED: &str = "joined";
/// Outcome of a request that its client asked wrongly.
pub const CLIENT_ERROR: &str = "client_error";
/// Outcome of a request of a client that asks more often than it may.
pub const RATE_LIMITED: &str = "rate_limited";
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

/// Outcome of a continuation by a replica of the same group: the answer is what it would have been.
pub const CONTINUED_SAME_GROUP: &str = "same_group";
/// Outcome of a continuation by another replica.
pub const CONTINUED_OTHER_GROUP: &str = "other_group";
/// Outcome of a stream that was read on from the replica that writes it.
pub const CONTINUED_RESUMED: &str = "resumed";
/// Outcome of an answer that could have been carried on, and that nobody carried on.
pub const CONTINUATION_FAILED: &str = "failed";
/// Outcomes of answers that broke off. All are there from the start, at 0.
pub const CONTINUATIONS_BY_OUTCOME: [&str; 9] = [
    CONTINUED_SAME_GROUP,
    CONTINUED_OTHER_GROUP,
    CONTINUED_RESUMED,
    CONTINUATION_FAILED,
    "impossible_tool_call",
    "impossible_too_long",
    "impossible_prompt",
    "impossible_route",
    "impossible_unwanted",
];

/// What became of phones' calls. All are there from the start, at 0.
pub const REGISTRATIONS_BY_OUTCOME: [&str; 14] = [
    "accepted",
    "moved",
    "known",
    "leaving",
    "error",
    "heartbeat",
    "refused_token",
    "refused_form",
    "refused_signature",
    "refused_replay",
    "refused_url",
    "refused_identity",
    "refused_rate",
    "failed",
];

/// What became of lines of batches that were begun. All are there from the start, at 0.
pub const LINES_BY_OUTCOME: [&str; 5] = [LINE_COMPLETED, LINE_FAILED, LINE_RETRIED, LINE_RETURNED, LINE_LATE];
/// Outcome of a line whose result is in the output file.
pub const LINE_COMPLETED: &str = "completed";
/// Outcome of a line whose result is in the error file.
pub const LINE_FAILED: &str = "failed";
/// Outcome of a line that failed by no fault of its own, and is tried again.
pub const LINE_RETRIED: &str = "retried";
/// Outcome of a line that was not tried: there was no room, or it was called back.
pub const LINE_RETURNED: &str = "returned";
/// Outcome of a line whose result came when its batch had ended, or when the line was another gateway's.
pub const LINE_LATE: &str = "late";

/// Outcome of an answer that could not be carried on.
pub const fn impossible(obstacle: Obstacle) -> &'static str {
    match obstacle {
        Obstacle::ToolCall => "impossible_tool_call",
        Obstacle::TooLong => "impossible_too_long",
        Obstacle::Prompt => "impossible_prompt",
        Obstacle::Route => "impossible_route",
        Obstacle::Unwanted => "impossible_unwanted",
        // Then it begins anew; if it can't, that failed.
        Obstacle::Nothing => CONTINUATION_FAILED,
    }
}

/// Why no stream was asked for: the route has none. Not counted.
pub const PLAIN_ROUTE: &str = "route";
/// Why no stream was asked for: the engine has none.
pub const PLAIN_ENGINE: &str = "engine";
/// Why an answer was no stream: the engine answered one object all the same.
pub const PLAIN_ANSWER: &str = "answer";
/// Why an answer was no stream: the engine refused to stream this one.
pub const PLAIN_REFUSED: &str = "refused";

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
        "Requests that ended, by how: ok, joined, client_gone, panic, or the error's code.";
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
    JOINED_REQUESTS = "huntgroup_joined_requests_total", Counter, ["state"], Operator,
        "Requests that joined an earlier one, by its state then: running, or finished with its answer kept.";
    KEPT_ANSWER_BYTES = "huntgroup_kept_answer_bytes", Gauge, [], Operator,
        "Bytes of answers that can be joined: of running requests, and kept of finished ones.";
    CLIENT_RETRIES = "huntgroup_client_retries_total", Counter, [], Operator,
        "Requests whose client said that they are a retry (x-stainless-retry-count).";
    BATCHES = "huntgroup_batches", Gauge, ["state"], Operator,
        "Batches that have not ended, by state.";
    BATCHES_WAITING = "huntgroup_batches_waiting", Gauge, ["reason"], Operator,
        "Batches that could run lines and run none, by what they wait for: replica, hours, memory or disk.";
    BATCH_LINES = "huntgroup_batch_lines", Gauge, ["state"], Operator,
        "Lines of batches that have not ended: waiting, running, completed or failed.";
    BATCH_LEFT = "huntgroup_batch_seconds_left", Gauge, [], Operator,
        "Seconds until all lines of all batches have results, as estimated; absent while nobody can say.";
    BATCH_EXPIRY = "huntgroup_batch_seconds_to_expiry", Gauge, [], Operator,
        "Seconds until the next batch expires; absent while there is none.";
    BATCH_SLACK = "huntgroup_batch_slack_seconds", Gauge, [], Operator,
        "Seconds to spare of the batch with least: until it expires, less what it needs as estimated. Negative: it will not make it. Absent while nobody can say.";
    STORED_FILE_BYTES = "huntgroup_stored_file_bytes", Gauge, [], Operator,
        "Bytes of files that tenants uploaded and batches wrote.";
    BATCH_LINES_ENDED = "huntgroup_batch_lines_ended_total", Counter, ["outcome"], Operator,
        "Lines of batches that were begun, by what became of them: completed, failed, retried, returned, or late.";
    QUEUE_DEPTH = "huntgroup_queue_depth", Gauge, ["model", "class"], Operator,
        "Requests that wait for a slot.";
    SHED = "huntgroup_shed_total", Counter, ["reason"], Operator,
        "Requests refused because of load, by the reason's code.";
    DECISIONS = "huntgroup_decisions_total", Counter, ["decision"], Operator,
        "Decisions of the scheduler, by kind: how requests got their slots, or why they were left waiting beside free ones.";
    ESTIMATED_WAIT = "huntgroup_estimated_wait_seconds", Gauge, ["model", "class"], Operator,
        "Seconds that a request of this model and class which arrived now would wait for a slot, as the scheduler estimates.";
    REPLICAS_WANTED = "huntgroup_replicas_wanted", Gauge, ["model"], Operator,
        "Phones that there should be in all, of the kinds that there are, for every objective to be met; absent while nothing can be said.";
    OBJECTIVE_ATTAINED = "huntgroup_objective_attained", Gauge, ["model", "class"], Operator,
        "Share of the requests of the window whose first token came in time, from 0 to 1; absent while there are none.";

    BATCH_API_CALLS = "huntgroup_batch_api_calls_total", Counter, ["call", "outcome"], Operator,
        "Calls about files and batches that ended, by how: ok, client_gone, panic, or the error's kind.";

    ATTEMPTS = "huntgroup_attempts_total", Counter, ["replica", "outcome"], Operator,
        "Attempts that ended on a replica, by how.";
    FAILOVERS = "huntgroup_failovers_total", Counter, ["phase", "reason"], Operator,
        "Attempts that failed before the client saw content, so that their request asked for another replica, by phase (connect, head, body).";
    CONTINUATIONS = "huntgroup_continuations_total", Counter, ["outcome"], Operator,
        "Answers that broke off in the middle, by what became of them: carried on (same_group, other_group, resumed), failed, or impossible_ and why.";
    UPSTREAM_PLAIN = "huntgroup_upstream_plain_total", Counter, ["reason"], Debugging,
        "Answers that a replica gave in one piece on a route that has streams, by why.";
    HEDGES = "huntgroup_hedges_total", Counter, ["outcome"], Operator,
        "Second copies of requests, by whether theirs was the answer: won or lost.";
    RETRIES_IN_FLIGHT = "huntgroup_retries_in_flight", Gauge, [], Debugging,
        "Running attempts that are not their request's first; the retry budget bounds them.";
    WASTED_SLOT_SECONDS = "huntgroup_wasted_slot_seconds_total", Counter, ["reason"], Operator,
        "Seconds of slots spent on attempts that brought no whole answer.";

    REPLICAS = "huntgroup_replicas", Gauge, ["model", "state"], Operator,
        "Replicas by state; one that serves several models counts for each.";
    REPLICA_SLOTS = "huntgroup_replica_slots", Gauge, ["replica", "state"], Operator,
        "Slots of a replica: busy, lingering (broken off), foreign (not ours) or free; none is free where no new work is taken.";
    REPLICA_PREFILL = "huntgroup_replica_prefill_tokens_per_second", Gauge, ["replica"], Operator,
        "Prompt tokens per second a replica reads, measured from traffic.";
    REPLICA_DECODE = "huntgroup_replica_decode_tokens_per_second", Gauge, ["replica"], Operator,
        "Tokens per second a replica writes for one answer, measured from traffic.";
    REPLICA_STATE_CHANGES = "huntgroup_replica_state_changes_total", Counter, ["replica", "to", "reason"], Operator,
        "Changes of a replica's state.";
    REPLICA_EXPIRY = "huntgroup_replica_seconds_to_expiry", Gauge, ["replica"], Operator,
        "Seconds until a replica's deployment ends; negative once it is past. Absent for replicas without a known end.";
    REPLICA_LIMITED = "huntgroup_replica_limited", Gauge, ["replica", "reason"], Operator,
        "How much less is asked of a replica by what its phone says about itself: 1 fewer requests, 2 none. Absent where nothing limits it.";
    RELAY_DOWN = "huntgroup_relay_down", Gauge, ["relay"], Operator,
        "Whether a relay (what stands in front of replicas, by host and port) is held to be down: 1, and 0 while it is not.";
    QUARANTINE = "huntgroup_quarantine_total", Counter, ["outcome"], Operator,
        "Test questions put to replicas that nobody vouches for, by outcome: passed, wrong_answer, or failed (no answer).";
    DEPLOYMENT_END = "huntgroup_deployment_seconds_to_end", Gauge, ["deployment"], Operator,
        "Seconds until a deployment ends; negative once it is past. Absent for those without a known end.";
    DEPLOYMENT_SLOTS = "huntgroup_deployment_slots", Gauge, ["deployment"], Operator,
        "Slots of all replicas of a deployment.";

    STORE_FAILURES = "huntgroup_store_failures_total", Counter, ["store"], Operator,
        "Calls that failed because a database did not do its part (a full disk, a file that is gone, damage), by database: state or batches.";
    TRACE_SPANS = "huntgroup_trace_spans_total", Counter, ["outcome"], Debugging,
        "Spans of traces that were made, by whether a collector took them: exported or lost.";

    COST = "huntgroup_cost_acu_total", Counter, ["model"], Operator,
        "Cost in ACU of the slot time of attempts, by the stated prices of their replicas; nothing of replicas without one.";
    WASTED_COST = "huntgroup_wasted_cost_acu_total", Counter, ["reason"], Operator,
        "The part of it that brought no whole answer, in ACU.";
    POOL_COST = "huntgroup_pool_cost_acu_total", Counter, ["model"], Operator,
        "Cost in ACU of replicas in the pool, used or not; those of several models count in equal parts.";
    POOL_COST_PER_DAY = "huntgroup_pool_cost_acu_per_day", Gauge, ["model"], Operator,
        "What the replicas in the pool cost now, in ACU a day, by stated prices; absent where no replica has one.";
    REPLICAS_UNPRICED = "huntgroup_replicas_unpriced", Gauge, [], Operator,
        "Replicas in the pool whose price is not known: no cost counts them.";

    TENANT_REQUESTS = "huntgroup_tenant_requests_total", Counter, ["tenant", "class", "outcome"], Operator,
        "Requests of a tenant that ended, by how.";
    TENANT_TOKENS = "huntgroup_tenant_tokens_total", Counter, ["tenant", "direction"], Operator,
        "Tokens of a tenant's answered requests, direction prompt or completion.";
    TENANT_COST = "huntgroup_tenant_cost_acu_total", Counter, ["tenant"], Operator,
        "Cost in ACU of the slot time of a tenant's attempts, by stated prices.";
    TENANT_TIME_TO_FIRST_TOKEN = "huntgroup_tenant_time_to_first_token_seconds", Histogram(WAITS), ["tenant"], Operator,
        "Seconds from the head of a tenant's request to the first content of its answer (TTFT), waits included.";
    TENANT_QUEUE_DEPTH = "huntgroup_tenant_queue_depth", Gauge, ["tenant"], Operator,
        "Requests of a tenant that wait for a slot.";
    TENANT_REQUESTS_IN_FLIGHT = "huntgroup_tenant_requests_in_flight", Gauge, ["tenant"], Operator,
        "Requests of a tenant between its being known and the end of their answer.";

    REGISTRATIONS = "huntgroup_registrations_total", Counter, ["outcome"], Operator,
        "Calls of phones that announce themselves, by what became of them: accepted, moved, known, leaving, error, heartbeat, refused_ and why, or failed.";

    CHAIN_POLLS = "huntgroup_chain_polls_total", Counter, ["outcome"], Operator,
        "Looks at the chain, by outcome: ok, partial (something was not understood), or why nothing was seen.";
    CHAIN_READABLE = "huntgroup_chain_readable", Gauge, [], Operator,
        "Whether the last look at the chain saw all there is: 1 or 0. Absent while nothing is looked up.";
    CHAIN_REPLICAS = "huntgroup_chain_replicas", Gauge, ["state"], Operator,
        "Phones that the chain assigns to the jobs that are looked up, by where they stand: matched, waiting, running, ended or unclear.";

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
