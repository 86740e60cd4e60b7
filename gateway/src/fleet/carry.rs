//! Whether an engine can carry on an answer that another has begun.
//!
//! Nothing that an engine says about itself tells: the way to ask for it is young. Some builds and templates refuse it; older
//! builds ignore what they do not know and answer anew, which looks like success. So it is found out once, twice over: how the
//! prompt is rendered (which costs no slot) must end with what is given, and one more token of the answer must come. Rejected:
//! a list of builds (they can be built with any number), and finding out when an answer breaks off, when a second
//! failure costs the client its answer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use openai_wire::{AnswerStream, Route, StreamOptions};
use serde_json::json;

use super::answer::Answer;
use crate::upstream::{Endpoint, Fetched, Upstream};

/// What is given of the answer. Nothing that a template would trim.
const BEGUN: &str = "one, two,";
/// How long the answer may take. 60 s: the prompt is 30 to 60 tokens, which a phone with 9 billion parameters reads at 2 to
/// 10 a second; twice that is past doubt.
const LONGEST: Duration = Duration::from_secs(60);

/// Asks a llama-server; what costs it nothing within `limit`. `None` if it does not say. Dropped, it frees the slot with the
/// next token.
pub(super) async fn ask(
    upstream: &Upstream,
    endpoint: &Endpoint,
    key: Option<&str>,
    model: &str,
    limit: Duration,
) -> Option<bool> {
    let body = json!({
        "model": model,
        "messages": [
            {"role": "user", "content": "Count from one to five."},
            {"role": "assistant", "content": BEGUN},
        ],
        "add_generation_prompt": false,
        "continue_final_message": true,
        "max_tokens": 1,
        "temperature": 0,
        // Not for the sake of its events: one that hangs up is noticed at the next token, and else within a second or never.
        "stream": true,
    });
    let body = Bytes::from(body.to_string());
    let post = async |path, limit| upstream.post_json(endpoint, path, key, body.clone(), limit).await.ok();
    if renders_anew(&Answer::read(&post("/apply-template", limit).await?)) {
        return Some(false);
    }
    carries_on(&post(Route::ChatCompletions.path(), LONGEST).await?)
}

/// The prompt does not end with what is given: an answer would begin anew. A build that does not render says nothing.
fn renders_anew(answer: &Answer) -> bool {
    let prompt = answer.ok().and_then(|body| body.get("prompt")?.as_str());
    prompt.is_some_and(|prompt| !prompt.ends_with(BEGUN))
}

/// Whether it repeats what is given before it goes on does not matter: that is dropped.
fn carries_on(fetched: &Fetched) -> Option<bool> {
    match Answer::read(fetched) {
        Answer::Other(200) => is_whole(&fetched.body).then_some(true),
        Answer::Json(400 | 404 | 422 | 501, _) => Some(false),
        _ => None,
    }
}

/// Whether it is the stream of an answer, with its end.
fn is_whole(body: &[u8]) -> bool {
    let mut stream =
        AnswerStream::new(Route::ChatCompletions, StreamOptions { plain: true, ..StreamOptions::default() });
    let nothing = &mut BytesMut::new();
    stream.push(body, nothing).is_ok() && stream.end(nothing).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, content_type: &str, body: &'static str) -> Option<bool> {
        let body = Bytes::from_static(body.as_bytes());
        carries_on(&Fetched { status, content_type: Some(content_type.into()), body })
    }

    #[test]
    fn a_whole_stream_is_a_yes_a_refusal_a_no_and_everything_else_no_answer() {
        const WORD: &str = r#"data: {"choices":[{"index":0,"delta":{"content":" three"},"finish_reason":null}]}"#;
        const END: &str = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#;
        const ERROR: &str = r#"data: {"error":{"code":500,"message":"no","type":"server_error"}}"#;
        let stream = |events: &[&str]| -> Option<bool> {
            let text = events.iter().map(|event| format!("{event}\n\n")).collect::<String>();
            let fetched = Fetched { status: 200, content_type: Some("text/event-stream".into()), body: text.into() };
            carries_on(&fetched)
        };
        assert_eq!(stream(&[WORD, END, "data: [DONE]"]), Some(true));
        assert_eq!(stream(&[END]), Some(true), "the turn was over, and the engine has ended it");
        assert_eq!(stream(&[WORD]), None);
        assert_eq!(stream(&[ERROR]), None);
        assert_eq!(answered(400, "application/json", r#"{"error":{"message":"Cannot set both"}}"#), Some(false));
        for silent in [(503, "application/json", "{}"), (401, "application/json", "{}"), (200, "text/html", "<p>")] {
            assert_eq!(answered(silent.0, silent.1, silent.2), None);
        }
        assert_eq!(answered(200, "text/event-stream", ""), None);
    }

    #[test]
    fn a_prompt_that_goes_on_behind_what_is_given_is_an_answer_anew() {
        let rendered = |prompt: &str| Answer::Json(200, json!({ "prompt": prompt }));
        assert!(renders_anew(&rendered("<|im_start|>assistant\none, two,<|im_end|>\n<|im_start|>assistant\n")));
        assert!(!renders_anew(&rendered("<|im_start|>assistant\none, two,")));
        assert!(!renders_anew(&Answer::Json(404, json!({"error": {}}))));
    }
}
