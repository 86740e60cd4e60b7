//! The texts of prompts: cheap to make, different where they must differ, the same where they are shared.
//!
//! A token is a word to a fake phone. A prompt of 7,000 words is a copy out of one long filler, after a first word that
//! makes it unique (or, for a shared beginning, the same).

use simulation::rng::Rng;
use std::fmt::Write as _;

/// Words of the filler; longer texts go round.
const FILLER_WORDS: usize = 8192;

/// A long text, and where its words begin.
pub(crate) struct Words {
    filler: String,
    starts: Vec<usize>,
}

impl Words {
    /// The filler of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        const SYLLABLES: [&str; 16] =
            ["ba", "ce", "di", "fo", "gu", "ha", "ke", "li", "mo", "nu", "pa", "re", "si", "to", "vu", "za"];
        let mut chance = Rng::new(seed, "words");
        let (mut filler, mut starts) = (String::new(), Vec::with_capacity(FILLER_WORDS));
        for _ in 0..FILLER_WORDS {
            starts.push(filler.len());
            for _ in 0..1 + chance.below(3) {
                filler.push_str(SYLLABLES[chance.below(SYLLABLES.len())]);
            }
            filler.push(' ');
        }
        Self { filler, starts }
    }

    /// `count` words: `first`, then the filler from a place that `salt` decides. ASCII without anything to escape.
    pub(crate) fn text(&self, first: &str, salt: u64, count: usize) -> String {
        let mut text = String::with_capacity(first.len() + count * 6);
        text.push_str(first);
        let mut left = count.saturating_sub(1);
        let mut from = (salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % FILLER_WORDS;
        while left > 0 {
            let take = left.min(FILLER_WORDS - from);
            let end = self.starts.get(from + take).copied().unwrap_or(self.filler.len());
            text.push(' ');
            text.push_str(self.filler[self.starts[from]..end].trim_end());
            left -= take;
            from = 0;
        }
        text
    }
}

/// A message of a conversation.
pub(crate) struct Message {
    /// `system`, `user` or `assistant`.
    pub(crate) role: &'static str,
    /// What it says.
    pub(crate) text: String,
}

/// The body of a chat request; without `max_tokens` the model says when an answer ends.
pub(crate) fn chat_body(model: &str, messages: &[Message], max_tokens: Option<u32>, stream: bool) -> String {
    let length: usize = messages.iter().map(|message| message.text.len() + 40).sum();
    let mut body = String::with_capacity(length + model.len() + 128);
    body.push_str("{\"model\":");
    push_json(&mut body, model);
    body.push_str(",\"messages\":[");
    for (index, message) in messages.iter().enumerate() {
        body.push_str(if index > 0 { ",{\"role\":\"" } else { "{\"role\":\"" });
        body.push_str(message.role);
        body.push_str("\",\"content\":");
        push_json(&mut body, &message.text);
        body.push('}');
    }
    body.push(']');
    if let Some(max_tokens) = max_tokens {
        write!(body, ",\"max_tokens\":{max_tokens}").ok();
    }
    if stream {
        body.push_str(",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    }
    body.push('}');
    body
}

fn push_json(out: &mut String, text: &str) {
    match serde_json::to_string(text) {
        Ok(json) => out.push_str(&json),
        Err(_) => out.push_str("\"\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_as_many_words_as_were_asked_for() {
        let words = Words::new(1);
        for count in [1, 2, 100, FILLER_WORDS, 3 * FILLER_WORDS + 5] {
            assert_eq!(words.text("first", 77, count).split_whitespace().count(), count);
        }
        assert_ne!(words.text("a", 1, 50), words.text("a", 2, 50));
        assert_eq!(words.text("a", 1, 50), Words::new(1).text("a", 1, 50));
    }

    #[test]
    fn a_body_is_the_json_that_the_api_wants() {
        let messages =
            [Message { role: "system", text: "be \"brief\"".into() }, Message { role: "user", text: "hello".into() }];
        let body: serde_json::Value = serde_json::from_str(&chat_body("m", &messages, Some(7), true)).expect("JSON");
        assert_eq!(body["messages"][0]["content"], "be \"brief\"");
        assert_eq!((&body["max_tokens"], &body["stream"]), (&7.into(), &true.into()));
        let plain: serde_json::Value = serde_json::from_str(&chat_body("m", &messages, None, false)).expect("JSON");
        assert!(plain.get("stream").is_none() && plain.get("max_tokens").is_none());
    }
}
