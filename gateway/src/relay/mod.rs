//! One attempt: send the request to a replica, and copy its answer to the client.
//!
//! Nothing goes to the client before the replica has sent content: until then another replica can take over, and a
//! refusal has a proper status. (A waiting stream may have its head and comments by then; that is still no content.)
//! Afterwards a broken answer ends with an error event and an aborted connection, never with a clean end.

mod deadline;
pub mod head;
mod verdict;

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use openai_wire::{AnswerStream, EngineTimings, ErrorBody, Request, Segments, StreamOptions, UpstreamRewrite, Usage};
use scheduler::{CancelReason, Outcome, SoftFailure, Timestamp, Timings};

pub use self::verdict::{Failed, OURS};
use self::{deadline::Deadline, head::Facts};
use crate::{
    clock, config,
    dispatch::Grant,
    error::ApiError,
    fleet::Replica,
    gateway::{Gateway, Held},
    listener::{Exchange, Interrupted},
    live::Entry,
    telemetry::RequestRecord,
    upstream::{Failure, Reply},
};

/// Largest error body of a replica that is looked at.
const MAX_ERROR: usize = 64 << 10;
/// Output held back for want of content; a stream of empty events is passed on from here.
const MAX_HELD: usize = 64 << 10;

/// Bytes of text per token of an answer whose usage is not stated.
const BYTES_PER_TOKEN: u64 = 4;

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

/// What one attempt works with.
pub struct Attempt<'a, S> {
    /// Settings, metrics, connections.
    pub gateway: &'a Gateway,
    /// Where it runs.
    pub replica: &'a Replica,
    /// The replica's own name for the model.
    pub model: &'a str,
    /// The slot.
    pub grant: &'a Grant,
    /// Accounts for the request.
    pub record: &'a mut RequestRecord,
    /// Its line in the operator's list.
    pub entry: &'a Entry,
    /// What every head says.
    pub facts: &'a Facts<'a>,
    /// Resolves when the core takes the slot back.
    pub stopped: Pin<&'a mut S>,
    /// How long the replica should take for this prompt, and for one token, by its measured speeds.
    pub expected: Expected,
    /// Tokens of the prompt, estimated.
    pub prompt: u32,
    /// Room for a plain answer.
    pub held: &'a mut Held,
}

/// What a replica's measured speeds promise; `None` until there is a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// Reading the prompt.
    pub prefill: Option<Duration>,
    /// Writing one token.
    pub token: Option<Duration>,
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

impl<S: Future<Output = CancelReason>> Attempt<'_, S> {
    /// Waits for something of the replica: while the client waits, the core lets us, and patience lasts.
    async fn wait<F: Future + Unpin>(
        &mut self,
        exchange: &mut Exchange,
        deadline: &mut Deadline,
        late: SoftFailure,
        future: F,
    ) -> Result<F::Output, Unfinished> {
        let stopped = self.stopped.as_mut();
        // The replica comes last: one that never pauses must not outlast its deadline.
        let waiting = pin!(async {
            tokio::select! {
                biased;
                why = stopped => Err(Unfinished::Cancelled(why)),
                () = deadline.passed() => Err(Failed::new(Outcome::Soft(late), late_name(late), late_phase(late)).into()),
                done = future => Ok(done),
            }
        });
        exchange.drive(waiting).await?
    }

    async fn plain(&mut self, request: &Request, exchange: &mut Exchange) -> Result<Finished, Unfinished> {
        let patience = self.gateway.config().streams.plain_total;
        let mut deadline = Deadline::new(clock::now() + patience);
        let reply = self.open(request, exchange, &mut deadline).await?;
        self.whole(request, exchange, reply, &mut deadline).await
    }

    /// Reads an answer that is one JSON object.
    async fn whole(
        &mut self,
        request: &Request,
        exchange: &mut Exchange,
        mut reply: Reply,
        deadline: &mut Deadline,
    ) -> Result<Finished, Unfinished> {
        let max = self.gateway.config().streams.max_answer.as_usize();
        // Room for an attempt's answer is given back if the attempt fails.
        let mut room = self.held.part();
        let body = {
            let whole = pin!(reply.collect_within(max, |bytes| room.grow(bytes).map_err(Unfinished::Refused)));
            self.wait(exchange, deadline, SoftFailure::Stalled, whole).await??
        };
        self.held.join(room);
        let answer = openai_wire::decode_answer(request.route, reply.content_type(), body, &request.model)
            .map_err(|error| Failed::answered(error, 200, None))?;
        self.gateway.upstream.recycle(&self.replica.endpoint, reply);
        let stated = answer.usage.as_ref();
        let usage = stated.copied().unwrap_or_else(|| Usage {
            prompt_tokens: u64::from(self.prompt),
            completion_tokens: answer.text_bytes.div_ceil(BYTES_PER_TOKEN),
            cached_tokens: 0,
        });
        self.record.usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, stated.is_none());
        let timings = answer.timings.as_ref().map(measured_by_engine);
        Ok(Finished { rest: answer.body, timings, used: Some(total(&usage)), streamed: false })
    }

    async fn stream(
        &mut self,
        request: &Request,
        exchange: &mut Exchange,
        stream: &mut Stream,
        out: &mut BytesMut,
    ) -> Result<Finished, Unfinished> {
        let gateway = self.gateway;
        let config = gateway.config();
        let sent = clock::now();
        let gap = gap_deadline(&config.streams, self.expected.token);
        let mut deadline = Deadline::new(sent + first_token_deadline(&config.streams, self.expected.prefill));
        let mut reply = self.open(request, exchange, &mut deadline).await?;
        if !is_event_stream(reply.content_type()) {
            // Some engines answer a request for a stream with one object; that is an answer, while the head is not out.
            if exchange.head_sent() {
                return Err(Failed::new(Outcome::Soft(SoftFailure::BadAnswer), "not_a_stream", "head").into());
            }
            return self.whole(request, exchange, reply, &mut deadline).await;
        }
        let mut first: Option<Timestamp> = None;
        loop {
            let late = if first.is_some() { SoftFailure::Stalled } else { SoftFailure::NoFirstToken };
            let piece = self.wait(exchange, &mut deadline, late, pin!(reply.chunk())).await?;
            let piece = match piece {
                Ok(Some(piece)) => piece,
                Ok(None) => {
                    stream.codec.end(out).map_err(Failed::streamed)?;
                    break;
                }
                // The connection broke, but the answer may have been whole by then.
                Err(failure) => {
                    stream.codec.end(out).map_err(|_| Failed::transport(&failure))?;
                    break;
                }
            };
            let step = stream.codec.push(&piece, out).map_err(Failed::streamed)?;
            if step.content_events > 0 && first.is_none() {
                first = Some(clock::now());
                self.grant.first_token();
                self.record.first_token();
            }
            self.entry.progress(stream.codec.content_events());
            if step.complete {
                break;
            }
            if first.is_some() {
                deadline.set(clock::now() + gap);
            }
            if first.is_some() || out.len() > MAX_HELD {
                // Also with nothing to write: the core was told of content, and expects no other attempt.
                stream.passed_on = true;
                if !out.is_empty() {
                    self.pass_on(exchange, out).await?;
                }
            }
        }
        let ended = clock::now();
        gateway.upstream.recycle_if_ended(&self.replica.endpoint, reply);
        let usage = stream.codec.usage();
        if let Some(usage) = &usage {
            let estimated = stream.codec.usage_estimated();
            self.record.usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, estimated);
        }
        let timings = match stream.codec.timings() {
            Some(timings) => Some(measured_by_engine(&timings)),
            None => usage.zip(first).map(|(usage, first)| measured_here(&usage, sent, first, ended)),
        };
        let rest = Segments::from(out.split().freeze());
        Ok(Finished { rest, timings, used: usage.as_ref().map(total), streamed: true })
    }

    async fn pass_on(&mut self, exchange: &mut Exchange, out: &mut BytesMut) -> Result<(), Unfinished> {
        if !exchange.head_sent() {
            let mut head = head::stream(self.facts);
            self.trace(&mut head);
            exchange.begin(head).await?;
        }
        // A client that does not read must not hold a slot that the core has taken back.
        tokio::select! {
            biased;
            written = exchange.write(out.split().freeze()) => Ok(written?),
            why = self.stopped.as_mut() => Err(Unfinished::Cancelled(why)),
        }
    }

    /// The head of an answer tells how it came about.
    pub fn trace(&self, head: &mut pingora::http::ResponseHeader) {
        let shown = self.gateway.config().server.expose_replica.then_some(&self.replica.label);
        head::trace(head, self.record, shown);
    }

    /// Sends the request; an answer that is none becomes a failure.
    async fn open(
        &mut self,
        request: &Request,
        exchange: &mut Exchange,
        deadline: &mut Deadline,
    ) -> Result<Reply, Unfinished> {
        let upstream = &self.gateway.upstream;
        let (replica, model) = (self.replica, self.model);
        let body = || request.upstream_body(&UpstreamRewrite { model, ask_usage: true }).into();
        let key = replica.key.as_ref().map(config::Secret::reveal);
        let sending = pin!(upstream.post(&replica.endpoint, request.route.path(), key, body));
        let reply = self.wait(exchange, deadline, SoftFailure::NoFirstToken, sending).await?;
        let mut reply = reply?;
        if reply.head.status.is_success() {
            return Ok(reply);
        }
        let retry_after = reply.retry_after();
        let body = self.wait(exchange, deadline, SoftFailure::NoFirstToken, pin!(reply.collect(MAX_ERROR))).await?;
        // A broken error body says no less than its status.
        let body = body.unwrap_or_else(|_| Bytes::new());
        let status = reply.head.status.as_u16();
        let error = openai_wire::classify_error(request.route, status, reply.content_type(), &body);
        upstream.recycle(&replica.endpoint, reply);
        Err(Failed::answered(error, status, retry_after).into())
    }
}

fn is_event_stream(content_type: Option<&str>) -> bool {
    content_type
        .is_some_and(|text| text.trim_start().get(..17).is_some_and(|t| t.eq_ignore_ascii_case("text/event-stream")))
}

const fn late_name(late: SoftFailure) -> &'static str {
    if matches!(late, SoftFailure::Stalled) { "stalled" } else { "no_first_token" }
}

const fn late_phase(late: SoftFailure) -> &'static str {
    if matches!(late, SoftFailure::Stalled) { "body" } else { "head" }
}

/// How long the first token may take: some times what the replica's own speed says for this prompt, within bounds.
fn first_token_deadline(streams: &config::Streams, expected: Option<Duration>) -> Duration {
    some_times(expected, streams.first_token_factor).max(streams.first_token_min).min(streams.first_token_cap)
}

/// How long the next token may take: some times what the replica usually takes for one, within bounds.
fn gap_deadline(streams: &config::Streams, expected: Option<Duration>) -> Duration {
    some_times(expected, streams.gap_factor).max(streams.gap_min).min(streams.gap_cap)
}

/// `mul_f64` that doesn't panic: speeds come from replicas, which can claim a token in the age of the universe.
fn some_times(expected: Option<Duration>, factor: f64) -> Duration {
    let seconds = expected.unwrap_or_default().as_secs_f64() * factor;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

fn total(usage: &Usage) -> u64 {
    usage.prompt_tokens.saturating_add(usage.completion_tokens)
}

fn measured_by_engine(timings: &EngineTimings) -> Timings {
    let length = |millis: f64| Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default();
    Timings {
        prefill_tokens: timings.prompt_n,
        prefill: length(timings.prompt_ms),
        decode_tokens: timings.predicted_n,
        decode: length(timings.predicted_ms),
        cached_tokens: timings.cache_n,
    }
}

/// Where the engine tells no timings: the first token's delay is prefill, the rest decode.
fn measured_here(usage: &Usage, sent: Timestamp, first: Timestamp, ended: Timestamp) -> Timings {
    let tokens = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    Timings {
        prefill_tokens: tokens(usage.prompt_tokens.saturating_sub(usage.cached_tokens)),
        prefill: first.since(sent),
        decode_tokens: tokens(usage.completion_tokens.saturating_sub(1)),
        decode: ended.since(first),
        cached_tokens: tokens(usage.cached_tokens),
    }
}
