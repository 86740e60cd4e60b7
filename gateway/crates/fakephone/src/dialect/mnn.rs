//! MNN's two servers: `mnncli serve` and the MNN Chat app for Android.

use super::{error, has_key, identity, subject, unauthorized};
use crate::ask::{Ask, Said, compose};
use crate::config::Dialect;
use crate::http::{Gone, Reply};
use crate::marks::Marks;
use crate::prompt::{Chat, End};
use crate::shape::messages::MessagesShape;
use crate::shape::mnn::{MnnAppShape, MnnShape};
use crate::shape::{Carried, Identity, Shape};
use crate::visit::{Flow, Visit};
use crate::work::{self, Work};
use serde_json::{Value, json};

/// What `mnncli serve` calls every model.
pub(crate) const MNN_MODEL: &str = "ModelScope/MNN/Qwen2.5-0.5B-Instruct";
/// What the app calls every model in its answers.
const APP_MODEL: &str = "mnn-local";

pub(super) fn is_work(path: &str) -> bool {
    matches!(path, "/v1/chat/completions" | "/chat/completions" | "/v1/messages")
}

/// `mnncli serve`.
pub(super) async fn answer(visit: &mut Visit<'_>) -> Result<Flow, Gone> {
    match (visit.request.method.as_str(), visit.request.path()) {
        ("GET" | "HEAD", "/") => visit.reply(&Reply::new(200, "text/html", "<html>MNN</html>")).await,
        ("POST", "/reset") => {
            visit.phone.engine.forget();
            visit.reply(&Reply::json(200, &json!({"status": "ok"}))).await
        }
        ("GET" | "HEAD", "/v1/models") => {
            let data = json!([{"id": MNN_MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "mnn"}]);
            visit.reply(&Reply::json(200, &json!({"object": "list", "data": data}))).await
        }
        ("POST", path) if is_work(path) => {
            let messages = path == "/v1/messages";
            let Ok(body) = serde_json::from_slice::<Value>(&visit.request.body) else {
                return visit.refuse(&error(Dialect::Mnn, 400, "", "Invalid JSON in request body.")).await;
            };
            if !body["messages"].is_array() {
                return visit.refuse(&Reply::new(200, "", "")).await;
            }
            let work = chat(visit, &body, messages, true);
            work::perform(visit, work).await
        }
        _ => visit.refuse(&Reply::new(404, "", "")).await,
    }
}

/// The MNN Chat app.
pub(super) async fn answer_app(visit: &mut Visit<'_>) -> Result<Flow, Gone> {
    let loading = visit.phone.loading_until().is_some();
    let app = Dialect::MnnApp;
    match (visit.request.method.as_str(), visit.request.path()) {
        ("GET" | "HEAD", "/") => visit.reply(&Reply::new(200, "text/html", "<html>MNN Chat</html>")).await,
        ("GET" | "HEAD", "/v1/models") if loading => {
            visit.refuse(&error(app, 500, "", "LLM session not available")).await
        }
        ("GET" | "HEAD", "/v1/models") => {
            let data = json!([{"id": visit.phone.config.model, "object": "model", "created": 1_700_000_000,
                "owned_by": "mnn"}]);
            visit.reply(&Reply::json(200, &json!({"object": "list", "data": data}))).await
        }
        ("GET" | "HEAD", "/v1/queue/status") => visit.reply(&Reply::json(200, &queue(visit))).await,
        ("DELETE", "/v1/queue/clear") => visit.reply(&Reply::json(200, &json!({"status": "cleared"}))).await,
        ("POST", path) if is_work(path) => {
            let messages = path == "/v1/messages";
            if !has_key(visit) {
                let reply = if messages { error(app, 401, "", "Invalid API key") } else { unauthorized(app) };
                return visit.refuse(&reply).await;
            }
            if loading {
                return visit.refuse(&error(app, 500, "", "LLM session not available")).await;
            }
            let Ok(body) = serde_json::from_slice::<Value>(&visit.request.body) else {
                return visit.refuse(&Reply::new(400, "", "")).await;
            };
            let work = chat(visit, &body, messages, false);
            work::perform(visit, work).await
        }
        _ => visit.refuse(&Reply::new(404, "", "")).await,
    }
}

fn queue(visit: &Visit<'_>) -> Value {
    let stats = visit.phone.book.stats();
    json!({"status": "ok", "totalRequests": stats.started, "completedRequests": stats.completed,
        "failedRequests": stats.failed, "pendingRequests": stats.waiting_now.min(1), "isProcessing": false,
        "successRate": 1.0, "message": ""})
}

/// Neither server reads `max_tokens`, `stop` or `tools`; `mnncli` also stops at content that is no string.
fn chat(visit: &Visit<'_>, body: &Value, messages: bool, strings_only: bool) -> Work {
    let all = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let readable = if strings_only {
        all.iter().position(|message| !message["content"].is_string()).unwrap_or(all.len())
    } else {
        all.len()
    };
    let chat = Chat::read(&all[..readable]);
    let stream = body["stream"] == json!(true);
    let ask = Ask { marks: Marks::read(chat.subject()).unwrap_or_default(), ..Ask::free(stream) };
    let prompt = chat.tokens(End::Open);
    let room = (visit.phone.config.context_tokens as usize).saturating_sub(prompt.len()).max(1);
    let mut answer = compose(&visit.phone.config, &ask, &subject(visit, chat.subject()), &Said::default(), room, 0);
    if stream && readable < all.len() {
        // Only `[DONE]` comes.
        answer = answer.limited(0);
    }
    answer.finish = crate::answer::Finish::Stop;
    let shape: Box<dyn Shape> = if messages {
        Box::new(MessagesShape::new(identity(visit), &answer, prompt.len(), Carried::default()))
    } else if strings_only {
        Box::new(MnnShape { model: body["model"].as_str().unwrap_or("undefined-model").to_owned() })
    } else {
        let id = format!("chatcmpl-{}", (crate::clock::unix_seconds() * 1000.0) as u64);
        Box::new(MnnAppShape { identity: Identity::new(id, APP_MODEL, "") })
    };
    Work { prompt, answers: vec![answer], shape, stream, progress: false, timings_per_token: false }
}
