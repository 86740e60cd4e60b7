//! `/v1/responses`, as llama-server speaks it: named events without `sequence_number`, `output_index` and
//! `content_index`, and no `[DONE]`. Items are opened when they begin and done all together at the end. An answer that ended at
//! its `max_output_tokens` is `completed` too.

use super::{End, Identity, Quirks, Shape, Token};
use crate::answer::{Answer, Call, Kind};
use crate::events::Events;
use serde_json::{Value, json};

/// An answer of the Responses API.
pub(crate) struct ResponsesShape {
    identity: Identity,
    quirks: Quirks,
    calls: Vec<Call>,
    /// The items begun so far.
    items: Vec<Kind>,
}

impl ResponsesShape {
    pub(crate) fn new(identity: Identity, quirks: Quirks, answer: &Answer) -> Self {
        Self { identity, quirks, calls: answer.calls.clone(), items: Vec::new() }
    }

    fn response(&self, status: &str) -> Value {
        json!({"id": format!("resp_{}", self.identity.id), "object": "response", "status": status,
            "created_at": self.identity.created, "model": self.identity.model, "output": []})
    }

    fn item_id(&self, kind: Kind) -> String {
        match kind {
            Kind::Thought => format!("rs_{}", self.identity.id),
            Kind::Text => format!("msg_{}", self.identity.id),
            Kind::Arguments(number) => {
                format!("fc_{}", self.calls.get(number).map_or("", |call| call.id.as_str()))
            }
        }
    }

    fn item(&self, kind: Kind, status: &str, text: Option<&str>) -> Value {
        let id = self.item_id(kind);
        match kind {
            Kind::Thought => {
                let content = text.map(|text| json!({"type": "reasoning_text", "text": text}));
                json!({"id": id, "type": "reasoning", "summary": [], "encrypted_content": "", "status": status,
                    "content": content.into_iter().collect::<Vec<_>>()})
            }
            Kind::Text => json!({"id": id, "type": "message", "role": "assistant", "status": status,
                "content": text.map(part).into_iter().collect::<Vec<_>>()}),
            Kind::Arguments(number) => {
                let name = self.calls.get(number).map_or("", |call| call.name.as_str());
                json!({"type": "function_call", "status": status, "call_id": id, "name": name,
                    "arguments": text.unwrap_or_default()})
            }
        }
    }

    fn begin(&mut self, events: &mut Events, kind: Kind) {
        self.items.push(kind);
        let item = self.item(kind, "in_progress", None);
        events.named("response.output_item.added", &json!({"type": "response.output_item.added", "item": item}));
        if kind == Kind::Text {
            let added = json!({"type": "response.content_part.added", "item_id": self.item_id(kind),
                "part": {"type": "output_text", "text": ""}});
            events.named("response.content_part.added", &added);
        }
    }

    fn complete(&self, answer: &Answer, end: &End) -> Value {
        let mut response = self.response("completed");
        let items = kinds(answer).into_iter().map(|kind| self.item(kind, "completed", Some(&answer.whole(kind))));
        response["output"] = items.collect();
        if !self.quirks.no_usage {
            response["usage"] = json!({"input_tokens": end.prompt_tokens, "output_tokens": end.completion_tokens,
                "total_tokens": end.prompt_tokens as u64 + u64::from(end.completion_tokens),
                "input_tokens_details": {"cached_tokens": end.cached_tokens},
                "output_tokens_details": {"reasoning_tokens": 0}});
        }
        response
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// The kinds of items that an answer has.
fn kinds(answer: &Answer) -> Vec<Kind> {
    let calls = (0..answer.calls.len()).map(Kind::Arguments);
    let texts = [Kind::Thought, Kind::Text].into_iter().filter(|kind| answer.pieces().any(|(one, _)| one == *kind));
    texts.chain(calls).collect()
}

impl Shape for ResponsesShape {
    fn open(&mut self, events: &mut Events) {
        for name in ["response.created", "response.in_progress"] {
            events.named(name, &json!({"type": name, "response": self.response("in_progress")}));
        }
    }

    fn token(&mut self, events: &mut Events, token: Token<'_>) {
        if !self.items.contains(&token.kind) {
            self.begin(events, token.kind);
        }
        let name = match token.kind {
            Kind::Text => "response.output_text.delta",
            Kind::Thought => "response.reasoning_text.delta",
            Kind::Arguments(_) => "response.function_call_arguments.delta",
        };
        events.named(name, &json!({"type": name, "item_id": self.item_id(token.kind), "delta": token.text}));
    }

    fn finish(&mut self, events: &mut Events, answers: &[Answer], end: &End) {
        let Some(answer) = answers.first() else { return };
        for kind in kinds(answer) {
            let text = answer.whole(kind);
            if kind == Kind::Text {
                let id = self.item_id(kind);
                let done = json!({"type": "response.output_text.done", "item_id": id, "text": text});
                events.named("response.output_text.done", &done);
                let done = json!({"type": "response.content_part.done", "item_id": id, "part": part(&text)});
                events.named("response.content_part.done", &done);
            }
            let item = self.item(kind, "completed", Some(&text));
            events.named("response.output_item.done", &json!({"type": "response.output_item.done", "item": item}));
        }
        let response = self.complete(answer, end);
        events.named("response.completed", &json!({"type": "response.completed", "response": response}));
    }

    fn done(&mut self, _: &mut Events) {}

    fn whole(&mut self, answers: &[Answer], end: &End) -> Value {
        answers.first().map_or(Value::Null, |answer| self.complete(answer, end))
    }
}
