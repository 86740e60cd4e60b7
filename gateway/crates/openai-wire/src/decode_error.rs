//! Why a request body was refused: what was wrong, where, and what would be right.

use crate::json::{Flaw, MAX_DEPTH};
use std::borrow::Cow;

/// A refused body. `Display` is the message for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No byte, or only white space.
    #[error("The request body is empty; send a JSON object.")]
    Empty,
    /// Not UTF-8.
    #[error("The request body is not valid UTF-8 (line {line}, column {column}); send JSON in UTF-8.")]
    Encoding {
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
    },
    /// Not JSON, or JSON that engines refuse.
    #[error("The request body is not valid JSON: {flaw} (line {line}, column {column}).")]
    Json {
        /// What is wrong.
        flaw: Flaw,
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
    },
    /// Nested too deep.
    #[error("The request body is nested deeper than {MAX_DEPTH} levels (line {line}, column {column}).")]
    Depth {
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
    },
    /// JSON, but not an object.
    #[error("The request body must be a JSON object, but it is {found}.")]
    NotAnObject {
        /// What it is, with its article.
        found: &'static str,
    },
    /// A parameter that must be there is not.
    #[error("Missing required parameter: '{param}' ({expected}).")]
    Missing {
        /// The parameter.
        param: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A parameter of the wrong JSON type.
    #[error("Invalid type for '{param}': expected {expected}, but got {found}.")]
    Type {
        /// The parameter, with an index where that helps (`messages[3]`).
        param: Cow<'static, str>,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// The right type, but not a value that means something.
    #[error("Invalid value for '{param}': expected {expected}.")]
    Value {
        /// The parameter.
        param: &'static str,
        /// What would be right.
        expected: &'static str,
    },
    /// An array that must not be empty.
    #[error("Invalid '{param}': empty array. Expected at least one element.")]
    EmptyArray {
        /// The parameter.
        param: &'static str,
    },
    /// A parameter that stands there twice: two readers could take different ones.
    #[error("Duplicate parameter: '{param}' appears more than once; send it once.")]
    Duplicate {
        /// The parameter.
        param: &'static str,
    },
}

impl DecodeError {
    /// The message for the client (the same as `Display`).
    pub fn message(&self) -> String {
        self.to_string()
    }

    /// The parameter at fault, if one is.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Missing { param, .. }
            | Self::Value { param, .. }
            | Self::EmptyArray { param }
            | Self::Duplicate { param } => Some(param),
            Self::Type { param, .. } => Some(param),
            Self::Empty | Self::Encoding { .. } | Self::Json { .. } | Self::Depth { .. } | Self::NotAnObject { .. } => {
                None
            }
        }
    }

    /// The machine-readable code.
    pub fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::Empty | Self::Encoding { .. } | Self::Json { .. } | Self::Depth { .. } => "invalid_json",
            Self::NotAnObject { .. } | Self::Type { .. } => "invalid_type",
            Self::Missing { .. } => "missing_required_parameter",
            Self::Value { .. } => "invalid_value",
            Self::EmptyArray { .. } => "empty_array",
            Self::Duplicate { .. } => "duplicate_parameter",
        })
    }
}
