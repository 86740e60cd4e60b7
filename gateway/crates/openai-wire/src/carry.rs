//! What one replica leaves of an answer and another carries on.
//!
//! Texts are kept as they came: JSON text between its quotes, with the engine's own escapes. Pieces of it put together are
//! sound again, nothing is decoded to be encoded anew, and what the next replica reads is what the client has.

/// A part of one choice of an answer, as the next attempt is asked to carry it on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarryOn {
    /// Which choice.
    pub choice: u32,
    /// Its text so far; JSON text without the quotes. With `reasoning` empty as well, nothing of this choice was written.
    pub content: String,
    /// The reasoning before it, the same way.
    pub reasoning: String,
    /// Tokens of both: what was counted here (an event is about a token), unless the caller knows better.
    pub tokens: u32,
}

/// Why an answer can't be carried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Nothing of it was written: it begins anew.
    Nothing,
    /// A part of a tool call has gone out; engines can't be made to write the rest of one.
    ToolCall,
    /// It is longer than what is kept of answers.
    TooLong,
    /// The prompt is one that nothing can be put behind: token ids, or several prompts.
    Prompt,
    /// The route has no answer that grows.
    Route,
    /// The client or the operator does not want it.
    Unwanted,
}

impl Obstacle {
    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing_written",
            Self::ToolCall => "tool_call",
            Self::TooLong => "too_long",
            Self::Prompt => "prompt",
            Self::Route => "route",
            Self::Unwanted => "unwanted",
        }
    }
}

/// What the events of the attempt that begins are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// An answer from its beginning; what earlier attempts wrote and nobody saw is forgotten.
    Anew,
    /// More of the choice that [`AnswerStream::carry_on`](crate::AnswerStream::carry_on) gave, as events of
    /// [`Request::upstream_route`](crate::Request::upstream_route).
    CarryOn,
}

/// What is to be expected of the engine that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Its token counts are counts. Some engines state constants: these are estimated instead.
    pub counts: bool,
    /// It ends where `max_tokens` and `stop` say, and writes as many choices as `n` does. Where an engine does not, the answer is
    /// ended here, and has the choices that it has.
    pub obeys: bool,
}

impl Default for Engine {
    fn default() -> Self {
        Self { counts: true, obeys: true }
    }
}
