//! An answer, token by token. A token is a word with the space before it, and so never a part of a character.

use crate::digest::token;
use crate::voice::Rest;
use std::ops::Range;

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Finish {
    #[default]
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
    /// A piece of the arguments of the call with this number.
    Arguments(usize),
}

/// A tool call: the arguments are pieces of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
}

/// An answer, one piece a token: thoughts, then text, then calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Answer {
    text: String,
    pieces: Vec<(Kind, Range<usize>)>,
    pub(crate) calls: Vec<Call>,
    pub(crate) finish: Finish,
}

impl Answer {
    /// Goes on with what is left of a text. What is left of a token that was begun comes together with the next: the token
    /// has been counted by whoever began it.
    pub(crate) fn say(&mut self, kind: Kind, rest: Rest<'_>) {
        let first = self.pieces.len();
        self.push(kind, rest.text);
        if rest.mid_token && self.pieces.len() > first + 1 {
            let joined = self.pieces.remove(first).1.start;
            self.pieces[first].1.start = joined;
        }
    }

    /// Calls a tool, which ends the answer unless another call follows. The call has no id yet.
    pub(crate) fn call(&mut self, name: &str, arguments: &str) {
        self.push(Kind::Arguments(self.calls.len()), arguments);
        self.calls.push(Call { id: String::new(), name: name.to_owned() });
        self.finish = Finish::ToolCalls;
    }

    /// The same answer cut to `tokens`.
    pub(crate) fn limited(mut self, tokens: usize) -> Self {
        if self.pieces.len() > tokens {
            self.pieces.truncate(tokens);
            self.finish = Finish::Length;
            // A call of which nothing is said has not begun.
            let begun = self.pieces.iter().filter_map(|(kind, _)| match kind {
                Kind::Arguments(call) => Some(call + 1),
                _ => None,
            });
            self.calls.truncate(begun.max().unwrap_or(0));
        }
        self
    }

    /// The same answer ended before the first of `stops` in its text.
    pub(crate) fn stopped_at(mut self, stops: &[String]) -> Self {
        let is_text = |(kind, _): &&(Kind, Range<usize>)| *kind == Kind::Text;
        let Some(from) = self.pieces.iter().find(is_text).map(|(_, range)| range.start) else { return self };
        let to = self.pieces.iter().rfind(is_text).map_or(from, |(_, range)| range.end);
        let text = &self.text[from..to];
        let found = stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(stop.as_str())).min();
        if let Some(end) = found.map(|at| from + at) {
            self.pieces.retain_mut(|(kind, range)| {
                range.end = range.end.min(end);
                *kind == Kind::Thought || range.start < range.end
            });
            self.calls.clear();
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

    /// All tokens in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (Kind, &str)> {
        self.pieces.iter().map(|(kind, range)| (*kind, &self.text[range.clone()]))
    }

    /// All text of one kind.
    pub(crate) fn whole(&self, kind: Kind) -> String {
        self.pieces().filter(|(one, _)| *one == kind).map(|(_, text)| text).collect()
    }

    /// Token ids of the first `count` pieces.
    pub(crate) fn token_ids(&self, count: usize) -> impl Iterator<Item = u32> + '_ {
        self.pieces().take(count).map(|(_, text)| token(text.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Answer {
        let mut answer = Answer::default();
        answer.say(Kind::Text, Rest { text, mid_token: false });
        answer
    }

    #[test]
    fn a_token_is_a_word_with_the_space_before_it() {
        let pieces: Vec<_> = text("one two  three").pieces().map(|(_, text)| text.to_owned()).collect();
        assert_eq!(pieces, ["one", " two", "  three"]);
    }

    #[test]
    fn the_rest_of_a_token_that_was_begun_comes_with_the_next_one() {
        let mut answer = Answer::default();
        answer.say(Kind::Text, Rest { text: "ne two three", mid_token: true });
        assert_eq!((answer.len(), answer.piece(0)), (2, Some((Kind::Text, "ne two"))));
        let mut last = Answer::default();
        last.say(Kind::Text, Rest { text: "ee", mid_token: true });
        assert_eq!(last.len(), 1);
    }

    #[test]
    fn a_limit_cuts_whole_tokens_and_says_so() {
        let answer = text("one two three");
        assert_eq!(answer.clone().limited(3).finish, Finish::Stop);
        let cut = answer.limited(2);
        assert_eq!((cut.whole(Kind::Text).as_str(), cut.finish), ("one two", Finish::Length));
    }

    #[test]
    fn a_limit_leaves_no_call_of_which_nothing_is_said() {
        let mut answer = text("look");
        answer.call("f", "{\"a\": 1}");
        answer.call("g", "{\"b\": 2}");
        assert_eq!((answer.len(), answer.finish), (5, Finish::ToolCalls));
        assert_eq!(answer.clone().limited(3).calls.len(), 1);
        assert_eq!(answer.limited(1).calls.len(), 0);
    }

    #[test]
    fn a_stop_string_ends_the_text_before_itself_even_inside_a_word_or_across_two() {
        let answer = text("one two three four").limited(3);
        let stopped = answer.clone().stopped_at(&["o t".to_owned(), "four".to_owned()]);
        assert_eq!((stopped.whole(Kind::Text).as_str(), stopped.len()), ("one tw", 2));
        assert_eq!(stopped.finish, Finish::Stop);
        assert_eq!(answer.clone().stopped_at(&["five".to_owned()]), answer);
    }

    #[test]
    fn a_stop_string_touches_no_thought_and_leaves_no_call() {
        let mut answer = Answer::default();
        answer.say(Kind::Thought, Rest { text: "b or not", mid_token: false });
        answer.say(Kind::Text, Rest { text: "a b c", mid_token: false });
        answer.call("f", "{}");
        let stopped = answer.stopped_at(&["b".to_owned()]);
        assert_eq!(stopped.whole(Kind::Thought), "b or not");
        assert_eq!((stopped.whole(Kind::Text).as_str(), stopped.calls.len()), ("a ", 0));
    }
}
