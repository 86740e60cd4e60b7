//! How the answer to one request has to look, whichever replica brings it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use openai_wire::{AnswerStream, ErrorBody, Request, StreamOptions};

use crate::{clock, config};

/// What all attempts at one request share: what was asked, and how the answer is read and written.
pub struct Shape<'r> {
    pub(super) request: &'r Request,
    /// Tokens of the prompt, estimated: for a usage that no replica states.
    pub(super) prompt_tokens: u64,
    /// Largest event of a replica, bytes.
    max_event: usize,
    /// The id and the time in keep-alive chunks, where the operator wants those.
    keepalive: Option<(Arc<str>, u64)>,
}

impl<'r> Shape<'r> {
    /// The shape of the answer to this request. `id` is `x-request-id`.
    pub fn new(request: &'r Request, prompt_tokens: u32, id: &Arc<str>, streams: &config::Streams) -> Self {
        let chunks = request.stream && streams.keepalive == config::Keepalive::Chunk;
        Self {
            request,
            prompt_tokens: u64::from(prompt_tokens),
            max_event: streams.max_event.as_usize(),
            keepalive: chunks.then(|| (Arc::clone(id), clock::unix().as_secs())),
        }
    }

    /// Whether the client asked for a stream.
    pub fn is_stream(&self) -> bool {
        self.request.stream
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

    /// A stream of which the client has seen nothing but keep-alive chunks.
    pub(super) fn codec(&self) -> AnswerStream {
        self.fresh().0
    }

    fn fresh(&self) -> (AnswerStream, Option<Bytes>) {
        let options = StreamOptions { model: self.request.model.clone(), include_usage: self.request.include_usage };
        let mut codec = AnswerStream::new(self.request.route, options)
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
