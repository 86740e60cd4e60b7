//! The end of an answer, for engines that do not end it where they were told to.
//!
//! Some engines ignore `max_tokens` and `stop`. Their events are counted here, each as one token, and their text is searched.
//! A stop string may come in pieces, so the end of a text that could be the beginning of one waits until that is decided: what
//! a client sees never holds any part of a stop string.

use super::StreamOptions;
use crate::json::{place, push_meaning};

/// What a client asked for that some engines ignore.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    max_tokens: Option<u32>,
    stops: Vec<String>,
}

impl Wanted {
    pub fn new(options: &StreamOptions) -> Self {
        let stops = options.stop.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { max_tokens: options.max_tokens, stops }
    }

    /// One of the texts at which the answer ends.
    pub fn stop(&self, number: usize) -> &str {
        self.stops.get(number).map_or("", String::as_str)
    }

    /// Whether so many tokens are all that may be written.
    pub fn is_full(&self, tokens: u32) -> bool {
        self.max_tokens.is_some_and(|most| tokens >= most)
    }

    /// Whether there is nothing to look after.
    pub fn is_nothing(&self) -> bool {
        self.max_tokens.is_none() && self.stops.is_empty()
    }
}

/// Where one choice is to end.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    stops: Vec<String>,
    /// Events that may still come.
    left: u32,
    /// The end of the text that may be the beginning of a stop string: JSON text.
    held: String,
    /// Scratch: what `held` and a new text mean.
    meant: String,
}

impl Limits {
    /// For a choice of which `written` tokens are there already.
    pub fn new(wanted: &Wanted, written: u32) -> Self {
        // Where no token is wanted, engines that obey write one.
        let left = wanted.max_tokens.map_or(u32::MAX, |most| most.saturating_sub(written).max(1));
        Self { stops: wanted.stops.clone(), left, held: String::new(), meant: String::new() }
    }

    /// An event with content came. Whether it is the last that may.
    pub fn count(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Takes JSON text and appends to `out` what the client may see of it. Which stop string has ended the answer, if one has.
    pub fn pass(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        self.held.push_str(text);
        self.meant.clear();
        push_meaning(&self.held, &mut self.meant);
        let stops = self.stops.iter().enumerate();
        let found = stops.filter_map(|(n, stop)| Some((self.meant.find(stop.as_str())?, n))).min();
        let all = self.meant.len();
        let decided = found.map_or_else(|| all - undecided(&self.meant, &self.stops), |(at, _)| at);
        let decided = place(&self.held, decided);
        out.push_str(&self.held[..decided]);
        if found.is_some() {
            self.held.clear();
        } else {
            self.held.drain(..decided);
        }
        found.map(|(_, stop)| stop)
    }

    /// The text is over: what was held was no stop string.
    pub fn rest(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

/// Length of the longest end of `text` that a stop string begins with.
fn undecided(text: &str, stops: &[String]) -> usize {
    let longest = stops.iter().map(String::len).max().unwrap_or(0).saturating_sub(1).min(text.len());
    let from = text.len() - longest;
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let ends = text[from..].char_indices().map(|(at, _)| &text[from + at..]);
    ends.into_iter().find(|end| stops.iter().any(|stop| stop.starts_with(end))).map_or(0, str::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is seen of a text in pieces, and whether a stop string ended it.
    fn seen(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let options =
            StreamOptions { stop: stops.iter().map(|&stop| stop.into()).collect(), ..StreamOptions::default() };
        let mut limits = Limits::new(&Wanted::new(&options), 0);
        let mut out = String::new();
        for piece in pieces {
            if limits.pass(piece, &mut out).is_some() {
                return (out, true);
            }
        }
        limits.rest(&mut out);
        (out, false)
    }

    #[test]
    fn a_text_ends_before_the_first_stop_string_however_it_comes() {
        let text = r#"one \n two\u00e9\ud83d\ude00 three"#;
        let pieces = ["one", " ", r"\n", " ", "t", "w", "o", r"\u00e9", r"\ud83d\ude00", " ", "thr", "ee"];
        for (stop, left) in [
            ("one", ""),
            (" \n t", "one"),
            ("\u{e9}", r"one \n two"),
            ("\u{e9}\u{1f600} ", r"one \n two"),
            ("\u{1f600} three", r"one \n two\u00e9"),
            ("ee", r"one \n two\u00e9\ud83d\ude00 thr"),
        ] {
            assert_eq!(seen(&[stop, "never"], &[text]), (left.into(), true), "{stop:?}");
            assert_eq!(seen(&["never", stop], &pieces), (left.into(), true), "{stop:?} in pieces");
        }
    }

    #[test]
    fn what_only_looks_like_a_stop_string_is_seen_in_the_end() {
        for pieces in [&["a", "a", "b"][..], &["aab"], &["aa", "b"]] {
            assert_eq!(seen(&["aac", "abb", ""], pieces), ("aab".into(), false));
        }
        let mut limits = Limits::new(&Wanted { max_tokens: None, stops: vec!["aac".into()] }, 0);
        let mut out = String::new();
        assert_eq!(limits.pass("xaaa", &mut out), None);
        assert_eq!(out, "xa", "no more is held than may still become a stop string");
    }

    #[test]
    fn the_last_event_that_may_come_is_told() {
        for (most, written, more) in [(Some(3), 0, 3), (Some(3), 1, 2), (Some(3), 9, 1), (Some(0), 0, 1)] {
            let mut limits = Limits::new(&Wanted { max_tokens: most, stops: Vec::new() }, written);
            assert_eq!((1..10).find(|_| limits.count()), Some(more), "{most:?} after {written}");
        }
    }
}
