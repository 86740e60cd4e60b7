//! The members of a JSON object that is kept while later events change some of them.

use crate::json::{JsonError, Scanner, quote};

/// Most members kept of one object: the Responses API's own has about 40.
const MAX_MEMBERS: usize = 128;

/// Names and values (JSON text), in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    list: Vec<(Box<str>, Box<str>)>,
}

impl Members {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes all members of a sound object over; later ones replace earlier ones of their name.
    pub fn take(&mut self, object: &str) {
        // It was scanned as a part of its event.
        let _sound = each_member(object, |name, value| self.set(name, value));
    }

    /// Sets one member.
    pub fn set(&mut self, name: &str, value: &str) {
        match self.list.iter().position(|(known, _)| **known == *name) {
            Some(at) => self.list[at].1 = value.into(),
            None if self.list.len() < MAX_MEMBERS => self.list.push((name.into(), value.into())),
            None => {}
        }
    }

    /// The value of a member.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.list.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)
    }

    /// Takes a member out.
    pub fn remove(&mut self, name: &str) -> Option<Box<str>> {
        let at = self.list.iter().position(|(known, _)| **known == *name)?;
        Some(self.list.remove(at).1)
    }

    /// Appends all members, with a comma before the first if something stands there.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.list.iter().for_each(|(name, value)| member(name, value.as_bytes(), out));
    }
}

/// Appends a member, with a comma if it is not the first.
pub(super) fn member(name: &str, value: &[u8], out: &mut Vec<u8>) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    quote(name, out);
    out.push(b':');
    out.extend_from_slice(value);
}

/// Appends a member that is a string; `raw` is JSON text.
pub(super) fn text_member(name: &str, raw: &str, out: &mut Vec<u8>) {
    member(name, b"\"", out);
    out.extend_from_slice(raw.as_bytes());
    out.push(b'"');
}

/// Shows the names and values of an object's members.
pub(super) fn each_member(object: &str, mut visit: impl FnMut(&str, &str)) -> Result<(), JsonError> {
    if object.is_empty() {
        return Ok(());
    }
    let mut scanner = Scanner::new(object);
    let mut open = scanner.object()?;
    while let Some(key) = scanner.member(&mut open)? {
        let value = scanner.skip()?;
        visit(&key.name, scanner.slice(value));
    }
    Ok(())
}
