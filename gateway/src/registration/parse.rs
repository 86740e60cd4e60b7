//! What a phone says, in any of the shapes in use.
//!
//! The example apps were not written for this gateway: they post `{"event": "started"}` with their address in `url`, `webUrl` or
//! `data.url`, and later events without one. So their shapes are taken as they are, and what they say besides is passed over. What is
//! ours stands in fields of its own (`deployment`, `processor`, `replica`, `report`), and is read strictly: a phone's operator
//! who writes those wants to hear of a mistake.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::fleet::{PhoneReport, ReportError};

/// Letters of an event's name that are kept.
const MAX_EVENT: usize = 64;
/// Letters of a phone's own words that are shown.
const MAX_PROBLEM: usize = 200;
/// Letters of a deployment or a processor. Ids of jobs on the chain have 60.
const MAX_NAME: usize = 128;

/// Why a body says nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// No JSON.
    #[error("the body is not JSON: send {{\"event\": \"started\", \"url\": \"https://…\"}}")]
    NotJson,
    /// No object, or none with an event.
    #[error(
        "the body must be a JSON object with the text \"event\", such as {{\"event\": \"started\", \"url\": \"https://…\"}}"
    )]
    NoEvent,
    /// Started, and nobody knows where.
    #[error("no address: send it in url, webUrl or data.url")]
    NoAddress,
    /// An address that is no text.
    #[error("{0} must be text")]
    NotText(&'static str),
    /// Not a deployment or a processor.
    #[error("{0} must have 1 to {MAX_NAME} visible ASCII characters")]
    Name(&'static str),
    /// Half of a place.
    #[error("deployment and processor belong together: send both, or neither")]
    HalfPlace,
    /// Not what a phone reports.
    #[error(
        "report must be an object of battery and temperature (numbers), charging, metered and screen_on (true or false), and nothing else"
    )]
    Report,
    /// A value that no phone has.
    #[error("report: {0}")]
    ReportValue(#[from] ReportError),
}

impl FormError {
    /// The field that is wrong; `None`: it is the body.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::NotJson => None,
            Self::NoEvent => Some("event"),
            Self::NoAddress => Some("url"),
            Self::NotText(field) | Self::Name(field) => Some(field),
            Self::HalfPlace => Some("deployment"),
            Self::Report => Some("report"),
            Self::ReportValue(ReportError::Battery) => Some("report.battery"),
            Self::ReportValue(ReportError::Temperature) => Some("report.temperature"),
        }
    }
}

/// What an event means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It is there, at its address.
    Started,
    /// Its model is loaded.
    Ready,
    /// It goes away.
    Leaving,
    /// Something is wrong with it.
    Error,
    /// It lives.
    Heartbeat,
    /// Anything else.
    Other,
}

impl Word {
    fn of(event: &str) -> Self {
        match event {
            "started" => Self::Started,
            "ready" | "model_ready" => Self::Ready,
            "leaving" => Self::Leaving,
            "heartbeat" => Self::Heartbeat,
            "error" | "failed" => Self::Error,
            _ if event.ends_with("_error") || event.ends_with("_failed") => Self::Error,
            _ => Self::Other,
        }
    }
}

/// What a phone says.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// What it means.
    pub word: Word,
    /// In its own word: printable, and not longer than is shown.
    pub event: String,
    /// Where it is; not checked.
    pub url: Option<String>,
    /// The job that it runs.
    pub deployment: Option<String>,
    /// The phone's address on the chain.
    pub processor: Option<String>,
    /// What it states about its replica; not checked.
    pub replica: Option<Value>,
    /// How it is.
    pub report: Option<PhoneReport>,
    /// What is wrong, in its own words: printable, and not longer than is shown.
    pub problem: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportForm {
    battery: Option<f64>,
    charging: Option<bool>,
    temperature: Option<f64>,
    metered: Option<bool>,
    screen_on: Option<bool>,
}

impl Message {
    /// Reads a body.
    ///
    /// # Errors
    /// The first thing that is wrong. Never repeats the body.
    pub fn read(body: &[u8]) -> Result<Self, FormError> {
        let value: Value = serde_json::from_slice(body).map_err(|_| FormError::NotJson)?;
        let Value::Object(mut fields) = value else { return Err(FormError::NoEvent) };
        let event = match fields.get("event") {
            Some(Value::String(event)) if !event.trim().is_empty() => shown(event, MAX_EVENT),
            _ => return Err(FormError::NoEvent),
        };
        let word = Word::of(&event);
        let url = address(&fields)?;
        let deployment = deployment(&fields)?;
        let processor = name(&fields, &["processor", "processorAddress"], "processor")?;
        if deployment.is_some() != processor.is_some() {
            return Err(FormError::HalfPlace);
        }
        if word == Word::Started && url.is_none() && processor.is_none() {
            return Err(FormError::NoAddress);
        }
        let problem = (word == Word::Error).then(|| problem(&fields)).map(|text| shown(&text, MAX_PROBLEM));
        let report = fields.remove("report").filter(|report| !report.is_null()).map(report).transpose()?;
        let replica = fields.remove("replica").filter(|replica| !replica.is_null());
        Ok(Self { word, event, url, deployment, processor, replica, report, problem })
    }
}

fn data(fields: &Map<String, Value>) -> Option<&Map<String, Value>> {
    fields.get("data").and_then(Value::as_object)
}

fn address(fields: &Map<String, Value>) -> Result<Option<String>, FormError> {
    let places = [("url", fields.get("url")), ("webUrl", fields.get("webUrl"))];
    let nested = data(fields).and_then(|data| data.get("url"));
    for (place, value) in places.into_iter().chain([("data.url", nested)]) {
        match value {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.trim().is_empty() => {}
            Some(Value::String(text)) => return Ok(Some(text.trim().to_owned())),
            Some(_) => return Err(FormError::NotText(place)),
        }
    }
    Ok(None)
}

/// A job's id as text, or as the chain's libraries have it: `[{"acurast": "5Grw…"}, 4711]`.
fn deployment(fields: &Map<String, Value>) -> Result<Option<String>, FormError> {
    const NAMES: [&str; 3] = ["deployment", "deployment_id", "jobId"];
    let Some(Value::Array(parts)) = NAMES.iter().find_map(|name| fields.get(*name)) else {
        return name(fields, &NAMES, "deployment");
    };
    let origin = parts.first().and_then(Value::as_object).and_then(|origin| origin.iter().next());
    let (Some((chain, Value::String(owner))), Some(Value::Number(number)), 2) = (origin, parts.get(1), parts.len())
    else {
        return Err(FormError::Name("deployment"));
    };
    let mut chain = chain.to_ascii_lowercase();
    if let Some(first) = chain.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    checked(format!("{chain}:{owner}:{number}"), "deployment").map(Some)
}

fn name(fields: &Map<String, Value>, names: &[&str], shown: &'static str) -> Result<Option<String>, FormError> {
    match names.iter().find_map(|name| fields.get(*name).filter(|value| !value.is_null())) {
        None => Ok(None),
        Some(Value::String(text)) => checked(text.trim().to_owned(), shown).map(Some),
        Some(Value::Number(number)) => checked(number.to_string(), shown).map(Some),
        Some(_) => Err(FormError::Name(shown)),
    }
}

fn checked(text: String, name: &'static str) -> Result<String, FormError> {
    let is_name = (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_name { Ok(text) } else { Err(FormError::Name(name)) }
}

fn report(value: Value) -> Result<PhoneReport, FormError> {
    let form: ReportForm = serde_json::from_value(value).map_err(|_| FormError::Report)?;
    let ReportForm { battery, charging, temperature, metered, screen_on } = form;
    Ok(PhoneReport { battery, charging, temperature, metered, screen_on }.checked()?)
}

/// The words of an error, wherever they stand.
fn problem(fields: &Map<String, Value>) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(inner) => inner.get("message").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    let within = |fields: &Map<String, Value>| ["error", "message"].iter().find_map(|name| text(fields.get(*name)?));
    within(fields).or_else(|| within(data(fields)?)).unwrap_or_else(|| "an error, and not which".into())
}

/// Printable, on one line, and not longer than so many letters.
fn shown(text: &str, letters: usize) -> String {
    text.trim().chars().take(letters).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Message, FormError> {
        Message::read(body.as_bytes())
    }

    #[test]
    fn the_three_shapes_of_the_example_apps_say_the_same() {
        for body in [
            r#"{"event":"started","url":"https://a.acu.run"}"#,
            r#"{"event":"started","webUrl":"https://a.acu.run","url":null,"port":8080}"#,
            r#"{"event":"started","data":{"url":" https://a.acu.run ","other":[1]},"timestamp":1}"#,
            r#"{"event":"started","url":"","webUrl":"https://a.acu.run"}"#,
        ] {
            let message = read(body).unwrap();
            assert_eq!((message.word, message.url.as_deref()), (Word::Started, Some("https://a.acu.run")), "{body}");
        }
    }

    #[test]
    fn later_events_need_no_address() {
        for (body, word) in [
            (r#"{"event":"ready"}"#, Word::Ready),
            (r#"{"event":"model_ready","data":{"model":"x","seconds":12}}"#, Word::Ready),
            (r#"{"event":"leaving"}"#, Word::Leaving),
            (r#"{"event":"heartbeat"}"#, Word::Heartbeat),
            (r#"{"event":"download_failed"}"#, Word::Error),
            (r#"{"event":"downloading","data":{"percent":7}}"#, Word::Other),
        ] {
            assert_eq!(read(body).unwrap().word, word, "{body}");
        }
    }

    #[test]
    fn a_place_is_text_or_as_the_chains_libraries_have_it() {
        let place = |body: &str| read(body).map(|message| (message.deployment.unwrap(), message.processor.unwrap()));
        let own = ("Acurast:5Grw:4711".to_owned(), "5Fphone".to_owned());
        for body in [
            r#"{"event":"ready","deployment":"Acurast:5Grw:4711","processor":"5Fphone"}"#,
            r#"{"event":"ready","jobId":[{"acurast":"5Grw"},4711],"processorAddress":"5Fphone"}"#,
        ] {
            assert_eq!(place(body).unwrap(), own, "{body}");
        }
        for (body, why) in [
            (r#"{"event":"ready","deployment":"a"}"#, FormError::HalfPlace),
            (r#"{"event":"ready","deployment":"a b","processor":"p"}"#, FormError::Name("deployment")),
            (r#"{"event":"ready","deployment":[1],"processor":"p"}"#, FormError::Name("deployment")),
            (r#"{"event":"ready","deployment":"a","processor":{}}"#, FormError::Name("processor")),
            (r#"{"event":"ready","deployment":"a","processor":""}"#, FormError::Name("processor")),
        ] {
            assert_eq!(read(body).unwrap_err(), why, "{body}");
        }
        let long = format!(r#"{{"event":"ready","deployment":"{}","processor":"p"}}"#, "a".repeat(200));
        assert_eq!(read(&long).unwrap_err(), FormError::Name("deployment"));
    }

    #[test]
    fn a_report_is_read_strictly() {
        let body =
            r#"{"event":"heartbeat","report":{"battery":81,"charging":true,"temperature":36.5,"metered":false}}"#;
        let report = read(body).unwrap().report.unwrap();
        assert_eq!((report.battery, report.charging, report.screen_on), (Some(81.0), Some(true), None));
        for report in [r#"{"battery":"81"}"#, r#"{"batery":81}"#, "7", r#"{"battery":101}"#, r#"{"temperature":9e9}"#] {
            let error = read(&format!(r#"{{"event":"heartbeat","report":{report}}}"#)).unwrap_err();
            assert!(error.to_string().starts_with("report"), "{report}: {error}");
        }
    }

    #[test]
    fn the_words_of_an_error_are_found_and_can_do_nothing() {
        let problem = |body: &str| read(body).unwrap().problem.unwrap();
        assert_eq!(problem(r#"{"event":"error","error":"out of memory"}"#), "out of memory");
        assert_eq!(problem(r#"{"event":"error","data":{"message":"no network"}}"#), "no network");
        assert_eq!(problem(r#"{"event":"error","error":{"message":"a\nb\u001b[2J"}}"#), "a b [2J");
        assert_eq!(problem(r#"{"event":"error"}"#), "an error, and not which");
        let long = problem(&format!(r#"{{"event":"error","message":"{}"}}"#, "ä".repeat(5_000)));
        assert_eq!(long.chars().count(), MAX_PROBLEM);
    }

    #[test]
    fn what_says_nothing_is_refused_in_words_that_help() {
        for (body, why) in [
            ("", FormError::NotJson),
            ("{", FormError::NotJson),
            ("event=started", FormError::NotJson),
            ("[]", FormError::NoEvent),
            ("null", FormError::NoEvent),
            (r#"{"url":"https://a.acu.run"}"#, FormError::NoEvent),
            (r#"{"event":7}"#, FormError::NoEvent),
            (r#"{"event":" "}"#, FormError::NoEvent),
            (r#"{"event":"started"}"#, FormError::NoAddress),
            (r#"{"event":"started","url":7}"#, FormError::NotText("url")),
            (r#"{"event":"started","data":{"url":[]}}"#, FormError::NotText("data.url")),
        ] {
            assert_eq!(read(body).unwrap_err(), why, "{body}");
        }
        assert_eq!(read(&"[".repeat(16_000)).unwrap_err(), FormError::NotJson);
    }
}
