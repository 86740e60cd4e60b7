//! What came back from a probe's question, told apart by its body.
//!
//! A status alone says little behind a tunnel: a page of HTML with 200 is the tunnel's word, JSON with 503 the engine's.

use serde_json::Value;

use crate::upstream::Fetched;

/// A small answer, read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// An engine's word.
    Json(u16, Value),
    /// A web page: the tunnel's word, or some web server's. Never an engine's on an API route.
    Html(u16),
    /// Empty, or something else. Some engines refuse without a body.
    Other(u16),
}

impl Answer {
    pub(super) fn read(fetched: &Fetched) -> Self {
        let kind = fetched.content_type.as_deref().unwrap_or_default().to_ascii_lowercase();
        let body = fetched.body.trim_ascii();
        if kind.contains("html") || body.first() == Some(&b'<') {
            return Self::Html(fetched.status);
        }
        match serde_json::from_slice(body) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => Self::Json(fetched.status, value),
            _ => Self::Other(fetched.status),
        }
    }

    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Json(status, _) | Self::Html(status) | Self::Other(status) => *status,
        }
    }

    /// The body of a success.
    pub(super) fn ok(&self) -> Option<&Value> {
        match self {
            Self::Json(200..=299, value) => Some(value),
            _ => None,
        }
    }

    /// The text of an error in any of the shapes that engines use.
    pub(super) fn error(&self) -> Option<&str> {
        let Self::Json(_, value) = self else { return None };
        let error = value.get("error")?;
        error.as_str().or_else(|| error.get("message")?.as_str())
    }

    /// llama-server's answer on every route while it loads.
    pub(super) fn says_loading(&self) -> bool {
        self.status() == 503 && self.error().is_some_and(|text| text.contains("Loading model"))
    }

    /// 401 or 403 of an engine.
    pub(super) fn refuses_key(&self) -> bool {
        matches!(self, Self::Json(401 | 403, _) | Self::Other(401 | 403))
    }
}

/// What a phone says about itself is shown to people: one line of printable text, not too long.
pub(super) fn printable(text: &str, longest: usize) -> String {
    text.chars().filter(|letter| !letter.is_control() && !is_format(*letter)).take(longest).collect()
}

/// Letters that change how the text around them is shown (direction marks and the like).
fn is_format(letter: char) -> bool {
    matches!(letter, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}')
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn read(status: u16, kind: Option<&str>, body: &'static str) -> Answer {
        Answer::read(&Fetched {
            status,
            content_type: kind.map(str::to_owned),
            body: Bytes::from_static(body.as_bytes()),
        })
    }

    #[test]
    fn a_page_is_a_page_whatever_its_status_and_type_say() {
        assert_eq!(read(200, Some("text/html; charset=utf-8"), "{}"), Answer::Html(200));
        assert_eq!(read(530, Some("application/json"), "\n<!DOCTYPE html>"), Answer::Html(530));
        assert_eq!(read(200, None, "ok"), Answer::Other(200));
        assert_eq!(read(401, None, ""), Answer::Other(401));
    }

    #[test]
    fn errors_are_read_in_every_shape() {
        let loading = read(503, Some("application/json"), r#"{"error":{"code":503,"message":"Loading model"}}"#);
        assert!(loading.says_loading());
        let text = read(500, None, r#"{"error":"No current model available"}"#);
        assert_eq!(text.error(), Some("No current model available"));
        assert!(read(401, None, r#"{"detail":"no"}"#).refuses_key());
        assert!(!read(401, Some("text/html"), "<p>").refuses_key());
    }

    #[test]
    fn terminal_escapes_and_direction_marks_are_dropped() {
        assert_eq!(printable("a\u{1b}[31mb\u{202e}c\nd", 100), "a[31mbcd");
        assert_eq!(printable("abcdef", 3), "abc");
    }
}
