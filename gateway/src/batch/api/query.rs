//! Query strings of lists. Parameters that are not known are ignored, as OpenAI does; values that can't be right are refused.

use std::{borrow::Cow, ops::RangeInclusive};

use openai_wire::DecodeError;
use store::{PageOf, Purpose};

/// The parameters of a request.
pub(super) struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// What a list may be asked for.
pub(super) struct Bounds {
    /// Most entries at once.
    pub limit: RangeInclusive<usize>,
    /// Without a `limit`.
    pub usual: usize,
    /// The limit's range, in words.
    pub expected: &'static str,
    /// Whether a text can be the id of an entry.
    pub is_id: fn(&str) -> bool,
    /// How such an id looks, in words.
    pub id: &'static str,
}

impl<'a> Query<'a> {
    /// The parameters of a query string.
    pub(super) fn new(text: Option<&'a str>) -> Self {
        Self(form_urlencoded::parse(text.unwrap_or_default().as_bytes()).collect())
    }

    fn one(&self, param: &'static str) -> Result<Option<&str>, DecodeError> {
        let mut values = self.0.iter().filter(|(name, _)| name == param).map(|(_, value)| &**value);
        let first = values.next();
        if values.next().is_some() { Err(DecodeError::Duplicate { param }) } else { Ok(first) }
    }

    /// `limit`, `after` and `order`.
    pub(super) fn page(&self, bounds: &Bounds) -> Result<PageOf, DecodeError> {
        let limit = match self.one("limit")? {
            None => bounds.usual,
            Some(text) => {
                let number = text.parse().ok().filter(|limit| bounds.limit.contains(limit));
                number
                    .filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
                    .ok_or(DecodeError::Value { param: "limit", expected: bounds.expected })?
            }
        };
        let after = self.one("after")?.map(str::to_owned);
        if after.as_deref().is_some_and(|id| !(bounds.is_id)(id)) {
            return Err(DecodeError::Value { param: "after", expected: bounds.id });
        }
        let ascending = match self.one("order")? {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(DecodeError::Value { param: "order", expected: "asc or desc" }),
        };
        Ok(PageOf { after, limit, ascending })
    }

    /// `purpose`.
    pub(super) fn purpose(&self) -> Result<Option<Purpose>, DecodeError> {
        let wrong = DecodeError::Value { param: "purpose", expected: "batch or batch_output" };
        self.one("purpose")?.map(|name| Purpose::by_name(name).ok_or(wrong)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        limit: 1..=100,
        usual: 20,
        expected: "a whole number from 1 to 100",
        is_id: super::super::id::is_batch,
        id: "the id of a batch",
    };

    #[test]
    fn what_is_not_said_is_usual_and_what_is_unknown_is_ignored() {
        let usual = PageOf { after: None, limit: 20, ascending: false };
        for text in [None, Some(""), Some("&&"), Some("colour=red"), Some("Limit=7")] {
            assert_eq!(Query::new(text).page(&BOUNDS), Ok(usual.clone()), "{text:?}");
        }
        let asked = Query::new(Some("limit=100&after=batch_a-b&order=asc&x=y&x=z"));
        let page = PageOf { after: Some("batch_a-b".into()), limit: 100, ascending: true };
        assert_eq!(asked.page(&BOUNDS), Ok(page));
        assert_eq!(Query::new(Some("purpose=batch_output")).purpose(), Ok(Some(Purpose::BatchOutput)));
    }

    #[test]
    fn a_wrong_value_is_named() {
        for (text, param) in [
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=+5", "limit"),
            ("limit=5.0", "limit"),
            ("limit=", "limit"),
            ("limit=99999999999999999999999", "limit"),
            ("limit=1&limit=1", "limit"),
            ("after=", "after"),
            ("after=file-a", "after"),
            ("after=batch_%00", "after"),
            ("order=up", "order"),
        ] {
            let error = Query::new(Some(text)).page(&BOUNDS).expect_err(text);
            assert_eq!(error.param(), Some(param), "{text}");
        }
        assert!(Query::new(Some("purpose=fine-tune")).purpose().is_err());
    }
}
