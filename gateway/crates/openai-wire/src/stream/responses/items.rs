//! The output items of a response, as its client has them.
//!
//! Items and their parts are found by number, which llama-server leaves out: it is the order in which they were added.

use crate::stream::transcript::{Part, Transcript};

/// Most output items whose place is remembered; an answer has a handful.
const MAX_ITEMS: usize = 1024;

/// Longest item id remembered, in bytes.
const MAX_ID: usize = 256;

/// What an item is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Message,
    Reasoning,
    /// A tool call.
    Call,
    /// What the gateway does not know, so nobody can go on with it.
    Other,
}

impl Kind {
    /// By its `type`.
    pub fn of(name: &str) -> Self {
        match name {
            "message" => Self::Message,
            "reasoning" => Self::Reasoning,
            "function_call" => Self::Call,
            _ => Self::Other,
        }
    }

    /// Of an item that has such a text.
    pub fn with(part: Part) -> Self {
        match part {
            Part::Content => Self::Message,
            Part::Reasoning => Self::Reasoning,
        }
    }

    /// Where its text is in the transcript.
    pub fn part(self) -> Option<Part> {
        match self {
            Self::Message => Some(Part::Content),
            Self::Reasoning => Some(Part::Reasoning),
            Self::Call | Self::Other => None,
        }
    }
}

/// How much of an item's end the client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Open,
    TextDone,
    PartDone,
    Done,
}

/// A call that a chat has begun.
#[derive(Clone, Debug)]
pub struct Call {
    /// The chat's number of it.
    pub index: u32,
    /// All as JSON text.
    pub call_id: Box<str>,
    pub name: Box<str>,
    pub arguments: String,
}

/// An item.
#[derive(Clone, Debug)]
pub struct Item {
    /// As JSON text.
    pub id: Box<str>,
    pub kind: Kind,
    /// Where its text begins in the transcript.
    from: usize,
    /// Content parts begun.
    pub parts: u32,
    pub stage: Stage,
    pub call: Option<Box<Call>>,
    /// How it was when the first call began.
    mark: Option<(u32, Stage)>,
}

/// All items.
#[derive(Clone, Debug, Default)]
pub struct Items {
    list: Vec<Item>,
}

impl Items {
    pub fn iter(&self) -> std::slice::Iter<'_, Item> {
        self.list.iter()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn clear(&mut self) {
        self.list.clear();
    }

    pub fn get(&self, place: usize) -> Option<&Item> {
        self.list.get(place)
    }

    pub fn get_mut(&mut self, place: usize) -> Option<&mut Item> {
        self.list.get_mut(place)
    }

    /// Where the item of this id is.
    pub fn place(&self, id: &str) -> Option<usize> {
        self.list.iter().rposition(|item| *item.id == *id)
    }

    /// The last item, which an event without an id is about.
    pub fn last(&self) -> usize {
        self.list.len().saturating_sub(1)
    }

    /// Remembers an item; where it is, if there is room for it.
    pub fn add(&mut self, id: &str, kind: Kind, from: usize, call: Option<Box<Call>>) -> Option<usize> {
        if self.list.len() == MAX_ITEMS || id.len() > MAX_ID {
            return None;
        }
        self.list.push(Item { id: id.into(), kind, from, parts: 0, stage: Stage::Open, call, mark: None });
        Some(self.list.len() - 1)
    }

    /// Where the chat's call is, by its number, unless its id is another's.
    pub fn call(&self, index: u32, id: &str) -> Option<usize> {
        let is_it = |call: &Call| call.index == index && (id.is_empty() || call.call_id.ends_with(id));
        self.list.iter().rposition(|item| item.call.as_ref().is_some_and(|call| is_it(call)))
    }

    /// What was written of an item, if it is text or thoughts: JSON text.
    pub fn text<'a>(&self, place: usize, texts: &'a Transcript) -> &'a str {
        let mut from_here = self.list.iter().skip(place);
        let Some((item, part)) = from_here.next().and_then(|item| Some((item, item.kind.part()?))) else { return "" };
        let whole = texts.text(part);
        let end = from_here.find(|other| other.kind == item.kind).map_or(whole.len(), |other| other.from);
        whole.get(item.from..end).unwrap_or_default()
    }

    /// Whether all that was written is one text after one train of thoughts: engines can go on with nothing else.
    pub fn can_go_on(&self) -> bool {
        let mut last = None;
        self.list.iter().all(|item| {
            let before = last.replace(item.kind);
            item.parts <= 1
                && matches!(
                    (before, item.kind),
                    (None, Kind::Reasoning | Kind::Message) | (Some(Kind::Reasoning), Kind::Message)
                )
        })
    }

    /// From here on nothing is sent until the answer is whole.
    pub fn mark(&mut self) {
        for item in &mut self.list {
            item.mark = Some((item.parts, item.stage));
        }
    }

    /// What was not sent is forgotten.
    pub fn cut_back(&mut self) {
        self.list.retain(|item| item.mark.is_some());
        for item in &mut self.list {
            if let Some(mark) = item.mark.take() {
                (item.parts, item.stage) = mark;
            }
        }
    }
}
