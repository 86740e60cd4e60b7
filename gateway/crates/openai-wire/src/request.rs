//! A client's body, read once: what the gateway must know of it, and what a replica gets instead of it.
//!
//! Problem: the same body is decided upon, perhaps sent to three replicas under three model names, with the part of an
//! answer that one of them has left behind it, and must reach each as the client wrote it, apart from a handful of fields.
//!
//! Choice: one strict scan (`scan`) notes the facts and the places of those fields (`layout`);
//! [`Request::upstream_body`] then splices slices of the original bytes with a few new ones (`body`). Nothing is copied or
//! parsed again, so what was checked is what is sent. The one exception: a response is carried on as a chat, whose body has
//! another form and is written anew (`as_chat`).
//!
//! Keys are compared with their escapes undone and may not repeat, so no reader behind us can see another value.

mod as_chat;
mod body;
mod field;
mod layout;
mod scan;

use crate::carry::{CarryOn, Obstacle};
use crate::decode_error::DecodeError;
use crate::json::position;
use crate::outline::{Outline, Piece};
use crate::route::Route;
use crate::segments::Segments;
use bytes::Bytes;
use layout::Layout;
use scan::Facts;
use std::ops::ControlFlow;

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
    /// Answers wanted (`n`), 1 to 128; of several prompts, to each.
    pub choices: u32,
    /// Prompts that are answered at once: a completion may have several. 1 on all other routes.
    pub prompts: u32,
    /// Texts at which the answer ends (`stop`, `stop_sequences`): at most 16 of at most 256 bytes. Empty as well if the client
    /// gave others; whether those are valid is for the engine to say.
    pub stop: Vec<String>,
    /// Whether the client wants the engine's own measurements (llama-server's `timings`), by `timings_per_token: true`.
    pub wants_timings: bool,
    /// Whether the model may call tools: `tools` or `functions` is an array with something in it.
    pub has_tools: bool,
    /// `service_tier`, if given.
    pub service_tier: Option<ServiceTier>,
    /// Bytes of text the model will read: contents, prompt, input, tools. Not the JSON around it, not pictures.
    pub prompt_bytes: u64,
    /// Whether a picture is among the input.
    pub has_images: bool,
    body: Bytes,
    layout: Layout,
    /// Why there can be no stream.
    only_plain: Option<&'static str>,
}

/// What a replica's body differs in.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpstreamRewrite<'a> {
    /// The replica's own name for the model. Empty leaves the field as it is.
    pub model: &'a str,
    /// Whether to ask for a stream, on a route that has one; whatever the client asked for.
    pub stream: bool,
    /// Whether to ask how the reading of the prompt gets on (llama-server's `return_progress`), in a stream.
    pub progress: bool,
    /// The part of the answer to be carried on; only of a request that [may be](Request::may_be_carried_on). The body is then
    /// one of [`Request::upstream_route`].
    pub carry_on: Option<&'a CarryOn>,
    /// Whether to ask for usage (`stream_options.include_usage: true`) in a stream on a route that knows it.
    pub ask_usage: bool,
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
        facts.take_outline().read(text, visit);
        facts.into_request(route, body)
    }

    /// Whether answers to this request can be carried on by another replica, as far as the request goes.
    ///
    /// Not if the answer does not grow ([`Obstacle::Route`]): no stream. Not if nothing can be put behind the prompt
    /// ([`Obstacle::Prompt`]): it is token ids or several prompts, is followed by a suffix or repeated in the answer; the
    /// client itself has begun the assistant's message (what one engine then sends is the new text, and another's the whole
    /// message, so nobody knows which part of the answer was the client's); or a response that is no chat.
    ///
    /// # Errors
    /// Why not.
    pub fn may_be_carried_on(&self) -> Result<(), Obstacle> {
        if !self.route.streams() {
            return Err(Obstacle::Route);
        }
        let fits = if self.route == Route::Responses { as_chat::fits(&self.body) } else { self.layout.seam.is_some() };
        match self.only_plain {
            _ if !fits => Err(Obstacle::Prompt),
            Some(_) => Err(Obstacle::Route),
            None => Ok(()),
        }
    }

    /// Where a body of this request is posted: its own route, but responses are carried on as chats, since no engine carries
    /// on a response.
    pub fn upstream_route(&self, carry_on: bool) -> Route {
        if carry_on && self.route == Route::Responses { Route::ChatCompletions } else { self.route }
    }

    /// Why the engines can't stream an answer to this request though the route has streams, or why what they stream is not the
    /// plain answer that the client wants; `None` if they can. The word is for metrics.
    pub fn only_plain(&self) -> Option<&'static str> {
        self.only_plain
    }

    /// Choices that the answer has: so many for each prompt.
    pub fn all_choices(&self) -> u32 {
        self.choices.saturating_mul(self.prompts)
    }

    /// Length of the client's body in bytes.
    pub fn body_len(&self) -> usize {
        self.body.len()
    }

    /// The body for one replica, as slices of the client's with small pieces between.
    ///
    /// The model is the replica's own name; `stream` is always explicit on routes that stream (one engine streams unless
    /// told not to), and without a stream its options are left out; fields by which a client could steer the engine or choose
    /// another upstream are left out.
    ///
    /// A part to be carried on goes behind the prompt: as the assistant's last message, with the word that it is to be gone on
    /// with, or as more text of a completion's prompt. It is for one choice, and what it has of the tokens that may be written
    /// is taken off. A part without any text is a choice that has not begun: the body then asks for one choice from its start.
    pub fn upstream_body(&self, rewrite: &UpstreamRewrite<'_>) -> Segments {
        match rewrite.carry_on {
            Some(part) if self.route == Route::Responses => as_chat::body(&self.body, rewrite, part),
            _ => self.spliced(rewrite),
        }
    }
}
