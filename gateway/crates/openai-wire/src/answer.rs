//! Plain (not streamed) answers: checked, named as the client asked, and stripped of what engines add for themselves.
//!
//! A 200 is only a claim. An answer that is empty, HTML, an error object, or without the route's own key is a failure
//! and must never reach a client as success.

use crate::edits::{Edits, MemberCuts};
use crate::json::{JsonError, Kind, Scanner, quoted};
use crate::route::Route;
use crate::segments::Segments;
use crate::upstream_error::{UpstreamError, classify_error, speaks_json};
use crate::usage::{EngineTimings, Reported, Usage};
use bytes::Bytes;

/// An answer fit for the client.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The body, mostly slices of what the replica sent.
    pub body: Segments,
    /// Tokens, if the replica counted them; never more than [`crate::usage::MAX_TOKENS`].
    pub usage: Option<Usage>,
    /// The engine's own measurement, if it made one.
    pub timings: Option<EngineTimings>,
    /// Bytes of text that the model wrote; counted only where `usage` is missing and has to be estimated.
    pub text_bytes: u64,
}

/// Answers above this are not looked into for an estimate.
const MAX_LOOKED_INTO: usize = 1 << 20;

/// Bytes of the text in an answer, wherever its route keeps it. The second look at a body is paid only by engines that do
/// not count.
fn written(body: &[u8]) -> u64 {
    fn sum(value: &serde_json::Value) -> u64 {
        let list = |value: &serde_json::Value| value.as_array().map_or(0, |items| items.iter().map(sum).sum());
        ["content", "text", "reasoning_content", "arguments"].iter().map(|key| text(&value[*key])).sum::<u64>()
            + ["choices", "output", "content", "tool_calls"].iter().map(|key| list(&value[*key])).sum::<u64>()
            + ["message", "function"].iter().filter_map(|key| value.get(*key)).map(sum).sum::<u64>()
    }
    fn text(value: &serde_json::Value) -> u64 {
        value.as_str().map_or(0, |text| text.len() as u64)
    }
    if body.len() > MAX_LOOKED_INTO {
        return body.len() as u64;
    }
    serde_json::from_slice(body).map_or(0, |value| sum(&value))
}

#[derive(Clone, Debug)]
enum Patch {
    Cut,
    Model,
    FrontModel,
    Usage,
}

/// Reads a replica's plain answer. `model` is the name the client asked for; empty leaves the replica's.
///
/// # Errors
/// [`UpstreamError`] if a success status came with something that is not an answer of this route.
pub fn decode_answer(
    route: Route,
    content_type: Option<&str>,
    body: Bytes,
    model: &str,
) -> Result<Answer, UpstreamError> {
    let failed = || classify_error(route, 200, content_type, &body);
    if content_type.is_some_and(|content_type| !speaks_json(content_type)) {
        return Err(failed());
    }
    let text = std::str::from_utf8(&body).map_err(|_| failed())?;
    let mut found = Found::default();
    match found.read(route, text, model) {
        Ok(true) => {}
        // Broken, or whole but not an answer: the body itself says which.
        Ok(false) | Err(_) => return Err(failed()),
    }
    let usage = found.reported.usage();
    let mut segments = Segments::with_capacity(2 * found.edits.len() + 1);
    found.edits.sort();
    found.edits.weave(
        body.len(),
        &mut segments,
        |segments, range| segments.push(body.slice(range)),
        |segments, patch| match patch {
            Patch::Cut => {}
            Patch::Model => segments.push(quoted(model).into()),
            Patch::FrontModel => {
                segments.push(Bytes::from_static(b"\"model\":"));
                segments.push(quoted(model).into());
                segments.push(Bytes::from_static(b","));
            }
            Patch::Usage => segments.push(usage.unwrap_or_default().to_json(route).into()),
        },
    );
    let text_bytes = if usage.is_none() { written(&body) } else { 0 };
    Ok(Answer { body: segments, usage, timings: found.timings, text_bytes })
}

/// What one scan gathers.
#[derive(Default)]
struct Found {
    edits: Edits<Patch>,
    reported: Reported,
    timings: Option<EngineTimings>,
}

impl Found {
    /// Whether this is an answer of the route.
    fn read(&mut self, route: Route, text: &str, model: &str) -> Result<bool, JsonError> {
        let mut scanner = Scanner::new(text);
        if route == Route::Rerank && scanner.kind()? == Kind::Array {
            // The older shape of rerank answers is a bare list of scores.
            scanner.skip()?;
            return scanner.finish().map(|()| true);
        }
        let mut open = scanner.object()?;
        let mut cuts = MemberCuts::default();
        let (mut has_answer, mut has_error, mut has_model) = (false, false, false);
        while let Some(key) = scanner.member(&mut open)? {
            let name = key.name.as_ref();
            if matches!(name, "timings" | "__verbose" | "prompt_progress") {
                if name == "timings" {
                    self.timings = EngineTimings::read(&mut scanner)?;
                } else {
                    scanner.skip()?;
                }
                cuts.drop(key.before, key.start, scanner.at(), &mut self.edits, Patch::Cut);
                continue;
            }
            cuts.keep(key.start, &mut self.edits, Patch::Cut);
            match name {
                "model" => {
                    has_model = true;
                    let range = scanner.skip()?;
                    if !model.is_empty() {
                        self.edits.replace(range, Patch::Model);
                    }
                }
                "usage" => {
                    scanner.kind()?;
                    let start = scanner.at();
                    self.reported = Reported::read(&mut scanner)?;
                    if self.reported.silly {
                        self.edits.replace(start..scanner.at(), Patch::Usage);
                    }
                }
                "error" => {
                    has_error |= scanner.kind()? != Kind::Null;
                    scanner.skip()?;
                }
                _ if name == answer_key(route) => has_answer |= holds_answer(route, &mut scanner)?,
                _ => scanner.pass()?,
            }
        }
        cuts.finish(&mut self.edits, Patch::Cut);
        scanner.finish()?;
        if !has_model && !model.is_empty() && route != Route::SystemOne {
            self.edits.insert(open.start + 1, Patch::FrontModel);
        }
        Ok(has_answer && !has_error)
    }
}

/// The member without which it is no answer.
fn answer_key(route: Route) -> &'static str {
    match route {
        Route::ChatCompletions | Route::Completions => "choices",
        Route::Embeddings => "data",
        Route::Responses => "output",
        Route::Messages => "content",
        Route::Rerank => "results",
        Route::SystemOne => "answers",
    }
}

/// Whether the next value is what the answer key should hold.
fn holds_answer(route: Route, scanner: &mut Scanner<'_>) -> Result<bool, JsonError> {
    if route == Route::SystemOne {
        let is_object = scanner.kind()? == Kind::Object;
        return scanner.skip().map(|_| is_object);
    }
    if scanner.kind()? != Kind::Array {
        return scanner.skip().map(|_| false);
    }
    let mut open = scanner.array()?;
    let mut elements = 0;
    while scanner.element(&mut open)? {
        scanner.skip()?;
        elements += 1;
    }
    // Only a message or a response may be empty: a model that has nothing to say.
    Ok(elements > 0 || matches!(route, Route::Responses | Route::Messages | Route::Rerank))
}
