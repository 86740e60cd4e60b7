//! A test question for decision models, and what an answer to it may be.

use serde_json::{Value, json};

const KINDS: [&str; 2] = ["notice", "invoice"];

/// Two questions about a text.
pub(super) fn question(model: &str, text: &str) -> Value {
    json!({
        "model": model,
        "state": text,
        "questions": {
            "kind": {"type": "choice", "instructions": "What is the text?", "criteria": {"notice": null, "invoice": null}},
            "sea": {"type": "noul", "instructions": "The text speaks of the sea."},
        },
    })
}

/// Whether this is an answer to them.
pub(super) fn is_one(answer: &Value) -> bool {
    let answers = answer.get("answers");
    let kind = answers.and_then(|answers| answers.get("kind")?.get("choice")?.as_str());
    let sea = answers.and_then(|answers| answers.get("sea")?.get("noul")?.as_f64());
    kind.is_some_and(|kind| KINDS.contains(&kind)) && sea.is_some_and(|sea| (0.0..=1.0).contains(&sea))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_a_decision() {
        let answer = |kind: &str, sea: f64| json!({"answers": {"kind": {"choice": kind}, "sea": {"noul": sea}}});
        assert!(is_one(&answer("notice", 0.25)));
        for odd in
            [answer("something", 0.25), answer("notice", 7.0), json!({}), json!({"answers": {}}), question("m", "t")]
        {
            assert!(!is_one(&odd), "{odd}");
        }
    }
}
