//! The texts of an answer as they were written, for whoever has to carry it on, and for a plain answer.
//!
//! Problem: a replica may vanish after any event, and what goes on must be given all of the text before. Yet most answers
//! never need it, so keeping must cost next to nothing.
//!
//! Choice: one growing JSON text per choice and kind, appended raw from between the quotes of each event: a copy of a few
//! bytes, nothing decoded and nothing allocated per event. Beyond a bound it is all given back. A *mark* stands where a tool
//! call began whose events are held back: only the text before it can be carried on, since engines can't be made to write
//! the rest of a call.

use super::StreamOptions;
use crate::carry::{CarryOn, Obstacle};

/// Most choices of an answer: what a request may ask for (`n`).
pub(super) const MAX_CHOICES: u32 = 128;

/// Which text of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Content,
    Reasoning,
}

/// How far a choice had got.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    content: usize,
    reasoning: usize,
    tokens: u32,
}

/// What was written of one choice. Texts are JSON text without the quotes.
#[derive(Clone, Debug, Default)]
pub(super) struct Passage {
    pub index: u32,
    pub content: String,
    pub reasoning: String,
    /// Tokens of both: events, unless `counted`.
    pub tokens: u32,
    /// The number of tokens is known, not guessed from events.
    pub counted: bool,
    /// Where it stood at the mark.
    at_mark: Extent,
}

/// The texts of all choices.
#[derive(Clone, Debug, Default)]
pub(super) struct Transcript {
    /// Most bytes kept; 0 keeps none.
    limit: usize,
    bytes: usize,
    /// More was written than is kept: nothing is kept any more.
    over: bool,
    marked: bool,
    /// A part of a call is with the client.
    call_sent: bool,
    /// By index.
    passages: Vec<Passage>,
}

impl Transcript {
    /// Nothing is written. A plain answer is kept whole; the caller bounds it by [`Transcript::bytes`].
    pub fn new(options: &StreamOptions) -> Self {
        Self { limit: if options.plain { usize::MAX } else { options.max_kept }, ..Self::default() }
    }

    /// Appends raw JSON text, as it stands between its quotes.
    pub fn write(&mut self, choice: u32, part: Part, raw: &str) {
        if self.limit == 0 || self.over || raw.is_empty() {
            return;
        }
        self.bytes = self.bytes.saturating_add(raw.len());
        if self.bytes > self.limit {
            return self.give_up();
        }
        let passage = self.passage(choice);
        match part {
            Part::Content => passage.content.push_str(raw),
            Part::Reasoning => passage.reasoning.push_str(raw),
        }
    }

    /// An event of this choice had content: about a token.
    pub fn count(&mut self, choice: u32) {
        if self.limit > 0 && !self.over {
            let passage = self.passage(choice);
            (passage.tokens, passage.counted) = (passage.tokens.saturating_add(1), false);
        }
    }

    /// States how many tokens were written of a choice in all.
    pub fn set_tokens(&mut self, choice: u32, tokens: u32) {
        if self.limit > 0 && !self.over {
            let passage = self.passage(choice);
            (passage.tokens, passage.counted) = (tokens, true);
        }
    }

    /// A tool call begins whose events are held back: what is written from now on can't be carried on.
    pub fn mark(&mut self) {
        if !std::mem::replace(&mut self.marked, true) {
            for passage in &mut self.passages {
                let Passage { content, reasoning, tokens, .. } = passage;
                passage.at_mark = Extent { content: content.len(), reasoning: reasoning.len(), tokens: *tokens };
            }
        }
    }

    /// What was held back is whole and goes out.
    pub fn unmark(&mut self) {
        self.marked = false;
        for passage in &mut self.passages {
            passage.at_mark = Extent::default();
        }
    }

    /// A part of a tool call goes out: of no use to carry on, so its memory is given back (but not that of a plain answer).
    pub fn call_goes_out(&mut self) {
        self.bar();
        if self.limit < usize::MAX {
            self.bytes = 0;
            self.passages = Vec::new();
        }
    }

    /// Nobody can go on with what follows, but the text is still needed to end the answer with.
    pub fn bar(&mut self) {
        self.call_sent = true;
    }

    /// There is no room for it any more: all of it is given back. A plain answer stays.
    pub fn give_up(&mut self) {
        if self.limit < usize::MAX {
            self.over = true;
            self.bytes = 0;
            self.passages = Vec::new();
        }
    }

    /// What is held back is thrown away with its attempt.
    pub fn cut_back(&mut self) {
        if !self.marked {
            return;
        }
        self.bytes = 0;
        for passage in &mut self.passages {
            let Extent { content, reasoning, tokens } = passage.at_mark;
            passage.content.truncate(content);
            passage.reasoning.truncate(reasoning);
            passage.tokens = tokens;
            self.bytes += content + reasoning;
        }
        self.unmark();
    }

    /// Forgets everything: the answer begins anew.
    pub fn clear(&mut self) {
        *self = Self { limit: self.limit, ..Self::default() };
    }

    /// The part of the only choice that another attempt would carry on.
    ///
    /// # Errors
    /// Why there is none; also that nothing is written and nothing was sent.
    pub fn carry_on_alone(&self, content_sent: bool) -> Result<CarryOn, Obstacle> {
        if content_sent || !self.is_blank() { self.carry_on(0) } else { Err(Obstacle::Nothing) }
    }

    /// The part of a choice that another attempt would carry on. Whether anything at all was written is the caller's to know:
    /// see [`Obstacle::Nothing`].
    ///
    /// # Errors
    /// Why there is none.
    pub fn carry_on(&self, choice: u32) -> Result<CarryOn, Obstacle> {
        if self.call_sent {
            return Err(Obstacle::ToolCall);
        }
        if self.limit == 0 {
            return Err(Obstacle::Unwanted);
        }
        if self.over {
            return Err(Obstacle::TooLong);
        }
        let mut part = CarryOn { choice, ..CarryOn::default() };
        if let Some(passage) = self.passages.iter().find(|passage| passage.index == choice) {
            let (content, reasoning, tokens) = match self.marked {
                true => {
                    let Extent { content, reasoning, tokens } = passage.at_mark;
                    (&passage.content[..content], &passage.reasoning[..reasoning], tokens)
                }
                false => (passage.content.as_str(), passage.reasoning.as_str(), passage.tokens),
            };
            part.content = content.to_owned();
            part.reasoning = reasoning.to_owned();
            part.tokens = tokens;
        }
        Ok(part)
    }

    /// Whether more was written than is kept.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Whether a call is being held back.
    pub fn is_marked(&self) -> bool {
        self.marked
    }

    /// Whether nothing is kept that could be carried on.
    pub fn is_blank(&self) -> bool {
        self.passages.iter().all(|passage| match self.marked {
            true => passage.at_mark.content + passage.at_mark.reasoning == 0,
            false => passage.content.is_empty() && passage.reasoning.is_empty(),
        })
    }

    /// Gives a choice away.
    pub fn take(&mut self, choice: u32) -> Passage {
        let place = self.passages.iter_mut().find(|passage| passage.index == choice);
        place.map(std::mem::take).unwrap_or_default()
    }

    /// Bytes of text kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tokens of all choices, and whether all of them are counted.
    pub fn tokens(&self) -> (u64, bool) {
        self.passages.iter().fold((0, true), |(tokens, counted), passage| {
            (tokens + u64::from(passage.tokens), counted && (passage.counted || passage.tokens == 0))
        })
    }

    /// What was written of a choice, if anything.
    pub fn get(&self, choice: u32) -> Option<&Passage> {
        self.passages.iter().find(|passage| passage.index == choice)
    }

    /// What was written of the first choice, as JSON text.
    pub fn text(&self, part: Part) -> &str {
        self.get(0).map_or("", |passage| match part {
            Part::Content => passage.content.as_str(),
            Part::Reasoning => passage.reasoning.as_str(),
        })
    }

    /// Finds or begins a choice. Nearly always there is one, and it is the first.
    fn passage(&mut self, choice: u32) -> &mut Passage {
        let at = match self.passages.iter().position(|passage| passage.index >= choice) {
            Some(at) if self.passages[at].index == choice => at,
            at => {
                let at = at.unwrap_or(self.passages.len());
                self.passages.insert(at, Passage { index: choice, ..Passage::default() });
                at
            }
        };
        &mut self.passages[at]
    }
}
