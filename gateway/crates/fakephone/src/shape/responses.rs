//! `/v1/responses`, as llama-server speaks it: named events without `sequence_number`, `output_index` and
//! `content_index`, and no `[DONE]`.

use super::{End, Identity, Quirks, Shape};
use crate::answer::{Answer, Finish, Kind};
use crate::events::Events;
use serde_json::{Value, json};

/// An answer of the Responses API.
pub(crate) struct ResponsesShape {
    identity: Identity,
    quirks: Quirks,
    /// Name of the function that is called, if one is.
    call: Option<(String, String)>,
    text: String,
    arguments: String,
}

impl ResponsesShape {
    pub(crate) fn new(identity: Identity, quirks: Quirks, answer: &Answer) -> Self {
        let call = answer.call.as_ref().map(|call| (call.id.clone(), call.name.clone()));
        Self { identity, quirks, call, text: String::new(), arguments: String::new() }
    }

    fn response(&self, status: &str) -> Value {
        json!({"id": format!("resp_{}", self.identity.id), "object": "response", "status": status,
            "created_at": self.identity.created, "model": self.identity.model, "output": []})
    }

    fn message_id(&self) -> String {
        format!("msg_{}", self.identity.id)
    }

    fn output(&self, text: &str, arguments: &str) -> Value {
        match &self.call {
            Some((id, name)) => json!({"id": format!("fc_{id}"), "type": "function_call", "status": "completed",
                "call_id": id, "name": name, "arguments": arguments}),
            None => json!({"id": self.message_id(), "type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]}),
        }
    }

    fn complete(&self, text: &str, arguments: &str, end: &End) -> Value {
        let cut = end.finish == Finish::Length;
        let mut response = self.response(if cut { "incomplete" } else { "completed" });
        if cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["output"] = json!([self.output(text, arguments)]);
        if !self.quirks.no_usage {
            response["usage"] = json!({"input_tokens": end.prompt_tokens, "output_tokens": end.completion_tokens,
                "total_tokens": end.prompt_tokens as u64 + u64::from(end.completion_tokens),
                "input_tokens_details": {"cached_tokens": end.cached_tokens},
                "output_tokens_details": {"reasoning_tokens": 0}});
        }
        response
    }
}

impl Shape for ResponsesShape {
    fn open(&mut self, events: &mut Events) {
        let created = json!({"type": "response.created", "response": self.response("in_progress")});
        events.named("response.created", &created);
        let item = match &self.call {
            Some((id, name)) => json!({"id": format!("fc_{id}"), "type": "function_call", "status": "in_progress",
                "call_id": id, "name": name, "arguments": ""}),
            None => json!({"id": self.message_id(), "type": "message", "role": "assistant",
                "status": "in_progress", "content": []}),
        };
        events.named("response.output_item.added", &json!({"type": "response.output_item.added", "item": item}));
        if self.call.is_none() {
            events.named(
                "response.content_part.added",
                &json!({"type": "response.content_part.added", "item_id": self.message_id(),
                    "part": {"type": "output_text", "text": "", "annotations": []}}),
            );
        }
    }

    fn piece(&mut self, events: &mut Events, kind: Kind, text: &str, _: u32) {
        let name = match kind {
            Kind::Text => {
                self.text.push_str(text);
                "response.output_text.delta"
            }
            Kind::Thought => "response.reasoning_text.delta",
            Kind::Arguments => {
                self.arguments.push_str(text);
                "response.function_call_arguments.delta"
            }
        };
        events.named(name, &json!({"type": name, "item_id": self.message_id(), "delta": text}));
    }

    fn finish(&mut self, events: &mut Events, end: &End) {
        let done = match self.call {
            Some(_) => json!({"type": "response.function_call_arguments.done", "arguments": self.arguments}),
            None => json!({"type": "response.output_text.done", "item_id": self.message_id(), "text": self.text}),
        };
        events.named(done["type"].as_str().unwrap_or_default(), &done);
        let item = json!({"type": "response.output_item.done", "item": self.output(&self.text, &self.arguments)});
        events.named("response.output_item.done", &item);
        let response = self.complete(&self.text, &self.arguments, end);
        events.named("response.completed", &json!({"type": "response.completed", "response": response}));
    }

    fn done(&mut self, _: &mut Events) {}

    fn whole(&mut self, answer: &Answer, end: &End) -> Value {
        self.complete(&answer.whole(Kind::Text), &answer.whole(Kind::Arguments), end)
    }
}
