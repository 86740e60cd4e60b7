//! The one scan of a body: facts, places, and whether the gateway can take it.

use super::field::{Field, required};
use super::layout::{Layout, Member, StreamOptionsAt};
use super::{Request, ServiceTier};
use crate::decode_error::DecodeError;
use crate::json::{Flaw, JsonError, Kind, Scanner, position};
use crate::outline::Outline;
use crate::prompt::Tally;
use crate::route::Route;
use bytes::Bytes;
use std::borrow::Cow;

/// Longest model name accepted, in bytes. Replicas name models by file path; a path is at most 255 bytes a component.
const MAX_MODEL_NAME: usize = 512;

/// Most choices one request may ask for: the public API's own limit.
const MAX_CHOICES: u32 = 128;

/// Most texts kept at which an answer ends. The public API takes 4; each costs a search in every piece of an answer.
const MAX_STOPS: usize = 16;

/// Longest of them, in bytes: longer than any mark that ends a turn. That much of an answer is held back at worst.
const MAX_STOP: usize = 256;

/// Why reading stopped; positions are found only then.
pub(super) enum Stop {
    Json(JsonError),
    Refused(DecodeError),
}

impl From<JsonError> for Stop {
    fn from(error: JsonError) -> Self {
        Self::Json(error)
    }
}

impl From<DecodeError> for Stop {
    fn from(error: DecodeError) -> Self {
        Self::Refused(error)
    }
}

impl Stop {
    pub fn locate(self, text: &str) -> DecodeError {
        match self {
            Self::Refused(error) => error,
            Self::Json(JsonError { at, flaw }) => {
                let (line, column) = position(text.as_bytes(), at);
                match flaw {
                    Flaw::Depth => DecodeError::Depth { line, column },
                    Flaw::End if text.trim_ascii().is_empty() => DecodeError::Empty,
                    flaw => DecodeError::Json { flaw, line, column },
                }
            }
        }
    }
}

/// What the scan gathers.
#[derive(Default)]
pub(super) struct Facts {
    model: Option<String>,
    stream: bool,
    include_usage: bool,
    max_completion_tokens: Option<u32>,
    max_tokens: Option<u32>,
    max_output_tokens: Option<u32>,
    choices: Option<u32>,
    prompts: Option<u32>,
    stop: Vec<String>,
    wants_timings: bool,
    logprobs: bool,
    has_tools: bool,
    has_functions: bool,
    /// Nothing can be put behind the prompt, wherever that ends.
    closed: bool,
    /// The last message is the assistant's: the client has begun the answer.
    begun: bool,
    service_tier: Option<ServiceTier>,
    tally: Tally,
    layout: Layout,
    seen: u32,
}

/// An array that was read.
#[derive(Default)]
struct Elements {
    count: usize,
    /// Whether the last one is a string, and where it ends.
    last_is_text: bool,
    last_end: usize,
    /// Whether any is a number: they are the tokens of one text.
    tokens: bool,
    /// Whether the last one is a message of the assistant's.
    by_assistant: bool,
}

impl Facts {
    pub fn read(route: Route, text: &str, outline: Outline) -> Result<Self, Stop> {
        let mut scanner = Scanner::new(text);
        let kind = scanner.kind()?;
        if kind != Kind::Object {
            // Broken text is reported as broken, whatever it begins with.
            scanner.skip()?;
            scanner.finish()?;
            return Err(DecodeError::NotAnObject { found: kind.name() }.into());
        }
        let mut facts = Self { tally: Tally { outline, ..Tally::default() }, ..Self::default() };
        let mut open = scanner.object()?;
        facts.layout.front = open.start + 1;
        let mut last_may_go = false;
        while let Some(key) = scanner.member(&mut open)? {
            if last_may_go && let Some(member) = facts.layout.members.last_mut() {
                member.next = Some(key.start);
            }
            let field = Field::of(route, &key.name);
            if let Some(param) = field.once() {
                if facts.seen & field.bit() != 0 {
                    return Err(DecodeError::Duplicate { param }.into());
                }
                facts.seen |= field.bit();
            }
            facts.field(route, field, &mut scanner)?;
            let without = field.without(route);
            last_may_go = without.is_some();
            if let Some(without) = without {
                let (before, start, end) = (key.before, key.start, scanner.at());
                facts.layout.members.push(Member { without, before, start, end, next: None });
            }
        }
        scanner.finish()?;
        Ok(facts)
    }

    /// What was noted of the prompt's text.
    pub fn take_outline(&mut self) -> Outline {
        std::mem::take(&mut self.tally.outline)
    }

    fn field(&mut self, route: Route, field: Field, scanner: &mut Scanner<'_>) -> Result<(), Stop> {
        self.tally.outline.enter(field.section());
        match field {
            Field::Model => self.model(scanner)?,
            Field::Stream => self.stream(route, scanner)?,
            Field::StreamOptions if route.has_stream_options() => self.stream_options(scanner)?,
            Field::MaxCompletionTokens => self.max_completion_tokens = self.limit(scanner, "max_completion_tokens")?,
            Field::MaxTokens => self.max_tokens = self.limit(scanner, "max_tokens")?,
            Field::MaxOutputTokens => self.max_output_tokens = self.limit(scanner, "max_output_tokens")?,
            // Below 0 it means no limit, and nothing else than a number is for the engine to refuse.
            Field::NPredict if scanner.kind()? == Kind::Number => {
                let number = scanner.number()?;
                let range = scanner.at() - number.len()..scanner.at();
                self.layout.limits.extend(number.parse().ok().map(|limit| (range, limit)));
            }
            Field::N => {
                self.choices = count(scanner, "n")?;
                if self.choices.is_some_and(|n| n == 0 || n > MAX_CHOICES) {
                    return Err(DecodeError::Value { param: "n", expected: "an integer from 1 to 128" }.into());
                }
            }
            Field::ServiceTier => self.service_tier = service_tier(scanner)?,
            Field::Stop => self.stop(scanner)?,
            Field::Logprobs => self.logprobs = flag(scanner)?,
            Field::Timings => self.wants_timings = flag(scanner)?,
            Field::Echo => self.closed |= flag(scanner)? && route == Route::Completions,
            // The client continues text that is no message, or renders its own.
            Field::AddGenerationPrompt => {
                let value = scanner.skip()?;
                self.closed |= scanner.slice(value) == "false";
            }
            Field::Messages => self.messages(scanner)?,
            Field::Prompt => self.prompt(scanner)?,
            Field::Input => {
                self.text_or_array("input", scanner)?;
            }
            Field::Query => {
                expect(scanner, Kind::Text, "query", "a string")?;
                self.tally.count(scanner)?;
            }
            Field::Documents => {
                expect(scanner, Kind::Array, "documents", "an array of texts")?;
                self.array("documents", None, scanner)?;
            }
            Field::Questions => {
                expect(scanner, Kind::Object, "questions", "an object of questions")?;
                self.tally.count_json(scanner)?;
            }
            Field::State => {
                self.tally.count_json(scanner)?;
            }
            Field::Tools => self.has_tools = self.tools(scanner)?,
            Field::Functions => self.has_functions |= self.tools(scanner)?,
            Field::Lead => self.tally.count(scanner)?,
            Field::Tail => {
                let before = self.tally.bytes;
                self.tally.count(scanner)?;
                self.closed |= self.tally.bytes > before;
            }
            Field::StreamOptions | Field::NPredict | Field::ContinueFinalMessage | Field::Private | Field::Other => {
                scanner.pass()?
            }
        }
        Ok(())
    }

    fn model(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Stop> {
        expect(scanner, Kind::Text, "model", "a model's name")?;
        let start = scanner.at();
        let name = scanner.text()?;
        if name.is_empty() || name.len() > MAX_MODEL_NAME {
            let expected = "a model's name, 1 to 512 bytes long; GET /v1/models lists them";
            return Err(DecodeError::Value { param: "model", expected }.into());
        }
        self.layout.model = Some(start..scanner.at());
        self.model = Some(name.decode().into_owned());
        Ok(())
    }

    fn stream(&mut self, route: Route, scanner: &mut Scanner<'_>) -> Result<(), Stop> {
        let kind = scanner.kind()?;
        let start = scanner.at();
        match kind {
            Kind::Bool => self.stream = scanner.boolean()? && route.streams(),
            Kind::Null => drop(scanner.null()?),
            other => return Err(wrong("stream", "true, false or null", other)),
        }
        self.layout.stream = Some(start..scanner.at());
        Ok(())
    }

    fn stream_options(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Stop> {
        match scanner.kind()? {
            Kind::Null => {
                let range = scanner.skip()?;
                self.layout.stream_options = StreamOptionsAt::Null(range);
                return Ok(());
            }
            Kind::Object => {}
            other => return Err(wrong("stream_options", "an object or null", other)),
        }
        let mut open = scanner.object()?;
        let mut empty = true;
        let mut include_usage = None;
        while let Some(key) = scanner.member(&mut open)? {
            empty = false;
            if key.name != "include_usage" {
                scanner.skip()?;
                continue;
            }
            if include_usage.is_some() {
                return Err(DecodeError::Duplicate { param: "stream_options.include_usage" }.into());
            }
            let kind = scanner.kind()?;
            let start = scanner.at();
            match kind {
                Kind::Bool => self.include_usage = scanner.boolean()?,
                Kind::Null => drop(scanner.null()?),
                other => return Err(wrong("stream_options.include_usage", "true, false or null", other)),
            }
            include_usage = Some(start..scanner.at());
        }
        self.layout.stream_options = StreamOptionsAt::Object { front: open.start + 1, empty, include_usage };
        Ok(())
    }

    fn messages(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Stop> {
        expect(scanner, Kind::Array, "messages", "an array of messages")?;
        let messages = self.array("messages", Some("an object with a role and content"), scanner)?;
        self.begun = messages.by_assistant;
        self.layout.seam = (!self.begun).then_some(messages.last_end);
        Ok(())
    }

    fn prompt(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Stop> {
        let prompts = self.text_or_array("prompt", scanner)?;
        self.prompts = Some(if prompts.tokens { 1 } else { u32::try_from(prompts.count).unwrap_or(u32::MAX) });
        // Before its closing quote.
        self.layout.seam = (prompts.count == 1 && prompts.last_is_text).then_some(prompts.last_end - 1);
        Ok(())
    }

    fn text_or_array(&mut self, param: &'static str, scanner: &mut Scanner<'_>) -> Result<Elements, Stop> {
        match scanner.kind()? {
            Kind::Text => {
                self.tally.count(scanner)?;
                Ok(Elements { count: 1, last_is_text: true, last_end: scanner.at(), ..Elements::default() })
            }
            Kind::Array => self.array(param, None, scanner),
            other => Err(wrong(param, "a string or an array", other)),
        }
    }

    /// A non-empty array of text; of objects, if `element` says what they should be.
    fn array(
        &mut self,
        param: &'static str,
        element: Option<&'static str>,
        scanner: &mut Scanner<'_>,
    ) -> Result<Elements, Stop> {
        let mut open = scanner.array()?;
        let mut elements = Elements::default();
        while scanner.element(&mut open)? {
            let kind = scanner.kind()?;
            if let Some(expected) = element.filter(|_| kind != Kind::Object) {
                let param = Cow::Owned(format!("{param}[{}]", elements.count));
                return Err(DecodeError::Type { param, expected, found: kind.name() }.into());
            }
            self.tally.outline.message();
            elements.by_assistant = self.tally.count_message(scanner)?;
            self.tally.outline.message_over(|role| scanner.slice(role));
            elements.count += 1;
            elements.tokens |= kind == Kind::Number;
            elements.last_is_text = kind == Kind::Text;
            elements.last_end = scanner.at();
        }
        if elements.count == 0 { Err(DecodeError::EmptyArray { param }.into()) } else { Ok(elements) }
    }

    /// A limit of what is written, and where it stands.
    fn limit(&mut self, scanner: &mut Scanner<'_>, param: &'static str) -> Result<Option<u32>, Stop> {
        scanner.kind()?;
        let start = scanner.at();
        let limit = count(scanner, param)?;
        self.layout.limits.extend(limit.map(|limit| (start..scanner.at(), limit)));
        Ok(limit)
    }

    /// Texts at which the answer ends, unless there is anything about them that would have to be judged.
    fn stop(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Stop> {
        match scanner.kind()? {
            Kind::Text => self.stop_text(scanner)?,
            Kind::Array => {
                let mut open = scanner.array()?;
                let mut sound = true;
                while scanner.element(&mut open)? {
                    sound &= scanner.kind()? == Kind::Text && self.stop.len() < MAX_STOPS;
                    if sound {
                        let kept = self.stop.len();
                        self.stop_text(scanner)?;
                        sound = self.stop.len() > kept;
                    } else {
                        scanner.pass()?;
                    }
                }
                if !sound {
                    self.stop.clear();
                }
            }
            _ => scanner.pass()?,
        }
        Ok(())
    }

    fn stop_text(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Stop> {
        let text = scanner.text()?;
        if (1..=MAX_STOP).contains(&text.len()) {
            self.stop.push(text.decode().into_owned());
        }
        Ok(())
    }

    /// Whether there are tools in it.
    fn tools(&mut self, scanner: &mut Scanner<'_>) -> Result<bool, Stop> {
        let array = scanner.kind()? == Kind::Array;
        let range = self.tally.count_json(scanner)?;
        let inside = scanner.slice(range.start + 1..range.end);
        Ok(array && inside.trim_ascii_start() != "]")
    }

    pub fn into_request(self, route: Route, body: Bytes) -> Result<Request, DecodeError> {
        for (field, param, expected) in required(route) {
            if self.seen & field.bit() == 0 {
                return Err(DecodeError::Missing { param, expected });
            }
        }
        if self.model.is_none() && route != Route::SystemOne {
            return Err(DecodeError::Missing { param: "model", expected: "a model's name; GET /v1/models lists them" });
        }
        let (choices, prompts) = (self.choices.unwrap_or(1), self.prompts.unwrap_or(1));
        let many = choices.saturating_mul(prompts) > MAX_CHOICES;
        if many && self.stream {
            let expected = "at most 128 choices in a stream: prompts times `n`";
            return Err(DecodeError::Value { param: "prompt", expected });
        }
        let only_plain = if many {
            Some("many_choices")
        } else if self.begun && !self.stream {
            // Engines put what the client has begun before a plain answer or not, by their kind and settings; no stream says which.
            Some("begun_by_client")
        } else {
            (self.has_tools && self.logprobs).then_some("tools_with_logprobs")
        };
        let mut layout = self.layout;
        if self.closed {
            layout.seam = None;
        }
        Ok(Request {
            route,
            model: self.model.unwrap_or_default(),
            stream: self.stream,
            include_usage: self.include_usage,
            max_tokens: self.max_completion_tokens.or(self.max_tokens).or(self.max_output_tokens),
            choices,
            prompts,
            stop: self.stop,
            wants_timings: self.wants_timings,
            has_tools: self.has_tools || self.has_functions,
            service_tier: self.service_tier,
            prompt_bytes: self.tally.bytes,
            has_images: self.tally.images,
            only_plain,
            body,
            layout,
        })
    }
}

fn wrong(param: &'static str, expected: &'static str, found: Kind) -> Stop {
    DecodeError::Type { param: Cow::Borrowed(param), expected, found: found.name() }.into()
}

fn expect(scanner: &mut Scanner<'_>, kind: Kind, param: &'static str, expected: &'static str) -> Result<(), Stop> {
    let found = scanner.kind()?;
    if found == kind { Ok(()) } else { Err(wrong(param, expected, found)) }
}

/// A non-negative integer or null.
fn count(scanner: &mut Scanner<'_>, param: &'static str) -> Result<Option<u32>, Stop> {
    match scanner.kind()? {
        Kind::Null => {
            scanner.null()?;
            Ok(None)
        }
        Kind::Number => {
            let expected = "an integer from 0 to 4294967295";
            let number = scanner.number()?.parse::<u32>();
            number.map(Some).map_err(|_| DecodeError::Value { param, expected }.into())
        }
        other => Err(wrong(param, "a non-negative integer", other)),
    }
}

/// Whether the value is `true`; what else it is, is for the engine to judge.
fn flag(scanner: &mut Scanner<'_>) -> Result<bool, Stop> {
    let value = scanner.skip()?;
    Ok(scanner.slice(value) == "true")
}

fn service_tier(scanner: &mut Scanner<'_>) -> Result<Option<ServiceTier>, Stop> {
    match scanner.kind()? {
        Kind::Null => {
            scanner.null()?;
            return Ok(None);
        }
        Kind::Text => {}
        other => return Err(wrong("service_tier", "a string or null", other)),
    }
    match scanner.text()?.decode().as_ref() {
        "auto" | "standard_only" | "scale" => Ok(Some(ServiceTier::Auto)),
        "default" => Ok(Some(ServiceTier::Default)),
        "flex" => Ok(Some(ServiceTier::Flex)),
        "priority" => Ok(Some(ServiceTier::Priority)),
        _ => {
            let expected = "auto, default, flex, scale, priority or standard_only";
            Err(DecodeError::Value { param: "service_tier", expected }.into())
        }
    }
}
