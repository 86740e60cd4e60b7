//! What one of Anthropic's events says.

use crate::json::{JsonError, Kind, Scanner};
use crate::stream::Ledger;
use crate::usage::{EngineTimings, Reported};
use std::ops::Range;

/// What one event was. Texts are JSON text between the quotes.
#[derive(Default)]
pub struct Event<'a> {
    /// All of it.
    pub raw: &'a str,
    /// Its `type`.
    pub kind: Option<&'a str>,
    /// The number of its content block, and where it stands.
    pub index: Option<(u32, Range<usize>)>,
    /// The block that begins.
    pub block: Option<Start<'a>>,
    /// What comes to a block.
    pub piece: Option<Piece<'a>>,
    /// Where the piece stands.
    pub text: Range<usize>,
    /// `delta` as it stands.
    pub delta: &'a str,
    /// There is a stop reason.
    pub stop: bool,
    /// It is an error.
    pub error: bool,
    /// `message` as it stands.
    pub message: &'a str,
    /// Where the model's name stands.
    pub model: Option<Range<usize>>,
    /// Where `usage` stands, outside of a message.
    pub usage: Option<Range<usize>>,
    /// Just before the closing brace.
    pub end: usize,
}

/// The beginning of a content block.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    /// `content_block` as it stands.
    pub raw: &'a str,
    /// Its `type`.
    pub kind: &'a str,
    /// The text it has already.
    pub text: &'a str,
}

/// What comes to a block.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    /// What it is.
    pub kind: PieceKind,
    /// The text.
    pub raw: &'a str,
}

/// What a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Text.
    Text,
    /// Thoughts.
    Thinking,
    /// A part of a call's arguments, which are JSON text written as a string.
    Input,
    /// What vouches for thoughts; it replaces the one before it.
    Signature,
}

impl Event<'_> {
    /// Whether it holds anything that the model wrote.
    pub fn has_content(&self) -> bool {
        self.piece.is_some_and(|piece| piece.kind != PieceKind::Signature && !piece.raw.is_empty())
    }
}

/// Reads an event; counts go to the ledger.
pub fn scan<'a>(text: &'a str, ledger: &mut Ledger) -> Result<Event<'a>, JsonError> {
    let mut event = Event { raw: text, ..Event::default() };
    let mut scanner = Scanner::new(text);
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        let kind = scanner.kind()?;
        let start = scanner.at();
        match key.name.as_ref() {
            "type" if kind == Kind::Text => event.kind = Some(scanner.text()?.raw),
            "index" => {
                let range = scanner.skip()?;
                event.index = scanner.slice(range.clone()).parse().ok().map(|index| (index, range));
            }
            "message" if kind == Kind::Object => {
                message(&mut scanner, &mut event, ledger)?;
                event.message = scanner.slice(start..scanner.at());
            }
            "content_block" if kind == Kind::Object => {
                let (kind, text) = block(&mut scanner)?;
                event.block = Some(Start { raw: scanner.slice(start..scanner.at()), kind, text });
            }
            "delta" if kind == Kind::Object => {
                delta(&mut scanner, &mut event)?;
                event.delta = scanner.slice(start..scanner.at());
            }
            "usage" => {
                ledger.reported.merge(Reported::read(&mut scanner)?);
                event.usage = Some(start..scanner.at());
            }
            "timings" => ledger.timings = EngineTimings::read(&mut scanner)?.or(ledger.timings),
            "error" => {
                event.error |= kind != Kind::Null;
                scanner.skip()?;
            }
            _ => scanner.pass()?,
        }
    }
    event.end = scanner.at() - 1;
    scanner.finish()?;
    Ok(event)
}

fn message(scanner: &mut Scanner<'_>, event: &mut Event<'_>, ledger: &mut Ledger) -> Result<(), JsonError> {
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        match key.name.as_ref() {
            "model" => event.model = Some(scanner.skip()?),
            "usage" => ledger.reported.merge(Reported::read(scanner)?),
            _ => scanner.pass()?,
        }
    }
    Ok(())
}

/// A block's type, and the text it has already.
fn block<'a>(scanner: &mut Scanner<'a>) -> Result<(&'a str, &'a str), JsonError> {
    let (mut of, mut text) = ("", "");
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        let kind = scanner.kind()?;
        match key.name.as_ref() {
            "type" if kind == Kind::Text => of = scanner.text()?.raw,
            "text" | "thinking" if kind == Kind::Text => text = scanner.text()?.raw,
            _ => scanner.pass()?,
        }
    }
    Ok((of, text))
}

fn delta<'a>(scanner: &mut Scanner<'a>, event: &mut Event<'a>) -> Result<(), JsonError> {
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        let kind = scanner.kind()?;
        let name = key.name.as_ref();
        match name {
            "text" | "thinking" | "partial_json" | "signature" if kind == Kind::Text => {
                let raw = scanner.text()?.raw;
                event.text = scanner.at() - 1 - raw.len()..scanner.at() - 1;
                let kind = match name {
                    "text" => PieceKind::Text,
                    "thinking" => PieceKind::Thinking,
                    "partial_json" => PieceKind::Input,
                    _ => PieceKind::Signature,
                };
                event.piece = Some(Piece { kind, raw });
            }
            "stop_reason" if kind == Kind::Text => event.stop |= !scanner.text()?.is_empty(),
            _ => scanner.pass()?,
        }
    }
    Ok(())
}
