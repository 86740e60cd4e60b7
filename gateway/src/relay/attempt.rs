//! What an attempt does before its client sees anything: send, wait, read, until its answer is decided.
//!
//! Several copies of a request may do this at once, so an attempt has nothing of the client's here: it is a future of its
//! own, and whoever drops it closes the connection, by which the phone learns that nobody waits any more.
//!
//! Engines are asked for a stream. Some can't give one to this request, or answer one object all the same: that is read as
//! it comes, under one deadline for all of it, and counted by its reason.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use openai_wire::{CarryOn, Engine, Leg, UpstreamRewrite, Usage};
use scheduler::{AttemptId, SoftFailure};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    Failed, Finished, Seam, Unfinished,
    deadline::Deadline,
    measured,
    patience::{self, Expected},
    resume::{Conversation, Source},
    shape::Shape,
    stream::Stream,
};
use crate::{
    clock, config,
    fleet::{Dialect, Replica},
    gateway::{Gateway, Held},
    live::Entry,
    telemetry::names,
    upstream::{Failure, Reply},
};

/// Largest error body of a replica that is looked at.
const MAX_ERROR: usize = 64 << 10;
/// Bytes of text per token of an answer whose usage is not stated.
const BYTES_PER_TOKEN: u64 = 4;
/// How long a replica may count the tokens of a part. 5 s: it answers in milliseconds, or it is too busy to be asked.
const COUNTING: Duration = Duration::from_secs(5);

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
    /// Where room for an answer comes from.
    pub held: &'a Held,
    /// The request's line in the operator's list.
    pub entry: &'a Entry,
    /// The client has the head of a stream already: no other answer can follow.
    pub head_sent: bool,
    /// What it carries on.
    pub seam: Option<Box<Seam>>,
}

/// An answer that can be the client's.
pub enum Decided<'a> {
    /// It is here, whole.
    Whole(Finished),
    /// It has begun.
    Begun(Box<Stream<'a>>),
}

/// The beginning of an answer.
enum Opened {
    /// A stream.
    Stream(Source),
    /// One object, and why.
    Plain(Reply, Option<&'static str>),
}

impl<'a> Attempt<'a> {
    /// Runs until the answer is decided: with its first content if it is streamed, when it is whole if not. Or until there
    /// will be none.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its argument twice in its state")]
    pub fn run(mut self) -> impl Future<Output = Result<Decided<'a>, Unfinished>> + Send + use<'a> {
        async move {
            self.replica.work_comes();
            let sent = clock::now();
            let mut deadline = Deadline::new(sent + self.patience());
            let opened = self.open(&mut deadline).await?;
            let source = match opened {
                Opened::Stream(source) => source,
                Opened::Plain(reply, why) => {
                    deadline.set(sent + self.gateway.config().streams.plain_total);
                    // Boxed, as what is rare below: it would make the state of every attempt larger.
                    return Box::pin(self.whole(reply, &mut deadline, why)).await;
                }
            };
            let codec = match self.seam.take() {
                Some(seam) => seam.begin(self.engine()),
                None => {
                    let mut codec = self.shape.codec();
                    codec.begin_attempt(Leg::Anew, self.engine());
                    codec
                }
            };
            Box::new(Stream::new(self, source, codec, sent, deadline)).begin().await
        }
    }

    /// How long the first sign of an answer may take. An engine of which it is not known that it streams may write all of a
    /// plain client's answer before it sends the head.
    fn patience(&self) -> Duration {
        let streams = &self.gateway.config().streams;
        let streamed = self.shape.is_stream() || self.why_plain().is_none() && self.dialect() != Dialect::OpenAi;
        if streamed { patience::first_token(streams, self.expected.prefill) } else { streams.plain_total }
    }

    /// Why no stream is asked for, if none is. What the client itself wants streamed is asked for as it is.
    fn why_plain(&self) -> Option<&'static str> {
        let request = self.shape.request;
        match request.only_plain() {
            _ if request.stream => None,
            _ if !request.route.streams() => Some(names::PLAIN_ROUTE),
            None if !self.dialect().streams() => Some(names::PLAIN_ENGINE),
            why => why,
        }
    }

    /// Sends the request, and looks at what kind of answer begins.
    async fn open(&mut self, deadline: &mut Deadline) -> Result<Opened, Unfinished> {
        let why_plain = self.why_plain();
        if why_plain.is_some() && self.seam.is_some() {
            return Err(Failed::not_carried_on().into());
        }
        let counted = match &self.seam {
            Some(seam) => Box::pin(self.count(seam.part())).await,
            None => None,
        };
        if let Some((seam, tokens)) = self.seam.as_mut().zip(counted) {
            seam.count(tokens);
        }
        let part = self.seam.as_ref().map(|seam| seam.part());
        match self.ask(deadline, why_plain.is_none(), part).await {
            Ok(source) if why_plain.is_some() => Ok(Opened::Plain(source.into_reply(), why_plain)),
            Err(error) if why_plain.is_some() => Err(error),
            Ok(source) if is_event_stream(source.reply().content_type()) => Ok(Opened::Stream(source)),
            // Some engines answer a request for a stream with one object; that is an answer, while nothing of another is out.
            Ok(_) if self.head_sent || part.is_some() => Err(Failed::not_a_stream().into()),
            Ok(source) => Ok(Opened::Plain(source.into_reply(), Some(names::PLAIN_ANSWER))),
            Err(Unfinished::Failed(failed)) if part.is_some() && failed.is_final() => {
                Err(Failed::not_carried_on().into())
            }
            Err(Unfinished::Failed(failed)) if !self.shape.is_stream() && failed.blames_streaming() => {
                deadline.set(clock::now() + self.gateway.config().streams.plain_total);
                let source = Box::pin(self.ask(deadline, false, None)).await?;
                Ok(Opened::Plain(source.into_reply(), Some(names::PLAIN_REFUSED)))
            }
            Err(error) => Err(error),
        }
    }

    /// Sends the request; an answer that is none becomes a failure. A stream gets a name, where the replica keeps streams.
    pub(super) async fn ask(
        &self,
        deadline: &mut Deadline,
        stream: bool,
        part: Option<&CarryOn>,
    ) -> Result<Source, Unfinished> {
        let upstream = &self.gateway.upstream;
        let (replica, request) = (&self.replica, self.shape.request);
        let route = request.upstream_route(part.is_some());
        let body = || {
            let rewrite = UpstreamRewrite {
                model: &self.model,
                stream,
                progress: stream && self.dialect().reads_progress(),
                carry_on: part,
                ask_usage: true,
            };
            request.upstream_body(&rewrite).into()
        };
        let key = replica.key.as_ref().map(config::Secret::reveal);
        // From here on: dropped before there is an answer, the replica may have begun one all the same.
        let named = if stream { Conversation::begin(self.gateway, replica) } else { None };
        let mut conversation = named.map(Box::new);
        let name = conversation.as_ref().and_then(|conversation| conversation.name()).cloned();
        let post = || upstream.post(&replica.endpoint, route.path(), key, name.as_ref(), body);
        let mut sent = deadline.bound(SoftFailure::NoFirstToken, pin!(post())).await?;
        if let (Err(lost @ (Failure::BeforeHead(_) | Failure::Stale(_))), Some(kept)) = (&sent, &mut conversation) {
            // The replica may have begun; asked once more, it would do so twice.
            let is_stale = matches!(lost, Failure::Stale(_));
            sent = match kept.read_on(upstream).await {
                Some(reply) => {
                    self.gateway.telemetry.continuation(names::CONTINUED_RESUMED);
                    Ok(reply)
                }
                None if is_stale => deadline.bound(SoftFailure::NoFirstToken, pin!(post())).await?,
                None => sent,
            };
        }
        let began = sent.as_ref().map_or_else(Failure::may_have_arrived, |reply| reply.head.status.is_success());
        if !began && let Some(conversation) = conversation.take() {
            conversation.over();
        }
        let mut reply = sent?;
        if reply.head.status.is_success() {
            return Ok(Source::new(reply, conversation));
        }
        let retry_after = reply.retry_after();
        let body = deadline.bound(SoftFailure::NoFirstToken, pin!(reply.collect(MAX_ERROR))).await?;
        // A broken error body says no less than its status.
        let body = body.unwrap_or_else(|_| Bytes::new());
        let status = reply.head.status.as_u16();
        let error = openai_wire::classify_error(route, status, reply.content_type(), &body);
        upstream.recycle(&replica.endpoint, reply);
        Err(Failed::answered(error, status, retry_after).into())
    }

    /// Lets the replica count the tokens of a part, where its engine can: what is still to be written, and the usage, are
    /// then exact. `None` if it can't be asked: what was counted on the way has to do.
    pub(super) async fn count(&self, part: &CarryOn) -> Option<u32> {
        #[derive(Deserialize)]
        struct Counted {
            tokens: Vec<IgnoredAny>,
        }
        if self.dialect() != Dialect::LlamaServer || part.content.is_empty() && part.reasoning.is_empty() {
            return None;
        }
        // Both are JSON text already. In the answer the template's mark stands between them: without anything there, the last
        // word of the one and the first of the other would count as one.
        let between = if part.reasoning.is_empty() || part.content.is_empty() { "" } else { r"\n\n" };
        let body = format!(r#"{{"content":"{}{between}{}","add_special":false}}"#, part.reasoning, part.content).into();
        let replica = &self.replica;
        let asking = self.gateway.upstream.post_json(&replica.endpoint, "/tokenize", replica.bearer(), body, COUNTING);
        let answer = asking.await.ok().filter(|answer| answer.status == 200)?;
        let counted: Counted = serde_json::from_slice(&answer.body).ok()?;
        u32::try_from(counted.tokens.len()).ok()
    }

    /// Reads an answer that is one JSON object.
    async fn whole(
        &self,
        mut reply: Reply,
        deadline: &mut Deadline,
        why: Option<&'static str>,
    ) -> Result<Decided<'a>, Unfinished> {
        let request = self.shape.request;
        if let Some(why) = why.filter(|_| request.route.streams()) {
            self.gateway.telemetry.upstream_plain(why);
        }
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
            cut_short: false,
            room: Some(room),
        }))
    }

    /// Keeps the connection of an answer that is whole, if the replica has ended it already.
    pub(super) fn recycle(&self, source: Option<Source>) {
        if let Some(source) = source {
            self.gateway.upstream.recycle_if_ended(&self.replica.endpoint, source.into_reply());
        }
    }

    pub(super) fn engine(&self) -> Engine {
        self.dialect().engine()
    }

    fn dialect(&self) -> Dialect {
        self.replica.dialect().unwrap_or(Dialect::OpenAi)
    }
}

/// Whether what comes is events.
pub(crate) fn is_event_stream(content_type: Option<&str>) -> bool {
    content_type
        .is_some_and(|text| text.trim_start().get(..17).is_some_and(|t| t.eq_ignore_ascii_case("text/event-stream")))
}
