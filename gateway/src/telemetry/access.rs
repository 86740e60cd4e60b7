//! One log line per request, at info, target `access`.
//!
//! The fields are a fixed list: who asked (tenant's name), what for, where it ran, how long, how it ended, what it cost. There is no
//! field for a prompt, an answer, a header or a key, so none can slip in.

use std::time::Duration;

/// What one line says.
pub(super) struct Line<'a> {
    pub(super) request_id: &'a str,
    pub(super) trace_id: Option<String>,
    pub(super) tenant: &'a str,
    pub(super) model: &'a str,
    pub(super) route: &'static str,
    pub(super) class: &'static str,
    pub(super) status: u16,
    pub(super) outcome: &'static str,
    pub(super) replica: &'a str,
    pub(super) joined: &'a str,
    pub(super) attempts: u32,
    pub(super) queue: Duration,
    pub(super) first_token: Option<Duration>,
    pub(super) total: Duration,
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) estimated: bool,
    pub(super) cost: Option<f64>,
}

impl Line<'_> {
    pub(super) fn write(&self) {
        tracing::info!(
            target: "access",
            request_id = self.request_id,
            trace_id = self.trace_id,
            tenant = self.tenant,
            model = self.model,
            route = self.route,
            class = self.class,
            status = self.status,
            outcome = self.outcome,
            replica = self.replica,
            joined = self.joined,
            attempts = self.attempts,
            queue_ms = milliseconds(self.queue),
            first_token_ms = self.first_token.map(milliseconds),
            total_ms = milliseconds(self.total),
            prompt_tokens = self.prompt_tokens,
            completion_tokens = self.completion_tokens,
            cached_tokens = self.cached_tokens,
            estimated = self.estimated,
            cost_acu = self.cost,
        );
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
