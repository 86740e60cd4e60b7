//! The QVAC app: one chat route that streams unless told not to, and no limit on parallel work.

use super::{error, identity, model_name, name_calls, refusal, subject};
use crate::ask::{self, Ask, Refusal, Said, compose};
use crate::config::Dialect;
use crate::http::{Gone, Reply};
use crate::prompt::{Chat, End};
use crate::shape::Quirks;
use crate::shape::chat::{ChatForm, ChatShape};
use crate::visit::{Flow, Visit};
use crate::work::{self, Work};
use serde_json::{Value, json};

pub(super) async fn answer(visit: &mut Visit<'_>) -> Result<Flow, Gone> {
    let loading = visit.phone.loading_until().is_some();
    let model = model_name(visit);
    match (visit.request.method.as_str(), visit.request.path()) {
        ("GET" | "HEAD", "/health") => {
            let status = if loading { "error" } else { "ok" };
            visit.reply(&Reply::json(200, &json!({"status": status, "model": model, "switching": loading}))).await
        }
        ("GET" | "HEAD", "/v1/models") => {
            let entry = |id: &str, current: bool| {
                json!({"id": id, "object": "model", "created": 1_700_000_000,
                "owned_by": "qvac", "current": current})
            };
            let data = [entry(&model, true), entry("another-model-of-the-catalogue", false)];
            visit.reply(&Reply::json(200, &json!({"object": "list", "data": data}))).await
        }
        ("POST", "/v1/chat/completions") if loading => {
            let busy = error(Dialect::Qvac, 503, "server_error", "Model is switching");
            visit.refuse(&busy).await
        }
        ("POST", "/v1/chat/completions") => match chat(visit) {
            Ok(work) => work::perform(visit, work).await,
            Err(no) => visit.refuse(&refusal(Dialect::Qvac, &no)).await,
        },
        _ => visit.refuse(&error(Dialect::Qvac, 404, "invalid_request_error", "Not found")).await,
    }
}

fn chat(visit: &Visit<'_>) -> Result<Work, Refusal> {
    let body: Value = ask::parse(&visit.request.body)?;
    let chat = Chat::read(ask::messages(&body)?);
    let mut ask = Ask::read(&body, &chat)?;
    ask.stream = body["stream"] != json!(false);
    let prompt = chat.tokens(End::Open);
    let context = visit.phone.config.context_tokens;
    let room = (context as usize).saturating_sub(prompt.len());
    if room == 0 {
        return Err(Refusal::bad(format!("prompt of {} tokens exceeds the context of {context}", prompt.len())));
    }
    let answer = compose(&visit.phone.config, &ask, &subject(visit, chat.subject()), &Said::default(), room, 0);
    let answers = name_calls(visit, [answer]);
    let form = ChatForm { include_usage: ask.include_usage, quirks: Quirks::from(&visit.fault), ..ChatForm::default() };
    let shape = Box::new(ChatShape::new(identity(visit), form, &answers));
    Ok(Work { prompt, answers, shape, stream: ask.stream, progress: false, timings_per_token: false })
}
