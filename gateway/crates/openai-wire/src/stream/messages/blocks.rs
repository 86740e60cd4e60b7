//! The content blocks of a message, as its client has them.
//!
//! Engines number the blocks of an answer from 0, also when they carry one on, and may have several open at once. Each block
//! knows by which number the running attempt calls it. Texts and thoughts are in the transcript; a block knows where its own
//! begin there.

use super::event::{PieceKind, Start};
use crate::json::Flaw;
use crate::stream::StreamError;
use crate::stream::transcript::Part;

/// Most blocks of an answer; real ones have a handful. Each is remembered to its end.
const MAX_BLOCKS: usize = 256;

/// What a block is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Thinking,
    /// A tool call.
    Call,
    /// What the gateway does not know, so nobody can go on with it.
    Other,
}

impl Kind {
    /// By its `type`.
    pub fn of(name: &str) -> Self {
        match name {
            "text" => Self::Text,
            "thinking" => Self::Thinking,
            "tool_use" => Self::Call,
            _ => Self::Other,
        }
    }

    /// Of a block that such a piece belongs to.
    pub fn with(piece: PieceKind) -> Self {
        match piece {
            PieceKind::Text => Self::Text,
            PieceKind::Thinking | PieceKind::Signature => Self::Thinking,
            PieceKind::Input => Self::Call,
        }
    }

    /// Where its text is in the transcript.
    pub fn part(self) -> Option<Part> {
        match self {
            Self::Text => Some(Part::Content),
            Self::Thinking => Some(Part::Reasoning),
            Self::Call | Self::Other => None,
        }
    }
}

/// A block.
#[derive(Clone, Debug)]
pub struct Block {
    pub kind: Kind,
    /// How it began, as JSON; kept for plain answers.
    pub start: Box<str>,
    /// Where its text begins in the transcript.
    pub from: usize,
    /// The arguments of a call, as JSON text without quotes; kept for plain answers.
    pub input: String,
    /// The same way.
    pub signature: String,
    /// The running attempt's number of it.
    source: Option<u32>,
    closed: bool,
    /// Whether it was closed when the first call began, if it was there.
    mark: Option<bool>,
}

/// All blocks.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    list: Vec<Block>,
}

impl Blocks {
    pub fn iter(&self) -> std::slice::Iter<'_, Block> {
        self.list.iter()
    }

    pub fn get_mut(&mut self, place: usize) -> Option<&mut Block> {
        self.list.get_mut(place)
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Where the running attempt's block is among the client's.
    pub fn place(&self, source: u32) -> Option<usize> {
        self.list.iter().rposition(|block| block.source == Some(source))
    }

    /// The running attempt's number of the last block.
    pub fn last(&self) -> Option<u32> {
        self.list.last().and_then(|block| block.source)
    }

    /// Whether a block of the client's goes on with this beginning.
    pub fn goes_on(&mut self, source: u32, start: &Start<'_>) -> bool {
        let kind = Kind::of(start.kind);
        start.text.is_empty() && kind.part().is_some() && self.adopt(source, Some(kind)).is_some()
    }

    /// The client's block, of which the running attempt has not spoken, that it now calls by this number. It may end one that it
    /// has not begun, without saying what it is made of.
    pub fn adopt(&mut self, source: u32, kind: Option<Kind>) -> Option<usize> {
        let fits =
            |block: &Block| block.source.is_none() && !block.closed && kind.is_none_or(|kind| block.kind == kind);
        let place = self.list.iter().position(fits)?;
        self.list.get_mut(place)?.source = Some(source);
        Some(place)
    }

    /// A new block, and where it is. One that the dialect did not begin (it has no `start`) is not ours to end.
    pub fn add(&mut self, source: u32, kind: Kind, start: Option<&str>, from: usize) -> Result<usize, StreamError> {
        if self.list.len() == MAX_BLOCKS {
            return Err(StreamError::Malformed { flaw: Flaw::Expected("fewer content blocks") });
        }
        self.list.push(Block {
            kind,
            start: start.unwrap_or_default().into(),
            from,
            input: String::new(),
            signature: String::new(),
            source: Some(source),
            closed: start.is_none(),
            mark: None,
        });
        Ok(self.list.len() - 1)
    }

    /// Whether all that was written is one text after one train of thoughts: engines can go on with nothing else.
    pub fn can_go_on(&self) -> bool {
        let mut last = None;
        self.list.iter().all(|block| {
            let before = last.replace(block.kind);
            matches!((before, block.kind), (None, Kind::Thinking | Kind::Text) | (Some(Kind::Thinking), Kind::Text))
        })
    }

    pub fn close(&mut self, place: usize) {
        if let Some(block) = self.list.get_mut(place) {
            block.closed = true;
        }
    }

    /// The first block that is still open; with `left` only of those that the running attempt does not speak of.
    pub fn open(&self, left: bool) -> Option<(usize, &Block)> {
        self.list.iter().enumerate().find(|(_, block)| !(block.closed || left && block.source.is_some()))
    }

    /// From here on nothing is sent until the answer is whole.
    pub fn mark(&mut self) {
        for block in &mut self.list {
            block.mark = Some(block.closed);
        }
    }

    /// Another attempt carries the message on; `back` to the mark.
    pub fn carry_on(&mut self, back: bool) {
        if back {
            self.list.retain(|block| block.mark.is_some());
        }
        for block in &mut self.list {
            if let Some(closed) = block.mark.take().filter(|_| back) {
                block.closed = closed;
            }
            block.source = None;
        }
    }
}
