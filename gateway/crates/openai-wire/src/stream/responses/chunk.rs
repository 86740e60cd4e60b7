//! What one chunk of a chat says, as far as a response that is carried on needs it.

use crate::json::{JsonError, Kind, Scanner};
use crate::stream::Ledger;
use crate::usage::{EngineTimings, PromptProgress, Reported};

/// What one chunk was. Texts are JSON text.
#[derive(Default)]
pub struct Chunk<'a> {
    pub content: &'a str,
    pub reasoning: &'a str,
    /// Pieces of calls; nearly always none.
    pub calls: Vec<CallPiece<'a>>,
    /// Its choice has a finish reason.
    pub finished: bool,
    /// Unix seconds, as they stand.
    pub created: Option<&'a str>,
    pub error: bool,
}

/// A piece of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallPiece<'a> {
    /// Which call; without a number, its place in the chunk.
    pub index: u32,
    pub id: &'a str,
    pub name: &'a str,
    pub arguments: &'a str,
}

/// Reads a chunk; counts go to the ledger.
pub fn scan<'a>(text: &'a str, ledger: &mut Ledger) -> Result<Chunk<'a>, JsonError> {
    let mut chunk = Chunk::default();
    let mut scanner = Scanner::new(text);
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        let kind = scanner.kind()?;
        match key.name.as_ref() {
            "choices" if kind == Kind::Array => {
                let mut choices = scanner.array()?;
                while scanner.element(&mut choices)? {
                    choice(&mut scanner, &mut chunk)?;
                }
            }
            "created" if kind == Kind::Number => chunk.created = Some(scanner.number()?),
            "usage" => ledger.reported.merge(Reported::read(&mut scanner)?),
            "timings" => ledger.timings = EngineTimings::read(&mut scanner)?.or(ledger.timings),
            "prompt_progress" => ledger.progress = PromptProgress::parse(&mut scanner)?.or(ledger.progress),
            "error" | "detail" => {
                chunk.error |= kind != Kind::Null;
                scanner.skip()?;
            }
            _ => scanner.pass()?,
        }
    }
    scanner.finish()?;
    Ok(chunk)
}

fn choice<'a>(scanner: &mut Scanner<'a>, chunk: &mut Chunk<'a>) -> Result<(), JsonError> {
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        let kind = scanner.kind()?;
        match key.name.as_ref() {
            "delta" if kind == Kind::Object => delta(scanner, chunk)?,
            "finish_reason" if kind == Kind::Text => chunk.finished |= !scanner.text()?.is_empty(),
            _ => scanner.pass()?,
        }
    }
    Ok(())
}

fn delta<'a>(scanner: &mut Scanner<'a>, chunk: &mut Chunk<'a>) -> Result<(), JsonError> {
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        let kind = scanner.kind()?;
        match key.name.as_ref() {
            "content" if kind == Kind::Text => chunk.content = scanner.text()?.raw,
            "reasoning_content" | "reasoning" if kind == Kind::Text => chunk.reasoning = scanner.text()?.raw,
            "tool_calls" if kind == Kind::Array => {
                let mut calls = scanner.array()?;
                while scanner.element(&mut calls)? {
                    let place = u32::try_from(chunk.calls.len()).unwrap_or(u32::MAX);
                    let mut piece = CallPiece { index: place, ..CallPiece::default() };
                    call(scanner, &mut piece)?;
                    chunk.calls.push(piece);
                }
            }
            _ => scanner.pass()?,
        }
    }
    Ok(())
}

/// A call, or its `function`: no name of theirs is both's.
fn call<'a>(scanner: &mut Scanner<'a>, piece: &mut CallPiece<'a>) -> Result<(), JsonError> {
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        let kind = scanner.kind()?;
        match key.name.as_ref() {
            "index" if kind == Kind::Number => piece.index = scanner.number()?.parse().unwrap_or(piece.index),
            "id" if kind == Kind::Text => piece.id = scanner.text()?.raw,
            "name" if kind == Kind::Text => piece.name = scanner.text()?.raw,
            "arguments" if kind == Kind::Text => piece.arguments = scanner.text()?.raw,
            "function" if kind == Kind::Object => call(scanner, piece)?,
            _ => scanner.pass()?,
        }
    }
    Ok(())
}
