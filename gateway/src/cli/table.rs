//! Output for people and for scripts: tables with aligned columns, nothing a terminal could take for a command; JSON.

use std::io::{self, Write};

use serde_json::Value;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under a heading.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these columns.
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; cells that are missing stay empty. Names come from phones and clients: what is not printable is shown
    /// escaped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().take(self.columns.len()).map(|cell| printable(&cell)).collect());
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes heading and rows, two spaces between columns.
    ///
    /// # Errors
    /// The output can't be written.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let cell = |line: &Vec<String>, column: usize| line.get(column).cloned().unwrap_or_default();
        let width =
            |column: usize| lines.iter().map(|line| cell(line, column).chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for line in &lines {
            let mut text = String::new();
            for (column, ((_, align), width)) in self.columns.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                let cell = cell(line, column);
                match align {
                    Align::Left => text.push_str(&format!("{gap}{cell:<width$}")),
                    Align::Right => text.push_str(&format!("{gap}{cell:>width$}")),
                }
            }
            writeln!(out, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// A field of an answer as a cell; `-` when it is not there.
pub fn cell(object: &Value, field: &str) -> String {
    match &object[field] {
        Value::Null => "-".into(),
        Value::String(text) => printable(text),
        other => other.to_string(),
    }
}

/// Names in one cell; `-` when there are none.
pub fn names(list: &Value) -> String {
    let names: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if names.is_empty() { "-".into() } else { names.join(",") }
}

/// Writes an answer for scripts.
///
/// # Errors
/// The output can't be written.
pub fn print_json(out: &mut dyn Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{value:#}")
}

/// The text with everything escaped that is not a visible character or a space.
pub fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|letter| {
            let hidden = letter.is_control() || matches!(letter, '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}');
            let escaped = if hidden { letter.escape_default().to_string() } else { letter.to_string() };
            escaped.chars().collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(table: &Table) -> String {
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("NAME", Align::Left), ("SLOTS", Align::Right), ("STATE", Align::Left)]);
        table.row(["kůň".into(), "4".into(), "ready".into()]);
        table.row(["a-long-name".into(), "1024".into()]);
        let expected = "NAME         SLOTS  STATE\nkůň              4  ready\na-long-name   1024\n";
        assert_eq!(written(&table), expected);
    }

    #[test]
    fn what_could_steer_a_terminal_is_shown_escaped() {
        let mut table = Table::new(&[("NAME", Align::Left)]);
        table.row(["\u{1b}[2J\r\nevil\u{202e}".into()]);
        let text = written(&table);
        assert_eq!(text.lines().nth(1), Some("\\u{1b}[2J\\r\\nevil\\u{202e}"));
    }
}
