//! The servers that phones run: their routes, their health, their errors.

mod laya;
mod llama;
mod mnn;
mod qvac;

use crate::answer::Answer;
use crate::ask::Refusal;
use crate::config::Dialect;
use crate::fault::Fault;
use crate::http::{Gone, Reply, Request};
use crate::shape::Identity;
use crate::visit::{Flow, Visit};
use serde_json::{Value, json};

/// Header lines that every answer of a dialect carries.
pub(crate) fn greeting(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Llama => "Server: llama.cpp\r\nAccess-Control-Allow-Origin: \r\nKeep-Alive: timeout=5, max=100\r\n",
        Dialect::Mnn => "Keep-Alive: timeout=5, max=100\r\n",
        Dialect::Qvac => "Keep-Alive: timeout=5\r\n",
        Dialect::MnnApp => "",
        Dialect::Laya => "server: uvicorn\r\n",
    }
}

/// Whether a request makes the model work; everything else is a probe.
pub(crate) fn is_work(dialect: Dialect, request: &Request) -> bool {
    let path = request.path();
    request.method == "POST"
        && match dialect {
            Dialect::Llama => llama::is_work(path),
            Dialect::Qvac => path == "/v1/chat/completions",
            Dialect::Mnn | Dialect::MnnApp => mnn::is_work(path),
            Dialect::Laya => path.starts_with("/v1/systemone"),
        }
}

/// Whether a request asks for a stream, read loosely, for faults that answer without reading it properly.
pub(crate) fn wants_stream(visit: &Visit<'_>) -> bool {
    let body: Value = serde_json::from_slice(&visit.request.body).unwrap_or_default();
    match visit.phone.config.dialect {
        Dialect::Qvac => body["stream"] != json!(false),
        _ => body["stream"] == json!(true),
    }
}

/// An error in the dialect's shape.
pub(crate) fn error(dialect: Dialect, status: u16, kind: &'static str, message: &str) -> Reply {
    match dialect {
        Dialect::Laya => Reply::json(status, &json!({"detail": message})),
        Dialect::Mnn => Reply::json(status, &json!({"error": message})),
        Dialect::MnnApp => Reply::json(status, &json!({"error": {"message": message}})),
        Dialect::Llama | Dialect::Qvac => {
            Reply::json(status, &json!({"error": {"code": status, "message": message, "type": kind}}))
        }
    }
}

/// The answer to a missing or wrong key.
pub(crate) fn unauthorized(dialect: Dialect) -> Reply {
    match dialect {
        Dialect::MnnApp => Reply::new(401, "", "").with("WWW-Authenticate", "Bearer realm=\"mnn\""),
        Dialect::Laya => error(dialect, 401, "", "Invalid or missing API key"),
        _ => error(dialect, 401, "authentication_error", "Invalid API Key"),
    }
}

/// Whether the request carries the phone's key, as Bearer or in `X-Api-Key`.
fn has_key(visit: &Visit<'_>) -> bool {
    let Some(key) = visit.phone.config.api_key.as_deref() else { return true };
    let bearer = visit.request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    bearer.or_else(|| visit.request.header("x-api-key")) == Some(key)
}

/// The reply to a request that cannot be answered.
fn refusal(dialect: Dialect, refusal: &Refusal) -> Reply {
    let Value::Object(more) = &refusal.more else {
        return error(dialect, refusal.status, refusal.kind, &refusal.message);
    };
    let mut body = json!({"error": {"code": refusal.status, "message": refusal.message, "type": refusal.kind}});
    for (key, value) in more {
        body["error"][key] = value.clone();
    }
    Reply::json(refusal.status, &body)
}

/// The name under which the phone speaks of its model.
fn model_name(visit: &Visit<'_>) -> String {
    if visit.fault == Fault::TerminalEscapes {
        format!("\u{1b}[31m\u{1b}]0;owned\u{7}{}\r\n", visit.phone.config.model)
    } else {
        visit.phone.config.model.clone()
    }
}

/// What every chunk of an answer repeats.
fn identity(visit: &Visit<'_>) -> Identity {
    let id = format!("chatcmpl-{}", visit.phone.next_id());
    Identity::new(id, &model_name(visit), &visit.phone.config.build)
}

/// The same answers with new ids for their calls.
fn name_calls(visit: &Visit<'_>, answers: impl IntoIterator<Item = Answer>) -> Vec<Answer> {
    let mut answers: Vec<Answer> = answers.into_iter().collect();
    for call in answers.iter_mut().flat_map(|answer| &mut answer.calls) {
        call.id = visit.phone.next_id();
    }
    answers
}

/// What the answer is about: the request's own subject, unless the phone swaps answers.
fn subject(visit: &Visit<'_>, own: &str) -> String {
    if visit.fault == Fault::SwappedAnswers { visit.phone.swap_subject(own) } else { own.to_owned() }
}

/// Answers a request.
pub(crate) async fn answer(visit: &mut Visit<'_>) -> Result<Flow, Gone> {
    match visit.phone.config.dialect {
        Dialect::Llama => llama::answer(visit).await,
        Dialect::Qvac => qvac::answer(visit).await,
        Dialect::Mnn => mnn::answer(visit).await,
        Dialect::MnnApp => mnn::answer_app(visit).await,
        Dialect::Laya => laya::answer(visit).await,
    }
}
