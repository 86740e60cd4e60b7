//! Values of a text that was scanned before, as they stand in it. A value that is not what is looked for has no parts.

use crate::json::{Kind, Scanner};
use std::borrow::Cow;

/// The members of an object, in their order.
pub(super) struct Object<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'a> Object<'a> {
    pub fn of(value: &'a str) -> Self {
        let mut found = Vec::new();
        let mut scanner = Scanner::new(value);
        if let Ok(mut open) = scanner.object() {
            while let Ok(Some(key)) = scanner.member(&mut open) {
                let Ok(range) = scanner.skip() else { break };
                found.push((key.name, scanner.slice(range)));
            }
        }
        Self(found)
    }

    /// The member of that name, unless it is null; the last one, if there are more, as engines read it.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter().rfind(|(found, _)| *found == name).map(|(_, value)| value).filter(|value| *value != "null")
    }

    /// The member of that name, if it is a string; with its quotes.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name).filter(|value| is_text(value))
    }

    /// Whether the member of that name is a string that means `word`.
    pub fn says(&self, name: &str, word: &str) -> bool {
        self.get(name).is_some_and(|value| Scanner::new(value).text().is_ok_and(|text| text.decode() == word))
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &'a str)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), *value))
    }
}

/// The elements of an array, in their order.
pub(super) fn elements(array: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut scanner = Scanner::new(array);
    if let Ok(mut open) = scanner.array() {
        while let Ok(true) = scanner.element(&mut open) {
            let Ok(range) = scanner.skip() else { break };
            found.push(scanner.slice(range));
        }
    }
    found
}

pub(super) fn is_text(value: &str) -> bool {
    Scanner::new(value).kind() == Ok(Kind::Text)
}

pub(super) fn is_array(value: &str) -> bool {
    Scanner::new(value).kind() == Ok(Kind::Array)
}
