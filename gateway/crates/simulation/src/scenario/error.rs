//! What can be wrong with a scenario file.

use std::fmt;

/// Why a file is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// It is not JSON, or a key is unknown, missing or of another type.
    #[error("not a scenario: {0}")]
    Text(#[from] serde_json::Error),
    /// It can be read and makes no sense.
    #[error("not a scenario that can be played: {}", Listed(.0))]
    Sense(Vec<String>),
}

/// Mistakes, one a line if there are several.
struct Listed<'a>(&'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [only] => f.write_str(only),
            many => many.iter().try_for_each(|mistake| write!(f, "\n  {mistake}")),
        }
    }
}
