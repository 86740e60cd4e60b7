//! The routes that write text.

use super::not_supported;
use crate::answer::Answer;
use crate::ask::{self, Ask, Refusal, Said, compose, split_prompt};
use crate::config::Continuation;
use crate::dialect::{identity, model_name, name_calls, subject};
use crate::marks::Marks;
use crate::prompt::{Chat, End, Message, text_tokens};
use crate::shape::chat::{ChatForm, ChatShape};
use crate::shape::completion::{CompletionShape, NativeShape};
use crate::shape::messages::MessagesShape;
use crate::shape::responses::ResponsesShape;
use crate::shape::{Carried, Logprobs, Quirks, Shape};
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

fn work(prompt: Vec<u32>, answers: Vec<Answer>, shape: Box<dyn Shape>, ask: &Ask) -> Work {
    let (stream, progress, timings_per_token) = (ask.stream, ask.progress, ask.timings_per_token);
    Work { prompt, answers, shape, stream, progress, timings_per_token }
}

/// How a chat ends, and what of the answer it brings along.
struct Ending {
    end: End,
    carried: Carried,
}

/// Looks whether the last message is the beginning of the answer, as this engine understands it.
fn ending(visit: &Visit<'_>, chat: &Chat, body: &Value) -> Result<Ending, Refusal> {
    let engine = visit.phone.config.continuation;
    let open = Ending { end: End::Open, carried: Carried::default() };
    if chat.messages.iter().rev().take_while(|message| message.role == "assistant").count() > 1 {
        return Err(Refusal::bad("Cannot have 2 or more assistant messages at the end of the list."));
    }
    if engine == Continuation::Restart {
        return Ok(open);
    }
    let flagged = flagged(engine, &body["continue_final_message"])?;
    if flagged && body["add_generation_prompt"] != json!(false) {
        return Err(Refusal::bad("Cannot set both add_generation_prompt and continue_final_message to true."));
    }
    let Some(last) = chat.last_assistant() else { return Ok(open) };
    if last.has_calls {
        return Err(Refusal::bad("Cannot continue an assistant message that contains tool calls."));
    }
    if engine == Continuation::Refuse {
        return Err(Refusal::bad("Assistant response prefill is incompatible with enable_thinking."));
    }
    let said = Said { reasoning: last.reasoning.clone(), content: last.text.clone() };
    if said.is_nothing() {
        return Ok(Ending { end: if flagged { End::Lost } else { End::Open }, ..open });
    }
    let echo = body["echo"] == json!(true) || (engine == Continuation::Echo && !flagged);
    Ok(Ending { end: End::Begun, carried: Carried { said, echo } })
}

/// Whether the request asks for a continuation in so many words.
fn flagged(engine: Continuation, flag: &Value) -> Result<bool, Refusal> {
    match flag {
        Value::Null | Value::Bool(false) => Ok(false),
        Value::Bool(true) => Ok(true),
        Value::String(part) if part == "content" || part == "reasoning_content" => Ok(true),
        Value::String(part) if part == "auto" && engine == Continuation::Echo => Ok(false),
        other => Err(Refusal::bad(format!("Invalid value for continue_final_message: {other}"))),
    }
}

/// What a prompt that has lost its end is about: not what the client meant.
fn meant(visit: &Visit<'_>, chat: &Chat, end: End) -> String {
    let about = subject(visit, chat.subject());
    if end == End::Lost { about + " <lost turn>" } else { about }
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
    if ask.logprobs.is_some() && ask.stream && body["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
        return Err(Refusal::bad("logprobs is not supported with tools + stream"));
    }
    let Ending { end, carried } = ending(visit, &chat, body)?;
    let prompt = chat.tokens(end);
    let room = room(visit, &prompt)?;
    let about = meant(visit, &chat, end);
    let choice = |choice| compose(&visit.phone.config, &ask, &about, &carried.said, room, choice);
    let answers = name_calls(visit, (0..ask.choices).map(choice));
    let form = ChatForm {
        include_usage: ask.include_usage,
        logprobs: Logprobs(ask.logprobs),
        timings: true,
        quirks: Quirks::from(&visit.fault),
        carried,
    };
    let shape = ChatShape::new(identity(visit), form, &answers);
    Ok(work(prompt, answers, Box::new(shape), &ask))
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
    answers: Vec<Answer>,
    ask: Ask,
}

fn plain(visit: &Visit<'_>, body: &Value, choices: u32) -> Result<Plain, Refusal> {
    let text = prompt_text(&body["prompt"])?;
    let prompt = text_tokens(&text);
    let room = room(visit, &prompt)?;
    let (about, said) = split_prompt(&text);
    let mut ask = Ask::read(body, &Chat::default())?;
    ask.marks = Marks::read(about).unwrap_or_default();
    ask.thinking = 0;
    let said = Said { content: said.to_owned(), ..Said::default() };
    let about = subject(visit, about);
    let choice = |choice| compose(&visit.phone.config, &ask, &about, &said, room, choice);
    let answers = (0..choices.min(ask.choices)).map(choice).collect();
    Ok(Plain { prompt, answers, ask })
}

pub(super) fn completion(visit: &Visit<'_>, body: &Value) -> Result<Work, Refusal> {
    let Plain { prompt, answers, ask } = plain(visit, body, u32::from(visit.phone.config.slots.max(1)))?;
    let shape = CompletionShape {
        identity: identity(visit),
        include_usage: ask.include_usage,
        logprobs: Logprobs(ask.logprobs),
        quirks: Quirks::from(&visit.fault),
    };
    Ok(work(prompt, answers, Box::new(shape), &ask))
}

pub(super) fn native(visit: &Visit<'_>, body: &Value) -> Result<Work, Refusal> {
    let Plain { prompt, answers, ask } = plain(visit, body, 1)?;
    Ok(work(prompt, answers, Box::new(NativeShape { model: model_name(visit) }), &ask))
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
    let prompt = chat.tokens(End::Open);
    let room = room(visit, &prompt)?;
    let about = subject(visit, chat.subject());
    let answer = compose(&visit.phone.config, &ask, &about, &Said::default(), room, 0);
    let answers = name_calls(visit, [answer]);
    let mut identity = identity(visit);
    identity.id = visit.phone.next_id();
    let shape = ResponsesShape::new(identity, Quirks::from(&visit.fault), &answers[0]);
    Ok(work(prompt, answers, Box::new(shape), &ask))
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
    // There are no flags here: a last message of the assistant's is carried on as without them.
    let Ending { end, carried } = ending(visit, &chat, &Value::Null)?;
    let prompt = chat.tokens(end);
    let room = room(visit, &prompt)?;
    let answer = compose(&visit.phone.config, &ask, &meant(visit, &chat, end), &carried.said, room, 0);
    let answers = name_calls(visit, [answer]);
    let shape = MessagesShape::new(identity(visit), &answers[0], prompt.len(), carried);
    Ok(work(prompt, answers, Box::new(shape), &ask))
}

/// Refuses a route whose feature is off.
pub(super) fn demand(feature: bool, message: &str) -> Result<(), Refusal> {
    if feature { Ok(()) } else { Err(not_supported(message)) }
}
