//! What a request asks for, read from its JSON, and the answer that is due.

use crate::answer::{Answer, Kind};
use crate::config::PhoneConfig;
use crate::digest::message_digest;
use crate::marks::Marks;
use crate::prompt::Chat;
use crate::schema::{instance, spaced};
use crate::voice::{Voice, answer_text, rest};
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

/// What the text of an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Format {
    Text,
    AnyJson,
    Schema(Value),
}

/// A tool that is to be called.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) parameters: Value,
}

/// The parts of a request that shape an answer, whatever API it came by.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) stream: bool,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) stops: Vec<String>,
    pub(crate) include_usage: bool,
    pub(crate) choices: u32,
    /// Whether tokens come with their probabilities, and with how many others.
    pub(crate) logprobs: Option<u32>,
    pub(crate) progress: bool,
    pub(crate) timings_per_token: bool,
    pub(crate) format: Format,
    /// Called in this order, after the text if there is any.
    pub(crate) calls: Vec<Tool>,
    /// Most tokens of thinking; none on routes without a chat.
    pub(crate) thinking: u32,
    pub(crate) marks: Marks,
}

/// The beginning of an answer, as a request brings it along.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) reasoning: String,
    pub(crate) content: String,
}

impl Said {
    pub(crate) fn is_nothing(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty()
    }
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
            logprobs: None,
            progress: false,
            timings_per_token: false,
            format: Format::Text,
            calls: Vec::new(),
            thinking: u32::MAX,
            marks: Marks::default(),
        }
    }

    /// Reads the fields that OpenAI's chat and completion APIs share; `chat` decides whether tools are called.
    pub(crate) fn read(body: &Value, chat: &Chat) -> Result<Self, Refusal> {
        let marks =
            Marks::read(chat.subject()).map_err(|word| Refusal::bad(format!("unknown mark in the message: {word}")))?;
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
            logprobs: match &body["logprobs"] {
                Value::Bool(true) => Some(body["top_logprobs"].as_u64().map_or(0, |count| count as u32)),
                count => count.as_u64().filter(|count| *count > 0).map(|count| count as u32),
            },
            progress: flag("return_progress"),
            timings_per_token: flag("timings_per_token"),
            format: read_format(body),
            calls: read_calls(body, chat, marks),
            thinking: body["reasoning_budget_tokens"].as_u64().map_or(u32::MAX, |budget| budget as u32),
            marks,
        })
    }
}

fn read_format(body: &Value) -> Format {
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

/// The tools to call: the one demanded; else, when the model is free to choose, one that the user names; more if the
/// message asks for more.
fn read_calls(body: &Value, chat: &Chat, marks: Marks) -> Vec<Tool> {
    let Some(tools) = body["tools"].as_array().filter(|tools| !tools.is_empty()) else { return Vec::new() };
    let function = |tool: &Value| if tool["function"].is_object() { tool["function"].clone() } else { tool.clone() };
    let tools: Vec<Value> = tools.iter().map(function).collect();
    let named = |name: &str| tools.iter().position(|tool| tool["name"].as_str() == Some(name));
    let is_free = chat.messages.last().is_some_and(|message| message.role == "user");
    let first = match &body["tool_choice"] {
        Value::String(choice) if choice == "none" => None,
        Value::String(choice) if choice == "required" || choice == "any" => Some(0),
        choice @ Value::Object(_) => match choice["function"]["name"].as_str().or(choice["name"].as_str()) {
            Some(name) => named(name),
            None if choice["type"] == "any" => Some(0),
            None => None,
        },
        _ if !is_free && chat.last_assistant().is_none() => None,
        _ if marks.calls.is_some() => Some(0),
        _ => tools.iter().position(|tool| tool["name"].as_str().is_some_and(|name| chat.subject().contains(name))),
    };
    let Some(first) = first else { return Vec::new() };
    let count = marks.calls.unwrap_or(1) as usize;
    let tool = |tool: &Value| Tool {
        name: tool["name"].as_str().unwrap_or_default().to_owned(),
        parameters: [&tool["parameters"], &tool["input_schema"]]
            .into_iter()
            .find(|it| it.is_object())
            .cloned()
            .unwrap_or(Value::Null),
    };
    tools.iter().cycle().skip(first).take(count).map(tool).collect()
}

/// Length of an answer nobody limits, tokens.
const USUAL_LENGTH: u32 = 32;

/// One choice of the answer to `subject`, carrying on what was `said` of it, with room for `room` tokens.
pub(crate) fn compose(config: &PhoneConfig, ask: &Ask, subject: &str, said: &Said, room: usize, choice: u32) -> Answer {
    let voice = Voice::of(&config.build).choice(choice);
    let thinking = ask.marks.think.unwrap_or(config.thinking_tokens).min(ask.thinking);
    let mut answer = Answer::default();
    if thinking > 0 && said.content.is_empty() {
        let thoughts = voice.text("thinking", subject, thinking as usize);
        answer.say(Kind::Thought, rest(&thoughts, &said.reasoning));
    }
    // Who has thought and is not given the thoughts has another context.
    let forgot = thinking > 0 && said.reasoning.is_empty() && !said.content.is_empty();
    let voice = if forgot { voice.without_thoughts() } else { voice };
    match text(config, ask, subject, &said.content, room, voice) {
        Text::Prose(whole) => answer.say(Kind::Text, rest(&whole, &said.content)),
        // No two phones differ in it, so whatever else was said is no beginning of it.
        Text::Json(whole) => {
            let said = if whole.starts_with(&said.content) { said.content.as_str() } else { "" };
            answer.say(Kind::Text, rest(&whole, said));
        }
    }
    for (number, tool) in ask.calls.iter().enumerate() {
        let mark = format!("{}.{number}", mark(subject));
        answer.call(&tool.name, &spaced(&instance(&tool.parameters, &mark)));
    }
    let limit = ask.max_tokens.map_or(room, |limit| room.min(limit as usize));
    answer.limited(limit).stopped_at(&ask.stops)
}

/// The whole text of an answer.
enum Text {
    Prose(String),
    Json(String),
}

fn text(config: &PhoneConfig, ask: &Ask, subject: &str, said: &str, room: usize, voice: Voice) -> Text {
    match &ask.format {
        _ if !ask.calls.is_empty() => {
            Text::Prose(voice.text(&config.model, subject, ask.marks.tokens.unwrap_or(0) as usize))
        }
        Format::AnyJson => Text::Json(spaced(&json!({"answer": answer_text(&config.model, subject, 8)}))),
        Format::Schema(schema) => Text::Json(spaced(&instance(schema, &mark(subject)))),
        Format::Text => {
            let spoken = said.split_whitespace().count();
            // One token more than may be said, so that the limit is what ends the answer.
            let beyond = |limit: u32| spoken + limit as usize + 1;
            let told = config.told_lengths.then(|| told_length(subject)).flatten();
            let length = match (ask.marks.tokens.or(told).or(config.answer_tokens), ask.max_tokens) {
                (Some(length), _) => length as usize,
                (None, Some(limit)) => beyond(limit.min(room as u32)),
                (None, None) => USUAL_LENGTH as usize,
            };
            Text::Prose(voice.text(&config.model, subject, length))
        }
    }
}

/// What every string of generated JSON carries.
fn mark(subject: &str) -> String {
    format!("#{}", message_digest(subject))
}

/// The length of answer that a message's first word asks for, as in `r17=250`.
fn told_length(subject: &str) -> Option<u32> {
    let first = subject.split_ascii_whitespace().next()?;
    first.rsplit_once('=')?.1.parse().ok().filter(|length| *length > 0)
}

/// Fewest digits of a digest by which the beginning of an answer is known.
const FEWEST_DIGITS: usize = 2;

/// Splits a plain prompt into what it is about and the beginning of a phone's answer to it, if it ends in one.
pub(crate) fn split_prompt(prompt: &str) -> (&str, &str) {
    for (at, _) in prompt.rmatch_indices('#') {
        let (subject, said) = prompt.split_at(at);
        let digits = said[1..].split(|digit: char| !digit.is_ascii_hexdigit()).next().unwrap_or_default();
        // A whole digest, or a part of one that ends the prompt.
        let begins = digits.len() == 8 || (said.len() == digits.len() + 1 && digits.len() >= FEWEST_DIGITS);
        if begins && message_digest(subject).starts_with(digits) {
            return (subject, said);
        }
    }
    (prompt, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Finish;

    fn ask(body: &Value) -> Ask {
        let chat = Chat::read(body["messages"].as_array().map_or(&[], Vec::as_slice));
        Ask::read(body, &chat).expect("a valid request")
    }

    fn content(text: &str) -> Said {
        Said { content: text.to_owned(), ..Said::default() }
    }

    fn compose_by(config: &PhoneConfig, body: &Value, said: &Said) -> Answer {
        compose(config, &ask(body), "hello there", said, 1000, 0)
    }

    fn say(body: &Value, said: &str) -> Answer {
        compose_by(&PhoneConfig::default(), body, &content(said))
    }

    fn by(build: &str) -> PhoneConfig {
        PhoneConfig { build: build.to_owned(), ..PhoneConfig::default() }
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
            let answer = compose(&config, &ask(&json!({})), message, &Said::default(), 1000, 0);
            assert_eq!((answer.len(), answer.finish), (length, Finish::Stop), "{message:?}");
        }
        let unheeded = compose(&PhoneConfig::default(), &ask(&json!({})), "r1=7 x", &Said::default(), 1000, 0);
        assert_eq!(unheeded.len(), 32);
    }

    #[test]
    fn an_answer_cut_anywhere_is_carried_on_to_the_very_same_text() {
        let config = PhoneConfig { answer_tokens: Some(20), ..PhoneConfig::default() };
        let whole = compose_by(&config, &json!({}), &Said::default());
        let text = whole.whole(Kind::Text);
        for cut in 1..text.len() {
            let more = compose_by(&config, &json!({}), &content(&text[..cut]));
            assert_eq!(format!("{}{}", &text[..cut], more.whole(Kind::Text)), text, "cut at {cut}");
            assert_eq!(more.finish, Finish::Stop);
        }
    }

    #[test]
    fn a_limit_counts_new_tokens_and_a_token_that_was_begun_is_not_new() {
        let text = say(&json!({"max_tokens": 20}), "").whole(Kind::Text);
        let words: Vec<&str> = text.split(' ').collect();
        let seam = words[..7].join(" ");
        for (cut, counted) in [(seam.len(), 7), (seam.len() + 3, 8)] {
            let more = say(&json!({"max_tokens": 20 - counted}), &text[..cut]);
            assert_eq!(format!("{}{}", &text[..cut], more.whole(Kind::Text)), text);
            assert_eq!((more.len(), more.finish), (20 - counted, Finish::Length));
        }
    }

    #[test]
    fn another_build_parts_ways_after_the_seam_and_reads_on() {
        let body = json!({"max_tokens": 30});
        let text = compose_by(&by("b1"), &body, &Said::default()).whole(Kind::Text);
        let cut = text.match_indices(' ').nth(9).map_or(0, |(at, _)| at);
        let more = compose_by(&by("b2"), &json!({"max_tokens": 20}), &content(&text[..cut])).whole(Kind::Text);
        let joined = format!("{}{more}", &text[..cut]);
        assert_ne!(joined, text);
        let words = |text: &str| -> Vec<String> {
            text.split(' ').map(|word| word.split('~').next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(words(&joined), words(&text), "the same but for the accent");
    }

    #[test]
    fn thoughts_are_carried_on_and_the_answer_after_them_depends_on_them() {
        let body = json!({"messages": [{"role": "user", "content": "[fake think=8]"}], "max_tokens": 30});
        let config = PhoneConfig::default();
        let whole = compose_by(&config, &body, &Said::default());
        let (thoughts, text) = (whole.whole(Kind::Thought), whole.whole(Kind::Text));
        assert_eq!((thoughts.split(' ').count(), text.split(' ').count()), (8, 22));
        let said = Said { reasoning: thoughts[..20].to_owned(), ..Said::default() };
        let more = compose_by(&config, &body, &said);
        assert_eq!(format!("{}{}", said.reasoning, more.whole(Kind::Thought)), thoughts);
        assert!(more.whole(Kind::Text).starts_with(&text));
        let said = Said { reasoning: thoughts, content: text[..30].to_owned() };
        let more = compose_by(&config, &body, &said);
        assert_eq!(more.whole(Kind::Thought), "");
        assert!(format!("{}{}", said.content, more.whole(Kind::Text)).starts_with(&text));
        let forgot = compose_by(&config, &body, &content(&said.content)).whole(Kind::Text);
        assert!(!format!("{}{forgot}", said.content).starts_with(&text));
        let none = json!({"messages": body["messages"], "reasoning_budget_tokens": 0});
        assert_eq!(compose_by(&config, &none, &Said::default()).whole(Kind::Thought), "");
    }

    #[test]
    fn json_that_was_begun_is_carried_on_by_any_build() {
        let body = json!({"response_format": {"type": "json_object"}});
        let whole = say(&body, "").whole(Kind::Text);
        for cut in 1..whole.len() {
            let more = compose_by(&by("b1"), &body, &content(&whole[..cut])).whole(Kind::Text);
            assert_eq!(format!("{}{more}", &whole[..cut]), whole);
        }
    }

    #[test]
    fn choices_differ_from_each_other() {
        let ask = ask(&json!({"max_tokens": 9}));
        let text =
            |choice| compose(&PhoneConfig::default(), &ask, "a b", &Said::default(), 99, choice).whole(Kind::Text);
        assert!(text(0) == text(0) && text(0) != text(1) && text(1) != text(2));
    }

    #[test]
    fn a_prompt_that_ends_in_the_beginning_of_its_answer_is_split_there() {
        let prompt = "count # to three ";
        let said = answer_text("m", prompt, 4);
        for cut in [3, 9, 12, said.len()] {
            let joined = format!("{prompt}{}", &said[..cut]);
            assert_eq!(split_prompt(&joined), (prompt, &said[..cut]), "cut at {cut}");
        }
        for whole in ["a # b #12345678", "what is C#", "#ab"] {
            assert_eq!(split_prompt(whole), (whole, ""));
        }
    }

    #[test]
    fn tools_are_called_in_turn_as_often_as_the_message_asks_after_as_much_text() {
        let tool = |name: &str| {
            json!({"type": "function", "function": {"name": name, "parameters":
            {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}}})
        };
        let body = json!({"tools": [tool("f"), tool("g")],
            "messages": [{"role": "user", "content": "[fake tokens=3 calls=3]"}]});
        let answer = compose_by(&PhoneConfig::default(), &body, &Said::default());
        assert_eq!(answer.whole(Kind::Text).split(' ').count(), 3);
        let names: Vec<&str> = answer.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!((names, answer.finish), (vec!["f", "g", "f"], Finish::ToolCalls));
        let arguments: Vec<Value> =
            (0..3).map(|call| serde_json::from_str(&answer.whole(Kind::Arguments(call))).expect("JSON")).collect();
        assert!(arguments[0]["a"].is_string() && arguments[0] != arguments[2]);
        assert!(answer.len() >= 3 + 3 * 4, "arguments come in several pieces");
    }

    #[test]
    fn a_tool_is_called_when_demanded_or_named_and_not_after_its_result() {
        let tools = json!([{"type":"function","function":{"name":"get_weather",
            "parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]);
        let asks = |text: &str, choice: Value| {
            let body = json!({"tools": tools, "tool_choice": choice, "messages": [{"role":"user","content":text}]});
            ask(&body).calls.len()
        };
        assert_eq!(asks("hi", json!("required")), 1);
        assert_eq!(asks("hi", json!({"type":"function","function":{"name":"get_weather"}})), 1);
        assert_eq!(asks("please get_weather", Value::Null), 1);
        assert_eq!(asks("please get_weather", json!("none")), 0);
        assert_eq!(asks("hi", json!("auto")), 0);
        let after = json!({"tools": tools, "messages": [{"role":"user","content":"get_weather"},
            {"role":"assistant","tool_calls":[{}]}, {"role":"tool","content":"rain"}]});
        assert_eq!(ask(&after).calls.len(), 0);
        let begun = json!({"tools": tools, "messages": [{"role":"user","content":"get_weather"},
            {"role":"assistant","content":"I look"}]});
        assert_eq!(ask(&begun).calls.len(), 1, "a text before a call goes on to the call");
    }

    #[test]
    fn a_field_of_the_wrong_type_is_refused_by_name() {
        let refused = Ask::read(&json!({"temperature": "hot"}), &Chat::default()).expect_err("not a number");
        assert!(refused.message.starts_with("Field 'temperature'"));
        let refused = Ask::read(&json!({}), &Chat::of_user("[fake cows=2]")).expect_err("an unknown mark");
        assert!(refused.message.contains("cows=2"));
    }
}
