//! Lines of the output and the error file, and the line of an input file that they answer.

use std::{
    borrow::Cow,
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

/// One line of an input file. All members are optional here: which is missing is told with its name.
#[derive(Debug, Deserialize)]
pub struct Entry<'a> {
    /// Its owner's name for it.
    #[serde(borrow, default)]
    pub custom_id: Option<Text<'a>>,
    /// `POST`.
    #[serde(borrow, default)]
    pub method: Option<Text<'a>>,
    /// The path of its route.
    #[serde(borrow, default)]
    pub url: Option<Text<'a>>,
    /// The request's body.
    #[serde(borrow, default)]
    pub body: Option<&'a RawValue>,
}

/// A member that should be a string.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Text<'a> {
    /// It is.
    String(#[serde(borrow)] Cow<'a, str>),
    /// It is not.
    Other(IgnoredAny),
}

impl Text<'_> {
    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            Self::Other(_) => None,
        }
    }
}

/// The model that a request's body names; `None`: it names none, or is no object.
pub fn model_of(body: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        model: Cow<'a, str>,
    }
    serde_json::from_str::<Body<'_>>(body.get())
        .ok()
        .map(|body| body.model.into_owned())
        .filter(|name| !name.is_empty())
}

/// Equal for bodies that begin alike: their prompts probably do as well.
pub fn affinity(body: &RawValue) -> i64 {
    /// Bytes that are compared. 1 KiB: a system prompt that is worth sharing has more, and what comes before it in the body
    /// has less.
    const COMPARED: usize = 1 << 10;
    let bytes = body.get().as_bytes();
    // Without keys, so that it is the same in every process: it only puts lines in an order.
    let mut hasher = DefaultHasher::new();
    bytes[..bytes.len().min(COMPARED)].hash(&mut hasher);
    hasher.finish().cast_signed()
}

/// Where in `line` the body of its request is.
pub fn body_of(line: &Bytes) -> Option<Bytes> {
    let entry: Entry<'_> = serde_json::from_slice(line).ok()?;
    Some(line.slice_ref(entry.body?.get().as_bytes()))
}

#[derive(Serialize)]
struct Answered<'a> {
    id: String,
    custom_id: &'a str,
    response: Response<'a>,
    error: Option<Failure<'a>>,
}

#[derive(Serialize)]
struct Response<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct Unanswered<'a> {
    id: String,
    custom_id: &'a str,
    response: Option<Response<'a>>,
    error: Failure<'a>,
}

#[derive(Serialize)]
struct Failure<'a> {
    code: &'a str,
    message: &'a str,
}

/// The line of a request that was answered, whatever the answer. `None`: the body is not JSON.
pub fn answered(custom_id: &str, request_id: &str, status_code: u16, body: &[u8]) -> Option<Vec<u8>> {
    let body: &RawValue = serde_json::from_slice(body).ok()?;
    let id = format!("batch_{request_id}");
    let response = Response { status_code, request_id, body };
    serde_json::to_vec(&Answered { id, custom_id, response, error: None }).ok().map(one_line)
}

/// The line of a request that has no answer. `name` tells it from all others.
pub fn unanswered(custom_id: &str, name: &str, code: &str, message: &str) -> Vec<u8> {
    let id = format!("batch_req_{name}");
    // Strings always serialise.
    let line = serde_json::to_vec(&Unanswered { id, custom_id, response: None, error: Failure { code, message } });
    one_line(line.unwrap_or_default())
}

/// The same JSON as one line for everybody: many programs cut text also where Unicode has line ends.
fn one_line(mut json: Vec<u8>) -> Vec<u8> {
    // These are nowhere but in strings.
    const ENDS: [(&[u8], &[u8]); 3] =
        [(b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029")];
    // Raw ones are white space: in a string they would be an error.
    for byte in &mut json {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    let end_at = |json: &[u8]| ENDS.into_iter().find(|(raw, _)| json.starts_with(raw));
    if !json.iter().enumerate().any(|(at, byte)| matches!(byte, 0xc2 | 0xe2) && end_at(&json[at..]).is_some()) {
        return json;
    }
    let (mut line, mut rest) = (Vec::with_capacity(json.len() + 64), &json[..]);
    while let Some(&byte) = rest.first() {
        let (written, length) = match end_at(rest) {
            Some((raw, escaped)) => (escaped, raw.len()),
            None => (&[byte][..], 1),
        };
        line.extend_from_slice(written);
        rest = &rest[length..];
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_answer_is_one_line_with_its_body_as_it_was() {
        let body = b"{\"a\":\n [1.50, \"x\\n\"]\r\n}";
        let line = answered("Zeile \"1\"", "req_7", 200, body).expect("JSON");
        assert!(!line.contains(&b'\n') && !line.contains(&b'\r'));
        let text = String::from_utf8(line).expect("UTF-8");
        assert!(text.contains("1.50"), "numbers stay as they were written: {text}");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        let response = json!({"status_code": 200, "request_id": "req_7", "body": {"a": [1.5, "x\n"]}});
        assert_eq!(
            value,
            json!({"id": "batch_req_7", "custom_id": "Zeile \"1\"", "response": response, "error": null})
        );
        assert_eq!(answered("x", "req_7", 200, b"<html>"), None);
        assert_eq!(answered("x", "req_7", 200, b"{\"a\":\"b\nc\"}"), None, "a raw line break in a string");
    }

    #[test]
    fn no_program_finds_a_second_line_in_a_line() {
        let said = "eins\u{2028}zwei\u{2029}drei\u{85}vier – é € Â \u{2027}\u{202a}";
        let body = json!({"a": said}).to_string();
        for line in [answered(said, "req_7", 200, body.as_bytes()).expect("JSON"), unanswered(said, "n", "code", said)]
        {
            let text = String::from_utf8(line).expect("UTF-8");
            assert!(!text.contains(['\u{2028}', '\u{2029}', '\u{85}']), "{text}");
            assert!(text.contains("– é € Â \u{2027}\u{202a}"), "{text}");
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(value["custom_id"], said);
            assert_eq!(value.pointer("/response/body/a").unwrap_or(&value["error"]["message"]), said);
        }
    }

    #[test]
    fn a_request_without_an_answer_says_why() {
        let value: Value = serde_json::from_slice(&unanswered("c", "b_9", "batch_expired", "Too late.")).expect("JSON");
        let error = json!({"code": "batch_expired", "message": "Too late."});
        assert_eq!(value, json!({"id": "batch_req_b_9", "custom_id": "c", "response": null, "error": error}));
    }

    #[test]
    fn lines_that_begin_alike_belong_together() {
        let body = |system: &str, user: &str| {
            let body = json!({"model": "m", "messages": [system, user]}).to_string();
            RawValue::from_string(body).expect("JSON")
        };
        let (rules, other) = ("Sei streng. ".repeat(200), "Sei milde. ".repeat(200));
        assert_eq!(affinity(&body(&rules, "eins")), affinity(&body(&rules, "zwei")));
        assert_ne!(affinity(&body(&rules, "eins")), affinity(&body(&other, "eins")));
        assert_eq!(model_of(&body("", "")).as_deref(), Some("m"));
        let line = Bytes::from(format!(" {{\"body\": {} , \"custom_id\":\"ü\"}} ", body("s", "u").get()));
        assert_eq!(body_of(&line).as_deref(), Some(body("s", "u").get().as_bytes()));
    }
}
