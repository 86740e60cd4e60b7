//! What llama-server says about itself, and the routes that count tokens without using a slot.

use super::generate::{demand, messages_chat, responses_chat};
use super::{not_found, not_supported};
use crate::ask::{self, Refusal};
use crate::config::Continuation;
use crate::dialect::model_name;
use crate::digest::token;
use crate::http::Reply;
use crate::prompt::{Chat, End, text_tokens};
use crate::visit::Visit;
use serde_json::{Value, json};

/// Answers a GET.
pub(super) fn answer(visit: &Visit<'_>, path: &str) -> Result<Reply, Refusal> {
    let config = &visit.phone.config;
    match path {
        "/v1/models" | "/models" => Ok(Reply::json(200, &models(visit))),
        "/props" => Ok(Reply::json(200, &props(visit))),
        "/slots" => {
            demand(config.features.slots, "This server does not support slots endpoint. Start it with `--slots`")?;
            let busy = visit.phone.engine.busy_slots();
            if visit.request.query().contains("fail_on_no_slot=1") && busy.iter().all(|busy| *busy) {
                return Err(Refusal::new(503, "unavailable_error", "no slot available"));
            }
            Ok(Reply::json(200, &slots(visit, &busy)))
        }
        "/metrics" => {
            demand(
                config.features.metrics,
                "This server does not support metrics endpoint. Start it with `--metrics`",
            )?;
            Ok(Reply::new(200, "text/plain; version=0.0.4", metrics(visit)))
        }
        "/tools" => Err(Refusal::new(403, "feature_disabled", "this feature is disabled")),
        _ => Err(not_found()),
    }
}

fn models(visit: &Visit<'_>) -> Value {
    let file = &visit.phone.config.file;
    let name = model_name(visit);
    json!({
        "models": [{"name": name, "model": name, "modified_at": "", "size": "", "digest": "", "type": "model",
            "description": "", "tags": [""], "capabilities": ["completion"], "parameters": "",
            "details": {"parent_model": "", "format": "gguf", "family": "", "families": [""],
                "parameter_size": "", "quantization_level": ""}}],
        "object": "list",
        "data": [{"id": name, "aliases": [name], "tags": [], "object": "model", "created": 1_700_000_000,
            "owned_by": "llamacpp",
            "meta": {"vocab_type": 2, "n_vocab": 151_936, "n_ctx": visit.phone.config.context_tokens,
                "n_ctx_train": file.trained_context, "n_embd": 1024, "n_params": file.parameters, "size": file.size,
                "ftype": file.quantization}}],
    })
}

fn props(visit: &Visit<'_>) -> Value {
    let config = &visit.phone.config;
    json!({
        "default_generation_settings": {"params": {"temperature": 0.8, "n_predict": -1},
            "n_ctx": config.context_tokens},
        "total_slots": config.slots, "model_alias": model_name(visit), "model_path": config.model,
        "model_ftype": config.file.quantization, "modalities": {"vision": false, "audio": false},
        "endpoint_slots": config.features.slots, "endpoint_props": true,
        "endpoint_metrics": config.features.metrics, "chat_template": "",
        "chat_template_caps": {"supports_tools": true, "supports_tool_calls": true},
        "bos_token": "<s>", "eos_token": "</s>", "build_info": config.build, "is_sleeping": false,
    })
}

fn slots(visit: &Visit<'_>, busy: &[bool]) -> Value {
    let context = visit.phone.config.context_tokens;
    let slot = |(id, busy): (usize, &bool)| {
        json!({"id": id, "n_ctx": context, "speculative": false,
        "is_processing": busy})
    };
    Value::Array(busy.iter().enumerate().map(slot).collect())
}

fn metrics(visit: &Visit<'_>) -> String {
    let stats = visit.phone.book.stats();
    let prompt = stats.prompt_tokens - stats.cached_tokens;
    let mut text = String::new();
    for (name, kind, value) in [
        ("prompt_tokens_total", "counter", prompt),
        ("prompt_tokens_cached_total", "counter", stats.cached_tokens),
        ("tokens_predicted_total", "counter", stats.written_tokens),
        ("requests_processing", "gauge", u64::from(stats.running_now)),
        ("requests_deferred", "gauge", u64::from(stats.waiting_now)),
    ] {
        text.push_str(&format!("# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"));
    }
    text
}

/// Answers a POST that uses no slot.
pub(super) fn post(visit: &Visit<'_>, path: &str, body: &Value) -> Result<Reply, Refusal> {
    let count = |tokens: usize| json!({"input_tokens": tokens, "object": "response.input_tokens"});
    let value = match path {
        "/v1/streams/lookup" if visit.phone.config.keeps_streams => {
            let ids = body["conversation_ids"].as_array().into_iter().flatten();
            visit.phone.streams.describe(ids.filter_map(Value::as_str))
        }
        "/tokenize" => tokenize(body),
        "/detokenize" => {
            let ids = body["tokens"].as_array().into_iter().flatten().map(Value::to_string);
            json!({"content": ids.collect::<Vec<_>>().join(" ")})
        }
        "/apply-template" => {
            let chat = Chat::read(ask::messages(body)?);
            json!({"prompt": chat.render(end_of(visit, &chat))})
        }
        "/v1/chat/completions/input_tokens" => {
            let chat = Chat::read(ask::messages(body)?);
            count(chat.tokens(end_of(visit, &chat)).len())
        }
        "/v1/responses/input_tokens" => count(responses_chat(body)?.tokens(End::Open).len()),
        "/v1/messages/count_tokens" => json!({"input_tokens": messages_chat(body)?.tokens(End::Open).len()}),
        "/v1/chat/completions/control" => {
            json!({"success": false, "message": "no active completion for this id"})
        }
        "/v1/audio/transcriptions" => return Err(not_supported("The current model does not support audio input.")),
        _ => return Err(not_found()),
    };
    Ok(Reply::json(200, &value))
}

/// A last message of the assistant's is rendered to be carried on, by engines that know of that.
fn end_of(visit: &Visit<'_>, chat: &Chat) -> End {
    let carries = visit.phone.config.continuation != Continuation::Restart;
    if carries && chat.last_assistant().is_some() { End::Begun } else { End::Open }
}

fn tokenize(body: &Value) -> Value {
    let text = body["content"].as_str().unwrap_or_default();
    if body["with_pieces"] == json!(true) {
        let piece = |word: &str| json!({"id": token(word), "piece": word});
        json!({"tokens": text.split_whitespace().map(piece).collect::<Vec<_>>()})
    } else {
        json!({"tokens": text_tokens(text)})
    }
}
