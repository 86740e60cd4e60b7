//! What an attempt does: send, wait, read.

use std::{
    future::Future,
    pin::{Pin, pin},
};

use bytes::{Bytes, BytesMut};
use openai_wire::{Request, Segments, UpstreamRewrite, Usage};
use scheduler::{CancelReason, Outcome, SoftFailure, Timestamp};

use super::{
    Failed, Finished, Stream, Unfinished,
    deadline::Deadline,
    head::{self, Facts},
    measured,
    patience::{self, Expected},
};
use crate::{
    clock, config,
    dispatch::Grant,
    fleet::Replica,
    gateway::{Gateway, Held},
    listener::Exchange,
    live::Entry,
    telemetry::RequestRecord,
    upstream::Reply,
};

/// Largest error body of a replica that is looked at.
const MAX_ERROR: usize = 64 << 10;
/// Output held back for want of content; a stream of empty events is passed on from here.
const MAX_HELD: usize = 64 << 10;

/// Bytes of text per token of an answer whose usage is not stated.
const BYTES_PER_TOKEN: u64 = 4;

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
                () = deadline.passed() => Err(Failed::late(late).into()),
                done = future => Ok(done),
            }
        });
        exchange.drive(waiting).await?
    }

    /// One attempt at a plain answer.
    pub(super) async fn plain(&mut self, request: &Request, exchange: &mut Exchange) -> Result<Finished, Unfinished> {
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
        let timings = answer.timings.as_ref().map(measured::by_engine);
        Ok(Finished { rest: answer.body, timings, used: Some(measured::total(&usage)), streamed: false })
    }

    /// One attempt at a stream.
    pub(super) async fn stream(
        &mut self,
        request: &Request,
        exchange: &mut Exchange,
        stream: &mut Stream,
        out: &mut BytesMut,
    ) -> Result<Finished, Unfinished> {
        let gateway = self.gateway;
        let sent = clock::now();
        let patience = patience::first_token(&gateway.config().streams, self.expected.prefill);
        let mut deadline = Deadline::new(sent + patience);
        let mut reply = self.open(request, exchange, &mut deadline).await?;
        if !is_event_stream(reply.content_type()) {
            // Some engines answer a request for a stream with one object; that is an answer, while the head is not out.
            if exchange.head_sent() {
                return Err(Failed::new(Outcome::Soft(SoftFailure::BadAnswer), "not_a_stream", "head").into());
            }
            return self.whole(request, exchange, reply, &mut deadline).await;
        }
        let first = self.copy(exchange, &mut reply, &mut deadline, stream, out).await?;
        let ended = clock::now();
        gateway.upstream.recycle_if_ended(&self.replica.endpoint, reply);
        let usage = stream.codec.usage();
        if let Some(usage) = &usage {
            let estimated = stream.codec.usage_estimated();
            self.record.usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, estimated);
        }
        let timings = match stream.codec.timings() {
            Some(timings) => Some(measured::by_engine(&timings)),
            None => usage.zip(first).map(|(usage, first)| measured::here(&usage, sent, first, ended)),
        };
        let rest = Segments::from(out.split().freeze());
        Ok(Finished { rest, timings, used: usage.as_ref().map(measured::total), streamed: true })
    }

    /// Copies a stream until its answer is whole; what is left in `out` is its end. When its first content came.
    async fn copy(
        &mut self,
        exchange: &mut Exchange,
        reply: &mut Reply,
        deadline: &mut Deadline,
        stream: &mut Stream,
        out: &mut BytesMut,
    ) -> Result<Option<Timestamp>, Unfinished> {
        let gap = patience::gap(&self.gateway.config().streams, self.expected.token);
        let mut first: Option<Timestamp> = None;
        loop {
            let late = if first.is_some() { SoftFailure::Stalled } else { SoftFailure::NoFirstToken };
            let piece = match self.wait(exchange, deadline, late, pin!(reply.chunk())).await? {
                Ok(Some(piece)) => piece,
                Ok(None) => {
                    stream.codec.end(out).map_err(Failed::streamed)?;
                    return Ok(first);
                }
                // The connection broke, but the answer may have been whole by then.
                Err(failure) => {
                    stream.codec.end(out).map_err(|_| Failed::transport(&failure))?;
                    return Ok(first);
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
                return Ok(first);
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
    fn trace(&self, head: &mut pingora::http::ResponseHeader) {
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
