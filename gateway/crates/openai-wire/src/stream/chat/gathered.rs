//! Members of objects that come in pieces, one piece an event, put together again.
//!
//! A stream says some things bit by bit (texts, lists of log probabilities) and others again and again. What is known by name
//! has a place of its own; this is for the rest, so that a plain answer has what the engine adds to its events.

use crate::json::Scanner;
use bytes::{BufMut, BytesMut};

/// Most members kept of one object; engines add a handful. Further ones are left out.
const MAX_MEMBERS: usize = 64;

/// What several events said of one object: keys and values as JSON text, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct Gathered(Vec<(String, String)>);

impl Gathered {
    /// The latest value counts. By how many bytes this grew.
    pub fn set(&mut self, key: &str, value: &str) -> usize {
        self.change(key, |known| {
            known.clear();
            known.push_str(value);
        })
    }

    /// Texts and lists grow, `null` adds nothing, and of anything else the latest counts. By how many bytes this grew.
    pub fn add(&mut self, key: &str, value: &str) -> usize {
        let inside = |text: &str| text.len() - 2;
        self.change(key, |known| match (known.as_bytes(), value.as_bytes()) {
            ([_, ..], [b'n', ..]) => {}
            ([b'"', ..], [b'"', ..]) => {
                known.pop();
                known.push_str(&value[1..]);
            }
            ([b'[', ..], [b'[', ..]) if value[1..=inside(value)].trim_ascii().is_empty() => {}
            ([b'[', ..], [b'[', ..]) if !known[1..=inside(known)].trim_ascii().is_empty() => {
                known.pop();
                known.push(',');
                known.push_str(&value[1..]);
            }
            _ => {
                known.clear();
                known.push_str(value);
            }
        })
    }

    /// Adds all members of an object that was scanned; anything else has none. By how many bytes this grew.
    pub fn add_all(&mut self, object: &str) -> usize {
        let mut grown = 0;
        let mut scanner = Scanner::new(object);
        let Ok(mut open) = scanner.object() else { return grown };
        while let Ok(Some(key)) = scanner.member(&mut open) {
            let key = key.start..scanner.at();
            let Ok(value) = scanner.skip() else { return grown };
            grown += self.add(name(&object[key]), &object[value]);
        }
        grown
    }

    /// Appends an object.
    pub fn write_object(&self, out: &mut BytesMut) {
        let start = out.len();
        self.write(out);
        match out.get_mut(start) {
            Some(comma) => *comma = b'{',
            None => out.put_u8(b'{'),
        }
        out.put_u8(b'}');
    }

    /// Appends the members, each with a comma before it.
    pub fn write(&self, out: &mut BytesMut) {
        for (key, value) in &self.0 {
            out.put_u8(b',');
            out.put_slice(key.as_bytes());
            out.put_u8(b':');
            out.put_slice(value.as_bytes());
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Changes the value of a key, which is empty at first. By how many bytes this grew: what is kept once stays taken.
    fn change(&mut self, key: &str, change: impl FnOnce(&mut String)) -> usize {
        let (at, new) = match self.0.iter().position(|(known, _)| known == key) {
            Some(at) => (at, 0),
            None if self.0.len() < MAX_MEMBERS => {
                self.0.push((key.to_owned(), String::new()));
                (self.0.len() - 1, key.len())
            }
            None => return 0,
        };
        let value = &mut self.0[at].1;
        let before = value.capacity();
        change(value);
        new + value.capacity() - before
    }
}

/// The key that begins a member, quotes included, of all that stands before its value.
pub(super) fn name(before: &str) -> &str {
    before.trim_ascii_end().trim_end_matches(':').trim_ascii_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(values: &[&str]) -> String {
        let mut gathered = Gathered::default();
        for value in values {
            gathered.add_all(&format!("{{ \"k\" : {value} }}"));
        }
        let mut out = BytesMut::new();
        gathered.write_object(&mut out);
        String::from_utf8(out.to_vec()).expect("utf-8")
    }

    #[test]
    fn texts_and_lists_grow_and_the_rest_is_replaced() {
        for (values, whole) in [
            (&[r#""a\"""#, r#""""#, r#""b""#][..], r#"{"k":"a\"b"}"#),
            (&["[1]", "[ ]", "[{\"x\":[2]}, 3]"], r#"{"k":[1,{"x":[2]}, 3]}"#),
            (&["[]", "[1]"], r#"{"k":[1]}"#),
            (&["[]", "[]"], r#"{"k":[]}"#),
            (&["null", "[1]", "null"], r#"{"k":[1]}"#),
            (&["null"], r#"{"k":null}"#),
            (&["1", "2"], r#"{"k":2}"#),
            (&["{\"a\":1}", "\"x\"", "[1]"], r#"{"k":[1]}"#),
            (&[], "{}"),
        ] {
            assert_eq!(added(values), whole);
        }
    }

    #[test]
    fn no_more_members_are_kept_than_any_engine_adds() {
        let mut gathered = Gathered::default();
        for key in 0..1000 {
            gathered.set(&format!("\"{key}\""), "1");
            gathered.set("\"0\"", "2");
        }
        assert_eq!(gathered.set("\"0\"", "3"), 0, "what is replaced takes no more room");
        assert_eq!(gathered.0.len(), MAX_MEMBERS);
        assert_eq!(gathered.0[0].1, "3");
    }
}
