//! `/v1/completions`, and llama-server's own `/completion`.

use super::{End, Identity, Quirks, Shape};
use crate::answer::{Answer, Finish, Kind};
use crate::digest::token;
use crate::events::Events;
use serde_json::{Value, json};

/// A text completion in OpenAI's shape.
pub(crate) struct CompletionShape {
    pub(crate) identity: Identity,
    pub(crate) include_usage: bool,
    pub(crate) quirks: Quirks,
}

impl CompletionShape {
    fn chunk(&self, text: &str, finish: Option<Finish>) -> Value {
        json!({"choices": [{"text": text, "index": 0, "logprobs": null, "finish_reason": finish.map(Finish::name)}],
            "created": self.identity.created, "model": self.identity.model,
            "system_fingerprint": self.identity.build, "object": "text_completion", "id": self.identity.id})
    }
}

impl Shape for CompletionShape {
    fn open(&mut self, _: &mut Events) {}

    fn piece(&mut self, events: &mut Events, _: Kind, text: &str, _: u32) {
        events.json(&self.chunk(text, None));
    }

    fn finish(&mut self, events: &mut Events, end: &End) {
        let mut last = self.chunk("", Some(end.finish));
        if self.include_usage && !self.quirks.no_usage {
            last["usage"] = end.usage(self.quirks);
            last["timings"] = end.timings();
        }
        events.json(&last);
    }

    fn done(&mut self, events: &mut Events) {
        events.done();
    }

    fn whole(&mut self, answer: &Answer, end: &End) -> Value {
        let mut whole = self.chunk(&answer.whole(Kind::Text), Some(end.finish));
        if !self.quirks.no_usage {
            whole["usage"] = end.usage(self.quirks);
        }
        whole["timings"] = end.timings();
        whole
    }
}

/// A text completion in llama-server's own shape: token ids in every event, and no `[DONE]`.
pub(crate) struct NativeShape {
    pub(crate) model: String,
}

impl NativeShape {
    fn last(&self, content: &str, end: &End) -> Value {
        let stop_type = match end.finish {
            Finish::Length => "limit",
            Finish::Stop | Finish::ToolCalls => "eos",
        };
        json!({"index": 0, "content": content, "tokens": [], "id_slot": 0, "stop": true, "model": self.model,
            "tokens_predicted": end.completion_tokens, "tokens_evaluated": end.prompt_tokens,
            "truncated": false, "stop_type": stop_type, "stopping_word": "",
            "tokens_cached": end.cached_tokens, "timings": end.timings()})
    }
}

impl Shape for NativeShape {
    fn open(&mut self, _: &mut Events) {}

    fn piece(&mut self, events: &mut Events, _: Kind, text: &str, written: u32) {
        events.json(&json!({"index": 0, "content": text, "tokens": [token(text.trim())], "stop": false,
            "id_slot": -1, "tokens_predicted": written}));
    }

    fn finish(&mut self, events: &mut Events, end: &End) {
        events.json(&self.last("", end));
    }

    fn done(&mut self, _: &mut Events) {}

    fn whole(&mut self, answer: &Answer, end: &End) -> Value {
        self.last(&answer.whole(Kind::Text), end)
    }
}
