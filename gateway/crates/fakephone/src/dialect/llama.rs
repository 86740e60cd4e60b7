//! llama-server, as measured.

mod generate;
mod info;
mod resume;
mod vectors;

use super::{has_key, refusal, unauthorized};
use crate::ask::Refusal;
use crate::config::Dialect;
use crate::http::{Gone, Reply};
use crate::visit::{Flow, Visit};
use serde_json::Value;

/// The paths that take a slot.
pub(super) fn is_work(path: &str) -> bool {
    matches!(
        path,
        "/v1/chat/completions"
            | "/chat/completions"
            | "/v1/completions"
            | "/completion"
            | "/completions"
            | "/v1/responses"
            | "/responses"
            | "/v1/messages"
            | "/v1/embeddings"
            | "/embeddings"
            | "/v1/rerank"
            | "/rerank"
            | "/v1/reranking"
            | "/v1/systemone"
    )
}

pub(super) async fn answer(visit: &mut Visit<'_>) -> Result<Flow, Gone> {
    // While it loads, every path says so, whatever the key.
    if visit.phone.loading_until().is_some() {
        let loading = Refusal::new(503, "unavailable_error", "Loading model");
        return visit.refuse(&refusal(Dialect::Llama, &loading)).await;
    }
    let method = visit.request.method.clone();
    let path = visit.request.path().to_owned();
    let reads = method == "GET" || method == "HEAD";
    if reads && matches!(path.as_str(), "/health" | "/v1/health") {
        return visit.reply(&Reply::json(200, &serde_json::json!({"status": "ok"}))).await;
    }
    if !has_key(visit) {
        return visit.refuse(&unauthorized(Dialect::Llama)).await;
    }
    if visit.request.header("content-encoding").is_some() {
        return visit.refuse(&Reply::new(415, "", "")).await;
    }
    if resume::is_for_one(visit) {
        return resume::answer(visit).await;
    }
    let result = if reads {
        info::answer(visit, &path).map(Answered::Reply)
    } else if method == "POST" {
        post(visit, &path).await?
    } else {
        Err(not_found())
    };
    match result {
        Ok(Answered::Reply(reply)) => visit.reply(&reply).await,
        Ok(Answered::Flow(flow)) => Ok(flow),
        Err(no) => visit.refuse(&refusal(Dialect::Llama, &no)).await,
    }
}

/// A request that is dealt with: an answer to send, or one that was sent.
enum Answered {
    Reply(Reply),
    Flow(Flow),
}

fn not_found() -> Refusal {
    Refusal::new(404, "not_found_error", "File Not Found")
}

fn not_supported(message: &str) -> Refusal {
    Refusal::new(501, "not_supported_error", message)
}

async fn post(visit: &mut Visit<'_>, path: &str) -> Result<Result<Answered, Refusal>, Gone> {
    let body: Value = match crate::ask::parse(&visit.request.body) {
        Ok(body) => body,
        Err(no) => return Ok(Err(no)),
    };
    let work = match path {
        "/v1/chat/completions" | "/chat/completions" => generate::chat(visit, &body),
        "/v1/completions" => generate::completion(visit, &body),
        "/completion" | "/completions" => generate::native(visit, &body),
        "/v1/responses" | "/responses" => generate::responses(visit, &body),
        "/v1/messages" => generate::messages(visit, &body),
        "/v1/embeddings" | "/embeddings" => return vectors::embeddings(visit, &body).await,
        "/v1/rerank" | "/rerank" | "/v1/reranking" => return vectors::rerank(visit, &body).await,
        "/v1/systemone" => return vectors::decide(visit, &body).await,
        _ => return Ok(info::post(visit, path, &body).map(Answered::Reply)),
    };
    match work {
        Ok(work) => crate::work::perform(visit, work).await.map(|flow| Ok(Answered::Flow(flow))),
        Err(no) => Ok(Err(no)),
    }
}
