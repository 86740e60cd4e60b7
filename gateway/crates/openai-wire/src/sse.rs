//! The one codec for server-sent events: incremental, split anywhere, bounded.
//!
//! Problem: an event may arrive in any number of pieces, with LF, CRLF or CR line ends (mixed, and a CRLF cut in two),
//! with comments, blank events, `data:` with or without a space, data over several lines, and without end.
//!
//! Choice: one growing buffer that holds the unfinished event only, each byte searched once, events lent out as slices of
//! it. A CR ends its line at once and an LF right after it is swallowed when it comes, so no event waits for the byte
//! after it. Rejected: one string per line or event (the cost of the relay is then allocation).

use bytes::{BufMut, BytesMut};
use std::ops::Range;

/// Longest event accepted by default, in bytes. A streamed event is a token or a tool call; images come as plain bodies.
pub const DEFAULT_EVENT_LIMIT: usize = 1024 * 1024;

/// Memory kept between events. A connection's reads are at most this large.
const KEPT_CAPACITY: usize = 16 * 1024;

/// An event, lent from the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// The `event:` field, if there was one.
    pub name: Option<&'a [u8]>,
    /// The `data:` lines, joined by LF.
    pub data: &'a [u8],
}

/// Why a stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An event without end.
    #[error("an event is longer than {limit} bytes")]
    TooLong {
        /// The bound it passed.
        limit: usize,
    },
}

#[derive(Clone, Debug, Default)]
enum Data {
    #[default]
    None,
    /// One line: where its value stands in the buffer.
    Line(Range<usize>),
    /// Several lines: in `joined`.
    Joined,
}

/// Finds the events in a stream of bytes.
///
/// Push bytes, then take events until there are none; all of this can be done per read.
#[derive(Clone, Debug)]
pub struct SseDecoder {
    buffer: Vec<u8>,
    limit: usize,
    /// Where the unfinished event begins.
    event: usize,
    /// Where the unfinished line begins.
    line: usize,
    /// Up to here there is no line end.
    searched: usize,
    /// The last line ended in CR: an LF that follows belongs to it.
    after_cr: bool,
    /// No line has been read yet: a byte order mark may come.
    first_line: bool,
    data: Data,
    joined: Vec<u8>,
    name: Option<Range<usize>>,
    /// The event in `data` was given out.
    given: bool,
    failed: bool,
}

impl Default for SseDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl SseDecoder {
    /// With [`DEFAULT_EVENT_LIMIT`].
    pub fn new() -> Self {
        Self::with_limit(DEFAULT_EVENT_LIMIT)
    }

    /// With a bound of `limit` bytes per event, line ends and comments inside it included.
    pub fn with_limit(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            limit,
            event: 0,
            line: 0,
            searched: 0,
            after_cr: false,
            first_line: true,
            data: Data::None,
            joined: Vec::new(),
            name: None,
            given: false,
            failed: false,
        }
    }

    /// Forgets everything read: a new stream begins. The memory stays.
    pub fn reset(&mut self) {
        let (mut buffer, mut joined) = (std::mem::take(&mut self.buffer), std::mem::take(&mut self.joined));
        buffer.clear();
        joined.clear();
        *self = Self { buffer, joined, ..Self::with_limit(self.limit) };
    }

    /// Takes bytes in. After an error they are dropped.
    pub fn push(&mut self, chunk: &[u8]) {
        if self.failed {
            return;
        }
        self.forget_given();
        self.compact();
        self.buffer.extend_from_slice(chunk);
    }

    /// The next whole event, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`SseError::TooLong`] once; afterwards there are no more events.
    pub fn next_event(&mut self) -> Option<Result<SseEvent<'_>, SseError>> {
        if self.failed {
            return None;
        }
        self.forget_given();
        match self.advance() {
            Ok(true) => Some(Ok(self.lend())),
            Ok(false) => None,
            Err(error) => {
                self.failed = true;
                self.buffer = Vec::new();
                Some(Err(error))
            }
        }
    }

    /// The event that the end of the stream left without its blank line, if any. Some servers end that way.
    pub fn finish(&mut self) -> Option<SseEvent<'_>> {
        if self.failed {
            return None;
        }
        self.forget_given();
        if self.line < self.buffer.len() && !(self.after_cr && self.buffer[self.line..] == *b"\n") {
            self.field(self.line..self.buffer.len());
        }
        self.line = self.buffer.len();
        self.searched = self.line;
        if matches!(self.data, Data::None) {
            return None;
        }
        Some(self.lend())
    }

    fn lend(&mut self) -> SseEvent<'_> {
        self.given = true;
        let data = match &self.data {
            Data::Line(range) => &self.buffer[range.clone()],
            Data::Joined => self.joined.as_slice(),
            Data::None => &[],
        };
        SseEvent { name: self.name.clone().map(|range| &self.buffer[range]), data }
    }

    fn forget_given(&mut self) {
        if self.given {
            self.given = false;
            self.clear_fields();
            self.event = self.line;
        }
    }

    fn clear_fields(&mut self) {
        self.data = Data::None;
        self.joined.clear();
        self.name = None;
    }

    /// Drops bytes before the unfinished event.
    fn compact(&mut self) {
        let gone = self.event;
        if gone == 0 {
            return;
        }
        self.buffer.drain(..gone);
        if self.buffer.capacity() > KEPT_CAPACITY && self.buffer.len() < KEPT_CAPACITY {
            self.buffer.shrink_to(KEPT_CAPACITY);
            self.joined.shrink_to(KEPT_CAPACITY);
        }
        self.event = 0;
        self.line -= gone;
        self.searched -= gone;
        let shift = |range: &mut Range<usize>| *range = range.start - gone..range.end - gone;
        if let Data::Line(range) = &mut self.data {
            shift(range);
        }
        if let Some(range) = &mut self.name {
            shift(range);
        }
    }

    /// Reads lines until an event is whole.
    fn advance(&mut self) -> Result<bool, SseError> {
        loop {
            if self.after_cr && self.searched < self.buffer.len() {
                self.after_cr = false;
                if self.buffer[self.searched] == b'\n' {
                    self.searched += 1;
                    self.next_line();
                }
            }
            let end = memchr::memchr2(b'\n', b'\r', &self.buffer[self.searched..]).map(|n| self.searched + n);
            if end.unwrap_or(self.buffer.len()) - self.event > self.limit {
                return Err(SseError::TooLong { limit: self.limit });
            }
            let Some(end) = end else {
                self.searched = self.buffer.len();
                return Ok(false);
            };
            let line = self.line..end;
            self.after_cr = self.buffer[end] == b'\r';
            self.searched = end + 1;
            if line.is_empty() {
                self.line = self.searched;
                if !matches!(self.data, Data::None) {
                    return Ok(true);
                }
                self.clear_fields();
                self.event = self.line;
            } else {
                self.field(line);
                self.next_line();
            }
            self.first_line = false;
        }
    }

    /// A line was read; without fields in it nothing before it is needed any more.
    fn next_line(&mut self) {
        self.line = self.searched;
        if matches!(self.data, Data::None) && self.name.is_none() {
            self.event = self.line;
        }
    }

    /// Reads one line: `data`, `event`, or something that does not matter here.
    fn field(&mut self, mut line: Range<usize>) {
        if self.first_line && self.buffer[line.clone()].starts_with(b"\xEF\xBB\xBF") {
            line.start += 3;
        }
        let bytes = &self.buffer[line.clone()];
        let (name, value) = match memchr::memchr(b':', bytes) {
            Some(colon) => {
                let space = usize::from(bytes.get(colon + 1) == Some(&b' '));
                (&bytes[..colon], line.start + colon + 1 + space..line.end)
            }
            None => (bytes, line.end..line.end),
        };
        match name {
            b"data" => self.add_data(value),
            b"event" => self.name = Some(value),
            // Comments, `id`, `retry`, and what the standard says to ignore.
            _ => {}
        }
    }

    fn add_data(&mut self, value: Range<usize>) {
        match std::mem::take(&mut self.data) {
            Data::None => self.data = Data::Line(value),
            before => {
                if let Data::Line(first) = before {
                    self.joined.extend_from_slice(&self.buffer[first]);
                }
                self.joined.push(b'\n');
                self.joined.extend_from_slice(&self.buffer[value]);
                self.data = Data::Joined;
            }
        }
    }
}

/// Appends an event; data with line feeds becomes several `data:` lines.
pub fn write_event(out: &mut BytesMut, name: Option<&str>, data: &[u8]) {
    if let Some(name) = name {
        out.put_slice(b"event: ");
        out.put_slice(name.as_bytes());
        out.put_u8(b'\n');
    }
    for line in data.split(|byte| *byte == b'\n') {
        out.put_slice(b"data: ");
        out.put_slice(line);
        out.put_u8(b'\n');
    }
    out.put_u8(b'\n');
}

/// Appends a comment: a sign of life that parsers ignore. `text` must not hold line ends.
pub fn write_comment(out: &mut BytesMut, text: &str) {
    debug_assert!(!text.contains(['\n', '\r']), "a comment is one line");
    out.put_slice(b": ");
    out.put_slice(text.as_bytes());
    out.put_slice(b"\n\n");
}
