//! Prompts: what a request asks the model to read, as text and as tokens.
//!
//! A token is a word. A role marker is a token too, so that the prompt of a conversation's next turn begins with the
//! whole prompt and answer of the turn before, as it does with a real chat template.

use crate::digest::token;
use serde_json::Value;

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) text: String,
    /// What was thought before it; only of the last message does a template render that.
    pub(crate) reasoning: String,
    pub(crate) has_image: bool,
    pub(crate) has_calls: bool,
}

/// The messages of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Chat {
    pub(crate) messages: Vec<Message>,
}

impl Chat {
    /// Reads OpenAI's `messages`; content may be text, null, or parts.
    pub(crate) fn read(messages: &[Value]) -> Self {
        Self { messages: messages.iter().map(Message::read).collect() }
    }

    /// A chat of one user message.
    pub(crate) fn of_user(text: impl Into<String>) -> Self {
        Self { messages: vec![Message::plain("user", text.into())] }
    }

    /// The text that the answer is about: the last user message, else the last message.
    pub(crate) fn subject(&self) -> &str {
        let last_user = self.messages.iter().rev().find(|message| message.role == "user");
        last_user.or(self.messages.last()).map_or("", |message| message.text.as_str())
    }

    /// The last message, if it is an assistant's.
    pub(crate) fn last_assistant(&self) -> Option<&Message> {
        self.messages.last().filter(|message| message.role == "assistant")
    }

    /// The tokens of the prompt as it is rendered with this end.
    pub(crate) fn tokens(&self, end: End) -> Vec<u32> {
        text_tokens(&self.render(end))
    }

    /// The prompt as text.
    pub(crate) fn render(&self, end: End) -> String {
        let mut text = String::with_capacity(self.messages.iter().map(|message| message.text.len() + 16).sum());
        for (index, message) in self.messages.iter().enumerate() {
            let is_begun = end == End::Begun && index + 1 == self.messages.len();
            text.push_str(&marker(&message.role));
            text.push('\n');
            if is_begun && !message.reasoning.is_empty() {
                text.push_str(&message.reasoning);
                text.push_str(if message.text.is_empty() { "" } else { "\n" });
            }
            text.push_str(&message.text);
            text.push_str(if is_begun { "" } else { "\n" });
        }
        if end == End::Open {
            text.push_str(&marker("assistant"));
            text.push('\n');
        }
        text
    }
}

/// How a rendered chat ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With the marker after which the assistant speaks.
    Open,
    /// In the last message, which the assistant is to carry on.
    Begun,
    /// With the last message, and no marker: what becomes of an empty message that was to be carried on.
    Lost,
}

impl Message {
    pub(crate) fn plain(role: &str, text: String) -> Self {
        Self { role: role.to_owned(), text, reasoning: String::new(), has_image: false, has_calls: false }
    }

    fn read(message: &Value) -> Self {
        let role = message["role"].as_str().unwrap_or("user");
        let mut read = Self::plain(role, String::new());
        read.has_calls = message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
        message["reasoning_content"].as_str().unwrap_or_default().clone_into(&mut read.reasoning);
        match &message["content"] {
            Value::String(text) => read.text.push_str(text),
            Value::Array(parts) => {
                for part in parts {
                    match part["type"].as_str() {
                        Some("image_url" | "image" | "input_image") => read.has_image = true,
                        // As Anthropic's API has them.
                        Some("thinking") => read.reasoning.push_str(part["thinking"].as_str().unwrap_or_default()),
                        _ => read.text.push_str(part["text"].as_str().unwrap_or_default()),
                    }
                }
            }
            _ => {}
        }
        if let Some(calls) = message["tool_calls"].as_array() {
            for call in calls {
                read.text.push(' ');
                read.text.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
            }
        }
        read
    }
}

fn marker(role: &str) -> String {
    format!("<|{role}|>")
}

/// The tokens of plain text.
pub(crate) fn text_tokens(text: &str) -> Vec<u32> {
    text.split_whitespace().map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_next_turn_begins_with_the_whole_turn_before() {
        let first = Chat::read(&[json!({"role":"user","content":"how are you"})]);
        let mut spoken = first.tokens(End::Open);
        spoken.extend(text_tokens("fine thanks"));
        let second = Chat::read(&[
            json!({"role":"user","content":"how are you"}),
            json!({"role":"assistant","content":"fine thanks"}),
            json!({"role":"user","content":[{"type":"text","text":"good"}]}),
        ]);
        assert!(second.tokens(End::Open).starts_with(&spoken));
        assert_eq!(second.subject(), "good");
    }

    #[test]
    fn a_message_to_be_carried_on_ends_the_prompt_and_its_thoughts_are_read_in_either_form() {
        for begun in [
            json!({"role":"assistant","reasoning_content":"so it","content":"fine th"}),
            json!({"role":"assistant","content":[{"type":"thinking","thinking":"so it"},{"type":"text","text":"fine th"}]}),
        ] {
            let chat = Chat::read(&[json!({"role":"user","content":"hi"}), begun]);
            assert_eq!(chat.render(End::Begun), "<|user|>\nhi\n<|assistant|>\nso it\nfine th");
            assert_eq!(chat.render(End::Open), "<|user|>\nhi\n<|assistant|>\nfine th\n<|assistant|>\n");
            assert_eq!(chat.tokens(End::Begun).len(), 7);
        }
    }
}
