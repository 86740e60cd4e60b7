//! `/v1/chat/completions`, as llama-server speaks it.

use super::{End, Identity, Quirks, Shape};
use crate::answer::{Answer, Call, Kind};
use crate::engine::Progress;
use crate::events::{Events, write_json};
use serde_json::{Value, json};

/// What the request asked of the answer's form.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChatForm {
    pub(crate) include_usage: bool,
    pub(crate) choices: u32,
    pub(crate) logprobs: bool,
    pub(crate) timings_per_token: bool,
    /// Adds llama-server's `timings` where that server does.
    pub(crate) timings: bool,
    pub(crate) quirks: Quirks,
}

/// A chat answer.
pub(crate) struct ChatShape {
    identity: Identity,
    form: ChatForm,
    call: Option<Call>,
    /// Text that the first delta repeats.
    repeats: Option<String>,
    /// Text that a whole answer has before its own.
    prefix: String,
    call_open: bool,
    /// The constant rest of every chunk after its choices.
    tail: Vec<u8>,
}

impl ChatShape {
    pub(crate) fn new(identity: Identity, form: ChatForm, answer: &Answer) -> Self {
        let mut tail = b"],\"created\":".to_vec();
        write_json(&mut tail, &identity.created);
        for (key, value) in [("id", &identity.id), ("model", &identity.model), ("system_fingerprint", &identity.build)]
        {
            tail.extend_from_slice(b",\"");
            tail.extend_from_slice(key.as_bytes());
            tail.extend_from_slice(b"\":");
            write_json(&mut tail, value.as_str());
        }
        tail.extend_from_slice(b",\"object\":\"chat.completion.chunk\"");
        let call = answer.call.clone();
        Self { identity, form, call, repeats: None, prefix: String::new(), call_open: false, tail }
    }

    /// The answer carries on `partial`: whole answers begin with it, and so does the first delta if `echo`.
    pub(crate) fn continuing(mut self, partial: &str, echo: bool) -> Self {
        partial.clone_into(&mut self.prefix);
        self.repeats = echo.then(|| partial.to_owned());
        self
    }

    /// One chunk; `delta` writes the value of `delta`, `more` what follows the constant rest.
    fn chunk(&self, events: &mut Events, index: u32, delta: impl Fn(&mut Vec<u8>), more: impl Fn(&mut Vec<u8>)) {
        events.data(|out| {
            out.extend_from_slice(b"{\"choices\":[{\"finish_reason\":null,\"index\":");
            write_json(out, &index);
            out.extend_from_slice(b",\"delta\":");
            delta(out);
            out.push(b'}');
            out.extend_from_slice(&self.tail);
            more(out);
            out.push(b'}');
        });
    }

    fn chunk_value(&self, choices: Value) -> Value {
        json!({"choices": choices, "created": self.identity.created, "id": self.identity.id,
            "model": self.identity.model, "system_fingerprint": self.identity.build,
            "object": "chat.completion.chunk"})
    }

    fn text_delta(&self, events: &mut Events, key: &str, text: &str, written: u32) {
        for index in 0..self.form.choices.max(1) {
            self.chunk(
                events,
                index,
                |out| {
                    out.extend_from_slice(b"{\"");
                    out.extend_from_slice(key.as_bytes());
                    out.extend_from_slice(b"\":");
                    write_json(out, text);
                    out.push(b'}');
                    if self.form.logprobs {
                        out.extend_from_slice(b",\"logprobs\":{\"content\":[");
                        write_json(out, &logprob(text));
                        out.extend_from_slice(b"]}");
                    }
                },
                |out| {
                    if self.form.timings_per_token {
                        out.extend_from_slice(b",\"timings\":");
                        write_json(out, &json!({"predicted_n": written}));
                    }
                },
            );
        }
    }

    fn arguments_delta(&mut self, events: &mut Events, text: &str) {
        let mut first = json!({"function": {"arguments": text}});
        if let (false, Some(call)) = (self.call_open, &self.call) {
            let head = if self.form.quirks.empty_arguments { "" } else { text };
            first = json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": head}});
        }
        let opened = std::mem::replace(&mut self.call_open, true);
        let mut deltas = vec![first];
        if !opened && self.form.quirks.empty_arguments {
            deltas.push(json!({"function": {"arguments": ""}}));
            deltas.push(json!({"function": {"arguments": text}}));
        }
        for mut delta in deltas {
            if !self.form.quirks.no_index {
                delta["index"] = json!(0);
            }
            let value = json!({"tool_calls": [delta]});
            self.chunk(events, 0, |out| write_json(out, &value), |_| {});
        }
    }
}

/// One entry of `logprobs.content`, with llama-server's extra `id`.
fn logprob(text: &str) -> Value {
    json!({"id": crate::digest::token(text.trim()), "token": text, "bytes": text.as_bytes(), "logprob": -0.05,
        "top_logprobs": []})
}

impl Shape for ChatShape {
    fn open(&mut self, events: &mut Events) {
        for index in 0..self.form.choices.max(1) {
            self.chunk(
                events,
                index,
                |out| out.extend_from_slice(b"{\"role\":\"assistant\",\"content\":null}"),
                |_| {},
            );
        }
        if let Some(partial) = self.repeats.take() {
            self.text_delta(events, "content", &partial, 0);
        }
    }

    fn progress(&mut self, events: &mut Events, progress: Progress) {
        let report = json!({"total": progress.total, "cache": progress.cached, "processed": progress.processed,
            "time_ms": progress.milliseconds});
        self.chunk(
            events,
            0,
            |out| out.extend_from_slice(b"{\"role\":\"assistant\",\"content\":null}"),
            |out| {
                out.extend_from_slice(b",\"prompt_progress\":");
                write_json(out, &report);
            },
        );
    }

    fn piece(&mut self, events: &mut Events, kind: Kind, text: &str, written: u32) {
        match kind {
            Kind::Text => self.text_delta(events, "content", text, written),
            Kind::Thought => self.text_delta(events, "reasoning_content", text, written),
            Kind::Arguments => self.arguments_delta(events, text),
        }
    }

    fn finish(&mut self, events: &mut Events, end: &End) {
        let quirks = self.form.quirks;
        let choices = self.form.choices.max(1);
        for index in 0..choices {
            let mut last = self.chunk_value(json!([{"finish_reason": end.finish.name(), "index": index, "delta": {}}]));
            if index + 1 == choices {
                if self.form.timings && !self.form.include_usage {
                    last["timings"] = end.timings();
                }
                if quirks.usage_in_delta && self.form.include_usage {
                    last["usage"] = end.usage(quirks);
                }
            }
            events.json(&last);
        }
        if self.form.include_usage && !quirks.no_usage && !quirks.usage_in_delta {
            let mut usage = self.chunk_value(json!([]));
            usage["usage"] = end.usage(quirks);
            if self.form.timings {
                usage["timings"] = end.timings();
            }
            events.json(&usage);
        }
    }

    fn done(&mut self, events: &mut Events) {
        events.done();
    }

    fn whole(&mut self, answer: &Answer, end: &End) -> Value {
        let mut message = json!({"role": "assistant", "content": self.prefix.clone() + &answer.whole(Kind::Text)});
        let thoughts = answer.whole(Kind::Thought);
        if !thoughts.is_empty() {
            message["reasoning_content"] = json!(thoughts);
        }
        if let Some(call) = &answer.call {
            message["content"] = Value::Null;
            message["tool_calls"] = json!([{"id": call.id, "type": "function",
                "function": {"name": call.name, "arguments": answer.whole(Kind::Arguments)}}]);
        }
        let choices: Vec<Value> = (0..self.form.choices.max(1))
            .map(|index| {
                let mut choice = json!({"finish_reason": end.finish.name(), "index": index, "message": message});
                if self.form.logprobs {
                    let text = (0..answer.len()).filter_map(|at| answer.piece(at));
                    let entries = text.filter(|(kind, _)| *kind == Kind::Text).map(|(_, text)| logprob(text));
                    choice["logprobs"] = json!({"content": entries.collect::<Vec<_>>()});
                }
                choice
            })
            .collect();
        let mut whole = self.chunk_value(json!(choices));
        whole["object"] = json!("chat.completion");
        if !self.form.quirks.no_usage {
            whole["usage"] = end.usage(self.form.quirks);
        }
        if self.form.timings {
            whole["timings"] = end.timings();
        }
        whole
    }
}
