//! What a request asks for, read from its JSON, and the answer that is due.

use crate::answer::{Answer, answer_text};
use crate::config::PhoneConfig;
use crate::digest::message_digest;
use crate::prompt::Chat;
use crate::schema;
use serde_json::{Value, json};

/// Why a request cannot be answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    /// Further fields of the error object.
    pub(crate) more: Value,
}

impl Refusal {
    pub(crate) fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), more: Value::Null }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "invalid_request_error", message)
    }

    /// The prompt does not fit a slot.
    pub(crate) fn too_long(tokens: usize, context: u32) -> Self {
        let message = format!(
            "request ({tokens} tokens) exceeds the available context size ({context} tokens), try increasing it"
        );
        let more = json!({"n_prompt_tokens": tokens, "n_ctx": context});
        Self { more, ..Self::new(400, "exceed_context_size_error", message) }
    }
}

/// What the answer must be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Format {
    Text,
    AnyJson,
    Schema(Value),
    Call { name: String, parameters: Value },
}

/// The parts of a request that shape an answer, whatever API it came by.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) stream: bool,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) stops: Vec<String>,
    pub(crate) include_usage: bool,
    pub(crate) choices: u32,
    pub(crate) logprobs: bool,
    pub(crate) progress: bool,
    pub(crate) timings_per_token: bool,
    pub(crate) format: Format,
}

/// Parses a body; llama-server's words for what is wrong with it.
pub(crate) fn parse(body: &[u8]) -> Result<Value, Refusal> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad(format!("[json.exception.parse_error.101] parse error: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(Refusal::bad("the body must be an object")) }
}

/// `messages`, which must be there.
pub(crate) fn messages(body: &Value) -> Result<&[Value], Refusal> {
    match body.get("messages") {
        Some(Value::Array(messages)) => Ok(messages),
        Some(_) => Err(Refusal::bad("Expected 'messages' to be an array")),
        None => Err(Refusal::bad("'messages' is required")),
    }
}

impl Ask {
    /// A request of which only `stream` is read.
    pub(crate) fn free(stream: bool) -> Self {
        Self {
            stream,
            max_tokens: None,
            stops: Vec::new(),
            include_usage: false,
            choices: 1,
            logprobs: false,
            progress: false,
            timings_per_token: false,
            format: Format::Text,
        }
    }

    /// Reads the fields that OpenAI's chat and completion APIs share; `chat` decides whether a tool is called.
    pub(crate) fn read(body: &Value, chat: &Chat) -> Result<Self, Refusal> {
        let number = |key: &str| match &body[key] {
            Value::Null => Ok(None),
            value if value.is_number() => Ok(value.as_f64()),
            value => Err(Refusal::bad(format!("Field '{key}': expected a number, got {value}"))),
        };
        number("temperature")?;
        number("top_p")?;
        let limit = match (number("max_completion_tokens")?, number("max_tokens")?, number("max_output_tokens")?) {
            (Some(limit), _, _) | (None, Some(limit), _) | (None, None, Some(limit)) => Some(limit),
            (None, None, None) => number("n_predict")?,
        };
        let stops = match &body["stop"] {
            Value::String(stop) => vec![stop.clone()],
            Value::Array(stops) => stops.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let flag = |key: &str| body[key].as_bool().unwrap_or(false);
        Ok(Self {
            stream: flag("stream"),
            max_tokens: limit.filter(|limit| *limit >= 0.0).map(|limit| (limit as u32).max(1)),
            stops,
            include_usage: body["stream_options"]["include_usage"].as_bool().unwrap_or(false),
            choices: number("n")?.map_or(1, |choices| choices as u32).max(1),
            logprobs: flag("logprobs") || body["logprobs"].as_u64().is_some_and(|count| count > 0),
            progress: flag("return_progress"),
            timings_per_token: flag("timings_per_token"),
            format: read_format(body, chat),
        })
    }
}

fn read_format(body: &Value, chat: &Chat) -> Format {
    if let Some(call) = read_call(body, chat) {
        return call;
    }
    let wanted = if body["response_format"].is_object() { &body["response_format"] } else { &body["text"]["format"] };
    match wanted["type"].as_str() {
        Some("json_schema") => {
            let schema = [&wanted["json_schema"]["schema"], &wanted["schema"]];
            Format::Schema(schema.into_iter().find(|schema| schema.is_object()).cloned().unwrap_or(Value::Null))
        }
        Some("json_object") if wanted["schema"].is_object() => Format::Schema(wanted["schema"].clone()),
        Some("json_object") => Format::AnyJson,
        _ if body["json_schema"].is_object() => Format::Schema(body["json_schema"].clone()),
        _ => Format::Text,
    }
}

/// The tool to call: the one demanded; else, when the model is free to choose, one that the user names.
fn read_call(body: &Value, chat: &Chat) -> Option<Format> {
    let tools = body["tools"].as_array()?;
    let function = |tool: &Value| if tool["function"].is_object() { tool["function"].clone() } else { tool.clone() };
    let tools: Vec<Value> = tools.iter().map(function).collect();
    let named = |name: &str| tools.iter().find(|tool| tool["name"].as_str() == Some(name));
    let choice = &body["tool_choice"];
    let tool = match choice {
        Value::String(choice) if choice == "none" => None,
        Value::String(choice) if choice == "required" || choice == "any" => tools.first(),
        Value::Object(_) => match choice["function"]["name"].as_str().or(choice["name"].as_str()) {
            Some(name) => named(name),
            None if choice["type"] == "any" => tools.first(),
            None => None,
        },
        _ => {
            let asked = chat.messages.last().filter(|message| message.role == "user")?;
            tools.iter().find(|tool| tool["name"].as_str().is_some_and(|name| asked.text.contains(name)))
        }
    }?;
    let parameters =
        if tool["parameters"].is_object() { tool["parameters"].clone() } else { tool["input_schema"].clone() };
    Some(Format::Call { name: tool["name"].as_str().unwrap_or_default().to_owned(), parameters })
}

/// Length of an answer nobody limits, tokens.
const USUAL_LENGTH: u32 = 32;

/// The answer to `subject`, carrying on `partial`, with room for `room` tokens.
pub(crate) fn compose(config: &PhoneConfig, ask: &Ask, subject: &str, partial: &str, room: usize) -> Answer {
    let mark = format!("#{}", message_digest(subject));
    let answer = match &ask.format {
        Format::Call { name, parameters } => Answer::call(name, &schema::instance(parameters, &mark).to_string()),
        Format::AnyJson => {
            let text = answer_text(&config.model, subject, 8);
            rest(&json!({"answer": text}).to_string(), partial)
        }
        Format::Schema(schema) => rest(&schema::instance(schema, &mark).to_string(), partial),
        Format::Text => {
            let spoken = partial.split_whitespace().count();
            // One token more than may be said, so that the limit is what ends the answer.
            let beyond = |limit: u32| spoken + limit as usize + 1;
            let told = config.told_lengths.then(|| told_length(subject)).flatten();
            let length = match (told.or(config.answer_tokens), ask.max_tokens) {
                (Some(length), _) => length as usize,
                (None, Some(limit)) => beyond(limit.min(room as u32)),
                (None, None) => USUAL_LENGTH as usize,
            };
            rest(&answer_text(&config.model, subject, length), partial)
        }
    };
    let thinking = if partial.is_empty() { config.thinking_tokens } else { 0 };
    let limit = ask.max_tokens.map_or(room, |limit| room.min(limit as usize));
    answer.after_thinking(subject, thinking).limited(limit).stopped_at(&ask.stops)
}

/// The length of answer that a message's first word asks for, as in `r17=250`.
fn told_length(subject: &str) -> Option<u32> {
    let first = subject.split_ascii_whitespace().next()?;
    first.rsplit_once('=')?.1.parse().ok().filter(|length| *length > 0)
}

/// What is left of `text` after `partial`; all of it if `partial` is not its beginning.
fn rest(text: &str, partial: &str) -> Answer {
    Answer::text(text.strip_prefix(partial).unwrap_or(text).to_owned())
}

/// Splits a plain prompt into what it is about and the beginning of this phone's answer to it, if it ends in one.
pub(crate) fn split_prompt(prompt: &str) -> (&str, &str) {
    for (at, _) in prompt.rmatch_indices('#') {
        let (subject, partial) = prompt.split_at(at);
        if partial.get(1..9).is_some_and(|digest| digest == message_digest(subject)) {
            return (subject, partial);
        }
    }
    (prompt, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{Finish, Kind};

    fn ask(body: &Value) -> Ask {
        let chat = Chat::read(body["messages"].as_array().map_or(&[], Vec::as_slice));
        Ask::read(body, &chat).expect("a valid request")
    }

    fn say(body: &Value, partial: &str) -> Answer {
        compose(&PhoneConfig::default(), &ask(body), "hello there", partial, 1000)
    }

    #[test]
    fn an_answer_is_as_long_as_it_may_be_and_says_that_the_limit_ended_it() {
        let answer = say(&json!({"max_tokens": 5}), "");
        assert_eq!((answer.len(), answer.finish), (5, Finish::Length));
        let answer = say(&json!({}), "");
        assert_eq!((answer.len(), answer.finish), (32, Finish::Stop));
    }

    #[test]
    fn an_answer_is_as_long_as_its_message_says_where_that_is_heeded() {
        let config = PhoneConfig { told_lengths: true, ..PhoneConfig::default() };
        for (message, length) in [("r1=7 x", 7), ("r1=7", 7), ("r1=0 x", 32), ("r1=x", 32), ("x r1=7", 32), ("", 32)] {
            let answer = compose(&config, &ask(&json!({})), message, "", 1000);
            assert_eq!((answer.len(), answer.finish), (length, Finish::Stop), "{message:?}");
        }
        let unheeded = compose(&PhoneConfig::default(), &ask(&json!({})), "r1=7 x", "", 1000);
        assert_eq!(unheeded.len(), 32);
    }

    #[test]
    fn partial_answers_are_carried_on_exactly_even_from_the_middle_of_a_word() {
        let whole = say(&json!({"max_tokens": 20}), "").whole(Kind::Text);
        for cut in [12, 30, whole.len() - 3] {
            let partial = &whole[..cut];
            let more = say(&json!({"max_tokens": 40}), partial).whole(Kind::Text);
            assert!(format!("{partial}{more}").starts_with(&whole), "cut at {cut}");
        }
    }

    #[test]
    fn a_prompt_that_ends_in_the_beginning_of_its_answer_is_split_there() {
        let prompt = "count # to three ";
        let partial = answer_text("m", prompt, 4);
        let joined = format!("{prompt}{partial}");
        assert_eq!(split_prompt(&joined), (prompt, partial.as_str()));
        assert_eq!(split_prompt("a # b #12345678"), ("a # b #12345678", ""));
    }

    #[test]
    fn a_tool_is_called_when_demanded_or_named_and_not_after_its_result() {
        let tools = json!([{"type":"function","function":{"name":"get_weather",
            "parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]);
        let asks = |text: &str, choice: Value| {
            ask(&json!({"tools": tools, "tool_choice": choice, "messages": [{"role":"user","content":text}]})).format
        };
        assert!(matches!(asks("hi", json!("required")), Format::Call { .. }));
        assert!(matches!(
            asks("hi", json!({"type":"function","function":{"name":"get_weather"}})),
            Format::Call { .. }
        ));
        assert!(matches!(asks("please get_weather", Value::Null), Format::Call { .. }));
        assert_eq!(asks("please get_weather", json!("none")), Format::Text);
        assert_eq!(asks("hi", json!("auto")), Format::Text);
        let after = json!({"tools": tools, "messages": [{"role":"user","content":"get_weather"},
            {"role":"assistant","tool_calls":[{}]}, {"role":"tool","content":"rain"}]});
        assert_eq!(ask(&after).format, Format::Text);
    }

    #[test]
    fn a_field_of_the_wrong_type_is_refused_by_name() {
        let refused = Ask::read(&json!({"temperature": "hot"}), &Chat::default()).expect_err("not a number");
        assert!(refused.message.starts_with("Field 'temperature'"));
    }
}
