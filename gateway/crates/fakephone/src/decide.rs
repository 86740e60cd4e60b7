//! Decision models: questions about a state, answered in one pass without text.

use crate::digest::fnv;
use crate::prompt::text_tokens;
use serde_json::{Map, Value, json};

/// A question that cannot be decided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotDecidable {
    #[error("'state' is required")]
    NoState,
    #[error("'questions' must be an object with at least one question")]
    NoQuestions,
    #[error("question '{0}': 'type' must be choice, noul or score")]
    Type(String),
    #[error("question '{0}': 'criteria' are required")]
    Criteria(String),
}

enum Question {
    Choice(Vec<String>),
    Noul,
    Score(Vec<String>),
}

/// A state and the questions about it.
pub(crate) struct Case {
    pub(crate) tokens: Vec<u32>,
    seed: u64,
    questions: Vec<(String, Question)>,
}

/// Reads `{"state", "questions"}`.
pub(crate) fn read(body: &Value) -> Result<Case, NotDecidable> {
    let state = &body["state"];
    if state.is_null() {
        return Err(NotDecidable::NoState);
    }
    let text = state.as_str().map_or_else(|| state.to_string(), str::to_owned);
    let mut questions = Vec::new();
    for (id, question) in body["questions"].as_object().into_iter().flatten() {
        let missing = || NotDecidable::Criteria(id.clone());
        let read = match question["type"].as_str() {
            Some("choice") => {
                let criteria = question["criteria"].as_object().filter(|all| !all.is_empty()).ok_or_else(missing)?;
                Question::Choice(criteria.keys().cloned().collect())
            }
            Some("noul") => Question::Noul,
            Some("score") => {
                let criteria = question["criteria"].as_array().filter(|all| !all.is_empty()).ok_or_else(missing)?;
                Question::Score(criteria.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect())
            }
            _ => return Err(NotDecidable::Type(id.clone())),
        };
        questions.push((id.clone(), read));
    }
    if questions.is_empty() {
        return Err(NotDecidable::NoQuestions);
    }
    Ok(Case { tokens: text_tokens(&text), seed: fnv(text.as_bytes()), questions })
}

impl Case {
    /// The answers: a function of the state and the question alone.
    pub(crate) fn answer(&self, model: &str) -> Value {
        let answers = self.questions.iter().map(|(id, question)| {
            let pick = self.seed ^ fnv(id.as_bytes());
            (id.clone(), question.answer(pick))
        });
        json!({"model": model, "answers": answers.collect::<Map<_, _>>(),
            "usage": {"input_tokens": self.tokens.len(), "output_tokens": 0}})
    }
}

/// The probability of the answer that is given.
const SURE: f64 = 0.9;

impl Question {
    fn answer(&self, pick: u64) -> Value {
        let chosen = |count: usize| (pick % count as u64) as usize;
        let probability = |at: usize, count: usize| match (at == chosen(count), count) {
            (true, 1) => 1.0,
            (true, _) => SURE,
            (false, _) => (1.0 - SURE) / (count - 1) as f64,
        };
        match self {
            Self::Choice(names) => {
                let all =
                    names.iter().enumerate().map(|(at, name)| (name.clone(), json!(probability(at, names.len()))));
                json!({"type": "choice", "choice": names[chosen(names.len())],
                    "probabilities": all.collect::<Map<_, _>>(), "confidence": SURE})
            }
            Self::Noul => json!({"type": "noul", "noul": (pick % 1000) as f64 / 1000.0}),
            Self::Score(names) => {
                let count = names.len();
                let all = (0..count).map(|at| (at.to_string(), json!(probability(at, count))));
                let mean: f64 = (0..count).map(|at| at as f64 * probability(at, count)).sum();
                let legend = names.iter().enumerate().map(|(at, name)| (at.to_string(), json!(name)));
                json!({"type": "score", "score": mean, "legend": legend.collect::<Map<_, _>>(),
                    "probabilities": all.collect::<Map<_, _>>(), "confidence": SURE})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_is_answered_in_its_own_way_and_always_alike() {
        let body = json!({"state": "a b c", "questions": {
            "which": {"type": "choice", "criteria": {"x": null, "y": "why"}},
            "likely": {"type": "noul", "instructions": "?"},
            "grade": {"type": "score", "criteria": ["low", "mid", "high"]}}});
        let answer = read(&body).expect("decidable").answer("m");
        assert_eq!(answer, read(&body).expect("decidable").answer("m"));
        assert_eq!(answer["usage"]["input_tokens"], 3);
        let sum: f64 = answer["answers"]["grade"]["probabilities"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, value)| value.as_f64())
            .sum();
        assert!((sum - 1.0).abs() < 1e-9);
        assert!(["x", "y"].contains(&answer["answers"]["which"]["choice"].as_str().expect("a choice")));
    }

    #[test]
    fn what_cannot_be_decided_is_said() {
        assert_eq!(read(&json!({"questions": {}})).err(), Some(NotDecidable::NoState));
        assert_eq!(read(&json!({"state": "s", "questions": {}})).err(), Some(NotDecidable::NoQuestions));
        let body = json!({"state": "s", "questions": {"q": {"type": "choice", "criteria": {}}}});
        assert_eq!(read(&body).err(), Some(NotDecidable::Criteria("q".to_owned())));
    }
}
