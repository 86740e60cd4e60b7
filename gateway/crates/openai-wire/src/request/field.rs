//! The parameters of a body that the gateway looks at, by route.

use crate::outline::Section;
use crate::request::layout::Without;
use crate::route::Route;

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Model,
    Stream,
    StreamOptions,
    MaxCompletionTokens,
    MaxTokens,
    MaxOutputTokens,
    /// llama-server's own limit, which takes precedence over the public ones there.
    NPredict,
    N,
    Stop,
    Logprobs,
    /// Repeat what was given before what is new.
    Echo,
    AddGenerationPrompt,
    ContinueFinalMessage,
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
    /// Their older form.
    Functions,
    /// Whether the client gets the engine's measurements: asked of the gateway, never passed on.
    Timings,
    /// Ours or the engine's own; never passed on.
    Private,
    Other,
}

impl Field {
    pub fn of(route: Route, name: &str) -> Self {
        use Route as R;
        let chat = route == R::ChatCompletions;
        let chat_or_text = chat || route == R::Completions;
        match name {
            "model" => Self::Model,
            "stream" => Self::Stream,
            "stream_options" => Self::StreamOptions,
            "max_completion_tokens" => Self::MaxCompletionTokens,
            "max_tokens" => Self::MaxTokens,
            "max_output_tokens" => Self::MaxOutputTokens,
            "n_predict" if route.streams() => Self::NPredict,
            "n" if chat_or_text => Self::N,
            "stop" if chat_or_text => Self::Stop,
            "stop_sequences" if route == R::Messages => Self::Stop,
            "logprobs" if chat || route == R::Responses => Self::Logprobs,
            "echo" if chat_or_text => Self::Echo,
            "add_generation_prompt" if chat => Self::AddGenerationPrompt,
            "continue_final_message" if chat => Self::ContinueFinalMessage,
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
            "tools" => Self::Tools,
            "functions" => Self::Functions,
            "timings_per_token" => Self::Timings,
            // Engine controls: slot choice, adapters, debugging output and pings are the gateway's business; switching the
            // prompt cache off makes the next prefill cost minutes.
            "id_slot" | "slot_id" | "lora" | "verbose" | "__verbose" | "sse_ping_interval" | "return_progress"
            | "cache_prompt" => Self::Private,
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
    pub fn section(self) -> Section {
        match self {
            // One state is asked many questions.
            Self::Lead | Self::State => Section::Lead,
            Self::Tools | Self::Functions => Section::Tools,
            Self::Tail => Section::Tail,
            _ => Section::Body,
        }
    }

    /// Which bodies go without it.
    pub fn without(self, route: Route) -> Option<Without> {
        match self {
            Self::Private | Self::Timings => Some(Without::Always),
            Self::Stream if !route.streams() => Some(Without::Always),
            // OpenAI's own service refuses the options of a stream that is none.
            Self::StreamOptions if route.streams() => Some(Without::Plain),
            // One choice is carried on, as the gateway says and not as the client does; with `echo` the engine would repeat
            // the part that is carried on.
            Self::N | Self::Echo | Self::AddGenerationPrompt | Self::ContinueFinalMessage => Some(Without::CarriedOn),
            _ => None,
        }
    }

    /// The name, for fields that may stand there only once.
    pub fn once(self) -> Option<&'static str> {
        Some(match self {
            Self::Model => "model",
            Self::Stream => "stream",
            Self::StreamOptions => "stream_options",
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxTokens => "max_tokens",
            Self::MaxOutputTokens => "max_output_tokens",
            Self::NPredict => "n_predict",
            Self::N => "n",
            Self::Stop => "stop",
            Self::Logprobs => "logprobs",
            Self::Echo => "echo",
            Self::AddGenerationPrompt => "add_generation_prompt",
            Self::ContinueFinalMessage => "continue_final_message",
            Self::ServiceTier => "service_tier",
            Self::Messages => "messages",
            Self::Prompt => "prompt",
            Self::Input => "input",
            Self::Query => "query",
            Self::Documents => "documents",
            Self::State => "state",
            Self::Questions => "questions",
            Self::Tools => "tools",
            Self::Lead | Self::Tail | Self::Functions | Self::Timings | Self::Private | Self::Other => return None,
        })
    }

    /// A bit of its own.
    pub fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// What a route cannot do without, apart from the model.
pub(super) fn required(route: Route) -> &'static [(Field, &'static str, &'static str)] {
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
