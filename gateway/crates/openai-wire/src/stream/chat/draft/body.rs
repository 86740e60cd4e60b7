//! A plain answer as it is written: what is long is handed on, not copied.

use super::super::heads::{Head, Heads};
use crate::segments::Segments;
use bytes::{BufMut, Bytes, BytesMut};

/// Texts from this length on, in bytes, are a segment of their own: below it a copy costs less than one more piece to send.
const OWN_SEGMENT: usize = 1024;

/// The answer so far.
#[derive(Debug, Default)]
pub(super) struct Body {
    segments: Segments,
    /// What comes behind them.
    pub pending: BytesMut,
}

impl Body {
    /// Appends it as it is.
    pub fn put(&mut self, text: &str) {
        self.pending.put_slice(text.as_bytes());
    }

    /// JSON text, with its quotes.
    pub fn text(&mut self, text: String) {
        self.put("\"");
        if text.len() < OWN_SEGMENT {
            self.put(&text);
        } else {
            self.segments.push(self.pending.split().freeze());
            self.segments.push(Bytes::from(text));
        }
        self.put("\"");
    }

    /// A member that is left out if its text is empty: `member` is what stands before the text.
    pub fn text_if_any(&mut self, member: &str, text: String) {
        if !text.is_empty() {
            self.put(member);
            self.text(text);
        }
    }

    /// A member that all chunks have, if any of them had.
    pub fn head(&mut self, heads: &Heads, head: Head) {
        if !heads.get(head).is_empty() {
            self.put(",");
            heads.put(&mut self.pending, head);
        }
    }

    /// The whole of it.
    pub fn into_segments(mut self) -> Segments {
        self.segments.push(self.pending.freeze());
        self.segments
    }
}
