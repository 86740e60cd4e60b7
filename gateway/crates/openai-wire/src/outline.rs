//! Where the text that the model reads stands in a body, in the order in which the model reads it.
//!
//! Problem: a phone that has read the beginning of a prompt before need not read it again, so whoever chooses the phone wants
//! to know what a prompt begins with. Bodies have the parts of a prompt in any order (one SDK writes `tools` behind the
//! messages), and the model does not read the JSON between them.
//!
//! Choice: the scan that counts the text also notes its places, a few words each; once the body is understood the text is
//! told in the model's order, as slices of the body. Rejected: hashing in the order of the body (equal messages under
//! different tools would look alike), rendering the chat template (each phone has its own; what two requests share under
//! one they share under any), and keeping the places in the request (it may wait for long, and they are needed once).

use crate::json::{Run, runs};
use std::ops::{ControlFlow, Range};

/// The least that a part takes of the room for noted text: no template sets two texts apart with less than a token, and a
/// body of a million empty texts must not become a million notes.
const LEAST: usize = 4;

/// What is told of a picture's or a file's data: its length and its end. Compressed data that differs anywhere differs there.
const TOLD_OF_DATA: usize = 4096;

/// A piece of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A run of text as it is meant, escapes undone: equal text is equal however its client escapes. May be cut anywhere.
    Text(&'a str),
    /// Something that has no text or stands for some: whose message begins, that another text begins, a token's number, a
    /// picture. The first byte of a boundary is none that text could have.
    Mark {
        /// What tells it from others.
        bytes: &'a [u8],
        /// Bytes of text that it counts as.
        text: usize,
    },
}

/// The order in which chat templates put the parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    /// What the route has apart from its messages.
    Lead,
    /// The system's and the developer's messages before any other.
    System,
    /// Definitions of tools.
    Tools,
    /// Messages, prompt, input.
    #[default]
    Body,
    /// What follows the prompt.
    Tail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A string.
    Text,
    /// JSON that the model reads as it stands.
    Json,
    /// A token's number.
    Token,
    /// Whose message it is.
    Role,
    /// A picture, a file.
    Data,
    /// There is more in this section, and there was no room to note it.
    More,
}

#[derive(Clone, Debug)]
struct Part {
    section: Section,
    kind: Kind,
    range: Range<usize>,
}

/// The places, noted while the body is scanned.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    parts: Vec<Part>,
    /// Bytes of text for which there is room in each section.
    room: [usize; 5],
    /// Where the next part belongs.
    section: Section,
    /// The first part of the message that is being read.
    message: usize,
    /// Only the system's messages came before it.
    only_system: bool,
}

/// A string that was scanned: its place between the quotes, and its length as it is meant.
pub(crate) struct Place {
    pub range: Range<usize>,
    pub meant: usize,
}

impl Outline {
    /// Notes the first `limit` bytes of text of each section; with 0 nothing at all.
    pub fn new(limit: usize) -> Self {
        Self { room: [limit; 5], only_system: true, ..Self::default() }
    }

    /// What follows belongs there.
    pub fn enter(&mut self, section: Section) {
        self.section = section;
    }

    pub fn text(&mut self, place: Place) {
        self.note(Kind::Text, place.range, place.meant);
    }

    pub fn json(&mut self, range: Range<usize>) {
        let length = range.len();
        self.note(Kind::Json, range, length);
    }

    pub fn token(&mut self, range: Range<usize>) {
        self.note(Kind::Token, range, LEAST);
    }

    pub fn data(&mut self, range: Range<usize>) {
        self.note(Kind::Data, range, 0);
    }

    pub fn role(&mut self, range: Range<usize>) {
        self.note(Kind::Role, range, 0);
    }

    /// A message begins.
    pub fn message(&mut self) {
        self.message = self.parts.len();
    }

    /// The message is over. Whose it is comes first, whatever order its members had; and the first ones that are the
    /// system's come before the tools.
    pub fn message_over<'a>(&mut self, slice: impl FnOnce(Range<usize>) -> &'a str) {
        let parts = self.parts.get_mut(self.message..).unwrap_or_default();
        let role = parts.iter().position(|part| part.kind == Kind::Role);
        if let Some(up_to_role) = role.and_then(|at| parts.get_mut(..=at)) {
            up_to_role.rotate_right(1);
        }
        let role = parts.first().filter(|part| part.kind == Kind::Role).map(|part| part.range.clone());
        self.only_system &= matches!(role.map(slice), Some("system" | "developer"));
        if self.only_system {
            parts.iter_mut().for_each(|part| part.section = Section::System);
        }
    }

    fn note(&mut self, kind: Kind, range: Range<usize>, length: usize) {
        let section = self.section;
        let room = &mut self.room[section as usize];
        if *room == 0 {
            return;
        }
        *room = room.saturating_sub(length.max(LEAST));
        let full = *room == 0;
        self.parts.push(Part { section, kind, range });
        if full {
            self.parts.push(Part { section, kind: Kind::More, range: 0..0 });
        }
    }

    /// Tells the noted text of the body in the model's order, until `visit` has enough.
    pub fn read(mut self, text: &str, mut visit: impl FnMut(Piece<'_>) -> ControlFlow<()>) {
        // Stable: inside a section the order is the body's.
        self.parts.sort_by_key(|part| part.section);
        for part in &self.parts {
            if part.read(text, &mut visit).is_break() {
                return;
            }
        }
    }
}

impl Part {
    fn read(&self, text: &str, visit: &mut impl FnMut(Piece<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        let raw = text.get(self.range.clone()).unwrap_or_default();
        let mark = |bytes| Piece::Mark { bytes, text: 0 };
        match self.kind {
            Kind::Text => {
                visit(mark(b"\xFFt"))?;
                runs(raw).try_for_each(|run| match run {
                    Run::Plain(plain) => visit(Piece::Text(plain)),
                    Run::Escaped(letter) => visit(Piece::Text(letter.encode_utf8(&mut [0; 4]))),
                })
            }
            Kind::Json => {
                visit(mark(b"\xFFj"))?;
                visit(Piece::Text(raw))
            }
            Kind::Token => {
                visit(mark(b"\xFF#"))?;
                visit(Piece::Mark { bytes: raw.as_bytes(), text: LEAST })
            }
            Kind::Role => {
                visit(mark(b"\xFFr"))?;
                visit(mark(raw.as_bytes()))
            }
            Kind::Data => {
                let length = raw.len().to_le_bytes();
                let end = raw.as_bytes().get(raw.len().saturating_sub(TOLD_OF_DATA)..).unwrap_or_default();
                visit(mark(b"\xFFd"))?;
                visit(mark(&length))?;
                visit(mark(end))
            }
            Kind::More => ControlFlow::Break(()),
        }
    }
}
