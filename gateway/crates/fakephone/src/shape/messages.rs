//! `/v1/messages`: Anthropic's events, no `[DONE]`.

use super::{End, Identity, Shape};
use crate::answer::{Answer, Finish, Kind};
use crate::events::Events;
use serde_json::{Value, json};

/// An answer of the Messages API.
pub(crate) struct MessagesShape {
    identity: Identity,
    call: Option<(String, String)>,
    prompt: (usize, usize),
}

impl MessagesShape {
    pub(crate) fn new(identity: Identity, answer: &Answer, prompt_tokens: usize) -> Self {
        let call = answer.call.as_ref().map(|call| (call.id.clone(), call.name.clone()));
        Self { identity, call, prompt: (prompt_tokens, 0) }
    }

    fn message(&self, content: Value, stop: Option<&str>, usage: Value) -> Value {
        json!({"id": self.identity.id, "type": "message", "role": "assistant", "model": self.identity.model,
            "content": content, "stop_reason": stop, "stop_sequence": null, "usage": usage})
    }

    fn block(&self, text: &str, input: Value) -> Value {
        match &self.call {
            Some((id, name)) => json!({"type": "tool_use", "id": id, "name": name, "input": input}),
            None => json!({"type": "text", "text": text}),
        }
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
        let usage = json!({"input_tokens": self.prompt.0 - self.prompt.1,
            "cache_read_input_tokens": self.prompt.1, "output_tokens": 0});
        let message = self.message(json!([]), None, usage);
        events.named("message_start", &json!({"type": "message_start", "message": message}));
        let block = self.block("", json!({}));
        events
            .named("content_block_start", &json!({"type": "content_block_start", "index": 0, "content_block": block}));
    }

    fn piece(&mut self, events: &mut Events, kind: Kind, text: &str, _: u32) {
        let delta = match kind {
            Kind::Text => json!({"type": "text_delta", "text": text}),
            Kind::Thought => json!({"type": "thinking_delta", "thinking": text}),
            Kind::Arguments => json!({"type": "input_json_delta", "partial_json": text}),
        };
        events.named("content_block_delta", &json!({"type": "content_block_delta", "index": 0, "delta": delta}));
    }

    fn finish(&mut self, events: &mut Events, end: &End) {
        events.named("content_block_stop", &json!({"type": "content_block_stop", "index": 0}));
        events.named(
            "message_delta",
            &json!({"type": "message_delta", "usage": {"output_tokens": end.completion_tokens},
                "delta": {"stop_reason": stop_reason(end.finish), "stop_sequence": null}}),
        );
        events.named("message_stop", &json!({"type": "message_stop"}));
    }

    fn done(&mut self, _: &mut Events) {}

    fn error(&mut self, events: &mut Events, _: u16, message: &str) {
        events.named("error", &json!({"type": "error", "error": {"type": "api_error", "message": message}}));
    }

    fn whole(&mut self, answer: &Answer, end: &End) -> Value {
        let input = serde_json::from_str(&answer.whole(Kind::Arguments)).unwrap_or_else(|_| json!({}));
        let mut content = vec![self.block(&answer.whole(Kind::Text), input)];
        let thoughts = answer.whole(Kind::Thought);
        if !thoughts.is_empty() {
            content.insert(0, json!({"type": "thinking", "thinking": thoughts, "signature": ""}));
        }
        self.message(json!(content), Some(stop_reason(end.finish)), usage(end))
    }
}
