//! One request and its answer, timed and checked.

use super::{
    Failure, answer,
    body::{next_data, read_whole},
    failure::error_of,
    pool::{Held, Pool},
};
use crate::clock;
use bytes::Bytes;
use hyper::{Response, body::Incoming};
use openai_wire::SseDecoder;
use serde::Deserialize;
use std::borrow::Cow;
use tokio::time::Instant;

/// How closely answers are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// They come from fake phones: every word is known.
    EveryWord,
    /// They come from real engines: they must be whole, whatever they say.
    Form,
}

/// A request.
pub(crate) struct Ask<'a> {
    /// Where it goes.
    pub(crate) pool: &'a Pool,
    /// `Authorization`, if any.
    pub(crate) authorization: Option<&'a str>,
    /// How urgent it says it is.
    pub(crate) urgency: &'a str,
    /// The JSON.
    pub(crate) body: Bytes,
    /// Whether that asks for a stream.
    pub(crate) stream: bool,
    /// The message that the answer is about.
    pub(crate) message: &'a str,
    /// Tokens asked for.
    pub(crate) tokens: u32,
    /// How closely the answer is looked at.
    pub(crate) check: Check,
}

/// What came back, as far as it came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    /// The text.
    pub(crate) text: String,
    /// From the request to the first token of a stream, seconds.
    pub(crate) ttft_s: Option<f64>,
    /// From the request to the end, seconds.
    pub(crate) total_s: f64,
    /// The longest pause between two pieces of text of a stream, seconds.
    pub(crate) gap_s: Option<f64>,
    /// How long the gateway says it waited in its queue, seconds.
    pub(crate) queue_s: Option<f64>,
    /// Attempts, as the gateway says.
    pub(crate) attempts: Option<u32>,
    /// Who answered, as the gateway says.
    pub(crate) replica: Option<String>,
    /// Prompt tokens that were cached, by the usage that came with the answer.
    pub(crate) cached_tokens: Option<u32>,
    /// A finish reason came.
    pub(crate) finished: bool,
    /// `[DONE]` came.
    pub(crate) done: bool,
}

/// Makes one request; what came back is told even if it failed. Times count from `started`, which for work that comes by
/// the clock is when it was due: a load test that lags must not hide its lag.
pub(crate) async fn exchange(ask: &Ask<'_>, started: Instant, deadline: Instant) -> (Reply, Result<(), Failure>) {
    let mut reply = Reply::default();
    let mut head_seen = false;
    let running = run(ask, started, &mut reply, &mut head_seen);
    let result = match tokio::time::timeout_at(deadline, running).await {
        Ok(result) => result,
        Err(_) if head_seen => Err(Failure::TimeoutBody),
        Err(_) => Err(Failure::TimeoutHead),
    };
    reply.total_s = (clock::now() - started).as_secs_f64();
    (reply, result)
}

async fn run(ask: &Ask<'_>, started: Instant, reply: &mut Reply, head_seen: &mut bool) -> Result<(), Failure> {
    let mut request = ask
        .pool
        .request("POST", "/v1/chat/completions")
        .header("content-type", "application/json")
        .header("x-huntgroup-class", ask.urgency);
    if let Some(authorization) = ask.authorization {
        request = request.header("authorization", authorization);
    }
    let request = request.body(ask.body.clone().into()).map_err(|_| Failure::BadBody("the request has no form"))?;
    let (response, held) = ask.pool.send(request).await?;
    *head_seen = true;
    read_head(&response, reply);
    let status = response.status().as_u16();
    let kind = response.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (html, events) = (kind.starts_with("text/html"), kind.starts_with("text/event-stream"));
    if status != 200 {
        let body = read_whole(response, held).await?;
        return Err(Failure::of_status(status, html, &body));
    }
    if ask.stream {
        if !events {
            return Err(Failure::BadBody("asked for a stream, got something else"));
        }
        read_stream(response, held, started, reply).await?;
        if !reply.finished || !reply.done {
            return Err(Failure::SilentCut);
        }
    } else {
        let body = read_whole(response, held).await?;
        read_plain(&body, reply)?;
    }
    match ask.check {
        Check::EveryWord => answer::check(&reply.text, ask.message, ask.tokens),
        Check::Form => Ok(()),
    }
}

fn read_head(response: &Response<Incoming>, reply: &mut Reply) {
    let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    reply.queue_s = text("x-huntgroup-queue-ms").and_then(|ms| ms.parse::<f64>().ok()).map(|ms| ms / 1000.0);
    reply.attempts = text("x-huntgroup-attempts").and_then(|count| count.parse().ok());
    reply.replica = text("x-huntgroup-replica").map(str::to_owned);
}

#[derive(Deserialize)]
struct Chunk<'c> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'c>>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens_details: Option<PromptTokens>,
}

#[derive(Deserialize)]
struct PromptTokens {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

impl Chunk<'_> {
    fn cached_tokens(&self) -> Option<u32> {
        self.usage.as_ref()?.prompt_tokens_details.as_ref()?.cached_tokens
    }
}

#[derive(Deserialize)]
struct Choice<'c> {
    #[serde(borrow, default, alias = "message")]
    delta: Said<'c>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'c, str>>,
}

#[derive(Deserialize, Default)]
struct Said<'c> {
    #[serde(borrow, default)]
    content: Option<Cow<'c, str>>,
}

async fn read_stream(
    response: Response<Incoming>,
    held: Held<'_>,
    started: Instant,
    reply: &mut Reply,
) -> Result<(), Failure> {
    let mut body = response.into_body();
    let mut decoder = SseDecoder::new();
    let mut last: Option<Instant> = None;
    while let Some(data) = next_data(&mut body).await {
        decoder.push(&data?);
        let before = reply.text.len();
        while let Some(event) = decoder.next_event() {
            let event = event.map_err(|_| Failure::BadBody("an event without end"))?;
            read_event(event.data, reply)?;
        }
        if reply.text.len() > before {
            let now = clock::now();
            match last {
                None => reply.ttft_s = Some((now - started).as_secs_f64()),
                Some(last) => {
                    let gap = (now - last).as_secs_f64();
                    reply.gap_s = Some(reply.gap_s.map_or(gap, |longest| longest.max(gap)));
                }
            }
            last = Some(now);
        }
    }
    held.give_back();
    Ok(())
}

fn read_event(data: &[u8], reply: &mut Reply) -> Result<(), Failure> {
    if data == b"[DONE]" {
        reply.done = true;
        return Ok(());
    }
    let chunk: Chunk<'_> = serde_json::from_slice(data).map_err(|_| Failure::BadBody("an event that is no chunk"))?;
    if chunk.choices.is_empty()
        && let Some((code, message)) = error_of(data)
    {
        return Err(Failure::ErrorEvent { code, message });
    }
    if reply.done {
        return Err(Failure::BadBody("an event after [DONE]"));
    }
    reply.cached_tokens = chunk.cached_tokens().or(reply.cached_tokens);
    for choice in chunk.choices {
        if let Some(text) = choice.delta.content.filter(|text| !text.is_empty()) {
            if reply.finished {
                return Err(Failure::BadBody("text after the finish"));
            }
            reply.text.push_str(&text);
        }
        reply.finished |= choice.finish_reason.is_some_and(|reason| !reason.is_empty());
    }
    Ok(())
}

fn read_plain(body: &[u8], reply: &mut Reply) -> Result<(), Failure> {
    let answer: Chunk<'_> = serde_json::from_slice(body).map_err(|_| Failure::BadBody("not JSON"))?;
    reply.cached_tokens = answer.cached_tokens();
    let Some(choice) = answer.choices.into_iter().next() else {
        return Err(Failure::BadBody("an answer without choices"));
    };
    reply.text = choice.delta.content.unwrap_or_default().into_owned();
    if choice.finish_reason.is_none_or(|reason| reason.is_empty()) {
        return Err(Failure::BadBody("an answer without a finish reason"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_give_text_finish_and_end_in_order() {
        let mut reply = Reply::default();
        let role = br#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#;
        read_event(role, &mut reply).expect("a role");
        read_event(br#"{"choices":[{"delta":{"content":"a\n"},"finish_reason":null}]}"#, &mut reply).expect("text");
        assert_eq!((reply.text.as_str(), reply.finished), ("a\n", false));
        read_event(br#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, &mut reply).expect("a finish");
        let usage = br#"{"choices":[],"usage":{"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":7}}}"#;
        read_event(usage, &mut reply).expect("usage");
        assert_eq!(reply.cached_tokens, Some(7));
        assert!(read_event(br#"{"choices":[{"delta":{"content":"b"}}]}"#, &mut reply).is_err());
        read_event(b"[DONE]", &mut reply).expect("the end");
        assert!(reply.finished && reply.done);
    }

    #[test]
    fn an_error_in_a_stream_is_seen_with_its_code() {
        let event = br#"{"error":{"message":"gone","type":"server_error","param":null,"code":"upstream_error"}}"#;
        let error = read_event(event, &mut Reply::default()).expect_err("an error");
        assert_eq!(error.kind(), "sse_error_event_upstream_error");
    }

    #[test]
    fn a_plain_answer_without_a_finish_is_not_whole() {
        let whole = br#"{"choices":[{"message":{"role":"assistant","content":"x"},"finish_reason":"length"}]}"#;
        read_plain(whole, &mut Reply::default()).expect("whole");
        let cut = br#"{"choices":[{"message":{"content":"x"},"finish_reason":null}]}"#;
        assert!(read_plain(cut, &mut Reply::default()).is_err());
        assert!(read_plain(br#"{"choices":[]}"#, &mut Reply::default()).is_err());
    }
}
