//! `/v1/completions`, and llama-server's own `/completion`.

use super::{End, Identity, Logprobs, Quirks, Shape, Token};
use crate::answer::{Answer, Finish, Kind};
use crate::digest::token;
use crate::engine::Progress;
use crate::events::Events;
use serde_json::{Value, json};

/// A text completion in OpenAI's shape.
pub(crate) struct CompletionShape {
    pub(crate) identity: Identity,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: Logprobs,
    pub(crate) quirks: Quirks,
}

impl CompletionShape {
    fn of(&self, choices: Value) -> Value {
        json!({"choices": choices, "created": self.identity.created, "model": self.identity.model,
            "system_fingerprint": self.identity.build, "object": "text_completion", "id": self.identity.id})
    }

    fn chunk(&self, index: usize, text: &str, finish: Option<Finish>, logprobs: Option<Value>) -> Value {
        self.of(json!([choice(index, text, finish, logprobs)]))
    }
}

fn choice(index: usize, text: &str, finish: Option<Finish>, logprobs: Option<Value>) -> Value {
    json!({"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish.map(Finish::name)})
}

impl Shape for CompletionShape {
    fn open(&mut self, _: &mut Events) {}

    fn progress(&mut self, events: &mut Events, progress: Progress) {
        let mut report = self.chunk(0, "", None, None);
        report["prompt_progress"] = progress.report();
        events.json(&report);
    }

    fn token(&mut self, events: &mut Events, token: Token<'_>) {
        let logprobs = self.logprobs.of_token(token.text);
        let mut chunk = self.chunk(token.choice as usize, token.text, None, logprobs);
        if let Some(end) = token.so_far {
            chunk["timings"] = end.timings();
        }
        events.json(&chunk);
    }

    fn finish(&mut self, events: &mut Events, answers: &[Answer], end: &End) {
        for (index, answer) in answers.iter().enumerate() {
            let mut last = self.chunk(index, "", Some(answer.finish), None);
            if self.include_usage && !self.quirks.no_usage {
                last["usage"] = end.usage(self.quirks);
                last["timings"] = end.timings();
            }
            events.json(&last);
        }
    }

    fn done(&mut self, events: &mut Events) {
        events.done();
    }

    fn whole(&mut self, answers: &[Answer], end: &End) -> Value {
        let choice = |(index, answer): (usize, &Answer)| {
            choice(index, &answer.whole(Kind::Text), Some(answer.finish), self.logprobs.of_answer(answer))
        };
        let mut whole = self.of(answers.iter().enumerate().map(choice).collect());
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
    fn last(&self, content: &str, answer: Option<&Answer>, end: &End) -> Value {
        let stop_type = match answer.map(|answer| answer.finish).unwrap_or_default() {
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

    fn progress(&mut self, events: &mut Events, progress: Progress) {
        events.json(&json!({"index": 0, "content": "", "tokens": [], "stop": false, "id_slot": -1,
            "tokens_predicted": 0, "tokens_evaluated": progress.total, "prompt_progress": progress.report()}));
    }

    fn token(&mut self, events: &mut Events, one: Token<'_>) {
        let mut event = json!({"index": 0, "content": one.text, "tokens": [token(one.text.trim())], "stop": false,
            "id_slot": -1, "tokens_predicted": one.number});
        if let Some(end) = one.so_far {
            event["timings"] = end.timings();
        }
        events.json(&event);
    }

    fn finish(&mut self, events: &mut Events, answers: &[Answer], end: &End) {
        events.json(&self.last("", answers.first(), end));
    }

    fn done(&mut self, _: &mut Events) {}

    fn whole(&mut self, answers: &[Answer], end: &End) -> Value {
        let content = answers.first().map(|answer| answer.whole(Kind::Text)).unwrap_or_default();
        self.last(&content, answers.first(), end)
    }
}
