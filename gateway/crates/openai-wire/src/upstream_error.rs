//! What a replica's failure means: whose fault it is, and what the client may see of it.
//!
//! Problem: engines and tunnels say the same thing in many ways: an object, a string or `detail` under different keys,
//! numeric codes, nothing at all, a page of HTML, a client's fault with a server's status, an error inside a 200. What
//! follows (another replica? count it against this one? tell the client?) depends on the meaning, not on the spelling.
//!
//! Choice: read the spelling into one record, then decide by one table. Text reaches the client only from an engine's
//! JSON about the client's own request, bounded and without control characters; all else is our own words, since it may
//! be the tunnel's page, a path on the phone, or written by someone who owns the phone.

use crate::error_body::ErrorBody;
use crate::route::Route;
use serde_json::Value;
use std::borrow::Cow;

/// Most bytes of an error that are looked at. Real ones are under 1 KiB.
const MAX_READ: usize = 64 * 1024;

/// Longest message passed on, in characters: what a person will read.
const MAX_MESSAGE: usize = 500;

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request's own: every replica would say so.
    Request,
    /// The prompt is longer than this replica's context. Another may have more.
    ContextExceeded {
        /// Tokens in the prompt, if told.
        prompt_tokens: Option<u32>,
        /// Tokens a slot of this replica holds, if told.
        context_tokens: Option<u32>,
    },
    /// The model is still being loaded there.
    Loading,
    /// Our key for that replica is wrong.
    WrongKey,
    /// The replica does not have the model we know it by.
    ModelMissing,
    /// The replica does not offer the route (404, 405, 501, or not switched on).
    RouteMissing,
    /// No place free there now.
    Busy,
    /// Its own failure (5xx, broken JSON).
    Engine,
    /// The model's output or abilities: broken tool call, pictures for a text model, input beyond its batch. Not the
    /// replica's fault, and likely to repeat elsewhere.
    Output,
    /// What answered is not the engine: HTML, plain text or nothing. The tunnel speaks.
    NotEngine,
}

/// A failure that was understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault:?} (client status {status}): {}", body.message)]
pub struct UpstreamError {
    /// Whose fault.
    pub fault: Fault,
    /// The status the client should see if this is the final word.
    pub status: u16,
    /// The error the client should see then.
    pub body: ErrorBody,
}

/// Reads what a replica answered instead of an answer. `status` may be 200: then the body says what went wrong.
pub fn classify_error(route: Route, status: u16, content_type: Option<&str>, body: &[u8]) -> UpstreamError {
    let read = &body[..body.len().min(MAX_READ)];
    if read.trim_ascii().is_empty() {
        return describe(route, empty_fault(status), &Said::default());
    }
    let is_json = content_type.is_none_or(speaks_json);
    match is_json.then(|| serde_json::from_slice::<Value>(read).ok()).flatten() {
        Some(value @ Value::Object(_)) => {
            let said = Said::read(&value);
            let status = if status < 400 { said.implied_status() } else { status };
            describe_with_status(route, fault(status, &said), &said, status)
        }
        // An engine that says JSON and then breaks off has failed itself; without a type it may be anyone.
        _ if is_json && content_type.is_some() => describe(route, Fault::Engine, &Said::default()),
        _ => describe(route, Fault::NotEngine, &Said::default()),
    }
}

/// Whether a content type announces JSON or events.
pub(crate) fn speaks_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or("").trim();
    let ends = |suffix: &str| {
        media.len() >= suffix.len()
            && media.as_bytes()[media.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
    };
    ends("/json") || ends("+json") || ends("/event-stream")
}

/// Nothing was said but a status. Ktor answers so for a wrong key, an unknown path and a wrong method.
fn empty_fault(status: u16) -> Fault {
    match status {
        401 => Fault::WrongKey,
        404 | 405 | 501 => Fault::RouteMissing,
        429 | 529 => Fault::Busy,
        _ => Fault::NotEngine,
    }
}

/// An error's parts, whatever they were called.
#[derive(Debug, Default)]
struct Said {
    message: String,
    kind: String,
    code: Option<String>,
    param: Option<String>,
    numeric: Option<u16>,
    prompt_tokens: Option<u32>,
    context_tokens: Option<u32>,
}

impl Said {
    fn read(value: &Value) -> Self {
        let mut said = Self::default();
        let inner = match value.get("error").filter(|error| !error.is_null()) {
            Some(error) => error,
            // `response.failed` carries it inside its snapshot.
            None => ["/response/error", "/detail"]
                .into_iter()
                .find_map(|place| value.pointer(place).filter(|inner| !inner.is_null()))
                .unwrap_or(value),
        };
        // FastAPI's list of mistakes: the first says enough.
        let inner = inner.as_array().and_then(|list| list.first()).unwrap_or(inner);
        if let Some(text) = inner.as_str() {
            said.message = text.to_owned();
            return said;
        }
        let text = |key: &str| inner.get(key).and_then(Value::as_str);
        let number = |key: &str| inner.get(key).and_then(Value::as_u64);
        said.message =
            text("message").or_else(|| text("msg")).or_else(|| text("detail")).unwrap_or_default().to_owned();
        said.kind = text("type").unwrap_or_default().to_owned();
        said.code = text("code").filter(|code| is_word(code)).map(str::to_owned);
        said.param = text("param").or_else(|| text("field")).filter(|param| is_path(param)).map(str::to_owned);
        said.numeric = number("code").or_else(|| number("status")).and_then(|code| u16::try_from(code).ok());
        said.prompt_tokens = number("n_prompt_tokens").and_then(|n| u32::try_from(n).ok());
        said.context_tokens = number("n_ctx").and_then(|n| u32::try_from(n).ok());
        if said.param.is_none() {
            said.param = field_in_loc(inner).or_else(|| quoted_field(&said.message));
        }
        said
    }

    /// The status an error inside a 200 (or inside a stream) stands for.
    fn implied_status(&self) -> u16 {
        if let Some(code) = self.numeric.filter(|code| (400..600).contains(code)) {
            return code;
        }
        let code = self.code.as_deref().unwrap_or_default();
        match self.kind.as_str() {
            "invalid_request_error" | "exceed_context_size_error" => 400,
            "authentication_error" => 401,
            "permission_error" => 403,
            "not_found_error" => 404,
            "rate_limit_error" | "overloaded_error" => 429,
            "not_supported_error" => 501,
            "unavailable_error" => 503,
            _ if code == "rate_limit_exceeded" => 429,
            _ => 500,
        }
    }

    fn mentions(&self, words: &[&str]) -> bool {
        let message = self.message.to_ascii_lowercase();
        words.iter().any(|word| message.contains(word))
    }
}

/// A code or type worth passing on: a word, not a sentence.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The name of a parameter: `messages[0].content` and the like.
fn is_path(text: &str) -> bool {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'[' | b']' | b'-');
    !text.is_empty() && text.len() <= 128 && text.bytes().all(sound)
}

/// FastAPI: `"loc": ["body", "questions", …]`.
fn field_in_loc(inner: &Value) -> Option<String> {
    let place = inner.get("loc")?.as_array()?;
    place.iter().filter_map(Value::as_str).find(|part| *part != "body" && is_path(part)).map(str::to_owned)
}

/// llama-server: `Field 'temperature': …` and `'messages' is required`.
fn quoted_field(message: &str) -> Option<String> {
    let rest = message.strip_prefix("Field '").or_else(|| message.strip_prefix('\''))?;
    rest.split('\'').next().filter(|name| is_path(name)).map(str::to_owned)
}

/// The table: what a status and a text mean.
fn fault(status: u16, said: &Said) -> Fault {
    let exceeded = said.kind == "exceed_context_size_error"
        || said.code.as_deref() == Some("context_length_exceeded")
        || (status < 500 && said.mentions(&["exceeds the available context size", "maximum context length"]));
    if exceeded {
        let Said { prompt_tokens, context_tokens, .. } = *said;
        return Fault::ContextExceeded { prompt_tokens, context_tokens };
    }
    match status {
        401 => Fault::WrongKey,
        403 if said.kind == "feature_disabled" => Fault::RouteMissing,
        403 => Fault::WrongKey,
        _ if status < 500 && names_no_model(said) => Fault::ModelMissing,
        404 | 405 | 501 => Fault::RouteMissing,
        400 if said.mentions(&["pooling type 'none'"]) => Fault::RouteMissing,
        429 | 529 => Fault::Busy,
        503 if said.mentions(&["loading"]) => Fault::Loading,
        503 => Fault::Busy,
        500 if said.mentions(&[
            "does not match the expected",
            "is not supported - hint",
            "is too large to process",
        ]) =>
        {
            Fault::Output
        }
        // These speak of the head and the pace of what we sent; the client had no part in either.
        408 | 417 | 431 => Fault::Engine,
        400..500 => Fault::Request,
        // A redirect is never followed: engines do not send any.
        300..400 => Fault::NotEngine,
        _ => Fault::Engine,
    }
}

/// Whether the message says that the model we named is not there.
fn names_no_model(said: &Said) -> bool {
    said.code.as_deref() == Some("model_not_found")
        || said.param.as_deref() == Some("model")
        || (said.mentions(&["model"]) && said.mentions(&["not found", "does not exist"]))
        || said.mentions(&["model name is missing"])
}

fn describe(route: Route, fault: Fault, said: &Said) -> UpstreamError {
    describe_with_status(route, fault, said, 400)
}

/// The client's view of a fault.
fn describe_with_status(route: Route, fault: Fault, said: &Said, status: u16) -> UpstreamError {
    let server = |status, message: &str, code: &'static str| {
        (status, body("server_error", message.to_owned(), None, Some(Cow::Borrowed(code))))
    };
    let request = |status, message: String, param: Option<String>, code: Cow<'static, str>| {
        (status, body("invalid_request_error", message, param, Some(code)))
    };
    let (status, body) = match fault {
        Fault::Request => {
            let status = if matches!(status, 413 | 415) { status } else { 400 };
            request(status, bounded(&said.message), said.param.clone(), request_code(said))
        }
        Fault::ContextExceeded { prompt_tokens, context_tokens } => {
            let message = context_message(prompt_tokens, context_tokens);
            request(400, message, Some(route.prompt_param().to_owned()), Cow::Borrowed("context_length_exceeded"))
        }
        Fault::Output if said.mentions(&["is not supported", "too large to process"]) => {
            request(400, bounded(&said.message), Some(route.prompt_param().to_owned()), Cow::Borrowed("invalid_value"))
        }
        Fault::Output => server(502, "The model wrote something that is not a valid answer.", "upstream_error"),
        Fault::RouteMissing => {
            let message = format!("The model does not serve {}.", route.path());
            request(400, message, Some("model".to_owned()), Cow::Borrowed("route_not_supported"))
        }
        Fault::Loading => server(503, "The model is still being loaded; try again soon.", "no_capacity"),
        Fault::Busy => server(503, "Every replica of the model is busy; try again soon.", "no_capacity"),
        Fault::WrongKey | Fault::ModelMissing => {
            server(502, "The replica of the model is not set up rightly.", "upstream_error")
        }
        Fault::Engine => server(502, "The replica of the model failed to answer.", "upstream_error"),
        Fault::NotEngine => server(502, "The replica of the model could not be reached.", "upstream_error"),
    };
    UpstreamError { fault, status, body }
}

fn body(kind: &'static str, message: String, param: Option<String>, code: Option<Cow<'static, str>>) -> ErrorBody {
    ErrorBody { message, kind, param, code }
}

/// The engine's code if it has one, else one that its words stand for.
fn request_code(said: &Said) -> Cow<'static, str> {
    match &said.code {
        Some(code) => Cow::Owned(code.clone()),
        None if said.mentions(&["parse_error", "invalid json"]) => Cow::Borrowed("invalid_json"),
        None if said.mentions(&["is required", "missing"]) => Cow::Borrowed("missing_required_parameter"),
        None => Cow::Borrowed("invalid_value"),
    }
}

fn context_message(prompt: Option<u32>, context: Option<u32>) -> String {
    let advice = "Shorten it or send less history.";
    match (prompt, context) {
        (Some(prompt), Some(context)) => {
            format!("The prompt has {prompt} tokens, but the model's context here holds {context}. {advice}")
        }
        (_, Some(context)) => format!("The prompt is longer than the model's context here, {context} tokens. {advice}"),
        _ => format!("The prompt is longer than the model's context here. {advice}"),
    }
}

/// An engine's message, safe to pass on.
fn bounded(message: &str) -> String {
    let mut clean: String = message
        .chars()
        .map(|c| if c.is_whitespace() { ' ' } else { c })
        .filter(|c| !c.is_control() && !is_format(*c))
        .take(MAX_MESSAGE + 1)
        .collect();
    if let Some((cut, _)) = clean.char_indices().nth(MAX_MESSAGE) {
        clean.truncate(cut);
        clean.push('…');
    }
    if clean.trim().is_empty() { "The model's engine refused the request without a reason.".to_owned() } else { clean }
}

/// Characters that change how text around them is shown (direction marks and the like).
fn is_format(c: char) -> bool {
    matches!(c, '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}')
}
