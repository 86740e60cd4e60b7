//! A strict, borrowing, pull-style JSON scanner with positions.
//!
//! It accepts exactly RFC 8259 text that any engine will accept too: no control characters in strings, no half surrogate
//! pairs, no number beyond a 64-bit float, nothing after the value, at most [`MAX_DEPTH`] levels (also in values that
//! are only skipped). It allocates only for keys and strings with escapes that someone asks for. Every byte is looked
//! at once. A property test holds it against `serde_json`.

use std::borrow::Cow;
use std::ops::Range;

/// Deepest nesting accepted, in levels. The usual limit of JSON libraries; no real request comes near.
pub const MAX_DEPTH: u32 = 128;

/// Strings up to this length are looked at byte by byte, longer ones by vector instructions: keys and tokens are short,
/// and a vector search costs more to start than it saves there.
const SHORT: usize = 16;

/// What is wrong with a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The text stops inside a value.
    #[error("the text ends inside a value")]
    End,
    /// Something else stands where this was due.
    #[error("expected {0}")]
    Expected(&'static str),
    /// A byte below 0x20 in a string.
    #[error("a control character in a string must be written as an escape")]
    Control,
    /// An escape that JSON does not have.
    #[error("unknown escape in a string")]
    Escape,
    /// One half of a surrogate pair without the other.
    #[error("half of a surrogate pair in a string")]
    Surrogate,
    /// A number that a 64-bit float cannot hold.
    #[error("the number is too large for a 64-bit float")]
    Range,
    /// More than [`MAX_DEPTH`] levels.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    Depth,
    /// Text after the value.
    #[error("text follows after the end of the value")]
    Trailing,
}

/// A flaw and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JsonError {
    /// Byte offset.
    pub at: usize,
    /// What is wrong there.
    pub flaw: Flaw,
}

/// Line and column (in characters), both from 1, of a byte offset.
pub(crate) fn position(text: &[u8], at: usize) -> (usize, usize) {
    let before = &text[..at.min(text.len())];
    let line_start = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    let column = before[line_start..].iter().filter(|byte| (**byte & 0xC0) != 0x80).count() + 1;
    (line, column)
}

/// The kind of a value, known from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    Text,
    Number,
    Bool,
    Null,
}

impl Kind {
    /// With its article, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::Text => "a string",
            Self::Number => "a number",
            Self::Bool => "a boolean",
            Self::Null => "null",
        }
    }
}

/// A string as it stands in the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    /// Between the quotes, escapes and all.
    pub raw: &'a str,
    /// How many bytes the escapes take more than what they mean.
    shrink: usize,
}

impl<'a> Text<'a> {
    /// Length in bytes of what the string means.
    pub fn len(&self) -> usize {
        self.raw.len() - self.shrink
    }

    /// Whether the string has no characters.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// What the string means.
    pub fn decode(&self) -> Cow<'a, str> {
        if self.shrink == 0 { Cow::Borrowed(self.raw) } else { Cow::Owned(unescape(self.raw, self.len())) }
    }
}

/// The key of an object's member; the scanner stands at its value.
#[derive(Debug)]
pub(crate) struct Key<'a> {
    /// What the key means, escapes undone.
    pub name: Cow<'a, str>,
    /// Where its opening quote is.
    pub start: usize,
    /// Where the member before it ended (for the first: just after the brace).
    pub before: usize,
}

/// An object or array that is being walked.
#[derive(Debug)]
pub(crate) struct Open {
    /// Offset of its bracket.
    pub start: usize,
    first: bool,
}

/// Walks one text.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

type Scan<T> = Result<T, JsonError>;

impl<'a> Scanner<'a> {
    /// Before the first byte of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// The offset of the next unread byte.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The text of a range that was scanned.
    pub fn slice(&self, range: Range<usize>) -> &'a str {
        &self.text[range]
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    fn fail<T>(&self, flaw: Flaw) -> Scan<T> {
        Err(JsonError { at: self.at, flaw })
    }

    /// The next byte that is not white space, unread.
    fn peek(&mut self) -> Scan<u8> {
        let bytes = self.bytes();
        while let Some(&byte) = bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Ok(byte);
            }
            self.at += 1;
        }
        self.fail(Flaw::End)
    }

    /// The kind of the value that comes next; the scanner then stands at its first byte.
    pub fn kind(&mut self) -> Scan<Kind> {
        match self.peek()? {
            b'{' => Ok(Kind::Object),
            b'[' => Ok(Kind::Array),
            b'"' => Ok(Kind::Text),
            b'-' | b'0'..=b'9' => Ok(Kind::Number),
            b't' | b'f' => Ok(Kind::Bool),
            b'n' => Ok(Kind::Null),
            _ => self.fail(Flaw::Expected("a value")),
        }
    }

    fn enter(&mut self, bracket: u8, what: &'static str) -> Scan<Open> {
        if self.peek()? != bracket {
            return self.fail(Flaw::Expected(what));
        }
        if self.depth == MAX_DEPTH {
            return self.fail(Flaw::Depth);
        }
        self.depth += 1;
        self.at += 1;
        Ok(Open { start: self.at - 1, first: true })
    }

    /// Steps into an object.
    pub fn object(&mut self) -> Scan<Open> {
        self.enter(b'{', "an object")
    }

    /// Steps into an array.
    pub fn array(&mut self) -> Scan<Open> {
        self.enter(b'[', "an array")
    }

    /// The next member's key, or `None` after the closing brace. The value must be read before the next call.
    pub fn member(&mut self, open: &mut Open) -> Scan<Option<Key<'a>>> {
        let before = self.at;
        let next = self.peek()?;
        if next == b'}' {
            return self.leave();
        }
        if !open.first {
            if next != b',' {
                return self.fail(Flaw::Expected("`,` or `}`"));
            }
            self.at += 1;
        }
        open.first = false;
        let (start, name) = self.key()?;
        Ok(Some(Key { name: name.decode(), start, before }))
    }

    /// Whether another element follows; the scanner then stands before it.
    pub fn element(&mut self, open: &mut Open) -> Scan<bool> {
        let next = self.peek()?;
        if next == b']' {
            return self.leave().map(|over: Option<Key<'_>>| over.is_some());
        }
        if !open.first {
            if next != b',' {
                return self.fail(Flaw::Expected("`,` or `]`"));
            }
            self.at += 1;
        }
        open.first = false;
        Ok(true)
    }

    fn leave(&mut self) -> Scan<Option<Key<'a>>> {
        self.at += 1;
        self.depth -= 1;
        Ok(None)
    }

    /// A key and its colon.
    fn key(&mut self) -> Scan<(usize, Text<'a>)> {
        if self.peek()? != b'"' {
            return self.fail(Flaw::Expected("a key in quotes"));
        }
        let start = self.at;
        let name = self.text()?;
        if self.peek()? != b':' {
            return self.fail(Flaw::Expected("`:`"));
        }
        self.at += 1;
        Ok((start, name))
    }

    /// A string.
    pub fn text(&mut self) -> Scan<Text<'a>> {
        if self.peek()? != b'"' {
            return self.fail(Flaw::Expected("a string"));
        }
        let open = self.at;
        self.at += 1;
        let mut shrink = 0;
        loop {
            self.at = self.plain_run(self.at)?;
            if self.bytes()[self.at] == b'"' {
                break;
            }
            let (length, meant) = self.escape()?;
            shrink += length - meant;
            self.at += length;
        }
        let raw = &self.text[open + 1..self.at];
        self.at += 1;
        Ok(Text { raw, shrink })
    }

    /// Where the next quote or backslash is.
    fn plain_run(&self, from: usize) -> Scan<usize> {
        let bytes = self.bytes();
        let near = bytes.len().min(from + SHORT);
        for (n, &byte) in bytes[from..near].iter().enumerate() {
            if byte == b'"' || byte == b'\\' {
                return Ok(from + n);
            }
            if byte < 0x20 {
                return Err(JsonError { at: from + n, flaw: Flaw::Control });
            }
        }
        let far = memchr::memchr2(b'"', b'\\', &bytes[near..]).map_or(bytes.len(), |n| near + n);
        let run = &bytes[near..far];
        // A fold without an early exit is compiled to vector instructions.
        if run.iter().fold(false, |found, &byte| found | (byte < 0x20)) {
            let at = near + run.iter().position(|&byte| byte < 0x20).unwrap_or(0);
            return Err(JsonError { at, flaw: Flaw::Control });
        }
        if far == bytes.len() { Err(JsonError { at: far, flaw: Flaw::End }) } else { Ok(far) }
    }

    /// Length of the escape here, and of what it means.
    fn escape(&self) -> Scan<(usize, usize)> {
        match self.bytes().get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok((2, 1)),
            Some(b'u') => match self.unit(self.at)? {
                0..=0x7F => Ok((6, 1)),
                0x80..=0x7FF => Ok((6, 2)),
                0xD800..=0xDBFF => match self.unit(self.at + 6) {
                    Ok(0xDC00..=0xDFFF) => Ok((12, 4)),
                    _ => self.fail(Flaw::Surrogate),
                },
                0xDC00..=0xDFFF => self.fail(Flaw::Surrogate),
                _ => Ok((6, 3)),
            },
            Some(_) => self.fail(Flaw::Escape),
            None => self.fail(Flaw::End),
        }
    }

    /// The UTF-16 unit of the `\uXXXX` at `at`.
    fn unit(&self, at: usize) -> Scan<u16> {
        match self.bytes().get(at..at + 6) {
            Some([b'\\', b'u', digits @ ..]) => digits
                .iter()
                .try_fold(0_u16, |unit, &digit| (digit as char).to_digit(16).map(|value| unit << 4 | value as u16))
                .ok_or(JsonError { at, flaw: Flaw::Escape }),
            _ => Err(JsonError { at, flaw: Flaw::Escape }),
        }
    }

    /// A number, as it is written.
    pub fn number(&mut self) -> Scan<&'a str> {
        self.peek()?;
        let start = self.at;
        let bytes = self.bytes();
        let digits = |mut at: usize| {
            while bytes.get(at).is_some_and(u8::is_ascii_digit) {
                at += 1;
            }
            at
        };
        let mut at = start + usize::from(bytes[start] == b'-');
        let whole = at;
        at = digits(at);
        if at == whole || (bytes[whole] == b'0' && at > whole + 1) {
            return self.fail(Flaw::Expected("a number"));
        }
        let mut large = at - whole > 308;
        if bytes.get(at) == Some(&b'.') {
            let fraction = at + 1;
            at = digits(fraction);
            if at == fraction {
                return self.fail(Flaw::Expected("a digit after the decimal point"));
            }
        }
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            let exponent = at + 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
            at = digits(exponent);
            if at == exponent {
                return self.fail(Flaw::Expected("a digit in the exponent"));
            }
            large = true;
        }
        let raw = &self.text[start..at];
        if large && raw.parse::<f64>().is_ok_and(f64::is_infinite) {
            return self.fail(Flaw::Range);
        }
        self.at = at;
        Ok(raw)
    }

    fn word(&mut self, word: &'static str) -> Scan<()> {
        if !self.bytes()[self.at..].starts_with(word.as_bytes()) {
            return self.fail(Flaw::Expected(word));
        }
        self.at += word.len();
        Ok(())
    }

    /// A boolean.
    pub fn boolean(&mut self) -> Scan<bool> {
        if self.peek()? == b't' { self.word("true").map(|()| true) } else { self.word("false").map(|()| false) }
    }

    /// Steps over `null` if it comes next.
    pub fn null(&mut self) -> Scan<bool> {
        if self.peek()? != b'n' {
            return Ok(false);
        }
        self.word("null").map(|()| true)
    }

    /// Steps over any value, checking all of it.
    pub fn pass(&mut self) -> Scan<()> {
        self.skip().map(|_| ())
    }

    /// Steps over any value, checking all of it. Says where it stood.
    pub fn skip(&mut self) -> Scan<Range<usize>> {
        self.peek()?;
        let start = self.at;
        // One bit per open bracket, the innermost lowest: set for an object.
        let mut objects = 0_u128;
        let mut open = 0;
        loop {
            let entered = self.scalar_or_bracket()?;
            if let Some(object) = entered {
                if self.depth + open == MAX_DEPTH {
                    return self.fail(Flaw::Depth);
                }
                open += 1;
                objects = objects << 1 | u128::from(object);
                self.at += 1;
                if self.peek()? != if object { b'}' } else { b']' } {
                    if object {
                        self.key()?;
                    }
                    continue;
                }
            }
            loop {
                if open == 0 {
                    return Ok(start..self.at);
                }
                let object = objects & 1 == 1;
                match self.peek()? {
                    b',' => {
                        self.at += 1;
                        if object {
                            self.key()?;
                        }
                        break;
                    }
                    b'}' if object => {}
                    b']' if !object => {}
                    _ => return self.fail(Flaw::Expected(if object { "`,` or `}`" } else { "`,` or `]`" })),
                }
                self.at += 1;
                objects >>= 1;
                open -= 1;
            }
        }
    }

    /// Reads a scalar, or stops at a bracket: `Some(true)` for `{`, `Some(false)` for `[`.
    fn scalar_or_bracket(&mut self) -> Scan<Option<bool>> {
        match self.kind()? {
            Kind::Object => return Ok(Some(true)),
            Kind::Array => return Ok(Some(false)),
            Kind::Text => drop(self.text()?),
            Kind::Number => drop(self.number()?),
            Kind::Bool => drop(self.boolean()?),
            Kind::Null => drop(self.null()?),
        }
        Ok(None)
    }

    /// Nothing but white space may follow.
    pub fn finish(mut self) -> Scan<()> {
        match self.peek() {
            Err(_) => Ok(()),
            Ok(_) => self.fail(Flaw::Trailing),
        }
    }
}

/// Undoes the escapes of a string that was scanned, so all of them are sound.
fn unescape(raw: &str, len: usize) -> String {
    let mut meant = String::with_capacity(len);
    push_meaning(raw, &mut meant);
    meant
}

/// Appends what a string that was scanned means.
pub(crate) fn push_meaning(raw: &str, out: &mut String) {
    for run in runs(raw) {
        match run {
            Run::Plain(plain) => out.push_str(plain),
            Run::Escaped(letter) => out.push(letter),
        }
    }
}

/// The first character of a string that was scanned, and how many bytes it takes there.
pub(crate) fn first(raw: &str) -> Option<(char, usize)> {
    match raw.chars().next()? {
        '\\' => Some(escaped(raw)),
        plain => Some((plain, plain.len_utf8())),
    }
}

/// Where the byte `at` of what `raw` means stands in it (a string that was scanned); beyond the end, its end. `at` must be a
/// boundary of characters.
pub(crate) fn place(raw: &str, at: usize) -> usize {
    let (mut stands, mut left) = (0, at);
    while left > 0 && stands < raw.len() {
        let rest = &raw[stands..];
        match memchr::memchr(b'\\', rest.as_bytes()) {
            Some(0) => {
                let (letter, length) = escaped(rest);
                left = left.saturating_sub(letter.len_utf8());
                stands += length;
            }
            escape => {
                let plain = escape.unwrap_or(rest.len()).min(left);
                left -= plain;
                stands += plain;
            }
        }
    }
    stands
}

/// A part of a string that was scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run<'a> {
    /// Without escapes: means itself.
    Plain(&'a str),
    /// What an escape means.
    Escaped(char),
}

/// The parts of a string that was scanned, so all of its escapes are sound.
pub(crate) fn runs(raw: &str) -> impl Iterator<Item = Run<'_>> {
    let mut rest = raw;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (run, length) = match memchr::memchr(b'\\', rest.as_bytes()) {
            Some(0) => {
                let (letter, length) = escaped(rest);
                (Run::Escaped(letter), length)
            }
            at => {
                let length = at.unwrap_or(rest.len());
                (Run::Plain(&rest[..length]), length)
            }
        };
        rest = &rest[length..];
        Some(run)
    })
}

/// What the escape at the beginning of `text` means, and its length.
fn escaped(text: &str) -> (char, usize) {
    let unit =
        |from: usize| text.get(from + 2..from + 6).and_then(|hex| u32::from_str_radix(hex, 16).ok()).unwrap_or(0);
    match text.as_bytes()[1] {
        b'b' => ('\u{8}', 2),
        b'f' => ('\u{c}', 2),
        b'n' => ('\n', 2),
        b'r' => ('\r', 2),
        b't' => ('\t', 2),
        b'u' => match unit(0) {
            high @ 0xD800..=0xDBFF => {
                let code = 0x10000 + ((high - 0xD800) << 10) + (unit(6).saturating_sub(0xDC00) & 0x3FF);
                (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
            }
            code => (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 6),
        },
        other => (other as char, 2),
    }
}

/// Appends `text` as a JSON string, quotes included.
pub(crate) fn quote(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text.as_bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// `text` as a JSON string.
pub(crate) fn quoted(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    quote(text, &mut out);
    out
}

#[cfg(test)]
mod tests;
