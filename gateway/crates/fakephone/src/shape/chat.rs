//! `/v1/chat/completions`, as llama-server speaks it.

use super::{Carried, End, Identity, Logprobs, Quirks, Shape, Token};
use crate::answer::{Answer, Call, Kind};
use crate::engine::Progress;
use crate::events::{Events, write_json};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What the request asked of the answer's form.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChatForm {
    pub(crate) include_usage: bool,
    pub(crate) logprobs: Logprobs,
    /// Adds llama-server's `timings` where that server does.
    pub(crate) timings: bool,
    pub(crate) quirks: Quirks,
    pub(crate) carried: Carried,
}

/// A chat answer.
pub(crate) struct ChatShape {
    identity: Identity,
    form: ChatForm,
    /// The calls of each choice.
    calls: Vec<Vec<Call>>,
    /// Calls that have begun, by choice and number.
    begun: BTreeSet<(u32, usize)>,
    /// The constant rest of every chunk after its choices.
    tail: Vec<u8>,
}

impl ChatShape {
    pub(crate) fn new(identity: Identity, form: ChatForm, answers: &[Answer]) -> Self {
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
        let calls = answers.iter().map(|answer| answer.calls.clone()).collect();
        Self { identity, form, calls, begun: BTreeSet::new(), tail }
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

    fn text_delta(&self, events: &mut Events, key: &str, token: Token<'_>) {
        let logprobs = self.form.logprobs.of_token(token.text);
        self.chunk(
            events,
            token.choice,
            |out| {
                out.extend_from_slice(b"{\"");
                out.extend_from_slice(key.as_bytes());
                out.extend_from_slice(b"\":");
                write_json(out, token.text);
                out.push(b'}');
                if let Some(logprobs) = &logprobs {
                    out.extend_from_slice(b",\"logprobs\":");
                    write_json(out, logprobs);
                }
            },
            |out| timings(out, token),
        );
    }

    fn arguments_delta(&mut self, events: &mut Events, number: usize, token: Token<'_>) {
        let text = token.text;
        let mut first = json!({"function": {"arguments": text}});
        let call = self.calls.get(token.choice as usize).and_then(|calls| calls.get(number));
        let opens = self.begun.insert((token.choice, number));
        if let (true, Some(call)) = (opens, call) {
            let head = if self.form.quirks.empty_arguments { "" } else { text };
            first = json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": head}});
        }
        let mut deltas = vec![first];
        if opens && self.form.quirks.empty_arguments {
            deltas.push(json!({"function": {"arguments": ""}}));
            deltas.push(json!({"function": {"arguments": text}}));
        }
        for mut delta in deltas {
            if !self.form.quirks.no_index {
                delta["index"] = json!(number);
            }
            let value = json!({"tool_calls": [delta]});
            self.chunk(events, token.choice, |out| write_json(out, &value), |out| timings(out, token));
        }
    }

    fn message(&self, answer: &Answer) -> Value {
        let said = &self.form.carried.said;
        let mut message = json!({"role": "assistant", "content": said.content.clone() + &answer.whole(Kind::Text)});
        let thoughts = said.reasoning.clone() + &answer.whole(Kind::Thought);
        if !thoughts.is_empty() {
            message["reasoning_content"] = json!(thoughts);
        }
        if !answer.calls.is_empty() {
            let call = |(number, call): (usize, &Call)| {
                json!({"id": call.id, "type": "function",
                    "function": {"name": call.name, "arguments": answer.whole(Kind::Arguments(number))}})
            };
            message["tool_calls"] = answer.calls.iter().enumerate().map(call).collect();
        }
        message
    }
}

fn timings(out: &mut Vec<u8>, token: Token<'_>) {
    if let Some(end) = token.so_far {
        out.extend_from_slice(b",\"timings\":");
        write_json(out, &end.timings());
    }
}

/// The delta with which an answer and each report of progress begins.
fn role(out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"role\":\"assistant\",\"content\":null}");
}

impl Shape for ChatShape {
    fn open(&mut self, events: &mut Events) {
        for choice in 0..self.calls.len() as u32 {
            self.chunk(events, choice, role, |_| {});
            let said = &self.form.carried.said;
            for (key, text) in [("reasoning_content", &said.reasoning), ("content", &said.content)] {
                if self.form.carried.echo && !text.is_empty() {
                    self.text_delta(events, key, Token { choice, kind: Kind::Text, text, number: 0, so_far: None });
                }
            }
        }
    }

    fn progress(&mut self, events: &mut Events, progress: Progress) {
        self.chunk(events, 0, role, |out| {
            out.extend_from_slice(b",\"prompt_progress\":");
            write_json(out, &progress.report());
        });
    }

    fn token(&mut self, events: &mut Events, token: Token<'_>) {
        match token.kind {
            Kind::Text => self.text_delta(events, "content", token),
            Kind::Thought => self.text_delta(events, "reasoning_content", token),
            Kind::Arguments(number) => self.arguments_delta(events, number, token),
        }
    }

    fn finish(&mut self, events: &mut Events, answers: &[Answer], end: &End) {
        let quirks = self.form.quirks;
        for (index, answer) in answers.iter().enumerate() {
            let choice = json!({"finish_reason": answer.finish.name(), "index": index, "delta": {}});
            let mut last = self.chunk_value(json!([choice]));
            if index + 1 == answers.len() {
                if self.form.timings && !self.form.include_usage {
                    last["timings"] = end.timings();
                }
                if quirks.usage_in_delta && self.form.include_usage {
                    last["usage"] = end.usage(quirks);
                }
            }
            events.json(&last);
        }
    }

    fn usage(&mut self, events: &mut Events, end: &End) {
        let quirks = self.form.quirks;
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

    fn whole(&mut self, answers: &[Answer], end: &End) -> Value {
        let choice = |(index, answer): (usize, &Answer)| {
            let mut choice =
                json!({"finish_reason": answer.finish.name(), "index": index, "message": self.message(answer)});
            if let Some(logprobs) = self.form.logprobs.of_answer(answer) {
                choice["logprobs"] = logprobs;
            }
            choice
        };
        let mut whole = self.chunk_value(answers.iter().enumerate().map(choice).collect());
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
