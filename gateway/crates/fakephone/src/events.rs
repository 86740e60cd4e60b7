//! Writing server-sent events into a buffer.

use crate::fault::LineEnding;

/// How events are spelled; [`Default`] is as llama-server spells them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spelling {
    pub(crate) line_ending: LineEnding,
    /// Puts comments and blank events between events, and leaves out every second space after `data:`.
    pub(crate) varied: bool,
}

impl Default for Spelling {
    fn default() -> Self {
        Self { line_ending: LineEnding::Lf, varied: false }
    }
}

/// Events waiting to be sent.
#[derive(Debug, Default)]
pub(crate) struct Events {
    bytes: Vec<u8>,
    spelling: Spelling,
    count: u64,
}

impl Events {
    pub(crate) fn new(spelling: Spelling) -> Self {
        Self { bytes: Vec::with_capacity(4096), spelling, count: 0 }
    }

    /// One event whose data, one line, is written by `data`.
    pub(crate) fn data(&mut self, data: impl FnOnce(&mut Vec<u8>)) {
        self.vary();
        self.data_line(data);
    }

    fn data_line(&mut self, data: impl FnOnce(&mut Vec<u8>)) {
        let field: &[u8] = if self.spelling.varied && self.count.is_multiple_of(2) { b"data:" } else { b"data: " };
        self.bytes.extend_from_slice(field);
        data(&mut self.bytes);
        self.end_line();
        self.end_line();
    }

    /// One event with a name and JSON data.
    pub(crate) fn named(&mut self, name: &str, value: &serde_json::Value) {
        self.vary();
        self.bytes.extend_from_slice(b"event: ");
        self.bytes.extend_from_slice(name.as_bytes());
        self.end_line();
        self.data_line(|out| write_json(out, value));
    }

    /// One event with JSON data.
    pub(crate) fn json(&mut self, value: &serde_json::Value) {
        self.data(|out| write_json(out, value));
    }

    /// The event that ends OpenAI's streams.
    pub(crate) fn done(&mut self) {
        self.data(|out| out.extend_from_slice(b"[DONE]"));
    }

    /// A comment.
    pub(crate) fn comment(&mut self, text: &str) {
        self.bytes.push(b':');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end_line();
        self.end_line();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets all but the first bytes.
    pub(crate) fn truncate(&mut self, bytes: usize) {
        self.bytes.truncate(bytes);
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    fn end_line(&mut self) {
        self.bytes.extend_from_slice(self.spelling.line_ending.text().as_bytes());
    }

    /// Between two events of a varied stream: a comment, a blank event, an unknown field, or nothing.
    fn vary(&mut self) {
        self.count += 1;
        if !self.spelling.varied {
            return;
        }
        match self.count % 4 {
            1 => self.comment(" still here"),
            2 => self.end_line(),
            3 => {
                self.bytes.extend_from_slice(b"retry: 3000");
                self.end_line();
            }
            _ => {}
        }
    }
}

/// Writes a JSON value.
pub(crate) fn write_json(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    // Writing to memory cannot fail, and neither strings nor `Value`s can refuse to be serialized.
    serde_json::to_writer(out, value).ok();
}
