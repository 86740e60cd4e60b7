//! A response's request as that of a chat, by which its answer is carried on.
//!
//! Problem: no engine carries on a response (llama-server: 400 "Cannot determine type of 'item'"), but llama-server answers a
//! response by making a chat of it, and it carries on chats. The chat must be the one that the first engine made, or the model
//! goes on in another context.
//!
//! Choice: what llama-server does with each member, done again here, also where one would expect otherwise: it ignores
//! `text.format` (measured), so the schema is left out, since what was written without one can't be gone on with under one;
//! of tools only functions count; what one assistant says in several items is one message. Other members are passed on.
//!
//! The body was scanned before and is walked a second time, by the same scanner and only when an answer is carried on, or when
//! it is asked whether it could be. It is written anew in one piece: hardly a byte stays in its place.
//!
//! Rejected: `serde_json` values, which sort the properties of a schema (in whose order a grammar wants them) and round
//! numbers; a table of the places in every request, for the rare one that is carried on.

mod input;
mod raw;

use super::UpstreamRewrite;
use super::body::{ASK_PROGRESS, ASK_USAGE, GO_ON, rest_of, written};
use super::field::Field;
use crate::carry::CarryOn;
use crate::json::quote;
use crate::route::Route;
use crate::segments::Segments;
use bytes::Bytes;
use input::Messages;
use raw::{Object, elements, is_array};

/// Whether the chat would be what the response is.
pub(super) fn fits(body: &Bytes) -> bool {
    let whole = Object::of(text(body));
    // What an engine that knows these reads is not in this body.
    let elsewhere = ["previous_response_id", "conversation", "prompt"].iter().any(|name| whole.get(name).is_some());
    let answers_later = whole.get("background") == Some("true");
    !elsewhere && !answers_later && Messages::of(&whole).are_open_to_the_assistant()
}

/// The chat's body. What `fits` would not let pass is passed on as far as it can be, for the engine to refuse.
pub(super) fn body(body: &Bytes, rewrite: &UpstreamRewrite<'_>, part: &CarryOn) -> Segments {
    let whole = Object::of(text(body));
    let messages = Messages::of(&whole);
    let mut chat = Vec::with_capacity(body.len() + part.content.len() + part.reasoning.len() + 256);
    chat.extend_from_slice(br#"{"model":"#);
    match whole.get("model").filter(|_| rewrite.model.is_empty()) {
        Some(model) => put(&mut chat, model),
        None => quote(rewrite.model, &mut chat),
    }
    put(&mut chat, if rewrite.stream { r#","stream":true"# } else { r#","stream":false"# });
    for (wanted, text) in [(rewrite.ask_usage, ASK_USAGE), (rewrite.progress, ASK_PROGRESS)] {
        if wanted && rewrite.stream {
            put(&mut chat, ",");
            put(&mut chat, text);
        }
    }
    put(&mut chat, r#","messages":"#);
    if part.content.is_empty() && part.reasoning.is_empty() {
        messages.write(None, &mut chat);
    } else {
        messages.write(Some(&written(part)), &mut chat);
        put(&mut chat, ",");
        put(&mut chat, GO_ON);
    }
    others(&whole, part, &mut chat);
    put(&mut chat, "}");
    Bytes::from(chat).into()
}

/// What was decoded from UTF-8 is it still.
fn text(body: &Bytes) -> &str {
    std::str::from_utf8(body).unwrap_or_default()
}

fn put(chat: &mut Vec<u8>, text: &str) {
    chat.extend_from_slice(text.as_bytes());
}

/// The members apart from the prompt.
fn others(whole: &Object<'_>, part: &CarryOn, chat: &mut Vec<u8>) {
    let limited = whole.get("max_output_tokens").is_some();
    for (name, value) in whole.iter() {
        match name {
            // Written already, or of no meaning in a chat; one choice is carried on, as the gateway says.
            "model"
            | "stream"
            | "stream_options"
            | "messages"
            | "input"
            | "instructions"
            | "text"
            | "include"
            | "store"
            | "truncation"
            | "previous_response_id"
            | "conversation"
            | "prompt"
            | "background"
            | "n"
            | "echo"
            | "add_generation_prompt"
            | "continue_final_message" => {}
            "max_output_tokens" => limit("max_tokens", value, part, chat),
            "max_tokens" if limited => {}
            "max_tokens" | "max_completion_tokens" | "n_predict" => limit(name, value, part, chat),
            "reasoning" => {
                if let Some(effort) = Object::of(value).get("effort") {
                    add("reasoning_effort", effort, chat);
                }
            }
            "tools" => tools(value, chat),
            _ => match Field::of(Route::Responses, name) {
                Field::Private | Field::Timings => {}
                _ => add(name, value, chat),
            },
        }
    }
}

fn add(name: &str, value: &str, chat: &mut Vec<u8>) {
    put(chat, ",");
    quote(name, chat);
    put(chat, ":");
    put(chat, value);
}

/// A limit, less what is written.
fn limit(name: &str, value: &str, part: &CarryOn, chat: &mut Vec<u8>) {
    match value.parse() {
        Ok(limit) if part.tokens > 0 => add(name, &rest_of(limit, part.tokens).to_string(), chat),
        _ => add(name, value, chat),
    }
}

/// The functions among the tools, which a chat has one level deeper.
fn tools(value: &str, chat: &mut Vec<u8>) {
    if !is_array(value) {
        return add("tools", value, chat);
    }
    let mut begun = false;
    for tool in elements(value).into_iter().map(Object::of).filter(|tool| tool.says("type", "function")) {
        put(chat, if begun { "," } else { r#","tools":["# });
        begun = true;
        put(chat, r#"{"type":"function","function":{"#);
        let mut between = "";
        for (name, value) in tool.iter().filter(|(name, _)| *name != "type") {
            put(chat, between);
            between = ",";
            quote(name, chat);
            put(chat, ":");
            put(chat, value);
        }
        put(chat, "}}");
    }
    if begun {
        put(chat, "]");
    }
}
