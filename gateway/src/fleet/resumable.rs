//! Whether an engine keeps what it streams, so that a lost stream can be read on (`/v1/stream`, llama-server since May 2026).
//!
//! Asked by the route that looks kept streams up, with none to look up: it costs the phone nothing, and builds without the
//! feature do not know the route. Rejected: the number of the build (libraries of the same number lack it), and asking for a
//! stream that does not exist (404 with or without the feature).

use std::time::Duration;

use bytes::Bytes;

use super::answer::Answer;
use crate::upstream::{Endpoint, Upstream};

/// Asks a llama-server, within `limit`. What does not say so does not keep any.
pub(super) async fn ask(upstream: &Upstream, endpoint: &Endpoint, key: Option<&str>, limit: Duration) -> bool {
    let nothing = Bytes::from_static(br#"{"conversation_ids":[]}"#);
    let answer = upstream.post_json(endpoint, "/v1/streams/lookup", key, nothing, limit).await;
    answer.is_ok_and(|answer| keeps(&Answer::read(&answer)))
}

fn keeps(answer: &Answer) -> bool {
    matches!(answer, Answer::Json(200, list) if list.is_array())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_list_of_the_streams_says_that_they_are_kept() {
        assert!(keeps(&Answer::Json(200, json!([]))));
        for other in [
            Answer::Json(404, json!({"error": {"message": "File Not Found"}})),
            Answer::Json(200, json!({})),
            Answer::Json(500, json!([])),
            Answer::Html(200),
            Answer::Other(200),
        ] {
            assert!(!keeps(&other), "{other:?}");
        }
    }
}
