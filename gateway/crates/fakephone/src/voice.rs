//! What a fake phone says: a function of model, prompt and engine build alone.
//!
//! Two phones of one build agree word for word, and every answer carries a digest of the message it answers, so that a
//! test can tell at once that an answer belongs to its request and is whole. Phones of another build begin alike and part
//! ways some words later, as two builds of a real engine do at temperature 0. Whoever is given the beginning of an answer
//! goes on with it: with the very rest if it is what this phone would have said, else with what it would have said from
//! there on.

use crate::digest::{fnv, message_digest};
use std::borrow::Cow;

/// The build that a phone runs unless told otherwise; its phones say [`answer_text`].
pub(crate) const USUAL_BUILD: &str = "b8468-3306dbaef";

/// Words of the message that an answer repeats, and bytes of each: an answer must not grow with its prompt.
const ECHOED_WORDS: usize = 256;
const ECHOED_BYTES: usize = 64;
/// Where voices part ways: of the words that repeat the message, counted from 0, each third from the fourth on differs.
const ALIKE: usize = 3;
const EVERY: usize = 3;

/// The answer of `tokens` words that a fake phone serving `model`, of the build that phones have unless told otherwise,
/// gives to `message`.
///
/// The first word is `#` and [`message_digest`]`(message)`, the second is the model's name without folders and
/// extension, and then the message's own words follow, over and over.
pub fn answer_text(model: &str, message: &str, tokens: usize) -> String {
    Voice::default().text(model, message, tokens)
}

/// The same of a phone of another build: alike at first, and from the sixth word on different every now and then.
pub fn answer_text_by(build: &str, model: &str, message: &str, tokens: usize) -> String {
    Voice::of(build).text(model, message, tokens)
}

/// Who speaks: a build of the engine, one of several choices, or a model that was given another context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Voice(u64);

impl Voice {
    pub(crate) fn of(build: &str) -> Self {
        Self(if build == USUAL_BUILD { 0 } else { fnv(build.as_bytes()) })
    }

    /// The same phone's further choices, each another; choice 0 is the phone's own voice.
    pub(crate) fn choice(self, index: u32) -> Self {
        if index == 0 { self } else { Self(fnv(format!("{}:{index}", self.0).as_bytes())) }
    }

    /// The same phone with something missing from its context.
    pub(crate) fn without_thoughts(self) -> Self {
        self.choice(u32::MAX)
    }

    /// So many words about `message`.
    pub(crate) fn text(self, model: &str, message: &str, tokens: usize) -> String {
        let mut text = String::new();
        for (index, word) in self.words(model, message).take(tokens).enumerate() {
            if index > 0 {
                text.push(' ');
            }
            text.push_str(&word);
        }
        text
    }

    fn words<'a>(self, model: &'a str, message: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
        let stem = model.rsplit(['/', '\\']).next().unwrap_or(model);
        let stem = stem.strip_suffix(".gguf").unwrap_or(stem);
        let mut echo: Vec<&str> = message.split_whitespace().take(ECHOED_WORDS).map(shorten).collect();
        if echo.is_empty() {
            echo.push("silence");
        }
        let accent = format!("~{:04x}", self.0 & 0xffff);
        let start =
            [format!("#{}", message_digest(message)).into(), stem.split_whitespace().collect::<String>().into()];
        start.into_iter().chain((0..).map(move |index: usize| {
            let word = echo[index % echo.len()];
            let own = self.0 != 0 && index >= ALIKE && index.is_multiple_of(EVERY);
            if own { format!("{word}{accent}").into() } else { word.into() }
        }))
    }
}

fn shorten(word: &str) -> &str {
    let mut end = word.len().min(ECHOED_BYTES);
    while !word.is_char_boundary(end) {
        end -= 1;
    }
    &word[..end]
}

/// What is left to say of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rest<'a> {
    pub(crate) text: &'a str,
    /// It begins in the middle of a token, of which a part has been said.
    pub(crate) mid_token: bool,
}

/// The rest of `whole` after `said`, which another phone may have said: then it goes on at the same word.
pub(crate) fn rest<'a>(whole: &'a str, said: &str) -> Rest<'a> {
    if let Some(text) = whole.strip_prefix(said) {
        let mid_token = !said.is_empty() && !text.is_empty() && !text.starts_with(char::is_whitespace);
        return Rest { text, mid_token };
    }
    let spoken = said.split_whitespace().count();
    let (word, after) = nth_word(whole, spoken);
    let last = said.split_whitespace().next_back().unwrap_or_default();
    if said.ends_with(char::is_whitespace) {
        Rest { text: after.trim_start(), mid_token: false }
    } else if word.len() > last.len() && word.starts_with(last) {
        Rest { text: &whole[whole.len() - after.len() - (word.len() - last.len())..], mid_token: true }
    } else {
        Rest { text: after, mid_token: false }
    }
}

/// The word with this number, from 1, and what follows it.
fn nth_word(text: &str, number: usize) -> (&str, &str) {
    let mut after = text;
    let mut word = "";
    for _ in 0..number {
        let from = after.trim_start();
        (word, after) = from.split_at(from.find(char::is_whitespace).unwrap_or(from.len()));
    }
    (word, after)
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
    fn long_words_are_shortened_at_a_character() {
        let text = answer_text("m", &"ä".repeat(1000), 3);
        assert_eq!(text.split(' ').next_back(), Some("ä".repeat(32).as_str()));
    }

    #[test]
    fn another_build_begins_alike_and_parts_ways_even_about_a_single_word() {
        for message in ["a b c d", "a", ""] {
            let (usual, other) = (answer_text("m", message, 12), answer_text_by("b1", "m", message, 12));
            assert_eq!(answer_text_by(USUAL_BUILD, "m", message, 12), usual);
            assert_eq!(answer_text("m", message, 5), answer_text_by("b1", "m", message, 5));
            assert_ne!(usual, other);
            assert_ne!(other, answer_text_by("b2", "m", message, 12));
        }
    }

    #[test]
    fn what_is_left_begins_where_the_said_ends_and_knows_whether_that_is_inside_a_token() {
        let rest_of = |said: &str| {
            let Rest { text, mid_token } = rest("one two three", said);
            (text, mid_token)
        };
        assert_eq!(rest_of(""), ("one two three", false));
        assert_eq!(rest_of("one tw"), ("o three", true));
        assert_eq!(rest_of("one two"), (" three", false));
        assert_eq!(rest_of("one two "), ("three", true));
        assert_eq!(rest_of("one two three"), ("", false));
    }

    #[test]
    fn what_somebody_else_said_is_gone_on_with_at_the_same_word() {
        let text_after = |said: &str| rest("one two three four", said).text;
        assert_eq!(text_after("eins zwei"), " three four");
        assert_eq!(text_after("eins zwei "), "three four");
        assert_eq!(text_after("eins t"), "wo three four");
        assert_eq!(text_after("a b c d e f"), "");
    }
}
