//! The routes that write text.

use super::not_supported;
use crate::answer::Answer;
use crate::ask::{self, Ask, Refusal, compose, split_prompt};
use crate::config::Continuation;
use crate::dialect::{identity, model_name, subject};
use crate::prompt::{Chat, Message, text_tokens};
use crate::shape::chat::{ChatForm, ChatShape};
use crate::shape::completion::{CompletionShape, NativeShape};
use crate::shape::messages::MessagesShape;
use crate::shape::responses::ResponsesShape;
use crate::shape::{Quirks, Shape};
use crate::visit::Visit;
use crate::work::Work;
use serde_json::{Value, json};

/// Room for the answer behind a prompt, or the refusal of one that is too long: a prompt must leave one token free.
fn room(visit: &Visit<'_>, prompt: &[u32]) -> Result<usize, Refusal> {
    let context = visit.phone.config.context_tokens;
    match (context as usize).checked_sub(prompt.len()) {
        None | Some(0) => Err(Refusal::too_long(prompt.len(), context)),
        Some(room) => Ok(room),
    }
}

fn work(prompt: Vec<u32>, answer: Answer, shape: Box<dyn Shape>, ask: &Ask) -> Work {
    Work { prompt, answer, shape, stream: ask.stream, progress: ask.progress }
}

/// A partial answer at the end of a chat, and how it is carried on.
struct Partial {
    text: String,
    echo: bool,
}

fn partial(visit: &Visit<'_>, chat: &Chat, body: &Value) -> Result<Option<Partial>, Refusal> {
    let flagged = match &body["continue_final_message"] {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) if text == "auto" => false,
        _ => true,
    };
    if flagged && body["add_generation_prompt"] != json!(false) {
        return Err(Refusal::bad("Cannot set both add_generation_prompt and continue_final_message to true."));
    }
    let assistants = chat.messages.iter().rev().take_while(|message| message.role == "assistant").count();
    if assistants > 1 {
        return Err(Refusal::bad("Cannot have 2 or more assistant messages at the end of the list."));
    }
    let Some(last) = chat.partial() else {
        if flagged && assistants > 0 {
            return Err(Refusal::bad("Cannot continue an assistant message that contains tool calls."));
        }
        return Ok(None);
    };
    let echo = body["echo"] == json!(true);
    match visit.phone.config.continuation {
        Continuation::Refuse => Err(Refusal::bad("Assistant response prefill is incompatible with enable_thinking.")),
        Continuation::Restart => Ok(None),
        Continuation::Exact => Ok(Some(Partial { text: last.text.clone(), echo })),
        Continuation::Echo => Ok(Some(Partial { text: last.text.clone(), echo: echo || !flagged })),
    }
}

pub(super) fn chat(visit: &Visit<'_>, body: &Value) -> Result<Work, Refusal> {
    let chat = Chat::read(ask::messages(body)?);
    if chat.messages.iter().any(|message| message.has_image) {
        let hint = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj";
        return Err(Refusal::new(500, "server_error", hint));
    }
    let ask = Ask::read(body, &chat)?;
    let slots = u32::from(visit.phone.config.slots);
    if ask.choices > slots.max(1) {
        return Err(Refusal::bad(format!("n_cmpl must be less than or equal to the number of slots ({slots})")));
    }
    if ask.logprobs && ask.stream && body["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
        return Err(Refusal::bad("logprobs is not supported with tools + stream"));
    }
    let partial = partial(visit, &chat, body)?;
    let prompt = chat.tokens(partial.is_none());
    let room = room(visit, &prompt)?;
    let said = partial.as_ref().map_or("", |partial| partial.text.as_str());
    let answer = compose(&visit.phone.config, &ask, &subject(visit, chat.subject()), said, room);
    let form = ChatForm {
        include_usage: ask.include_usage,
        choices: ask.choices,
        logprobs: ask.logprobs,
        timings_per_token: ask.timings_per_token,
        timings: true,
        quirks: Quirks::from(&visit.fault),
    };
    let mut shape = ChatShape::new(identity(visit), form, &answer);
    if let Some(partial) = &partial {
        shape = shape.continuing(&partial.text, partial.echo);
    }
    Ok(work(prompt, answer, Box::new(shape), &ask))
}

/// A prompt as text; token ids are taken as words.
fn prompt_text(prompt: &Value) -> Result<String, Refusal> {
    match prompt {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let part = |part: &Value| part.as_str().map_or_else(|| part.to_string(), str::to_owned);
            Ok(parts.iter().map(part).collect::<Vec<_>>().join(" "))
        }
        _ => Err(Refusal::bad("\"prompt\" must be a string or an array")),
    }
}

struct Plain {
    prompt: Vec<u32>,
    answer: Answer,
    ask: Ask,
}

fn plain(visit: &Visit<'_>, body: &Value) -> Result<Plain, Refusal> {
    let text = prompt_text(&body["prompt"])?;
    let prompt = text_tokens(&text);
    let room = room(visit, &prompt)?;
    let ask = Ask::read(body, &Chat::default())?;
    let (about, partial) = split_prompt(&text);
    let answer = compose(&visit.phone.config, &ask, &subject(visit, about), partial, room);
    Ok(Plain { prompt, answer, ask })
}

pub(super) fn completion(visit: &Visit<'_>, body: &Value) -> Result<Work, Refusal> {
    let Plain { prompt, answer, ask } = plain(visit, body)?;
    let quirks = Quirks::from(&visit.fault);
    let shape = CompletionShape { identity: identity(visit), include_usage: ask.include_usage, quirks };
    Ok(work(prompt, answer, Box::new(shape), &ask))
}

pub(super) fn native(visit: &Visit<'_>, body: &Value) -> Result<Work, Refusal> {
    let Plain { prompt, answer, ask } = plain(visit, body)?;
    Ok(work(prompt, answer, Box::new(NativeShape { model: model_name(visit) }), &ask))
}

/// The Responses API's `instructions` and `input` as a chat.
pub(super) fn responses_chat(body: &Value) -> Result<Chat, Refusal> {
    let mut chat = Chat::default();
    if let Some(instructions) = body["instructions"].as_str() {
        chat.messages.push(Message::plain("system", instructions.to_owned()));
    }
    match &body["input"] {
        Value::String(text) => chat.messages.extend(Chat::of_user(text).messages),
        Value::Array(items) => {
            for item in items {
                match item["type"].as_str() {
                    Some("function_call_output") => {
                        let output = item["output"].as_str().unwrap_or_default();
                        chat.messages.push(Message::plain("tool", output.to_owned()));
                    }
                    Some("function_call" | "reasoning") => {}
                    _ if item["role"] == "assistant" && item["type"] != "message" => {
                        return Err(Refusal::bad("Cannot determine type of 'item'"));
                    }
                    _ => chat.messages.extend(Chat::read(std::slice::from_ref(item)).messages),
                }
            }
        }
        _ => return Err(Refusal::bad("'input' is required")),
    }
    Ok(chat)
}

pub(super) fn responses(visit: &Visit<'_>, body: &Value) -> Result<Work, Refusal> {
    if body["previous_response_id"].is_string() {
        return Err(Refusal::bad("llama.cpp does not support 'previous_response_id'."));
    }
    let chat = responses_chat(body)?;
    let ask = Ask::read(body, &chat)?;
    let prompt = chat.tokens(true);
    let room = room(visit, &prompt)?;
    let answer = compose(&visit.phone.config, &ask, &subject(visit, chat.subject()), "", room);
    let mut identity = identity(visit);
    identity.id = visit.phone.next_id();
    let shape = ResponsesShape::new(identity, Quirks::from(&visit.fault), &answer);
    Ok(work(prompt, answer, Box::new(shape), &ask))
}

/// The Messages API's `system` and `messages` as a chat.
pub(super) fn messages_chat(body: &Value) -> Result<Chat, Refusal> {
    let mut chat = Chat::default();
    match &body["system"] {
        Value::Null => {}
        system => chat.messages.extend(Chat::read(&[json!({"role": "system", "content": system})]).messages),
    }
    chat.messages.extend(Chat::read(ask::messages(body)?).messages);
    Ok(chat)
}

pub(super) fn messages(visit: &Visit<'_>, body: &Value) -> Result<Work, Refusal> {
    if body["max_tokens"].is_null() {
        return Err(Refusal::bad("'max_tokens' is required"));
    }
    let chat = messages_chat(body)?;
    let mut ask = Ask::read(body, &chat)?;
    let sequences = body["stop_sequences"].as_array().into_iter().flatten();
    ask.stops.extend(sequences.filter_map(Value::as_str).map(str::to_owned));
    let said = chat.partial().map_or("", |partial| partial.text.as_str()).to_owned();
    let prompt = chat.tokens(said.is_empty());
    let room = room(visit, &prompt)?;
    let answer = compose(&visit.phone.config, &ask, &subject(visit, chat.subject()), &said, room);
    let shape = MessagesShape::new(identity(visit), &answer, prompt.len());
    Ok(work(prompt, answer, Box::new(shape), &ask))
}

/// Refuses a route whose feature is off.
pub(super) fn demand(feature: bool, message: &str) -> Result<(), Refusal> {
    if feature { Ok(()) } else { Err(not_supported(message)) }
}
