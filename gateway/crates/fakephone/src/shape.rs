//! The shapes of answers: the same tokens, spoken as each API speaks them.

pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod messages;
pub(crate) mod mnn;
pub(crate) mod responses;

use crate::answer::{Answer, Finish, Kind};
use crate::clock;
use crate::engine::Progress;
use crate::events::Events;
use crate::fault::Fault;
use serde_json::{Value, json};

/// What is known when an answer ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) finish: Finish,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: u32,
    pub(crate) prefill_seconds: f64,
    pub(crate) decode_seconds: f64,
}

impl End {
    /// llama-server's `timings`.
    pub(crate) fn timings(&self) -> Value {
        let read = self.prompt_tokens - self.cached_tokens;
        let per = |seconds: f64, tokens: f64| if tokens > 0.0 { seconds * 1000.0 / tokens } else { 0.0 };
        let rate = |seconds: f64, tokens: f64| if seconds > 0.0 { tokens / seconds } else { 0.0 };
        let (read_f, written_f) = (read as f64, f64::from(self.completion_tokens));
        json!({
            "cache_n": self.cached_tokens, "prompt_n": read, "prompt_ms": self.prefill_seconds * 1000.0,
            "prompt_per_token_ms": per(self.prefill_seconds, read_f),
            "prompt_per_second": rate(self.prefill_seconds, read_f),
            "predicted_n": self.completion_tokens, "predicted_ms": self.decode_seconds * 1000.0,
            "predicted_per_token_ms": per(self.decode_seconds, written_f),
            "predicted_per_second": rate(self.decode_seconds, written_f),
        })
    }

    /// OpenAI's `usage`.
    pub(crate) fn usage(&self, quirks: Quirks) -> Value {
        if quirks.silly_usage {
            return json!({"prompt_tokens": -7, "completion_tokens": u64::MAX, "total_tokens": 1e300,
                "prompt_tokens_details": {"cached_tokens": "many"}});
        }
        json!({"completion_tokens": self.completion_tokens, "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens as u64 + u64::from(self.completion_tokens),
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens}})
    }
}

/// Faults that change the content of an answer, not its delivery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Quirks {
    pub(crate) no_usage: bool,
    pub(crate) usage_in_delta: bool,
    pub(crate) silly_usage: bool,
    pub(crate) no_index: bool,
    pub(crate) empty_arguments: bool,
}

impl From<&Fault> for Quirks {
    fn from(fault: &Fault) -> Self {
        Self {
            no_usage: *fault == Fault::NoUsage,
            usage_in_delta: *fault == Fault::UsageInDelta,
            silly_usage: *fault == Fault::SillyUsage,
            no_index: *fault == Fault::NoIndexToolCalls,
            empty_arguments: *fault == Fault::EmptyArguments,
        }
    }
}

/// What every chunk of an answer repeats.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) build: String,
}

impl Identity {
    pub(crate) fn new(id: String, model: &str, build: &str) -> Self {
        Self { id, created: clock::unix_seconds() as u64, model: model.to_owned(), build: build.to_owned() }
    }
}

/// One answer being spoken.
pub(crate) trait Shape: Send {
    /// What comes before the first piece.
    fn open(&mut self, events: &mut Events);
    /// Part of the prompt has been read, and the client wants to know.
    fn progress(&mut self, events: &mut Events, progress: Progress) {
        let (_, _) = (events, progress);
    }
    /// One token; `written` counts it.
    fn piece(&mut self, events: &mut Events, kind: Kind, text: &str, written: u32);
    /// The end of the answer, up to but without [`Shape::done`].
    fn finish(&mut self, events: &mut Events, end: &End);
    /// The mark after which nothing comes, in APIs that have one.
    fn done(&mut self, events: &mut Events);
    /// An error instead of the rest.
    fn error(&mut self, events: &mut Events, code: u16, message: &str) {
        events.json(&json!({"error": {"code": code, "message": message, "type": "server_error"}}));
    }
    /// The whole answer at once.
    fn whole(&mut self, answer: &Answer, end: &End) -> Value;
}

/// No answer in tokens at all: for requests that are only read.
pub(crate) struct Silent;

impl Shape for Silent {
    fn open(&mut self, _: &mut Events) {}
    fn piece(&mut self, _: &mut Events, _: Kind, _: &str, _: u32) {}
    fn finish(&mut self, _: &mut Events, _: &End) {}
    fn done(&mut self, _: &mut Events) {}
    fn whole(&mut self, _: &Answer, _: &End) -> Value {
        Value::Null
    }
}
