//! The messages that a response's `instructions` and `input` are.

use super::put;
use super::raw::{Object, elements, is_array, is_text};

/// The conversation, as slices of the body.
#[derive(Default)]
pub(super) struct Messages<'a> {
    list: Vec<Message<'a>>,
    /// Something was found that has no place in a chat.
    foreign: bool,
}

enum Message<'a> {
    /// Given without any parts.
    Plain {
        role: &'a str,
        text: &'a str,
    },
    /// A user's, the system's, a developer's.
    Given {
        role: &'a str,
        parts: Vec<Part<'a>>,
    },
    /// All that the assistant said in a row.
    Assistant(Assistant<'a>),
    /// What a tool answered, as a text or in parts.
    Result {
        call: &'a str,
        text: &'a str,
    },
    Results {
        call: &'a str,
        parts: Vec<Part<'a>>,
    },
}

#[derive(Default)]
struct Assistant<'a> {
    parts: Vec<Part<'a>>,
    reasoning: Option<&'a str>,
    /// Id, name and arguments.
    calls: Vec<[&'a str; 3]>,
}

/// A part of a message: values as they stand in the body.
enum Part<'a> {
    Text(&'a str),
    Image(&'a str),
}

impl<'a> Messages<'a> {
    /// Those of a response's body.
    pub fn of(whole: &Object<'a>) -> Self {
        let mut messages = Self::default();
        if whole.iter().any(|(name, _)| name == "instructions") {
            // llama-server makes an empty message of `null`.
            let text = whole.text("instructions").unwrap_or("\"\"");
            messages.list.push(Message::Plain { role: "\"system\"", text });
        }
        match whole.get("input") {
            Some(text) if is_text(text) => messages.list.push(Message::Plain { role: "\"user\"", text }),
            Some(items) => elements(items).into_iter().for_each(|item| messages.item(&Object::of(item))),
            None => messages.foreign = true,
        }
        messages
    }

    /// Whether all of it was understood, and the assistant speaks next.
    pub fn are_open_to_the_assistant(&self) -> bool {
        !self.foreign && !matches!(self.list.last(), None | Some(Message::Assistant(_)))
    }

    fn item(&mut self, item: &Object<'a>) {
        match (item.text("role"), item.get("content")) {
            _ if item.says("type", "function_call") => {
                match (item.text("call_id"), item.text("name"), item.text("arguments")) {
                    (Some(id), Some(name), Some(arguments)) => self.said(|by| by.calls.push([id, name, arguments])),
                    _ => self.foreign = true,
                }
            }
            _ if item.says("type", "function_call_output") => match (item.text("call_id"), item.get("output")) {
                (Some(call), Some(text)) if is_text(text) => self.list.push(Message::Result { call, text }),
                (Some(call), Some(parts)) => {
                    let parts = self.parts(parts);
                    self.list.push(Message::Results { call, parts });
                }
                _ => self.foreign = true,
            },
            (_, content) if item.says("type", "reasoning") => {
                let first = content.and_then(|content| elements(content).into_iter().next());
                match first.and_then(|first| Object::of(first).text("text")) {
                    Some(text) => self.said(|by| by.reasoning = Some(text)),
                    // Only a summary, or something encrypted: the model's own words are not there.
                    None => self.foreign = true,
                }
            }
            (Some(_), Some(content)) if item.says("role", "assistant") => {
                let parts = self.parts(content);
                self.said(|by| by.parts.extend(parts));
            }
            (Some(role), Some(content)) => {
                let parts = self.parts(content);
                self.list.push(Message::Given { role, parts });
            }
            _ => self.foreign = true,
        }
    }

    /// The assistant said something; more, if it spoke last.
    fn said(&mut self, what: impl FnOnce(&mut Assistant<'a>)) {
        if let Some(Message::Assistant(assistant)) = self.list.last_mut() {
            return what(assistant);
        }
        let mut assistant = Assistant::default();
        what(&mut assistant);
        self.list.push(Message::Assistant(assistant));
    }

    /// The parts of a content; a text is one.
    fn parts(&mut self, content: &'a str) -> Vec<Part<'a>> {
        if is_text(content) {
            return vec![Part::Text(content)];
        }
        let elements = elements(content);
        let parts: Vec<_> = elements.iter().filter_map(|part| Part::of(&Object::of(part))).collect();
        self.foreign |= !is_array(content) || parts.len() < elements.len();
        parts
    }

    /// Appends them as an array, with `last` behind them.
    pub fn write(&self, last: Option<&str>, chat: &mut Vec<u8>) {
        let mut before = "[";
        for message in &self.list {
            put(chat, before);
            before = ",";
            message.write(chat);
        }
        if let Some(last) = last {
            put(chat, before);
            before = "";
            put(chat, last);
        }
        // No message at all is for the engine to refuse.
        put(chat, if before == "[" { "[]" } else { "]" });
    }
}

impl<'a> Part<'a> {
    /// `None` if a chat has no such part.
    fn of(part: &Object<'a>) -> Option<Self> {
        if ["input_text", "output_text", "text"].iter().any(|kind| part.says("type", kind)) {
            part.text("text").map(Self::Text)
        } else {
            part.text("image_url").filter(|_| part.says("type", "input_image")).map(Self::Image)
        }
    }
}

impl Message<'_> {
    fn write(&self, chat: &mut Vec<u8>) {
        match self {
            Self::Plain { role, text } => all(chat, &[r#"{"role":"#, role, r#","content":"#, text, "}"]),
            Self::Given { role, parts } => {
                all(chat, &[r#"{"role":"#, role, r#","content":"#]);
                write_parts(parts, chat);
                put(chat, "}");
            }
            Self::Assistant(assistant) => assistant.write(chat),
            Self::Result { call, text } => {
                all(chat, &[r#"{"role":"tool","tool_call_id":"#, call, r#","content":"#, text, "}"]);
            }
            Self::Results { call, parts } => {
                all(chat, &[r#"{"role":"tool","tool_call_id":"#, call, r#","content":"#]);
                write_parts(parts, chat);
                put(chat, "}");
            }
        }
    }
}

impl Assistant<'_> {
    fn write(&self, chat: &mut Vec<u8>) {
        put(chat, r#"{"role":"assistant""#);
        // Calls alone have no content.
        if !self.parts.is_empty() || self.calls.is_empty() {
            put(chat, r#","content":"#);
            write_parts(&self.parts, chat);
        }
        if let Some(reasoning) = self.reasoning {
            all(chat, &[r#","reasoning_content":"#, reasoning]);
        }
        let mut before = r#","tool_calls":["#;
        for [id, name, arguments] in &self.calls {
            all(chat, &[before, r#"{"id":"#, id, r#","type":"function","function":{"name":"#, name]);
            all(chat, &[r#","arguments":"#, arguments, "}}"]);
            before = ",";
        }
        put(chat, if self.calls.is_empty() { "}" } else { "]}" });
    }
}

fn write_parts(parts: &[Part<'_>], chat: &mut Vec<u8>) {
    put(chat, "[");
    let mut between = "";
    for part in parts {
        put(chat, between);
        between = ",";
        match part {
            Part::Text(text) => all(chat, &[r#"{"type":"text","text":"#, text, "}"]),
            Part::Image(url) => all(chat, &[r#"{"type":"image_url","image_url":{"url":"#, url, "}}"]),
        }
    }
    put(chat, "]");
}

fn all(chat: &mut Vec<u8>, texts: &[&str]) {
    texts.iter().for_each(|text| put(chat, text));
}
