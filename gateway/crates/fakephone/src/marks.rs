//! What a message itself asks of a fake phone: `[fake think=6 tokens=20 calls=2]`.
//!
//! A test that wants a certain kind of answer says so where it travels with the request, through a gateway too, and where
//! every phone reads the same. Whatever is not said is as the phone is configured.

/// The kind of answer that a message asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Marks {
    /// Tokens of thinking before the answer.
    pub(crate) think: Option<u32>,
    /// Tokens of an answer that ends by itself; with `calls`, of the text before the first.
    pub(crate) tokens: Option<u32>,
    /// Tool calls, dealt out over the request's tools.
    pub(crate) calls: Option<u32>,
}

/// More calls than any model makes at once.
const MOST_CALLS: u32 = 16;

impl Marks {
    /// Reads the first mark in a message; a word in it that is unknown is returned.
    pub(crate) fn read(message: &str) -> Result<Self, String> {
        let mut marks = Self::default();
        let inside = message.split_once("[fake ").and_then(|(_, after)| after.split_once(']'));
        for word in inside.map_or("", |(inside, _)| inside).split_whitespace() {
            let (name, number) = word.split_once('=').unwrap_or((word, ""));
            let place = match name {
                "think" => &mut marks.think,
                "tokens" => &mut marks.tokens,
                "calls" => &mut marks.calls,
                _ => return Err(word.to_owned()),
            };
            *place = Some(number.parse().map_err(|_| word.to_owned())?);
        }
        marks.calls = marks.calls.map(|calls| calls.min(MOST_CALLS));
        Ok(marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_kind_of_answer_it_wants_and_mistakes_are_told() {
        let marks = Marks::read("please [fake think=6 calls=2] now").expect("a good mark");
        assert_eq!(marks, Marks { think: Some(6), tokens: None, calls: Some(2) });
        assert_eq!(Marks::read("no [mark] here"), Ok(Marks::default()));
        assert_eq!(Marks::read("[fake thing=1]"), Err("thing=1".to_owned()));
        assert_eq!(Marks::read("[fake calls=many]"), Err("calls=many".to_owned()));
    }
}
