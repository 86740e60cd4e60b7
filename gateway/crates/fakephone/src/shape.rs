//! The shapes of answers: the same tokens, spoken as each API speaks them.

pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod messages;
pub(crate) mod mnn;
pub(crate) mod responses;

use crate::answer::{Answer, Kind};
use crate::ask::Said;
use crate::clock;
use crate::digest;
use crate::engine::Progress;
use crate::events::Events;
use crate::fault::Fault;
use serde_json::{Value, json};

/// What is known of the work when an answer ends, or so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
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

/// One token of one choice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token<'a> {
    pub(crate) choice: u32,
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    /// Number of this token in its answer, from 1.
    pub(crate) number: u32,
    /// The work so far, if the request asks for it with each token.
    pub(crate) so_far: Option<&'a End>,
}

/// What an answer carries on, and whether its stream repeats that. Answers that are not streamed always do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carried {
    pub(crate) said: Said,
    pub(crate) echo: bool,
}

/// `logprobs` as the request wants them, if it does.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Logprobs(pub(crate) Option<u32>);

impl Logprobs {
    /// The entry of one token: its own probability and those of others, with llama-server's extra `id`.
    fn of(self, text: &str) -> Option<Value> {
        let entry = |text: &str, logprob: f64| json!({"id": digest::token(text.trim()), "token": text, "bytes": text.as_bytes(), "logprob": logprob});
        let others = (0..self.0?).map(|place| match place {
            0 => entry(text, -0.05),
            place => entry(&format!(" other{place}"), -3.0 - f64::from(place)),
        });
        let mut own = entry(text, -0.05);
        own["top_logprobs"] = others.collect();
        Some(own)
    }

    /// The value of `logprobs` for one token.
    fn of_token(self, text: &str) -> Option<Value> {
        self.of(text).map(|entry| json!({"content": [entry]}))
    }

    /// The same for a whole answer.
    fn of_answer(self, answer: &Answer) -> Option<Value> {
        self.0?;
        let entries: Vec<Value> =
            answer.pieces().filter(|(kind, _)| *kind == Kind::Text).filter_map(|(_, text)| self.of(text)).collect();
        Some(json!({"content": entries}))
    }
}

/// One answer being spoken, in all its choices.
pub(crate) trait Shape: Send {
    /// What comes before the first token.
    fn open(&mut self, events: &mut Events);
    /// Part of the prompt has been read, and the client wants to know.
    fn progress(&mut self, events: &mut Events, progress: Progress) {
        let (_, _) = (events, progress);
    }
    /// One token of one choice.
    fn token(&mut self, events: &mut Events, token: Token<'_>);
    /// The end of the answer: why it ended, and in most APIs what it took.
    fn finish(&mut self, events: &mut Events, answers: &[Answer], end: &End);
    /// What it took, in APIs that say so in an event of its own.
    fn usage(&mut self, events: &mut Events, end: &End) {
        let (_, _) = (events, end);
    }
    /// The mark after which nothing comes, in APIs that have one.
    fn done(&mut self, events: &mut Events);
    /// An error instead of the rest.
    fn error(&mut self, events: &mut Events, code: u16, message: &str) {
        events.json(&json!({"error": {"code": code, "message": message, "type": "server_error"}}));
    }
    /// The whole answer at once.
    fn whole(&mut self, answers: &[Answer], end: &End) -> Value;
}

/// No answer in tokens at all: for requests that are only read.
pub(crate) struct Silent;

impl Shape for Silent {
    fn open(&mut self, _: &mut Events) {}
    fn token(&mut self, _: &mut Events, _: Token<'_>) {}
    fn finish(&mut self, _: &mut Events, _: &[Answer], _: &End) {}
    fn done(&mut self, _: &mut Events) {}
    fn whole(&mut self, _: &[Answer], _: &End) -> Value {
        Value::Null
    }
}
