//! A plain answer, put together from the chunks of a stream.
//!
//! The texts are in the transcript. Here is the rest: calls, finish reasons, log probabilities, and what the engine adds of its
//! own. The object is the one that llama-server writes when it is not asked for a stream, member by member; recorded pairs of
//! both are the test of that.

mod body;

use super::chunk::{CallPart, Span, What};
use super::gathered::{Gathered, name};
use super::heads::{Head, Heads};
use crate::segments::Segments;
use crate::stream::transcript::Transcript;
use body::Body;
use bytes::BufMut;

/// Most calls kept of a choice; the public API knows 128 tools. Further ones are left out.
const MAX_CALLS: usize = 1024;

/// What is kept of a plain answer beside its texts.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    choices: Vec<Choice>,
    /// Members of the chunks that have no name here.
    members: Gathered,
    bytes: usize,
}

/// One choice.
#[derive(Clone, Debug, Default)]
struct Choice {
    index: u32,
    refusal: String,
    calls: Vec<Call>,
    function: Option<Call>,
    /// The reason, quotes included.
    finish: String,
    /// `None` if there was no such member; empty if it never held anything.
    logprobs: Option<Gathered>,
    /// Members of the choice and of its deltas that have no name here.
    members: Gathered,
    of_deltas: Gathered,
}

/// A tool call. All are JSON text without the quotes.
#[derive(Clone, Debug, Default)]
struct Call {
    number: u32,
    id: String,
    kind: String,
    name: String,
    arguments: String,
}

impl Draft {
    /// Bytes kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a span of a chunk.
    pub fn take(&mut self, span: &Span, text: &str) {
        let value = &text[span.value.clone()];
        self.bytes += match &span.what {
            // In the transcript.
            What::Text(_) => 0,
            What::OfChunk(key) => self.members.set(name(&text[key.clone()]), value),
            What::OfChoice(key) => self.choice(span.choice).members.set(name(&text[key.clone()]), value),
            What::OfDelta(key) => self.choice(span.choice).of_deltas.add(name(&text[key.clone()]), value),
            What::Logprobs => self.choice(span.choice).logprobs.get_or_insert_default().add_all(value),
            What::Refusal => grow(&mut self.choice(span.choice).refusal, value),
            What::Finish => set_once(&mut self.choice(span.choice).finish, value),
            What::Call(number, part) => self.choice(span.choice).call(*number, *part, value),
            What::Function(part) => self.choice(span.choice).function.get_or_insert_default().take(*part, value),
        };
    }

    /// A choice was ended here, for this reason.
    pub fn finish(&mut self, choice: u32, reason: &str) {
        self.choice(choice).finish = format!("\"{reason}\"");
    }

    /// Finds or begins a choice; they are in order.
    fn choice(&mut self, index: u32) -> &mut Choice {
        let at = self.choices.partition_point(|choice| choice.index < index);
        if self.choices.get(at).is_none_or(|choice| choice.index != index) {
            self.choices.insert(at, Choice { index, ..Choice::default() });
        }
        &mut self.choices[at]
    }

    /// The whole answer; `usage` and `timings` are objects, and without the latter there is no such member.
    pub fn into_body(self, heads: &Heads, transcript: &mut Transcript, usage: &[u8], timings: &str) -> Segments {
        let mut body = Body::default();
        body.put("{\"choices\":[");
        for (n, choice) in self.choices.into_iter().enumerate() {
            body.put(if n > 0 { "," } else { "" });
            choice.write(heads.is_chat, transcript, &mut body);
        }
        body.put("]");
        for head in [Head::Created, Head::Model, Head::Fingerprint] {
            body.head(heads, head);
        }
        body.put(if heads.is_chat { r#","object":"chat.completion""# } else { r#","object":"text_completion""# });
        body.put(",\"usage\":");
        body.pending.put_slice(usage);
        body.head(heads, Head::Id);
        if !timings.is_empty() {
            body.put(",\"timings\":");
            body.put(timings);
        }
        self.members.write(&mut body.pending);
        body.put("}");
        body.into_segments()
    }
}

/// Appends; by how many bytes it grew.
fn grow(known: &mut String, text: &str) -> usize {
    known.push_str(text);
    text.len()
}

/// Takes the first value; by how many bytes it grew.
fn set_once(known: &mut String, text: &str) -> usize {
    if known.is_empty() { grow(known, text) } else { 0 }
}

impl Choice {
    /// Takes a part of a call; by how many bytes that grew.
    fn call(&mut self, number: u32, part: CallPart, text: &str) -> usize {
        if let Some(call) = self.calls.iter_mut().rfind(|call| call.number == number) {
            return call.take(part, text);
        }
        if self.calls.len() == MAX_CALLS {
            return 0;
        }
        let mut call = Call { number, ..Call::default() };
        let bytes = size_of::<Call>() + call.take(part, text);
        self.calls.push(call);
        bytes
    }

    fn write(self, is_chat: bool, transcript: &mut Transcript, body: &mut Body) {
        let texts = transcript.take(self.index);
        body.put("{\"finish_reason\":");
        body.put(if self.finish.is_empty() { "null" } else { &self.finish });
        body.put(&format!(",\"index\":{}", self.index));
        if is_chat {
            body.put(",\"message\":{\"role\":\"assistant\",\"content\":");
            body.text(texts.content);
            body.text_if_any(",\"reasoning_content\":", texts.reasoning);
            body.text_if_any(",\"refusal\":", self.refusal);
            if !self.calls.is_empty() {
                body.put(",\"tool_calls\":[");
                for (n, call) in self.calls.into_iter().enumerate() {
                    body.put(if n > 0 { "," } else { "" });
                    call.write(body);
                }
                body.put("]");
            }
            if let Some(function) = self.function {
                body.put(",\"function_call\":");
                function.write_function(body);
            }
            self.of_deltas.write(&mut body.pending);
            body.put("}");
        } else {
            body.put(",\"text\":");
            body.text(texts.content);
        }
        match self.logprobs {
            Some(logprobs) if !logprobs.is_empty() => {
                body.put(",\"logprobs\":");
                logprobs.write_object(&mut body.pending);
            }
            None if is_chat => {}
            _ => body.put(",\"logprobs\":null"),
        }
        self.members.write(&mut body.pending);
        body.put("}");
    }
}

impl Call {
    /// Takes a part; by how many bytes it grew. Arguments come in pieces, the rest at once or again and again.
    fn take(&mut self, part: CallPart, text: &str) -> usize {
        match part {
            CallPart::Id => set_once(&mut self.id, text),
            CallPart::Kind => set_once(&mut self.kind, text),
            CallPart::Name => set_once(&mut self.name, text),
            CallPart::Arguments => grow(&mut self.arguments, text),
        }
    }

    /// As llama-server writes it: without a number.
    fn write(mut self, body: &mut Body) {
        body.put("{\"type\":\"");
        body.put(if self.kind.is_empty() { "function" } else { &self.kind });
        body.put("\",\"function\":");
        let id = std::mem::take(&mut self.id);
        self.write_function(body);
        body.put(",\"id\":");
        body.text(id);
        body.put("}");
    }

    fn write_function(self, body: &mut Body) {
        body.put("{\"name\":");
        body.text(self.name);
        body.put(",\"arguments\":");
        body.text(self.arguments);
        body.put("}");
    }
}
