//! API keys: their form, how they are made, and how they are remembered without being known.
//!
//! A new key is `hg-` and 40 random letters and digits (238 bits), so a fast keyed hash is enough: there is nothing to
//! guess, and a slow password hash would be a way to burn the gateway's CPU. Stored is HMAC-SHA-256 under a pepper
//! that belongs to this installation: a stolen table of digests can't be matched with keys found elsewhere.

use std::fmt;

use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};

/// What starts every key that the gateway makes.
const PREFIX: &str = "hg-";
const RANDOM_LETTERS: usize = 40;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Letters of a key that may be shown: enough to tell keys apart, and 214 bits remain.
const SHOWN: usize = PREFIX.len() + 4;

/// The form of a key, for people.
pub const RULE: &str = "16 to 256 of a-z, A-Z, 0-9, '-', '_', '.', '~', '+', '/', '='";

/// The system gave no randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system's random number generator failed")]
pub struct NoRandomness;

/// Whether a text can be a key at all. Checked before anything is computed from it. The letters are those of a bearer
/// token (RFC 6750), so that keys made elsewhere can be stated in the configuration.
pub fn is_well_formed(key: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~+/=".contains(&byte);
    (16..=256).contains(&key.len()) && key.bytes().all(letter)
}

/// A new key.
///
/// # Errors
/// The system gave no randomness.
pub fn generate() -> Result<String, NoRandomness> {
    random_name(PREFIX, RANDOM_LETTERS)
}

/// A name that nobody can guess: `prefix` and so many letters and digits.
///
/// # Errors
/// The system gave no randomness.
pub fn random_name(prefix: &str, letters: usize) -> Result<String, NoRandomness> {
    let random = SystemRandom::new();
    let length = prefix.len() + letters;
    let mut name = String::with_capacity(length);
    name.push_str(prefix);
    let mut bytes = [0_u8; 64];
    while name.len() < length {
        random.fill(&mut bytes).map_err(|_| NoRandomness)?;
        // 248 is the largest multiple of 62 in a byte: what lies above would make the first letters likelier.
        let letters = bytes.iter().filter(|byte| **byte < 248).map(|byte| char::from(BASE62[usize::from(byte % 62)]));
        name.extend(letters.take(length - name.len()));
    }
    Ok(name)
}

/// The start of a key that may be shown in lists and logs.
pub fn shown_prefix(key: &str) -> &str {
    key.get(..SHOWN).unwrap_or("")
}

/// What is remembered of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(…)")
    }
}

/// This installation's secret ingredient of every digest.
#[derive(Clone)]
pub struct Pepper(hmac::Key);

impl Pepper {
    /// From the store's bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// A new one's bytes.
    ///
    /// # Errors
    /// The system gave no randomness.
    pub fn generate() -> Result<[u8; 32], NoRandomness> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
        Ok(bytes)
    }

    /// What is remembered of a key.
    pub fn digest(&self, key: &str) -> Digest {
        let tag = hmac::sign(&self.0, key.as_bytes());
        let mut digest = [0; 32];
        digest.copy_from_slice(tag.as_ref());
        Digest(digest)
    }

    /// Whether a digest is that of a key, in constant time.
    pub fn matches(&self, key: &str, digest: &Digest) -> bool {
        hmac::verify(&self.0, key.as_bytes(), &digest.0).is_ok()
    }
}

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pepper(***)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_have_their_form_and_use_every_letter() {
        let keys: BTreeSet<String> = (0..200).map(|_| generate().unwrap()).collect();
        assert_eq!(keys.len(), 200);
        let mut letters = BTreeSet::new();
        for key in &keys {
            assert_eq!(key.len(), 43);
            assert!(key.starts_with("hg-") && is_well_formed(key), "{key}");
            letters.extend(key[3..].bytes());
        }
        assert_eq!(letters, BASE62.iter().copied().collect());
    }

    #[test]
    fn what_no_client_could_send_is_not_a_key() {
        assert!(is_well_formed("sk-proj_1234567890.abc"));
        for text in ["", "short", "has a space in the middle", "hg-žluťoučký-kůň-úpěl", "hg-0123456789012345\r\nX: y"]
        {
            assert!(!is_well_formed(text), "{text:?}");
        }
        assert!(!is_well_formed(&"a".repeat(257)));
    }

    #[test]
    fn a_digest_depends_on_key_and_pepper() {
        let (one, two) = (Pepper::new(b"one"), Pepper::new(b"two"));
        assert_eq!(one.digest("key"), one.digest("key"));
        assert_ne!(one.digest("key"), two.digest("key"));
        assert_ne!(one.digest("key"), one.digest("kez"));
        assert!(one.matches("key", &one.digest("key")) && !one.matches("key", &two.digest("key")));
        // RFC 4231, test case 2.
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let digest = Pepper::new(b"Jefe").digest("what do ya want for nothing?");
        assert_eq!(hex::encode(digest.0), expected);
    }

    #[test]
    fn only_a_short_prefix_of_a_key_is_shown() {
        assert_eq!(shown_prefix("hg-abcdefghij"), "hg-abcd");
        assert_eq!(shown_prefix("é"), "");
    }
}
