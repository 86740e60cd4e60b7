//! Token counts and speeds as engines report them, in all their shapes, kept within reason.
//!
//! Phones are not trusted: a count that no model could reach would pass into budgets and metrics, so it is cut to
//! [`MAX_TOKENS`] and what is not a number counts as absent.

use crate::json::{JsonError, Kind, Scanner};
use crate::route::Route;

/// Largest count believed. The longest contexts today hold 10 million tokens; this is 2^24.
pub const MAX_TOKENS: u64 = 1 << 24;

/// Tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens read, those from the cache included.
    pub prompt_tokens: u64,
    /// Tokens written.
    pub completion_tokens: u64,
    /// Tokens of the prompt that the replica still had.
    pub cached_tokens: u64,
}

/// An engine's own measurement of one request (llama-server's `timings`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineTimings {
    /// Tokens of the prompt that were read now.
    pub prompt_n: u32,
    /// Time for them, in milliseconds.
    pub prompt_ms: f64,
    /// Tokens written.
    pub predicted_n: u32,
    /// Time for them, in milliseconds.
    pub predicted_ms: f64,
    /// Tokens of the prompt that came from the cache.
    pub cache_n: u32,
}

impl EngineTimings {
    /// The usage these counts amount to.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: u64::from(self.prompt_n) + u64::from(self.cache_n),
            completion_tokens: self.predicted_n.into(),
            cached_tokens: self.cache_n.into(),
        }
    }

    /// Reads the next value; `None` if it is not an object with any of the counts.
    pub(crate) fn read(scanner: &mut Scanner<'_>) -> Result<Option<Self>, JsonError> {
        if scanner.kind()? != Kind::Object {
            scanner.skip()?;
            return Ok(None);
        }
        let mut timings = Self::default();
        let mut found = false;
        let mut open = scanner.object()?;
        while let Some(key) = scanner.member(&mut open)? {
            let name = key.name.as_ref();
            if !matches!(name, "prompt_n" | "prompt_ms" | "predicted_n" | "predicted_ms" | "cache_n") {
                scanner.skip()?;
                continue;
            }
            let Some(value) = number(scanner)? else { continue };
            found = true;
            // Both bounds are far inside what the types hold.
            let count = value.min(MAX_TOKENS as f64) as u32;
            match name {
                "prompt_n" => timings.prompt_n = count,
                "prompt_ms" => timings.prompt_ms = value,
                "predicted_n" => timings.predicted_n = count,
                "predicted_ms" => timings.predicted_ms = value,
                _ => timings.cache_n = count,
            }
        }
        Ok(found.then_some(timings))
    }
}

/// How far an engine has read a prompt (llama-server's `prompt_progress`), in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptProgress {
    /// The whole prompt.
    pub total: u32,
    /// What is read of it, what came from the cache included.
    pub read: u32,
    /// What came from the cache.
    pub cached: u32,
}

impl PromptProgress {
    /// Reads the next value; `None` if it does not say how far.
    pub(crate) fn parse(scanner: &mut Scanner<'_>) -> Result<Option<Self>, JsonError> {
        if scanner.kind()? != Kind::Object {
            scanner.skip()?;
            return Ok(None);
        }
        let (mut total, mut read, mut cached) = (None, None, None);
        let mut open = scanner.object()?;
        while let Some(key) = scanner.member(&mut open)? {
            let place = match key.name.as_ref() {
                "total" => &mut total,
                "processed" => &mut read,
                "cache" => &mut cached,
                _ => {
                    scanner.skip()?;
                    continue;
                }
            };
            *place = number(scanner)?.map(|count| count.min(MAX_TOKENS as f64) as u32);
        }
        let Some(read) = read else { return Ok(None) };
        let total = total.unwrap_or(read).max(read);
        Ok(Some(Self { total, read, cached: cached.unwrap_or(0).min(read) }))
    }
}

/// Usage as it was reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reported {
    prompt: Option<u64>,
    completion: Option<u64>,
    cached: Option<u64>,
    /// Anthropic's shape: the cached part is not in `input_tokens`.
    cache_apart: u64,
    /// Whether a number was out of reason.
    pub silly: bool,
}

impl Reported {
    /// Reads the next value: OpenAI's, the Responses API's or Anthropic's names.
    pub fn read(scanner: &mut Scanner<'_>) -> Result<Self, JsonError> {
        let mut reported = Self::default();
        if scanner.kind()? != Kind::Object {
            reported.silly = scanner.kind()? != Kind::Null;
            scanner.skip()?;
            return Ok(reported);
        }
        let mut open = scanner.object()?;
        while let Some(key) = scanner.member(&mut open)? {
            match key.name.as_ref() {
                "prompt_tokens" | "input_tokens" => reported.prompt = reported.count(scanner, MAX_TOKENS)?,
                "completion_tokens" | "output_tokens" => reported.completion = reported.count(scanner, MAX_TOKENS)?,
                "cache_read_input_tokens" | "cache_creation_input_tokens" => {
                    let count = reported.count(scanner, MAX_TOKENS)?.unwrap_or(0);
                    reported.cache_apart = (reported.cache_apart + count).min(MAX_TOKENS);
                    if key.name == "cache_read_input_tokens" {
                        reported.cached = Some(count);
                    }
                }
                "prompt_tokens_details" | "input_tokens_details" if scanner.kind()? == Kind::Object => {
                    let mut details = scanner.object()?;
                    while let Some(key) = scanner.member(&mut details)? {
                        if key.name == "cached_tokens" {
                            reported.cached = reported.count(scanner, MAX_TOKENS)?;
                        } else {
                            scanner.skip()?;
                        }
                    }
                }
                "total_tokens" => drop(reported.count(scanner, 2 * MAX_TOKENS)?),
                _ => scanner.pass()?,
            }
        }
        Ok(reported)
    }

    /// A count up to `limit`; beyond it or not a whole number is silly.
    fn count(&mut self, scanner: &mut Scanner<'_>, limit: u64) -> Result<Option<u64>, JsonError> {
        let kind = scanner.kind()?;
        if kind != Kind::Number {
            self.silly |= kind != Kind::Null;
            scanner.skip()?;
            return Ok(None);
        }
        let raw = scanner.number()?;
        let count = match raw.parse::<u64>() {
            Ok(count) => count,
            Err(_) => {
                self.silly = true;
                // Saturating: negative and fractional numbers become whole ones.
                raw.parse::<f64>().unwrap_or(0.0) as u64
            }
        };
        self.silly |= count > limit;
        Ok(Some(count.min(limit)))
    }

    /// Takes from `later` what it says; the rest stays.
    pub fn merge(&mut self, later: Self) {
        self.prompt = later.prompt.or(self.prompt);
        self.completion = later.completion.or(self.completion);
        self.cached = later.cached.or(self.cached);
        self.cache_apart = self.cache_apart.max(later.cache_apart);
        self.silly |= later.silly;
    }

    /// Takes what is said of another choice: that one's prompt is not the answer's, unless nothing else is known.
    pub fn merge_other(&mut self, other: Self) {
        let (prompt, cached, cache_apart) = (self.prompt, self.cached, self.cache_apart);
        self.merge(other);
        if prompt.is_some() {
            (self.prompt, self.cached, self.cache_apart) = (prompt, cached, cache_apart);
        }
    }

    /// The usage, if any count was there.
    pub fn usage(&self) -> Option<Usage> {
        if self.prompt.is_none() && self.completion.is_none() {
            return None;
        }
        let prompt_tokens = (self.prompt.unwrap_or(0) + self.cache_apart).min(MAX_TOKENS);
        Some(Usage {
            prompt_tokens,
            completion_tokens: self.completion.unwrap_or(0),
            cached_tokens: self.cached.unwrap_or(0).min(prompt_tokens),
        })
    }
}

/// A finite number from 0 on; anything else is `None`.
fn number(scanner: &mut Scanner<'_>) -> Result<Option<f64>, JsonError> {
    if scanner.kind()? != Kind::Number {
        scanner.skip()?;
        return Ok(None);
    }
    Ok(scanner.number()?.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0))
}

impl Usage {
    /// The object a route's answers carry.
    pub(crate) fn to_json(self, route: Route) -> Vec<u8> {
        let Self { prompt_tokens: prompt, completion_tokens: completion, cached_tokens: cached } = self;
        let total = prompt + completion;
        match route {
            Route::ChatCompletions | Route::Completions => format!(
                r#"{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
            ),
            Route::Embeddings | Route::Rerank => format!(r#"{{"prompt_tokens":{prompt},"total_tokens":{total}}}"#),
            Route::Responses => format!(
                r#"{{"input_tokens":{prompt},"input_tokens_details":{{"cached_tokens":{cached}}},"output_tokens":{completion},"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{total}}}"#
            ),
            Route::Messages => {
                let fresh = prompt.saturating_sub(cached);
                format!(r#"{{"input_tokens":{fresh},"cache_read_input_tokens":{cached},"output_tokens":{completion}}}"#)
            }
            Route::SystemOne => format!(r#"{{"input_tokens":{prompt},"output_tokens":{completion}}}"#),
        }
        .into_bytes()
    }
}
