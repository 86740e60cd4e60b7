//! A message as one object, as the engine would have sent it without a stream.

use super::blocks::{Block, Blocks, Kind};
use crate::json::{Run, Scanner, runs};
use crate::stream::members::{Members, each_member, member, text_member};
use crate::stream::transcript::Transcript;

/// The members of a message beside its content; the later events replace what the first one said.
#[derive(Clone, Debug, Default)]
pub struct Message {
    members: Members,
    usage: Members,
}

impl Message {
    /// `message_start` with this message.
    pub fn begin(&mut self, message: &str) {
        *self = Self::default();
        self.members.take(message);
        if let Some(usage) = self.members.remove("usage") {
            self.usage.take(&usage);
        }
    }

    /// `message_delta` with this delta and usage.
    pub fn end(&mut self, delta: &str, usage: &str) {
        self.members.take(delta);
        self.usage.take(usage);
    }

    /// The whole message; `model` as JSON text, `usage` if it is not to be what the engine said.
    pub fn write(mut self, model: &[u8], blocks: &Blocks, texts: &Transcript, usage: Option<Vec<u8>>) -> Vec<u8> {
        let mut out = Vec::with_capacity(texts.bytes() + 1024);
        out.push(b'{');
        self.members.remove("model");
        self.members.remove("content");
        self.members.write(&mut out);
        member("model", model, &mut out);
        member("content", b"[", &mut out);
        for (n, block) in blocks.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            write_block(block, text(blocks, n, texts), &mut out);
        }
        out.push(b']');
        if let Some(usage) = usage {
            member("usage", &usage, &mut out);
        } else if !self.usage.is_empty() {
            member("usage", b"{", &mut out);
            self.usage.write(&mut out);
            out.push(b'}');
        }
        out.push(b'}');
        out
    }
}

/// What was written of the `n`th block, if it is text or thoughts.
fn text<'a>(blocks: &Blocks, n: usize, texts: &'a Transcript) -> &'a str {
    let mut from_here = blocks.iter().skip(n);
    let Some((block, part)) = from_here.next().and_then(|block| Some((block, block.kind.part()?))) else { return "" };
    let whole = texts.text(part);
    let end = from_here.find(|other| other.kind == block.kind).map_or(whole.len(), |other| other.from);
    whole.get(block.from..end).unwrap_or_default()
}

/// A block with all that was written of it in the place of what it began with.
fn write_block(block: &Block, text: &str, out: &mut Vec<u8>) {
    let (grown, kind) = match block.kind {
        Kind::Text => ("text", r#""text""#),
        Kind::Thinking => ("thinking", r#""thinking""#),
        Kind::Call => ("input", r#""tool_use""#),
        Kind::Other => {
            out.extend_from_slice(block.start.as_bytes());
            return;
        }
    };
    out.push(b'{');
    let mut typed = false;
    // It was scanned as a part of its event.
    let _sound = each_member(&block.start, |name, value| {
        if name != grown && !(name == "signature" && block.kind == Kind::Thinking) {
            typed |= name == "type";
            member(name, value.as_bytes(), out);
        }
    });
    if !typed {
        member("type", kind.as_bytes(), out);
    }
    match block.kind {
        Kind::Call => member(grown, input(&block.input).as_bytes(), out),
        _ => text_member(grown, text, out),
    }
    if block.kind == Kind::Thinking {
        text_member("signature", &block.signature, out);
    }
    out.push(b'}');
}

/// The value that a call's pieces make together. What is no JSON (a call that was cut short) is an empty object, as in
/// llama-server's own plain answers.
fn input(pieces: &str) -> String {
    let mut text = String::with_capacity(pieces.len());
    for run in runs(pieces) {
        match run {
            Run::Plain(plain) => text.push_str(plain),
            Run::Escaped(letter) => text.push(letter),
        }
    }
    let mut scanner = Scanner::new(&text);
    if scanner.pass().and_then(|()| scanner.finish()).is_err() {
        text.replace_range(.., "{}");
    }
    text
}
