//! The partial text that some engines repeat before they write on.
//!
//! Asked to go on with a last message, older builds of llama-server send that message again, in one piece, and then the new
//! text. Newer ones do not. The answer itself does not say which it is, so the beginning is held against the text that the
//! client has.
//!
//! A model may also write the same words again by itself: "1" and then "1". What looks like an echo is therefore taken for one
//! only where a model could not have written it: in one event more than one event's text, or word for word so much that
//! no answer begins by chance with it twice.

use crate::json::first;

/// From this length on, in bytes, a text that comes again over several events is an echo. The first sentence of an answer;
/// models that are stuck repeat a word or two, not that much from the very beginning.
const LONG: usize = 128;

/// What the beginning of a continuation was found to be so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Echo {
    /// Nothing is expected any more.
    #[default]
    Over,
    /// All that came was the beginning of the known text, so many bytes. It was not sent.
    Matched(usize),
}

/// What is to be done with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard<'a> {
    /// It may be an echo: nothing yet.
    Wait,
    /// So many bytes of the known text were no echo after all, and this follows them.
    New(usize, &'a str),
}

impl Echo {
    /// A continuation begins.
    pub fn expect() -> Self {
        Self::Matched(0)
    }

    /// Hears a text of a continuation of `known`, which came in `events` events. Both are JSON text.
    pub fn hear<'a>(&mut self, known: &str, events: u32, text: &'a str) -> Heard<'a> {
        let Self::Matched(matched) = *self else { return Heard::New(0, text) };
        let rest = known.get(matched..).unwrap_or_default();
        if text.is_empty() {
            return Heard::New(0, text);
        }
        match compare(rest, text) {
            Same::Whole(more) if known.len() >= LONG || (matched == 0 && events > 1) => {
                *self = Self::Over;
                Heard::New(0, more)
            }
            Same::Part(length) if known.len() >= LONG => {
                *self = Self::Matched(matched + length);
                Heard::Wait
            }
            _ => {
                *self = Self::Over;
                Heard::New(matched, text)
            }
        }
    }

    /// The continuation is over. So many bytes of the known text were held, and were no echo.
    pub fn end(&mut self) -> usize {
        match std::mem::take(self) {
            Self::Matched(matched) => matched,
            Self::Over => 0,
        }
    }
}

/// What a text has in common with the known one, by what they mean: engines write their escapes differently.
enum Same<'a> {
    /// It begins with all of it. This follows.
    Whole(&'a str),
    /// It is the beginning of it, of so many bytes there.
    Part(usize),
    Nothing,
}

fn compare<'a>(known: &str, text: &'a str) -> Same<'a> {
    if let Some(more) = text.strip_prefix(known) {
        return Same::Whole(more);
    }
    let (mut at, mut rest) = (0, text);
    loop {
        match (first(&known[at..]), first(rest)) {
            (None, _) => return Same::Whole(rest),
            (Some(_), None) => return Same::Part(at),
            (Some((due, length)), Some((there, taken))) if due == there => {
                at += length;
                rest = &rest[taken..];
            }
            _ => return Same::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(known: &str, events: u32, texts: &[&str]) -> String {
        let mut echo = Echo::expect();
        let mut new = String::new();
        for text in texts {
            if let Heard::New(released, text) = echo.hear(known, events, text) {
                new.push_str(&known[..released]);
                new.push_str(text);
            }
        }
        new.push_str(&known[..echo.end()]);
        new
    }

    #[test]
    fn the_whole_text_in_one_event_is_an_echo() {
        assert_eq!(heard("one two", 2, &["one two", " three"]), " three");
        assert_eq!(heard("one two", 2, &["one two three", " four"]), " three four");
    }

    #[test]
    fn an_echo_may_be_escaped_in_another_way() {
        assert_eq!(heard(r"caf\u00e9 \ud83d\ude00/", 3, &[r"café 😀\/\u0041b"]), r"\u0041b");
        let known = "é ".repeat(80);
        let escaped = r"\u00e9 ".repeat(40);
        assert_eq!(heard(&known, 80, &[&escaped, &escaped, "new"]), "new");
        assert_eq!(heard(&known, 80, &[&escaped, r"\u00e8"]), "é ".repeat(40) + r"\u00e8");
    }

    #[test]
    fn a_word_that_is_written_again_is_none() {
        assert_eq!(heard("1", 1, &["1", "2"]), "12");
        assert_eq!(heard(" only only", 2, &[" only", " only", "."]), " only only.");
        assert_eq!(heard("one two", 2, &["one", " day"]), "one day");
    }

    #[test]
    fn a_long_text_is_known_again_over_several_events_and_only_whole() {
        let known = "word ".repeat(40);
        let pieces: Vec<&str> = known.split_inclusive(' ').collect();
        assert_eq!(heard(&known, 40, &pieces), "");
        assert_eq!(heard(&known, 40, &[&pieces[..39], &["word new"]].concat()), "new");
        let parted = [&pieces[..20], &["other"]].concat();
        assert_eq!(heard(&known, 40, &parted), "word ".repeat(20) + "other");
        assert_eq!(heard(&known, 40, &pieces[..39]), "word ".repeat(39), "it ended before it was whole");
    }
}
