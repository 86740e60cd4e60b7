//! Secrets: written in the file by reference, never printed.
//!
//! A secret in a configuration file ends up in backups, diffs and screens. The file says where it is instead:
//! `"env:NAME"` (a variable) or `"file:PATH"` (a mounted file, relative to the configuration file). A bare one is an
//! error that says so, and does not repeat it.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use ring::digest::{SHA256, digest};

/// Longest secret: a file that is larger is not a secret but a mistake.
const MAX_BYTES: usize = 8 * 1024;

/// A text that never shows: `Debug` prints `***`, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether that is the secret, in a time that depends on neither text: digests are of one length, and all of their bytes are
    /// looked at.
    pub fn is(&self, given: &str) -> bool {
        let (given, right) = (digest(&SHA256, given.as_bytes()), digest(&SHA256, self.0.as_bytes()));
        let difference = given.as_ref().iter().zip(right.as_ref()).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(difference) == 0
    }

    /// The text itself; for the one place that sends or compares it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where secrets are looked up.
pub struct Sources<'a> {
    /// Reads a variable of the environment.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// What relative paths start from.
    pub base: &'a Path,
}

/// Why a reference gave no secret. Never contains the secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The secret itself was written.
    #[error("a secret is not written here but referred to: \"env:NAME\" or \"file:PATH\"")]
    Bare,
    /// No such variable.
    #[error("the environment has no variable {0}")]
    NoVariable(String),
    /// No such file, or not readable.
    #[error("can't read {path}: {error}", path = .0.display(), error = .1)]
    Unreadable(PathBuf, std::io::Error),
    /// Nothing in it.
    #[error("{0} is empty")]
    Empty(String),
    /// Too large to be a secret.
    #[error("{0} is larger than 8KiB, too large for a secret")]
    TooLarge(String),
    /// A line break or another control character inside: it could not be sent in a header.
    #[error("{0} has a control character inside")]
    Control(String),
}

/// Follows a reference. White space around the secret (the line break at the end of a file) is dropped.
///
/// # Errors
/// The text is no reference, or leads nowhere.
pub fn resolve(reference: &str, sources: &Sources<'_>) -> Result<Secret, SecretError> {
    let text = if let Some(name) = reference.strip_prefix("env:") {
        (sources.env)(name).ok_or_else(|| SecretError::NoVariable(name.into()))?
    } else if let Some(path) = reference.strip_prefix("file:") {
        let path = sources.base.join(path);
        read_small(&path).map_err(|error| SecretError::Unreadable(path, error))?
    } else {
        return Err(SecretError::Bare);
    };
    let secret = text.trim();
    match secret {
        "" => Err(SecretError::Empty(reference.into())),
        _ if text.len() > MAX_BYTES => Err(SecretError::TooLarge(reference.into())),
        _ if secret.chars().any(char::is_control) => Err(SecretError::Control(reference.into())),
        _ => Ok(Secret::new(secret)),
    }
}

/// Reads a file, but never more than one byte past the bound: `file:/dev/zero` must end.
fn read_small(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up(reference: &str, variable: Option<&str>) -> Result<Secret, SecretError> {
        let env = |name: &str| (name == "KEY").then(|| variable.map(str::to_owned)).flatten();
        resolve(reference, &Sources { env: &env, base: Path::new(env!("CARGO_MANIFEST_DIR")) })
    }

    #[test]
    fn a_secret_never_shows_itself() {
        assert_eq!(format!("{:?}", Some(Secret::new("hg-abc"))), "Some(***)");
    }

    #[test]
    fn only_the_whole_text_is_the_secret() {
        let secret = Secret::new("secret-secret-secret");
        assert!(secret.is("secret-secret-secret"));
        assert!(!secret.is("secret-secret-secre") && !secret.is("secret-secret-secret ") && !secret.is(""));
    }

    #[test]
    fn references_are_followed_and_trimmed() {
        assert_eq!(look_up("env:KEY", Some("s3cret\n")).unwrap(), Secret::new("s3cret"));
    }

    #[test]
    fn a_bare_secret_is_refused_without_being_repeated() {
        let error = look_up("hg-very-secret", None).unwrap_err();
        assert!(matches!(error, SecretError::Bare));
        assert!(!error.to_string().contains("very"));
    }

    #[test]
    fn references_that_lead_nowhere_say_where() {
        assert!(matches!(look_up("env:OTHER", None).unwrap_err(), SecretError::NoVariable(name) if name == "OTHER"));
        assert!(matches!(look_up("env:KEY", Some("  ")).unwrap_err(), SecretError::Empty(_)));
        assert!(matches!(look_up("env:KEY", Some("a\nb")).unwrap_err(), SecretError::Control(_)));
        assert!(matches!(look_up("file:no-such-file", None).unwrap_err(), SecretError::Unreadable(..)));
        assert!(matches!(look_up("file:/dev/zero", None).unwrap_err(), SecretError::TooLarge(_)));
    }
}
