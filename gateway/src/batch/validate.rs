//! Reading the lines of a new batch: all are looked at before any is run, and nothing runs if one is wrong.
//!
//! It blocks and computes for seconds (200 MB), so it runs on a thread of its own. It holds a piece of the file, the longest
//! line, and a number for each custom id; lines go to the store as places in the file.

use std::{
    collections::HashSet,
    hash::{BuildHasher as _, RandomState},
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};
use store::{BatchRecord, BatchStore, Holder, NewLine, StoreError};

use super::{
    entry::{Entry, affinity, model_of},
    now,
};

/// Read from the store at once.
const PIECE: usize = 1 << 20;
/// Lines that are stored at once.
const PAGE: usize = 1_000;
/// Errors that are told; the rest of the file is not looked at.
const MAX_ERRORS: usize = 100;
/// Longest custom id, in bytes.
const MAX_CUSTOM_ID: usize = 512;
/// Longest name of a model, in bytes, as for any request. It is kept with the batch and shown with it.
const MAX_MODEL: usize = 512;

/// What lines have to keep to.
pub struct Rules<'a> {
    /// Lines of a batch.
    pub max_lines: u32,
    /// Bytes of a line.
    pub max_line: usize,
    /// Whether the batch's owner may use a model.
    pub may_use: &'a dyn Fn(&str) -> bool,
}

/// Looks at all lines of a batch of which `holder` has the job, and starts it or fails it. Returns early when `stop` is set, or
/// when the store says that the batch is no longer to be looked at; another look begins anew.
///
/// # Errors
/// The database failed; the batch is still to be looked at.
pub fn validate(
    store: &BatchStore,
    holder: Holder,
    batch: &BatchRecord,
    rules: &Rules<'_>,
    stop: &AtomicBool,
) -> Result<(), StoreError> {
    store.clear_lines(holder, batch.key)?;
    let mut look = Look::new(&batch.endpoint, rules);
    let mut lines = Lines::new(rules.max_line);
    let mut offset = 0;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let piece = store.read_file(batch.input, offset, PIECE)?;
        offset += piece.len() as u64;
        let more = if piece.is_empty() {
            lines.finish(|line| look.take(line));
            false
        } else {
            lines.push(&piece, |line| look.take(line));
            true
        };
        if look.page.len() >= PAGE || !more {
            store.add_lines(holder, batch.key, std::mem::take(&mut look.page))?;
        }
        if look.has_enough() || !more {
            break;
        }
    }
    if look.total == 0 && look.errors.is_empty() {
        look.errors.push(told("empty_file", "The input file has no lines.", None, None));
    }
    match look.model {
        Some(model) if look.errors.is_empty() => {
            let started = store.start_batch(holder, batch.key, &model, now())?;
            tracing::info!(batch = %started.id, lines = started.counts.total, model, "batch started");
        }
        _ => {
            let errors = json!({"object": "list", "data": look.errors});
            let failed = store.fail_batch(holder, batch.key, errors, now())?;
            tracing::info!(batch = %failed.id, "batch failed its validation");
        }
    }
    Ok(())
}

/// A line of the file: where it is, and its bytes, unless it is too long to be held.
struct Found<'a> {
    number: u32,
    offset: u64,
    length: u64,
    text: Option<&'a [u8]>,
}

/// Cuts pieces into lines.
struct Lines {
    /// The beginning of a line that goes on in the next piece.
    rest: Vec<u8>,
    max: usize,
    /// The line is longer than `max`: only its end is looked for.
    skips: bool,
    number: u32,
    /// Where the line that is being read begins.
    begins: u64,
    /// What was read.
    read: u64,
}

impl Lines {
    const fn new(max: usize) -> Self {
        Self { rest: Vec::new(), max, skips: false, number: 0, begins: 0, read: 0 }
    }

    fn push(&mut self, mut piece: &[u8], mut take: impl FnMut(Found<'_>)) {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            let (line, behind) = (&piece[..end], &piece[end + 1..]);
            self.read += line.len() as u64;
            self.line(line, &mut take);
            self.read += 1;
            self.begins = self.read;
            piece = behind;
        }
        self.read += piece.len() as u64;
        self.skips |= self.rest.len() + piece.len() > self.max;
        if self.skips {
            self.rest = Vec::new();
        } else {
            self.rest.extend_from_slice(piece);
        }
    }

    /// The end of the file ends a line, if one has begun.
    fn finish(&mut self, mut take: impl FnMut(Found<'_>)) {
        if self.read > self.begins {
            self.line(&[], &mut take);
        }
    }

    fn line(&mut self, end: &[u8], take: &mut impl FnMut(Found<'_>)) {
        self.number = self.number.saturating_add(1);
        let length = self.read - self.begins;
        let fits = !self.skips && length <= self.max as u64;
        let text = if self.rest.is_empty() {
            end
        } else {
            self.rest.extend_from_slice(end);
            &self.rest
        };
        take(Found { number: self.number, offset: self.begins, length, text: fits.then_some(text) });
        self.rest.clear();
        self.skips = false;
    }
}

/// What has been seen of a batch.
struct Look<'a> {
    endpoint: &'a str,
    rules: &'a Rules<'a>,
    model: Option<String>,
    total: u32,
    page: Vec<NewLine>,
    errors: Vec<Value>,
    /// Custom ids, as numbers of 128 bits under keys that nobody knows.
    seen: HashSet<(u64, u64)>,
    keys: (RandomState, RandomState),
}

impl<'a> Look<'a> {
    fn new(endpoint: &'a str, rules: &'a Rules<'a>) -> Self {
        let keys = (RandomState::new(), RandomState::new());
        Self {
            endpoint,
            rules,
            model: None,
            total: 0,
            page: Vec::new(),
            errors: Vec::new(),
            seen: HashSet::new(),
            keys,
        }
    }

    fn has_enough(&self) -> bool {
        self.errors.len() >= MAX_ERRORS || self.total > self.rules.max_lines
    }

    fn take(&mut self, mut found: Found<'_>) {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        let number = found.number;
        // A mark of the encoding belongs to no line, nor does the carriage return of some systems' line ends.
        if let Some(text) = found.text.filter(|_| number == 1).and_then(|text| text.strip_prefix(MARK)) {
            found.text = Some(text);
            found.offset += MARK.len() as u64;
            found.length -= MARK.len() as u64;
        }
        let text = found.text.map(<[u8]>::trim_ascii);
        if text.is_some_and(<[u8]>::is_empty) || self.has_enough() {
            return;
        }
        self.total += 1;
        if self.total > self.rules.max_lines {
            let message = format!("A batch has at most {} lines.", self.rules.max_lines);
            return self.errors.push(told("too_many_tasks", &message, None, Some(number)));
        }
        let Some(text) = text else {
            let message = format!("A line has at most {} bytes, this one has {}.", self.rules.max_line, found.length);
            return self.errors.push(told("invalid_json_line", &message, None, Some(number)));
        };
        match self.look_at(text) {
            Ok((custom_id, affinity)) if self.errors.is_empty() => {
                // A line as long as a file of 4 GiB was refused above.
                let length = u32::try_from(found.length).unwrap_or(u32::MAX);
                self.page.push(NewLine { number, custom_id, affinity, offset: found.offset, length });
            }
            Ok(_) => self.page.clear(),
            Err((code, message, param)) => self.errors.push(told(code, &message, param, Some(number))),
        }
    }

    fn look_at(&mut self, text: &[u8]) -> Result<(String, i64), Wrong> {
        let no_object =
            |why: String| ("invalid_json_line", format!("This line is not a JSON object of a request: {why}."), None);
        if !text.starts_with(b"{") {
            // A list of the members would be taken for them.
            return Err(no_object("it does not begin with '{'".into()));
        }
        let entry: Entry<'_> = serde_json::from_slice(text).map_err(|error| no_object(error.to_string()))?;
        let missing = |param: &'static str, expected: &str| {
            ("invalid_json_line", format!("'{param}' is missing, or not {expected}."), Some(param))
        };
        let string = |member: Option<_>, param, expected: &'static str| {
            let member: Option<super::entry::Text<'_>> = member;
            member.as_ref().and_then(|text| text.as_str().map(str::to_owned)).ok_or_else(|| missing(param, expected))
        };
        let custom_id = string(entry.custom_id, "custom_id", "a string")?;
        if custom_id.is_empty() || custom_id.len() > MAX_CUSTOM_ID {
            let message = format!("'custom_id' must have 1 to {MAX_CUSTOM_ID} bytes.");
            return Err(("invalid_json_line", message, Some("custom_id")));
        }
        if !self.seen.insert((self.keys.0.hash_one(&custom_id), self.keys.1.hash_one(&custom_id))) {
            return Err(("duplicate_custom_id", "This 'custom_id' is an earlier line's.".into(), Some("custom_id")));
        }
        let method = string(entry.method, "method", "a string")?;
        if method != "POST" {
            return Err(("invalid_method", "'method' must be \"POST\".".into(), Some("method")));
        }
        let url = string(entry.url, "url", "a string")?;
        if !super::ENDPOINTS.iter().any(|route| route.path() == url) {
            let message = format!("'url' must be the batch's endpoint, {}.", self.endpoint);
            return Err(("invalid_url", message, Some("url")));
        }
        if url != self.endpoint {
            let message = format!("'url' is not the batch's endpoint, {}.", self.endpoint);
            return Err(("url_mismatch", message, Some("url")));
        }
        let body = entry.body.filter(|body| body.get().starts_with('{')).ok_or_else(|| missing("body", "an object"))?;
        let named = model_of(body).filter(|named| named.len() <= MAX_MODEL);
        let named = named.ok_or_else(|| missing("body.model", "a string of 1 to 512 bytes"))?;
        match &self.model {
            Some(model) if *model != named => {
                let message = "All lines of a batch are for one model; this one names another than the first.";
                return Err(("model_mismatch", message.into(), Some("body.model")));
            }
            Some(_) => {}
            None if (self.rules.may_use)(&named) => self.model = Some(named),
            None => {
                let message = format!("This API key may not use the model '{}'.", crate::error::shown(&named));
                return Err(("model_not_allowed", message, Some("body.model")));
            }
        }
        Ok((custom_id, affinity(body)))
    }
}

/// Code, message, and the member that is wrong.
type Wrong = (&'static str, String, Option<&'static str>);

fn told(code: &str, message: &str, param: Option<&str>, line: Option<u32>) -> Value {
    json!({"code": code, "message": message, "param": param, "line": line})
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules<'static> = Rules { max_lines: 5, max_line: 700, may_use: &|model| model != "secret" };

    fn line(id: &str) -> String {
        json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "p"}})
            .to_string()
    }

    /// Looks at a file in pieces of so many bytes.
    fn look(text: &[u8], piece: usize) -> (Vec<NewLine>, Vec<(String, Value)>) {
        let mut look = Look::new("/v1/completions", &RULES);
        let mut lines = Lines::new(RULES.max_line);
        for piece in text.chunks(piece) {
            lines.push(piece, |line| look.take(line));
        }
        lines.finish(|line| look.take(line));
        let code = |error: &Value| (error["code"].as_str().unwrap_or_default().to_owned(), error["line"].clone());
        (look.page, look.errors.iter().map(code).collect())
    }

    #[test]
    fn lines_are_found_wherever_the_pieces_are_cut() {
        let text = format!("\u{feff}{}\r\n\n  \n{}\n{}", line("a"), line("ü"), line("c"));
        for piece in [1, 2, 3, 7, 64, 1 << 20] {
            let (lines, errors) = look(text.as_bytes(), piece);
            assert!(errors.is_empty(), "{errors:?}");
            let found: Vec<_> = lines.iter().map(|line| (line.number, line.custom_id.as_str())).collect();
            assert_eq!(found, [(1, "a"), (4, "ü"), (5, "c")]);
            for line in &lines {
                let (from, length) = (line.offset as usize, line.length as usize);
                let cut = String::from_utf8_lossy(&text.as_bytes()[from..from + length]);
                let entry: Entry<'_> = serde_json::from_str(&cut).expect("an entry, as it will be read");
                assert_eq!(entry.custom_id.as_ref().and_then(|id| id.as_str()), Some(&*line.custom_id), "{cut}");
            }
        }
    }

    #[test]
    fn each_mistake_is_told_with_its_code_and_line() {
        let with = |member: &str, value: Value| {
            let mut entry: Value = serde_json::from_str(&line("x")).expect("JSON");
            entry[member] = value;
            entry.to_string()
        };
        let body = |model: &str| json!({"model": model});
        let cases = [
            ("{".to_owned(), "invalid_json_line"),
            ("[]".to_owned(), "invalid_json_line"),
            (json!(["x", "POST", "/v1/completions", body("m")]).to_string(), "invalid_json_line"),
            ("null".to_owned(), "invalid_json_line"),
            (with("custom_id", json!(7)), "invalid_json_line"),
            (with("custom_id", json!("")), "invalid_json_line"),
            (with("custom_id", json!("first")), "duplicate_custom_id"),
            (with("method", json!("GET")), "invalid_method"),
            (with("method", json!(null)), "invalid_json_line"),
            (with("url", json!("/v1/chat/completions")), "url_mismatch"),
            (with("url", json!("/v1/messages")), "invalid_url"),
            (with("url", json!("https://evil.example/v1/completions")), "invalid_url"),
            (with("body", json!("text")), "invalid_json_line"),
            (with("body", json!({"prompt": "p"})), "invalid_json_line"),
            (with("body", body("other")), "model_mismatch"),
            (with("body", body(&"m".repeat(513))), "invalid_json_line"),
            (with("body", json!({"model": "m", "prompt": "p".repeat(800)})), "invalid_json_line"),
        ];
        for (wrong, code) in cases {
            let text = format!("{}\n{wrong}\n{}\n", line("first"), line("last"));
            for piece in [5, 1 << 20] {
                let (lines, errors) = look(text.as_bytes(), piece);
                assert_eq!(errors, [(code.to_owned(), json!(2))], "{wrong}");
                assert!(lines.is_empty() || lines.iter().all(|line| line.number < 2), "{wrong}");
            }
        }
        assert_eq!(look(with("body", body("secret")).as_bytes(), 9).1, [("model_not_allowed".to_owned(), json!(1))]);
        let many: String = (0..9).map(|n| line(&n.to_string()) + "\n").collect();
        assert_eq!(look(many.as_bytes(), 50).1, [("too_many_tasks".to_owned(), json!(6))]);
        assert_eq!(look(b"\n \n", 1), (vec![], vec![]));
    }
}
