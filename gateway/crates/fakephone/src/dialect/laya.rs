//! The Laya app: decisions, one at a time, refused instead of queued when it is busy.

use super::{error, has_key, model_name, unauthorized};
use crate::config::Dialect;
use crate::decide::{self, Case};
use crate::http::{Gone, Reply};
use crate::visit::{Flow, Visit};
use crate::work;
use serde_json::{Value, json};

/// Most states in one batch.
const MOST_STATES: usize = 64;

pub(super) async fn answer(visit: &mut Visit<'_>) -> Result<Flow, Gone> {
    let path = visit.request.path().to_owned();
    let loading = visit.phone.loading_until().is_some();
    match (visit.request.method.as_str(), path.as_str()) {
        ("GET" | "HEAD", "/health" | "/") => {
            let body = if loading {
                json!({"status": "loading", "progress": {"phase": "load", "percent": 50}})
            } else {
                json!({"status": "ok", "progress": {"phase": "ready", "percent": 100}})
            };
            visit.reply(&Reply::json(200, &body)).await
        }
        ("POST", "/v1/systemone" | "/v1/systemone/batch") => {
            if !has_key(visit) {
                return visit.refuse(&unauthorized(Dialect::Laya)).await;
            }
            if loading || visit.phone.engine.is_full() {
                let busy = error(Dialect::Laya, 503, "", "busy, try again").with("Retry-After", "1");
                return visit.refuse(&busy).await;
            }
            decide(visit, path.ends_with("batch")).await
        }
        (_, "/health" | "/v1/systemone" | "/v1/systemone/batch") => {
            visit.refuse(&error(Dialect::Laya, 405, "", "Method Not Allowed")).await
        }
        _ => visit.refuse(&error(Dialect::Laya, 404, "", "Not Found")).await,
    }
}

async fn decide(visit: &mut Visit<'_>, batch: bool) -> Result<Flow, Gone> {
    let cases = match cases(&visit.request.body, batch) {
        Ok(cases) => cases,
        Err((status, message)) => return visit.refuse(&error(Dialect::Laya, status, "", &message)).await,
    };
    let tokens = cases.iter().flat_map(|case| case.tokens.iter().copied()).collect();
    work::read_only(visit, tokens).await?;
    let model = model_name(visit);
    let mut answers: Vec<Value> = cases.iter().map(|case| case.answer(&model)).collect();
    let body = if batch { json!({"results": answers}) } else { answers.pop().unwrap_or_default() };
    visit.reply(&Reply::json(200, &body)).await
}

fn cases(body: &[u8], batch: bool) -> Result<Vec<Case>, (u16, String)> {
    let body: Value = serde_json::from_slice(body).map_err(|error| (400, error.to_string()))?;
    let read = |body: &Value| decide::read(body).map_err(|error| (422, error.to_string()));
    if !batch {
        return Ok(vec![read(&body)?]);
    }
    let states = body["states"].as_array().ok_or((422, "'states' is required".to_owned()))?;
    if states.is_empty() || states.len() > MOST_STATES {
        return Err((422, format!("'states' must hold 1 to {MOST_STATES} states")));
    }
    states.iter().map(|state| read(&json!({"state": state, "questions": body["questions"]}))).collect()
}
