//! `/v1/messages`: Anthropic's events, no `[DONE]`. As llama-server does, blocks are opened when they begin and closed all
//! together at the end.

use super::{Carried, End, Identity, Shape, Token};
use crate::answer::{Answer, Call, Finish, Kind};
use crate::events::Events;
use serde_json::{Value, json};

/// An answer of the Messages API.
pub(crate) struct MessagesShape {
    identity: Identity,
    calls: Vec<Call>,
    prompt_tokens: usize,
    carried: Carried,
    /// The blocks begun so far; a block's index is its place.
    blocks: Vec<Kind>,
}

impl MessagesShape {
    pub(crate) fn new(identity: Identity, answer: &Answer, prompt_tokens: usize, carried: Carried) -> Self {
        Self { identity, calls: answer.calls.clone(), prompt_tokens, carried, blocks: Vec::new() }
    }

    fn message(&self, content: Value, stop: Option<&str>, usage: Value) -> Value {
        json!({"id": self.identity.id, "type": "message", "role": "assistant", "model": self.identity.model,
            "content": content, "stop_reason": stop, "stop_sequence": null, "usage": usage})
    }

    fn tool(&self, number: usize) -> Value {
        let (id, name) = self.calls.get(number).map_or(("", ""), |call| (&call.id, &call.name));
        json!({"type": "tool_use", "id": id, "name": name})
    }

    /// One piece of a block, which begins with it if it is new.
    fn delta(&mut self, events: &mut Events, kind: Kind, text: &str) {
        let known = self.blocks.iter().position(|block| *block == kind);
        let index = known.unwrap_or(self.blocks.len());
        if known.is_none() {
            self.blocks.push(kind);
            let block = match kind {
                Kind::Text => json!({"type": "text", "text": ""}),
                Kind::Thought => json!({"type": "thinking", "thinking": ""}),
                Kind::Arguments(number) => self.tool(number),
            };
            let start = json!({"type": "content_block_start", "index": index, "content_block": block});
            events.named("content_block_start", &start);
        }
        let delta = match kind {
            Kind::Text => json!({"type": "text_delta", "text": text}),
            Kind::Thought => json!({"type": "thinking_delta", "thinking": text}),
            Kind::Arguments(_) => json!({"type": "input_json_delta", "partial_json": text}),
        };
        events.named("content_block_delta", &json!({"type": "content_block_delta", "index": index, "delta": delta}));
    }
}

const fn stop_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
        Finish::ToolCalls => "tool_use",
    }
}

fn usage(end: &End) -> Value {
    json!({"input_tokens": end.prompt_tokens - end.cached_tokens, "cache_read_input_tokens": end.cached_tokens,
        "output_tokens": end.completion_tokens})
}

impl Shape for MessagesShape {
    fn open(&mut self, events: &mut Events) {
        let usage = json!({"input_tokens": self.prompt_tokens, "cache_read_input_tokens": 0, "output_tokens": 0});
        let message = self.message(json!([]), None, usage);
        events.named("message_start", &json!({"type": "message_start", "message": message}));
        if self.carried.echo {
            let said = self.carried.said.clone();
            for (kind, text) in [(Kind::Thought, said.reasoning), (Kind::Text, said.content)] {
                if !text.is_empty() {
                    self.delta(events, kind, &text);
                }
            }
        }
    }

    fn token(&mut self, events: &mut Events, token: Token<'_>) {
        self.delta(events, token.kind, token.text);
    }

    fn finish(&mut self, events: &mut Events, answers: &[Answer], end: &End) {
        for (index, kind) in self.blocks.iter().enumerate() {
            if *kind == Kind::Thought {
                let delta = json!({"type": "signature_delta", "signature": ""});
                let signature = json!({"type": "content_block_delta", "index": index, "delta": delta});
                events.named("content_block_delta", &signature);
            }
            events.named("content_block_stop", &json!({"type": "content_block_stop", "index": index}));
        }
        let finish = answers.first().map(|answer| answer.finish).unwrap_or_default();
        events.named(
            "message_delta",
            &json!({"type": "message_delta", "usage": {"output_tokens": end.completion_tokens},
                "delta": {"stop_reason": stop_reason(finish), "stop_sequence": null}}),
        );
        events.named("message_stop", &json!({"type": "message_stop"}));
    }

    fn done(&mut self, _: &mut Events) {}

    fn error(&mut self, events: &mut Events, _: u16, message: &str) {
        events.named("error", &json!({"type": "error", "error": {"type": "api_error", "message": message}}));
    }

    fn whole(&mut self, answers: &[Answer], end: &End) -> Value {
        let Some(answer) = answers.first() else { return Value::Null };
        let said = &self.carried.said;
        let mut content = Vec::new();
        let thoughts = said.reasoning.clone() + &answer.whole(Kind::Thought);
        if !thoughts.is_empty() {
            content.push(json!({"type": "thinking", "thinking": thoughts, "signature": ""}));
        }
        let text = said.content.clone() + &answer.whole(Kind::Text);
        if !text.is_empty() {
            content.push(json!({"type": "text", "text": text}));
        }
        for number in 0..answer.calls.len() {
            let mut tool = self.tool(number);
            let arguments = answer.whole(Kind::Arguments(number));
            tool["input"] = serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}));
            content.push(tool);
        }
        self.message(json!(content), Some(stop_reason(answer.finish)), usage(end))
    }
}
