//! Where an answer breaks off, and what that looks like from outside.

use crate::answer::{Answer, Kind};
use serde::{Deserialize, Serialize};

/// A moment in the life of an answer. One that an answer never comes to breaks nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// After so many batches of the prompt have been read, and reported if that was asked for.
    Batches(u32),
    /// After so many tokens of whatever kind, or at the end of a shorter answer.
    Tokens(u32),
    /// After so many tokens of the thoughts.
    Thoughts(u32),
    /// After so many tokens of the text.
    Text(u32),
    /// After so many tokens of the arguments of tool calls.
    Arguments(u32),
    /// After the finish reason, before an event with the usage and before `[DONE]`.
    Finish,
    /// After all but `[DONE]`.
    Done,
}

/// What an answer breaks off in the middle of, where it has to be more exact than between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inside {
    /// Half of the next word comes in an event of its own.
    Word,
    /// Half of the bytes of the next event come.
    Event,
    /// The next event with a character of several bytes comes up to the first byte of that.
    Character,
}

/// How an answer breaks off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// An end of file.
    Cut,
    /// A reset.
    Reset,
    /// Silence with the socket open.
    Hang,
    /// An error event with this code, then the end.
    Error(u16),
    /// `[DONE]`.
    EarlyDone,
    /// The whole phone dies, with all its connections.
    Die {
        /// Seconds after which it is back under the same address, with empty caches; for good when absent.
        #[serde(default)]
        down_s: Option<f64>,
    },
    /// The tunnel loses this connection while the phone lives and notices a client that left.
    Tunnel,
}

/// An answer that breaks off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Breach {
    pub(crate) at: Moment,
    pub(crate) inside: Option<Inside>,
    pub(crate) how: Way,
}

impl Breach {
    /// Before which of the answer's tokens it breaks off, if at one.
    pub(crate) fn token_of(&self, answer: &Answer) -> Option<usize> {
        let place = |wanted: fn(Kind) -> bool, count: u32| {
            let mut places = answer.pieces().enumerate().filter(|(_, (kind, _))| wanted(*kind)).map(|(at, _)| at);
            match count {
                0 => places.next(),
                count => places.nth(count as usize - 1).map(|last| last + 1),
            }
        };
        let at = match self.at {
            Moment::Tokens(count) => Some((count as usize).min(answer.len())),
            Moment::Thoughts(count) => place(|kind| kind == Kind::Thought, count),
            Moment::Text(count) => place(|kind| kind == Kind::Text, count),
            Moment::Arguments(count) => place(|kind| matches!(kind, Kind::Arguments(_)), count),
            Moment::Batches(_) | Moment::Finish | Moment::Done => None,
        }?;
        if self.inside != Some(Inside::Character) {
            return Some(at);
        }
        (at..answer.len()).find(|index| answer.piece(*index).is_some_and(|(_, text)| !text.is_ascii()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::voice::Rest;

    fn token_of(at: Moment, inside: Option<Inside>) -> Option<usize> {
        let mut answer = Answer::default();
        answer.say(Kind::Thought, Rest { text: "so it is", mid_token: false });
        answer.say(Kind::Text, Rest { text: "a b c\u{fc} d", mid_token: false });
        answer.call("f", "{\"a\": 1}");
        Breach { at, inside, how: Way::Cut }.token_of(&answer)
    }

    #[test]
    fn a_moment_is_a_place_among_the_tokens_or_none() {
        for (at, place) in [
            (Moment::Tokens(2), Some(2)),
            (Moment::Tokens(99), Some(9)),
            (Moment::Thoughts(1), Some(1)),
            (Moment::Thoughts(3), Some(3)),
            (Moment::Thoughts(4), None),
            (Moment::Text(0), Some(3)),
            (Moment::Text(2), Some(5)),
            (Moment::Arguments(1), Some(8)),
            (Moment::Finish, None),
        ] {
            assert_eq!(token_of(at, None), place, "{at:?}");
        }
    }

    #[test]
    fn a_break_inside_a_character_waits_for_one() {
        assert_eq!(token_of(Moment::Tokens(1), Some(Inside::Character)), Some(5));
        assert_eq!(token_of(Moment::Text(4), Some(Inside::Character)), None);
    }
}
