//! A streamed answer to a test question, read like any other and judged for itself.

use bytes::{Bytes, BytesMut};
use openai_wire::{AnswerStream, Engine, Leg, Route, StreamError, StreamOptions};
use serde_json::Value;

use super::exam::{Measured, Seen, Unpassed, Wrong, rate, refusal};
use crate::{
    clock, relay,
    upstream::{Endpoint, SegmentsBody, Upstream},
};

/// Most bytes of a stream. Of 24 tokens: an engine adds up to some hundred bytes around each.
const MAX_STREAM: usize = 256 << 10;
/// Events for each token that was asked for: a token may come in several, and nothing else in so many.
const EVENTS_PER_TOKEN: u64 = 4;
/// Tokens that count as a measurement of how fast it writes.
const ENOUGH: u64 = 8;

/// What was asked for.
pub(super) struct Written {
    pub(super) route: Route,
    pub(super) engine: Engine,
    pub(super) max_tokens: u32,
    pub(super) prompt_bytes: u64,
}

/// Posts the question and reads the whole answer.
///
/// # Errors
/// There is none, or it is not as an engine's.
pub(super) async fn write(
    upstream: &Upstream,
    endpoint: &Endpoint,
    key: Option<&str>,
    asked: &Written,
    body: Bytes,
) -> Result<Seen, Unpassed> {
    let sent = clock::now();
    let mut reply = upstream.post(endpoint, asked.route.path(), key, None, || SegmentsBody::from(body.clone())).await?;
    let status = reply.head.status.as_u16();
    let kind = reply.content_type().map(str::to_owned);
    if status != 200 || !relay::is_event_stream(kind.as_deref()) {
        let body = reply.collect(MAX_STREAM).await?;
        return Err(refusal(asked.route, status, kind.as_deref(), &body));
    }
    let mut stream = AnswerStream::new(
        asked.route,
        StreamOptions {
            plain: true,
            include_usage: true,
            max_tokens: Some(asked.max_tokens),
            ..StreamOptions::default()
        },
    );
    stream.begin_attempt(Leg::Anew, asked.engine);
    let nothing = &mut BytesMut::new();
    let (mut first, mut last, mut length) = (None, sent, 0);
    while let Some(piece) = reply.chunk().await? {
        length += piece.len();
        let step = stream.push(&piece, nothing).map_err(flaw)?;
        if step.content_events > 0 {
            last = clock::now();
            first.get_or_insert(last);
        }
        if step.complete {
            break;
        }
        let most = EVENTS_PER_TOKEN * u64::from(asked.max_tokens);
        if length > MAX_STREAM || stream.content_events() > most {
            return Err(Wrong::Endless.into());
        }
    }
    stream.end(nothing).map_err(flaw)?;
    upstream.recycle_if_ended(endpoint, reply);
    judge(asked, stream, sent, first, last)
}

fn judge(
    asked: &Written,
    stream: AnswerStream,
    sent: scheduler::Timestamp,
    first: Option<scheduler::Timestamp>,
    last: scheduler::Timestamp,
) -> Result<Seen, Unpassed> {
    let Some(first) = first else { return Err(Wrong::Empty.into()) };
    let usage = stream.usage().filter(|_| asked.engine.counts && !stream.usage_estimated());
    let most = u64::from(asked.max_tokens) * 2 + 8;
    if usage.is_some_and(|usage| usage.completion_tokens == 0 || asked.engine.obeys && usage.completion_tokens > most) {
        return Err(Wrong::Counts.into());
    }
    let (timings, events) = (stream.timings(), stream.content_events());
    let engines = |tokens: u32, millis: f64| {
        let took = std::time::Duration::try_from_secs_f64(millis / 1000.0).ok()?;
        rate(tokens.into(), took)
    };
    let speed = match timings {
        Some(timings) => Measured {
            prefill: engines(timings.prompt_n, timings.prompt_ms),
            decode: engines(timings.predicted_n, timings.predicted_ms)
                .filter(|_| u64::from(timings.predicted_n) >= ENOUGH),
        },
        None => {
            let read = stream.usage().map(|usage| usage.prompt_tokens.saturating_sub(usage.cached_tokens));
            // Without counts: the usual four bytes a token.
            let read = usage.and(read).unwrap_or(asked.prompt_bytes / 4);
            let decode = (events > ENOUGH).then(|| rate(events - 1, last.since(first))).flatten();
            Measured { prefill: rate(read, first.since(sent)), decode }
        }
    };
    let answer: Value = serde_json::from_slice(&stream.into_answer().body.to_bytes()).map_err(|_| Wrong::Shape)?;
    let choice = answer.get("choices").and_then(|choices| choices.get(0)).ok_or(Wrong::Shape)?;
    let said = [choice.get("message"), Some(choice)].into_iter().flatten().flat_map(|place| {
        ["content", "reasoning_content", "text"].into_iter().filter_map(|name| place.get(name)?.as_str())
    });
    Ok(Seen {
        prompt_bytes: asked.prompt_bytes,
        prompt_tokens: usage.map(|usage| usage.prompt_tokens),
        said: said.collect(),
        speed,
    })
}

fn flaw(error: StreamError) -> Unpassed {
    match error {
        StreamError::Upstream(_) => Wrong::Engine.into(),
        StreamError::Cut => Unpassed::Silent("its answer breaks off".into()),
        StreamError::Malformed { .. } => Wrong::Shape.into(),
        StreamError::TooLong => Wrong::Endless.into(),
    }
}
