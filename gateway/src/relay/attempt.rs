//! What an attempt does before its client sees anything: send, wait, read, until its answer is decided.
//!
//! Several copies of a request may do this at once, so an attempt has nothing of the client's here: it is a future of its
//! own, and whoever drops it closes the connection, by which the phone learns that nobody waits any more.

use std::{future::Future, pin::pin, sync::Arc};

use bytes::Bytes;
use openai_wire::{UpstreamRewrite, Usage};
use scheduler::{AttemptId, SoftFailure};

use super::{
    Failed, Finished, Unfinished,
    deadline::Deadline,
    measured,
    patience::{self, Expected},
    progress::Reports,
    shape::Shape,
    stream::Stream,
};
use crate::{
    clock, config,
    fleet::Replica,
    gateway::{Gateway, Held},
    upstream::Reply,
};

/// Largest error body of a replica that is looked at.
const MAX_ERROR: usize = 64 << 10;
/// Output held back for want of content; a stream of empty events is passed on from here.
const MAX_HELD: usize = 64 << 10;
/// Bytes of text per token of an answer whose usage is not stated.
const BYTES_PER_TOKEN: u64 = 4;

/// One attempt.
pub struct Attempt<'a> {
    /// Settings, connections, the core.
    pub gateway: &'a Gateway,
    /// What was asked.
    pub shape: &'a Shape<'a>,
    /// Where it runs.
    pub replica: Arc<Replica>,
    /// The replica's own name for the model.
    pub model: Arc<str>,
    /// The core's number of it.
    pub number: AttemptId,
    /// How long the replica should take for this prompt, and for one token, by its measured speeds.
    pub expected: Expected,
    /// Where room for a plain answer comes from.
    pub held: &'a Held,
    /// The client has the head of a stream already: no other answer can follow.
    pub head_sent: bool,
}

/// An answer that can be the client's.
pub enum Decided {
    /// It is here, whole.
    Whole(Finished),
    /// It has begun.
    Begun(Box<Stream>),
}

impl<'a> Attempt<'a> {
    /// Runs until the answer is decided: with its first content if it is streamed, when it is whole if not. Or until there
    /// will be none.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its argument twice in its state")]
    pub fn run(self) -> impl Future<Output = Result<Decided, Unfinished>> + Send + use<'a> {
        async move { self.decide().await }
    }

    async fn decide(&self) -> Result<Decided, Unfinished> {
        let request = self.shape.request;
        let sent = clock::now();
        let (patience, gap) = {
            let streams = &self.gateway.config().streams;
            let first = patience::first_token(streams, self.expected.prefill);
            (if request.stream { first } else { streams.plain_total }, patience::gap(streams, self.expected.token))
        };
        let mut deadline = Deadline::new(sent + patience);
        let reply = self.open(&mut deadline).await?;
        if !request.stream {
            return self.whole(reply, &mut deadline).await;
        }
        if is_event_stream(reply.content_type()) {
            let stream = Stream::new(reply, self.shape.codec(), sent, deadline, gap);
            return self.begin(Box::new(stream)).await;
        }
        // Some engines answer a request for a stream with one object; that is an answer, while the head is not out.
        if self.head_sent { Err(Failed::not_a_stream().into()) } else { self.whole(reply, &mut deadline).await }
    }

    /// Sends the request; an answer that is none becomes a failure.
    async fn open(&self, deadline: &mut Deadline) -> Result<Reply, Unfinished> {
        let upstream = &self.gateway.upstream;
        let (replica, request) = (&self.replica, self.shape.request);
        let body = || request.upstream_body(&UpstreamRewrite { model: &self.model, ask_usage: true }).into();
        let key = replica.key.as_ref().map(config::Secret::reveal);
        let sending = pin!(upstream.post(&replica.endpoint, request.route.path(), key, body));
        let mut reply = deadline.bound(SoftFailure::NoFirstToken, sending).await??;
        if reply.head.status.is_success() {
            return Ok(reply);
        }
        let retry_after = reply.retry_after();
        let body = deadline.bound(SoftFailure::NoFirstToken, pin!(reply.collect(MAX_ERROR))).await?;
        // A broken error body says no less than its status.
        let body = body.unwrap_or_else(|_| Bytes::new());
        let status = reply.head.status.as_u16();
        let error = openai_wire::classify_error(request.route, status, reply.content_type(), &body);
        upstream.recycle(&replica.endpoint, reply);
        Err(Failed::answered(error, status, retry_after).into())
    }

    /// Reads an answer that is one JSON object.
    async fn whole(&self, mut reply: Reply, deadline: &mut Deadline) -> Result<Decided, Unfinished> {
        let request = self.shape.request;
        let max = self.gateway.config().streams.max_answer.as_usize();
        // Given back if the attempt fails.
        let mut room = self.held.part();
        let body = {
            let whole = pin!(reply.collect_within(max, |bytes| room.grow(bytes).map_err(Unfinished::Refused)));
            deadline.bound(SoftFailure::Stalled, whole).await??
        };
        let answer = openai_wire::decode_answer(request.route, reply.content_type(), body, &request.model)
            .map_err(|error| Failed::answered(error, 200, None))?;
        self.gateway.upstream.recycle(&self.replica.endpoint, reply);
        let estimated = answer.usage.is_none();
        let usage = answer.usage.unwrap_or_else(|| Usage {
            prompt_tokens: self.shape.prompt_tokens,
            completion_tokens: answer.text_bytes.div_ceil(BYTES_PER_TOKEN),
            cached_tokens: 0,
        });
        let timings = answer.timings.as_ref().map(measured::by_engine);
        Ok(Decided::Whole(Finished {
            rest: answer.body,
            timings,
            usage: Some((usage, estimated)),
            streamed: false,
            room: Some(room),
        }))
    }

    /// Reads a stream up to its first content.
    async fn begin(&self, mut stream: Box<Stream>) -> Result<Decided, Unfinished> {
        let mut reports = Reports::default();
        loop {
            let read = stream.read(SoftFailure::NoFirstToken).await?;
            if stream.has_begun() || stream.is_complete() || stream.held() > MAX_HELD {
                return Ok(Decided::Begun(stream));
            }
            if read.data_events > 0
                && let Some(event) = stream.progress().and_then(|seen| reports.due(self.number, &seen))
            {
                self.gateway.dispatcher.handle(event);
            }
        }
    }
}

fn is_event_stream(content_type: Option<&str>) -> bool {
    content_type
        .is_some_and(|text| text.trim_start().get(..17).is_some_and(|t| t.eq_ignore_ascii_case("text/event-stream")))
}
