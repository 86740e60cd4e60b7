//! A body as pieces: slices of the original and the few new bytes between them.
//!
//! A vectored write sends them without ever joining them, and a replay on another replica shares the same original.

use bytes::{Bytes, BytesMut};

/// A body in order, without gaps.
#[derive(Clone, Debug, Default)]
pub struct Segments {
    parts: Vec<Bytes>,
    len: usize,
}

impl Segments {
    /// No bytes yet, room for `parts` pieces.
    pub(crate) fn with_capacity(parts: usize) -> Self {
        Self { parts: Vec::with_capacity(parts), len: 0 }
    }

    /// Adds a piece at the end; empty ones are not kept.
    pub(crate) fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }

    /// Total length in bytes: what `Content-Length` must say.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Bytes> {
        self.parts.iter()
    }

    /// Everything in one piece. Copies unless there is only one; meant for small bodies and for tests.
    pub fn to_bytes(&self) -> Bytes {
        if let [only] = self.parts.as_slice() {
            return only.clone();
        }
        let mut whole = BytesMut::with_capacity(self.len);
        for part in &self.parts {
            whole.extend_from_slice(part);
        }
        whole.freeze()
    }
}

impl From<Bytes> for Segments {
    fn from(body: Bytes) -> Self {
        let mut segments = Self::with_capacity(1);
        segments.push(body);
        segments
    }
}

impl IntoIterator for Segments {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.parts.into_iter()
    }
}

impl<'a> IntoIterator for &'a Segments {
    type Item = &'a Bytes;
    type IntoIter = std::slice::Iter<'a, Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.parts.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_that_of_all_pieces_and_empty_pieces_vanish() {
        let mut segments = Segments::default();
        for part in ["ab", "", "cde"] {
            segments.push(Bytes::from_static(part.as_bytes()));
        }
        assert_eq!((segments.len(), segments.iter().len()), (5, 2));
        assert_eq!(segments.to_bytes(), "abcde");
    }
}
