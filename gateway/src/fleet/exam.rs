//! The questions by which a replica shows that it runs a model, before it gets the first prompt of anybody.
//!
//! Problem: whoever knows the registration's token can announce an address, and health routes are easily imitated. Behind it may
//! be a web page, an echo, a server of canned texts, or one that writes for ever.
//!
//! Choice: two questions in the engine's own way, with random words in them that no canned answer can know, judged by their
//! shape and by what the engine counts: a whole answer, within what was asked for, more prompt tokens for the longer prompt. The
//! longer one is the warm-up whose speed is measured. Rejected: judging what the answers say (the smallest models are wrong about
//! anything), comparing with another replica's answer (engines round differently, and the first of a model has no other), and
//! expecting a speed.

use std::time::Duration;

use bytes::Bytes;
use openai_wire::{Fault, Route, classify_error, decode_answer};
use scheduler::{Rates, RouteSet};
use serde_json::{Value, json};

use super::{
    answer::Answer,
    decision,
    dialect::{Dialect, position},
    written::{Written, write},
};
use crate::{
    clock,
    upstream::{Endpoint, Failure, Fetched, Upstream},
};

/// Tokens that the first answer may have, and the second: enough to measure how fast it writes.
const SHORT_ANSWER: u32 = 8;
const LONG_ANSWER: u32 = 24;
/// Tokens of a question without the passages, about.
const SHORT_PROMPT: u32 = 40;
/// Times what a phone should take: one that is warm, far away, and used by somebody besides.
const FACTOR: f64 = 5.0;
/// For connections, and a relay that is far away: there are three calls.
const ON_THE_WAY: Duration = Duration::from_secs(20);
/// A phone with 9 billion parameters, half as fast as the fastest.
const SLOW: Rates = Rates { prefill: 42.0, decode: 4.6 };
/// Texts that what they say costs nothing to read: some 30 tokens of any vocabulary.
const PASSAGE: &str = "The keeper of the lighthouse wrote down the weather each evening, the ships that had passed, and what the sea had \
                       brought to the shore. ";
/// Its tokens, about.
const PASSAGE_TOKENS: u32 = 30;
/// Bytes of text that a token stands for at most, and those that a byte may cost: vocabularies of bytes have one each.
const BYTES_PER_TOKEN: u64 = 32;

/// Whom to ask.
pub(super) struct Exam<'a> {
    pub(super) upstream: &'a Upstream,
    pub(super) endpoint: &'a Endpoint,
    pub(super) key: Option<&'a str>,
    /// The replica's own name of a model that it serves.
    pub(super) model: &'a str,
    pub(super) dialect: Dialect,
    pub(super) routes: RouteSet,
    /// Tokens of the longer prompt, about.
    pub(super) warm_up_tokens: u32,
    /// For all of it.
    pub(super) limit: Duration,
    /// What no canned answer can know; another one each time.
    pub(super) secrets: [String; 2],
}

/// What was measured on the way. Rates are per second; `None` where too little was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// Prompt tokens read.
    pub(super) prefill: Option<f64>,
    /// Answer tokens written.
    pub(super) decode: Option<f64>,
}

/// Why a replica has not passed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unpassed {
    /// It gave no answer: what that means is for its probes to find out.
    #[error("it did not answer the test question: {0}")]
    Silent(String),
    /// It answered, and not as a phone with a model does.
    #[error("{0}")]
    Wrong(Wrong),
}

/// What is wrong with an answer. The replica's own words are not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    #[error("a web page instead of an answer: is this the phone's address, and its app open?")]
    WebPage,
    #[error("its answer is not in the shape of its API: is it the right dialect, and a model behind it?")]
    Shape,
    #[error("it has none of the routes that it was taken for: is it the right dialect?")]
    NoRoute,
    #[error("it refuses the key: set the right one, huntgroup replicas patch NAME --api-key env:VARIABLE")]
    Key,
    #[error("it does not know the model that it lists: restart the phone's app")]
    Model,
    #[error("it refuses a plain question: is there a model behind it? try it by hand")]
    Refused,
    #[error("the engine fails the test question: restart the phone's app")]
    Engine,
    #[error("its answer is empty: is there a model behind it? try it by hand")]
    Empty,
    #[error("it writes on beyond max_tokens: no engine that is known does that; try it by hand")]
    Endless,
    #[error("its token counts can't be true: is there a model behind it? try it by hand")]
    Counts,
    #[error(
        "it counts as many tokens for a long prompt as for a short one: is there a model behind it? try it by hand"
    )]
    SameCount,
    #[error("it answers different questions with the same text: is there a model behind it? try it by hand")]
    Canned,
    #[error(
        "what it makes of a prompt does not have the prompt's words in it: is there a model behind it? try it by hand"
    )]
    Unheard,
    #[error("its decision is none of those that were asked for: is there a model behind it? try it by hand")]
    Undecided,
}

impl From<Wrong> for Unpassed {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

impl From<Failure> for Unpassed {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::TooLarge(_) => Self::Wrong(Wrong::Shape),
            Failure::Timeout => Self::Silent("an answer did not come in time".into()),
            failure => Self::Silent(super::Finding::from(failure).to_string()),
        }
    }
}

/// One answer, as far as it is judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Bytes of the prompt.
    pub(super) prompt_bytes: u64,
    /// Tokens of the prompt, where the engine counts them.
    pub(super) prompt_tokens: Option<u64>,
    /// What it said.
    pub(super) said: String,
    /// How fast.
    pub(super) speed: Measured,
}

/// How long all of it may take a replica of this speed: five times what it should, and what the way there takes. One whose speed
/// nobody can say is taken for a slow one.
pub(super) fn patience(speed: Option<Rates>, warm_up_tokens: u32) -> Duration {
    let speed = speed.unwrap_or(SLOW);
    let prompts = f64::from(2 * SHORT_PROMPT + warm_up_tokens);
    let answers = f64::from(SHORT_ANSWER + LONG_ANSWER);
    let seconds = prompts / speed.prefill + answers / speed.decode;
    ON_THE_WAY.saturating_add(Duration::try_from_secs_f64(FACTOR * seconds).unwrap_or(Duration::MAX))
}

/// Has the replica show what it can do, within its limit, however its bytes come. Dropped, it ends.
///
/// # Errors
/// Why it has not passed.
pub(super) async fn examine(exam: &Exam<'_>) -> Result<Measured, Unpassed> {
    let late = || Unpassed::Silent(format!("its answers had not all come after {} s", exam.limit.as_secs()));
    tokio::time::timeout(exam.limit, exam.take()).await.unwrap_or_else(|_| Err(late()))
}

impl Exam<'_> {
    async fn take(&self) -> Result<Measured, Unpassed> {
        if self.dialect == Dialect::LlamaServer {
            self.hears().await?;
        }
        let mut missing = Unpassed::Wrong(Wrong::NoRoute);
        for route in [Route::ChatCompletions, Route::Completions, Route::Embeddings, Route::Rerank, Route::SystemOne] {
            if !self.routes.contains(position(route)) {
                continue;
            }
            match self.ask_twice(route).await {
                Err(Unpassed::Wrong(Wrong::NoRoute)) => missing = Unpassed::Wrong(Wrong::NoRoute),
                judged => return judged,
            }
        }
        Err(missing)
    }

    /// llama-server says what it makes of a prompt, without running it. Builds that don't are not judged by it.
    async fn hears(&self) -> Result<(), Unpassed> {
        let [secret, _] = &self.secrets;
        let body = json!({"messages": [{"role": "user", "content": secret}]});
        let fetched = self.post("/apply-template", &body).await?;
        let Answer::Json(200, rendered) = Answer::read(&fetched) else { return Ok(()) };
        let heard =
            rendered.get("prompt").and_then(Value::as_str).is_none_or(|prompt| prompt.contains(secret.as_str()));
        if heard { Ok(()) } else { Err(Wrong::Unheard.into()) }
    }

    async fn ask_twice(&self, route: Route) -> Result<Measured, Unpassed> {
        let [first, second] = &self.secrets;
        let short = self.ask(route, &format!("Case {first}."), SHORT_ANSWER).await?;
        let repeated = self.warm_up_tokens.div_ceil(PASSAGE_TOKENS).max(1) as usize;
        let long = self.ask(route, &format!("Case {second}. {}", PASSAGE.repeat(repeated)), LONG_ANSWER).await?;
        compare(&short, &long)?;
        Ok(long.speed)
    }

    async fn ask(&self, route: Route, text: &str, max_tokens: u32) -> Result<Seen, Unpassed> {
        match route {
            Route::Embeddings => self.embed(text).await,
            Route::Rerank => self.rank(text).await,
            Route::SystemOne => self.decide(text).await,
            _ => self.write(route, text, max_tokens).await,
        }
    }

    async fn write(&self, route: Route, text: &str, max_tokens: u32) -> Result<Seen, Unpassed> {
        let task = if max_tokens == SHORT_ANSWER {
            "Answer with the one word: ready."
        } else {
            "Now count from one to thirty in words."
        };
        let prompt = format!("{text} {task}");
        let mut body = json!({
            "model": self.model,
            "max_tokens": max_tokens,
            // Canned texts don't change by it, and models that say little do.
            "temperature": 1,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let asked = match route {
            Route::ChatCompletions => ("messages", json!([{"role": "user", "content": prompt}])),
            _ => ("prompt", json!(prompt)),
        };
        if let Some(fields) = body.as_object_mut() {
            fields.insert(asked.0.to_owned(), asked.1);
            if self.dialect == Dialect::LlamaServer {
                // A model that has nothing to say would show nothing.
                fields.insert("ignore_eos".to_owned(), json!(true));
            }
        }
        let body = Bytes::from(body.to_string());
        let writing = Written { route, engine: self.dialect.engine(), max_tokens, prompt_bytes: prompt.len() as u64 };
        write(self.upstream, self.endpoint, self.key, &writing, body).await
    }

    async fn embed(&self, text: &str) -> Result<Seen, Unpassed> {
        let (body, seen) = self.plain(Route::Embeddings, &json!({"model": self.model, "input": text}), text).await?;
        let vector = body.get("data").and_then(|data| data.get(0)?.get("embedding")?.as_array());
        let numbers: Vec<f64> = vector.into_iter().flatten().filter_map(Value::as_f64).collect();
        let whole = vector.is_some_and(|vector| vector.len() == numbers.len() && vector.len() > 1);
        if !whole || numbers.iter().all(|number| *number == 0.0) {
            return Err(Wrong::Shape.into());
        }
        Ok(Seen { said: vector.map(|vector| json!(vector).to_string()).unwrap_or_default(), ..seen })
    }

    async fn rank(&self, text: &str) -> Result<Seen, Unpassed> {
        let documents = ["A keeper writes down the weather.", "Bread is baked early in the morning."];
        let asked = json!({"model": self.model, "query": text, "documents": documents});
        let (body, seen) = self.plain(Route::Rerank, &asked, text).await?;
        let results = body.get("results").unwrap_or(&body).as_array();
        let score = |result: &Value| ["relevance_score", "score"].iter().find_map(|name| result.get(name)?.as_f64());
        let scores: Vec<f64> = results.into_iter().flatten().filter_map(score).collect();
        if scores.len() != documents.len() {
            return Err(Wrong::Shape.into());
        }
        Ok(Seen { said: format!("{scores:?}"), ..seen })
    }

    async fn decide(&self, text: &str) -> Result<Seen, Unpassed> {
        let (body, seen) = self.plain(Route::SystemOne, &decision::question(self.model, text), text).await?;
        let prompt_tokens = body.get("usage").and_then(|usage| usage.get("input_tokens")?.as_u64());
        if !decision::is_one(&body) {
            return Err(Wrong::Undecided.into());
        }
        // Two decisions may well be the same.
        Ok(Seen { said: String::new(), prompt_tokens, ..seen })
    }

    /// A plain answer of the route, and what is known of it.
    async fn plain(&self, route: Route, asked: &Value, text: &str) -> Result<(Value, Seen), Unpassed> {
        let sent = clock::now();
        let fetched = self.post(route.path(), asked).await?;
        let took = clock::now().since(sent);
        if fetched.status != 200 {
            return Err(refusal(route, fetched.status, fetched.content_type.as_deref(), &fetched.body));
        }
        let kind = fetched.content_type.as_deref();
        let failed = |_| refusal(route, 200, kind, &fetched.body);
        let answer = decode_answer(route, kind, fetched.body.clone(), "").map_err(failed)?;
        let body: Value = serde_json::from_slice(&answer.body.to_bytes()).map_err(|_| Wrong::Shape)?;
        let prompt_tokens = answer.usage.map(|usage| usage.prompt_tokens).filter(|tokens| *tokens > 0);
        let prefill = prompt_tokens.and_then(|tokens| rate(tokens, took));
        let seen = Seen {
            prompt_bytes: text.len() as u64,
            prompt_tokens,
            said: String::new(),
            speed: Measured { prefill, decode: None },
        };
        Ok((body, seen))
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Fetched, Unpassed> {
        let body = Bytes::from(body.to_string());
        Ok(self.upstream.post_json(self.endpoint, path, self.key, body, self.limit).await?)
    }
}

/// What a status that is no success says, or a success that is none.
pub(super) fn refusal(route: Route, status: u16, content_type: Option<&str>, body: &[u8]) -> Unpassed {
    match classify_error(route, status, content_type, body).fault {
        Fault::Loading => Unpassed::Silent("it says that its model is loading".into()),
        Fault::Busy => Unpassed::Silent("it says that it is full: who else uses this phone?".into()),
        Fault::WrongKey => Wrong::Key.into(),
        Fault::ModelMissing => Wrong::Model.into(),
        Fault::RouteMissing => Wrong::NoRoute.into(),
        Fault::NotEngine if content_type.is_some_and(|kind| kind.contains("html")) => Wrong::WebPage.into(),
        Fault::NotEngine => Wrong::Shape.into(),
        Fault::Engine | Fault::Output if status >= 500 => Wrong::Engine.into(),
        Fault::Engine => Wrong::Shape.into(),
        Fault::Request | Fault::ContextExceeded { .. } | Fault::Output => Wrong::Refused.into(),
    }
}

/// Judges two answers beside each other.
fn compare(short: &Seen, long: &Seen) -> Result<(), Wrong> {
    if !short.said.is_empty() && short.said == long.said {
        return Err(Wrong::Canned);
    }
    let (Some(few), Some(many)) = (short.prompt_tokens, long.prompt_tokens) else { return Ok(()) };
    let more_bytes = long.prompt_bytes.saturating_sub(short.prompt_bytes);
    let least = few + more_bytes / BYTES_PER_TOKEN;
    if many < least {
        return Err(Wrong::SameCount);
    }
    // The template stands around both prompts; no vocabulary has less than a byte to a token.
    if many > few + more_bytes + few { Err(Wrong::Counts) } else { Ok(()) }
}

/// A rate per second, if it can be one.
pub(super) fn rate(tokens: u64, took: Duration) -> Option<f64> {
    let seconds = took.as_secs_f64();
    (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(prompt_bytes: u64, prompt_tokens: Option<u64>, said: &str) -> Seen {
        Seen { prompt_bytes, prompt_tokens, said: said.into(), speed: Measured::default() }
    }

    #[test]
    fn patience_follows_the_speed_and_has_room_for_what_slows_a_phone_down() {
        let seconds = |prefill, decode| patience(Some(Rates { prefill, decode }), 256).as_secs();
        assert_eq!((seconds(1107.0, 60.0), seconds(85.2, 9.3)), (24, 56));
        assert_eq!(patience(None, 256).as_secs(), 94, "nobody knows");
        assert!(
            seconds(1e-300, 1e-300) > 1_000_000 && patience(Some(Rates { prefill: 0.0, decode: 0.0 }), 32) > ON_THE_WAY
        );
    }

    #[test]
    fn what_an_honest_engine_counts_passes_whatever_its_vocabulary() {
        for (few, many) in [(30, 300), (20, 120), (60, 1300), (15, 60)] {
            assert_eq!(compare(&seen(50, Some(few), "a"), &seen(1300, Some(many), "b")), Ok(()), "{few}, {many}");
        }
        assert_eq!(compare(&seen(50, None, "ready"), &seen(1300, None, "one, two")), Ok(()));
        assert_eq!(compare(&seen(50, None, ""), &seen(1300, None, "")), Ok(()), "decisions are not compared");
    }

    #[test]
    fn constants_and_canned_texts_are_told() {
        assert_eq!(compare(&seen(50, Some(10), "a"), &seen(1300, Some(10), "b")), Err(Wrong::SameCount));
        assert_eq!(compare(&seen(50, Some(10), "a"), &seen(1300, Some(1 << 24), "b")), Err(Wrong::Counts));
        assert_eq!(compare(&seen(50, None, "hello"), &seen(1300, None, "hello")), Err(Wrong::Canned));
    }

    #[test]
    fn a_refusal_says_whose_fault_it_is() {
        let said = |status, kind, body: &str| refusal(Route::ChatCompletions, status, kind, body.as_bytes());
        let json = Some("application/json");
        assert_eq!(said(200, Some("text/html"), "<p>"), Wrong::WebPage.into());
        assert_eq!(said(401, json, r#"{"error":{"message":"no"}}"#), Wrong::Key.into());
        assert_eq!(
            said(501, json, r#"{"error":{"message":"This server does not support completions"}}"#),
            Wrong::NoRoute.into()
        );
        assert_eq!(said(500, json, r#"{"error":{"message":"oops"}}"#), Wrong::Engine.into());
        assert!(matches!(said(503, json, r#"{"error":{"message":"Loading model"}}"#), Unpassed::Silent(_)));
        for status in [200, 400, 404, 500, 503] {
            let shown = said(status, json, r#"{"error":{"message":"secret words"}}"#).to_string();
            assert!(!shown.contains("secret"), "{shown}");
        }
    }
}
