//! Chat answers of `mnncli serve` and of the MNN Chat app, with their untruths.

use super::{End, Identity, Shape, Token};
use crate::answer::Answer;
use crate::clock;
use crate::events::Events;
use serde_json::{Value, json};

/// `mnncli serve`: ids that change from event to event, an empty finish reason, constant usage.
pub(crate) struct MnnShape {
    /// What the request called the model.
    pub(crate) model: String,
}

impl MnnShape {
    fn chunk(&self, text: &str, finish: &str) -> Value {
        let seconds = clock::unix_seconds();
        json!({"id": format!("chatcmpl{}", (seconds * 1000.0) as u64), "object": "chat.completion.chunk",
            "created": seconds as u64, "model": self.model,
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})
    }
}

impl Shape for MnnShape {
    fn open(&mut self, _: &mut Events) {}

    fn token(&mut self, events: &mut Events, token: Token<'_>) {
        events.json(&self.chunk(token.text, ""));
    }

    fn finish(&mut self, events: &mut Events, _: &[Answer], _: &End) {
        events.json(&self.chunk("", "stop"));
    }

    fn done(&mut self, events: &mut Events) {
        events.done();
    }

    fn whole(&mut self, answers: &[Answer], _: &End) -> Value {
        let seconds = clock::unix_seconds() as u64;
        json!({"id": format!("chatcmpl{seconds}"), "object": "chat.completion", "created": seconds,
            "model": self.model,
            "choices": [{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": text(answers)}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}})
    }
}

/// The text of the only choice; thoughts are part of the text with MNN, as the model writes them.
fn text(answers: &[Answer]) -> String {
    answers.iter().flat_map(Answer::pieces).map(|(_, text)| text).collect()
}

/// The MNN Chat app: no index, no role, usage in the last event whether asked for or not, `stop` after anything.
pub(crate) struct MnnAppShape {
    pub(crate) identity: Identity,
}

impl MnnAppShape {
    fn chunk(&self, choice: Value) -> Value {
        json!({"id": self.identity.id, "object": "chat.completion.chunk", "created": self.identity.created,
            "model": self.identity.model, "choices": [choice]})
    }

    fn usage(end: &End) -> Value {
        json!({"prompt_tokens": end.prompt_tokens, "completion_tokens": end.completion_tokens,
            "total_tokens": end.prompt_tokens as u64 + u64::from(end.completion_tokens)})
    }
}

impl Shape for MnnAppShape {
    fn open(&mut self, _: &mut Events) {}

    fn token(&mut self, events: &mut Events, token: Token<'_>) {
        events.json(&self.chunk(json!({"delta": {"content": token.text}})));
    }

    fn finish(&mut self, events: &mut Events, _: &[Answer], end: &End) {
        let mut last = self.chunk(json!({"delta": {}, "finish_reason": "stop"}));
        last["usage"] = Self::usage(end);
        events.json(&last);
    }

    fn done(&mut self, events: &mut Events) {
        events.done();
    }

    fn error(&mut self, events: &mut Events, _: u16, _: &str) {
        // The app ends a failed answer as if it were whole.
        events.json(&self.chunk(json!({"delta": {}, "finish_reason": "stop"})));
        events.done();
    }

    fn whole(&mut self, answers: &[Answer], end: &End) -> Value {
        let mut whole = self.chunk(json!({"finish_reason": "stop",
            "message": {"role": "assistant", "content": text(answers)}}));
        whole["object"] = json!("chat.completion");
        whole["usage"] = Self::usage(end);
        whole
    }
}
