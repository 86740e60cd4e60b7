//! A client's body, read once: what the gateway must know of it, and what a replica gets instead of it.
//!
//! Problem: the same body is decided upon, perhaps sent to three replicas under three model names, and must reach each as
//! the client wrote it, apart from a handful of fields.
//!
//! Choice: one strict scan notes the facts and the places of those fields; [`Request::upstream_body`] then splices slices
//! of the original bytes with a few new ones. Nothing is copied or parsed again, so what was checked is what is sent.
//!
//! Keys are compared with their escapes undone and may not repeat, so no reader behind us can see another value.

use crate::decode_error::DecodeError;
use crate::edits::{Edits, MemberCuts};
use crate::json::{Flaw, JsonError, Kind, Scanner, position, quoted};
use crate::outline::{Outline, Piece, Section};
use crate::prompt::Tally;
use crate::route::Route;
use crate::segments::Segments;
use bytes::Bytes;
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

/// Longest model name accepted, in bytes. Replicas name models by file path; a path is at most 255 bytes a component.
const MAX_MODEL_NAME: usize = 512;

/// Most choices one request may ask for: the public API's own limit.
const MAX_CHOICES: u32 = 128;

/// The urgency OpenAI's `service_tier` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceTier {
    /// `auto`, `standard_only` and `scale`: as the gateway sees fit.
    Auto,
    /// `default`.
    Default,
    /// `flex`: cheap and late.
    Flex,
    /// `priority`: soon.
    Priority,
}

/// A body that was understood.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where it was sent.
    pub route: Route,
    /// The model's name as the client gave it; empty only on [`Route::SystemOne`], where it means "the decision model".
    pub model: String,
    /// Whether the client wants server-sent events. Never on a route that does not stream.
    pub stream: bool,
    /// Whether the client asked for a usage chunk at the end of its stream (`stream_options.include_usage`).
    pub include_usage: bool,
    /// Most tokens to write: `max_completion_tokens`, else `max_tokens`, else `max_output_tokens`.
    pub max_tokens: Option<u32>,
    /// Answers wanted (`n`), 1 to 128.
    pub choices: u32,
    /// `service_tier`, if given.
    pub service_tier: Option<ServiceTier>,
    /// Bytes of text the model will read: contents, prompt, input, tools. Not the JSON around it, not pictures.
    pub prompt_bytes: u64,
    /// Whether a picture is among the input.
    pub has_images: bool,
    body: Bytes,
    layout: Layout,
}

/// What a replica's body differs in.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamRewrite<'a> {
    /// The replica's own name for the model. Empty leaves the field as it is.
    pub model: &'a str,
    /// Whether to ask for usage (`stream_options.include_usage: true`) in a stream on a route that knows it.
    pub ask_usage: bool,
}

/// Where the fields stand that a replica gets changed.
#[derive(Clone, Debug, Default)]
struct Layout {
    /// Just after the opening brace.
    front: usize,
    /// Members to be left out.
    cuts: Edits<Patch>,
    /// The model's value, quotes included.
    model: Option<Range<usize>>,
    /// The value of `stream`, if it is there.
    stream: Option<Range<usize>>,
    stream_options: StreamOptionsAt,
}

/// Where `stream_options` stands.
#[derive(Clone, Debug, Default)]
enum StreamOptionsAt {
    #[default]
    Absent,
    Null(Range<usize>),
    Object {
        front: usize,
        empty: bool,
        include_usage: Option<Range<usize>>,
    },
}

#[derive(Clone, Debug)]
enum Patch {
    Cut,
    Static(&'static str),
    Owned(Bytes),
}

impl Request {
    /// Reads a body.
    ///
    /// # Errors
    /// [`DecodeError`] if it is not strict JSON in UTF-8 of at most [`crate::MAX_DEPTH`] levels, lacks what the route
    /// needs, repeats a parameter, or holds a value that cannot be meant.
    pub fn decode(route: Route, body: Bytes) -> Result<Self, DecodeError> {
        Self::decode_telling(route, body, 0, |_| ControlFlow::Break(()))
    }

    /// [`decode`](Self::decode), and tells `visit` what the model reads, in the order in which it does (system, tools,
    /// messages), until `visit` has enough. The first `limit` bytes are told; of pictures and files only what tells them
    /// apart; of embeddings and rankings, which leave nothing on a phone that another request could use, nothing.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_telling(
        route: Route,
        body: Bytes,
        limit: usize,
        visit: impl FnMut(Piece<'_>) -> ControlFlow<()>,
    ) -> Result<Self, DecodeError> {
        let text = std::str::from_utf8(&body).map_err(|error| {
            let (line, column) = position(&body, error.valid_up_to());
            DecodeError::Encoding { line, column }
        })?;
        let leaves_something = !matches!(route, Route::Embeddings | Route::Rerank);
        let outline = Outline::new(if leaves_something { limit } else { 0 });
        let mut facts = Facts::read(route, text, outline).map_err(|stop| stop.locate(text))?;
        std::mem::take(&mut facts.tally.outline).read(text, visit);
        facts.into_request(route, body)
    }

    /// Length of the client's body in bytes.
    pub fn body_len(&self) -> usize {
        self.body.len()
    }

    /// The body for one replica, as slices of the client's with small pieces between.
    ///
    /// The model is the replica's own name; `stream` is always explicit on routes that stream (one engine streams unless
    /// told not to); fields by which a client could steer the engine or choose another upstream are left out.
    pub fn upstream_body(&self, rewrite: &UpstreamRewrite<'_>) -> Segments {
        let layout = &self.layout;
        let mut edits = layout.cuts.clone();
        let mut front: Vec<Patch> = Vec::new();
        self.patch_model(rewrite.model, &mut edits, &mut front);
        if self.route.streams() {
            let value = if self.stream { "true" } else { "false" };
            match &layout.stream {
                // Only `null` needs another word: a boolean is explicit already.
                Some(range) if self.body[range.start] == b'n' => edits.replace(range.clone(), Patch::Static(value)),
                Some(_) => {}
                None => front.push(Patch::Static(if self.stream { r#""stream":true"# } else { r#""stream":false"# })),
            }
        }
        if rewrite.ask_usage && self.stream && self.route.has_stream_options() {
            self.patch_usage(&mut edits, &mut front);
        }
        // A required member always follows, so each new one ends in a comma.
        for patch in front {
            edits.insert(layout.front, patch);
            edits.insert(layout.front, Patch::Static(","));
        }
        edits.sort();
        let mut segments = Segments::with_capacity(2 * edits.len() + 1);
        edits.weave(
            self.body.len(),
            &mut segments,
            |segments, range| segments.push(self.body.slice(range)),
            |segments, patch| match patch {
                Patch::Cut => {}
                Patch::Static(text) => segments.push(Bytes::from_static(text.as_bytes())),
                Patch::Owned(bytes) => segments.push(bytes.clone()),
            },
        );
        segments
    }

    fn patch_model(&self, model: &str, edits: &mut Edits<Patch>, front: &mut Vec<Patch>) {
        if model.is_empty() || model == self.model {
            return;
        }
        match &self.layout.model {
            Some(range) => edits.replace(range.clone(), Patch::Owned(quoted(model).into())),
            None => {
                let mut member = br#""model":"#.to_vec();
                crate::json::quote(model, &mut member);
                front.push(Patch::Owned(member.into()));
            }
        }
    }

    fn patch_usage(&self, edits: &mut Edits<Patch>, front: &mut Vec<Patch>) {
        match &self.layout.stream_options {
            StreamOptionsAt::Absent => front.push(Patch::Static(r#""stream_options":{"include_usage":true}"#)),
            StreamOptionsAt::Null(range) => edits.replace(range.clone(), Patch::Static(r#"{"include_usage":true}"#)),
            StreamOptionsAt::Object { include_usage: Some(range), .. } => {
                if !self.include_usage {
                    edits.replace(range.clone(), Patch::Static("true"));
                }
            }
            StreamOptionsAt::Object { front, empty, include_usage: None } => {
                edits.insert(*front, Patch::Static(r#""include_usage":true"#));
                if !empty {
                    edits.insert(*front, Patch::Static(","));
                }
            }
        }
    }
}

/// The parameters the gateway looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Model,
    Stream,
    StreamOptions,
    MaxCompletionTokens,
    MaxTokens,
    MaxOutputTokens,
    N,
    ServiceTier,
    Messages,
    Prompt,
    Input,
    Query,
    Documents,
    State,
    Questions,
    /// Text that the model reads before all other.
    Lead,
    /// Text that the model reads after all other.
    Tail,
    /// Tools: text that the model reads as JSON.
    Tools,
    /// Ours or the engine's own; never passed on.
    Private,
    Other,
}

impl Field {
    fn of(route: Route, name: &str) -> Self {
        use Route as R;
        match name {
            "model" => Self::Model,
            "stream" => Self::Stream,
            "stream_options" => Self::StreamOptions,
            "max_completion_tokens" => Self::MaxCompletionTokens,
            "max_tokens" => Self::MaxTokens,
            "max_output_tokens" => Self::MaxOutputTokens,
            "n" if matches!(route, R::ChatCompletions | R::Completions) => Self::N,
            "service_tier" => Self::ServiceTier,
            "messages" if matches!(route, R::ChatCompletions | R::Messages) => Self::Messages,
            "prompt" if route == R::Completions => Self::Prompt,
            "input" if matches!(route, R::Embeddings | R::Responses) => Self::Input,
            "query" if route == R::Rerank => Self::Query,
            "documents" | "texts" if route == R::Rerank => Self::Documents,
            "state" if route == R::SystemOne => Self::State,
            "questions" if route == R::SystemOne => Self::Questions,
            "instructions" if route == R::Responses => Self::Lead,
            "system" if route == R::Messages => Self::Lead,
            "suffix" if route == R::Completions => Self::Tail,
            "tools" | "functions" => Self::Tools,
            // Engine controls: slot choice, adapters, debugging output and pings are the gateway's business; switching the
            // prompt cache off makes the next prefill cost minutes.
            "id_slot" | "slot_id" | "lora" | "verbose" | "__verbose" | "sse_ping_interval" | "return_progress"
            | "timings_per_token" | "cache_prompt" => Self::Private,
            // Parameters by which client libraries choose another upstream, or carry its secrets.
            "api_base"
            | "api_key"
            | "api_version"
            | "base_url"
            | "provider"
            | "custom_llm_provider"
            | "extra_headers"
            | "extra_query"
            | "extra_body" => Self::Private,
            _ => Self::Other,
        }
    }

    /// Where the model reads it, among the others.
    fn section(self) -> Section {
        match self {
            // One state is asked many questions.
            Self::Lead | Self::State => Section::Lead,
            Self::Tools => Section::Tools,
            Self::Tail => Section::Tail,
            _ => Section::Body,
        }
    }

    /// The name, for fields that may stand there only once.
    fn once(self) -> Option<&'static str> {
        Some(match self {
            Self::Model => "model",
            Self::Stream => "stream",
            Self::StreamOptions => "stream_options",
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxTokens => "max_tokens",
            Self::MaxOutputTokens => "max_output_tokens",
            Self::N => "n",
            Self::ServiceTier => "service_tier",
            Self::Messages => "messages",
            Self::Prompt => "prompt",
            Self::Input => "input",
            Self::Query => "query",
            Self::Documents => "documents",
            Self::State => "state",
            Self::Questions => "questions",
            Self::Lead | Self::Tail | Self::Tools | Self::Private | Self::Other => return None,
        })
    }
}

/// Why reading stopped; positions are found only then.
enum Stop {
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
    fn locate(self, text: &str) -> DecodeError {
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
struct Facts {
    model: Option<String>,
    stream: bool,
    include_usage: bool,
    max_completion_tokens: Option<u32>,
    max_tokens: Option<u32>,
    max_output_tokens: Option<u32>,
    choices: Option<u32>,
    service_tier: Option<ServiceTier>,
    tally: Tally,
    layout: Layout,
    seen: u32,
}

impl Facts {
    fn read(route: Route, text: &str, outline: Outline) -> Result<Self, Stop> {
        let mut scanner = Scanner::new(text);
        let kind = scanner.kind()?;
        if kind != Kind::Object {
            // Broken text is reported as broken, whatever it begins with.
            scanner.skip()?;
            scanner.finish()?;
            return Err(DecodeError::NotAnObject { found: kind.name() }.into());
        }
        let mut facts = Self { tally: Tally { outline, ..Tally::default() }, ..Self::default() };
        let mut cuts = MemberCuts::default();
        let mut open = scanner.object()?;
        facts.layout.front = open.start + 1;
        while let Some(key) = scanner.member(&mut open)? {
            let field = Field::of(route, &key.name);
            if let Some(param) = field.once() {
                let bit = 1 << field as u32;
                if facts.seen & bit != 0 {
                    return Err(DecodeError::Duplicate { param }.into());
                }
                facts.seen |= bit;
            }
            let private = field == Field::Private || (field == Field::Stream && !route.streams());
            if !private {
                cuts.keep(key.start, &mut facts.layout.cuts, Patch::Cut);
            }
            facts.field(route, field, &mut scanner)?;
            if private {
                cuts.drop(key.before, key.start, scanner.at(), &mut facts.layout.cuts, Patch::Cut);
            }
        }
        cuts.finish(&mut facts.layout.cuts, Patch::Cut);
        scanner.finish()?;
        Ok(facts)
    }

    fn field(&mut self, route: Route, field: Field, scanner: &mut Scanner<'_>) -> Result<(), Stop> {
        self.tally.outline.enter(field.section());
        match field {
            Field::Model => self.model(scanner)?,
            Field::Stream => self.stream(route, scanner)?,
            Field::StreamOptions if route.has_stream_options() => self.stream_options(scanner)?,
            Field::MaxCompletionTokens => self.max_completion_tokens = count(scanner, "max_completion_tokens")?,
            Field::MaxTokens => self.max_tokens = count(scanner, "max_tokens")?,
            Field::MaxOutputTokens => self.max_output_tokens = count(scanner, "max_output_tokens")?,
            Field::N => {
                self.choices = count(scanner, "n")?;
                if self.choices.is_some_and(|n| n == 0 || n > MAX_CHOICES) {
                    return Err(DecodeError::Value { param: "n", expected: "an integer from 1 to 128" }.into());
                }
            }
            Field::ServiceTier => self.service_tier = service_tier(scanner)?,
            Field::Messages => self.messages(scanner)?,
            Field::Prompt => self.text_or_array("prompt", scanner)?,
            Field::Input => self.text_or_array("input", scanner)?,
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
            Field::State | Field::Tools => self.tally.count_json(scanner)?,
            Field::Lead | Field::Tail => self.tally.count(scanner)?,
            Field::StreamOptions | Field::Private | Field::Other => scanner.pass()?,
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
        self.array("messages", Some("an object with a role and content"), scanner)
    }

    fn text_or_array(&mut self, param: &'static str, scanner: &mut Scanner<'_>) -> Result<(), Stop> {
        match scanner.kind()? {
            Kind::Text => Ok(self.tally.count(scanner)?),
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
    ) -> Result<(), Stop> {
        let mut open = scanner.array()?;
        let mut index = 0_usize;
        while scanner.element(&mut open)? {
            let kind = scanner.kind()?;
            if let Some(expected) = element.filter(|_| kind != Kind::Object) {
                let param = Cow::Owned(format!("{param}[{index}]"));
                return Err(DecodeError::Type { param, expected, found: kind.name() }.into());
            }
            self.tally.outline.message();
            self.tally.count(scanner)?;
            self.tally.outline.message_over(|role| scanner.slice(role));
            index += 1;
        }
        if index == 0 { Err(DecodeError::EmptyArray { param }.into()) } else { Ok(()) }
    }

    fn into_request(self, route: Route, body: Bytes) -> Result<Request, DecodeError> {
        for (field, param, expected) in required(route) {
            if self.seen & (1 << *field as u32) == 0 {
                return Err(DecodeError::Missing { param, expected });
            }
        }
        if self.model.is_none() && route != Route::SystemOne {
            return Err(DecodeError::Missing { param: "model", expected: "a model's name; GET /v1/models lists them" });
        }
        Ok(Request {
            route,
            model: self.model.unwrap_or_default(),
            stream: self.stream,
            include_usage: self.include_usage,
            max_tokens: self.max_completion_tokens.or(self.max_tokens).or(self.max_output_tokens),
            choices: self.choices.unwrap_or(1),
            service_tier: self.service_tier,
            prompt_bytes: self.tally.bytes,
            has_images: self.tally.images,
            body,
            layout: self.layout,
        })
    }
}

/// What a route cannot do without, apart from the model.
fn required(route: Route) -> &'static [(Field, &'static str, &'static str)] {
    match route {
        Route::ChatCompletions | Route::Messages => &[(Field::Messages, "messages", "an array of messages")],
        Route::Completions => &[(Field::Prompt, "prompt", "a string or an array")],
        Route::Embeddings | Route::Responses => &[(Field::Input, "input", "a string or an array")],
        Route::Rerank => &[(Field::Query, "query", "a string"), (Field::Documents, "documents", "an array of texts")],
        Route::SystemOne => &[
            (Field::State, "state", "a text, object or array"),
            (Field::Questions, "questions", "an object of questions"),
        ],
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
