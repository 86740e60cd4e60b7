//! What a fake phone answers: a function of the model and the prompt alone.
//!
//! Two equal phones agree word for word, and every answer carries a digest of the message it answers, so that a test
//! can tell at once that an answer belongs to its request and is whole. A token is a word with the space before it.

use crate::digest::{message_digest, token};
use std::ops::Range;

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// What a piece of an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Thought,
    Text,
    /// A piece of a tool call's arguments.
    Arguments,
}

/// A tool call: the arguments are pieces of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
}

/// An answer, one piece a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    text: String,
    pieces: Vec<(Kind, Range<usize>)>,
    pub(crate) call: Option<Call>,
    pub(crate) finish: Finish,
}

/// Words of the message that an answer repeats, and bytes of each: an answer must not grow with its prompt.
const ECHOED_WORDS: usize = 256;
const ECHOED_BYTES: usize = 64;

/// The answer of `tokens` words that a fake phone serving `model` gives to `message`.
///
/// The first word is `#` and [`message_digest`]`(message)`, the second is the model's name without folders and
/// extension, and then the message's own words follow, over and over.
pub fn answer_text(model: &str, message: &str, tokens: usize) -> String {
    let mut text = String::new();
    for (index, word) in words(model, message).take(tokens).enumerate() {
        if index > 0 {
            text.push(' ');
        }
        text.push_str(&word);
    }
    text
}

fn words<'a>(model: &'a str, message: &'a str) -> impl Iterator<Item = std::borrow::Cow<'a, str>> {
    let stem = model.rsplit(['/', '\\']).next().unwrap_or(model);
    let stem = stem.strip_suffix(".gguf").unwrap_or(stem);
    let mut echo: Vec<&str> = message.split_whitespace().take(ECHOED_WORDS).map(shorten).collect();
    if echo.is_empty() {
        echo.push("silence");
    }
    let start = [format!("#{}", message_digest(message)).into(), stem.split_whitespace().collect::<String>().into()];
    start.into_iter().chain((0..).map(move |index: usize| echo[index % echo.len()].into()))
}

fn shorten(word: &str) -> &str {
    let mut end = word.len().min(ECHOED_BYTES);
    while !word.is_char_boundary(end) {
        end -= 1;
    }
    &word[..end]
}

impl Answer {
    /// An answer in plain text.
    pub(crate) fn text(text: String) -> Self {
        let mut answer = Self::empty();
        answer.push(Kind::Text, &text);
        answer
    }

    /// An answer that calls a tool.
    pub(crate) fn call(name: &str, arguments: &str) -> Self {
        let mut answer = Self::empty();
        answer.finish = Finish::ToolCalls;
        answer.push(Kind::Arguments, arguments);
        let id = crate::digest::sha256_hex(format!("{name}{arguments}").as_bytes(), 16);
        answer.call = Some(Call { id, name: name.to_owned() });
        answer
    }

    fn empty() -> Self {
        Self { text: String::new(), pieces: Vec::new(), call: None, finish: Finish::Stop }
    }

    /// The same answer after some thinking about `subject`.
    pub(crate) fn after_thinking(self, subject: &str, tokens: u32) -> Self {
        if tokens == 0 {
            return self;
        }
        let mut answer = Self::empty();
        answer.push(Kind::Thought, &answer_text("thinking", subject, tokens as usize));
        for (kind, range) in &self.pieces {
            let start = answer.text.len();
            answer.text.push_str(&self.text[range.clone()]);
            answer.pieces.push((*kind, start..answer.text.len()));
        }
        Self { call: self.call, finish: self.finish, ..answer }
    }

    /// The same answer cut to `tokens`.
    pub(crate) fn limited(mut self, tokens: usize) -> Self {
        if self.pieces.len() > tokens {
            self.pieces.truncate(tokens);
            self.finish = Finish::Length;
        }
        self
    }

    /// The same answer ended before the first of `stops` in its text.
    pub(crate) fn stopped_at(mut self, stops: &[String]) -> Self {
        let Some(first) = self.pieces.iter().position(|(kind, _)| *kind == Kind::Text) else { return self };
        let from = self.pieces[first].1.start;
        let to = self.pieces.last().map_or(from, |(_, range)| range.end);
        let text = &self.text[from..to];
        let found = stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(stop.as_str())).min();
        if let Some(end) = found.map(|at| from + at) {
            self.pieces.retain_mut(|(kind, range)| {
                range.end = range.end.min(end);
                *kind == Kind::Thought || range.start < range.end
            });
            self.finish = Finish::Stop;
        }
        self
    }

    /// Appends text, cut into words with the space before each.
    fn push(&mut self, kind: Kind, text: &str) {
        let base = self.text.len();
        self.text.push_str(text);
        let bytes = text.as_bytes();
        let mut start = 0;
        for at in 1..bytes.len() {
            let begins = bytes[at].is_ascii_whitespace() && !bytes[at - 1].is_ascii_whitespace();
            if begins {
                self.pieces.push((kind, base + start..base + at));
                start = at;
            }
        }
        if start < bytes.len() {
            self.pieces.push((kind, base + start..base + bytes.len()));
        }
    }

    /// Length, tokens.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// One token.
    pub(crate) fn piece(&self, index: usize) -> Option<(Kind, &str)> {
        self.pieces.get(index).map(|(kind, range)| (*kind, &self.text[range.clone()]))
    }

    /// All text of one kind.
    pub(crate) fn whole(&self, kind: Kind) -> String {
        self.pieces.iter().filter(|(one, _)| *one == kind).map(|(_, range)| &self.text[range.clone()]).collect()
    }

    /// Token ids of the first `count` pieces.
    pub(crate) fn token_ids(&self, count: usize) -> impl Iterator<Item = u32> + '_ {
        self.pieces.iter().take(count).map(|(_, range)| token(self.text[range.clone()].trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_the_message_and_the_model_and_repeats_the_message() {
        let text = answer_text("/models/Qwen3.5-4B.gguf", "is it raining", 7);
        assert_eq!(text, format!("#{} Qwen3.5-4B is it raining is it", message_digest("is it raining")));
        assert_eq!(answer_text("m", "", 4).split(' ').skip(1).collect::<Vec<_>>(), ["m", "silence", "silence"]);
    }

    #[test]
    fn a_token_is_a_word_with_the_space_before_it() {
        let answer = Answer::text("one two  three".to_owned());
        let pieces: Vec<_> = (0..answer.len()).filter_map(|index| answer.piece(index)).collect();
        assert_eq!(pieces, [(Kind::Text, "one"), (Kind::Text, " two"), (Kind::Text, "  three")]);
    }

    #[test]
    fn a_limit_cuts_whole_tokens_and_says_so() {
        let answer = Answer::text("one two three".to_owned());
        assert_eq!(answer.clone().limited(3).finish, Finish::Stop);
        let cut = answer.limited(2);
        assert_eq!((cut.whole(Kind::Text).as_str(), cut.finish), ("one two", Finish::Length));
    }

    #[test]
    fn a_stop_string_ends_the_text_before_itself_even_inside_a_word_or_across_two() {
        let answer = Answer::text("one two three four".to_owned()).limited(3);
        let stopped = answer.clone().stopped_at(&["o t".to_owned(), "four".to_owned()]);
        assert_eq!((stopped.whole(Kind::Text).as_str(), stopped.len()), ("one tw", 2));
        assert_eq!(stopped.finish, Finish::Stop);
        assert_eq!(answer.clone().stopped_at(&["five".to_owned()]), answer);
    }

    #[test]
    fn thoughts_come_first_and_a_stop_string_does_not_touch_them() {
        let answer = Answer::text("a b c".to_owned()).after_thinking("b", 3).stopped_at(&["b".to_owned()]);
        assert_eq!(answer.whole(Kind::Thought).split(' ').count(), 3);
        assert_eq!(answer.whole(Kind::Text), "a ");
    }

    #[test]
    fn long_words_are_shortened_at_a_character() {
        let text = answer_text("m", &"ä".repeat(1000), 3);
        assert_eq!(text.split(' ').next_back(), Some("ä".repeat(32).as_str()));
    }
}
