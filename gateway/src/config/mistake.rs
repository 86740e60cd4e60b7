//! What is wrong with a configuration: all of it at once, each with its place, value, reason and remedy.

use std::{fmt, path::PathBuf};

/// Everything that is wrong, in the order of the file. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    /// At least one.
    pub mistakes: Vec<Mistake>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where it was written.
    pub place: Place,
    /// The key's path, `server.max_body`; empty for the whole file.
    pub key: String,
    /// What was written, as TOML; `None` when there is nothing to show, or a secret.
    pub value: Option<String>,
    /// Why that is wrong.
    pub why: String,
    /// What would be right.
    pub accepted: Option<String>,
    /// The key that was probably meant.
    pub suggestion: Option<String>,
}

/// Where something was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In a file; line and column count from 1.
    File {
        /// As given on the command line.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Column, in characters.
        column: usize,
    },
    /// The file as a whole.
    WholeFile {
        /// As given on the command line.
        path: PathBuf,
    },
    /// A flag of the command line.
    Flag(&'static str),
    /// Nowhere: a default that does not fit what else was written.
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::WholeFile { path } => write!(f, "{}", path.display()),
            Self::Flag(flag) => f.write_str(flag),
            Self::Default => f.write_str("default"),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        match (self.key.as_str(), &self.value) {
            ("", None) => {}
            ("", Some(value)) => write!(f, "{value}: ")?,
            (key, None) => write!(f, "{key}: ")?,
            (key, Some(value)) => write!(f, "{key} = {value}: ")?,
        }
        f.write_str(&self.why)?;
        if let Some(accepted) = &self.accepted {
            write!(f, "; accepted: {accepted}")?;
        }
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; did you mean `{suggestion}`?")?;
        }
        Ok(())
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{mistake}")?;
        }
        Ok(())
    }
}

/// The candidate most like `written`, if any is like enough: at most a third of its letters differ.
pub(super) fn nearest<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (distance(written, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, delete, replace or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(rows[i - 2][j - 2] + 1);
            }
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swapped_or_missing_letter_finds_the_key_and_a_strange_word_finds_none() {
        let keys = ["listen", "max_body", "keepalive_timeout"];
        assert_eq!(nearest("lisetn", keys), Some("listen"));
        assert_eq!(nearest("maxbody", keys), Some("max_body"));
        assert_eq!(nearest("keep_alive_timeout", keys), Some("keepalive_timeout"));
        assert_eq!(nearest("colour", keys), None);
    }

    #[test]
    fn a_mistake_reads_as_place_key_value_reason_remedy() {
        let mistake = Mistake {
            place: Place::File { path: "h.toml".into(), line: 3, column: 1 },
            key: "server.max_body".into(),
            value: Some("\"0B\"".into()),
            why: "too small".into(),
            accepted: Some("1KiB to 1GiB".into()),
            suggestion: None,
        };
        assert_eq!(mistake.to_string(), "h.toml:3:1: server.max_body = \"0B\": too small; accepted: 1KiB to 1GiB");
    }
}
