//! Reading a TOML table while gathering every mistake in it.
//!
//! Serde's derive stops at the first mistake; whoever writes a scenario wants them all, with their lines. A [`Table`] is
//! asked for keys, notes which were asked for, and calls every other key unknown when it is closed.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fmt::{self, Display},
    ops::{Range, RangeInclusive},
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Something wrong in a scenario file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Line in the file, from 1.
    pub line: usize,
    /// Path of the key, such as `classes[1].arrivals.poisson`; empty for broken syntax.
    pub key: String,
    /// What is wrong.
    pub why: String,
}

impl Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.key.is_empty() { "" } else { ": " };
        write!(f, "line {}: {}{colon}{}", self.line, self.key, self.why)
    }
}

/// The mistakes found so far in one file.
pub(super) struct Gathered<'t> {
    text: &'t str,
    found: RefCell<Vec<Mistake>>,
}

impl<'t> Gathered<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, found: RefCell::default() }
    }

    pub(super) fn add(&self, at: usize, key: &str, why: impl Display) {
        let line = 1 + self.text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count();
        self.found.borrow_mut().push(Mistake { line, key: key.to_owned(), why: why.to_string() });
    }

    pub(super) fn into_sorted(self) -> Vec<Mistake> {
        let mut found = self.found.into_inner();
        found.sort_by(|a, b| a.line.cmp(&b.line).then_with(|| a.key.cmp(&b.key)));
        found
    }
}

/// A table being read.
pub(super) struct Table<'t> {
    values: &'t DeTable<'t>,
    path: String,
    at: usize,
    gathered: &'t Gathered<'t>,
    asked: RefCell<BTreeSet<&'static str>>,
}

/// A value with its place.
pub(super) struct Item<'t> {
    pub(super) value: &'t DeValue<'t>,
    pub(super) path: String,
    pub(super) at: usize,
    gathered: &'t Gathered<'t>,
}

impl Item<'_> {
    pub(super) fn wrong(&self, why: impl Display) {
        self.gathered.add(self.at, &self.path, why);
    }
}

impl<'t> Table<'t> {
    pub(super) fn new(values: &'t DeTable<'t>, path: String, at: usize, gathered: &'t Gathered<'t>) -> Self {
        Self { values, path, at, gathered, asked: RefCell::default() }
    }

    /// Path of a key in this table.
    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Reports a mistake of the table as a whole.
    pub(super) fn wrong(&self, why: impl Display) {
        self.gathered.add(self.at, &self.path, why);
    }

    /// Reports a mistake of a key, at its place if it has one.
    pub(super) fn wrong_at(&self, key: &'static str, why: impl Display) {
        let at = self.find(key).map_or(self.at, |span| span.start);
        self.gathered.add(at, &self.path_of(key), why);
    }

    fn find(&self, key: &str) -> Option<Range<usize>> {
        self.values.iter().find(|(name, _)| name.get_ref() == key).map(|(name, _)| name.span())
    }

    /// A key's value, if it is there.
    pub(super) fn item(&self, key: &'static str) -> Option<Item<'t>> {
        self.asked.borrow_mut().insert(key);
        let (_, value) = self.values.iter().find(|(name, _)| name.get_ref() == key)?;
        Some(self.item_of(key, value))
    }

    fn item_of(&self, key: &str, value: &'t Spanned<DeValue<'t>>) -> Item<'t> {
        Item { value: value.get_ref(), path: self.path_of(key), at: value.span().start, gathered: self.gathered }
    }

    /// All keys with their values; none of them is unknown any more.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'t str, Item<'t>)> + '_ {
        self.values.iter().map(|(key, value)| (key.get_ref().as_ref(), self.item_of(key.get_ref(), value)))
    }

    /// A mistake if the key is missing.
    pub(super) fn demand(&self, key: &'static str) {
        if self.find(key).is_none() {
            self.gathered.add(self.at, &self.path_of(key), "is missing");
        }
    }

    pub(super) fn text(&self, key: &'static str) -> Option<String> {
        let item = self.item(key)?;
        let text = as_text(item.value);
        if text.is_none() {
            item.wrong("expected text");
        }
        text.map(str::to_owned)
    }

    pub(super) fn flag(&self, key: &'static str) -> Option<bool> {
        let item = self.item(key)?;
        if let DeValue::Boolean(value) = item.value {
            return Some(*value);
        }
        item.wrong("expected true or false");
        None
    }

    pub(super) fn number(&self, key: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let item = self.item(key)?;
        item.number(range)
    }

    pub(super) fn count(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let item = self.item(key)?;
        let value = as_number(item.value).filter(|value| value.fract() == 0.0 && *value >= 0.0);
        let value = value.map(|value| value as u64).filter(|value| range.contains(value));
        if value.is_none() {
            item.wrong(format_args!("expected a whole number from {} to {}", range.start(), range.end()));
        }
        value
    }

    /// A length of time, as seconds.
    pub(super) fn seconds(&self, key: &'static str) -> Option<f64> {
        let item = self.item(key)?;
        let seconds = as_text(item.value).and_then(parse_seconds);
        if seconds.is_none() {
            item.wrong("expected a length of time such as \"500ms\", \"10s\" or \"2m\"");
        }
        seconds
    }

    pub(super) fn table(&self, key: &'static str) -> Option<Table<'t>> {
        self.item(key)?.table()
    }

    /// An array of tables; empty when absent.
    pub(super) fn tables(&self, key: &'static str) -> Vec<Table<'t>> {
        self.item(key).map_or_else(Vec::new, |item| item.items().into_iter().filter_map(|item| item.table()).collect())
    }

    /// Every key that nobody asked for is a mistake.
    pub(super) fn close(self) {
        let asked = self.asked.borrow();
        for (key, _) in self.values.iter().filter(|(key, _)| !asked.contains(key.get_ref().as_ref())) {
            let known = asked.iter().copied().collect::<Vec<_>>().join(", ");
            let path = self.path_of(key.get_ref());
            self.gathered.add(key.span().start, &path, format_args!("unknown key; known here: {known}"));
        }
    }
}

impl<'t> Item<'t> {
    pub(super) fn table(&self) -> Option<Table<'t>> {
        if let DeValue::Table(values) = self.value {
            return Some(Table::new(values, self.path.clone(), self.at, self.gathered));
        }
        self.wrong("expected a table");
        None
    }

    /// The elements of an array.
    pub(super) fn items(&self) -> Vec<Item<'t>> {
        let DeValue::Array(values) = self.value else {
            self.wrong("expected an array");
            return Vec::new();
        };
        let element = |(index, value): (usize, &'t Spanned<DeValue<'t>>)| Item {
            value: value.get_ref(),
            path: format!("{}[{index}]", self.path),
            at: value.span().start,
            gathered: self.gathered,
        };
        values.iter().enumerate().map(element).collect()
    }

    pub(super) fn number(&self, range: RangeInclusive<f64>) -> Option<f64> {
        let value = as_number(self.value).filter(|value| range.contains(value));
        if value.is_none() {
            if range.end().is_finite() {
                self.wrong(format_args!("expected a number from {} to {}", range.start(), range.end()));
            } else {
                self.wrong(format_args!("expected a number, {} or more", range.start()));
            }
        }
        value
    }

    /// The value as JSON, for types that read themselves.
    pub(super) fn json(&self) -> serde_json::Value {
        to_json(self.value)
    }
}

pub(super) fn as_text<'v>(value: &'v DeValue<'_>) -> Option<&'v str> {
    if let DeValue::String(text) = value { Some(text) } else { None }
}

pub(super) fn as_number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix()).ok().map(|n| n as f64),
        DeValue::Float(float) => float.as_str().parse().ok().filter(|value: &f64| value.is_finite()),
        _ => None,
    }
}

fn to_json(value: &DeValue<'_>) -> serde_json::Value {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix()).ok().into(),
        DeValue::Float(_) => as_number(value).into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Datetime(moment) => moment.to_string().into(),
        DeValue::Array(values) => values.iter().map(|value| to_json(value.get_ref())).collect(),
        DeValue::Table(values) => {
            let pairs = values.iter().map(|(key, value)| (key.get_ref().to_string(), to_json(value.get_ref())));
            serde_json::Value::Object(pairs.collect())
        }
    }
}

/// Reads `500ms`, `10s`, `1.5m`, `2h` as seconds.
pub(crate) fn parse_seconds(text: &str) -> Option<f64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let value: f64 = number.trim().parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(value * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_with_their_unit() {
        assert_eq!(parse_seconds("500ms"), Some(0.5));
        assert_eq!(parse_seconds("10s"), Some(10.0));
        assert_eq!(parse_seconds("1.5m"), Some(90.0));
        assert_eq!(parse_seconds("2h"), Some(7200.0));
        for wrong in ["", "10", "s", "-1s", "10 parsecs", "infs", "1e999s"] {
            assert_eq!(parse_seconds(wrong), None, "{wrong:?}");
        }
    }
}
