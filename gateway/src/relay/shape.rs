//! How the answer to one request has to look, whichever replica brings it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use openai_wire::{AnswerStream, ErrorBody, Obstacle, Request, StreamOptions};
use scheduler::Carry;

use super::progress::Outlook;
use crate::{clock, config};

/// What all attempts at one request share: what was asked, and how the answer is read and written.
pub struct Shape<'r> {
    pub(super) request: &'r Request,
    /// Tokens of the prompt, estimated: for a usage that no replica states.
    pub(super) prompt_tokens: u64,
    /// What a client that wants to know is told of the attempts.
    pub(super) outlook: Option<Arc<Outlook>>,
    /// Who may carry the answer on; never [`Carry::Never`], but what is in the way.
    pub(super) carry: Result<Carry, Obstacle>,
    /// Largest event of a replica, bytes.
    max_event: usize,
    /// Tool calls go out whole.
    hold_tool_calls: bool,
    /// Most text kept of a streamed answer, bytes.
    max_kept: usize,
    /// The id and the time in keep-alive chunks, where the operator wants those.
    keepalive: Option<(Arc<str>, u64)>,
}

impl<'r> Shape<'r> {
    /// The shape of the answer to this request. `id` is `x-request-id`; `wanted` says who may carry the answer on, as
    /// far as operator and client go; `outlook` is there for a client that wants to be told.
    pub fn new(
        request: &'r Request,
        prompt_tokens: u32,
        id: &Arc<str>,
        streams: &config::Streams,
        wanted: Carry,
        outlook: Option<Arc<Outlook>>,
    ) -> Self {
        let chunks = request.stream && streams.keepalive == config::Keepalive::Chunk;
        let carry = match wanted {
            Carry::Never => Err(Obstacle::Unwanted),
            wanted => request.may_be_carried_on().map(|()| wanted),
        };
        // What can't be carried on is not kept, and nothing is held back for its sake.
        let carried = carry.is_ok();
        Self {
            request,
            prompt_tokens: u64::from(prompt_tokens),
            outlook,
            carry,
            max_event: streams.max_event.as_usize(),
            hold_tool_calls: carried && streams.hold_tool_calls,
            max_kept: if carried { streams.max_kept.as_usize() } else { 0 },
            keepalive: chunks.then(|| (Arc::clone(id), clock::unix().as_secs())),
        }
    }

    /// Whether the client asked for a stream.
    pub fn is_stream(&self) -> bool {
        self.request.stream
    }

    /// Who may carry the answer on, as the core is told.
    pub fn carry(&self) -> Carry {
        self.carry.unwrap_or(Carry::Never)
    }

    /// A first attempt starts, or another after it.
    pub fn begin(&self) {
        self.outlook.iter().for_each(|outlook| outlook.begin());
    }

    /// What a silent stream is kept alive with instead of comments, where the operator wants that.
    pub fn filler(&self) -> Option<Bytes> {
        self.fresh().1
    }

    /// The event that ends a begun stream with an error; empty for a plain answer. `begun` is what the client has seen of it.
    pub fn error_event(&self, begun: Option<&AnswerStream>, error: &ErrorBody) -> Bytes {
        match begun {
            _ if !self.request.stream => Bytes::new(),
            Some(stream) => stream.error_event(error),
            None => self.codec().error_event(error),
        }
    }

    /// An answer of which the client has seen nothing but keep-alive chunks.
    pub(super) fn codec(&self) -> AnswerStream {
        self.fresh().0
    }

    fn fresh(&self) -> (AnswerStream, Option<Bytes>) {
        let request = self.request;
        let options = StreamOptions {
            model: request.model.clone(),
            include_usage: request.include_usage,
            plain: !request.stream,
            hold_tool_calls: self.hold_tool_calls,
            max_kept: self.max_kept,
            timings: request.wants_timings,
            choices: request.all_choices(),
            max_tokens: request.max_tokens,
            stop: request.stop.clone(),
        };
        let mut codec = AnswerStream::new(request.route, options)
            .with_prompt_estimate(self.prompt_tokens)
            .with_event_limit(self.max_event);
        let filler = self.keepalive.as_ref().map(|(id, created)| {
            let mut chunk = BytesMut::new();
            codec.keepalive_chunk(id, *created, &mut chunk);
            chunk.freeze()
        });
        (codec, filler)
    }
}
