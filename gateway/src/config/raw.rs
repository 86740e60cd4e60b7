//! What was written: a TOML tree with places, read into the sections' own places.
//!
//! [`TableReader`] is the [`Visitor`] that reads. It never stops: a mistake is noted, the default stays, reading goes
//! on, so that all mistakes are told at once. Whatever key no section asked for is unknown.

use std::{
    collections::BTreeMap,
    ops::{Range, RangeInclusive},
    path::Path,
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    mistake::{Mistake, Place, nearest},
    secret::Sources,
    value::{NONE, Ranged, Refused, Value, kind, written},
    visit::{Key, Section, Visitor},
};

/// What reading gathers.
pub(super) struct Gathered<'a> {
    pub(super) mistakes: Vec<Mistake>,
    /// Where each key was written, for checks that come after reading.
    pub(super) places: BTreeMap<String, Place>,
    pub(super) sources: Sources<'a>,
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
    /// All keys of all sections, for "did you mean".
    pub(super) all_keys: &'a [String],
}

impl Gathered<'_> {
    pub(super) fn place(&self, span: Range<usize>) -> Place {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Place::File {
            path: self.file.into(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    fn note(&mut self, span: Range<usize>, key: String, value: Option<String>, why: String, accepted: Option<String>) {
        let place = self.place(span);
        self.mistakes.push(Mistake { place, key, value, why, accepted, suggestion: None });
    }
}

/// Reads one table.
pub(super) struct TableReader<'r, 'a, 'i> {
    table: &'r Spanned<DeTable<'i>>,
    path: String,
    known: Vec<&'static str>,
    gathered: &'r mut Gathered<'a>,
}

/// Reads a whole file.
pub(super) fn read_root<S: Section>(table: &Spanned<DeTable<'_>>, root: &mut S, gathered: &mut Gathered<'_>) {
    read_table(table, String::new(), root, gathered);
}

fn read_table<S: Section>(table: &Spanned<DeTable<'_>>, path: String, place: &mut S, gathered: &mut Gathered<'_>) {
    let mut reader = TableReader { table, path, known: Vec::new(), gathered };
    place.visit(&mut reader);
    reader.refuse_unknown_keys();
}

/// A key's path, as TOML would write it.
fn join(path: &str, name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let name = if bare { name.to_owned() } else { format!("{name:?}") };
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

impl<'r, 'i> TableReader<'r, '_, 'i> {
    /// The value of a key, if it was written; and the key is known from now on.
    fn find(&mut self, name: &'static str) -> Option<(String, &'r Spanned<DeValue<'i>>)> {
        self.known.push(name);
        let (key, value) = self.table.get_ref().iter().find(|(key, _)| key.get_ref() == name)?;
        let path = join(&self.path, name);
        let place = self.gathered.place(key.span());
        self.gathered.places.insert(path.clone(), place);
        Some((path, value))
    }

    fn read_value<T: Value>(&mut self, path: &str, raw: &Spanned<DeValue<'_>>) -> Option<T> {
        match T::read(raw.get_ref(), &self.gathered.sources) {
            Ok(value) => Some(value),
            Err(Refused { why, secret }) => {
                let value = (!secret).then(|| written(raw.get_ref()));
                self.gathered.note(raw.span(), path.into(), value, why, Some(T::ACCEPTED.into()));
                None
            }
        }
    }

    fn expect_table(&mut self, path: &str, raw: &'r Spanned<DeValue<'i>>) -> Option<Spanned<DeTable<'i>>> {
        if let DeValue::Table(table) = raw.get_ref() {
            return Some(Spanned::new(raw.span(), table.clone()));
        }
        let why = format!("a table is expected here, not {}", kind(raw.get_ref()));
        self.gathered.note(raw.span(), path.into(), Some(written(raw.get_ref())), why, None);
        None
    }

    fn refuse_unknown_keys(self) {
        for (key, _) in self.table.get_ref().iter() {
            let name = key.get_ref().as_ref();
            if self.known.contains(&name) {
                continue;
            }
            let here = nearest(name, self.known.iter().copied()).map(|known| join(&self.path, known));
            let ending = format!(".{name}");
            let elsewhere = || self.gathered.all_keys.iter().find(|known| known.ends_with(&ending)).cloned();
            self.gathered.mistakes.push(Mistake {
                place: self.gathered.place(key.span()),
                key: join(&self.path, name),
                value: None,
                why: "unknown key".into(),
                accepted: None,
                suggestion: here.or_else(elsewhere),
            });
        }
    }
}

impl Visitor for TableReader<'_, '_, '_> {
    fn value<T: Value>(&mut self, key: Key, place: &mut T) {
        if let Some((path, raw)) = self.find(key.name)
            && let Some(value) = self.read_value(&path, raw)
        {
            *place = value;
        }
    }

    fn ranged<T: Ranged>(&mut self, key: Key, place: &mut T, range: RangeInclusive<T::Inner>) {
        let Some((path, raw)) = self.find(key.name) else { return };
        let Some(value) = self.read_value::<T>(&path, raw) else { return };
        if value.inner().is_none_or(|inner| range.contains(inner)) {
            *place = value;
            return;
        }
        let below = value.inner().is_some_and(|inner| inner < range.start());
        let accepted = format!("{} to {}", range.start().show(), range.end().show());
        let why = if below { "too small" } else { "too large" };
        self.gathered.note(raw.span(), path, Some(written(raw.get_ref())), why.into(), Some(accepted));
    }

    fn required<T: Value>(&mut self, key: Key, place: &mut T) {
        self.value(key, place);
        if !self.table.get_ref().iter().any(|(written, _)| written.get_ref() == key.name) {
            let path = join(&self.path, key.name);
            self.gathered.note(self.table.span(), path, None, "missing".into(), Some(T::ACCEPTED.into()));
        }
    }

    fn list<T: Value>(&mut self, key: Key, place: &mut Vec<T>) {
        let Some((path, raw)) = self.find(key.name) else { return };
        let why = match raw.get_ref() {
            DeValue::Array(array) => {
                let read =
                    |(index, raw): (usize, &Spanned<DeValue<'_>>)| self.read_value(&format!("{path}[{index}]"), raw);
                *place = array.iter().enumerate().filter_map(read).collect();
                return;
            }
            DeValue::Table(_) => "an array is expected here, not a table",
            DeValue::String(text) if text == NONE => "an array is expected here, and an empty one is written []",
            _ => {
                *place = self.read_value(&path, raw).into_iter().collect();
                return;
            }
        };
        self.gathered.note(raw.span(), path, None, why.into(), Some(format!("an array; each: {}", T::ACCEPTED)));
    }

    fn map<T: Value>(&mut self, key: Key, place: &mut BTreeMap<String, T>) {
        let Some((path, raw)) = self.find(key.name) else { return };
        let Some(table) = self.expect_table(&path, raw) else { return };
        place.clear();
        for (name, raw) in table.get_ref().iter() {
            if let Some(value) = self.read_value(&join(&path, name.get_ref()), raw) {
                place.insert(name.get_ref().to_string(), value);
            }
        }
    }

    fn section<S: Section>(&mut self, name: &'static str, place: &mut S) {
        let Some((path, raw)) = self.find(name) else { return };
        if let Some(table) = self.expect_table(&path, raw) {
            read_table(&table, path, place, self.gathered);
        }
    }

    fn named<S: Section + Clone>(&mut self, name: &'static str, place: &mut BTreeMap<String, S>, start: &S) {
        let Some((path, raw)) = self.find(name) else { return };
        let Some(tables) = self.expect_table(&path, raw) else { return };
        for (name, raw) in tables.get_ref().iter() {
            let path = join(&path, name.get_ref());
            let written_at = self.gathered.place(name.span());
            self.gathered.places.insert(path.clone(), written_at);
            if let DeValue::Table(table) = raw.get_ref() {
                let mut section = start.clone();
                read_table(&Spanned::new(raw.span(), table.clone()), path, &mut section, self.gathered);
                place.insert(name.get_ref().to_string(), section);
            } else {
                let why = format!("a table is expected here, not {}", kind(raw.get_ref()));
                self.gathered.note(raw.span(), path, None, why, None);
            }
        }
    }

    fn tables<S: Section + Default>(&mut self, name: &'static str, place: &mut Vec<S>) {
        let Some((path, raw)) = self.find(name) else { return };
        let DeValue::Array(array) = raw.get_ref() else {
            let why = format!("an array of tables is expected here, not {}", kind(raw.get_ref()));
            self.gathered.note(raw.span(), path.clone(), None, why, Some(format!("[[{path}]]")));
            return;
        };
        for (index, raw) in array.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let written_at = self.gathered.place(raw.span());
            self.gathered.places.insert(path.clone(), written_at);
            let mut section = S::default();
            if let DeValue::Table(table) = raw.get_ref() {
                read_table(&Spanned::new(raw.span(), table.clone()), path, &mut section, self.gathered);
                place.push(section);
            } else {
                let why = format!("a table is expected here, not {}", kind(raw.get_ref()));
                self.gathered.note(raw.span(), path, None, why, None);
            }
        }
    }
}
