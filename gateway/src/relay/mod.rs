//! One attempt: send the request to a replica, and copy its answer to the client.
//!
//! Nothing goes to the client before the replica has sent content: until then another replica can take over, and a
//! refusal has a proper status. (A waiting stream may have its head and comments by then; that is still no content.)
//! Afterwards a broken answer ends with an error event and an aborted connection, never with a clean end.

mod attempt;
mod deadline;
pub mod head;
mod measured;
mod patience;
mod verdict;

use std::{future::Future, sync::Arc};

use bytes::{Bytes, BytesMut};
use openai_wire::{AnswerStream, ErrorBody, Request, Segments, StreamOptions};
use scheduler::{CancelReason, Timings};

pub use self::{
    attempt::Attempt,
    patience::Expected,
    verdict::{Failed, OURS},
};
use crate::{
    clock, config,
    error::ApiError,
    listener::{Exchange, Interrupted},
    upstream::Failure,
};

/// How an attempt ended when it did not end the request.
#[derive(Debug)]
pub enum Unfinished {
    /// The client left, or an operator cancelled.
    Interrupted(Interrupted),
    /// The core took the slot back.
    Cancelled(CancelReason),
    /// The replica failed.
    Failed(Failed),
    /// We can't take its answer.
    Refused(ApiError),
}

impl From<Interrupted> for Unfinished {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

impl From<Failure> for Unfinished {
    fn from(failure: Failure) -> Self {
        Self::Failed(Failed::transport(&failure))
    }
}

impl From<Failed> for Unfinished {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// A whole answer of a replica.
pub struct Finished {
    /// What is left to write: the whole body, or the rest of the stream.
    pub rest: Segments,
    /// For the scheduler.
    pub timings: Option<Timings>,
    /// Tokens of prompt and answer, for the tenant's limit.
    pub used: Option<u64>,
    /// Whether it goes out as a stream.
    pub streamed: bool,
}

/// The answer to one request, over as many attempts as it takes.
pub struct Answer<'r> {
    request: &'r Request,
    stream: Option<Stream>,
    out: BytesMut,
}

/// A streamed answer.
struct Stream {
    codec: AnswerStream,
    /// Events have gone to the client (comments don't count): a new attempt must fit to them.
    passed_on: bool,
    /// For a usage that no replica states.
    prompt_tokens: u64,
    /// Largest event of a replica, bytes.
    max_event: usize,
    /// The id and the time in keep-alive chunks, where the operator wants those.
    keepalive: Option<(Arc<str>, u64)>,
}

impl<'r> Answer<'r> {
    /// No attempt yet. `prompt_tokens` is for a usage that no replica states.
    pub fn new(request: &'r Request, prompt_tokens: u32, exchange: &mut Exchange, streams: &config::Streams) -> Self {
        let mut answer = Self { request, stream: None, out: BytesMut::new() };
        if request.stream {
            let chunks = streams.keepalive == config::Keepalive::Chunk;
            let keepalive = chunks.then(|| (Arc::clone(exchange.id()), clock::unix().as_secs()));
            let mut stream = Stream {
                codec: AnswerStream::new(request.route, options(request)),
                passed_on: false,
                prompt_tokens: u64::from(prompt_tokens),
                max_event: streams.max_event.as_usize(),
                keepalive,
            };
            if let Some(filler) = stream.restart(request) {
                exchange.set_filler(filler);
            }
            answer.stream = Some(stream);
        }
        answer
    }

    /// Whether the client has seen content.
    pub fn content_sent(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.passed_on && stream.codec.content_sent())
    }

    /// The event that ends a begun stream with an error; empty for a plain answer.
    pub fn error_event(&self, error: &ErrorBody) -> Bytes {
        self.stream.as_ref().map(|stream| stream.codec.error_event(error)).unwrap_or_default()
    }

    /// Runs one attempt to the end of the replica's answer.
    pub async fn attempt<S: Future<Output = CancelReason>>(
        &mut self,
        exchange: &mut Exchange,
        mut attempt: Attempt<'_, S>,
    ) -> Result<Finished, Unfinished> {
        self.out.clear();
        match self.stream.take() {
            None => attempt.plain(self.request, exchange).await,
            Some(mut stream) => {
                if stream.passed_on {
                    stream.codec.begin_attempt();
                } else {
                    stream.restart(self.request);
                }
                let finished = attempt.stream(self.request, exchange, &mut stream, &mut self.out).await;
                self.stream = Some(stream);
                finished
            }
        }
    }
}

/// Writes what is left of a whole answer. The slot is free by now: a slow client costs no phone.
pub async fn deliver(
    exchange: &mut Exchange,
    rest: Segments,
    streamed: bool,
    head: Box<pingora::http::ResponseHeader>,
) -> Result<(), Interrupted> {
    if !streamed {
        return exchange.respond(head, rest).await;
    }
    exchange.begin(head).await?;
    for piece in rest {
        exchange.write(piece).await?;
    }
    exchange.end().await
}

impl Stream {
    /// Forgets what an attempt brought that the client has not seen; the keep-alive chunk, if there is one.
    fn restart(&mut self, request: &Request) -> Option<Bytes> {
        self.codec = AnswerStream::new(request.route, options(request))
            .with_prompt_estimate(self.prompt_tokens)
            .with_event_limit(self.max_event);
        let (id, created) = self.keepalive.as_ref()?;
        let mut chunk = BytesMut::new();
        self.codec.keepalive_chunk(id, *created, &mut chunk);
        Some(chunk.freeze())
    }
}

fn options(request: &Request) -> StreamOptions {
    StreamOptions { model: request.model.clone(), include_usage: request.include_usage }
}
